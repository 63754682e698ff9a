//! Integer arithmetic, logic, shifts and bit fields.

use crate::exec::values::map::{map1, map2, map3, map4};
use crate::exec::values::registers::Registers;
use crate::isa::{FLAG_FTZ, Instruction, IntegerOp};

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
            // The hardware gives all ones for a division by zero, the remainder too.
            IntegerOp::DivUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.checked_div(b).unwrap_or(!0)),
            IntegerOp::RemUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.checked_rem(b).unwrap_or(!0)),
            IntegerOp::DivSigned => {
                map2($r, $i, $m, |a: $s, b: $s| if b == 0 { !0 } else { a.wrapping_div(b) });
            }
            IntegerOp::RemSigned => {
                map2($r, $i, $m, |a: $s, b: $s| if b == 0 { !0 } else { a.wrapping_rem(b) });
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
            IntegerOp::SadUnsigned => {
                map3($r, $i, $m, |a: $u, b: $u, c: $u| c.wrapping_add(a.abs_diff(b)));
            }
            IntegerOp::SadSigned => {
                map3($r, $i, $m, |a: $s, b: $s, c: $u| c.wrapping_add(a.abs_diff(b)));
            }
            IntegerOp::Neg => map1($r, $i, $m, <$s>::wrapping_neg),
            IntegerOp::Abs => map1($r, $i, $m, <$s>::wrapping_abs),
            IntegerOp::MinUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.min(b)),
            IntegerOp::MaxUnsigned => map2($r, $i, $m, |a: $u, b: $u| a.max(b)),
            IntegerOp::MinSigned => map2($r, $i, $m, |a: $s, b: $s| a.min(b)),
            IntegerOp::MaxSigned => map2($r, $i, $m, |a: $s, b: $s| a.max(b)),
            IntegerOp::SelectBySign => {
                map3($r, $i, $m, |a: $u, b: $u, c: i32| if c >= 0 { a } else { b });
            }
            IntegerOp::SelectByFloat => {
                // Flushed, a number below the smallest normal one is a zero.
                let least = if $i.has(FLAG_FTZ) { -f32::MIN_POSITIVE } else { 0.0 };
                map3($r, $i, $m, |a: $u, b: $u, c: f32| if c >= 0.0 || c > least { a } else { b });
            }
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
            IntegerOp::ShiftToHighUnsigned => {
                map1($r, $i, $m, |a: $u| if a == 0 { !0 } else { a.leading_zeros() });
            }
            IntegerOp::ShiftToHighSigned => map1($r, $i, $m, |a: $s| {
                let magnitude = (if a < 0 { !a } else { a }) as $u;
                if magnitude == 0 { !0 } else { magnitude.leading_zeros() }
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
        IntegerOp::Permute => permute(r, i, m, |selector| selector),
        IntegerOp::PermuteByTable => {
            let table = PERMUTATIONS[i.immediate as usize];
            permute(r, i, m, |selector| table[selector as usize & 3]);
        }
        IntegerOp::BitMaskWrap => map2(r, i, m, |a: u32, b: u32| bit_mask(a & 31, b & 31)),
        IntegerOp::BitMaskClamp => map2(r, i, m, |a: u32, b: u32| bit_mask(a, b)),
        IntegerOp::ExtendUnsignedWrap => map2(r, i, m, |a: u32, b: u32| extend(a, b & 31, false)),
        IntegerOp::ExtendSignedWrap => map2(r, i, m, |a: u32, b: u32| extend(a, b & 31, true)),
        IntegerOp::ExtendUnsignedClamp => map2(r, i, m, |a: u32, b: u32| extend(a, b, false)),
        IntegerOp::ExtendSignedClamp => map2(r, i, m, |a: u32, b: u32| extend(a, b, true)),
        IntegerOp::MinRelu => map2(r, i, m, |a: i32, b: i32| a.min(b).max(0)),
        IntegerOp::MaxRelu => map2(r, i, m, |a: i32, b: i32| a.max(b).max(0)),
        IntegerOp::AddPair => map2(r, i, m, |a: u32, b: u32| pair(a, b, i16::wrapping_add)),
        IntegerOp::MinPairSigned => map2(r, i, m, |a: u32, b: u32| pair(a, b, i16::min)),
        IntegerOp::MaxPairSigned => map2(r, i, m, |a: u32, b: u32| pair(a, b, i16::max)),
        IntegerOp::MinPairUnsigned => {
            map2(r, i, m, |a: u32, b: u32| pair(a, b, |a, b| (a as u16).min(b as u16) as i16));
        }
        IntegerOp::MaxPairUnsigned => {
            map2(r, i, m, |a: u32, b: u32| pair(a, b, |a, b| (a as u16).max(b as u16) as i16));
        }
        IntegerOp::MinPairRelu => map2(r, i, m, |a: u32, b: u32| pair(a, b, |a, b| a.min(b).max(0))),
        IntegerOp::MaxPairRelu => map2(r, i, m, |a: u32, b: u32| pair(a, b, |a, b| a.max(b).max(0))),
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
        IntegerOp::Mul24Unsigned => map2(r, i, m, |a: u32, b: u32| unsigned24(a, b) as u32),
        IntegerOp::Mul24Signed => map2(r, i, m, |a: i32, b: i32| signed24(a, b) as u32),
        IntegerOp::Mul24HighUnsigned => map2(r, i, m, |a: u32, b: u32| (unsigned24(a, b) >> 16) as u32),
        IntegerOp::Mul24HighSigned => map2(r, i, m, |a: i32, b: i32| (signed24(a, b) >> 16) as u32),
        IntegerOp::Mad24Unsigned => {
            map3(r, i, m, |a: u32, b: u32, c: u32| (unsigned24(a, b) as u32).wrapping_add(c));
        }
        IntegerOp::Mad24Signed => {
            map3(r, i, m, |a: i32, b: i32, c: u32| (signed24(a, b) as u32).wrapping_add(c));
        }
        IntegerOp::Mad24HighUnsigned => {
            map3(r, i, m, |a: u32, b: u32, c: u32| ((unsigned24(a, b) >> 16) as u32).wrapping_add(c));
        }
        IntegerOp::Mad24HighSigned => {
            map3(r, i, m, |a: i32, b: i32, c: u32| ((signed24(a, b) >> 16) as u32).wrapping_add(c));
        }
        IntegerOp::Mad24HighSaturating => {
            map3(r, i, m, |a: i32, b: i32, c: i32| ((signed24(a, b) >> 16) as i32).saturating_add(c));
        }
        IntegerOp::MadHighSaturating => {
            map3(r, i, m, |a: i32, b: i32, c: i32| (high!(u32, i64, a, b) as i32).saturating_add(c));
        }
        IntegerOp::DotBytes => dot(r, i, m, |a, is_signed| {
            a.to_le_bytes().map(|byte| extended(u32::from(byte), 8, is_signed))
        }),
        IntegerOp::DotHalves => {
            // Those of `b` that have no half beside them count for nothing.
            dot(r, i, m, |a, is_signed| {
                [extended(a, 16, is_signed), extended(a >> 16, 16, is_signed), 0, 0]
            });
        }
        _ => unknown(op),
    }
}

/// The lower bits of a number, with zeros or the sign.
fn extended(value: u32, bits: u32, is_signed: bool) -> i64 {
    let shifted = value << (32 - bits);
    if is_signed { i64::from(shifted as i32 >> (32 - bits)) } else { i64::from(shifted >> (32 - bits)) }
}

/// `dp4a` and `dp2a`: what `parts` makes of `a`, times the bytes of `b`, plus `c`.
#[inline(always)]
fn dot(r: &mut Registers, i: &Instruction, m: u32, parts: impl Fn(u32, bool) -> [i64; 4]) {
    let flags = i.immediate;
    map3(r, i, m, |a: u32, b: u32, c: u32| {
        let b = if flags & 4 != 0 { b >> 16 } else { b };
        let bytes = b.to_le_bytes().map(|byte| extended(u32::from(byte), 8, flags & 2 != 0));
        let products = parts(a, flags & 1 != 0).into_iter().zip(bytes).map(|(a, b)| a * b);
        (i64::from(c) + products.sum::<i64>()) as u32
    });
}

fn unsigned24(a: u32, b: u32) -> u64 {
    u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)
}

fn signed24(a: i32, b: i32) -> i64 {
    i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)
}

/// `bmsk`: so many ones from a bit on, as far as there are bits.
fn bit_mask(first: u32, count: u32) -> u32 {
    let ones = if count < 32 { (1 << count) - 1 } else { !0 };
    if first < 32 { ones << first } else { 0 }
}

/// `szext`: the lower bits, extended; with 32 and more, all.
fn extend(value: u32, bits: u32, is_signed: bool) -> u32 {
    match bits {
        0 => 0,
        1..32 => extended(value, bits, is_signed) as u32,
        _ => value,
    }
}

/// Both halves.
fn pair(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    let half = |shift: u32| u32::from(f((a >> shift) as i16, (b >> shift) as i16) as u16);
    half(0) | half(16) << 16
}

/// The modes of `prmt`, f4e, b4e, rc8, ecl, ecr and rc16: selectors by the lower two bits of `c`.
const PERMUTATIONS: [[u32; 4]; 6] = [
    [0x3210, 0x4321, 0x5432, 0x6543],
    [0x5670, 0x6701, 0x7012, 0x0123],
    [0x0000, 0x1111, 0x2222, 0x3333],
    [0x3210, 0x3211, 0x3222, 0x3333],
    [0x0000, 0x1110, 0x2210, 0x3210],
    [0x1010, 0x3232, 0x1010, 0x3232],
];

/// `prmt`: each nibble of what `selector` makes of `c` picks a byte of `b:a`, or its sign spread over
/// eight bits.
#[inline(always)]
fn permute(r: &mut Registers, i: &Instruction, m: u32, selector: impl Fn(u32) -> u32) {
    map3(r, i, m, |a: u32, b: u32, c: u32| {
        let bytes = u64::from(b) << 32 | u64::from(a);
        let selector = selector(c);
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
