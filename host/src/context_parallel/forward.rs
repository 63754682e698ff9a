//! The forward pass of a rank.

use super::schedule::Piece;
use super::sharing::ContextExchange;
use super::views::{PartPlace, View, of_part};
use super::{ContextPass, Use};
use crate::attention::launch_forward;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;
use crate::plan::{ForwardPointers, PartialForward, ScorePointers, plan_forward_partial};

/// What is to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Kernels.
    Compute,
    /// What is sent to other ranks, and what is done with what has come from them.
    Send,
}

impl ContextPass<'_> {
    /// Queues one forward pass on `stream`. All ranks call it together; it waits for them on the host, but
    /// not for kernels.
    ///
    /// # Errors
    /// Everything that [`crate::attention::forward`] refuses, [`Error::Peer`](crate::Error::Peer),
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), and errors of the driver.
    ///
    /// # Safety
    /// As for [`crate::attention::forward`], for the rank's own tensors, until
    /// [`ContextParallel::wait`](super::ContextParallel::wait) or the same on the caller's side; this pass
    /// is not used on another stream before that.
    pub unsafe fn forward(&mut self, pointers: &ForwardPointers, stream: Stream) -> Result<()> {
        let local = self.valid.local.problem;
        self.check(pointers)?;
        let q = View { pointer: pointers.q, layout: local.q, dtype: local.dtype };
        let o = View { pointer: pointers.o, layout: local.o, dtype: local.output_dtype };
        let own = self.own_keys([pointers.k, pointers.v]);
        let lse = if local.wants_lse { pointers.lse } else { 0 };
        if self.chosen.exchange == ContextExchange::Heads {
            return self.forward_by_heads([q, o], own, (lse, pointers.score), stream);
        }
        let pieces = self.pieces.clone();
        self.for_each_step(own, stream, |pass, phase, step, keys| {
            if phase == Phase::Send {
                return Ok(());
            }
            for (index, piece) in pieces.iter().enumerate() {
                for (number, part) in piece.parts.iter().enumerate() {
                    if part.step != step {
                        continue;
                    }
                    let places = pass.places(piece, part);
                    let (valid, offsets) = (&pass.valid, &pass.offsets);
                    let of = (piece, part);
                    let place = of_part(valid, offsets, [q, o], keys, of, places.each_ref())?;
                    let score = pass.score_pointers((index, number), &place, &pointers.score)?;
                    pass.launch_part((index, number), piece, place, (lse, score), stream)?;
                }
            }
            Ok(())
        })
    }

    /// Every tensor that has elements has an address, as the whole pass would ask for.
    fn check(&self, pointers: &ForwardPointers) -> Result<()> {
        crate::plan::plan_forward(&self.valid.local, self.group.device.properties(), pointers)
            .map(|_| ())
    }

    /// k and v of this rank.
    pub(super) fn own_keys(&self, [k, v]: [u64; 2]) -> [View; 2] {
        let local = &self.valid.local.problem;
        [View::dense(k, local.k.shape, local.dtype), View::dense(v, local.v.shape, local.dtype)]
    }

    /// Calls `work` with the keys and values of each step, when they are there, as far as kernels on `stream`
    /// are concerned; those of the next step are on their way meanwhile. Each step has two phases: what is
    /// sent in the second one is queued behind the next keys.
    pub(super) fn for_each_step(
        &mut self,
        own: [View; 2],
        stream: Stream,
        mut work: impl FnMut(&mut Self, Phase, usize, [View; 2]) -> Result<()>,
    ) -> Result<()> {
        let (ranks, beside) = (self.group.ranks(), self.group.beside);
        let mut here = own;
        for step in 0..ranks {
            // Kernels of the step before read what the next keys overwrite; those of this one are queued
            // before the host waits for other ranks.
            let before = self.group.device.driver().mark(stream)?;
            work(self, Phase::Compute, step, here)?;
            let mut next = here;
            let mut comes = None;
            if step + 1 < ranks {
                next = self.keys_at(own, step + 1)?;
                let driver = self.group.device.driver();
                driver.wait_for_mark(beside, &before)?;
                self.pass_on(&here, &next)?;
                comes = Some(driver.mark(beside)?);
            }
            work(self, Phase::Send, step, here)?;
            if let Some(mark) = comes {
                self.group.device.driver().wait_for_mark(stream, &mark)?;
            }
            here = next;
        }
        Ok(())
    }

    /// Part `number` of piece `index` merges with those before it; the last one writes o and lse.
    pub(super) fn launch_part(
        &mut self,
        (index, number): (usize, usize),
        piece: &Piece,
        place: PartPlace,
        (lse, score): (DevicePointer, ScorePointers),
        stream: Stream,
    ) -> Result<()> {
        let device = self.group.device.clone();
        let PartPlace { q, k, v, o, cu_seqlens: [cu_seqlens_q, cu_seqlens_k], valid, .. } = place;
        if valid.is_empty() {
            return Ok(());
        }
        let (is_first, is_last) = (number == 0, number + 1 == piece.parts.len());
        let state = match is_first && is_last {
            true => 0,
            false => self.room.of(&device, Use::State(index), valid.state_bytes())?,
        };
        let total_keys = self.valid.most_keys();
        let partial = PartialForward { state, is_first, is_last, total_keys };
        let pointers = ForwardPointers {
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            o: o.pointer,
            lse: if lse == 0 { 0 } else { lse + 4 * piece.queries.first as u64 },
            cu_seqlens_q,
            cu_seqlens_k,
            score,
        };
        let plan = plan_forward_partial(&valid, device.properties(), &pointers, &partial)?;
        let Some(mut plan) = plan else { return Ok(()) };
        if partial.is_last {
            // lse of a rank is that of all its rows.
            [plan.params.lse_batch_stride, plan.params.lse_head_stride] = self.valid.local.lse_strides();
        }
        // SAFETY: the caller of `forward` vouches for its tensors, or they are memory of this pass, and so is
        // the state.
        unsafe { launch_forward(&device, &plan, stream) }
    }
}
