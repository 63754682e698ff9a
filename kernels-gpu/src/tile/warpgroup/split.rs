//! Products of f32 as two f16 parts ([`SplitF32`]): three for one, and sums of tiles in registers.
//!
//! Tensor cores cut off what a sum has beyond its last bit instead of rounding it. Over many keys that adds
//! up, always towards zero: each tile of keys begins a sum of its own, which is added to the others as f32
//! is. So it is with columns of queries and keys, where there are registers for it.

use super::{Output, Queries, Scores, Units, Wait, WarpgroupElement};
use crate::abi::SplitFactors;
use crate::arch::{global, shared, thread, warp, wgmma};
use crate::geometry::size::TileSize;
use crate::tile::element::SplitF32;

/// Registers of the product of a key tile and 64 columns.
const PRODUCT: usize = 32;

/// Scores as two sums of products.
pub struct SplitScores {
    sums: [f32; 64],
    values: [f32; 32],
}

impl Scores<32> for SplitScores {
    #[inline(always)]
    unsafe fn finish<const PENDING: u32>(&mut self) {
        self.sums.wait::<PENDING>();
        let mut i = 0;
        while i < 32 {
            self.values[i] = self.sums[i] + self.sums[32 + i];
            i += 1;
        }
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32; 32] {
        &mut self.values
    }
}

impl From<[f32; 64]> for SplitScores {
    #[inline(always)]
    fn from(sums: [f32; 64]) -> Self {
        SplitScores { sums, values: [0.0; 32] }
    }
}

/// A sum over key tiles, and the product of the last one with 64 columns: with all of 128 there would be no
/// registers left.
pub struct SplitSum<const O: usize> {
    total: [f32; O],
    last: [f32; PRODUCT],
}

impl<const O: usize> SplitSum<O> {
    /// Waits for the last product, and adds it to columns from `64 half` on.
    ///
    /// # Safety
    /// As [`Wait::wait`].
    #[inline(always)]
    unsafe fn add<const PENDING: u32>(&mut self, half: usize) {
        self.last.wait::<PENDING>();
        let mut i = 0;
        while i < PRODUCT {
            self.total[half * PRODUCT + i] += self.last[i];
            i += 1;
        }
    }
}

impl<const O: usize> Output<O> for SplitSum<O> {
    #[inline(always)]
    fn new() -> Self {
        SplitSum { total: [0.0; O], last: [0.0; PRODUCT] }
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
    ($o:literal, $scores:ident $type:ty, $output:ident, $halves:literal) => {
        impl WarpgroupElement<0, 32, 32, $o> for SplitF32 {
            type Scores = $type;
            type Output = SplitSum<$o>;
            type Units = SplitUnits;

            #[inline(always)]
            unsafe fn start_scores<Q: TileSize>(q: &Queries<0>, k: u64) -> $type {
                wgmma::split::$scores::<Q>(q.descriptor, k).into()
            }

            #[inline(always)]
            unsafe fn start_output(output: &mut SplitSum<$o>, p: &[u32; 32], v: u64) {
                output.last = wgmma::split::$output(p, v);
            }

            #[inline(always)]
            unsafe fn finish_output<const PENDING: u32>(
                output: &mut SplitSum<$o>,
                p: &[u32; 32],
                v: impl FnOnce() -> u64,
            ) {
                output.add::<PENDING>(0);
                if $halves == 2 {
                    output.last = wgmma::split::$output(p, v() + wgmma::split::PANEL);
                    output.add::<0>(1);
                }
            }
        }
    };
}
products!(32, scores_d64_n64 SplitScores, output_d64_n64, 1);
products!(64, scores_d128_n64 [f32; 32], output_half_n64, 2);
