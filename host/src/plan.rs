//! What is decided: which kernels, how many blocks, in which order. A pure function of the problem, the
//! device and the addresses, so that it can be printed and tested with no GPU.

mod accumulate;
mod backward;
#[cfg(test)]
mod backward_parts_tests;
#[cfg(test)]
mod backward_tests;
#[cfg(test)]
mod decoding_tests;
mod dq;
#[cfg(test)]
mod dropout_tests;
mod dynamic;
mod forward;
mod lengths;
mod msda;
mod operands;
#[cfg(test)]
mod operands_tests;
mod partial;
mod row_heads;
mod score;
mod single_query;
mod split;
mod steps;
mod stretches;
mod tensor_maps;
#[cfg(test)]
mod tests;
mod waves;
mod workspace;

pub(crate) use accumulate::{AccumulatePlan, Term, plan_accumulate};
pub use backward::{
    BackwardOperands, BackwardPlan, BackwardPointers, ForwardAgain, HopperBackward, KernelLaunch,
    plan_backward,
};
pub use dynamic::{DynamicPlan, plan_dynamic};
pub(crate) use dynamic::{GatherPlan, GatherPointers, Rows, dynamic_kernel};
pub use forward::{ForwardPlan, ForwardPointers, HopperPlan, plan_forward};
pub use msda::{MsdaBackwardPointers, MsdaPlan, MsdaPointers, plan_msda_backward, plan_msda_forward};
pub(crate) use operands::OperandsParams;
pub use operands::OperandsPlan;
pub use partial::{PartialBackward, PartialForward, plan_backward_partial, plan_forward_partial};
pub use score::ScorePointers;
pub use split::CombinePlan;

use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::{Error, Result};
use crate::problem::Layout;
use kernels_gpu::abi::{
    Access, Arch, Dtype, Family, KERNELS, KernelSpec, KernelVariant, Switches, TensorView,
};

/// A plan, as far as its kernels go: see [`crate::Device::prepare`].
pub trait Kernels {
    /// The kernels in the order in which they are launched.
    fn kernels(&self) -> Vec<KernelVariant>;
}

impl Kernels for ForwardPlan {
    fn kernels(&self) -> Vec<KernelVariant> {
        let combine = self.combine.as_ref().map(|combine| combine.variant);
        let alone = std::iter::once(self.variant).chain(combine);
        let Some(operands) = &self.operands else { return alone.collect() };
        let first = operands.launches.iter().map(|launch| launch.variant);
        first.chain(alone).chain([operands.exact.variant]).collect()
    }
}

impl Kernels for BackwardPlan {
    fn kernels(&self) -> Vec<KernelVariant> {
        self.launches.iter().map(|launch| launch.variant).collect()
    }
}

impl Kernels for MsdaPlan {
    fn kernels(&self) -> Vec<KernelVariant> {
        self.launches.iter().map(|launch| launch.variant).collect()
    }
}

/// The largest one-dimensional grid of CUDA.
pub const MAX_BLOCKS: u32 = i32::MAX as u32;

/// A tensor and its address.
#[derive(Clone, Copy)]
struct Tensor<'p> {
    argument: &'static str,
    layout: &'p Layout,
    address: DevicePointer,
    dtype: Dtype,
}

impl Tensor<'_> {
    fn check(&self) -> Result<()> {
        check_pointer(self.argument, self.address, self.dtype, self.layout.elements())
    }
}

fn check_pointer(
    argument: &'static str,
    address: DevicePointer,
    dtype: Dtype,
    elements: u128,
) -> Result<()> {
    let alignment = dtype.bytes();
    if elements == 0 {
        Ok(())
    } else if address == 0 {
        Err(Error::NullPointer { argument, elements })
    } else if !address.is_multiple_of(u64::from(alignment)) {
        Err(Error::Misaligned { argument, alignment, address })
    } else {
        Ok(())
    }
}

/// What to give [`kernels_gpu::geometry::schedule::even_wave`] at least, where a pair has so many tiles,
/// some longer than others: it takes more than half of it, and so a wave has 1.75 to 3.5 times as many tiles
/// as run at once. With fewer, the longest tiles of the last wave are what is waited for, unless memory is.
fn busy_wave(tiles: u32, device: &DeviceProperties) -> u32 {
    device.multiprocessors.saturating_mul(7).div_ceil(2 * tiles.max(1))
}

/// The pairs of which one wave has as many tiles (19 of 20 at least) as run at once, if there is an even
/// number of such waves: every block then takes a long tile of one and a short tile of the next. More pairs
/// would only need more of the L2 cache.
fn paired_wave(pairs: u32, tiles: u32, device: &DeviceProperties) -> Option<u32> {
    let slots = device.multiprocessors;
    let wave = slots.checked_div(tiles).filter(|&wave| wave > 0)?;
    let is_full = u64::from(wave) * u64::from(tiles) * 20 >= u64::from(slots) * 19;
    (is_full && pairs.is_multiple_of(2 * wave)).then_some(wave)
}

/// 16 bytes at a time if every row of every tensor starts on a 16-byte boundary.
fn choose_access(tensors: &[Tensor<'_>], reasons: &mut Vec<String>) -> Access {
    let unaligned = tensors.iter().find(|tensor| {
        !tensor.layout.rows_aligned(tensor.address, tensor.dtype, 16) // the width of Access::Vector16
    });
    match unaligned {
        None => Access::Vector16,
        Some(Tensor { argument, .. }) => {
            reasons.push(format!("element access: not every row of {argument} starts on 16 bytes"));
            Access::Element
        }
    }
}

/// What a kernel must accept.
struct Choice {
    family: Family,
    dtype: Dtype,
    /// The larger of D and Dv.
    head_dim: u32,
    access: Access,
    /// Whether tensor maps can describe the tensors, so that kernels for Hopper can be taken.
    mappable: bool,
    /// Among kernels that differ in their tiles alone: the one with fewer query rows.
    short_tiles: bool,
    /// A kernel for rows of several heads, if there is one.
    gathers_heads: bool,
    /// Only a forward kernel that can leave a part of an output to others.
    leaves_parts: bool,
    /// What is to be switched on.
    switches: Switches,
}

/// The kernel with the smallest head dimension that is large enough, among those that run on the device:
/// one for Hopper if there is one, and with `Access::Vector16`, element access only where nothing else
/// fits. What is asked for is switched on.
fn choose_kernel(
    device: &DeviceProperties,
    choice: &Choice,
    reasons: &mut Vec<String>,
) -> Result<KernelVariant> {
    let &Choice { family, dtype, head_dim, access, mappable, .. } = choice;
    let &Choice { short_tiles, gathers_heads, leaves_parts, switches, .. } = choice;
    let (major, minor) = device.compute_capability;
    let accepts = |spec: &&KernelSpec| {
        spec.family == family
            && spec.dtype == dtype
            && spec.head_dim >= head_dim
            && (spec.access == access || spec.access == Access::Element)
            && (spec.arch != Arch::Sm90a || mappable)
            && (gathers_heads || !spec.gathers_heads)
            && (!leaves_parts || spec.splits_keys())
            && !spec.multiplies_parts
            && spec.switches.contains_all(switches)
    };
    let runs = |spec: &&KernelSpec| {
        spec.arch.runs_on(major, minor) && spec.shared_bytes <= device.shared_bytes_per_block
    };
    let chosen = KERNELS.iter().filter(accepts).filter(runs).min_by_key(|spec| {
        let rows = if short_tiles { spec.query_rows } else { u32::MAX - spec.query_rows };
        let gathers_not = gathers_heads && !spec.gathers_heads;
        (spec.access != access, spec.arch != Arch::Sm90a, gathers_not, spec.head_dim, rows)
    });
    if let Some(kernel) = chosen {
        let heads = if kernel.gathers_heads { ", for several heads," } else { "" };
        reasons.push(format!("smallest head_dim of at least {head_dim}{heads} is {}", kernel.head_dim));
        if kernel.arch == Arch::Sm90a {
            reasons.push("the device is Hopper, and tensor maps can describe the tensors".into());
        }
        if kernel.access != access {
            reasons.push("element access: no kernel with 16-byte access runs on the device".into());
        }
        reasons.extend(switches.iter().map(|switch| format!("{} is switched on", switch.name())));
        return Ok(KernelVariant { kernel, switches });
    }
    let reason = match KERNELS.iter().filter(accepts).min_by_key(|spec| spec.shared_bytes) {
        None => switches
            .iter()
            .fold("there is none".to_owned(), |text, switch| format!("{text} with {}", switch.name())),
        Some(spec) => format!(
            "{} needs {} and {} bytes of shared memory per block, the device has compute capability \
             {major}.{minor} and {} bytes",
            spec.name,
            spec.arch.name(),
            spec.shared_bytes,
            device.shared_bytes_per_block
        ),
    };
    let (device, dtype) = (device.name.clone(), dtype.name());
    Err(Error::KernelMissing { device, family: family_name(family), dtype, head_dim, reason })
}

/// What a family computes, as it stands in errors.
fn family_name(family: Family) -> &'static str {
    match family {
        Family::Forward | Family::ForwardCombine | Family::MeasureOperands | Family::SplitOperands => {
            "forward"
        }
        Family::BackwardDelta
        | Family::Backward
        | Family::BackwardConvert
        | Family::BackwardSum
        | Family::Accumulate
        | Family::BiasGradient
        | Family::SinkGradient => "backward",
        Family::MaskBits | Family::MaskMap | Family::Dynamic(_) => "mask",
        Family::Scan => "scan",
        Family::Msda(_) => "multi-scale deformable attention",
    }
}

/// One block per batch, head, and `what`, of which there are `each`.
fn count_blocks(each: u32, what: &str, heads: u32, batches: u32) -> Result<u32> {
    let got: u128 = [each, heads, batches].iter().map(|&size| u128::from(size)).product();
    if got <= u128::from(MAX_BLOCKS) {
        return Ok(got as u32);
    }
    let detail = format!("{each} {what} x {heads} heads x {batches} batches");
    Err(Error::GridTooLarge { max: MAX_BLOCKS, got, detail })
}

/// The view of a tensor. The stride of a dimension of extent 1 is never used, so it becomes 0: kernels
/// may then compute (not follow) addresses past the end without overflow.
fn view(address: DevicePointer, layout: &Layout) -> TensorView {
    let stride = |dimension: usize| {
        if layout.shape[dimension] <= 1 { 0 } else { layout.strides[dimension] }
    };
    TensorView { address, batch_stride: stride(0), row_stride: stride(1), head_stride: stride(2) }
}
