//! Whatever order streams and marks leave open, results are the same, bit for bit.

use super::host::{ContextInputs, ContextOutput, context_parallel_host};
use super::{ContextExchange, ContextLayout, ContextSharing, LocalCommunicator};
use crate::attention::ScoreSlices;
use crate::device::Device;
use crate::driver::deferred::DeferredDriver;
use crate::problem::{BackwardProblem, ForwardProblem, Layout, Mode};
use kernels_gpu::abi::{Arch, Dtype};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const ROWS: usize = 26;

/// Numbers that differ from each other.
fn tensor(elements: usize, seed: usize) -> Vec<f32> {
    (0..elements).map(|index| ((index * 37 + seed * 11) % 64) as f32 / 32.0 - 1.0).collect()
}

/// A causal pass, forward and backward.
fn compute(
    ranks: Vec<(Device, LocalCommunicator)>,
    sharing: ContextSharing,
    with_sinks: bool,
) -> ContextOutput<f32> {
    let (wide, narrow) = (Layout::bshd([1, ROWS, 3, 8]), Layout::bshd([1, ROWS, 3, 8]));
    let mut problem = ForwardProblem::new(Dtype::F32, wide, narrow, narrow).causal();
    if with_sinks {
        problem = problem.with_sinks();
    }
    let backward = BackwardProblem {
        mode: Mode::Deterministic,
        wants_d_sinks: with_sinks,
        ..BackwardProblem::new(problem)
    };
    let [q, k, v, d_o] =
        [wide, narrow, narrow, wide].map(|layout| tensor(layout.span(), layout.shape[2]));
    let sinks: &[f32] = if with_sinks { &[0.5, -1.0, 0.0] } else { &[] };
    let inputs = ContextInputs {
        q: &q,
        k: &k,
        v: &v,
        d_o: &d_o,
        d_lse: &[],
        cu_seqlens_q: &[],
        cu_seqlens_k: &[],
        scores: ScoreSlices { sinks, ..ScoreSlices::default() },
    };
    context_parallel_host(ranks, sharing, &problem, Some(&backward), &inputs).unwrap()
}

#[test]
fn results_are_the_same_in_any_order_that_streams_allow() {
    let round = ContextLayout::ALL.map(|layout| (layout, ContextExchange::Round));
    let by_heads = [(ContextLayout::Zigzag, ContextExchange::Heads)];
    // Gathered and going round is zigzag.
    for (layout, exchange) in round.into_iter().take(3).chain(by_heads) {
        let sharing = ContextSharing { layout, exchange: Some(exchange) };
        for count in [2, 3, 4] {
            for with_sinks in [false, true] {
                let ranks = |seed: u64, device: &dyn Fn(usize) -> Device| {
                    let communicators = LocalCommunicator::in_turns(count, LIMIT, seed).into_iter();
                    communicators.enumerate().map(|(rank, own)| (device(rank), own)).collect()
                };
                let in_order = |_| Device::emulated(Arch::Sm80).unwrap();
                let expected = compute(ranks(0, &in_order), sharing, with_sinks);
                for seed in 1..=3 {
                    let devices = DeferredDriver::create(count, Arch::Sm80, seed);
                    let deferred = |rank: usize| Device::from_driver(devices[rank].clone());
                    let got = compute(ranks(seed, &deferred), sharing, with_sinks);
                    assert!(
                        got == expected,
                        "{sharing}, {count} ranks, sinks {with_sinks}, seed {seed}"
                    );
                }
            }
        }
    }
}
