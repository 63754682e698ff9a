//! The tile of a kernel of the Hopper forward, and what follows from it: decisions, each measured.

use crate::abi::layout::BIAS_TILE_KEYS;
use crate::abi::{
    OUTPUT_BOX_ROWS, forward_sm90a_keeps_output_apart, forward_sm90a_key_and_value_stages,
    forward_sm90a_query_stages, panel_columns,
};
use crate::attention::query_block::QueryTiles;
use crate::geometry::size::{StageCount, TileSize};
use crate::tile::element::TensorCoreElement;
use core::marker::PhantomData;

/// Query rows of a warpgroup: those of a `wgmma`.
pub const WARPGROUP_ROWS: u32 = 64;

/// The size of a work tile and of what is on its way to it. A constant of each kernel.
#[derive(Clone, Copy)]
pub struct ForwardTile {
    /// Query rows, 64 for each consumer warpgroup.
    pub queries: u32,
    /// Keys of a step.
    pub keys: u32,
    /// Columns of tiles in shared memory, panels of 64.
    pub columns: u32,
    /// Query tiles on their way or in use.
    pub query_stages: u32,
    /// Key tiles.
    pub key_stages: u32,
    /// Value tiles.
    pub value_stages: u32,
    /// Whether rows are of several heads that share keys ([`crate::geometry::row_heads`]).
    pub gathers_heads: bool,
}

/// A kernel of the forward, as a type: how much its block has of everything follows from it.
pub trait ForwardKernel: Copy {
    /// The type of q, k, v and o.
    type Element: TensorCoreElement;
    /// Its tile.
    const TILE: ForwardTile;

    /// Query rows of a work tile.
    const QUERIES: u32 = Self::TILE.queries;
    /// Keys of a step.
    const KEYS: u32 = Self::TILE.keys;
    /// Consumer warpgroups.
    const WARPGROUPS: u32 = Self::TILE.warpgroups();
    /// Whether rows are of several heads that share keys.
    const GATHERS_HEADS: bool = Self::TILE.gathers_heads;
}

/// A row of the table as such a type.
#[derive(Clone, Copy)]
pub struct Instance<
    E,
    const HEAD_DIM: u32,
    const QUERIES: u32,
    const KEYS: u32,
    const GATHERS_HEADS: bool,
>(PhantomData<E>);

impl<
    E: TensorCoreElement,
    const HEAD_DIM: u32,
    const QUERIES: u32,
    const KEYS: u32,
    const GATHERS_HEADS: bool,
> ForwardKernel for Instance<E, HEAD_DIM, QUERIES, KEYS, GATHERS_HEADS>
{
    type Element = E;
    const TILE: ForwardTile = ForwardTile::new(HEAD_DIM, QUERIES, KEYS, GATHERS_HEADS);
}

sizes_of! { ForwardKernel:
    /// The size of a query tile.
    QueryTile: TileSize { ROWS: K::QUERIES, ROW_BYTES: 2 * K::TILE.columns }
    /// The size of a key tile, and of a value tile.
    KeyTile: TileSize { ROWS: K::KEYS, ROW_BYTES: 2 * K::TILE.columns }
    /// The size of a tile of the bias.
    BiasTile: TileSize { ROWS: K::QUERIES, ROW_BYTES: 2 * BIAS_TILE_KEYS }
    /// How many query tiles there are at once.
    QueryStages: StageCount { COUNT: K::TILE.query_stages }
    /// How many key tiles.
    KeyStages: StageCount { COUNT: K::TILE.key_stages }
    /// How many value tiles.
    ValueStages: StageCount { COUNT: K::TILE.value_stages }
}

/// Through what an output of 16 bits leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OutputPath {
    /// Registers: lanes exchange halves of their chunks of 16 bytes.
    Registers,
    /// The rows of the query tile that it belongs to, which is kept until then: where queries stay in shared
    /// memory, which has no room for anything else.
    QueryTile,
    /// Rows of its own. The last product with values then comes before the next work tile's scores, beside
    /// which the output leaves, through rows that no product reads.
    OwnRows,
}

/// Which key tiles, of those that the rows of a query tile see, a warpgroup visits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyTiles {
    /// All. Two warpgroups with 128 keys a tile see the same.
    All,
    /// Its own range: it skips key tiles that only rows of others see, and masks no tile that all of its rows
    /// see.
    OwnRange,
    /// The same, and none of query tiles of which it has no row: with three warpgroups a third or two of one
    /// tile of most lengths.
    OwnRangeOrNone,
}

impl ForwardTile {
    /// The tile of a kernel of the table.
    pub const fn new(head_dim: u32, queries: u32, keys: u32, gathers_heads: bool) -> Self {
        assert!(queries.is_multiple_of(WARPGROUP_ROWS) && keys.is_multiple_of(16));
        let [key_stages, value_stages] = forward_sm90a_key_and_value_stages(head_dim, queries, keys);
        let query_stages = forward_sm90a_query_stages(head_dim, queries);
        assert!(key_stages >= 1 && value_stages >= key_stages && query_stages.is_power_of_two());
        let columns = panel_columns(head_dim);
        ForwardTile { queries, keys, columns, query_stages, key_stages, value_stages, gathers_heads }
    }

    /// Consumer warpgroups.
    pub const fn warpgroups(self) -> u32 {
        self.queries / WARPGROUP_ROWS
    }

    /// The query tiles of a launch. How many rows at a time the first one of a sequence may lack: a
    /// warpgroup's 64 rows stay where they are if that keeps the keys on their diagonal in one tile (measured
    /// at head dim 64, S 4097 causal: 1 %); others move by as many as leave in one piece. The rows of a warp
    /// are then all the tile's own, or none: what is in the next tile's has no say in their softmax.
    pub const fn query_tiles(self) -> QueryTiles {
        let step =
            if self.keys.is_multiple_of(WARPGROUP_ROWS) { WARPGROUP_ROWS } else { OUTPUT_BOX_ROWS };
        assert!(step.is_multiple_of(16) && self.queries.is_multiple_of(step));
        QueryTiles { rows: self.queries, step, gathers_heads: self.gathers_heads }
    }

    /// Whether the first scores of the next work tile are started before this one is done. Where queries stay
    /// in shared memory and there is room for one tile of them only, the next one comes too late for that.
    pub const fn looks_ahead(self) -> bool {
        self.query_stages > 1 || query_registers(self.columns, self.queries, self.keys) > 0
    }

    /// Through what the output leaves. For two warpgroups of head dim 64, whose tiles are short, what shared
    /// memory saves is less than the two synchronisations of a warp cost.
    pub const fn output(self) -> OutputPath {
        if !self.looks_ahead() || (self.warpgroups() == 2 && self.columns == 64) {
            OutputPath::Registers
        } else if forward_sm90a_keeps_output_apart(self.columns, self.queries) {
            OutputPath::OwnRows
        } else {
            OutputPath::QueryTile
        }
    }

    /// Whether an output of `registers` per thread leaves by the tensor memory accelerator. At head dims 80
    /// and 96, where half a box or more is empty, that was measured slower. No box has rows of several heads.
    pub const fn sends_output(self, registers: usize) -> bool {
        let is_staged = !matches!(self.output(), OutputPath::Registers);
        is_staged && !self.gathers_heads && 2 * registers == self.columns as usize
    }

    /// Which key tiles a warpgroup visits.
    pub const fn key_tiles(self) -> KeyTiles {
        if self.warpgroups() > 2 {
            KeyTiles::OwnRangeOrNone
        } else if self.keys < 128 {
            KeyTiles::OwnRange
        } else {
            KeyTiles::All
        }
    }

    /// Whether only key tiles are visited of which a boolean mask shows something. Not with three warpgroups,
    /// whose tiles of 192 rows no plan takes under a mask: they have no register left for it.
    pub const fn skips_key_tiles(self) -> bool {
        self.warpgroups() == 2
    }

    /// Whether a bias of 16 bits comes through shared memory. The rows of its tile are a warp's own, so they
    /// are queries of one head.
    pub const fn stages_bias(self) -> bool {
        self.keys == BIAS_TILE_KEYS && self.columns <= BIAS_TILE_KEYS && !self.gathers_heads
    }

    /// How many key tiles a warpgroup skips behind its range at most. While it waits for the keys of the next
    /// work tile it still has the stage of its last values: values of more tiles than there are other stages
    /// would never come, nor what comes after them.
    pub const fn most_trailing(self) -> u32 {
        self.value_stages - 1
    }

    /// Whether the last values of a work tile are waited for before the next work tile is: a product with
    /// them comes before the next scores, or one of no consequence in their place.
    pub const fn waits_for_values_first(self) -> bool {
        let may_skip = matches!(self.key_tiles(), KeyTiles::OwnRangeOrNone);
        may_skip || matches!(self.output(), OutputPath::OwnRows)
    }

    /// Whether the row max of a work tile's first key tile is estimated from a quarter of its scores.
    pub const fn estimates_row_max(self) -> bool {
        self.warpgroups() > 2
    }
}

/// Registers of queries per thread: with two warpgroups and 128 keys a step there is room for them at head
/// dims from 80 to 128. f32 in two parts, with 64 keys a step, leaves none.
pub const fn query_registers(head_dim: u32, queries: u32, keys: u32) -> usize {
    if panel_columns(head_dim) == 128 && queries <= 128 && keys == 128 {
        head_dim as usize / 4
    } else {
        0
    }
}
