//! From the structs of multi-scale deformable attention to problems and pointers.

use super::convert::{dtype, dtype_or, flag, layout};
use super::types::{CMsda, CMsdaBackwardArgs, CMsdaForwardArgs};
use super::{Failure, invalid};
use crate::attention::Workspace;
use crate::plan::{MsdaBackwardPointers, MsdaPointers};
use crate::problem::{Layout, Mode, MsdaBackwardProblem, MsdaProblem, Padding};
use kernels_gpu::abi::MSDA_MAX_LEVELS;

pub fn forward_problem(args: &CMsdaForwardArgs) -> Result<MsdaProblem, Failure> {
    problem(&args.msda, layout("o", &args.o)?)
}

/// What both passes share.
fn problem(args: &CMsda, o: Layout) -> Result<MsdaProblem, Failure> {
    let level_points = usize::try_from(args.level_points)
        .map_err(|_| invalid(format!("level_points: expected at least 0, got {}", args.level_points)))?;
    let problem = MsdaProblem::new(
        dtype("dtype", args.dtype)?,
        layout("value", &args.value)?,
        &shapes(args)?,
        o.shape[1],
        level_points,
    )
    .with_locations(
        layout("locations", &args.locations)?,
        dtype_or("locations_dtype", args.locations_dtype, args.dtype)?,
    )
    .with_weights(
        layout("weights", &args.weights)?,
        dtype_or("weights_dtype", args.weights_dtype, args.dtype)?,
    )
    .with_output(o)
    .with_padding(match args.padding {
        0 => Padding::Zeros,
        1 => Padding::Border,
        other => return Err(invalid(format!("padding: expected 0 or 1, got {other}"))),
    });
    let aligned = flag("align_corners", args.align_corners)?;
    Ok(if aligned { problem.aligned_to_corners() } else { problem })
}

fn shapes(args: &CMsda) -> Result<Vec<[usize; 2]>, Failure> {
    let levels = usize::try_from(args.levels).unwrap_or(usize::MAX);
    let Some(shapes) = args.shapes.get(..levels) else {
        let got = args.levels;
        return Err(invalid(format!("levels: expected 1 to {MSDA_MAX_LEVELS}, got {got}")));
    };
    let size = |size: i64| {
        let refused = |_| invalid(format!("shapes: expected sizes of at least 1, got {size}"));
        usize::try_from(size).map_err(refused)
    };
    shapes.iter().map(|&[height, width]| Ok([size(height)?, size(width)?])).collect()
}

pub fn forward_pointers(args: &CMsdaForwardArgs) -> MsdaPointers {
    let CMsda { value, locations, weights, .. } = &args.msda;
    MsdaPointers {
        value: value.address,
        locations: locations.address,
        weights: weights.address,
        o: args.o.address,
    }
}

pub fn backward_problem(args: &CMsdaBackwardArgs) -> Result<MsdaBackwardProblem, Failure> {
    let d_o = layout("do", &args.d_o)?;
    let forward = problem(&args.msda, Layout::bshd(d_o.shape))?;
    let deterministic = flag("deterministic", args.deterministic)?;
    Ok(MsdaBackwardProblem::new(forward)
        .with_d_o(d_o)
        .with_gradients(
            layout("dvalue", &args.d_value)?,
            layout("dlocations", &args.d_locations)?,
            layout("dweights", &args.d_weights)?,
        )
        .with_mode(if deterministic { Mode::Deterministic } else { Mode::Fast }))
}

pub fn backward_pointers(args: &CMsdaBackwardArgs) -> MsdaBackwardPointers {
    let CMsda { value, locations, weights, .. } = &args.msda;
    MsdaBackwardPointers {
        value: value.address,
        locations: locations.address,
        weights: weights.address,
        d_o: args.d_o.address,
        d_value: args.d_value.address,
        d_locations: args.d_locations.address,
        d_weights: args.d_weights.address,
    }
}

pub fn workspace(args: &CMsdaBackwardArgs) -> Workspace {
    Workspace { pointer: args.workspace, bytes: args.workspace_bytes }
}
