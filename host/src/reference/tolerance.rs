//! When a result is close enough: `docs/semantics.md`, section 3. No element is exempt, no quantile is taken.

use super::Precision;

/// `|lse - exact| <= LSE_TOLERANCE * max(1, |exact|)`, in every dtype: products of 16-bit inputs are
/// exact in f32.
pub const LSE_TOLERANCE: f64 = 2e-5;

/// How far a tensor is from what it should be, and how far it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Largest difference; NaN if any element is NaN that should not be.
    pub error: f64,
    /// Largest allowed difference.
    pub allowed: f64,
    /// Index of the element with the largest difference, or of the first NaN; `None` when there are no
    /// elements.
    pub worst: Option<usize>,
}

impl Verdict {
    /// Whether the tensor is close enough. A NaN never is.
    pub fn passes(&self) -> bool {
        self.error <= self.allowed
    }
}

/// `2 max|naive - exact| + 2 max|(exact + 0.3 - 0.3) - exact|`, the last difference taken in the output
/// precision: twice the error of unfused code, and a little more where that happens to have none.
/// FlashAttention's rule.
pub fn output_allowance(naive: &[f32], exact: &[f64], output: Precision) -> f64 {
    2.0 * unfused_error(naive, exact) + 2.0 * rounding_error(exact, output)
}

/// `max|naive - exact|`. Where unfused code overflows, it allows nothing.
pub fn unfused_error(naive: &[f32], exact: &[f64]) -> f64 {
    let differences = naive.iter().zip(exact).map(|(&naive, exact)| (f64::from(naive) - exact).abs());
    differences.filter(|difference| difference.is_finite()).fold(0.0, f64::max)
}

/// `max|(exact + 0.3 - 0.3) - exact|`, taken in the output precision.
pub fn rounding_error(exact: &[f64], output: Precision) -> f64 {
    let differences = exact.iter().map(|&exact| {
        let start = output.round_f64(exact);
        (output.round_f64(output.round_f64(start + 0.3) - 0.3) - start).abs()
    });
    differences.filter(|difference| difference.is_finite()).fold(0.0, f64::max)
}

/// Compares o, or any tensor without infinities, with the exact result; `allowed` from
/// [`output_allowance`].
pub fn judge_output(got: &[f32], exact: &[f64], allowed: f64) -> Verdict {
    let differences = got.iter().zip(exact).map(|(&got, exact)| (f64::from(got) - exact).abs());
    worst_of(differences, allowed, got.len() == exact.len())
}

/// Compares a gradient with the exact result. Where that is too large for `output`, the gradient must be
/// infinity with its sign.
pub fn judge_gradient(got: &[f32], exact: &[f64], allowed: f64, output: Precision) -> Verdict {
    let differences = got.iter().zip(exact).map(|(&got, &exact)| {
        let rounded = output.round_f64(exact);
        if exact.is_finite() && rounded.is_infinite() {
            if f64::from(got) == rounded { 0.0 } else { f64::NAN }
        } else {
            (f64::from(got) - exact).abs()
        }
    });
    worst_of(differences, allowed, got.len() == exact.len())
}

/// Compares lse with the exact result. Errors are relative to `max(1, |exact|)`; -inf must be -inf.
pub fn judge_lse(got: &[f32], exact: &[f64]) -> Verdict {
    let differences = got.iter().zip(exact).map(|(&got, &exact)| {
        if exact == f64::NEG_INFINITY {
            if got == f32::NEG_INFINITY { 0.0 } else { f64::NAN }
        } else {
            (f64::from(got) - exact).abs() / exact.abs().max(1.0)
        }
    });
    worst_of(differences, LSE_TOLERANCE, got.len() == exact.len())
}

/// The largest difference, where NaN is larger than anything.
fn worst_of(differences: impl Iterator<Item = f64>, allowed: f64, same_length: bool) -> Verdict {
    if !same_length {
        return Verdict { error: f64::NAN, allowed, worst: None };
    }
    let mut verdict = Verdict { error: 0.0, allowed, worst: None };
    for (index, difference) in differences.enumerate() {
        if verdict.worst.is_none() || difference > verdict.error || difference.is_nan() {
            verdict = Verdict { error: difference, allowed, worst: Some(index) };
        }
        if difference.is_nan() {
            break;
        }
    }
    verdict
}
