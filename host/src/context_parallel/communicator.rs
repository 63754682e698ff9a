//! How ranks talk to each other.

mod local;
mod nccl;
#[cfg(test)]
mod tests;

pub use local::LocalCommunicator;
pub use nccl::{NcclCommunicator, NcclId};

use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;

/// Bytes of device memory on their way from or to another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: usize,
    /// Where they stand on this one.
    pub pointer: DevicePointer,
    /// How many; not 0.
    pub bytes: usize,
}

/// The ranks of a group, seen from one of them.
///
/// All ranks make the same calls in the same order. Who waits for a rank that has failed, has ended, or does
/// not come within the time limit gets [`Error::Peer`](crate::Error::Peer). A rank that drops its
/// communicator has ended: so a rank that returns early with an error is an error of all others, and nobody
/// hangs.
pub trait Communicator: Send {
    /// Which one this is, below [`Communicator::ranks`].
    fn rank(&self) -> usize;

    /// How many there are, at least 1.
    fn ranks(&self) -> usize;

    /// What each rank gives, in the order of the ranks. Waits for all of them. A few bytes, once for each
    /// problem.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer).
    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Queues what sends and receives, all at the same time. Messages between the same two ranks come in the
    /// order in which they are sent, and have as many bytes here as there.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer), and errors of the driver.
    ///
    /// # Safety
    /// Until what is queued on `stream` by then is done, what is sent stays unchanged, and what is received
    /// is writable and used by nothing else.
    unsafe fn exchange(
        &self,
        device: &Device,
        sends: &[Message],
        receives: &[Message],
        stream: Stream,
    ) -> Result<()>;

    /// Waits for all that is queued on `stream`.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer) if another rank has failed meanwhile and it will never be done,
    /// and errors of the driver.
    fn wait(&self, device: &Device, stream: Stream) -> Result<()> {
        device.synchronize(stream)
    }
}

impl Communicator for Box<dyn Communicator> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn ranks(&self) -> usize {
        (**self).ranks()
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        (**self).all_gather(own)
    }

    unsafe fn exchange(
        &self,
        device: &Device,
        sends: &[Message],
        receives: &[Message],
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { (**self).exchange(device, sends, receives, stream) }
    }

    fn wait(&self, device: &Device, stream: Stream) -> Result<()> {
        (**self).wait(device, stream)
    }
}
