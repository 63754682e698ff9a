//! Multi-scale deformable attention: from tensors to problems and pointers.

use crate::error::Result;
use crate::tensor::Tensor;
use finite_attention::{
    Mode, MsdaBackwardPointers, MsdaBackwardProblem, MsdaPointers, MsdaProblem, Padding,
};
use pyo3::FromPyObject;

/// `(value, shapes, locations, weights, points of a level, whether padding is border, align_corners)`, with
/// locations as `[B, N, H, L * P * 2]` and weights as `[B, N, H, L * P]`.
#[derive(FromPyObject)]
pub struct Problem(Tensor, Vec<[usize; 2]>, Tensor, Tensor, usize, bool, bool);

/// `(do, dvalue, dlocations, dweights)`.
#[derive(FromPyObject)]
pub struct Gradients(Tensor, Tensor, Tensor, Tensor);

/// The forward problem, and where its tensors are.
pub fn forward_problem(problem: &Problem, o: &Tensor) -> Result<(MsdaProblem, MsdaPointers)> {
    let forward = described(problem, o)?;
    let Problem(value, _, locations, weights, ..) = problem;
    let pointers = MsdaPointers {
        value: value.address(),
        locations: locations.address(),
        weights: weights.address(),
        o: o.address(),
    };
    Ok((forward, pointers))
}

/// The backward problem, and where its tensors are.
pub fn backward_problem(
    problem: &Problem,
    gradients: &Gradients,
    deterministic: bool,
) -> Result<(MsdaBackwardProblem, MsdaBackwardPointers)> {
    let Gradients(d_o, d_value, d_locations, d_weights) = gradients;
    let mode = if deterministic { Mode::Deterministic } else { Mode::Fast };
    // Of o its shape alone matters, which is that of dO.
    let backward = MsdaBackwardProblem::new(described(problem, d_o)?)
        .with_d_o(d_o.layout("do", false)?)
        .with_gradients(
            d_value.layout("dvalue", false)?,
            d_locations.layout("dlocations", false)?,
            d_weights.layout("dweights", false)?,
        )
        .with_mode(mode);
    let Problem(value, _, locations, weights, ..) = problem;
    let pointers = MsdaBackwardPointers {
        value: value.address(),
        locations: locations.address(),
        weights: weights.address(),
        d_o: d_o.address(),
        d_value: d_value.address(),
        d_locations: d_locations.address(),
        d_weights: d_weights.address(),
    };
    Ok((backward, pointers))
}

fn described(problem: &Problem, o: &Tensor) -> Result<MsdaProblem> {
    let &Problem(ref value, ref shapes, ref locations, ref weights, points, is_border, aligned) =
        problem;
    let queries = o.shape().get(1).copied().unwrap_or(0);
    let dtype = value.dtype("value")?;
    let padding = if is_border { Padding::Border } else { Padding::Zeros };
    let problem = MsdaProblem::new(dtype, value.layout("value", false)?, shapes, queries, points)
        .with_locations(locations.layout("locations", false)?, locations.dtype("locations")?)
        .with_weights(weights.layout("weights", false)?, weights.dtype("weights")?)
        .with_output(o.layout("o", false)?)
        .with_padding(padding);
    Ok(if aligned { problem.aligned_to_corners() } else { problem })
}
