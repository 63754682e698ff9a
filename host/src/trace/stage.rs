//! What an instruction of our kernels computes, by the functions that it is in.

use super::source::{Frame, frames, kernel_file};
use ptx_emulator::Origin;
use serde::Serialize;
use std::fmt;

/// A stage of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum Stage {
    /// `s = scale q k^T`, capped where there is a softcap, with bias and slopes.
    #[serde(rename = "scores")]
    Scores,
    /// `p = exp(s - lse)`, or relative to a running maximum; their sum.
    #[serde(rename = "probabilities")]
    Probabilities,
    /// The logarithm of the sum.
    #[serde(rename = "lse")]
    Lse,
    /// `o = p v`.
    #[serde(rename = "o")]
    Output,
    /// `delta = sum(dO o) - dLSE`.
    #[serde(rename = "delta")]
    Delta,
    /// `dP = dO v^T`.
    #[serde(rename = "dP")]
    Dp,
    /// `dS = p (dP - delta)`.
    #[serde(rename = "dS")]
    Ds,
    /// `dQ = scale dS k`.
    #[serde(rename = "dQ")]
    Dq,
    /// `dK = scale dS^T q`.
    #[serde(rename = "dK")]
    Dk,
    /// `dV = p^T dO`.
    #[serde(rename = "dV")]
    Dv,
    /// `dBias`, sums of dS.
    #[serde(rename = "dBias")]
    DBias,
    /// `dSinks = -sum exp(sink - lse) delta`.
    #[serde(rename = "dSinks")]
    DSinks,
    /// Not known: the instruction serves several stages, or stands in no function that is known here.
    #[serde(rename = "unknown")]
    Unknown,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Scores => "scores",
            Stage::Probabilities => "probabilities",
            Stage::Lse => "lse",
            Stage::Output => "o",
            Stage::Delta => "delta",
            Stage::Dp => "dP",
            Stage::Ds => "dS",
            Stage::Dq => "dQ",
            Stage::Dk => "dK",
            Stage::Dv => "dV",
            Stage::DBias => "dBias",
            Stage::DSinks => "dSinks",
            Stage::Unknown => "unknown",
        })
    }
}

/// Threads of `backward_mma` from this one on are in key warps.
const FIRST_KEY_THREAD: u32 = 128;

/// The stage that an instruction of one of our kernels belongs to, by the line tables of its PTX.
pub fn stage(origin: &Origin) -> Stage {
    let frames = frames(origin.source.as_ref());
    let Some(kernel) = kernel_file(origin.source.as_ref()) else { return Stage::Unknown };
    let rule: fn(&Frame, u32) -> Option<Stage> = match kernel {
        "kernels/forward_mma.rs" | "kernels/forward_fma.rs" | "kernels/forward_hopper.rs" => forward,
        "kernels/forward_combine.rs" => return Stage::Output,
        "kernels/backward_mma.rs" => backward_mma,
        "kernels/backward_fma.rs" => backward_fma,
        file if file.starts_with("kernels/backward_hopper") => backward_hopper,
        "kernels/backward_delta.rs" => return Stage::Delta,
        "kernels/backward_convert.rs" => return Stage::Dq,
        file if file.starts_with("kernels/bias_gradient") => bias_gradient,
        "kernels/sink_gradient.rs" => return Stage::DSinks,
        _ => return Stage::Unknown,
    };
    // The outermost function that says it: a store packs values too.
    let found = frames.iter().find_map(|frame| rule(frame, origin.thread[0]));
    found.unwrap_or(Stage::Unknown)
}

fn forward(frame: &Frame, _thread: u32) -> Option<Stage> {
    Some(match (frame.file, frame.function) {
        (_, "multiply_transposed" | "start_scores" | "scale_rows") => Stage::Scores,
        ("attention/score/dropout.rs", _) => Stage::Probabilities,
        (file, _) if file.starts_with("attention/score") => Stage::Scores,
        (_, "multiply_accumulate" | "start_output") | ("tile/store.rs", _) => Stage::Output,
        ("attention/softmax.rs", "apply") => Stage::Output,
        ("attention/softmax.rs", "finalize_early") => Stage::Lse,
        // These two are done in halves, each with a name of its own.
        ("attention/softmax.rs", "update" | "finalize") => return None,
        ("attention/softmax.rs", _) | (_, "pack_all" | "store_probabilities") => Stage::Probabilities,
        _ => return None,
    })
}

fn backward_mma(frame: &Frame, thread: u32) -> Option<Stage> {
    let of_warps = |value, key| if thread < FIRST_KEY_THREAD { value } else { key };
    Some(match frame.function {
        "multiply_transposed" => of_warps(Stage::Scores, Stage::Dp),
        "exponents" | "exponentiate" | "probabilities" => Stage::Probabilities,
        "apply_to_dp" => Stage::Dp,
        "subtract_delta" | "range_factor" | "multiply_all" => Stage::Ds,
        "pack" | "pack_all" => of_warps(Stage::Probabilities, Stage::Ds),
        "multiply_accumulate" | "store_pairs" => of_warps(Stage::Dv, Stage::Dk),
        "multiply_left_transposed" | "add_in_lane_order" => Stage::Dq,
        _ => return None,
    })
}

fn backward_fma(frame: &Frame, _thread: u32) -> Option<Stage> {
    let says = |text: &str| frame.text.contains(text);
    Some(match frame.function {
        "exponents" | "exponentiate" | "probabilities" => Stage::Probabilities,
        "apply_to_dp" => Stage::Dp,
        "subtract_delta" | "multiply_all" => Stage::Ds,
        "multiply_left_transposed" | "add_in_lane_order" => Stage::Dq,
        "add_gradients" if says("multiply_transposed") && says("k_tile") => Stage::Scores,
        "add_gradients" if says("multiply_transposed") && says("v_tile") => Stage::Dp,
        "add_gradients" if says("multiply_accumulate") && says(" dv,") => Stage::Dv,
        "add_gradients" if says("multiply_accumulate") && says(" dk,") => Stage::Dk,
        "store_gradients" if says("dk[i] *=") => Stage::Dk,
        _ => return None,
    })
}

fn backward_hopper(frame: &Frame, _thread: u32) -> Option<Stage> {
    let says = |text: &str| frame.text.contains(text);
    Some(match frame.function {
        "exponents" | "exponents_of_either" | "exponentiate" => Stage::Probabilities,
        "probabilities" | "probabilities_of_either" => Stage::Probabilities,
        "apply_to_dp" => Stage::Dp,
        "subtract_delta" | "subtract_loaded_delta" | "range_factor" | "multiply_all" => Stage::Ds,
        _ if says("start_scores") && says("(keys") => Stage::Scores,
        _ if says("start_scores") && says("(values") => Stage::Dp,
        _ if says("start_gradient(&mut dv") || says("KeyGradient::Dv") => Stage::Dv,
        _ if says("start_gradient(dk") || says("start_gradient(&mut dk") => Stage::Dk,
        _ if says("KeyGradient::Dk") => Stage::Dk,
        _ if says("start_dq") => Stage::Dq,
        _ if says("pack::") && says("(&probability)") => Stage::Probabilities,
        _ if says("pack::") && says("(&dp)") => Stage::Ds,
        _ => return None,
    })
}

fn bias_gradient(frame: &Frame, _thread: u32) -> Option<Stage> {
    let says = |text: &str| frame.text.contains(text);
    Some(match (frame.file, frame.function) {
        ("attention/score/dropout.rs", _) => Stage::Dp,
        (file, _) if file.starts_with("attention/score") => Stage::Scores,
        (_, "store") => Stage::DBias,
        // For Hopper.
        (_, "consume") if says("scores = self.start_product") => Stage::Scores,
        (_, "consume") if says("dp = self.start_product") => Stage::Dp,
        (_, "subtract_references") => Stage::Probabilities,
        (_, "add_gradient") if says("exponent =") => Stage::Probabilities,
        (_, "add_gradient") if says("ds =") => Stage::Ds,
        (_, "add_gradient") if says("sums[") => Stage::DBias,
        (_, "make_scores") if says("multiply") => Stage::Scores,
        (_, "gradient") if says("multiply") && says("v_tile") => Stage::Dp,
        _ => return None,
    })
}
