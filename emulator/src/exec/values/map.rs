//! One operation over all lanes: the loops that the compiler turns into vector instructions.

use super::registers::{LANES, Registers, blend};
use crate::isa::Instruction;

/// A type of value that a register can hold.
pub trait Element: Copy {
    /// What a lane stores: `u32` or `u64`.
    type Cell: Copy + Default;
    /// The value in a lane.
    fn from_cell(cell: Self::Cell) -> Self;
    /// The lane that holds a value.
    fn into_cell(self) -> Self::Cell;
    /// A register of this type.
    fn row(registers: &Registers, row: u32) -> &[Self::Cell; LANES];
    /// A register of this type, to be written.
    fn row_mut(registers: &mut Registers, row: u32) -> &mut [Self::Cell; LANES];
}

macro_rules! element {
    ($type:ty, $cell:ty, $row:ident, $row_mut:ident, $from:expr, $into:expr) => {
        impl Element for $type {
            type Cell = $cell;
            #[inline(always)]
            fn from_cell(cell: $cell) -> Self {
                $from(cell)
            }
            #[inline(always)]
            fn into_cell(self) -> $cell {
                $into(self)
            }
            #[inline(always)]
            fn row(registers: &Registers, row: u32) -> &[$cell; LANES] {
                registers.$row(row)
            }
            #[inline(always)]
            fn row_mut(registers: &mut Registers, row: u32) -> &mut [$cell; LANES] {
                registers.$row_mut(row)
            }
        }
    };
}

// 16-bit values live in the lower half of a 32-bit lane; nothing reads the upper half.
element!(u16, u32, row32, row32_mut, |cell: u32| cell as u16, |value: u16| u32::from(value));
element!(i16, u32, row32, row32_mut, |cell: u32| cell as i16, |value: i16| u32::from(value as u16));
element!(u32, u32, row32, row32_mut, |cell: u32| cell, |value: u32| value);
element!(i32, u32, row32, row32_mut, |cell: u32| cell as i32, |value: i32| value as u32);
element!(u64, u64, row64, row64_mut, |cell: u64| cell, |value: u64| value);
element!(i64, u64, row64, row64_mut, |cell: u64| cell as i64, |value: i64| value as u64);
element!(f32, u32, row32, row32_mut, f32::from_bits, f32::to_bits);
element!(f64, u64, row64, row64_mut, f64::from_bits, f64::to_bits);

/// `d = f(a)`.
#[inline(always)]
pub fn map1<A: Element, D: Element>(
    registers: &mut Registers,
    i: &Instruction,
    mask: u32,
    f: impl Fn(A) -> D,
) {
    let mut out = [D::Cell::default(); LANES];
    let a = A::row(registers, i.a);
    for lane in 0..LANES {
        out[lane] = f(A::from_cell(a[lane])).into_cell();
    }
    blend(D::row_mut(registers, i.d), mask, &out);
}

/// `d = f(a, b)`.
#[inline(always)]
pub fn map2<A: Element, B: Element, D: Element>(
    registers: &mut Registers,
    i: &Instruction,
    mask: u32,
    f: impl Fn(A, B) -> D,
) {
    let mut out = [D::Cell::default(); LANES];
    let (a, b) = (A::row(registers, i.a), B::row(registers, i.b));
    for lane in 0..LANES {
        out[lane] = f(A::from_cell(a[lane]), B::from_cell(b[lane])).into_cell();
    }
    blend(D::row_mut(registers, i.d), mask, &out);
}

/// `d = f(a, b, c)`.
#[inline(always)]
pub fn map3<A: Element, B: Element, C: Element, D: Element>(
    registers: &mut Registers,
    i: &Instruction,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    let mut out = [D::Cell::default(); LANES];
    let (a, b, c) = (A::row(registers, i.a), B::row(registers, i.b), C::row(registers, i.c));
    for lane in 0..LANES {
        let (x, y, z) = (A::from_cell(a[lane]), B::from_cell(b[lane]), C::from_cell(c[lane]));
        out[lane] = f(x, y, z).into_cell();
    }
    blend(D::row_mut(registers, i.d), mask, &out);
}

/// `d = f(a, b, c, e)`.
#[inline(always)]
pub fn map4<A: Element, B: Element, C: Element, E: Element, D: Element>(
    registers: &mut Registers,
    i: &Instruction,
    mask: u32,
    f: impl Fn(A, B, C, E) -> D,
) {
    let mut out = [D::Cell::default(); LANES];
    let (a, b) = (A::row(registers, i.a), B::row(registers, i.b));
    let (c, e) = (C::row(registers, i.c), E::row(registers, i.e));
    for lane in 0..LANES {
        let (x, y) = (A::from_cell(a[lane]), B::from_cell(b[lane]));
        out[lane] = f(x, y, C::from_cell(c[lane]), E::from_cell(e[lane])).into_cell();
    }
    blend(D::row_mut(registers, i.d), mask, &out);
}

/// The mask of lanes for which `f(a, b)` holds.
#[inline(always)]
pub fn test2<A: Element>(registers: &Registers, i: &Instruction, f: impl Fn(A, A) -> bool) -> u32 {
    let (a, b) = (A::row(registers, i.a), A::row(registers, i.b));
    let mut holds = [0u32; LANES];
    for lane in 0..LANES {
        holds[lane] = u32::from(f(A::from_cell(a[lane]), A::from_cell(b[lane]))) << lane;
    }
    holds.iter().fold(0, |mask, bit| mask | bit)
}
