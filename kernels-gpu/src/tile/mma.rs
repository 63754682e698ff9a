//! Tensor-core products of a warp, between tiles in shared memory and accumulators in registers.

pub mod split;

use self::split::SumFactor;
use super::element::TensorCoreElement;
use super::shared_tile::{SharedTile, SharedTileOf};
use crate::arch::{matrix, shared};
use crate::geometry::fragment::{ldmatrix_x4, mma_accumulator};
use crate::geometry::size::TileSize;
use crate::geometry::swizzle::{CHUNK_BYTES, panel_bytes, row_xor};

/// The part of an `ldmatrix` address that depends on the lane alone, for tiles with rows of `ROW_BYTES`, or
/// with panels like theirs.
///
/// 16 x 16 blocks start at rows that are multiples of 16: the lane's row inside the block decides the
/// swizzle.
#[derive(Clone, Copy)]
pub struct LaneAddress<const ROW_BYTES: u32> {
    row_offset: u32,
    chunk_xor: u32,
}

impl<const ROW_BYTES: u32> LaneAddress<ROW_BYTES> {
    const PANEL: u32 = panel_bytes(ROW_BYTES);
    /// 16-column blocks per panel.
    const BLOCKS: u32 = panel_bytes(ROW_BYTES) / 32;

    #[inline(always)]
    fn new((row, chunk): (u32, u32)) -> Self {
        LaneAddress {
            row_offset: row * Self::PANEL,
            chunk_xor: (chunk ^ row_xor(Self::PANEL, row)) * CHUNK_BYTES,
        }
    }

    /// For A operands, and transposed B operands (see [`ldmatrix_x4::rows_first`]).
    #[inline(always)]
    pub fn rows_first(lane: u32) -> Self {
        Self::new(ldmatrix_x4::rows_first(lane))
    }

    /// For B operands stored as n rows of k columns (see [`ldmatrix_x4::chunks_first`]).
    #[inline(always)]
    pub fn chunks_first(lane: u32) -> Self {
        Self::new(ldmatrix_x4::chunks_first(lane))
    }

    /// The lane's address in the block at row `row` (a multiple of 16) and column `16 * block`.
    #[inline(always)]
    pub fn of<S: TileSize>(self, tile: SharedTileOf<S>, row: u32, block: u32) -> u32 {
        const { assert!(panel_bytes(S::ROW_BYTES) == Self::PANEL) };
        let (panel, inner) = (block / Self::BLOCKS, block % Self::BLOCKS);
        let lane_part = self.row_offset + (self.chunk_xor ^ (inner * 2 * CHUNK_BYTES));
        tile.address + (panel * S::ROWS + row) * Self::PANEL + lane_part
    }
}

/// `scores = q k^T`, for `M` tiles of 16 query rows from `first_row` on and `KEYS` keys; all of
/// `ROW_BYTES / 2` columns, or of both parts of half as many. `SWAPPED`: the products are, bit by bit, those
/// of `k q^T` without.
///
/// # Safety
/// All 32 lanes call it together; both tiles are written and visible.
#[inline(always)]
pub unsafe fn multiply_transposed<
    E: TensorCoreElement,
    const SWAPPED: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const M: usize,
    const S: usize,
>(
    lane: u32,
    q: SharedTile<QUERIES, ROW_BYTES>,
    first_row: u32,
    k: SharedTile<KEYS, ROW_BYTES>,
) -> [[f32; S]; M] {
    let q_lane = LaneAddress::<ROW_BYTES>::rows_first(lane);
    let k_lane = LaneAddress::<ROW_BYTES>::chunks_first(lane);
    let blocks = const { ROW_BYTES / 32 / E::WORDS_OF_PAIR as u32 };
    const { assert!((ROW_BYTES / 32).is_multiple_of(E::WORDS_OF_PAIR as u32 * split::steps::<E>())) };
    let mut scores = [[0.0; S]; M];
    let mut block = 0;
    while block < blocks {
        let mut a = [split::NONE; M];
        let mut m = 0;
        while m < M {
            let row = first_row + 16 * m as u32;
            a[m] = split::fragments::<E>(|part, step| {
                matrix::load_matrix_x4(q_lane.of(q, row, part * blocks + block + step))
            });
            m += 1;
        }
        let mut pair = 0;
        while pair < KEYS / 16 {
            let b = split::fragments::<E>(|part, step| {
                matrix::load_matrix_x4(k_lane.of(k, 16 * pair, part * blocks + block + step))
            });
            let factor = split::factor_of_columns(block / split::steps::<E>());
            let mut m = 0;
            while m < M {
                let tile = 2 * pair as usize;
                split::accumulate::<E, f32, SWAPPED, S>(&mut scores[m], tile, &a[m], &b, factor);
                m += 1;
            }
            pair += 1;
        }
        block += split::steps::<E>();
    }
    scores
}

/// Accumulators rounded to the element type, two columns per register: columns `16 k..16 k + 16` are
/// then an A operand, registers `4 k..4 k + 4`, because the two layouts agree register by register. `H` is
/// as in [`TensorCoreElement::pack_all`].
#[inline(always)]
pub fn pack_all<E: TensorCoreElement, const M: usize, const N: usize, const H: usize>(
    accumulators: &[[f32; N]; M],
) -> [[u32; H]; M] {
    let mut packed = [[0; H]; M];
    let mut m = 0;
    while m < M {
        packed[m] = E::pack_all(&accumulators[m]);
        m += 1;
    }
    packed
}

/// As [`pack_all`], for 16 rows, a word for each pair: `H = N / 2`.
#[inline(always)]
pub fn pack<E: TensorCoreElement, const N: usize, const H: usize>(accumulators: &[f32; N]) -> [u32; H] {
    let mut packed = [0; H];
    let mut i = 0;
    while i < H {
        packed[i] = E::pack(accumulators[2 * i], accumulators[2 * i + 1]);
        i += 1;
    }
    packed
}

/// Accumulators as another warp takes them, in as many words ([`TensorCoreElement::to_words`]).
#[inline(always)]
pub fn words_of_all<E: TensorCoreElement, const M: usize, const N: usize, const H: usize>(
    accumulators: &[[f32; N]; M],
) -> [[u32; H]; M] {
    let mut words = [[0; H]; M];
    let mut m = 0;
    while m < M {
        words[m] = E::to_words(&accumulators[m]);
        m += 1;
    }
    words
}

/// `output += p b`: p packed in registers ([`pack_all`]), b stored as `DEPTH` rows of output columns, or of
/// both parts of these. Sums of products of parts are multiplied by the `factors` of their 16 rows.
///
/// # Safety
/// As [`multiply_transposed`].
#[inline(always)]
pub unsafe fn multiply_accumulate<
    E: TensorCoreElement,
    R: SumFactor,
    const DEPTH: u32,
    const ROW_BYTES: u32,
    const M: usize,
    const H: usize,
    const O: usize,
>(
    lane: u32,
    output: &mut [[f32; O]; M],
    p: &[[u32; H]; M],
    b: SharedTile<DEPTH, ROW_BYTES>,
    factors: &[R; M],
) {
    let b_lane = LaneAddress::<ROW_BYTES>::rows_first(lane);
    let blocks = const { ROW_BYTES / 32 / E::WORDS_OF_PAIR as u32 };
    const {
        assert!((DEPTH / 16).is_multiple_of(split::steps::<E>()));
        assert!(H == DEPTH as usize / 4 * E::WORDS_OF_PAIR);
    }
    let mut first = 0;
    while first < DEPTH / 16 {
        let mut block = 0;
        while block < blocks {
            let b = split::fragments::<E>(|part, step| {
                let address = b_lane.of(b, 16 * (first + step), part * blocks + block);
                matrix::load_matrix_x4_transposed(address)
            });
            let mut m = 0;
            while m < M {
                let a = split::fragments::<E>(|part, step| {
                    let at = part as usize * (H / 2) + 4 * (first + step) as usize;
                    [p[m][at], p[m][at + 1], p[m][at + 2], p[m][at + 3]]
                });
                split::accumulate::<E, R, false, O>(
                    &mut output[m],
                    2 * block as usize,
                    &a,
                    &b,
                    factors[m],
                );
                m += 1;
            }
            block += 1;
        }
        first += split::steps::<E>();
    }
}

/// `a^T b` for a stored as `DEPTH` rows, columns from `first_row` on (these become `16 M` rows of the
/// product), and b stored as `DEPTH` rows, columns from `16 * first_block` on (`2 O` of them); both as they
/// are, or the columns of both parts. Of parts each 16 rows begin a sum of their own, which is multiplied by
/// `factor(row / 16)`.
///
/// # Safety
/// As [`multiply_transposed`].
#[inline(always)]
pub unsafe fn multiply_left_transposed<
    E: TensorCoreElement,
    R: SumFactor,
    const DEPTH: u32,
    const A_ROW_BYTES: u32,
    const B_ROW_BYTES: u32,
    const M: usize,
    const O: usize,
>(
    lane: u32,
    a: SharedTile<DEPTH, A_ROW_BYTES>,
    first_row: u32,
    b: SharedTile<DEPTH, B_ROW_BYTES>,
    first_block: u32,
    factor: impl Fn(u32) -> R,
) -> [[f32; O]; M] {
    let a_lane = LaneAddress::<A_ROW_BYTES>::chunks_first(lane);
    let b_lane = LaneAddress::<B_ROW_BYTES>::rows_first(lane);
    let a_blocks = const { A_ROW_BYTES / 32 / E::WORDS_OF_PAIR as u32 };
    let b_blocks = const { B_ROW_BYTES / 32 / E::WORDS_OF_PAIR as u32 };
    let mut output = [[0.0; O]; M];
    let mut step = 0;
    while step < DEPTH / 16 {
        let factor = factor(step);
        let mut a_step = [split::NONE_OF_STEP; M];
        let mut m = 0;
        while m < M {
            let mut part = 0;
            while part < E::WORDS_OF_PAIR {
                let column = first_row / 16 + m as u32 + part as u32 * a_blocks;
                let address = a_lane.of(a, 16 * step, column);
                a_step[m][part] = [matrix::load_matrix_x4_transposed(address)];
                part += 1;
            }
            m += 1;
        }
        let mut block = 0;
        while block < O / 8 {
            let (mut b_step, mut part) = (split::NONE_OF_STEP, 0);
            while part < E::WORDS_OF_PAIR {
                let column = first_block + block as u32 + part as u32 * b_blocks;
                let address = b_lane.of(b, 16 * step, column);
                b_step[part] = [matrix::load_matrix_x4_transposed(address)];
                part += 1;
            }
            let mut m = 0;
            while m < M {
                split::accumulate_step::<E, R, O>(
                    &mut output[m],
                    2 * block,
                    &a_step[m],
                    &b_step,
                    factor,
                );
                m += 1;
            }
            block += 1;
        }
        step += 1;
    }
    output
}

/// Writes 16 rows of `tile` from `first_row` on, out of an accumulator as wide as the tile, rounded and
/// packed by pairs: `packed(i)` is registers 2 i and 2 i + 1.
///
/// # Safety
/// These rows belong to this warp.
#[inline(always)]
pub unsafe fn store_packed<const ROWS: u32, const ROW_BYTES: u32>(
    lane: u32,
    packed: impl Fn(usize) -> u32,
    tile: SharedTile<ROWS, ROW_BYTES>,
    first_row: u32,
) {
    let row = first_row + mma_accumulator::row(lane, 0);
    let inner = lane % 4 * 4;
    let mut chunk = 0;
    while chunk < ROW_BYTES / 16 {
        shared::store_u32(tile.chunk(row, chunk) + inner, packed(2 * chunk as usize));
        shared::store_u32(tile.chunk(row + 8, chunk) + inner, packed(2 * chunk as usize + 1));
        chunk += 1;
    }
}

/// Two `mma` into 16 columns of an accumulator, from the `tile`-th 8 on.
#[inline(always)]
unsafe fn accumulate<E: TensorCoreElement, const N: usize>(
    accumulator: &mut [f32; N],
    tile: usize,
    a: [u32; 4],
    b: &[u32; 4],
) {
    let mut half = 0;
    while half < 2 {
        let at = 4 * (tile + half);
        let mut c = [accumulator[at], accumulator[at + 1], accumulator[at + 2], accumulator[at + 3]];
        E::mma(&mut c, a, [b[2 * half], b[2 * half + 1]]);
        accumulator[at] = c[0];
        accumulator[at + 1] = c[1];
        accumulator[at + 2] = c[2];
        accumulator[at + 3] = c[3];
        half += 1;
    }
}
