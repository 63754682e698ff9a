//! Short messages from one thread to all warps that work for it, through shared memory, two at a time.

use super::stages::{Cursor, Stages};
use crate::arch::{shared, thread, warp};
use crate::geometry::size::Count;

const MESSAGES: u32 = crate::abi::layout::MESSAGES;

/// Two messages of `WORDS` words (groups of four) and their barriers, at a shared address that is a
/// multiple of 16.
#[derive(Clone, Copy)]
pub struct Mailbox<const WORDS: usize> {
    stages: Stages<Count<MESSAGES>>,
    address: u32,
}

/// Where its owner stands in the sequence of messages.
pub type MessageCursor = Cursor<Count<MESSAGES>>;

impl<const WORDS: usize> Mailbox<WORDS> {
    const MESSAGE_BYTES: u32 = 4 * WORDS as u32;
    /// Shared memory of the messages and their barriers.
    pub const BYTES: u32 = MESSAGES * Self::MESSAGE_BYTES + Stages::<Count<MESSAGES>>::BYTES;

    /// The mailbox at shared address `address`.
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Mailbox { stages: Stages::new(address + MESSAGES * Self::MESSAGE_BYTES), address }
    }

    /// Makes the barriers, for `readers` warps that get every message.
    ///
    /// # Safety
    /// As [`Stages::init`].
    #[inline(always)]
    pub unsafe fn init(&self, readers: u32) {
        self.stages.init(1, readers);
    }

    /// Sends a message; waits until there is room.
    ///
    /// # Safety
    /// One thread sends all of them.
    #[inline(always)]
    pub unsafe fn send(&self, cursor: &mut MessageCursor, message: [u32; WORDS]) {
        let Letter { address } = self.begin(cursor);
        let mut i = 0;
        while i < WORDS {
            let four = [message[i], message[i + 1], message[i + 2], message[i + 3]];
            shared::store_u32x4(address + 4 * i as u32, four);
            i += 4;
        }
        self.end(cursor);
    }

    /// Begins a message, which who has no registers for all of it writes by and by; waits until there is
    /// room.
    ///
    /// # Safety
    /// As [`Mailbox::send`].
    #[inline(always)]
    pub unsafe fn begin(&self, cursor: &MessageCursor) -> Letter {
        self.stages.acquire(cursor);
        self.letter(cursor)
    }

    /// Sends a message that was begun.
    ///
    /// # Safety
    /// As [`Mailbox::send`]; it is written.
    #[inline(always)]
    pub unsafe fn end(&self, cursor: &mut MessageCursor) {
        self.stages.fill(cursor);
        cursor.advance();
    }

    /// Waits for the next message.
    ///
    /// # Safety
    /// All 32 lanes of a reader (or its only thread) call it together, once for every message, and
    /// [`Mailbox::discard`] follows.
    #[inline(always)]
    pub unsafe fn wait(&self, cursor: &MessageCursor) -> Letter {
        self.stages.wait(cursor);
        self.letter(cursor)
    }

    /// The message that [`Mailbox::wait`] gave.
    #[inline(always)]
    pub fn letter(&self, cursor: &MessageCursor) -> Letter {
        Letter { address: self.address + cursor.stage() * Self::MESSAGE_BYTES }
    }

    /// [`Mailbox::letter`], worked out at this place: registers are for what every step needs.
    #[inline(always)]
    pub fn letter_here(&self, cursor: &MessageCursor) -> Letter {
        Letter { address: self.address + thread::opaque(cursor.stage()) * Self::MESSAGE_BYTES }
    }

    /// The message will not be read again.
    ///
    /// # Safety
    /// All 32 lanes of the reader call it together.
    #[inline(always)]
    pub unsafe fn discard(&self, cursor: &mut MessageCursor, lane: u32) {
        warp::warp_sync();
        if lane == 0 {
            self.stages.release(cursor);
        }
        cursor.advance();
    }

    /// As [`Mailbox::discard`], for a reader that is one thread.
    ///
    /// # Safety
    /// The thread is the only one of its warp that reads.
    #[inline(always)]
    pub unsafe fn discard_alone(&self, cursor: &mut MessageCursor) {
        self.stages.release(cursor);
        cursor.advance();
    }
}

/// A message that can be read any number of times: rather again than kept in registers.
#[derive(Clone, Copy)]
pub struct Letter {
    address: u32,
}

impl Letter {
    /// Words `4 GROUP..4 GROUP + 4`.
    ///
    /// # Safety
    /// Before the message is discarded.
    #[inline(always)]
    pub unsafe fn group<const GROUP: u32>(self) -> [u32; 4] {
        shared::load_u32x4_of::<GROUP>(self.address)
    }

    /// Writes words `4 GROUP..4 GROUP + 4`.
    ///
    /// # Safety
    /// Between [`Mailbox::begin`] and [`Mailbox::end`].
    #[inline(always)]
    pub unsafe fn write<const GROUP: u32>(self, words: [u32; 4]) {
        shared::store_u32x4(self.address + 16 * GROUP, words);
    }
}
