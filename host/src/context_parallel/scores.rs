//! Bias and boolean mask of a rank, over its own queries and the keys of the whole: what of them each part
//! sees.

use super::layout::{Chunk, ContextLayout};
use super::schedule::{Part, Piece, Rows};
use super::sharing::ContextExchange;
use super::views::{PartPlace, View};
use super::{ContextPass, Use};
use crate::attention::PreparedMask;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use crate::plan::ScorePointers;
use crate::problem::{Bias, Layout, MaskShape, SCORE_DIMENSIONS, ScoreLayout};

/// A tensor over scores, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// Where its elements stand.
    pub layout: ScoreLayout,
    /// The element (0, 0, 0, 0), in elements from that of the whole.
    pub offset: i64,
}

impl Slice {
    /// What these queries and keys have of a tensor; dimensions that are 1 for all stay so.
    pub fn of(layout: &ScoreLayout, [queries, keys]: [&Chunk; 2]) -> Self {
        let mut slice = Slice { layout: *layout, offset: 0 };
        for (dimension, chunk) in [(2, queries), (3, keys)] {
            if layout.shape[dimension] == 1 {
                continue;
            }
            let stride = layout.strides[dimension];
            slice.offset += chunk.first as i64 * stride;
            slice.layout.shape[dimension] = chunk.rows;
            slice.layout.strides[dimension] = chunk.step as i64 * stride;
        }
        slice
    }
}

/// Where rows of k that a part sees stand in the whole: `ranks` share `total` of them, and these are those of
/// `source`, or, by heads, of the whole.
pub(super) fn places_of_keys(
    (layout, exchange): (ContextLayout, ContextExchange),
    (ranks, source): (usize, usize),
    total: usize,
    rows: &Rows,
) -> Chunk {
    let whole = Chunk { first: rows.first, step: 1, rows: rows.count };
    if exchange == ContextExchange::Heads || rows.count == 0 {
        return whole;
    }
    let mut before = 0;
    for Chunk { first, step, rows: count } in layout.chunks(ranks, source, total) {
        if rows.first < before + count {
            return Chunk { first: first + step * (rows.first - before), step, rows: rows.count };
        }
        before += count;
    }
    whole
}

impl ContextPass<'_> {
    /// Queues what makes bits of this rank's boolean mask, `[B|1, Hq|Hk|1, rows of q here|1, Sk|1]` of bytes,
    /// for each part of its keys: once for any number of passes, which must come behind it on the same
    /// stream. `pointer` is the address of element (0, 0, 0, 0).
    ///
    /// # Errors
    /// [`Error::NotInProblem`] without a mask in the problem, [`Error::WrongSize`] for one of another shape,
    /// and those of [`PreparedMask::new`].
    ///
    /// # Safety
    /// As for [`PreparedMask::new`].
    pub unsafe fn prepare_mask(
        &mut self,
        layout: &ScoreLayout,
        pointer: DevicePointer,
        stream: Stream,
    ) -> Result<()> {
        let elements = layout.elements();
        let Some(expected) = self.valid.scores.mask else {
            let got = usize::try_from(elements).unwrap_or(usize::MAX);
            return Err(Error::NotInProblem { argument: "mask", got });
        };
        MaskShape::of(layout, expected.keys)?;
        let sizes = [expected.batches, expected.heads, expected.queries];
        for ((expected, got), dimension) in sizes.into_iter().zip(layout.shape).zip(SCORE_DIMENSIONS) {
            if got != expected {
                let (argument, like) = ("mask", "problem");
                return Err(Error::WrongSize { argument, dimension, expected, like, got });
            }
        }
        if elements > 0 && pointer == 0 {
            return Err(Error::NullPointer { argument: "mask", elements });
        }
        let pieces = self.pieces.clone();
        for (index, piece) in pieces.iter().enumerate() {
            for (number, part) in piece.parts.iter().enumerate() {
                let slice = Slice::of(layout, self.places(piece, part).each_ref());
                let (device, keys) = (&self.group.device, part.keys.count);
                let begin = pointer.wrapping_add_signed(slice.offset);
                // SAFETY: a part of the tensor that the caller vouches for.
                let mask = unsafe { PreparedMask::new(device, &slice.layout, keys, begin, stream) }?;
                self.masks.insert((index, number), mask);
            }
        }
        Ok(())
    }

    /// Which queries of this rank, and which keys of the whole, a part is of.
    pub(super) fn places(&self, piece: &Piece, part: &Part) -> [Chunk; 2] {
        let Rows { first, count, .. } = piece.queries;
        let (ranks, source) = (self.group.ranks(), self.source(part.step));
        let total = self.valid.all_key_rows();
        let way = (self.group.sharing.layout, self.chosen.exchange);
        let keys = places_of_keys(way, (ranks, source), total, &part.keys);
        [Chunk { first, step: 1, rows: count }, keys]
    }

    /// What the scores of a part have.
    ///
    /// # Errors
    /// [`Error::NullPointer`] for a bias without an address, and for a mask that was not prepared.
    pub(super) fn score_pointers(
        &self,
        at: (usize, usize),
        place: &PartPlace,
        whole: &ScorePointers,
    ) -> Result<ScorePointers> {
        let problem = &place.valid.problem;
        let mut pointers = ScorePointers { sinks: whole.sinks, ..ScorePointers::default() };
        if let Some(Bias { layout, dtype }) = problem.bias {
            if whole.bias == 0 && layout.elements() > 0 {
                return Err(Error::NullPointer { argument: "bias", elements: layout.elements() });
            }
            let bytes = place.bias_offset * i64::from(dtype.bytes());
            pointers.bias = whole.bias.wrapping_add_signed(bytes);
        }
        if let Some(shape) = problem.attn_mask {
            let mask = self.masks.get(&at);
            let unprepared = Error::NullPointer { argument: "mask", elements: shape.words() };
            pointers.mask_bits = mask.ok_or(unprepared)?.device_pointer();
        }
        Ok(pointers)
    }

    /// Writes zeros to a gradient of the bias: pairs that no query sees are in no part.
    pub(super) fn zero_d_bias(
        &self,
        d_bias: &Bias,
        pointer: DevicePointer,
        stream: Stream,
    ) -> Result<()> {
        let ScoreLayout { shape: [batches, heads, queries, keys], strides: [a, b, c, d] } =
            d_bias.layout;
        let layout = Layout { shape: [batches, queries, heads, keys], strides: [a, c, b, d] };
        self.add(View { pointer, layout, dtype: d_bias.dtype }, [None, None], stream)
    }

    /// f32 `[heads]`: gradients of sinks.
    pub(super) fn d_sinks_view(&self, heads: usize, pointer: DevicePointer) -> View {
        View::dense(pointer, [1, 1, 1, heads], kernels_gpu::abi::Dtype::F32)
    }

    /// Memory for the gradients of the sinks of a piece.
    pub(super) fn d_sinks_of_piece(&mut self) -> Result<DevicePointer> {
        let bytes = self.d_sinks_view(self.valid.local.problem.q.shape[2], 0).bytes();
        self.room.of(&self.group.device, Use::DSinks, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element by element, what a part has of a tensor over all keys.
    #[test]
    fn a_slice_has_the_keys_of_its_part() {
        let (ranks, total, rows) = (3, 50, 4);
        let layout = ScoreLayout::dense([1, 1, rows, total]);
        for context in ContextLayout::ALL {
            for source in 0..ranks {
                let positions = context.positions(ranks, source, &[0, total]);
                let mut first = 0;
                for chunk in context.chunks(ranks, source, total) {
                    let own = Rows { first, count: chunk.rows, chunk: None };
                    first += chunk.rows;
                    let way = (context, ContextExchange::Round);
                    let keys = places_of_keys(way, (ranks, source), total, &own);
                    let queries = Chunk { first: 1, step: 1, rows: 2 };
                    let slice = Slice::of(&layout, [&queries, &keys]);
                    assert_eq!(slice.layout.shape, [1, 1, 2, chunk.rows]);
                    for (key, position) in positions[own.first..][..own.count].iter().enumerate() {
                        let place = slice.offset + key as i64 * slice.layout.strides[3];
                        assert_eq!(place, (total + position) as i64, "{context} {source}");
                    }
                }
            }
        }
        let one = ScoreLayout { shape: [1, 1, 1, 1], strides: [0; 4] };
        let chunk = Chunk { first: 3, step: 2, rows: 5 };
        assert_eq!(Slice::of(&one, [&chunk, &chunk]), Slice { layout: one, offset: 0 });
    }
}
