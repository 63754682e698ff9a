//! Values that are not defined: what `shfl.sync` takes from a lane that is not a member.
//!
//! Such values may be carried about and computed with, as long as nothing comes of it: it is a fault if one
//! decides where a lane goes, is an address, reaches memory or other lanes. From the first one on they are
//! followed through the registers of their warp, lane by lane. Most kernels never make one.

use crate::exec::state::context::Context;
use crate::exec::state::poison::Poison;
use crate::exec::state::warp::Warp;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{Instruction, Op};
use crate::report::FindingKind;

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
    )
}

impl Context<'_> {
    /// Before an instruction: what becomes of the values that are not defined. All lanes that came to it, and
    /// those that execute it.
    #[cold]
    #[inline(never)]
    pub fn poison_touch(&mut self, w: &mut Warp, pc: u32, all: u32, m: u32) {
        let i = &self.environment.code().instructions[pc as usize];
        let Some(mut poison) = w.poison.take() else { return };
        let guard = poison.predicate(i.guard) & all;
        // The value that is passed on is looked at once it is known from whom.
        let read = match i.op {
            Op::Shuffle(_) => poison.of(i.b, 1) | poison.of(i.c, 1) | poison.of(i.e, 1),
            _ => poison.read(&w.registers, i),
        };
        let used = guard | if computes(i.op) { 0 } else { read & m };
        if used != 0 {
            let origin = self.place_of(poison.origin);
            let kind = FindingKind::UninitialisedRegister;
            self.report(kind, pc, w.id, used.trailing_zeros(), |_| {
                format!(
                    "lanes {used:#010x} use what comes of a value that shfl.sync took from a lane which is \
                     no member, the last one{origin}"
                )
            });
            // One finding is enough for what the lanes go on to do with it.
            poison.forget(used);
        }
        if !matches!(i.op, Op::Shuffle(_)) {
            poison.write(i, m, if computes(i.op) { read & !used } else { 0 });
        }
        w.poison = Some(poison);
    }

    /// After a shuffle: values that lanes took from others, of which some may not take part.
    #[cold]
    #[inline(never)]
    pub fn poison_shuffled(&mut self, w: &mut Warp, i: &Instruction, m: u32, sources: &[u32; LANES]) {
        let code = self.environment.code();
        let mut poison = w.poison.take().unwrap_or_else(|| Box::new(Poison::new(code)));
        let passed = poison.of(i.a, 1);
        let outside = lanes(m).filter(|&lane| m >> sources[lane] & 1 == 0);
        let outside = outside.fold(0, |mask, lane| mask | 1 << lane);
        let taken = lanes(m).filter(|&lane| passed >> sources[lane] & 1 != 0);
        let taken = taken.fold(0, |mask, lane| mask | 1 << lane);
        poison.write(i, m, 0);
        poison.set(i.d, m, outside | taken);
        if outside != 0 {
            poison.origin = w.pc;
            w.registers.set32(i.d, outside, &[!0; LANES]);
        }
        w.poison = Some(poison);
    }
}
