//! `mbarrier`, lane after lane.

use crate::exec::actors::{async_copy, bulk};
use crate::exec::check::window::addresses;
use crate::exec::state::context::{Access, Context, Stop};
use crate::exec::state::mbarrier::{MBARRIER_BYTES, Misuse};
use crate::exec::state::warp::Warp;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{
    FLAG_BLOCK, FLAG_GENERIC, FLAG_OPTIONAL, FLAG_RELAXED, Instruction, LATER, MbarrierOp, OF_CLUSTER,
    ROW_SINK,
};
use crate::report::FindingKind;
use crate::shadow::orders::Scope;
use crate::space::{RANK_SHIFT, Space};

/// The shared address of each lane's barrier.
pub fn barriers(c: &mut Context<'_>, w: &Warp, i: &Instruction, m: u32) -> Result<[u32; LANES], Stop> {
    let space = match i.has(FLAG_GENERIC) {
        true => Space::Generic,
        false if i.e & OF_CLUSTER != 0 => Space::Cluster,
        false => Space::Shared,
    };
    let addresses = addresses(w, i);
    let mut found = [0; LANES];
    for lane in lanes(m) {
        let (address, bytes) = (addresses[lane], MBARRIER_BYTES);
        let at = Access { space, address, bytes, store: true, pc: w.pc, warp: w.id, lane: lane as u32 };
        found[lane] = c.shared_address(at, MBARRIER_BYTES)?;
    }
    Ok(found)
}

fn checked<T>(c: &mut Context<'_>, w: &Warp, lane: usize, result: Misuse<T>) -> Result<T, Stop> {
    result.map_err(|message| {
        c.report(FindingKind::MbarrierMisuse, w.pc, w.id, lane as u32, |_| message);
        Stop
    })
}

/// Whom an operation is for: what names no scope counts for the cluster, as GPUs have it.
fn scope(i: &Instruction) -> Scope {
    if i.has(FLAG_BLOCK) { Scope::Block } else { Scope::Cluster }
}

/// What is done with a barrier of another block: all that gives nothing back.
fn check_block(
    c: &mut Context<'_>,
    w: &Warp,
    i: &Instruction,
    (lane, address): (usize, u32),
    op: MbarrierOp,
) -> Result<(), Stop> {
    let may = match op {
        op if op.gives_token() => i.d == ROW_SINK,
        MbarrierOp::Expect | MbarrierOp::Complete | MbarrierOp::CompleteStore => true,
        _ => false,
    };
    if may || address >> RANK_SHIFT == c.environment.cluster.rank(w.id) {
        return Ok(());
    }
    let place = c.shared_place(address);
    c.report(FindingKind::MbarrierMisuse, w.pc, w.id, lane as u32, |_| {
        format!(
            "of the mbarrier at {place}: of another block there are only arrivals without a state, and \
             counts of bytes"
        )
    });
    Err(Stop)
}

/// Everything but polls.
pub fn run(
    c: &mut Context<'_>,
    w: &mut Warp,
    i: &Instruction,
    m: u32,
    op: MbarrierOp,
) -> Result<(), Stop> {
    let addresses = barriers(c, w, i, m)?;
    if op == MbarrierOp::ArriveCopies {
        lanes(m).try_for_each(|lane| check_block(c, w, i, (lane, addresses[lane]), op))?;
        return async_copy::arrive_later(c, w, addresses, m, !i.has(FLAG_OPTIONAL));
    }
    let values = if i.has(FLAG_OPTIONAL) { *w.registers.row32(i.b) } else { [1; LANES] };
    if op == MbarrierOp::CompleteStore && i.e & LATER != 0 {
        lanes(m).for_each(|lane| c.remote_completes((w.pc, w.id, lane as u32), addresses[lane]));
    }
    let mut tokens = [0; LANES];
    let mut used = None;
    for lane in lanes(m) {
        let (address, value) = (addresses[lane], values[lane]);
        check_block(c, w, i, (lane, address), op)?;
        let arrives = op.gives_token() || op == MbarrierOp::CompleteStore && i.e & LATER == 0;
        if used.replace(address) != Some(address) {
            if op != MbarrierOp::Init {
                c.race_mbarrier_used(w, lane as u32, address);
            }
            if arrives {
                c.race_release_to_mbarrier((w.id, m), address, scope(i), i.has(FLAG_RELAXED));
            }
        }
        let result = match op {
            MbarrierOp::Init => c.mbarriers.init(address, value),
            MbarrierOp::Invalidate => c.mbarriers.invalidate(address),
            MbarrierOp::Expect => c.mbarriers.expect(address, value),
            MbarrierOp::Complete | MbarrierOp::CompleteStore => c.mbarriers.complete(address, value),
            MbarrierOp::ArriveExpect | MbarrierOp::ArriveDropExpect => c
                .mbarriers
                .expect(address, value)
                .and_then(|()| c.mbarriers.arrive(address, 1, op == MbarrierOp::ArriveDropExpect))
                .map(|token| tokens[lane] = token),
            _ => {
                let drop = op == MbarrierOp::ArriveDrop;
                c.mbarriers.arrive(address, value, drop).map(|token| tokens[lane] = token)
            }
        };
        checked(c, w, lane, result)?;
        match op {
            MbarrierOp::Init => {
                // The others work on barriers that were initialised.
                c.region_range(w, lane as u32, "mbarrier", address, MBARRIER_BYTES);
                c.race_mbarrier_begins(w, lane as u32, address);
            }
            MbarrierOp::Invalidate => c.race_mbarrier_ends(w, lane as u32, address),
            _ => {}
        }
    }
    if op.gives_token() {
        w.registers.set64(i.d, m, &tokens);
    }
    Ok(())
}

/// Asks for phases. The lanes whose phase is complete, and the barrier of the first other one.
pub fn poll(
    c: &mut Context<'_>,
    w: &mut Warp,
    i: &Instruction,
    m: u32,
    op: MbarrierOp,
) -> Result<(u32, Option<u32>), Stop> {
    let addresses = barriers(c, w, i, m)?;
    let mut complete = 0;
    let mut waits = None;
    let (mut used, mut acquired) = (None, None);
    let mut arrivals = u32::MAX;
    for lane in lanes(m) {
        let address = addresses[lane];
        check_block(c, w, i, (lane, address), op)?;
        if used.replace(address) != Some(address) {
            c.race_mbarrier_used(w, lane as u32, address);
        }
        let mut asked = ask(c, w, i, op, lane, address);
        if asked == Ok(false) {
            bulk::land_awaited(c, address)?;
            c.asked = Some(address);
            asked = ask(c, w, i, op, lane, address);
        }
        if checked(c, w, lane, asked)? {
            complete |= 1 << lane;
            if acquired.replace(address) != Some(address) {
                let known = c.race_acquire_from_mbarrier(
                    w.id,
                    address,
                    (!i.has(FLAG_RELAXED)).then(|| scope(i)),
                );
                arrivals = arrivals.min(known);
            }
        } else if waits.is_none() {
            waits = Some(address);
        }
    }
    if complete != 0 && !i.has(FLAG_RELAXED) {
        c.race_lanes_wait(w.id, complete, arrivals);
    }
    Ok((complete, waits))
}

fn ask(
    c: &mut Context<'_>,
    w: &Warp,
    i: &Instruction,
    op: MbarrierOp,
    lane: usize,
    address: u32,
) -> Misuse<bool> {
    if op.takes_token() {
        c.mbarriers.token_complete(address, w.registers.row64(i.b)[lane])
    } else {
        c.mbarriers.parity_complete(address, w.registers.row32(i.b)[lane])
    }
}
