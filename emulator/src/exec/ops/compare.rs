//! Comparisons.

use crate::exec::values::float::flush;
use crate::exec::values::half::{Bfloat, Half, flush16};
use crate::exec::values::map::{Element, test2};
use crate::exec::values::registers::Registers;
use crate::isa::types::combine;
use crate::isa::{CompareType, FLAG_FTZ, FLAG_NEGATE_SOURCE, Instruction, Relation};

/// `setp`: the relation's mask, combined with another predicate, to a predicate and its complement.
#[inline(always)]
pub fn run(r: &mut Registers, i: &Instruction, m: u32, ty: CompareType) {
    let relation = Relation::ALL[usize::from(i.count)];
    let holds = match ty {
        CompareType::U16 => total::<u16>(r, i, relation),
        CompareType::S16 => total::<i16>(r, i, relation),
        CompareType::U32 => total::<u32>(r, i, relation),
        CompareType::S32 => total::<i32>(r, i, relation),
        CompareType::U64 => total::<u64>(r, i, relation),
        CompareType::S64 => total::<i64>(r, i, relation),
        CompareType::F32 if i.has(FLAG_FTZ) => partial(r, i, relation, flush),
        CompareType::F32 => partial(r, i, relation, |value: f32| value),
        CompareType::F64 => partial(r, i, relation, |value: f64| value),
        CompareType::F16 if i.has(FLAG_FTZ) => {
            partial(r, i, relation, |value: Half| flush16(value).to_f32())
        }
        CompareType::F16 => partial(r, i, relation, |value: Half| value.to_f32()),
        CompareType::Bf16 => partial(r, i, relation, |value: Bfloat| value.to_f32()),
    };
    let mut complement = !holds;
    let mut result = holds;
    if i.immediate != 0 {
        let c = r.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
        (result, complement) = match i.immediate {
            combine::AND => (holds & c, !holds & c),
            combine::OR => (holds | c, !holds | c),
            _ => (holds ^ c, !holds ^ c),
        };
    }
    r.set_predicate(i.d, m, result);
    r.set_predicate(i.e, m, complement);
}

#[inline(always)]
fn total<T: Element + Ord>(r: &Registers, i: &Instruction, relation: Relation) -> u32 {
    match relation {
        Relation::Eq => test2(r, i, |a: T, b: T| a == b),
        Relation::Ne => test2(r, i, |a: T, b: T| a != b),
        Relation::Lt => test2(r, i, |a: T, b: T| a < b),
        Relation::Le => test2(r, i, |a: T, b: T| a <= b),
        Relation::Gt => test2(r, i, |a: T, b: T| a > b),
        _ => test2(r, i, |a: T, b: T| a >= b),
    }
}

#[inline(always)]
fn partial<T: Element, F: PartialOrd>(
    r: &Registers,
    i: &Instruction,
    relation: Relation,
    value: impl Fn(T) -> F,
) -> u32 {
    // The unordered relations are the complements of the opposite ordered ones.
    match relation {
        Relation::Eq => test2(r, i, |a: T, b: T| value(a) == value(b)),
        Relation::NeUnordered => !test2(r, i, |a: T, b: T| value(a) == value(b)),
        Relation::Lt => test2(r, i, |a: T, b: T| value(a) < value(b)),
        Relation::GeUnordered => !test2(r, i, |a: T, b: T| value(a) < value(b)),
        Relation::Le => test2(r, i, |a: T, b: T| value(a) <= value(b)),
        Relation::GtUnordered => !test2(r, i, |a: T, b: T| value(a) <= value(b)),
        Relation::Gt => test2(r, i, |a: T, b: T| value(a) > value(b)),
        Relation::LeUnordered => !test2(r, i, |a: T, b: T| value(a) > value(b)),
        Relation::Ge => test2(r, i, |a: T, b: T| value(a) >= value(b)),
        Relation::LtUnordered => !test2(r, i, |a: T, b: T| value(a) >= value(b)),
        Relation::Ne => test2(r, i, |a: T, b: T| value(a) < value(b) || value(a) > value(b)),
        Relation::EqUnordered => !test2(r, i, |a: T, b: T| value(a) < value(b) || value(a) > value(b)),
        Relation::Number => test2(r, i, |a: T, b: T| is_number(value(a)) & is_number(value(b))),
        Relation::Nan => !test2(r, i, |a: T, b: T| is_number(value(a)) & is_number(value(b))),
    }
}

#[inline(always)]
#[allow(clippy::eq_op)]
fn is_number<F: PartialOrd>(value: F) -> bool {
    value == value
}
