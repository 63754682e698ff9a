//! The numbers in the tensors of a case.

use super::{Case, ScoreInputs};
use crate::problem::Layout;
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// The numbers of q, k and v, and of what scores have beside them: one per element, in logical order. Each is
/// rounded to the dtype of its case when used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// `[B, Sq, Hq, D]`.
    pub q: Vec<f32>,
    /// `[B, Sk, Hk, D]`.
    pub k: Vec<f32>,
    /// `[B, Sk, Hk, Dv]`.
    pub v: Vec<f32>,
    /// Bias, boolean mask, slopes and sinks.
    pub scores: ScoreInputs,
}

/// A random number with mean 0 and standard deviation 1: normally distributed for 16-bit elements,
/// uniformly for f32. The tolerance rule compares the largest error of one computation with that of
/// another; of normal numbers the one most extreme row decides both, and they are two roundings. In 16
/// bits, where unfused code rounds more often than ours, that does not matter.
pub(super) fn sample(dtype: Dtype, random: &mut StdRng) -> f32 {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => random.sample(StandardNormal),
        Dtype::F32 => 3f32.sqrt() * random.random_range(-1.0f32..=1.0),
    }
}

impl Inputs {
    /// Random numbers with mean 0 and deviation 1 from the seed of the case, q and k multiplied by its
    /// amplitude. The first column of q and of k is moved so that the logits move by the case's
    /// `logit_shift`.
    pub fn drawn(case: &Case) -> Self {
        let problem = case.problem();
        let mut random = StdRng::seed_from_u64(case.seed);
        let mut numbers = |layout: &Layout, deviation: f32, first_column: f32| {
            let sample = |index: usize| {
                let mean = if index.is_multiple_of(layout.shape[3]) { first_column } else { 0.0 };
                sample(case.dtype, &mut random) * deviation + mean
            };
            (0..layout.elements() as usize).map(sample).collect()
        };
        let shift = (case.logit_shift.abs() * (case.head_dim as f32).sqrt()).sqrt();
        let q = numbers(&problem.q, case.amplitude, shift);
        let k = numbers(&problem.k, case.amplitude, shift.copysign(case.logit_shift));
        let v = numbers(&problem.v, 1.0, 0.0);
        Inputs { q, k, v, scores: ScoreInputs::drawn(case) }
    }
}

/// The numbers of dO and dLSE: one per element, in logical order. dO is rounded to the dtype of its case
/// when used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradientInputs {
    /// `[B, Sq, Hq, Dv]`.
    pub d_o: Vec<f32>,
    /// `[B, Hq, Sq]`, packed `[Hq, Tq]`; empty unless the case has it.
    pub d_lse: Vec<f32>,
}

impl GradientInputs {
    /// Random numbers with mean 0 and deviation 1 from the seed of the case, others than those of
    /// [`Inputs::drawn`].
    pub fn drawn(case: &Case) -> Self {
        let problem = case.problem();
        let mut random = StdRng::seed_from_u64(!case.seed);
        let mut numbers = |count| (0..count).map(|_| sample(case.dtype, &mut random)).collect();
        let [batches, rows, heads, _] = problem.q.shape;
        let has_d_lse = case.gradients.is_some_and(|gradients| gradients.has_d_lse);
        let d_o = numbers(problem.o.elements() as usize);
        GradientInputs { d_o, d_lse: numbers(if has_d_lse { batches * heads * rows } else { 0 }) }
    }
}
