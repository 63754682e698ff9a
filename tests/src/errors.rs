//! Relative errors in the Euclidean norm, of several cases together: of one, a few rows with large gradients decide, and
//! whose roundings were lucky there.

use finite_attention::check::{Case, Computed, expected};

/// Sums of squares of what is off, and of what should be.
#[derive(Clone, Copy, Default)]
pub struct Errors {
    wrong: f64,
    all: f64,
}

impl Errors {
    /// Takes in what was computed where `exact` is right.
    ///
    /// # Panics
    /// When one is longer.
    pub fn add(&mut self, got: &[f32], exact: &[f64]) {
        assert_eq!(got.len(), exact.len());
        let sum =
            |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>();
        self.wrong += sum(&mut got.iter().zip(exact).map(|(&got, exact)| f64::from(got) - exact));
        self.all += sum(&mut exact.iter().copied());
    }

    /// Whether nothing was taken in, or nothing but 0 where that is right.
    pub fn is_empty(&self) -> bool {
        self.wrong == 0.0 && self.all == 0.0
    }

    /// The root of the sum of squares of what is off, over that of what should be.
    pub fn relative(&self) -> f64 {
        (self.wrong / self.all).sqrt()
    }
}

/// The root of the sum of squares of what is off, over that of what should be, of one tensor.
///
/// # Panics
/// When one is longer.
pub fn relative_error(got: &[f32], exact: &[f64]) -> f64 {
    let mut errors = Errors::default();
    errors.add(got, exact);
    errors.relative()
}

/// Relative errors of o, dq, dk and dv, with their names, of `count` cases that differ in their seeds.
///
/// # Panics
/// When the case has no gradients, or `compute` does.
pub fn errors_of_seeds(
    count: u64,
    case: &Case,
    compute: impl Fn(&Case) -> Computed,
) -> [(&'static str, f64); 4] {
    let mut errors = [Errors::default(); 4];
    for seed in 0..count {
        let case = Case { seed, ..case.clone() };
        let computed = compute(&case);
        let gradients = computed.gradients.as_ref().expect("they were asked for");
        let expected = expected(&case, &computed.inputs, &gradients.inputs, &computed.o);
        let (exact, _) = expected.gradients.expect("they were asked for");
        errors[0].add(&computed.o, &expected.o);
        errors[1].add(&gradients.dq, &exact.dq);
        errors[2].add(&gradients.dk, &exact.dk);
        errors[3].add(&gradients.dv, &exact.dv);
    }
    let [o, dq, dk, dv] = errors.map(|errors| errors.relative());
    [("o", o), ("dq", dq), ("dk", dk), ("dv", dv)]
}
