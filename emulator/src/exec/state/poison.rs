//! Which registers of a warp hold values that are not defined, and where these come from.

use crate::exec::values::registers::{LANES, Registers, lanes};
use crate::isa::operands::{Role, visit, visit_predicates};
use crate::isa::types::combine;
use crate::isa::{
    Code, FLAG_NEGATE_SOURCE, Instruction, IntegerOp, Op, PredicateOp, WgmmaOp, WgmmaShape,
};
use crate::space::Space;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// Why a value is not defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An access that was refused would have given it. That has been reported, and what comes of it is not.
    Refused,
    /// `shfl.sync` took it from a lane that is no member.
    Shuffle,
    /// Nothing wrote the register, a watched one by its number.
    Register(u32),
    /// No defined value was written to `byte` of the `bytes` bytes that were loaded at an offset.
    Memory {
        space: Space,
        byte: u32,
        bytes: u32,
        offset: u64,
        /// Whether something was written to it, though.
        written: bool,
    },
}

/// Where a value that is not defined comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub cause: Cause,
    /// The instruction that made or read it,
    pub pc: u32,
    /// and in which lane,
    pub lane: u32,
    /// of which warp.
    pub warp: u32,
}

/// The number of the origin of all that comes of refused accesses.
pub const REFUSED: u16 = 0;

/// Lanes whose values are not defined, and the numbers of their origins.
#[derive(Clone, Copy, Debug)]
pub struct Taint {
    pub mask: u32,
    pub origins: [u16; LANES],
}

impl Taint {
    /// Everything is defined.
    pub const NONE: Taint = Taint { mask: 0, origins: [REFUSED; LANES] };

    /// These lanes, all of one origin.
    pub fn of(mask: u32, origin: u16) -> Self {
        Taint { mask, origins: [origin; LANES] }
    }

    /// What depends on either. Of two origins the later one counts, and a refused access before all others.
    pub fn join(&mut self, other: &Taint) {
        for lane in lanes(other.mask) {
            let known = self.mask >> lane & 1 != 0;
            let theirs = other.origins[lane];
            let is_refused = known && self.origins[lane] == REFUSED || theirs == REFUSED;
            self.origins[lane] = match known {
                _ if is_refused => REFUSED,
                true => self.origins[lane].max(theirs),
                false => theirs,
            };
        }
        self.mask |= other.mask;
    }

    /// Only these lanes of it.
    pub fn only(mut self, lanes: u32) -> Self {
        self.mask &= lanes;
        self
    }

    /// The lanes of a mask get what stands here, also if that is "defined".
    fn blend_into(&self, target: &mut Taint, m: u32) {
        for lane in lanes(self.mask & m) {
            target.origins[lane] = self.origins[lane];
        }
        target.mask = target.mask & !m | self.mask & m;
    }
}

/// Which lanes' values are not defined.
#[derive(Debug)]
pub struct Poison {
    rows: Vec<Taint>,
    predicates: Vec<Taint>,
    /// Operand lists, of which [`visit`] wants its own.
    lists: Vec<u32>,
    origins: Vec<Origin>,
    /// The number of an origin by its instruction, warp and lane and, of a register, that.
    numbers: HashMap<(u32, u32, u32, u32), u16, FixedState>,
}

impl Poison {
    /// All values are defined.
    pub fn new(code: &Code) -> Self {
        Poison {
            rows: vec![Taint::NONE; code.rows as usize],
            predicates: vec![Taint::NONE; code.predicates as usize],
            lists: code.lists.clone(),
            origins: vec![Origin { cause: Cause::Refused, pc: 0, lane: 0, warp: 0 }],
            numbers: HashMap::default(),
        }
    }

    /// The number of an origin. Of one instruction, lane and register, the last one counts.
    pub fn number(&mut self, origin: Origin) -> u16 {
        if origin.cause == Cause::Refused {
            return REFUSED;
        }
        let next = self.origins.len().min(usize::from(u16::MAX)) as u16;
        let register = if let Cause::Register(register) = origin.cause { register } else { u32::MAX };
        let number =
            *self.numbers.entry((origin.pc, origin.warp, origin.lane, register)).or_insert(next);
        match self.origins.get_mut(usize::from(number)) {
            Some(known) => *known = origin,
            None => self.origins.push(origin),
        }
        number
    }

    /// The origin of a number.
    pub fn origin(&self, number: u16) -> Origin {
        self.origins[usize::from(number)]
    }

    /// Forgets all origins, of which no register has a value any more.
    pub fn forget_origins(&mut self) {
        debug_assert!(self.is_empty());
        self.origins.truncate(1);
        self.numbers.clear();
    }

    /// Whether everything is defined.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().chain(&self.predicates).all(|taint| taint.mask == 0)
    }

    /// Any of these rows.
    pub fn of(&self, row: u32, count: u32) -> Taint {
        let mut all = Taint::NONE;
        self.rows[row as usize..][..count as usize].iter().for_each(|taint| all.join(taint));
        all
    }

    /// A predicate.
    pub fn predicate(&self, index: u32) -> Taint {
        self.predicates[index as usize]
    }

    /// Lanes of rows become defined, or not.
    pub fn set(&mut self, row: u32, count: u32, m: u32, value: &Taint) {
        for row in &mut self.rows[row as usize..][..count as usize] {
            value.blend_into(row, m);
        }
    }

    /// Lanes of a predicate become defined, or not.
    pub fn set_predicate(&mut self, index: u32, m: u32, value: &Taint) {
        value.blend_into(&mut self.predicates[index as usize], m);
    }

    /// From now on everything is defined in these lanes.
    pub fn forget(&mut self, lanes: u32) {
        self.rows.iter_mut().chain(&mut self.predicates).for_each(|taint| taint.mask &= !lanes);
    }

    /// What an instruction reads, its guard left out.
    pub fn read(&mut self, registers: &Registers, i: &Instruction) -> Taint {
        let mut lists = std::mem::take(&mut self.lists);
        let mut all = Taint::NONE;
        visit_predicates(i, &mut |predicate, role| {
            if role == Role::Read {
                all.join(&self.predicates[predicate as usize]);
            }
        });
        let holds = || registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
        if let Op::Select32 | Op::Select64 = i.op {
            let count = if i.op == Op::Select64 { 2 } else { 1 };
            all.join(&self.of(i.a, count).only(holds()));
            all.join(&self.of(i.b, count).only(!holds()));
        } else {
            // Accumulators are read where the multiplication accumulates, and metadata in some lanes.
            let multiplies = i.op == Op::Wgmma(WgmmaOp::Multiply);
            let updates = if multiplies { holds() } else { !0 };
            let metadata = if multiplies { metadata(i, &lists) } else { None };
            visit(&mut i.clone(), &mut lists, &mut |&mut row, count, role| match role {
                Role::Read if metadata.is_some_and(|(metadata, _)| metadata == row) => {
                    let lanes = metadata.map_or(!0, |(_, lanes)| lanes);
                    all.join(&self.of(row, count).only(lanes));
                }
                Role::Read => all.join(&self.of(row, count)),
                Role::Update => all.join(&self.of(row, count).only(updates)),
                Role::Write => {}
            });
            all.mask &= !self.settled(registers, i);
        }
        self.lists = lists;
        all
    }

    /// Lanes in which the result does not depend on what is not defined: bits that are masked out.
    fn settled(&self, registers: &Registers, i: &Instruction) -> u32 {
        let wide = matches!(i.op, Op::Integer64(_));
        let value = |row: u32, lane: usize| match wide {
            true => registers.row64(row)[lane],
            false => u64::from(registers.row32(row)[lane]),
        };
        let rows = 1 + u32::from(wide);
        let ones = if wide { u64::MAX } else { u64::from(u32::MAX) };
        let one_is = |wanted: u64| {
            let mut settled = 0;
            for (row, mask) in [(i.a, self.of(i.a, rows).mask), (i.b, self.of(i.b, rows).mask)] {
                let is_wanted = (0..LANES).filter(|&lane| value(row, lane) == wanted);
                settled |= is_wanted.fold(0, |lanes, lane| lanes | 1 << lane) & !mask;
            }
            settled
        };
        match i.op {
            Op::Integer16(op) | Op::Integer32(op) | Op::Integer64(op) => match op {
                IntegerOp::And | IntegerOp::Mul => one_is(0),
                IntegerOp::Or => one_is(ones),
                IntegerOp::Permute => self.permuted_away(registers, i),
                _ => 0,
            },
            Op::Predicate(op) => self.decided(registers, i, op),
            // The predicate that the comparison is combined with.
            Op::Compare(_) => {
                let c = registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
                let defined = !self.predicate(i.c).mask;
                match i.immediate {
                    combine::AND => !c & defined,
                    combine::OR => c & defined,
                    _ => 0,
                }
            }
            _ => 0,
        }
    }

    /// Lanes in which one of two predicates decides alone, and is defined.
    fn decided(&self, registers: &Registers, i: &Instruction, op: PredicateOp) -> u32 {
        let negated = [i.has(FLAG_NEGATE_SOURCE), i.immediate != 0];
        let decides = |index: u32, negated: bool| {
            let value = registers.predicate(index) ^ if negated { !0 } else { 0 };
            let decides = match op {
                PredicateOp::And => !value,
                PredicateOp::Or => value,
                PredicateOp::Move | PredicateOp::Not | PredicateOp::Xor => 0,
            };
            decides & !self.predicate(index).mask
        };
        decides(i.a, negated[0]) | decides(i.b, negated[1])
    }

    /// Lanes in which a permutation takes no byte of what is not defined.
    fn permuted_away(&self, registers: &Registers, i: &Instruction) -> u32 {
        let [a, b, selector] = [i.a, i.b, i.c].map(|row| self.of(row, 1).mask);
        let takes = |lane: usize, of_b: bool| {
            let selector = registers.row32(i.c)[lane];
            (0..4).any(|byte| (selector >> (4 * byte + 2) & 1 != 0) == of_b)
        };
        let settled = |&lane: &usize| {
            let is = |mask: u32| mask >> lane & 1 != 0;
            !(is(selector) || is(a) && takes(lane, false) || is(b) && takes(lane, true))
        };
        (0..LANES).filter(settled).fold(0, |lanes, lane| lanes | 1 << lane)
    }

    /// Lanes write what is defined, or not.
    pub fn write(&mut self, i: &Instruction, m: u32, value: &Taint) {
        self.change(i, |taint| value.blend_into(taint, m));
    }

    /// Lanes may have written, or not.
    pub fn write_perhaps(&mut self, i: &Instruction, value: &Taint) {
        self.change(i, |taint| taint.join(value));
    }

    fn change(&mut self, i: &Instruction, change: impl Fn(&mut Taint)) {
        let mut lists = std::mem::take(&mut self.lists);
        visit_predicates(i, &mut |predicate, role| {
            if role == Role::Write {
                change(&mut self.predicates[predicate as usize]);
            }
        });
        visit(&mut i.clone(), &mut lists, &mut |&mut row, count, role| {
            if role != Role::Read {
                self.rows[row as usize..][..count as usize].iter_mut().for_each(&change);
            }
        });
        self.lists = lists;
    }
}

/// The row of the metadata of a multiplication by a warpgroup, and the lanes that have any.
fn metadata(i: &Instruction, lists: &[u32]) -> Option<(u32, u32)> {
    let shape = WgmmaShape::decode(i.e);
    let (first, count) = shape.of_warp().metadata_lanes(usize::from(shape.selector?));
    let of_row = ((1u32 << count) - 1) << first;
    Some((lists[i.d as usize + shape.accumulators()], of_row * 0x1111_1111))
}
