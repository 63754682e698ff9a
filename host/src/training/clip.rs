//! Clipping gradients by the norm of all of them together.

use super::{DeviceTensor, Result, Scanned, TrainingError, multiply, scan};
use crate::device::Device;
use crate::driver::Stream;

/// What is done about a total norm that is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFiniteNorm {
    /// It is an error, and no gradient is changed.
    #[default]
    Refuse,
    /// Gradients are multiplied by the coefficient all the same, as PyTorch does unless told otherwise: by 0
    /// if the norm is infinite, which makes finite elements 0 and others NaN, and by NaN if it is NaN.
    Multiply,
}

/// What clipping did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clipped {
    /// The norm before.
    pub total_norm: f32,
    /// What all gradients were multiplied by: at most 1.
    pub coefficient: f32,
}

/// Added to the norm, as PyTorch does.
const EPSILON: f32 = 1e-6;

/// Multiplies gradients, in place, so that the norm of all of them together is at most `max_norm`: `total =
/// |(|g_1|, |g_2|, ..)|`, `coefficient = min(1, max_norm / (total + 1e-6))`, both f32
/// (`torch.nn.utils.clip_grad_norm_`).
///
/// One pass over each tensor for the norms, and another one if the coefficient is below 1. Sums are in the
/// same order every time, and squares that f32 does not hold are no exception: the result is the same bits
/// from run to run.
///
/// # Errors
/// [`TrainingError::Number`] for a `max_norm` that is negative or NaN, [`TrainingError::NonFiniteNorm`]
/// unless `non_finite` says otherwise, and what [`multiply`] refuses.
///
/// # Safety
/// As [`multiply`], of each.
pub unsafe fn clip_by_global_norm(
    device: &Device,
    gradients: &[DeviceTensor],
    max_norm: f32,
    non_finite: NonFiniteNorm,
    stream: Stream,
) -> Result<Clipped> {
    if max_norm.is_nan() || max_norm < 0.0 {
        let (argument, expected) = ("max_norm", "a number of at least 0");
        return Err(TrainingError::Number { argument, expected, got: f64::from(max_norm) });
    }
    // What is wrong with one of them is to be known before the first is changed.
    gradients.iter().try_for_each(|tensor| tensor.params(true).map(|_| ()))?;
    let mut first: Option<(String, Box<Scanned>)> = None;
    let mut squares = 0.0;
    for tensor in gradients {
        // SAFETY: passed on to the caller.
        let scanned = unsafe { scan(device, tensor, stream) }?;
        squares += f64::from(scanned.norm as f32).powi(2);
        if first.is_none() && !scanned.is_finite() {
            first = Some((tensor.name.clone(), Box::new(scanned)));
        }
    }
    let total_norm = squares.sqrt() as f32;
    if !total_norm.is_finite() && non_finite == NonFiniteNorm::Refuse {
        return Err(TrainingError::NonFiniteNorm { total: total_norm, first });
    }
    let coefficient = max_norm / (total_norm + EPSILON);
    // NaN stays NaN.
    let coefficient = if coefficient > 1.0 { 1.0 } else { coefficient };
    if coefficient != 1.0 {
        for tensor in gradients {
            // SAFETY: passed on to the caller.
            unsafe { multiply(device, tensor, coefficient, stream) }?;
        }
    }
    Ok(Clipped { total_norm, coefficient })
}
