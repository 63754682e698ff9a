//! The register file of a warp: rows of 32 lanes, and predicates as masks.

/// Lanes of a warp.
pub const LANES: usize = 32;
/// All lanes.
pub const FULL: u32 = !0;

/// A 32-bit register of every lane. A 64-bit register is two rows, read as 32 values of 64 bits.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub struct Row(pub [u32; LANES]);

/// Registers that nothing wrote: NaN in every floating-point type.
const POISON: Row = Row([!0; LANES]);

/// Rows and predicates of one warp.
#[derive(Clone, Debug)]
pub struct Registers {
    rows: Vec<Row>,
    predicates: Vec<u32>,
}

impl Registers {
    /// A file of unwritten registers.
    pub fn new(rows: u32, predicates: u32) -> Self {
        Registers { rows: vec![POISON; rows as usize], predicates: vec![0; predicates as usize] }
    }

    /// Makes every register as it is in another file of the same size.
    pub fn copy_from(&mut self, other: &Registers) {
        self.rows.copy_from_slice(&other.rows);
        self.predicates.copy_from_slice(&other.predicates);
    }

    /// A 32-bit register.
    #[inline(always)]
    pub fn row32(&self, row: u32) -> &[u32; LANES] {
        &self.rows[row as usize].0
    }

    /// A 32-bit register, to be written.
    #[inline(always)]
    pub fn row32_mut(&mut self, row: u32) -> &mut [u32; LANES] {
        &mut self.rows[row as usize].0
    }

    /// A 64-bit register.
    #[inline(always)]
    pub fn row64(&self, row: u32) -> &[u64; LANES] {
        let pair = &self.rows[row as usize..row as usize + 2];
        // SAFETY: two rows of 128 bytes hold 32 values of 8 bytes; rows are aligned to 128 bytes.
        unsafe { &*pair.as_ptr().cast() }
    }

    /// A 64-bit register, to be written.
    #[inline(always)]
    pub fn row64_mut(&mut self, row: u32) -> &mut [u64; LANES] {
        let pair = &mut self.rows[row as usize..row as usize + 2];
        // SAFETY: as in `row64`.
        unsafe { &mut *pair.as_mut_ptr().cast() }
    }

    /// A predicate: bit i belongs to lane i.
    #[inline(always)]
    pub fn predicate(&self, index: u32) -> u32 {
        self.predicates[index as usize]
    }

    /// Writes the lanes of a mask of a predicate.
    #[inline(always)]
    pub fn set_predicate(&mut self, index: u32, mask: u32, value: u32) {
        let predicate = &mut self.predicates[index as usize];
        *predicate = *predicate & !mask | value & mask;
    }

    /// Writes the lanes of a mask of a 32-bit register.
    #[inline(always)]
    pub fn set32(&mut self, row: u32, mask: u32, values: &[u32; LANES]) {
        blend(self.row32_mut(row), mask, values);
    }

    /// Writes the lanes of a mask of a 64-bit register.
    #[inline(always)]
    pub fn set64(&mut self, row: u32, mask: u32, values: &[u64; LANES]) {
        blend(self.row64_mut(row), mask, values);
    }
}

/// Copies the lanes of a mask.
#[inline(always)]
pub fn blend<T: Copy>(row: &mut [T; LANES], mask: u32, values: &[T; LANES]) {
    if mask == FULL {
        *row = *values;
    } else {
        for lane in 0..LANES {
            if mask >> lane & 1 != 0 {
                row[lane] = values[lane];
            }
        }
    }
}

/// The lanes of a mask, in order.
#[inline(always)]
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}
