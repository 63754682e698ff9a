//! Ranks that are threads of one process: several GPUs, which copy from each other's memory, or emulators.

use super::{Communicator, Message};
use crate::device::Device;
use crate::driver::{DevicePointer, Mark, Stream};
use crate::error::{Error, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One of several ranks that are threads of this process, each with a device of its own.
///
/// Ranks meet on the host when they exchange memory; what is copied is queued on streams, which wait for each
/// other. Who receives copies.
///
/// ```
/// use finite_attention::context_parallel::{Communicator, LocalCommunicator};
/// use std::time::Duration;
/// let ranks = LocalCommunicator::create(3, Duration::from_secs(10));
/// let threads: Vec<_> = ranks
///     .into_iter()
///     .map(|own| std::thread::spawn(move || own.all_gather(&[own.rank() as u8])))
///     .collect();
/// for thread in threads {
///     assert_eq!(thread.join().unwrap()?, [[0], [1], [2]]);
/// }
/// # Ok::<(), finite_attention::Error>(())
/// ```
pub struct LocalCommunicator {
    board: Arc<Board>,
    rank: usize,
}

/// Where ranks leave what is for others.
struct Board {
    state: Mutex<State>,
    changed: Condvar,
    ranks: usize,
    limit: Duration,
}

/// What one rank leaves for another.
enum Letter {
    Bytes(Vec<u8>),
    Memory { device: Device, pointer: DevicePointer, bytes: usize, ready: Mark, number: u64 },
}

#[derive(Default)]
struct State {
    letters: HashMap<(usize, usize), VecDeque<Letter>>,
    /// Marks behind the copies of what was sent, by the number of the letter.
    copied: HashMap<u64, Mark>,
    letters_sent: u64,
    has_ended: Vec<bool>,
    /// Grows with everything that somebody may wait for.
    changes: u64,
    turns: Option<Turns>,
}

/// Who runs, where ranks take turns.
struct Turns {
    random: StdRng,
    holder: usize,
    /// What [`State::changes`] was when a rank last found that it must wait.
    waits_since: Vec<Option<u64>>,
    /// Everybody waits for somebody.
    is_stuck: bool,
}

impl LocalCommunicator {
    /// The communicators of `ranks` ranks, one for each, in their order; nobody waits longer than `limit` for
    /// another one to come.
    pub fn create(ranks: usize, limit: Duration) -> Vec<LocalCommunicator> {
        LocalCommunicator::of(ranks, limit, None)
    }

    /// The same, but one rank runs at a time, and whose turn it is, each time that one communicates, is
    /// drawn at random: the same for the same seed. Where everybody waits for somebody, all get
    /// [`Error::Peer`] at once.
    pub fn in_turns(ranks: usize, limit: Duration, seed: u64) -> Vec<LocalCommunicator> {
        let mut random = StdRng::seed_from_u64(seed);
        let holder = random.random_range(0..ranks.max(1));
        let waits_since = vec![None; ranks];
        LocalCommunicator::of(ranks, limit, Some(Turns { random, holder, waits_since, is_stuck: false }))
    }

    fn of(ranks: usize, limit: Duration, turns: Option<Turns>) -> Vec<LocalCommunicator> {
        let state = State { has_ended: vec![false; ranks], turns, ..State::default() };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let board = Arc::new(Board { state, changed, ranks, limit });
        (0..ranks).map(|rank| LocalCommunicator { board: board.clone(), rank }).collect()
    }

    fn peer(&self, peer: usize, reason: impl Into<String>) -> Error {
        Error::Peer { rank: self.rank, peer, reason: reason.into() }
    }

    /// Waits for what `find` finds, which `peer` leaves.
    fn wait_for<T>(&self, peer: usize, mut find: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let until = Instant::now() + self.board.limit;
        let mut state = self.board.lock();
        loop {
            state = self.take_turn(state, until, peer)?;
            if let Some(found) = find(&mut state) {
                if let Some(turns) = &mut state.turns {
                    turns.waits_since[self.rank] = None;
                }
                return Ok(found);
            }
            if state.has_ended[peer] {
                return Err(self.peer(peer, "has failed or ended"));
            }
            let changes = state.changes;
            if state.turns.is_some() {
                if let Some(turns) = &mut state.turns {
                    turns.waits_since[self.rank] = Some(changes);
                }
                self.board.pass_turn(&mut state);
                continue;
            }
            state = self.board.wait(state, until).ok_or_else(|| self.too_late(peer))?;
        }
    }

    fn too_late(&self, peer: usize) -> Error {
        self.peer(peer, format!("has not come within {:?}", self.board.limit))
    }

    /// Waits until this rank may run.
    fn take_turn<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
        peer: usize,
    ) -> Result<MutexGuard<'a, State>> {
        loop {
            let Some(turns) = &state.turns else { return Ok(state) };
            if turns.is_stuck {
                return Err(self.peer(peer, "waits, and so does every other rank"));
            }
            if turns.holder == self.rank {
                return Ok(state);
            }
            state = self.board.wait(state, until).ok_or_else(|| self.too_late(peer))?;
        }
    }

    /// Lets others run, where ranks take turns.
    fn yield_turn(&self) {
        let mut state = self.board.lock();
        if state.turns.as_ref().is_some_and(|turns| turns.holder == self.rank) {
            self.board.pass_turn(&mut state);
        }
    }

    fn post(&self, peer: usize, letter: impl FnOnce(u64) -> Letter) -> u64 {
        let mut state = self.board.lock();
        let number = state.letters_sent;
        state.letters_sent += 1;
        state.changes += 1;
        state.letters.entry((self.rank, peer)).or_default().push_back(letter(number));
        self.board.changed.notify_all();
        number
    }

    fn next_letter(&self, peer: usize) -> Result<Letter> {
        let own = self.rank;
        self.wait_for(peer, |state| state.letters.get_mut(&(peer, own))?.pop_front())
    }

    /// Has `stream` wait until what was sent is copied.
    /// What is copied is no longer in `sent`.
    fn wait_until_copied(
        &self,
        device: &Device,
        sent: &mut Vec<(usize, u64)>,
        stream: Stream,
    ) -> Result<()> {
        while let Some(&(peer, number)) = sent.last() {
            let copied = self.wait_for(peer, |state| state.copied.remove(&number))?;
            sent.pop();
            device.driver().wait_for_mark(stream, &copied)?;
        }
        Ok(())
    }

    /// After an error: nobody reads this rank's memory any more when it returns.
    fn withdraw(&self, device: &Device, mut sent: Vec<(usize, u64)>, stream: Stream) {
        sent.retain(|&(peer, number)| {
            let mut state = self.board.lock();
            let is_this =
                |letter: &Letter| matches!(letter, Letter::Memory { number: of, .. } if *of == number);
            let letters = state.letters.entry((self.rank, peer)).or_default();
            let place = letters.iter().position(is_this);
            place.and_then(|place| letters.remove(place)).is_none()
        });
        // What is left is being copied. There is an error to report already.
        while !sent.is_empty() && self.wait_until_copied(device, &mut sent, stream).is_err() {
            sent.pop();
        }
        let _ = device.synchronize(stream);
    }

    /// Queues a copy of what the next letter of `receive.peer` names.
    unsafe fn receive(&self, device: &Device, receive: &Message, stream: Stream) -> Result<()> {
        let peer = receive.peer;
        let Letter::Memory { device: theirs, pointer, bytes, ready, number } = self.next_letter(peer)?
        else {
            return Err(self.peer(peer, "makes another call"));
        };
        if bytes != receive.bytes {
            return Err(self.peer(peer, format!("sends {bytes} bytes, expected {}", receive.bytes)));
        }
        let driver = device.driver();
        driver.wait_for_mark(stream, &ready)?;
        // SAFETY: the caller of `exchange` vouches for the destination, that of the other rank, which waits
        // for the mark, for the source.
        unsafe { driver.copy_from_peer(receive.pointer, (theirs.driver(), pointer), bytes, stream) }?;
        let mark = driver.mark(stream)?;
        let mut state = self.board.lock();
        state.copied.insert(number, mark);
        state.changes += 1;
        self.board.changed.notify_all();
        Ok(())
    }
}

impl Communicator for LocalCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.board.ranks
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.yield_turn();
        for peer in (0..self.ranks()).filter(|&peer| peer != self.rank) {
            self.post(peer, |_| Letter::Bytes(own.to_vec()));
        }
        (0..self.ranks())
            .map(|peer| {
                if peer == self.rank {
                    return Ok(own.to_vec());
                }
                match self.next_letter(peer)? {
                    Letter::Bytes(bytes) => Ok(bytes),
                    Letter::Memory { .. } => Err(self.peer(peer, "makes another call")),
                }
            })
            .collect()
    }

    unsafe fn exchange(
        &self,
        device: &Device,
        sends: &[Message],
        receives: &[Message],
        stream: Stream,
    ) -> Result<()> {
        self.yield_turn();
        let ready = device.driver().mark(stream)?;
        let mut sent = Vec::new();
        for &Message { peer, pointer, bytes } in sends {
            let (device, ready) = (device.clone(), ready.clone());
            let number =
                self.post(peer, |number| Letter::Memory { device, pointer, bytes, ready, number });
            sent.push((peer, number));
        }
        let exchanged = receives
            .iter()
            // SAFETY: passed on to the caller.
            .try_for_each(|receive| unsafe { self.receive(device, receive, stream) })
            .and_then(|()| self.wait_until_copied(device, &mut sent, stream));
        if exchanged.is_err() {
            self.withdraw(device, sent, stream);
        }
        exchanged
    }
}

impl Drop for LocalCommunicator {
    fn drop(&mut self) {
        let mut state = self.board.lock();
        state.has_ended[self.rank] = true;
        state.changes += 1;
        if state.turns.as_ref().is_some_and(|turns| turns.holder == self.rank) {
            self.board.pass_turn(&mut state);
        }
        self.board.changed.notify_all();
    }
}

impl Board {
    /// The state stays whole even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; `None` if it is too late.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Instant) -> Option<MutexGuard<'a, State>> {
        let left = until.checked_duration_since(Instant::now())?;
        let (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        Some(state)
    }

    /// Draws who runs next, of those that have not ended and may find what they wait for.
    fn pass_turn(&self, state: &mut State) {
        let (changes, has_ended) = (state.changes, &state.has_ended);
        let Some(turns) = &mut state.turns else { return };
        let may_run = |&rank: &usize| {
            !has_ended[rank] && turns.waits_since[rank].is_none_or(|since| since < changes)
        };
        let candidates: Vec<usize> = (0..self.ranks).filter(may_run).collect();
        if candidates.is_empty() {
            turns.is_stuck = has_ended.contains(&false);
        } else {
            turns.holder = candidates[turns.random.random_range(0..candidates.len())];
        }
        self.changed.notify_all();
    }
}
