//! The plan of sums of f32 tensors.

use super::{MAX_BLOCKS, family_name, view};
use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::{Error, Result};
use crate::problem::Layout;
use kernels_gpu::abi::{
    ACCUMULATE_THREADS, AccumulateParams, Dtype, Family, KERNELS, KernelVariant, TensorView,
};

/// An f32 tensor that is added, or where a sum goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    /// Address of element (0, 0, 0, 0).
    pub pointer: DevicePointer,
    /// `[B, S, H, D]`.
    pub layout: Layout,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccumulatePlan {
    /// The kernel.
    pub variant: KernelVariant,
    /// Blocks of the one-dimensional grid.
    pub blocks: u32,
    /// The kernel's parameter.
    pub params: AccumulateParams,
}

/// Plans `output = first + second`, rounded once to `output_dtype`; of terms that are not there zeros. `None`
/// if there are no elements.
///
/// # Errors
/// [`Error::GridTooLarge`], [`Error::KernelMissing`].
pub(crate) fn plan_accumulate(
    (output, output_dtype): (Term, Dtype),
    [first, second]: [Option<Term>; 2],
    device: &DeviceProperties,
) -> Result<Option<AccumulatePlan>> {
    let [batches, rows, heads, columns] = output.layout.shape;
    if output.layout.elements() == 0 {
        return Ok(None);
    }
    let kernel = KERNELS
        .iter()
        .find(|kernel| (kernel.family, kernel.dtype) == (Family::Accumulate, output_dtype))
        .ok_or_else(|| Error::KernelMissing {
            device: device.name.clone(),
            family: family_name(Family::Accumulate),
            dtype: output_dtype.name(),
            head_dim: columns as u32,
            reason: "there is none that adds".to_owned(),
        })?;
    let all_rows = batches as u128 * rows as u128 * heads as u128;
    let rows_of_block = u128::from(ACCUMULATE_THREADS / 32);
    let got = all_rows.div_ceil(rows_of_block);
    if got > u128::from(MAX_BLOCKS).min(u128::from(u32::MAX) / rows_of_block) {
        let detail = format!("{all_rows} rows of all heads");
        return Err(Error::GridTooLarge { max: MAX_BLOCKS, got, detail });
    }
    let is_aligned = |term: &Term, dtype: Dtype| {
        term.layout.rows_aligned(term.pointer, dtype, 4 * u64::from(dtype.bytes()))
    };
    let terms_are_aligned = [first, second].iter().flatten().all(|term| is_aligned(term, Dtype::F32));
    let term = |term: Option<Term>| {
        let none = TensorView { address: 0, batch_stride: 0, row_stride: 0, head_stride: 0 };
        term.map_or(none, |term| view(term.pointer, &term.layout))
    };
    let is_aligned = columns.is_multiple_of(4) && is_aligned(&output, output_dtype) && terms_are_aligned;
    let params = AccumulateParams {
        output: view(output.pointer, &output.layout),
        first: term(first),
        second: term(second),
        batches: batches as u32,
        rows: rows as u32,
        heads: heads as u32,
        columns: columns as u32,
        is_aligned: u32::from(is_aligned),
        reserved: 0,
    };
    Ok(Some(AccumulatePlan { variant: kernel.into(), blocks: got as u32, params }))
}
