//! The kernels for gradients of what scores have beside q and k: bias and sinks.

use super::super::{Choice, Tensor, choose_access, choose_kernel, count_blocks, tensor_maps};
use super::KernelLaunch;
use crate::driver::DeviceProperties;
use crate::error::{Error, Result};
use crate::problem::ValidBackward;
use kernels_gpu::abi::{Access, Arch, BackwardParams, Dtype, Family, KERNELS, KernelVariant};

/// The kernel for the gradient of the bias, if it is wanted.
pub(super) fn bias_gradient(
    valid: &ValidBackward,
    params: &BackwardParams,
    device: &DeviceProperties,
    tensors: &[Tensor<'_>; 7],
    reasons: &mut Vec<String>,
) -> Result<Option<KernelLaunch>> {
    let forward = &valid.forward;
    if valid.problem.d_bias.is_none_or(|d_bias| d_bias.layout.elements() == 0) {
        return Ok(None);
    }
    let inputs = &tensors[..4];
    let access = choose_access(inputs, reasons);
    let [batches, heads, queries, keys] = params.d_bias_shape;
    let why_not_hopper = if forward.is_packed() {
        Some("sequences are packed")
    } else if (queries, keys) != (params.query_rows, params.key_rows) {
        Some("the bias has no element for each query and key")
    } else {
        None
    };
    let mut mappable = access == Access::Vector16 && tensor_maps::can_describe(inputs, device, reasons);
    if let Some(why_not) = why_not_hopper.filter(|_| mappable) {
        reasons.push(format!("no kernel for Hopper for dbias: {why_not}"));
        mappable = false;
    }
    let choice = Choice {
        family: Family::BiasGradient,
        dtype: forward.problem.dtype,
        head_dim: forward.head_dim.max(forward.value_dim),
        access,
        mappable,
        short_tiles: false,
        gathers_heads: false,
        leaves_parts: false,
        switches: forward.switches().of_scores(),
    };
    let variant = choose_kernel(device, &choice, reasons)?;
    let rows = variant.kernel.query_rows;
    let what = format!("tiles of {rows} queries by {rows} keys of dbias");
    let tiles = u64::from(queries.div_ceil(rows)) * u64::from(keys.div_ceil(rows));
    let tiles = u32::try_from(tiles).unwrap_or(u32::MAX);
    let mut blocks = count_blocks(tiles, &what, heads, batches)?;
    if variant.kernel.arch == Arch::Sm90a {
        // They stay, one on each multiprocessor, and take every so many-th tile.
        blocks = blocks.min(device.multiprocessors.max(1));
    }
    reasons.push("dbias by a kernel of its own, which makes s and dp again".into());
    Ok(Some(KernelLaunch { variant, blocks }))
}

/// The kernel for the gradient of the sinks, if it is wanted.
pub(super) fn sink_gradient(
    valid: &ValidBackward,
    device: &DeviceProperties,
) -> Result<Option<KernelLaunch>> {
    let forward = &valid.forward;
    if !valid.problem.wants_d_sinks || forward.query_heads == 0 {
        return Ok(None);
    }
    let kernel = KERNELS.iter().find(|spec| spec.family == Family::SinkGradient);
    let variant = kernel.map(KernelVariant::from).ok_or_else(|| Error::KernelMissing {
        device: device.name.clone(),
        family: "backward",
        dtype: Dtype::F32.name(),
        head_dim: 0,
        reason: "there is none for the gradient of sinks".to_owned(),
    })?;
    Ok(Some(KernelLaunch { variant, blocks: forward.query_heads }))
}
