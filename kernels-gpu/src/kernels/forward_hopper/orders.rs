//! Orders as a computing warpgroup sees them: which key tiles are its own, and what comes next.
//!
//! A query tile visits all key tiles that any of its rows sees. A warpgroup whose rows see only a part of
//! them ([`Room::HAS_PARTS`]) goes past the others: the *unseen*, which come before its first one, and those
//! *left* after its last one. Each warp notes its part in shared memory: registers are for the loop. The
//! notes are at an address that the assembler knows to be uniform, which makes uniform what is read there.

use super::room::Room;
use crate::abi::ForwardParams;
use crate::arch::{shared, thread, warp};
use crate::attention::query_block::{QueryBlock, is_split};
use crate::attention::softmax::DEAD_SUM;
use crate::attention::work_order::ReceivedOrder;
use crate::geometry::visible::TileRange;
use crate::pipeline::mailbox::MessageCursor;
use crate::pipeline::stages::Cursor;
use crate::tile::element::TensorCoreElement;
use crate::tile::store;

/// What comes next for a warpgroup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Whatever the next order says.
    Unknown,
    /// A query tile.
    Work,
    /// A query tile of which it has no row.
    Idle,
    /// Nothing.
    End,
}

/// Where in a warp's notes stands how many key tiles are left; before it, the part.
const LEFT: u32 = 16;

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
    /// The address of this warp's notes.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn note(&self) -> u32 {
        self.notes(warp::uniform(thread::thread_idx_x() / 32 - 4))
    }

    /// Notes which key tiles are this warpgroup's.
    ///
    /// # Safety
    /// All 32 lanes call it together, behind their last use of what is noted; the order has a key tile.
    #[inline(always)]
    pub unsafe fn find_part(
        &self,
        p: &ForwardParams,
        order: ReceivedOrder,
        warpgroup: u32,
        note: u32,
        lane: u32,
    ) {
        let part = order.tiles_of_rows(p, Self::TILES, 64 * warpgroup, KEYS, Self::MOST_LEFT);
        if lane == 0 {
            shared::store_u32x4(note, part.words());
        }
        warp::warp_sync();
    }

    /// The key tiles of this warpgroup: those noted, or all.
    ///
    /// # Safety
    /// Behind [`Room::find_part`]; the order can still be read.
    #[inline(always)]
    pub unsafe fn part(order: ReceivedOrder, note: u32) -> TileRange {
        if Self::HAS_PARTS { TileRange::from_words(shared::load_u32x4(note)) } else { order.tiles() }
    }

    /// How many key tiles come before those of this warpgroup.
    ///
    /// # Safety
    /// As [`Room::part`]; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn unseen(order: ReceivedOrder, note: u32) -> u32 {
        warp::uniform((order.tiles().end - Self::part(order, note).end) as u32)
    }

    /// Notes how many key tiles are left after `first_tile`, this warpgroup's last one: the order is
    /// discarded before they have all been passed.
    ///
    /// # Safety
    /// As [`Room::part`]; all 32 lanes call it together, and meet before [`Room::left`].
    #[inline(always)]
    pub unsafe fn note_left(order: ReceivedOrder, first_tile: i32, note: u32, lane: u32) {
        // All have read what was noted of the query tile before.
        warp::warp_sync();
        if lane == 0 {
            shared::store_u32(note + LEFT, (first_tile - order.tiles().begin) as u32);
        }
    }

    /// How many were noted.
    ///
    /// # Safety
    /// Behind [`Room::note_left`]; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn left(note: u32) -> u32 {
        warp::uniform(shared::load_u32(note + LEFT))
    }

    /// Goes past a query tile of which this warpgroup has no row.
    #[inline(always)]
    pub unsafe fn go_past(
        &self,
        orders: &mut MessageCursor,
        queries: &mut Cursor<QUERY_STAGES>,
        keys: &mut Cursor<KEY_STAGES>,
        values: &mut Cursor<VALUE_STAGES>,
        lane: u32,
    ) {
        self.queries.pass(queries, 1, lane == 0);
        let tiles = ReceivedOrder(self.orders.letter(orders)).tiles();
        let mut tile = tiles.begin;
        while tile < tiles.end {
            self.keys.pass(keys, 1, lane == 0);
            self.values.pass(values, 1, lane == 0);
            tile += 1;
        }
        self.orders.discard(orders, lane);
    }

    /// Waits for the next order with a key tile; orders without one are carried out here.
    #[inline(always)]
    pub unsafe fn next_order<E: TensorCoreElement, const O: usize>(
        &self,
        p: &ForwardParams,
        orders: &mut MessageCursor,
        warpgroup: u32,
        place: impl Fn() -> (u32, u32),
    ) -> Next {
        loop {
            let order = ReceivedOrder(self.orders.wait(orders));
            // The last message has none.
            let tiles = order.tiles();
            if tiles.begin < tiles.end {
                let is_idle = Self::GOES_PAST && !order.has_row(64 * warpgroup);
                return if is_idle { Next::Idle } else { Next::Work };
            }
            if order.is_end() {
                return Next::End;
            }
            let (lane, row) = place();
            self.write_dead::<E, O>(p, &order.block(p, Self::TILES), lane, row);
            self.orders.discard(orders, lane);
        }
    }

    /// Output and lse of rows that see no key tile.
    #[inline(always)]
    unsafe fn write_dead<E: TensorCoreElement, const O: usize>(
        &self,
        p: &ForwardParams,
        block: &QueryBlock,
        lane: u32,
        row: u32,
    ) {
        let as_f32 = p.output_f32 != 0;
        let target = if as_f32 { block.o_of_heads::<4>(p) } else { block.o_of_heads::<2>(p) };
        store::store_pairs::<E, O, true>(lane, &[0.0; O], row, 0, &target, as_f32);
        if lane < 16 {
            let is_split = is_split(p, QUERIES);
            let lse = if is_split { DEAD_SUM } else { f32::NEG_INFINITY };
            block.store_statistics(p, is_split, row + lane, 0.0, lse);
        }
    }
}
