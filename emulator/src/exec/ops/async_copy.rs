//! `cp.async` and its groups.

use crate::exec::actors::async_copy::{complete, land, start};
use crate::exec::check::window::addresses;
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::copies::Copy;
use crate::exec::state::warp::Warp;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{AsyncCopyOp, FLAG_OPTIONAL, Instruction};
use crate::options::Schedule;
use crate::report::FindingKind;

/// Every instruction of the family.
pub fn run(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: AsyncCopyOp) -> Flow {
    match op {
        AsyncCopyOp::Copy => issue(c, w, i, m),
        AsyncCopyOp::Commit => {
            w.copies.commit(m);
            Ok(())
        }
        AsyncCopyOp::WaitGroup => complete(c, w, m, Some(i.immediate as u32)),
        AsyncCopyOp::WaitAll => complete(c, w, m, None),
    }
}

fn issue(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32) -> Flow {
    let bytes = u32::from(i.count);
    let base = w.registers.row64(i.b);
    let offset = i64::from(i.e as i32) as u64;
    let source = std::array::from_fn(|lane| base[lane].wrapping_add(offset));
    let source_bytes = if i.has(FLAG_OPTIONAL) { *w.registers.row32(i.c) } else { [bytes; LANES] };
    if let Some(lane) = lanes(m).find(|&lane| source_bytes[lane] > bytes) {
        let size = source_bytes[lane];
        c.report(FindingKind::InvalidOperand, w.pc, w.id, lane as u32, |_| {
            format!("source size {size} of a copy of {bytes} bytes")
        });
        return Err(Stop);
    }
    let mut copy = Copy {
        pc: w.pc,
        bytes,
        target: addresses(w, i),
        source,
        source_bytes,
        group: w.copies.open_group(),
        open: m,
        landed: 0,
        number: w.copies.issued(),
    };
    c.statistics.async_copies += 1;
    start(c, w, &copy)?;
    if c.environment.options.schedule == Schedule::Eager {
        land(c, w, &mut copy, m)?;
    }
    w.copies.push(copy);
    Ok(())
}
