//! Atomic read-modify-write operations, lane after lane.

use crate::exec::check::strong::Strength;
use crate::exec::check::trace::{Encoding, Found};
use crate::exec::check::window::{Want, addresses, resolve};
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::atomic::apply;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{
    ATOMIC_SPACES, AtomicOp, AtomicType, FLAG_OPTIONAL, IN_CLUSTER, Instruction, ROW_SINK,
};
use crate::report::trace::OriginKind;
use crate::shadow::global::Touch;
use crate::space::Space;
use crate::unaligned;
use std::cell::Cell;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// `atom` and `red`.
pub fn run(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: AtomicOp) -> Flow {
    if i.has(FLAG_OPTIONAL) {
        return change_vector(c, w, i, m, op);
    }
    let ty = AtomicType::ALL[usize::from(i.count)];
    if ty == AtomicType::B128 {
        return exchange_wide(c, w, i, m, op);
    }
    let bytes = bytes_of(ty);
    let mut old = [0u64; LANES];
    // Of a 16-bit value, the upper half of its lane is anything.
    let value = |w: &Warp, row: u32, lane: usize| match bytes {
        8 => w.registers.row64(row)[lane],
        2 => u64::from(w.registers.row32(row)[lane] as u16),
        _ => u64::from(w.registers.row32(row)[lane]),
    };
    let changed = Cell::new(false);
    let refused = change_each(c, w, i, m, bytes, |w, window, lane| {
        // Sums of f32 in global memory flush subnormal numbers, those in shared memory do not.
        let ftz = window.space == Space::Global;
        let (operand, second) = (value(w, i.b, lane), value(w, i.c, lane));
        // SAFETY: the window was checked for this many bytes, and alignment, at the lane's offset.
        old[lane] = unsafe {
            update(window, lane, 0, bytes, |old| {
                let new = apply(op, ty, ftz, old, operand, second);
                changed.set(changed.get() || new != old);
                new
            })
        };
    })?;
    c.deeds += u64::from(changed.get());
    if c.trace.is_some() && op == AtomicOp::Add {
        trace(c, w, i.b, m, ty, &old);
    }
    match bytes {
        8 => w.registers.set64(i.d, m, &old),
        _ => w.registers.set32(i.d, m, &old.map(|value| value as u32)),
    }
    if refused != 0 {
        c.poison_refused(w, i, refused);
    }
    Ok(())
}

/// Several elements in global memory, each of which is atomic by itself.
fn change_vector(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: AtomicOp) -> Flow {
    let ty = AtomicType::ALL[usize::from(i.count)];
    let (count, returns, bytes) = (i.c as usize & 0xffff, i.c >> 16 != 0, bytes_of(ty));
    let lists = &c.environment.kernel.data.code.lists;
    let rows: Vec<u32> = lists[i.b as usize..][..count].to_vec();
    let results: Vec<u32> = lists[i.b as usize + count..][..if returns { count } else { 0 }].to_vec();
    let mut old = vec![[0u64; LANES]; count];
    let changed = Cell::new(false);
    let refused = change_each(c, w, i, m, bytes * count as u32, |w, window, lane| {
        for (position, &row) in rows.iter().enumerate() {
            let operand = u64::from(w.registers.row32(row)[lane]);
            let operand = if bytes == 2 { operand & 0xffff } else { operand };
            // SAFETY: the window was checked for all elements, and alignment, at the lane's offset.
            old[position][lane] = unsafe {
                update(window, lane, bytes as usize * position, bytes, |old| {
                    let new = apply(op, ty, true, old, operand, operand);
                    changed.set(changed.get() || new != old);
                    new
                })
            };
        }
    })?;
    c.deeds += u64::from(changed.get());
    if c.trace.is_some() && op == AtomicOp::Add {
        for (&row, old) in rows.iter().zip(&old) {
            trace(c, w, row, m, ty, old);
        }
    }
    for (&row, old) in results.iter().zip(&old) {
        w.registers.set32(row, m, &old.map(|value| value as u32));
    }
    if refused != 0 {
        c.poison_refused(w, i, refused);
    }
    Ok(())
}

/// Numbers of 128 bits, of which nothing but exchanges is made. One lock is held for all of them.
fn exchange_wide(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: AtomicOp) -> Flow {
    static TURN: Mutex<()> = Mutex::new(());
    let value = |w: &Warp, row: u32, lane: usize| {
        u128::from(w.registers.row64(row)[lane]) | u128::from(w.registers.row64(row + 2)[lane]) << 64
    };
    let mut old = [0u128; LANES];
    let mut changed = false;
    let refused = change_each(c, w, i, m, 16, |w, window, lane| {
        let (operand, second) = (value(w, i.b, lane), value(w, i.c, lane));
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the window was checked for 16 bytes at the lane's offset.
        unsafe {
            let at = window.data.add(window.offsets[lane] as usize);
            old[lane] = unaligned::read(at);
            let new = match op {
                AtomicOp::CompareExchange if old[lane] != operand => old[lane],
                AtomicOp::CompareExchange => second,
                _ => operand,
            };
            changed |= new != old[lane];
            unaligned::write(at, new);
        }
    })?;
    c.deeds += u64::from(changed);
    if i.d != ROW_SINK {
        w.registers.set64(i.d, m, &old.map(|value| value as u64));
        w.registers.set64(i.d + 2, m, &old.map(|value| (value >> 64) as u64));
    }
    if refused != 0 {
        c.poison_refused(w, i, refused);
    }
    Ok(())
}

/// Checks the `bytes` bytes that each lane of `m` changes, and calls `change(warp, window, lane)` for each in
/// its turn. The lanes that were refused.
fn change_each(
    c: &mut Context<'_>,
    w: &mut Warp,
    i: &Instruction,
    m: u32,
    bytes: u32,
    mut change: impl FnMut(&Warp, &Window, usize),
) -> Result<u32, Stop> {
    let how = Strength::of(i);
    let want =
        Want { space: ATOMIC_SPACES[(i.e & !IN_CLUSTER) as usize], bytes, store: true, goes_on: true };
    let addresses = addresses(w, i);
    let mut window = Window::new();
    let (mut rest, mut refused) = (m, 0);
    while rest != 0 {
        resolve(c, w, want, &addresses, rest, &mut window)?;
        rest &= !(window.mask | window.refused);
        refused |= window.refused;
        if window.mask == 0 {
            continue;
        }
        window.check_written(c, w, bytes);
        c.region_access(w, &window, bytes, "atomic operation");
        let _turn = c.turn(&window, how);
        c.race_access(w, &window, bytes, Touch::Write, how);
        c.global_access(w, &window, bytes, Touch::Write, how);
        c.strong_write(w, &window, how);
        for lane in lanes(window.mask) {
            change(w, &window, lane);
        }
        c.strong_seen(w, &window, how);
        window.set_written(bytes, false);
    }
    Ok(refused)
}

/// Looks at sums with what stands in `row` for those that are not finite.
#[cold]
fn trace(c: &mut Context<'_>, w: &Warp, row: u32, m: u32, ty: AtomicType, old: &[u64; LANES]) {
    let encodings: &[Encoding] = match ty {
        AtomicType::F32 => &[Encoding::F32],
        AtomicType::F64 => &[Encoding::F64],
        AtomicType::F16 => &[Encoding::F16(0)],
        AtomicType::Bf16 => &[Encoding::Bf16(0)],
        AtomicType::F16x2 => &[Encoding::F16(0), Encoding::F16(16)],
        AtomicType::Bf16x2 => &[Encoding::Bf16(0), Encoding::Bf16(16)],
        _ => return,
    };
    for lane in lanes(m) {
        let operand = match ty {
            AtomicType::F64 => w.registers.row64(row)[lane],
            _ => u64::from(w.registers.row32(row)[lane]),
        };
        let sum = apply(AtomicOp::Add, ty, false, old[lane], operand, 0);
        for encoding in encodings {
            let [result, a, memory] = [sum, operand, old[lane]].map(|bits| encoding.value(bits));
            if !result.is_finite() {
                let (kind, pc, warp) = (OriginKind::Overflow, w.pc, w.id);
                let found = Found { kind, pc, warp, lane, result, element: None };
                c.trace_sum(found, &[("a", &[a]), ("memory", &[memory])]);
            }
        }
    }
}

fn bytes_of(ty: AtomicType) -> u32 {
    match ty {
        AtomicType::B16 | AtomicType::F16 | AtomicType::Bf16 => 2,
        AtomicType::B64 | AtomicType::U64 | AtomicType::S64 | AtomicType::F64 => 8,
        AtomicType::B128 => 16,
        _ => 4,
    }
}

/// Replaces a value `skipped` bytes from the lane's offset and returns the old one; in global memory,
/// atomically among the blocks.
///
/// # Safety
///
/// The bytes there lie inside the window and are aligned to their number.
unsafe fn update(
    window: &Window,
    lane: usize,
    skipped: usize,
    bytes: u32,
    f: impl Fn(u64) -> u64,
) -> u64 {
    // SAFETY: the caller vouches for the range.
    let at = unsafe { window.data.add(window.offsets[lane] as usize + skipped) };
    macro_rules! update {
        ($type:ty, $atomic:ty) => {{
            if matches!(window.space, Space::Global | Space::Const) {
                // SAFETY: global allocations are aligned to 256 bytes, and the offset to the type.
                let cell = unsafe { <$atomic>::from_ptr(at.cast()) };
                let next = |old: $type| Some(f(u64::from(old)) as $type);
                let (Ok(old) | Err(old)) = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
                u64::from(old)
            } else {
                // SAFETY: the memory belongs to this block alone.
                unsafe {
                    let old: $type = unaligned::read(at);
                    unaligned::write(at, f(u64::from(old)) as $type);
                    u64::from(old)
                }
            }
        }};
    }
    match bytes {
        2 => update!(u16, AtomicU16),
        4 => update!(u32, AtomicU32),
        _ => update!(u64, AtomicU64),
    }
}
