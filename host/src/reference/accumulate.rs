//! Sums of products as the hardware takes them that unfused code runs on.

use super::Precision;

/// Products that a tensor core adds to its accumulator at a time.
const STEP: u32 = 16;

/// Sums `[columns]` of products of numbers of one precision, in f32.
///
/// f32 numbers are multiplied and added one after another, each result rounded to nearest. 16-bit numbers
/// meet in a tensor core: the sum of 16 products and the accumulator is exact, and then *truncated* to f32
/// (Fasi, Higham, Mikaitis, Pranesh: "Numerical behavior of NVIDIA tensor cores", 2021).
pub(super) struct Accumulator {
    precision: Precision,
    sums: Vec<f64>,
    pending: u32,
}

impl Accumulator {
    /// Zeros.
    pub fn new(precision: Precision, columns: usize) -> Self {
        Accumulator { precision, sums: vec![0.0; columns], pending: 0 }
    }

    /// Adds `factor * row`.
    pub fn add(&mut self, factor: f32, row: &[f32]) {
        let products = self.sums.iter_mut().zip(row);
        if self.precision == Precision::F32 {
            products.for_each(|(sum, value)| *sum = f64::from(*sum as f32 + factor * value));
            return;
        }
        products.for_each(|(sum, &value)| *sum += f64::from(factor) * f64::from(value));
        self.pending += 1;
        if self.pending == STEP {
            self.truncate();
        }
    }

    fn truncate(&mut self) {
        self.sums.iter_mut().for_each(|sum| *sum = f64::from(truncated(*sum)));
        self.pending = 0;
    }

    /// The sums.
    pub fn finish(mut self) -> Vec<f32> {
        if self.precision != Precision::F32 {
            self.truncate();
        }
        self.sums.into_iter().map(|sum| sum as f32).collect()
    }
}

/// The f32 next to `value` on the side of zero.
fn truncated(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest).abs() <= value.abs() || nearest.is_nan() {
        nearest
    } else {
        // Further from zero than the value, so not zero itself.
        f32::from_bits(nearest.to_bits() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_cores_truncate_after_sixteen_products_and_f32_rounds_each_sum() {
        let third = 2f32.powi(-24) * 1.5; // three quarters of the last place of 1
        let sum = |precision, count| {
            let mut sums = Accumulator::new(precision, 1);
            sums.add(1.0, &[1.0]);
            (0..count).for_each(|_| sums.add(1.0, &[third]));
            sums.finish()[0]
        };
        assert_eq!(sum(Precision::F32, 1), 1.0 + f32::EPSILON);
        assert_eq!(sum(Precision::Bf16, 1), 1.0);
        // 15 of them before the first truncation: 11.25 last places; the 16th is lost.
        assert_eq!(sum(Precision::Bf16, 16), 1.0 + 11.0 * f32::EPSILON);
        assert_eq!(sum(Precision::F16, 0), 1.0);
    }

    #[test]
    fn truncation_goes_towards_zero() {
        let beyond = 1.0 + f64::from(f32::EPSILON) * 0.75;
        assert_eq!((truncated(beyond), truncated(-beyond)), (1.0, -1.0));
        assert_eq!((truncated(1.0), truncated(0.0)), (1.0, 0.0));
        assert_eq!(truncated(f64::MAX), f32::MAX);
        assert!(truncated(f64::NAN).is_nan());
        assert_eq!(truncated(f64::INFINITY), f32::INFINITY);
    }
}
