//! Bias, boolean mask, slopes and sinks of the input file.

use super::Input;
use anyhow::{Result, bail};
use finite_attention::attention::{BiasSlice, MaskSlice, ScoreSlices};
use finite_attention::problem::{AlibiSlopes, Bias, MaskShape, ScoreLayout};
use finite_attention::{Dtype, Element, Error, ForwardProblem};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};

/// What of them is in the file.
pub struct ScoreTensors<'f> {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, of q's dtype or f32.
    pub bias: Option<Input<'f>>,
    /// bool, as the bias.
    pub mask: Option<TensorView<'f>>,
    /// f32 `[Hq]` or `[B, Hq]`.
    pub alibi_slopes: Option<Input<'f>>,
    /// f32 `[Hq]`.
    pub sinks: Option<Input<'f>>,
}

impl<'f> ScoreTensors<'f> {
    pub fn read(file: &SafeTensors<'f>) -> Result<Self> {
        Ok(ScoreTensors {
            bias: Input::find_optional(file, "bias")?,
            mask: file.tensor("mask").ok(),
            alibi_slopes: Input::find_optional(file, "alibi_slopes")?,
            sinks: Input::find_optional(file, "sinks")?,
        })
    }

    /// The problem with all of them.
    pub fn add_to(&self, mut problem: ForwardProblem) -> Result<ForwardProblem> {
        let [batches, heads, _, keys] = problem.score_shape();
        if let Some(bias) = &self.bias {
            let layout = dense("bias", bias.view.shape())?;
            problem.bias = Some(Bias { layout, dtype: bias.dtype });
        }
        if let Some(mask) = &self.mask {
            if mask.dtype() != FileDtype::BOOL {
                bail!(unsupported("mask", "bool", &format!("{:?}", mask.dtype()).to_lowercase()));
            }
            problem.attn_mask = Some(MaskShape::of(&dense("mask", mask.shape())?, keys)?);
        }
        if let Some(slopes) = &self.alibi_slopes {
            let shape = slopes.view.shape();
            let of_batches = match shape.len() {
                1 => AlibiSlopes::PerHead,
                2 => AlibiSlopes::PerBatchAndHead,
                got => {
                    let names = "[head], or 2 [batch, head]";
                    bail!(Error::WrongRank { argument: "alibi_slopes", expected: 1, names, got })
                }
            };
            let expected = [("batch", batches), ("heads", heads)];
            check_numbers("alibi_slopes", slopes, &expected[2 - shape.len()..])?;
            problem.alibi = Some(of_batches);
        }
        if let Some(sinks) = &self.sinks {
            let got = sinks.view.shape().len();
            if got != 1 {
                bail!(Error::WrongRank { argument: "sinks", expected: 1, names: "[head]", got });
            }
            check_numbers("sinks", sinks, &[("heads", heads)])?;
            problem.has_sinks = true;
        }
        Ok(problem)
    }

    /// Their elements. `T` is the element type of q.
    pub fn elements<T: Element>(&self) -> Result<ScoreElements<T>> {
        let numbers = |input: &Option<Input<'_>>| input.as_ref().map_or(vec![], Input::elements::<f32>);
        let mask = self.mask.as_ref().map(|mask| {
            let shown = mask.data().iter().map(|&byte| byte != 0).collect();
            Ok::<_, Error>((dense("mask", mask.shape())?, shown))
        });
        let bias = self.bias.as_ref().map(|bias| {
            let layout = dense("bias", bias.view.shape())?;
            let elements = match bias.dtype == T::DTYPE {
                true => BiasElements::LikeQ(bias.elements()),
                false => BiasElements::F32(bias.elements()),
            };
            Ok::<_, Error>((layout, elements))
        });
        Ok(ScoreElements {
            bias: bias.transpose()?,
            mask: mask.transpose()?,
            alibi_slopes: numbers(&self.alibi_slopes),
            sinks: numbers(&self.sinks),
        })
    }
}

/// The layout of a dense tensor over scores.
fn dense(argument: &'static str, shape: &[usize]) -> Result<ScoreLayout, Error> {
    let names = "[batch, head, query, key]";
    let wrong = |_| Error::WrongRank { argument, expected: 4, names, got: shape.len() };
    Ok(ScoreLayout::dense(shape.try_into().map_err(wrong)?))
}

/// f32, of these sizes, which are those of q.
fn check_numbers(
    argument: &'static str,
    input: &Input<'_>,
    sizes: &[(&'static str, usize)],
) -> Result<(), Error> {
    if input.dtype != Dtype::F32 {
        return Err(unsupported(argument, "f32", input.dtype.name()));
    }
    for (&(dimension, expected), &got) in sizes.iter().zip(input.view.shape()) {
        if got != expected {
            return Err(Error::WrongSize { argument, dimension, expected, like: "q", got });
        }
    }
    Ok(())
}

fn unsupported(argument: &'static str, expected: &str, got: &str) -> Error {
    Error::UnsupportedDtype { argument, expected: expected.to_owned(), got: got.to_owned() }
}

/// Elements of what scores have beside q and k, dense.
pub struct ScoreElements<T> {
    bias: Option<(ScoreLayout, BiasElements<T>)>,
    mask: Option<(ScoreLayout, Vec<bool>)>,
    alibi_slopes: Vec<f32>,
    sinks: Vec<f32>,
}

enum BiasElements<T> {
    LikeQ(Vec<T>),
    F32(Vec<f32>),
}

/// A part of a problem: a batch or packed sequence, and ranges within it.
pub struct Corner {
    pub batch: usize,
    pub query_heads: std::ops::Range<usize>,
    pub queries: std::ops::Range<usize>,
    pub keys: std::ops::Range<usize>,
}

impl<T: Element> ScoreElements<T> {
    /// What the library takes.
    pub fn slices(&self) -> ScoreSlices<'_, T> {
        let bias = self.bias.as_ref().map(|(_, elements)| match elements {
            BiasElements::LikeQ(elements) => BiasSlice::LikeQ(elements.as_slice()),
            BiasElements::F32(elements) => BiasSlice::F32(elements),
        });
        let mask = self.mask.as_ref();
        let mask = mask.map(|(layout, elements)| MaskSlice { layout: *layout, elements });
        ScoreSlices { bias, mask, alibi_slopes: &self.alibi_slopes, sinks: &self.sinks }
    }

    /// Whether mask or bias hide a key from a query, `[batch, head, query, key]`.
    pub fn hides(&self, [batch, head, query, key]: [usize; 4], query_heads: usize) -> bool {
        let place = |layout: &ScoreLayout| {
            layout.offset([batch, layout.head(head, query_heads), query, key]) as usize
        };
        let by_mask = self.mask.as_ref().is_some_and(|(layout, shown)| !shown[place(layout)]);
        let by_bias = self.bias.as_ref().is_some_and(|(layout, elements)| {
            let value = match elements {
                BiasElements::LikeQ(elements) => elements[place(layout)].to_f32(),
                BiasElements::F32(elements) => elements[place(layout)],
            };
            value == f32::NEG_INFINITY
        });
        by_mask || by_bias
    }

    /// What a part has of them: heads of its own, and one batch.
    pub fn corner(&self, corner: &Corner, query_heads: usize) -> Self {
        let bias = self.bias.as_ref().map(|(layout, elements)| {
            let (shape, places) = corner.places(layout, query_heads);
            let elements = match elements {
                BiasElements::LikeQ(elements) => {
                    BiasElements::LikeQ(places.into_iter().map(|place| elements[place]).collect())
                }
                BiasElements::F32(elements) => {
                    BiasElements::F32(places.into_iter().map(|place| elements[place]).collect())
                }
            };
            (ScoreLayout::dense(shape), elements)
        });
        let mask = self.mask.as_ref().map(|(layout, shown)| {
            let (shape, places) = corner.places(layout, query_heads);
            (ScoreLayout::dense(shape), places.into_iter().map(|place| shown[place]).collect())
        });
        // `[Hq]` is the same for each batch.
        let rows = (self.alibi_slopes.len() / query_heads.max(1)).max(1);
        let first = corner.batch % rows * query_heads;
        let of_heads = |numbers: &[f32], first: usize| match numbers.is_empty() {
            true => vec![],
            false => numbers[first..][corner.query_heads.clone()].to_vec(),
        };
        let (alibi_slopes, sinks) = (of_heads(&self.alibi_slopes, first), of_heads(&self.sinks, 0));
        ScoreElements { bias, mask, alibi_slopes, sinks }
    }

    /// A problem of one batch with the layouts of these.
    pub fn add_to(&self, problem: ForwardProblem) -> Result<ForwardProblem> {
        let bias = self.bias.as_ref().map(|(layout, elements)| Bias {
            layout: *layout,
            dtype: match elements {
                BiasElements::LikeQ(_) => T::DTYPE,
                BiasElements::F32(_) => Dtype::F32,
            },
        });
        let keys = problem.k.shape[1];
        let attn_mask = self.mask.as_ref().map(|(layout, _)| MaskShape::of(layout, keys)).transpose()?;
        let alibi = (!self.alibi_slopes.is_empty()).then_some(AlibiSlopes::PerHead);
        let has_sinks = !self.sinks.is_empty();
        Ok(ForwardProblem { bias, attn_mask, alibi, has_sinks, ..problem })
    }
}

impl Corner {
    /// The shape of this part of a dense tensor, with an entry for each head of the part if it has any for
    /// each, and where its elements stand.
    fn places(&self, layout: &ScoreLayout, query_heads: usize) -> ([usize; 4], Vec<usize>) {
        let one = |dimension: usize, range: &std::ops::Range<usize>| {
            if layout.shape[dimension] == 1 { 0..1 } else { range.clone() }
        };
        let (heads, queries, keys) =
            (one(1, &self.query_heads), one(2, &self.queries), one(3, &self.keys));
        let shape = [1, heads.len(), queries.len(), keys.len()];
        let mut places = Vec::with_capacity(shape.iter().product());
        for head in heads {
            let head = layout.head(head, query_heads);
            for query in queries.clone() {
                let place = |key| layout.offset([self.batch, head, query, key]) as usize;
                places.extend(keys.clone().map(place));
            }
        }
        (shape, places)
    }
}
