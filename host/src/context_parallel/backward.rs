//! The backward pass of a rank: each part is a pass of its own, with the o and lse of the whole, whose
//! gradients in f32 are added to those of the parts before.

use super::exchange::in_f32;
use super::forward::Phase;
use super::rows::RowSet;
use super::schedule::{Part, Piece, Rows};
use super::scores::Slice;
use super::sharing::ContextExchange;
use super::views::{PartPlace, View, of_part};
use super::{ContextPass, Use};
use crate::attention::{Workspace, launch_accumulate, launch_backward};
use crate::driver::{Mark, Stream};
use crate::error::{Error, Result};
use crate::plan::{
    BackwardPointers, PartialBackward, ScorePointers, Term, plan_accumulate, plan_backward,
    plan_backward_partial,
};
use crate::problem::{BackwardProblem, Bias, ScoreLayout, ValidBackward};
use kernels_gpu::abi::Dtype;

/// The rank's own tensors of a backward pass.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub q: View,
    pub o: View,
    pub d_o: View,
    pub dq: View,
    pub dk: View,
    pub dv: View,
    pub lse: u64,
    pub d_lse: u64,
    pub score: ScorePointers,
    pub d_bias: Option<(Bias, u64)>,
    pub d_sinks: u64,
    pub problem: BackwardProblem,
}

/// What the scores of a part have, and where their gradients go.
struct PartScores {
    score: ScorePointers,
    d_bias: Option<(Bias, u64)>,
    /// 0: they are not wanted of this part.
    d_sinks: u64,
}

/// How many parts each piece has had, and how many it has.
pub(super) type Turns = Vec<(usize, usize)>;

/// dk and dv of keys, as far as they are added up.
pub(super) struct KeySums {
    pub sums: [View; 2],
    /// The rows that hold anything yet.
    pub touched: RowSet,
}

/// Gradients of this rank's keys on their way from another one.
struct Coming {
    sums: [View; 2],
    rows: RowSet,
    /// They are there.
    mark: Mark,
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
        if problem.forward != self.valid.asked {
            return Err(Error::WrongForward);
        }
        // What the whole pass would ask for.
        let d_bias = self.check_d_bias(problem, pointers)?;
        let without = BackwardProblem { forward: self.valid.local.problem, d_bias: None, ..*problem };
        plan_backward(&without.validate()?, self.group.device.properties(), pointers)?;
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
            score: pointers.score,
            d_bias: d_bias.map(|d_bias| (d_bias, pointers.d_bias)),
            d_sinks: pointers.d_sinks,
            problem: *problem,
        };
        if let Some((d_bias, pointer)) = own.d_bias {
            self.zero_d_bias(&d_bias, pointer, stream)?;
        }
        if problem.wants_d_sinks && self.pieces.is_empty() {
            let heads = forward.q.shape[2];
            self.add(self.d_sinks_view(heads, own.d_sinks), [None, None], stream)?;
        }
        let keys = self.own_keys([pointers.k, pointers.v]);
        if self.chosen.exchange == ContextExchange::Heads {
            return self.backward_by_heads(&own, keys, stream);
        }
        let pieces = self.pieces.clone();
        let mut turns: Turns = pieces.iter().map(|piece| (0, piece.parts.len())).collect();
        let shapes = [own.dk, own.dv].map(|view| in_f32(&view));
        let rows = own.dk.layout.shape[1];
        let sums = self.room_for([Use::DkHome, Use::DvHome], shapes, rows)?;
        let mut home = KeySums { sums, touched: RowSet::default() };
        // Of this rank's own keys the smallest part is computed while those of the next rank come, and the
        // others while the last gradients from other ranks do.
        let mut at_home: Vec<(usize, Part)> = parts_of(&pieces, 0);
        let later = at_home.split_off(usize::from(at_home.len() > 1));
        let mut coming: Option<Coming> = None;
        let mut away = None;
        self.for_each_step(keys, stream, |pass, phase, step, keys| {
            if step == 0 {
                let parts = std::mem::take(&mut at_home);
                return pass.add_parts(&own, &mut turns, keys, (&pieces, &parts), &mut home, stream);
            }
            if let (Phase::Send, Some(done)) = (phase, away.take()) {
                if let Some(came) = coming.take() {
                    pass.take_in(&mut home, &came, stream)?;
                }
                coming = Some(pass.send_home(&own, &done, step, stream)?);
                return Ok(());
            }
            let rows = keys[0].layout.shape[1];
            let places = [Use::DkSum(step % 2), Use::DvSum(step % 2)];
            let sums = pass.room_for(places, shapes, rows)?;
            let mut sums = KeySums { sums, touched: RowSet::default() };
            let mut parts = parts_of(&pieces, step);
            // What covers most keys first: the others add to it.
            parts.reverse();
            pass.add_parts(&own, &mut turns, keys, (&pieces, &parts), &mut sums, stream)?;
            away = Some(sums);
            Ok(())
        })?;
        self.add_parts(&own, &mut turns, keys, (&pieces, &later), &mut home, stream)?;
        self.finish_keys(&own, &mut home, coming, stream)?;
        self.order(self.group.beside, stream)
    }

    /// Adds the gradients of parts, which see these keys.
    pub(super) fn add_parts(
        &mut self,
        own: &Own,
        turns: &mut Turns,
        keys: [View; 2],
        (pieces, parts): (&[Piece], &[(usize, Part)]),
        sums: &mut KeySums,
        stream: Stream,
    ) -> Result<()> {
        for (index, part) in parts {
            let piece = &pieces[*index];
            let places = self.places(piece, part);
            let (q, o, places) = (own.q, own.o, places.each_ref());
            let place = of_part(&self.valid, &self.offsets, [q, o], keys, (piece, part), places)?;
            let number = piece.parts.iter().position(|of| of == part).unwrap_or(0);
            let score = self.score_pointers((*index, number), &place, &own.score)?;
            let d_bias = own.d_bias.map(|(Bias { layout, dtype }, pointer)| {
                let slice = Slice::of(&layout, places);
                let begin = pointer.wrapping_add_signed(slice.offset * i64::from(dtype.bytes()));
                (Bias { layout: slice.layout, dtype }, begin)
            });
            let is_first_of_all = turns.iter().all(|(had, _)| *had == 0);
            let (had, has) = &mut turns[*index];
            let (is_first, is_last) = (*had == 0, *had + 1 == *has);
            *had += 1;
            let is_new = sums.touched.gaps(&part.keys) == [part.keys.range()];
            if !is_new {
                self.zero_gaps(sums, &part.keys, stream)?;
            }
            let targets = sums.sums.map(|sum| sum.rows(&part.keys));
            let partial = PartialBackward {
                state: 0,
                is_first,
                is_last,
                dq_dtype: own.problem.gradient_dtype,
                adds_to_keys: !is_new,
            };
            // Of the first part of each piece: sinks are one for all keys.
            let wants_d_sinks = own.problem.wants_d_sinks && is_first;
            let d_sinks = match wants_d_sinks {
                false => 0,
                true if is_first_of_all => own.d_sinks,
                true => self.d_sinks_of_piece()?,
            };
            let scores = PartScores { score, d_bias, d_sinks };
            self.launch(own, (*index, &piece.queries), &place, (partial, scores), targets, stream)?;
            if wants_d_sinks && !is_first_of_all {
                let heads = own.q.layout.shape[2];
                let [sum, more] = [own.d_sinks, d_sinks].map(|at| self.d_sinks_view(heads, at));
                self.add(sum, [Some(sum), Some(more)], stream)?;
            }
            sums.touched.insert(&part.keys);
        }
        Ok(())
    }

    /// Writes zeros to those of the rows that hold nothing yet.
    fn zero_gaps(&self, sums: &mut KeySums, rows: &Rows, stream: Stream) -> Result<()> {
        for gap in sums.touched.gaps(rows).into_iter().map(Rows::from) {
            for sum in sums.sums {
                self.add(sum.rows(&gap), [None, None], stream)?;
            }
        }
        sums.touched.insert(rows);
        Ok(())
    }

    /// Queues, beside the kernels, what sends the gradients of a step to the rank whose keys they are of, and
    /// receives those of this rank's keys.
    fn send_home(&mut self, own: &Own, away: &KeySums, step: usize, stream: Stream) -> Result<Coming> {
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let (home, from) = (self.source(step), (rank + step) % ranks);
        let shapes = [own.dk, own.dv].map(|view| in_f32(&view));
        let rows = own.dk.layout.shape[1];
        let coming = self.room_for([Use::DkComing(0), Use::DvComing(0)], shapes, rows)?;
        self.order(stream, self.group.beside)?;
        self.exchange_rows(
            (&away.sums, home, &self.touched[rank][step]),
            (&coming, from, &self.touched[from][step]),
        )?;
        let mark = self.group.device.driver().mark(self.group.beside)?;
        Ok(Coming { sums: coming, rows: self.touched[from][step].clone(), mark })
    }

    /// Adds what has come.
    fn take_in(&mut self, home: &mut KeySums, came: &Coming, stream: Stream) -> Result<()> {
        self.group.device.driver().wait_for_mark(stream, &came.mark)?;
        for rows in came.rows.ranges().map(Rows::from) {
            let is_new = home.touched.gaps(&rows) == [rows.range()];
            if !is_new {
                self.zero_gaps(home, &rows, stream)?;
            }
            for (sum, came) in home.sums.into_iter().zip(came.sums) {
                let (sum, came) = (sum.rows(&rows), came.rows(&rows));
                self.add(sum, [Some(came), if is_new { None } else { Some(sum) }], stream)?;
            }
            home.touched.insert(&rows);
        }
        Ok(())
    }

    /// Rounds dk and dv, with what has come last.
    fn finish_keys(
        &mut self,
        own: &Own,
        home: &mut KeySums,
        coming: Option<Coming>,
        stream: Stream,
    ) -> Result<()> {
        let all = all_rows(own.dk.layout.shape[1]);
        self.zero_gaps(home, &all, stream)?;
        let mut last = RowSet::default();
        if let Some(came) = &coming {
            self.group.device.driver().wait_for_mark(stream, &came.mark)?;
            last = came.rows.clone();
        }
        for (which, target) in [own.dk, own.dv].into_iter().enumerate() {
            let sum = home.sums[which];
            for range in last.ranges() {
                let rows = Rows::from(range);
                let came = coming.as_ref().map(|came| came.sums[which].rows(&rows));
                self.add(target.rows(&rows), [Some(sum.rows(&rows)), came], stream)?;
            }
            for gap in last.gaps(&all) {
                let rows = Rows::from(gap);
                self.add(target.rows(&rows), [Some(sum.rows(&rows)), None], stream)?;
            }
        }
        Ok(())
    }

    /// The gradient of the bias that is asked for, with an element of its own for each query and key, so that
    /// parts write it and need not add to it.
    fn check_d_bias(
        &self,
        problem: &BackwardProblem,
        pointers: &BackwardPointers,
    ) -> Result<Option<Bias>> {
        let Some(d_bias) = problem.d_bias else { return Ok(None) };
        let forward = self.valid.over_all_keys(&problem.forward);
        let (dk, dv) = (forward.k, forward.v);
        BackwardProblem { forward, dk, dv, ..*problem }.validate()?;
        let ScoreLayout { shape: [_, _, queries, keys], strides } = d_bias.layout;
        let rows = [forward.q.shape[1], forward.k.shape[1]];
        if [queries, keys] != rows || keys > 1 && strides[3] != 1 {
            return Err(Error::NotInContext { argument: "dbias" });
        }
        let elements = d_bias.layout.elements();
        if pointers.d_bias == 0 && elements > 0 {
            return Err(Error::NullPointer { argument: "dbias", elements });
        }
        Ok(Some(d_bias))
    }

    /// The backward pass of one part.
    fn launch(
        &mut self,
        own: &Own,
        (index, queries): (usize, &Rows),
        place: &PartPlace,
        (mut partial, scores): (PartialBackward, PartScores),
        [dk, dv]: [View; 2],
        stream: Stream,
    ) -> Result<()> {
        let device = self.group.device.clone();
        let PartPlace { q, k, v, o, cu_seqlens: [cu_seqlens_q, cu_seqlens_k], valid, .. } = place;
        let (d_o, dq) = (own.d_o.rows(queries), own.dq.rows(queries));
        let problem = BackwardProblem {
            forward: valid.problem,
            d_o: d_o.layout,
            dq: dq.layout,
            dk: dk.layout,
            dv: dv.layout,
            gradient_dtype: Dtype::F32,
            d_bias: scores.d_bias.map(|(d_bias, _)| d_bias),
            wants_d_sinks: scores.d_sinks != 0,
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
            score: scores.score,
            d_bias: scores.d_bias.map_or(0, |(_, pointer)| pointer),
            d_sinks: scores.d_sinks,
        };
        if !(partial.is_first && partial.is_last) {
            partial.state = self.room.of(&device, Use::DqState(index), valid.state_bytes())?;
        }
        let mut plan = plan_backward_partial(&valid, device.properties(), &pointers, &partial)?;
        [plan.params.lse_batch_stride, plan.params.lse_head_stride] = self.valid.local.lse_strides();
        // Of the largest group about as much, so that it need not grow.
        let (heads, most) = (valid.forward.key_heads.max(1).into(), self.most_heads() as u64);
        let bytes = plan.workspace_bytes().div_ceil(heads) * most.max(heads);
        let workspace = Workspace { pointer: self.room.of(&device, Use::Workspace, bytes)?, bytes };
        // SAFETY: the caller of `backward` vouches for its tensors; all others are memory of this pass.
        unsafe { launch_backward(&device, &plan, workspace, stream) }
    }

    /// Queues `target = first + second`, rounded once.
    pub(super) fn add(&self, target: View, terms: [Option<View>; 2], stream: Stream) -> Result<()> {
        let term = |view: View| Term { pointer: view.pointer, layout: view.layout };
        let device = &self.group.device;
        let terms = terms.map(|view| view.map(term));
        let plan = plan_accumulate((term(target), target.dtype), terms, device.properties())?;
        // SAFETY: the caller of `backward` vouches for its tensors; all others are memory of this pass.
        plan.map_or(Ok(()), |plan| unsafe { launch_accumulate(device, &plan, stream) })
    }
}

/// The parts of a step with the pieces that they are of, those of few keys first.
pub(super) fn parts_of(pieces: &[Piece], step: usize) -> Vec<(usize, Part)> {
    let of_piece = |(index, piece): (usize, &Piece)| {
        let parts = piece.parts.clone().into_iter().filter(move |part| part.step == step);
        parts.map(move |part| (index, part)).collect::<Vec<_>>()
    };
    let mut parts: Vec<_> = pieces.iter().enumerate().flat_map(of_piece).collect();
    parts.sort_by_key(|(_, part)| part.keys.count);
    parts
}

fn all_rows(count: usize) -> Rows {
    Rows { first: 0, count, chunk: None }
}
