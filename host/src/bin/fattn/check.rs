//! `fattn check`: the kernels against the reference.

use crate::device::DeviceArguments;
use anyhow::{Result, ensure};
use clap::Args;
use finite_attention::Device;
use finite_attention::check::{Outcome, cases, sweep};
use finite_attention::device::DeviceName;
use finite_attention::reference::Verdict;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::thread::available_parallelism;

/// How many cases, and where.
#[derive(Args)]
pub struct CheckArguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// Number of cases.
    #[arg(long, default_value_t = 240)]
    cases: usize,
    /// Seed of the cases and their numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Run only the case with this number.
    #[arg(long)]
    only: Option<usize>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the sweep and prints it; exit code 1 if a case failed.
pub fn run(arguments: &CheckArguments) -> Result<ExitCode> {
    let (name, first) = arguments.device.open()?;
    let device_text = first.properties().name.clone();
    let mut cases = cases(arguments.seed, arguments.cases);
    cases.retain(|case| arguments.only.is_none_or(|only| only == case.id));
    ensure!(!cases.is_empty(), "no case to run");
    let workers = match name {
        DeviceName::Cuda(_) => 1,
        DeviceName::Emulated(_) => available_parallelism().map_or(1, usize::from),
    };
    let images = arguments.device.images()?;
    let open = || match name {
        DeviceName::Cuda(_) => Ok(first.clone()),
        DeviceName::Emulated(_) => Device::open(name, images.clone()),
    };
    let progress = ProgressBar::new(cases.len() as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {elapsed} {msg}")?);
    let outcomes = sweep(&cases, workers, open, |outcome| {
        progress.inc(1);
        if outcome.failure.is_some() {
            progress.set_message(format!("case {} failed", outcome.case.id));
        }
    })?;
    progress.finish_and_clear();
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    if arguments.json {
        println!("{}", json_report(&device_text, arguments.seed, &outcomes, failed));
    } else {
        print_table(&outcomes);
        println!("device {name} ({device_text}), seed {}", arguments.seed);
        println!("{} passed, {failed} failed", outcomes.len() - failed);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn print_table(outcomes: &[Outcome]) {
    println!(
        "{:>4} {:<26} {:<10} {:<15} {:<9} {:>8} {:>8} {:>8}  verdict",
        "case", "shape", "dtype", "mask", "layout", "err o", "allowed", "err lse"
    );
    for Outcome { case, o, lse, failure, .. } in outcomes {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1e}"));
        println!(
            "{:>4} {:<26} {:<10} {:<15} {:<9} {:>8} {:>8} {:>8}  {}",
            case.id,
            case.shape_text(),
            dtype_text(case.dtype.name(), case.output_dtype.name()),
            case.mask.name(),
            case.placement.name(),
            number(o.map(|verdict| verdict.error)),
            number(o.map(|verdict| verdict.allowed)),
            number(lse.map(|verdict| verdict.error)),
            failure.as_deref().map_or("pass".to_owned(), |failure| format!("FAIL {failure}")),
        );
    }
}

/// `bf16`, or `bf16->f32` where o is wider.
fn dtype_text(input: &str, output: &str) -> String {
    if input == output { input.to_owned() } else { format!("{input}->{output}") }
}

fn json_report(device: &str, seed: u64, outcomes: &[Outcome], failed: usize) -> Value {
    let cases: Vec<Value> = outcomes.iter().map(json_case).collect();
    let passed = outcomes.len() - failed;
    json!({ "device": device, "seed": seed, "cases": cases, "passed": passed, "failed": failed })
}

fn json_case(outcome: &Outcome) -> Value {
    let Outcome { case, kernel, o, lse, failure, elapsed } = outcome;
    let verdict = |verdict: &Option<Verdict>| {
        verdict.map(|verdict| json!({ "error": verdict.error, "allowed": verdict.allowed }))
    };
    json!({
        "id": case.id,
        "kernel": kernel,
        "batches": case.batches,
        "query_rows": case.query_rows,
        "key_rows": case.key_rows,
        "query_heads": case.query_heads,
        "key_heads": case.key_heads,
        "head_dim": case.head_dim,
        "value_dim": case.value_dim,
        "dtype": case.dtype.name(),
        "output_dtype": case.output_dtype.name(),
        "mask": case.mask.name(),
        "layout": case.placement.name(),
        "scale": case.sizes().scale,
        "amplitude": case.amplitude,
        "logit_shift": case.logit_shift,
        "o": verdict(o),
        "lse": verdict(lse),
        "milliseconds": elapsed.as_secs_f64() * 1e3,
        "pass": failure.is_none(),
        "failure": failure,
    })
}
