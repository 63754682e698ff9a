//! Ranks of NVIDIA's NCCL: processes or threads, on one host or many. The library is found at run time.

mod library;

use super::{Communicator, Message};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use library::{Handle, Library};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What names a group of ranks: made on one of them, and given to all others by whatever launched them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclId(pub [u8; NcclId::BYTES]);

impl NcclId {
    /// How many bytes it has.
    pub const BYTES: usize = 128;

    /// A new one.
    ///
    /// # Errors
    /// [`Error::Nccl`], also if there is no NCCL.
    pub fn new() -> Result<Self> {
        let mut id = [0; NcclId::BYTES];
        Library::get()?.unique_id(&mut id)?;
        Ok(NcclId(id))
    }
}

/// One rank of a group of NCCL, on its own GPU.
///
/// ```no_run
/// use finite_attention::Device;
/// use finite_attention::context_parallel::{ContextLayout, ContextParallel, NcclCommunicator, NcclId};
/// use std::time::Duration;
/// # fn broadcast_from_rank_0(id: Option<NcclId>) -> NcclId { id.unwrap() }
/// # fn main() -> finite_attention::Result<()> {
/// # let (rank, ranks, local_rank) = (0, 1, 0);
/// // rank, ranks and local_rank from torchrun's, mpirun's or SLURM's environment
/// let id = if rank == 0 { Some(NcclId::new()?) } else { None };
/// let id = broadcast_from_rank_0(id); // by MPI, a file, a socket, ...
/// let device = Device::cuda(local_rank)?;
/// let own = NcclCommunicator::new(&device, id, ranks, rank, Duration::from_secs(60))?;
/// let group = ContextParallel::new(device, own, ContextLayout::Zigzag)?;
/// # Ok(())
/// # }
/// ```
///
/// A rank that fails or never comes is an [`Error::Peer`] of the others: NCCL says so, or it is not done
/// within the time limit. The group is aborted then, and can do nothing any more.
pub struct NcclCommunicator {
    handle: Handle,
    rank: usize,
    ranks: usize,
    limit: Duration,
    device: Device,
    has_failed: Cell<bool>,
}

impl NcclCommunicator {
    /// Joins the group of `id` as one of `ranks` ranks, and waits until all have.
    ///
    /// # Errors
    /// [`Error::Nccl`], also if there is no NCCL or `device` is no GPU; [`Error::Peer`] if not all come
    /// within `limit`.
    pub fn new(device: &Device, id: NcclId, ranks: usize, rank: usize, limit: Duration) -> Result<Self> {
        let Some(driver) = device.driver().as_cuda() else {
            let reason = format!("expected a GPU, got {}", device.properties().name);
            return Err(Error::Nccl { call: "ncclCommInitRank", reason });
        };
        let sizes = i32::try_from(ranks).ok().zip(i32::try_from(rank).ok()).filter(|_| rank < ranks);
        let Some((count, own)) = sizes else {
            let reason = format!("expected a rank below {ranks}, got {rank}");
            return Err(Error::Nccl { call: "ncclCommInitRank", reason });
        };
        let library = Library::get()?;
        let handle = driver.with_context(|| library.join(&id.0, count, own))??;
        let own = NcclCommunicator {
            handle,
            rank,
            ranks,
            limit,
            device: device.clone(),
            has_failed: Cell::new(false),
        };
        own.settle()?;
        Ok(own)
    }

    /// Waits until NCCL has done on the host what it was told.
    fn settle(&self) -> Result<()> {
        let until = Instant::now() + self.limit;
        while self.handle.is_busy().map_err(|error| self.failed(error))? {
            if Instant::now() > until {
                return Err(self.too_late());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whoever it was: NCCL does not say.
    fn peer(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    fn too_late(&self) -> Error {
        self.abort();
        let reason = format!("or another one has not come within {:?}", self.limit);
        Error::Peer { rank: self.rank, peer: self.peer(), reason }
    }

    /// An error of NCCL; the group is of no use any more.
    fn failed(&self, error: Error) -> Error {
        self.abort();
        error
    }

    fn abort(&self) {
        if !self.has_failed.replace(true) {
            self.handle.abort();
        }
    }

    fn check(&self) -> Result<()> {
        if self.has_failed.get() {
            let reason = "or another one has failed before".to_owned();
            return Err(Error::Peer { rank: self.rank, peer: self.peer(), reason });
        }
        Ok(())
    }

    /// Runs `queue` in one group of calls, in the GPU's context.
    fn grouped(&self, queue: impl FnOnce(&Handle) -> Result<()>) -> Result<()> {
        self.check()?;
        let driver = self.device.driver().as_cuda().expect("only a GPU has a communicator of NCCL");
        let queued = driver.with_context(|| self.handle.group(queue))?;
        queued.map_err(|error| self.failed(error))?;
        self.settle()
    }

    /// Equally many bytes of each rank.
    fn gather_equal(&self, own: &[u8]) -> Result<Vec<u8>> {
        let stream = Stream::default();
        let send = DeviceBuffer::from_slice(&self.device, own)?;
        let receive = DeviceBuffer::<u8>::uninitialised(&self.device, own.len() * self.ranks)?;
        let (from, to) = (send.device_pointer(), receive.device_pointer());
        // SAFETY: both live until `wait`.
        self.grouped(|handle| unsafe { handle.all_gather(from, to, own.len(), stream) })?;
        self.wait(&self.device, stream)?;
        receive.to_vec(stream)
    }
}

impl Communicator for NcclCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_equal(&(own.len() as u64).to_le_bytes())?;
        let length =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("chunks of eight")) as usize;
        let lengths: Vec<usize> = lengths.chunks_exact(8).map(length).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_equal(&padded)?;
        let each = all.chunks_exact(longest).zip(lengths);
        Ok(each.map(|(bytes, length)| bytes[..length].to_vec()).collect())
    }

    unsafe fn exchange(
        &self,
        _device: &Device,
        sends: &[Message],
        receives: &[Message],
        stream: Stream,
    ) -> Result<()> {
        self.grouped(|handle| {
            for &Message { peer, pointer, bytes } in sends {
                // SAFETY: passed on to the caller.
                unsafe { handle.send(pointer, bytes, peer as i32, stream) }?;
            }
            for &Message { peer, pointer, bytes } in receives {
                // SAFETY: passed on to the caller.
                unsafe { handle.receive(pointer, bytes, peer as i32, stream) }?;
            }
            Ok(())
        })
    }

    fn wait(&self, device: &Device, stream: Stream) -> Result<()> {
        let until = Instant::now() + self.limit;
        while !device.driver().is_idle(stream)? {
            self.handle.is_busy().map_err(|error| self.failed(error))?;
            if Instant::now() > until {
                return Err(self.too_late());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        // Not destroyed in peace: that would wait for ranks that may never come.
        self.abort();
    }
}

/// Addresses as NCCL takes them.
fn address(pointer: DevicePointer) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(pointer as usize)
}
