//! What is known about each byte of memory.
//!
//! A shadow holds one [`State`] per byte, apart from the data. The instructions ask about whole ranges:
//! the usual answer, "all written", comes from comparing eight states at a time.

pub mod actor;
pub mod cells;
mod clock;
pub mod global;
mod global_lanes;
pub mod knowledge;
pub mod lane_clocks;
pub mod lanes;
mod meetings;
pub mod orders;
pub mod race;
mod sets;

use crate::unaligned::{read, write};

/// The state of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nothing wrote it.
    Unwritten = 0,
    /// Something wrote it.
    Written = 1,
    /// An asynchronous copy will write it; nothing did before.
    InFlight = 2,
    /// An asynchronous copy will overwrite it.
    InFlightOverWritten = 3,
    /// Something wrote it whose value is not defined.
    Undefined = 4,
}

const ALL_WRITTEN: u64 = u64::from_ne_bytes([State::Written as u8; 8]);

/// The shadow of a piece of memory: a pointer that moves along with the data's.
#[derive(Clone, Copy, Debug)]
pub struct Shadow(*mut u8);

// The methods take the length on trust, as the data accesses next to them do: a `Window` has
// checked it.
impl Shadow {
    /// A shadow over states, one per byte.
    pub fn new(states: *mut u8) -> Self {
        Shadow(states)
    }

    /// Whether `bytes` bytes from `offset` are all written.
    ///
    /// # Safety
    ///
    /// The range lies inside the shadow.
    #[inline(always)]
    pub unsafe fn is_written(self, offset: usize, bytes: usize) -> bool {
        // SAFETY: the caller vouches for the range; every read below stays inside it.
        unsafe {
            let at = self.0.add(offset);
            match bytes {
                1 => *at == State::Written as u8,
                2 => read::<u16>(at) == ALL_WRITTEN as u16,
                4 => read::<u32>(at) == ALL_WRITTEN as u32,
                8 => read::<u64>(at) == ALL_WRITTEN,
                16 => read::<[u64; 2]>(at) == [ALL_WRITTEN; 2],
                _ => {
                    let mut good = true;
                    let words = bytes / 8;
                    for word in 0..words {
                        good &= read::<u64>(at.add(8 * word)) == ALL_WRITTEN;
                    }
                    for byte in words * 8..bytes {
                        good &= *at.add(byte) == State::Written as u8;
                    }
                    good
                }
            }
        }
    }

    /// The first byte of a range that is not written, and its state.
    ///
    /// # Safety
    ///
    /// The range lies inside the shadow.
    pub unsafe fn first_unwritten(self, offset: usize, bytes: usize) -> Option<(usize, State)> {
        (0..bytes).find_map(|byte| {
            // SAFETY: the caller vouches for the range.
            let state = unsafe { *self.0.add(offset + byte) };
            let state = match state {
                1 => return None,
                2 => State::InFlight,
                3 => State::InFlightOverWritten,
                4 => State::Undefined,
                _ => State::Unwritten,
            };
            Some((byte, state))
        })
    }

    /// The first byte of a range that a copy is yet to write.
    ///
    /// # Safety
    ///
    /// The range lies inside the shadow.
    pub unsafe fn first_in_flight(self, offset: usize, bytes: usize) -> Option<usize> {
        // SAFETY: the caller vouches for the range.
        let state = |byte: usize| unsafe { *self.0.add(offset + byte) };
        let in_flight = [State::InFlight as u8, State::InFlightOverWritten as u8];
        (0..bytes).find(|&byte| in_flight.contains(&state(byte)))
    }

    /// Sets the state of a range.
    ///
    /// # Safety
    ///
    /// The range lies inside the shadow, and nothing else refers to it.
    #[inline(always)]
    pub unsafe fn set(self, offset: usize, bytes: usize, state: State) {
        let fill = ALL_WRITTEN * state as u64;
        // SAFETY: the caller vouches for the range.
        unsafe {
            let at = self.0.add(offset);
            match bytes {
                1 => *at = state as u8,
                2 => write(at, fill as u16),
                4 => write(at, fill as u32),
                8 => write(at, fill),
                16 => write(at, [fill; 2]),
                _ => at.write_bytes(state as u8, bytes),
            }
        }
    }

    /// Marks a range as the target of an asynchronous copy.
    ///
    /// # Safety
    ///
    /// As for [`Shadow::set`].
    pub unsafe fn set_in_flight(self, offset: usize, bytes: usize) {
        for byte in offset..offset + bytes {
            // SAFETY: the caller vouches for the range.
            unsafe {
                let state = self.0.add(byte);
                let before = *state == State::Unwritten as u8 || *state == State::InFlight as u8;
                *state = if before { State::InFlight } else { State::InFlightOverWritten } as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_any_length_are_seen_to_the_byte() {
        for length in 1..40 {
            for hole in 0..=length {
                let mut states = vec![State::Written as u8; 64];
                if hole < length {
                    states[3 + hole] = State::Unwritten as u8;
                }
                let shadow = Shadow::new(states.as_mut_ptr());
                // SAFETY: 3 + length < 64.
                let (written, first) =
                    unsafe { (shadow.is_written(3, length), shadow.first_unwritten(3, length)) };
                assert_eq!(written, hole == length);
                assert_eq!(first, (hole < length).then_some((hole, State::Unwritten)));
            }
        }
    }
}
