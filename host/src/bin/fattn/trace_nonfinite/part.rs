//! A part of a task that shows the same value: one query row with the keys that it sees, or one key head.

use crate::task::{Corner, Input, Results, ScoreElements, Task};
use anyhow::Result;
use finite_attention::problem::{Bias, Mask};
use finite_attention::{
    BackwardInputs, BackwardProblem, CausalAlignment, Device, Element, ForwardInputs, ForwardProblem,
    Layout, Sequences, backward_host, forward_inputs_host,
};
use serde::Serialize;
use std::ops::Range;

/// Which part of a task; ranges within the sequence and the heads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    pub batch: usize,
    pub queries: Range<usize>,
    pub query_heads: Range<usize>,
    pub keys: Range<usize>,
    pub key_head: usize,
}

/// Where the sequences of a task lie in its tensors, seen as rows of heads, and what scores have beside q and
/// k.
/// `T` is the element type of q.
pub struct Sizes<T> {
    group: usize,
    query_heads: usize,
    key_heads: usize,
    /// How many sequences.
    batches: usize,
    /// Rows of each sequence in q and in k, where they are not packed.
    rows: [usize; 2],
    /// Offsets of packed sequences in q and in k.
    offsets: Option<[Vec<i32>; 2]>,
    mask: Mask,
    scores: ScoreElements<T>,
    /// Whether slopes or dropout make it matter where in its sequence a pair is.
    counts_positions: bool,
    bias_shape: Option<[usize; 4]>,
}

impl<T: Element> Sizes<T> {
    pub fn new(task: &Task<'_>) -> Result<Self> {
        let [batches, query_rows, query_heads, _] = task.problem.q.shape;
        let [_, key_rows, key_heads, _] = task.problem.k.shape;
        let offsets = task.inputs.offsets.clone();
        // Nothing is made of the number of batches: with no elements, there can be billions of them.
        let batches = offsets.as_ref().map_or(batches, |[q, _]| q.len().saturating_sub(1));
        Ok(Sizes {
            group: query_heads / key_heads.max(1),
            query_heads,
            key_heads,
            batches,
            rows: [query_rows, key_rows],
            offsets,
            mask: task.problem.mask,
            scores: task.inputs.scores.elements()?,
            counts_positions: task.problem.alibi.is_some() || task.problem.dropout.is_some(),
            bias_shape: task.problem.bias.map(|bias| bias.layout.shape),
        })
    }

    /// First row and rows of a sequence, of q and of k.
    fn rows_of(&self, batch: usize) -> [(usize, usize); 2] {
        match &self.offsets {
            None => self.rows.map(|rows| (batch * rows, rows)),
            Some(offsets) => offsets.each_ref().map(|offsets| {
                let first = offsets[batch] as usize;
                (first, offsets[batch + 1] as usize - first)
            }),
        }
    }

    /// The keys that a query of a sequence sees.
    fn visible(&self, batch: usize, query: usize) -> Range<usize> {
        let [(_, queries), (_, keys)] = self.rows_of(batch);
        if self.mask == Mask::Full {
            return 0..keys;
        }
        let shift = match self.mask.alignment() {
            CausalAlignment::BottomRight => keys as i64 - queries as i64,
            CausalAlignment::TopLeft => 0,
        };
        let (left, right) = self.mask.sides();
        let at = query as i64 + shift;
        let clamped = |key: i64| key.clamp(0, keys as i64) as usize;
        let begin = left.map_or(0, |left| clamped(at - i64::from(left)));
        let end = right.map_or(keys, |right| clamped(at + i64::from(right) + 1));
        begin..end.max(begin)
    }

    /// The sequence of a row of q (`side` 0) or k (1), and its place there.
    fn sequence(&self, side: usize, row: usize) -> Option<(usize, usize)> {
        let batch = match &self.offsets {
            None => row.checked_div(self.rows[side])?,
            // The last one that begins there or before: those before it that begin there have no rows.
            Some(offsets) => {
                offsets[side].partition_point(|&first| first as usize <= row).checked_sub(1)?
            }
        };
        let (first, rows) = (batch < self.batches).then(|| self.rows_of(batch)[side])?;
        (row < first + rows).then_some((batch, row - first))
    }

    /// Batch, head and query of an element of lse.
    fn lse_element(&self, index: usize) -> Option<(usize, usize, usize)> {
        let per_line = match &self.offsets {
            None => self.rows[0],
            Some([offsets, _]) => *offsets.last()? as usize,
        };
        let (line, at) = (index.checked_div(per_line)?, index % per_line);
        if self.offsets.is_some() {
            let (batch, query) = self.sequence(0, at)?;
            return Some((batch, line, query));
        }
        Some((line / self.query_heads, line % self.query_heads, at))
    }

    /// Whether an element of lse is that of a query that sees no key.
    pub fn is_dead(&self, index: usize) -> bool {
        self.lse_element(index).is_some_and(|(batch, head, query)| {
            let hidden = |key| self.scores.hides([batch, head, query, key], self.query_heads);
            self.visible(batch, query).all(hidden)
        })
    }

    /// The parts to try for an element of a result, the smallest first.
    pub fn parts(&self, tensor: &str, index: usize, columns: usize) -> Vec<Part> {
        let place = |side: usize, heads: usize| {
            let (row, head) = (index / columns / heads, index / columns % heads);
            self.sequence(side, row).map(|(batch, at)| (batch, head, at))
        };
        let (key_side, found) = match tensor {
            "dbias" | "dsinks" => return self.parts_of_sums(tensor, index),
            "lse" => (false, self.lse_element(index)),
            "dk" | "dv" => (true, place(1, self.key_heads)),
            _ => (false, place(0, self.query_heads)),
        };
        let Some((batch, head, at)) = found else { return Vec::new() };
        let key_head = if key_side { head } else { head / self.group };
        let whole = self.whole(batch, key_head);
        // Slopes go with distances, and dropout with positions: those in the whole sequence.
        if key_side || self.counts_positions {
            return vec![whole];
        }
        let row = Part {
            queries: at..at + 1,
            query_heads: head..head + 1,
            keys: self.visible(batch, at),
            ..whole.clone()
        };
        vec![row, whole]
    }

    /// A sequence with one key head and all that use it.
    fn whole(&self, batch: usize, key_head: usize) -> Part {
        let [(_, queries), (_, keys)] = self.rows_of(batch);
        let query_heads = key_head * self.group..(key_head + 1) * self.group;
        Part { batch, queries: 0..queries, query_heads, keys: 0..keys, key_head }
    }

    /// The parts that an element of a gradient is summed over, of the bias or of the sinks.
    fn parts_of_sums(&self, tensor: &str, index: usize) -> Vec<Part> {
        let (batch, key_head) = match (tensor, self.bias_shape) {
            ("dbias", Some([batches, heads, queries, keys])) => {
                let outer = index / (queries * keys).max(1);
                let (batch, head) = (outer / heads, outer % heads);
                let key_head = head * self.key_heads / heads;
                ((batches > 1).then_some(batch), (heads > 1).then_some(key_head))
            }
            _ => (None, Some(index / self.group.max(1))),
        };
        let batches = 0..self.batches;
        let wanted = |(at, head): &(usize, usize)| {
            batch.is_none_or(|batch| batch == *at) && key_head.is_none_or(|wanted| wanted == *head)
        };
        let all = batches.flat_map(|batch| (0..self.key_heads).map(move |head| (batch, head)));
        all.filter(wanted).map(|(batch, key_head)| self.whole(batch, key_head)).collect()
    }
}

/// Rows and heads of a dense tensor.
fn cut<T: Element>(input: &Input<'_>, rows: Range<usize>, heads: Range<usize>) -> Vec<T> {
    let shape = input.view.shape();
    let [all_heads, columns] = [shape[shape.len() - 2], shape[shape.len() - 1]];
    let elements = input.elements::<T>();
    let line = |row: usize| {
        let first = (row * all_heads + heads.start) * columns;
        &elements[first..first + heads.len() * columns]
    };
    rows.flat_map(line).copied().collect()
}

impl Part {
    /// Whether it is one query row: the keys that it sees are then all that there are.
    pub fn is_row(&self) -> bool {
        self.queries.len() == 1 && self.query_heads.len() == 1
    }

    /// The part as a problem of its own, but for what scores have beside q and k, and its offsets.
    fn problem(&self, whole: &ForwardProblem) -> ForwardProblem {
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
            wants_lse,
            num_splits: _,
            pack_gqa,
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
            mask: if self.is_row() { Mask::Full } else { mask },
            bias: None,
            attn_mask: None,
            alibi: None,
            has_sinks: false,
            dropout,
            sequences: Sequences::Strided,
            wants_lse,
            // One kernel, whose stages are known.
            num_splits: Some(1),
            pack_gqa,
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

    /// Computes the part, gradients only if they are asked for.
    pub fn compute<T: Element, O: Element>(
        &self,
        task: &Task<'_>,
        sizes: &Sizes<T>,
        device: &Device,
        gradients: bool,
    ) -> Result<Results<O>> {
        let [(first_query, _), (first_key, _)] = sizes.rows_of(self.batch);
        let rows = first_query + self.queries.start..first_query + self.queries.end;
        let keys = first_key + self.keys.start..first_key + self.keys.end;
        let key_heads = self.key_head..self.key_head + 1;
        let inputs = &task.inputs;
        let q = cut::<T>(&inputs.q, rows.clone(), self.query_heads.clone());
        let k = cut::<T>(&inputs.k, keys.clone(), key_heads.clone());
        let v = cut::<T>(&inputs.v, keys, key_heads);
        let (batch, query_heads) = (self.batch, self.query_heads.clone());
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        let corner = Corner { batch, query_heads, queries, keys };
        let scores = sizes.scores.corner(&corner, sizes.query_heads);
        let mut problem = scores.add_to(self.problem(&task.problem))?;
        let offsets = self.offsets(&task.problem);
        let [cu_seqlens_q, cu_seqlens_k] = offsets.each_ref().map(Vec::as_slice);
        if !cu_seqlens_q.is_empty() {
            problem.sequences = Sequences::from_offsets(cu_seqlens_q, cu_seqlens_k)?;
        }
        let (q, k, v, scores) = (&q[..], &k[..], &v[..], scores.slices());
        let forward_inputs = ForwardInputs { q, k, v, scores, cu_seqlens_q, cu_seqlens_k };
        let forward = forward_inputs_host::<T, O>(device, &problem, &forward_inputs)?;
        let (Some(whole), Some(d_o), true) = (task.backward_problem()?, &inputs.d_o, gradients) else {
            return Ok(Results { forward, gradients: None });
        };
        let d_o = cut::<T>(d_o, rows.clone(), self.query_heads.clone());
        let d_lse = inputs.d_lse.as_ref().map_or(Vec::new(), |d_lse| self.d_lse(d_lse, sizes, rows));
        let backward = BackwardProblem::new(problem)
            .with_gradient_dtype(whole.gradient_dtype)
            .with_mode(whole.mode);
        let backward = if whole.has_d_lse { backward.with_d_lse() } else { backward };
        let backward = match (whole.d_bias, problem.bias) {
            (Some(Bias { dtype, .. }), Some(bias)) => backward.with_d_bias(Bias { dtype, ..bias }),
            _ => backward,
        };
        let backward = if problem.has_sinks { backward.with_d_sinks() } else { backward };
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
        let gradients = Some(backward_host(device, &backward, &inputs)?);
        Ok(Results { forward, gradients })
    }

    /// dLSE of the part: `[1, heads, queries]`.
    fn d_lse<T: Element>(&self, input: &Input<'_>, sizes: &Sizes<T>, rows: Range<usize>) -> Vec<f32> {
        let elements = input.elements::<f32>();
        let line = |head: usize| match sizes.offsets {
            Some(_) => head * (elements.len() / sizes.query_heads),
            None => (self.batch * sizes.query_heads + head) * sizes.rows[0],
        };
        let rows = if sizes.offsets.is_some() { rows } else { self.queries.clone() };
        let of_head = |head: usize| &elements[line(head) + rows.start..line(head) + rows.end];
        self.query_heads.clone().flat_map(of_head).copied().collect()
    }
}
