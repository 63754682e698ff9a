//! How many rows the workspace of a backward pass has.

use crate::error::{Error, Result};
use crate::problem::ValidForward;
use kernels_gpu::abi::layout::{DQ_TRANSPOSED_ROWS, backward_delta_tiles, dq_is_transposed};
use kernels_gpu::abi::{Arch, KernelSpec, ROW_PADDING};

/// Query rows of a block of the first kernel.
pub(super) fn delta_rows(delta: &KernelSpec, value_dim: u32) -> u32 {
    delta.query_rows * backward_delta_tiles(delta.dtype.bytes(), value_dim)
}

/// Query rows of a sequence in the workspace; of the largest one, if they are packed.
pub(super) fn padded_rows(valid: &ValidForward, main: &KernelSpec, delta: &KernelSpec) -> u64 {
    let rows = u64::from(valid.query_rows);
    if valid.is_packed() {
        return rows.next_multiple_of(u64::from(ROW_PADDING));
    }
    let tiles = rows.next_multiple_of(u64::from(main.query_rows));
    tiles.next_multiple_of(u64::from(delta_rows(delta, valid.value_dim)))
}

/// Padding of a sequence that its part of the dq accumulator does without, where the main kernel stores all
/// that is read of it.
pub(super) fn dq_gap(valid: &ValidForward, main: &KernelSpec, padded_rows: u64) -> u32 {
    if valid.is_empty() || valid.is_packed() || main.arch != Arch::Sm90a {
        return 0;
    }
    let whole = if dq_is_transposed(main.query_rows) { DQ_TRANSPOSED_ROWS } else { main.query_rows };
    padded_rows as u32 - valid.query_rows.next_multiple_of(whole)
}

/// Query rows per head in the workspace.
pub(super) fn workspace_rows(valid: &ValidForward, padded_rows: u64) -> Result<u32> {
    if valid.is_empty() {
        return Ok(0);
    }
    let sequences = u64::from(valid.batches);
    let got = if valid.is_packed() {
        // The formula of the kernels, whose result fits if this one does.
        let padding = u64::from(ROW_PADDING);
        (valid.problem.q.shape[1] as u64 / padding + sequences) * padding
    } else {
        padded_rows * sequences
    };
    if got > i32::MAX as u64 {
        return Err(Error::WorkspaceRows { max: i32::MAX as u32, got });
    }
    Ok(got as u32)
}
