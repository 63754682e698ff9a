//! `fattn check --what msda`: random cases of multi-scale deformable attention.

use super::{CheckArguments, Swept, json_tensor, sweep_all};
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
    let Swept { name, device_text, outcomes } = sweep_all(&arguments.device, count, run)?;
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    let passed = outcomes.len() - failed;
    if arguments.json {
        let cases: Vec<Value> = outcomes.iter().map(json_case).collect();
        let report = json!({
            "device": device_text, "seed": arguments.seed, "cases": cases, "passed": passed, "failed": failed,
        });
        println!("{report}");
    } else {
        print_table(&outcomes);
        println!("device {name} ({device_text}), seed {}", arguments.seed);
        println!("{passed} passed, {failed} failed");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Errors of all outputs of a case, each as a share of what is allowed.
fn print_table(outcomes: &[MsdaOutcome]) {
    println!(
        "{:>4} {:<44} {:<13} {:<13} {:<9} {:<13} {:>6} {:>6} {:>6} {:>6}  verdict",
        "case", "shape", "dtypes", "padding", "layout", "mode", "o", "dval", "dloc", "dwgt"
    );
    for outcome in outcomes {
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
        println!(
            "{:>4} {:<44} {:<13} {:<13} {:<9} {:<13} {o:>6} {d_value:>6} {d_locations:>6} {d_weights:>6}  {}",
            case.id,
            case.shape_text(),
            format!("{value} {locations} {weights}"),
            format!("{}{aligned}", case.padding.name()),
            case.placement.name(),
            case.mode.name(),
            outcome.failure.as_deref().map_or("pass".into(), |failure| format!("FAIL {failure}")),
        );
    }
    println!("dtypes of value, locations and weights; errors as shares of what is allowed");
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
