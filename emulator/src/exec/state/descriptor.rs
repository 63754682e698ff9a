//! Matrix descriptors: where the operands of a multiplication lie in shared memory.
//!
//! ```text
//!   63 62      51 49     45       32    29       16    13        0
//!  +-----+----+------+--+-----------+--+-----------+--+-----------+
//!  |swizz|    | base |  |  stride   |  |  leading  |  |   start   |   offsets in units of 16 bytes
//!  +-----+----+------+--+-----------+--+-----------+--+-----------+
//! ```
//!
//! "Rows" are those of A, or the columns of B; k runs along the other side. Eight rows of up to 128
//! bytes make an atom, in which the swizzle exchanges 16-byte pieces.

/// Bytes of a piece that stays together.
pub const PIECE_BYTES: u32 = 16;
/// Elements of a piece.
pub const PIECE: usize = 8;

/// A decoded descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    base: u32,
    /// Bytes of a row of an atom: 16 without a swizzle.
    span: u32,
}

impl Descriptor {
    /// From its bits.
    pub fn decode(bits: u64) -> Self {
        let field = |position: u32| (bits >> position & 0x3fff) as u32 * PIECE_BYTES;
        let span = [16, 128, 64, 32][(bits >> 62) as usize];
        let base = (bits >> 49 & 7) as u32;
        Descriptor { start: field(0), leading: field(16), stride: field(32), base, span }
    }

    /// The shared address of the piece with element (row, k), where the one of the two along which
    /// memory runs is a multiple of 8. `transposed`: it runs along the rows.
    fn piece(&self, row: u32, k: u32, transposed: bool) -> u32 {
        let Descriptor { start, leading, stride, span, .. } = *self;
        let offset = match (transposed, span) {
            (false, 16) => row % 8 * 16 + row / 8 * stride + k / 8 * leading,
            (false, _) => row % 8 * span + row / 8 * stride + k * 2 / span * leading + k * 2 % span,
            (true, 16) => k % 8 * 16 + row / 8 * stride + k / 8 * leading,
            (true, _) => {
                let along = span / 2;
                row % along * 2 + row / along * leading + k % 8 * span + k / 8 * stride
            }
        };
        let address = start + offset;
        let line = (address >> 7).wrapping_sub(self.base);
        address ^ (line & (span / 16 - 1)) << 4
    }

    /// The addresses of all pieces of an operand of so many rows and of so many k of 16 bits: by row and then
    /// k, or transposed, by k and then row.
    pub fn pieces(&self, rows: u32, k: u32, transposed: bool) -> Vec<u32> {
        let (outer, inner) = if transposed { (k, rows) } else { (rows, k) };
        let place = |outer: u32, inner: u32| {
            if transposed { self.piece(inner, outer, true) } else { self.piece(outer, inner, false) }
        };
        (0..outer)
            .flat_map(|outer| (0..inner).step_by(PIECE).map(move |inner| (outer, inner)))
            .map(|(outer, inner)| place(outer, inner))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(start: u32, leading: u32, stride: u32, swizzle: u64) -> u64 {
        u64::from(start >> 4)
            | u64::from(leading >> 4) << 16
            | u64::from(stride >> 4) << 32
            | swizzle << 62
    }

    #[test]
    fn rows_of_128_bytes_exchange_eight_pieces() {
        let d = Descriptor::decode(bits(4096, 0, 1024, 1));
        assert_eq!(d.piece(0, 8, false), 4096 + 16);
        assert_eq!(d.piece(3, 0, false), 4096 + 3 * 128 + 3 * 16);
        assert_eq!(d.piece(11, 8, false), 4096 + 1024 + 3 * 128 + (3 ^ 1) * 16);
        // The second sixteen of k starts 32 bytes further on, before the exchange.
        let second = Descriptor::decode(bits(4096 + 32, 0, 1024, 1));
        assert_eq!(second.piece(3, 8, false), 4096 + 3 * 128);
    }

    #[test]
    fn narrower_swizzles_exchange_fewer_pieces() {
        let d = Descriptor::decode(bits(1024, 0, 512, 2));
        assert_eq!(d.piece(2, 0, false), 1024 + 128 + 16);
        assert_eq!(d.piece(9, 8, false), 1024 + 512 + 64 + 16);
        let d = Descriptor::decode(bits(1024, 0, 256, 3));
        assert_eq!(d.piece(4, 0, false), 1024 + 128 + 16);
        let d = Descriptor::decode(bits(1024, 128, 256, 0));
        assert_eq!(d.piece(9, 8, false), 1024 + 256 + 16 + 128);
    }

    #[test]
    fn atoms_of_16_values_follow_on_each_other_where_k_is_more() {
        let d = Descriptor::decode(bits(1024, 4096, 256, 3));
        assert_eq!(d.piece(1, 24, false), 1024 + 4096 + 32 + 16);
        assert_eq!(d.pieces(8, 32, false)[..4], [1024, 1040, 5120, 5136]);
        let whole = Descriptor::decode(bits(4096, 0, 1024, 1));
        assert_eq!(whole.piece(0, 24, false), 4096 + 48);
    }

    #[test]
    fn transposed_atoms_run_along_the_rows() {
        let d = Descriptor::decode(bits(2048, 8192, 1024, 1));
        assert_eq!(d.piece(8, 0, true), 2048 + 16);
        assert_eq!(d.piece(72, 9, true), 2048 + 8192 + 1024 + 128);
        assert_eq!(d.pieces(64, 16, true).len(), 16 * 8);
        assert_eq!(d.pieces(64, 16, true)[8], d.piece(0, 1, true));
    }
}
