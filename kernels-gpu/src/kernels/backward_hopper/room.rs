//! The shared memory of a block of the Hopper backward: tiles, row statistics, barriers.

use super::tile::{BackwardKernel, DsTile, KeyTile, OutputGradientStages, QueryStages, QueryTile};
use crate::abi::BackwardParams;
use crate::abi::layout::{BackwardHopperLayout, VISITED_STEPS, WRITERS};
use crate::arch::barrier::block_sync;
use crate::arch::{grid, mbarrier, shared, specialize, thread};
use crate::attention::key_order::KeyOrders;
use crate::attention::visited::VisitedStep;
use crate::geometry::size::{Count, StageCount};
use crate::pipeline::stages::{BARRIER_BYTES, Cursor, Stages};
use crate::tile::shared_tile::SharedTileOf;

/// Rows of statistics: lse, delta, and for f16 the norm of dO.
const STATISTICS: u32 = 3;
/// Bytes of 64 x 64 elements of dQ in f32.
const DQ_PANEL_BYTES: u32 = 64 * 64 * 4;

/// The block's shared memory, and the barriers in it.
#[derive(Clone, Copy)]
pub(super) struct Room<K: BackwardKernel> {
    /// The keys, once for all steps.
    pub key: SharedTileOf<KeyTile<K>>,
    /// The values, once for all steps.
    pub value: SharedTileOf<KeyTile<K>>,
    first_query: SharedTileOf<QueryTile<K>>,
    first_d_o: SharedTileOf<QueryTile<K>>,
    first_ds: u32,
    dq: u32,
    statistics: u32,
    /// Which key tile comes next.
    pub orders: KeyOrders,
    /// The key tile.
    pub keys: Stages<Count<1>>,
    /// The value tile; of wide heads, for warpgroup 1 alone.
    pub values: Stages<Count<1>>,
    /// Query tiles and their lse.
    pub queries: Stages<QueryStages<K>>,
    /// Output gradients and their delta (and norm).
    pub d_os: Stages<OutputGradientStages<K>>,
    barriers: u32,
    /// Steps that are visited.
    visited: u32,
    /// A word for each computing warp.
    pub scratch: u32,
}

impl<K: BackwardKernel> Room<K> {
    pub const QUERY_BYTES: u32 = SharedTileOf::<QueryTile<K>>::BYTES;
    pub const KEY_BYTES: u32 = SharedTileOf::<KeyTile<K>>::BYTES;
    /// Bytes of one statistic of a query tile.
    pub const STATISTIC_BYTES: u32 = 4 * K::QUERIES;
    const DS_BYTES: u32 = SharedTileOf::<DsTile<K>>::BYTES;
    /// Whether the warpgroups divide the work as [`super::wide`] says.
    pub const WIDE: bool = K::KEYS == 64;
    const DS_STAGES: u32 = if Self::WIDE { 1 } else { K::WARPGROUPS };
    /// Whether the writers take turns, and write a whole tile of dQ each.
    pub const WRITERS_TAKE_TURNS: bool = K::WARPGROUPS != WRITERS;
    /// Bytes of a tile of dQ in f32.
    const DQ_TILE_BYTES: u32 = 4 * K::QUERIES * K::COLUMNS;
    /// Barriers of tiles that wait for repair.
    const RAW_BARRIERS: u32 = 2 + K::QUERY_STAGES + K::D_O_STAGES;
    /// Where everything stands, from the start of dynamic shared memory. What the kernel uses fits in there.
    const LAYOUT: BackwardHopperLayout = {
        let all = BackwardHopperLayout::new(K::COLUMNS, K::QUERIES, K::KEYS);
        assert!(all.v == Self::KEY_BYTES && all.q - all.v == Self::KEY_BYTES);
        assert!(all.d_o - all.q == K::QUERY_STAGES * Self::QUERY_BYTES);
        assert!(all.ds - all.d_o == K::D_O_STAGES * Self::QUERY_BYTES);
        assert!(all.dq - all.ds == Self::DS_STAGES * Self::DS_BYTES);
        assert!(all.statistics - all.dq == Self::dq_bytes(0) + Self::dq_bytes(1));
        assert!(all.orders - all.statistics == K::QUERY_STAGES * STATISTICS * Self::STATISTIC_BYTES);
        assert!(all.k_barriers - all.orders == KeyOrders::BYTES);
        assert!(all.q_barriers - all.v_barriers == Stages::<Count<1>>::BYTES);
        assert!(all.d_o_barriers - all.q_barriers == Stages::<QueryStages<K>>::BYTES);
        assert!(all.barriers - all.d_o_barriers == Stages::<OutputGradientStages<K>>::BYTES);
        let raw_bytes = Self::RAW_BARRIERS * BARRIER_BYTES;
        assert!(all.visited - all.barriers == WRITERS * Stages::<Count<1>>::BYTES + raw_bytes);
        assert!(all.scratch - all.visited == VISITED_STEPS * 8 && all.visited % 8 == 0);
        all
    };

    /// Bytes of dQ that a writer gets at a time.
    #[inline(always)]
    pub const fn dq_bytes(writer: u32) -> u32 {
        match (Self::WIDE, writer) {
            (false, _) if Self::WRITERS_TAKE_TURNS => Self::DQ_TILE_BYTES,
            (false, _) => Self::DQ_TILE_BYTES / WRITERS,
            (true, 0) => 2 * DQ_PANEL_BYTES,
            (true, _) => DQ_PANEL_BYTES,
        }
    }

    /// How often it gets a part of a tile of dQ.
    #[inline(always)]
    pub const fn dq_parts(writer: u32) -> u32 {
        if Self::WIDE && writer == 1 {
            (Self::DQ_TILE_BYTES - Self::dq_bytes(0)) / Self::dq_bytes(1)
        } else {
            1
        }
    }

    #[inline(always)]
    pub fn new() -> Self {
        let key = shared::dynamic_base();
        let value = key + const { Self::LAYOUT.v };
        let query = key + const { Self::LAYOUT.q };
        let d_o = key + const { Self::LAYOUT.d_o };
        let ds = key + const { Self::LAYOUT.ds };
        let dq = key + const { Self::LAYOUT.dq };
        let statistics = key + const { Self::LAYOUT.statistics };
        let orders = key + const { Self::LAYOUT.orders };
        let keys = key + const { Self::LAYOUT.k_barriers };
        let values = key + const { Self::LAYOUT.v_barriers };
        let queries = key + const { Self::LAYOUT.q_barriers };
        let d_os = key + const { Self::LAYOUT.d_o_barriers };
        let barriers = key + const { Self::LAYOUT.barriers };
        Room {
            key: SharedTileOf::at(key),
            value: SharedTileOf::at(value),
            first_query: SharedTileOf::at(query),
            first_d_o: SharedTileOf::at(d_o),
            first_ds: ds,
            dq,
            statistics,
            orders: KeyOrders::new(orders),
            keys: Stages::new(keys),
            values: Stages::new(values),
            queries: Stages::new(queries),
            d_os: Stages::new(d_os),
            barriers,
            visited: key + const { Self::LAYOUT.visited },
            scratch: key + const { Self::LAYOUT.scratch },
        }
    }

    /// Makes all barriers; all threads meet. The kernel before, which makes the statistics, has ended then,
    /// and the next one may begin: it looks which heads are complete.
    #[inline(always)]
    pub unsafe fn open(&self, p: &BackwardParams) {
        if thread::thread_idx_x() == 0 {
            // The writers read along, and the repairer where there is one.
            self.orders.init(4 * K::WARPGROUPS + WRITERS + may_need_repair(p) as u32);
            self.keys.init(1, 4 * K::WARPGROUPS);
            self.values.init(1, if Self::WIDE { 4 } else { 4 * K::WARPGROUPS });
            self.queries.init(1, 4 * K::WARPGROUPS);
            self.d_os.init(1, 4 * K::WARPGROUPS);
            let mut writer = 0;
            while writer < WRITERS {
                self.dq_stage(writer).init(4, 1);
                shared::store_u32(self.allowed(writer), 0);
                writer += 1;
            }
            mbarrier::init(self.raw_key(), 1);
            mbarrier::init(self.raw_value(), 1);
            let mut stage = 0;
            while stage < K::QUERY_STAGES {
                mbarrier::init(self.raw_query(stage), 1);
                stage += 1;
            }
            stage = 0;
            while stage < K::D_O_STAGES {
                mbarrier::init(self.raw_d_o(stage), 1);
                stage += 1;
            }
            mbarrier::fence_init();
        }
        block_sync();
        grid::wait_for_previous();
        grid::allow_next();
    }

    /// Whether only steps are visited of which a boolean mask shows something. Not where the writers take
    /// turns: who waits for its own steps only does not learn whether another one's was the last.
    #[inline(always)]
    pub fn skips_steps() -> bool {
        !Self::WRITERS_TAKE_TURNS && specialize::attn_mask()
    }

    /// Writes which step comes with the queries of a stage. There are [`VISITED_STEPS`] places: when the
    /// queries of the second step before have been released, the writers are done with the fourth.
    ///
    /// # Safety
    /// The producer, who has acquired the stage; where steps are skipped.
    #[inline(always)]
    pub unsafe fn write_visited(&self, stages: &Cursor<QueryStages<K>>, step: VisitedStep) {
        let place = stages.in_step::<Count<VISITED_STEPS>>().stage();
        shared::store_u32x2(self.visited + 8 * place, step.words());
    }

    /// Which step came with the queries of a stage, of as many stages as there may be.
    ///
    /// # Safety
    /// The queries have come, or a share of dQ that was made of them, and are not yet released, or it is not;
    /// where steps are skipped.
    #[inline(always)]
    pub unsafe fn visited<C: StageCount>(&self, stages: &Cursor<C>) -> VisitedStep {
        let place = stages.in_step::<Count<VISITED_STEPS>>().stage();
        VisitedStep::from_words(shared::load_u32x2(self.visited + 8 * place))
    }

    #[inline(always)]
    pub fn query(&self, stage: u32) -> SharedTileOf<QueryTile<K>> {
        SharedTileOf::at(self.first_query.address + stage * Self::QUERY_BYTES)
    }

    #[inline(always)]
    pub fn d_o(&self, stage: u32) -> SharedTileOf<QueryTile<K>> {
        SharedTileOf::at(self.first_d_o.address + stage * Self::QUERY_BYTES)
    }

    /// A tile of dS: a column for each key.
    #[inline(always)]
    pub fn ds(&self, stage: u32) -> SharedTileOf<DsTile<K>> {
        SharedTileOf::at(self.first_ds + stage * Self::DS_BYTES)
    }

    /// Where a writer's part of a tile of dQ begins.
    #[inline(always)]
    pub fn dq(&self, writer: u32) -> u32 {
        self.dq + writer * Self::dq_bytes(0)
    }

    #[inline(always)]
    fn statistic(&self, which: u32, stage: u32) -> u32 {
        self.statistics + (which * K::QUERY_STAGES + stage) * Self::STATISTIC_BYTES
    }

    #[inline(always)]
    pub fn lse(&self, stage: u32) -> u32 {
        self.statistic(0, stage)
    }

    #[inline(always)]
    pub fn delta(&self, stage: u32) -> u32 {
        self.statistic(1, stage)
    }

    #[inline(always)]
    pub fn norm(&self, stage: u32) -> u32 {
        self.statistic(2, stage)
    }

    /// A word: what dS of the step is multiplied by.
    #[inline(always)]
    pub fn factor(&self) -> u32 {
        self.scratch + 4 * 4 * K::WARPGROUPS
    }

    /// A word: for how many steps a writer may write.
    #[inline(always)]
    pub fn allowed(&self, writer: u32) -> u32 {
        self.factor() + 4 + 4 * writer
    }

    /// The turns of a writer's part of dQ: the warps of a warpgroup fill it, the writer releases it.
    #[inline(always)]
    pub fn dq_stage(&self, writer: u32) -> Stages<Count<1>> {
        Stages::new(self.barriers + writer * Stages::<Count<1>>::BYTES)
    }

    #[inline(always)]
    fn barrier(&self, index: u32) -> u32 {
        self.barriers + WRITERS * Stages::<Count<1>>::BYTES + index * BARRIER_BYTES
    }

    /// Tiles that arrived and wait for repair.
    #[inline(always)]
    pub fn raw_key(&self) -> u32 {
        self.barrier(0)
    }

    #[inline(always)]
    pub fn raw_value(&self) -> u32 {
        self.barrier(1)
    }

    #[inline(always)]
    pub fn raw_query(&self, stage: u32) -> u32 {
        self.barrier(2 + stage)
    }

    #[inline(always)]
    pub fn raw_d_o(&self, stage: u32) -> u32 {
        self.barrier(2 + K::QUERY_STAGES + stage)
    }
}

/// Whether there can be any work for the repairer: rows of the next sequence come with a tile.
#[inline(always)]
pub(super) fn may_need_repair(p: &BackwardParams) -> bool {
    p.cu_seqlens_q != 0
}
