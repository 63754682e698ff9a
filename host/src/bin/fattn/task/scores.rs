//! Bias, boolean mask, slopes and sinks of the input file.

use super::Input;
use anyhow::{Result, bail};
use finite_attention::problem::{AlibiSlopes, Bias, MaskShape, ScoreLayout};
use finite_attention::trace::{BiasElements, ScoreElements};
use finite_attention::{Dtype, Element, Error, ForwardProblem};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};

/// What of them is in the file.
pub struct ScoreTensors<'f> {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, of q's dtype or f32.
    pub bias: Option<Input<'f>>,
    /// bool, as the bias.
    pub mask: Option<TensorView<'f>>,
    /// f32 `[Hq]` or `[B, Hq]`.
    pub alibi_slopes: Option<Input<'f>>,
    /// f32 `[Hq]`.
    pub sinks: Option<Input<'f>>,
}

impl<'f> ScoreTensors<'f> {
    pub fn read(file: &SafeTensors<'f>) -> Result<Self> {
        Ok(ScoreTensors {
            bias: Input::find_optional(file, "bias")?,
            mask: file.tensor("mask").ok(),
            alibi_slopes: Input::find_optional(file, "alibi_slopes")?,
            sinks: Input::find_optional(file, "sinks")?,
        })
    }

    /// The problem with all of them.
    pub fn add_to(&self, mut problem: ForwardProblem) -> Result<ForwardProblem> {
        let [batches, heads, _, keys] = problem.score_shape();
        if let Some(bias) = &self.bias {
            let layout = dense("bias", bias.view.shape())?;
            problem.bias = Some(Bias { layout, dtype: bias.dtype });
        }
        if let Some(mask) = &self.mask {
            if mask.dtype() != FileDtype::BOOL {
                bail!(unsupported("mask", "bool", &format!("{:?}", mask.dtype()).to_lowercase()));
            }
            problem.attn_mask = Some(MaskShape::of(&dense("mask", mask.shape())?, keys)?);
        }
        if let Some(slopes) = &self.alibi_slopes {
            let shape = slopes.view.shape();
            let of_batches = match shape.len() {
                1 => AlibiSlopes::PerHead,
                2 => AlibiSlopes::PerBatchAndHead,
                got => {
                    let names = "[head], or 2 [batch, head]";
                    bail!(Error::WrongRank { argument: "alibi_slopes", expected: 1, names, got })
                }
            };
            let expected = [("batch", batches), ("heads", heads)];
            check_numbers("alibi_slopes", slopes, &expected[2 - shape.len()..])?;
            problem.alibi = Some(of_batches);
        }
        if let Some(sinks) = &self.sinks {
            let got = sinks.view.shape().len();
            if got != 1 {
                bail!(Error::WrongRank { argument: "sinks", expected: 1, names: "[head]", got });
            }
            check_numbers("sinks", sinks, &[("heads", heads)])?;
            problem.has_sinks = true;
        }
        Ok(problem)
    }

    /// Their elements. `T` is the element type of q.
    pub fn elements<T: Element>(&self) -> Result<ScoreElements<T>> {
        let numbers = |input: &Option<Input<'_>>| input.as_ref().map_or(vec![], Input::elements::<f32>);
        let mask = self.mask.as_ref().map(|mask| {
            let shown = mask.data().iter().map(|&byte| byte != 0).collect();
            Ok::<_, Error>((dense("mask", mask.shape())?, shown))
        });
        let bias = self.bias.as_ref().map(|bias| {
            let layout = dense("bias", bias.view.shape())?;
            let elements = match bias.dtype == T::DTYPE {
                true => BiasElements::LikeQ(bias.elements()),
                false => BiasElements::F32(bias.elements()),
            };
            Ok::<_, Error>((layout, elements))
        });
        Ok(ScoreElements {
            bias: bias.transpose()?,
            mask: mask.transpose()?,
            alibi_slopes: numbers(&self.alibi_slopes),
            sinks: numbers(&self.sinks),
        })
    }
}

/// The layout of a dense tensor over scores.
fn dense(argument: &'static str, shape: &[usize]) -> Result<ScoreLayout, Error> {
    let names = "[batch, head, query, key]";
    let wrong = |_| Error::WrongRank { argument, expected: 4, names, got: shape.len() };
    Ok(ScoreLayout::dense(shape.try_into().map_err(wrong)?))
}

/// f32, of these sizes, which are those of q.
fn check_numbers(
    argument: &'static str,
    input: &Input<'_>,
    sizes: &[(&'static str, usize)],
) -> Result<(), Error> {
    if input.dtype != Dtype::F32 {
        return Err(unsupported(argument, "f32", input.dtype.name()));
    }
    for (&(dimension, expected), &got) in sizes.iter().zip(input.view.shape()) {
        if got != expected {
            return Err(Error::WrongSize { argument, dimension, expected, like: "q", got });
        }
    }
    Ok(())
}

fn unsupported(argument: &'static str, expected: &str, got: &str) -> Error {
    Error::UnsupportedDtype { argument, expected: expected.to_owned(), got: got.to_owned() }
}
