//! Tensors in memory of a GPU, which stay there: kernels are queued on candle's stream, and nothing waits.

use crate::lift;
use crate::pass::{Given, GivenScores, Gradients, Inputs, Kept, Pass};
use crate::scores::{Held, HeldTensor, hold, score_layout};
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Result, Shape, Storage, Tensor, WithDType, bail};
use finite_attention::attention::{launch_backward, prepare_mask, prepared_mask_bytes};
use finite_attention::plan::{ScorePointers, plan_backward};
use finite_attention::problem::Bias;
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, DevicePointer, Dtype, Element, ForwardPointers, Stream,
    Workspace,
};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What this door can be asked for: elements of the library and of candle's memory.
pub trait OnGpu: Element + WithDType + CudaDType + DeviceRepr {}

impl<T: Element + WithDType + CudaDType + DeviceRepr> OnGpu for T {}

/// What a forward pass leaves on the GPU.
pub struct OnDevice {
    lse: CudaSlice<f32>,
    made: Made,
}

/// What is made for a pass: the bits of its boolean mask, and offsets of packed sequences.
struct Made {
    bits: Option<CudaSlice<u64>>,
    offsets: Option<[CudaSlice<i32>; 2]>,
}

/// o, dense; lse is kept.
pub fn forward<T: OnGpu>(
    pass: &Pass,
    [q, k, v]: [Given<'_, CudaStorage>; 3],
    scores: GivenScores<'_, CudaStorage>,
) -> Result<CudaStorage> {
    let problem = &pass.problem.forward;
    let (gpu, stream) = (q.0.device.clone(), q.0.device.cuda_stream());
    let ours = device(&stream)?;
    let valid = lift(problem.validate())?;
    let made = Made::new(pass, &gpu, &ours)?;
    let mut o = allocate::<T>(&gpu, problem.o.span())?;
    let mut lse = allocate::<f32>(&gpu, if problem.wants_lse { valid.lse_elements() } else { 0 })?;
    {
        let (held, mut guards) = (pass.scores.hold(scores.map(|given| given.is_some())), Vec::new());
        let score = score_pointers::<T>(&stream, pass, scores, &held, &made, &mut guards)?;
        let [cu_seqlens_q, cu_seqlens_k] = made.offset_pointers(&stream, &mut guards);
        let (q, _q) = address::<T>(&stream, q)?;
        let (k, _k) = address::<T>(&stream, k)?;
        let (v, _v) = address::<T>(&stream, v)?;
        let (o, _o) = o.device_ptr_mut(&stream);
        let (lse, _lse) = lse.device_ptr_mut(&stream);
        let pointers = ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score };
        // SAFETY: the slices hold the spans of their layouts; o and lse are new; the offsets were checked,
        // and the bits are of this problem's mask. Candle's stream orders all that is queued, and memory is
        // freed in the order of it.
        lift(unsafe { finite_attention::forward(&ours, problem, &pointers, queue(&stream)) })?;
    }
    pass.keep(Kept::Cuda(OnDevice { lse, made }))?;
    Ok(CudaStorage::wrap_cuda_slice(o, gpu))
}

/// dq, dk and dv one after another, and those of bias and sinks that are wanted.
pub fn backward<T: OnGpu>(
    pass: &Pass,
    problem: &BackwardProblem,
    tensors: &Inputs<'_>,
) -> Result<Gradients> {
    let Kept::Cuda(OnDevice { lse, made }) = pass.kept()? else {
        bail!("lse: expected it in memory of the GPU")
    };
    let given = |place: usize| -> Result<Given<'_, CudaStorage>> {
        let (storage, start) = tensors.given(place)?;
        Ok((on_gpu("q, k, v and do", storage)?, start))
    };
    let gpu = given(0)?.0.device.clone();
    let stream = gpu.cuda_stream();
    let ours = device(&stream)?;
    let [of_q, of_k] = [&problem.dq, &problem.dk].map(|layout| (layout.span() * size_of::<T>()) as u64);
    let mut qkv = allocate::<T>(&gpu, pass.joined_elements())?;
    let of_bias = |bias: Bias| match bias.dtype {
        Dtype::F32 => allocate(&gpu, bias.layout.span()).map(AnySlice::F32),
        _ => allocate::<T>(&gpu, bias.layout.span()).map(AnySlice::LikeQ),
    };
    let mut d_bias = problem.d_bias.map(of_bias).transpose()?;
    let heads = problem.forward.q.shape[2];
    let of_sinks = problem.wants_d_sinks.then(|| allocate::<f32>(&gpu, heads));
    let mut d_sinks = of_sinks.transpose()?;
    {
        let (scores, mut guards) = (pass.scores.hold([false; 2]), Vec::new());
        let score = score_pointers::<T>(&stream, pass, [None; 2], &scores, made, &mut guards)?;
        let [cu_seqlens_q, cu_seqlens_k] = made.offset_pointers(&stream, &mut guards);
        let (q, _q) = address::<T>(&stream, given(0)?)?;
        let (k, _k) = address::<T>(&stream, given(1)?)?;
        let (v, _v) = address::<T>(&stream, given(2)?)?;
        let (o, _o) = address::<T>(&stream, given(3)?)?;
        let (d_o, _d_o) = address::<T>(&stream, given(4)?)?;
        let (lse, _lse) = lse.device_ptr(&stream);
        let (dq, _dqkv) = qkv.device_ptr_mut(&stream);
        let (d_bias, _d_bias) = d_bias.as_mut().map(|slice| slice.pointer(&stream)).unzip();
        let (d_sinks, _d_sinks) = d_sinks.as_mut().map(|slice| slice.device_ptr_mut(&stream)).unzip();
        let pointers = BackwardPointers {
            q,
            k,
            v,
            o,
            lse,
            d_o,
            dq,
            dk: dq + of_q,
            dv: dq + of_q + of_k,
            d_lse: 0,
            cu_seqlens_q,
            cu_seqlens_k,
            score,
            d_bias: d_bias.unwrap_or(0),
            d_sinks: d_sinks.unwrap_or(0),
        };
        let plan = lift(plan_backward(&lift(problem.validate())?, ours.properties(), &pointers))?;
        let bytes = plan.workspace_bytes();
        let mut memory = allocate::<u8>(&gpu, bytes as usize)?;
        let (pointer, _memory) = memory.device_ptr_mut(&stream);
        // SAFETY: as in `forward`; gradients are new, and the workspace is as large as planned.
        lift(unsafe { launch_backward(&ours, &plan, Workspace { pointer, bytes }, queue(&stream)) })?;
    }
    let bias = d_bias.map(|slice| match slice {
        AnySlice::F32(slice) => tensor(&gpu, slice, pass.bias_dims()),
        AnySlice::LikeQ(slice) => tensor(&gpu, slice, pass.bias_dims()),
    });
    let sinks = d_sinks.map(|slice| tensor(&gpu, slice, heads));
    Ok(Gradients { qkv: tensor(&gpu, qkv, pass.joined_elements()), bias, sinks })
}

impl Made {
    /// Queues what makes the bits, and copies the offsets.
    fn new(pass: &Pass, gpu: &CudaDevice, ours: &Device) -> Result<Self> {
        let offsets = match &pass.offsets {
            [of_q, _] if of_q.is_empty() => None,
            [of_q, of_k] => Some([gpu.clone_htod(&of_q[..])?, gpu.clone_htod(&of_k[..])?]),
        };
        let Some(mask) = &pass.scores.mask else { return Ok(Made { bits: None, offsets }) };
        let (stream, [.., keys]) = (gpu.cuda_stream(), pass.problem.forward.score_shape());
        let layout = score_layout("mask", mask)?;
        let bytes = lift(prepared_mask_bytes(&layout, keys))?;
        let mut bits = allocate::<u64>(gpu, bytes.div_ceil(8) as usize)?;
        {
            let (storage, of_mask) = hold(mask);
            let given = (on_gpu("mask", &storage)?, of_mask.start_offset());
            let (pointer, _mask) = address::<u8>(&stream, given)?;
            let (memory, _bits) = bits.device_ptr_mut(&stream);
            let memory = (memory, bytes.next_multiple_of(8));
            // SAFETY: the slice holds the span of the mask's layout, and the bits are new; candle's stream
            // orders what is queued.
            let made = unsafe { prepare_mask(ours, &layout, keys, pointer, memory, queue(&stream)) };
            lift(made)?;
        }
        Ok(Made { bits: Some(bits), offsets })
    }

    /// Where the offsets are, if there are any.
    fn offset_pointers<'s>(
        &'s self,
        stream: &'s CudaStream,
        guards: &mut Vec<SyncOnDrop<'s>>,
    ) -> [DevicePointer; 2] {
        let Some(offsets) = &self.offsets else { return [0; 2] };
        offsets.each_ref().map(|slice| {
            let (pointer, guard) = slice.device_ptr(stream);
            guards.push(guard);
            pointer
        })
    }
}

/// Where what scores have is: bias and sinks that are given, or else those of the pass.
fn score_pointers<'s, T: OnGpu>(
    stream: &'s CudaStream,
    pass: &Pass,
    [bias, sinks]: GivenScores<'s, CudaStorage>,
    held: &'s Held<'_>,
    made: &'s Made,
    guards: &mut Vec<SyncOnDrop<'s>>,
) -> Result<ScorePointers> {
    let mut pointers = ScorePointers::default();
    let mut kept = |(pointer, guard): (DevicePointer, SyncOnDrop<'s>)| {
        guards.push(guard);
        pointer
    };
    if let (Some(bias), Some(of)) =
        (bias.or(held_on_gpu("bias", &held.bias)?), pass.problem.forward.bias)
    {
        pointers.bias = kept(match of.dtype {
            Dtype::F32 => address::<f32>(stream, bias)?,
            _ => address::<T>(stream, bias)?,
        });
    }
    if let Some(bits) = &made.bits {
        pointers.mask_bits = kept(bits.device_ptr(stream));
    }
    if let Some(slopes) = held_on_gpu("alibi_slopes", &held.slopes)? {
        pointers.alibi_slopes = kept(address::<f32>(stream, slopes)?);
    }
    if let Some(sinks) = sinks.or(held_on_gpu("sinks", &held.sinks)?) {
        pointers.sinks = kept(address::<f32>(stream, sinks)?);
    }
    Ok(pointers)
}

/// Elements of q's type, or f32.
enum AnySlice<T> {
    LikeQ(CudaSlice<T>),
    F32(CudaSlice<f32>),
}

impl<T: OnGpu> AnySlice<T> {
    fn pointer<'s>(&'s mut self, stream: &'s CudaStream) -> (DevicePointer, SyncOnDrop<'s>) {
        match self {
            AnySlice::LikeQ(slice) => slice.device_ptr_mut(stream),
            AnySlice::F32(slice) => slice.device_ptr_mut(stream),
        }
    }
}

fn tensor<T: CudaDType>(gpu: &CudaDevice, elements: CudaSlice<T>, shape: impl Into<Shape>) -> Tensor {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(elements, gpu.clone()));
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// The library's handle of the GPU that a stream belongs to, in whose primary context candle is.
fn device(stream: &CudaStream) -> Result<Device> {
    static DEVICES: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);
    let ordinal = stream.context().ordinal();
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices.get_or_insert_default();
    if let Some(device) = devices.get(&ordinal) {
        return Ok(device.clone());
    }
    let device = lift(Device::cuda(ordinal))?;
    Ok(devices.entry(ordinal).or_insert(device).clone())
}

fn queue(stream: &CudaStream) -> Stream {
    Stream(stream.cu_stream() as usize)
}

/// Memory that kernels write, as large as a tensor; of none as large as one element.
fn allocate<T: DeviceRepr>(gpu: &CudaDevice, len: usize) -> Result<CudaSlice<T>> {
    // SAFETY: kernels write all elements before anybody reads them.
    unsafe { gpu.alloc::<T>(len.max(1)) }
}

/// Address of element (0, 0, 0, 0), and what is dropped once all that reads it is queued.
fn address<'s, T: WithDType + CudaDType + DeviceRepr>(
    stream: &'s CudaStream,
    (storage, start): Given<'s, CudaStorage>,
) -> Result<(DevicePointer, SyncOnDrop<'s>)> {
    let (pointer, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
    Ok((pointer + (start * size_of::<T>()) as u64, guard))
}

/// A tensor that is held, as operators are given it.
fn held_on_gpu<'s>(
    argument: &'static str,
    held: &'s Option<HeldTensor<'_>>,
) -> Result<Option<Given<'s, CudaStorage>>> {
    let Some((storage, layout)) = held else { return Ok(None) };
    Ok(Some((on_gpu(argument, storage)?, layout.start_offset())))
}

fn on_gpu<'s>(argument: &'static str, storage: &'s Storage) -> Result<&'s CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => bail!("{argument}: expected memory of a GPU, got that of the host"),
    }
}
