//! The shared memory of a block of the Hopper forward: tiles, barriers, messages.

use crate::abi::{
    ForwardParams, OUTPUT_BOX_ROWS, forward_sm90a_keeps_output_apart,
    layout::{ForwardHopperLayout, NOTE_BYTES},
    panel_columns,
};
use crate::arch::barrier::block_sync;
use crate::arch::{mbarrier, shared, thread};
use crate::attention::query_block::QueryTiles;
use crate::attention::work_order::WorkOrders;
use crate::pipeline::stages::{BARRIER_BYTES, Stages};
use crate::tile::shared_tile::SharedTile;

/// The block's shared memory, and the barriers in it.
#[derive(Clone, Copy)]
pub(super) struct Room<
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const WARPGROUPS: u32,
    const QUERY_STAGES: u32,
    const KEY_STAGES: u32,
    const VALUE_STAGES: u32,
    const GATHERS_HEADS: bool,
> {
    first_query: SharedTile<QUERIES, ROW_BYTES>,
    first_key: SharedTile<KEYS, ROW_BYTES>,
    first_value: SharedTile<KEYS, ROW_BYTES>,
    pub queries: Stages<QUERY_STAGES>,
    pub keys: Stages<KEY_STAGES>,
    pub values: Stages<VALUE_STAGES>,
    /// Stages of tiles that arrived and wait for repair.
    raw_queries: u32,
    raw_values: u32,
    pub orders: WorkOrders,
    first_note: u32,
}

impl<
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const WARPGROUPS: u32,
    const QUERY_STAGES: u32,
    const KEY_STAGES: u32,
    const VALUE_STAGES: u32,
    const GATHERS_HEADS: bool,
> Room<QUERIES, KEYS, ROW_BYTES, WARPGROUPS, QUERY_STAGES, KEY_STAGES, VALUE_STAGES, GATHERS_HEADS>
{
    /// Its query tiles. How many rows at a time the first one of a sequence may lack: a warpgroup's 64 rows
    /// stay where they are if that keeps the keys on their diagonal in one tile (measured at head dim 64,
    /// S 4097 causal: 1 %); others move by as many as leave in one piece. The rows of a warp are then all the
    /// tile's own, or none: what is in the next tile's has no say in their softmax.
    pub const TILES: QueryTiles = {
        let step = if KEYS.is_multiple_of(64) { 64 } else { OUTPUT_BOX_ROWS };
        assert!(step % 16 == 0 && QUERIES % step == 0);
        QueryTiles { rows: QUERIES, step, gathers_heads: GATHERS_HEADS }
    };
    pub const QUERY_BYTES: u32 = SharedTile::<QUERIES, ROW_BYTES>::BYTES;
    /// Whether the scores of the next query tile are started before this one is done. Where queries stay in
    /// shared memory and there is room for one tile of them only, the next one comes too late for that.
    pub const LOOKS_AHEAD: bool = QUERY_STAGES > 1 || query_registers(ROW_BYTES / 2, QUERIES) > 0;
    /// Whether each warpgroup has key tiles of its own: it goes past those that only rows of others see, and
    /// masks no tile that all of its rows see. Two warpgroups with 128 keys a tile see the same.
    pub const HAS_PARTS: bool = KEYS < 128 || WARPGROUPS > 2;
    /// How many key tiles a warpgroup leaves after its last one at most. While it waits for the keys of the
    /// next query tile it still has the stage of its last values: values of more tiles than there are other
    /// stages would never come, nor what comes after them.
    pub const MOST_LEFT: u32 = VALUE_STAGES - 1;
    /// Whether the output leaves through shared memory. For two warpgroups of head dim 64, whose tiles are
    /// short, what that saves is less than the two synchronisations of a warp cost.
    pub const STAGES_OUTPUT: bool = Self::LOOKS_AHEAD && (WARPGROUPS > 2 || ROW_BYTES > 128);
    /// Whether the output leaves through rows of the query tile that it belongs to, which are kept until
    /// then: where queries stay in shared memory, which has no room for anything else.
    pub const KEEPS_QUERIES: bool = Self::STAGES_OUTPUT && !Self::KEEPS_OUTPUT_APART;
    /// Whether the output leaves through rows of its own.
    pub const KEEPS_OUTPUT_APART: bool = forward_sm90a_keeps_output_apart(ROW_BYTES / 2, QUERIES);
    /// Whether, at the end of a query tile, the last product with values comes before the next tile's scores,
    /// beside which the output then leaves, through rows that no product reads.
    pub const VALUES_FIRST: bool = Self::KEEPS_OUTPUT_APART;
    /// Whether a warpgroup goes past query tiles of which it has no row: with three of them a third or two of
    /// one tile of most lengths.
    pub const GOES_PAST: bool = WARPGROUPS > 2;
    /// Whether the last values of a query tile are waited for before the next order is: a product with them
    /// comes before the next scores, or one of no consequence in their place.
    pub const WAITS_EARLY: bool = Self::VALUES_FIRST || Self::GOES_PAST;
    /// Whether the reference of a query tile's first key tile is made from a quarter of its scores.
    pub const GUESSES_MAXIMUM: bool = WARPGROUPS > 2;
    pub const KEY_BYTES: u32 = SharedTile::<KEYS, ROW_BYTES>::BYTES;
    /// Where everything stands, from the start of dynamic shared memory. What the kernel uses fits in there.
    const LAYOUT: ForwardHopperLayout = {
        let all = ForwardHopperLayout::new(ROW_BYTES / 2, QUERIES, KEYS);
        assert!(all.k % 1024 == 0 && all.o + Self::QUERY_BYTES <= all.k);
        assert!(all.v - all.k == KEY_STAGES * Self::KEY_BYTES);
        assert!(all.orders - all.v == VALUE_STAGES * Self::KEY_BYTES);
        assert!(all.notes - all.orders == WorkOrders::BYTES && WorkOrders::BYTES % 16 == 0);
        assert!(all.q_barriers - all.notes >= 4 * WARPGROUPS * NOTE_BYTES);
        assert!(all.k_barriers - all.q_barriers == Stages::<QUERY_STAGES>::BYTES);
        assert!(all.v_barriers - all.k_barriers == Stages::<KEY_STAGES>::BYTES);
        assert!(all.raw_q - all.v_barriers == Stages::<VALUE_STAGES>::BYTES);
        assert!(all.raw_v - all.raw_q == QUERY_STAGES * BARRIER_BYTES);
        all
    };

    #[inline(always)]
    pub fn new() -> Self {
        let base = shared::dynamic_base();
        Room {
            first_query: SharedTile { address: base },
            first_key: SharedTile { address: base + const { Self::LAYOUT.k } },
            first_value: SharedTile { address: base + const { Self::LAYOUT.v } },
            queries: Stages::new(base + const { Self::LAYOUT.q_barriers }),
            keys: Stages::new(base + const { Self::LAYOUT.k_barriers }),
            values: Stages::new(base + const { Self::LAYOUT.v_barriers }),
            raw_queries: base + const { Self::LAYOUT.raw_q },
            raw_values: base + const { Self::LAYOUT.raw_v },
            orders: WorkOrders::new(base + const { Self::LAYOUT.orders }),
            first_note: base + const { Self::LAYOUT.notes },
        }
    }

    /// Makes all barriers; all threads meet.
    #[inline(always)]
    pub unsafe fn open(&self, p: &ForwardParams) {
        if thread::thread_idx_x() == 0 {
            self.queries.init(1, 4 * WARPGROUPS);
            self.keys.init(1, 4 * WARPGROUPS);
            self.values.init(1, 4 * WARPGROUPS);
            let mut stage = 0;
            while stage < QUERY_STAGES + VALUE_STAGES {
                mbarrier::init(self.raw_query(stage), 1);
                stage += 1;
            }
            self.orders.init(4 * WARPGROUPS + self.may_need_repair(p) as u32);
            mbarrier::fence_init();
        }
        block_sync();
    }

    /// Bytes of a query tile that are brought.
    #[inline(always)]
    pub fn query_bytes(p: &ForwardParams) -> u32 {
        let rows = if GATHERS_HEADS { p.tile_rows() } else { QUERIES };
        rows * const { Self::QUERY_BYTES / QUERIES }
    }

    /// Whether query tiles have rows that are never brought: as many heads do not fill them.
    #[inline(always)]
    pub fn lacks_rows(p: &ForwardParams) -> bool {
        GATHERS_HEADS && p.tile_rows() != QUERIES
    }

    /// Whether there can be any work for the repairer.
    #[inline(always)]
    pub fn may_need_repair(&self, p: &ForwardParams) -> bool {
        Self::lacks_rows(p) || p.cu_seqlens_q != 0 || !(p.scale > 0.0)
    }

    /// The notes of computing warp `warp`.
    #[inline(always)]
    pub fn notes(&self, warp: u32) -> u32 {
        self.first_note + warp * NOTE_BYTES
    }

    #[inline(always)]
    pub fn raw_query(&self, stage: u32) -> u32 {
        self.raw_queries + stage * BARRIER_BYTES
    }

    #[inline(always)]
    pub fn raw_value(&self, stage: u32) -> u32 {
        self.raw_values + stage * BARRIER_BYTES
    }

    #[inline(always)]
    pub fn query(&self, stage: u32) -> SharedTile<QUERIES, ROW_BYTES> {
        SharedTile { address: self.first_query.address + stage * Self::QUERY_BYTES }
    }

    /// Through which rows the output leaves, each warp's through its own: of the query tile that it belongs
    /// to, or others that nothing else uses.
    #[inline(always)]
    pub fn output_rows(&self, query_stage: u32) -> SharedTile<QUERIES, ROW_BYTES> {
        if Self::KEEPS_QUERIES {
            self.query(query_stage)
        } else {
            SharedTile { address: self.first_query.address + const { Self::LAYOUT.o } }
        }
    }

    #[inline(always)]
    pub fn key(&self, stage: u32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile { address: self.first_key.address + stage * Self::KEY_BYTES }
    }

    #[inline(always)]
    pub fn value(&self, stage: u32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile { address: self.first_value.address + stage * Self::KEY_BYTES }
    }
}

/// Registers of queries per thread: with two warpgroups there is room for them at head dims from 80 to 128.
pub(super) const fn query_registers(head_dim: u32, query_rows: u32) -> usize {
    if panel_columns(head_dim) == 128 && query_rows <= 128 { head_dim as usize / 4 } else { 0 }
}
