//! Video instructions, as PTX describes them. What `ptxas` makes of them for GPUs that have none differs in
//! places: see the tests beside a GPU.

use crate::isa::{Relation, VideoKind, VideoOp, VideoProduct, VideoRest};

/// The numbers of so many bits.
pub fn range(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The number in the lower bits.
fn number(value: u32, bits: u32, signed: bool) -> i128 {
    let unused = 32 - bits;
    if signed {
        (((value << unused) as i32) >> unused).into()
    } else {
        (value << unused >> unused).into()
    }
}

/// What a pair of numbers gives.
fn combined(op: VideoOp, x: i128, y: i128) -> i128 {
    match op.kind {
        VideoKind::Add => x + y,
        VideoKind::Sub => x - y,
        VideoKind::AbsoluteDifference => (x - y).abs(),
        VideoKind::Min => x.min(y),
        VideoKind::Max => x.max(y),
        VideoKind::Average => (x + y + i128::from(x + y >= 0)) >> 1,
        VideoKind::Set => i128::from(match Relation::ALL[usize::from(op.relation)] {
            Relation::Eq => x == y,
            Relation::Ne => x != y,
            Relation::Lt => x < y,
            Relation::Le => x <= y,
            Relation::Gt => x > y,
            _ => x >= y,
        }),
        VideoKind::ShiftLeftClamp => x << y.min(32),
        VideoKind::ShiftRightClamp => x >> y.min(32),
        VideoKind::ShiftLeftWrap => x << (y & 31),
        VideoKind::ShiftRightWrap => x >> (y & 31),
    }
}

/// One of a lane.
pub fn run(op: VideoOp, a: u32, b: u32, c: u32) -> u32 {
    let bits = 32 / op.lanes.max(1);
    let [result_is_signed, a_is_signed, b_is_signed] = op.signed;
    // A single result has as many bits as the destination has bytes for it.
    let result_bits = bits.min(8 * op.bytes.count_ones().max(1));
    let (low, high) = range(result_bits, result_is_signed);
    let of = |lane: u32| {
        let shift = lane * bits;
        let (x, y) = (number(a >> shift, bits, a_is_signed), number(b >> shift, bits, b_is_signed));
        let value = combined(op, x, y);
        if op.saturates { value.clamp(low, high) } else { value }
    };
    let first = of(0);
    match op.rest {
        VideoRest::Min => first.min(number(c, 32, result_is_signed)) as u32,
        VideoRest::Max => first.max(number(c, 32, result_is_signed)) as u32,
        VideoRest::Add | VideoRest::Merge => {
            let (mut sum, mut merged) = (i128::from(c), c);
            for lane in 0..op.lanes {
                let place = if op.lanes == 1 { 8 * op.bytes.trailing_zeros() % 32 } else { lane * bits };
                if op.bytes >> (place / 8) & 1 != 0 {
                    let value = if lane == 0 { first } else { of(lane) };
                    let mask = (u64::from(u32::MAX) >> (32 - result_bits) << place) as u32;
                    sum += value;
                    merged = merged & !mask | (value as u32) << place & mask;
                }
            }
            if op.rest == VideoRest::Add { sum as u32 } else { merged }
        }
    }
}

/// `vmad`. The sum has the sign of the product; the result is signed, too, where `c` is subtracted.
pub fn multiply_add(op: VideoProduct, a: u32, b: u32, c: u32) -> u32 {
    let [a_is_signed, b_is_signed] = op.signed;
    let [negates, subtracts] = op.negated;
    let is_signed = a_is_signed || b_is_signed || negates;
    let product = number(a, 32, a_is_signed) * number(b, 32, b_is_signed);
    let c = number(c, 32, is_signed);
    let sum = if negates { -product } else { product } + if subtracts { -c } else { c };
    let result = (sum + i128::from(op.plus_one)) >> op.scale;
    let (low, high) = range(32, is_signed || subtracts);
    if op.saturates { result.clamp(low, high) as u32 } else { result as u32 }
}
