//! Passes by groups of heads: keys and values of a group come from all ranks while the group before is
//! computed, and no pass is over a part of a query's keys.
//!
//! | stream | forward | backward |
//! |--|--|--|
//! | the caller's | every other piece | all pieces |
//! | `side` | the other pieces | sums of dk and dv of this rank |
//! | `beside` | keys and values of the next group | the same, dk and dv of the group before |
//!
//! Pieces of a forward pass are on two streams, so that one fills what the other leaves idle at its end.

use super::backward::{KeySums, Own, parts_of};
use super::exchange::{Run, Side, in_f32, messages_of};
use super::forward::Phase;
use super::rows::RowSet;
use super::schedule::Rows;
use super::views::{View, of_part};
use super::{ContextPass, Use};
use crate::driver::{DevicePointer, Mark, RowsOf, Stream};
use crate::error::Result;
use crate::plan::ScorePointers;
use crate::problem::Layout;
use std::ops::Range;

/// Gradients of the keys of a group that are computed.
struct Computed {
    number: usize,
    sums: [View; 2],
    mark: Mark,
}

impl ContextPass<'_> {
    /// A forward pass of this rank's q and o, with these keys and values of its own.
    pub(super) fn forward_by_heads(
        &mut self,
        [q, o]: [View; 2],
        own: [View; 2],
        (lse, score): (DevicePointer, ScorePointers),
        stream: Stream,
    ) -> Result<()> {
        let (side, groups, pieces) = (self.group.side, self.chosen.forward.clone(), self.pieces.clone());
        // Long ones first: the others fill the gap at their end.
        let mut parts = parts_of(&pieces, 0);
        parts.reverse();
        let mut streams = [stream, side].into_iter().cycle();
        let done = self.for_each_group(&groups, own, &[stream, side], |pass, phase, number, keys| {
            if phase == Phase::Send {
                return Ok(());
            }
            let heads = pass.query_heads(&groups[number]);
            let (q, o) = (q.heads(&heads), o.heads(&heads));
            let (lse, score) = (pass.lse_of(lse, &heads), score_of(&score, &heads));
            for (index, part) in &parts {
                let piece = &pieces[*index];
                let places = pass.places(piece, part);
                let (valid, offsets) = (&pass.valid, &pass.offsets);
                let place = of_part(valid, offsets, [q, o], keys, (piece, part), places.each_ref())?;
                let score = pass.score_pointers((*index, 0), &place, &score)?;
                let on = streams.next().expect("they are without end");
                pass.launch_part((*index, 0), piece, place, (lse, score), on)?;
            }
            Ok(())
        });
        // Whatever has become of it, what was queued is waited for.
        done.and(self.order(side, stream))
    }

    /// A backward pass with these keys and values of this rank.
    pub(super) fn backward_by_heads(
        &mut self,
        own: &Own,
        keys: [View; 2],
        stream: Stream,
    ) -> Result<()> {
        let done = self.queue_backward(own, keys, stream);
        // Whatever has become of it, what was queued is waited for.
        let joined = self.order(self.group.side, stream);
        done.and(joined).and(self.order(self.group.beside, stream))
    }

    fn queue_backward(&mut self, own: &Own, keys: [View; 2], stream: Stream) -> Result<()> {
        let (groups, pieces) = (self.chosen.backward.clone(), self.pieces.clone());
        let mut parts = parts_of(&pieces, 0);
        // What covers most keys first: the others add to it.
        parts.reverse();
        let rows = self.valid.all_key_rows();
        let shapes = [own.dk, own.dv].map(|view| in_f32(&view));
        // Where sums of even and odd groups are no longer needed.
        let mut free: [Option<Mark>; 2] = [None, None];
        let (mut computed, mut before): (Option<Computed>, Option<Computed>) = (None, None);
        self.for_each_group(&groups, keys, &[stream], |pass, phase, number, keys| {
            if phase == Phase::Send {
                if let Some(before) = before.take() {
                    free[before.number % 2] = Some(pass.send_group_home(own, &groups, &before)?);
                }
                before = computed.take();
                return Ok(());
            }
            if let Some(mark) = free[number % 2].take() {
                pass.group.device.driver().wait_for_mark(stream, &mark)?;
            }
            let heads = pass.query_heads(&groups[number]);
            let own = Own {
                q: own.q.heads(&heads),
                o: own.o.heads(&heads),
                d_o: own.d_o.heads(&heads),
                dq: own.dq.heads(&heads),
                lse: pass.lse_of(own.lse, &heads),
                d_lse: pass.lse_of(own.d_lse, &heads),
                score: score_of(&own.score, &heads),
                d_sinks: of_heads(own.d_sinks, heads.start),
                ..*own
            };
            let places = [Use::DkSum(number % 2), Use::DvSum(number % 2)];
            let sums = pass.room_of_heads(places, shapes, rows, groups[number].len())?;
            let mut added = KeySums { sums, touched: RowSet::default() };
            let mut turns = pieces.iter().map(|piece| (0, piece.parts.len())).collect();
            pass.add_parts(&own, &mut turns, keys, (&pieces, &parts), &mut added, stream)?;
            let mark = pass.group.device.driver().mark(stream)?;
            computed = Some(Computed { number, sums, mark });
            Ok(())
        })?;
        before.map_or(Ok(()), |last| self.send_group_home(own, &groups, &last).map(|_| ()))
    }

    /// Calls `work` with the keys and values of all ranks of each group, when they are there as far as
    /// kernels on `streams` are concerned; those of the next group are on their way meanwhile. Each group has
    /// two phases: what is sent in the second one is queued behind the next keys.
    fn for_each_group(
        &mut self,
        groups: &[Range<usize>],
        own: [View; 2],
        streams: &[Stream],
        mut work: impl FnMut(&mut Self, Phase, usize, [View; 2]) -> Result<()>,
    ) -> Result<()> {
        let group = self.group;
        let (driver, beside) = (group.device.driver(), group.beside);
        self.order(streams[0], beside)?;
        let Some(first) = groups.first() else { return Ok(()) };
        let (mut keys, mut mark) = self.gather(own, first, 0)?;
        // Behind the kernels of the group before, which read what the next keys overwrite.
        let mut before: Vec<Mark> = Vec::new();
        for number in 0..groups.len() {
            streams.iter().try_for_each(|&stream| driver.wait_for_mark(stream, &mark))?;
            // Queued before the host waits for other ranks.
            work(self, Phase::Compute, number, keys)?;
            let behind = streams.iter().map(|&stream| driver.mark(stream)).collect::<Result<_>>()?;
            let here = keys;
            if let Some(next) = groups.get(number + 1) {
                before.iter().try_for_each(|mark| driver.wait_for_mark(beside, mark))?;
                (keys, mark) = self.gather(own, next, number + 1)?;
            }
            before = behind;
            work(self, Phase::Send, number, here)?;
        }
        Ok(())
    }

    /// Queues what brings keys and values of a group from all ranks, and gives them as they stand in the
    /// whole, and the point from which on they do.
    fn gather(
        &mut self,
        own: [View; 2],
        group: &Range<usize>,
        number: usize,
    ) -> Result<([View; 2], Mark)> {
        let places = [Use::Keys(number % 2), Use::Values(number % 2)];
        let whole = self.room_of_heads(places, own, self.valid.all_key_rows(), group.len())?;
        let (rank, ranks, beside) = (self.group.rank(), self.group.ranks(), self.group.beside);
        for (own, whole) in own.iter().zip(&whole) {
            self.copy_own_rows(&own.heads(group), whole)?;
        }
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        // Each rank from another one at a time.
        for distance in 1..ranks {
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            for whole in &whole {
                sends.extend(messages_of(whole, to, &self.runs(rank), Side::Whole));
                receives.extend(messages_of(whole, from, &self.runs(from), Side::Whole));
            }
        }
        let device = &self.group.device;
        // SAFETY: memory of this pass; what is queued on the stream beside the kernels is waited for.
        unsafe { self.group.communicator.exchange(device, &sends, &receives, beside) }?;
        Ok((whole, device.driver().mark(beside)?))
    }

    /// Queues, beside the kernels, a copy of this rank's rows to where they stand in the whole.
    fn copy_own_rows(&self, own: &View, whole: &View) -> Result<()> {
        let (driver, bytes) = (self.group.device.driver(), own.dtype.bytes() as usize);
        let [_, _, heads, columns] = own.layout.shape;
        for batch in 0..own.layout.shape[0] {
            for run in self.runs(self.group.rank()) {
                let at = |view: &View, row: usize| {
                    let [of_batch, of_row, ..] =
                        view.layout.strides.map(|stride| stride as usize * bytes);
                    let offset = batch * of_batch + row * of_row;
                    RowsOf { pointer: view.pointer + offset as DevicePointer, pitch: of_row }
                };
                let (to, from) = (at(whole, run.whole), at(own, run.own));
                let size = [run.count, heads * columns * bytes];
                // SAFETY: a tensor of the caller of `forward` or `backward`, and memory of this pass.
                unsafe { driver.copy_rows(to, from, size, self.group.beside) }?;
            }
        }
        Ok(())
    }

    /// Queues, beside the kernels, what sends gradients of a group to the ranks whose keys they are of, and
    /// adds up those of this rank's. Gives the point behind it.
    fn send_group_home(
        &mut self,
        own: &Own,
        groups: &[Range<usize>],
        computed: &Computed,
    ) -> Result<Mark> {
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let (side, beside) = (self.group.side, self.group.beside);
        let group = &groups[computed.number];
        let shapes = [own.dk, own.dv].map(|view| in_f32(&view));
        let rows = own.dk.layout.shape[1];
        let from = |distance: usize| (rank + ranks - distance) % ranks;
        let mut parts = Vec::new();
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for distance in 1..ranks {
            let (to, from) = ((rank + distance) % ranks, from(distance));
            let places = [Use::DkComing(distance), Use::DvComing(distance)];
            let part = self.room_of_heads(places, shapes, rows, group.len())?;
            for (sum, part) in computed.sums.iter().zip(&part) {
                let sent = self.runs_within(to, &self.touched[rank][0]);
                sends.extend(messages_of(sum, to, &sent, Side::Whole));
                let received = self.runs_within(rank, &self.touched[from][0]);
                receives.extend(messages_of(part, from, &received, Side::Own));
            }
            parts.push((from, part));
        }
        let (device, driver) = (&self.group.device, self.group.device.driver());
        driver.wait_for_mark(beside, &computed.mark)?;
        // What came for the group before is added.
        self.order(side, beside)?;
        // SAFETY: memory of this pass; what is queued on the stream beside the kernels is waited for.
        unsafe { self.group.communicator.exchange(device, &sends, &receives, beside) }?;
        self.order(beside, side)?;
        for (run, which) in self.runs(rank).iter().flat_map(|run| [(run, 0), (run, 1)]) {
            let target = [own.dk, own.dv][which].heads(group);
            for range in self.alike(run) {
                let there = |of: usize| !self.touched[of][0].within(&range).is_empty();
                let first = run.own + range.start - run.whole;
                let rows = Rows::from(first..first + range.len());
                let here = there(rank).then(|| computed.sums[which].rows(&Rows::from(range.clone())));
                let came = parts.iter().filter(|(from, _)| there(*from));
                let terms: Vec<View> =
                    here.into_iter().chain(came.map(|(_, part)| part[which].rows(&rows))).collect();
                self.add_all(target.rows(&rows), &terms, side)?;
            }
        }
        driver.mark(side)
    }

    /// Rows of a run, in ranges each of which any rank has gradients of, or none of.
    fn alike(&self, run: &Run) -> Vec<Range<usize>> {
        let all = run.whole..run.whole + run.count;
        let mut bounds = vec![all.start, all.end];
        for touched in &self.touched {
            bounds
                .extend(touched[0].within(&all).into_iter().flat_map(|range| [range.start, range.end]));
        }
        bounds.sort_unstable();
        bounds.dedup();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// Queues the sum of f32 terms, in their order, rounded once. It is made in the first one.
    fn add_all(&self, target: View, terms: &[View], stream: Stream) -> Result<()> {
        let (first, rest) = match terms {
            [] => return self.add(target, [None, None], stream),
            [first, rest @ ..] => (*first, rest),
        };
        let Some((last, between)) = rest.split_last() else {
            return self.add(target, [Some(first), None], stream);
        };
        for term in between {
            self.add(first, [Some(first), Some(*term)], stream)?;
        }
        self.add(target, [Some(first), Some(*last)], stream)
    }

    /// The rows of k that a rank has, as far as they are in a set of rows of the whole.
    fn runs_within(&self, rank: usize, rows: &RowSet) -> Vec<Run> {
        let within = |run: &Run| {
            let Run { own, whole, count } = *run;
            let common = rows.within(&(whole..whole + count)).into_iter();
            let part = move |range: Range<usize>| {
                let own = own + range.start - whole;
                Run { own, whole: range.start, count: range.len() }
            };
            common.map(part).collect::<Vec<_>>()
        };
        self.runs(rank).iter().flat_map(within).collect()
    }

    /// Memory for dense tensors as these, of some rows and heads, and no less than for the largest group.
    fn room_of_heads(
        &mut self,
        place: [Use; 2],
        views: [View; 2],
        rows: usize,
        heads: usize,
    ) -> Result<[View; 2]> {
        let of = |view: &View, heads: usize| {
            let [batches, _, _, columns] = view.layout.shape;
            View { layout: Layout::bshd([batches, rows, heads, columns]), ..*view }
        };
        let mut placed = views.map(|view| of(&view, heads));
        for (for_what, view) in place.into_iter().zip(&mut placed) {
            let bytes = of(view, self.chosen.most_heads()).bytes();
            view.pointer = self.room.of(&self.group.device, for_what, bytes)?;
        }
        Ok(placed)
    }

    /// The query heads of a group of key heads.
    fn query_heads(&self, group: &Range<usize>) -> Range<usize> {
        let of_each = self.valid.local.group_size as usize;
        group.start * of_each..group.end * of_each
    }

    /// Where lse of some heads begins.
    fn lse_of(&self, lse: DevicePointer, heads: &Range<usize>) -> DevicePointer {
        let [_, of_head] = self.valid.local.lse_strides();
        of_heads(lse, heads.start * of_head as usize)
    }
}

/// Scores of some heads. Bias and boolean mask are those of all: there is one group then.
fn score_of(score: &ScorePointers, heads: &Range<usize>) -> ScorePointers {
    ScorePointers { sinks: of_heads(score.sinks, heads.start), ..*score }
}

/// The address of an f32 of a tensor; 0 if there is none.
fn of_heads(tensor: DevicePointer, element: usize) -> DevicePointer {
    if tensor == 0 { 0 } else { tensor + 4 * element as DevicePointer }
}
