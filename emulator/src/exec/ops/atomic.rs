//! Atomic read-modify-write operations, lane after lane.

use crate::exec::check::strong::Strength;
use crate::exec::check::trace::{Encoding, Found};
use crate::exec::check::window::{Want, addresses, resolve};
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::float::add_flushed;
use crate::exec::values::half::{Bfloat, Format, Half};
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{
    ATOMIC_SPACES, AtomicOp, AtomicType, FLAG_OPTIONAL, IN_CLUSTER, Instruction, ROW_SINK,
};
use crate::report::trace::OriginKind;
use crate::shadow::global::Touch;
use crate::space::Space;
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
            let at = window.data.add(window.offsets[lane] as usize).cast::<u128>();
            old[lane] = at.read_unaligned();
            let new = match op {
                AtomicOp::CompareExchange if old[lane] != operand => old[lane],
                AtomicOp::CompareExchange => second,
                _ => operand,
            };
            changed |= new != old[lane];
            at.write_unaligned(new);
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
        let sum = add(ty, false, old[lane], operand);
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
            let at = at.cast::<$type>();
            if matches!(window.space, Space::Global | Space::Const) {
                // SAFETY: global allocations are aligned to 256 bytes, and the offset to the type.
                let cell = unsafe { <$atomic>::from_ptr(at) };
                let next = |old: $type| Some(f(u64::from(old)) as $type);
                let (Ok(old) | Err(old)) = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
                u64::from(old)
            } else {
                // SAFETY: the memory belongs to this block alone.
                unsafe {
                    let old = at.read_unaligned();
                    at.write_unaligned(f(u64::from(old)) as $type);
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

/// What an operation makes of a value and its operands; sums of f32 flush subnormal numbers where `ftz`.
pub fn apply(op: AtomicOp, ty: AtomicType, ftz: bool, old: u64, operand: u64, second: u64) -> u64 {
    match op {
        AtomicOp::Exchange => operand,
        AtomicOp::CompareExchange => {
            if old == operand {
                second
            } else {
                old
            }
        }
        AtomicOp::And => old & operand,
        AtomicOp::Or => old | operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Increment => {
            if old as u32 >= operand as u32 {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old as u32 == 0 || old as u32 > operand as u32 {
                operand
            } else {
                old - 1
            }
        }
        AtomicOp::Min | AtomicOp::Max if is_half(ty) => extreme(ty, op == AtomicOp::Min, old, operand),
        AtomicOp::Min => {
            if less(ty, operand, old) {
                operand
            } else {
                old
            }
        }
        AtomicOp::Max => {
            if less(ty, old, operand) {
                operand
            } else {
                old
            }
        }
        AtomicOp::Add => add(ty, ftz, old, operand),
    }
}

fn is_half(ty: AtomicType) -> bool {
    matches!(ty, AtomicType::F16 | AtomicType::Bf16 | AtomicType::F16x2 | AtomicType::Bf16x2)
}

/// The smaller or the larger of two numbers of 16 bits, or of two pairs of them. NaN is neither, if it can
/// be.
fn extreme(ty: AtomicType, smaller: bool, old: u64, operand: u64) -> u64 {
    fn one<T: Format>(smaller: bool, a: u64, b: u64) -> u64 {
        let (x, y) = (T::from_bits(a as u16).to_f32(), T::from_bits(b as u16).to_f32());
        // Of two zeros the negative one is the smaller.
        let x_is_less = x < y || x == y && x.is_sign_negative();
        u64::from(match (x.is_nan(), y.is_nan()) {
            (true, true) => 0x7fff,
            (true, false) => b as u16,
            (false, true) => a as u16,
            _ if x_is_less == smaller => a as u16,
            _ => b as u16,
        })
    }
    let pick = match ty {
        AtomicType::F16 | AtomicType::F16x2 => one::<Half>,
        _ => one::<Bfloat>,
    };
    match ty {
        AtomicType::F16 | AtomicType::Bf16 => pick(smaller, old, operand),
        _ => pick(smaller, old, operand) | pick(smaller, old >> 16, operand >> 16) << 16,
    }
}

fn less(ty: AtomicType, a: u64, b: u64) -> bool {
    match ty {
        AtomicType::S32 => (a as i32) < b as i32,
        AtomicType::S64 => (a as i64) < b as i64,
        AtomicType::U32 => (a as u32) < b as u32,
        _ => a < b,
    }
}

/// The sum, `ftz` with subnormal numbers of f32 flushed.
fn add(ty: AtomicType, ftz: bool, old: u64, operand: u64) -> u64 {
    fn one<T: Format>(a: u16, b: u16) -> u16 {
        T::from_f32(T::from_bits(a).to_f32() + T::from_bits(b).to_f32()).bits()
    }
    fn two<T: Format>(a: u64, b: u64) -> u64 {
        u64::from(one::<T>(a as u16, b as u16))
            | u64::from(one::<T>((a >> 16) as u16, (b >> 16) as u16)) << 16
    }
    match ty {
        AtomicType::F32 if ftz => u64::from(add_flushed(old as u32, operand as u32)),
        AtomicType::F32 => {
            u64::from((f32::from_bits(old as u32) + f32::from_bits(operand as u32)).to_bits())
        }
        AtomicType::F64 => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        AtomicType::F16 => u64::from(one::<Half>(old as u16, operand as u16)),
        AtomicType::Bf16 => u64::from(one::<Bfloat>(old as u16, operand as u16)),
        AtomicType::F16x2 => two::<Half>(old, operand),
        AtomicType::Bf16x2 => two::<Bfloat>(old, operand),
        _ => old.wrapping_add(operand),
    }
}
