//! Memory in which the lanes of a warp may access their bytes: one base, and an offset for each lane.

use crate::exec::values::registers::{FULL, LANES, Registers, lanes};
use crate::isa::Instruction;
use crate::shadow::{Shadow, State};
use crate::space::Space;
use crate::unaligned;

/// Addresses of all lanes.
pub type Addresses = [u64; LANES];

/// Memory in which the lanes of a mask may access so many bytes each. It is filled in place: it is too large
/// to be handed around.
pub struct Window {
    /// Base of the offsets.
    pub data: *mut u8,
    /// The shadow of the base.
    pub shadow: Shadow,
    /// Where each lane accesses. Only the lanes of the mask have been checked.
    pub offsets: Addresses,
    /// The lanes.
    pub mask: u32,
    /// Lanes that were refused, and left out.
    pub refused: u32,
    /// The space that it lies in.
    pub space: Space,
    /// Whether the shadow has anything to tell, or to learn.
    pub tracked: bool,
}

/// What [`Window::runs`] returns.
pub struct Runs<'a> {
    offsets: &'a Addresses,
    rest: u32,
    size: u64,
}

impl Iterator for Runs<'_> {
    type Item = (usize, u64, u32);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = lanes(self.rest);
        let first = rest.next()?;
        let start = self.offsets[first];
        let mut end = start + self.size;
        self.rest &= self.rest - 1;
        for lane in rest {
            let offset = self.offsets[lane];
            if offset == end {
                end += self.size;
            } else if offset + self.size != end {
                break;
            }
            self.rest &= self.rest - 1;
        }
        Some((first, start, (end - start) as u32))
    }
}

impl Window {
    /// Nothing yet.
    #[inline(always)]
    pub fn new() -> Self {
        Window {
            data: std::ptr::null_mut(),
            shadow: Shadow::new(std::ptr::null_mut()),
            offsets: [0; LANES],
            mask: 0,
            refused: 0,
            space: Space::Generic,
            tracked: false,
        }
    }

    /// Whether lane after lane accesses one byte range without gaps, all lanes taking part.
    #[inline(always)]
    pub fn is_contiguous(&self, bytes: u32) -> bool {
        let base = self.offsets[0];
        let mut differs = 0;
        for lane in 0..LANES {
            differs |= self.offsets[lane].wrapping_sub(base) ^ (lane as u64 * u64::from(bytes));
        }
        self.mask == FULL && differs == 0
    }

    /// Ranges that the lanes access: first lane, offset and bytes. Lanes that follow on each other make one
    /// range, and those that access what the lane before does are left out.
    #[inline(always)]
    pub fn runs(&self, bytes: u32) -> Runs<'_> {
        Runs { offsets: &self.offsets, rest: self.mask, size: u64::from(bytes) }
    }

    /// Notes that the lanes wrote their bytes.
    #[inline(always)]
    pub fn set_written(&self, bytes: u32, contiguous: bool) {
        if !self.tracked {
            return;
        }
        let size = bytes as usize;
        // SAFETY: the window's offsets have been checked for this size. Other threads that write states
        // of the same bytes are blocks that race.
        unsafe {
            if contiguous {
                self.shadow.set(self.offsets[0] as usize, LANES * size, State::Written);
            } else if self.mask == FULL {
                for lane in 0..LANES {
                    self.shadow.set(self.offsets[lane] as usize, size, State::Written);
                }
            } else {
                for lane in lanes(self.mask) {
                    self.shadow.set(self.offsets[lane] as usize, size, State::Written);
                }
            }
        }
    }

    /// Stores the lanes' elements of a row of registers, at so many bytes from their offsets.
    ///
    /// # Safety
    ///
    /// The element at `at` from each offset lies inside the window.
    #[inline(always)]
    pub unsafe fn store(&self, r: &Registers, i: &Instruction, row: u32, at: usize) {
        // SAFETY: the caller vouches for the ranges.
        unsafe { self.visit_element::<false>(r, i, row, at) };
    }

    /// The lanes of a store of whose elements others are there than their registers have.
    ///
    /// # Safety
    ///
    /// All elements from each offset lie inside the window.
    #[inline(always)]
    pub unsafe fn differing(&self, r: &Registers, i: &Instruction, rows: &[u32]) -> u32 {
        let elements = rows.iter().enumerate().map(|(position, &row)| {
            // SAFETY: the caller vouches for the ranges.
            unsafe { self.visit_element::<true>(r, i, row, position * i.b as usize) }
        });
        elements.fold(0, |all, lanes| all | lanes)
    }

    /// Stores elements, or compares them with what is there: the lanes where they differ.
    ///
    /// # Safety
    ///
    /// As [`Window::store`].
    #[inline(always)]
    unsafe fn visit_element<const COMPARES: bool>(
        &self,
        r: &Registers,
        i: &Instruction,
        row: u32,
        at: usize,
    ) -> u32 {
        // SAFETY: the caller vouches for the ranges.
        unsafe {
            match (i.b, i.c != 0) {
                (1, false) => self.visit::<COMPARES, _, _>(at, r.row32(row), |value| value as u8),
                (2, false) => self.visit::<COMPARES, _, _>(at, r.row32(row), |value| value as u16),
                (4, false) => self.visit::<COMPARES, _, _>(at, r.row32(row), |value| value),
                (1, true) => self.visit::<COMPARES, _, _>(at, r.row64(row), |value| value as u8),
                (2, true) => self.visit::<COMPARES, _, _>(at, r.row64(row), |value| value as u16),
                (4, true) => self.visit::<COMPARES, _, _>(at, r.row64(row), |value| value as u32),
                (8, _) => self.visit::<COMPARES, _, _>(at, r.row64(row), |value| value),
                _ => {
                    self.visit::<COMPARES, _, _>(at, r.row64(row), |value| value)
                        | self.visit::<COMPARES, _, _>(at + 8, r.row64(row + 2), |value| value)
                }
            }
        }
    }

    /// # Safety
    ///
    /// A `T` at `at` from each offset of the mask lies inside the window.
    #[inline(always)]
    unsafe fn visit<const COMPARES: bool, T: Copy + PartialEq, C: Copy>(
        &self,
        at: usize,
        row: &[C; LANES],
        convert: impl Fn(C) -> T,
    ) -> u32 {
        let visit = |lane: usize| {
            let value = convert(row[lane]);
            // SAFETY: the caller vouches for the range.
            unsafe {
                let place = self.data.add(self.offsets[lane] as usize + at);
                if COMPARES {
                    return u32::from(unaligned::read::<T>(place) != value) << lane;
                }
                unaligned::write(place, value);
            }
            0
        };
        let mut differ = 0;
        if self.mask == FULL {
            for lane in 0..LANES {
                differ |= visit(lane);
            }
        } else {
            for lane in lanes(self.mask) {
                differ |= visit(lane);
            }
        }
        differ
    }
}
