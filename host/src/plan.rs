//! What is decided: which kernel, how many blocks, in which order. A pure function of the problem, the
//! device and the addresses, so that it can be printed and tested with no GPU.

#[cfg(test)]
mod tests;

use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::{Error, Result};
use crate::problem::{Layout, ValidForward};
use kernels_gpu::abi::{Access, Dtype, Family, ForwardParams, KERNELS, KernelSpec, TensorView};
use kernels_gpu::geometry::schedule;
use std::fmt;

/// The largest one-dimensional grid of CUDA.
pub const MAX_BLOCKS: u32 = i32::MAX as u32;

/// Where the tensors of a forward pass stand in device memory: the addresses of their elements (0, 0, 0,
/// 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardPointers {
    /// `[B, Sq, Hq, D]`.
    pub q: DevicePointer,
    /// `[B, Sk, Hk, D]`.
    pub k: DevicePointer,
    /// `[B, Sk, Hk, Dv]`.
    pub v: DevicePointer,
    /// `[B, Sq, Hq, Dv]`.
    pub o: DevicePointer,
    /// Dense f32 `[B, Hq, Sq]`; not looked at unless the problem wants lse.
    pub lse: DevicePointer,
}

impl ForwardPointers {
    /// Every tensor with elements has an address, and it is a multiple of the element size.
    fn check(&self, valid: &ValidForward) -> Result<()> {
        let problem = &valid.problem;
        check_pointer("q", self.q, problem.dtype, problem.q.elements())?;
        check_pointer("k", self.k, problem.dtype, problem.k.elements())?;
        check_pointer("v", self.v, problem.dtype, problem.v.elements())?;
        check_pointer("o", self.o, problem.output_dtype, problem.o.elements())?;
        let lse_elements = if problem.wants_lse { valid.lse_elements() } else { 0 };
        check_pointer("lse", self.lse, Dtype::F32, lse_elements as u128)
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

/// Everything that launching a forward pass takes. Printable: `{}` is a line, with the reasons `{:#}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardPlan {
    /// The kernel.
    pub kernel: &'static KernelSpec,
    /// Blocks of the one-dimensional grid.
    pub blocks: u32,
    /// The kernel's parameter.
    pub params: ForwardParams,
    /// Why this kernel and this order, a sentence each.
    pub reasons: Vec<String>,
}

impl fmt::Display for ForwardPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelSpec { name, threads, shared_bytes, .. } = self.kernel;
        let wave = self.params.heads_per_wave;
        write!(f, "{name}: {} blocks of {threads} threads, {shared_bytes} shared bytes", self.blocks)?;
        write!(f, ", {wave} heads per wave")?;
        if f.alternate() {
            self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))?;
        }
        Ok(())
    }
}

/// Plans a forward pass; `None` when o and lse have no elements and there is nothing to do.
///
/// A problem without keys (Sk = 0) is still launched: o must become 0 and lse minus infinity.
///
/// # Errors
/// [`Error::NullPointer`], [`Error::Misaligned`], [`Error::KernelMissing`], [`Error::GridTooLarge`].
pub fn plan_forward(
    valid: &ValidForward,
    device: &DeviceProperties,
    pointers: &ForwardPointers,
) -> Result<Option<ForwardPlan>> {
    pointers.check(valid)?;
    if valid.is_empty() {
        return Ok(None);
    }
    let mut reasons = Vec::new();
    let access = required_access(valid, pointers, &mut reasons);
    let kernel = choose_kernel(valid, device, access, &mut reasons)?;
    let blocks = count_blocks(valid, kernel)?;
    let heads_per_wave = choose_wave(valid, device, &mut reasons);
    let params = forward_params(valid, pointers, heads_per_wave);
    Ok(Some(ForwardPlan { kernel, blocks, params, reasons }))
}

/// 16 bytes at a time if every row of every tensor starts on a 16-byte boundary.
fn required_access(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    reasons: &mut Vec<String>,
) -> Access {
    let problem = &valid.problem;
    let tensors = [
        ("q", &problem.q, pointers.q, problem.dtype),
        ("k", &problem.k, pointers.k, problem.dtype),
        ("v", &problem.v, pointers.v, problem.dtype),
        ("o", &problem.o, pointers.o, problem.output_dtype),
    ];
    let unaligned = tensors.into_iter().find(|(_, layout, address, dtype)| {
        !layout.rows_aligned(*address, *dtype, 16) // the width of Access::Vector16
    });
    match unaligned {
        None => Access::Vector16,
        Some((argument, ..)) => {
            reasons.push(format!("element access: not every row of {argument} starts on 16 bytes"));
            Access::Element
        }
    }
}

/// The kernel with the smallest head dimension that is large enough, among those that run on the device;
/// with `Access::Vector16`, element access only where nothing else fits.
fn choose_kernel(
    valid: &ValidForward,
    device: &DeviceProperties,
    access: Access,
    reasons: &mut Vec<String>,
) -> Result<&'static KernelSpec> {
    let head_dim = valid.head_dim.max(valid.value_dim);
    let (major, minor) = device.compute_capability;
    let accepts = |spec: &&KernelSpec| {
        spec.family == Family::Forward
            && spec.dtype == valid.problem.dtype
            && spec.head_dim >= head_dim
            && (spec.access == access || spec.access == Access::Element)
    };
    let runs = |spec: &&KernelSpec| {
        spec.arch.runs_on(major, minor) && spec.shared_bytes <= device.shared_bytes_per_block
    };
    let chosen = KERNELS
        .iter()
        .filter(accepts)
        .filter(runs)
        .min_by_key(|spec| (spec.access != access, spec.head_dim, spec.shared_bytes));
    if let Some(kernel) = chosen {
        reasons.push(format!("smallest head_dim of at least {head_dim} is {}", kernel.head_dim));
        if kernel.access != access {
            reasons.push("element access: no kernel with 16-byte access runs on the device".into());
        }
        return Ok(kernel);
    }
    let reason = match KERNELS.iter().filter(accepts).min_by_key(|spec| spec.shared_bytes) {
        None => "there is none".to_owned(),
        Some(spec) => format!(
            "{} needs {} and {} bytes of shared memory per block, the device has compute capability \
             {major}.{minor} and {} bytes",
            spec.name,
            spec.arch.name(),
            spec.shared_bytes,
            device.shared_bytes_per_block
        ),
    };
    let (device, dtype) = (device.name.clone(), valid.problem.dtype.name());
    Err(Error::KernelMissing { device, family: "forward", dtype, head_dim, reason })
}

/// One block per (batch, query head, tile of query rows).
fn count_blocks(valid: &ValidForward, kernel: &KernelSpec) -> Result<u32> {
    let tiles = valid.query_rows.div_ceil(kernel.query_rows);
    let got = [tiles, valid.query_heads, valid.batches].iter().map(|&size| u128::from(size)).product();
    if got <= u128::from(MAX_BLOCKS) {
        return Ok(got as u32);
    }
    let detail = format!(
        "{tiles} tiles of {} query rows x {} heads x {} batches",
        kernel.query_rows, valid.query_heads, valid.batches
    );
    Err(Error::GridTooLarge { max: MAX_BLOCKS, got, detail })
}

/// How many (batch, query head) pairs are worked on together, so that their keys and values stay in the
/// L2 cache.
fn choose_wave(valid: &ValidForward, device: &DeviceProperties, reasons: &mut Vec<String>) -> u32 {
    let columns = u64::from(valid.head_dim) + u64::from(valid.value_dim);
    let row_bytes = columns * u64::from(valid.problem.dtype.bytes());
    let bytes = u64::from(valid.key_rows) * row_bytes;
    let pairs = valid.batches.saturating_mul(valid.query_heads);
    let wave = schedule::heads_per_wave(bytes, valid.group_size, device.l2_bytes, pairs);
    reasons.push(format!(
        "{wave} of {pairs} (batch, head) pairs at once: {bytes} bytes of k and v per key head, {} of L2",
        device.l2_bytes
    ));
    wave
}

fn forward_params(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    heads_per_wave: u32,
) -> ForwardParams {
    let problem = &valid.problem;
    ForwardParams {
        q: view(pointers.q, &problem.q),
        k: view(pointers.k, &problem.k),
        v: view(pointers.v, &problem.v),
        o: view(pointers.o, &problem.o),
        lse: if problem.wants_lse { pointers.lse } else { 0 },
        lse_batch_stride: i64::from(valid.query_heads) * i64::from(valid.query_rows),
        lse_head_stride: i64::from(valid.query_rows),
        cu_seqlens_q: 0,
        cu_seqlens_k: 0,
        batches: valid.batches,
        query_heads: valid.query_heads,
        group_size: valid.group_size,
        query_rows: valid.query_rows,
        key_rows: valid.key_rows,
        head_dim: valid.head_dim,
        value_dim: valid.value_dim,
        bottom_right: u32::from(valid.bottom_right),
        window_left: valid.window_left,
        window_right: valid.window_right,
        scale: valid.scale,
        output_f32: u32::from(problem.output_dtype == Dtype::F32),
        heads_per_wave,
        reserved: 0,
    }
}

/// The view of a tensor. The stride of a dimension of extent 1 is never used, so it becomes 0: kernels
/// may then compute (not follow) addresses past the end without overflow.
fn view(address: DevicePointer, layout: &Layout) -> TensorView {
    let stride = |dimension: usize| {
        if layout.shape[dimension] <= 1 { 0 } else { layout.strides[dimension] }
    };
    TensorView { address, batch_stride: stride(0), row_stride: stride(1), head_stride: stride(2) }
}
