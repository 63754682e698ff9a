//! When asynchronous copies land and complete: `cp.async`.
//!
//! A copy has two moments. Its bytes land, as the schedule has it, anywhere between its issue and the
//! wait that requires it. And it completes, for the thread that issued it, at that wait: until then its
//! target counts as in flight, whether or not the bytes have landed.
//!
//! An arrival at a memory barrier that is to come behind copies comes as the schedule has it, too: with them,
//! at the latest when somebody asks for the phase.

use crate::exec::check::window::{Want, resolve};
use crate::exec::state::bulk::Issuer;
use crate::exec::state::context::{Access, Context, Flow, Stop};
use crate::exec::state::copies::{Arrivals, Copy};
use crate::exec::state::mbarrier::Misuse;
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::{LANES, lanes};
use crate::memory::Refusal;
use crate::memory::view::GlobalView;
use crate::options::Schedule;
use crate::report::FindingKind;
use crate::shadow::State;
use crate::shadow::orders::Scope;
use crate::space::Space;

/// Completes the copies of some lanes, except those of the `left` latest groups. `None`: all copies,
/// committed or not.
pub fn complete(context: &mut Context<'_>, warp: &mut Warp, mask: u32, left: Option<u32>) -> Flow {
    if warp.copies.is_empty() {
        return Ok(());
    }
    let mut copies = std::mem::take(&mut warp.copies.copies);
    let mut flow = Ok(());
    for copy in &mut copies {
        let due = warp.copies.due(copy, mask, left);
        if due != 0 && flow.is_ok() {
            flow = land(context, warp, copy, due).and_then(|()| settle(context, warp, copy, due));
        }
    }
    copies.retain(|copy| copy.open != 0);
    warp.copies.copies = copies;
    flow
}

/// `cp.async.mbarrier.arrive`: lanes will arrive at barriers once the copies that they have issued so far
/// have completed. `adds`: each of these arrivals is one more than the phase awaits.
pub fn arrive_later(
    context: &mut Context<'_>,
    warp: &mut Warp,
    barriers: [u32; LANES],
    mask: u32,
    adds: bool,
) -> Flow {
    for lane in lanes(mask) {
        let address = barriers[lane];
        context.race_mbarrier_used(warp, lane as u32, address);
        let known = match adds {
            true => context.mbarriers.await_more(address),
            false => context.mbarriers.touch(address),
        };
        misused(context, (warp.pc, warp.id), lane, known)?;
    }
    let arrivals = Arrivals { pc: warp.pc, barriers, open: mask, copies: warp.copies.issued() };
    warp.copies.arrivals.push(arrivals);
    if context.environment.options.schedule == Schedule::Eager {
        let last = warp.copies.arrivals.len() - 1;
        arrive(context, warp, last, mask)?;
    }
    Ok(())
}

/// Lanes arrive: the copies before that have completed.
fn arrive(context: &mut Context<'_>, warp: &mut Warp, index: usize, mask: u32) -> Flow {
    let Arrivals { pc, barriers, copies: before, .. } = warp.copies.arrivals[index];
    let mut copies = std::mem::take(&mut warp.copies.copies);
    let mut flow = Ok(());
    for copy in copies.iter_mut().filter(|copy| copy.number < before) {
        let due = copy.open & mask;
        if due != 0 && flow.is_ok() {
            flow = land(context, warp, copy, due).and_then(|()| settle(context, warp, copy, due));
        }
    }
    copies.retain(|copy| copy.open != 0);
    warp.copies.copies = copies;
    flow?;
    context.deeds += 1;
    let mut released = None;
    for lane in lanes(mask) {
        let address = barriers[lane];
        if released.replace(address) != Some(address) {
            context.race_release_to_mbarrier((warp.id, mask), address, Scope::Cluster, false);
        }
        let result = context.mbarriers.arrive(address, 1, false).map(|_| ());
        misused(context, (pc, warp.id), lane, result)?;
    }
    let arrivals = &mut warp.copies.arrivals;
    arrivals[index].open &= !mask;
    if arrivals[index].open == 0 {
        arrivals.remove(index);
    }
    Ok(())
}

fn misused(context: &mut Context<'_>, (pc, warp): (u32, u32), lane: usize, result: Misuse<()>) -> Flow {
    result.map_err(|message| {
        context.report(FindingKind::MbarrierMisuse, pc, warp, lane as u32, |_| message);
        Stop
    })
}

/// Lets lanes of a warp arrive that have yet to do so, at a certain barrier or at any.
pub fn arrive_all(
    context: &mut Context<'_>,
    warp: &mut Warp,
    mask: u32,
    barrier: Option<u32>,
) -> Result<bool, Stop> {
    let mut any = false;
    let mut index = 0;
    while let Some(arrivals) = warp.copies.arrivals.get(index) {
        let at = |&lane: &usize| barrier.is_none_or(|barrier| arrivals.barriers[lane] == barrier);
        let due = lanes(arrivals.open & mask).filter(at).fold(0, |due, lane| due | 1 << lane);
        let left = arrivals.open & !due;
        if due != 0 {
            any = true;
            arrive(context, warp, index, due)?;
        }
        index += usize::from(left != 0);
    }
    Ok(any)
}

/// Lets the lanes of one random instruction arrive.
pub fn arrive_some(context: &mut Context<'_>, warp: &mut Warp) -> Flow {
    let count = warp.copies.arrivals.len() as u64;
    if count == 0 {
        return Ok(());
    }
    let index = context.random.below(count) as usize;
    let mask = warp.copies.arrivals[index].open;
    arrive(context, warp, index, mask)
}

/// Lets one random copy land.
pub fn land_some(context: &mut Context<'_>, warp: &mut Warp) -> Flow {
    let count = warp.copies.copies.len() as u64;
    if count == 0 {
        return Ok(());
    }
    let index = context.random.below(count) as usize;
    let mut copy = warp.copies.copies[index].clone();
    let mask = copy.open;
    land(context, warp, &mut copy, mask)?;
    warp.copies.copies[index].landed = copy.landed;
    Ok(())
}

/// Where a copy writes.
fn target(context: &mut Context<'_>, warp: &mut Warp, copy: &Copy, mask: u32) -> Result<Window, Stop> {
    let want = Want { space: Space::Shared, bytes: copy.bytes, store: true, goes_on: false };
    let mut window = Window::new();
    resolve(context, warp, want, &copy.target, mask, &mut window)?;
    Ok(window)
}

/// Checks the addresses of a new copy and marks its target as in flight.
pub fn start(context: &mut Context<'_>, warp: &mut Warp, copy: &Copy) -> Flow {
    let reads = |&lane: &usize| copy.source_bytes[lane] != 0;
    let mut rest = lanes(copy.open).filter(reads).fold(0u32, |mask, lane| mask | 1 << lane);
    while rest != 0 {
        // Sources that are read in part need not exist beyond that part.
        let bytes = copy.source_bytes[rest.trailing_zeros() as usize];
        let same = lanes(rest).filter(|&l| copy.source_bytes[l] == bytes).fold(0u32, |m, l| m | 1 << l);
        check_source(context, warp, copy, same, bytes)?;
        rest &= !same;
    }
    let window = target(context, warp, copy, copy.open)?;
    context.region_access(warp, &window, copy.bytes, "asynchronous copy");
    context.race_copy_begins(warp, &window, copy.bytes);
    if context.checks_uninitialised() {
        window.check_not_in_flight(context, warp, copy.bytes);
        for lane in lanes(copy.open) {
            // SAFETY: the window was checked for the copy's bytes.
            unsafe { window.shadow.set_in_flight(window.offsets[lane] as usize, copy.bytes as usize) };
        }
    }
    Ok(())
}

/// Checks that lanes may read so many bytes, from addresses aligned to the whole copy.
fn check_source(context: &mut Context<'_>, warp: &mut Warp, copy: &Copy, mask: u32, bytes: u32) -> Flow {
    // Bytes that lanes one after the other read are looked at as one range: its first lane, place, length.
    let mut run = (0, 0, 0);
    for lane in lanes(mask) {
        let view = context.environment.global.get(copy.source[lane]);
        let offset = GlobalView::offset(copy.source[lane]);
        let refusal = match view {
            Err(refusal) => refusal,
            Ok(view) if offset + u64::from(bytes) > view.bytes => Refusal::OutOfBounds(view.bytes),
            Ok(_) if !offset.is_multiple_of(u64::from(copy.bytes)) => Refusal::Misaligned,
            Ok(view) => {
                let place = view.data as u64 + offset;
                if place == run.1 + u64::from(run.2) {
                    run.2 += bytes;
                } else {
                    read_source(context, warp, copy, run);
                    run = (lane, place, bytes);
                }
                continue;
            }
        };
        let at = Access {
            space: Space::Global,
            address: copy.source[lane],
            bytes,
            store: false,
            pc: copy.pc,
            warp: warp.id,
            lane: lane as u32,
        };
        return context.refuse(at, refusal);
    }
    read_source(context, warp, copy, run);
    Ok(())
}

/// Tells of a range of bytes that lanes from the first one on will read.
fn read_source(
    context: &mut Context<'_>,
    warp: &Warp,
    copy: &Copy,
    (lane, place, bytes): (usize, u64, u32),
) {
    if bytes != 0 {
        let issuer = Issuer { warp: warp.id, lane: lane as u32 };
        context.global_copy_reads(copy.pc, issuer, place, bytes);
    }
}

/// Writes the bytes of some lanes, unless they have landed already.
pub fn land(context: &mut Context<'_>, warp: &mut Warp, copy: &mut Copy, mask: u32) -> Flow {
    let mask = mask & !copy.landed;
    if mask == 0 {
        return Ok(());
    }
    let window = target(context, warp, copy, mask)?;
    for lane in lanes(mask) {
        let bytes = copy.source_bytes[lane] as usize;
        let mut value = [0u8; 16];
        if bytes != 0 {
            let Ok(&view) = context.environment.global.get(copy.source[lane]) else { return Err(Stop) };
            let offset = GlobalView::offset(copy.source[lane]) as usize;
            // SAFETY: `start` checked that these bytes exist; the allocation outlives the launch.
            let written = unsafe {
                copy_few(view.data.add(offset), value.as_mut_ptr(), bytes);
                view.all_written || view.shadow.is_written(offset, bytes)
            };
            if !written && context.checks_uninitialised() {
                unwritten_source(context, warp, copy, lane);
            }
        }
        // SAFETY: the window was checked for the copy's bytes, of which there are at most 16.
        unsafe {
            let at = window.data.add(window.offsets[lane] as usize);
            copy_few(value.as_ptr(), at, copy.bytes as usize);
        }
    }
    copy.landed |= mask;
    Ok(())
}

/// Copies bytes that do not overlap, nearly always 16.
///
/// # Safety
///
/// So many bytes may be read and written.
#[inline(always)]
unsafe fn copy_few(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match bytes {
            16 => from.copy_to_nonoverlapping(to, 16),
            bytes => from.copy_to_nonoverlapping(to, bytes),
        }
    }
}

#[cold]
fn unwritten_source(context: &mut Context<'_>, warp: &Warp, copy: &Copy, lane: usize) {
    let kind = FindingKind::UninitialisedRead { space: Space::Global };
    let (bytes, source) = (copy.source_bytes[lane], copy.source[lane]);
    context.report(kind, copy.pc, warp.id, lane as u32, |_| {
        format!("asynchronous copy of {bytes} bytes from {source:#x}, not all of which were written")
    });
}

/// Ends the copies of some lanes: their bytes can be read.
fn settle(context: &mut Context<'_>, warp: &mut Warp, copy: &mut Copy, mask: u32) -> Flow {
    if context.checks_uninitialised() || context.race.is_some() {
        let window = target(context, warp, copy, mask)?;
        context.race_copy_ends(warp, &window, copy.bytes, copy.pc);
        for lane in lanes(mask) {
            // SAFETY: the window was checked for the copy's bytes.
            unsafe {
                window.shadow.set(window.offsets[lane] as usize, copy.bytes as usize, State::Written)
            };
        }
    }
    copy.open &= !mask;
    Ok(())
}
