//! Tensors of CubeCL: in memory of a CUDA device by their addresses, of other runtimes through the host.

use crate::host;
use crate::ops::{
    AttentionGradients, AttentionOps, Bools, Floats, Gradients, Inputs, Outcome, or_panic,
};
use crate::pass::Pass;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use finite_attention::attention::{PreparedMask, backward_and_wait, launch_forward};
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::plan::{ScorePointers, plan_forward};
use finite_attention::problem::{Bias, ScoreLayout};
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, DevicePointer, Error, ForwardPointers, ForwardProblem,
    Layout, Result, Stream,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

impl AttentionOps for CubeBackend {
    fn attention_forward(inputs: Inputs<Self>, pass: Pass) -> Outcome<Self> {
        match cuda(&inputs.q) {
            Some(ordinal) => forward(ordinal, inputs, &pass).into(),
            None => host::forward::<Self>(inputs, &pass).into(),
        }
    }
}

impl AttentionGradients for CubeBackend {
    fn attention_backward(
        inputs: Inputs<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        pass: Pass,
    ) -> Gradients<Self> {
        let tensors = [o, lse, d_o];
        or_panic(match cuda(&inputs.q) {
            Some(ordinal) => backward(ordinal, inputs, tensors, &pass),
            None => host::backward::<Self>(inputs, tensors, &pass),
        })
    }
}

/// The ordinal of a tensor's GPU, if CUDA runs it.
fn cuda(tensor: &CubeTensor) -> Option<usize> {
    match &tensor.device {
        CubeDevice::Cuda(device) => Some(device.index),
        _ => None,
    }
}

fn forward(ordinal: usize, inputs: Inputs<CubeBackend>, pass: &Pass) -> Result<[CubeTensor; 2]> {
    let device = device(ordinal)?;
    let inputs = in_place(inputs);
    let Inputs { q, k, v, .. } = &inputs;
    let problem = problem_of(&inputs, pass.problem.forward);
    let valid = problem.validate()?;
    let [batches, rows, heads, columns] = problem.o.shape;
    let o = new_tensor(q, Shape::new([batches, heads, rows, columns]), q.dtype);
    let lse = new_tensor(q, Shape::new([batches, heads, rows]), DType::F32);
    let held = [Held::new(q)?, Held::new(k)?, Held::new(v)?, Held::new(&o)?, Held::new(&lse)?];
    let beside = Beside::new(&inputs)?;
    wait_for(q)?;
    let made = Made::new(&device, &inputs, &beside, &problem, pass)?;
    let [cu_seqlens_q, cu_seqlens_k] = made.offset_pointers();
    let pointers = ForwardPointers {
        q: held[0].address,
        k: held[1].address,
        v: held[2].address,
        o: held[3].address,
        lse: held[4].address,
        cu_seqlens_q,
        cu_seqlens_k,
        score: beside.pointers(&made),
    };
    let Some(plan) = plan_forward(&valid, device.properties(), &pointers)? else { return Ok([o, lse]) };
    let stream = Stream::default();
    // SAFETY: the handles hold the spans of their layouts and stay in place until they are dropped, which is
    // after the work is done; o and lse are new, and nothing else is queued that uses them. The offsets were
    // checked, and the bits are of this problem's mask.
    let launched = unsafe { launch_forward(&device, &plan, stream) };
    launched.and(device.synchronize(stream))?;
    Ok([o, lse])
}

fn backward(
    ordinal: usize,
    inputs: Inputs<CubeBackend>,
    tensors: [CubeTensor; 3],
    pass: &Pass,
) -> Result<Gradients<CubeBackend>> {
    let device = device(ordinal)?;
    let inputs = in_place(inputs);
    let Inputs { q, k, v, bias, sinks, .. } = &inputs;
    let [o, lse, d_o] = tensors.map(rows_in_place);
    let forward = ForwardProblem { o: layout(&o), ..problem_of(&inputs, pass.problem.forward) };
    let problem = BackwardProblem { forward, d_o: layout(&d_o), ..pass.problem };
    let like = |tensor: &CubeTensor| new_tensor(tensor, tensor.shape(), tensor.dtype);
    let wanted = |floats: &Floats<CubeBackend>, is_wanted: bool| match floats {
        Floats::Tensor(tensor) if is_wanted => Some(like(tensor)),
        _ => None,
    };
    let [dq, dk, dv] = [q, k, v].map(like);
    let d_bias = wanted(bias, problem.d_bias.is_some());
    let d_sinks = wanted(sinks, problem.wants_d_sinks);
    let all = [q, k, v, &o, &lse, &d_o, &dq, &dk, &dv];
    let held = all.into_iter().map(Held::new).collect::<Result<Vec<_>>>()?;
    let [of_bias, of_sinks] =
        [&d_bias, &d_sinks].map(|tensor| tensor.as_ref().map(Held::new).transpose());
    let (of_bias, of_sinks) = (of_bias?, of_sinks?);
    let beside = Beside::new(&inputs)?;
    wait_for(q)?;
    let made = Made::new(&device, &inputs, &beside, &problem.forward, pass)?;
    let [cu_seqlens_q, cu_seqlens_k] = made.offset_pointers();
    let pointers = BackwardPointers {
        q: held[0].address,
        k: held[1].address,
        v: held[2].address,
        o: held[3].address,
        lse: held[4].address,
        d_o: held[5].address,
        dq: held[6].address,
        dk: held[7].address,
        dv: held[8].address,
        d_lse: 0,
        cu_seqlens_q,
        cu_seqlens_k,
        score: beside.pointers(&made),
        d_bias: address(&of_bias),
        d_sinks: address(&of_sinks),
    };
    // SAFETY: as in `forward`.
    unsafe { backward_and_wait(&device, &problem, &pointers, Stream::default()) }?;
    let [d_bias, d_sinks] = [d_bias, d_sinks].map(Into::into);
    Ok(Gradients { dq, dk, dv, d_bias, d_sinks })
}

/// The problem with the layouts of the tensors as they are.
fn problem_of(inputs: &Inputs<CubeBackend>, problem: ForwardProblem) -> ForwardProblem {
    let Inputs { q, k, v, bias, .. } = inputs;
    let bias = match (problem.bias, bias) {
        (Some(asked), Floats::Tensor(bias)) => Some(Bias { layout: score_layout(bias, 1), ..asked }),
        (asked, _) => asked,
    };
    ForwardProblem { q: layout(q), k: layout(k), v: layout(v), bias, ..problem }
}

/// What scores have beside q and k, held.
struct Beside {
    bias: Option<Held>,
    sinks: Option<Held>,
    slopes: Option<Held>,
    mask: Option<Held>,
}

impl Beside {
    fn new(inputs: &Inputs<CubeBackend>) -> Result<Self> {
        let held = |floats: &Floats<CubeBackend>| match floats {
            Floats::Nothing => Ok(None),
            Floats::Tensor(tensor) => Held::new(tensor).map(Some),
        };
        let mask = match &inputs.mask {
            Bools::Nothing => None,
            Bools::Tensor(mask) => Some(Held::new(mask)?),
        };
        let Inputs { bias, sinks, slopes, .. } = inputs;
        Ok(Beside { bias: held(bias)?, sinks: held(sinks)?, slopes: held(slopes)?, mask })
    }

    fn pointers(&self, made: &Made) -> ScorePointers {
        ScorePointers {
            bias: address(&self.bias),
            mask_bits: made.bits.as_ref().map_or(0, PreparedMask::device_pointer),
            alibi_slopes: address(&self.slopes),
            sinks: address(&self.sinks),
        }
    }
}

/// What is made for a pass, and stays until it is done: the bits of its mask, and offsets.
struct Made {
    bits: Option<PreparedMask>,
    offsets: [DeviceBuffer<i32>; 2],
}

impl Made {
    /// Of tensors that are written; waits until the bits are made.
    fn new(
        device: &Device,
        inputs: &Inputs<CubeBackend>,
        beside: &Beside,
        problem: &ForwardProblem,
        pass: &Pass,
    ) -> Result<Self> {
        let [of_q, of_k] = &pass.offsets;
        let offsets = [DeviceBuffer::from_slice(device, of_q)?, DeviceBuffer::from_slice(device, of_k)?];
        let (Bools::Tensor(mask), Some(held)) = (&inputs.mask, &beside.mask) else {
            return Ok(Made { bits: None, offsets });
        };
        // Of an element that is wider than a byte the first one tells: the others are 0.
        let (layout, [.., keys]) = (score_layout(mask, mask.dtype.size()), problem.score_shape());
        let stream = Stream::default();
        // SAFETY: the handle holds the span of the mask's layout, and stays until the work is done below.
        let bits = unsafe { PreparedMask::new(device, &layout, keys, held.address, stream) };
        device.synchronize(stream)?;
        Ok(Made { bits: Some(bits?), offsets })
    }

    fn offset_pointers(&self) -> [DevicePointer; 2] {
        self.offsets.each_ref().map(InDeviceMemory::device_pointer)
    }
}

/// The library's handle of a GPU, in whose primary context CubeCL is.
fn device(ordinal: usize) -> Result<Device> {
    static DEVICES: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices.get_or_insert_default();
    if let Some(device) = devices.get(&ordinal) {
        return Ok(device.clone());
    }
    let device = Device::cuda(ordinal)?;
    Ok(devices.entry(ordinal).or_insert(device).clone())
}

/// All inputs with columns side by side; slopes and sinks dense.
fn in_place(inputs: Inputs<CubeBackend>) -> Inputs<CubeBackend> {
    let Inputs { q, k, v, bias, sinks, slopes, mask } = inputs;
    let floats = |floats: Floats<CubeBackend>| floats.tensor().map(rows_in_place).into();
    Inputs {
        q: rows_in_place(q),
        k: rows_in_place(k),
        v: rows_in_place(v),
        bias: floats(bias),
        sinks: floats(sinks),
        slopes: floats(slopes),
        mask: mask.tensor().map(rows_in_place).into(),
    }
}

/// The tensor, or a dense copy of it where columns do not stand side by side.
fn rows_in_place(tensor: CubeTensor) -> CubeTensor {
    let strides = tensor.meta.strides();
    let in_place = !tensor.meta.is_tiled() && strides.last().is_none_or(|&stride| stride == 1);
    if in_place { tensor } else { into_contiguous(tensor) }
}

/// Where the elements of a tensor `[batch, head, row, column]` stand.
fn layout(tensor: &CubeTensor) -> Layout {
    let [batches, heads, rows, columns] = tensor.shape().dims::<4>();
    let stride = |place: usize| tensor.meta.strides()[place] as i64;
    Layout {
        shape: [batches, rows, heads, columns],
        strides: [stride(0), stride(2), stride(1), stride(3)],
    }
}

/// Where the elements of a tensor over scores stand, in units of which an element has so many.
fn score_layout(tensor: &CubeTensor, units: usize) -> ScoreLayout {
    let strides = [0, 1, 2, 3].map(|place| (tensor.meta.strides()[place] * units) as i64);
    ScoreLayout { shape: tensor.shape().dims::<4>(), strides }
}

/// Memory for a dense tensor, which kernels write; of no elements as large as one.
fn new_tensor(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    let bytes = shape.num_elements().max(1) * dtype.size();
    let handle = like.client.empty(bytes);
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, dtype)
}

/// Where a tensor of CubeCL stands, and what keeps it there.
struct Held {
    address: DevicePointer,
    _allocation: Box<dyn Any>,
}

impl Held {
    /// Of a tensor; what is queued from now on comes after what has written it.
    fn new(tensor: &CubeTensor) -> Result<Self> {
        let handle = tensor.handle.clone();
        let resource = tensor.client.get_resource::<<CudaRuntime as Runtime>::Server>(handle);
        let allocation = resource.map_err(|error| failed("get_resource", &error))?;
        Ok(Held { address: allocation.resource().ptr, _allocation: Box::new(allocation) })
    }
}

/// The address of a tensor that may be there.
fn address(held: &Option<Held>) -> DevicePointer {
    held.as_ref().map_or(0, |held| held.address)
}

/// Waits for all that is queued for a tensor's client.
fn wait_for(tensor: &CubeTensor) -> Result<()> {
    let done = burn::backend::read_sync(tensor.client.sync());
    done.map_err(|error| failed("sync", &error))
}

fn failed(call: &'static str, error: &dyn std::fmt::Debug) -> Error {
    let name = "CubeCL".to_owned();
    Error::Cuda { call, code: -1, name, detail: format!("{error:?}") }
}
