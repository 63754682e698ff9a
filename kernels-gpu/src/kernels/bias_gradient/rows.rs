//! What is known of query rows where the gradient of the bias is made.

use crate::abi::{BackwardParams, RowStatistic};
use crate::arch::global;
use crate::attention::key_block::{references, statistics};
use crate::attention::score::references::STEEP;

/// What is known of a row ([`RowStatistic`]). Of no row, what makes its probabilities 0.
#[derive(Clone, Copy)]
pub(super) struct RowStatistics {
    pub minus_lse: f32,
    pub delta: f32,
}

/// What exponents of a steep row are relative to; 0 of other rows.
#[derive(Clone, Copy)]
pub(super) struct RowReference {
    reference: f32,
    rest: f32,
}

impl RowStatistics {
    /// Of no row.
    pub const NOTHING: RowStatistics = RowStatistics { minus_lse: f32::NEG_INFINITY, delta: 0.0 };

    /// Those of row `row` in the workspace.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says, and the first kernel has run.
    #[inline(always)]
    pub unsafe fn load(p: &BackwardParams, head: u32, row: u32) -> Self {
        RowStatistics {
            minus_lse: global::load_f32(statistics(p, RowStatistic::Lse, head, row)),
            delta: global::load_f32(statistics(p, RowStatistic::Delta, head, row)),
        }
    }

    /// Whether the row sees no key, or is no row.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.minus_lse == f32::NEG_INFINITY
    }

    /// Whether exponents are relative to its reference.
    #[inline(always)]
    pub fn is_steep(&self) -> bool {
        self.minus_lse == STEEP
    }
}

impl RowReference {
    /// Of no row.
    pub const NOTHING: RowReference = RowReference { reference: 0.0, rest: 0.0 };

    /// That of row `row` in the workspace.
    ///
    /// # Safety
    /// As [`RowStatistics::load`].
    #[inline(always)]
    pub unsafe fn load(p: &BackwardParams, head: u32, row: u32) -> Self {
        let [reference, rest] = global::load_u32x2(references(p, head, row));
        RowReference { reference: f32::from_bits(reference), rest: f32::from_bits(rest) }
    }

    /// A natural score of a steep row relative to it; of other rows as it is.
    #[inline(always)]
    pub fn relative(&self, score: f32) -> f32 {
        score - self.reference + self.rest
    }
}
