//! Global memory as a launch sees it.

use super::Refusal;
use super::global::{Allocation, OFFSET_BITS, OFFSET_MASK};
use super::heap::Heap;
use crate::shadow::Shadow;
use std::sync::Arc;

/// Addresses below this one are offsets from a null pointer.
const NULL_BYTES: u64 = 1 << 20;
/// An address so close below an allocation is taken for an underrun of it.
const UNDERRUN_BYTES: u64 = 1 << 20;

/// One allocation as a launch sees it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// First byte.
    pub data: *mut u8,
    /// Its shadow.
    pub shadow: Shadow,
    /// Length; 0 once freed.
    pub bytes: u64,
    /// The shadow need not be asked: every byte was written before the launch.
    pub all_written: bool,
    /// Stores are refused.
    pub read_only: bool,
    /// Whether the allocation is live.
    pub live: bool,
}

impl View {
    pub(super) fn of(allocation: Option<&Allocation>) -> View {
        let Some(a) = allocation else {
            let nothing = std::ptr::null_mut();
            let shadow = Shadow::new(nothing);
            return View {
                data: nothing,
                shadow,
                bytes: 0,
                all_written: false,
                read_only: false,
                live: false,
            };
        };
        View {
            data: a.data.as_ptr(),
            shadow: a.shadow(),
            bytes: a.bytes as u64,
            all_written: a.all_written(),
            read_only: a.read_only,
            live: true,
        }
    }
}

/// The allocations that were live when a launch began; they stay until it ends.
pub struct GlobalView {
    views: Vec<View>,
    _owners: Vec<Option<Arc<Allocation>>>,
    /// What threads allocate.
    heap: Heap,
}

// SAFETY: the pointers in the views belong to `_owners`, which are shareable (see `Allocation`).
unsafe impl Send for GlobalView {}
// SAFETY: as above.
unsafe impl Sync for GlobalView {}

impl GlobalView {
    /// The view of these allocations.
    pub fn new(owners: Vec<Option<Arc<Allocation>>>) -> Self {
        let views = owners.iter().map(|slot| View::of(slot.as_deref())).collect();
        GlobalView { views, _owners: owners, heap: Heap::default() }
    }

    /// The index of an address's allocation.
    #[inline(always)]
    pub fn index(address: u64) -> u64 {
        address >> OFFSET_BITS
    }

    /// The offset of an address in its allocation.
    #[inline(always)]
    pub fn offset(address: u64) -> u64 {
        address & OFFSET_MASK
    }

    /// Bytes from an address to the allocation behind it, if it looks like an underrun of that one.
    pub fn underrun(address: u64) -> Option<u64> {
        let left = (1 << OFFSET_BITS) - Self::offset(address);
        (left <= UNDERRUN_BYTES).then_some(left)
    }

    /// The allocation of an address.
    #[inline(always)]
    pub fn get(&self, address: u64) -> Result<&View, Refusal> {
        match self.views.get(Self::index(address) as usize) {
            Some(view) if view.live => Ok(view),
            Some(_) if Self::index(address) != 0 => Err(Refusal::Freed),
            _ if address < NULL_BYTES => Err(Refusal::Null),
            _ => self.heap.get((Self::index(address) as usize).saturating_sub(self.heap_start())),
        }
    }

    /// The index of the first allocation of the heap.
    fn heap_start(&self) -> usize {
        self.views.len().max(1)
    }

    /// The address of so many bytes of the heap; 0 if it has no room.
    pub fn allocate(&self, bytes: u64) -> u64 {
        let number = self.heap.allocate(bytes);
        number.map_or(0, |number| ((self.heap_start() + number) as u64) << OFFSET_BITS)
    }

    /// Gives them back; whether the address is of the heap and was not given back before.
    pub fn free(&self, address: u64) -> bool {
        let number = (Self::index(address) as usize).checked_sub(self.heap_start());
        Self::offset(address) == 0 && number.is_some_and(|number| self.heap.free(number))
    }
}
