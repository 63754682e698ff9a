//! Two threads of the Hopper backward, the writers: each adds a half of every tile of dQ to its accumulator;
//! of wide heads, what one of the two computing warpgroups hands over; of three computing warpgroups, every
//! other tile.
//!
//! Nobody zeroes the accumulator: the first share of a half is stored, the others are added. A note for each
//! half says how far it is ([`key_block::dq_note`]).
//!
//! In order, key tiles add to a query tile from the last to the first, and note their number; the last one
//! that sees the query tile stores. With a causal mask, key tiles that start together then never wait: each
//! comes to a query tile a step after the one that adds before it.
//!
//! In no order, who claims the note first stores, and others wait until it has. While a writer waits, its
//! block soon waits too: so that nobody waits in a circle, a half is claimed only if it will be stored
//! whatever others do. That is when its share is there already; or, for those who claim early, when the
//! block's other writer has been allowed to write all steps before.
//!
//! The wait until a copy was written is the fence between the proxies that the next copy needs.

use super::room::Room;
use super::tile::BackwardKernel;
use crate::abi::layout::{VISITED_STEPS, dq_is_transposed};
use crate::abi::{BackwardParams, DQ_IN_ORDER};
use crate::arch::{bulk_copy, global, shared};
use crate::attention::key_block::{self, CLAIMED, KeyBlock, STORED, Step, UNTOUCHED};
use crate::attention::key_order::KeyOrder;
use crate::geometry::size::Count;
use crate::pipeline::stages::Cursor;

/// How the shares of a key tile are put together with those of others.
struct Shares {
    /// The first query tile of which another key tile adds its share before, if dQ has an order.
    adds_from: i32,
    /// What the note says when a share can be added.
    before: u32,
    /// What it says once the share is there; in no order, if it was stored.
    after: u32,
}

impl Shares {
    #[inline(always)]
    unsafe fn of(p: &BackwardParams, block: &KeyBlock, keys: u32, queries: u32) -> Self {
        if p.dq_order != DQ_IN_ORDER {
            return Shares { adds_from: 0, before: STORED, after: STORED };
        }
        // The next key tile adds first, where it sees the query tile: those from a first one on, since what a
        // key tile sees ends no later than what the next one sees.
        let next_tile = block.first_tile + 1;
        let mut adds_from = i32::MAX;
        if block.has_key(next_tile * keys) {
            let next = block.walk(p, (next_tile * keys) as i32, keys, queries);
            if next.steps > 0 {
                adds_from = next.tiles.begin;
            }
        }
        let (before, after) = (key_block::added_by(next_tile), key_block::added_by(block.first_tile));
        Shares { adds_from, before, after }
    }

    /// Those of a step, with a head of all, where steps are skipped: if dQ has an order, the next key tile
    /// that visits its query tile adds before.
    #[inline(always)]
    unsafe fn of_step(
        self,
        p: &BackwardParams,
        block: &KeyBlock,
        at: &Step,
        keys: u32,
        queries: u32,
    ) -> Self {
        if p.dq_order != DQ_IN_ORDER {
            return self;
        }
        match block.next_visitor(p, keys, (at.tile, queries), at.head) {
            Some(next) => Shares { adds_from: 0, before: key_block::added_by(next), ..self },
            None => Shares { adds_from: i32::MAX, ..self },
        }
    }

    /// A copy that was started is written: the note says so.
    #[inline(always)]
    unsafe fn publish(&self, note: u64) {
        bulk_copy::wait_written::<0>();
        global::store_release_u32(note, self.after);
    }
}

/// A step's share of a half of a tile, and what is known of it before it is there.
#[derive(Clone, Copy)]
struct Share {
    /// The half's note.
    note: u64,
    /// Whether nobody must write before.
    may_write: bool,
    /// Whether the note has been claimed, or tried to be.
    claims: bool,
    /// Whether the share is stored, as far as that is known: else it is added.
    stores: bool,
}

impl<K: BackwardKernel> Room<K> {
    /// Whether halves are claimed before their shares are there, and published only when the next one is
    /// claimed: where the memory that a share waits in is needed for p, too. Measured, causal: head dim 256
    /// 4 % faster; 128 no difference, 64 (and 128 without a mask) up to 1 % slower.
    const CLAIMS_EARLY: bool = Self::WIDE;

    /// A writer: one thread.
    #[inline(always)]
    pub(super) unsafe fn write_dq(&self, p: &BackwardParams, writer: u32) {
        let in_order = p.dq_order == DQ_IN_ORDER;
        // Where steps are skipped, the next note is known when its share is there: then warpgroups may have
        // waited for the other writer, and that one for a block that waits for what is not published.
        let claims_early = Self::CLAIMS_EARLY && !Self::skips_steps() && !in_order;
        let stage = self.dq_stage(writer);
        // For how many steps this writer and the other one may write.
        let (allowed, other_allowed) = (self.allowed(writer), self.allowed(1 - writer));
        // Which half of every tile is this writer's, or whether the last tile was the other one's.
        let half = if Self::WRITERS_TAKE_TURNS { 0 } else { writer };
        let mut others_turn = writer == 0;
        let mut earlier_steps = 0;
        let mut turns = Cursor::start();
        let mut orders = Cursor::start();
        // Of all steps, where some are skipped.
        let mut steps = Cursor::<Count<VISITED_STEPS>>::start();
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            let KeyOrder { block, walk, stretch } = KeyOrder::read(letter, p, K::KEYS);
            self.orders.discard_alone(&mut orders);
            let mut shares = Shares::of(p, &block, K::KEYS, K::QUERIES);
            let mut unpublished = 0;
            let mut at = walk.start();
            while at.step < walk.steps {
                if Self::WRITERS_TAKE_TURNS {
                    others_turn = !others_turn;
                    if others_turn {
                        at = walk.next_of_head(&at);
                        continue;
                    }
                }
                // Where heads are counted from the first of all.
                let mut block = block;
                if Self::skips_steps() {
                    stage.wait(&turns);
                    at = self.visited(&steps).step(walk.steps);
                    steps.advance();
                    shares = shares.of_step(p, &block, &at, K::KEYS, K::QUERIES);
                    block.key_head = 0;
                }
                let note = block.dq_note(p, &at, K::QUERIES, half);
                let claims = claims_early && shared::load_relaxed_u32(other_allowed) >= earlier_steps;
                let found = if claims {
                    global::claim_u32(note, CLAIMED)
                } else {
                    global::load_acquire_u32(note)
                };
                let stores =
                    if in_order { at.tile < shares.adds_from } else { claims && found == UNTOUCHED };
                let may_write = stores || found == shares.before;
                if Self::CLAIMS_EARLY {
                    if unpublished != 0 {
                        shares.publish(unpublished);
                        unpublished = 0;
                    }
                    earlier_steps += 1;
                    if may_write {
                        shared::store_relaxed_u32(allowed, earlier_steps);
                    }
                }
                let share = Share { note, may_write, claims, stores };
                let stores =
                    self.send(p, writer, (&block, &at, half), &shares, share, earlier_steps, &mut turns);
                if stores && claims_early {
                    unpublished = note;
                } else if stores || in_order {
                    shares.publish(note);
                }
                at = walk.next_of_head(&at);
            }
            if unpublished != 0 {
                shares.publish(unpublished);
            }
            bulk_copy::wait_written::<0>();
            if p.counter != 0 {
                global::count_release_u32(block.finished_halves(p), stretch.end - stretch.begin);
            }
        }
    }

    /// Writes a step's share of a half of a tile, part by part as they come, and waits before for who must
    /// write first. Whether it was stored.
    #[inline(always)]
    unsafe fn send(
        &self,
        p: &BackwardParams,
        writer: u32,
        (block, at, half): (&KeyBlock, &Step, u32),
        shares: &Shares,
        share: Share,
        steps: u32,
        turns: &mut Cursor<Count<1>>,
    ) -> bool {
        let Share { note, may_write, claims, mut stores } = share;
        let (dq, stage) = (self.dq(writer), self.dq_stage(writer));
        let (mut offset, mut bytes) = (half * Self::dq_bytes(0), Self::dq_bytes(writer));
        if const { dq_is_transposed(K::QUERIES) } {
            // The last tile of a sequence has rows to its end only.
            bytes = bytes / K::QUERIES * key_block::dq_rows(p, at.tile as u32 * K::QUERIES, K::QUERIES);
            offset = half * bytes;
        }
        let mut target = block.dq_tile(p, at, K::QUERIES) + offset as u64;
        let mut part = 0;
        while part < Self::dq_parts(writer) {
            stage.wait(turns);
            if part == 0 && !may_write {
                if p.dq_order != DQ_IN_ORDER && !claims {
                    stores = global::claim_u32(note, CLAIMED) == UNTOUCHED;
                }
                if !stores {
                    global::wait_for_u32(note, shares.before);
                }
                if Self::CLAIMS_EARLY {
                    shared::store_relaxed_u32(self.allowed(writer), steps);
                }
            }
            if stores {
                bulk_copy::store_bytes(target, dq, bytes);
            } else {
                bulk_copy::add_f32(target, dq, bytes);
            }
            bulk_copy::commit();
            bulk_copy::wait_read::<0>();
            stage.release(turns);
            turns.advance();
            target += bytes as u64;
            part += 1;
        }
        stores
    }
}
