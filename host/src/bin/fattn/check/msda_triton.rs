//! `fattn check --what msda --suite msda-triton`: the tests that msda-triton has of its kernels, run on ours.

use super::{CaseOutcome, CheckArguments, Sweep};
use crate::console::outln;
use anyhow::{Result, ensure};
use finite_attention::Device;
use finite_attention::check::msda::{
    MsdaTritonOutcome, MsdaTritonResult, MsdaTritonSize, msda_triton_tests, run_msda_triton,
};
use finite_attention::device::DeviceName;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Tensors of a test in the order of the table.
const TENSORS: [&str; 4] = ["o", "dvalue", "dlocations", "dweights"];

/// How many failures the table quotes.
const QUOTED: usize = 20;

impl CaseOutcome for MsdaTritonOutcome {
    fn failed(&self) -> Option<usize> {
        self.results.iter().any(|result| result.failure.is_some()).then_some(self.seed as usize)
    }
}

/// What came of one test with all seeds.
struct Row<'o> {
    /// Its results, with their seeds.
    results: Vec<(u64, &'o MsdaTritonResult)>,
}

/// Runs all tests with `count` seeds, from the `first` after `--seed` on, and prints a row for each test;
/// exit code 1 if one failed.
pub fn run(arguments: &CheckArguments, first: usize, count: usize) -> Result<ExitCode> {
    let seeds = arguments.seed.checked_add((first + count) as u64);
    ensure!(
        seeds.is_some(),
        "--seed: expected --cases seeds up to {}, got {}",
        u64::MAX,
        arguments.seed
    );
    let first = arguments.seed + first as u64;
    let sweep = Sweep::open(&arguments.device)?;
    let Sweep { name, device_text, .. } = &sweep;
    let size = match name {
        DeviceName::Emulated(_) => MsdaTritonSize::EMULATED,
        DeviceName::Cuda(_) | DeviceName::CudaAs(..) => MsdaTritonSize::FULL,
    };
    let run = |device: &Device, index| run_msda_triton(device, first + index as u64, size);
    let outcomes = sweep.run(count, run, None)?;
    let rows: Vec<Row> =
        (0..msda_triton_tests(first, size).len()).map(|test| Row::new(&outcomes, test)).collect();
    let failed: usize = rows.iter().map(Row::failed).sum();
    let passed = rows.len() * count - failed;
    if arguments.json {
        let tests: Vec<Value> = rows.iter().map(Row::json).collect();
        let report = json!({
            "device": device_text, "suite": "msda-triton", "first_seed": first, "seeds": count,
            "batches": size.batches, "queries": size.queries, "heads": size.heads,
            "tests": tests, "passed": passed, "failed": failed,
        });
        outln!("{report}")?;
    } else {
        print_table(&rows)?;
        let last = first + count as u64 - 1;
        outln!(
            "{} at its tolerances, device {name} ({device_text}), seeds {first} to {last}",
            shape(&rows)
        )?;
        outln!("{passed} passed, {failed} failed")?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The shape of all tests.
fn shape(rows: &[Row]) -> String {
    let first = rows.iter().flat_map(|row| row.results.first()).next();
    first.map_or(String::new(), |(_, result)| result.test.case.shape_text())
}

impl<'o> Row<'o> {
    fn new(outcomes: &'o [MsdaTritonOutcome], test: usize) -> Self {
        Row { results: outcomes.iter().map(|outcome| (outcome.seed, &outcome.results[test])).collect() }
    }

    fn failures(&self) -> impl Iterator<Item = (u64, &'o str)> {
        self.results.iter().filter_map(|(seed, result)| Some((*seed, result.failure.as_deref()?)))
    }

    fn failed(&self) -> usize {
        self.failures().count()
    }

    /// Of a tensor the largest error as a share of what is allowed, over all seeds, and its seed; NaN is the
    /// largest.
    fn share(&self, name: &str) -> Option<(f64, u64)> {
        let shares = self.results.iter().filter_map(|(seed, result)| {
            let verdict = result.tensors.iter().find(|tensor| tensor.name == name)?.verdict;
            Some((verdict.error / verdict.allowed, *seed))
        });
        shares.max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()))
    }

    /// `forward f16 border aligned`, and the mode of a backward.
    fn text(&self) -> String {
        let Some((_, result)) = self.results.first() else { return String::new() };
        let case = &result.test.case;
        let aligned = if case.align_corners { " aligned" } else { "" };
        let mode = if result.test.name == "backward" { case.mode.name() } else { "" };
        let dtype = case.dtype.name();
        format!(
            "{:<21} {dtype:<5} {:<15} {mode}",
            result.test.name,
            format!("{}{aligned}", case.padding.name())
        )
    }

    fn json(&self) -> Value {
        let case = self.results.first().map(|(_, result)| (result.test.name, &result.test.case));
        let tensors: serde_json::Map<String, Value> = TENSORS
            .iter()
            .filter_map(|name| {
                let (share, seed) = self.share(name)?;
                Some(((*name).to_owned(), json!({ "largest_share": share, "seed": seed })))
            })
            .collect();
        let failures: Vec<Value> =
            self.failures().map(|(seed, failure)| json!({ "seed": seed, "failure": failure })).collect();
        json!({
            "test": case.map(|(name, _)| name),
            "dtype": case.map(|(_, case)| case.dtype.name()),
            "padding": case.map(|(_, case)| case.padding.name()),
            "align_corners": case.map(|(_, case)| case.align_corners),
            "mode": case.map(|(_, case)| case.mode.name()),
            "passed": self.results.len() - failures.len(),
            "failed": failures.len(),
            "tensors": tensors,
            "failures": failures,
        })
    }
}

/// Of each test how many seeds passed, and the largest errors of all seeds as shares of what is allowed.
fn print_table(rows: &[Row]) -> Result<()> {
    outln!(
        "{:<58} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "test",
        "passed",
        "failed",
        "o",
        "dval",
        "dloc",
        "dwgt"
    )?;
    for row in rows {
        let [o, d_value, d_locations, d_weights] = TENSORS.map(|name| {
            row.share(name).map_or_else(|| "-".to_owned(), |(share, _)| format!("{share:.3}"))
        });
        let failed = row.failed();
        outln!(
            "{:<58} {:>6} {failed:>6} {o:>6} {d_value:>6} {d_locations:>6} {d_weights:>6}",
            row.text(),
            row.results.len() - failed,
        )?;
    }
    outln!("largest errors of all seeds, as shares of what is allowed")?;
    let failures = rows.iter().flat_map(|row| row.failures().map(|failure| (row.text(), failure)));
    for (test, (seed, failure)) in failures.take(QUOTED) {
        outln!(
            "FAIL seed {seed}, {}: {failure}",
            test.split_whitespace().collect::<Vec<_>>().join(" ")
        )?;
    }
    Ok(())
}
