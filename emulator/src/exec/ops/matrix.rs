//! Matrix loads, stores and multiply-accumulates.
//!
//! A multiply-accumulate adds the products in the order of k, each with one fused f32 operation:
//! `d = fma(a[k], b[k], d)`. Products of bf16, f16 and tf32 values are exact in f32, so each step
//! rounds
//! once. The hardware adds several products at a time in an order of its own; results agree within the
//! usual error of an f32 sum.

#[cfg(target_arch = "x86_64")]
use super::matrix_wide as wide;
use crate::exec::check::strong::Strength;
use crate::exec::check::window::{Want, addresses, own_shared, resolve};
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::half::{Bfloat, Format, Half};
use crate::exec::values::registers::{LANES, Registers, Row, lanes};
use crate::isa::{
    ATOMIC_SPACES, FLAG_TRANSPOSE, FLAG_WIDE_ADDRESS, Instruction, LanePlace, MATRIX_GENERIC, MatrixOp,
};
use crate::report::FindingKind;
use crate::shadow::global::Touch;
use crate::space::Space;
use crate::unaligned;

/// Every matrix instruction.
#[inline(always)]
pub fn run(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: MatrixOp) -> Flow {
    let lists = &c.environment.kernel.data.code.lists;
    match op {
        MatrixOp::LoadMatrix => return transfer(c, w, i, m, false),
        MatrixOp::StoreMatrix => return transfer(c, w, i, m, true),
        MatrixOp::CheckFragment => return check_fragment(c, w, i, m),
        MatrixOp::MoveTransposed => move_transposed(&mut w.registers, i, m),
        MatrixOp::M16N8K16Bf16 => multiply16::<Bfloat, 16>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K16F16 => multiply16::<Half, 16>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K8Bf16 => multiply16::<Bfloat, 8>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K8F16 => multiply16::<Half, 8>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K8Tf32 => multiply32::<8>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K4Tf32 => multiply32::<4>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K32Bytes => multiply8::<16, 32>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K16Bytes => multiply8::<16, 16>(&mut w.registers, i, m, lists),
        MatrixOp::M8N8K16Bytes => multiply8::<8, 16>(&mut w.registers, i, m, lists),
        MatrixOp::MultiplyVolta => super::volta::run(&mut w.registers, i, m, lists),
        MatrixOp::MultiplySparse => super::sparse::run(c, w, i, m)?,
        MatrixOp::Multiply => super::multiply::run(&mut w.registers, i, m, lists),
    }
    c.statistics.matrix_instructions += 1;
    Ok(())
}

/// Every matrix instruction, on a CPU with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub fn run_wide(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: MatrixOp) -> Flow {
    let lists = &c.environment.kernel.data.code.lists;
    match op {
        MatrixOp::M16N8K16Bf16 => wide::multiply::<true, 16>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K16F16 => wide::multiply::<false, 16>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K8Bf16 => wide::multiply::<true, 8>(&mut w.registers, i, m, lists),
        MatrixOp::M16N8K8F16 => wide::multiply::<false, 8>(&mut w.registers, i, m, lists),
        _ => return run(c, w, i, m, op),
    }
    c.statistics.matrix_instructions += 1;
    Ok(())
}

/// Before `wmma` loads or stores: the address and the stride are those of all lanes, and the address is
/// aligned as PTX wants it ("Matrix Storage for WMMA"); of strides it is asked what the hardware needs: 16
/// bytes.
#[cold]
fn check_fragment(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32) -> Flow {
    let (addresses, strides) = (addresses(w, i), *w.registers.row32(i.b));
    let first = m.trailing_zeros() as usize & 31;
    let (address, stride) = (addresses[first], strides[first]);
    if let Some(lane) = lanes(m).find(|&lane| addresses[lane] != address || strides[lane] != stride) {
        c.report(FindingKind::InvalidOperand, w.pc, w.id, lane as u32, |_| {
            format!(
                "address {:#x} and stride {} in lane {lane}, but {address:#x} and {stride} in lane {first}; \
                 all lanes must have the same",
                addresses[lane], strides[lane]
            )
        });
        return Err(Stop);
    }
    let align = u64::from(i.count);
    if !address.is_multiple_of(align) {
        let space = match ATOMIC_SPACES[i.e as usize] {
            Space::Generic => Space::of_address(address).unwrap_or(Space::Generic),
            space => space,
        };
        c.report(FindingKind::Misaligned { space }, w.pc, w.id, first as u32, |_| {
            format!("a matrix at {address:#x}, which is no multiple of {align}, the bytes of a fragment")
        });
    }
    let (bytes, align) = (u64::from(stride) * u64::from(i.c) / 8, align.min(16));
    if !bytes.is_multiple_of(align) {
        c.report(FindingKind::InvalidOperand, w.pc, w.id, first as u32, |_| {
            format!(
                "a stride of {stride} elements, {bytes} bytes, which is no multiple of {align} bytes"
            )
        });
        return Err(Stop);
    }
    Ok(())
}

/// Where a lane's part of a matrix is.
pub fn fragment_place(r: &mut Registers, i: &Instruction, m: u32) {
    let (place, strides) = (LanePlace::decode(i.c), *r.row32(i.b));
    let offset =
        |lane: usize| place.offset(lane, strides[lane]).wrapping_add(i64::from(i.immediate) as u64);
    if i.has(FLAG_WIDE_ADDRESS) {
        let base = *r.row64(i.a);
        r.set64(i.d, m, &std::array::from_fn(|lane| base[lane].wrapping_add(offset(lane))));
    } else {
        let base = *r.row32(i.a);
        r.set32(i.d, m, &std::array::from_fn(|lane| base[lane].wrapping_add(offset(lane) as u32)));
    }
}

/// `movmatrix`: four lanes hold a row of the matrix, two elements a lane.
fn move_transposed(r: &mut Registers, i: &Instruction, m: u32) {
    let a = *r.row32(i.a);
    let element = |row: usize, column: usize| a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
    let moved = |lane: usize| {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        element(column, row) | element(column + 1, row) << 16
    };
    r.set32(i.d, m, &std::array::from_fn(moved));
}

/// A as rows of 16 values of k, for all 16 rows.
type Left = [[f32; 16]; 16];
/// B as rows of 8 columns, the even columns before the odd ones, as the lanes hold D.
type Right = [[f32; 8]; 16];

/// 16-bit inputs. Register 0 of A holds rows 0 to 7 and k 0 to 7, register 1 rows 8 to 15, registers 2
/// and 3 the same rows and k 8 to 15. In each, four lanes hold a row, two values a lane: as 64 halves,
/// `row * 8 + k`. B likewise, `column * 8 + k`.
#[inline(always)]
pub(super) fn multiply16<T: Format, const K: usize>(
    r: &mut Registers,
    i: &Instruction,
    m: u32,
    lists: &[u32],
) {
    let (mut left, mut right): (Left, Right) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    for register in 0..K / 4 {
        let values = widen::<T>(r.row32(lists[i.a as usize + register]));
        let (rows, ks) = (register % 2 * 8, register / 2 * 8);
        for row in 0..8 {
            left[rows + row][ks..ks + 8].copy_from_slice(&values[row * 8..row * 8 + 8]);
        }
    }
    for register in 0..K / 8 {
        let values = widen::<T>(r.row32(lists[i.b as usize + register]));
        for k in 0..8 {
            for column in 0..8 {
                right[register * 8 + k][column / 2 + column % 2 * 4] = values[column * 8 + k];
            }
        }
    }
    accumulate::<K>(r, i, m, lists, &left, &right);
}

/// The 64 halves of a register's lanes.
#[inline(always)]
fn widen<T: Format>(row: &[u32; LANES]) -> [f32; 2 * LANES] {
    // SAFETY: both are 128 bytes, and any bits are a u16. The CPUs that this runs on are little-endian
    // or would fail every test.
    let halves: &[u16; 2 * LANES] = unsafe { &*std::ptr::from_ref(row).cast() };
    let mut out = [0.0; 2 * LANES];
    for (value, &half) in out.iter_mut().zip(halves) {
        *value = T::from_bits(half).to_f32();
    }
    out
}

/// tf32 inputs: as above with one value a lane; the hardware ignores the low 13 bits.
#[inline(always)]
fn multiply32<const K: usize>(r: &mut Registers, i: &Instruction, m: u32, lists: &[u32]) {
    let (mut left, mut right): (Left, Right) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    let value = |bits: u32| f32::from_bits(bits & !0x1fff);
    for register in 0..K / 2 {
        let row = r.row32(lists[i.a as usize + register]);
        for lane in 0..LANES {
            left[register % 2 * 8 + lane / 4][register / 2 * 4 + lane % 4] = value(row[lane]);
        }
    }
    for register in 0..K / 4 {
        let row = r.row32(lists[i.b as usize + register]);
        for lane in 0..LANES {
            let column = lane / 4;
            right[register * 4 + lane % 4][column / 2 + column % 2 * 4] = value(row[lane]);
        }
    }
    accumulate::<K>(r, i, m, lists, &left, &right);
}

/// Bytes, exact. Four lanes hold 16 values of k of a row of A, or of a column of B, in a register, four a
/// lane; registers 0 and 1 of A are of rows 0 to 7 and 8 to 15, and the next ones of the next values of k. C
/// and D are as for [`accumulate`].
fn multiply8<const ROWS: usize, const K: usize>(
    r: &mut Registers,
    i: &Instruction,
    m: u32,
    lists: &[u32],
) {
    let value = |word: u32, byte: usize, is_signed: bool| {
        let byte = word.to_le_bytes()[byte];
        if is_signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    let (a_is_signed, b_is_signed) = (i.immediate & 1 != 0, i.immediate & 2 != 0);
    let (mut left, mut right) = ([[0; K]; ROWS], [[0; K]; 8]);
    let halves = ROWS / 8;
    for k in 0..K {
        let (block, quad, byte) = (k / 16, k % 16 / 4, k % 4);
        for half in 0..halves {
            let words = *r.row32(lists[i.a as usize + block * halves + half]);
            for row in 0..8 {
                left[half * 8 + row][k] = value(words[row * 4 + quad], byte, a_is_signed);
            }
        }
        let words = *r.row32(lists[i.b as usize + block]);
        for column in 0..8 {
            right[column][k] = value(words[column * 4 + quad], byte, b_is_signed);
        }
    }
    let mut out = [Row([0; LANES]); 4];
    for (register, sums) in out.iter_mut().enumerate().take(2 * halves) {
        sums.0 = *r.row32(lists[i.c as usize + register]);
        for (lane, sum) in sums.0.iter_mut().enumerate() {
            let (row, column) = (register / 2 * 8 + lane / 4, lane % 4 * 2 + register % 2);
            let products = left[row].iter().zip(&right[column]).map(|(a, b)| a * b);
            let total = i64::from(*sum as i32) + products.sum::<i64>();
            let clamped = total.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
            *sum = if i.immediate & 4 != 0 { clamped } else { total } as u32;
        }
    }
    for (register, sums) in out.iter().enumerate().take(2 * halves) {
        r.set32(lists[i.d as usize + register], m, &sums.0);
    }
}

/// `d = a * b + c`. Registers 0 and 1 of C and D hold the even and the odd columns of rows 0 to 7, four
/// lanes a row; registers 2 and 3 those of rows 8 to 15.
#[inline(always)]
fn accumulate<const K: usize>(
    r: &mut Registers,
    i: &Instruction,
    m: u32,
    lists: &[u32],
    left: &Left,
    right: &Right,
) {
    let mut out = [Row([0; LANES]); 4];
    for half in 0..2 {
        let even = *r.row32(lists[i.c as usize + 2 * half]);
        let odd = *r.row32(lists[i.c as usize + 2 * half + 1]);
        let mut sums = [[0f32; 8]; 8];
        for row in 0..8 {
            for quad in 0..4 {
                sums[row][quad] = f32::from_bits(even[row * 4 + quad]);
                sums[row][quad + 4] = f32::from_bits(odd[row * 4 + quad]);
            }
        }
        for k in 0..K {
            for row in 0..8 {
                let a = left[half * 8 + row][k];
                for column in 0..8 {
                    sums[row][column] = a.mul_add(right[k][column], sums[row][column]);
                }
            }
        }
        for row in 0..8 {
            for quad in 0..4 {
                out[2 * half].0[row * 4 + quad] = sums[row][quad].to_bits();
                out[2 * half + 1].0[row * 4 + quad] = sums[row][quad + 4].to_bits();
            }
        }
    }
    for (register, row) in out.iter().enumerate() {
        r.set32(lists[i.d as usize + register], m, &row.0);
    }
}

/// `ldmatrix` and `stmatrix`: lane 8j + r has the address of row r of matrix j; the row's four words
/// belong to lanes 4r to 4r + 3. Transposed, lane 4r + q holds elements 2q and 2q + 1 of column r.
#[inline(always)]
fn transfer(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, store: bool) -> Flow {
    let lists = &c.environment.kernel.data.code.lists;
    let count = usize::from(i.count);
    let rows = &lists[i.d as usize..i.d as usize + count];
    let owners = if count == 4 { !0 } else { (1u32 << (8 * count)) - 1 } & m;
    if owners == 0 {
        return Ok(());
    }
    let addresses = match i.e {
        MATRIX_GENERIC => addresses(w, i).map(own_shared),
        _ => addresses(w, i),
    };
    let want = Want { space: Space::Shared, bytes: 16, store, goes_on: false };
    let mut window = Window::new();
    resolve(c, w, want, &addresses, owners, &mut window)?;
    let touch = if store { Touch::Write } else { Touch::Read };
    c.region_access(w, &window, 16, if store { "store" } else { "load" });
    let races = c.race_access(w, &window, 16, touch, Strength::default());
    let undefined = match store {
        false if !races => window.undefined(c, w, 16, window.is_contiguous(16)),
        _ => 0,
    };
    if store {
        window.set_written(16, false);
        if w.poison.is_some() {
            c.poison_matrix_stored(w, i, &window);
        }
    }
    for (matrix, &register) in rows.iter().enumerate() {
        let words = if store { arrange(w.registers.row32(register), i) } else { [0; LANES] };
        let mut read = [0; LANES];
        for row in 0..8 {
            let lane = matrix * 8 + row;
            if owners >> lane & 1 == 0 {
                continue;
            }
            let place: &mut [u32; 4] = (&mut read[row * 4..row * 4 + 4]).try_into().expect("four words");
            // SAFETY: the window was checked for 16 bytes at each owner's offset.
            unsafe {
                let at = window.data.add(window.offsets[lane] as usize);
                if store {
                    let row = [row * 4, row * 4 + 1, row * 4 + 2, row * 4 + 3];
                    unaligned::write(at, row.map(|word| words[word]));
                } else {
                    *place = unaligned::read(at);
                }
            }
        }
        if !store {
            let read = arrange(&read, i);
            w.registers.set32(register, m, &read);
        }
    }
    if store && c.looks_for_races_of_one_store(&window, Strength::default()) {
        let lost = rows_that_differ(w, i, rows, &window);
        c.race_of_one_store(w, &window, 16, lost);
    }
    if undefined != 0 {
        c.poison_matrix_loaded(w, i, &window, undefined);
    }
    Ok(())
}

/// The lanes whose row of a matrix is no longer what `stmatrix` has stored there.
fn rows_that_differ(w: &Warp, i: &Instruction, rows: &[u32], window: &Window) -> u32 {
    let mut differ = 0;
    for (matrix, &register) in rows.iter().enumerate() {
        let words = arrange(w.registers.row32(register), i);
        for (lane, row) in (matrix * 8..).zip(words.chunks_exact(4)) {
            if window.mask >> lane & 1 == 0 {
                continue;
            }
            // SAFETY: the window was checked for 16 bytes at the offset of each lane of its mask.
            let there: [u32; 4] =
                unsafe { unaligned::read(window.data.add(window.offsets[lane] as usize)) };
            differ |= u32::from(there != *row) << lane;
        }
    }
    differ
}

/// The words of a matrix, transposed if the instruction says so.
#[inline(always)]
fn arrange(words: &[u32; LANES], i: &Instruction) -> [u32; LANES] {
    if !i.has(FLAG_TRANSPOSE) {
        return *words;
    }
    let mut out = [0; LANES];
    for row in 0..8 {
        for quad in 0..4 {
            let element = |k: usize| words[(2 * quad + k) * 4 + row / 2] >> (row % 2 * 16) & 0xffff;
            out[row * 4 + quad] = element(0) | element(1) << 16;
        }
    }
    out
}
