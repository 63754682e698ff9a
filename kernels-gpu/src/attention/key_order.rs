//! What the producer of a Hopper block tells the others about the next tile of keys, so that they divide
//! nothing and read no lengths.

use super::key_block::{self, KeyBlock, Step, Walk};
use super::sequence::Sequence;
use crate::abi::layout::BACKWARD_MESSAGE_WORDS as WORDS;
use crate::abi::{BackwardParams, DQ_STAGGERED};
use crate::geometry::stretch::Stretch;
use crate::geometry::visible::{TileRange, Visible};
use crate::pipeline::mailbox::{Letter, Mailbox};

/// A tile of keys and the query tiles that see it, as far as they are this block's. Written as words:
///
/// ```text
/// 0   key tile (or STOP), query rows, key rows, first query      the lengths
/// 4   key head, batch, first key, first row in the workspace     the place
/// 8   query tiles: begin, full begin, full end, end              the tiles
/// 12  steps, first head, first tile, first tile of other heads   the steps
/// 16  begin, end, turn, number of the key tile                   the stretch
/// ```
#[derive(Clone, Copy)]
pub struct KeyOrder {
    /// The key tile.
    pub block: KeyBlock,
    /// The query tiles.
    pub walk: Walk,
    /// Which part of the tile's steps these are.
    pub stretch: Stretch,
}

/// Where orders are sent through.
pub type KeyOrders = Mailbox<WORDS>;

/// The first word of the message that says that there is no more work. There are not as many tiles.
const STOP: u32 = u32::MAX;

impl KeyOrder {
    /// Writes that there is no more work.
    ///
    /// # Safety
    /// As [`Letter::write`].
    #[inline(always)]
    pub unsafe fn write_end(letter: Letter) {
        letter.write::<0>([STOP, 0, 0, 0]);
    }

    /// Writes the lengths and the place.
    ///
    /// # Safety
    /// As [`Letter::write`].
    #[inline(always)]
    pub unsafe fn write_block(letter: Letter, block: &KeyBlock) {
        let sequence = &block.sequence;
        let (query_rows, key_rows) = (sequence.query_rows as u32, sequence.visible.key_rows as u32);
        letter.write::<0>([block.first_tile, query_rows, key_rows, sequence.first_query as u32]);
        let first_key = sequence.first_key as u32;
        letter.write::<1>([block.key_head, sequence.batch, first_key, block.workspace_row]);
    }

    /// Writes the tiles of `queries` queries, for a block of `keys` keys.
    ///
    /// # Safety
    /// As [`Letter::write`]; the lengths are written.
    #[inline(always)]
    pub unsafe fn write_tiles(letter: Letter, p: &BackwardParams, keys: u32, queries: u32) {
        let block = KeyOrder::block(letter, p);
        let mut walk = block.walk(p, (block.first_tile * keys) as i32, keys, queries);
        if p.dq_order == DQ_STAGGERED {
            walk = walk.hiding_nothing();
        }
        letter.write::<2>(walk.tiles.words());
    }

    /// Writes the steps, which the rest of the message says.
    ///
    /// # Safety
    /// As [`Letter::write`]; the rest is written. `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn write_steps(letter: Letter, p: &BackwardParams) {
        let [key_tile, ..] = letter.group::<0>();
        let tiles = TileRange::from_words(letter.group::<2>());
        let head_begins_with = key_block::first_query_tile(p, key_tile, &tiles);
        let walk = Walk::all(p, tiles, false).part(p, &KeyOrder::stretch(letter), head_begins_with);
        letter.write::<3>([
            walk.steps,
            walk.first_head,
            walk.first_tile as u32,
            head_begins_with as u32,
        ]);
    }

    /// Writes, in place of the steps, that there are none.
    ///
    /// # Safety
    /// As [`Letter::write`].
    #[inline(always)]
    pub unsafe fn write_no_steps(letter: Letter) {
        letter.write::<3>([0; 4]);
    }

    /// Writes the stretch.
    ///
    /// # Safety
    /// As [`Letter::write`].
    #[inline(always)]
    pub unsafe fn write_stretch(letter: Letter, stretch: &Stretch) {
        letter.write::<4>([stretch.begin, stretch.end, stretch.turn, stretch.tile]);
    }

    /// The stretch alone.
    ///
    /// # Safety
    /// The letter can still be read.
    #[inline(always)]
    pub unsafe fn stretch(letter: Letter) -> Stretch {
        let [begin, end, turn, tile] = letter.group::<4>();
        Stretch { begin, end, turn, tile }
    }

    /// Whether a message ends all work.
    ///
    /// # Safety
    /// The letter can still be read.
    #[inline(always)]
    pub unsafe fn ends(letter: Letter) -> bool {
        let [first_tile, ..] = letter.group::<0>();
        first_tile == STOP
    }

    /// The lengths and the place.
    ///
    /// # Safety
    /// As [`KeyOrder::stretch`].
    #[inline(always)]
    unsafe fn block(letter: Letter, p: &BackwardParams) -> KeyBlock {
        let [first_tile, query_rows, key_rows, first_query] = letter.group::<0>();
        let [key_head, batch, first_key, workspace_row] = letter.group::<1>();
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
        let visible = visible.transposed(query_rows);
        KeyBlock { sequence, workspace_row, key_head, first_tile, visible }
    }

    /// The query head of step `at`, which counts with [`Walk::next`]: its tile is right wherever heads begin,
    /// and its head is counted anew.
    ///
    /// # Safety
    /// As [`KeyOrder::stretch`].
    #[inline(always)]
    pub unsafe fn head(letter: Letter, p: &BackwardParams, at: &Step) -> u32 {
        let [begin, .., end] = letter.group::<2>();
        let [_, first_head, first_tile, head_begins_with] = letter.group::<3>();
        let tiles = end - begin;
        let mut steps = at.step + first_tile - head_begins_with;
        if (first_tile as i32) < head_begins_with as i32 {
            steps += tiles;
        }
        let [key_head, ..] = letter.group::<1>();
        let mut head = key_head * p.group_size + first_head;
        while steps >= tiles {
            steps -= tiles;
            head += 1;
        }
        head
    }

    /// Device address of the references of the rows of step `at`, of `queries` queries, which counts with
    /// [`Walk::next`].
    ///
    /// # Safety
    /// As [`KeyOrder::stretch`].
    #[inline(always)]
    pub unsafe fn references(letter: Letter, p: &BackwardParams, at: &Step, queries: u32) -> u64 {
        let head = KeyOrder::head(letter, p, at);
        let [.., workspace_row] = letter.group::<1>();
        key_block::references(p, head, workspace_row + at.tile as u32 * queries)
    }

    /// The order in a message that is not [the end](KeyOrder::write_end), for tiles of `keys` keys.
    ///
    /// # Safety
    /// The letter can still be read.
    #[inline(always)]
    pub unsafe fn read(letter: Letter, p: &BackwardParams, keys: u32) -> Self {
        let block = KeyOrder::block(letter, p);
        let tiles = TileRange::from_words(letter.group::<2>());
        let [steps, first_head, first_tile, head_begins_with] = letter.group::<3>();
        let ragged = ((block.first_tile + 1) * keys) as i32 > block.sequence.visible.key_rows;
        let (first_tile, head_begins_with) = (first_tile as i32, head_begins_with as i32);
        let walk = Walk { tiles, ragged, steps, first_head, first_tile, head_begins_with };
        KeyOrder { block, walk, stretch: KeyOrder::stretch(letter) }
    }
}
