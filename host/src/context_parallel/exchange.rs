//! Keys, values and their gradients on their way from rank to rank.

use super::communicator::Message;
use super::rows::RowSet;
use super::views::View;
use super::{ContextPass, Use};
use crate::driver::DevicePointer;
use crate::error::Result;
use crate::problem::Layout;
use kernels_gpu::abi::Dtype;

/// Rows that stand side by side here and in the whole.
pub(super) struct Run {
    /// The first one of a rank's own tensor.
    pub own: usize,
    /// The first one of the whole.
    pub whole: usize,
    pub count: usize,
}

impl ContextPass<'_> {
    /// The rank whose keys are here at a step.
    pub(super) fn source(&self, step: usize) -> usize {
        (self.group.rank() + self.group.ranks() - step) % self.group.ranks()
    }

    /// Queues, beside the kernels, what sends `own` to the next rank and receives `next` from the one before.
    pub(super) fn pass_on(&self, own: &[View], next: &[View]) -> Result<()> {
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let messages = |views: &[View], peer: usize| -> Vec<Message> {
            let message =
                |view: &View| Message { peer, pointer: view.pointer, bytes: view.bytes() as usize };
            views.iter().map(message).filter(|message| message.bytes > 0).collect()
        };
        let sends = messages(own, (rank + 1) % ranks);
        let receives = messages(next, (rank + ranks - 1) % ranks);
        // SAFETY: memory of this pass, or tensors of the caller of `forward` or `backward`; what is queued on
        // the stream beside the kernels is waited for.
        unsafe {
            self.group.communicator.exchange(&self.group.device, &sends, &receives, self.group.beside)
        }
    }

    /// Queues, beside the kernels, what sends some rows of f32 tensors to a rank, and receives some of one.
    pub(super) fn exchange_rows(
        &self,
        (own, to, sent): (&[View; 2], usize, &RowSet),
        (coming, from, received): (&[View; 2], usize, &RowSet),
    ) -> Result<()> {
        let messages = |views: &[View; 2], peer: usize, rows: &RowSet| -> Vec<Message> {
            let mut messages = Vec::new();
            for view in views {
                let runs: Vec<Run> = rows
                    .ranges()
                    .map(|range| Run { own: range.start, whole: range.start, count: range.len() })
                    .collect();
                messages.extend(messages_of(view, peer, &runs, Side::Own));
            }
            messages
        };
        let (sends, receives) = (messages(own, to, sent), messages(coming, from, received));
        // SAFETY: memory of this pass; what is queued on the stream beside the kernels is waited for.
        unsafe {
            self.group.communicator.exchange(&self.group.device, &sends, &receives, self.group.beside)
        }
    }

    /// k or v as they have come from another rank at a step; this rank's own at step 0.
    pub(super) fn keys_at(&mut self, own: [View; 2], step: usize) -> Result<[View; 2]> {
        if step == 0 {
            return Ok(own);
        }
        let rows = self.valid.key_rows_of(self.source(step));
        let place = [Use::Keys(step % 2), Use::Values(step % 2)];
        self.room_for(place, own, rows)
    }

    /// Memory for dense tensors as these, of `rows` rows, and no less than that for the keys of any rank.
    pub(super) fn room_for(
        &mut self,
        place: [Use; 2],
        views: [View; 2],
        rows: usize,
    ) -> Result<[View; 2]> {
        let most = (0..self.group.ranks()).map(|rank| self.valid.key_rows_of(rank)).max().unwrap_or(0);
        let mut placed = views.map(|view| with_rows(&view, rows));
        for (for_what, view) in place.into_iter().zip(&mut placed) {
            let bytes = with_rows(view, rows.max(most)).bytes();
            view.pointer = self.room.of(&self.group.device, for_what, bytes)?;
        }
        Ok(placed)
    }

    /// The rows of k that a rank has.
    pub(super) fn runs(&self, rank: usize) -> Vec<Run> {
        let offsets = self.valid.lengths().keys;
        let layout = self.group.sharing.layout;
        let mut own = 0;
        let mut runs = Vec::new();
        for chunk in 0..layout.chunks_per_rank() {
            for pair in offsets.windows(2) {
                let chunk = layout.chunks(self.group.ranks(), rank, pair[1] - pair[0])[chunk];
                runs.push(Run { own, whole: pair[0] + chunk.first, count: chunk.rows });
                own += chunk.rows;
            }
        }
        runs
    }
}

/// A message for each run of rows of each batch.
pub(super) fn messages_of(view: &View, peer: usize, runs: &[Run], side: Side) -> Vec<Message> {
    let row_bytes = view.layout.strides[1] as usize * view.dtype.bytes() as usize;
    let mut messages = Vec::new();
    for batch in 0..view.layout.shape[0] {
        for run in runs {
            let first = match side {
                Side::Own => run.own,
                Side::Whole => run.whole,
            };
            let row = batch * view.layout.shape[1] + first;
            let pointer = view.pointer + (row * row_bytes) as DevicePointer;
            messages.push(Message { peer, pointer, bytes: run.count * row_bytes });
        }
    }
    messages.retain(|message| message.bytes > 0);
    messages
}

/// Whether a tensor holds the rows of one rank, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Own,
    Whole,
}

/// A dense tensor as this one, of other rows.
pub(super) fn with_rows(view: &View, rows: usize) -> View {
    let [batches, _, heads, columns] = view.layout.shape;
    View { layout: Layout::bshd([batches, rows, heads, columns]), ..*view }
}

/// A dense f32 tensor of the shape of this one.
pub(super) fn in_f32(view: &View) -> View {
    View { layout: Layout::bshd(view.layout.shape), dtype: Dtype::F32, ..*view }
}
