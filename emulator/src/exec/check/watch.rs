//! Reads of registers that nothing wrote: from then on their values are followed.

use crate::exec::state::context::Context;
use crate::exec::state::warp::Warp;
use crate::isa::{FLAG_NEGATE_SOURCE, Touch};

impl Context<'_> {
    /// Looks at the watched registers that an instruction touches: all lanes that came to it, and those that
    /// execute it.
    #[inline(always)]
    pub fn watch_touch(&mut self, w: &mut Warp, pc: u32, all: u32, executing: u32) {
        if !self.environment.code().watch.of(pc).is_empty() {
            self.watch_touch_slowly(w, pc, all, executing);
        }
    }

    #[inline(never)]
    fn watch_touch_slowly(&mut self, w: &mut Warp, pc: u32, all: u32, executing: u32) {
        let code = self.environment.code();
        let i = &code.instructions[pc as usize];
        let Some(watched) = &mut w.watched else { return };
        let registers = &w.registers;
        let holds = || registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
        let mut missing = Vec::new();
        for &(register, touch) in code.watch.of(pc) {
            let written = &mut watched[register as usize];
            let reads = match touch {
                Touch::Read => executing,
                Touch::Guard => all,
                Touch::Chosen | Touch::Accumulator => executing & holds(),
                Touch::NotChosen => executing & !holds(),
                // Lane 8j + r has the address of row r of matrix j.
                Touch::Address if i.count < 4 => executing & ((1 << (8 * i.count)) - 1),
                Touch::Address => executing,
                Touch::Write => {
                    *written |= executing;
                    continue;
                }
            };
            if reads & !*written != 0 {
                missing.push((register, reads & !*written));
                *written |= reads;
            }
        }
        for (register, lanes) in missing {
            self.poison_register(w, register, pc, lanes);
        }
    }
}
