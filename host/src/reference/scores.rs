//! What scores have beside q and k: tensors over them, and how scores are made of all that.

use super::{DropoutNumbers, Sizes};
use crate::problem::{CausalAlignment, Mask};

/// A dense tensor over scores, `[batch, head, query, key]`, of which a dimension of 1 stands for all. It may
/// have more queries and keys than the problem: those of a sequence that is longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverScores<'t, T> {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    pub shape: [usize; 4],
    /// As many as the shape has.
    pub values: &'t [T],
}

/// Bias, boolean mask, slopes, sinks and dropout, as far as there are any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores<'t, T> {
    /// Added to scores; minus infinity hides a key.
    pub bias: Option<OverScores<'t, T>>,
    /// Whether a query sees a key.
    pub mask: Option<OverScores<'t, bool>>,
    /// Slopes of ALiBi, `[Hq]` or `[B, Hq]`.
    pub alibi_slopes: Option<&'t [T]>,
    /// `[Hq]`.
    pub sinks: Option<&'t [T]>,
    /// Which probabilities are dropped.
    pub dropout: Option<DropoutNumbers>,
}

impl<T: Copy + Into<f64>> Scores<'_, T> {
    /// How many keys a query sees, `[batch, query head, query]`: `docs/semantics.md`, section 1.
    pub fn visible(&self, sizes: &Sizes, at: [usize; 3]) -> usize {
        ScoreRow::new(sizes, self, at).keys().len()
    }
}

impl<T> Default for Scores<'_, T> {
    fn default() -> Self {
        Scores { bias: None, mask: None, alibi_slopes: None, sinks: None, dropout: None }
    }
}

impl<T> OverScores<'_, T> {
    /// The head of this tensor that a query head uses.
    pub(super) fn head(&self, head: usize, query_heads: usize) -> usize {
        tensor_head(self.shape[1], head, query_heads)
    }

    /// Where the element of a batch, head of this tensor, query and key stands.
    pub(super) fn place(&self, index: [usize; 4]) -> usize {
        place(self.shape, index)
    }
}

/// The head of a tensor with so many that a query head uses.
fn tensor_head(heads: usize, head: usize, query_heads: usize) -> usize {
    if heads == 1 { 0 } else { head / (query_heads / heads) }
}

/// Where an element of a dense tensor stands, of which a dimension of 1 stands for all.
fn place(shape: [usize; 4], index: [usize; 4]) -> usize {
    let step = |place, (size, index): (usize, usize)| place * size + if size == 1 { 0 } else { index };
    shape.into_iter().zip(index).fold(0, step)
}

/// One query of one head, and what its scores have.
pub(super) struct ScoreRow<'t, T> {
    sizes: &'t Sizes,
    scores: &'t Scores<'t, T>,
    batch: usize,
    head: usize,
    query: usize,
}

impl<'t, T: Copy + Into<f64>> ScoreRow<'t, T> {
    pub fn new(sizes: &'t Sizes, scores: &'t Scores<'t, T>, at: [usize; 3]) -> Self {
        let [batch, head, query] = at;
        ScoreRow { sizes, scores, batch, head, query }
    }

    fn of<U: Copy>(&self, tensor: &OverScores<'_, U>, key: usize) -> U {
        let head = tensor.head(self.head, self.sizes.query_heads);
        tensor.values[tensor.place([self.batch, head, self.query, key])]
    }

    /// The keys that the query sees: those of the mask of positions that neither the boolean mask hides nor a
    /// bias of minus infinity.
    pub fn keys(&self) -> Vec<usize> {
        let shows = |key: &usize| {
            let mask = self.scores.mask.is_none_or(|mask| self.of(&mask, *key));
            let bias = self.scores.bias.map(|bias| self.of(&bias, *key).into());
            mask && bias != Some(f64::NEG_INFINITY)
        };
        self.sizes.visible_keys(self.query).filter(shows).collect()
    }

    /// The bias of a key, 0 without one.
    fn bias(&self, key: usize) -> f64 {
        self.scores.bias.map_or(0.0, |bias| self.of(&bias, key).into())
    }

    /// `slope |i + Sk - Sq - j|`, 0 without slopes; `|i - j|` where the mask is aligned at the top left.
    fn alibi(&self, key: usize) -> f64 {
        let Some(slopes) = self.scores.alibi_slopes else { return 0.0 };
        let Sizes { query_heads, query_rows, key_rows, mask, .. } = *self.sizes;
        let shift = match mask {
            Mask::Full => key_rows as f64 - query_rows as f64,
            mask if mask.alignment() == CausalAlignment::TopLeft => 0.0,
            _ => key_rows as f64 - query_rows as f64,
        };
        // `[Hq]` has no batches to step over.
        let slope = slopes[(self.batch * query_heads + self.head) % slopes.len()].into();
        slope * (self.query as f64 + shift - key as f64).abs()
    }

    /// The score of a product `q . k` with the key, and by how much it changes with `scale q . k`:
    /// `docs/semantics.md`, section 1, steps 1 to 3.
    pub fn score(&self, product: f64, key: usize) -> (f64, f64) {
        let capped = self.sizes.score(product);
        (capped + self.bias(key) - self.alibi(key), self.sizes.slope(capped))
    }

    /// The sink of the head; minus infinity, which adds nothing, without one.
    pub fn sink(&self) -> f64 {
        self.scores.sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[self.head].into())
    }
}

impl<T> ScoreRow<'_, T> {
    /// What the probability of a key is multiplied by before v is, and dP: 0 where it is dropped.
    pub fn kept(&self, key: usize) -> f64 {
        let &ScoreRow { sizes, scores, batch, head, query } = self;
        let at = [batch, head, query, key];
        match &scores.dropout {
            None => 1.0,
            Some(dropout) if dropout.keeps(at, sizes.query_heads) => dropout.scale(),
            Some(_) => 0.0,
        }
    }
}

impl ScoreRow<'_, f32> {
    /// As [`ScoreRow::score`], in f32: the score as unfused code has it before it is rounded, and the capped
    /// one.
    pub fn score_f32(&self, product: f32, key: usize) -> (f32, f32) {
        let capped = self.sizes.score_f32(product);
        // f32 holds both as they are, and slopes times distances rounded once.
        (capped + self.bias(key) as f32 - self.alibi(key) as f32, capped)
    }

    /// As [`ScoreRow::sink`].
    pub fn sink_f32(&self) -> f32 {
        self.sink() as f32
    }
}

/// The gradient of what a key head's queries use of the bias.
pub(super) struct BiasGradient<N> {
    /// As the bias, of one batch and as many heads.
    shape: [usize; 4],
    batch: usize,
    first_head: usize,
    query_heads: usize,
    all_heads: usize,
    sums: Vec<N>,
}

impl<N: Copy + Default + std::ops::AddAssign> BiasGradient<N> {
    /// Zeros, for a batch and the query heads that use a key head; none without a bias.
    pub fn of_group<T>(
        scores: &Scores<'_, T>,
        sizes: &Sizes,
        batch: usize,
        key_head: usize,
    ) -> Option<Self> {
        let bias = scores.bias.as_ref()?;
        let (group, query_heads) = (sizes.group(key_head), sizes.query_heads);
        if group.is_empty() {
            return None;
        }
        let first_head = bias.head(group.start, query_heads);
        let heads = bias.head(group.end - 1, query_heads) + 1 - first_head;
        let [_, all_heads, queries, keys] = bias.shape;
        let sums = vec![N::default(); heads * queries * keys];
        let shape = [1, heads, queries, keys];
        Some(BiasGradient { shape, batch, first_head, query_heads, all_heads, sums })
    }

    /// The sum of a query head, query and key.
    pub fn at(&mut self, head: usize, query: usize, key: usize) -> &mut N {
        let head = tensor_head(self.all_heads, head, self.query_heads) - self.first_head;
        &mut self.sums[place(self.shape, [0, head, query, key])]
    }

    /// All of them in the shape of the bias; nothing without one.
    pub fn summed<T>(
        scores: &Scores<'_, T>,
        parts: impl Iterator<Item = Option<BiasGradient<N>>>,
    ) -> Vec<N> {
        let Some(bias) = &scores.bias else { return Vec::new() };
        let mut whole = vec![N::default(); bias.shape.iter().product()];
        for part in parts.flatten() {
            let first = bias.place([part.batch, part.first_head, 0, 0]);
            whole[first..].iter_mut().zip(part.sums).for_each(|(whole, sum)| *whole += sum);
        }
        whole
    }
}

impl Sizes {
    /// The gradients of all sinks, given those of the query heads of each key head; nothing without sinks.
    pub(super) fn summed_sinks<'p, T, N: Copy + Default + std::ops::AddAssign + 'p>(
        &self,
        scores: &Scores<'_, T>,
        parts: impl Iterator<Item = &'p [N]>,
    ) -> Vec<N> {
        if scores.sinks.is_none() {
            return Vec::new();
        }
        let mut whole = vec![N::default(); self.query_heads];
        for (index, part) in parts.flatten().enumerate() {
            // Key heads of one batch after another: the query heads in their order.
            whole[index % self.query_heads] += *part;
        }
        whole
    }
}
