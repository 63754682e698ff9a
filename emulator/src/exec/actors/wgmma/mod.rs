//! Multiplications by a warpgroup: how they are issued, and how they happen.
//!
//! Each warp computes its 16 of the 64 rows by itself, from its own queue. The schedule decides when,
//! between the issue and the wait for the group.

mod multiply;
mod other;
mod trace;
#[cfg(target_arch = "x86_64")]
mod wide;

use crate::exec::check::sparse;
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::tiles::Key;
use crate::exec::state::warp::Warp;
use crate::exec::state::warpgroup::Step;
use crate::exec::state::wgmma::Pending;
use crate::exec::values::half::{Bfloat, Half};
use crate::exec::values::registers::{LANES, Registers};
use crate::isa::{FLAG_NEGATE_SOURCE, FLAG_OPTIONAL, Instruction, MatrixType, WGMMA_K, WgmmaShape};
use crate::options::Schedule;
use crate::report::FindingKind;
use crate::space::Space;
use multiply::{Left, WARP_ROWS, accumulate, left_from_registers, left_from_values, pack_right};

/// Rows of A that a warpgroup multiplies.
const ROWS: u32 = 64;

/// A descriptor, which all lanes must agree on.
fn uniform(c: &mut Context<'_>, w: &Warp, row: u32) -> Result<u64, Stop> {
    let values = w.registers.row64(row);
    if let Some(lane) = (0..LANES).find(|&lane| values[lane] != values[0]) {
        let message = format!("descriptor {:#x} of lane 0 but {:#x} here", values[0], values[lane]);
        c.report(FindingKind::InvalidOperand, w.pc, w.id, lane as u32, |_| message);
        return Err(Stop);
    }
    Ok(values[0])
}

fn place(c: &mut Context<'_>, w: &Warp, key: Key, name: &str) -> Result<usize, Stop> {
    c.tiles.find(key, &c.environment.cluster).map_err(|piece| {
        let message = format!("{name}, descriptor {:#x}, reaches {piece:#x}", key.descriptor);
        let kind = FindingKind::OutOfBounds { space: Space::Shared };
        c.report(kind, w.pc, w.id, 0, |_| message);
        Stop
    })
}

/// `wgmma.mma_async`.
pub fn issue(c: &mut Context<'_>, w: &mut Warp, i: &Instruction) -> Flow {
    let shape = WgmmaShape::decode(i.e);
    let from_registers = i.has(FLAG_OPTIONAL);
    let a = if from_registers { 0 } else { uniform(c, w, i.a)? };
    let b = uniform(c, w, i.b)?;
    let predicate = w.registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
    if predicate != 0 && predicate != !0 {
        let message = format!("scale-d holds for lanes {predicate:#010x} only");
        c.report(FindingKind::InvalidOperand, w.pc, w.id, 0, |_| message);
        return Err(Stop);
    }
    let accumulates = predicate != 0;
    c.warpgroup_step(w, Step { pc: w.pc, operands: [a, b], accumulates })?;
    let rank = c.environment.cluster.rank(w.id);
    let left_key = Key::new(a, ROWS, shape.transpose_a, (shape.a, rank));
    let left = if from_registers { None } else { Some(place(c, w, left_key, "A")?) };
    let right_key = Key::new(b, shape.columns, shape.transpose_b, (shape.b, rank));
    let right = place(c, w, right_key.wide(shape.selector.is_some()), "B")?;
    if let Some(selector) = shape.selector {
        let metadata = c.environment.kernel.data.code.lists[i.d as usize + shape.accumulators()];
        let metadata = *w.registers.row32(metadata);
        let columns =
            sparse::columns(c, w, &metadata, &shape.of_warp(), (usize::from(selector), false))?;
        w.wgmma.columns.push_back(columns);
    }
    let group = w.wgmma.open_group();
    if let Some(left) = left {
        c.region_operand(w, left, "operand A");
        c.race_operand(w, left, group);
    }
    c.region_operand(w, right, "operand B");
    c.race_operand(w, right, group);
    c.flight_issue(w, i, group);
    w.wgmma.pending.push_back(Pending {
        pc: w.pc,
        group,
        left,
        right,
        descriptors: [a, b],
        accumulates,
    });
    c.statistics.matrix_instructions += 1;
    if c.environment.options.schedule == Schedule::Eager {
        run_next(c, w);
    }
    Ok(())
}

/// `wgmma.wait_group`: everything happens but the `left` latest groups.
pub fn wait(c: &mut Context<'_>, w: &mut Warp, left: u32) {
    let committed = w.wgmma.committed;
    let done = committed.saturating_sub(left);
    while w.wgmma.pending.front().is_some_and(|pending| pending.group <= done) {
        run_next(c, w);
    }
    c.flight_done(w, done);
    c.race_wgmma_done(w, done);
}

/// Lets the oldest multiplication happen, if there is one.
pub fn run_next(c: &mut Context<'_>, w: &mut Warp) {
    if let Some(pending) = w.wgmma.pending.pop_front() {
        if c.trace.is_some() {
            trace::run(c, w, &pending);
        } else {
            (c.environment.families.wgmma)(c, w, &pending);
        }
    }
}

/// Lets a multiplication happen.
#[inline(always)]
pub fn run(c: &mut Context<'_>, w: &mut Warp, pending: &Pending) {
    run_by(accumulate, c, w, pending);
}

/// Lets a multiplication happen, on a CPU with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
pub fn run_wide(c: &mut Context<'_>, w: &mut Warp, pending: &Pending) {
    run_by(|r, rows, a, b, adds| wide::accumulate(r, rows, a, b, adds), c, w, pending);
}

/// Lets a multiplication happen: `accumulate` has the arithmetic, as [`accumulate`] does.
#[inline(always)]
fn run_by(
    accumulate: impl FnOnce(&mut Registers, &[u32], &Left, &[f32], bool),
    c: &mut Context<'_>,
    w: &mut Warp,
    pending: &Pending,
) {
    let code = &c.environment.kernel.data.code;
    let i = &code.instructions[pending.pc as usize];
    let shape = WgmmaShape::decode(i.e);
    if !shape.is_usual() {
        return other::run(c, w, pending);
    }
    let rows = &code.lists[i.d as usize..][..shape.columns as usize / 2];
    let mut left: Left = [[[0.0; LANES]; WGMMA_K]; 2];
    left_of(c, w, pending, &mut left);
    let right = right_of(c, w.id, pending);
    accumulate(&mut w.registers, rows, &left, right, pending.accumulates);
}

/// A as it is now.
#[inline(always)]
fn left_of(c: &mut Context<'_>, w: &Warp, pending: &Pending, left: &mut Left) {
    let code = &c.environment.kernel.data.code;
    let i = &code.instructions[pending.pc as usize];
    let shape = WgmmaShape::decode(i.e);
    let sign = if shape.negate { -1.0 } else { 1.0 };
    match pending.left {
        None => {
            let operands = &code.lists[i.a as usize..][..WGMMA_K / 4];
            match shape.a {
                MatrixType::Bf16 => left_from_registers::<Bfloat>(&w.registers, operands, sign, left),
                _ => left_from_registers::<Half>(&w.registers, operands, sign, left),
            }
        }
        Some(place) => {
            let ty = (shape.a, c.environment.cluster.rank(w.id));
            let key = Key::new(pending.descriptors[0], ROWS, shape.transpose_a, ty);
            let values = c.tiles.load(place, key, &mut c.shared, |_, _| {});
            let first = (w.id % 4) as usize * WARP_ROWS * WGMMA_K;
            left_from_values(&values[first..], sign, left);
        }
    }
}

/// B as it is now, packed.
#[inline(always)]
fn right_of<'c>(c: &'c mut Context<'_>, warp: u32, pending: &Pending) -> &'c [f32] {
    let shape = WgmmaShape::decode(c.environment.code().instructions[pending.pc as usize].e);
    let ty = (shape.b, c.environment.cluster.rank(warp));
    let key = Key::new(pending.descriptors[1], shape.columns, shape.transpose_b, ty);
    c.tiles.load(pending.right, key, &mut c.shared, pack_right)
}
