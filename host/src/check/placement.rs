//! The ways in which the tensors of a case stand in memory.

use crate::problem::Layout;

/// How tensors are laid out. Shapes are logical, `[batch, row, head, column]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Dense, memory order batch, row, head, column.
    Bshd,
    /// Dense, memory order batch, head, row, column.
    Bhsd,
    /// Gaps after every row, head and batch; all rows on 16 bytes whatever the head dimension, but not all
    /// on 32.
    Padded,
    /// The same with all rows on 32 bytes.
    Spaced,
    /// Every third slot of a packed projection: large row strides, aligned only if the head dimension
    /// is.
    Packed,
    /// Odd gaps and an odd start: no row on 16 bytes but by chance.
    Unaligned,
    /// All batches and key heads share one key and value.
    Broadcast,
    /// Inputs stand in memory last row first.
    Reversed,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 8] = [
        Placement::Bshd,
        Placement::Padded,
        Placement::Unaligned,
        Placement::Bhsd,
        Placement::Packed,
        Placement::Broadcast,
        Placement::Reversed,
        Placement::Spaced,
    ];

    /// The name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Bshd => "bshd",
            Placement::Bhsd => "bhsd",
            Placement::Padded => "padded",
            Placement::Spaced => "spaced",
            Placement::Packed => "packed",
            Placement::Unaligned => "unaligned",
            Placement::Broadcast => "broadcast",
            Placement::Reversed => "reversed",
        }
    }

    /// The layout of q or o.
    pub fn query(self, shape: [usize; 4]) -> Layout {
        match self {
            Placement::Bshd | Placement::Broadcast | Placement::Reversed => Layout::bshd(shape),
            Placement::Bhsd => Layout::bhsd(shape),
            Placement::Padded => {
                let head = shape[3].next_multiple_of(8) + 8;
                gapped(shape, head, head * shape[2] + 8, 16)
            }
            Placement::Spaced => {
                let head = shape[3].next_multiple_of(16) + 16;
                gapped(shape, head, head * shape[2] + 16, 32)
            }
            Placement::Packed => gapped(shape, shape[3], shape[3] * shape[2] * 3, 0),
            Placement::Unaligned => gapped(shape, shape[3] + 1, (shape[3] + 1) * shape[2] + 2, 5),
        }
    }

    /// The layout of q.
    pub fn input(self, shape: [usize; 4]) -> Layout {
        let mut layout = self.query(shape);
        if self == Placement::Reversed {
            layout.strides[1] = -layout.strides[1];
        }
        layout
    }

    /// The layout of k or v.
    pub fn key(self, shape: [usize; 4]) -> Layout {
        let mut layout = self.input(shape);
        if self == Placement::Broadcast {
            (layout.strides[0], layout.strides[2]) = (0, 0);
        }
        layout
    }

    /// Elements between a 256-byte boundary and the lowest element of the tensor.
    pub const fn lead(self) -> usize {
        match self {
            Placement::Unaligned => 1,
            _ => 0,
        }
    }
}

/// Batches, then rows, then heads, with these strides of heads and rows, and `batch_gap` elements
/// between batches.
fn gapped(shape: [usize; 4], head: usize, row: usize, batch_gap: usize) -> Layout {
    let batch = row * shape[1] + batch_gap;
    Layout { shape, strides: [batch as i64, row as i64, head as i64, 1] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ForwardProblem;
    use kernels_gpu::abi::Dtype;

    #[test]
    fn every_placement_is_valid_for_every_shape() {
        for placement in Placement::ALL {
            for (rows, heads, columns) in [(1, 1, 1), (5, 3, 7), (2, 4, 64), (0, 2, 9)] {
                let shape = [2, rows, heads, columns];
                let kv = placement.key(shape);
                let problem = ForwardProblem::new(Dtype::F16, placement.input(shape), kv, kv)
                    .with_output(placement.query(shape));
                assert!(problem.validate().is_ok(), "{placement:?} {shape:?} {:?}", problem.validate());
            }
        }
    }

    #[test]
    fn padded_rows_are_aligned_and_unaligned_ones_are_not() {
        let shape = [2, 5, 3, 7];
        assert!(Placement::Padded.query(shape).rows_aligned(256, Dtype::Bf16, 16));
        assert!(!Placement::Unaligned.query(shape).rows_aligned(256, Dtype::F32, 16));
    }
}
