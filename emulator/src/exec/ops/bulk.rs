//! `cp.async.bulk`, `cp.reduce.async.bulk` and their groups, lane after lane.

use crate::exec::actors::bulk;
use crate::exec::actors::reduce::elements;
use crate::exec::check::window::addresses;
use crate::exec::state::boxes::Bytes;
use crate::exec::state::bulk::{Course, Issuer, Load, Store, Transfer};
use crate::exec::state::cluster::in_block;
use crate::exec::state::context::{Access, Context, Flow, Stop};
use crate::exec::state::mbarrier::MBARRIER_BYTES;
use crate::exec::state::steps;
use crate::exec::state::warp::Warp;
use crate::exec::values::registers::lanes;
use crate::isa::{BulkOp, FLAG_CLUSTER, FLAG_OPTIONAL, Instruction, Op, Reduction, bulk_list};
use crate::memory::Refusal;
use crate::options::Schedule;
use crate::report::FindingKind;
use crate::shadow::race::Copying;
use crate::space::{RANK_SHIFT, Space};
use crate::tensor_map::{MAP_BYTES, MAX_RANK, TensorMap};
use std::rc::Rc;

/// Alignment of a tensor map.
const MAP_ALIGN: u32 = 64;
/// Alignment of a box in shared memory.
const BOX_ALIGN: u32 = 128;
/// Alignment and unit of a plain copy.
const PLAIN_ALIGN: u32 = 16;

/// Every instruction of the family.
pub fn run(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: BulkOp) -> Flow {
    for lane in lanes(m) {
        let issuer = Issuer { warp: w.id, lane: lane as u32 };
        match op {
            BulkOp::Load | BulkOp::LoadShared | BulkOp::LoadTensor => load(c, w, i, issuer)?,
            BulkOp::Store | BulkOp::StoreTensor => store(c, w, i, issuer)?,
            BulkOp::Commit => {
                let groups = c.bulk.groups.entry(issuer).or_default();
                groups.committed += 1;
                groups.open = 0;
            }
            BulkOp::WaitGroup => {
                bulk::complete(c, issuer, i.immediate as u32)?;
                c.race_bulk_complete(issuer, i.immediate as u32, true);
            }
            BulkOp::WaitGroupRead => {
                bulk::complete_reads(c, issuer, i.immediate as u32)?;
                c.race_bulk_complete(issuer, i.immediate as u32, false);
            }
        }
    }
    Ok(())
}

/// An operand that the instruction does not allow.
fn invalid(c: &mut Context<'_>, w: &Warp, issuer: Issuer, message: String) -> Stop {
    c.report(FindingKind::InvalidOperand, w.pc, issuer.warp, issuer.lane, |_| message);
    Stop
}

/// Where a load may go.
fn target_space(i: &Instruction) -> Space {
    if i.has(FLAG_CLUSTER) { Space::Cluster } else { Space::Shared }
}

/// What the operands of one lane say.
fn transfer(
    c: &mut Context<'_>,
    w: &Warp,
    i: &Instruction,
    issuer: Issuer,
    store: bool,
) -> Result<Transfer, Stop> {
    let lane = issuer.lane as usize;
    let Instruction { op, count, .. } = *i;
    let lists = &c.environment.kernel.data.code.lists;
    let rows = &lists[i.d as usize + bulk_list::ROWS..][..usize::from(count)];
    let values: Vec<u32> = rows.iter().map(|&row| w.registers.row32(row)[lane]).collect();
    let pointer = w.registers.row64(i.b)[lane];
    let tensor = matches!(op, Op::Bulk(BulkOp::LoadTensor | BulkOp::StoreTensor));
    let (bytes, align) = if tensor {
        let map = Rc::new(read_map(c, w, issuer, pointer)?);
        if map.dims.len() != values.len() {
            let (rank, got) = (map.dims.len(), values.len());
            let message = format!("{got} coordinates into a tensor of {rank} dimensions");
            return Err(invalid(c, w, issuer, message));
        }
        let mut first = [0; MAX_RANK];
        values.iter().zip(&mut first).for_each(|(&value, first)| *first = value as i32);
        (Bytes::Box { map, first }, BOX_ALIGN)
    } else {
        let address = pointer.wrapping_add(i64::from(i.e as i32) as u64);
        let bytes = values[0];
        if bytes == 0 || !bytes.is_multiple_of(PLAIN_ALIGN) {
            let message = format!("a bulk copy of {bytes} bytes, no positive multiple of {PLAIN_ALIGN}");
            return Err(invalid(c, w, issuer, message));
        }
        let Issuer { warp, lane } = issuer;
        let space = if op == Op::Bulk(BulkOp::LoadShared) { Space::Shared } else { Space::Global };
        let at = Access { space, address, bytes, store, pc: w.pc, warp, lane };
        if space == Space::Shared {
            let address = c.shared_address(at, PLAIN_ALIGN)?;
            (Bytes::Shared { address, bytes }, PLAIN_ALIGN)
        } else {
            c.global_range(at, PLAIN_ALIGN)?;
            (Bytes::Plain { address, bytes }, PLAIN_ALIGN)
        }
    };
    let at = Access {
        space: target_space(i),
        address: addresses(w, i)[lane],
        bytes: bytes.shared(),
        store: !store,
        pc: w.pc,
        warp: issuer.warp,
        lane: issuer.lane,
    };
    let shared = c.shared_address(at, align)?;
    let known = c.known_to_copy(issuer.warp);
    Ok(Transfer { bytes, shared, pc: w.pc, issuer, known })
}

/// The tensor map at a generic address.
fn read_map(c: &mut Context<'_>, w: &Warp, issuer: Issuer, address: u64) -> Result<TensorMap, Stop> {
    let Issuer { warp, lane } = issuer;
    let space = Space::of_address(address).unwrap_or(Space::Generic);
    let bytes = MAP_BYTES as u32;
    let at = Access { space, address, bytes, store: false, pc: w.pc, warp, lane };
    let words = c.read_map(at, MAP_ALIGN)?;
    TensorMap::decode(&words).map_err(|error| {
        let message = format!("at {address:#x}: {error}");
        c.report(FindingKind::InvalidTensorMap, w.pc, warp, lane, |_| message);
        Stop
    })
}

fn load(c: &mut Context<'_>, w: &Warp, i: &Instruction, issuer: Issuer) -> Flow {
    let transfer = transfer(c, w, i, issuer, false)?;
    let lists = &c.environment.kernel.data.code.lists;
    let list = &lists[i.d as usize..];
    let lane = issuer.lane as usize;
    let reduce = Reduction::decode(list[bulk_list::BARRIER_WIDE] >> 1);
    let base = match list[bulk_list::BARRIER_WIDE] & 1 {
        0 => u64::from(w.registers.row32(i.c)[lane].wrapping_add(list[bulk_list::FIRST])),
        _ => w.registers.row64(i.c)[lane].wrapping_add(i64::from(list[bulk_list::FIRST] as i32) as u64),
    };
    let (bytes, space) = (MBARRIER_BYTES, target_space(i));
    let Issuer { warp, lane } = issuer;
    let at = Access { space, address: base, bytes, store: true, pc: w.pc, warp, lane };
    let barrier = c.shared_address(at, MBARRIER_BYTES)?;
    let own = c.environment.cluster.rank(warp);
    if i.has(FLAG_OPTIONAL) {
        let row = list[bulk_list::ROWS + usize::from(i.count)];
        let mask = w.registers.row32(row)[lane as usize] & 0xffff;
        let blocks = c.environment.cluster.blocks;
        if mask == 0 || u64::from(mask) >> blocks != 0 {
            let message = match blocks {
                1 => format!("a copy to blocks {mask:#x} of a cluster of one block"),
                _ => format!("a copy to blocks {mask:#x} of a cluster of {blocks} blocks"),
            };
            return Err(invalid(c, w, issuer, message));
        }
        // To each block at the same places in its own shared memory.
        for rank in lanes(mask) {
            let rank = rank as u32;
            let place = |address: u32| rank << RANK_SHIFT | in_block(address);
            if rank != own && c.remote_access((w.pc, warp, lane), rank) {
                let (at, address) =
                    (Access { space: Space::Shared, ..at }, u64::from(place(transfer.shared)));
                return c.refuse(Access { address, ..at }, Refusal::Ended);
            }
            let shared = place(transfer.shared);
            issue(c, w, Transfer { shared, ..transfer.clone() }, place(barrier), reduce)?;
        }
        return Ok(());
    }
    if barrier >> RANK_SHIFT != transfer.shared >> RANK_SHIFT {
        let message = format!(
            "a copy to {:#x} that completes at an mbarrier of another block, at {barrier:#x}",
            transfer.shared
        );
        return Err(invalid(c, w, issuer, message));
    }
    issue(c, w, transfer, barrier, reduce)
}

/// A load to one block that completes at a barrier of that.
fn issue(
    c: &mut Context<'_>,
    w: &Warp,
    transfer: Transfer,
    barrier: u32,
    reduce: Option<Reduction>,
) -> Flow {
    let Issuer { warp, lane } = transfer.issuer;
    if c.mbarriers.get(barrier).is_none() {
        let message = format!("there is no mbarrier at {barrier:#x}: it was not initialised");
        c.report(FindingKind::MbarrierMisuse, w.pc, warp, lane, |_| message);
        return Err(Stop);
    }
    count(c, &transfer);
    c.race_mbarrier_copied_to(w, lane, barrier);
    c.region_bulk(w, &transfer);
    let copying = if reduce.is_some() { Copying::Reduces } else { Copying::Writes };
    c.race_bulk_load(&transfer, barrier, copying);
    let late = c.draws_late();
    c.bulk.loads.push(Load { transfer, barrier, reduce, late });
    c.mbarriers.woken.push(barrier);
    if c.environment.options.schedule == Schedule::Eager {
        bulk::land(c, c.bulk.loads.len() - 1)?;
    }
    Ok(())
}

/// Counts a copy that begins.
fn count(c: &mut Context<'_>, transfer: &Transfer) {
    c.statistics.async_copies += 1;
    c.more_steps += steps::BULK + u64::from(transfer.bytes.shared()) / steps::BULK_BYTES;
}

fn store(c: &mut Context<'_>, w: &Warp, i: &Instruction, issuer: Issuer) -> Flow {
    let transfer = transfer(c, w, i, issuer, true)?;
    let number = c.environment.kernel.data.code.lists[i.d as usize + bulk_list::FIRST];
    let reduce = Reduction::decode(number);
    if let (Some(how), Bytes::Box { map, .. }) = (reduce, &transfer.bytes)
        && !how.op.is_of(elements(how, Some(map.element)).0)
    {
        let message = format!("{:?} of elements of type {:?} in bulk", how.op, map.element);
        return Err(invalid(c, w, issuer, message));
    }
    let groups = c.bulk.groups.entry(issuer).or_default();
    groups.open += 1;
    let group = groups.committed;
    count(c, &transfer);
    c.region_bulk(w, &transfer);
    bulk::store_begins(c, &transfer, group, reduce)?;
    c.bulk.stores.push(Store { transfer, reduce, group, course: Course::Issued, waited: false });
    if c.environment.options.schedule == Schedule::Eager {
        bulk::perform(c, c.bulk.stores.len() - 1)?;
    }
    Ok(())
}
