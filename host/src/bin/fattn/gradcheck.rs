//! `fattn gradcheck`: the reference's gradients against finite differences, and the kernels' against the
//! reference's.

use crate::check::{softcap_text, sweep_all};
use crate::device::DeviceArguments;
use anyhow::Result;
use clap::Args;
use finite_attention::Dtype;
use finite_attention::check::{Case, Gradients, Outcome, gradcheck, gradcheck_cases, with_enough_rows};
use std::process::ExitCode;

/// Where the kernels run.
#[derive(Args)]
pub struct GradcheckArguments {
    #[command(flatten)]
    device: DeviceArguments,
}

/// Prints both comparisons; exit code 1 if any difference is too large.
pub fn run(arguments: &GradcheckArguments) -> Result<ExitCode> {
    let cases = gradcheck_cases();
    println!("f64 reference against central differences, relative to the largest element or 1:");
    println!(
        "{:>4} {:<20} {:<16} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "case", "shape", "mask", "softcap", "dq", "dk", "dv", "allowed"
    );
    let mut passed = true;
    for row in cases.iter().map(gradcheck) {
        let [dq, dk, dv] = row.differences.map(|(_, difference)| difference);
        let verdict = if row.passes() { "pass" } else { "FAIL" };
        let shape = row.case.shape_text();
        println!(
            "{:>4} {shape:<20} {:<16} {:>7} {dq:>9.1e} {dk:>9.1e} {dv:>9.1e} {:>9.1e}  {verdict}",
            row.case.id,
            row.case.mask,
            softcap_text(&row.case),
            row.allowed
        );
        passed &= row.passes();
    }
    let in_each_dtype = [Dtype::Bf16, Dtype::F16, Dtype::F32].into_iter().flat_map(|dtype| {
        cases.iter().map(move |case| {
            let gradients = case.gradients.map(|gradients| Gradients { dtype, ..gradients });
            with_enough_rows(Case { dtype, output_dtype: dtype, gradients, ..case.clone() })
        })
    });
    let all: Vec<Case> = in_each_dtype.collect();
    let swept = sweep_all(&arguments.device, all.len(), |index| all[index].clone())?;
    println!("kernels on {} against the f64 reference, largest error of what is allowed:", swept.name);
    println!(
        "{:>4} {:<20} {:<16} {:>7} {:<5} {:>17} {:>17} {:>17}",
        "case", "shape", "mask", "softcap", "dtype", "dq", "dk", "dv"
    );
    for outcome in &swept.outcomes {
        println!("{}", line(outcome));
        passed &= outcome.failure.is_none();
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn line(outcome: &Outcome) -> String {
    let case = &outcome.case;
    let column = |name| match outcome.tensor(name).map(|tensor| tensor.verdict) {
        None => "-".to_owned(),
        Some(verdict) => format!("{:.1e}/{:.1e}", verdict.error, verdict.allowed),
    };
    format!(
        "{:>4} {:<20} {:<16} {:>7} {:<5} {:>17} {:>17} {:>17}  {}",
        case.id,
        case.shape_text(),
        case.mask,
        softcap_text(case),
        case.dtype.name(),
        column("dq"),
        column("dk"),
        column("dv"),
        outcome.failure.as_deref().map_or("pass".to_owned(), |failure| format!("FAIL {failure}")),
    )
}
