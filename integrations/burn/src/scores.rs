//! What scores have beside q and k, as callers give it.

use crate::same_device;
use burn::tensor::{Bool, DType, Device, Tensor};
use finite_attention::problem::{AlibiSlopes, Bias, MaskShape, ScoreLayout, check_sinks};
use finite_attention::{Dtype, Error, ForwardProblem, Result};

/// The tensors, as many as there are.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    pub bias: Option<Tensor<4>>,
    /// As the bias, true where a key is visible.
    pub mask: Option<Tensor<4, Bool>>,
    /// In one dimension, and the dimensions that they had: f32 `[Hq]` or `[B, Hq]`.
    pub slopes: Option<(Tensor<1>, Vec<usize>)>,
    /// f32 `[Hq]`.
    pub sinks: Option<Tensor<1>>,
}

impl Scores {
    /// The problem with what is here; the device is that of q.
    pub fn checked(&self, problem: ForwardProblem, of_q: &Device) -> Result<ForwardProblem> {
        let mut problem = problem;
        let [batches, heads, _, keys] = problem.score_shape();
        if let Some(bias) = &self.bias {
            same_device("bias", &bias.device(), of_q)?;
            let layout = ScoreLayout::dense(bias.dims());
            problem.bias = Some(Bias { layout, dtype: bias_dtype(bias.dtype(), problem.dtype)? });
        }
        if let Some(mask) = &self.mask {
            same_device("mask", &mask.device(), of_q)?;
            problem.attn_mask = Some(MaskShape::of(&ScoreLayout::dense(mask.dims()), keys)?);
        }
        if let Some((slopes, dims)) = &self.slopes {
            same_device("alibi_slopes", &slopes.device(), of_q)?;
            expect_f32("alibi_slopes", slopes.dtype())?;
            problem.alibi = Some(AlibiSlopes::of(dims, batches, heads)?);
        }
        if let Some(sinks) = &self.sinks {
            same_device("sinks", &sinks.device(), of_q)?;
            expect_f32("sinks", sinks.dtype())?;
            check_sinks(&sinks.dims(), heads)?;
            problem.has_sinks = true;
        }
        Ok(problem)
    }
}

/// The dtype of the bias, of those that there can be.
fn bias_dtype(bias: DType, of_q: Dtype) -> Result<Dtype> {
    match bias {
        DType::BF16 => Ok(Dtype::Bf16),
        DType::F16 => Ok(Dtype::F16),
        DType::F32 => Ok(Dtype::F32),
        other => Err(Error::UnsupportedDtype {
            argument: "bias",
            expected: match of_q {
                Dtype::F32 => "f32".to_owned(),
                of_q => format!("{} like q, or f32", of_q.name()),
            },
            got: other.name().to_owned(),
        }),
    }
}

fn expect_f32(argument: &'static str, got: DType) -> Result<()> {
    if got == DType::F32 {
        return Ok(());
    }
    Err(Error::UnsupportedDtype { argument, expected: "f32".to_owned(), got: got.name().to_owned() })
}
