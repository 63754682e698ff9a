//! What `malloc` gives to threads of a launch: allocations of their own behind those of the host.

use super::Refusal;
use super::global::Allocation;
use super::view::View;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes in all, as CUDA has it unless told otherwise.
const HEAP_BYTES: u64 = 8 << 20;
/// What one costs beside its bytes.
const OVERHEAD_BYTES: u64 = 128;
/// So many fit if they are empty.
const SLOTS: usize = (HEAP_BYTES / OVERHEAD_BYTES) as usize;

struct Slot {
    view: View,
    freed: AtomicBool,
    _owner: Allocation,
}

/// The heap of a launch.
#[derive(Default)]
pub struct Heap {
    slots: OnceLock<Box<[OnceLock<Slot>]>>,
    next: AtomicUsize,
    used: AtomicU64,
}

impl Heap {
    /// The number of a new allocation; none if there is no room.
    pub fn allocate(&self, bytes: u64) -> Option<usize> {
        let size = bytes.checked_add(OVERHEAD_BYTES).filter(|&size| size <= HEAP_BYTES)?;
        let fits = |used: u64| Some(used + size).filter(|&used| used <= HEAP_BYTES);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| OnceLock::new()).collect());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let owner = Allocation::new(bytes as usize);
        let slot = Slot { view: View::of(Some(&owner)), freed: AtomicBool::new(false), _owner: owner };
        slots.get(number)?.set(slot).ok()?;
        Some(number)
    }

    /// Gives an allocation back; whether there was one. Its number is not given out again.
    pub fn free(&self, number: usize) -> bool {
        let slot = self.slots.get().and_then(|slots| slots.get(number)?.get());
        let Some(slot) = slot.filter(|slot| !slot.freed.swap(true, Ordering::Relaxed)) else {
            return false;
        };
        self.used.fetch_sub(slot.view.bytes + OVERHEAD_BYTES, Ordering::Relaxed);
        true
    }

    /// The allocation of a number.
    #[cold]
    pub fn get(&self, number: usize) -> Result<&View, Refusal> {
        let slot = self.slots.get().and_then(|slots| slots.get(number)?.get());
        match slot {
            Some(slot) if slot.freed.load(Ordering::Relaxed) => Err(Refusal::Freed),
            Some(slot) => Ok(&slot.view),
            None => Err(Refusal::NoSpace),
        }
    }
}
