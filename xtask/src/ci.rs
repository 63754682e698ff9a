//! `ci`: everything that must be green, in the order in which it is quickest to fail.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::workspace::{on_path, root, run_shown};
use crate::{build_kernels, tidy};

/// Run everything that must be green.
#[derive(clap::Args)]
pub struct Args {
    /// Install what is missing: the kernel compiler and ptxas.
    #[arg(long)]
    install: bool,
}

/// A step: what it is called and what it does.
type Step<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);

/// Runs the steps; the first that fails ends the run.
///
/// # Errors
/// The error of that step, with its name.
pub fn run(args: &Args) -> Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for (name, step) in steps(args) {
        println!("== {name}");
        let started = Instant::now();
        let done = step();
        times.push((name, started.elapsed()));
        if let Err(error) = done {
            print_times(&times);
            return Err(error).with_context(|| format!("step `{name}` failed"));
        }
    }
    print_times(&times);
    Ok(())
}

fn steps(args: &Args) -> Vec<Step<'_>> {
    let mut steps: Vec<Step> = vec![
        ("fmt", Box::new(|| cargo("fmt --all -- --check"))),
        ("tidy", Box::new(tidy::run)),
        ("kernels", Box::new(|| build_kernels::check(args.install))),
        ("clippy", Box::new(|| cargo("clippy --workspace --all-targets --locked -- -D warnings"))),
        ("tests", Box::new(tests)),
        ("hopper", Box::new(hopper)),
        ("doctests", Box::new(|| cargo("test --workspace --doc --locked"))),
        ("docs", Box::new(docs)),
    ];
    if on_path("python3").is_some() {
        steps.push(("benchmarks", Box::new(benchmarks)));
    } else {
        println!("python3 is not at hand: what compare.py works out is not tested");
    }
    if on_path("cargo-deny").is_some() {
        // Advisories need a database from the network; the rest is in the tree.
        steps.push(("deny", Box::new(|| cargo("deny check licenses bans sources"))));
    } else {
        println!("cargo-deny is not at hand: licences of dependencies are not checked");
    }
    steps
}

fn tests() -> Result<()> {
    if on_path("cargo-nextest").is_some() {
        cargo("nextest run --workspace --locked")
    } else {
        cargo("test --workspace --lib --bins --tests --locked")
    }
}

/// A few cases of every property for Hopper's kernels, others in each run: the step before is for compute
/// capability 8.0, and repeats its cases. What fails prints its seed.
fn hopper() -> Result<()> {
    const PROPERTIES: [&str; 8] = [
        "accuracy",
        "dead_rows",
        "gradients",
        "kernels",
        "large_logits",
        "nan_propagation",
        "pack_gqa",
        "poison",
    ];
    let mut command = Command::new("cargo");
    command.args(["test", "--package", "finite-attention-tests", "--locked"]);
    command.args(PROPERTIES.iter().flat_map(|property| ["--test", *property]));
    command.env("FATTN_DEVICE", "emulated:sm_90a").env("FATTN_CASES", "4").env("FATTN_SEED", "random");
    run_shown(command.current_dir(root()))
}

fn docs() -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    run_shown(command.current_dir(root()).env("RUSTDOCFLAGS", "-D warnings"))
}

/// The tests of what compare.py works out without a GPU.
fn benchmarks() -> Result<()> {
    let mut command = Command::new("python3");
    command.args(["-B", "-m", "unittest", "discover", "--top-level-directory", "benchmarks"]);
    run_shown(command.args(["--start-directory", "benchmarks/tests"]).current_dir(root()))
}

fn cargo(line: &str) -> Result<()> {
    run_shown(Command::new("cargo").args(line.split(' ')).current_dir(root()))
}

fn print_times(times: &[(&str, Duration)]) {
    println!("\n{:<10} {:>7}", "step", "seconds");
    for (name, time) in times {
        println!("{name:<10} {:>7.1}", time.as_secs_f64());
    }
}
