//! Tensors of CubeCL: in memory of a CUDA device by their addresses, of other runtimes through the host.

use crate::host;
use crate::ops::{AttentionGradients, AttentionOps, Gradients, Outcome, or_panic};
use crate::pass::Pass;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use finite_attention::attention::{backward_and_wait, launch_forward};
use finite_attention::plan::plan_forward;
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, DevicePointer, Error, ForwardPointers, ForwardProblem,
    Layout, Result, Stream,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

impl AttentionOps for CubeBackend {
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        pass: Pass,
    ) -> Outcome<Self> {
        match cuda(&q) {
            Some(ordinal) => forward(ordinal, [q, k, v], &pass).into(),
            None => host::forward::<Self>([q, k, v], &pass).into(),
        }
    }
}

impl AttentionGradients for CubeBackend {
    fn attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        pass: Pass,
    ) -> Gradients<Self> {
        let tensors = [q, k, v, o, lse, d_o];
        or_panic(match cuda(&tensors[0]) {
            Some(ordinal) => backward(ordinal, tensors, &pass),
            None => host::backward::<Self>(tensors, &pass),
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

fn forward(ordinal: usize, tensors: [CubeTensor; 3], pass: &Pass) -> Result<[CubeTensor; 2]> {
    let device = device(ordinal)?;
    let [q, k, v] = tensors.map(rows_in_place);
    let problem = ForwardProblem { q: layout(&q), k: layout(&k), v: layout(&v), ..pass.problem.forward };
    let valid = problem.validate()?;
    let [batches, rows, heads, columns] = problem.o.shape;
    let o = new_tensor(&q, Shape::new([batches, heads, rows, columns]), q.dtype);
    let lse = new_tensor(&q, Shape::new([batches, heads, rows]), DType::F32);
    let held = [Held::new(&q)?, Held::new(&k)?, Held::new(&v)?, Held::new(&o)?, Held::new(&lse)?];
    let pointers = ForwardPointers {
        q: held[0].address,
        k: held[1].address,
        v: held[2].address,
        o: held[3].address,
        lse: held[4].address,
        ..ForwardPointers::default()
    };
    let Some(plan) = plan_forward(&valid, device.properties(), &pointers)? else { return Ok([o, lse]) };
    wait_for(&q)?;
    let stream = Stream::default();
    // SAFETY: the handles hold the spans of their layouts and stay in place until they are dropped, which is
    // after the work is done; o and lse are new, and nothing else is queued that uses them.
    let launched = unsafe { launch_forward(&device, &plan, stream) };
    launched.and(device.synchronize(stream))?;
    Ok([o, lse])
}

fn backward(ordinal: usize, tensors: [CubeTensor; 6], pass: &Pass) -> Result<Gradients<CubeBackend>> {
    let device = device(ordinal)?;
    let [q, k, v, o, lse, d_o] = tensors.map(rows_in_place);
    let forward = ForwardProblem {
        q: layout(&q),
        k: layout(&k),
        v: layout(&v),
        o: layout(&o),
        ..pass.problem.forward
    };
    let problem = BackwardProblem { forward, d_o: layout(&d_o), ..pass.problem };
    let [dq, dk, dv] = [&q, &k, &v].map(|tensor| new_tensor(tensor, tensor.shape(), tensor.dtype));
    let all = [&q, &k, &v, &o, &lse, &d_o, &dq, &dk, &dv];
    let held = all.into_iter().map(Held::new).collect::<Result<Vec<_>>>()?;
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
        ..BackwardPointers::default()
    };
    wait_for(&q)?;
    // SAFETY: as in `forward`.
    unsafe { backward_and_wait(&device, &problem, &pointers, Stream::default()) }?;
    Ok(Gradients { dq, dk, dv })
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

/// Waits for all that is queued for a tensor's client.
fn wait_for(tensor: &CubeTensor) -> Result<()> {
    let done = burn::backend::read_sync(tensor.client.sync());
    done.map_err(|error| failed("sync", &error))
}

fn failed(call: &'static str, error: &dyn std::fmt::Debug) -> Error {
    let name = "CubeCL".to_owned();
    Error::Cuda { call, code: -1, name, detail: format!("{error:?}") }
}
