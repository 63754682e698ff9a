//! The dozen functions of `libnccl` that are used, found at run time.

use super::address;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `ncclUint8`.
const UINT8: c_int = 1;
/// `ncclSuccess`.
const SUCCESS: c_int = 0;
/// `ncclInProgress`.
const IN_PROGRESS: c_int = 7;

/// `ncclComm_t`.
type Communicator = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// The fields of `ncclConfig_t` that NCCL 2.14 had: newer ones take theirs from their own defaults.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    is_blocking: c_int,
    padding: u32,
}

/// `NCCL_API_MAGIC`, and the version of [`Config`].
const CONFIG_MAGIC: u32 = 0xcafe_beef;
const CONFIG_VERSION: u32 = 21400;

/// NCCL as it was found.
pub(super) struct Library {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> c_int,
    async_error: unsafe extern "C" fn(Communicator, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Communicator) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int,
    all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        Communicator,
        *mut c_void,
    ) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Library {
    /// The library of the process, loaded once: `FATTN_NCCL`, or `libnccl.so.2` where the system looks for
    /// it.
    ///
    /// # Errors
    /// [`Error::Nccl`].
    pub fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library> {
        let path = std::env::var_os("FATTN_NCCL").unwrap_or_else(|| "libnccl.so.2".into());
        let missing = |error: libloading::Error| Error::Nccl {
            call: "dlopen",
            reason: format!("{}: {error}", path.display()),
        };
        // SAFETY: NCCL runs nothing when it is loaded that could do harm.
        let library = unsafe { libloading::Library::new(&path) }.map_err(missing)?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the types are those of `nccl.h` of version 2.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(missing)?
            };
        }
        let found = Library {
            get_unique_id: symbol!("ncclGetUniqueId"),
            init_rank: symbol!("ncclCommInitRankConfig"),
            async_error: symbol!("ncclCommGetAsyncError"),
            abort: symbol!("ncclCommAbort"),
            group_start: symbol!("ncclGroupStart"),
            group_end: symbol!("ncclGroupEnd"),
            send: symbol!("ncclSend"),
            receive: symbol!("ncclRecv"),
            all_gather: symbol!("ncclAllGather"),
            error_string: symbol!("ncclGetErrorString"),
        };
        // It stays for as long as the process lives.
        std::mem::forget(library);
        Ok(found)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: a string of the library, for any number.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(Error::Nccl { call, reason: format!("{} ({code})", text.to_string_lossy()) })
    }

    pub fn unique_id(&self, id: &mut [u8; 128]) -> Result<()> {
        let mut unique = UniqueId(*id);
        // SAFETY: `unique` is writable.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&raw mut unique) })?;
        *id = unique.0;
        Ok(())
    }

    /// Begins to join a group, on the GPU of the current context.
    pub fn join(&'static self, id: &[u8; 128], ranks: c_int, rank: c_int) -> Result<Handle> {
        let mut communicator = std::ptr::null_mut();
        let mut config = Config {
            size: size_of::<Config>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            is_blocking: 0,
            padding: 0,
        };
        let id = UniqueId(*id);
        // SAFETY: both are writable.
        let code = unsafe { (self.init_rank)(&raw mut communicator, ranks, id, rank, &raw mut config) };
        self.check("ncclCommInitRankConfig", code)?;
        Ok(Handle { library: self, communicator })
    }
}

/// One communicator.
pub(super) struct Handle {
    library: &'static Library,
    communicator: Communicator,
}

// SAFETY: NCCL lets any thread use a communicator, one at a time.
unsafe impl Send for Handle {}

impl Handle {
    /// Whether it is still doing on the host what it was told.
    ///
    /// # Errors
    /// [`Error::Nccl`], what went wrong since.
    pub fn is_busy(&self) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive until `abort`; `state` is writable.
        let code = unsafe { (self.library.async_error)(self.communicator, &raw mut state) };
        self.library.check("ncclCommGetAsyncError", code)?;
        self.library.check("ncclCommGetAsyncError", state)?;
        Ok(state == IN_PROGRESS)
    }

    /// Ends it, whatever it is doing; it is not used again.
    pub fn abort(&self) {
        // SAFETY: called once. There is nobody to tell of a failure.
        let _ = unsafe { (self.library.abort)(self.communicator) };
    }

    /// The calls of `queue` as one.
    pub fn group(&self, queue: impl FnOnce(&Handle) -> Result<()>) -> Result<()> {
        // SAFETY: no preconditions; each start has an end.
        self.library.check("ncclGroupStart", unsafe { (self.library.group_start)() })?;
        let queued = queue(self);
        // SAFETY: as above.
        let ended = self.library.check("ncclGroupEnd", unsafe { (self.library.group_end)() });
        queued.and(ended)
    }

    /// # Safety
    /// The memory stays unchanged until what is queued on the stream is done.
    pub unsafe fn send(
        &self,
        from: DevicePointer,
        bytes: usize,
        peer: c_int,
        stream: Stream,
    ) -> Result<()> {
        let stream = address(stream.0 as u64);
        // SAFETY: passed on to the caller.
        let code =
            unsafe { (self.library.send)(address(from), bytes, UINT8, peer, self.communicator, stream) };
        self.library.check("ncclSend", code)
    }

    /// # Safety
    /// The memory is writable, and used by nobody else, until what is queued on the stream is done.
    pub unsafe fn receive(
        &self,
        to: DevicePointer,
        bytes: usize,
        peer: c_int,
        stream: Stream,
    ) -> Result<()> {
        let stream = address(stream.0 as u64);
        // SAFETY: passed on to the caller.
        let code = unsafe {
            (self.library.receive)(address(to), bytes, UINT8, peer, self.communicator, stream)
        };
        self.library.check("ncclRecv", code)
    }

    /// # Safety
    /// As [`Handle::send`] and [`Handle::receive`]; `to` has room for `bytes` of each rank.
    pub unsafe fn all_gather(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let (stream, from, to) = (address(stream.0 as u64), address(from), address(to));
        // SAFETY: passed on to the caller.
        let code =
            unsafe { (self.library.all_gather)(from, to, bytes, UINT8, self.communicator, stream) };
        self.library.check("ncclAllGather", code)
    }
}
