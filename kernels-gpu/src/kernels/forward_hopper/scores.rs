//! What a consumer warp does to the scores of a key tile, and how a bias of 16 bits comes to it: through rows
//! of shared memory that nobody else uses. They are read before the next tile's products are started, and its
//! bias is on its way beside these.

use super::pipelines::{Pipelines, lane_and_row};
use super::tile::ForwardKernel;
use crate::abi::ForwardParams;
use crate::abi::layout::BIAS_TILE_KEYS;
use crate::arch::{bulk_copy, specialize};
use crate::attention::query_block::QueryBlock;
use crate::attention::score::bias_tile::{BiasPart, WarpBias};
use crate::attention::score::{self, Scale, ScorePlace, ScoreTile, features};
use crate::tile::fragment::MmaFragment;

impl<K: ForwardKernel> Pipelines<K> {
    /// The warp's part of a tile of the bias, if that comes through shared memory.
    #[inline(always)]
    pub fn bias(&self) -> Option<WarpBias> {
        let (_, row) = lane_and_row();
        let stages = const { K::TILE.stages_bias() };
        stages.then(|| WarpBias::of_queries(self.storage.bias(), row))
    }

    /// Before the first tile of the bias of a work tile: finds the warp's rows of it, and waits for what this
    /// warp `sends` through their memory.
    #[inline(always)]
    pub unsafe fn open_bias(&mut self, p: &ForwardParams, sends: bool) {
        if specialize::bias() && const { K::TILE.stages_bias() } {
            if sends && self.lane == 0 {
                bulk_copy::wait_read::<0>();
            }
            let block = self.block(p);
            let place = block.score_place(p);
            let first_query = block.first_row + lane_and_row().1 as i32;
            let elements = features::elements::<K::Element>(&p.score.bias, &place, 0);
            self.bias_rows = Some(elements.from(first_query, place.first_key));
        }
    }

    /// Starts to bring the bias of key tile `tile`, if it comes through shared memory.
    #[inline(always)]
    pub unsafe fn fetch_bias(&self, p: &ForwardParams, tile: i32) {
        if specialize::bias()
            && let (Some(bias), Some(rows)) = (self.bias(), self.bias_rows)
        {
            let (lane, row) = lane_and_row();
            let block = self.block(p);
            let first_key = tile * K::KEYS as i32;
            let part = BiasPart {
                elements: rows.from(0, first_key),
                queries: block.end_row - block.first_row - row as i32,
                keys: block.sequence.visible.key_rows - first_key,
            };
            bias.fetch::<{ BIAS_TILE_KEYS / 8 }>(lane, 16, &p.score, &part);
        }
    }

    /// Scores of the products of key tile `tile`, of which positions hide something if `is_masked`, and the
    /// boolean mask nothing if it `shows_all`. Penalties of ALiBi may be there already (`has_slopes`).
    #[inline(always)]
    pub unsafe fn apply<const S: usize>(
        &self,
        (p, scale): (&ForwardParams, &Scale),
        scores: &mut [f32; S],
        tile: i32,
        (is_masked, shows_all): (bool, bool),
        has_slopes: bool,
    ) {
        let at = || self.score_tile(p, tile);
        let place = || self.score_place(p);
        if self.multiplies_slopes() {
            if !has_slopes {
                let ((lane, at), place) = (at(), place());
                features::add_slopes_to_products::<MmaFragment, 2, S>(
                    lane,
                    scores,
                    &p.score,
                    &at,
                    &place,
                    p.score_unit,
                );
            }
            score::hide::<MmaFragment, 2, S>(scores, p, is_masked, shows_all, at, place);
        } else {
            let bias = self.bias();
            score::apply::<K::Element, MmaFragment, 2, S>(
                scores, scale, p, &bias, is_masked, shows_all, at, place,
            );
        }
    }

    /// Drops probabilities of key tile `tile`.
    #[inline(always)]
    pub unsafe fn drop<const S: usize, const P: usize>(
        &self,
        p: &ForwardParams,
        packed: &mut [u32; P],
        tile: i32,
    ) {
        score::drop_packed::<MmaFragment, 2, S, P>(packed, p, || {
            let (lane, at) = self.score_tile(p, tile);
            (lane, at, self.score_place(p))
        });
    }

    /// In which lane this is, and where a tile of scores stands.
    #[inline(always)]
    unsafe fn score_tile(&self, p: &ForwardParams, tile: i32) -> (u32, ScoreTile) {
        let (lane, row) = lane_and_row();
        (lane, self.block(p).score_tile(row, tile * K::KEYS as i32))
    }

    #[inline(always)]
    unsafe fn score_place(&self, p: &ForwardParams) -> ScorePlace {
        self.block(p).score_place(p)
    }

    #[inline(always)]
    pub unsafe fn block(&self, p: &ForwardParams) -> QueryBlock {
        self.work_tile().block(p, const { K::TILE.query_tiles() })
    }
}
