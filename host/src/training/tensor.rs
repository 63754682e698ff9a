//! A tensor in device memory of any rank, and how the kernels that scan one see it.

use super::{Result, TrainingError};
use crate::driver::DevicePointer;
use crate::plan::MAX_BLOCKS;
use crate::problem::Layout;
use kernels_gpu::abi::{Dtype, SCAN_GROUP_BYTES, SCAN_PIECES, SCAN_THREADS, ScanParams};

/// A tensor in device memory: what the guards look at, and what they change.
///
/// Any rank, also 0 (one element), and any strides; dimensions that cannot be taken as one are at most four.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// What reports and errors call it.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Sizes, in logical order.
    pub shape: Vec<usize>,
    /// Elements from one index to the next, of each dimension.
    pub strides: Vec<i64>,
    /// Address of the element whose indices are all 0; may be null when there are no elements.
    pub address: DevicePointer,
}

/// Dimensions of rows, and columns.
const DIMENSIONS: usize = 4;
/// Lanes of a warp, as a power of two.
const WARP_LOG2: u32 = 5;
/// Warps of a block.
const WARPS: u64 = SCAN_THREADS as u64 / 32;
/// Blocks at most: as many records has the host to add up.
const MOST_BLOCKS: u64 = 4096;
/// Steps that each warp has, before there are more blocks.
const STEPS: u64 = 4;
const _: () = assert!(MOST_BLOCKS <= MAX_BLOCKS as u64);

impl DeviceTensor {
    /// Dense, the last dimension the fastest.
    pub fn dense(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[usize],
        address: DevicePointer,
    ) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut step = 1i64;
        for (stride, &size) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.saturating_mul(i64::try_from(size.max(1)).unwrap_or(i64::MAX));
        }
        DeviceTensor { name: name.into(), dtype, shape: shape.to_vec(), strides, address }
    }

    /// Where a tensor of a problem stands: `[batch, row, head, column]`.
    pub fn of_layout(
        name: impl Into<String>,
        dtype: Dtype,
        layout: &Layout,
        address: DevicePointer,
    ) -> Self {
        let (shape, strides) = (layout.shape.to_vec(), layout.strides.to_vec());
        DeviceTensor { name: name.into(), dtype, shape, strides, address }
    }

    /// The same with other strides, in elements.
    pub fn with_strides(self, strides: &[i64]) -> Self {
        DeviceTensor { strides: strides.to_vec(), ..self }
    }

    /// How many elements it has.
    pub fn elements(&self) -> u128 {
        self.shape.iter().fold(1, |product: u128, &size| product.saturating_mul(size as u128))
    }

    fn wrong(&self, expected: impl Into<String>, got: impl ToString) -> TrainingError {
        let (argument, expected, got) = (self.name.clone(), expected.into(), got.to_string());
        TrainingError::Tensor { argument, expected, got }
    }

    /// Every error in it.
    fn check(&self, writes: bool) -> Result<()> {
        let (dimensions, strides) = (self.shape.len(), self.strides.len());
        if dimensions != strides {
            return Err(self.wrong(format!("a stride for each of {dimensions} dimensions"), strides));
        }
        if self.elements() == 0 {
            return Ok(());
        }
        let bytes = u64::from(self.dtype.bytes());
        if self.address == 0 {
            return Err(self.wrong("a device pointer", "null"));
        }
        if !self.address.is_multiple_of(bytes) {
            let expected = format!("an address that is a multiple of {bytes} bytes");
            return Err(self.wrong(expected, format!("{:#x}", self.address)));
        }
        let mut reach = 1u128;
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let steps = (size as u128 - 1).saturating_mul(u128::from(stride.unsigned_abs()));
            reach = reach.saturating_add(steps);
        }
        if reach.saturating_mul(u128::from(bytes)) > i64::MAX as u128 {
            let got = format!("shape {:?} with strides {:?}", self.shape, self.strides);
            return Err(self.wrong("a tensor of less than 2^63 bytes", got));
        }
        if writes { self.check_apart() } else { Ok(()) }
    }

    /// No two elements share an address: taken by ascending stride, each dimension steps over all that those
    /// before it span.
    fn check_apart(&self) -> Result<()> {
        let mut steps: Vec<_> =
            self.shape.iter().zip(&self.strides).filter(|(size, _)| **size > 1).collect();
        steps.sort_by_key(|(_, stride)| stride.unsigned_abs());
        let mut spanned = 1u128;
        for (&size, &stride) in steps {
            let step = u128::from(stride.unsigned_abs());
            if step < spanned {
                let got = format!("strides {:?} of shape {:?}", self.strides, self.shape);
                return Err(self.wrong("no two elements at one address, as it is written", got));
            }
            spanned += step * (size as u128 - 1);
        }
        Ok(())
    }

    /// Size and stride of each dimension, outermost first, with those that follow on each other taken as one.
    fn merged(&self) -> Vec<(u64, i64)> {
        let mut merged: Vec<(u64, i64)> = Vec::new();
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let size = size as u64;
            match merged.last_mut() {
                _ if size == 1 => {}
                Some((outer, step)) if i128::from(*step) == i128::from(stride) * i128::from(size) => {
                    (*outer, *step) = (*outer * size, stride);
                }
                _ => merged.push((size, stride)),
            }
        }
        merged
    }

    /// Blocks and parameters of a launch, all but where the records go; none if there are no elements.
    pub(super) fn params(&self, writes: bool) -> Result<Option<(u32, ScanParams)>> {
        self.check(writes)?;
        if self.elements() == 0 {
            return Ok(None);
        }
        let merged = self.merged();
        if merged.len() > DIMENSIONS {
            let expected = format!("at most {DIMENSIONS} dimensions that do not follow on each other");
            return Err(
                self.wrong(expected, format!("{} with strides {:?}", merged.len(), self.strides))
            );
        }
        let mut dimensions = [(1, 0); DIMENSIONS];
        dimensions[DIMENSIONS - merged.len()..].copy_from_slice(&merged);
        let [outer @ .., (columns, column_stride)] = dimensions;
        let bytes = i64::from(self.dtype.bytes());
        let group = i64::from(SCAN_GROUP_BYTES);
        let starts_fit = outer.iter().all(|&(size, stride)| size == 1 || (stride * bytes) % group == 0);
        let is_aligned = column_stride == 1 || columns == 1;
        let is_aligned = is_aligned && starts_fit && self.address.is_multiple_of(group as u64);
        // One column of many rows is no row worth 16 bytes.
        let is_aligned = is_aligned && columns >= (group / bytes) as u64;
        let row_groups = columns.div_ceil((group / bytes) as u64);
        let piece_groups_log2 = row_groups.next_power_of_two().ilog2().min(WARP_LOG2);
        let row_pieces = row_groups.div_ceil(1 << piece_groups_log2);
        let rows: u64 = outer.iter().map(|(size, _)| size).product();
        let step_pieces = u64::from(SCAN_PIECES) << (WARP_LOG2 - piece_groups_log2);
        let pieces = rows.saturating_mul(row_pieces);
        let steps = pieces.div_ceil(step_pieces);
        // Of a step behind the last one pieces are counted as well.
        let most = u64::from(u32::MAX) - (MOST_BLOCKS * WARPS + 1) * step_pieces;
        if pieces > most {
            let got = format!("{pieces} of shape {:?}", self.shape);
            return Err(self.wrong(format!("at most {most} pieces of 512 bytes"), got));
        }
        let blocks = steps.div_ceil(STEPS * WARPS).clamp(1, MOST_BLOCKS);
        let [(_, first), (second_size, second), (third_size, third)] = outer;
        let params = ScanParams {
            address: self.address,
            strides: [first, second, third, column_stride],
            columns,
            records: 0,
            sizes: [second_size as u32, third_size as u32],
            rows: rows as u32,
            row_pieces: row_pieces as u32,
            steps: steps as u32,
            piece_groups_log2,
            is_aligned: u32::from(is_aligned),
            allows_negative_infinity: 0,
            writes: u32::from(writes),
            factor: 1.0,
            unit: 1.0,
            reserved: 0,
        };
        Ok(Some((blocks as u32, params)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], strides: &[i64]) -> DeviceTensor {
        DeviceTensor::dense("x", Dtype::Bf16, shape, 256).with_strides(strides)
    }

    #[test]
    fn dimensions_that_follow_on_each_other_are_taken_as_one() {
        assert_eq!(DeviceTensor::dense("x", Dtype::F32, &[2, 3, 4], 4).strides, [12, 4, 1]);
        assert_eq!(tensor(&[2, 3, 4], &[12, 4, 1]).merged(), [(24, 1)]);
        assert_eq!(tensor(&[2, 3, 4], &[24, 4, 1]).merged(), [(2, 24), (12, 1)]);
        assert_eq!(tensor(&[2, 1, 4], &[4, 99, 1]).merged(), [(8, 1)]);
        // Seen in another order than it stands: nothing follows.
        assert_eq!(tensor(&[2, 3, 4], &[12, 1, 3]).merged(), [(2, 12), (3, 1), (4, 3)]);
        assert_eq!(tensor(&[5, 7], &[0, 0]).merged(), [(35, 0)]);
        assert_eq!(tensor(&[], &[]).merged(), []);
    }

    #[test]
    fn what_cannot_be_scanned_is_refused_by_name() {
        let text = |tensor: DeviceTensor, writes| tensor.params(writes).unwrap_err().to_string();
        assert_eq!(
            text(tensor(&[2, 3], &[1]), false),
            "x: expected a stride for each of 2 dimensions, got 1"
        );
        let none = DeviceTensor { address: 0, ..tensor(&[2], &[1]) };
        assert_eq!(text(none.clone(), false), "x: expected a device pointer, got null");
        assert!(DeviceTensor { shape: vec![0], ..none }.params(true).unwrap().is_none());
        let odd = DeviceTensor { address: 0x101, ..tensor(&[2], &[1]) };
        assert_eq!(text(odd, false), "x: expected an address that is a multiple of 2 bytes, got 0x101");
        assert_eq!(
            text(tensor(&[3, 5], &[i64::MAX, 1]), false),
            "x: expected a tensor of less than 2^63 bytes, got shape [3, 5] with strides \
             [9223372036854775807, 1]"
        );
        assert_eq!(
            text(tensor(&[3, 5], &[4, 1]), true),
            "x: expected no two elements at one address, as it is written, got strides [4, 1] of shape \
             [3, 5]"
        );
        assert!(tensor(&[3, 5], &[4, 1]).params(false).is_ok());
        let apart = tensor(&[2; 5], &[160, 70, 30, 13, 5]);
        assert_eq!(
            text(apart, false),
            "x: expected at most 4 dimensions that do not follow on each other, got 5 with strides \
             [160, 70, 30, 13, 5]"
        );
        assert!(text(tensor(&[1 << 33, 3], &[8, 1]), false).starts_with("x: expected at most 42"));
    }

    #[test]
    fn short_rows_share_a_warp_and_blocks_grow_with_the_tensor() {
        let (blocks, params) = tensor(&[1000, 64], &[128, 1]).params(false).unwrap().unwrap();
        assert_eq!((params.piece_groups_log2, params.row_pieces, params.steps), (3, 1, 63));
        assert_eq!((blocks, params.is_aligned), (2, 1));
        let (blocks, params) = tensor(&[1 << 30], &[1]).params(false).unwrap().unwrap();
        assert_eq!((params.piece_groups_log2, params.rows, params.row_pieces), (5, 1, 1 << 22));
        assert_eq!((params.steps, blocks), (1 << 20, 4096));
        assert_eq!(tensor(&[9, 3], &[128, 1]).params(false).unwrap().unwrap().1.is_aligned, 0);
        assert_eq!(tensor(&[9, 64], &[65, 1]).params(false).unwrap().unwrap().1.is_aligned, 0);
    }
}
