//! The two streams of a rank's kernels. Kernels of one fill what those of the other leave idle: the last blocks
//! of a kernel have a part of the device to themselves, and a rank has several kernels for each pass.

use super::ContextPass;
use crate::driver::{Mark, Stream};
use crate::error::Result;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Has the device first: the longer kernels of a forward pass, and those of a backward pass whose results
    /// other ranks wait for.
    Ahead,
    /// The caller's stream.
    Behind,
}

/// The streams of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes {
    ahead: Stream,
    behind: Stream,
}

impl Lanes {
    /// The stream of a lane.
    pub fn stream(&self, lane: Lane) -> Stream {
        match lane {
            Lane::Ahead => self.ahead,
            Lane::Behind => self.behind,
        }
    }

    /// Both.
    pub fn both(&self) -> [Stream; 2] {
        [self.ahead, self.behind]
    }
}

impl ContextPass<'_> {
    /// The lanes of a pass that is queued on `stream`: what is queued there already comes before all of it.
    pub(super) fn fork(&self, stream: Stream) -> Result<Lanes> {
        let ahead = self.group.ahead;
        self.order(stream, ahead)?;
        Ok(Lanes { ahead, behind: stream })
    }

    /// What is queued on the caller's stream from now on comes behind all of the pass, what is sent and
    /// received included.
    pub(super) fn join(&self, lanes: Lanes) -> Result<()> {
        self.order(lanes.ahead, lanes.behind)?;
        self.order(self.group.beside, lanes.behind)
    }

    /// The points behind all that is queued on the lanes.
    pub(super) fn marks(&self, lanes: Lanes) -> Result<[Mark; 2]> {
        let driver = self.group.device.driver();
        Ok([driver.mark(lanes.ahead)?, driver.mark(lanes.behind)?])
    }

    /// What is sent and received from now on waits for these points of the lanes.
    pub(super) fn hold_back_exchange(&self, before: &[Mark; 2]) -> Result<()> {
        let driver = self.group.device.driver();
        before.iter().try_for_each(|mark| driver.wait_for_mark(self.group.beside, mark))
    }

    /// What is queued on the lanes from now on waits for a mark.
    pub(super) fn hold_back(&self, lanes: Lanes, mark: &Mark) -> Result<()> {
        let driver = self.group.device.driver();
        lanes.both().into_iter().try_for_each(|stream| driver.wait_for_mark(stream, mark))
    }
}
