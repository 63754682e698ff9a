//! `fattn equivalence`: errors of every output over a regular grid of lengths, head dimensions and
//! masks.

use crate::check::{Sweep, count_failed, exit_code, json_case};
use crate::console::outln;
use crate::device::DeviceArguments;
use crate::output::{OutputFile, all_different};
use crate::plot::{Curve, Plot};
use anyhow::{Context, Result, ensure};
use clap::{ArgAction, Args, ValueEnum};
use finite_attention::check::{Outcome, equivalence_cases, run_case};
use finite_attention::{Device, Dtype};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// The grid, and where it runs.
#[derive(Args)]
pub struct EquivalenceArguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// Element type of all tensors.
    #[arg(long, default_value = "bf16")]
    dtype: GridDtype,
    /// Query rows, and as many keys; at most 1048576, as the reference has to get through them.
    #[arg(long, value_delimiter = ',', default_value = "1,16,63,64,100,128,129,256")]
    #[arg(action = ArgAction::Set)]
    seqlen: Vec<usize>,
    /// Head dimensions.
    #[arg(long, value_delimiter = ',', default_value = "64,128", action = ArgAction::Set)]
    head_dim: Vec<usize>,
    /// Cap of scores in all cases, above 0; not capped if not given.
    #[arg(long, allow_hyphen_values = true, value_name = "C", value_parser = crate::task::softcap)]
    softcap: Option<f32>,
    /// Write all numbers to this file; one that is there is replaced.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of errors against length to this file; one that is there is replaced.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum GridDtype {
    Bf16,
    F16,
    F32,
}

/// Rows at most: of more, the reference would not see the end, nor have the memory.
const MAX_SEQLEN: usize = 1 << 20;

const OUTPUTS: [&str; 5] = ["o", "lse", "dq", "dk", "dv"];

/// Runs the grid and prints it; exit code 1 if an error is too large.
pub fn run(arguments: &EquivalenceArguments) -> Result<ExitCode> {
    let dtype = match arguments.dtype {
        GridDtype::Bf16 => Dtype::Bf16,
        GridDtype::F16 => Dtype::F16,
        GridDtype::F32 => Dtype::F32,
    };
    let cases = equivalence_cases(dtype, &arguments.seqlen, &arguments.head_dim, arguments.softcap);
    for case in &cases {
        let (rows, head_dim) = (case.query_rows, case.head_dim);
        ensure!(rows <= MAX_SEQLEN, "--seqlen: expected 0..={MAX_SEQLEN}, got {rows}");
        case.problem().validate().with_context(|| format!("--head-dim {head_dim}"))?;
    }
    let [mut json, mut svg] = outputs(arguments)?;
    let sweep = Sweep::open(&arguments.device)?;
    let device_text = &sweep.device_text;
    outln!("{device_text}, {}", dtype.name())?;
    outln!(
        "{:<13} {:>4} {:>6} {:<4} {:>9} {:>9} {:>9} {:>10} {:>5}",
        "mask",
        "dim",
        "length",
        "",
        "error",
        "relative",
        "allowed",
        "non-finite",
        "first"
    )?;
    let run = |device: &Device, index: usize| run_case(device, &cases[index]);
    let outcomes = sweep.run(cases.len(), run, Some(&lines))?;
    if let Some(file) = &mut json {
        let cases: Vec<_> = outcomes.iter().map(json_case).collect();
        let report = json!({
            "device": device_text,
            "dtype": dtype.name(),
            "softcap": arguments.softcap,
            "cases": cases,
        });
        file.write(format!("{report:#}\n").as_bytes())?;
    }
    if let Some(file) = &mut svg {
        file.write(plot(&outcomes, device_text, dtype).svg().as_bytes())?;
    }
    let failed = count_failed(&outcomes);
    outln!("{} passed, {failed} failed", outcomes.len() - failed)?;
    Ok(exit_code(failed))
}

/// The files of --json and --svg, if they are asked for.
fn outputs(arguments: &EquivalenceArguments) -> Result<[Option<OutputFile>; 2]> {
    let inputs: Vec<_> = arguments.device.inputs().into_iter().collect();
    let open = |option, path: &Option<PathBuf>| {
        path.as_deref().map(|path| OutputFile::new(option, path, &inputs)).transpose()
    };
    let files = [open("--json", &arguments.json)?, open("--svg", &arguments.svg)?];
    all_different(&files.iter().flatten().collect::<Vec<_>>())?;
    Ok(files)
}

/// A line per output of a case.
fn lines(outcome: &Outcome) -> String {
    let Outcome { case, tensors, failure, .. } = outcome;
    let mut lines = Vec::new();
    for tensor in tensors {
        lines.push(format!(
            "{:<13} {:>4} {:>6} {:<4} {:>9.2e} {:>9.2e} {:>9.2e} {:>10} {:>5}",
            case.mask,
            case.head_dim,
            case.query_rows,
            tensor.name,
            tensor.verdict.error,
            tensor.relative,
            tensor.verdict.allowed,
            tensor.non_finite,
            tensor.first_non_finite.map_or("-".to_owned(), |index| index.to_string()),
        ));
    }
    if let Some(failure) = failure {
        lines.push(format!("{} {} {}: FAIL {failure}", case.mask, case.head_dim, case.query_rows));
    }
    lines.join("\n")
}

/// Largest error of each output at each length, over all masks and head dimensions.
fn plot(outcomes: &[Outcome], device_text: &str, dtype: Dtype) -> Plot {
    let curve = |name: &'static str, number: fn(&finite_attention::check::TensorVerdict) -> f64| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for outcome in outcomes {
            let Some(tensor) = outcome.tensor(name) else { continue };
            let (length, value) = (outcome.case.query_rows as f64, number(tensor));
            match points.iter_mut().find(|(at, _)| *at == length) {
                Some((_, largest)) => *largest = if value > *largest { value } else { *largest },
                None => points.push((length, value)),
            }
        }
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
        points
    };
    let mut curves = Vec::new();
    for name in OUTPUTS {
        curves.push(Curve { name, dashed: false, points: curve(name, |tensor| tensor.verdict.error) });
        curves.push(Curve { name, dashed: true, points: curve(name, |tensor| tensor.verdict.allowed) });
    }
    Plot {
        title: format!("{} on {}: largest error (dashed: allowed)", dtype.name(), device_text),
        x_label: "rows and keys",
        y_label: "absolute error",
        curves,
    }
}
