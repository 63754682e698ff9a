//! What the producer of a Hopper block tells the others about the next tile of keys, so that they divide
//! nothing and read no lengths.

use super::key_block::{KeyBlock, Walk};
use super::sequence::Sequence;
use crate::abi::BackwardParams;
use crate::geometry::visible::{TileRange, Visible};
use crate::pipeline::mailbox::{Letter, WORDS};

/// A tile of keys and the query tiles that see it. Written as words:
///
/// ```text
/// 0   key tile (or STOP), query rows, key rows, first query      the lengths
/// 4   key head, batch, first key, first row in the workspace     the place
/// 8   query tiles: begin, full begin, full end, end              the tiles
/// ```
#[derive(Clone, Copy)]
pub struct KeyOrder {
    /// The key tile.
    pub block: KeyBlock,
    /// The query tiles.
    pub walk: Walk,
}

/// The first word of the message that says that there is no more work. There are not as many tiles.
const STOP: u32 = u32::MAX;

impl KeyOrder {
    /// The message that ends all work.
    pub const END: [u32; WORDS] = [STOP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The order as a message.
    #[inline(always)]
    pub fn message(&self) -> [u32; WORDS] {
        let KeyOrder { block, walk } = self;
        let sequence = &block.sequence;
        [
            block.first_tile,
            sequence.query_rows as u32,
            sequence.visible.key_rows as u32,
            sequence.first_query as u32,
            block.key_head,
            sequence.batch,
            sequence.first_key as u32,
            block.workspace_row,
            walk.tiles.begin as u32,
            walk.tiles.full_begin as u32,
            walk.tiles.full_end as u32,
            walk.tiles.end as u32,
        ]
    }

    /// Whether a message ends all work.
    ///
    /// # Safety
    /// The letter can still be read.
    #[inline(always)]
    pub unsafe fn ends(letter: Letter) -> bool {
        let [first_tile, ..] = letter.group(0);
        first_tile == STOP
    }

    /// The order in a message that is not [`Self::END`], for tiles of `keys` keys.
    ///
    /// # Safety
    /// The letter can still be read.
    #[inline(always)]
    pub unsafe fn read(letter: Letter, p: &BackwardParams, keys: u32) -> Self {
        let [first_tile, query_rows, key_rows, first_query] = letter.group(0);
        let [key_head, batch, first_key, workspace_row] = letter.group(1);
        let [begin, full_begin, full_end, end] = letter.group(2).map(|word| word as i32);
        let (query_rows, key_rows) = (query_rows as i32, key_rows as i32);
        let diagonal = if p.bottom_right != 0 { key_rows - query_rows } else { 0 };
        let visible = Visible { key_rows, diagonal, left: p.window_left, right: p.window_right };
        let sequence = Sequence {
            batch,
            first_query: first_query as i32,
            first_key: first_key as i32,
            query_rows,
            visible,
        };
        let block = KeyBlock {
            sequence,
            workspace_row,
            key_head,
            first_tile,
            visible: visible.transposed(query_rows),
        };
        let tiles = TileRange { begin, full_begin, full_end, end };
        let ragged = ((first_tile + 1) * keys) as i32 > key_rows;
        let walk = Walk { tiles, ragged, steps: (end - begin) as u32 * p.group_size };
        KeyOrder { block, walk }
    }
}
