//! The work tile of a Hopper block: what its producer tells the other warps about the next query block, so
//! that they divide nothing and read no lengths.

use super::query_block::{QueryBlock, QueryTiles, is_split};
use super::sequence::Sequence;
use crate::abi::ForwardParams;
use crate::abi::layout::FORWARD_MESSAGE_WORDS as WORDS;
use crate::arch::math;
use crate::geometry::visible::{TileRange, Visible};
use crate::pipeline::mailbox::{Letter, Mailbox};

/// One query block and what to do with it. Written as words:
///
/// ```text
/// 0   first row (or STOP), end of rows, key rows, first query    the lengths
/// 4   head, part, diagonal, stages                               the place
/// 8   key tiles: begin, full begin, full end, end                the tiles
/// ```
///
/// Stages are those whose tiles have tails to be zeroed, or NONE: of queries in the first byte from above, of
/// values in the second one. Below them stands which batch or packed sequence it is, of at most
/// 2^16 where that matters.
#[derive(Clone, Copy)]
pub struct WorkTileInfo {
    /// The query block.
    pub block: QueryBlock,
    /// Key tiles to visit.
    pub tiles: TileRange,
    /// Rows of the query tile must be zeroed, or multiplied by the sign of the scale, before use.
    pub zeroes_queries: bool,
    /// Rows of the last value tile, in stage `value_stage`, must be zeroed before use.
    pub zeroes_values: bool,
    /// Stage of the query tile.
    pub query_stage: u32,
    /// Stage of the last value tile.
    pub value_stage: u32,
}

/// Stages whose tiles have tails to be zeroed.
#[derive(Clone, Copy)]
pub struct Tails {
    /// Stage of the query tile.
    pub query_stage: Option<u32>,
    /// Stage of the last value tile.
    pub value_stage: Option<u32>,
}

/// The first word of the message that says that there is no more work. No row is that large.
const STOP: u32 = u32::MAX;

/// No stage.
const NONE: u32 = u8::MAX as u32;

/// The pipeline of work tiles.
pub type WorkTiles = Mailbox<WORDS>;

impl WorkTileInfo {
    /// The message that ends all work.
    pub const END: [u32; WORDS] = [STOP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The work tile as a message.
    #[inline(always)]
    pub fn message(&self) -> [u32; WORDS] {
        let QueryBlock { sequence, head, first_row, end_row, part, index, .. } = self.block;
        let tiles = self.tiles.words();
        let query_stage = if self.zeroes_queries { self.query_stage } else { NONE };
        let value_stage = if self.zeroes_values { self.value_stage } else { NONE };
        [
            first_row as u32,
            end_row as u32,
            sequence.visible.key_rows as u32,
            sequence.first_query as u32,
            head,
            part,
            sequence.visible.diagonal as u32,
            query_stage << 24 | value_stage << 16 | index & 0xffff,
            tiles[0],
            tiles[1],
            tiles[2],
            tiles[3],
        ]
    }
}

/// The slot of a work tile that has arrived. Nothing is kept: registers are dearer than reading again.
#[derive(Clone, Copy)]
pub struct WorkTileSlot(pub Letter);

impl WorkTileSlot {
    /// Whether it ends all work.
    ///
    /// # Safety
    /// The slot can still be read.
    #[inline(always)]
    pub unsafe fn is_end(self) -> bool {
        self.0.group::<0>()[0] == STOP
    }

    /// The key tiles to visit.
    ///
    /// # Safety
    /// As [`WorkTileSlot::is_end`].
    #[inline(always)]
    pub unsafe fn tiles(self) -> TileRange {
        TileRange::from_words(self.0.group::<2>())
    }

    /// Whether the block's row `row` exists.
    ///
    /// # Safety
    /// As [`WorkTileSlot::is_end`].
    #[inline(always)]
    pub unsafe fn has_row(self, row: u32) -> bool {
        let [first_row, end_row, ..] = self.0.group::<0>().map(|word| word as i32);
        first_row + (row as i32) < end_row
    }

    /// Those of the key tiles, of `keys` keys each, that rows `first..first + 64` of the query tile visit:
    /// one at least, and at most `most_trailing` are skipped behind them.
    ///
    /// # Safety
    /// As [`WorkTileSlot::is_end`]; there is a key tile.
    #[inline(always)]
    pub unsafe fn tiles_of_rows(
        self,
        p: &ForwardParams,
        tiles: QueryTiles,
        first: u32,
        keys: u32,
        most_trailing: u32,
    ) -> TileRange {
        let QueryBlock { sequence, row_heads, first_row, end_row, .. } = self.block(p, tiles);
        let first = first_row + first as i32;
        let end = if first + 64 < end_row { first + 64 } else { end_row };
        let (keys, most_trailing) = (keys as i32, most_trailing as i32);
        let queries = row_heads.queries((first, end - 1));
        sequence.visible.tiles_of_rows(&self.tiles(), queries, keys, most_trailing)
    }

    /// The query block, except for its key head, batch, first key and number of queries, which only the
    /// producer uses.
    ///
    /// # Safety
    /// As [`WorkTileSlot::is_end`].
    #[inline(always)]
    pub unsafe fn block(self, p: &ForwardParams, tiles: QueryTiles) -> QueryBlock {
        let [first_row, end_row, key_rows, first_query] = self.0.group::<0>().map(|word| word as i32);
        let [head, part, diagonal, stages] = self.0.group::<1>();
        let diagonal = diagonal as i32;
        let index = stages & 0xffff;
        let mut first_key = 0;
        if is_split(p, tiles.rows) {
            let range = part - math::divide(part, p.splits) * p.splits;
            first_key = (range * p.split_keys) as i32;
        }
        let visible = Visible { key_rows, diagonal, left: p.window_left, right: p.window_right };
        let sequence = Sequence { batch: part, first_query, first_key: 0, query_rows: 0, visible };
        let row_heads = tiles.row_heads(p);
        QueryBlock { sequence, head, row_heads, first_row, end_row, key_head: 0, part, index, first_key }
    }

    /// What has tails to be zeroed.
    ///
    /// # Safety
    /// As [`WorkTileSlot::is_end`].
    #[inline(always)]
    pub unsafe fn tails(self) -> Tails {
        let [_, _, _, stages] = self.0.group::<1>();
        let stage = |half| if half == NONE { None } else { Some(half) };
        Tails { query_stage: stage(stages >> 24), value_stage: stage(stages >> 16 & 0xff) }
    }
}
