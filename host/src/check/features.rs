//! What scores of a case have beside q and k: bias, boolean mask, slopes, sinks and dropout.

use super::{Case, Kept};
use crate::problem::{AlibiSlopes, Bias, Dropout, DynamicMask, DynamicWay, MaskShape, ScoreLayout};
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// All of it; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Features {
    /// What is added to scores.
    pub bias: Option<BiasFeature>,
    /// What hides keys pair by pair.
    pub mask: Option<MaskFeature>,
    /// Whether there are slopes of ALiBi, and for whom.
    pub alibi: Option<AlibiSlopes>,
    /// Whether there are sinks.
    pub has_sinks: bool,
    /// Whether the gradient of the sinks is wanted, where the case has gradients.
    pub wants_d_sinks: bool,
    /// The share of probabilities that is dropped: see [`Case::dropout`].
    pub dropout: Option<f32>,
    /// Which keys the bias chooses. The boolean mask is then a padding mask.
    pub dynamic_mask: Option<DynamicMask>,
}

/// A bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BiasFeature {
    /// Element type: that of q, or f32.
    pub dtype: Dtype,
    /// Which dimensions it has.
    pub dimensions: Dimensions,
    /// Where it stands.
    pub placement: ScorePlacement,
    /// What its numbers are.
    pub values: BiasValues,
    /// Element type of its gradient, if that is wanted where the case has gradients.
    pub gradient: Option<Dtype>,
}

/// A boolean mask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskFeature {
    /// Which dimensions it has.
    pub dimensions: Dimensions,
    /// Where it stands.
    pub placement: ScorePlacement,
    /// The share of pairs, or blocks of them, that it shows.
    pub density: f64,
    /// Queries, and keys, of blocks of pairs that are shown or hidden together; 1 is each pair for itself.
    pub block: usize,
    /// Whether it hides some rows, or rows of blocks, as a whole.
    pub has_dead_rows: bool,
}

/// Which dimensions a tensor over scores has; others are broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dimensions {
    /// One entry for each batch, or packed sequence.
    pub batches: bool,
    /// For which heads.
    pub heads: ScoreHeads,
    /// One entry for each query.
    pub queries: bool,
    /// One entry for each key.
    pub keys: bool,
}

/// For which heads a tensor over scores has entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreHeads {
    /// One for all.
    One,
    /// One for each key head.
    Key,
    /// One for each query head.
    Query,
}

/// How a tensor over scores stands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScorePlacement {
    /// Dense, keys side by side.
    Dense,
    /// Dense, queries side by side.
    Transposed,
    /// Gaps after every row and head; rows begin on 16 bytes.
    Padded,
    /// Odd gaps and an odd start.
    Unaligned,
    /// What is broadcast has all its entries, at one address: strides of 0.
    Repeated,
    /// Last query and last key first: negative strides.
    Reversed,
}

/// What the numbers of a bias are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BiasValues {
    /// Of mean 0 and deviation 1.
    Normal,
    /// The same, but for a tenth that hide their keys, and rows that hide all.
    Hiding,
    /// The same, but for rows of the lowest number of the type, which hide nothing.
    Lowest,
}

impl Features {
    /// `bias(bhqk,f32) mask(-g-k) alibi(b) sinks dropout(0.1)`, as far as there are any; `-` for nothing.
    pub fn text(&self) -> String {
        let bias = self.bias.map(|bias| {
            let values = match bias.values {
                BiasValues::Normal => String::new(),
                other => format!(",{}", other.name()),
            };
            format!("bias({},{}{values})", bias.dimensions.text(), bias.dtype.name())
        });
        let mask = self.mask.map(|mask| {
            let blocks = if mask.block == 1 { String::new() } else { format!(",{}", mask.block) };
            format!("mask({}{blocks})", mask.dimensions.text())
        });
        let alibi = self.alibi.map(|alibi| match alibi {
            AlibiSlopes::PerHead => "alibi".to_owned(),
            AlibiSlopes::PerBatchAndHead => "alibi(b)".to_owned(),
        });
        let sinks = self.has_sinks.then(|| "sinks".to_owned());
        let dropout = self.dropout.map(|rate| format!("dropout({rate})"));
        let dynamic = self.dynamic_mask.map(|dynamic| {
            let way = dynamic.way.map_or("", DynamicWay::name);
            format!("{dynamic} {way}").trim_end().replace(", in blocks of ", "/")
        });
        let all: Vec<String> =
            [bias, mask, alibi, sinks, dropout, dynamic].into_iter().flatten().collect();
        if all.is_empty() { "-".to_owned() } else { all.join(" ") }
    }

    /// Whether scores have nothing but what q and k give.
    pub fn is_empty(&self) -> bool {
        *self == Features { wants_d_sinks: self.wants_d_sinks, ..Features::default() }
    }
}

impl Dimensions {
    /// All of them, for each query head.
    pub const ALL: Dimensions =
        Dimensions { batches: true, heads: ScoreHeads::Query, queries: true, keys: true };

    /// `bhqk`, `-g-k`: with `g` for heads of keys, and `-` for what is broadcast.
    pub fn text(&self) -> String {
        let heads = match self.heads {
            ScoreHeads::One => '-',
            ScoreHeads::Key => 'g',
            ScoreHeads::Query => 'h',
        };
        let letter = |has: bool, letter| if has { letter } else { '-' };
        [letter(self.batches, 'b'), heads, letter(self.queries, 'q'), letter(self.keys, 'k')]
            .into_iter()
            .collect()
    }

    fn shape(&self, case: &Case) -> [usize; 4] {
        let size = |has: bool, size: usize| if has { size } else { 1 };
        let heads = match self.heads {
            ScoreHeads::One => 1,
            ScoreHeads::Key => case.key_heads,
            ScoreHeads::Query => case.query_heads,
        };
        [
            size(self.batches, case.batches),
            heads,
            size(self.queries, case.query_rows),
            size(self.keys, case.key_rows),
        ]
    }
}

impl ScorePlacement {
    /// All of them.
    pub const ALL: [ScorePlacement; 6] = [
        ScorePlacement::Dense,
        ScorePlacement::Transposed,
        ScorePlacement::Padded,
        ScorePlacement::Unaligned,
        ScorePlacement::Repeated,
        ScorePlacement::Reversed,
    ];

    /// The name used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ScorePlacement::Dense => "dense",
            ScorePlacement::Transposed => "transposed",
            ScorePlacement::Padded => "padded",
            ScorePlacement::Unaligned => "unaligned",
            ScorePlacement::Repeated => "repeated",
            ScorePlacement::Reversed => "reversed",
        }
    }

    /// The layout of a tensor of a case.
    fn input(self, case: &Case, dimensions: &Dimensions) -> ScoreLayout {
        let shape = dimensions.shape(case);
        let mut layout = self.output(case, dimensions);
        match self {
            ScorePlacement::Repeated => {
                let dense = ScoreLayout::dense(shape);
                let repeated = |dimension: usize| layout.shape[dimension] != shape[dimension];
                layout.strides = [0, 1, 2, 3].map(|at| if repeated(at) { 0 } else { dense.strides[at] });
            }
            ScorePlacement::Reversed => {
                (layout.strides[2], layout.strides[3]) = (-layout.strides[2], -layout.strides[3]);
            }
            _ => {}
        }
        layout
    }

    /// The layout of the gradient of a tensor of a case: elements are apart.
    fn output(self, case: &Case, dimensions: &Dimensions) -> ScoreLayout {
        let shape = dimensions.shape(case);
        let [_, heads, queries, keys] = shape;
        let gapped = |row: usize, gap: usize| {
            let head = row * queries + gap;
            let strides = [head * heads + gap, head, row, 1].map(|stride| stride as i64);
            ScoreLayout { shape, strides }
        };
        match self {
            ScorePlacement::Dense | ScorePlacement::Reversed => ScoreLayout::dense(shape),
            ScorePlacement::Transposed => {
                let [batch, head, ..] = ScoreLayout::dense(shape).strides;
                ScoreLayout { shape, strides: [batch, head, 1, queries.max(1) as i64] }
            }
            ScorePlacement::Padded => gapped(keys.next_multiple_of(8) + 8, 16),
            ScorePlacement::Unaligned => gapped(keys + 1, 3),
            ScorePlacement::Repeated => {
                let heads = if dimensions.heads == ScoreHeads::One {
                    ScoreHeads::Query
                } else {
                    dimensions.heads
                };
                ScoreLayout::dense(Dimensions { heads, ..Dimensions::ALL }.shape(case))
            }
        }
    }

    /// Elements between a 256-byte boundary and the lowest element of the tensor.
    pub(super) const fn lead(self) -> usize {
        if matches!(self, ScorePlacement::Unaligned) { 1 } else { 0 }
    }
}

impl BiasValues {
    /// The name used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            BiasValues::Normal => "normal",
            BiasValues::Hiding => "hiding",
            BiasValues::Lowest => "lowest",
        }
    }
}

impl Case {
    /// The bias as the problem has it.
    pub(super) fn bias(&self) -> Option<Bias> {
        let BiasFeature { dtype, dimensions, placement, .. } = self.features.bias?;
        Some(Bias { layout: placement.input(self, &dimensions), dtype })
    }

    /// Dropout as the problem has it: seed and offset come from the case's seed, and every other offset is
    /// beyond 32 bits.
    pub fn dropout(&self) -> Option<Dropout> {
        let mut random = StdRng::seed_from_u64(self.seed.rotate_left(56));
        let [seed, offset] = [random.random(), random.random::<u64>()];
        let offset = if self.seed.is_multiple_of(2) { offset } else { offset & 0xffff };
        Some(Dropout { rate: self.features.dropout?, seed, offset })
    }

    /// Where the gradient of the bias goes, if it is wanted.
    pub(super) fn d_bias(&self) -> Option<Bias> {
        let BiasFeature { gradient, dimensions, placement, .. } = self.features.bias?;
        Some(Bias { layout: placement.output(self, &dimensions), dtype: gradient? })
    }

    /// Where the boolean mask stands, before it is prepared.
    pub(super) fn mask_layout(&self) -> Option<ScoreLayout> {
        let MaskFeature { dimensions, placement, .. } = self.features.mask?;
        Some(placement.input(self, &dimensions))
    }

    /// The boolean mask as the problem has it.
    pub(super) fn mask_shape(&self) -> Option<MaskShape> {
        let [batches, heads, queries, _] = self.mask_layout()?.shape;
        Some(MaskShape { batches, heads, queries, keys: self.key_rows })
    }
}

/// The numbers of bias, mask, slopes and sinks, dense in logical order, of the shapes that they have in the
/// problem; empty where the case does not have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScoreInputs {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    pub bias: Vec<f32>,
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    pub mask: Vec<bool>,
    /// `[Hq]` or `[B, Hq]`.
    pub alibi_slopes: Vec<f32>,
    /// `[Hq]`.
    pub sinks: Vec<f32>,
    /// What a dynamic mask keeps, by the reference: of numbers as kernels see them.
    pub kept: Option<Kept>,
}

impl ScoreInputs {
    /// Random ones from the seed of the case: what else is drawn from it does not depend on them.
    pub fn drawn(case: &Case) -> Self {
        let mut random = StdRng::seed_from_u64(case.seed.rotate_left(24));
        let Features { bias, mask, alibi, has_sinks, .. } = case.features;
        let bias = bias.map(|bias| draw_bias(case, &bias, &mut random));
        let mask = mask.map(|mask| draw_mask(case, &mask, &mut random));
        let alibi_slopes = alibi.map(|alibi| draw_slopes(case, alibi, &mut random));
        let sinks = if has_sinks { case.query_heads } else { 0 };
        ScoreInputs {
            bias: bias.unwrap_or_default(),
            mask: mask.unwrap_or_default(),
            alibi_slopes: alibi_slopes.unwrap_or_default(),
            sinks: (0..sinks).map(|_| random.random_range(-4.0f32..=4.0)).collect(),
            kept: None,
        }
    }
}

fn draw_bias(case: &Case, feature: &BiasFeature, random: &mut StdRng) -> Vec<f32> {
    let [batches, heads, queries, keys] = feature.placement.input(case, &feature.dimensions).shape;
    let lowest = match feature.dtype {
        Dtype::Bf16 => half::bf16::MIN.to_f32(),
        Dtype::F16 => half::f16::MIN.to_f32(),
        Dtype::F32 => f32::MIN,
    };
    let mut row = |_| {
        let special = random.random_bool(0.2);
        let mut number = |_| {
            let number = super::inputs::sample(case.dtype, random);
            match feature.values {
                BiasValues::Hiding if special || random.random_bool(0.1) => f32::NEG_INFINITY,
                BiasValues::Lowest if special => lowest,
                _ => number,
            }
        };
        (0..keys).map(&mut number).collect::<Vec<f32>>()
    };
    (0..batches * heads * queries).flat_map(&mut row).collect()
}

fn draw_mask(case: &Case, feature: &MaskFeature, random: &mut StdRng) -> Vec<bool> {
    let [batches, heads, queries, keys] = feature.placement.input(case, &feature.dimensions).shape;
    let block = feature.block;
    let mut row = |_| {
        let dead = feature.has_dead_rows && random.random_bool(0.25);
        let blocks = keys.div_ceil(block);
        (0..blocks).map(|_| !dead && random.random_bool(feature.density)).collect::<Vec<bool>>()
    };
    let rows_of_blocks = queries.div_ceil(block);
    let drawn: Vec<_> = (0..batches * heads * rows_of_blocks).map(&mut row).collect();
    let shown = |row: usize| {
        let (pair, query) = (row / queries, row % queries);
        let blocks = &drawn[pair * rows_of_blocks + query / block];
        (0..keys).map(move |key| blocks[key / block])
    };
    (0..batches * heads * queries).flat_map(shown).collect()
}

/// Those of the paper for the first batch, and others near them for others.
fn draw_slopes(case: &Case, alibi: AlibiSlopes, random: &mut StdRng) -> Vec<f32> {
    let batches = if alibi == AlibiSlopes::PerHead { 1 } else { case.batches };
    let batch = |batch: usize| -> Vec<f32> {
        let factor = if batch == 0 { 1.0 } else { random.random_range(0.5f32..=1.5) };
        paper_slopes(case.query_heads).into_iter().map(|slope| slope * factor).collect()
    };
    (0..batches).flat_map(batch).collect()
}

/// `2^(-8 h / H)` of heads h from 1 to H, a power of two; of other numbers of heads, those of the power of
/// two below, and then every other one of twice as many (Press, Smith and Lewis 2021).
fn paper_slopes(heads: usize) -> Vec<f32> {
    let power = (heads + 1).next_power_of_two() / 2;
    let slope = |head: usize, of: usize| (-8.0 * head as f32 / of.max(1) as f32).exp2();
    let first = (1..=power).map(|head| slope(head, power));
    let rest = (0..).map(|at| slope(2 * at + 1, 2 * power));
    first.chain(rest).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(dimensions: Dimensions, placement: ScorePlacement) -> Case {
        let values = BiasValues::Hiding;
        let (dtype, gradient) = (Dtype::Bf16, Some(Dtype::F32));
        let bias = Some(BiasFeature { dtype, dimensions, placement, values, gradient });
        let (density, has_dead_rows) = (0.5, true);
        let mask = Some(MaskFeature { dimensions, placement, density, block: 1, has_dead_rows });
        let alibi = Some(AlibiSlopes::PerBatchAndHead);
        let features =
            Features { bias, mask, alibi, has_sinks: true, wants_d_sinks: true, ..Features::default() };
        Case { batches: 3, query_heads: 4, key_heads: 2, features, ..Case::small() }
    }

    fn all_dimensions() -> impl Iterator<Item = Dimensions> {
        [ScoreHeads::One, ScoreHeads::Key, ScoreHeads::Query].into_iter().flat_map(|heads| {
            (0..8).map(move |bits| Dimensions {
                batches: bits & 1 != 0,
                heads,
                queries: bits & 2 != 0,
                keys: bits & 4 != 0,
            })
        })
    }

    #[test]
    fn every_placement_is_valid_for_all_dimensions() {
        for (dimensions, placement) in
            all_dimensions().flat_map(|all| ScorePlacement::ALL.map(|placement| (all, placement)))
        {
            let gradients = super::super::Gradients {
                dtype: Dtype::F32,
                has_d_lse: false,
                mode: crate::problem::Mode::Fast,
            };
            for packed in [false, true] {
                let case = Case { packed, gradients: Some(gradients), ..case(dimensions, placement) };
                let problem = case.backward_problem().unwrap();
                let (text, valid) = (dimensions.text(), problem.validate());
                assert!(valid.is_ok(), "{text} {placement:?}: {valid:?}");
                let inputs = ScoreInputs::drawn(&case);
                assert_eq!(inputs.bias.len() as u128, case.bias().unwrap().layout.elements());
                assert_eq!(inputs.mask.len() as u128, case.mask_layout().unwrap().elements());
                assert_eq!((inputs.alibi_slopes.len(), inputs.sinks.len()), (12, 4));
            }
        }
    }

    #[test]
    fn slopes_are_those_of_the_paper() {
        assert_eq!(paper_slopes(8), [1, 2, 3, 4, 5, 6, 7, 8].map(|head| 0.5f32.powi(head)));
        assert_eq!(paper_slopes(1), [0.5f32.powi(8)]);
        assert_eq!(paper_slopes(3), [0.5f32.powi(4), 0.5f32.powi(8), 0.5f32.powi(2)]);
        assert!(paper_slopes(0).is_empty());
    }

    #[test]
    fn rows_that_hide_all_and_others_are_drawn() {
        let drawn = ScoreInputs::drawn(&case(Dimensions::ALL, ScorePlacement::Dense));
        let dead = |row: &[f32]| row.iter().all(|&bias| bias == f32::NEG_INFINITY);
        let rows = drawn.bias.chunks(33).filter(|row| dead(row)).count();
        assert!((10..100).contains(&rows), "{rows} of {}", drawn.bias.len() / 33);
        let rows = drawn.mask.chunks(33).filter(|row| row.iter().all(|&shown| !shown)).count();
        assert!((10..100).contains(&rows), "{rows} of {}", drawn.mask.len() / 33);
    }
}
