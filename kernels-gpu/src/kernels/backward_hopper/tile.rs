//! The tile of a kernel of the Hopper backward, and the sizes that follow from it.

use crate::abi::{
    backward_sm90a_d_o_stages, backward_sm90a_query_stages, backward_sm90a_warpgroups, panel_columns,
};
use crate::geometry::size::{StageCount, TileSize};
use crate::tile::element::TensorCoreElement;
use core::marker::PhantomData;

/// What a block works on at a time, and what is on its way to it. A constant of each kernel.
#[derive(Clone, Copy)]
pub struct BackwardTile {
    /// Keys of a block.
    keys: u32,
    /// Queries of a step.
    queries: u32,
    /// Columns of tiles in shared memory.
    columns: u32,
    /// Query tiles on their way or in use.
    query_stages: u32,
    /// Tiles of their dO.
    d_o_stages: u32,
}

impl BackwardTile {
    /// The tile of a kernel of the table.
    pub const fn new(head_dim: u32, queries: u32, keys: u32) -> Self {
        assert!(panel_columns(head_dim) == head_dim && queries.is_multiple_of(16));
        BackwardTile {
            keys,
            queries,
            columns: head_dim,
            query_stages: backward_sm90a_query_stages(keys),
            d_o_stages: backward_sm90a_d_o_stages(head_dim),
        }
    }
}

/// A kernel of the backward, as a type: how much its block has of everything follows from it.
pub trait BackwardKernel: Copy {
    /// The type of q, k, v and dO.
    type Element: TensorCoreElement;
    /// Its tile.
    const TILE: BackwardTile;

    /// Keys of a block.
    const KEYS: u32 = Self::TILE.keys;
    /// Queries of a step.
    const QUERIES: u32 = Self::TILE.queries;
    /// Columns of tiles in shared memory.
    const COLUMNS: u32 = Self::TILE.columns;
    /// Query tiles on their way or in use.
    const QUERY_STAGES: u32 = Self::TILE.query_stages;
    /// Tiles of their dO.
    const D_O_STAGES: u32 = Self::TILE.d_o_stages;
    /// Warpgroups that compute.
    const WARPGROUPS: u32 = backward_sm90a_warpgroups(Self::KEYS);
}

/// A row of the table as such a type.
#[derive(Clone, Copy)]
pub struct Instance<E, const HEAD_DIM: u32, const QUERIES: u32, const KEYS: u32>(PhantomData<E>);

impl<E: TensorCoreElement, const HEAD_DIM: u32, const QUERIES: u32, const KEYS: u32> BackwardKernel
    for Instance<E, HEAD_DIM, QUERIES, KEYS>
{
    type Element = E;
    const TILE: BackwardTile = BackwardTile::new(HEAD_DIM, QUERIES, KEYS);
}

sizes_of! { BackwardKernel:
    /// The size of a query tile, and of a tile of dO.
    QueryTile: TileSize { ROWS: K::QUERIES, ROW_BYTES: 2 * K::COLUMNS }
    /// The size of a key tile, and of a value tile.
    KeyTile: TileSize { ROWS: K::KEYS, ROW_BYTES: 2 * K::COLUMNS }
    /// The size of a tile of dS: a column for each key.
    DsTile: TileSize { ROWS: K::QUERIES, ROW_BYTES: 2 * K::KEYS }
    /// How many query tiles there are at once.
    QueryStages: StageCount { COUNT: K::QUERY_STAGES }
    /// How many tiles of dO.
    OutputGradientStages: StageCount { COUNT: K::D_O_STAGES }
}
