//! What is asked: shapes, strides, dtypes and options, and the errors of every one of them.

mod backward;
mod dropout;
mod dynamic;
mod layout;
mod mask;
mod msda;
mod precision;
mod score;
mod sequences;
mod softcap;
#[cfg(test)]
mod tests;

pub use backward::{BackwardProblem, Mode, ValidBackward};
pub use dropout::Dropout;
pub use dynamic::{DynamicMask, DynamicRule, DynamicWay};
pub(crate) use dynamic::{lowest, no_bias};
pub use layout::{DIMENSIONS, Layout};
pub use mask::{CausalAlignment, Mask};
pub use msda::{
    MSDA_MAX_CHANNELS, MsdaBackwardProblem, MsdaProblem, Padding, Place, Sampling, ValidMsda,
    ValidMsdaBackward,
};
pub use precision::Precision;
pub use score::{AlibiSlopes, Bias, MaskShape, SCORE_DIMENSIONS, ScoreLayout, check_sinks};
pub use sequences::Sequences;
use sequences::check_row_count;
pub(crate) use sequences::sequence_offsets;
pub use softcap::Softcap;

/// The most ranges of keys that are worked on side by side.
pub use kernels_gpu::abi::MAX_SPLITS;

use crate::error::{Error, Result};
use kernels_gpu::abi::{Dtype, MAX_HEAD_DIM, MAX_ROWS, WINDOW_OPEN};
use kernels_gpu::geometry::visible::Visible;

/// The largest softmax scale in size, about 1.18e38: what kernels multiply by `2 log2(e)` stays finite.
pub const MAX_SCALE: f32 = f32::MAX / (2.0 * std::f32::consts::LOG2_E);

/// One forward pass: `o = softmax(scale * q k^T + mask) v` and `lse`, the logarithm of each row's
/// softmax denominator. With a softcap, `cap * tanh(scale * q k^T / cap)` takes the place of
/// `scale * q k^T`.
///
/// Logical shapes: q `[B, Sq, Hq, D]`, k `[B, Sk, Hk, D]`, v `[B, Sk, Hk, Dv]`, o `[B, Sq, Hq, Dv]`,
/// lse `[B, Hq, Sq]` (f32, dense). Hq is a multiple of Hk; query head h uses key head `h / (Hq / Hk)`.
/// B, Sq, Sk and the heads may be 0; D and Dv are 1 to 256.
///
/// Sequences of different lengths are packed one after another ([`Sequences::Packed`]):
///
/// ```
/// use finite_attention::{Dtype, ForwardProblem, Layout, Sequences};
/// let (q, kv) = (Layout::packed([7, 8, 64]), Layout::packed([9, 2, 64]));
/// let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv)
///     .with_sequences(Sequences::from_offsets(&[0, 3, 7], &[0, 9, 9])?);
/// assert_eq!(problem.validate()?.query_rows, 4);
/// # Ok::<(), finite_attention::Error>(())
/// ```
///
/// And of the same length, in any layout:
///
/// ```
/// use finite_attention::{Dtype, ForwardProblem, Layout};
/// let q = Layout::bshd([2, 100, 8, 64]);
/// let kv = Layout::bshd([2, 300, 2, 64]);
/// let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal().with_scale(0.1);
/// assert_eq!(problem.validate().unwrap().group_size, 4);
/// ```
///
/// # What is finite
///
/// o and lse, if the inputs are and f32 holds every `q_i . k_j`, however large the values; a query that
/// sees no key has o = 0 and lse = `-inf`. Gradients, if f32 also holds every `dO_i . v_j` and `dO_i . o_i`,
/// and the type that is asked for holds them.
///
/// NaN and infinity in an input reach every output that depends on it. Those of a key that a mask hides
/// may reach further: inside a sequence it meets the queries of its tile as 0 x NaN. What lies outside of
/// a sequence meets nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardProblem {
    /// `[B, Sq, Hq, D]`.
    pub q: Layout,
    /// `[B, Sk, Hk, D]`.
    pub k: Layout,
    /// `[B, Sk, Hk, Dv]`.
    pub v: Layout,
    /// `[B, Sq, Hq, Dv]`.
    pub o: Layout,
    /// Element type of q, k and v.
    pub dtype: Dtype,
    /// Element type of o: that of q, or f32.
    pub output_dtype: Dtype,
    /// Softmax scale, of at most [`MAX_SCALE`] in size; `D^-0.5` when none is given.
    pub scale: Option<f32>,
    /// Cap of scores (Gemma 2): each score s, once it is scaled, becomes `cap * tanh(s / cap)`, of at most
    /// the cap in size. Above 0, at most [`MAX_SCALE`], and such that f32 holds `scale / cap` as a normal
    /// number (or the scale is 0). Scores stay as they are when none is given.
    pub softcap: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// What is added to scores.
    pub bias: Option<Bias>,
    /// Which keys a query sees beside what `mask` says, pair by pair: see
    /// [`PreparedMask`](crate::attention::PreparedMask). A query that sees no key has o = 0 and lse = `-inf`.
    pub attn_mask: Option<MaskShape>,
    /// What is subtracted from scores in proportion to how far a key is from its query.
    pub alibi: Option<AlibiSlopes>,
    /// Whether there is a sink for each query head, f32 `[Hq]`: `exp(sink)` is added to the denominator of
    /// the softmax.
    pub has_sinks: bool,
    /// Which probabilities are dropped.
    pub dropout: Option<Dropout>,
    /// One sequence per batch, or packed ones.
    pub sequences: Sequences,
    /// Whether lse is wanted.
    pub wants_lse: bool,
    /// How many ranges of keys are worked on side by side, 1 to [`MAX_SPLITS`]; as many as pay off when none
    /// is given. It may be fewer: they are as many key tiles each, but for the last. Of packed sequences the
    /// longest is split in so many, and the others in ranges of as many keys. More than 2^32 rows of all
    /// heads and batches are never split, nor are keys of f32 where that is computed in two parts unasked.
    pub num_splits: Option<u32>,
    /// Whether query heads that share a key head are worked on together, as if they were queries; where that
    /// pays off when it is not given, above all with few queries. It needs a kernel for Hopper or a single
    /// query, and nothing comes of it where Hq = Hk or with dropout.
    pub pack_gqa: Option<bool>,
    /// How products of f32 are made; if none is given, on tensor cores where that is as exact and takes less
    /// time ([`Precision`]). Not looked at for other element types.
    pub precision: Option<Precision>,
}

impl ForwardProblem {
    /// Full attention with the default scale; o dense in BSHD order and of the same dtype; lse wanted.
    pub fn new(dtype: Dtype, q: Layout, k: Layout, v: Layout) -> Self {
        let [batches, rows, heads, _] = q.shape;
        let o = Layout::bshd([batches, rows, heads, v.shape[3]]);
        let (scale, mask, sequences) = (None, Mask::Full, Sequences::Strided);
        ForwardProblem {
            q,
            k,
            v,
            o,
            dtype,
            output_dtype: dtype,
            scale,
            softcap: None,
            mask,
            bias: None,
            attn_mask: None,
            alibi: None,
            has_sinks: false,
            dropout: None,
            sequences,
            wants_lse: true,
            num_splits: None,
            pack_gqa: None,
            precision: None,
        }
    }

    /// Causal, beside what the mask hides already ([`Mask::and_causal`]): with bottom-right alignment, or
    /// that of the mask.
    pub fn causal(self) -> Self {
        self.with_mask(self.mask.and_causal())
    }

    /// A window of `left` keys before the diagonal and `right` keys after it, beside what the mask hides
    /// already ([`Mask::and_window`]): with bottom-right alignment, or that of the mask. All keys of a side
    /// if `None`.
    pub fn with_window(self, left: Option<u32>, right: Option<u32>) -> Self {
        self.with_mask(self.mask.and_window(left, right))
    }

    /// Sets the mask, whatever it was.
    pub fn with_mask(self, mask: Mask) -> Self {
        ForwardProblem { mask, ..self }
    }

    /// Says how sequences stand in the tensors.
    pub fn with_sequences(self, sequences: Sequences) -> Self {
        ForwardProblem { sequences, ..self }
    }

    /// Sets the softmax scale.
    pub fn with_scale(self, scale: f32) -> Self {
        ForwardProblem { scale: Some(scale), ..self }
    }

    /// Sets the cap of scores.
    pub fn with_softcap(self, softcap: f32) -> Self {
        ForwardProblem { softcap: Some(softcap), ..self }
    }

    /// Sets the layout of o.
    pub fn with_output(self, o: Layout) -> Self {
        ForwardProblem { o, ..self }
    }

    /// Sets the element type of o: that of q, or f32.
    pub fn with_output_dtype(self, output_dtype: Dtype) -> Self {
        ForwardProblem { output_dtype, ..self }
    }

    /// Says that lse is not wanted.
    pub fn without_lse(self) -> Self {
        ForwardProblem { wants_lse: false, ..self }
    }

    /// Sets how many ranges of keys are worked on side by side.
    pub fn with_num_splits(self, num_splits: u32) -> Self {
        ForwardProblem { num_splits: Some(num_splits), ..self }
    }

    /// Sets whether query heads that share a key head are worked on together.
    pub fn with_pack_gqa(self, pack_gqa: bool) -> Self {
        ForwardProblem { pack_gqa: Some(pack_gqa), ..self }
    }

    /// Sets how products of f32 are made.
    pub fn with_precision(self, precision: Precision) -> Self {
        ForwardProblem { precision: Some(precision), ..self }
    }

    /// Checks everything that can be checked without a device, and derives the sizes.
    ///
    /// # Errors
    /// One of the structured variants of [`Error`] for each thing that the kernels cannot do.
    pub fn validate(&self) -> Result<ValidForward> {
        let shapes = [("q", &self.q), ("k", &self.k), ("v", &self.v), ("o", &self.o)];
        let dtypes = [self.dtype, self.dtype, self.dtype, self.output_dtype];
        self.check_shapes()?;
        for ((argument, layout), dtype) in shapes.into_iter().zip(dtypes) {
            layout.check_extents(argument)?;
            layout.check_columns(argument)?;
            layout.check_span(argument, dtype)?;
        }
        self.o.check_output("o")?;
        self.check_sequences()?;
        self.check_scores()?;
        if self.output_dtype != self.dtype && self.output_dtype != Dtype::F32 {
            return Err(Error::UnsupportedDtype {
                argument: "o",
                expected: format!("{} like q, or f32", self.dtype.name()),
                got: self.output_dtype.name().to_owned(),
            });
        }
        let scale = self.scale.unwrap_or((self.q.shape[3] as f32).sqrt().recip());
        if scale.is_nan() || scale.abs() > MAX_SCALE {
            return Err(Error::Scale { got: scale });
        }
        let softcap = self.softcap.map(|cap| Softcap::new(cap, scale)).transpose()?;
        self.dropout.map(|dropout| dropout.dropped()).transpose()?;
        if let Some(got) = self.num_splits.filter(|splits| !(1..=MAX_SPLITS).contains(splits)) {
            return Err(Error::NumSplits { max: MAX_SPLITS, got });
        }
        Ok(self.derive(scale, softcap))
    }

    /// The shapes fit together.
    fn check_shapes(&self) -> Result<()> {
        let [batches, query_rows, query_heads, head_dim] = self.q.shape;
        let [_, key_rows, key_heads, _] = self.k.shape;
        check_size("k", "batch", batches, "q", self.k.shape[0])?;
        check_size("v", "batch", batches, "q", self.v.shape[0])?;
        check_size("o", "batch", batches, "q", self.o.shape[0])?;
        check_size("k", "head_dim", head_dim, "q", self.k.shape[3])?;
        check_size("v", "rows", key_rows, "k", self.v.shape[1])?;
        check_size("v", "heads", key_heads, "k", self.v.shape[2])?;
        check_size("o", "rows", query_rows, "q", self.o.shape[1])?;
        check_size("o", "heads", query_heads, "q", self.o.shape[2])?;
        check_size("o", "head_dim", self.v.shape[3], "v", self.o.shape[3])?;
        let divides = if key_heads == 0 { query_heads == 0 } else { query_heads % key_heads == 0 };
        if divides { Ok(()) } else { Err(Error::HeadRatio { query_heads, key_heads }) }
    }

    /// Packed sequences have no batches, fit the rows, and there are no more of them than a grid can have.
    fn check_sequences(&self) -> Result<()> {
        let Sequences::Packed { count, max_query_rows, max_key_rows } = self.sequences else {
            return Ok(());
        };
        check_size("q", "batch", 1, "packed sequences", self.q.shape[0])?;
        let max = u64::from(u32::MAX);
        if count as u64 > max {
            return Err(Error::SizeRange {
                argument: "cu_seqlens_q",
                dimension: "batch",
                min: 0,
                max,
                got: count,
            });
        }
        check_row_count("max_query_rows", "rows", max_query_rows)?;
        check_row_count("max_key_rows", "rows", max_key_rows)?;
        let rows = [("q", self.q.shape[1], max_query_rows), ("k", self.k.shape[1], max_key_rows)];
        match rows.into_iter().find(|&(_, rows, longest)| rows > count.saturating_mul(longest)) {
            None => Ok(()),
            Some((argument, got, longest)) => Err(Error::PackedRows { argument, count, longest, got }),
        }
    }

    /// The derived sizes of a problem whose layouts have all been checked, so that every cast fits.
    fn derive(&self, scale: f32, softcap: Option<Softcap>) -> ValidForward {
        let [batches, query_rows, query_heads, head_dim] = self.q.shape.map(|size| size as u32);
        let [_, key_rows, key_heads, value_dim] = self.v.shape.map(|size| size as u32);
        let (batches, query_rows, key_rows) = match self.sequences {
            Sequences::Strided => (batches, query_rows, key_rows),
            Sequences::Packed { count, max_query_rows, max_key_rows } => {
                let longest = |rows: u32, max: usize| (rows as usize).min(max) as u32;
                (count as u32, longest(query_rows, max_query_rows), longest(key_rows, max_key_rows))
            }
        };
        // Distances need a diagonal under a full mask, too.
        let alignment =
            if self.alibi.is_some() { self.mask.distance_alignment() } else { self.mask.alignment() };
        let (window_left, window_right) = self.mask.kernel_sides();
        ValidForward {
            problem: *self,
            batches,
            query_rows,
            key_rows,
            query_heads,
            key_heads,
            group_size: query_heads.checked_div(key_heads).unwrap_or(1).max(1),
            head_dim,
            value_dim,
            bottom_right: alignment == CausalAlignment::BottomRight,
            window_left,
            window_right,
            scale,
            softcap,
        }
    }
}

/// A forward problem that passed [`ForwardProblem::validate`], with its sizes. Only `validate` makes
/// one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidForward {
    /// The problem as it was asked.
    pub problem: ForwardProblem,
    /// B; of packed sequences, how many.
    pub batches: u32,
    /// Sq; of packed sequences, the most.
    pub query_rows: u32,
    /// Sk; of packed sequences, the most.
    pub key_rows: u32,
    /// Hq.
    pub query_heads: u32,
    /// Hk.
    pub key_heads: u32,
    /// Hq / Hk; 1 when there are no heads.
    pub group_size: u32,
    /// D.
    pub head_dim: u32,
    /// Dv.
    pub value_dim: u32,
    /// Whether the last query is aligned with the last key, instead of the first with the first.
    pub bottom_right: bool,
    /// Keys visible to the left of the diagonal; `WINDOW_OPEN` of the kernels is all.
    pub window_left: i32,
    /// Keys visible to the right of the diagonal; `WINDOW_OPEN` is all.
    pub window_right: i32,
    /// Softmax scale, of at most [`MAX_SCALE`] in size.
    pub scale: f32,
    /// Cap of scores, if there is one.
    pub softcap: Option<Softcap>,
}

impl ValidForward {
    /// The same pass over the tensors of another problem, with other lengths.
    pub(crate) fn with(&self, problem: ForwardProblem, query_rows: u32, key_rows: u32) -> Self {
        // Every field has a name here: of one that is new it must be said what it becomes.
        let &ValidForward {
            problem: _,
            batches,
            query_rows: _,
            key_rows: _,
            query_heads,
            key_heads,
            group_size,
            head_dim,
            value_dim,
            bottom_right,
            window_left,
            window_right,
            scale,
            softcap,
        } = self;
        ValidForward {
            problem,
            batches,
            query_rows,
            key_rows,
            query_heads,
            key_heads,
            group_size,
            head_dim,
            value_dim,
            bottom_right,
            window_left,
            window_right,
            scale,
            softcap,
        }
    }

    /// The same pass where query i sees keys `i - left` to `i + right`, which may be negative: a part of a
    /// whole, whose diagonal is elsewhere. All keys of a side that is `WINDOW_OPEN`.
    pub(crate) fn seen_between(mut self, left: i32, right: i32) -> Self {
        self.bottom_right = false;
        (self.window_left, self.window_right) = (left, right);
        self
    }

    /// Whether o and lse have no elements, so that there is nothing to launch.
    pub fn is_empty(&self) -> bool {
        self.batches == 0 || self.query_rows == 0 || self.query_heads == 0
    }

    /// Whether every query sees every key of its sequence.
    pub fn sees_all(&self) -> bool {
        self.window_left == WINDOW_OPEN && self.window_right == WINDOW_OPEN
    }

    /// Which keys a query sees, where sequences are not packed.
    pub(crate) fn visible(&self) -> Visible {
        let (query_rows, key_rows) = (self.query_rows as i32, self.key_rows as i32);
        let diagonal = if self.bottom_right { key_rows - query_rows } else { 0 };
        Visible { key_rows, diagonal, left: self.window_left, right: self.window_right }
    }

    /// Whether sequences are packed.
    pub fn is_packed(&self) -> bool {
        matches!(self.problem.sequences, Sequences::Packed { .. })
    }

    /// Number of elements of lse: `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub fn lse_elements(&self) -> usize {
        self.lse_shape().iter().product()
    }

    /// The shape of lse: `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub fn lse_shape(&self) -> Vec<usize> {
        let [batches, rows, heads, _] = self.problem.q.shape;
        if self.is_packed() { vec![heads, rows] } else { vec![batches, heads, rows] }
    }

    /// f32 elements of lse from one batch to the next and from one head to the next.
    pub fn lse_strides(&self) -> [i64; 2] {
        let [_, rows, heads, _] = self.problem.q.shape;
        let batch = if self.is_packed() { 0 } else { heads as i64 * rows as i64 };
        [batch, rows as i64]
    }
}

/// The one dtype that all tensors share.
///
/// # Errors
/// [`Error::WrongDtype`] names the first tensor whose dtype differs from that of the first.
pub fn common_dtype(tensors: &[(&'static str, Dtype)]) -> Result<Dtype> {
    let Some(&(like, expected)) = tensors.first() else {
        return Err(Error::WrongDtype {
            argument: "q",
            expected: "bf16",
            like: "q",
            got: "none".into(),
        });
    };
    match tensors.iter().find(|(_, dtype)| *dtype != expected) {
        None => Ok(expected),
        Some(&(argument, got)) => {
            let got = got.name().to_owned();
            Err(Error::WrongDtype { argument, expected: expected.name(), like, got })
        }
    }
}

fn check_size(
    argument: &'static str,
    dimension: &'static str,
    expected: usize,
    like: &'static str,
    got: usize,
) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::WrongSize { argument, dimension, expected, like, got })
    }
}

/// Inclusive limits of the four sizes, in the order of [`DIMENSIONS`].
const LIMITS: [(u64, u64); 4] =
    [(0, u32::MAX as u64), (0, MAX_ROWS as u64), (0, u32::MAX as u64), (1, MAX_HEAD_DIM as u64)];
