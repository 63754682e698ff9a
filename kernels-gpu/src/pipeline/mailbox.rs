//! Short messages from one thread to all warps that work for it, through shared memory, two at a time.

use super::stages::{Cursor, Stages};
use crate::arch::{shared, warp};

/// Words of a message.
pub const WORDS: usize = MESSAGE_BYTES as usize / 4;

const MESSAGES: u32 = crate::abi::layout::MESSAGES;
const MESSAGE_BYTES: u32 = crate::abi::layout::MESSAGE_BYTES;

/// Two messages and their barriers, at a shared address that is a multiple of 16.
#[derive(Clone, Copy)]
pub struct Mailbox {
    stages: Stages<MESSAGES>,
    address: u32,
}

/// Where its owner stands in the sequence of messages.
pub type MessageCursor = Cursor<MESSAGES>;

impl Mailbox {
    /// Shared memory of the messages and their barriers.
    pub const BYTES: u32 = MESSAGES * MESSAGE_BYTES + Stages::<MESSAGES>::BYTES;

    /// The mailbox at shared address `address`.
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Mailbox { stages: Stages::new(address + MESSAGES * MESSAGE_BYTES), address }
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
        self.stages.acquire(cursor);
        let address = self.address + cursor.stage() * MESSAGE_BYTES;
        let mut i = 0;
        while i < WORDS {
            let four = [message[i], message[i + 1], message[i + 2], message[i + 3]];
            shared::store_u32x4(address + 4 * i as u32, four);
            i += 4;
        }
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
        Letter { address: self.address + cursor.stage() * MESSAGE_BYTES }
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
    /// Words `4 group..4 group + 4`.
    ///
    /// # Safety
    /// Before the message is discarded.
    #[inline(always)]
    pub unsafe fn group(self, group: u32) -> [u32; 4] {
        shared::load_u32x4(self.address + 16 * group)
    }
}
