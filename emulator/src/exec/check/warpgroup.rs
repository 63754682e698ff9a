//! Whether the warps of a warpgroup take the same steps.

use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::state::warpgroup::Step;
use crate::report::FindingKind;

impl Context<'_> {
    /// Notes a step of a warp, which the other warps of its warpgroup must take too.
    pub fn warpgroup_step(&mut self, w: &Warp, step: Step) -> Flow {
        let Err(other) = self.warpgroups.step(w.id, step) else { return Ok(()) };
        let kernel = self.environment.kernel;
        let (line, text) = (kernel.line(other.pc), kernel.text(other.pc));
        let [a, b] = other.operands;
        self.report(FindingKind::WarpgroupDivergence, step.pc, w.id, 0, |_| {
            let [own_a, own_b] = step.operands;
            format!(
                "operands {own_a:#x} and {own_b:#x}; another warp of the warpgroup executed line \
                 {line} `{text}` with {a:#x} and {b:#x} at this point"
            )
        });
        Err(Stop)
    }
}
