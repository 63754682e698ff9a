//! Tensors as the tensor memory accelerator sees them, where it can.

use super::Tensor;
use crate::driver::{DeviceProperties, L2Promotion, TensorMapDescription};
use kernels_gpu::abi::{Arch, Dtype};

/// Columns of a box: a panel of 128 bytes.
const BOX_COLUMNS: u32 = 64;

/// Bytes that addresses and strides are multiples of.
const ALIGNMENT: i128 = 16;

/// Strides are below this many bytes.
const MAX_STRIDE: i128 = 1 << 40;

/// Names of the dimensions with a stride, in the order of [`crate::Layout`].
const DIMENSIONS: [&str; 3] = ["batch", "row", "head"];

/// Whether maps can describe the tensors, on a device that could use them; if not, the reason is added.
pub(super) fn can_describe(
    tensors: &[Tensor<'_>],
    device: &DeviceProperties,
    reasons: &mut Vec<String>,
) -> bool {
    let (major, minor) = device.compute_capability;
    if !Arch::Sm90a.runs_on(major, minor) {
        return false;
    }
    let obstacle = tensors.iter().find_map(obstacle);
    if let Some(obstacle) = &obstacle {
        reasons.push(format!("no kernel for Hopper: {obstacle}"));
    }
    obstacle.is_none()
}

/// Why the tensor cannot be described, if it cannot.
pub(super) fn obstacle(tensor: &Tensor<'_>) -> Option<String> {
    let Tensor { argument, layout, address, dtype } = tensor;
    if layout.elements() == 0 {
        return None;
    }
    if *dtype == Dtype::F32 {
        return Some(format!("{argument} is f32"));
    }
    if !address.is_multiple_of(ALIGNMENT as u64) {
        return Some(format!("{argument} does not start on 16 bytes"));
    }
    let strided = (0..3).filter(|&dimension| layout.shape[dimension] > 1);
    strided.into_iter().find_map(|dimension| {
        let bytes = i128::from(layout.strides[dimension]) * i128::from(dtype.bytes());
        let fits = bytes > 0 && bytes < MAX_STRIDE && bytes % ALIGNMENT == 0;
        let name = DIMENSIONS[dimension];
        (!fits).then(|| format!("the {name} stride of {argument} is {bytes} bytes"))
    })
}

/// The map of a tensor without [`obstacle`], in boxes of `rows` rows of `heads` heads, with heads before
/// rows; `None` when it has no elements.
pub(super) fn describe_heads(
    tensor: &Tensor<'_>,
    heads: u32,
    rows: u32,
) -> Option<TensorMapDescription> {
    let map = describe(tensor, rows)?;
    let TensorMapDescription { dims, strides_bytes, .. } = map;
    Some(TensorMapDescription {
        dims: [dims[0], dims[2], dims[1], dims[3]],
        strides_bytes: [strides_bytes[1], strides_bytes[0], strides_bytes[2]],
        box_dims: [BOX_COLUMNS, heads, rows, 1],
        ..map
    })
}

/// The map of a tensor without [`obstacle`], in boxes of `rows` rows; `None` when it has no elements.
pub(super) fn describe(tensor: &Tensor<'_>, rows: u32) -> Option<TensorMapDescription> {
    let layout = tensor.layout;
    if layout.elements() == 0 {
        return None;
    }
    let [batches, height, heads, columns] = layout.shape.map(|size| size as u64);
    let stride = |dimension: usize| {
        if layout.shape[dimension] > 1 {
            layout.strides[dimension] as u64 * u64::from(tensor.dtype.bytes())
        } else {
            ALIGNMENT as u64 // never used
        }
    };
    Some(TensorMapDescription {
        address: tensor.address,
        dims: [columns, height, heads, batches],
        strides_bytes: [stride(1), stride(2), stride(0)],
        box_dims: [BOX_COLUMNS, rows, 1, 1],
        l2_promotion: L2Promotion::Bytes256,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Layout;

    fn tensor(layout: &Layout) -> Tensor<'_> {
        Tensor { argument: "k", layout, address: 0x1000, dtype: Dtype::Bf16 }
    }

    #[test]
    fn dimensions_stand_innermost_first() {
        let layout = Layout::bshd([2, 300, 4, 72]);
        let map = describe(&tensor(&layout), 128).unwrap();
        assert_eq!(map.dims, [72, 300, 4, 2]);
        assert_eq!(map.strides_bytes, [4 * 72 * 2, 72 * 2, 300 * 4 * 72 * 2]);
        assert_eq!(map.box_dims, [64, 128, 1, 1]);
        assert_eq!(obstacle(&tensor(&layout)), None);
        let map = describe_heads(&tensor(&layout), 2, 64).unwrap();
        assert_eq!(map.dims, [72, 4, 300, 2]);
        assert_eq!(map.strides_bytes, [72 * 2, 4 * 72 * 2, 300 * 4 * 72 * 2]);
        assert_eq!(map.box_dims, [64, 2, 64, 1]);
    }

    #[test]
    fn strides_that_no_map_has_are_named() {
        let reason = |strides| {
            let layout = Layout { shape: [2, 3, 4, 64], strides };
            obstacle(&tensor(&layout))
        };
        assert_eq!(reason([4096, 256, 64, 1]), None);
        let text = |strides| reason(strides).unwrap();
        assert_eq!(text([4096, -256, 64, 1]), "the row stride of k is -512 bytes");
        assert_eq!(text([4096, 256, 0, 1]), "the head stride of k is 0 bytes");
        assert_eq!(text([4095, 256, 64, 1]), "the batch stride of k is 8190 bytes");
        assert_eq!(
            text([1 << 40, 256, 64, 1]),
            format!("the batch stride of k is {} bytes", 1u64 << 41)
        );
    }

    #[test]
    fn a_dimension_of_one_needs_no_stride_and_no_elements_no_map() {
        let single = Layout { shape: [1, 1, 1, 64], strides: [3, -5, 0, 1] };
        assert_eq!(obstacle(&tensor(&single)), None);
        assert_eq!(describe(&tensor(&single), 64).unwrap().strides_bytes, [16; 3]);
        let empty = Layout::bshd([1, 0, 1, 64]);
        assert_eq!((obstacle(&tensor(&empty)), describe(&tensor(&empty), 64)), (None, None));
    }
}
