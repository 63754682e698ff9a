//! Tensors in memory of a GPU, which stay there: kernels are queued on candle's stream, and nothing waits.

use crate::lift;
use crate::pass::{Given, Lse, Pass};
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Result, Storage, Tensor, WithDType, bail};
use finite_attention::attention::launch_backward;
use finite_attention::plan::plan_backward;
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, DevicePointer, Element, ForwardPointers, Stream,
    Workspace,
};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What this door can be asked for: elements of the library and of candle's memory.
pub trait OnGpu: Element + WithDType + CudaDType + DeviceRepr {}

impl<T: Element + WithDType + CudaDType + DeviceRepr> OnGpu for T {}

/// o, dense; lse is kept.
pub fn forward<T: OnGpu>(pass: &Pass, [q, k, v]: [Given<'_, CudaStorage>; 3]) -> Result<CudaStorage> {
    let problem = &pass.problem.forward;
    let (gpu, stream) = (q.0.device.clone(), q.0.device.cuda_stream());
    let valid = lift(problem.validate())?;
    let mut o = allocate::<T>(&gpu, problem.o.span())?;
    let mut lse = allocate::<f32>(&gpu, if problem.wants_lse { valid.lse_elements() } else { 0 })?;
    {
        let (q, _q) = address::<T>(&stream, q)?;
        let (k, _k) = address::<T>(&stream, k)?;
        let (v, _v) = address::<T>(&stream, v)?;
        let (o, _o) = o.device_ptr_mut(&stream);
        let (lse, _lse) = lse.device_ptr_mut(&stream);
        let pointers = ForwardPointers { q, k, v, o, lse, ..ForwardPointers::default() };
        // SAFETY: the slices hold the spans of their layouts; o and lse are new. Candle's stream orders all
        // that is queued, and memory is freed in the order of it.
        lift(unsafe {
            finite_attention::forward(&device(&stream)?, problem, &pointers, queue(&stream))
        })?;
    }
    pass.keep(Lse::Cuda(lse))?;
    Ok(CudaStorage::wrap_cuda_slice(o, gpu))
}

/// dq, dk and dv, dense.
pub fn backward<T: OnGpu>(
    pass: &Pass,
    problem: &BackwardProblem,
    tensors: [&Tensor; 5],
) -> Result<[Tensor; 3]> {
    let Lse::Cuda(lse) = pass.lse()? else { bail!("lse: expected it in memory of the GPU") };
    let held = tensors.map(Tensor::storage_and_layout);
    let given = |place: usize| match &*held[place].0 {
        Storage::Cuda(storage) => Ok((storage, held[place].1)),
        _ => bail!("expected q, k, v and do in memory of one GPU"),
    };
    let gpu = given(0)?.0.device.clone();
    let stream = gpu.cuda_stream();
    let ours = device(&stream)?;
    let forward = &problem.forward;
    let shapes = [&forward.q, &forward.k, &forward.v].map(|layout| layout.shape.to_vec());
    let mut gradients = [
        allocate::<T>(&gpu, problem.dq.span())?,
        allocate::<T>(&gpu, problem.dk.span())?,
        allocate::<T>(&gpu, problem.dv.span())?,
    ];
    {
        let (q, _q) = address::<T>(&stream, given(0)?)?;
        let (k, _k) = address::<T>(&stream, given(1)?)?;
        let (v, _v) = address::<T>(&stream, given(2)?)?;
        let (o, _o) = address::<T>(&stream, given(3)?)?;
        let (d_o, _d_o) = address::<T>(&stream, given(4)?)?;
        let (lse, _lse) = lse.device_ptr(&stream);
        let [dq, dk, dv] = &mut gradients;
        let (dq, _dq) = dq.device_ptr_mut(&stream);
        let (dk, _dk) = dk.device_ptr_mut(&stream);
        let (dv, _dv) = dv.device_ptr_mut(&stream);
        let pointers =
            BackwardPointers { q, k, v, o, lse, d_o, dq, dk, dv, ..BackwardPointers::default() };
        let plan = lift(plan_backward(&lift(problem.validate())?, ours.properties(), &pointers))?;
        let bytes = plan.workspace_bytes();
        let mut memory = allocate::<u8>(&gpu, bytes as usize)?;
        let (pointer, _memory) = memory.device_ptr_mut(&stream);
        // SAFETY: as in `forward`; the workspace is as large as planned.
        lift(unsafe { launch_backward(&ours, &plan, Workspace { pointer, bytes }, queue(&stream)) })?;
    }
    let [dq, dk, dv] = gradients;
    let [of_q, of_k, of_v] = shapes;
    let tensor = |elements, shape: Vec<usize>| {
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(elements, gpu.clone()));
        Tensor::from_storage(storage, shape, BackpropOp::none(), false)
    };
    Ok([tensor(dq, of_q), tensor(dk, of_k), tensor(dv, of_v)])
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
fn address<'s, T: OnGpu>(
    stream: &'s CudaStream,
    (storage, layout): Given<'s, CudaStorage>,
) -> Result<(DevicePointer, SyncOnDrop<'s>)> {
    let (pointer, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
    Ok((pointer + (layout.start_offset() * size_of::<T>()) as u64, guard))
}
