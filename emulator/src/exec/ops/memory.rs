//! Loads and stores.

use crate::exec::check::strong::Strength;
use crate::exec::check::window::{Want, addresses, resolve};
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::{Addresses, Window};
use crate::exec::values::registers::{FULL, LANES, Registers, lanes};
use crate::isa::{FLAG_OPTIONAL, FLAG_SATURATE, Instruction, LATER};
use crate::report::FindingKind;
use crate::shadow::global::Touch;
use crate::space::{PARAM_WINDOW, RANK_SHIFT, Space};
use crate::unaligned;

/// `ld`.
#[inline(always)]
pub fn load(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, space: Space) -> Flow {
    let (bytes, how) = (i.b * u32::from(i.count), Strength::of(i));
    let (space, addresses) = place(w, i, space);
    let want = Want { space, bytes, store: false, goes_on: true };
    let lists = &c.environment.kernel.data.code.lists;
    let rows = &lists[i.d as usize..i.d as usize + usize::from(i.count)];
    let mut window = Window::new();
    let (mut rest, mut refused) = (m, 0);
    while rest != 0 {
        resolve(c, w, want, &addresses, rest, &mut window)?;
        rest &= !(window.mask | window.refused);
        refused |= window.refused;
        if window.mask == 0 {
            continue;
        }
        let contiguous = window.is_contiguous(bytes);
        c.global_access(w, &window, bytes, Touch::Read, how);
        c.region_access(w, &window, bytes, "load");
        let races = c.race_access(w, &window, bytes, Touch::Read, how);
        let undefined = if races { 0 } else { window.undefined(c, w, bytes, contiguous) };
        for (position, &row) in rows.iter().enumerate() {
            let at = position * i.b as usize;
            if contiguous && bytes == 4 && i.c == 0 {
                // SAFETY: 32 lanes of 4 bytes from the first offset, all inside the window.
                unsafe { load_contiguous(&window, w.registers.row32_mut(row)) };
            } else {
                // SAFETY: `at` plus the element lies inside the bytes that the window was checked for.
                unsafe { load_element(&window, &mut w.registers, i, row, at) };
            }
        }
        c.strong_seen(w, &window, how);
        if undefined != 0 {
            c.poison_loaded(w, &window, (rows, i.b), i.c != 0, undefined);
        }
    }
    if refused != 0 {
        c.poison_refused(w, i, refused);
    }
    Ok(())
}

/// The space and the addresses. A parameter that is accessed by name becomes a generic address.
#[inline(always)]
fn place(w: &Warp, i: &Instruction, space: Space) -> (Space, Addresses) {
    if i.has(FLAG_OPTIONAL) {
        let address = PARAM_WINDOW.wrapping_add(i64::from(i.immediate) as u64);
        return (Space::Param, [address; LANES]);
    }
    (space, addresses(w, i))
}

/// # Safety
///
/// 128 bytes from the first offset lie inside the window.
#[inline(always)]
unsafe fn load_contiguous(window: &Window, row: &mut [u32; LANES]) {
    // SAFETY: the caller vouches for the range.
    *row = unsafe { unaligned::read(window.data.add(window.offsets[0] as usize)) };
}

/// # Safety
///
/// The element at `at` from each offset lies inside the window.
#[inline(always)]
unsafe fn load_element(window: &Window, r: &mut Registers, i: &Instruction, row: u32, at: usize) {
    let signed = i.has(FLAG_SATURATE);
    let wide = i.c != 0;
    // SAFETY: the caller vouches for the ranges.
    unsafe {
        match (i.b, signed, wide) {
            (4, _, false) => gather(window, at, r.row32_mut(row), |value: u32| value),
            (8, ..) => gather(window, at, r.row64_mut(row), |value: u64| value),
            (2, false, false) => gather(window, at, r.row32_mut(row), |value: u16| u32::from(value)),
            (2, true, false) => gather(window, at, r.row32_mut(row), |value: i16| value as u32),
            (1, false, false) => gather(window, at, r.row32_mut(row), |value: u8| u32::from(value)),
            (1, true, false) => gather(window, at, r.row32_mut(row), |value: i8| value as u32),
            (4, false, true) => gather(window, at, r.row64_mut(row), |value: u32| u64::from(value)),
            (4, true, true) => gather(window, at, r.row64_mut(row), |value: i32| value as u64),
            (2, false, true) => gather(window, at, r.row64_mut(row), |value: u16| u64::from(value)),
            (2, true, true) => gather(window, at, r.row64_mut(row), |value: i16| value as u64),
            (1, false, true) => gather(window, at, r.row64_mut(row), |value: u8| u64::from(value)),
            (1, true, true) => gather(window, at, r.row64_mut(row), |value: i8| value as u64),
            _ => {
                gather(window, at, r.row64_mut(row), |value: u64| value);
                gather(window, at + 8, r.row64_mut(row + 2), |value: u64| value);
            }
        }
    }
}

/// # Safety
///
/// A `T` at `at` from each offset of the mask lies inside the window.
#[inline(always)]
unsafe fn gather<T: Copy, C: Copy>(
    window: &Window,
    at: usize,
    row: &mut [C; LANES],
    convert: impl Fn(T) -> C,
) {
    let read = |lane: usize| {
        // SAFETY: the caller vouches for the range.
        convert(unsafe { unaligned::read(window.data.add(window.offsets[lane] as usize + at)) })
    };
    if window.mask == FULL {
        for lane in 0..LANES {
            row[lane] = read(lane);
        }
    } else {
        for lane in lanes(window.mask) {
            row[lane] = read(lane);
        }
    }
}

/// A store that completes at a memory barrier, which the next instruction names: it must be of the same
/// block.
#[cold]
fn store_later(c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32) -> Flow {
    let next = c.environment.code().instructions[w.pc as usize + 1];
    let barriers = super::mbarrier::barriers(c, w, &next, window.mask)?;
    let cluster = &c.environment.cluster;
    let rank = |lane: usize| cluster.rank_of_offset(window.offsets[lane] as u32);
    if let Some(lane) = lanes(window.mask).find(|&lane| rank(lane) != barriers[lane] >> RANK_SHIFT) {
        let (stored, barrier) = (cluster.address(window.offsets[lane] as u32), barriers[lane]);
        c.report(FindingKind::InvalidOperand, w.pc, w.id, lane as u32, |_| {
            format!(
                "a store to {stored:#x} that completes at an mbarrier of another block, at {barrier:#x}"
            )
        });
        return Err(Stop);
    }
    c.race_store_later(w, window, bytes, &barriers);
    Ok(())
}

/// `st`.
#[inline(always)]
pub fn store(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, space: Space) -> Flow {
    let (bytes, how) = (i.b * u32::from(i.count), Strength::of(i));
    let (space, addresses) = place(w, i, space);
    let want = Want { space, bytes, store: true, goes_on: true };
    let lists = &c.environment.kernel.data.code.lists;
    let rows = &lists[i.d as usize..i.d as usize + usize::from(i.count)];
    let mut window = Window::new();
    let mut rest = m;
    while rest != 0 {
        resolve(c, w, want, &addresses, rest, &mut window)?;
        rest &= !(window.mask | window.refused);
        if window.mask == 0 {
            continue;
        }
        let contiguous = window.is_contiguous(bytes);
        c.region_access(w, &window, bytes, "store");
        let _turn = c.turn(&window, how);
        if i.e & LATER == 0 {
            c.race_access(w, &window, bytes, Touch::Write, how);
        } else {
            store_later(c, w, &window, bytes)?;
        }
        c.global_access(w, &window, bytes, Touch::Write, how);
        c.strong_write(w, &window, how);
        for (position, &row) in rows.iter().enumerate() {
            let at = position * i.b as usize;
            if contiguous && bytes == 4 && i.c == 0 {
                // SAFETY: 32 lanes of 4 bytes from the first offset, all inside the window.
                unsafe { store_contiguous(&window, w.registers.row32(row)) };
            } else {
                // SAFETY: `at` plus the element lies inside the bytes that the window was checked for.
                unsafe { window.store(&w.registers, i, row, at) };
            }
        }
        if !contiguous && c.looks_for_races_of_one_store(&window, how) && i.e & LATER == 0 {
            // SAFETY: the window was checked for all elements.
            let lost = unsafe { window.differing(&w.registers, i, rows) };
            c.race_of_one_store(w, &window, bytes, lost);
        }
        window.set_written(bytes, contiguous);
        if w.poison.is_some() {
            c.poison_stored(w, &window, (rows, i.b), i.c != 0);
        }
    }
    Ok(())
}

/// # Safety
///
/// 128 bytes from the first offset lie inside the window.
#[inline(always)]
unsafe fn store_contiguous(window: &Window, row: &[u32; LANES]) {
    // SAFETY: the caller vouches for the range.
    unsafe { unaligned::write(window.data.add(window.offsets[0] as usize), *row) };
}
