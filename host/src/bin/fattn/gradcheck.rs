//! `fattn gradcheck`: the reference's gradients against finite differences, and the kernels' against the
//! reference's.

use crate::check::{Sweep, softcap_text};
use crate::console::outln;
use crate::device::DeviceArguments;
use anyhow::Result;
use clap::Args;
use finite_attention::check::{
    Case, Gradients, Outcome, gradcheck, gradcheck_cases, run_case, with_enough_rows,
};
use finite_attention::{Device, Dtype};
use std::process::ExitCode;

/// Where the kernels run.
#[derive(Args)]
pub struct GradcheckArguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// Run kernels on the cases with bias, masks, slopes and sinks, too.
    #[arg(long)]
    features: bool,
}

/// Prints both comparisons; exit code 1 if any difference is too large.
pub fn run(arguments: &GradcheckArguments) -> Result<ExitCode> {
    let cases = gradcheck_cases();
    outln!("f64 reference against central differences, relative to the largest element or 1:")?;
    outln!(
        "{:>4} {:<20} {:<20} {:>7} {:<28} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "case",
        "shape",
        "mask",
        "softcap",
        "scores",
        "dq",
        "dk",
        "dv",
        "dbias",
        "dsinks",
        "allowed"
    )?;
    let mut passed = true;
    for row in cases.iter().map(gradcheck) {
        let difference = |name| {
            let found = row.differences.iter().find(|(of, _)| *of == name);
            found.map_or("-".to_owned(), |(_, difference)| format!("{difference:.1e}"))
        };
        let [dq, dk, dv, dbias, dsinks] = ["dq", "dk", "dv", "dbias", "dsinks"].map(difference);
        let verdict = if row.passes() { "pass" } else { "FAIL" };
        let shape = row.case.shape_text();
        outln!(
            "{:>4} {shape:<20} {:<20} {:>7} {:<28} {dq:>9} {dk:>9} {dv:>9} {dbias:>9} {dsinks:>9} {:>9.1e}  \
             {verdict}",
            row.case.id,
            row.case.mask,
            softcap_text(&row.case),
            row.case.features.text(),
            row.allowed
        )?;
        passed &= row.passes();
    }
    let in_each_dtype = [Dtype::Bf16, Dtype::F16, Dtype::F32].into_iter().flat_map(|dtype| {
        let asked = |case: &&Case| arguments.features || case.features.is_empty();
        cases.iter().filter(asked).map(move |case| {
            let gradients = case.gradients.map(|gradients| Gradients { dtype, ..gradients });
            with_enough_rows(Case { dtype, output_dtype: dtype, gradients, ..case.clone() })
        })
    });
    let all: Vec<Case> = in_each_dtype.collect();
    let sweep = Sweep::open(&arguments.device)?;
    outln!("kernels on {} against the f64 reference, largest error of what is allowed:", sweep.name)?;
    outln!(
        "{:>4} {:<20} {:<16} {:>7} {:<5} {:>17} {:>17} {:>17}",
        "case",
        "shape",
        "mask",
        "softcap",
        "dtype",
        "dq",
        "dk",
        "dv"
    )?;
    let run = |device: &Device, index: usize| run_case(device, &all[index]);
    let outcomes = sweep.run(all.len(), run, Some(&line))?;
    passed &= outcomes.iter().all(|outcome| outcome.failure.is_none());
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
