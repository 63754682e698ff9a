//! Products of f32 as two f16 parts ([`SplitF32`]): three for one, and sums of tiles in registers.
//!
//! Tensor cores cut off what a sum has beyond its last bit instead of rounding it. Over many keys that adds
//! up, always towards zero: each tile of keys begins a sum of its own, which is added to the others as f32
//! is. So does each 32 columns of queries and keys; there what is cut off is
//! [made up for](factor_of_columns).

use super::{Output, Queries, Scores, SlopeStep, Units, Wait, WarpgroupElement};
use crate::abi::SplitFactors;
use crate::arch::{global, shared, thread, warp, wgmma};
use crate::geometry::size::TileSize;
use crate::tile::element::SplitF32;
use crate::tile::mma::split::{SumFactor, factor_of_columns};

/// Registers of scores.
const SCORES: usize = 32;

/// Adds the `sum`-th sum of 32 columns to scores.
#[inline(always)]
fn add_columns(scores: &mut [f32; SCORES], columns: [f32; SCORES], sum: u32) {
    let mut i = 0;
    while i < SCORES {
        factor_of_columns(sum).add(&mut scores[i], columns[i], 0);
        i += 1;
    }
}

/// Scores of 64 columns: both sums are computed at once.
pub struct ScoresOf64 {
    sums: [f32; 2 * SCORES],
    values: [f32; SCORES],
}

impl ScoresOf64 {
    #[inline(always)]
    unsafe fn start<Q: TileSize>(q: u64, k: u64) -> Self {
        ScoresOf64 { sums: wgmma::split::scores_d64_n64::<Q>(q, k), values: [0.0; SCORES] }
    }
}

impl Scores<SCORES> for ScoresOf64 {
    #[inline(always)]
    unsafe fn finish<const PENDING: u32>(&mut self) {
        self.sums.wait::<PENDING>();
        let mut second = [0.0; SCORES];
        let mut i = 0;
        while i < SCORES {
            (self.values[i], second[i]) = (self.sums[i], self.sums[SCORES + i]);
            i += 1;
        }
        add_columns(&mut self.values, second, 1);
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32; SCORES] {
        &mut self.values
    }
}

/// Scores of 128 columns: of four sums at most two are in flight, beside those that have been added.
pub struct ScoresOf128 {
    values: [f32; SCORES],
    last: [f32; SCORES],
}

impl ScoresOf128 {
    #[inline(always)]
    unsafe fn start<Q: TileSize>(q: u64, k: u64) -> Self {
        let mut values = wgmma::split::scores_d128_n64_first::<Q>(q, k);
        let mut second = wgmma::split::scores_d128_n64_second::<Q>(q, k);
        values.wait::<1>();
        let mut third = wgmma::split::scores_d128_n64_third::<Q>(q, k);
        second.wait::<1>();
        add_columns(&mut values, second, 1);
        let last = wgmma::split::scores_d128_n64_fourth::<Q>(q, k);
        third.wait::<1>();
        add_columns(&mut values, third, 2);
        ScoresOf128 { values, last }
    }
}

impl Scores<SCORES> for ScoresOf128 {
    #[inline(always)]
    unsafe fn finish<const PENDING: u32>(&mut self) {
        self.last.wait::<PENDING>();
        add_columns(&mut self.values, self.last, 3);
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32; SCORES] {
        &mut self.values
    }
}

/// A sum over key tiles, and the product of the last one.
pub struct SplitSum<const O: usize> {
    total: [f32; O],
    last: [f32; O],
}

impl<const O: usize> Output<O> for SplitSum<O> {
    #[inline(always)]
    fn new() -> Self {
        SplitSum { total: [0.0; O], last: [0.0; O] }
    }

    #[inline(always)]
    fn restart(&mut self) {
        self.total = [0.0; O];
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32; O] {
        &mut self.total
    }
}

/// Factors in global memory, f32, each a power of two.
#[derive(Clone, Copy)]
pub struct SplitUnits {
    /// Device address of those of scores, `[B, Hq]`.
    pub scores: u64,
    /// Device address of those of values, `[B, Hk]`.
    pub values: u64,
    /// Hq.
    pub query_heads: u32,
    /// Hk.
    pub key_heads: u32,
    /// Device address of a u32 that counts warps whose output is not as exact as it must be.
    pub losses: u64,
}

impl SplitUnits {
    /// Those of a launch.
    #[inline(always)]
    pub fn new(p: &SplitFactors) -> Self {
        SplitUnits {
            scores: p.score_factors,
            values: p.value_factors,
            query_heads: p.query_heads,
            key_heads: p.key_heads,
            losses: p.turn + 4,
        }
    }

    #[inline(always)]
    unsafe fn factor(first: u64, heads: u32, (batch, head): (u32, u32)) -> f32 {
        global::load_f32(first.wrapping_add(4 * (batch as u64 * heads as u64 + head as u64)))
    }
}

impl Units for SplitUnits {
    type Factor = f32;

    #[inline(always)]
    unsafe fn of_scores(self, place: impl FnOnce() -> (u32, u32)) -> f32 {
        Self::factor(self.scores, self.query_heads, place())
    }

    #[inline(always)]
    unsafe fn of_output(self, place: impl FnOnce() -> (u32, u32)) -> f32 {
        Self::factor(self.values, self.key_heads, place())
    }

    #[inline(always)]
    unsafe fn tell_loss(self, has_lost: impl FnOnce() -> bool) {
        if has_lost() && thread::thread_idx_x_here() % 32 == 0 {
            global::count_release_u32(self.losses, 1);
        }
    }

    #[inline(always)]
    unsafe fn keep(factor: f32, address: u32, lane: u32) {
        // All have read what was kept before.
        warp::warp_sync();
        if lane == 0 {
            shared::store_u32(address, factor.to_bits());
        }
        warp::warp_sync();
    }

    #[inline(always)]
    unsafe fn load(address: u32) -> f32 {
        f32::from_bits(shared::load_u32(address))
    }

    #[inline(always)]
    fn apply<const N: usize>(factor: f32, products: &mut [f32; N]) {
        let mut i = 0;
        while i < N {
            products[i] *= factor;
            i += 1;
        }
    }
}

macro_rules! products {
    ($o:literal, $scores:ident, $output:ident, $output_first:literal) => {
        impl WarpgroupElement<0, SCORES, 32, $o> for SplitF32 {
            const OUTPUT_FIRST: bool = $output_first;
            type Scores = $scores;
            type Output = SplitSum<$o>;
            type Units = SplitUnits;

            /// No penalties are products: these are of f16, whose kernels give each score its own.
            #[inline(always)]
            unsafe fn start_scores<Q: TileSize>(q: &Queries<0>, k: u64, _: &SlopeStep) -> $scores {
                $scores::start::<Q>(q.descriptor, k)
            }

            #[inline(always)]
            unsafe fn start_output(output: &mut SplitSum<$o>, p: &[u32; 32], v: u64) {
                output.last = wgmma::split::$output(p, v);
            }

            #[inline(always)]
            unsafe fn finish_output<const PENDING: u32>(output: &mut SplitSum<$o>) {
                output.last.wait::<PENDING>();
                let mut i = 0;
                while i < $o {
                    output.total[i] += output.last[i];
                    i += 1;
                }
            }
        }
    };
}
products!(32, ScoresOf64, output_d64_n64, false);
products!(64, ScoresOf128, output_d128_n64, true);
