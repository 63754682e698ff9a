//! The softmax of rows whose lse is too coarse ([`Element::COARSE_LSE`]): f32 holds of it the largest score
//! and little more, or not even that.
//!
//! The backward makes p of lse. Where that is large, p is as wrong as lse is rounded, and of equal scores of
//! the largest size each would have p = 1. So for such rows all scores are made here, as the main kernel
//! makes them (the same products in the same order, so that where a query sees one key p is 1 exactly), for
//! their maximum and the sum of what is relative to it. It takes longer than the main kernel takes for as
//! many rows: it is for few.
//!
//! What was given stays right where these are not all keys: lse is then larger, and is used as it is.

use super::{DeltaRows, Given, ROWS, WARP_ROWS, load_pair, sums};
use crate::abi::BackwardParams;
use crate::arch::{global, math, thread, warp};
use crate::attention::score::references::{factor, is_capped};
use crate::attention::score::softcap::GradientSoftcap;
use crate::attention::score::{BackwardScale, ScorePlace, features};
use crate::tile::element::{Element, F32, TensorCoreElement};
use crate::tile::global_rows::GlobalRows;
use core::f32::consts::{LN_2, LOG2_E};

/// By how much lse may differ from what it is found to be, relative to its size: what a few roundings of it
/// and of the scores explain; of capped scores, what the forms of tanh differ by.
#[inline(always)]
pub(super) fn lse_tolerance(p: &BackwardParams) -> f32 {
    if is_capped(p) { 1.0 / (1 << 19) as f32 } else { 1.0 / (1 << 21) as f32 }
}

/// The softmax of some scores of a row.
#[derive(Clone, Copy)]
pub(super) struct RowSoftmax {
    /// The largest score.
    largest: f32,
    /// The sum of `e^(s - largest)`.
    sum: f32,
}

impl RowSoftmax {
    /// Of no score.
    const NONE: RowSoftmax = RowSoftmax { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// With another score, unless it is that of a key that is hidden. A NaN makes the sum one.
    #[inline(always)]
    fn add(&mut self, score: f32) {
        if score != f32::NEG_INFINITY {
            self.merge(RowSoftmax { largest: score, sum: 1.0 });
        }
    }

    /// With the scores of another one; at least one of both has some.
    #[inline(always)]
    fn merge(&mut self, other: RowSoftmax) {
        let largest = math::max(self.largest, other.largest);
        let part = |of: &RowSoftmax| of.sum * math::exp2((of.largest - largest) * LOG2_E);
        *self = RowSoftmax { largest, sum: part(self) + part(&other) };
    }

    /// With those that the lane `mask` away has of the same row.
    #[inline(always)]
    unsafe fn merge_lane(&mut self, mask: u32) {
        let largest = warp::shuffle_xor(self.largest, mask);
        let other = RowSoftmax { largest, sum: warp::shuffle_xor(self.sum, mask) };
        if math::max(self.largest, other.largest) != f32::NEG_INFINITY {
            self.merge(other);
        }
    }

    /// With the sink of its head. All rows have one or none has.
    #[inline(always)]
    unsafe fn with_sink(mut self, p: &BackwardParams, head: u32) -> Self {
        if p.score.sinks != 0 {
            self.add(global::load_f32(p.score.sinks.wrapping_add(4 * head as u64)));
        }
        self
    }

    /// What exponents of the row are relative to, and ln of the sum of probabilities relative to that: its
    /// own maximum and sum if lse is that of these scores, else lse.
    #[inline(always)]
    pub(super) fn relative_to(&self, lse: f32, tolerance: f32) -> (f32, f32) {
        let log_sum = math::log2(self.sum) * LN_2;
        if (self.largest + log_sum - lse).abs() <= lse.abs() * tolerance {
            (self.largest, log_sum)
        } else {
            (lse, 0.0)
        }
    }
}

impl DeltaRows<'_> {
    /// Whether the lane's row has too coarse an lse.
    #[inline(always)]
    fn is_coarse<E: Element>(&self, lane: u32, given: Given) -> bool {
        let p = self.p;
        self.has_row(lane) && BackwardScale::is_coarse::<E>(given.lse, factor(p), is_capped(p))
    }

    /// The score of a product q . k, as the main kernel makes it where a row is steep.
    #[inline(always)]
    unsafe fn score<E: Element>(&self, query: i32, key: i32, product: f32) -> f32 {
        let p = self.p;
        let (value, factor) = if is_capped(p) {
            (GradientSoftcap::of_backward(p).score::<E>(product), p.softcap)
        } else {
            (product, p.scale)
        };
        let key_head = math::divide(self.head, p.group_size);
        let place = ScorePlace { sequence: self.index, head: self.head, key_head, first_key: 0 };
        let diagonal = self.sequence.visible.diagonal;
        features::score_of_pair::<E>(&p.score, &place, (query, key), diagonal, value, factor)
    }

    /// Of a lane's row, if that is coarse, the softmax; for 16-bit elements.
    #[inline(always)]
    pub(super) unsafe fn softmax_mma<E: TensorCoreElement>(
        &self,
        lane: u32,
        given: Given,
    ) -> RowSoftmax {
        let coarse = warp::ballot(self.is_coarse::<E>(lane, given));
        let mut softmax = RowSoftmax::NONE;
        let mut tile = 0;
        while tile < self.tiles {
            if coarse >> (WARP_ROWS * tile) & 0xffff != 0 {
                let [upper, lower] = self.tile_softmax::<E>(lane, tile);
                let from = 4 * (lane % 8);
                let largest = sums::of_half(lane, upper.largest, lower.largest, from);
                let sum = sums::of_half(lane, upper.sum, lower.sum, from);
                if lane / WARP_ROWS == tile {
                    softmax = RowSoftmax { largest, sum }.with_sink(self.p, self.head);
                }
            }
            tile += 1;
        }
        softmax
    }

    /// Of the warp's 16 rows in a tile, those of rows `lane / 4` and `lane / 4 + 8`, by tensor cores.
    #[inline(always)]
    unsafe fn tile_softmax<E: TensorCoreElement>(&self, lane: u32, tile: u32) -> [RowSoftmax; 2] {
        let (group, pair) = ((lane / 4) as i32, lane % 4);
        let skipped = (tile * ROWS) as i32;
        let q = self.queries::<2>().skip(skipped);
        let k = self.keys::<2>();
        let (first_row, visible) = (self.first_row + skipped, self.sequence.visible);
        let end = visible.end(first_row + WARP_ROWS as i32 - 1);
        let mut softmax = [RowSoftmax::NONE; 2];
        let mut key = visible.begin(first_row);
        while key < end {
            let mut scores = [0.0; 4];
            let mut first = 0;
            while first < thread::opaque(self.p.head_dim) {
                let column = first + 2 * pair;
                let of_q = |row, column| load_pair(&q, row, column);
                let a = [
                    of_q(group, column),
                    of_q(group + 8, column),
                    of_q(group, column + 8),
                    of_q(group + 8, column + 8),
                ];
                let b = [load_pair(&k, key + group, column), load_pair(&k, key + group, column + 8)];
                E::mma(&mut scores, a, b);
                first += 16;
            }
            let mut i = 0;
            while i < 4 {
                let row = first_row + group + 8 * (i as i32 / 2);
                let column = key + 2 * pair as i32 + i as i32 % 2;
                let is_there = row < self.sequence.query_rows;
                if is_there && visible.begin(row) <= column && column < visible.end(row) {
                    softmax[i / 2].add(self.score::<E>(row, column, scores[i]));
                }
                i += 1;
            }
            key += 8;
        }
        let mut half = 0;
        while half < 2 {
            softmax[half].merge_lane(1);
            softmax[half].merge_lane(2);
            half += 1;
        }
        softmax
    }

    /// Of a lane's row, if that is coarse, the softmax; for f32, whose scores are sums of panels of 32
    /// columns, each a chain of fused multiply-adds.
    #[inline(always)]
    pub(super) unsafe fn softmax_fma(&self, lane: u32, given: Given) -> RowSoftmax {
        let mut coarse = warp::ballot(self.is_coarse::<F32>(lane, given));
        let (q, k, visible) = (self.queries::<4>(), self.keys::<4>(), self.sequence.visible);
        let mut softmax = RowSoftmax::NONE;
        while coarse != 0 {
            let answers = coarse.trailing_zeros();
            coarse &= coarse - 1;
            let row = Self::row_of(answers) as i32;
            let end = visible.end(self.first_row + row);
            let mut of_row = RowSoftmax::NONE;
            let mut key = visible.begin(self.first_row + row) + lane as i32;
            while key < end {
                let product = product_fma(&q, row, &k, key);
                of_row.add(self.score::<F32>(self.first_row + row, key, product));
                key += 32;
            }
            let mut mask = 16;
            while mask > 0 {
                of_row.merge_lane(mask);
                mask /= 2;
            }
            if lane == answers {
                softmax = of_row.with_sink(self.p, self.head);
            }
        }
        softmax
    }

    /// q from the warp's first row on.
    #[inline(always)]
    fn queries<const ELEMENT_BYTES: i64>(&self) -> GlobalRows {
        let p = self.p;
        self.sequence.query_rows::<ELEMENT_BYTES>(&p.q, self.head, self.first_row, p.head_dim)
    }

    /// The keys that the head sees.
    #[inline(always)]
    fn keys<const ELEMENT_BYTES: i64>(&self) -> GlobalRows {
        let key_head = math::divide(self.head, self.p.group_size);
        self.sequence.key_rows::<ELEMENT_BYTES>(&self.p.k, key_head, 0, self.p.head_dim)
    }
}

/// q . k as [`crate::tile::fma::multiply_transposed`] sums it up.
#[inline(always)]
unsafe fn product_fma(q: &GlobalRows, row: i32, k: &GlobalRows, key: i32) -> f32 {
    /// Columns of a panel.
    const PANEL: u32 = 32;
    let (q, k, columns) = (q.row(row), k.row(key), q.columns);
    let (mut product, mut panel) = (0.0, 0.0);
    let mut column = 0;
    while column < thread::opaque(columns) {
        let at = 4 * column as u64;
        let (q, k) = (global::load_f32(q.wrapping_add(at)), global::load_f32(k.wrapping_add(at)));
        panel = math::fma(k, q, panel);
        column += 1;
        if column % PANEL == 0 || column == columns {
            product += panel;
            panel = 0.0;
        }
    }
    product
}
