//! What ranks refuse, alone and together, and what becomes of all when one fails.

use super::{
    Communicator, ContextExchange, ContextLayout, ContextParallel, ContextPass, ContextProblem,
    ContextSharing, LocalCommunicator, Message,
};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::plan::{BackwardPointers, ForwardPointers};
use crate::problem::{
    AlibiSlopes, BackwardProblem, Bias, CausalAlignment, ForwardProblem, Layout, Mask, MaskShape,
    ScoreLayout, Sequences,
};
use kernels_gpu::abi::{Arch, Dtype};
use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const ROWS: usize = 12;

fn with_heads(problem: &ForwardProblem, heads: usize) -> ForwardProblem {
    let layout = Layout::bshd([1, problem.q.shape[1], heads, 8]);
    ForwardProblem::new(Dtype::F32, layout, layout, layout).causal()
}

fn zigzag_going_round() -> ContextSharing {
    let exchange = Some(ContextExchange::Round);
    ContextSharing { exchange, ..ContextLayout::Zigzag.into() }
}

fn local(rows: usize) -> ForwardProblem {
    let layout = Layout::bshd([1, rows, 1, 8]);
    ForwardProblem::new(Dtype::F32, layout, layout, layout).causal()
}

/// What each of `count` ranks returns of a problem of [`ROWS`] rows.
fn run<T: Send, C: Communicator + 'static>(
    (count, sharing): (usize, impl Into<ContextSharing>),
    communicator: impl Fn(LocalCommunicator) -> C + Sync,
    body: impl Fn(&ContextParallel, ContextProblem) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    run_each(&vec![sharing.into(); count], communicator, body)
}

/// The same of ranks that are told this.
fn run_each<T: Send, C: Communicator + 'static>(
    sharings: &[ContextSharing],
    communicator: impl Fn(LocalCommunicator) -> C + Sync,
    body: impl Fn(&ContextParallel, ContextProblem) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let count = sharings.len();
    thread::scope(|scope| {
        let (communicator, body) = (&communicator, &body);
        let threads: Vec<_> = LocalCommunicator::create(count, LIMIT)
            .into_iter()
            .zip(sharings)
            .enumerate()
            .map(|(rank, (own, &sharing))| {
                scope.spawn(move || {
                    let device = Device::emulated(Arch::Sm80)?;
                    let rows = sharing.layout.rows_of_rank(count, rank, ROWS);
                    let group = ContextParallel::new(device, communicator(own), sharing)?;
                    body(&group, ContextProblem::new(local(rows), ROWS, ROWS))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A forward and a backward pass of ones.
fn compute(group: &ContextParallel, pass: &mut ContextPass<'_>, problem: &ForwardProblem) -> Result<()> {
    let elements = problem.q.elements() as usize;
    let ones = DeviceBuffer::from_slice(&group.device, &vec![1_f32; elements])?;
    let output = || DeviceBuffer::<f32>::uninitialised(&group.device, elements);
    let (o, dq, dk, dv) = (output()?, output()?, output()?, output()?);
    let lse = DeviceBuffer::<f32>::uninitialised(&group.device, elements / 8)?;
    let [q, k, v, d_o] = [ones.device_pointer(); 4];
    let (o, lse) = (o.device_pointer(), lse.device_pointer());
    let forward = ForwardPointers { q, k, v, o, lse, ..ForwardPointers::default() };
    let [dq, dk, dv] = [&dq, &dk, &dv].map(|buffer| buffer.device_pointer());
    let backward = BackwardPointers { q, k, v, o, lse, d_o, dq, dk, dv, ..BackwardPointers::default() };
    // SAFETY: the buffers live until `wait`.
    unsafe {
        pass.forward(&forward, Stream::default())?;
        pass.backward(&BackwardProblem::new(*problem), &backward, Stream::default())?;
    }
    group.wait(Stream::default())
}

/// Fails at its n-th exchange of anything.
struct FailsAt {
    inner: LocalCommunicator,
    left: Cell<usize>,
}

impl Communicator for FailsAt {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.inner.all_gather(own)
    }

    unsafe fn exchange(
        &self,
        device: &Device,
        sends: &[Message],
        receives: &[Message],
        stream: Stream,
    ) -> Result<()> {
        // Nobody misses one in which nothing is sent.
        let counts = usize::from(!sends.is_empty() || !receives.is_empty());
        let Some(left) = self.left.get().checked_sub(counts) else {
            return Err(Error::Emulator { reason: "planted".to_owned() });
        };
        self.left.set(left);
        // SAFETY: passed on to the caller.
        unsafe { self.inner.exchange(device, sends, receives, stream) }
    }
}

#[test]
fn a_rank_that_fails_in_the_middle_is_an_error_of_all() {
    let by_heads = ContextSharing { exchange: Some(ContextExchange::Heads), ..zigzag_going_round() };
    let ways = ContextLayout::ALL.map(ContextSharing::from).into_iter();
    for way in ways.chain([zigzag_going_round(), by_heads]) {
        let mut completed = 0;
        for exchanges in 0..12 {
            let start = Instant::now();
            let failing = |inner: LocalCommunicator| {
                let left = if inner.rank() == 1 { exchanges } else { usize::MAX };
                FailsAt { inner, left: Cell::new(left) }
            };
            let results = run((3, way), failing, |group, mut problem| {
                if way == by_heads {
                    // In three groups.
                    problem.local = with_heads(&problem.local, 3);
                }
                let mut pass = group.prepare(&problem)?;
                compute(group, &mut pass, &problem.local)
            });
            assert!(start.elapsed() < LIMIT / 2);
            if results[1].is_ok() {
                // It made no more exchanges than it was allowed.
                assert!(results.iter().all(Result::is_ok), "{way} {exchanges}: {results:?}");
                completed += 1;
                continue;
            }
            assert_eq!(results[1], Err(Error::Emulator { reason: "planted".to_owned() }));
            for rank in [0, 2] {
                assert!(
                    matches!(results[rank], Err(Error::Peer { .. })),
                    "{way} {exchanges}: {results:?}"
                );
            }
        }
        assert!((1..12).contains(&completed), "{way}: {completed}");
    }
}

#[test]
fn ranks_with_different_problems_are_told_what_differs() {
    let results = run(
        (3, ContextLayout::Zigzag),
        |own| own,
        |group, mut problem| {
            if group.rank() == 1 {
                problem.local.scale = Some(0.5);
            }
            group.prepare(&problem).map(|_| ())
        },
    );
    let texts = results.map_text();
    assert_eq!(texts[0], "scale: expected 0.35355338 like rank 0, got 0.5 on rank 1");
    assert_eq!(texts[1], "scale: expected 0.5 like rank 1, got 0.35355338 on rank 0");
    assert_eq!(texts[2], "scale: expected 0.35355338 like rank 2, got 0.5 on rank 1");
}

#[test]
fn a_problem_that_one_rank_refuses_is_an_error_of_all() {
    let results = run(
        (2, ContextLayout::Stripe),
        |own| own,
        |group, mut problem| {
            if group.rank() == 0 {
                problem.local = problem.local.with_alibi(AlibiSlopes::PerHead);
            }
            group.prepare(&problem).map(|_| ())
        },
    );
    let texts = results.map_text();
    assert_eq!(
        texts[0],
        "alibi_slopes: expected none, since sequences are shared out among ranks, got one"
    );
    assert_eq!(texts[1], "rank 1: rank 0 was given a problem that is refused");
}

#[test]
fn ranks_that_are_told_different_ways_are_told_so_and_stripes_by_heads_are_refused() {
    let zigzag = ContextLayout::Zigzag.into();
    let prepare = |group: &ContextParallel, problem: ContextProblem| group.prepare(&problem).map(|_| ());
    let texts = run_each(&[zigzag, zigzag_going_round()], |own| own, prepare).map_text();
    assert_eq!(texts[0], "exchange: expected heads in 1 group like rank 0, got round on rank 1");
    assert_eq!(texts[1], "exchange: expected round like rank 1, got heads in 1 group on rank 0");
    let exchange = Some(ContextExchange::Heads);
    let stripes = ContextSharing { exchange, ..ContextLayout::Stripe.into() };
    let texts = run((1, stripes), |own| own, prepare).map_text();
    assert_eq!(texts[0], "exchange: expected round, or heads, but not of stripes, got heads of stripes");
}

/// By heads what sees all its keys in few launches; never packed sequences, windows, and tensors over scores.
#[test]
fn what_is_not_asked_for_is_chosen() {
    // Keys and values of a head and a rank are 1 MiB.
    let layout = Layout::bshd([1, 4096, 4, 64]);
    let causal = ForwardProblem::new(Dtype::F32, layout, layout, layout).causal();
    let of = |layout: ContextLayout, problem: ForwardProblem, ranks: usize| {
        ContextSharing::from(layout).explain(&problem, ranks).unwrap()
    };
    let round = "keys and values go round";
    let by_heads = "keys and values come by heads, 1, 1, 1, 1 of them at a time, backward 1, 1, 1, 1";
    let at_once = "keys and values come by heads, 4 of them at a time, backward 4";
    assert_eq!(of(ContextLayout::Zigzag, causal, 2), by_heads);
    let short = Layout::bshd([1, 1000, 4, 64]);
    let short = ForwardProblem { q: short, k: short, v: short, ..causal };
    assert_eq!(of(ContextLayout::Zigzag, short, 2), at_once);
    assert_eq!(of(ContextLayout::Zigzag, causal, 1), round);
    assert_eq!(of(ContextLayout::Contiguous, causal, 2), round);
    assert_eq!(of(ContextLayout::Stripe, causal, 2), round);
    assert_eq!(of(ContextLayout::Gathered, causal, 2), at_once);
    let alignment = CausalAlignment::BottomRight;
    let window = Mask::Window { left: Some(2), right: Some(0), alignment };
    let bias = Bias { layout: ScoreLayout::dense([1, 1, 1, ROWS]), dtype: Dtype::F32 };
    let packed = Sequences::Packed { count: 2, max_query_rows: 4, max_key_rows: 4 };
    for layout in [ContextLayout::Zigzag, ContextLayout::Contiguous] {
        let full = ForwardProblem { mask: Mask::Full, ..causal };
        assert_eq!(of(layout, full, 2), by_heads);
        assert_eq!(of(layout, ForwardProblem { mask: window, ..causal }, 2), round);
        assert_eq!(of(layout, full.with_bias(bias), 2), round);
        assert_eq!(of(layout, full.with_sequences(packed), 2), round);
    }
}

/// A bias has a column for each key of the whole, and a mask is prepared before it is used.
#[test]
fn a_bias_of_this_ranks_keys_and_a_mask_that_is_not_prepared_are_refused() {
    let with_bias = |keys: usize| {
        move |group: &ContextParallel, mut problem: ContextProblem| {
            let layout = ScoreLayout::dense([1, 1, 1, keys]);
            problem.local = problem.local.with_bias(Bias { layout, dtype: Dtype::F32 });
            group.prepare(&problem).map(|_| ())
        }
    };
    let both = (2, ContextLayout::Stripe);
    let own = run(both, |own| own, with_bias(ROWS / 2)).map_text();
    assert!(own[0].starts_with("bias: "), "{}", own[0]);
    let whole = run(both, |own| own, with_bias(ROWS));
    assert!(whole.iter().all(Result::is_ok), "{whole:?}");
    let unprepared = run(
        both,
        |own| own,
        |group, mut problem| {
            let shape = MaskShape { batches: 1, heads: 1, queries: 1, keys: ROWS };
            problem.local = problem.local.with_attn_mask(shape);
            let mut pass = group.prepare(&problem)?;
            // Of tensors nothing is looked at before the mask is missed.
            let pointers =
                ForwardPointers { q: 256, k: 512, v: 768, o: 1024, lse: 1280, ..Default::default() };
            // SAFETY: it is refused before anything is launched.
            unsafe { pass.forward(&pointers, Stream::default()) }
        },
    );
    for text in unprepared.map_text() {
        assert!(text.starts_with("mask: "), "{text}");
    }
}

trait Texts {
    fn map_text(self) -> Vec<String>;
}

impl Texts for Vec<Result<()>> {
    fn map_text(self) -> Vec<String> {
        self.into_iter().map(|result| result.unwrap_err().to_string()).collect()
    }
}

#[test]
fn rows_and_strides_that_do_not_fit_are_refused() {
    let one = |change: &(dyn Fn(&mut ContextProblem) + Sync)| {
        let results = run(
            (1, ContextLayout::Contiguous),
            |own| own,
            |group, mut problem| {
                change(&mut problem);
                group.prepare(&problem).map(|_| ())
            },
        );
        results.map_text().remove(0)
    };
    assert_eq!(
        one(&|problem| problem.query_offsets = vec![0, 13]),
        "q: expected rows 13 like the layout on this rank, got 12"
    );
    assert_eq!(
        one(&|problem| problem.key_offsets = vec![0, 5, 12]),
        "cu_seqlens_k: expected 2 offsets, got 3"
    );
    let apart = Layout { shape: [1, ROWS, 1, 8], strides: [192, 16, 8, 1] };
    assert_eq!(
        one(&|problem| problem.local.k = apart),
        "k: expected strides [96, 8, 8, 1], since it is sent to other ranks, got [192, 16, 8, 1]"
    );
}

#[test]
fn a_backward_pass_of_another_problem_is_refused() {
    let results = run(
        (1, ContextLayout::Contiguous),
        |own| own,
        |group, problem| {
            let mut pass = group.prepare(&problem)?;
            let other = BackwardProblem::new(problem.local.with_scale(2.0));
            // SAFETY: refused before anything is read.
            unsafe { pass.backward(&other, &BackwardPointers::default(), Stream::default()) }
        },
    );
    assert_eq!(
        results.map_text()[0],
        "problem: expected the forward pass that was prepared, got another one"
    );
}
