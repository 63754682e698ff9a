//! The query rows of a warp, where softmax never crosses warps: the state of the loop over key tiles, and
//! what kernels with `mma.sync` and with fused multiply-adds do with it alike.
//!
//! ```text
//! rows = QueryRows::of_this_warp(block)
//! rows.walk            for each key tile that is not hidden
//!                      s = q k^T                 the kernel's
//!                      p = rows.probabilities(s) softcap and mask (attention/score), softmax, o rescaled
//!                      rows.output += p v        the kernel's
//! rows.finalize(m)     o = o / sum,  lse = ln(sum) + m
//! ```

use super::query_block::{QueryBlock, is_split};
use super::score::bias_tile::FromGlobal;
use super::score::{self, Scale, ScorePlace, ScoreTile, features, split_sign};
use super::softmax::OnlineSoftmax;
use crate::abi::ForwardParams;
use crate::arch::{specialize, thread, warp};
use crate::geometry::mask_map::Shown;
use crate::geometry::visible::TileRange;
use crate::pipeline::key_values::{KeyStep, KeyValues};
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;
use crate::tile::shared_tile::SharedTile;

/// Rows of a fragment of a warp.
pub const FRAGMENT_ROWS: u32 = 16;

/// `M` fragments of 16 query rows, one below the other. A lane holds `ROWS` rows of each, and `O` registers
/// of its output.
pub struct QueryRows<'a, const M: usize, const ROWS: usize, const O: usize> {
    /// The query block that the rows are of.
    pub block: QueryBlock,
    /// The key tiles that the block visits.
    pub tiles: TileRange,
    /// This lane of the warp.
    pub lane: u32,
    /// First row of the warp in the block.
    pub first_row: u32,
    /// The output, not normalised before [`QueryRows::finalize`].
    pub output: [[f32; O]; M],
    softmax: [OnlineSoftmax<ROWS>; M],
    scale: Scale,
    /// Query rows of the block.
    queries: u32,
    p: &'a ForwardParams,
}

impl<'a, const M: usize, const ROWS: usize, const O: usize> QueryRows<'a, M, ROWS, O> {
    /// Rows of a warp.
    pub const WARP_ROWS: u32 = FRAGMENT_ROWS * M as u32;

    /// The rows of this warp in `block`, of `queries` query rows, which visits tiles of `keys` keys.
    /// `is_exact`: the largest score of a row has a probability of exactly one unit, for results in f32.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn of_this_warp<E: Element>(
        p: &'a ForwardParams,
        block: QueryBlock,
        queries: u32,
        keys: u32,
        is_exact: bool,
    ) -> Self {
        QueryRows {
            block,
            tiles: block.key_tiles(queries, keys),
            lane: thread::thread_idx_x() % 32,
            first_row: thread::thread_idx_x() / 32 * Self::WARP_ROWS,
            output: [[0.0; O]; M],
            softmax: [OnlineSoftmax::new(is_exact); M],
            scale: Scale::new::<E>(p),
            queries,
            p,
        }
    }

    /// Walks over the key tiles, with q in tile `q`, where `load_queries` requests it: `probabilities` gets
    /// each key tile, and `add_values` what that gave, and the value tile. Whether the warp has rows: past
    /// the last query it only helps to load.
    ///
    /// # Safety
    /// All threads of the block call it alike, once.
    #[inline(always)]
    pub unsafe fn walk<E: Element, P, const QUERIES: u32, const KEYS: u32, const ROW_BYTES: u32>(
        &mut self,
        q: SharedTile<QUERIES, ROW_BYTES>,
        load_queries: impl FnOnce(),
        key_values: &impl KeyValues<KEYS, ROW_BYTES>,
        probabilities: impl Fn(&mut Self, &KeyStep, SharedTile<KEYS, ROW_BYTES>) -> P,
        add_values: impl Fn(&mut Self, P, SharedTile<KEYS, ROW_BYTES>),
    ) -> bool {
        let (begin, end) = (self.tiles.begin, self.tiles.end);
        let mut at = self.first_shown(begin, 0, KEYS);
        if at.tile < end {
            load_queries();
            key_values.request_first::<E>(&at);
            if self.needs_sign() {
                key_values.wait();
                self.apply_sign::<E, _, _>(q);
            }
        }
        let has_rows = self.block.has_row(self.first_row);
        while at.tile < end {
            at = key_values.step::<E, _, _>(
                &at,
                end,
                (self, has_rows),
                // SAFETY: all threads take each step.
                #[inline(always)]
                |rows| unsafe { rows.first_shown(at.tile + 1, at.number + 1, KEYS) },
                #[inline(always)]
                |rows, key| probabilities(rows, &at, key),
                #[inline(always)]
                |rows, p, value| add_values(rows, p, value),
            );
        }
        has_rows
    }

    /// From key tile `tile`, of `keys` keys, on, the first one of which a boolean mask shows the block
    /// something; past its tiles if there is none. Without a mask that is `tile`.
    ///
    /// # Safety
    /// All threads of the block call it alike.
    #[inline(always)]
    unsafe fn first_shown(&self, mut tile: i32, number: i32, keys: u32) -> KeyStep {
        let mut shown = Shown::NOTHING;
        if specialize::attn_mask() {
            while tile < self.tiles.end && !shown.some {
                shown = self.block.shown(self.p, self.queries, keys, tile);
                if !shown.some {
                    tile += 1;
                }
            }
        }
        KeyStep { tile, number, shows_all: shown.all }
    }

    /// Whether q must be multiplied by the sign of the scale.
    #[inline(always)]
    fn needs_sign(&self) -> bool {
        let (_, sign) = split_sign(self.p.scale);
        sign != 1.0
    }

    /// Multiplies the warp's rows of q by the sign of the scale.
    ///
    /// # Safety
    /// All 32 lanes call it together; the tile is written and visible.
    #[inline(always)]
    unsafe fn apply_sign<E: Element, const QUERIES: u32, const ROW_BYTES: u32>(
        &self,
        q: SharedTile<QUERIES, ROW_BYTES>,
    ) {
        let (_, sign) = split_sign(self.p.scale);
        let mut m = 0;
        while m < M {
            q.scale_rows::<E>(self.lane, self.row(m), FRAGMENT_ROWS, sign);
            m += 1;
        }
        warp::warp_sync();
    }

    /// Turns the products of q with the key tile of a step, of `keys` keys, into unnormalised probabilities,
    /// and rescales the output if a row max moved.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn probabilities<E: Element, F, const S: usize>(
        &mut self,
        scores: &mut [[f32; S]; M],
        &KeyStep { tile, shows_all, .. }: &KeyStep,
        keys: u32,
    ) where
        F: Fragment<ROWS, S> + Fragment<ROWS, O>,
    {
        let is_masked = self.tiles.is_masked(tile);
        let mut m = 0;
        while m < M {
            let score_tile = || (self.lane, self.block.score_tile(self.row(m), tile * keys as i32));
            score::apply::<E, F, ROWS, S>(
                &mut scores[m],
                &self.scale,
                self.p,
                &FromGlobal,
                is_masked,
                shows_all,
                score_tile,
                || self.block.score_place(self.p),
            );
            m += 1;
        }
        let mut m = 0;
        while m < M {
            self.softmax[m].update::<F, S, O>(&mut scores[m], &mut self.output[m], &self.scale);
            m += 1;
        }
    }

    /// Counts probabilities of a key tile that are too small for their parts.
    #[inline(always)]
    pub fn count_small<const S: usize>(&mut self, probabilities: &[[f32; S]; M]) {
        let mut m = 0;
        while m < M {
            self.softmax[m].count_small(&probabilities[m]);
            m += 1;
        }
    }

    /// Whether the output of fragment `m` is not as exact as f32 for what small probabilities have lost.
    ///
    /// # Safety
    /// All 32 lanes call it together, before [`QueryRows::finalize`].
    #[inline(always)]
    pub unsafe fn have_lost<F: Fragment<ROWS, O>>(&self, m: usize) -> bool {
        self.softmax[m].has_lost::<F, O>(&self.output[m])
    }

    /// Where fragment `m` of the scores of key tile `tile` stands.
    #[inline(always)]
    fn place_of(&self, m: usize, tile: i32, keys: u32) -> (u32, ScoreTile, ScorePlace) {
        let score_tile = self.block.score_tile(self.row(m), tile * keys as i32);
        (self.lane, score_tile, self.block.score_place(self.p))
    }

    /// Drops probabilities of a key tile, packed.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn drop_packed<F: Fragment<ROWS, S>, const S: usize, const P: usize>(
        &self,
        packed: &mut [[u32; P]; M],
        tile: i32,
        keys: u32,
    ) {
        let mut m = 0;
        while m < M {
            let at = || self.place_of(m, tile, keys);
            score::drop_packed::<F, ROWS, S, P>(&mut packed[m], self.p, at);
            m += 1;
        }
    }

    /// Drops probabilities of a key tile.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn drop<F: Fragment<ROWS, S>, const S: usize>(
        &self,
        probabilities: &mut [[f32; S]; M],
        tile: i32,
        keys: u32,
    ) {
        let mut m = 0;
        while m < M {
            let at = || self.place_of(m, tile, keys);
            score::drop::<F, ROWS, S>(&mut probabilities[m], self.p, at);
            m += 1;
        }
    }

    /// Normalises the output of fragment `m` and writes lse of its rows (or their reference and sum, of a
    /// range of keys). What passes before have left is to be added, times the factors that this gives; the
    /// output is then the caller's to store.
    ///
    /// # Safety
    /// All 32 lanes call it together; `p.lse` is as [`ForwardParams::lse`] says.
    #[inline(always)]
    pub unsafe fn finalize<E: Element, F: Fragment<ROWS, O>>(&mut self, m: usize) -> [f32; ROWS] {
        let (lane, first_row, is_split) = (self.lane, self.row(m), is_split(self.p, self.queries));
        let (softmax, block, p) = (&self.softmax[m], &self.block, self.p);
        let row_of = |row| first_row + F::row(lane, row);
        // SAFETY: `p` is as it says.
        let sink = |row| unsafe { block.sink(p, row_of(row)) };
        // SAFETY: likewise.
        let previous = |row| unsafe { block.previous(p, row_of(row)) };
        let (output, scale) = (&mut self.output[m], &self.scale);
        let finished = if features::hide_pairs::<E>() {
            let sees_nothing = |row: usize| {
                let row_max = softmax.row_max()[row];
                // SAFETY: all lanes are here together, and `p` is as it says.
                unsafe { block.sees_nothing::<E, F, ROWS, O>(p, lane, row_of(row), row_max) }
            };
            softmax.finalize::<F, O>(output, scale, is_split, sees_nothing, sink, previous)
        } else {
            let is_dead = |row| block.is_dead(row_of(row));
            softmax.finalize::<F, O>(output, scale, is_split, is_dead, sink, previous)
        };
        let mut row = 0;
        while row < ROWS {
            // One of the lanes that share the row.
            if lane % F::LANES_PER_ROW == 0 {
                let (reference, lse_or_sum) = (finished.references[row], finished.lse_or_sum[row]);
                self.block.store_statistics(self.p, is_split, row_of(row), reference, lse_or_sum);
            }
            row += 1;
        }
        finished.of_previous
    }

    /// First row of fragment `m` in the block.
    #[inline(always)]
    pub fn row(&self, m: usize) -> u32 {
        self.first_row + FRAGMENT_ROWS * m as u32
    }
}
