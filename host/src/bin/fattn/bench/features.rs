//! What the scores of a timed problem have beside q and k.

use crate::task::dynamic::DynamicArguments;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use finite_attention::ForwardProblem;
use finite_attention::problem::{AlibiSlopes, Bias, DynamicMask, MaskShape, ScoreLayout};
use kernels_gpu::abi::Dtype;

/// Bias, boolean mask, slopes, sinks and dropout.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct FeatureArguments {
    /// Add a bias with an entry for each of these, and one for all of the others: of what b (batch), h (query
    /// head), g (key head), q (query) and k (key) are named, e.g. hqk.
    #[arg(long, value_name = "DIMS", value_parser = dimensions)]
    bias: Option<Dimensions>,
    /// Element type of the bias; that of q if not given.
    #[arg(long, requires = "bias")]
    bias_dtype: Option<BiasDtype>,
    /// Compute the gradient of the bias, too.
    #[arg(long, requires = "bias")]
    dbias: bool,
    /// Hide keys by a random boolean mask with an entry for each of these, as in --bias.
    #[arg(long, value_name = "DIMS", value_parser = dimensions)]
    attn_mask: Option<Dimensions>,
    /// Keys that the mask shows, of blocks of this many queries and keys each that are all alike: 1 is each
    /// pair for itself.
    #[arg(long, requires = "attn_mask", default_value_t = 1)]
    mask_block: usize,
    /// The share of blocks that the mask shows.
    #[arg(long, requires = "attn_mask", default_value_t = 0.5)]
    mask_density: f64,
    /// Subtract slopes times distances (ALiBi), a slope for each query head.
    #[arg(long)]
    alibi: bool,
    /// Add a sink for each query head.
    #[arg(long)]
    sinks: bool,
    /// Drop this share of the probabilities at random, from 0 to below 1.
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = crate::task::dropout)]
    dropout: Option<f32>,
    #[command(flatten)]
    dynamic: DynamicArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum BiasDtype {
    Bf16,
    F16,
    F32,
}

/// Which of batch, head, query and key there is an entry for, and whether heads are those of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dimensions([bool; 4], bool);

fn dimensions(text: &str) -> Result<Dimensions, String> {
    let mut which = [false; 4];
    for letter in text.chars() {
        let index = "bhqkg".find(letter).ok_or(format!("expected letters of bhgqk, got {text}"))?;
        which[if index == 4 { 1 } else { index }] = true;
    }
    let of_key_heads = text.contains('g');
    if of_key_heads && text.contains('h') {
        return Err(format!("expected h or g, got {text}"));
    }
    Ok(Dimensions(which, of_key_heads))
}

impl Dimensions {
    fn shape(self, problem: &ForwardProblem) -> [usize; 4] {
        let mut sizes = problem.score_shape();
        if self.1 {
            sizes[1] = problem.k.shape[2];
        }
        [0, 1, 2, 3].map(|dimension| if self.0[dimension] { sizes[dimension] } else { 1 })
    }
}

impl FeatureArguments {
    /// The problem with these features.
    pub fn add_to(&self, mut problem: ForwardProblem) -> Result<ForwardProblem> {
        let given = |option: &str, share: f64| {
            ensure!((0.0..=1.0).contains(&share), "--{option}: expected 0 to 1, got {share}");
            Ok(())
        };
        given("mask-density", self.mask_density)?;
        ensure!(self.mask_block > 0, "--mask-block: expected at least 1, got 0");
        problem.bias = self.bias.map(|dimensions| Bias {
            layout: ScoreLayout::dense(dimensions.shape(&problem)),
            dtype: self.bias_dtype.map_or(problem.dtype, |dtype| match dtype {
                BiasDtype::Bf16 => Dtype::Bf16,
                BiasDtype::F16 => Dtype::F16,
                BiasDtype::F32 => Dtype::F32,
            }),
        });
        let attn_mask = self.attn_mask.map(|dimensions| {
            let [.., keys] = problem.score_shape();
            MaskShape::of(&ScoreLayout::dense(dimensions.shape(&problem)), keys)
        });
        problem.attn_mask = attn_mask.transpose()?;
        problem.alibi = self.alibi.then_some(AlibiSlopes::PerHead);
        problem.has_sinks = self.sinks;
        Ok(self.dropout.map_or(problem, |rate| problem.with_dropout(rate, 0, 0)))
    }

    /// The dynamic mask, if there is one.
    pub fn dynamic_mask(&self) -> Option<DynamicMask> {
        self.dynamic.mask()
    }

    /// The gradient of the bias, if it is timed.
    pub fn d_bias(&self, problem: &ForwardProblem) -> Option<Bias> {
        problem.bias.filter(|_| self.dbias)
    }

    /// The boolean mask, dense and with an entry for each key.
    pub fn mask_bytes(&self, shape: &MaskShape) -> Vec<u8> {
        let block = self.mask_block;
        // All keys are as the first where the mask has one entry for them.
        let varies = self.attn_mask.is_none_or(|Dimensions([.., keys], _)| keys);
        let threshold = (self.mask_density * f64::from(u32::MAX)) as u32;
        // A number for each block, whatever came before.
        let is_shown = |row: usize, key: usize| {
            let query = row % shape.queries / block;
            let of = (row / shape.queries) as u64 * 0x1_0000_0001 + (query as u64) * 0x9e37_79b9;
            let key = if varies { key / block } else { 0 };
            let mixed = (of + key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32 <= threshold
        };
        let rows = shape.batches * shape.heads * shape.queries;
        let row = |row| (0..shape.keys).map(move |key| u8::from(is_shown(row, key)));
        (0..rows).flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use finite_attention::{Layout, Sequences};

    fn features(dims: &str) -> FeatureArguments {
        let dimensions = Some(dimensions(dims).unwrap());
        let (mask_block, mask_density) = (1, 0.5);
        FeatureArguments {
            bias: dimensions,
            attn_mask: dimensions,
            mask_block,
            mask_density,
            ..Default::default()
        }
    }

    /// Two batches, four heads, five queries, 40 keys.
    fn problem() -> ForwardProblem {
        let kv = Layout::bshd([2, 40, 2, 8]);
        ForwardProblem::new(Dtype::Bf16, Layout::bshd([2, 5, 4, 8]), kv, kv)
    }

    #[test]
    fn a_mask_varies_along_what_is_named_alone() {
        // The bits of 40 keys of each row.
        let rows = |dims: &str| -> Vec<u64> {
            let features = features(dims);
            let shape = features.add_to(problem()).unwrap().attn_mask.unwrap();
            let bits =
                |row: &[u8]| row.iter().rev().fold(0, |bits, &shown| bits << 1 | u64::from(shown));
            features.mask_bytes(&shape).chunks(40).map(bits).collect()
        };
        let all = (1 << 40) - 1;
        let of_rows = rows("hq");
        assert_eq!(of_rows.len(), 4 * 5);
        assert!(of_rows.iter().all(|row| [0, all].contains(row)), "{of_rows:x?}");
        assert!(of_rows.contains(&0) && of_rows.contains(&all), "{of_rows:x?}");
        let of_pairs = rows("bhqk");
        assert_eq!(of_pairs.len(), 2 * 4 * 5);
        assert!(of_pairs.iter().all(|row| ![0, all].contains(row)), "{of_pairs:x?}");
        assert!(of_pairs.windows(2).all(|pair| pair[0] != pair[1]), "{of_pairs:x?}");
        let of_keys = rows("k");
        assert!(of_keys.len() == 1 && ![0, all].contains(&of_keys[0]), "{of_keys:x?}");
    }

    #[test]
    fn packed_sequences_have_entries_for_the_longest() {
        let sequences = Sequences::from_offsets(&[0, 2, 5], &[0, 33, 40]).unwrap();
        let kv = Layout::packed([40, 2, 8]);
        let packed = ForwardProblem::new(Dtype::Bf16, Layout::packed([5, 4, 8]), kv, kv);
        let problem = features("bhqk").add_to(packed.with_sequences(sequences)).unwrap();
        assert_eq!(problem.bias.unwrap().layout.shape, [2, 4, 3, 33]);
        let MaskShape { batches, heads, queries, keys } = problem.attn_mask.unwrap();
        assert_eq!([batches, heads, queries, keys], [2, 4, 3, 33]);
        problem.validate().unwrap();
    }
}
