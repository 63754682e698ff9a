//! Attention under a dynamic mask: keys are chosen once, for the forward pass and the backward pass alike.

use super::mask::kernel;
use super::{Params as _, PreparedMask, Workspace, backward, forward};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{DevicePointer, Queued, Stream};
use crate::error::{Error, Result};
use crate::plan::{
    BackwardPointers, DynamicPlan, ForwardPointers, GatherPlan, GatherPointers, Rows, ScorePointers,
    dynamic_kernel, plan_backward, plan_dynamic,
};
use crate::problem::{BackwardProblem, Bias, DynamicMask, DynamicWay, ForwardProblem, ValidForward};
use kernels_gpu::abi::{DynamicStage, Family, GatherParams};

/// Attention to the keys that a bias chooses ([`DynamicMask`]): what was chosen stands in device memory, and
/// is used by forward and backward passes of the same problem. One of these serves all steps of a training.
///
/// ```no_run
/// # use finite_attention::*;
/// # use finite_attention::attention::DynamicAttention;
/// # use finite_attention::problem::{Bias, DynamicMask, ScoreLayout};
/// # fn f(device: &Device, problem: ForwardProblem, pointers: ForwardPointers) -> Result<()> {
/// // bf16 [B, Hk, 1, Sk]: one row of keys for all queries
/// let layout = ScoreLayout::dense([2, 8, 1, 32768]);
/// let problem = problem.causal().with_bias(Bias { layout, dtype: Dtype::Bf16 });
/// let stream = Stream::default();
/// let chosen = DynamicAttention::new(device, &problem, &DynamicMask::top_k(1024))?;
/// // SAFETY: (what the caller knows of the pointers)
/// unsafe {
///     chosen.choose(&pointers, stream)?;
///     chosen.forward(&pointers, stream)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct DynamicAttention {
    device: Device,
    /// As it was asked: its boolean mask is the padding mask.
    problem: ForwardProblem,
    plan: DynamicPlan,
    /// Whether there are no pairs of queries and keys.
    is_nothing: bool,
    mask: PreparedMask,
    /// Bits before blocks are made of them.
    in_blocks: Option<DeviceBuffer<u32>>,
    gathered: Option<Gathered>,
}

/// Gathered keys.
struct Gathered {
    plan: GatherPlan,
    /// Positions of all choices, and behind them how many there are.
    positions: DeviceBuffer<u32>,
    k: DeviceBuffer<u8>,
    v: DeviceBuffer<u8>,
    bias: DeviceBuffer<u8>,
    seen: PreparedMask,
}

impl PreparedMask {
    /// Queues what makes a boolean mask of the problem's bias, and returns without waiting: a
    /// [`DynamicMask`], for callers who hold on to the mask alone. Of `pointers` those to the bias, to the
    /// padding mask and to the offsets of packed sequences are looked at.
    ///
    /// The problem's [`ForwardProblem::attn_mask`] is a padding mask: the keys that it hides are not chosen,
    /// and hidden by the result. That takes its place for attention,
    /// `problem.with_attn_mask(mask.shape())`, beside the bias.
    ///
    /// # Errors
    /// Those of [`plan_dynamic`], [`Error::NullPointer`], [`Error::OutOfMemory`], and errors of the driver.
    ///
    /// # Safety
    /// Bias, padding mask and offsets are as for [`forward`], until the work is done.
    pub unsafe fn dynamic(
        device: &Device,
        problem: &ForwardProblem,
        mask: &DynamicMask,
        pointers: &ForwardPointers,
        stream: Stream,
    ) -> Result<Self> {
        let chosen = DynamicAttention::new(device, problem, &mask.with_way(DynamicWay::Mask))?;
        // SAFETY: passed on to the caller.
        unsafe { chosen.choose(pointers, stream) }?;
        if chosen.in_blocks.is_some() {
            // What blocks are made of is about to be freed.
            device.synchronize(stream)?;
        }
        Ok(chosen.mask)
    }
}

impl DynamicAttention {
    /// Plans, and allocates what a choice of keys needs, and where it pays off, or where the mask says so,
    /// what gathering them does. The problem's [`ForwardProblem::attn_mask`] is a padding mask, as in
    /// [`PreparedMask::dynamic`]. It is dropped only when all work that was queued with it is done.
    ///
    /// # Errors
    /// Those of [`plan_dynamic`], and [`Error::OutOfMemory`].
    pub fn new(device: &Device, problem: &ForwardProblem, mask: &DynamicMask) -> Result<Self> {
        let valid = problem.validate()?;
        let plan = plan_dynamic(&valid, mask, device.properties())?;
        let is_nothing = plan.select_blocks == 0 || valid.is_empty();
        let mask = match is_nothing {
            true => PreparedMask::of_nothing(device, plan.shape)?,
            false => PreparedMask::unmade(device, plan.shape)?,
        };
        let words = plan.shape.words() as usize;
        let in_blocks = (plan.mask.block_size > 1 && !is_nothing)
            .then(|| DeviceBuffer::uninitialised(device, words))
            .transpose()?;
        let gathers = plan.way == DynamicWay::Gather && !is_nothing;
        let gathered = gathers.then(|| Gathered::new(device, &valid, &plan)).transpose()?;
        let (device, problem) = (device.clone(), *problem);
        Ok(DynamicAttention { device, problem, plan, is_nothing, mask, in_blocks, gathered })
    }

    /// Queues the choice of keys by the bias as it is now, and what gathers them, and returns without
    /// waiting. Of `pointers` those to o and lse are not looked at. The choice serves passes that are queued
    /// behind it, until another one is queued.
    ///
    /// # Errors
    /// [`Error::NullPointer`], [`Error::Misaligned`], and errors of the driver.
    ///
    /// # Safety
    /// Inputs are as for [`forward`], until the work is done.
    pub unsafe fn choose(&self, pointers: &ForwardPointers, stream: Stream) -> Result<()> {
        if self.is_nothing {
            return Ok(());
        }
        let valid = self.problem.validate()?;
        let properties = self.device.properties();
        let own = self.mask.device_pointer();
        let chosen = self.in_blocks.as_ref().map_or(own, |words| words.device_pointer());
        let positions = self.gathered.as_ref().map_or(0, |gathered| gathered.positions.device_pointer());
        let own_positions = if self.in_blocks.is_some() { 0 } else { positions };
        let select = self.plan.select_params(&valid, pointers, [chosen, own_positions])?;
        let (blocks, block_count) = self.plan.block_params(&valid, pointers, [chosen, own])?;
        let params =
            self.gathered.as_ref().map(|gathered| gathered.params(&valid, pointers, &self.mask));
        let of_tiles = self.gathered.as_ref().map_or(&self.mask, |gathered| &gathered.seen);
        let (map, map_blocks) = of_tiles.map_params();
        let (variant, select_blocks) = (self.plan.select, self.plan.select_blocks);
        let mut queue = vec![Queued { variant, blocks: select_blocks, params: select.bytes() }];
        if self.in_blocks.is_some() {
            let variant = dynamic_kernel(DynamicStage::Blocks, properties)?;
            queue.push(Queued { variant, blocks: block_count, params: blocks.bytes() });
        }
        if let Some((gathered, params)) = self.gathered.as_ref().zip(params.as_ref()) {
            if self.in_blocks.is_some() {
                let variant = dynamic_kernel(DynamicStage::Positions, properties)?;
                let blocks = gathered.plan.choices() as u32;
                queue.push(Queued { variant, blocks, params: params.bytes() });
            }
            let variant = dynamic_kernel(DynamicStage::Gather, properties)?;
            let blocks = gathered.plan.row_blocks(self.plan.capacity) + gathered.plan.seen_blocks();
            queue.push(Queued { variant, blocks, params: params.bytes() });
        }
        let variant = kernel(&self.device, Family::MaskMap)?;
        queue.push(Queued { variant, blocks: map_blocks, params: map.bytes() });
        // SAFETY: the caller vouches for the inputs, and the rest is this object's own.
        unsafe { self.device.driver().launch_in_order(&queue, stream) }
    }

    /// The device that the keys were chosen on.
    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    /// Whether this is the pass that keys were chosen for, but for what does not matter to a choice: whether
    /// lse is wanted, and how work is shared out.
    pub(crate) fn check_forward(&self, problem: &ForwardProblem) -> Result<()> {
        let ForwardProblem { wants_lse, num_splits, pack_gqa, precision, .. } = self.problem;
        let own = ForwardProblem { wants_lse, num_splits, pack_gqa, precision, ..*problem };
        let same = own == self.problem;
        if same { Ok(()) } else { Err(Error::WrongForward) }
    }

    /// How it goes about it, and why.
    pub const fn plan(&self) -> &DynamicPlan {
        &self.plan
    }

    /// The problem that the main kernels are asked: under a boolean mask, or over gathered keys.
    pub fn launched_problem(&self) -> ForwardProblem {
        match &self.gathered {
            None => self.plan.masked(&self.problem),
            Some(gathered) => gathered.plan.problem,
        }
    }

    /// Queues the forward pass, as [`forward`] does.
    ///
    /// # Errors
    /// As [`forward`].
    ///
    /// # Safety
    /// As [`forward`], and the inputs are those that the keys were chosen with.
    pub unsafe fn forward(&self, pointers: &ForwardPointers, stream: Stream) -> Result<()> {
        let mut pointers = *pointers;
        match &self.gathered {
            None => pointers.score.mask_bits = self.mask.device_pointer(),
            Some(gathered) => {
                (pointers.k, pointers.v) = (gathered.k.device_pointer(), gathered.v.device_pointer());
                pointers.score = gathered.score(&pointers.score);
            }
        }
        // SAFETY: passed on to the caller; what was gathered is this object's own.
        unsafe { forward(&self.device, &self.launched_problem(), &pointers, stream) }
    }

    /// Queues the backward pass, as [`backward()`] does, with a workspace that is allocated and freed in the
    /// order of the stream. Gradients of keys that were not chosen, and of their bias, are 0.
    ///
    /// # Errors
    /// As [`backward()`], [`Error::WrongForward`] for another forward pass than the one that keys were chosen
    /// for, and [`Error::OutOfMemory`].
    ///
    /// # Safety
    /// As [`backward()`], and the inputs are those that the keys were chosen with.
    pub unsafe fn backward(
        &self,
        problem: &BackwardProblem,
        pointers: &BackwardPointers,
        stream: Stream,
    ) -> Result<()> {
        self.check_forward(&problem.forward)?;
        problem.validate()?;
        let mut pointers = *pointers;
        let Some(gathered) = &self.gathered else {
            pointers.score.mask_bits = self.mask.device_pointer();
            let problem = BackwardProblem { forward: self.launched_problem(), ..*problem };
            // SAFETY: passed on to the caller.
            return unsafe { self.launch_backward(&problem, &pointers, stream) };
        };
        // SAFETY: passed on to the caller.
        unsafe { self.backward_gathered(gathered, problem, pointers, stream) }
    }

    /// A backward pass with a workspace in the order of the stream.
    ///
    /// # Safety
    /// As [`backward()`].
    unsafe fn launch_backward(
        &self,
        problem: &BackwardProblem,
        pointers: &BackwardPointers,
        stream: Stream,
    ) -> Result<()> {
        let driver = self.device.driver();
        let plan = plan_backward(&problem.validate()?, self.device.properties(), pointers)?;
        let bytes = plan.workspace_bytes();
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let pointer = driver.allocate_in_order(length, stream)?;
        // SAFETY: the workspace is as large as planned, and this call's alone; the caller vouches for the
        // rest.
        let launched =
            unsafe { backward(&self.device, problem, pointers, Workspace { pointer, bytes }, stream) };
        // SAFETY: allocated above in the order of this stream, and nothing that is queued later knows of it.
        launched.and(unsafe { driver.free_in_order(pointer, stream) })
    }

    /// Gradients of gathered rows, scattered.
    ///
    /// # Safety
    /// As [`DynamicAttention::backward`].
    unsafe fn backward_gathered(
        &self,
        gathered: &Gathered,
        problem: &BackwardProblem,
        pointers: BackwardPointers,
        stream: Stream,
    ) -> Result<()> {
        let inner = gathered.plan.backward(problem);
        let bytes = inner.gradient_dtype.bytes() as usize;
        let aligned = |bytes: usize| bytes.next_multiple_of(256);
        let sizes = [
            aligned(inner.dk.span() * bytes),
            aligned(inner.dv.span() * bytes),
            inner.d_bias.map_or(0, |bias| bias.layout.span() * bias.dtype.bytes() as usize),
        ];
        let driver = self.device.driver();
        let memory = driver.allocate_in_order(sizes.iter().sum(), stream)?;
        let [dk, dv] = [memory, memory + sizes[0] as u64];
        let d_bias = dv + sizes[1] as u64;
        let mut inner_pointers = BackwardPointers { dk, dv, d_bias, ..pointers };
        (inner_pointers.k, inner_pointers.v) =
            (gathered.k.device_pointer(), gathered.v.device_pointer());
        inner_pointers.score = gathered.score(&pointers.score);
        let apart = Rows {
            k: (&problem.dk, pointers.dk),
            v: (&problem.dv, pointers.dv),
            dtype: inner.gradient_dtype,
            bias: problem.d_bias.as_ref().map(|bias| (bias, pointers.d_bias)),
        };
        let rows = Rows {
            k: (&inner.dk, dk),
            v: (&inner.dv, dv),
            dtype: inner.gradient_dtype,
            bias: inner.d_bias.as_ref().map(|bias| (bias, d_bias)),
        };
        let params = gathered.plan.params(&gathered.pointers(&self.mask), &apart, &rows);
        let launch = || {
            // SAFETY: passed on to the caller; what was gathered is this object's own.
            unsafe { self.launch_backward(&inner, &inner_pointers, stream) }?;
            let variant = dynamic_kernel(DynamicStage::Scatter, self.device.properties())?;
            let blocks = gathered.plan.row_blocks(self.plan.shape.keys);
            let queue = [Queued { variant, blocks, params: params.bytes() }];
            // SAFETY: the caller vouches for the outputs, and gathered rows are there.
            unsafe { driver.launch_in_order(&queue, stream) }
        };
        let launched = launch();
        // SAFETY: allocated above in the order of this stream, and nothing that is queued later knows of it.
        launched.and(unsafe { driver.free_in_order(memory, stream) })
    }
}

/// Queues a forward pass, under a dynamic mask if there is one: what was chosen must live until the work is
/// done.
///
/// # Errors
/// As [`forward`], and those of [`DynamicAttention::new`].
///
/// # Safety
/// As [`forward`].
pub(crate) unsafe fn forward_under(
    device: &Device,
    problem: &ForwardProblem,
    mask: Option<DynamicMask>,
    pointers: &ForwardPointers,
    stream: Stream,
) -> Result<Option<DynamicAttention>> {
    let Some(mask) = mask else {
        // SAFETY: passed on to the caller.
        unsafe { forward(device, problem, pointers, stream) }?;
        return Ok(None);
    };
    let chosen = DynamicAttention::new(device, problem, &mask)?;
    // SAFETY: passed on to the caller.
    unsafe { chosen.choose(pointers, stream) }?;
    // SAFETY: likewise.
    unsafe { chosen.forward(pointers, stream) }?;
    Ok(Some(chosen))
}

impl Gathered {
    /// Memory for them.
    fn new(device: &Device, valid: &ValidForward, plan: &DynamicPlan) -> Result<Self> {
        let gather = plan.gathered(valid);
        let bytes = valid.problem.dtype.bytes() as usize;
        let bias = gather.problem.bias.as_ref();
        let bias_bytes = bias.map_or(0, |bias| bias.layout.span() * bias.dtype.bytes() as usize);
        Ok(Gathered {
            positions: DeviceBuffer::uninitialised(device, gather.choices() * (plan.capacity + 1))?,
            k: DeviceBuffer::uninitialised(device, gather.problem.k.span() * bytes)?,
            v: DeviceBuffer::uninitialised(device, gather.problem.v.span() * bytes)?,
            bias: DeviceBuffer::uninitialised(device, bias_bytes)?,
            seen: PreparedMask::unmade(device, gather.seen)?,
            plan: gather,
        })
    }

    fn params(
        &self,
        valid: &ValidForward,
        pointers: &ForwardPointers,
        mask: &PreparedMask,
    ) -> GatherParams {
        let (problem, inner) = (&valid.problem, &self.plan.problem);
        let bias = |bias: &'_ Option<Bias>, pointer: DevicePointer| bias.map(|bias| (bias, pointer));
        let apart_bias = bias(&problem.bias, pointers.score.bias);
        let own_bias = bias(&inner.bias, self.bias.device_pointer());
        let apart = Rows {
            k: (&problem.k, pointers.k),
            v: (&problem.v, pointers.v),
            dtype: problem.dtype,
            bias: apart_bias.as_ref().map(|(bias, pointer)| (bias, *pointer)),
        };
        let own = Rows {
            k: (&inner.k, self.k.device_pointer()),
            v: (&inner.v, self.v.device_pointer()),
            dtype: problem.dtype,
            bias: own_bias.as_ref().map(|(bias, pointer)| (bias, *pointer)),
        };
        self.plan.params(&self.pointers(mask), &apart, &own)
    }

    /// Where the kernels around gathered keys work.
    fn pointers(&self, mask: &PreparedMask) -> GatherPointers {
        let positions = self.positions.device_pointer();
        let counts = positions + 4 * (self.plan.choices() * self.plan.seen.keys) as u64;
        let (bits, seen) = (mask.device_pointer(), self.seen.device_pointer());
        GatherPointers { bits, positions, counts, seen }
    }

    /// What scores over gathered keys have beside.
    fn score(&self, of: &ScorePointers) -> ScorePointers {
        let &ScorePointers { bias: _, mask_bits: _, alibi_slopes, sinks } = of;
        let (bias, mask_bits) = (self.bias.device_pointer(), self.seen.device_pointer());
        ScorePointers { bias, mask_bits, alibi_slopes, sinks }
    }
}

/// The page's example runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/dynamic-masks.md")]
struct Page;

#[cfg(test)]
mod tests;
