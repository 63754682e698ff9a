//! The shared memory of a block of the Hopper forward: tiles, barriers, messages.

use super::slopes::{self, SLOPE_COLUMN_BYTES};
use super::tile::{
    BiasTile, ForwardKernel, KeyStages, KeyTile, OutputPath, QueryStages, QueryTile, ValueStages,
};
use crate::abi::{
    ForwardParams,
    layout::{ForwardHopperLayout, KEY_RANGE_BYTES, MESSAGES},
};
use crate::arch::barrier::block_sync;
use crate::arch::{mbarrier, shared, specialize, thread};
use crate::attention::query_block::QueryTiles;
use crate::attention::visited::VisitedTile;
use crate::attention::work_tile::WorkTiles;
use crate::pipeline::stages::{BARRIER_BYTES, Stages};
use crate::tile::element::Element as _;
use crate::tile::shared_tile::SharedTileOf;

/// The block's shared memory, and the barriers in it.
#[derive(Clone, Copy)]
pub(super) struct SharedStorage<K: ForwardKernel> {
    first_query: SharedTileOf<QueryTile<K>>,
    first_key: SharedTileOf<KeyTile<K>>,
    first_value: SharedTileOf<KeyTile<K>>,
    pub queries: Stages<QueryStages<K>>,
    pub keys: Stages<KeyStages<K>>,
    pub values: Stages<ValueStages<K>>,
    /// Barriers of tiles that have landed and wait for their tails to be zeroed.
    landed_queries: u32,
    landed_values: u32,
    pub work_tiles: WorkTiles,
    /// Ranges of key tiles of the consumer warps. Where key tiles are skipped they have none, and the key
    /// tiles that are visited stand there: the first one of each work tile, and that of each stage of keys.
    pub key_ranges: u32,
}

impl<K: ForwardKernel> SharedStorage<K> {
    /// The query tiles of a launch.
    pub const QUERY_TILES: QueryTiles = K::TILE.query_tiles();
    pub const QUERY_BYTES: u32 = SharedTileOf::<QueryTile<K>>::BYTES;
    pub const KEY_BYTES: u32 = SharedTileOf::<KeyTile<K>>::BYTES;
    const CONSUMER_WARPS: u32 = 4 * K::WARPGROUPS;
    /// Where everything stands, from the start of dynamic shared memory. What the kernel uses fits in there.
    const LAYOUT: ForwardHopperLayout = {
        let all = ForwardHopperLayout::new(K::TILE.columns, K::QUERIES, K::KEYS);
        assert!(all.k % 1024 == 0 && all.o + Self::QUERY_BYTES <= all.slope_columns);
        let behind_bias = all.slope_columns - all.bias;
        assert!(!K::TILE.stages_bias() || behind_bias >= SharedTileOf::<BiasTile<K>>::BYTES);
        assert!(all.v - all.k == K::TILE.key_stages * Self::KEY_BYTES);
        assert!(all.k - all.slope_columns >= K::KEYS * SLOPE_COLUMN_BYTES);
        assert!(all.orders - all.v == K::TILE.value_stages * Self::KEY_BYTES);
        assert!(all.key_ranges - all.orders == WorkTiles::BYTES && WorkTiles::BYTES % 16 == 0);
        assert!(all.q_barriers - all.key_ranges >= Self::CONSUMER_WARPS * KEY_RANGE_BYTES);
        assert!(MESSAGES + K::TILE.key_stages <= Self::CONSUMER_WARPS * KEY_RANGE_BYTES / 4);
        // `KeyRange::unit` stands behind these, where there is one.
        assert!(K::KEYS != 64 || MESSAGES + K::TILE.key_stages <= 7 || !K::TILE.skips_key_tiles());
        assert!(all.k_barriers - all.q_barriers == Stages::<QueryStages<K>>::BYTES);
        assert!(all.v_barriers - all.k_barriers == Stages::<KeyStages<K>>::BYTES);
        assert!(all.landed_q - all.v_barriers == Stages::<ValueStages<K>>::BYTES);
        assert!(all.landed_v - all.landed_q == K::TILE.query_stages * BARRIER_BYTES);
        all
    };

    #[inline(always)]
    pub fn new() -> Self {
        let base = shared::dynamic_base();
        SharedStorage {
            first_query: SharedTileOf::at(base),
            first_key: SharedTileOf::at(base + const { Self::LAYOUT.k }),
            first_value: SharedTileOf::at(base + const { Self::LAYOUT.v }),
            queries: Stages::new(base + const { Self::LAYOUT.q_barriers }),
            keys: Stages::new(base + const { Self::LAYOUT.k_barriers }),
            values: Stages::new(base + const { Self::LAYOUT.v_barriers }),
            landed_queries: base + const { Self::LAYOUT.landed_q },
            landed_values: base + const { Self::LAYOUT.landed_v },
            work_tiles: WorkTiles::new(base + const { Self::LAYOUT.orders }),
            key_ranges: base + const { Self::LAYOUT.key_ranges },
        }
    }

    /// Makes all barriers; all threads meet.
    #[inline(always)]
    pub unsafe fn open(&self, p: &ForwardParams) {
        if thread::thread_idx_x() == 0 {
            self.queries.init(1, Self::CONSUMER_WARPS);
            self.keys.init(1, Self::CONSUMER_WARPS);
            self.values.init(1, Self::CONSUMER_WARPS);
            let mut stage = 0;
            while stage < const { K::TILE.query_stages + K::TILE.value_stages } {
                mbarrier::init(self.landed_query(stage), 1);
                stage += 1;
            }
            self.work_tiles.init(Self::CONSUMER_WARPS + self.may_zero_tails(p) as u32);
            mbarrier::fence_init();
        }
        // The step is there with ALiBi, whatever else is added to scores: then it multiplies zeros with them.
        if K::Element::BYTES == 2 && specialize::alibi() {
            slopes::write_columns(self.slope_columns(), K::KEYS);
        }
        block_sync();
    }

    /// Where the columns stand that slopes of ALiBi are multiplied by.
    #[inline(always)]
    pub fn slope_columns(&self) -> u32 {
        self.first_query.address + const { Self::LAYOUT.slope_columns }
    }

    /// Whether only key tiles are visited of which a boolean mask shows something.
    #[inline(always)]
    pub fn skips_key_tiles() -> bool {
        K::TILE.skips_key_tiles() && specialize::attn_mask()
    }

    /// Writes that `tile` is the first key tile of the work tile in slot `slot`.
    ///
    /// # Safety
    /// The producer, who has acquired the slot; where key tiles are skipped.
    #[inline(always)]
    pub unsafe fn write_first_visited(&self, slot: u32, tile: VisitedTile) {
        shared::store_u32(self.key_ranges + 4 * slot, tile.word());
    }

    /// The first key tile of the work tile in slot `slot`.
    ///
    /// # Safety
    /// Before the work tile is discarded; where key tiles are skipped.
    #[inline(always)]
    pub unsafe fn first_visited(&self, slot: u32) -> VisitedTile {
        VisitedTile::from_word(shared::load_u32(self.key_ranges + 4 * slot))
    }

    /// Writes that `tile` is the key tile of stage `stage`.
    ///
    /// # Safety
    /// The producer, who has acquired the stage; where key tiles are skipped.
    #[inline(always)]
    pub unsafe fn write_visited(&self, stage: u32, tile: VisitedTile) {
        shared::store_u32(self.key_ranges + 4 * (MESSAGES + stage), tile.word());
    }

    /// The key tile of stage `stage`.
    ///
    /// # Safety
    /// Between the wait for the keys and their release; where key tiles are skipped.
    #[inline(always)]
    pub unsafe fn visited(&self, stage: u32) -> VisitedTile {
        VisitedTile::from_word(shared::load_u32(self.key_ranges + 4 * (MESSAGES + stage)))
    }

    /// Bytes of a query tile that are brought.
    #[inline(always)]
    pub fn query_bytes(p: &ForwardParams) -> u32 {
        let rows = if K::GATHERS_HEADS { p.tile_rows() } else { K::QUERIES };
        rows * const { Self::QUERY_BYTES / K::QUERIES }
    }

    /// Whether query tiles have rows that are never brought: as many heads do not fill them.
    #[inline(always)]
    pub fn lacks_rows(p: &ForwardParams) -> bool {
        K::GATHERS_HEADS && p.tile_rows() != K::QUERIES
    }

    /// Whether there can be any work for the tail-zeroing warp.
    #[inline(always)]
    pub fn may_zero_tails(&self, p: &ForwardParams) -> bool {
        Self::lacks_rows(p) || p.cu_seqlens_q != 0 || !(p.scale > 0.0)
    }

    #[inline(always)]
    pub fn landed_query(&self, stage: u32) -> u32 {
        self.landed_queries + stage * BARRIER_BYTES
    }

    #[inline(always)]
    pub fn landed_value(&self, stage: u32) -> u32 {
        self.landed_values + stage * BARRIER_BYTES
    }

    #[inline(always)]
    pub fn query(&self, stage: u32) -> SharedTileOf<QueryTile<K>> {
        SharedTileOf::at(self.first_query.address + stage * Self::QUERY_BYTES)
    }

    /// Through which rows the output leaves, each warp's through its own: see [`OutputPath`].
    #[inline(always)]
    pub fn output_rows(&self, query_stage: u32) -> SharedTileOf<QueryTile<K>> {
        if const { matches!(K::TILE.output(), OutputPath::QueryTile) } {
            self.query(query_stage)
        } else {
            SharedTileOf::at(self.first_query.address + const { Self::LAYOUT.o })
        }
    }

    /// A tile of the bias. Its last panel is where output of head dim 64 leaves through, all of it that of
    /// wider heads with two warpgroups.
    #[inline(always)]
    pub fn bias(&self) -> SharedTileOf<BiasTile<K>> {
        SharedTileOf::at(self.first_query.address + const { Self::LAYOUT.bias })
    }

    #[inline(always)]
    pub fn key(&self, stage: u32) -> SharedTileOf<KeyTile<K>> {
        SharedTileOf::at(self.first_key.address + stage * Self::KEY_BYTES)
    }

    #[inline(always)]
    pub fn value(&self, stage: u32) -> SharedTileOf<KeyTile<K>> {
        SharedTileOf::at(self.first_value.address + stage * Self::KEY_BYTES)
    }
}
