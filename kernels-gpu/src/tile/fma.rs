//! Products in true f32 by fused multiply-adds, between tiles in shared memory and registers of a warp.
//!
//! A warp has `4 R` rows; its lanes stand 4 x 8, with `R` rows each ([`super::fragment::FmaFragment`]).
//! Everything is read 16 bytes at a time: the 8 lanes of a row read the same 16 bytes of the left
//! operand, and 8 different rows (or neighbouring columns) of the right one.

use super::fragment::FMA_LANE_COLUMNS;
use super::shared_tile::{SharedTile, SharedTileOf};
use crate::arch::math::fma;
use crate::arch::{shared, thread};
use crate::geometry::size::TileSize;

/// 16-byte chunks of 4 f32 in a 128-byte panel.
const CHUNKS: u32 = 8;

/// Address of chunk `chunk` of row `first_row + lane_row + 4 i` of a panel, where `first_row` is a multiple
/// of 8 and `lane_row` below 4.
#[inline(always)]
fn row_chunk<S: TileSize>(
    panel: SharedTileOf<S>,
    first_row: u32,
    lane_row: u32,
    i: usize,
    chunk: u32,
) -> u32 {
    panel.chunk_in_eight(first_row / 8 + i as u32 / 2, lane_row + i as u32 % 2 * 4, chunk)
}

/// `scores = q k^T` for `4 R` rows from `first_row` on, and `KEYS` keys. `S = R * KEYS / 8`.
///
/// Each panel of 32 columns is summed on its own: rounding errors grow with the length of a chain.
///
/// # Safety
/// Both tiles are written and visible.
#[inline(always)]
pub unsafe fn multiply_transposed<
    const ROWS: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const R: usize,
    const S: usize,
>(
    lane: u32,
    q: SharedTile<ROWS, ROW_BYTES>,
    first_row: u32,
    k: SharedTile<KEYS, ROW_BYTES>,
) -> [f32; S] {
    let (lane_row, lane_column) = (lane / FMA_LANE_COLUMNS, lane % FMA_LANE_COLUMNS);
    let mut scores = [0.0; S];
    let mut panel = 0;
    while panel < thread::opaque(ROW_BYTES / 128) {
        let (q_panel, k_panel) = (q.panel(panel), k.panel(panel));
        let mut partial = [0.0; S];
        let mut chunk = 0;
        while chunk < CHUNKS {
            let mut a = [[0.0; 4]; R];
            let mut i = 0;
            while i < R {
                a[i] = shared::load_f32x4(row_chunk(q_panel, first_row, lane_row, i, chunk));
                i += 1;
            }
            let mut j = 0;
            while j < S / R {
                let b = shared::load_f32x4(k_panel.chunk_in_eight(j as u32, lane_column, chunk));
                let mut i = 0;
                while i < R {
                    let at = i * (S / R) + j;
                    let mut e = 0;
                    while e < 4 {
                        partial[at] = fma(a[i][e], b[e], partial[at]);
                        e += 1;
                    }
                    i += 1;
                }
                j += 1;
            }
            chunk += 1;
        }
        let mut at = 0;
        while at < S {
            scores[at] += partial[at];
            at += 1;
        }
        panel += 1;
    }
    scores
}

/// Writes `4 R` rows of probabilities from `first_row` on, for [`multiply_accumulate`].
///
/// # Safety
/// These rows of `p` belong to this warp.
#[inline(always)]
pub unsafe fn store_probabilities<
    const ROWS: u32,
    const P_ROW_BYTES: u32,
    const R: usize,
    const S: usize,
>(
    lane: u32,
    values: &[f32; S],
    p: SharedTile<ROWS, P_ROW_BYTES>,
    first_row: u32,
) {
    let (lane_row, lane_column) = (lane / FMA_LANE_COLUMNS, lane % FMA_LANE_COLUMNS);
    let mut i = 0;
    while i < R {
        let mut j = 0;
        while j < S / R {
            let chunk = lane_column / 4 + j as u32 * (FMA_LANE_COLUMNS / 4);
            let panel = p.panel(chunk / CHUNKS);
            let address = row_chunk(panel, first_row, lane_row, i, chunk % CHUNKS) + lane_column % 4 * 4;
            shared::store_u32(address, values[i * (S / R) + j].to_bits());
            j += 1;
        }
        i += 1;
    }
}

/// `output += p v` for `4 R` rows; lane column `c` holds output columns `4 c + 32 b..4 c + 32 b + 4`.
/// `O = R * columns / 8`.
///
/// # Safety
/// Both tiles are written and visible.
#[inline(always)]
pub unsafe fn multiply_accumulate<
    const ROWS: u32,
    const KEYS: u32,
    const P_ROW_BYTES: u32,
    const ROW_BYTES: u32,
    const R: usize,
    const O: usize,
>(
    lane: u32,
    output: &mut [f32; O],
    p: SharedTile<ROWS, P_ROW_BYTES>,
    first_row: u32,
    v: SharedTile<KEYS, ROW_BYTES>,
) {
    let (lane_row, lane_column) = (lane / FMA_LANE_COLUMNS, lane % FMA_LANE_COLUMNS);
    let mut panel = 0;
    while panel < thread::opaque(P_ROW_BYTES / 128) {
        // 32 keys: one panel of p.
        let p_panel = p.panel(panel);
        let v_rows = v.address + panel * 32 * 128;
        let v_rows = SharedTile::<KEYS, ROW_BYTES>::at(v_rows);
        let mut chunk = 0;
        while chunk < CHUNKS {
            let mut a = [[0.0; 4]; R];
            let mut i = 0;
            while i < R {
                a[i] = shared::load_f32x4(row_chunk(p_panel, first_row, lane_row, i, chunk));
                i += 1;
            }
            let mut t = 0;
            while t < 4 {
                let mut b = 0;
                while b < O / R / 4 {
                    let (eight, row) = (chunk / 2, chunk % 2 * 4 + t as u32);
                    let v_panel = v_rows.panel(b as u32);
                    let value = shared::load_f32x4(v_panel.chunk_in_eight(eight, row, lane_column));
                    let mut i = 0;
                    while i < R {
                        let at = i * (O / R) + 4 * b;
                        let mut e = 0;
                        while e < 4 {
                            output[at + e] = fma(a[i][t], value[e], output[at + e]);
                            e += 1;
                        }
                        i += 1;
                    }
                    b += 1;
                }
                t += 1;
            }
            chunk += 1;
        }
        panel += 1;
    }
}

/// Rows and columns of a lane in [`multiply_left_transposed`]: 8 lanes of 4 neighbouring rows each,
/// times 4 lanes of chunks of 4 neighbouring columns.
pub mod outer {
    /// First of the 4 rows of a lane, in the 32 rows of group `group`.
    #[inline(always)]
    pub fn row(lane: u32, group: usize) -> u32 {
        group as u32 * 32 + lane / 4 * 4
    }

    /// Chunk of 4 columns of a lane's `index`-th chunk.
    #[inline(always)]
    pub fn chunk(lane: u32, index: usize) -> u32 {
        index as u32 * 4 + lane % 4
    }
}

/// `a^T b` for a stored as `DEPTH` rows of `A_ROW_BYTES / 4` columns (the rows of the product, in groups
/// of 32), and b stored as `DEPTH` rows, `4 * 4 * C` columns of it from chunk `first_chunk` on.
///
/// Register `((group * 4 + row) * C + chunk) * 4 + column`; places of a lane in [`outer`]. `N = groups *
/// 16 * C`.
///
/// # Safety
/// Both tiles are written and visible.
#[inline(always)]
pub unsafe fn multiply_left_transposed<
    const DEPTH: u32,
    const A_ROW_BYTES: u32,
    const B_ROW_BYTES: u32,
    const C: usize,
    const N: usize,
>(
    lane: u32,
    a: SharedTile<DEPTH, A_ROW_BYTES>,
    b: SharedTile<DEPTH, B_ROW_BYTES>,
    first_chunk: u32,
) -> [f32; N] {
    let mut output = [0.0; N];
    let mut eight = 0;
    while eight < thread::opaque(DEPTH / 8) {
        // The swizzle repeats every 8 rows: inside, every row offset is a constant.
        let a = SharedTile::<DEPTH, A_ROW_BYTES>::at(a.address + eight * 8 * 128);
        let b = SharedTile::<DEPTH, B_ROW_BYTES>::at(b.address + eight * 8 * 128);
        let mut row = 0;
        while row < 8 {
            let mut right = [[0.0; 4]; C];
            let mut c = 0;
            while c < C {
                right[c] = shared::load_f32x4(b.chunk(row, first_chunk + outer::chunk(lane, c)));
                c += 1;
            }
            let mut group = 0;
            while group < N / (16 * C) {
                let left = shared::load_f32x4(a.chunk(row, outer::row(lane, group) / 4));
                let mut i = 0;
                while i < 4 {
                    let mut c = 0;
                    while c < C {
                        let at = ((group * 4 + i) * C + c) * 4;
                        let mut e = 0;
                        while e < 4 {
                            output[at + e] = fma(left[i], right[c][e], output[at + e]);
                            e += 1;
                        }
                        c += 1;
                    }
                    i += 1;
                }
                group += 1;
            }
            row += 1;
        }
        eight += 1;
    }
    output
}
