//! Tensor-core products of a warpgroup: 64 rows, the accumulators as [`super::fragment::MmaFragment`].

mod split;

pub use split::{SplitSum, SplitUnits};

use super::element::{Bf16, F16, TensorCoreElement};
use super::mma::LaneAddress;
use super::shared_tile::SharedTileOf;
use crate::arch::{matrix, wgmma};
use crate::geometry::size::TileSize;

pub use wgmma::{SlopeStep, Wait};

/// Bytes of a row of a panel: tiles that the products read have no narrower ones.
const PANEL_BYTES: u32 = 128;

/// The 64 query rows of a warpgroup: `A` registers per thread, or none and then left in shared memory.
///
/// Registers are quicker, where there are enough: measured at head dim 128, 3 % of the whole forward.
#[derive(Clone, Copy)]
pub struct Queries<const A: usize> {
    fragments: [u32; A],
    descriptor: u64,
}

impl<const A: usize> Queries<A> {
    /// Whether they stay in shared memory while they are used.
    pub const SHARED: bool = A == 0;

    /// The rows of this warpgroup in a tile: `row` is the first of this warp's 16, `descriptor` that of the
    /// first of the warpgroup's 64.
    ///
    /// # Safety
    /// All threads of the warpgroup call it; the tile is written and visible.
    #[inline(always)]
    pub unsafe fn load<S: TileSize>(
        lane: u32,
        tile: SharedTileOf<S>,
        row: u32,
        descriptor: u64,
    ) -> Self {
        let mut fragments = [0; A];
        let address = LaneAddress::<PANEL_BYTES>::rows_first(lane);
        let mut block = 0;
        while block < A / 4 {
            let four = matrix::load_matrix_x4(address.of(tile, row, block as u32));
            let mut i = 0;
            while i < 4 {
                fragments[4 * block + i] = four[i];
                i += 1;
            }
            block += 1;
        }
        Queries { fragments, descriptor }
    }

    /// They are not needed any more, and not read where they stay in shared memory: a product of no
    /// consequence is of the rows that `descriptor` describes then.
    #[inline(always)]
    pub fn leave(&mut self, descriptor: u64) {
        self.descriptor = descriptor;
    }
}

/// A sum of products, `O` registers per thread, that begins without being zeroed: the first product is
/// stored.
#[derive(Clone, Copy)]
pub struct Sum<const O: usize> {
    /// The sum, once there is a product.
    pub values: [f32; O],
    /// 1 once there is a product, 0 before.
    begun: u32,
}

/// A sum of products of probabilities and values, `O` registers per thread.
pub trait Output<const O: usize> {
    /// A sum of no product yet.
    fn new() -> Self;

    /// Begins anew.
    fn restart(&mut self);

    /// The sum, once its last product is [finished](WarpgroupElement::finish_output).
    fn values(&mut self) -> &mut [f32; O];
}

impl<const O: usize> Output<O> for Sum<O> {
    #[inline(always)]
    fn new() -> Self {
        Sum { values: [0.0; O], begun: 0 }
    }

    /// What is there stays until the first product: registers that hold nothing would be kept apart from
    /// these by the assembler.
    #[inline(always)]
    fn restart(&mut self) {
        self.begun = 0;
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32; O] {
        &mut self.values
    }
}

/// Scores `q k^T` while they are computed, `S` registers per thread once they are there.
pub trait Scores<const S: usize> {
    /// Waits until they are there, and at most `PENDING` groups are in flight.
    ///
    /// # Safety
    /// As [`Wait::wait`].
    unsafe fn finish<const PENDING: u32>(&mut self);

    /// The scores, once they are finished.
    fn values(&mut self) -> &mut [f32; S];
}

impl<const S: usize> Scores<S> for [f32; S]
where
    [f32; S]: Wait,
{
    #[inline(always)]
    unsafe fn finish<const PENDING: u32>(&mut self) {
        self.wait::<PENDING>();
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32; S] {
        self
    }
}

/// What products are in units of, where operands were scaled by powers of two, one for each head.
pub trait Units: Copy {
    /// A factor.
    type Factor: Copy;

    /// What makes scores of products q k^T of a batch and query head, which `place` says.
    ///
    /// # Safety
    /// They are some of the problem.
    unsafe fn of_scores(self, place: impl FnOnce() -> (u32, u32)) -> Self::Factor;

    /// What makes output of products p v of a batch and key head, which `place` says.
    ///
    /// # Safety
    /// As [`Units::of_scores`].
    unsafe fn of_output(self, place: impl FnOnce() -> (u32, u32)) -> Self::Factor;

    /// Keeps a factor at a shared address of this warp, for it.
    ///
    /// # Safety
    /// All 32 lanes of the warp call it together, behind their last load of the one before.
    unsafe fn keep(factor: Self::Factor, address: u32, lane: u32);

    /// The factor that was kept.
    ///
    /// # Safety
    /// Behind [`Units::keep`].
    unsafe fn load(address: u32) -> Self::Factor;

    /// Multiplies products by the factor.
    fn apply<const N: usize>(factor: Self::Factor, products: &mut [f32; N]);

    /// Says so where `has_lost`: rows of the output are not as exact as their type, and must be computed
    /// anew.
    ///
    /// # Safety
    /// All 32 lanes of a warp call it together.
    unsafe fn tell_loss(self, has_lost: impl FnOnce() -> bool);
}

/// Operands as they are in memory.
impl Units for () {
    type Factor = ();

    #[inline(always)]
    unsafe fn of_scores(self, _: impl FnOnce() -> (u32, u32)) {}

    #[inline(always)]
    unsafe fn of_output(self, _: impl FnOnce() -> (u32, u32)) {}

    #[inline(always)]
    unsafe fn keep(_: (), _: u32, _: u32) {}

    #[inline(always)]
    unsafe fn load(_: u32) {}

    #[inline(always)]
    fn apply<const N: usize>(_: (), _: &mut [f32; N]) {}

    #[inline(always)]
    unsafe fn tell_loss(self, _: impl FnOnce() -> bool) {}
}

/// Products of one element type at one head dim: `A` registers of queries, `S` of scores, `P` of packed
/// probabilities and `O` of output per thread.
pub trait WarpgroupElement<const A: usize, const S: usize, const P: usize, const O: usize>:
    TensorCoreElement
{
    /// Whether a product with values is finished before the next scores are started: there are no registers
    /// for both.
    const OUTPUT_FIRST: bool;
    /// Scores while they are computed.
    type Scores: Scores<S>;
    /// The output while it is summed up.
    type Output: Output<O>;
    /// What products are in units of.
    type Units: Units;

    /// Starts `scores = q k^T`, a group of its own; q is of a tile of size `Q`, and k the descriptor of one
    /// of `2 S` keys. Where scores sink with the distance, their penalties are added: `slopes`.
    ///
    /// # Safety
    /// The warpgroup calls it together; the scores are not touched before [`Scores::finish`], nor the slopes.
    unsafe fn start_scores<Q: TileSize>(q: &Queries<A>, k: u64, slopes: &SlopeStep) -> Self::Scores;

    /// Starts `output += p v`, or `output = p v` of an output that holds nothing yet, a group of its own; v
    /// is the descriptor of a tile of `2 S` keys.
    ///
    /// # Safety
    /// As [`WarpgroupElement::start_scores`]; p is not touched either.
    unsafe fn start_output(output: &mut Self::Output, p: &[u32; P], v: u64);

    /// Waits until the product that was started last is a part of the output, and at most `PENDING` groups
    /// are in flight.
    ///
    /// # Safety
    /// As [`WarpgroupElement::start_scores`].
    unsafe fn finish_output<const PENDING: u32>(output: &mut Self::Output);
}

/// Writes a warp's 16 rows of an accumulator, rounded, as rows of `tile` from `first_row` on.
///
/// # Safety
/// All 32 lanes call it together; nobody else uses these rows.
#[inline(always)]
pub unsafe fn store_rows<E: TensorCoreElement, S: TileSize, const O: usize>(
    lane: u32,
    values: &[f32; O],
    tile: SharedTileOf<S>,
    first_row: u32,
) {
    // What ldmatrix reads as A, stmatrix writes.
    let address = LaneAddress::<PANEL_BYTES>::rows_first(lane);
    let mut block = 0;
    while block < O / 8 {
        let word = |i: usize| E::pack(values[8 * block + 2 * i], values[8 * block + 2 * i + 1]);
        matrix::store_matrix_x4(
            address.of(tile, first_row, block as u32),
            [word(0), word(1), word(2), word(3)],
        );
        block += 1;
    }
}

/// Writes a warp's 16 rows of packed pairs as 16 columns of `tile`, from column `16 * block` on.
///
/// # Safety
/// All 32 lanes call it together; nobody else uses these columns.
#[inline(always)]
pub unsafe fn store_transposed<S: TileSize, const P: usize>(
    lane: u32,
    packed: &[u32; P],
    tile: SharedTileOf<S>,
    block: u32,
) {
    // What ldmatrix reads as B of rows of columns, stmatrix writes.
    let address = LaneAddress::<PANEL_BYTES>::chunks_first(lane).of(tile, 0, block);
    let mut row = 0;
    while row < P / 4 {
        let four = [packed[4 * row], packed[4 * row + 1], packed[4 * row + 2], packed[4 * row + 3]];
        matrix::store_matrix_x4_transposed(address + row as u32 * 16 * PANEL_BYTES, four);
        row += 1;
    }
}

macro_rules! products {
    ($element:ident, $module:ident, $s:literal, $p:literal, $o:literal, shared $scores:ident,
        $output:ident) => {
        products!($element, $module, $s, $p, $o, 0, $output, [q k slopes] wgmma::$module::$scores::<Q>(
            q.descriptor, k, slopes
        ));
    };
    ($element:ident, $module:ident, $s:literal, $p:literal, $o:literal, $a:literal $scores:ident,
        $output:ident) => {
        products!($element, $module, $s, $p, $o, $a, $output, [q k slopes] wgmma::$module::$scores(
            &q.fragments, k, slopes
        ));
    };
    ($element:ident, $module:ident, $s:literal, $p:literal, $o:literal, $a:literal, $output:ident,
        [$q:ident $k:ident $slopes:ident] $scores:expr) => {
        impl WarpgroupElement<$a, $s, $p, $o> for $element {
            const OUTPUT_FIRST: bool = false;
            type Scores = [f32; $s];
            type Output = Sum<$o>;
            type Units = ();

            #[inline(always)]
            unsafe fn start_scores<Q: TileSize>(
                $q: &Queries<$a>,
                $k: u64,
                $slopes: &SlopeStep,
            ) -> [f32; $s] {
                $scores
            }

            #[inline(always)]
            unsafe fn start_output(output: &mut Sum<$o>, p: &[u32; $p], v: u64) {
                wgmma::$module::$output(&mut output.values, p, v, output.begun);
                output.begun = wgmma::one();
            }

            #[inline(always)]
            unsafe fn finish_output<const PENDING: u32>(output: &mut Sum<$o>) {
                output.values.wait::<PENDING>();
            }
        }
    };
}

/// Products of the backward, of one element type at one head dim: `S` registers of scores, `P` of packed
/// probabilities and `O` of a gradient per thread.
pub trait GradientElement<const S: usize, const P: usize, const O: usize>: TensorCoreElement {
    /// Starts `a b^T` of 64 rows of a and a tile of `2 S` rows of b, a group of its own; a is of a tile of
    /// size `A`.
    ///
    /// # Safety
    /// The warpgroup calls it together; the product is not touched before [`Wait::wait`].
    unsafe fn start_scores<A: TileSize>(a: u64, b: u64) -> [f32; S];

    /// Starts `gradient += p b`, a group of its own; b is the descriptor of a tile of `2 S` rows.
    ///
    /// # Safety
    /// As [`GradientElement::start_scores`]; p is not touched either.
    unsafe fn start_gradient(gradient: &mut [f32; O], p: &[u32; P], b: u64);
}

/// The product with which dS becomes dQ, of one element type: 64 queries by `2 DQ` columns, or (80 queries)
/// transposed, 64 columns by `2 DQ` queries. Summed over `KEYS` keys. `DQ` registers per thread.
pub trait QueryGradientElement<const KEYS: u32, const DQ: usize>: TensorCoreElement {
    /// Starts `ds k` of 64 rows of ds, or its transpose of all rows of ds and 64 columns of k, a group of its
    /// own; ds is a tile of size `DS`.
    ///
    /// # Safety
    /// As [`GradientElement::start_scores`].
    unsafe fn start_dq<DS: TileSize>(ds: u64, k: u64) -> [f32; DQ];
}

/// Registers per thread of 64 x 64 elements of dQ.
pub const DQ_REGISTERS: usize = 32;

macro_rules! gradients {
    ($element:ident, $module:ident, $s:literal, $p:literal, $o:literal, $scores:ident, $gradient:ident) => {
        impl GradientElement<$s, $p, $o> for $element {
            #[inline(always)]
            unsafe fn start_scores<A: TileSize>(a: u64, b: u64) -> [f32; $s] {
                wgmma::$module::$scores::<A>(a, b)
            }

            #[inline(always)]
            unsafe fn start_gradient(gradient: &mut [f32; $o], p: &[u32; $p], b: u64) {
                wgmma::$module::$gradient(gradient, p, b, 1);
            }
        }
    };
}

macro_rules! query_gradients {
    ($element:ident, $module:ident, $keys:literal, $dq:literal, $product:ident) => {
        impl QueryGradientElement<$keys, $dq> for $element {
            #[inline(always)]
            unsafe fn start_dq<DS: TileSize>(ds: u64, k: u64) -> [f32; $dq] {
                wgmma::$module::$product::<DS>(ds, k)
            }
        }
    };
}

macro_rules! all_head_dims {
    ($element:ident, $module:ident) => {
        products!($element, $module, 64, 32, 32, shared scores_d64_n128, accumulate_d64_n128);
        products!($element, $module, 40, 20, 64, shared scores_d128_n80, accumulate_d128_n80);
        products!($element, $module, 56, 28, 40, shared scores_d80_n112, accumulate_d80_n112);
        products!($element, $module, 56, 28, 48, shared scores_d96_n112, accumulate_d96_n112);
        products!($element, $module, 64, 32, 40, 20 scores_d80_n128, accumulate_d80_n128);
        products!($element, $module, 64, 32, 48, 24 scores_d96_n128, accumulate_d96_n128);
        products!($element, $module, 64, 32, 64, 32 scores_d128_n128, accumulate_d128_n128);
        products!($element, $module, 56, 28, 80, shared scores_d160_n112, accumulate_d160_n112);
        products!($element, $module, 56, 28, 96, shared scores_d192_n112, accumulate_d192_n112);
        products!($element, $module, 40, 20, 128, shared scores_d256_n80, accumulate_d256_n80);
        gradients!($element, $module, 64, 32, 32, plain_scores_d64_n128, accumulate_d64_n128);
        gradients!($element, $module, 64, 32, 64, shared_scores_d128_n128, accumulate_d128_n128);
        gradients!($element, $module, 32, 16, 32, scores_d64_n64, accumulate_d64_n64);
        gradients!($element, $module, 32, 16, 64, scores_d128_n64, accumulate_d128_n64);
        gradients!($element, $module, 40, 20, 64, plain_scores_d128_n80, accumulate_d128_n80);
        gradients!($element, $module, 32, 16, 96, scores_d192_n64, accumulate_d192_n64);
        gradients!($element, $module, 32, 16, 128, scores_d256_n64, accumulate_d256_n64);
        query_gradients!($element, $module, 128, 32, product_d64_n128);
        query_gradients!($element, $module, 128, 40, product_q80_n128);
        query_gradients!($element, $module, 64, 32, product_d64_n64);
        query_gradients!($element, $module, 192, 32, product_d64_n192);
        query_gradients!($element, $module, 64, 64, product_d128_n64);
    };
}
all_head_dims!(Bf16, bf16);
all_head_dims!(F16, f16);
