//! From the structs of the C interface to problems and pointers.

use super::init::SAME;
use super::types::{CAttention, CBackwardArgs, CDropout, CForwardArgs, CScores, CTensor, Status};
use super::{Failure, invalid};
use crate::attention::{PreparedMask, Workspace};
use crate::error::Error;
use crate::plan::{BackwardPointers, ForwardPointers, ScorePointers};
use crate::problem::{
    AlibiSlopes, BackwardProblem, Bias, CausalAlignment, Dropout, ForwardProblem, Layout, Mask, Mode,
    Precision, ScoreLayout, Sequences,
};
use kernels_gpu::abi::Dtype;

/// The status and the text of an error.
pub fn failure(error: Error) -> Failure {
    let status = match &error {
        Error::NoDevice { .. } => Status::NoDevice,
        Error::OutOfMemory { .. }
        | Error::KernelImageMissing { .. }
        | Error::KernelImageCorrupt { .. }
        | Error::Cuda { .. }
        | Error::Findings { .. }
        | Error::Emulator { .. } => Status::DeviceFailed,
        _ => Status::InvalidArgument,
    };
    (status, error.to_string())
}

pub fn forward_problem(
    args: &CForwardArgs,
    mask: Option<&PreparedMask>,
) -> Result<ForwardProblem, Failure> {
    let mut problem = with_scores(&args.attention, &args.scores, mask)?;
    problem.dropout = dropout(&args.dropout);
    problem.num_splits = Some(args.num_splits).filter(|&splits| splits != 0);
    problem.pack_gqa = match args.pack_gqa {
        0 => None,
        1 => Some(true),
        2 => Some(false),
        other => return Err(invalid(format!("pack_gqa: expected 0, 1 or 2, got {other}"))),
    };
    problem.precision = precision(args.precision)?;
    Ok(problem)
}

fn precision(number: i32) -> Result<Option<Precision>, Failure> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Precision::Fast3)),
        2 => Ok(Some(Precision::Fma)),
        other => Err(invalid(format!("precision: expected 0, 1 or 2, got {other}"))),
    }
}

/// What both passes share.
fn attention(args: &CAttention) -> Result<ForwardProblem, Failure> {
    let CAttention { q, k, v, o, .. } = args;
    let mut problem = ForwardProblem::new(
        dtype("dtype", args.dtype)?,
        layout("q", q)?,
        layout("k", k)?,
        layout("v", v)?,
    )
    .with_output(layout("o", o)?)
    .with_output_dtype(dtype_or("output_dtype", args.output_dtype, args.dtype)?)
    .with_mask(mask(args)?)
    .with_sequences(sequences(args)?);
    problem.scale = (!args.scale.is_nan()).then_some(args.scale);
    problem.softcap = (args.softcap != 0.0).then_some(args.softcap);
    problem.wants_lse = args.lse != 0;
    Ok(problem)
}

/// The problem with what scores have beside q and k.
fn with_scores(
    args: &CAttention,
    scores: &CScores,
    mask: Option<&PreparedMask>,
) -> Result<ForwardProblem, Failure> {
    let mut problem = attention(args)?;
    if scores.bias.address != 0 {
        let layout = score_layout("bias", &scores.bias)?;
        problem.bias =
            Some(Bias { layout, dtype: dtype_or("bias_dtype", scores.bias_dtype, args.dtype)? });
    }
    problem.attn_mask = mask.map(PreparedMask::shape);
    let per_batch = flag("alibi_per_batch", scores.alibi_per_batch)?;
    problem.alibi = match (scores.alibi_slopes != 0, per_batch) {
        (false, false) => None,
        (false, true) => {
            let text = "alibi_per_batch: expected 0 without an address of alibi_slopes, got 1";
            return Err(invalid(text));
        }
        (true, false) => Some(AlibiSlopes::PerHead),
        (true, true) => Some(AlibiSlopes::PerBatchAndHead),
    };
    problem.has_sinks = scores.sinks != 0;
    Ok(problem)
}

/// None where nothing is dropped, which is also what earlier versions have.
fn dropout(&CDropout { rate, seed, offset, .. }: &CDropout) -> Option<Dropout> {
    (rate != 0.0).then_some(Dropout { rate, seed, offset })
}

fn score_pointers(scores: &CScores, mask: Option<&PreparedMask>) -> ScorePointers {
    ScorePointers {
        bias: scores.bias.address,
        mask_bits: mask.map_or(0, PreparedMask::device_pointer),
        alibi_slopes: scores.alibi_slopes,
        sinks: scores.sinks,
    }
}

pub fn forward_pointers(args: &CForwardArgs, mask: Option<&PreparedMask>) -> ForwardPointers {
    pointers(&args.attention, score_pointers(&args.scores, mask))
}

fn pointers(args: &CAttention, score: ScorePointers) -> ForwardPointers {
    ForwardPointers {
        q: args.q.address,
        k: args.k.address,
        v: args.v.address,
        o: args.o.address,
        lse: args.lse,
        cu_seqlens_q: args.cu_seqlens_q,
        cu_seqlens_k: args.cu_seqlens_k,
        score,
    }
}

pub fn backward_problem(
    args: &CBackwardArgs,
    mask: Option<&PreparedMask>,
) -> Result<BackwardProblem, Failure> {
    let mut forward = with_scores(&args.attention, &args.scores, mask)?;
    forward.dropout = dropout(&args.dropout);
    forward.precision = precision(args.precision)?;
    let deterministic = flag("deterministic", args.deterministic)?;
    let mut problem = BackwardProblem::new(forward)
        .with_d_o(layout("do", &args.d_o)?)
        .with_gradients(layout("dq", &args.dq)?, layout("dk", &args.dk)?, layout("dv", &args.dv)?)
        .with_mode(if deterministic { Mode::Deterministic } else { Mode::Fast });
    if flag("gradients_f32", args.gradients_f32)? {
        problem = problem.with_gradient_dtype(Dtype::F32);
    }
    problem.has_d_lse = args.d_lse != 0;
    if args.d_bias.address != 0 {
        let is_f32 = flag("d_bias_f32", args.d_bias_f32)?;
        // Without a bias it is wrong to ask, whatever the type.
        let dtype = forward.bias.filter(|_| !is_f32).map_or(Dtype::F32, |bias| bias.dtype);
        problem.d_bias = Some(Bias { layout: score_layout("dbias", &args.d_bias)?, dtype });
    }
    problem.wants_d_sinks = args.d_sinks != 0;
    Ok(problem)
}

pub fn backward_pointers(args: &CBackwardArgs, mask: Option<&PreparedMask>) -> BackwardPointers {
    let ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score } =
        pointers(&args.attention, score_pointers(&args.scores, mask));
    BackwardPointers {
        q,
        k,
        v,
        o,
        d_o: args.d_o.address,
        dq: args.dq.address,
        dk: args.dk.address,
        dv: args.dv.address,
        lse,
        d_lse: args.d_lse,
        cu_seqlens_q,
        cu_seqlens_k,
        score,
        d_bias: args.d_bias.address,
        d_sinks: args.d_sinks,
    }
}

pub fn workspace(args: &CBackwardArgs) -> Workspace {
    Workspace { pointer: args.workspace, bytes: args.workspace_bytes }
}

fn mask(args: &CAttention) -> Result<Mask, Failure> {
    let alignment = match args.alignment {
        0 => CausalAlignment::BottomRight,
        1 => CausalAlignment::TopLeft,
        other => return Err(invalid(format!("alignment: expected 0 or 1, got {other}"))),
    };
    let [is_causal, is_window] = match args.mask {
        0..=3 => [1, 2].map(|bit| args.mask & bit != 0),
        other => return Err(invalid(format!("mask: expected 0, 1, 2 or 3, got {other}"))),
    };
    let sides = [("window_left", args.window_left), ("window_right", args.window_right)];
    if !is_window {
        let given = sides.into_iter().find(|&(_, keys)| ![0, -1].contains(&keys));
        return match given {
            None if is_causal => Ok(Mask::Causal(alignment)),
            None => Ok(Mask::Full),
            Some((argument, got)) => Err(invalid(format!(
                "{argument}: expected 0 or -1 with a mask that has no window, got {got}"
            ))),
        };
    }
    let [left, right] = sides.map(|(argument, keys)| side(argument, keys));
    let window = Mask::Window { left: left?, right: right?, alignment };
    Ok(if is_causal { window.and_causal() } else { window })
}

/// One side of a window; -1 is open.
fn side(argument: &str, keys: i64) -> Result<Option<u32>, Failure> {
    if keys == -1 {
        return Ok(None);
    }
    let refused = |_| invalid(format!("{argument}: expected -1 to {}, got {keys}", u32::MAX));
    u32::try_from(keys).map(Some).map_err(refused)
}

/// Packed if there are offsets on either side; that both have an address is checked by the plan. Without
/// any, numbers of packed sequences would mean nothing.
fn sequences(args: &CAttention) -> Result<Sequences, Failure> {
    let numbers = [
        ("sequences", args.sequences),
        ("max_query_rows", args.max_query_rows),
        ("max_key_rows", args.max_key_rows),
    ];
    if args.cu_seqlens_q == 0 && args.cu_seqlens_k == 0 {
        return match numbers.into_iter().find(|&(_, number)| number != 0) {
            None => Ok(Sequences::Strided),
            Some((argument, got)) => Err(invalid(format!(
                "{argument}: expected 0 without addresses of cu_seqlens_q and cu_seqlens_k, got {got}"
            ))),
        };
    }
    let mut sizes = [0; 3];
    for (size, (argument, got)) in sizes.iter_mut().zip(numbers) {
        *size = usize::try_from(got)
            .map_err(|_| invalid(format!("{argument}: expected at least 0, got {got}")))?;
    }
    let [count, max_query_rows, max_key_rows] = sizes;
    Ok(Sequences::Packed { count, max_query_rows, max_key_rows })
}

pub fn dtype(argument: &str, number: i32) -> Result<Dtype, Failure> {
    match number {
        0 => Ok(Dtype::Bf16),
        1 => Ok(Dtype::F16),
        2 => Ok(Dtype::F32),
        other => Err(invalid(format!("{argument}: expected 0, 1 or 2, got {other}"))),
    }
}

/// The same, of an argument that may also be [`SAME`]: then what another one says.
pub fn dtype_or(argument: &str, number: i32, other: i32) -> Result<Dtype, Failure> {
    match number {
        SAME => dtype(argument, other),
        0..=2 => dtype(argument, number),
        got => Err(invalid(format!("{argument}: expected -1, 0, 1 or 2, got {got}"))),
    }
}

pub fn flag(argument: &str, number: i32) -> Result<bool, Failure> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(invalid(format!("{argument}: expected 0 or 1, got {other}"))),
    }
}

pub fn layout(argument: &str, tensor: &CTensor) -> Result<Layout, Failure> {
    Ok(Layout { shape: shape(argument, tensor)?, strides: tensor.strides })
}

/// The layout of a tensor over scores.
pub fn score_layout(argument: &str, tensor: &CTensor) -> Result<ScoreLayout, Failure> {
    Ok(ScoreLayout { shape: shape(argument, tensor)?, strides: tensor.strides })
}

fn shape(argument: &str, tensor: &CTensor) -> Result<[usize; 4], Failure> {
    let mut shape = [0; 4];
    for (size, given) in shape.iter_mut().zip(tensor.shape) {
        *size = usize::try_from(given).map_err(|_| {
            invalid(format!("{argument}: expected sizes of at least 0, got {:?}", tensor.shape))
        })?;
    }
    Ok(shape)
}
