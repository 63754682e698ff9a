//! Integer arithmetic, logic, shifts and bit fields.

use crate::exec::values::map::{map1, map2, map3, map4};
use crate::exec::values::registers::Registers;
use crate::isa::{Instruction, IntegerOp};

/// Operations that exist for every width.
macro_rules! common {
    ($r:ident, $i:ident, $m:ident, $op:ident, $u:ty, $s:ty, $wide:ty, $swide:ty, $rest:expr) => {
        match $op {
            IntegerOp::Add => map2($r, $i, $m, <$u>::wrapping_add),
            IntegerOp::Sub => map2($r, $i, $m, <$u>::wrapping_sub),
            IntegerOp::Mul => map2($r, $i, $m, <$u>::wrapping_mul),
            IntegerOp::Mad => map3($r, $i, $m, |a: $u, b: $u, c: $u| a.wrapping_mul(b).wrapping_add(c)),
            IntegerOp::MulHighUnsigned => map2($r, $i, $m, |a: $u, b: $u| high!($u, $wide, a, b) as $u),
            IntegerOp::MulHighSigned => map2($r, $i, $m, |a: $s, b: $s| high!($u, $swide, a, b) as $u),
            IntegerOp::MadHighUnsigned => {
                map3($r, $i, $m, |a: $u, b: $u, c: $u| (high!($u, $wide, a, b) as $u).wrapping_add(c))
            }
            IntegerOp::MadHighSigned => {
                map3($r, $i, $m, |a: $s, b: $s, c: $u| (high!($u, $swide, a, b) as $u).wrapping_add(c))
            }
            // The hardware gives all ones for a division by zero.
            IntegerOp::DivUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.checked_div(b).unwrap_or(!0)),
            IntegerOp::RemUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.checked_rem(b).unwrap_or(a)),
            IntegerOp::DivSigned => {
                map2($r, $i, $m, |a: $s, b: $s| if b == 0 { !0 } else { a.wrapping_div(b) });
            }
            IntegerOp::RemSigned => {
                map2($r, $i, $m, |a: $s, b: $s| if b == 0 { a } else { a.wrapping_rem(b) });
            }
            IntegerOp::And => map2($r, $i, $m, |a: $u, b: $u| a & b),
            IntegerOp::Or => map2($r, $i, $m, |a: $u, b: $u| a | b),
            IntegerOp::Xor => map2($r, $i, $m, |a: $u, b: $u| a ^ b),
            IntegerOp::Not => map1($r, $i, $m, |a: $u| !a),
            IntegerOp::LogicalNot => map1($r, $i, $m, |a: $u| <$u>::from(a == 0)),
            IntegerOp::ShiftLeft => {
                map2($r, $i, $m, |a: $u, b: u32| if b < <$u>::BITS { a << (b % <$u>::BITS) } else { 0 });
            }
            IntegerOp::ShiftRightUnsigned => {
                map2($r, $i, $m, |a: $u, b: u32| if b < <$u>::BITS { a >> (b % <$u>::BITS) } else { 0 });
            }
            IntegerOp::ShiftRightSigned => map2($r, $i, $m, |a: $s, b: u32| a >> b.min(<$u>::BITS - 1)),
            IntegerOp::Neg => map1($r, $i, $m, <$s>::wrapping_neg),
            IntegerOp::Abs => map1($r, $i, $m, <$s>::wrapping_abs),
            IntegerOp::MinUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.min(b)),
            IntegerOp::MaxUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.max(b)),
            IntegerOp::MinSigned => map2($r, $i, $m, |a: $s, b: $s| a.min(b)),
            IntegerOp::MaxSigned => map2($r, $i, $m, |a: $s, b: $s| a.max(b)),
            _ => $rest,
        }
    };
}

macro_rules! high {
    ($u:ty, $wide:ty, $a:ident, $b:ident) => {
        (<$wide>::from($a) * <$wide>::from($b)) >> <$u>::BITS
    };
}

/// Products of twice the width.
macro_rules! wide {
    ($r:ident, $i:ident, $m:ident, $op:ident, $u:ty, $s:ty, $wide:ty, $swide:ty, $rest:expr) => {
        match $op {
            IntegerOp::MulWideUnsigned => {
                map2($r, $i, $m, |a: $u, b: $u| <$wide>::from(a) * <$wide>::from(b));
            }
            IntegerOp::MulWideSigned => {
                map2($r, $i, $m, |a: $s, b: $s| <$swide>::from(a) * <$swide>::from(b));
            }
            IntegerOp::MadWideUnsigned => map3($r, $i, $m, |a: $u, b: $u, c: $wide| {
                (<$wide>::from(a) * <$wide>::from(b)).wrapping_add(c)
            }),
            IntegerOp::MadWideSigned => map3($r, $i, $m, |a: $s, b: $s, c: $swide| {
                (<$swide>::from(a) * <$swide>::from(b)).wrapping_add(c)
            }),
            _ => $rest,
        }
    };
}

/// Bit fields and counts of 32 and 64 bits.
macro_rules! bits {
    ($r:ident, $i:ident, $m:ident, $op:ident, $u:ty, $s:ty, $rest:expr) => {
        match $op {
            IntegerOp::PopulationCount => map1($r, $i, $m, |a: $u| a.count_ones()),
            IntegerOp::LeadingZeros => map1($r, $i, $m, |a: $u| a.leading_zeros()),
            IntegerOp::ReverseBits => map1($r, $i, $m, |a: $u| a.reverse_bits()),
            IntegerOp::FindHighUnsigned => {
                map1($r, $i, $m, |a: $u| (<$u>::BITS - 1).wrapping_sub(a.leading_zeros()));
            }
            IntegerOp::FindHighSigned => map1($r, $i, $m, |a: $s| {
                let magnitude = (if a < 0 { !a } else { a }) as $u;
                (<$u>::BITS - 1).wrapping_sub(magnitude.leading_zeros())
            }),
            IntegerOp::FieldExtractUnsigned => map3($r, $i, $m, |a: $u, position: u32, length: u32| {
                let (position, length) = (position & 0xff, length & 0xff);
                let shifted = if position < <$u>::BITS { a >> position } else { 0 };
                if length < <$u>::BITS { shifted & ((1 << length) - 1) } else { shifted }
            }),
            IntegerOp::FieldExtractSigned => map3($r, $i, $m, |a: $s, position: u32, length: u32| {
                let (position, length) = (position & 0xff, length & 0xff);
                if length == 0 {
                    return 0;
                }
                let shifted = a >> position.min(<$u>::BITS - 1);
                let unused = <$u>::BITS - length.min(<$u>::BITS);
                // Bits beyond the top repeat the sign, and so does a field cut off by it.
                shifted << unused >> unused
            }),
            IntegerOp::FieldInsert => map4($r, $i, $m, |a: $u, b: $u, position: u32, length: u32| {
                let (position, length) = (position & 0xff, length & 0xff);
                if position >= <$u>::BITS {
                    return b;
                }
                let ones = if length < <$u>::BITS { (1 << length) - 1 } else { !0 };
                b & !(ones << position) | (a & ones) << position
            }),
            _ => $rest,
        }
    };
}

/// 16-bit operations.
#[inline(always)]
pub fn run16(r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) {
    common!(r, i, m, op, u16, i16, u32, i32, wide!(r, i, m, op, u16, i16, u32, i32, unknown(op)));
}

/// 32-bit operations.
#[inline(always)]
pub fn run32(r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) {
    common!(
        r,
        i,
        m,
        op,
        u32,
        i32,
        u64,
        i64,
        wide!(r, i, m, op, u32, i32, u64, i64, bits!(r, i, m, op, u32, i32, only32(r, i, m, op)))
    );
}

/// 64-bit operations.
#[inline(always)]
pub fn run64(r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) {
    common!(r, i, m, op, u64, i64, u128, i128, bits!(r, i, m, op, u64, i64, unknown(op)));
}

#[cold]
fn unknown(op: IntegerOp) {
    unreachable!("the decoder does not make {op:?} of this width");
}

/// Operations that exist for 32 bits alone.
#[inline(always)]
fn only32(r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) {
    let join = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    match op {
        IntegerOp::AddSaturating => map2(r, i, m, i32::saturating_add),
        IntegerOp::SubSaturating => map2(r, i, m, i32::saturating_sub),
        IntegerOp::Permute => permute(r, i, m),
        IntegerOp::Logic3 => logic3(r, i, m),
        IntegerOp::FunnelLeftWrap => {
            map3(r, i, m, |a: u32, b: u32, c: u32| ((join(a, b) << (c & 31)) >> 32) as u32);
        }
        IntegerOp::FunnelLeftClamp => {
            map3(r, i, m, |a: u32, b: u32, c: u32| ((join(a, b) << c.min(32)) >> 32) as u32);
        }
        IntegerOp::FunnelRightWrap => {
            map3(r, i, m, |a: u32, b: u32, c: u32| (join(a, b) >> (c & 31)) as u32);
        }
        IntegerOp::FunnelRightClamp => {
            map3(r, i, m, |a: u32, b: u32, c: u32| (join(a, b) >> c.min(32)) as u32);
        }
        IntegerOp::Mul24Unsigned => {
            map2(r, i, m, |a: u32, b: u32| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff));
        }
        IntegerOp::Mul24Signed => {
            map2(r, i, m, |a: i32, b: i32| (a << 8 >> 8).wrapping_mul(b << 8 >> 8));
        }
        IntegerOp::SadUnsigned => {
            map3(r, i, m, |a: u32, b: u32, c: u32| c.wrapping_add(a.abs_diff(b)));
        }
        IntegerOp::SadSigned => map3(r, i, m, |a: i32, b: i32, c: u32| c.wrapping_add(a.abs_diff(b))),
        IntegerOp::Dp4aUnsigned => map3(r, i, m, |a: u32, b: u32, c: u32| {
            let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            products.fold(c, |sum, (x, y)| sum.wrapping_add(u32::from(x) * u32::from(y)))
        }),
        IntegerOp::Dp4aSigned => map3(r, i, m, |a: u32, b: u32, c: i32| {
            let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            products.fold(c, |sum, (x, y)| sum.wrapping_add(i32::from(x as i8) * i32::from(y as i8)))
        }),
        _ => unknown(op),
    }
}

/// `prmt`: each nibble of the selector picks a byte of `b:a`, or its sign spread over eight bits.
#[inline(always)]
fn permute(r: &mut Registers, i: &Instruction, m: u32) {
    map3(r, i, m, |a: u32, b: u32, selector: u32| {
        let bytes = u64::from(b) << 32 | u64::from(a);
        let mut out = 0;
        for position in 0..4 {
            let nibble = selector >> (4 * position);
            let byte = (bytes >> (8 * (nibble & 7))) as u8;
            let byte = if nibble & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
            out |= u32::from(byte) << (8 * position);
        }
        out
    });
}

/// `lop3`: bit `4a + 2b + c` of the table.
#[inline(always)]
fn logic3(r: &mut Registers, i: &Instruction, m: u32) {
    let table = i.immediate;
    map3(r, i, m, |a: u32, b: u32, c: u32| {
        let mut out = 0;
        for entry in 0..8 {
            let pick = |value: u32, bit: i32| if entry & bit != 0 { value } else { !value };
            if table >> entry & 1 != 0 {
                out |= pick(a, 4) & pick(b, 2) & pick(c, 1);
            }
        }
        out
    });
}
