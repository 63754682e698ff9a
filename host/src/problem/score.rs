//! Tensors over scores: the bias that is added to them, the boolean mask that hides them, and the slopes of
//! ALiBi. What of all that is switched on in kernels.

use super::{
    BackwardProblem, Dropout, ForwardProblem, Sequences, Softcap, ValidForward, check_row_count,
    check_size, layout,
};
use crate::error::{Error, Result};
use kernels_gpu::abi::{Dtype, STEEP_CAP, Switch, Switches};
use kernels_gpu::geometry::mask_map;

/// Names of the four dimensions of a tensor over scores, as they appear in errors.
pub const SCORE_DIMENSIONS: [&str; 4] = ["batch", "heads", "queries", "keys"];

/// Shape and strides of a tensor over scores, `[batch, head, query, key]`: B, Hq or Hk, Sq and Sk of them, or
/// 1, which stands for all (broadcast). Of packed sequences `[sequences, heads, most queries, most keys]`,
/// with positions counted within each sequence.
///
/// A head dimension of Hk has an entry for all query heads that share a key head. Strides are in elements,
/// and may be anything, 0 and negative ones included; that of a dimension of 1 is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScoreLayout {
    /// `[batch, head, query, key]`.
    pub shape: [usize; 4],
    /// Elements from one index to the next, per dimension.
    pub strides: [i64; 4],
}

/// The bias: what is added to scores, once they are scaled and capped. Minus infinity hides a key; the lowest
/// finite number of a type does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bias {
    /// Where its elements stand.
    pub layout: ScoreLayout,
    /// Its element type: that of q, or f32.
    pub dtype: Dtype,
}

/// The shape of a boolean mask in bits, as [`PreparedMask`](crate::attention::PreparedMask) has it: `[batch,
/// head, query]` of it, or 1, and all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskShape {
    /// B, or 1; of packed sequences, how many.
    pub batches: usize,
    /// Hq or Hk, or 1.
    pub heads: usize,
    /// Sq, or 1; of packed sequences, the most.
    pub queries: usize,
    /// Sk; of packed sequences, the most.
    pub keys: usize,
}

impl MaskShape {
    /// The shape of the bits of a boolean tensor, `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, of a problem with so many
    /// keys.
    ///
    /// # Errors
    /// [`Error::SizeRange`], [`Error::BroadcastSize`], [`Error::AddressSpan`], [`Error::MaskWords`].
    pub fn of(layout: &ScoreLayout, keys: usize) -> Result<Self> {
        let [batches, heads, queries, got] = layout.shape;
        check_row_count("mask", "keys", keys)?;
        if got != keys && got != 1 {
            let (argument, dimension) = ("mask", "keys");
            return Err(Error::BroadcastSize { argument, dimension, expected: keys, also: None, got });
        }
        layout.check_span("mask", 1)?;
        let shape = MaskShape { batches, heads, queries, keys };
        let (max, got) = (u32::MAX, shape.words());
        if got > u128::from(max) {
            return Err(Error::MaskWords { max, shape: [batches, heads, queries, keys], got });
        }
        Ok(shape)
    }

    /// Words of 32 bits of a row.
    pub const fn row_words(&self) -> usize {
        self.keys.div_ceil(32)
    }

    /// Words of 32 bits of all rows.
    pub fn words(&self) -> u128 {
        layout::elements([self.batches, self.heads, self.queries, self.row_words()])
    }

    /// Batches, heads, windows of keys and granules of queries of the map of its tiles ([`mask_map`]).
    pub(crate) const fn map_shape(&self) -> [usize; 4] {
        [self.batches, self.heads, mask_map::windows(self.keys), mask_map::granules(self.queries)]
    }

    /// Words of 32 bits before the map, behind the bits and a gap: elements of the map are of eight bytes.
    pub(crate) fn map_offset(&self) -> u64 {
        /// Nobody writes these rows, as many as a lane's may be apart, nor the words behind them, so that the
        /// emulator sees who reads on behind the bits.
        const GAP_ROWS: u64 = 16;
        const GAP: u64 = 32;
        (self.words() as u64 + GAP_ROWS * self.row_words() as u64 + GAP).next_multiple_of(2)
    }
}

/// For whom the slopes of ALiBi (Press, Smith and Lewis 2021) are. They are f32, and dense: from the score of
/// query i and key j, `slope * |i + Sk - Sq - j|` is subtracted; `slope * |i - j|` where a mask is aligned at
/// the top left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlibiSlopes {
    /// `[Hq]`.
    PerHead,
    /// `[B, Hq]`.
    PerBatchAndHead,
}

impl AlibiSlopes {
    /// For whom slopes of this shape are, `[Hq]` or `[B, Hq]`.
    ///
    /// # Errors
    /// [`WrongRank`](Error::WrongRank), [`WrongSize`](Error::WrongSize).
    pub fn of(shape: &[usize], batches: usize, heads: usize) -> Result<Self> {
        let argument = "alibi_slopes";
        match *shape {
            [got] => check_size(argument, "heads", heads, "q", got).map(|()| AlibiSlopes::PerHead),
            [of_batches, got] => {
                check_size(argument, "batch", batches, "q", of_batches)?;
                check_size(argument, "heads", heads, "q", got)?;
                Ok(AlibiSlopes::PerBatchAndHead)
            }
            _ => {
                let (names, got) = ("[head], or 2 [batch, head]", shape.len());
                Err(Error::WrongRank { argument, expected: 1, names, got })
            }
        }
    }
}

/// Sinks of this shape are `[Hq]`.
///
/// # Errors
/// [`WrongRank`](Error::WrongRank), [`WrongSize`](Error::WrongSize).
pub fn check_sinks(shape: &[usize], heads: usize) -> Result<()> {
    match *shape {
        [got] => check_size("sinks", "heads", heads, "q", got),
        _ => {
            let (names, got) = ("[head]", shape.len());
            Err(Error::WrongRank { argument: "sinks", expected: 1, names, got })
        }
    }
}

impl ScoreLayout {
    /// Dense, in the order `[batch, head, query, key]`.
    pub fn dense(shape: [usize; 4]) -> Self {
        ScoreLayout { shape, strides: layout::dense_strides(shape, [0, 1, 2, 3]) }
    }

    /// How many elements the shape has.
    pub fn elements(&self) -> u128 {
        layout::elements(self.shape)
    }

    /// Lowest and highest element offset from element (0, 0, 0, 0), inclusive; `None` when there are no
    /// elements.
    pub fn offsets(&self) -> Option<(i128, i128)> {
        layout::offsets(self.shape, self.strides)
    }

    /// Elements from the lowest to the highest address, both included: the length of a slice that holds the
    /// tensor. Only for layouts that were validated.
    pub fn span(&self) -> usize {
        self.offsets().map_or(0, |(low, high)| (high - low + 1) as usize)
    }

    /// Where element (0, 0, 0, 0) stands in a slice of [`ScoreLayout::span`] elements: above 0 with negative
    /// strides.
    pub fn origin(&self) -> usize {
        self.offsets().map_or(0, |(low, _)| (-low) as usize)
    }

    /// Offset of the element of a batch, head, query and key from element (0, 0, 0, 0); dimensions of 1 stand
    /// for all. `head` is an index of this tensor's heads: see [`ScoreLayout::head`].
    pub fn offset(&self, index: [usize; 4]) -> isize {
        let of = |dimension: usize| {
            let index = if self.shape[dimension] == 1 { 0 } else { index[dimension] };
            index as isize * self.strides[dimension] as isize
        };
        (0..4).map(of).sum()
    }

    /// The head of this tensor that query head `head` of `query_heads` uses.
    pub fn head(&self, head: usize, query_heads: usize) -> usize {
        head * self.shape[1] / query_heads.max(1)
    }

    /// Each dimension is that of the problem, or 1, and all byte offsets of elements of `bytes` bytes fit an
    /// i64.
    pub(super) fn check(&self, argument: &'static str, of: &ScoreShape, bytes: u32) -> Result<()> {
        let ScoreShape { batches, query_heads, key_heads, query_rows, key_rows } = *of;
        let sizes = [batches, query_heads, query_rows, key_rows];
        for dimension in 0..4 {
            let (got, expected) = (self.shape[dimension], sizes[dimension]);
            let of_key_heads = dimension == 1 && got == key_heads;
            if got != 1 && got != expected && !of_key_heads {
                let also = (dimension == 1 && key_heads != query_heads).then_some(key_heads);
                let dimension = SCORE_DIMENSIONS[dimension];
                return Err(Error::BroadcastSize { argument, dimension, expected, also, got });
            }
        }
        self.check_span(argument, bytes)
    }

    /// All byte offsets of elements of `bytes` bytes fit an i64.
    fn check_span(&self, argument: &'static str, bytes: u32) -> Result<()> {
        let Some((low, high)) = self.offsets() else { return Ok(()) };
        let span = high.saturating_sub(low).saturating_add(1).saturating_mul(i128::from(bytes));
        if span <= i128::from(i64::MAX) {
            return Ok(());
        }
        Err(Error::AddressSpan { argument, shape: self.shape, strides: self.strides })
    }
}

/// Sizes that tensors over scores can have.
pub(super) struct ScoreShape {
    pub batches: usize,
    pub query_heads: usize,
    pub key_heads: usize,
    pub query_rows: usize,
    pub key_rows: usize,
}

impl ForwardProblem {
    /// Sets the bias.
    pub fn with_bias(self, bias: Bias) -> Self {
        ForwardProblem { bias: Some(bias), ..self }
    }

    /// Sets the boolean mask, by the shape that
    /// [`PreparedMask::shape`](crate::attention::PreparedMask::shape) gives: what it hides is hidden beside
    /// what [`ForwardProblem::mask`] hides.
    pub fn with_attn_mask(self, attn_mask: MaskShape) -> Self {
        ForwardProblem { attn_mask: Some(attn_mask), ..self }
    }

    /// Says that there are slopes of ALiBi.
    pub fn with_alibi(self, alibi: AlibiSlopes) -> Self {
        ForwardProblem { alibi: Some(alibi), ..self }
    }

    /// Says that each query head has a sink: a learnable logit (f32 `[Hq]`) that is in the denominator of the
    /// softmax, and has no value.
    pub fn with_sinks(self) -> Self {
        ForwardProblem { has_sinks: true, ..self }
    }

    /// The sizes of its scores, `[B, Hq, Sq, Sk]`: what a tensor over them has that broadcasts nothing. Of
    /// packed sequences B is how many, Sq and Sk the most.
    pub fn score_shape(&self) -> [usize; 4] {
        let [batches, query_rows, query_heads, _] = self.q.shape;
        match self.sequences {
            Sequences::Strided => [batches, query_heads, query_rows, self.k.shape[1]],
            Sequences::Packed { count, max_query_rows, max_key_rows } => {
                [count, query_heads, max_query_rows, max_key_rows]
            }
        }
    }

    /// Bias and boolean mask fit the problem.
    pub(super) fn check_scores(&self) -> Result<()> {
        let [batches, query_heads, query_rows, key_rows] = self.score_shape();
        let key_heads = self.k.shape[2];
        let shape = ScoreShape { batches, query_heads, key_heads, query_rows, key_rows };
        if let Some(Bias { layout, dtype }) = &self.bias {
            if *dtype != self.dtype && *dtype != Dtype::F32 {
                return Err(Error::UnsupportedDtype {
                    argument: "bias",
                    expected: format!("{} like q, or f32", self.dtype.name()),
                    got: dtype.name().to_owned(),
                });
            }
            layout.check("bias", &shape, dtype.bytes())?;
        }
        let Some(MaskShape { batches, heads, queries, keys }) = self.attn_mask else { return Ok(()) };
        check_size("mask", "keys", key_rows, "k", keys)?;
        ScoreLayout::dense([batches, heads, queries, keys]).check("mask", &shape, 1)
    }
}

impl ValidForward {
    /// What of the problem is switched on in the kernels that make scores.
    pub fn switches(&self) -> Switches {
        let ForwardProblem { bias, attn_mask, alibi, has_sinks, dtype, .. } = self.problem;
        let bias = bias.map(|bias| if bias.dtype == dtype { Switch::Bias } else { Switch::BiasF32 });
        [
            self.softcap.map(|_| Switch::Softcap),
            bias,
            attn_mask.map(|_| Switch::AttnMask),
            alibi.map(|_| Switch::Alibi),
            has_sinks.then_some(Switch::Sinks),
            self.dropout().map(|_| Switch::Dropout),
        ]
        .into_iter()
        .flatten()
        .fold(Switches::NONE, Switches::with)
    }

    /// The same of the kernels of a backward.
    pub fn backward_switches(&self) -> Switches {
        let is_steep = |softcap: Softcap| softcap.cap >= STEEP_CAP || self.problem.has_sinks;
        let switches = self.switches().of_scores();
        if self.softcap.is_some_and(is_steep) { switches.with(Switch::SteepCap) } else { switches }
    }

    /// Dropout, if its rate drops anything.
    pub fn dropout(&self) -> Option<Dropout> {
        self.problem.dropout.filter(|dropout| dropout.dropped() != Ok(0))
    }

    /// Whether something is added to scores, which kernels therefore have in natural units.
    pub fn has_natural_scores(&self) -> bool {
        self.problem.bias.is_some() || self.problem.alibi.is_some()
    }

    /// Whether bias, boolean mask, slopes or the numbers of dropout are those of a batch or packed sequence,
    /// so that kernels must know which it is.
    pub(crate) fn tells_batches_apart(&self) -> bool {
        self.has_natural_scores() || self.problem.attn_mask.is_some() || self.dropout().is_some()
    }
}

impl BackwardProblem {
    /// The gradients of bias and sinks are of a bias and of sinks that there are, and that of the bias has
    /// its shape.
    pub(super) fn check_score_gradients(&self) -> Result<()> {
        let ForwardProblem { bias, has_sinks, .. } = &self.forward;
        if self.wants_d_sinks && !has_sinks {
            return Err(Error::NotInProblem { argument: "dsinks", got: self.forward.q.shape[2] });
        }
        let Some(Bias { layout: d_bias, dtype: got }) = &self.d_bias else { return Ok(()) };
        let Some(Bias { layout: bias, dtype }) = bias else {
            return Err(Error::NotInProblem { argument: "dbias", got: d_bias.elements() as usize });
        };
        for (dimension, name) in SCORE_DIMENSIONS.into_iter().enumerate() {
            check_size("dbias", name, bias.shape[dimension], "bias", d_bias.shape[dimension])?;
        }
        if got != dtype && *got != Dtype::F32 {
            return Err(Error::UnsupportedDtype {
                argument: "dbias",
                expected: format!("{} like bias, or f32", dtype.name()),
                got: got.name().to_owned(),
            });
        }
        layout::check_apart("dbias", &SCORE_DIMENSIONS, d_bias.shape, d_bias.strides)?;
        d_bias.check_span("dbias", got.bytes())
    }
}
