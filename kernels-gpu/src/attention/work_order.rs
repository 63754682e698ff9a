//! What the producer of a Hopper block tells the others about the next query block, so that they divide
//! nothing and read no lengths.

use super::query_block::{QueryBlock, QueryTiles};
use super::sequence::Sequence;
use crate::abi::ForwardParams;
use crate::abi::layout::FORWARD_MESSAGE_WORDS as WORDS;
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
/// Stages are those whose tiles must be repaired, or NONE: of queries in the upper half, of values in the
/// lower one.
#[derive(Clone, Copy)]
pub struct WorkOrder {
    /// The query block.
    pub block: QueryBlock,
    /// Key tiles to visit.
    pub tiles: TileRange,
    /// The query tile must be repaired before use.
    pub repairs_queries: bool,
    /// The last value tile, in stage `value_stage`, must be repaired before use.
    pub repairs_values: bool,
    /// Stage of the query tile.
    pub query_stage: u32,
    /// Stage of the last value tile.
    pub value_stage: u32,
}

/// Stages whose tiles must be repaired.
#[derive(Clone, Copy)]
pub struct Repairs {
    /// Stage of the query tile.
    pub query_stage: Option<u32>,
    /// Stage of the last value tile.
    pub value_stage: Option<u32>,
}

/// The first word of the message that says that there is no more work. No row is that large.
const STOP: u32 = u32::MAX;

/// No stage.
const NONE: u32 = u16::MAX as u32;

/// Where orders are sent through.
pub type WorkOrders = Mailbox<WORDS>;

impl WorkOrder {
    /// The message that ends all work.
    pub const END: [u32; WORDS] = [STOP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The order as a message.
    #[inline(always)]
    pub fn message(&self) -> [u32; WORDS] {
        let QueryBlock { sequence, head, first_row, end_row, part, .. } = self.block;
        let tiles = self.tiles.words();
        let query_stage = if self.repairs_queries { self.query_stage } else { NONE };
        let value_stage = if self.repairs_values { self.value_stage } else { NONE };
        [
            first_row as u32,
            end_row as u32,
            sequence.visible.key_rows as u32,
            sequence.first_query as u32,
            head,
            part,
            sequence.visible.diagonal as u32,
            query_stage << 16 | value_stage,
            tiles[0],
            tiles[1],
            tiles[2],
            tiles[3],
        ]
    }
}

/// A work order as it arrives. Nothing is kept: registers are dearer than reading again.
#[derive(Clone, Copy)]
pub struct ReceivedOrder(pub Letter);

impl ReceivedOrder {
    /// Whether it ends all work.
    ///
    /// # Safety
    /// The letter can still be read.
    #[inline(always)]
    pub unsafe fn is_end(self) -> bool {
        self.0.group::<0>()[0] == STOP
    }

    /// The key tiles to visit.
    ///
    /// # Safety
    /// As [`ReceivedOrder::is_end`].
    #[inline(always)]
    pub unsafe fn tiles(self) -> TileRange {
        TileRange::from_words(self.0.group::<2>())
    }

    /// Whether the block's row `row` exists.
    ///
    /// # Safety
    /// As [`ReceivedOrder::is_end`].
    #[inline(always)]
    pub unsafe fn has_row(self, row: u32) -> bool {
        let [first_row, end_row, ..] = self.0.group::<0>().map(|word| word as i32);
        first_row + (row as i32) < end_row
    }

    /// Those of the key tiles, of `keys` keys each, that rows `first..first + 64` of the query tile
    /// visit: one at least, and at most `most_left` are left after them.
    ///
    /// # Safety
    /// As [`ReceivedOrder::is_end`]; the order has a key tile.
    #[inline(always)]
    pub unsafe fn tiles_of_rows(
        self,
        p: &ForwardParams,
        tiles: QueryTiles,
        first: u32,
        keys: u32,
        most_left: u32,
    ) -> TileRange {
        let QueryBlock { sequence, row_heads, first_row, end_row, .. } = self.block(p, tiles);
        let first = first_row + first as i32;
        let end = if first + 64 < end_row { first + 64 } else { end_row };
        let (keys, most_left) = (keys as i32, most_left as i32);
        let queries = row_heads.queries((first, end - 1));
        sequence.visible.tiles_of_part(&self.tiles(), queries, keys, most_left)
    }

    /// The query block, except for its key head, batch, first key and number of queries, which only the
    /// producer uses.
    ///
    /// # Safety
    /// As [`ReceivedOrder::is_end`].
    #[inline(always)]
    pub unsafe fn block(self, p: &ForwardParams, tiles: QueryTiles) -> QueryBlock {
        let [first_row, end_row, key_rows, first_query] = self.0.group::<0>().map(|word| word as i32);
        let [head, part, diagonal, _] = self.0.group::<1>();
        let diagonal = diagonal as i32;
        let visible = Visible { key_rows, diagonal, left: p.window_left, right: p.window_right };
        let sequence = Sequence { batch: part, first_query, first_key: 0, query_rows: 0, visible };
        let row_heads = tiles.row_heads(p);
        QueryBlock { sequence, head, row_heads, first_row, end_row, key_head: 0, part }
    }

    /// What must be repaired.
    ///
    /// # Safety
    /// As [`ReceivedOrder::is_end`].
    #[inline(always)]
    pub unsafe fn repairs(self) -> Repairs {
        let [_, _, _, stages] = self.0.group::<1>();
        let stage = |half| if half == NONE { None } else { Some(half) };
        Repairs { query_stage: stage(stages >> 16), value_stage: stage(stages & 0xffff) }
    }
}
