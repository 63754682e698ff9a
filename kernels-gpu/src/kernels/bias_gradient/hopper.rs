//! The gradient of the bias for Hopper: 128 x 128 elements at a time, at the rate of its tensor cores.
//!
//! A block stays on its multiprocessor and takes every so many-th tile of the gradient. One thread requests
//! what batches and heads that share the tile need, in pairs of tiles in the order of their use: q and k,
//! then dO and v. Each of two warpgroups has 64 queries:
//!
//! ```text
//! for each batch and head:
//!     start s = q k^T;  start dp = dO v^T
//!     wait for s;       p = e^(s + bias - lse)
//!     wait for dp;      sum += p (dp - delta)
//! ```
//!
//! While one warpgroup makes exponentials, the tensor cores multiply for the other. The bias of a tile is the
//! same for all that share it: each warp copies its rows once, while it ends the tile before.
//!
//! Nothing is packed: rows that are not there arrive as zeros. A gradient with one element for all queries or
//! all keys is left to the other kernels.

use super::lanes::{LaneRows, store};
use super::part::{Part, drop_dp, score_tile, shown_by_mask, shown_by_positions};
use crate::abi::layout::BiasGradientHopperLayout;
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{async_copy, barrier, math, mbarrier, shared, specialize, thread, warp};
use crate::attention::key_block;
use crate::attention::score::bias_tile::{BiasPart, WarpBias};
use crate::attention::score::{BackwardScale, ScorePlace, features};
use crate::attention::sequence::{Sequence, Sequences};
use crate::geometry::mask_map::Shown;
use crate::geometry::size::{Count, Size, StageCount, TileSize};
use crate::kernels::backward_hopper::Maps;
use crate::pipeline::roles::{Helper, Recruit, WARPGROUP, lane_and_first_row};
use crate::pipeline::stages::{Cursor, Stages};
use crate::tile::bulk::Place;
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::fragment::MmaFragment;
use crate::tile::shared_tile::SharedTileOf;
use crate::tile::warpgroup::{GradientElement, Wait};

/// Queries, and keys, of a tile.
pub(super) const ROWS: u32 = 128;

/// Registers of a lane's scores, in two rows.
pub(super) const SCORES: usize = 64;

/// Of a warp's scores.
pub(super) type Scores = MmaFragment;

/// A tile of the bias.
type BiasTile = Size<ROWS, { 2 * ROWS }>;

/// A sequence of a backward without packed ones.
#[inline(always)]
pub(super) unsafe fn sequence(p: &BackwardParams, batch: u32) -> Sequence {
    let sequences = Sequences { cu_seqlens_q: 0, cu_seqlens_k: 0, ..key_block::sequences(p) };
    Sequence::new(&sequences, batch)
}

/// What positions show of a part: the same of all that share it.
#[inline(always)]
unsafe fn shown_of(p: &BackwardParams, part: &Part) -> Shown {
    shown_by_positions(&sequence(p, 0), (part.query_tile * ROWS) as i32, ROWS, part.key_tile)
}

/// A batch and a query head that share the elements of a part, and of whose pairs some are visible.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub batch: u32,
    pub head: u32,
    /// Whether the boolean mask, if there is one, hides nothing.
    shows_all: bool,
}

impl Step {
    /// The first one of a part, of which positions show what `shown` says.
    #[inline(always)]
    unsafe fn first(p: &BackwardParams, part: &Part, shown: Shown) -> Option<Self> {
        if !shown.some {
            return None;
        }
        Self::from(p, part, part.batches(p).begin, part.heads(p).begin)
    }

    /// The one behind it.
    #[inline(always)]
    unsafe fn next(&self, p: &BackwardParams, part: &Part) -> Option<Self> {
        Self::from(p, part, self.batch, self.head + 1)
    }

    /// The first one from head `head` of batch `batch` on, which may be one past the last.
    #[inline(always)]
    unsafe fn from(p: &BackwardParams, part: &Part, mut batch: u32, mut head: u32) -> Option<Self> {
        let (batches, heads) = (part.batches(p), part.heads(p));
        loop {
            if head == heads.end {
                (batch, head) = (batch + 1, heads.begin);
            }
            if batch == batches.end {
                return None;
            }
            let step = Step { batch, head, shows_all: false };
            let sequence = sequence(p, batch);
            let first = ((part.query_tile * ROWS) as i32, (part.key_tile * ROWS) as i32);
            let shown = shown_by_mask(p, &sequence, &step.place(p), first, ROWS);
            if shown.some {
                return Some(Step { shows_all: shown.all, ..step });
            }
            head += 1;
        }
    }

    /// Which scores of the problem those of the step are.
    #[inline(always)]
    fn place(&self, p: &BackwardParams) -> ScorePlace {
        let key_head = math::divide(self.head, p.group_size);
        ScorePlace { sequence: self.batch, head: self.head, key_head, first_key: 0 }
    }
}

/// The shared memory of a block: pairs of tiles, a tile of the bias, barriers.
struct SharedStorage<T: TileSize, C: StageCount> {
    first_tile: SharedTileOf<T>,
    bias: SharedTileOf<BiasTile>,
    /// Pairs of tiles.
    pairs: Stages<C>,
}

impl<T: TileSize, C: StageCount> SharedStorage<T, C> {
    const TILE_BYTES: u32 = SharedTileOf::<T>::BYTES;
    /// Where everything stands, from the start of dynamic shared memory. What the kernel uses fits in there.
    const LAYOUT: BiasGradientHopperLayout = {
        let all = BiasGradientHopperLayout::new(T::ROW_BYTES / 2, T::ROWS);
        assert!(all.bias == 2 * C::COUNT * Self::TILE_BYTES && all.bias % 1024 == 0);
        assert!(all.barriers - all.bias == SharedTileOf::<BiasTile>::BYTES);
        assert!(all.regions.bytes() - all.barriers == Stages::<C>::BYTES);
        all
    };

    #[inline(always)]
    fn new() -> Self {
        let base = shared::dynamic_base();
        SharedStorage {
            first_tile: SharedTileOf::at(base),
            bias: SharedTileOf::at(base + const { Self::LAYOUT.bias }),
            pairs: Stages::new(base + const { Self::LAYOUT.barriers }),
        }
    }

    /// Makes all barriers; all threads meet.
    #[inline(always)]
    unsafe fn open(&self) {
        if thread::thread_idx_x() == 0 {
            self.pairs.init(1, 2 * WARPGROUP / 32);
            mbarrier::fence_init();
        }
        barrier::block_sync();
    }

    /// Rows of queries, of a pair of tiles.
    #[inline(always)]
    fn of_queries(&self, stage: u32) -> SharedTileOf<T> {
        SharedTileOf::at(self.first_tile.address + stage * 2 * Self::TILE_BYTES)
    }

    /// Rows of keys, of a pair of tiles.
    #[inline(always)]
    fn of_keys(&self, stage: u32) -> SharedTileOf<T> {
        SharedTileOf::at(self.of_queries(stage).address + Self::TILE_BYTES)
    }

    /// The producer, one thread: requests what each step needs.
    #[inline(always)]
    unsafe fn produce(&self, p: &BackwardParams, maps: &Maps) {
        let mut pairs = Cursor::start();
        let count = Part::count(p, ROWS);
        let mut index = thread::block_idx_x();
        while index < count {
            let part = Part::nth(p, ROWS, index);
            let mut next = Step::first(p, &part, shown_of(p, &part));
            while let Some(step) = next {
                let ScorePlace { sequence: batch, head, key_head, .. } = step.place(p);
                let queries = Place::of_rows((part.query_tile * ROWS) as i32, head, batch);
                let keys = Place::of_rows((part.key_tile * ROWS) as i32, key_head, batch);
                self.request(&mut pairs, (maps.q, &queries), (maps.k, &keys));
                self.request(&mut pairs, (maps.d_o, &queries), (maps.v, &keys));
                next = step.next(p, &part);
            }
            index += thread::grid_dim_x();
        }
    }

    /// Requests a pair of tiles.
    #[inline(always)]
    unsafe fn request(
        &self,
        pairs: &mut Cursor<C>,
        (query_map, queries): (u64, &Place),
        (key_map, keys): (u64, &Place),
    ) {
        let stage = pairs.stage();
        let barrier = self.pairs.full(stage);
        self.pairs.acquire(pairs);
        mbarrier::arrive_expect(barrier, 2 * Self::TILE_BYTES);
        self.of_queries(stage).request(query_map, queries, barrier);
        self.of_keys(stage).request(key_map, keys, barrier);
        pairs.advance();
    }

    /// Waits for the next pair of tiles and starts the products of 64 of its queries.
    #[inline(always)]
    unsafe fn start_product<E, const P: usize, const O: usize>(
        &self,
        pairs: &Cursor<C>,
        warpgroup: u32,
    ) -> [f32; SCORES]
    where
        E: GradientElement<SCORES, P, O>,
    {
        self.pairs.wait(pairs);
        let queries = self.of_queries(pairs.stage()).descriptor(64 * warpgroup);
        E::start_scores::<T>(queries, self.of_keys(pairs.stage()).descriptor(0))
    }

    /// A warp of a computing warpgroup.
    #[inline(always)]
    unsafe fn consume<E, const P: usize, const O: usize>(&self, p: &BackwardParams, warpgroup: u32)
    where
        E: GradientElement<SCORES, P, O>,
        [f32; SCORES]: Wait,
    {
        let (lane, warp_row) = lane_and_first_row(thread::thread_idx_x(), warpgroup);
        let scale = BackwardScale::new::<E>(p);
        let bias = WarpBias::of_queries(self.bias, warp_row);
        let mut pairs = Cursor::start();
        let count = Part::count(p, ROWS);
        let mut index = thread::block_idx_x();
        fetch_bias::<E>(p, bias, warpgroup, index);
        while index < count {
            let part = Part::nth(p, ROWS, index);
            let first_query = (part.query_tile * ROWS + warp_row) as i32;
            let mut sums = [0.0; SCORES];
            let shown = shown_of(p, &part);
            let mut next = Step::first(p, &part, shown);
            index += thread::grid_dim_x();
            if next.is_none() {
                fetch_bias::<E>(p, bias, warpgroup, index);
            } else if specialize::bias() {
                async_copy::wait_all();
                warp::warp_sync();
            }
            while let Some(step) = next {
                let rows = LaneRows::load(p, &step, lane, first_query);
                let mut scores = self.start_product::<E, P, O>(&pairs, warpgroup);
                let of_scores = pairs;
                pairs.advance();
                let mut dp = self.start_product::<E, P, O>(&pairs, warpgroup);
                next = step.next(p, &part);
                scores.wait::<1>();
                if lane == 0 {
                    self.pairs.release(&of_scores);
                }
                let sequence = sequence(p, step.batch);
                let tile = score_tile(&sequence, first_query, (part.key_tile * ROWS) as i32);
                let place = step.place(p);
                if specialize::softcap() {
                    scale.softcap.apply::<E, true, SCORES>(&mut scores, true);
                }
                features::apply::<E, Scores, 2, SCORES>(
                    lane,
                    &mut scores,
                    &p.score,
                    &bias,
                    &tile,
                    &place,
                    scale.factor,
                    step.shows_all,
                );
                if next.is_none() {
                    fetch_bias::<E>(p, bias, warpgroup, index);
                }
                if !shown.all {
                    tile.apply_mask::<Scores, 2, SCORES>(lane, &mut scores);
                }
                rows.subtract_references(p, &step, first_query, &mut scores);
                dp.wait::<0>();
                if lane == 0 {
                    self.pairs.release(&pairs);
                }
                pairs.advance();
                drop_dp::<Scores, 2, SCORES>(lane, &p.score, &tile, &place, &mut dp);
                rows.add_gradient(&mut sums, &mut scores, &mut dp);
            }
            store::<E>(p, &part, warpgroup, &mut sums);
        }
    }
}

/// Starts to bring a warp's rows of the bias of part `index`, if there are both: the same for all that share
/// them.
///
/// # Safety
/// All 32 lanes call it together, done with those of the part before.
#[inline(always)]
unsafe fn fetch_bias<E: TensorCoreElement>(
    p: &BackwardParams,
    bias: WarpBias,
    warpgroup: u32,
    index: u32,
) {
    if specialize::bias() && index < Part::count(p, ROWS) {
        // Worked out anew: registers are for what every step needs.
        let (lane, warp_row) = lane_and_first_row(thread::thread_idx_x_here(), warpgroup);
        let part = Part::nth(p, ROWS, index);
        let (batch, head) = (part.batches(p).begin, part.heads(p).begin);
        let place = Step { batch, head, shows_all: false }.place(p);
        let [_, _, queries, keys] = p.d_bias_shape;
        let first_query = (part.query_tile * ROWS + warp_row) as i32;
        let first_key = (part.key_tile * ROWS) as i32;
        let part = BiasPart {
            elements: features::elements::<E>(&p.score.bias, &place, 0).from(first_query, first_key),
            queries: queries as i32 - first_query,
            keys: keys as i32 - first_key,
        };
        // Of a part without a step nobody has waited for it.
        async_copy::wait_all();
        bias.fetch::<{ 2 * ROWS / 16 }>(lane, 16, &p.score, &part);
    }
}

/// One block: a warpgroup of which one thread requests tiles, and two that compute.
#[inline(always)]
unsafe fn gradient<E, T, C, const P: usize, const O: usize>(p: &BackwardParams, maps: Maps)
where
    E: GradientElement<SCORES, P, O>,
    T: TileSize,
    C: StageCount,
    [f32; SCORES]: Wait,
{
    let storage = SharedStorage::<T, C>::new();
    storage.open();
    let warp = Recruit::new();
    if warp.helps() {
        if warp.become_helper::<40>() == Helper::Producer && warp::elect() {
            storage.produce(p, &maps);
        }
    } else {
        storage.consume::<E, P, O>(p, warp.become_consumer::<232>());
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $pairs:literal))*) => {
        $(
            /// An instance of [`gradient`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardHopperParams`] says, for this kernel's row of the table, with a gradient
            /// of the bias that has an element for each query and key.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardHopperParams) {
                let maps = Maps::at(crate::parameter_address!($name));
                gradient::<
                    element::$dtype, Size<ROWS, { 2 * $dim }>, Count<$pairs>, 32, { $dim / 2 },
                >(&p.backward, maps);
            }
        )*
    };
}
crate::for_each_bias_gradient_sm90a!(entries);
