//! `fattn check --what msda`: random cases of multi-scale deformable attention.

use super::{CheckArguments, Sweep, count_failed, exit_code, json_tensor};
use crate::console::outln;
use anyhow::Result;
use finite_attention::Device;
use finite_attention::check::msda::{MsdaOutcome, msda_case, run_msda_case};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Tensors of a case in the order of the table.
const TENSORS: [&str; 4] = ["o", "dvalue", "dlocations", "dweights"];

/// Runs `count` cases from `first` on and prints them; exit code 1 if one failed.
pub fn run(arguments: &CheckArguments, first: usize, count: usize) -> Result<ExitCode> {
    let run = |device: &Device, index| run_msda_case(device, &msda_case(arguments.seed, first + index));
    let sweep = Sweep::open(&arguments.device)?;
    let (Sweep { name, device_text, .. }, seed) = (&sweep, arguments.seed);
    if arguments.json {
        let outcomes = sweep.run(count, run, None)?;
        let failed = count_failed(&outcomes);
        let (cases, passed): (Vec<Value>, _) =
            (outcomes.iter().map(json_case).collect(), outcomes.len() - failed);
        let report = json!({
            "device": device_text, "seed": seed, "cases": cases, "passed": passed, "failed": failed,
        });
        outln!("{report}")?;
        return Ok(exit_code(failed));
    }
    outln!(
        "{:>4} {:<44} {:<13} {:<13} {:<9} {:<13} {:>6} {:>6} {:>6} {:>6}  verdict",
        "case",
        "shape",
        "dtypes",
        "padding",
        "layout",
        "mode",
        "o",
        "dval",
        "dloc",
        "dwgt"
    )?;
    let outcomes = sweep.run(count, run, Some(&line))?;
    let failed = count_failed(&outcomes);
    outln!("dtypes of value, locations and weights; errors as shares of what is allowed")?;
    outln!("device {name} ({device_text}), seed {seed}")?;
    outln!("{} passed, {failed} failed", outcomes.len() - failed)?;
    Ok(exit_code(failed))
}

/// Errors of all outputs of a case, each as a share of what is allowed.
fn line(outcome: &MsdaOutcome) -> String {
    let case = &outcome.case;
    let [value, locations, weights] =
        [case.dtype, case.locations_dtype, case.weights_dtype].map(|dtype| dtype.name());
    let share = |name: &str| {
        let verdict = outcome.tensors.iter().find(|tensor| tensor.name == name)?.verdict;
        let share = || format!("{:.2}", verdict.error / verdict.allowed);
        Some(if verdict.error == 0.0 { "0".to_owned() } else { share() })
    };
    let [o, d_value, d_locations, d_weights] =
        TENSORS.map(|name| share(name).unwrap_or_else(|| "-".to_owned()));
    let aligned = if case.align_corners { " aligned" } else { "" };
    format!(
        "{:>4} {:<44} {:<13} {:<13} {:<9} {:<13} {o:>6} {d_value:>6} {d_locations:>6} {d_weights:>6}  {}",
        case.id,
        case.shape_text(),
        format!("{value} {locations} {weights}"),
        format!("{}{aligned}", case.padding.name()),
        case.placement.name(),
        case.mode.name(),
        outcome.failure.as_deref().map_or("pass".into(), |failure| format!("FAIL {failure}")),
    )
}

fn json_case(outcome: &MsdaOutcome) -> Value {
    let case = &outcome.case;
    let tensors: serde_json::Map<String, Value> = outcome
        .tensors
        .iter()
        .map(|tensor| (tensor.name.to_owned(), json!(json_tensor(Some(tensor)))))
        .collect();
    json!({
        "id": case.id,
        "kernels": outcome.kernels,
        "batches": case.batches,
        "queries": case.queries,
        "heads": case.heads,
        "channels": case.channels,
        "shapes": case.shapes,
        "level_points": case.level_points,
        "dtype": case.dtype.name(),
        "locations_dtype": case.locations_dtype.name(),
        "weights_dtype": case.weights_dtype.name(),
        "padding": case.padding.name(),
        "align_corners": case.align_corners,
        "layout": case.placement.name(),
        "mode": case.mode.name(),
        "tensors": tensors,
        "milliseconds": outcome.elapsed.as_secs_f64() * 1e3,
        "pass": outcome.failure.is_none(),
        "failure": outcome.failure,
    })
}
