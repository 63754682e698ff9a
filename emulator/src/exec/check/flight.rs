//! Whether instructions leave registers alone that unfinished multiplications use.

use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::flight::Hazards;
use crate::exec::state::warp::Warp;
use crate::isa::{FLAG_OPTIONAL, Instruction, WGMMA_K, WgmmaShape};
use crate::report::FindingKind;

impl Context<'_> {
    /// Looks at what an instruction touches while multiplications may be in flight.
    #[inline(always)]
    pub fn flight_touch(&mut self, w: &mut Warp, pc: u32, mask: u32) {
        let Some(flight) = &mut w.flight else { return };
        if let Some(accumulates) = flight.touch(self.environment.code(), pc) {
            let lane = mask.trailing_zeros() & 31;
            self.report(FindingKind::RegisterInFlight, pc, w.id, lane, |_| {
                let what = if accumulates { "accumulates into" } else { "reads A from" };
                format!("a wgmma that {what} a register of this instruction has not been waited for")
            });
        }
    }

    /// Notes the registers of a multiplication.
    pub fn flight_issue(&mut self, w: &mut Warp, i: &Instruction, group: u32) {
        let Some(flight) = &mut w.flight else { return };
        let lists = &self.environment.kernel.data.code.lists;
        let columns = 2 * WgmmaShape::decode(i.e).accumulators() as u32;
        let accumulators = &lists[i.d as usize..][..columns as usize / 2];
        let from_registers = i.has(FLAG_OPTIONAL);
        let operands = if from_registers { &lists[i.a as usize..][..WGMMA_K / 4] } else { &[][..] };
        let Hazards { changes_shape, unfenced, overlaps } =
            flight.issue(accumulators, operands, columns, group);
        if changes_shape {
            self.report(FindingKind::MissingWgmmaFence, w.pc, w.id, 0, |_| {
                "a wgmma of another shape accumulates into registers of this one, with no wgmma.fence between"
                    .to_string()
            });
        } else if unfenced {
            self.report(FindingKind::MissingWgmmaFence, w.pc, w.id, 0, |_| {
                "registers of this wgmma were used after the last wgmma.fence, or there was none"
                    .to_string()
            });
        }
        if overlaps {
            self.report(FindingKind::RegisterInFlight, w.pc, w.id, 0, |_| {
                "a register that an unfinished wgmma accumulates into is used as A, or the reverse"
                    .to_string()
            });
        }
    }

    /// Groups up to this one are complete.
    pub fn flight_done(&mut self, w: &mut Warp, group: u32) {
        if let Some(flight) = &mut w.flight {
            flight.complete(group);
        }
    }

    /// A warp ends, perhaps before its multiplications.
    pub fn flight_exit(&mut self, w: &mut Warp) -> Flow {
        let Some(flight) = &w.flight else { return Ok(()) };
        if flight.is_busy() {
            self.report(FindingKind::RegisterInFlight, w.pc, w.id, 0, |_| {
                "the warp ends before a wgmma that has not been waited for".to_string()
            });
            return Err(Stop);
        }
        Ok(())
    }
}
