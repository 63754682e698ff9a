//! Global memory of the emulated device.

use super::view::GlobalView;
use crate::error::MemoryError;
use crate::module::{Kernel, ModuleData};
use crate::shadow::{Shadow, State};
use crate::space::{Address, SHARED_WINDOW};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Bits of an address that count bytes inside an allocation.
pub const OFFSET_BITS: u32 = 40;
pub const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
/// Every allocation starts on such a boundary.
const ALIGN: usize = 256;
/// Freed addresses that wait before the one that was freed first is given out again. A launch looks at all of
/// them, so they are not as many as there are addresses.
const QUARANTINE: usize = 4096;
/// Bytes of a shadow looked at in one go.
const SCAN_BYTES: usize = 4096;
/// Unwritten bytes: NaN in every floating-point type, and no plausible integer.
const POISON: u8 = 0xff;

/// What a memory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatistics {
    /// Live allocations, module variables included.
    pub allocations: usize,
    /// Bytes in them.
    pub bytes_live: u64,
}

/// One allocation and its shadow.
pub struct Allocation {
    pub(super) data: NonNull<u8>,
    states: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) read_only: bool,
    /// All bytes are known to be written; the shadow need not be asked.
    all_written: AtomicBool,
}

// SAFETY: the pointers are owned. Host operations on them are plain copies that a `Memory`
// bounds-checks;
// kernels access them from several threads. Accesses that race are races of the emulated program, which
// has no defined result either; the bytes have no invalid values.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

fn layout(bytes: usize) -> Layout {
    // Room for a whole vector behind the last byte; never zero.
    let size = bytes.next_multiple_of(64) + 64;
    Layout::from_size_align(size, ALIGN).expect("allocations are smaller than the address space")
}

fn filled(bytes: usize, value: u8) -> NonNull<u8> {
    let layout = layout(bytes);
    // SAFETY: the layout has a size of at least 64.
    let pointer = unsafe { alloc(layout) };
    let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
    // SAFETY: freshly allocated with this size.
    unsafe { pointer.as_ptr().write_bytes(value, layout.size()) };
    pointer
}

impl Allocation {
    pub(super) fn new(bytes: usize) -> Self {
        Allocation {
            data: filled(bytes, POISON),
            states: filled(bytes, State::Unwritten as u8),
            bytes,
            read_only: false,
            all_written: AtomicBool::new(bytes == 0),
        }
    }

    /// The shadow of the first byte.
    pub(super) fn shadow(&self) -> Shadow {
        Shadow::new(self.states.as_ptr())
    }

    pub(super) fn is_written(&self, offset: usize, bytes: usize) -> bool {
        // SAFETY: every caller has checked the range against `self.bytes`.
        unsafe { self.shadow().is_written(offset, bytes) }
    }

    /// Whether every byte is known to be written; looks at the shadow only as far as necessary.
    pub(super) fn all_written(&self) -> bool {
        if self.all_written.load(Ordering::Relaxed) {
            return true;
        }
        let mut starts = (0..self.bytes).step_by(SCAN_BYTES);
        let all = starts.all(|start| self.is_written(start, SCAN_BYTES.min(self.bytes - start)));
        self.all_written.store(all, Ordering::Relaxed);
        all
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: every caller has checked the range against `self.bytes`.
        unsafe {
            self.data.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.shadow().set(offset, bytes.len(), State::Written);
        }
        if bytes.len() == self.bytes {
            self.all_written.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let layout = layout(self.bytes);
        // SAFETY: both were allocated with this layout and nothing refers to them any more.
        unsafe {
            dealloc(self.data.as_ptr(), layout);
            dealloc(self.states.as_ptr(), layout);
        }
    }
}

/// Global memory of the emulated device.
///
/// Allocations lie so far apart that no overrun of one reaches another. An address that was freed is given
/// out again only when 4096 others have been freed since, or when no other is left: an access to an
/// allocation that was freed is found as such until then. Bytes start uninitialised; their contents are
/// `0xff`, a NaN in every floating-point type.
///
/// All methods take `&self` and may be called from several threads. A host write that races with a
/// launch, like two blocks that race, leaves unspecified bytes.
#[derive(Default)]
pub struct Memory {
    slots: RwLock<Slots>,
    /// Addresses of the variables of each module that launched a kernel here.
    variables: Mutex<HashMap<u64, Arc<[Address]>>>,
}

/// The allocations, and which addresses are free.
#[derive(Default)]
struct Slots {
    /// By index; 0 is never given out. `None`: freed.
    allocations: Vec<Option<Arc<Allocation>>>,
    /// Indices that were freed, the first one first.
    freed: VecDeque<usize>,
}

impl Slots {
    /// Where the next allocation goes; `None` if so many are live that there is no address.
    fn take(&mut self) -> Option<usize> {
        if self.allocations.is_empty() {
            self.allocations.push(None);
        }
        let fresh = self.allocations.len();
        let is_fresh_left = (fresh as u64) << OFFSET_BITS < SHARED_WINDOW;
        if self.freed.len() > QUARANTINE || !is_fresh_left {
            return self.freed.pop_front();
        }
        self.allocations.push(None);
        Some(fresh)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("statistics", &self.statistics()).finish()
    }
}

impl Memory {
    /// An empty memory.
    pub fn new() -> Self {
        Memory::default()
    }

    /// Allocates bytes; they start uninitialised. The address is a multiple of 256.
    ///
    /// # Panics
    ///
    /// With 65,535 live allocations, or for 1 TiB and more at once: addresses run out.
    pub fn allocate(&self, bytes: usize) -> Address {
        assert!((bytes as u64) < OFFSET_MASK, "an allocation of {bytes} bytes");
        self.insert(Allocation::new(bytes))
    }

    fn insert(&self, allocation: Allocation) -> Address {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = slots.take().expect("fewer than 65,536 live allocations in one memory");
        slots.allocations[index] = Some(Arc::new(allocation));
        Address((index as u64) << OFFSET_BITS)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    ///
    /// The address is not the start of a live allocation.
    pub fn free(&self, address: Address) -> Result<(), MemoryError> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = (address.0 >> OFFSET_BITS) as usize;
        let slot = slots.allocations.get_mut(index).filter(|_| address.0 & OFFSET_MASK == 0);
        let Some(allocation) = slot.and_then(Option::take) else {
            return Err(MemoryError::NotAllocated(address));
        };
        slots.freed.push_back(index);
        drop(slots);
        drop(allocation); // without the lock: it may be large
        Ok(())
    }

    /// The allocation of a range and the offset in it.
    fn find(&self, address: Address, bytes: usize) -> Result<(Arc<Allocation>, usize), MemoryError> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.allocations.get((address.0 >> OFFSET_BITS) as usize).and_then(Option::as_ref);
        let offset = (address.0 & OFFSET_MASK) as usize;
        match slot {
            Some(found) if offset + bytes <= found.bytes => Ok((Arc::clone(found), offset)),
            found => {
                let allocated = found.map_or(0, |found| found.bytes);
                Err(MemoryError::OutOfBounds { address, bytes, allocated })
            }
        }
    }

    /// Writes bytes; they count as initialised from then on.
    ///
    /// # Errors
    ///
    /// The range is not inside one live allocation.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.find(address, bytes.len())?;
        allocation.write(offset, bytes);
        Ok(())
    }

    /// Reads bytes, initialised or not.
    ///
    /// # Errors
    ///
    /// The range is not inside one live allocation.
    pub fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.find(address, bytes.len())?;
        // SAFETY: `find` has checked the range.
        unsafe {
            allocation.data.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Declares bytes uninitialised again. Their contents stay.
    ///
    /// # Errors
    ///
    /// The range is not inside one live allocation.
    pub fn mark_uninitialised(&self, address: Address, bytes: usize) -> Result<(), MemoryError> {
        let (allocation, offset) = self.find(address, bytes)?;
        // SAFETY: `find` has checked the range.
        unsafe { allocation.shadow().set(offset, bytes, State::Unwritten) };
        allocation.all_written.store(bytes == 0 && allocation.bytes == 0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether all bytes of a range were written, by the host or by a kernel.
    ///
    /// # Errors
    ///
    /// The range is not inside one live allocation.
    pub fn is_initialised(&self, address: Address, bytes: usize) -> Result<bool, MemoryError> {
        let (allocation, offset) = self.find(address, bytes)?;
        Ok(allocation.is_written(offset, bytes))
    }

    /// What the memory holds now.
    pub fn statistics(&self) -> MemoryStatistics {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let live = slots.allocations.iter().flatten();
        live.fold(MemoryStatistics::default(), |sum, allocation| MemoryStatistics {
            allocations: sum.allocations + 1,
            bytes_live: sum.bytes_live + allocation.bytes as u64,
        })
    }

    /// The address of a `.global` or `.const` variable of a kernel's module, by its name. From now on, and
    /// until the memory ends, kernels of the module find there what the host or they themselves have written
    /// last.
    pub fn variable(&self, kernel: &Kernel, name: &str) -> Option<Address> {
        let index = kernel.module.variables.iter().position(|variable| variable.name == name)?;
        Some(self.variables(&kernel.module)[index])
    }

    /// Addresses of a module's variables, allocated and initialised on first use.
    pub(crate) fn variables(&self, module: &ModuleData) -> Arc<[Address]> {
        let mut known = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(addresses) = known.get(&module.id) {
            return Arc::clone(addresses);
        }
        // Addresses are handed out in order, so that initial values can refer to later variables.
        let mut fresh: Vec<Allocation> =
            module.variables.iter().map(|variable| Allocation::new(variable.bytes.len())).collect();
        fresh.iter_mut().zip(&module.variables).for_each(|(a, v)| a.read_only = v.read_only);
        let addresses: Arc<[Address]> =
            fresh.into_iter().map(|allocation| self.insert(allocation)).collect();
        for (variable, &address) in module.variables.iter().zip(addresses.iter()) {
            let mut bytes = variable.bytes.clone();
            for &(offset, target, addend) in &variable.addresses {
                let value = addresses[target as usize].0.wrapping_add(addend as u64);
                bytes[offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
            let (allocation, _) = self.find(address, bytes.len()).expect("allocated above");
            allocation.write(0, &bytes);
        }
        known.insert(module.id, Arc::clone(&addresses));
        addresses
    }

    /// The allocations as a launch sees them.
    pub(crate) fn view(&self) -> GlobalView {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        GlobalView::new(slots.allocations.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Refusal;

    #[test]
    fn bytes_are_uninitialised_until_written() {
        let memory = Memory::new();
        let a = memory.allocate(10);
        assert_eq!(a.0 % 256, 0);
        assert!(!memory.is_initialised(a, 10).unwrap());
        memory.write(a.offset(2), &[1, 2, 3]).unwrap();
        assert!(memory.is_initialised(a.offset(2), 3).unwrap());
        assert!(!memory.is_initialised(a.offset(1), 3).unwrap());
        let mut bytes = [0; 6];
        memory.read(a, &mut bytes).unwrap();
        assert_eq!(bytes, [0xff, 0xff, 1, 2, 3, 0xff]);
        memory.mark_uninitialised(a.offset(3), 1).unwrap();
        assert!(!memory.is_initialised(a.offset(2), 3).unwrap());
    }

    #[test]
    fn ranges_outside_and_freed_allocations_are_refused() {
        let memory = Memory::new();
        let (a, b) = (memory.allocate(10), memory.allocate(10));
        assert!(memory.write(a.offset(8), &[0; 3]).is_err());
        assert!(memory.write(b.offset(8), &[0; 2]).is_ok());
        assert!(memory.free(b.offset(1)).is_err());
        memory.free(b).unwrap();
        assert_eq!(memory.free(b), Err(MemoryError::NotAllocated(b)));
        assert_eq!(
            memory.read(b, &mut [0]),
            Err(MemoryError::OutOfBounds { address: b, bytes: 1, allocated: 0 })
        );
        assert_eq!(memory.statistics(), MemoryStatistics { allocations: 1, bytes_live: 10 });
    }

    #[test]
    fn addresses_are_given_out_again_long_after_they_were_freed() {
        let memory = Memory::new();
        let kept = memory.allocate(1);
        let first = memory.allocate(1);
        memory.free(first).unwrap();
        for round in 0..70_000 {
            let other = memory.allocate(1);
            assert_ne!(other, kept);
            assert!(other != first || round >= QUARANTINE, "given out again after {round} others");
            memory.free(other).unwrap();
            if round == QUARANTINE - 2 {
                assert_eq!(memory.view().get(first.0).unwrap_err(), Refusal::Freed);
                assert_eq!(memory.free(first), Err(MemoryError::NotAllocated(first)));
            }
        }
        assert_eq!(memory.statistics(), MemoryStatistics { allocations: 1, bytes_live: 1 });
        assert!(memory.slots.read().unwrap().allocations.len() < 2 * QUARANTINE);
    }

    #[test]
    fn the_last_address_is_given_out_again_at_once() {
        let memory = Memory::new();
        let all: Vec<Address> = (1..1 << 16).map(|_| memory.allocate(1)).collect();
        memory.free(all[7]).unwrap();
        assert_eq!(memory.allocate(1), all[7]);
    }

    #[test]
    fn a_view_knows_what_is_fully_written() {
        let memory = Memory::new();
        let a = memory.allocate(100);
        assert!(!memory.view().get(a.0).unwrap().all_written);
        memory.write(a, &[0; 60]).unwrap();
        memory.write(a.offset(60), &[0; 40]).unwrap();
        assert!(memory.view().get(a.0).unwrap().all_written);
        assert_eq!(memory.view().get(64).unwrap_err(), Refusal::Null);
    }
}
