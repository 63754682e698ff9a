//! A part of a computation that shows the same value: one query row with the keys that it sees, one key with
//! the queries that see it, or one key head.

use super::scores::Corner;
use super::tensors::{Computation, named};
use crate::attention::{BackwardInputs, Element, ForwardInputs, backward_host, forward_inputs_host};
use crate::device::Device;
use crate::error::Result;
use crate::problem::{BackwardProblem, Bias, CausalAlignment, ForwardProblem, Layout, Mask, Sequences};
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// Which part of a computation; ranges within the sequence and the heads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The batch, or the packed sequence.
    pub batch: usize,
    /// Queries.
    pub queries: Range<usize>,
    /// Heads of these.
    pub query_heads: Range<usize>,
    /// Keys.
    pub keys: Range<usize>,
    /// The head of these.
    pub key_head: usize,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { batch, queries, query_heads, keys, key_head } = self;
        write!(f, "batch {batch}, queries {queries:?} of heads {query_heads:?}, ")?;
        write!(f, "keys {keys:?} of key head {key_head}")
    }
}

impl<T: Element, O: Element> Computation<'_, T, O> {
    fn query_heads(&self) -> usize {
        self.forward.q.shape[2]
    }

    fn key_heads(&self) -> usize {
        self.forward.k.shape[2]
    }

    fn group(&self) -> usize {
        self.query_heads() / self.key_heads().max(1)
    }

    /// The keys that a query of a sequence sees.
    fn visible(&self, batch: usize, query: usize) -> Range<usize> {
        let ((_, queries), (_, keys)) = (self.rows(0, batch), self.rows(1, batch));
        let mask = self.forward.mask;
        if mask == Mask::Full {
            return 0..keys;
        }
        let shift = match mask.alignment() {
            CausalAlignment::BottomRight => keys as i64 - queries as i64,
            CausalAlignment::TopLeft => 0,
        };
        let (left, right) = mask.sides();
        let at = query as i64 + shift;
        let clamped = |key: i64| key.clamp(0, keys as i64) as usize;
        let begin = left.map_or(0, |left| clamped(at - i64::from(left)));
        let end = right.map_or(keys, |right| clamped(at + i64::from(right) + 1));
        begin..end.max(begin)
    }

    /// The queries of a sequence that see a key: they follow on each other.
    fn seeing(&self, batch: usize, key: usize) -> Range<usize> {
        let (_, queries) = self.rows(0, batch);
        let sees = |&query: &usize| self.visible(batch, query).contains(&key);
        let Some(first) = (0..queries).find(sees) else { return 0..0 };
        let end = (first..queries).find(|query| !sees(query));
        first..end.unwrap_or(queries)
    }

    /// The sequence of a row of q (`side` 0) or k (1), and its place there.
    fn sequence(&self, side: usize, row: usize) -> Option<(usize, usize)> {
        let batch = match &self.offsets {
            None => row.checked_div([self.forward.q, self.forward.k][side].shape[1])?,
            // The last one that begins there or before: those before it that begin there have no rows.
            Some(offsets) => {
                offsets[side].partition_point(|&first| first as usize <= row).checked_sub(1)?
            }
        };
        let (first, rows) = (batch < self.batches()).then(|| self.rows(side, batch))?;
        (row < first + rows).then_some((batch, row - first))
    }

    /// Batch, head and query of an element of lse.
    fn lse_element(&self, index: usize) -> Option<(usize, usize, usize)> {
        let [_, rows, heads, _] = self.forward.q.shape;
        let (line, at) = (index.checked_div(rows)?, index % rows);
        if self.offsets.is_some() {
            let (batch, query) = self.sequence(0, at)?;
            return Some((batch, line, query));
        }
        Some((line / heads, line % heads, at))
    }

    /// Whether an element of lse is that of a query that sees no key.
    pub fn is_dead(&self, index: usize) -> bool {
        self.lse_element(index).is_some_and(|(batch, head, query)| {
            let hidden = |key| self.scores.hides([batch, head, query, key], self.query_heads());
            self.visible(batch, query).all(hidden)
        })
    }

    /// The parts to try for an element of a result, the smallest first.
    pub(super) fn parts(&self, tensor: &str, index: usize) -> Vec<Part> {
        let ForwardProblem { q, v, .. } = &self.forward;
        let place = |side: usize, heads: usize, columns: usize| {
            let line = index.checked_div(columns)?;
            let (row, head) = (line.checked_div(heads)?, line % heads);
            self.sequence(side, row).map(|(batch, at)| (batch, head, at))
        };
        let (of_q, of_v) = (q.shape[3], v.shape[3]);
        let (key_side, found) = match tensor {
            "dbias" | "dsinks" => return self.parts_of_sums(tensor, index),
            "lse" => (false, self.lse_element(index)),
            "dk" => (true, place(1, self.key_heads(), of_q)),
            "dv" => (true, place(1, self.key_heads(), of_v)),
            "dq" => (false, place(0, self.query_heads(), of_q)),
            _ => (false, place(0, self.query_heads(), of_v)),
        };
        let Some((batch, head, at)) = found else { return Vec::new() };
        let key_head = if key_side { head } else { head / self.group() };
        let whole = self.whole(batch, key_head);
        // Slopes go with distances, and dropout with positions: those in the whole sequence.
        if self.forward.alibi.is_some() || self.forward.dropout.is_some() {
            return vec![whole];
        }
        let small = match key_side {
            false => Part {
                queries: at..at + 1,
                query_heads: head..head + 1,
                keys: self.visible(batch, at),
                ..whole.clone()
            },
            true => Part { queries: self.seeing(batch, at), keys: at..at + 1, ..whole.clone() },
        };
        // What a key adds to goes with o and lse of its queries, and these with all of their keys.
        if key_side && (self.output.is_none() || small.queries.is_empty()) {
            return vec![whole];
        }
        vec![small, whole]
    }

    /// A sequence with one key head and all that use it.
    fn whole(&self, batch: usize, key_head: usize) -> Part {
        let ((_, queries), (_, keys)) = (self.rows(0, batch), self.rows(1, batch));
        let query_heads = key_head * self.group()..(key_head + 1) * self.group();
        Part { batch, queries: 0..queries, query_heads, keys: 0..keys, key_head }
    }

    /// The parts that an element of a gradient is summed over, of the bias or of the sinks.
    fn parts_of_sums(&self, tensor: &str, index: usize) -> Vec<Part> {
        let (batch, key_head) = match (tensor, self.forward.bias) {
            ("dbias", Some(Bias { layout, .. })) => {
                let [batches, heads, queries, keys] = layout.shape;
                let outer = index / queries.saturating_mul(keys).max(1);
                let (batch, head) = (outer / heads.max(1), outer % heads.max(1));
                let key_head = head * self.key_heads() / heads.max(1);
                ((batches > 1).then_some(batch), (heads > 1).then_some(key_head))
            }
            _ => (None, Some(index / self.group().max(1))),
        };
        let wanted = |(at, head): &(usize, usize)| {
            batch.is_none_or(|batch| batch == *at) && key_head.is_none_or(|wanted| wanted == *head)
        };
        let heads = self.key_heads();
        let all = (0..self.batches()).flat_map(|batch| (0..heads).map(move |head| (batch, head)));
        all.filter(wanted).map(|(batch, key_head)| self.whole(batch, key_head)).collect()
    }
}

impl Part {
    /// How many pairs of a query and a key it has.
    pub fn pairs(&self) -> u128 {
        [self.queries.len(), self.query_heads.len(), self.keys.len()]
            .iter()
            .fold(1, |product, &size| product * size as u128)
    }

    /// Whether it is one query row: the keys that it sees are then all that there are.
    fn is_row(&self) -> bool {
        self.queries.len() == 1 && self.query_heads.len() == 1
    }

    /// The part as a problem of its own, but for what scores have beside q and k, and its offsets.
    fn problem(&self, whole: &ForwardProblem, is_cut: bool) -> ForwardProblem {
        // Every field has a name here: of one that is new it must be said what it becomes.
        let &ForwardProblem {
            q,
            k: _,
            v,
            o: _,
            dtype,
            output_dtype,
            scale,
            softcap,
            mask,
            bias: _,
            attn_mask: _,
            alibi: _,
            has_sinks: _,
            dropout,
            sequences: _,
            wants_lse: _,
            num_splits: _,
            pack_gqa,
            precision,
        } = whole;
        let ([_, _, _, columns], [_, _, _, value_columns]) = (q.shape, v.shape);
        let (queries, heads, keys) = (self.queries.len(), self.query_heads.len(), self.keys.len());
        let layout = |rows, heads, columns| Layout::bshd([1, rows, heads, columns]);
        ForwardProblem {
            q: layout(queries, heads, columns),
            k: layout(keys, 1, columns),
            v: layout(keys, 1, value_columns),
            o: layout(queries, heads, value_columns),
            dtype,
            output_dtype,
            scale,
            softcap,
            mask: if is_cut { Mask::Full } else { mask },
            bias: None,
            attn_mask: None,
            alibi: None,
            has_sinks: false,
            dropout,
            sequences: Sequences::Strided,
            wants_lse: true,
            // One kernel, whose stages are known.
            num_splits: Some(1),
            pack_gqa,
            precision,
        }
    }

    /// Offsets of packed sequences, of which the part is the last and others are empty; none without dropout.
    /// Numbers of dropout count the query heads of all sequences: so many are before those of the part.
    fn offsets(&self, whole: &ForwardProblem) -> [Vec<i32>; 2] {
        if whole.dropout.is_none() {
            return Default::default();
        }
        let before = self.batch * whole.k.shape[2] + self.key_head;
        [self.queries.len(), self.keys.len()].map(|rows| {
            let mut offsets = vec![0; before + 1];
            offsets.push(rows as i32);
            offsets
        })
    }

    /// The backward pass of the part.
    fn backward(&self, problem: ForwardProblem, whole: &BackwardProblem) -> BackwardProblem {
        let backward = BackwardProblem::new(problem)
            .with_gradient_dtype(whole.gradient_dtype)
            .with_mode(whole.mode);
        let backward = if whole.has_d_lse { backward.with_d_lse() } else { backward };
        let backward = match (whole.d_bias, problem.bias) {
            (Some(Bias { dtype, .. }), Some(bias)) => backward.with_d_bias(Bias { dtype, ..bias }),
            _ => backward,
        };
        if problem.has_sinks && whole.wants_d_sinks { backward.with_d_sinks() } else { backward }
    }

    /// Computes the part and gives its results by name, of the backward only if they are asked for. `G` is
    /// the element type of gradients.
    pub(super) fn compute<T: Element, O: Element, G: Element>(
        &self,
        of: &Computation<'_, T, O>,
        device: &Device,
        wants_gradients: bool,
    ) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let whole = of.whole(self.batch, self.key_head);
        let is_key =
            self.keys != whole.keys && self.query_heads == whole.query_heads && of.output.is_some();
        let is_key = is_key && self.keys.len() == 1 && wants_gradients;
        let (query_batch, rows) = of.place(0, self.batch, &self.queries);
        let (key_batch, keys) = of.place(1, self.batch, &self.keys);
        let key_heads = self.key_head..self.key_head + 1;
        let query_heads = self.query_heads.clone();
        let q = of.q.cut(query_batch, rows.clone(), query_heads.clone())?;
        let k = of.k.cut(key_batch, keys.clone(), key_heads.clone())?;
        let v = of.v.cut(key_batch, keys, key_heads)?;
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        let corner = Corner { batch: self.batch, query_heads, queries, keys };
        let scores = of.scores.corner(&corner, of.query_heads());
        let is_cut = is_key || self.is_row();
        let mut problem = scores.add_to(self.problem(&of.forward, is_cut))?;
        let offsets = self.offsets(&of.forward);
        let [cu_seqlens_q, cu_seqlens_k] = offsets.each_ref().map(Vec::as_slice);
        if !cu_seqlens_q.is_empty() {
            problem.sequences = Sequences::from_offsets(cu_seqlens_q, cu_seqlens_k)?;
        }
        let (q, k, v, scores) = (&q[..], &k[..], &v[..], scores.slices());
        let lse_of = |source: &super::Source<'_, f32>| -> Result<Vec<f32>> {
            let mut lines = Vec::new();
            for head in self.query_heads.clone() {
                lines.extend(source.cut(query_batch, rows.clone(), head..head + 1)?);
            }
            Ok(lines)
        };
        let forward = match &of.output {
            Some((o, lse)) if is_key => {
                let o = o.cut(query_batch, rows.clone(), self.query_heads.clone())?;
                crate::ForwardOutput { o, lse: lse_of(lse)? }
            }
            _ => {
                let inputs = ForwardInputs { q, k, v, scores, cu_seqlens_q, cu_seqlens_k };
                forward_inputs_host::<T, O>(device, &problem, &inputs)?
            }
        };
        let (Some(backward), Some(d_o), true) = (&of.backward, &of.d_o, wants_gradients) else {
            return Ok(named::<O, G>(Some(&forward), None));
        };
        let d_o = d_o.cut(query_batch, rows.clone(), self.query_heads.clone())?;
        let d_lse = of.d_lse.as_ref().map_or(Ok(Vec::new()), lse_of)?;
        let backward = self.backward(problem, backward);
        let inputs = BackwardInputs {
            q,
            k,
            v,
            o: &forward.o,
            lse: &forward.lse,
            d_o: &d_o,
            d_lse: &d_lse,
            scores,
            cu_seqlens_q,
            cu_seqlens_k,
        };
        let gradients = backward_host::<T, O, G>(device, &backward, &inputs)?;
        Ok(named((!is_key).then_some(&forward), Some(&gradients)))
    }
}
