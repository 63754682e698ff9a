//! Operations that compilers hardly ever write, lane after lane.

use super::video;
use crate::exec::values::fp8::Fp8;
use crate::exec::values::half::Half;
use crate::exec::values::registers::{Registers, lanes};
use crate::isa::{FLAG_VARIANT, Instruction, RareOp, VideoOp, VideoProduct};

/// Runs one.
pub fn run(r: &mut Registers, i: &Instruction, m: u32, op: RareOp) {
    let wide = op.rows()[0] == 2;
    for lane in lanes(m) {
        if wide {
            let value = r.row64(i.a)[lane];
            r.row64_mut(i.d)[lane] = upper(op, value);
        } else {
            let [a, b, c] = [i.a, i.b, i.c].map(|row| r.row32(row)[lane]);
            r.row32_mut(i.d)[lane] = narrow(i, op, a, b, c);
        }
    }
}

fn narrow(i: &Instruction, op: RareOp, a: u32, b: u32, c: u32) -> u32 {
    let format = if i.immediate == 0 { Fp8::E4m3 } else { Fp8::E5m2 };
    let relu = |value: f32| if i.has(FLAG_VARIANT) && value <= 0.0 { 0.0 } else { value };
    let eight = |value: f32| u32::from(format.nearest(relu(value)));
    let half = |bits: u32| Half(bits as u16).to_f32();
    match op {
        RareOp::FindNthSet => nth_set(a, b, c as i32),
        RareOp::Video => video::run(VideoOp::decode(i.immediate), a, b, c),
        RareOp::VideoMultiplyAdd => video::multiply_add(VideoProduct::decode(i.immediate), a, b, c),
        RareOp::Fp8FromSingles => eight(f32::from_bits(a)) << 8 | eight(f32::from_bits(b)),
        RareOp::Fp8FromHalves => eight(half(a >> 16)) << 8 | eight(half(a)),
        RareOp::HalvesFromFp8 => {
            let one = |bits: u32| u32::from(Half::from_f32(relu(format.to_f32(bits as u8))).0);
            one(a >> 8) << 16 | one(a)
        }
        RareOp::PackSaturated => {
            let (bits, signed) = (i.immediate as u32 & 0xff, i.immediate & 0x100 != 0);
            let (low, high) = video::range(bits, signed);
            let mask = ((1u64 << bits) - 1) as u32;
            let one = |value: u32| i128::from(value as i32).clamp(low, high) as u32 & mask;
            let above = if bits == 16 { 0 } else { c << (2 * bits) };
            above | one(a) << bits | one(b)
        }
        RareOp::RcpUpper | RareOp::RsqrtUpper => 0, // of 64 bits
    }
}

/// All bits set where there is none, or the bit asked for is beyond the register.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    let is_set = |&bit: &u32| mask >> bit & 1 != 0;
    let found = match offset {
        0 => Some(base).filter(is_set),
        1.. => (base..32).filter(is_set).nth(offset as usize - 1),
        _ => (0..=base).rev().filter(is_set).nth(offset.unsigned_abs() as usize - 1),
    };
    found.unwrap_or(u32::MAX)
}

/// An operation on the upper 32 bits of an f64.
fn upper(op: RareOp, bits: u64) -> u64 {
    const UPPER: u64 = 0xffff_ffff_0000_0000;
    let flush = |value: f64| if value.is_subnormal() { 0f64.copysign(value) } else { value };
    let value = flush(f64::from_bits(bits & UPPER));
    let result = match op {
        RareOp::RsqrtUpper => 1.0 / value.sqrt(),
        _ => 1.0 / value,
    };
    if result.is_nan() {
        return 0x7fff_ffff_0000_0000;
    }
    flush(result).to_bits() & UPPER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_up_and_down() {
        assert_eq!(nth_set(0b1011, 0, 1), 0);
        assert_eq!(nth_set(0b1011, 1, 2), 3);
        assert_eq!(nth_set(0b1011, 3, -2), 1);
        assert_eq!((nth_set(0b1011, 1, 0), nth_set(0b1011, 2, 0)), (1, u32::MAX));
        assert_eq!((nth_set(0b1011, 0, 4), nth_set(0b1011, 40, 1)), (u32::MAX, u32::MAX));
    }
}
