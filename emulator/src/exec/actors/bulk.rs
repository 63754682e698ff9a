//! When bulk copies happen, and how: `cp.async.bulk` and its tensor and reducing forms.
//!
//! A load moves its bytes, as the schedule has it, between its issue and the completion of its
//! barrier's phase. A store reads shared memory between its issue and the first wait for its group, be it
//! `wait_group.read`, and writes global memory up to `wait_group`, or to the end of the block.

use super::reduce::{elements, reduce, reduced};
use crate::exec::check::trace::{Encoding, Found};
use crate::exec::state::boxes::{Bytes, Row};
use crate::exec::state::bulk::{Course, Issuer, Load, Store, Transfer};
use crate::exec::state::cluster::Cluster;
use crate::exec::state::context::{Access, Context, Flow, Stop};
use crate::isa::{AtomicType, Reduction};
use crate::report::FindingKind;
use crate::report::trace::OriginKind;
use crate::shadow::State;
use crate::space::Space;
use crate::tensor_map::TensorMapSwizzle;

/// Bytes of the pieces that a swizzle exchanges.
const PIECE: u32 = 16;
/// Stores of a thread that have read and not written, at most.
const MAX_READ: usize = 8;

/// Lets the loads of a barrier land whose current phase lacks nothing but bytes, until it completes; not late
/// ones.
pub fn land_awaited(c: &mut Context<'_>, barrier: u32) -> Flow {
    while c.mbarriers.awaits_bytes(barrier) {
        let awaited = |load: &Load| load.barrier == barrier && !load.late;
        let Some(index) = c.bulk.loads.iter().position(awaited) else { break };
        land(c, index)?;
    }
    Ok(())
}

/// Lets one load land.
pub fn land(c: &mut Context<'_>, index: usize) -> Flow {
    c.deeds += 1;
    let load = c.bulk.loads.remove(index);
    move_load(c, &load.transfer, load.reduce)?;
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

/// Lets the stores of a thread happen, except those of the `left` latest groups.
pub fn complete(c: &mut Context<'_>, issuer: Issuer, left: u32) -> Flow {
    while let Some(index) = c.bulk.stores.iter().position(|store| c.bulk.is_due(store, issuer, left)) {
        perform(c, index)?;
        c.bulk.stores.remove(index);
    }
    Ok(())
}

/// Lets the stores of a thread read, except those of the `left` latest groups.
pub fn complete_reads(c: &mut Context<'_>, issuer: Issuer, left: u32) -> Flow {
    for index in 0..c.bulk.stores.len() {
        let store = &c.bulk.stores[index];
        if c.bulk.is_due(store, issuer, left) {
            if matches!(store.course, Course::Issued) {
                c.bulk.stores[index].course = Course::Read(read_store(c, index)?);
            }
            c.bulk.stores[index].waited = true;
        }
    }
    c.bulk.stores.retain(|store| !(store.waited && matches!(store.course, Course::Written)));
    let is_read = |store: &Store| store.waited && store.transfer.issuer == issuer;
    while c.bulk.stores.iter().filter(|store| is_read(store)).count() > MAX_READ {
        let Some(oldest) = c.bulk.stores.iter().position(is_read) else { break };
        perform(c, oldest)?;
        c.bulk.stores.remove(oldest);
    }
    Ok(())
}

/// Lets one store happen, if it has not.
pub fn perform(c: &mut Context<'_>, index: usize) -> Flow {
    let bytes = match std::mem::replace(&mut c.bulk.stores[index].course, Course::Written) {
        Course::Written => return Ok(()),
        Course::Read(bytes) => bytes,
        Course::Issued => read_store(c, index)?,
    };
    let Store { transfer, reduce, .. } = &c.bulk.stores[index];
    let (t, how) = (transfer.clone(), *reduce);
    let mut rest = bytes.as_slice();
    for row in t.bytes.rows().into_iter().filter(Row::exists) {
        let (now, later) = rest.split_at(row.bytes as usize);
        write_global(c, &t, &row, now, how)?;
        rest = later;
    }
    Ok(())
}

/// What a store reads, of rows that have a place in global memory.
fn read_store(c: &mut Context<'_>, index: usize) -> Result<Vec<u8>, Stop> {
    let t = c.bulk.stores[index].transfer.clone();
    let swizzle = t.bytes.swizzle();
    let mut bytes = Vec::new();
    let mut written = true;
    for row in t.bytes.rows().into_iter().filter(Row::exists) {
        let start = bytes.len();
        bytes.resize(start + row.bytes as usize, 0);
        written &= read_shared(c, &t, &row, swizzle, &mut bytes[start..]);
    }
    report_unwritten(c, &t, written, Space::Shared);
    Ok(bytes)
}

/// From now on a store may write: others that come near before it was waited for are in its way.
pub fn store_begins(c: &mut Context<'_>, t: &Transfer, group: u32, how: Option<Reduction>) -> Flow {
    c.race_bulk_store(t, group);
    if c.race.is_none() {
        return Ok(());
    }
    for row in t.bytes.rows().into_iter().filter(Row::exists) {
        let (view, offset) = c.global_range(access(t, &row, true), 1)?;
        let (at, bytes) = (view.data as u64 + offset as u64, row.to - row.from);
        c.global_bulk_writes(t, (group, how.is_some()), at, bytes);
    }
    Ok(())
}

/// Moves the bytes of a load.
fn move_load(c: &mut Context<'_>, t: &Transfer, how: Option<Reduction>) -> Flow {
    let swizzle = t.bytes.swizzle();
    let mut buffer = Vec::new();
    let mut written = true;
    for row in t.bytes.rows() {
        buffer.clear();
        buffer.resize(row.bytes as usize, 0u8);
        if let Some(source) = t.source_in_shared() {
            written &= copy_from_shared(c, source, &mut buffer);
        } else if row.exists() {
            written &= read_global(c, t, &row, &mut buffer)?;
        }
        match how {
            Some(how) => reduce_shared(c, t, how, &buffer),
            None => write_shared(c, t, &row, swizzle, &buffer),
        }
    }
    let from = if t.source_in_shared().is_some() { Space::Shared } else { Space::Global };
    report_unwritten(c, t, written, from);
    c.shared.touch(c.environment.cluster.offset(t.shared), t.bytes.shared());
    Ok(())
}

fn report_unwritten(c: &mut Context<'_>, t: &Transfer, written: bool, space: Space) {
    if !written && c.checks_uninitialised() {
        let kind = FindingKind::UninitialisedRead { space };
        c.report(kind, t.pc, t.issuer.warp, t.issuer.lane, |_| {
            "bulk copy of bytes not all of which were written".to_string()
        });
    }
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
    c.global_bulk_reads(t, view.data as u64 + offset as u64, bytes as u32);
    // SAFETY: `global_range` checked that these bytes exist; the allocation outlives the launch.
    unsafe {
        view.data.add(offset).copy_to_nonoverlapping(part.as_mut_ptr(), bytes);
        Ok(view.all_written || view.shadow.is_written(offset, bytes))
    }
}

fn write_global(
    c: &mut Context<'_>,
    t: &Transfer,
    row: &Row,
    buffer: &[u8],
    how: Option<Reduction>,
) -> Flow {
    let (view, offset) = c.global_range(access(t, row, true), 1)?;
    let part = &buffer[row.from as usize..row.to as usize];
    // SAFETY: `global_range` checked that these bytes exist; the allocation outlives the launch.
    unsafe {
        let at = view.data.add(offset);
        let Some(how) = how else {
            at.copy_from_nonoverlapping(part.as_ptr(), part.len());
            view.shadow.set(offset, part.len(), State::Written);
            return Ok(());
        };
        let written = view.all_written || view.shadow.is_written(offset, part.len());
        let element = match &t.bytes {
            Bytes::Box { map, .. } => Some(map.element),
            Bytes::Plain { .. } | Bytes::Shared { .. } => None,
        };
        let before = c.trace.is_some().then(|| std::slice::from_raw_parts(at, part.len()).to_vec());
        reduce(at, part, how, element);
        if let Some(before) = before {
            let after = std::slice::from_raw_parts(at, part.len()).to_vec();
            trace(c, t, [part, &before, &after], elements(how, element).0);
        }
        report_unwritten_target(c, t, written, Space::Global);
    }
    Ok(())
}

/// Reduces bytes into shared memory.
fn reduce_shared(c: &mut Context<'_>, t: &Transfer, how: Reduction, part: &[u8]) {
    let mut before = vec![0; part.len()];
    let written = copy_from_shared(c, t.shared, &mut before);
    let after = reduced(&before, part, how);
    let offset = c.shared_offset(t.shared) as usize;
    // SAFETY: the range was checked at the issue of the copy.
    unsafe { c.shared.data().add(offset).copy_from_nonoverlapping(after.as_ptr(), after.len()) };
    report_unwritten_target(c, t, written, Space::Shared);
}

fn report_unwritten_target(c: &mut Context<'_>, t: &Transfer, written: bool, space: Space) {
    if !written && c.checks_uninitialised() {
        let kind = FindingKind::UninitialisedRead { space };
        c.report(kind, t.pc, t.issuer.warp, t.issuer.lane, |_| {
            "bulk reduction into bytes not all of which were written".to_string()
        });
    }
}

/// Looks at sums for those that are not finite: what was added, what was there before, and after.
#[cold]
fn trace(c: &mut Context<'_>, t: &Transfer, bytes: [&[u8]; 3], ty: AtomicType) {
    let (encoding, size) = match ty {
        AtomicType::F16 => (Encoding::F16(0), 2),
        AtomicType::Bf16 => (Encoding::Bf16(0), 2),
        AtomicType::F32 => (Encoding::F32, 4),
        AtomicType::F64 => (Encoding::F64, 8),
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

/// Copies bytes at a shared address; whether they were written.
fn copy_from_shared(c: &mut Context<'_>, address: u32, buffer: &mut [u8]) -> bool {
    let offset = c.shared_offset(address) as usize;
    // SAFETY: the range was checked at the issue of the copy.
    unsafe {
        c.shared.data().add(offset).copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len());
        c.shared.shadow().is_written(offset, buffer.len())
    }
}

/// Calls `f` with each piece of a row: its place in the row, its offset in shared memory, its length.
fn pieces(
    cluster: &Cluster,
    t: &Transfer,
    row: &Row,
    swizzle: TensorMapSwizzle,
    mut f: impl FnMut(usize, usize, usize),
) {
    let start = t.shared + row.shared;
    if swizzle == TensorMapSwizzle::None {
        return f(0, cluster.offset(start) as usize, row.bytes as usize);
    }
    for at in (0..row.bytes).step_by(PIECE as usize) {
        f(at as usize, cluster.offset(swizzle.apply(start + at)) as usize, PIECE as usize);
    }
}

fn write_shared(c: &mut Context<'_>, t: &Transfer, row: &Row, s: TensorMapSwizzle, buffer: &[u8]) {
    let (data, shadow) = (c.shared.data(), c.shared.shadow());
    pieces(&c.environment.cluster, t, row, s, |at, offset, bytes| {
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
    pieces(&c.environment.cluster, t, row, s, |at, offset, bytes| {
        // SAFETY: as in `write_shared`.
        unsafe {
            data.add(offset).copy_to_nonoverlapping(buffer[at..at + bytes].as_mut_ptr(), bytes);
            written &= shadow.is_written(offset, bytes);
        }
    });
    written
}
