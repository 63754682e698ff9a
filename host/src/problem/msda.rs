//! What is asked of multi-scale deformable attention, and every error in it.

use super::{Layout, Mode, check_size};
use crate::error::{Error, Result};
use kernels_gpu::abi::{Dtype, MSDA_MAX_LEVELS, MSDA_MAX_SIDE, MsdaLevel};

/// The cell and the fraction of a location: what kernels and reference share.
pub use kernels_gpu::geometry::sample::{Place, Sampling};

/// The most channels of a head.
pub const MSDA_MAX_CHANNELS: usize = 1 << 15;
/// The most heads, and the most channels of all heads together.
const MAX_HEADS: usize = (1 << 16) - 1;
const MAX_ROW: usize = 1 << 28;
/// The most queries, and the most points of a head: kernels count them in 32 bits.
const MAX_COUNT: usize = (1 << 31) - (1 << 16);

/// What a sample takes from outside a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Zeros.
    #[default]
    Zeros,
    /// The nearest cell.
    Border,
}

impl Padding {
    /// The name in options, tables and JSON: `zeros`, `border`.
    pub const fn name(self) -> &'static str {
        match self {
            Padding::Zeros => "zeros",
            Padding::Border => "border",
        }
    }
}

/// Multi-scale deformable attention: `o = sum over points of weight * sample of value`, for each query and
/// head (docs/semantics.md, section 5).
///
/// Logical shapes: value `[B, cells, H, C]`, where cells are those of level 0, row after row, then those of
/// level 1 and so on; locations `[B, N, H, L, P, 2]` (x, y), as a layout `[B, N, H, L * P * 2]`; weights
/// `[B, N, H, L, P]`, as a layout `[B, N, H, L * P]`; o `[B, N, H, C]`. B, N, H and P may be 0. Locations and
/// weights are f32, or have the dtype of value. Sums are f32.
///
/// ```
/// use finite_attention::{Dtype, Layout, MsdaProblem, Padding};
/// let value = Layout::bshd([2, 64 * 48 + 32 * 24, 8, 32]);
/// let problem = MsdaProblem::new(Dtype::Bf16, value, &[[48, 64], [24, 32]], 300, 4)
///     .with_padding(Padding::Border);
/// assert_eq!(problem.validate()?.points, 8);
/// # Ok::<(), finite_attention::Error>(())
/// ```
///
/// # What is finite
///
/// o, if value, weights and f32 sums of their products are, wherever finite locations are. A location that is
/// NaN or infinite makes NaN of its query's o and of its own gradients, and gives value no gradient: it is in
/// no cell.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaProblem {
    /// `[B, cells, H, C]`.
    pub value: Layout,
    /// Height and width of each level.
    pub shapes: Vec<[usize; 2]>,
    /// `[B, N, H, L * P * 2]`.
    pub locations: Layout,
    /// `[B, N, H, L * P]`.
    pub weights: Layout,
    /// `[B, N, H, C]`.
    pub o: Layout,
    /// P: points of a query in each level.
    pub level_points: usize,
    /// Element type of value and o.
    pub dtype: Dtype,
    /// That of locations: f32, or that of value.
    pub locations_dtype: Dtype,
    /// That of weights: f32, or that of value.
    pub weights_dtype: Dtype,
    /// What a sample takes from outside a level.
    pub padding: Padding,
    /// Whether locations 0 and 1 are the centres of the outermost cells, not their outer edges.
    pub align_corners: bool,
}

impl MsdaProblem {
    /// `queries` queries of `level_points` points in each level; locations, weights and o dense, locations
    /// and weights f32; padding zeros, corners not aligned.
    pub fn new(
        dtype: Dtype,
        value: Layout,
        shapes: &[[usize; 2]],
        queries: usize,
        level_points: usize,
    ) -> Self {
        let [batches, _, heads, channels] = value.shape;
        let points = shapes.len().saturating_mul(level_points);
        let dense = |columns| Layout::bshd([batches, queries, heads, columns]);
        MsdaProblem {
            value,
            shapes: shapes.to_vec(),
            locations: dense(points.saturating_mul(2)),
            weights: dense(points),
            o: dense(channels),
            level_points,
            dtype,
            locations_dtype: Dtype::F32,
            weights_dtype: Dtype::F32,
            padding: Padding::Zeros,
            align_corners: false,
        }
    }

    /// Sets the padding.
    pub fn with_padding(self, padding: Padding) -> Self {
        MsdaProblem { padding, ..self }
    }

    /// Locations 0 and 1 are the centres of the outermost cells.
    pub fn aligned_to_corners(self) -> Self {
        MsdaProblem { align_corners: true, ..self }
    }

    /// Sets the layout and the element type of locations.
    pub fn with_locations(self, locations: Layout, locations_dtype: Dtype) -> Self {
        MsdaProblem { locations, locations_dtype, ..self }
    }

    /// Sets the layout and the element type of weights.
    pub fn with_weights(self, weights: Layout, weights_dtype: Dtype) -> Self {
        MsdaProblem { weights, weights_dtype, ..self }
    }

    /// Sets the layout of o.
    pub fn with_output(self, o: Layout) -> Self {
        MsdaProblem { o, ..self }
    }

    /// Checks everything that can be checked without a device, and derives the sizes.
    ///
    /// # Errors
    /// One of the structured variants of [`Error`] for each thing that the kernels cannot do.
    pub fn validate(&self) -> Result<ValidMsda> {
        let (levels, cells) = self.check_levels()?;
        let [batches, rows, heads, channels] = self.value.shape;
        let queries = self.o.shape[1];
        check_range("level_points", "points", 0, MAX_COUNT / levels.len(), self.level_points)?;
        let points = levels.len() * self.level_points;
        check_size("value", "rows", cells, "shapes", rows)?;
        check_range("value", "head_dim", 1, MSDA_MAX_CHANNELS, channels)?;
        check_range("value", "heads", 0, MAX_HEADS, heads)?;
        check_range("value", "heads x head_dim", 0, MAX_ROW, heads * channels)?;
        check_range("value", "batch x heads", 0, MAX_COUNT, batches.saturating_mul(heads))?;
        check_range("o", "rows", 0, MAX_COUNT, queries)?;
        let all = [
            ("locations", &self.locations, self.locations_dtype, 2 * points),
            ("weights", &self.weights, self.weights_dtype, points),
            ("o", &self.o, self.dtype, channels),
        ];
        for (argument, layout, _, columns) in all {
            let expected = [batches, queries, heads, columns];
            check_shape(argument, layout, expected)?;
        }
        check_range("weights", "points of a head", 0, MAX_COUNT, queries.saturating_mul(points))?;
        let value = ("value", &self.value, self.dtype, channels);
        for (argument, layout, dtype, _) in all.into_iter().chain([value]) {
            layout.check_columns(argument)?;
            layout.check_span(argument, dtype)?;
            if dtype != self.dtype && dtype != Dtype::F32 {
                return Err(Error::UnsupportedDtype {
                    argument,
                    expected: format!("{} like value, or f32", self.dtype.name()),
                    got: dtype.name().to_owned(),
                });
            }
        }
        check_row_stride("value", &self.value, self.dtype)?;
        self.o.check_output("o")?;
        Ok(ValidMsda { problem: self.clone(), levels, cells, points })
    }

    /// Levels as kernels have them, and their cells.
    fn check_levels(&self) -> Result<(Vec<MsdaLevel>, usize)> {
        check_range("shapes", "levels", 1, MSDA_MAX_LEVELS, self.shapes.len())?;
        let mut levels = Vec::new();
        let (mut start, mut first_bin) = (0usize, 0usize);
        for &[height, width] in &self.shapes {
            check_range("shapes", "height", 1, MSDA_MAX_SIDE as usize, height)?;
            check_range("shapes", "width", 1, MSDA_MAX_SIDE as usize, width)?;
            let (end, last_bin) = (start + height * width, first_bin + (height + 1) * (width + 1));
            check_range("shapes", "cells", 1, MAX_COUNT, end)?;
            levels.push(MsdaLevel {
                height: height as u32,
                width: width as u32,
                start: start as u32,
                // More than there are cells: a plan that needs bins refuses what does not fit.
                first_bin: u32::try_from(first_bin).unwrap_or(u32::MAX),
            });
            (start, first_bin) = (end, last_bin);
        }
        Ok((levels, start))
    }
}

fn check_range(
    argument: &'static str,
    dimension: &'static str,
    min: usize,
    max: usize,
    got: usize,
) -> Result<()> {
    if (min..=max).contains(&got) {
        return Ok(());
    }
    Err(Error::SizeRange { argument, dimension, min: min as u64, max: max as u64, got })
}

/// A tensor of queries has the shape that value and o say.
fn check_shape(argument: &'static str, layout: &Layout, expected: [usize; 4]) -> Result<()> {
    let likes = ["value", "o", "value", if argument == "o" { "value" } else { "shapes" }];
    let sizes = super::DIMENSIONS.into_iter().zip(expected).zip(likes).zip(layout.shape);
    for (((dimension, expected), like), got) in sizes {
        let dimension = match dimension {
            "head_dim" if argument != "o" => "columns",
            other => other,
        };
        check_size(argument, dimension, expected, like, got)?;
    }
    Ok(())
}

/// Kernels multiply strides of cells in 32 bits.
fn check_row_stride(argument: &'static str, layout: &Layout, dtype: Dtype) -> Result<()> {
    let max = i64::from(i32::MAX / dtype.bytes() as i32);
    let got = layout.strides[1];
    if layout.shape[1] <= 1 || layout.elements() == 0 || (-max..=max).contains(&got) {
        return Ok(());
    }
    Err(Error::RowStride { argument, max, got })
}

/// A problem that passed [`MsdaProblem::validate`], with its sizes. Only `validate` makes one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidMsda {
    /// The problem as it was asked.
    pub problem: MsdaProblem,
    /// Its levels.
    pub levels: Vec<MsdaLevel>,
    /// Rows of value.
    pub cells: usize,
    /// Points of a query: `L * P`.
    pub points: usize,
}

impl ValidMsda {
    /// B, N, H and C.
    pub fn sizes(&self) -> [usize; 4] {
        self.problem.o.shape
    }

    /// Whether o has no elements.
    pub fn is_empty(&self) -> bool {
        self.problem.o.elements() == 0
    }

    /// Places that the first corner of a point can have, of all levels.
    pub fn bins(&self) -> usize {
        self.problem.shapes.iter().map(|[height, width]| (height + 1) * (width + 1)).sum()
    }
}

/// The gradients of multi-scale deformable attention: dvalue, dlocations and dweights from dO.
///
/// Each has the shape and the element type of what it is the gradient of. Those of value are added up in f32
/// and rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaBackwardProblem {
    /// The forward pass; its o is not looked at but for its shape.
    pub forward: MsdaProblem,
    /// `[B, N, H, C]`: the gradient of o.
    pub d_o: Layout,
    /// `[B, cells, H, C]`.
    pub d_value: Layout,
    /// `[B, N, H, L * P * 2]`.
    pub d_locations: Layout,
    /// `[B, N, H, L * P]`.
    pub d_weights: Layout,
    /// [`Mode::Deterministic`]: gradients of value are the same bits from run to run. All others always are.
    pub mode: Mode,
}

impl MsdaBackwardProblem {
    /// dO and all gradients dense; [`Mode::Fast`].
    pub fn new(forward: MsdaProblem) -> Self {
        let dense = |layout: &Layout| Layout::bshd(layout.shape);
        MsdaBackwardProblem {
            d_o: dense(&forward.o),
            d_value: dense(&forward.value),
            d_locations: dense(&forward.locations),
            d_weights: dense(&forward.weights),
            mode: Mode::Fast,
            forward,
        }
    }

    /// Sets the layout of dO.
    pub fn with_d_o(self, d_o: Layout) -> Self {
        MsdaBackwardProblem { d_o, ..self }
    }

    /// Sets the layouts of the gradients.
    pub fn with_gradients(self, d_value: Layout, d_locations: Layout, d_weights: Layout) -> Self {
        MsdaBackwardProblem { d_value, d_locations, d_weights, ..self }
    }

    /// Sets the mode.
    pub fn with_mode(self, mode: Mode) -> Self {
        MsdaBackwardProblem { mode, ..self }
    }

    /// Checks everything that can be checked without a device, and derives the sizes.
    ///
    /// # Errors
    /// Those of [`MsdaProblem::validate`], and the same for `do`, `dvalue`, `dlocations` and `dweights`.
    pub fn validate(&self) -> Result<ValidMsdaBackward> {
        let forward = self.forward.validate()?;
        let of = &self.forward;
        let all = [
            ("do", &self.d_o, "o", &of.o, of.dtype),
            ("dvalue", &self.d_value, "value", &of.value, of.dtype),
            ("dlocations", &self.d_locations, "locations", &of.locations, of.locations_dtype),
            ("dweights", &self.d_weights, "weights", &of.weights, of.weights_dtype),
        ];
        for (argument, layout, like, other, dtype) in all {
            for ((dimension, got), expected) in
                super::DIMENSIONS.into_iter().zip(layout.shape).zip(other.shape)
            {
                check_size(argument, dimension, expected, like, got)?;
            }
            layout.check_columns(argument)?;
            layout.check_span(argument, dtype)?;
            if argument != "do" {
                layout.check_output(argument)?;
            }
        }
        check_row_stride("dvalue", &self.d_value, of.dtype)?;
        Ok(ValidMsdaBackward { problem: self.clone(), forward })
    }
}

/// A problem that passed [`MsdaBackwardProblem::validate`], with its sizes. Only `validate` makes one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidMsdaBackward {
    /// The problem as it was asked.
    pub problem: MsdaBackwardProblem,
    /// Its forward pass, and the sizes.
    pub forward: ValidMsda,
}
