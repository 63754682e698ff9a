//! The backward pass of a rank: each part is a pass of its own, with the o and lse of the whole, whose
//! gradients in f32 are added to those of the parts before.

use super::exchange::{Side, in_f32};
use super::forward::covers_all;
use super::layout::ContextLayout;
use super::schedule::{Part, Piece, Rows};
use super::views::{PartPlace, View, of_part};
use super::{ContextPass, Use};
use crate::attention::{Workspace, launch_accumulate, launch_backward};
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::plan::{BackwardPointers, ScorePointers, Term, plan_accumulate, plan_backward};
use crate::problem::{BackwardProblem, Layout, ValidBackward};
use kernels_gpu::abi::Dtype;

/// The rank's own tensors of a backward pass.
#[derive(Clone, Copy)]
struct Own {
    q: View,
    o: View,
    d_o: View,
    dq: View,
    dk: View,
    dv: View,
    lse: u64,
    d_lse: u64,
    problem: BackwardProblem,
}

/// dq of all pieces, as far as it is added up.
struct QuerySums {
    sum: View,
    /// Whether that of each piece holds anything yet.
    are_there: Vec<bool>,
}

/// dk and dv of the keys that are here, as far as they are added up.
struct KeySums {
    sums: [View; 2],
    /// Whether they hold anything yet.
    are_there: bool,
}

impl ContextPass<'_> {
    /// Queues one backward pass on `stream`. All ranks call it together. `problem` is that of the rank's own
    /// tensors; its forward pass is the one that this was prepared for. o and lse are what
    /// [`ContextPass::forward`] gave.
    ///
    /// # Errors
    /// Everything that [`crate::attention::backward`] refuses, [`Error::WrongForward`],
    /// [`Error::NotInContext`], [`Error::Peer`], [`Error::OutOfMemory`], and errors of the driver.
    ///
    /// # Safety
    /// As for [`crate::attention::backward`], for the rank's own tensors, until
    /// [`ContextParallel::wait`](super::ContextParallel::wait) or the same on the caller's side; this pass
    /// is not used on another stream before that.
    pub unsafe fn backward(
        &mut self,
        problem: &BackwardProblem,
        pointers: &BackwardPointers,
        stream: Stream,
    ) -> Result<()> {
        if problem.forward != self.valid.local.problem {
            return Err(Error::WrongForward);
        }
        if problem.wants_d_sinks || problem.d_bias.is_some() {
            let argument = if problem.wants_d_sinks { "dsinks" } else { "dbias" };
            return Err(Error::NotInContext { argument });
        }
        // What the whole pass would ask for.
        plan_backward(&problem.validate()?, self.group.device.properties(), pointers)?;
        let forward = &problem.forward;
        let (dtype, gradient) = (forward.dtype, problem.gradient_dtype);
        let view = |pointer, layout, dtype| View { pointer, layout, dtype };
        let own = Own {
            q: view(pointers.q, forward.q, dtype),
            o: view(pointers.o, forward.o, forward.output_dtype),
            d_o: view(pointers.d_o, problem.d_o, dtype),
            dq: view(pointers.dq, problem.dq, gradient),
            dk: view(pointers.dk, problem.dk, gradient),
            dv: view(pointers.dv, problem.dv, gradient),
            lse: pointers.lse,
            d_lse: pointers.d_lse,
            problem: *problem,
        };
        let keys = self.own_keys([pointers.k, pointers.v]);
        let dq = in_f32(&own.q);
        let dq = View { pointer: self.room.of(&self.group.device, Use::DqSum, dq.bytes())?, ..dq };
        let pieces = self.pieces.clone();
        let mut dq = QuerySums { sum: dq, are_there: vec![false; pieces.len()] };
        let gathered = self.group.layout == ContextLayout::Gathered;
        let ranks = self.group.ranks();
        let mut sums: Option<KeySums> = None;
        self.for_each_step(keys, stream, |pass, step, keys| {
            let places = [Use::DkSum(step % 2), Use::DvSum(step % 2)];
            let rows = keys[0].layout.shape[1];
            let here = pass.room_for(places, keys.map(|view| in_f32(&view)), rows)?;
            let are_there = sums.take().is_some_and(|sums| sums.are_there);
            let mut own_sums = KeySums { sums: here, are_there };
            pass.step(&own, &mut dq, (step, keys), &pieces, &mut own_sums, stream)?;
            if !own_sums.are_there {
                for sum in own_sums.sums {
                    pass.add(sum, [None, None], stream)?;
                }
                own_sums.are_there = true;
            }
            if !gathered && ranks > 1 {
                own_sums = pass.send_sums(&own, own_sums, step, stream)?;
            }
            sums = Some(own_sums);
            Ok(())
        })?;
        self.order(self.group.beside, stream)?;
        let sums = sums.expect("there is a step").sums;
        if gathered {
            self.add_up(&own, sums, stream)?;
        } else {
            for (target, sum) in [own.dk, own.dv].into_iter().zip(sums) {
                self.add(target, [Some(sum), None], stream)?;
            }
        }
        self.add(own.dq, [Some(dq.sum), None], stream)
    }

    /// The gradients of all parts of a step.
    fn step(
        &mut self,
        own: &Own,
        dq: &mut QuerySums,
        (step, keys): (usize, [View; 2]),
        pieces: &[Piece],
        sums: &mut KeySums,
        stream: Stream,
    ) -> Result<()> {
        let mut parts: Vec<(usize, &Part)> = pieces
            .iter()
            .enumerate()
            .flat_map(|(index, piece)| piece.parts.iter().map(move |part| (index, part)))
            .filter(|(_, part)| part.step == step)
            .collect();
        // What covers all keys first: nothing needs to be zeroed then.
        parts.sort_by_key(|(_, part)| std::cmp::Reverse(part.keys.count));
        for (index, part) in parts {
            let piece = &pieces[index];
            let is_first = !std::mem::replace(&mut dq.are_there[index], true);
            let place = of_part(&self.valid, &self.offsets, [own.q, own.o], keys, (piece, part))?;
            let dq_sum = dq.sum.rows(&piece.queries);
            let dq_target = if is_first { dq_sum } else { self.temporary(Use::DqPart, &dq_sum)? };
            let covers_all = covers_all(part, keys[0].layout.shape[1]);
            let stores = covers_all && !sums.are_there;
            if !covers_all && !sums.are_there {
                for sum in sums.sums {
                    self.add(sum, [None, None], stream)?;
                }
            }
            let key_sums = sums.sums.map(|sum| sum.rows(&part.keys));
            let key_targets = if stores {
                key_sums
            } else {
                [self.temporary(Use::DkPart, &key_sums[0])?, self.temporary(Use::DvPart, &key_sums[1])?]
            };
            self.launch(own, &piece.queries, &place, (dq_target, key_targets), stream)?;
            if !is_first {
                self.add(dq_sum, [Some(dq_sum), Some(dq_target)], stream)?;
            }
            if !stores {
                // Sums of the ranks before may still be on their way.
                self.order(self.group.beside, stream)?;
                for (sum, part) in key_sums.into_iter().zip(key_targets) {
                    self.add(sum, [Some(sum), Some(part)], stream)?;
                }
            }
            sums.are_there = true;
        }
        Ok(())
    }

    /// The backward pass of one part.
    fn launch(
        &mut self,
        own: &Own,
        queries: &Rows,
        place: &PartPlace,
        (dq, [dk, dv]): (View, [View; 2]),
        stream: Stream,
    ) -> Result<()> {
        let device = self.group.device.clone();
        let PartPlace { q, k, v, o, cu_seqlens: [cu_seqlens_q, cu_seqlens_k], valid } = place;
        let d_o = own.d_o.rows(queries);
        let problem = BackwardProblem {
            forward: valid.problem,
            d_o: d_o.layout,
            dq: dq.layout,
            dk: dk.layout,
            dv: dv.layout,
            gradient_dtype: Dtype::F32,
            d_bias: None,
            wants_d_sinks: false,
            has_d_lse: own.problem.has_d_lse,
            mode: own.problem.mode,
        };
        let valid = ValidBackward { problem: problem.validate()?.problem, forward: *valid };
        let of_lse = |pointer: u64| if pointer == 0 { 0 } else { pointer + 4 * queries.first as u64 };
        let pointers = BackwardPointers {
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            o: o.pointer,
            d_o: d_o.pointer,
            dq: dq.pointer,
            dk: dk.pointer,
            dv: dv.pointer,
            lse: of_lse(own.lse),
            d_lse: of_lse(own.d_lse),
            cu_seqlens_q: *cu_seqlens_q,
            cu_seqlens_k: *cu_seqlens_k,
            score: ScorePointers::default(),
            d_bias: 0,
            d_sinks: 0,
        };
        let mut plan = plan_backward(&valid, device.properties(), &pointers)?;
        [plan.params.lse_batch_stride, plan.params.lse_head_stride] = self.valid.local.lse_strides();
        let bytes = plan.workspace_bytes();
        let workspace = Workspace { pointer: self.room.of(&device, Use::Workspace, bytes)?, bytes };
        // SAFETY: the caller of `backward` vouches for its tensors; all others are memory of this pass.
        unsafe { launch_backward(&device, &plan, workspace, stream) }
    }

    /// Sends the sums of the keys that are here on to where these keys go next, and gives those that come for
    /// the next step, or, after the last one, for this rank's own keys.
    fn send_sums(&mut self, own: &Own, here: KeySums, step: usize, stream: Stream) -> Result<KeySums> {
        let (ranks, beside) = (self.group.ranks(), self.group.beside);
        let next = (step + 1) % ranks;
        let rows = self.valid.key_rows_of(self.source(next));
        let shapes = [own.dk, own.dv].map(|view| in_f32(&view));
        let places = [Use::DkSum((step + 1) % 2), Use::DvSum((step + 1) % 2)];
        let coming = self.room_for(places, shapes, rows)?;
        self.order(stream, beside)?;
        self.pass_on(&here.sums, &coming)?;
        Ok(KeySums { sums: coming, are_there: true })
    }

    /// dk and dv of this rank's keys, from those of all keys that each rank has.
    fn add_up(&mut self, own: &Own, whole: [View; 2], stream: Stream) -> Result<()> {
        let shapes = [own.dk, own.dv].map(|view| in_f32(&view));
        let rows = own.dk.layout.shape[1];
        let sums = self.room_for([Use::DkSum(1), Use::DvSum(1)], shapes, rows)?;
        let parts = self.room_for([Use::DkPart, Use::DvPart], shapes, rows)?;
        for (whole, sum) in whole.iter().zip(&sums) {
            self.copy_runs((whole, Side::Whole), (sum, Side::Own), stream)?;
        }
        let add = |pass: &mut Self| {
            sums.into_iter()
                .zip(parts)
                .try_for_each(|(sum, part)| pass.add(sum, [Some(sum), Some(part)], stream))
        };
        self.scatter(whole, parts, add, stream)?;
        for (target, sum) in [own.dk, own.dv].into_iter().zip(sums) {
            self.add(target, [Some(sum), None], stream)?;
        }
        Ok(())
    }

    /// Memory for a dense f32 tensor of the shape of `like`.
    fn temporary(&mut self, for_what: Use, like: &View) -> Result<View> {
        let dense = View { layout: Layout::bshd(like.layout.shape), dtype: Dtype::F32, pointer: 0 };
        Ok(View { pointer: self.room.of(&self.group.device, for_what, dense.bytes())?, ..dense })
    }

    /// Queues `target = first + second`, rounded once.
    fn add(&self, target: View, terms: [Option<View>; 2], stream: Stream) -> Result<()> {
        let term = |view: View| Term { pointer: view.pointer, layout: view.layout };
        let device = &self.group.device;
        let terms = terms.map(|view| view.map(term));
        let plan = plan_accumulate((term(target), target.dtype), terms, device.properties())?;
        // SAFETY: the caller of `backward` vouches for its tensors; all others are memory of this pass.
        plan.map_or(Ok(()), |plan| unsafe { launch_accumulate(device, &plan, stream) })
    }
}
