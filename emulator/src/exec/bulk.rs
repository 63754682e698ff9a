//! Bulk copies on their way: `cp.async.bulk` and its tensor and reducing forms.
//!
//! A load moves its bytes, as the schedule has it, between its issue and the completion of its
//! barrier's phase. A store reads shared memory and writes global memory between its issue and the wait
//! for its group.

use super::boxes::{Bytes, Row};
use super::context::{Access, Context, Flow, Stop};
use super::reduce::{add, operation};
use super::trace::{Encoding, Found};
use crate::isa::ReduceOp;
use crate::memory::{SHARED_BASE, Space};
use crate::report::FindingKind;
use crate::shadow::State;
use crate::shadow::global::Touch;
use crate::tensor_map::TensorMapSwizzle;
use crate::trace::OriginKind;
use std::collections::BTreeMap;

/// Bytes of the pieces that a swizzle exchanges.
const PIECE: u32 = 16;

/// Who issued a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Issuer {
    pub warp: u32,
    pub lane: u32,
}

/// One copy.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub bytes: Bytes,
    /// Shared address.
    pub shared: u32,
    pub pc: u32,
    pub issuer: Issuer,
}

/// A copy to shared memory.
#[derive(Clone, Debug)]
pub struct Load {
    pub transfer: Transfer,
    /// Address of its barrier.
    pub barrier: u32,
}

/// A copy from shared memory.
#[derive(Clone, Debug)]
pub struct Store {
    pub transfer: Transfer,
    pub reduce: ReduceOp,
    /// Its number among the groups of its issuer.
    pub group: u32,
    /// Whether it has happened. It stays in the queue until it is waited for.
    pub performed: bool,
}

/// The groups of stores of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups {
    /// Groups committed.
    pub committed: u32,
    /// Stores in the open one.
    pub open: u32,
}

/// Loads that have not happened yet and stores that have not been waited for, in the order of issue.
#[derive(Debug, Default)]
pub struct BulkQueue {
    pub loads: Vec<Load>,
    pub stores: Vec<Store>,
    pub groups: BTreeMap<Issuer, Groups>,
}

/// Lets the loads of a barrier land whose current phase lacks nothing but bytes, until it completes.
pub fn land_awaited(c: &mut Context<'_>, barrier: u32) -> Flow {
    while c.mbarriers.awaits_bytes(barrier) {
        let Some(index) = c.bulk.loads.iter().position(|load| load.barrier == barrier) else { break };
        land(c, index)?;
    }
    Ok(())
}

/// Lets one load land.
pub fn land(c: &mut Context<'_>, index: usize) -> Flow {
    let load = c.bulk.loads.remove(index);
    move_bytes(c, &load.transfer, None)?;
    let bytes = load.transfer.bytes.counted();
    if let Err(message) = c.mbarriers.complete(load.barrier, bytes) {
        return misuse(c, &load.transfer, message);
    }
    Ok(())
}

/// A barrier was used as it must not be, by a copy.
fn misuse(c: &mut Context<'_>, t: &Transfer, message: String) -> Flow {
    c.report(FindingKind::MbarrierMisuse, t.pc, t.issuer.warp, t.issuer.lane, |_| message);
    Err(Stop)
}

/// Lets the stores of a thread happen, except those of the `left` latest groups. `None`: all of them.
pub fn complete(c: &mut Context<'_>, issuer: Issuer, left: Option<u32>) -> Flow {
    let committed = c.bulk.groups.get(&issuer).map_or(0, |groups| groups.committed);
    let due = |store: &Store| {
        store.transfer.issuer == issuer
            && left.is_none_or(|left| store.group.saturating_add(left) < committed)
    };
    while let Some(index) = c.bulk.stores.iter().position(due) {
        perform(c, index)?;
        c.bulk.stores.remove(index);
    }
    Ok(())
}

/// Lets one store happen, if it has not.
pub fn perform(c: &mut Context<'_>, index: usize) -> Flow {
    if std::mem::replace(&mut c.bulk.stores[index].performed, true) {
        return Ok(());
    }
    let store = c.bulk.stores[index].clone();
    move_bytes(c, &store.transfer, Some(store.reduce))
}

/// From now on a store may write: others that come near before it was waited for are in its way.
pub fn store_begins(c: &mut Context<'_>, t: &Transfer, group: u32, reduce: ReduceOp) -> Flow {
    c.race_bulk_store(t, group);
    if c.race.is_none() {
        return Ok(());
    }
    for row in t.bytes.rows().into_iter().filter(|row| row.to > row.from) {
        let (view, offset) = c.global_range(access(t, &row, true), 1)?;
        let (at, bytes) = (view.data as u64 + offset as u64, row.to - row.from);
        c.global_bulk_writes((t.pc, group, reduce != ReduceOp::None), t.issuer, at, bytes);
    }
    Ok(())
}

/// Moves the bytes of a copy: to shared memory, or from there.
fn move_bytes(c: &mut Context<'_>, t: &Transfer, store: Option<ReduceOp>) -> Flow {
    let swizzle = t.bytes.swizzle();
    let mut buffer = Vec::new();
    let mut unwritten = false;
    for row in t.bytes.rows() {
        buffer.clear();
        buffer.resize(row.bytes as usize, 0u8);
        let whole = row.to > row.from;
        match store {
            None => {
                if whole {
                    unwritten |= !read_global(c, t, &row, &mut buffer)?;
                }
                write_shared(c, t, &row, swizzle, &buffer);
            }
            Some(reduce) if whole => {
                unwritten |= !read_shared(c, t, &row, swizzle, &mut buffer);
                write_global(c, t, &row, &buffer, reduce)?;
            }
            Some(_) => {}
        }
    }
    if unwritten && c.checks_uninitialised() {
        let space = if store.is_some() { Space::Shared } else { Space::Global };
        let kind = FindingKind::UninitialisedRead { space };
        c.report(kind, t.pc, t.issuer.warp, t.issuer.lane, |_| {
            "bulk copy of bytes not all of which were written".to_string()
        });
    }
    if store.is_none() {
        c.shared.touch(t.shared - SHARED_BASE, t.bytes.shared());
    }
    Ok(())
}

fn access(t: &Transfer, row: &Row, store: bool) -> Access {
    let Issuer { warp, lane } = t.issuer;
    let bytes = row.to - row.from;
    Access { space: Space::Global, address: row.global, bytes, store, pc: t.pc, warp, lane }
}

/// Whether the bytes were written.
fn read_global(c: &mut Context<'_>, t: &Transfer, row: &Row, buffer: &mut [u8]) -> Result<bool, Stop> {
    let (view, offset) = c.global_range(access(t, row, false), 1)?;
    let bytes = (row.to - row.from) as usize;
    let part = &mut buffer[row.from as usize..row.to as usize];
    // What the barrier orders is the copy, not the warp that started it: nothing is kept of the read.
    c.global_copy_reads(t.pc, t.issuer, view.data as u64 + offset as u64, bytes as u32, Touch::Look);
    // SAFETY: `global_range` checked that these bytes exist; the allocation outlives the launch.
    unsafe {
        view.data.add(offset).copy_to_nonoverlapping(part.as_mut_ptr(), bytes);
        Ok(view.all_written || view.shadow.is_written(offset, bytes))
    }
}

fn write_global(c: &mut Context<'_>, t: &Transfer, row: &Row, buffer: &[u8], reduce: ReduceOp) -> Flow {
    let (view, offset) = c.global_range(access(t, row, true), 1)?;
    let part = &buffer[row.from as usize..row.to as usize];
    // SAFETY: `global_range` checked that these bytes exist; the allocation outlives the launch.
    unsafe {
        let at = view.data.add(offset);
        if reduce == ReduceOp::None {
            at.copy_from_nonoverlapping(part.as_ptr(), part.len());
            view.shadow.set(offset, part.len(), State::Written);
            return Ok(());
        }
        let written = view.all_written || view.shadow.is_written(offset, part.len());
        let element = match &t.bytes {
            Bytes::Box { map, .. } => Some(map.element),
            Bytes::Plain { .. } => None,
        };
        let before = c.trace.is_some().then(|| std::slice::from_raw_parts(at, part.len()).to_vec());
        add(at, part, reduce, element);
        if let Some(before) = before {
            let after = std::slice::from_raw_parts(at, part.len()).to_vec();
            trace(c, t, [part, &before, &after], operation(reduce, element));
        }
        if !written && c.checks_uninitialised() {
            let kind = FindingKind::UninitialisedRead { space: Space::Global };
            c.report(kind, t.pc, t.issuer.warp, t.issuer.lane, |_| {
                "bulk reduction into bytes not all of which were written".to_string()
            });
        }
    }
    Ok(())
}

/// Looks at sums for those that are not finite: what was added, what was there before, and after.
#[cold]
fn trace(c: &mut Context<'_>, t: &Transfer, bytes: [&[u8]; 3], operation: ReduceOp) {
    let (encoding, size) = match operation {
        ReduceOp::AddF16 => (Encoding::F16(0), 2),
        ReduceOp::AddBf16 => (Encoding::Bf16(0), 2),
        ReduceOp::AddF32 => (Encoding::F32, 4),
        ReduceOp::AddF64 => (Encoding::F64, 8),
        _ => return,
    };
    for index in 0..bytes[0].len() / size {
        let [a, memory, result] = bytes.map(|bytes| {
            let mut value = [0; 8];
            value[..size].copy_from_slice(&bytes[index * size..][..size]);
            encoding.value(u64::from_le_bytes(value))
        });
        if !result.is_finite() {
            let Issuer { warp, lane } = t.issuer;
            let (kind, lane) = (OriginKind::Overflow, lane as usize);
            let found = Found { kind, pc: t.pc, warp, lane, result, element: None };
            c.trace_sum(found, &[("a", &[a]), ("memory", &[memory])]);
        }
    }
}

/// Calls `f` with each piece of a row: its place in the row, its offset in shared memory, its length.
fn pieces(t: &Transfer, row: &Row, swizzle: TensorMapSwizzle, mut f: impl FnMut(usize, usize, usize)) {
    let start = t.shared + row.shared;
    if swizzle == TensorMapSwizzle::None {
        return f(0, (start - SHARED_BASE) as usize, row.bytes as usize);
    }
    for at in (0..row.bytes).step_by(PIECE as usize) {
        f(at as usize, (swizzle.apply(start + at) - SHARED_BASE) as usize, PIECE as usize);
    }
}

fn write_shared(c: &mut Context<'_>, t: &Transfer, row: &Row, s: TensorMapSwizzle, buffer: &[u8]) {
    let (data, shadow) = (c.shared.data(), c.shared.shadow());
    pieces(t, row, s, |at, offset, bytes| {
        // SAFETY: the range of the whole copy was checked at its issue; a swizzle stays inside it, as
        // its start is aligned to what the swizzle exchanges.
        unsafe {
            data.add(offset).copy_from_nonoverlapping(buffer[at..at + bytes].as_ptr(), bytes);
            shadow.set(offset, bytes, State::Written);
        }
    });
}

/// Whether the bytes were written.
fn read_shared(
    c: &mut Context<'_>,
    t: &Transfer,
    row: &Row,
    s: TensorMapSwizzle,
    buffer: &mut [u8],
) -> bool {
    let (data, shadow) = (c.shared.data(), c.shared.shadow());
    let mut written = true;
    pieces(t, row, s, |at, offset, bytes| {
        // SAFETY: as in `write_shared`.
        unsafe {
            data.add(offset).copy_to_nonoverlapping(buffer[at..at + bytes].as_mut_ptr(), bytes);
            written &= shadow.is_written(offset, bytes);
        }
    });
    written
}
