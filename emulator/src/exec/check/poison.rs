//! Values that are not defined: of registers and bytes that nothing wrote, what `shfl.sync` takes from a lane
//! that is not a member, and what refused accesses would have loaded.
//!
//! Such values may be carried about and computed with, as long as nothing comes of it: it is a fault if one
//! decides where a lane goes, is an address, reaches global memory or, by other ways than a shuffle or a
//! multiplication of matrices, other lanes. In shared and local memory they make bytes that are not defined
//! again. From the first one on they are followed through the registers of their warp, lane by lane. Most
//! kernels never make one.

use crate::exec::state::context::Context;
use crate::exec::state::poison::{Cause, Origin, Poison, REFUSED, Taint};
use crate::exec::state::steps;
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::operands::{Role, visit};
use crate::isa::{FLAG_WIDE_ADDRESS, Instruction, Op};
use crate::report::FindingKind;
use crate::shadow::State;
use crate::space::{LOCAL_BASE, Space};

/// Instructions after which it is looked whether there is anything left to follow.
const LOOKS: u32 = 256;

/// Whether all that comes of an instruction is a register of the same lane.
fn computes(op: Op) -> bool {
    matches!(
        op,
        Op::Integer16(_)
            | Op::Integer32(_)
            | Op::Integer64(_)
            | Op::Float32(_)
            | Op::Float64(_)
            | Op::Half(_)
            | Op::Bfloat(_)
            | Op::HalfPair(_)
            | Op::BfloatPair(_)
            | Op::Compare(_)
            | Op::Select32
            | Op::Select64
            | Op::Predicate(_)
            | Op::Move(_)
            | Op::Convert
            | Op::ConvertPairBfloat
            | Op::ConvertPairHalf
            | Op::ConvertU32ToU64
            | Op::ConvertS32ToS64
            | Op::ConvertU64ToU32
            | Op::ConvertU32ToU16
            | Op::ConvertBfloatToF32
            | Op::ConvertHalfToF32
            | Op::ConvertTf32
            | Op::Carry(_)
            | Op::Rare(_)
            | Op::MapAddress
            | Op::BlockRank
            | Op::IsConstant
            | Op::IsOwnShared
            | Op::FragmentPlace
    )
}

impl Context<'_> {
    /// Before an instruction: what becomes of the values that are not defined. All lanes that came to it, and
    /// those that execute it; the lanes that do not after all, as their addresses come of refused accesses.
    #[cold]
    #[inline(never)]
    pub fn poison_touch(&mut self, w: &mut Warp, pc: u32, all: u32, m: u32) -> u32 {
        let i = &self.environment.code().instructions[pc as usize];
        let Some(mut poison) = w.poison.take() else { return 0 };
        let is_matrix = matches!(i.op, Op::Matrix(_));
        let more = if is_matrix { steps::UNDEFINED_MATRIX } else { steps::UNDEFINED };
        self.more_steps += more * if self.trace.is_some() { steps::UNDEFINED_TRACED } else { 1 };
        let guard = poison.predicate(i.guard).only(all);
        if computes(i.op) {
            let read = poison.read(&w.registers, i).only(m);
            poison.write(i, m, &read);
            if guard.mask != 0 {
                poison.write_perhaps(i, &guard);
            }
            self.keep(w, poison);
            return 0;
        }
        if i.op == Op::Nop {
            self.keep(w, poison);
            return 0;
        }
        let mut used = guard;
        let mut left_out = 0;
        match i.op {
            // The value that is passed on is looked at once it is known from whom.
            Op::Shuffle(_) => {
                [i.b, i.c, i.e].into_iter().for_each(|row| used.join(&poison.of(row, 1).only(m)));
            }
            // What is stored is looked at once it is known where.
            Op::Load(_) | Op::Store(_) => {
                let rows = if i.has(FLAG_WIDE_ADDRESS) { 2 } else { 1 };
                let address = poison.of(i.a, rows).only(m);
                left_out = refused(&address);
                used.join(&address);
            }
            Op::Atomic(_) => {
                let read = poison.read(&w.registers, i).only(m);
                left_out = refused(&read);
                used.join(&read);
            }
            Op::Matrix(op) => used.join(&super::poison_matrix::touch(&mut poison, w, i, op, self)),
            _ => used.join(&poison.read(&w.registers, i).only(m)),
        }
        if used.mask != 0 {
            self.poison_used(w, &poison, pc, &used);
            if matches!(i.op, Op::Branch | Op::BranchIndexed) || guard.mask != 0 {
                // One finding is enough for where the lanes go on to.
                poison.forget(used.mask);
            }
        }
        if !matches!(i.op, Op::Shuffle(_) | Op::Matrix(_)) {
            poison.write(i, m, &Taint::NONE);
            if matches!(i.op, Op::Load(_) | Op::Atomic(_)) {
                poison.write(i, left_out, &Taint::of(left_out, REFUSED));
            }
        }
        self.keep(w, poison);
        left_out
    }

    /// Goes on following values, if there are any.
    fn keep(&mut self, w: &mut Warp, poison: Box<Poison>) {
        w.looks += 1;
        if w.looks < LOOKS || !poison.is_empty() {
            w.looks = if w.looks < LOOKS { w.looks } else { 0 };
            w.poison = Some(poison);
        } else {
            w.end_poison(poison);
        }
    }

    /// Something comes of values that are not defined.
    fn poison_used(&mut self, w: &Warp, poison: &Poison, pc: u32, used: &Taint) {
        for lane in lanes(used.mask) {
            let origin = poison.origin(used.origins[lane]);
            let same = |&other: &usize| used.origins[other] == used.origins[lane];
            let same = lanes(used.mask).filter(same).fold(0u32, |mask, lane| mask | 1 << lane);
            match origin.cause {
                Cause::Refused => {}
                Cause::Shuffle => {
                    let place = self.place_of(origin.pc);
                    self.report(FindingKind::UninitialisedRegister, pc, w.id, lane as u32, |_| {
                        format!(
                            "lanes {same:#010x} use what comes of a value that shfl.sync took from a lane \
                             which is no member, the last one{place}"
                        )
                    });
                }
                Cause::Register(register) => {
                    let kind = FindingKind::UninitialisedRegister;
                    self.report(kind, origin.pc, origin.warp, origin.lane, |context| {
                        let name = &context.environment.code().watch.registers[register as usize].name;
                        let whereto = context.use_of(origin.pc, pc);
                        format!(
                            "{name} is read in lane {}, in which nothing wrote it{whereto}",
                            origin.lane
                        )
                    });
                }
                Cause::Memory { space, .. } => {
                    let kind = FindingKind::UninitialisedRead { space };
                    self.report(kind, origin.pc, origin.warp, origin.lane, |context| {
                        let whereto = context.use_of(origin.pc, pc);
                        format!("{}{whereto}", context.describe(origin.cause))
                    });
                }
            }
        }
    }

    /// Where something comes of a value that another instruction read.
    fn use_of(&self, origin: u32, pc: u32) -> String {
        if origin == pc {
            String::new()
        } else {
            format!("; what comes of it is used{}", self.place_of(pc))
        }
    }

    /// Bytes that are not defined, for a message.
    fn describe(&self, cause: Cause) -> String {
        let Cause::Memory { space, byte, bytes, offset, written } = cause else { return String::new() };
        let offset = match space {
            Space::Shared => self.shared_place(offset as u32),
            _ => format!("{offset:#x}"),
        };
        let why = if written { "what was written to it is not defined" } else { "nothing wrote it" };
        format!("byte {byte} of {bytes} bytes read at {space} offset {offset}: {why}")
    }

    /// After a shuffle: values that lanes took from others, of which some may not take part.
    #[cold]
    #[inline(never)]
    pub fn poison_shuffled(&mut self, w: &mut Warp, i: &Instruction, m: u32, sources: &[u32; LANES]) {
        let mut poison = self.poison(w);
        let passed = poison.of(i.a, 1);
        let number = poison.number(Origin { cause: Cause::Shuffle, pc: w.pc, lane: 0, warp: w.id });
        let (mut taken, mut outside) = (Taint::NONE, 0);
        for lane in lanes(m) {
            let source = sources[lane] as usize;
            if m >> source & 1 == 0 {
                outside |= 1 << lane;
                taken.join(&Taint::of(1 << lane, number));
            } else if passed.mask >> source & 1 != 0 {
                taken.join(&Taint::of(1 << lane, passed.origins[source]));
            }
        }
        poison.write(i, m, &Taint::NONE);
        poison.set(i.d, 1, m, &taken);
        if outside != 0 {
            w.registers.set32(i.d, outside, &[!0; LANES]);
        }
        w.poison = Some(poison);
    }

    /// What is known of the values of a warp, or will be from now on.
    fn poison(&self, w: &mut Warp) -> Box<Poison> {
        w.take_poison(self.environment.code())
    }

    /// Lanes read a watched register that nothing wrote.
    #[cold]
    pub fn poison_register(&mut self, w: &mut Warp, register: u32, pc: u32, missing: u32) {
        let mut poison = self.poison(w);
        let code = self.environment.code();
        let mut taint = Taint::NONE;
        for lane in lanes(missing) {
            let origin = Origin { cause: Cause::Register(register), pc, lane: lane as u32, warp: w.id };
            let number = poison.number(origin);
            taint.join(&Taint::of(1 << lane, number));
        }
        let known = &code.watch.registers[register as usize];
        if known.is_predicate {
            poison.set_predicate(known.index, missing, &taint);
        } else {
            poison.set(known.index, known.rows, missing, &taint);
        }
        w.poison = Some(poison);
    }

    /// Lanes whose accesses were refused have loaded nothing: zeros, of which nothing is reported.
    #[cold]
    #[inline(never)]
    pub fn poison_refused(&mut self, w: &mut Warp, i: &Instruction, refused: u32) {
        let mut poison = self.poison(w);
        let mut lists = self.environment.code().lists.clone();
        visit(&mut i.clone(), &mut lists, &mut |&mut row, count, role| {
            if role == Role::Write {
                match count {
                    1 => w.registers.set32(row, refused, &[0; LANES]),
                    _ => (0..count / 2).for_each(|pair| {
                        w.registers.set64(row + 2 * pair, refused, &[0; LANES]);
                    }),
                }
            }
        });
        poison.write(i, refused, &Taint::of(refused, REFUSED));
        w.poison = Some(poison);
    }

    /// Lanes have loaded elements of so many bytes to these rows, of which some are not defined.
    #[cold]
    #[inline(never)]
    pub fn poison_loaded(
        &mut self,
        w: &mut Warp,
        window: &Window,
        (rows, element): (&[u32], u32),
        wide: bool,
        unwritten: u32,
    ) {
        self.more_steps += steps::UNDEFINED_ACCESS;
        let mut poison = self.poison(w);
        let bytes = element * rows.len() as u32;
        for lane in lanes(unwritten) {
            for (position, &row) in rows.iter().enumerate() {
                let at = window.offsets[lane] as usize + position * element as usize;
                // SAFETY: the window's offsets have been checked for all elements.
                let found = unsafe { window.shadow.first_unwritten(at, element as usize) };
                let Some((byte, state)) = found else { continue };
                if !matches!(state, State::Unwritten | State::Undefined) {
                    continue;
                }
                let cause = Cause::Memory {
                    space: window.space,
                    byte: byte as u32 + position as u32 * element,
                    bytes,
                    offset: offset_in_space(self, w, window, lane),
                    written: state == State::Undefined,
                };
                let own = Origin { cause, pc: w.pc, lane: lane as u32, warp: w.id };
                // What was carried through memory comes from where it was read first.
                let place = undefined_place(w, window, at + byte);
                let carried = self.undefined.get(&place).filter(|_| state == State::Undefined);
                let number = poison.number(carried.copied().unwrap_or(own));
                let count = if element >= 8 || wide { (element / 4).max(2) } else { 1 };
                poison.set(row, count, 1 << lane, &Taint::of(1 << lane, number));
            }
        }
        w.poison = Some(poison);
    }

    /// Lanes have stored elements of so many bytes from these rows, of which some may not be defined.
    #[cold]
    #[inline(never)]
    pub fn poison_stored(
        &mut self,
        w: &mut Warp,
        window: &Window,
        (rows, element): (&[u32], u32),
        wide: bool,
    ) {
        let Some(poison) = w.poison.take() else { return };
        self.more_steps += steps::UNDEFINED_ACCESS;
        let count = if element >= 8 || wide { (element / 4).max(2) } else { 1 };
        for (position, &row) in rows.iter().enumerate() {
            let taint = poison.of(row, count).only(window.mask);
            if !matches!(window.space, Space::Shared | Space::Local) {
                self.poison_used(w, &poison, w.pc, &taint);
                continue;
            }
            for lane in lanes(taint.mask).filter(|&lane| taint.origins[lane] != REFUSED) {
                if window.tracked {
                    let at = window.offsets[lane] as usize + position * element as usize;
                    // SAFETY: the window's offsets have been checked for all elements.
                    unsafe { window.shadow.set(at, element as usize, State::Undefined) };
                    let origin = poison.origin(taint.origins[lane]);
                    for word in (0..element as usize).step_by(4) {
                        self.undefined.insert(undefined_place(w, window, at + word), origin);
                    }
                }
            }
        }
        w.poison = Some(poison);
    }
}

/// What a word of shared or local memory is called among those that are not defined, by an offset of the
/// window.
pub fn undefined_place(w: &Warp, window: &Window, offset: usize) -> u64 {
    let word = offset as u64 / 4;
    if window.space == Space::Local { word | u64::from(w.id + 1) << 48 } else { word }
}

/// The offset of a lane's bytes in their space, for messages.
pub fn offset_in_space(c: &Context<'_>, w: &Warp, window: &Window, lane: usize) -> u64 {
    let offset = window.offsets[lane];
    match window.space {
        Space::Shared => u64::from(c.environment.cluster.address(offset as u32)),
        Space::Local => offset - (lane * w.local.bytes()) as u64 + u64::from(LOCAL_BASE),
        _ => offset,
    }
}

/// Lanes in which a value comes of refused accesses.
fn refused(taint: &Taint) -> u32 {
    let is_refused = |&lane: &usize| taint.origins[lane] == REFUSED;
    lanes(taint.mask).filter(is_refused).fold(0, |mask, lane| mask | 1 << lane)
}
