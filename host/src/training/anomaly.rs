//! Passes that are looked at afterwards: which tensor is not finite, and which stage made it so.

use super::scan::scan_but;
use super::{DeviceTensor, Result, Scanned, TrainingError, scan};
use crate::attention::{Element, backward_and_wait, forward};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::images::KernelImages;
use crate::plan::{BackwardPointers, ForwardPointers, ScorePointers};
use crate::problem::{
    AlibiSlopes, BackwardProblem, Bias, ForwardProblem, Layout, ScoreLayout, Sequences, ValidForward,
};
use crate::trace::{
    BiasElements, Cause, Computation, NonFinite, ScannedTensor, ScoreElements, Source, Stage, arch_of,
    lse_layout, search,
};
use bytemuck::{Pod, cast_slice_mut};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use std::fmt;

/// Pairs of a query and a key that a part has at most that is computed again, unless said otherwise: what the
/// emulator does in some seconds.
const MOST_PAIRS: u128 = 1 << 22;

/// An opt-in around forward and backward passes: scans inputs and outputs after each, one pass over every
/// tensor at the speed of memory, and where an output is not finite though all inputs are, computes the
/// smallest part that shows it again in the emulator, which names the stage (scores, probabilities, o, delta,
/// dP, dS, dQ, dK, dV, dBias) and the instruction. PyTorch's anomaly mode sees NaN alone; this sees
/// infinities, too.
///
/// ```
/// use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
/// use finite_attention::trace::Stage;
/// use finite_attention::training::AnomalyMode;
/// use finite_attention::{Arch, Device, Dtype, ForwardPointers, ForwardProblem, Layout, Stream};
/// let device = Device::emulated(Arch::Sm80)?;
/// let layout = Layout::bshd([1, 2, 1, 8]);
/// let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout);
/// // Products of such queries and keys are more than f32 holds.
/// let large = DeviceBuffer::from_slice(&device, &[3e30f32; 16])?;
/// let (v, o) = (DeviceBuffer::from_slice(&device, &[1f32; 16])?, DeviceBuffer::<f32>::zeroed(&device, 16)?);
/// let lse = DeviceBuffer::<f32>::zeroed(&device, 2)?;
/// let (q, k, v) = (large.device_pointer(), large.device_pointer(), v.device_pointer());
/// let (o, lse) = (o.device_pointer(), lse.device_pointer());
/// let pointers = ForwardPointers { q, k, v, o, lse, ..Default::default() };
/// // SAFETY: each buffer is as long as its tensor, and used by nobody else.
/// let report = unsafe { AnomalyMode::new(&device).forward(&problem, &pointers, Stream::default()) }?;
/// assert_eq!(report.first().map(|tensor| tensor.name), Some("o"));
/// assert_eq!(report.stage(), Some(Stage::Scores));
/// # Ok::<(), finite_attention::training::TrainingError>(())
/// ```
///
/// What is meant to be infinite is no finding: lse of a query that sees no key, and minus infinity in a bias,
/// which hides a key, and in a sink.
#[derive(Clone, Debug)]
pub struct AnomalyMode {
    device: Device,
    images: KernelImages,
    most_pairs: u128,
}

/// What a pass was given and gave.
#[derive(Clone, Debug)]
pub struct AnomalyReport {
    /// Every tensor: inputs first, and outputs in the order in which they are computed.
    pub tensors: Vec<ScannedTensor>,
    /// Why the first one that is not finite is not.
    pub cause: Cause,
}

impl AnomalyReport {
    /// Whether all inputs and outputs are finite, but for what is meant to be infinite.
    pub fn is_finite(&self) -> bool {
        matches!(self.cause, Cause::AllFinite)
    }

    /// The first tensor that is not finite.
    pub fn first(&self) -> Option<&ScannedTensor> {
        self.tensors.iter().find(|tensor| tensor.found.count() != 0)
    }

    /// The stage that made the first value that is not finite, if that is known.
    pub fn stage(&self) -> Option<Stage> {
        self.cause.stage()
    }
}

/// `dk: 3 NaN, 0 +inf, 0 -inf, the first at [0, 1, 0, 5]`, and the cause.
impl fmt::Display for AnomalyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tensor in self.tensors.iter().filter(|tensor| tensor.found.count() != 0) {
            let scanned =
                Scanned { non_finite: tensor.found.clone(), first: tensor.first(), norm: f64::NAN };
            writeln!(f, "{}: {scanned}", tensor.name)?;
        }
        write!(f, "{}", self.cause)
    }
}

/// The addresses of a pass.
#[derive(Clone, Copy)]
struct Addresses {
    q: DevicePointer,
    k: DevicePointer,
    v: DevicePointer,
    o: DevicePointer,
    lse: DevicePointer,
    cu_seqlens: [DevicePointer; 2],
    score: ScorePointers,
}

/// Tensors to look at: what, whether the pass was given it, and where minus infinity is meant.
type Listed = (&'static str, bool, DeviceTensor, bool);

impl AnomalyMode {
    /// For passes on this device, with the kernels that ship.
    pub fn new(device: &Device) -> Self {
        AnomalyMode { device: device.clone(), images: KernelImages::embedded(), most_pairs: MOST_PAIRS }
    }

    /// With the kernels that the device was opened with, if these are others.
    pub fn with_images(self, images: KernelImages) -> Self {
        AnomalyMode { images, ..self }
    }

    /// Parts of at most so many pairs of a query and a key are computed again; 2^22 unless said otherwise, of
    /// which the emulator does about a million in a second.
    pub fn with_most_pairs(self, most_pairs: u128) -> Self {
        AnomalyMode { most_pairs, ..self }
    }

    /// [`forward`], and a look at all that it was given and gave. Waits for its end.
    ///
    /// # Errors
    /// Those of [`forward`], and errors of the device. What is not finite is none: it is in the report.
    ///
    /// # Safety
    /// As [`forward`], until the call returns; and what is between the elements of an input is readable.
    pub unsafe fn forward(
        &self,
        problem: &ForwardProblem,
        pointers: &ForwardPointers,
        stream: Stream,
    ) -> Result<AnomalyReport> {
        // SAFETY: passed on to the caller.
        unsafe { forward(&self.device, problem, pointers, stream) }?;
        let ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score } = *pointers;
        let cu_seqlens = [cu_seqlens_q, cu_seqlens_k];
        let at = Addresses { q, k, v, o, lse, cu_seqlens, score };
        let mut listed = inputs(problem, &at);
        listed.push(("o", false, tensor("o", problem.output_dtype, &problem.o, o), false));
        let listed_lse = if problem.wants_lse { Some(lse_tensor(problem, lse)) } else { None };
        listed.extend(listed_lse.map(|lse| ("lse", false, lse, true)));
        // SAFETY: passed on to the caller.
        unsafe { self.report(problem, None, &at, [0; 2], listed, stream) }
    }

    /// [`backward_and_wait`], and a look at all that it was given and gave.
    ///
    /// # Errors
    /// Those of [`backward_and_wait`], and errors of the device. What is not finite is none: it is in the
    /// report.
    ///
    /// # Safety
    /// As [`backward_and_wait`]; and what is between the elements of an input is readable.
    pub unsafe fn backward(
        &self,
        problem: &BackwardProblem,
        pointers: &BackwardPointers,
        stream: Stream,
    ) -> Result<AnomalyReport> {
        // SAFETY: passed on to the caller.
        unsafe { backward_and_wait(&self.device, problem, pointers, stream) }?;
        let forward = &problem.forward;
        let BackwardPointers { q, k, v, o, d_o, dq, dk, dv, lse, d_lse, .. } = *pointers;
        let cu_seqlens = [pointers.cu_seqlens_q, pointers.cu_seqlens_k];
        let at = Addresses { q, k, v, o, lse, cu_seqlens, score: pointers.score };
        let mut listed = inputs(forward, &at);
        listed.push(("o", true, tensor("o", forward.output_dtype, &forward.o, o), false));
        listed.push(("lse", true, lse_tensor(forward, lse), true));
        listed.push(("do", true, tensor("do", forward.dtype, &problem.d_o, d_o), false));
        if problem.has_d_lse {
            listed.push(("dlse", true, lse_tensor(forward, d_lse), false));
        }
        let gradient =
            |name, layout, at| (name, false, tensor(name, problem.gradient_dtype, layout, at), false);
        listed.push(gradient("dq", &problem.dq, dq));
        listed.push(gradient("dk", &problem.dk, dk));
        listed.push(gradient("dv", &problem.dv, dv));
        if let Some(d_bias) = problem.d_bias {
            listed.push(("dbias", false, bias_tensor("dbias", &d_bias, pointers.d_bias), false));
        }
        if problem.wants_d_sinks {
            let heads = [forward.q.shape[2]];
            let d_sinks = DeviceTensor::dense("dsinks", Dtype::F32, &heads, pointers.d_sinks);
            listed.push(("dsinks", false, d_sinks, false));
        }
        // SAFETY: passed on to the caller.
        unsafe { self.report(forward, Some(problem), &at, [d_o, d_lse], listed, stream) }
    }

    /// Scans, and searches for the cause.
    ///
    /// # Safety
    /// As [`forward`].
    unsafe fn report(
        &self,
        problem: &ForwardProblem,
        backward: Option<&BackwardProblem>,
        at: &Addresses,
        gradients: [DevicePointer; 2],
        listed: Vec<Listed>,
        stream: Stream,
    ) -> Result<AnomalyReport> {
        // SAFETY: the caller vouches for all tensors of the pass.
        unsafe {
            match (problem.dtype, problem.output_dtype) {
                (Dtype::Bf16, Dtype::F32) => {
                    self.report_of::<bf16, f32>(problem, backward, at, gradients, listed, stream)
                }
                (Dtype::Bf16, _) => {
                    self.report_of::<bf16, bf16>(problem, backward, at, gradients, listed, stream)
                }
                (Dtype::F16, Dtype::F32) => {
                    self.report_of::<f16, f32>(problem, backward, at, gradients, listed, stream)
                }
                (Dtype::F16, _) => {
                    self.report_of::<f16, f16>(problem, backward, at, gradients, listed, stream)
                }
                (Dtype::F32, _) => {
                    self.report_of::<f32, f32>(problem, backward, at, gradients, listed, stream)
                }
            }
        }
    }

    /// As [`AnomalyMode::report`], with the element types of q and o.
    ///
    /// # Safety
    /// As [`forward`].
    unsafe fn report_of<T: Element, O: Element>(
        &self,
        problem: &ForwardProblem,
        backward: Option<&BackwardProblem>,
        at: &Addresses,
        [d_o, d_lse]: [DevicePointer; 2],
        listed: Vec<Listed>,
        stream: Stream,
    ) -> Result<AnomalyReport> {
        let valid = problem.validate()?;
        let mut tensors = Vec::new();
        let mut has_dead_rows = false;
        for (name, is_input, tensor, allows_negative_infinity) in &listed {
            let (name, is_input) = (*name, *is_input);
            // SAFETY: the caller vouches for all tensors of the pass, whose work is queued before.
            let scanned = unsafe { scan_but(&self.device, tensor, *allows_negative_infinity, stream) }?;
            let mut found = scanned.non_finite;
            if name == "lse" && !is_input {
                // SAFETY: as above.
                found = unsafe { scan(&self.device, tensor, stream) }?.non_finite;
                has_dead_rows = found.negative_infinity != 0;
            }
            tensors.push(ScannedTensor { name, is_input, shape: shape(problem, tensor), found });
        }
        if tensors.iter().all(|tensor| tensor.found.count() == 0) {
            return Ok(AnomalyReport { tensors, cause: Cause::AllFinite });
        }
        let in_inputs = tensors.iter().any(|tensor| tensor.is_input && tensor.found.count() != 0);
        if in_inputs && !has_dead_rows {
            return Ok(AnomalyReport { tensors, cause: Cause::Input });
        }
        // SAFETY: the caller vouches for all tensors of the pass.
        let computation =
            unsafe { self.computation::<T, O>(&valid, backward, at, [d_o, d_lse], stream) }?;
        if let Some(lse) = tensors.iter_mut().find(|tensor| tensor.name == "lse" && has_dead_rows) {
            let values: Vec<f32> = read(&self.device, at.lse, valid.lse_elements(), stream)?;
            let is_meant = |index, value| value == f32::NEG_INFINITY && computation.is_dead(index);
            lse.found = NonFinite::scan(values, is_meant);
        }
        if in_inputs {
            return Ok(AnomalyReport { tensors, cause: Cause::Input });
        }
        let first = tensors.iter().find_map(|tensor| Some((tensor.name, tensor.found.first?)));
        let Some((name, index)) = first else {
            return Ok(AnomalyReport { tensors, cause: Cause::AllFinite });
        };
        let (arch, images, most) = (arch_of(&self.device), &self.images, self.most_pairs);
        let in_f32 = backward.is_some_and(|backward| backward.gradient_dtype == Dtype::F32);
        let cause = match in_f32 {
            true => search::<T, O, f32>(&computation, name, index, arch, images, most)?,
            false => search::<T, O, T>(&computation, name, index, arch, images, most)?,
        };
        Ok(AnomalyReport { tensors, cause })
    }

    /// What the pass was computed from.
    ///
    /// # Safety
    /// As [`forward`], as long as the computation lives.
    unsafe fn computation<T: Element, O: Element>(
        &self,
        valid: &ValidForward,
        backward: Option<&BackwardProblem>,
        at: &Addresses,
        [d_o, d_lse]: [DevicePointer; 2],
        stream: Stream,
    ) -> Result<Computation<'_, T, O>> {
        let (device, problem) = (&self.device, valid.problem);
        let lse = lse_layout(&problem);
        let offsets = match problem.sequences {
            Sequences::Strided => None,
            Sequences::Packed { count, .. } => {
                let [q, k] = at.cu_seqlens;
                Some([read(device, q, count + 1, stream)?, read(device, k, count + 1, stream)?])
            }
        };
        // SAFETY: the caller vouches for all tensors of the pass.
        unsafe {
            Ok(Computation {
                forward: problem,
                backward: backward.copied(),
                q: Source::device(problem.q, device, at.q, stream),
                k: Source::device(problem.k, device, at.k, stream),
                v: Source::device(problem.v, device, at.v, stream),
                d_o: backward.map(|backward| Source::device(backward.d_o, device, d_o, stream)),
                d_lse: backward
                    .filter(|backward| backward.has_d_lse)
                    .map(|_| Source::device(lse, device, d_lse, stream)),
                output: backward.map(|_| {
                    (
                        Source::device(problem.o, device, at.o, stream),
                        Source::device(lse, device, at.lse, stream),
                    )
                }),
                scores: scores(device, valid, &at.score, stream)?,
                offsets,
            })
        }
    }
}

/// The shape of a tensor as it is documented: packed sequences have no batches.
fn shape(problem: &ForwardProblem, tensor: &DeviceTensor) -> Vec<usize> {
    let is_packed = matches!(problem.sequences, Sequences::Packed { .. });
    let has_batches = tensor.shape.len() == 4 && !tensor.name.ends_with("bias");
    tensor.shape[usize::from(is_packed && has_batches)..].to_vec()
}

fn tensor(name: &str, dtype: Dtype, layout: &Layout, address: DevicePointer) -> DeviceTensor {
    DeviceTensor::of_layout(name, dtype, layout, address)
}

fn bias_tensor(name: &str, bias: &Bias, address: DevicePointer) -> DeviceTensor {
    let Bias { layout, dtype } = bias;
    DeviceTensor::dense(name, *dtype, &layout.shape, address).with_strides(&layout.strides)
}

/// `[B, Hq, Sq]`, packed `[Hq, Tq]`.
fn lse_tensor(problem: &ForwardProblem, address: DevicePointer) -> DeviceTensor {
    let [batches, rows, heads, _] = problem.q.shape;
    let shape = match problem.sequences {
        Sequences::Strided => vec![batches, heads, rows],
        Sequences::Packed { .. } => vec![heads, rows],
    };
    DeviceTensor::dense("lse", Dtype::F32, &shape, address)
}

/// What a forward pass is given.
fn inputs(problem: &ForwardProblem, at: &Addresses) -> Vec<Listed> {
    let dtype = problem.dtype;
    let mut listed = vec![
        ("q", true, tensor("q", dtype, &problem.q, at.q), false),
        ("k", true, tensor("k", dtype, &problem.k, at.k), false),
        ("v", true, tensor("v", dtype, &problem.v, at.v), false),
    ];
    if let Some(bias) = &problem.bias {
        listed.push(("bias", true, bias_tensor("bias", bias, at.score.bias), true));
    }
    let [batches, heads, ..] = problem.score_shape();
    let slopes = match problem.alibi {
        None => None,
        Some(AlibiSlopes::PerHead) => Some(vec![heads]),
        Some(AlibiSlopes::PerBatchAndHead) => Some(vec![batches, heads]),
    };
    if let Some(shape) = slopes {
        let slopes = DeviceTensor::dense("alibi_slopes", Dtype::F32, &shape, at.score.alibi_slopes);
        listed.push(("alibi_slopes", true, slopes, false));
    }
    if problem.has_sinks {
        let sinks = DeviceTensor::dense("sinks", Dtype::F32, &[heads], at.score.sinks);
        listed.push(("sinks", true, sinks, true));
    }
    listed
}

/// What scores have beside q and k, copied to the host.
fn scores<T: Element>(
    device: &Device,
    valid: &ValidForward,
    at: &ScorePointers,
    stream: Stream,
) -> Result<ScoreElements<T>> {
    let problem = &valid.problem;
    let bias = problem.bias.map(|Bias { layout, dtype }| {
        let first = at.bias.wrapping_sub((layout.origin() * dtype.bytes() as usize) as u64);
        let elements = match dtype == T::DTYPE {
            true => BiasElements::LikeQ(read(device, first, layout.span(), stream)?),
            false => BiasElements::F32(read(device, first, layout.span(), stream)?),
        };
        Ok::<_, TrainingError>((layout, elements))
    });
    let mask = problem.attn_mask.map(|shape| {
        let words: Vec<u32> = read(device, at.mask_bits, shape.words() as usize, stream)?;
        let shown = words
            .chunks(shape.row_words().max(1))
            .flat_map(|row| (0..shape.keys).map(|key| row[key / 32] >> (key % 32) & 1 != 0))
            .collect();
        let dense = [shape.batches, shape.heads, shape.queries, shape.keys];
        Ok::<_, TrainingError>((ScoreLayout::dense(dense), shown))
    });
    let [batches, heads, ..] = problem.score_shape();
    let slopes = match problem.alibi {
        None => 0,
        Some(AlibiSlopes::PerHead) => heads,
        Some(AlibiSlopes::PerBatchAndHead) => batches * heads,
    };
    let sinks = if problem.has_sinks { heads } else { 0 };
    Ok(ScoreElements {
        bias: bias.transpose()?,
        mask: mask.transpose()?,
        alibi_slopes: read(device, at.alibi_slopes, slopes, stream)?,
        sinks: read(device, at.sinks, sinks, stream)?,
    })
}

/// Copies elements to the host.
fn read<E: Pod>(
    device: &Device,
    address: DevicePointer,
    count: usize,
    stream: Stream,
) -> Result<Vec<E>> {
    let mut elements = vec![E::zeroed(); count];
    if count != 0 {
        device.driver().copy_to_host(cast_slice_mut(&mut elements), address, stream)?;
    }
    Ok(elements)
}
