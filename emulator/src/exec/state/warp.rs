//! A warp: registers, and which of its lanes are where.
//!
//! A warp that has not diverged is one [`Fragment`]. A branch that lanes decide differently splits
//! it in
//! two, with a [`Record`] of who is to meet at the branch's immediate post-dominator. A fragment that
//! gets there hands its lanes to the record; the last one to come goes on with all of them. Lanes that
//! exit leave every record they are awaited in. Fragments run independently, so that lanes may wait for
//! each other across a divergence. Meeting is a convenience, not a duty: when the lanes that are
//! awaited
//! run for long, perhaps because they spin for something that the waiting ones have yet to do, these
//! go on without them.

use super::calls::Call;
use super::copies::CopyQueue;
use super::flight::Flight;
use super::poison::Poison;
use super::wgmma::WgmmaQueue;
use crate::exec::values::registers::Registers;
use crate::isa::{Code, NO_RECONVERGENCE};
use crate::memory::local::LocalMemory;

/// The meeting point of lanes that return from a call: no instruction, as the call may be made again
/// meanwhile.
pub const RETURNED: u32 = u32::MAX - 1;
/// No record.
pub const NONE: u32 = u32::MAX;

/// What a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Ready,
    /// A block-wide barrier by its id.
    Barrier(u32),
    /// The barrier of the cluster.
    Cluster,
    /// The phase of a memory barrier, by its address.
    Phase(u32),
    /// Registers, at `setmaxnreg`.
    Registers,
    /// The end of the grid before, at `griddepcontrol.wait`.
    Grid,
    /// Other lanes of the warp, at a warp-wide instruction that the lanes of the mask have reached.
    Lanes(u32),
}

/// Lanes of a warp that run together.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    /// The next instruction.
    pub pc: u32,
    /// The lanes.
    pub mask: u32,
    /// The record they are awaited in.
    pub record: u32,
    /// What they wait for.
    pub state: State,
}

/// Lanes that are to meet again.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Where; of a call, [`RETURNED`].
    pc: u32,
    /// Where they go on then.
    resume: u32,
    /// The number of the call that they return from; [`NONE`] of a branch.
    call: u32,
    /// Who: 0 marks a free record.
    need: u32,
    /// Who is there already.
    got: u32,
    /// The record in which they are awaited after that.
    parent: u32,
}

/// A warp.
#[derive(Debug)]
pub struct Warp {
    /// Its number in the cluster.
    pub id: u32,
    /// Its registers.
    pub registers: Registers,
    /// Its lanes, by where they are.
    pub fragments: Vec<Fragment>,
    records: Vec<Record>,
    /// Calls that have not ended, by number.
    pub calls: Vec<Option<Box<Call>>>,
    /// Bytes of the stack of local memory that each lane uses, of kernels with `alloca`.
    pub stack: [u32; 32],
    /// Lanes that have not exited.
    pub live: u32,
    /// Local memory of its lanes.
    pub local: LocalMemory,
    /// Its asynchronous copies on their way.
    pub copies: CopyQueue,
    /// Its multiplications on their way.
    pub wgmma: WgmmaQueue,
    /// Its registers that multiplications use, if that is checked.
    pub flight: Option<Box<Flight>>,
    /// Lanes that wrote each watched register, if that is checked and there are any.
    pub watched: Option<Box<[u32]>>,
    /// Its registers with values that are not defined, once there are any.
    pub poison: Option<Box<Poison>>,
    /// What that was the last time, with nothing left in it: it is large.
    spare: Option<Box<Poison>>,
    /// Instructions since it was looked whether there still are any.
    pub looks: u32,
    /// The instruction being executed, for reports.
    pub pc: u32,
    /// Instructions executed while lanes waited at a meeting point.
    stalled: u64,
    /// The strong access whose result it asked for last, and how often in a row.
    asked: (u32, u32),
    /// Lanes that asked in vain what only their block can change.
    pub asking: u32,
}

/// Instructions after which waiting lanes give up the others: many turns, as a turn may have begun long
/// before anybody waited.
const PATIENCE: u64 = 1 << 16;
/// Instructions that a loop which waits for others counts for, each time that it is found to be one.
pub const SPIN: u64 = PATIENCE / 8;
/// The same, of one that asks for a phase of a memory barrier, each time that it does.
pub const ASK: u64 = PATIENCE / 1024;

/// How often in a row an instruction asks for what others write until it counts as a loop that waits.
const SPINS: u32 = 32;

impl Warp {
    /// A warp at the start of a kernel.
    pub fn new(id: u32, registers: Registers, live: u32, local_bytes: usize) -> Self {
        let local = LocalMemory::new(local_bytes);
        let copies = CopyQueue::default();
        let mut warp = Warp {
            id,
            registers,
            fragments: Vec::new(),
            records: Vec::new(),
            calls: Vec::new(),
            stack: [0; 32],
            live,
            local,
            copies,
            wgmma: WgmmaQueue::default(),
            flight: None,
            watched: None,
            poison: None,
            spare: None,
            looks: 0,
            pc: 0,
            stalled: 0,
            asked: (0, 0),
            asking: 0,
        };
        warp.restart(live);
        warp
    }

    /// Takes what is known of registers with values that are not defined, or begins with nothing.
    pub fn take_poison(&mut self, code: &Code) -> Box<Poison> {
        let known = self.poison.take().or_else(|| self.spare.take());
        known.unwrap_or_else(|| Box::new(Poison::new(code)))
    }

    /// Nothing is left of such values.
    pub fn end_poison(&mut self, mut poison: Box<Poison>) {
        poison.forget_origins();
        self.spare = Some(poison);
    }

    /// Puts all lanes at the start, for the next block. Registers are the caller's business.
    pub fn restart(&mut self, live: u32) {
        self.live = live;
        self.fragments.clear();
        self.records.clear();
        self.calls.clear();
        self.stack = [0; 32];
        self.stalled = 0;
        self.asked = (0, 0);
        self.asking = 0;
        self.copies.clear();
        self.wgmma.clear();
        if let Some(flight) = &mut self.flight {
            flight.clear();
        }
        if let Some(watched) = &mut self.watched {
            watched.fill(0);
        }
        self.poison = None;
        self.local.reset();
        if live != 0 {
            self.fragments.push(Fragment { pc: 0, mask: live, record: NONE, state: State::Ready });
        }
    }

    /// Where a fragment's lanes are awaited.
    pub fn meeting_point(&self, record: u32) -> u32 {
        if record == NONE { NO_RECONVERGENCE } else { self.records[record as usize].pc }
    }

    /// The record for lanes that split at a branch with this reconvergence point.
    pub fn split(&mut self, point: u32, mask: u32, parent: u32) -> u32 {
        // Without a point of their own, or with the one where they are awaited anyway, nothing is
        // added.
        if point == NO_RECONVERGENCE || point == self.meeting_point(parent) {
            return parent;
        }
        self.add(Record { pc: point, resume: point, call: NONE, need: mask, got: 0, parent })
    }

    fn add(&mut self, record: Record) -> u32 {
        match self.records.iter().position(|record| record.need == 0) {
            Some(free) => {
                self.records[free] = record;
                free as u32
            }
            None => {
                self.records.push(record);
                self.records.len() as u32 - 1
            }
        }
    }

    /// Lanes make a call, from which they go on at `resume`; their record until then.
    pub fn begin_call(&mut self, call: Call, resume: u32, mask: u32, parent: u32) -> u32 {
        let number = match self.calls.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.calls.push(None);
                self.calls.len() - 1
            }
        };
        self.calls[number] = Some(Box::new(call));
        self.add(Record { pc: RETURNED, resume, call: number as u32, need: mask, got: 0, parent })
    }

    /// The record of the call that lanes are in, and its number, if they are in any.
    pub fn call_of(&self, mut record: u32) -> Option<(u32, u32)> {
        while record != NONE {
            let Record { call, parent, .. } = self.records[record as usize];
            if call != NONE {
                return Some((record, call));
            }
            record = parent;
        }
        None
    }

    /// Lanes that return are no longer awaited on the way to the record of their call.
    pub fn leave(&mut self, mask: u32, mut record: u32, until: u32) {
        while record != until && record != NONE {
            record = self.forget(mask, record);
        }
    }

    /// Where lanes go on behind a meeting point.
    pub fn resume(&self, record: u32) -> u32 {
        self.records[record as usize].resume
    }

    /// Lanes reach their meeting point. If they are the last, all of them and their next record.
    pub fn arrive(&mut self, record: u32, mask: u32) -> Option<(u32, u32)> {
        let meeting = &mut self.records[record as usize];
        meeting.got |= mask;
        if meeting.got != meeting.need {
            return None;
        }
        let (result, call) = ((meeting.need, meeting.parent), meeting.call);
        meeting.need = 0;
        self.stalled = 0;
        self.end_call(call);
        Some(result)
    }

    /// Notes that the instruction being executed asks for what others may have written; whether it does so
    /// again and again.
    pub fn asks_again(&mut self) -> bool {
        let (pc, times) = self.asked;
        let times = if pc == self.pc { times + 1 } else { 1 };
        self.asked = (self.pc, times % SPINS);
        times == SPINS
    }

    /// Notes that the instruction being executed asked lanes' question in vain, which only their block can
    /// answer.
    pub fn asks_in_vain(&mut self, lanes: u32) {
        self.asked = (self.pc, 0);
        self.asking |= lanes;
    }

    /// The instruction that asked last for what others have to write or to complete.
    pub fn asked_at(&self) -> u32 {
        self.asked.0
    }

    /// Whether all lanes that could go on asked in vain.
    pub fn only_asks(&self) -> bool {
        let ready = self.fragments.iter().filter(|fragment| fragment.state == State::Ready);
        ready.fold(0, |lanes, fragment| lanes | fragment.mask) & !self.asking == 0
    }

    /// Notes that a fragment ran for so long without ending, and lets lanes that have waited at a
    /// meeting
    /// point for too long go on.
    pub fn stall(&mut self, instructions: u64) {
        if self.records.iter().all(|record| record.need == 0 || record.got == 0) {
            return;
        }
        self.stalled += instructions;
        if self.stalled < PATIENCE {
            return;
        }
        self.stalled = 0;
        for record in &mut self.records {
            if record.need != 0 && record.got != 0 {
                let Record { resume, got, parent, .. } = *record;
                record.need &= !got;
                record.got = 0;
                self.fragments.push(Fragment {
                    pc: resume,
                    mask: got,
                    record: parent,
                    state: State::Ready,
                });
            }
        }
    }

    /// Lanes are no longer awaited in a record. Those that waited only for them go on; the next record.
    fn forget(&mut self, mask: u32, record: u32) -> u32 {
        let meeting = &mut self.records[record as usize];
        let was_awaited = meeting.need != 0;
        meeting.need &= !mask;
        let Record { resume, call, need, got, parent, .. } = *meeting;
        if need != 0 && need == got {
            meeting.need = 0;
            self.fragments.push(Fragment {
                pc: resume,
                mask: need,
                record: parent,
                state: State::Ready,
            });
        }
        if was_awaited && (need == 0 || need == got) {
            self.end_call(call);
        }
        parent
    }

    fn end_call(&mut self, call: u32) {
        if call != NONE {
            self.calls[call as usize] = None;
        }
    }

    /// Lanes end. Those that waited only for them go on as new fragments; waiting lanes look again.
    pub fn exit(&mut self, mask: u32, mut record: u32) {
        self.live &= !mask;
        while record != NONE {
            record = self.forget(mask, record);
        }
        for fragment in &mut self.fragments {
            if matches!(fragment.state, State::Lanes(_)) {
                fragment.state = State::Ready;
            }
        }
    }
}
