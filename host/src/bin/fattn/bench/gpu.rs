//! A GPU on which launches are timed, and the tensors that they work on.

use super::task::{Pass, Task};
use crate::plans::{self, Explained};
use anyhow::{Result, bail};
use bytemuck::cast_slice;
use finite_attention::attention::{DynamicAttention, PreparedMask, launch_backward, launch_forward};
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::driver::cuda::{CudaDriver, CudaEvent};
use finite_attention::driver::{DeviceProperties, Driver};
use finite_attention::plan::{BackwardPlan, ForwardPlan, ScorePointers, plan_backward, plan_forward};
use finite_attention::problem::{DynamicMask, MaskShape, ScoreLayout};
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, Dtype, Element, ForwardPointers, KernelImages, Layout,
    Stream, Workspace,
};
use half::{bf16, f16};
use kernels_gpu::abi::Arch;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::sync::Arc;

/// Sets of tensors at most, however small they are.
const MAX_SETS: u64 = 64;

/// A GPU on which kernels are timed.
pub struct Bench {
    driver: Arc<CudaDriver>,
    device: Device,
}

impl Bench {
    /// The GPU of this ordinal, with the kernels of one target only if it is given.
    pub fn new(ordinal: usize, arch: Option<Arch>, images: KernelImages) -> Result<Self> {
        let driver = CudaDriver::new(ordinal, images)?;
        let driver = Arc::new(match arch {
            Some(arch) => driver.seen_as(arch)?,
            None => driver,
        });
        Ok(Bench { device: Device::from_driver(driver.clone()), driver })
    }

    pub fn properties(&self) -> &DeviceProperties {
        self.device.properties()
    }

    /// As many copies of the tensors as leave nothing of the last use of a copy in the L2 cache.
    pub fn sets(&self, task: &Task) -> Result<Vec<TensorSet>> {
        match task.problem.dtype {
            Dtype::Bf16 => self.sets_of::<bf16>(task),
            Dtype::F16 => self.sets_of::<f16>(task),
            Dtype::F32 => self.sets_of::<f32>(task),
        }
    }

    fn sets_of<T: Element>(&self, task: &Task) -> Result<Vec<TensorSet>> {
        let problem = &task.problem;
        let tensors = [&problem.q, &problem.k, &problem.v, &problem.o];
        let of_one = |layout: &&Layout| (layout.span() as u64).saturating_mul(size_of::<T>() as u64);
        let mut bytes = tensors.iter().map(of_one).fold(0, u64::saturating_add);
        if task.backward().is_some() {
            bytes = bytes.saturating_mul(2); // every tensor has a gradient
        }
        let count = (2 * self.properties().l2_bytes).div_ceil(bytes).clamp(1, MAX_SETS);
        let pattern = pattern::<T>();
        (0..count).map(|_| TensorSet::new(&self.device, task, &pattern)).collect()
    }

    /// Queues launches and waits for them.
    pub fn load(&self, sets: &[TensorSet], count: usize) -> Result<()> {
        for set in sets.iter().cycle().take(count) {
            set.work.launch(&self.device)?;
        }
        Ok(self.driver.synchronize(Stream::default())?)
    }

    /// Milliseconds of each of `count` launches, queued back to back.
    pub fn time(&self, sets: &[TensorSet], count: usize) -> Result<Vec<f32>> {
        let stream = Stream::default();
        let events: Vec<CudaEvent> =
            (0..=count).map(|_| CudaEvent::new(&self.driver)).collect::<Result<_, _>>()?;
        // SAFETY: the default stream always exists.
        unsafe { events[0].record(stream) }?;
        for (set, event) in sets.iter().cycle().zip(&events[1..]) {
            set.work.launch(&self.device)?;
            // SAFETY: the default stream always exists.
            unsafe { event.record(stream) }?;
        }
        self.driver.synchronize(stream)?;
        let pairs = events.windows(2);
        Ok(pairs.map(|pair| pair[1].milliseconds_since(&pair[0])).collect::<Result<_, _>>()?)
    }
}

/// What one launch does, planned for the addresses of one set.
enum Work {
    Forward(Box<ForwardPlan>),
    Backward(Box<BackwardPlan>, Workspace),
    /// The choice of keys.
    Select(Box<(DynamicAttention, ForwardPointers)>),
    /// The choice of keys, and attention to them.
    Dynamic(Box<(DynamicAttention, ForwardPointers)>),
    /// The backward pass behind that.
    DynamicBackward(Box<(DynamicAttention, BackwardProblem, BackwardPointers)>),
}

impl Work {
    fn launch(&self, device: &Device) -> Result<()> {
        let stream = Stream::default();
        // SAFETY: only a `TensorSet` makes one, which owns the tensors that the plan was made for;
        // they are freed after the default stream was waited for.
        unsafe {
            match self {
                Work::Forward(plan) => launch_forward(device, plan, stream)?,
                Work::Backward(plan, workspace) => launch_backward(device, plan, *workspace, stream)?,
                Work::Select(work) => work.0.choose(&work.1, stream)?,
                Work::Dynamic(work) => {
                    work.0.choose(&work.1, stream)?;
                    work.0.forward(&work.1, stream)?;
                }
                Work::DynamicBackward(work) => work.0.backward(&work.1, &work.2, stream)?,
            }
        }
        Ok(())
    }
}

/// The tensors of one problem, and the plan made for their addresses.
pub struct TensorSet {
    work: Work,
    _tensors: Vec<Box<dyn InDeviceMemory>>,
}

impl TensorSet {
    /// The forward pass runs once here if the task is backward: o and lse are what it gives.
    fn new<T: Element>(device: &Device, task: &Task, pattern: &[T]) -> Result<Self> {
        let problem = &task.problem;
        let valid = problem.validate()?;
        let mut memory = Memory { device, pattern, tensors: Vec::new() };
        let [in_q, in_k] = task.offsets();
        let pointers = ForwardPointers {
            q: memory.input(&problem.q)?,
            k: memory.input(&problem.k)?,
            v: memory.input(&problem.v)?,
            o: memory.output::<T>(problem.o.span())?,
            lse: memory.output::<f32>(valid.lse_elements())?,
            cu_seqlens_q: memory.keep(DeviceBuffer::from_slice(device, &in_q)?),
            cu_seqlens_k: memory.keep(DeviceBuffer::from_slice(device, &in_k)?),
            score: memory.score(task)?,
        };
        if let Some(mask) = task.features.dynamic_mask() {
            let work = memory.dynamic(task, &mask, pointers)?;
            return Ok(TensorSet { work, _tensors: memory.tensors });
        }
        let Some(plan) = plan_forward(&valid, device.properties(), &pointers)? else {
            bail!("nothing to compute");
        };
        let mut work = Work::Forward(Box::new(plan));
        if let Some(backward) = task.backward() {
            work.launch(device)?;
            device.synchronize(Stream::default())?;
            work = memory.backward(&backward, &pointers)?;
        }
        Ok(TensorSet { work, _tensors: memory.tensors })
    }

    /// The plan with its reasons.
    pub fn explain(&self, task: &Task, device: &DeviceProperties) -> Result<Explained> {
        Ok(match (&self.work, task.features.dynamic_mask()) {
            (_, Some(mask)) => plans::dynamic(&task.problem, task.backward().as_ref(), &mask, device)?,
            (Work::Forward(plan), _) => Explained::forward(plan),
            (Work::Backward(plan, _), _) => Explained::backward(plan),
            _ => bail!("nothing to explain"),
        })
    }
}

/// Makes tensors and keeps them.
struct Memory<'m, T> {
    device: &'m Device,
    pattern: &'m [T],
    tensors: Vec<Box<dyn InDeviceMemory>>,
}

impl<T: Element> Memory<'_, T> {
    fn keep(&mut self, buffer: impl InDeviceMemory + 'static) -> u64 {
        let address = buffer.device_pointer();
        self.tensors.push(Box::new(buffer));
        address
    }

    /// Normally distributed numbers. Every tensor starts elsewhere in the pattern. There is memory on the
    /// device for all of it before the first is copied, and none is needed here.
    fn input(&mut self, layout: &Layout) -> Result<u64> {
        let start = 1009 * self.tensors.len() % self.pattern.len();
        let buffer = DeviceBuffer::<T>::uninitialised(self.device, layout.span())?;
        let (address, mut done) = (buffer.device_pointer(), 0);
        while done < layout.span() {
            let rest = &self.pattern[(start + done) % self.pattern.len()..];
            let part = &rest[..rest.len().min(layout.span() - done)];
            let place = address + (done * size_of::<T>()) as u64;
            self.device.driver().copy_to_device(place, cast_slice(part))?;
            done += part.len();
        }
        Ok(self.keep(buffer))
    }

    /// What scores have beside: a bias like any input, slopes of ALiBi (Press, Smith and Lewis 2021), sinks
    /// of 0.
    fn score(&mut self, task: &Task) -> Result<ScorePointers> {
        let problem = &task.problem;
        let heads = problem.q.shape[2];
        let mut pointers = ScorePointers::default();
        if let Some(finite_attention::problem::Bias { layout, dtype }) = problem.bias {
            let dense = Layout::bshd([1, 1, 1, layout.span()]);
            pointers.bias = if dtype != T::DTYPE {
                let numbers: Vec<f32> =
                    self.pattern.iter().cycle().take(layout.span()).map(|x| x.to_f32()).collect();
                self.keep(DeviceBuffer::from_slice(self.device, &numbers)?)
            } else {
                self.input(&dense)?
            };
        }
        if let Some(shape) = problem.attn_mask {
            let MaskShape { batches, heads, queries, keys } = shape;
            let layout = ScoreLayout::dense([batches, heads, queries, keys]);
            let bytes = DeviceBuffer::from_slice(self.device, &task.features.mask_bytes(&shape))?;
            let (pointer, stream) = (bytes.device_pointer(), Stream::default());
            // SAFETY: the buffer holds the layout, and lives until the work is done.
            let mask = unsafe { PreparedMask::new(self.device, &layout, keys, pointer, stream) }?;
            self.device.synchronize(stream)?;
            pointers.mask_bits = self.keep(mask);
        }
        let slopes: Vec<f32> =
            (1..=heads).map(|head| (-8.0 * head as f32 / heads as f32).exp2()).collect();
        pointers.alibi_slopes = self.keep(DeviceBuffer::from_slice(self.device, &slopes)?);
        pointers.sinks = self.keep(DeviceBuffer::from_slice(self.device, &vec![0.0f32; heads])?);
        Ok(pointers)
    }

    fn output<E: Element>(&mut self, elements: usize) -> Result<u64> {
        Ok(self.keep(DeviceBuffer::<E>::uninitialised(self.device, elements)?))
    }

    /// Work under a dynamic mask. The forward pass runs once here if the task is backward.
    fn dynamic(&mut self, task: &Task, mask: &DynamicMask, pointers: ForwardPointers) -> Result<Work> {
        let chosen = DynamicAttention::new(self.device, &task.problem, mask)?;
        let work = Box::new((chosen, pointers));
        if task.pass == Pass::Select {
            return Ok(Work::Select(work));
        }
        let Some(backward) = task.backward() else { return Ok(Work::Dynamic(work)) };
        let work = Work::Dynamic(work);
        work.launch(self.device)?;
        self.device.synchronize(Stream::default())?;
        let Work::Dynamic(work) = work else { bail!("nothing to compute") };
        let of_backward = self.backward_pointers(&backward, &pointers)?;
        Ok(Work::DynamicBackward(Box::new((work.0, backward, of_backward))))
    }

    /// The backward pass of tensors whose o and lse were computed.
    fn backward(&mut self, problem: &BackwardProblem, forward: &ForwardPointers) -> Result<Work> {
        let pointers = self.backward_pointers(problem, forward)?;
        let plan = plan_backward(&problem.validate()?, self.device.properties(), &pointers)?;
        let bytes = plan.workspace_bytes();
        let pointer = self.output::<f32>(usize::try_from(bytes.div_ceil(4))?)?;
        Ok(Work::Backward(Box::new(plan), Workspace { pointer, bytes }))
    }

    /// Its tensors.
    fn backward_pointers(
        &mut self,
        problem: &BackwardProblem,
        forward: &ForwardPointers,
    ) -> Result<BackwardPointers> {
        let &ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score } = forward;
        Ok(BackwardPointers {
            q,
            k,
            v,
            o,
            lse,
            d_o: self.input(&problem.d_o)?,
            dq: self.output::<T>(problem.dq.span())?,
            dk: self.output::<T>(problem.dk.span())?,
            dv: self.output::<T>(problem.dv.span())?,
            d_lse: 0,
            cu_seqlens_q,
            cu_seqlens_k,
            score,
            d_bias: match problem.d_bias {
                None => 0,
                Some(d_bias) if d_bias.dtype == Dtype::F32 => {
                    self.output::<f32>(d_bias.layout.span())?
                }
                Some(d_bias) => self.output::<T>(d_bias.layout.span())?,
            },
            d_sinks: self.output::<f32>(problem.forward.q.shape[2])?,
        })
    }
}

/// Normally distributed numbers, as many as no dimension is a divisor of: the power that a
/// multiplication draws depends on its operands, so they must not be zeros.
fn pattern<T: Element>() -> Vec<T> {
    let mut random = StdRng::seed_from_u64(0);
    (0..1_000_003).map(|_| T::from_f32(random.sample(StandardNormal))).collect()
}

/// The middle one, or the mean of the two in the middle.
pub fn median(mut times: Vec<f32>) -> f32 {
    times.sort_by(f32::total_cmp);
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
