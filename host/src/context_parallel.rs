//! Context parallelism: one sequence over several GPUs, with errors that do not grow with them.
//!
//! Each rank has some rows of q, k and v ([`ContextLayout`]), and makes those rows of o, and of the
//! gradients. Keys and values go round from rank to rank, or come from all ranks, a few heads at a time
//! ([`ContextExchange`]); what of them a rank computes, and when, is a pure function
//! ([`schedule`](mod@schedule)). All that is only a part of a result stays f32: each pass over keys that
//! have come merges with what those before it have left
//! ([`forward_partial`](crate::attention::forward_partial)), and the last one rounds
//! (docs/semantics.md, section 6); partial gradients are added in f32 and rounded once. By heads each pass
//! sees all keys, and only gradients of keys are parts.
//!
//! ```
//! use finite_attention::context_parallel::{
//!     ContextLayout, ContextParallel, ContextProblem, LocalCommunicator,
//! };
//! use finite_attention::{Arch, Device, Dtype, ForwardPointers, ForwardProblem, Layout, Stream};
//! use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
//! use std::time::Duration;
//!
//! // 64 rows over two ranks, here threads with an emulator each. On GPUs: `Device::cuda(rank)`.
//! let ranks = LocalCommunicator::create(2, Duration::from_secs(60));
//! let threads: Vec<_> = ranks
//!     .into_iter()
//!     .map(|communicator| {
//!         std::thread::spawn(move || -> finite_attention::Result<Vec<f32>> {
//!             let device = Device::emulated(Arch::Sm80)?;
//!             let own = Layout::bshd([1, 32, 1, 8]);
//!             let forward = ForwardProblem::new(Dtype::F32, own, own, own).causal();
//!             let problem = ContextProblem::new(forward, 64, 64);
//!             let group = ContextParallel::new(device.clone(), communicator, ContextLayout::Zigzag)?;
//!             let mut pass = group.prepare(&problem)?;
//!             let ones = DeviceBuffer::from_slice(&device, &[1.0_f32; 32 * 8])?;
//!             let (o, lse) = (DeviceBuffer::<f32>::uninitialised(&device, 32 * 8)?,
//!                             DeviceBuffer::<f32>::uninitialised(&device, 32)?);
//!             let pointers = ForwardPointers {
//!                 q: ones.device_pointer(), k: ones.device_pointer(), v: ones.device_pointer(),
//!                 o: o.device_pointer(), lse: lse.device_pointer(), ..Default::default()
//!             };
//!             // SAFETY: the buffers are as large as the problem says, and live until `wait`.
//!             unsafe { pass.forward(&pointers, Stream::default()) }?;
//!             group.wait(Stream::default())?;
//!             o.to_vec(Stream::default())
//!         })
//!     })
//!     .collect();
//! for thread in threads {
//!     // Weights of a row sum to 1, up to rounding.
//!     assert!(thread.join().unwrap()?.iter().all(|o| (o - 1.0).abs() < 1e-6));
//! }
//! # Ok::<(), finite_attention::Error>(())
//! ```

mod backward;
mod by_heads;
mod communicator;
mod exchange;
mod forward;
pub mod host;
mod layout;
#[cfg(test)]
mod order_tests;
mod problem;
mod rows;
pub mod schedule;
mod scores;
mod sharing;
#[cfg(test)]
mod tests;
mod views;

pub use communicator::{Communicator, LocalCommunicator, Message, NcclCommunicator, NcclId};
pub use layout::{Chunk, ContextLayout};
pub use problem::ContextProblem;
pub use sharing::{ContextExchange, ContextSharing};

use crate::attention::PreparedMask;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use problem::ValidContext;
use rows::RowSet;
use schedule::{Piece, schedule_of_chunks};
use sharing::Chosen;
use std::collections::HashMap;
use views::Offsets;

/// What a rank says whose problem is refused.
const REFUSED: &[u8] = b"refused";

/// A rank of a group: its device, how it talks to the others, and how sequences are shared out.
pub struct ContextParallel {
    device: Device,
    communicator: Box<dyn Communicator>,
    sharing: ContextSharing,
    /// What is sent and received goes on beside the kernels.
    beside: Stream,
    /// Kernels that need not wait for those on the caller's stream.
    side: Stream,
}

impl ContextParallel {
    /// This rank of the group of `communicator`. A [`ContextLayout`] says how sequences are shared out; a
    /// [`ContextSharing`] also how keys and values come to where they are needed.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn new(
        device: Device,
        communicator: impl Communicator + 'static,
        sharing: impl Into<ContextSharing>,
    ) -> Result<Self> {
        let (communicator, sharing) = (Box::new(communicator), sharing.into());
        let beside = device.driver().create_stream()?;
        let side = match device.driver().create_stream_of_kernels() {
            Ok(side) => side,
            Err(error) => {
                // SAFETY: made just now, and nothing is queued on it.
                let _ = unsafe { device.driver().destroy_stream(beside) };
                return Err(error);
            }
        };
        Ok(ContextParallel { device, communicator, sharing, beside, side })
    }

    /// How sequences are shared out.
    pub fn layout(&self) -> ContextLayout {
        self.sharing.layout
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.communicator.ranks()
    }

    /// Checks a problem, and that all ranks have the same one, and says what this rank does and when. All
    /// ranks call it together, also one whose problem is refused: the others then get [`Error::Peer`].
    ///
    /// # Errors
    /// What [`ContextProblem`] says; [`Error::RanksDisagree`] on every rank, if one of them has another
    /// problem; [`Error::Peer`]; [`Error::OutOfMemory`].
    pub fn prepare(&self, problem: &ContextProblem) -> Result<ContextPass<'_>> {
        let (ranks, rank) = (self.ranks(), self.rank());
        let layout = self.sharing.layout;
        let checked = problem.validate(layout, ranks, rank).and_then(|valid| {
            let chosen =
                self.sharing.choose(&valid.asked, valid.is_packed, (valid.all_key_rows(), ranks))?;
            Ok((valid, chosen))
        });
        let (valid, chosen) = checked.inspect_err(|_| {
            // The others need not wait. What they say does not matter any more.
            let _ = self.communicator.all_gather(REFUSED);
        })?;
        self.agree(&valid.description(&chosen))?;
        let way = (layout, chosen.exchange);
        let mut touched = Vec::new();
        let mut pieces = Vec::new();
        for of in 0..ranks {
            let (lengths, joins) = (valid.lengths(), valid.scores.are_none());
            let theirs = schedule_of_chunks(way, (ranks, of), &lengths, valid.mask(), joins);
            touched.push((0..ranks).map(|step| touched_at(&theirs, step)).collect());
            if of == rank {
                pieces = theirs;
            }
        }
        let offsets = Offsets::new(&self.device, &valid, way, (ranks, rank))?;
        let (masks, room) = (HashMap::new(), Room::default());
        Ok(ContextPass { group: self, valid, chosen, pieces, touched, offsets, masks, room })
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// [`Error::Peer`].
    pub fn meet(&self) -> Result<()> {
        self.communicator.all_gather(&[]).map(|_| ())
    }

    /// Waits for all that is queued on `stream`, and reports what became of it, and of other ranks.
    ///
    /// # Errors
    /// [`Error::Peer`], and errors of the driver.
    pub fn wait(&self, stream: Stream) -> Result<()> {
        self.communicator.wait(&self.device, stream)
    }

    /// All ranks describe the same problem.
    fn agree(&self, own: &[(&'static str, String)]) -> Result<()> {
        let text: Vec<String> =
            own.iter().map(|(argument, value)| format!("{argument}={value}")).collect();
        let own_text = text.join("\n");
        for (peer, theirs) in self.communicator.all_gather(own_text.as_bytes())?.iter().enumerate() {
            if theirs == REFUSED {
                let reason = "was given a problem that is refused".to_owned();
                return Err(Error::Peer { rank: self.rank(), peer, reason });
            }
            let theirs = String::from_utf8_lossy(theirs);
            let lines = theirs.lines().chain(std::iter::repeat(""));
            let wrong = own.iter().zip(lines).find_map(|((argument, expected), line)| {
                let got = line.strip_prefix(argument).and_then(|rest| rest.strip_prefix('='));
                (got != Some(expected.as_str())).then(|| Error::RanksDisagree {
                    argument,
                    rank: self.rank(),
                    expected: expected.clone(),
                    peer,
                    got: got.unwrap_or("another call").to_owned(),
                })
            });
            if let Some(error) = wrong {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for ContextParallel {
    fn drop(&mut self) {
        for stream in [self.beside, self.side] {
            // SAFETY: made by this device, and what was queued on it is behind `wait`, or is waited for.
            let _ = unsafe { self.device.driver().destroy_stream(stream) };
        }
    }
}

/// A problem that all ranks agree on, what this rank does for it, and the memory for that: made once, used
/// for any number of passes.
///
/// Memory of a rank, beside its tensors: keys and values of two other ranks; for a forward pass its o in
/// f32; for a backward pass dq, and dk and dv four times, in f32, and the workspace of one pass. By heads, of
/// two groups: keys and values of all ranks, and dk and dv of them in f32; and those of this rank's keys once
/// from each other rank. It is allocated when it is first needed, and kept.
pub struct ContextPass<'c> {
    group: &'c ContextParallel,
    valid: ValidContext,
    chosen: Chosen,
    pieces: Vec<Piece>,
    /// By rank and step, the keys that parts of that rank then see.
    touched: Vec<Vec<RowSet>>,
    offsets: Offsets,
    /// The boolean mask, by piece and part.
    masks: HashMap<(usize, usize), PreparedMask>,
    room: Room,
}

/// The keys that parts of a step see.
fn touched_at(pieces: &[Piece], step: usize) -> RowSet {
    let mut rows = RowSet::default();
    let parts = pieces.iter().flat_map(|piece| &piece.parts);
    parts.filter(|part| part.step == step).for_each(|part| rows.insert(&part.keys));
    rows
}

impl ContextPass<'_> {
    /// How keys and values come to where they are needed.
    pub fn exchange(&self) -> ContextExchange {
        self.chosen.exchange
    }

    /// Key heads of the largest group; 0 where keys and values go round.
    fn most_heads(&self) -> usize {
        match self.chosen.exchange {
            ContextExchange::Round => 0,
            ContextExchange::Heads => self.chosen.most_heads(),
        }
    }

    /// What this rank computes; by heads, for each group of them.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Has what is queued on `stream` wait for what is queued on `before`.
    fn order(&self, before: Stream, stream: Stream) -> Result<()> {
        let driver = self.group.device.driver();
        driver.wait_for_mark(stream, &driver.mark(before)?)
    }
}

/// What a piece of memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    /// Keys and values that have come from another rank, at even and odd steps; by heads, those of even and
    /// odd groups.
    Keys(usize),
    Values(usize),
    /// What parts of a piece leave to each other: o in f32, and two numbers a row.
    State(usize),
    /// dk and dv of keys of other ranks, at even and odd steps; by heads, of all keys of even and odd groups.
    DkSum(usize),
    DvSum(usize),
    /// dk and dv of this rank's own keys, added up so far, and what comes from another rank; by heads, from
    /// that of each distance.
    DkHome,
    DvHome,
    DkComing(usize),
    DvComing(usize),
    /// dq of a piece, added up so far.
    DqState(usize),
    /// Gradients of the sinks, of a piece.
    DSinks,
    /// What the kernels of a backward pass use between them.
    Workspace,
}

/// Memory that is kept from pass to pass, and grows as it is needed.
#[derive(Default)]
struct Room {
    buffers: HashMap<Use, DeviceBuffer<u8>>,
    outgrown: Vec<DeviceBuffer<u8>>,
}

impl Room {
    /// Memory of at least so many bytes. What it holds is anything.
    fn of(&mut self, device: &Device, for_what: Use, bytes: u64) -> Result<DevicePointer> {
        use crate::buffer::InDeviceMemory as _;
        let wanted = usize::try_from(bytes).map_err(|_| Error::OutOfMemory {
            device: device.properties().name.clone(),
            bytes: usize::MAX,
        })?;
        let is_enough = self.buffers.get(&for_what).is_some_and(|buffer| buffer.len() >= wanted);
        if !is_enough {
            // Kernels that use it may be on their way.
            self.outgrown.extend(self.buffers.remove(&for_what));
            self.buffers.insert(for_what, DeviceBuffer::uninitialised(device, wanted)?);
        }
        Ok(self.buffers[&for_what].device_pointer())
    }
}
