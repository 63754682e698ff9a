//! From the addresses of a warp to memory that may be touched.
//!
//! The lanes of a warp nearly always access one allocation, so bounds and alignment are checked for all
//! of them in one vectorised pass, and what follows works on one base pointer and 32 offsets. Lanes
//! that access different allocations or spaces are taken one window after the other.

use super::poison::offset_in_space;
use crate::exec::state::context::{Access, Context, Flow};
use crate::exec::state::steps;
use crate::exec::state::warp::Warp;
use crate::exec::state::window::{Addresses, Window};
use crate::exec::values::registers::{FULL, LANES, lanes};
use crate::isa::{FLAG_WIDE_ADDRESS, Instruction};
use crate::memory::Refusal;
use crate::memory::view::{GlobalView, View};
use crate::report::FindingKind;
use crate::shadow::{Shadow, State};
use crate::space::{LOCAL_BASE, PARAM_WINDOW, RANK_SHIFT, SHARED_BASE, Space, WINDOW_SHIFT};

/// A kind of access.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The space that the instruction names.
    pub space: Space,
    /// Bytes of each lane; a power of two.
    pub bytes: u32,
    /// Whether memory is written.
    pub store: bool,
    /// Whether lanes that may not do this are left out; else it stops the block.
    pub goes_on: bool,
}

/// The addresses of a memory instruction.
#[inline(always)]
pub fn addresses(warp: &Warp, i: &Instruction) -> Addresses {
    let mut out = [0; LANES];
    if i.has(FLAG_WIDE_ADDRESS) {
        let base = warp.registers.row64(i.a);
        let offset = i64::from(i.immediate) as u64;
        for lane in 0..LANES {
            out[lane] = base[lane].wrapping_add(offset);
        }
    } else {
        let base = warp.registers.row32(i.a);
        for lane in 0..LANES {
            out[lane] = u64::from(base[lane].wrapping_add(i.immediate as u32));
        }
    }
    out
}

/// A generic address of shared memory as one of the block's own; another one is beyond all that there is.
pub fn own_shared(address: u64) -> u64 {
    match Space::of_address(address) {
        Some(Space::Shared) => address - Space::Shared.window(),
        _ => address,
    }
}

/// Memory of one space before the lanes' offsets are checked.
struct Extent {
    data: *mut u8,
    shadow: Shadow,
    bytes: u64,
    /// What to take off an address.
    origin: u64,
    /// What to add to an offset behind that: where the shared memory of a block starts in that of its
    /// cluster.
    start: u64,
    tracked: bool,
}

/// Finds the window of the first lanes of a mask, as many as can be taken together.
#[inline(always)]
pub fn resolve(
    context: &mut Context<'_>,
    warp: &mut Warp,
    want: Want,
    addresses: &Addresses,
    mask: u32,
    window: &mut Window,
) -> Flow {
    let first = addresses[mask.trailing_zeros() as usize & 31];
    let (space, base) = match want.space {
        Space::Generic => {
            let space = Space::of_address(first).unwrap_or(Space::Generic);
            (space, space.window())
        }
        Space::Cluster => (Space::Shared, 0),
        space => (space, 0),
    };
    let found = match space {
        Space::Global | Space::Const => global(context, want, first),
        Space::Shared if context.environment.cluster.is_one() => Ok(shared(context, base)),
        Space::Shared => shared_of_cluster(context, warp, want, base, addresses, mask),
        Space::Local => Ok(local(warp, base)),
        Space::Param => parameters(context, want, first),
        Space::Generic | Space::Cluster => Err(Refusal::NoSpace),
    };
    window.space = space;
    window.refused = 0;
    match found {
        Ok(extent) => check(context, warp, want, &extent, addresses, mask, window),
        Err(refusal) => {
            let lane = mask.trailing_zeros();
            (window.mask, window.refused) = (0, 1 << (lane & 31));
            refuse(context, warp, want, space, addresses, lane, refusal)
        }
    }
}

#[inline(always)]
fn global(context: &Context<'_>, want: Want, first: u64) -> Result<Extent, Refusal> {
    let view: &View = context.environment.global.get(first)?;
    if want.store && view.read_only {
        return Err(Refusal::ReadOnly);
    }
    let origin = first - GlobalView::offset(first);
    let tracked = !view.all_written;
    Ok(Extent { data: view.data, shadow: view.shadow, bytes: view.bytes, origin, start: 0, tracked })
}

#[inline(always)]
fn shared(context: &mut Context<'_>, window: u64) -> Extent {
    Extent {
        bytes: context.shared.bytes() as u64,
        origin: window + u64::from(SHARED_BASE),
        start: 0,
        tracked: context.checks_uninitialised(),
        data: context.shared.data(),
        shadow: context.shared.shadow(),
    }
}

/// The shared memory of the block of the first lane's address.
#[inline(never)]
fn shared_of_cluster(
    context: &mut Context<'_>,
    warp: &Warp,
    want: Want,
    window: u64,
    addresses: &Addresses,
    mask: u32,
) -> Result<Extent, Refusal> {
    let lane = mask.trailing_zeros() & 31;
    let cluster = &context.environment.cluster;
    let (blocks, bytes, own) = (u64::from(cluster.blocks), cluster.bytes, cluster.rank(warp.id));
    let rank = addresses[lane as usize].wrapping_sub(window) >> RANK_SHIFT;
    if rank >= blocks {
        return Err(Refusal::NoSpace);
    }
    let start = cluster.start(rank as u32);
    if rank != u64::from(own) {
        if want.space == Space::Shared {
            return Err(Refusal::OtherBlock);
        }
        if context.remote_access((warp.pc, warp.id, lane), rank as u32) {
            return Err(Refusal::Ended);
        }
    }
    let origin = window + (rank << RANK_SHIFT) + u64::from(SHARED_BASE);
    Ok(Extent { bytes: u64::from(bytes), origin, start: u64::from(start), ..shared(context, window) })
}

fn local(warp: &mut Warp, window: u64) -> Extent {
    Extent {
        bytes: warp.local.bytes() as u64,
        origin: window + u64::from(LOCAL_BASE),
        start: 0,
        tracked: true,
        data: warp.local.data(),
        shadow: warp.local.shadow(),
    }
}

/// An address in the parameters' own space may have their window, or not.
fn parameters(context: &Context<'_>, want: Want, first: u64) -> Result<Extent, Refusal> {
    if want.store {
        return Err(Refusal::ReadOnly);
    }
    let bytes = context.environment.launch.params;
    // Never written through: stores are refused above, and the shadow is not looked at.
    let data = bytes.as_ptr().cast_mut();
    let shadow = Shadow::new(std::ptr::null_mut());
    let is_bare = want.space == Space::Param && first < PARAM_WINDOW;
    let origin = if is_bare { 0 } else { PARAM_WINDOW };
    Ok(Extent { data, shadow, bytes: bytes.len() as u64, origin, start: 0, tracked: false })
}

#[inline(always)]
fn check(
    context: &mut Context<'_>,
    warp: &Warp,
    want: Want,
    extent: &Extent,
    addresses: &Addresses,
    mask: u32,
    window: &mut Window,
) -> Flow {
    let Extent { data, shadow, bytes, origin, start, tracked } = *extent;
    context.more_steps += steps::ACCESS;
    (window.data, window.shadow, window.tracked, window.mask) = (data, shadow, tracked, mask);
    let offsets = &mut window.offsets;
    for lane in 0..LANES {
        offsets[lane] = addresses[lane].wrapping_sub(origin);
    }
    // An offset is good if neither it nor its distance to the last good one is negative, and if its low
    // bits are zero: an `or` over the lanes tells whether all are good.
    let last = bytes.wrapping_sub(u64::from(want.bytes));
    let (mut high, mut low) = (last, 0);
    if mask == FULL {
        for lane in 0..LANES {
            high |= offsets[lane] | last.wrapping_sub(offsets[lane]);
            low |= offsets[lane];
        }
    } else {
        for lane in lanes(mask) {
            high |= offsets[lane] | last.wrapping_sub(offsets[lane]);
            low |= offsets[lane];
        }
    }
    if high >> 63 != 0 || low & (u64::from(want.bytes) - 1) != 0 {
        narrow(context, warp, want, extent, addresses, window)?;
    }
    if start != 0 {
        window.offsets.iter_mut().for_each(|offset| *offset = offset.wrapping_add(start));
    }
    if window.space == Space::Shared && want.store && context.shared.is_versioned() {
        for lane in lanes(window.mask) {
            context.shared.touch(window.offsets[lane] as u32, want.bytes);
        }
    }
    if window.space == Space::Local {
        for (lane, offset) in window.offsets.iter_mut().enumerate() {
            *offset = offset.wrapping_add(lane as u64 * bytes);
        }
    }
    Ok(())
}

/// Not all lanes are good: leaves for later those that belong elsewhere, and refuses those that are bad.
#[cold]
#[inline(never)]
fn narrow(
    context: &mut Context<'_>,
    warp: &Warp,
    want: Want,
    extent: &Extent,
    addresses: &Addresses,
    window: &mut Window,
) -> Flow {
    let space = window.space;
    let key = |lane: usize| match (space, want.space) {
        (Space::Global | Space::Const, _) => GlobalView::index(addresses[lane]),
        (Space::Shared, _) if !context.environment.cluster.is_one() => addresses[lane] >> RANK_SHIFT,
        (_, Space::Generic) => addresses[lane] >> WINDOW_SHIFT,
        _ => 0,
    };
    let first = key(window.mask.trailing_zeros() as usize & 31);
    let together = lanes(window.mask).filter(|&lane| key(lane) == first);
    window.mask = together.fold(0, |mask, lane| mask | 1 << lane);
    for lane in lanes(window.mask) {
        let offset = window.offsets[lane];
        let inside = offset.checked_add(u64::from(want.bytes)).is_some_and(|end| end <= extent.bytes);
        let aligned = offset.is_multiple_of(u64::from(want.bytes));
        let refusal = match (inside, space) {
            (true, _) if aligned => continue,
            (true, _) => Refusal::Misaligned,
            (false, Space::Global | Space::Const) => Refusal::OutOfBounds(extent.bytes),
            (false, _) => Refusal::OutOfBounds(extent.origin + extent.bytes),
        };
        window.refused |= 1 << lane;
        refuse(context, warp, want, space, addresses, lane as u32, refusal)?;
    }
    window.mask &= !window.refused;
    Ok(())
}

#[cold]
#[inline(never)]
fn refuse(
    context: &mut Context<'_>,
    warp: &Warp,
    want: Want,
    space: Space,
    addresses: &Addresses,
    lane: u32,
    refusal: Refusal,
) -> Flow {
    let Want { bytes, store, .. } = want;
    let address = addresses[lane as usize & 31];
    let at = Access { space, address, bytes, store, pc: warp.pc, warp: warp.id, lane };
    match context.refuse(at, refusal) {
        Err(_) if want.goes_on => Ok(()),
        flow => flow,
    }
}

/// Of which bytes that are not written a finding tells.
#[derive(Clone, Copy)]
struct Tell {
    /// Those that a copy is yet to write.
    in_flight: bool,
    /// Those that nothing wrote, or only what is not defined.
    undefined: bool,
}

impl Tell {
    const IN_FLIGHT: Self = Tell { in_flight: true, undefined: false };
    const UNDEFINED: Self = Tell { in_flight: false, undefined: true };
    const BOTH: Self = Tell { in_flight: true, undefined: true };
}

impl Window {
    /// Lanes that read bytes which are not defined, to be followed: none where [`crate::Options::strict`] has
    /// them reported here. Those that read what a copy is yet to write are reported.
    #[inline(always)]
    pub fn undefined(
        &self,
        context: &mut Context<'_>,
        warp: &Warp,
        bytes: u32,
        contiguous: bool,
    ) -> u32 {
        if !self.tracked || !context.checks_uninitialised() {
            return 0;
        }
        let size = bytes as usize;
        // SAFETY: the window's offsets have been checked for this size.
        let written = unsafe {
            if contiguous {
                self.shadow.is_written(self.offsets[0] as usize, LANES * size)
            } else if self.mask == FULL {
                let mut all = true;
                for lane in 0..LANES {
                    all &= self.shadow.is_written(self.offsets[lane] as usize, size);
                }
                all
            } else {
                lanes(self.mask).all(|lane| self.shadow.is_written(self.offsets[lane] as usize, size))
            }
        };
        match context.environment.options.strict {
            _ if written => 0,
            false => self.report_unwritten(context, warp, bytes, Tell::IN_FLIGHT),
            true => {
                self.report_unwritten(context, warp, bytes, Tell::BOTH);
                0
            }
        }
    }

    /// Reports lanes that read bytes which are not defined, or which a copy is yet to write.
    #[inline(always)]
    pub fn check_written(&self, context: &mut Context<'_>, warp: &Warp, bytes: u32) {
        if self.undefined(context, warp, bytes, false) != 0 {
            self.report_unwritten(context, warp, bytes, Tell::UNDEFINED);
        }
    }

    /// Reports lanes that read such bytes; which of the mask's read bytes that are not defined.
    #[cold]
    #[inline(never)]
    fn report_unwritten(&self, context: &mut Context<'_>, warp: &Warp, bytes: u32, tell: Tell) -> u32 {
        let space = self.space;
        let mut undefined = 0;
        for lane in lanes(self.mask) {
            let offset = self.offsets[lane] as usize;
            // SAFETY: the window's offsets have been checked for this size.
            let Some((byte, state)) = (unsafe { self.shadow.first_unwritten(offset, bytes as usize) })
            else {
                continue;
            };
            let is_undefined = matches!(state, State::Unwritten | State::Undefined);
            undefined |= u32::from(is_undefined) << lane;
            if !(if is_undefined { tell.undefined } else { tell.in_flight }) {
                continue;
            }
            let kind = match state {
                State::InFlightOverWritten => FindingKind::AsyncCopyInFlight,
                _ => FindingKind::UninitialisedRead { space },
            };
            let offset = offset_in_space(context, warp, self, lane);
            context.report(kind, warp.pc, warp.id, lane as u32, |context| {
                let offset = match space {
                    Space::Shared => context.shared_place(offset as u32),
                    _ => format!("{offset:#x}"),
                };
                let why = match state {
                    State::InFlight => "an asynchronous copy into it has not been waited for",
                    State::InFlightOverWritten => "an asynchronous copy over it has not been waited for",
                    State::Undefined => "what was written to it is not defined",
                    _ => "nothing wrote it",
                };
                format!("byte {byte} of {bytes} bytes read at {space} offset {offset}: {why}")
            });
        }
        undefined
    }
    /// Reports lanes that begin to copy into what another copy is yet to write: nothing orders two copies, so
    /// that either may stay.
    pub fn check_not_in_flight(&self, context: &mut Context<'_>, warp: &Warp, bytes: u32) {
        for lane in lanes(self.mask) {
            let offset = self.offsets[lane] as usize;
            // SAFETY: the window's offsets have been checked for this size.
            let Some(byte) = (unsafe { self.shadow.first_in_flight(offset, bytes as usize) }) else {
                continue;
            };
            let offset = offset_in_space(context, warp, self, lane);
            let kind = FindingKind::AsyncCopyInFlight;
            context.report(kind, warp.pc, warp.id, lane as u32, |context| {
                let place = context.shared_place(offset as u32);
                format!(
                    "byte {byte} of {bytes} bytes copied to shared offset {place}: an asynchronous copy \
                     into it has not been waited for"
                )
            });
        }
    }
}
