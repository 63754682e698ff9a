//! Whole tensors of the host over several ranks: shared out, computed, and collected.

mod scores;

use self::scores::{RankScoreGradients, RankScores};
use super::communicator::{Communicator, LocalCommunicator};
use super::{ContextLayout, ContextParallel, ContextProblem, ContextSharing};
use crate::attention::{BackwardOutput, Element, ForwardOutput, ScoreSlices};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::plan::{BackwardPointers, ForwardPointers};
use crate::problem::{
    BackwardProblem, ForwardProblem, Layout, Sequences, common_dtype, sequence_offsets,
};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What several ranks compute together, on the host. Slices of whole tensors as in
/// [`forward_host`](crate::forward_host): `T` is the element type of q, k, v and dO.
#[derive(Clone, Copy, Debug)]
pub struct ContextInputs<'s, T> {
    /// `[B, Sq, Hq, D]`.
    pub q: &'s [T],
    /// `[B, Sk, Hk, D]`.
    pub k: &'s [T],
    /// `[B, Sk, Hk, Dv]`.
    pub v: &'s [T],
    /// `[B, Sq, Hq, Dv]`; not looked at without a backward pass.
    pub d_o: &'s [T],
    /// `[B, Hq, Sq]`, packed `[Hq, Tq]`; empty unless [`BackwardProblem::has_d_lse`].
    pub d_lse: &'s [f32],
    /// Offsets of packed sequences in q; empty without them.
    pub cu_seqlens_q: &'s [i32],
    /// Offsets of packed sequences in k; empty without them.
    pub cu_seqlens_k: &'s [i32],
    /// Bias, boolean mask and sinks, over the whole.
    pub scores: ScoreSlices<'s, T>,
}

/// o and lse, and the gradients if they were asked for. `O` is the element type of o, dq, dk and dv.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextOutput<O> {
    /// o and lse.
    pub forward: ForwardOutput<O>,
    /// dq, dk and dv.
    pub gradients: Option<BackwardOutput<O>>,
}

/// A forward pass, and the backward pass if one is given, over the ranks of `ranks`, each with the device
/// beside it, in a thread of its own. Tensors as in [`forward_host`](crate::forward_host); the element type
/// of gradients is that of o.
///
/// ```
/// use finite_attention::context_parallel::host::{ContextInputs, context_parallel_host};
/// use finite_attention::context_parallel::{ContextLayout, LocalCommunicator};
/// use finite_attention::{Arch, Device, Dtype, ForwardProblem, Layout};
/// use std::time::Duration;
/// # fn main() -> finite_attention::Result<()> {
/// let layout = Layout::bshd([1, 6, 1, 4]);
/// let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).causal();
/// let ranks = LocalCommunicator::create(2, Duration::from_secs(60))
///     .into_iter()
///     .map(|communicator| Ok((Device::emulated(Arch::Sm80)?, communicator)))
///     .collect::<finite_attention::Result<Vec<_>>>()?;
/// let ones = [1.0_f32; 24];
/// let inputs = ContextInputs {
///     q: &ones, k: &ones, v: &ones, d_o: &[], d_lse: &[], cu_seqlens_q: &[], cu_seqlens_k: &[],
///     scores: Default::default(),
/// };
/// let layout = ContextLayout::Stripe;
/// let output = context_parallel_host::<f32, f32>(ranks, layout, &problem, None, &inputs)?;
/// assert_eq!(output.forward.o, ones);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What [`ContextProblem`], [`ContextPass::forward`](super::ContextPass::forward) and
/// [`ContextPass::backward`](super::ContextPass::backward) refuse, [`Error::WrongLength`] for a slice of
/// another length than its tensor, [`Error::WrongDtype`]. If several ranks fail, the error is that of one
/// that did not fail because of another.
pub fn context_parallel_host<T: Element, O: Element>(
    ranks: Vec<(Device, LocalCommunicator)>,
    sharing: impl Into<ContextSharing>,
    problem: &ForwardProblem,
    backward: Option<&BackwardProblem>,
    inputs: &ContextInputs<'_, T>,
) -> Result<ContextOutput<O>> {
    let count = ranks.len();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| Mutex::new(Some(rank))).collect();
    let connect = |rank: usize| -> Result<(Device, Box<dyn Communicator>)> {
        let mut slot = ranks[rank].lock().unwrap_or_else(PoisonError::into_inner);
        let (device, own) = slot.take().expect("each rank is connected once");
        Ok((device, Box::new(own)))
    };
    context_parallel_connected(count, connect, sharing, problem, backward, inputs)
}

/// The same over `count` ranks, each of which `connect` gives its device and communicator, in its own thread.
///
/// # Errors
/// As [`context_parallel_host`], and those of `connect`.
pub fn context_parallel_connected<T: Element, O: Element>(
    count: usize,
    connect: impl Fn(usize) -> Result<(Device, Box<dyn Communicator>)> + Sync,
    sharing: impl Into<ContextSharing>,
    problem: &ForwardProblem,
    backward: Option<&BackwardProblem>,
    inputs: &ContextInputs<'_, T>,
) -> Result<ContextOutput<O>> {
    let (whole, sharing) = (Whole::new::<T, O>(problem, backward, inputs)?, sharing.into());
    let shares: Vec<Result<Share<O>>> = thread::scope(|scope| {
        let (whole, connect) = (&whole, &connect);
        let threads: Vec<_> = (0..count)
            .map(|rank| {
                scope.spawn(move || {
                    let (device, communicator) = connect(rank)?;
                    let rows = whole.rows(sharing.layout, count, rank);
                    let group = ContextParallel::new(device.clone(), communicator, sharing)?;
                    compute::<T, O>(&group, &device, whole, rows, inputs)
                })
            })
            .collect();
        threads.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let is_own = |result: &&Result<Share<O>>| !matches!(result, Err(Error::Peer { .. }) | Ok(_));
    if let Some(Err(error)) = shares.iter().find(is_own) {
        return Err(error.clone());
    }
    collect(&whole, shares.into_iter().collect::<Result<Vec<_>>>()?)
}

/// The whole problem, checked.
struct Whole {
    problem: ForwardProblem,
    backward: Option<BackwardProblem>,
    query_offsets: Vec<usize>,
    key_offsets: Vec<usize>,
    lse_layout: Layout,
}

/// Rows of the whole that a rank has.
struct RankRows {
    queries: Vec<usize>,
    keys: Vec<usize>,
}

/// What a rank has computed: dense rows of its own.
struct Share<O> {
    rows: RankRows,
    o: Vec<O>,
    lse: Vec<f32>,
    gradients: Option<[Vec<O>; 3]>,
    of_scores: RankScoreGradients,
}

impl Whole {
    fn new<T: Element, O: Element>(
        problem: &ForwardProblem,
        backward: Option<&BackwardProblem>,
        inputs: &ContextInputs<'_, T>,
    ) -> Result<Self> {
        common_dtype(&[("problem", problem.dtype), ("q", T::DTYPE)])?;
        common_dtype(&[("problem", problem.output_dtype), ("o", O::DTYPE)])?;
        let (cu_seqlens_q, cu_seqlens_k) = (inputs.cu_seqlens_q, inputs.cu_seqlens_k);
        let rows = [problem.q.shape[1], problem.k.shape[1]];
        problem.sequences.check_offsets(rows[0], rows[1], cu_seqlens_q, cu_seqlens_k)?;
        let valid = problem.validate()?;
        scores::check(problem, inputs)?;
        let (query_offsets, key_offsets) = match problem.sequences {
            Sequences::Strided => (vec![0, rows[0]], vec![0, rows[1]]),
            Sequences::Packed { .. } => sequence_offsets(cu_seqlens_q, cu_seqlens_k)?,
        };
        let [batches, query_rows, heads, _] = problem.q.shape;
        let lse_layout = Layout {
            shape: [batches, query_rows, heads, 1],
            strides: [(heads * query_rows) as i64, 1, query_rows as i64, 1],
        };
        let mut lengths = vec![
            ("q", inputs.q.len(), problem.q.span(), problem.q.shape.to_vec()),
            ("k", inputs.k.len(), problem.k.span(), problem.k.shape.to_vec()),
            ("v", inputs.v.len(), problem.v.span(), problem.v.shape.to_vec()),
        ];
        if let Some(backward) = backward {
            backward.validate()?;
            common_dtype(&[("o", O::DTYPE), ("dq, dk, dv", backward.gradient_dtype)])?;
            let d_lse = if backward.has_d_lse { valid.lse_elements() } else { 0 };
            let shape = backward.d_o.shape.to_vec();
            lengths.push(("do", inputs.d_o.len(), backward.d_o.span(), shape));
            lengths.push(("dlse", inputs.d_lse.len(), d_lse, valid.lse_shape()));
        }
        match lengths.into_iter().find(|(_, got, expected, _)| got != expected) {
            Some((argument, got, expected, shape)) => {
                Err(Error::WrongLength { argument, expected, shape, got })
            }
            None => Ok(Whole {
                problem: *problem,
                backward: backward.copied(),
                query_offsets,
                key_offsets,
                lse_layout,
            }),
        }
    }

    fn rows(&self, layout: ContextLayout, ranks: usize, rank: usize) -> RankRows {
        RankRows {
            queries: layout.positions(ranks, rank, &self.query_offsets),
            keys: layout.positions(ranks, rank, &self.key_offsets),
        }
    }
}

/// A dense tensor of some rows of another one.
fn with_rows(layout: &Layout, rows: usize) -> Layout {
    let [batches, _, heads, columns] = layout.shape;
    Layout::bshd([batches, rows, heads, columns])
}

/// These rows of a tensor, dense.
pub(crate) fn take<T: Copy>(elements: &[T], layout: &Layout, rows: &[usize]) -> Vec<T> {
    layout.places_of_rows(rows).map(|place| elements[place]).collect()
}

/// The reverse of [`take`].
pub(crate) fn put<T: Copy>(elements: &mut [T], layout: &Layout, rows: &[usize], taken: &[T]) {
    layout.places_of_rows(rows).zip(taken).for_each(|(place, &element)| elements[place] = element);
}

/// lse of a rank as it stands there, `[B, Hq, rows]`, as a tensor of rows.
fn lse_of_rank(layout: &Layout, rows: usize) -> Layout {
    let [batches, _, heads, _] = layout.shape;
    Layout { shape: [batches, rows, heads, 1], strides: [(heads * rows) as i64, 1, rows as i64, 1] }
}

/// The work of one rank.
fn compute<T: Element, O: Element>(
    group: &ContextParallel,
    device: &Device,
    whole: &Whole,
    rows: RankRows,
    inputs: &ContextInputs<'_, T>,
) -> Result<Share<O>> {
    let problem = &whole.problem;
    let [query_rows, key_rows] = [rows.queries.len(), rows.keys.len()];
    let stream = Stream::default();
    let local = ForwardProblem {
        q: with_rows(&problem.q, query_rows),
        k: with_rows(&problem.k, key_rows),
        v: with_rows(&problem.v, key_rows),
        o: with_rows(&problem.o, query_rows),
        sequences: Sequences::Strided,
        wants_lse: true,
        ..*problem
    };
    let scores = RankScores::new(whole, &rows, inputs);
    let local = scores.add_to(local);
    let context = ContextProblem {
        local,
        query_offsets: whole.query_offsets.clone(),
        key_offsets: whole.key_offsets.clone(),
    };
    let mut pass = group.prepare(&context)?;
    let of_scores = scores.upload(device, &mut pass, stream)?;
    let upload = |elements: &[T], layout: &Layout, rows: &[usize]| {
        DeviceBuffer::from_slice(device, &take(elements, layout, rows))
    };
    let q = upload(inputs.q, &problem.q, &rows.queries)?;
    let k = upload(inputs.k, &problem.k, &rows.keys)?;
    let v = upload(inputs.v, &problem.v, &rows.keys)?;
    let elements = |layout: &Layout| layout.elements() as usize;
    let o = DeviceBuffer::<O>::uninitialised(device, elements(&local.o))?;
    let own_lse = lse_of_rank(&whole.lse_layout, query_rows);
    let lse = DeviceBuffer::<f32>::uninitialised(device, elements(&own_lse))?;
    let pointers = ForwardPointers {
        q: q.device_pointer(),
        k: k.device_pointer(),
        v: v.device_pointer(),
        o: o.device_pointer(),
        lse: lse.device_pointer(),
        score: of_scores.pointers(),
        ..ForwardPointers::default()
    };
    // SAFETY: each allocation holds its tensor, is used by nobody else, and lives past `wait`.
    unsafe { pass.forward(&pointers, stream) }?;
    let mut gradients = None;
    if let Some(backward) = &whole.backward {
        let own = BackwardProblem {
            gradient_dtype: backward.gradient_dtype,
            has_d_lse: backward.has_d_lse,
            mode: backward.mode,
            d_bias: scores.d_bias(),
            wants_d_sinks: scores.wants_d_sinks(),
            ..BackwardProblem::new(local)
        };
        let d_o = upload(inputs.d_o, &backward.d_o, &rows.queries)?;
        let d_lse = if own.has_d_lse {
            // As it stands there: heads before rows.
            let taken = take(inputs.d_lse, &whole.lse_layout, &rows.queries);
            let mut placed = vec![0.0; taken.len()];
            put(&mut placed, &own_lse, &(0..query_rows).collect::<Vec<_>>(), &taken);
            DeviceBuffer::from_slice(device, &placed)?
        } else {
            DeviceBuffer::uninitialised(device, 0)?
        };
        let buffer = |layout: &Layout| DeviceBuffer::<O>::uninitialised(device, elements(layout));
        let (dq, dk, dv) = (buffer(&local.q)?, buffer(&local.k)?, buffer(&local.v)?);
        let [d_bias, d_sinks] = of_scores.gradients();
        let pointers = BackwardPointers {
            q: pointers.q,
            k: pointers.k,
            v: pointers.v,
            o: pointers.o,
            lse: pointers.lse,
            d_o: d_o.device_pointer(),
            d_lse: d_lse.device_pointer(),
            dq: dq.device_pointer(),
            dk: dk.device_pointer(),
            dv: dv.device_pointer(),
            cu_seqlens_q: 0,
            cu_seqlens_k: 0,
            score: pointers.score,
            d_bias,
            d_sinks,
        };
        // SAFETY: as above.
        unsafe { pass.backward(&own, &pointers, stream) }?;
        group.wait(stream)?;
        gradients = Some([dq.to_vec(stream)?, dk.to_vec(stream)?, dv.to_vec(stream)?]);
    }
    group.wait(stream)?;
    let own: Vec<usize> = (0..query_rows).collect();
    let lse = take(&lse.to_vec(stream)?, &own_lse, &own);
    let of_scores = of_scores.read(stream)?;
    Ok(Share { rows, o: o.to_vec(stream)?, lse, gradients, of_scores })
}

/// The whole results.
fn collect<O: Element>(whole: &Whole, shares: Vec<Share<O>>) -> Result<ContextOutput<O>> {
    let zeros = |layout: &Layout| vec![O::from_f32(0.0); layout.span()];
    let problem = &whole.problem;
    let mut o = zeros(&problem.o);
    let mut lse = vec![0.0; whole.lse_layout.elements() as usize];
    let of_scores: Vec<_> = shares.iter().map(|share| (&share.rows, &share.of_scores)).collect();
    let (d_bias, d_sinks) = scores::collected(whole, &of_scores);
    let mut gradients = whole.backward.map(|backward| BackwardOutput {
        dq: zeros(&backward.dq),
        dk: zeros(&backward.dk),
        dv: zeros(&backward.dv),
        d_bias: d_bias.clone(),
        d_sinks: d_sinks.clone(),
    });
    for share in &shares {
        put(&mut o, &problem.o, &share.rows.queries, &share.o);
        put(&mut lse, &whole.lse_layout, &share.rows.queries, &share.lse);
        if let (Some(backward), Some(all), Some([dq, dk, dv])) =
            (&whole.backward, &mut gradients, &share.gradients)
        {
            put(&mut all.dq, &backward.dq, &share.rows.queries, dq);
            put(&mut all.dk, &backward.dk, &share.rows.keys, dk);
            put(&mut all.dv, &backward.dv, &share.rows.keys, dv);
        }
    }
    if !problem.wants_lse {
        lse = Vec::new();
    }
    Ok(ContextOutput { forward: ForwardOutput { o, lse }, gradients })
}
