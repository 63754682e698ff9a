//! `griddepcontrol`: where grids that run together start, and wait for each other.

use super::{Event, Next, Runner};
use crate::exec::state::warp::State;

impl Runner<'_, '_> {
    /// `griddepcontrol.launch_dependents`: if the next grid can start now, the cluster lets it.
    pub fn allow_next_grid(&mut self) -> Next {
        let is_last = self.context.environment.place + 1 == self.context.environment.chain.grids.len();
        let rank = self.context.environment.cluster.rank(self.warp.id);
        if !self.context.allow_next_grid(1 << rank) || is_last {
            return Next::Advance;
        }
        self.context.lets_next_grid_start = true;
        self.pc += 1;
        self.park(State::Ready);
        Next::Leave(Event::Yield)
    }

    /// `griddepcontrol.wait`: all that the grids before did is known after it.
    pub fn await_grid(&mut self, m: u32) -> Next {
        let grid = self.context.environment.grid();
        grid.note_wait();
        if self.context.grid_before_has_ended() {
            if let Some(race) = &mut self.context.race {
                race.grids_ended(self.warp.id, grid.actors.first);
            }
            return Next::Advance;
        }
        self.context.awaits_grid = true;
        let rest = self.mask & !m;
        self.mask = m;
        self.park(State::Grid);
        if rest != 0 {
            self.mask = rest;
            self.pc += 1;
            self.park(State::Ready);
        }
        Next::Leave(Event::Yield)
    }
}
