//! What a pass was computed from, wherever it stands: parts of it are read when they are needed.

use super::ScoreElements;
use crate::attention::{BackwardOutput, Elements};
use crate::attention::{Element, ForwardOutput};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;
use crate::problem::{BackwardProblem, ForwardProblem, Layout, Sequences};
use bytemuck::cast_slice_mut;
use std::ops::Range;

/// Reads elements of the span of a tensor, by their distance from the lowest address.
type Read<'a, T> = Box<dyn Fn(Range<usize>) -> Result<Vec<T>> + 'a>;

/// A tensor on the host or on a device.
pub struct Source<'a, T> {
    layout: Layout,
    read: Read<'a, T>,
}

impl<'a, T: Element> Source<'a, T> {
    /// On the host: the span of its layout.
    pub fn host(layout: Layout, elements: &'a [T]) -> Self {
        Source { layout, read: Box::new(move |range| Ok(elements[range].to_vec())) }
    }

    /// On a device, by the address of element (0, 0, 0, 0), after all work queued on `stream`.
    ///
    /// # Safety
    /// All that is between the first and the last element is readable as long as the source lives.
    pub unsafe fn device(
        layout: Layout,
        device: &'a Device,
        address: DevicePointer,
        stream: Stream,
    ) -> Self {
        let first = address.wrapping_sub((layout.origin() * size_of::<T>()) as u64);
        let read = move |range: Range<usize>| {
            let mut elements = vec![T::zeroed(); range.len()];
            let from = first + (range.start * size_of::<T>()) as u64;
            device.driver().copy_to_host(cast_slice_mut(&mut elements), from, stream)?;
            Ok(elements)
        };
        Source { layout, read: Box::new(read) }
    }

    /// Rows and heads of a batch: `[rows, heads, columns]`, dense.
    pub(super) fn cut(&self, batch: usize, rows: Range<usize>, heads: Range<usize>) -> Result<Vec<T>> {
        let [_, _, _, columns] = self.layout.shape;
        let part = Layout { shape: [1, rows.len(), heads.len(), columns], ..self.layout };
        let Some((low, high)) = part.offsets() else { return Ok(Vec::new()) };
        let corner = self.layout.offset([batch, rows.start, heads.start, 0]);
        let first = (self.layout.origin() as i128 + corner as i128 + low) as usize;
        let elements = (self.read)(first..first + (high - low) as usize + 1)?;
        let mut cut = Vec::with_capacity(rows.len() * heads.len() * columns);
        for row in 0..rows.len() {
            for head in 0..heads.len() {
                let line = part.offset([0, row, head, 0]) as i128 - low;
                let step = self.layout.strides[3] as i128;
                cut.extend((0..columns).map(|at| elements[(line + at as i128 * step) as usize]));
            }
        }
        Ok(cut)
    }
}

/// The layout of lse, dense `[B, Hq, Sq]` or packed `[Hq, Tq]`, as `[batch, row, head, 1]`.
pub fn lse_layout(problem: &ForwardProblem) -> Layout {
    let [batches, rows, heads, _] = problem.q.shape;
    let strides = [heads.saturating_mul(rows) as i64, 1, rows as i64, 1];
    Layout { shape: [batches, rows, heads, 1], strides }
}

/// What one or both passes were computed from. `T` is the element type of q, k, v and dO, `O` that of o.
pub struct Computation<'a, T, O> {
    /// The forward pass.
    pub forward: ForwardProblem,
    /// The backward pass, if results of it are asked about.
    pub backward: Option<BackwardProblem>,
    /// `[B, Sq, Hq, D]`.
    pub q: Source<'a, T>,
    /// `[B, Sk, Hk, D]`.
    pub k: Source<'a, T>,
    /// `[B, Sk, Hk, Dv]`.
    pub v: Source<'a, T>,
    /// `[B, Sq, Hq, Dv]`, for a backward.
    pub d_o: Option<Source<'a, T>>,
    /// As [`lse_layout`] has it, for a backward that has one.
    pub d_lse: Option<Source<'a, f32>>,
    /// o and lse ([`lse_layout`]), as the backward was given them: with these a key can be looked at by
    /// itself.
    pub output: Option<(Source<'a, O>, Source<'a, f32>)>,
    /// What scores have beside q and k.
    pub scores: ScoreElements<T>,
    /// Offsets of packed sequences in q and in k.
    pub offsets: Option<[Vec<i32>; 2]>,
}

impl<T, O> Computation<'_, T, O> {
    /// How many sequences there are.
    pub(super) fn batches(&self) -> usize {
        match (&self.offsets, self.forward.sequences) {
            (Some([offsets, _]), _) => offsets.len().saturating_sub(1),
            (None, Sequences::Packed { count, .. }) => count,
            (None, Sequences::Strided) => self.forward.q.shape[0],
        }
    }

    /// Rows of all sequences of q or k, as they are numbered in the tensor, of one: the first, and how many.
    /// Nothing is made of the number of batches: with no elements, there can be billions of them.
    pub(super) fn rows(&self, side: usize, batch: usize) -> (usize, usize) {
        match &self.offsets {
            None => {
                let rows = [self.forward.q, self.forward.k][side].shape[1];
                (batch * rows, rows)
            }
            Some(offsets) => {
                let (first, end) = (offsets[side][batch] as usize, offsets[side][batch + 1] as usize);
                (first, end - first)
            }
        }
    }

    /// Where a range of rows of a sequence stands: a batch of the tensor, and its rows.
    pub(super) fn place(&self, side: usize, batch: usize, rows: &Range<usize>) -> (usize, Range<usize>) {
        match &self.offsets {
            None => (batch, rows.clone()),
            Some(_) => {
                let (first, _) = self.rows(side, batch);
                (0, first + rows.start..first + rows.end)
            }
        }
    }
}

/// The results of one or both passes, by name, as f32.
pub fn named<O: Element, G: Element>(
    forward: Option<&ForwardOutput<O>>,
    gradients: Option<&BackwardOutput<G>>,
) -> Vec<(&'static str, Vec<f32>)> {
    fn wide<E: Element>(values: &[E]) -> Vec<f32> {
        values.iter().map(|value| value.to_f32()).collect()
    }
    let mut all = Vec::new();
    if let Some(ForwardOutput { o, lse }) = forward {
        all.extend([("o", wide(o)), ("lse", lse.clone())]);
    }
    if let Some(BackwardOutput { dq, dk, dv, d_bias, d_sinks }) = gradients {
        all.extend([("dq", wide(dq)), ("dk", wide(dk)), ("dv", wide(dv))]);
        all.extend(d_bias.as_ref().map(|d_bias| match d_bias {
            Elements::Bf16(elements) => ("dbias", wide(elements)),
            Elements::F16(elements) => ("dbias", wide(elements)),
            Elements::F32(elements) => ("dbias", elements.clone()),
        }));
        all.extend((!d_sinks.is_empty()).then(|| ("dsinks", d_sinks.clone())));
    }
    all
}
