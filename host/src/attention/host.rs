//! Attention on host slices: copied to the device, computed, copied back.

use super::dynamic::forward_under;
use super::scores::{CopiedScores, Elements, ScoreGradients, ScoreSlices};
use super::{DynamicAttention, Element, backward_and_wait};
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use crate::plan::{BackwardPointers, ForwardPointers};
use crate::problem::{BackwardProblem, ForwardProblem, Layout, ValidForward, common_dtype};

/// What a forward pass gives, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardOutput<T> {
    /// `[B, Sq, Hq, Dv]` in the layout of the problem's o: [`Layout::span`] elements, zeros between
    /// them.
    pub o: Vec<T>,
    /// Dense `[B, Hq, Sq]`, packed `[Hq, Tq]`; empty when the problem does not want it.
    pub lse: Vec<f32>,
}

/// Forward pass on host slices. A slice starts with the element of the lowest address (with non-negative
/// strides: element (0, 0, 0, 0)) and holds exactly [`Layout::span`] elements of its layout: of a buffer that
/// goes on, `&elements[..layout.span()]`.
///
/// `T` is the element type of q, k and v, `O` that of o: `T` again, or f32.
///
/// ```no_run
/// use finite_attention::{Device, Dtype, ForwardOutput, ForwardProblem, Layout, forward_host};
/// # fn main() -> finite_attention::Result<()> {
/// let layout = Layout::bshd([1, 3, 1, 4]);
/// let (q, k, v) = ([0.5f32; 12], [1f32; 12], [2f32; 12]);
/// let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).causal();
/// let output: ForwardOutput<f32> = forward_host(&Device::default()?, &problem, &q, &k, &v)?;
/// assert_eq!(output.o, [2.0; 12]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::WrongDtype`] if `T` or `O` is not the problem's dtype, [`Error::WrongLength`] if a slice is
/// too short or too long, [`Error::OutOfMemory`], also of the host, and everything that
/// [`forward`](super::forward) refuses.
pub fn forward_host<T: Element, O: Element>(
    device: &Device,
    problem: &ForwardProblem,
    q: &[T],
    k: &[T],
    v: &[T],
) -> Result<ForwardOutput<O>> {
    forward_packed_host(device, problem, [q, k, v], &[], &[])
}

/// As [`forward_host`], for packed sequences: with the offsets of q's and of k's.
///
/// # Errors
/// As [`forward_host`], and what [`crate::Sequences::check_offsets`] refuses.
pub fn forward_packed_host<T: Element, O: Element>(
    device: &Device,
    problem: &ForwardProblem,
    [q, k, v]: [&[T]; 3],
    cu_seqlens_q: &[i32],
    cu_seqlens_k: &[i32],
) -> Result<ForwardOutput<O>> {
    let scores = ScoreSlices::default();
    forward_inputs_host(device, problem, &ForwardInputs { q, k, v, scores, cu_seqlens_q, cu_seqlens_k })
}

/// What a forward pass takes, on the host. Slices of tensors as in [`forward_host`]: `T` is the element type
/// of q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct ForwardInputs<'s, T> {
    /// `[B, Sq, Hq, D]`.
    pub q: &'s [T],
    /// `[B, Sk, Hk, D]`.
    pub k: &'s [T],
    /// `[B, Sk, Hk, Dv]`.
    pub v: &'s [T],
    /// Bias, boolean mask, slopes and sinks: what of them the problem has.
    pub scores: ScoreSlices<'s, T>,
    /// Offsets of packed sequences in q; empty without them.
    pub cu_seqlens_q: &'s [i32],
    /// Offsets of packed sequences in k; empty without them.
    pub cu_seqlens_k: &'s [i32],
}

/// As [`forward_packed_host`], with all that scores can have beside q and k.
///
/// ```no_run
/// use finite_attention::attention::{BiasSlice, ForwardInputs, ScoreSlices, forward_inputs_host};
/// use finite_attention::problem::{Bias, ScoreLayout};
/// use finite_attention::{Device, Dtype, ForwardOutput, ForwardProblem, Layout};
/// # fn main() -> finite_attention::Result<()> {
/// let layout = Layout::bshd([1, 2, 1, 4]);
/// let (q, k, v) = ([0.5f32; 8], [1f32; 8], [2f32; 8]);
/// // The second key is hidden from both queries.
/// let bias = [0.0, f32::NEG_INFINITY];
/// let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout)
///     .with_bias(Bias { layout: ScoreLayout::dense([1, 1, 1, 2]), dtype: Dtype::F32 });
/// let inputs = ForwardInputs {
///     q: &q,
///     k: &k,
///     v: &v,
///     scores: ScoreSlices { bias: Some(BiasSlice::F32(&bias)), ..ScoreSlices::default() },
///     cu_seqlens_q: &[],
///     cu_seqlens_k: &[],
/// };
/// let output: ForwardOutput<f32> = forward_inputs_host(&Device::default()?, &problem, &inputs)?;
/// assert_eq!(output.lse, [1.0; 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`forward_packed_host`], [`Error::NotInProblem`] for what the problem does not have, and
/// [`Error::WrongLength`] for what it has and is not there.
pub fn forward_inputs_host<T: Element, O: Element>(
    device: &Device,
    problem: &ForwardProblem,
    inputs: &ForwardInputs<'_, T>,
) -> Result<ForwardOutput<O>> {
    let &ForwardInputs { q, k, v, ref scores, cu_seqlens_q, cu_seqlens_k } = inputs;
    let dynamic_mask = scores.dynamic_mask;
    common_dtype(&[("problem", problem.dtype), ("q", T::DTYPE)])?;
    common_dtype(&[("problem", problem.output_dtype), ("o", O::DTYPE)])?;
    check_offsets(problem, cu_seqlens_q, cu_seqlens_k)?;
    let valid = problem.validate()?;
    let stream = Stream::default();
    let offsets_q = DeviceBuffer::from_slice(device, cu_seqlens_q)?;
    let offsets_k = DeviceBuffer::from_slice(device, cu_seqlens_k)?;
    let q = Copied::new(device, "q", &problem.q, q)?;
    let k = Copied::new(device, "k", &problem.k, k)?;
    let v = Copied::new(device, "v", &problem.v, v)?;
    let scores = CopiedScores::new(device, &valid, scores, stream)?;
    let o = output_buffer::<O>(device, &problem.o)?;
    let lse_elements = if problem.wants_lse { valid.lse_elements() } else { 0 };
    let lse = DeviceBuffer::<f32>::uninitialised(device, lse_elements)?;
    let pointers = ForwardPointers {
        q: q.pointer(),
        k: k.pointer(),
        v: v.pointer(),
        o: o.device_pointer(),
        lse: lse.device_pointer(),
        cu_seqlens_q: offsets_q.device_pointer(),
        cu_seqlens_k: offsets_k.device_pointer(),
        score: scores.pointers(),
    };
    // SAFETY: each allocation holds the span of its layout, is used by nobody else, and lives past
    // `synchronize`, as does the choice of keys; the offsets were checked.
    let _chosen = unsafe { forward_under(device, problem, dynamic_mask, &pointers, stream) }?;
    device.synchronize(stream)?;
    Ok(ForwardOutput { o: o.to_vec(stream)?, lse: lse.to_vec(stream)? })
}

/// What a backward pass takes, on the host. Slices of tensors as in [`forward_host`]: `T` is the element
/// type of q, k, v and dO, `O` that of o.
#[derive(Clone, Copy, Debug)]
pub struct BackwardInputs<'s, T, O> {
    /// `[B, Sq, Hq, D]`.
    pub q: &'s [T],
    /// `[B, Sk, Hk, D]`.
    pub k: &'s [T],
    /// `[B, Sk, Hk, Dv]`.
    pub v: &'s [T],
    /// `[B, Sq, Hq, Dv]`, what the forward gave.
    pub o: &'s [O],
    /// Dense `[B, Hq, Sq]`, packed `[Hq, Tq]`, what the forward gave.
    pub lse: &'s [f32],
    /// `[B, Sq, Hq, Dv]`.
    pub d_o: &'s [T],
    /// Like lse; empty unless [`BackwardProblem::has_d_lse`].
    pub d_lse: &'s [f32],
    /// Bias, boolean mask, slopes and sinks, as in the forward pass.
    pub scores: ScoreSlices<'s, T>,
    /// Offsets of packed sequences in q; empty without them.
    pub cu_seqlens_q: &'s [i32],
    /// Offsets of packed sequences in k; empty without them.
    pub cu_seqlens_k: &'s [i32],
}

impl<'s, T, O> BackwardInputs<'s, T, O> {
    /// Those of a forward pass on q, k and v and what it gave, with dO; nothing else of scores, no dLSE, and
    /// no packed sequences.
    pub fn new(q: &'s [T], k: &'s [T], v: &'s [T], output: &'s ForwardOutput<O>, d_o: &'s [T]) -> Self {
        let scores = ScoreSlices::default();
        let ForwardOutput { o, lse } = output;
        BackwardInputs { q, k, v, o, lse, d_o, d_lse: &[], scores, cu_seqlens_q: &[], cu_seqlens_k: &[] }
    }
}

/// What a backward pass gives, on the host: each in its layout of the problem, [`Layout::span`]
/// elements, zeros between them.
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardOutput<G> {
    /// `[B, Sq, Hq, D]`.
    pub dq: Vec<G>,
    /// `[B, Sk, Hk, D]`.
    pub dk: Vec<G>,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Vec<G>,
    /// In the layout of [`BackwardProblem::d_bias`], if that is wanted.
    pub d_bias: Option<Elements>,
    /// `[Hq]`; empty unless [`BackwardProblem::wants_d_sinks`].
    pub d_sinks: Vec<f32>,
}

/// Backward pass on host slices. `G` is the element type of dq, dk and dv: `T`, or f32.
///
/// ```
/// use finite_attention::*;
/// # fn main() -> Result<()> {
/// let device = Device::emulated(Arch::Sm80)?;
/// let layout = Layout::bshd([1, 2, 1, 4]);
/// let (q, k, v, d_o) = ([0.5f32; 8], [1f32; 8], [2f32; 8], [1f32; 8]);
/// let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout);
/// let output: ForwardOutput<f32> = forward_host(&device, &problem, &q, &k, &v)?;
/// let inputs = BackwardInputs::new(&q, &k, &v, &output, &d_o);
/// let gradients: BackwardOutput<f32> = backward_host(&device, &BackwardProblem::new(problem), &inputs)?;
/// assert_eq!((gradients.dq, gradients.dv), (vec![0.0; 8], vec![1.0; 8]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`forward_inputs_host`], for every tensor, and [`Error::NotInProblem`] for a dLSE that the problem does
/// not have.
pub fn backward_host<T: Element, O: Element, G: Element>(
    device: &Device,
    problem: &BackwardProblem,
    inputs: &BackwardInputs<'_, T, O>,
) -> Result<BackwardOutput<G>> {
    let forward = &problem.forward;
    common_dtype(&[("problem", forward.dtype), ("q", T::DTYPE)])?;
    common_dtype(&[("problem", forward.output_dtype), ("o", O::DTYPE)])?;
    common_dtype(&[("problem", problem.gradient_dtype), ("dq", G::DTYPE)])?;
    check_offsets(forward, inputs.cu_seqlens_q, inputs.cu_seqlens_k)?;
    let valid_backward = problem.validate()?;
    let valid = valid_backward.forward;
    if !problem.has_d_lse && !inputs.d_lse.is_empty() {
        return Err(Error::NotInProblem { argument: "dlse", got: inputs.d_lse.len() });
    }
    let stream = Stream::default();
    let offsets_q = DeviceBuffer::from_slice(device, inputs.cu_seqlens_q)?;
    let offsets_k = DeviceBuffer::from_slice(device, inputs.cu_seqlens_k)?;
    let q = Copied::new(device, "q", &forward.q, inputs.q)?;
    let k = Copied::new(device, "k", &forward.k, inputs.k)?;
    let v = Copied::new(device, "v", &forward.v, inputs.v)?;
    let o = Copied::new(device, "o", &forward.o, inputs.o)?;
    let d_o = Copied::new(device, "do", &problem.d_o, inputs.d_o)?;
    let lse = like_lse(device, "lse", &valid, inputs.lse)?;
    let d_lse = match problem.has_d_lse {
        true => like_lse(device, "dlse", &valid, inputs.d_lse)?,
        false => DeviceBuffer::uninitialised(device, 0)?,
    };
    let dq = output_buffer::<G>(device, &problem.dq)?;
    let dk = output_buffer::<G>(device, &problem.dk)?;
    let dv = output_buffer::<G>(device, &problem.dv)?;
    let scores = CopiedScores::new(device, &valid, &inputs.scores, stream)?;
    let of_scores = ScoreGradients::new(device, &valid_backward)?;
    let [d_bias, d_sinks] = of_scores.pointers();
    let pointers = BackwardPointers {
        q: q.pointer(),
        k: k.pointer(),
        v: v.pointer(),
        o: o.pointer(),
        d_o: d_o.pointer(),
        dq: dq.device_pointer(),
        dk: dk.device_pointer(),
        dv: dv.device_pointer(),
        lse: lse.device_pointer(),
        d_lse: d_lse.device_pointer(),
        cu_seqlens_q: offsets_q.device_pointer(),
        cu_seqlens_k: offsets_k.device_pointer(),
        score: scores.pointers(),
        d_bias,
        d_sinks,
    };
    let of_forward = forward_pointers(&pointers);
    let chosen = inputs.scores.dynamic_mask.map(|mask| DynamicAttention::new(device, forward, &mask));
    match chosen.transpose()? {
        // SAFETY: each allocation holds the span of its layout, is used by nobody else, and lives past the
        // end of the call, which waits; the offsets were checked.
        None => unsafe { backward_and_wait(device, problem, &pointers, stream) }?,
        Some(chosen) => {
            // SAFETY: as above.
            unsafe { chosen.choose(&of_forward, stream) }?;
            // SAFETY: as above.
            let launched = unsafe { chosen.backward(problem, &pointers, stream) };
            launched.and(device.synchronize(stream))?;
        }
    }
    let (d_bias, d_sinks) = of_scores.read(stream)?;
    let (dq, dk, dv) = (dq.to_vec(stream)?, dk.to_vec(stream)?, dv.to_vec(stream)?);
    Ok(BackwardOutput { dq, dk, dv, d_bias, d_sinks })
}

/// What a forward pass has of the pointers of its backward pass: the choice of keys takes these.
fn forward_pointers(of: &BackwardPointers) -> ForwardPointers {
    let &BackwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score, .. } = of;
    ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score }
}

/// The offsets of packed sequences fit the rows. Before all else is checked: where they do not, it is they
/// who are wrong, and not the tensors.
fn check_offsets(problem: &ForwardProblem, cu_seqlens_q: &[i32], cu_seqlens_k: &[i32]) -> Result<()> {
    let ForwardProblem { q, k, sequences, .. } = problem;
    sequences.check_offsets(q.shape[1], k.shape[1], cu_seqlens_q, cu_seqlens_k)
}

/// Memory for an output.
pub(crate) fn output_buffer<O: Element>(device: &Device, layout: &Layout) -> Result<DeviceBuffer<O>> {
    elements_of(device, layout.span(), layout.elements())
}

/// Memory for so many elements, of which the first and the last are `span - 1` apart. Zeros where a layout
/// has gaps; else left uninitialised, so that the emulator sees an element that is not written.
pub(super) fn elements_of<O: Element>(
    device: &Device,
    span: usize,
    elements: u128,
) -> Result<DeviceBuffer<O>> {
    if span as u128 == elements {
        return DeviceBuffer::uninitialised(device, span);
    }
    DeviceBuffer::zeroed(device, span)
}

/// A dense tensor of the shape of lse, copied to the device.
fn like_lse(
    device: &Device,
    argument: &'static str,
    valid: &ValidForward,
    elements: &[f32],
) -> Result<DeviceBuffer<f32>> {
    DeviceBuffer::from_slice(
        device,
        exactly(argument, valid.lse_elements(), &valid.lse_shape(), elements)?,
    )
}

/// The elements, if they are as many as a tensor of this shape spans: who gives more has mistaken a shape.
pub(crate) fn exactly<'e, T>(
    argument: &'static str,
    expected: usize,
    shape: &[usize],
    elements: &'e [T],
) -> Result<&'e [T]> {
    let (shape, got) = (shape.to_vec(), elements.len());
    if got == expected {
        Ok(elements)
    } else {
        Err(Error::WrongLength { argument, expected, shape, got })
    }
}

/// A tensor copied to the device.
pub(crate) struct Copied<T> {
    buffer: DeviceBuffer<T>,
    /// Where element (0, 0, 0, 0) stands in the buffer, in elements.
    origin: usize,
}

impl<T: Element> Copied<T> {
    pub(crate) fn new(
        device: &Device,
        argument: &'static str,
        layout: &Layout,
        elements: &[T],
    ) -> Result<Self> {
        let elements = exactly(argument, layout.span(), &layout.shape, elements)?;
        Ok(Copied { buffer: DeviceBuffer::from_slice(device, elements)?, origin: layout.origin() })
    }

    /// Address of element (0, 0, 0, 0).
    pub(crate) fn pointer(&self) -> DevicePointer {
        self.buffer.device_pointer() + (self.origin * size_of::<T>()) as u64
    }
}
