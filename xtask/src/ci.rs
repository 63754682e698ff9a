//! `ci`: everything that must be green, in the order in which it is quickest to fail.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::workspace::{on_path, output, root, run_shown, shown, target_dir};
use crate::{book, build_kernels, integrations, packaged, seed, tidy};

/// Run everything that must be green, with a share of the properties' random cases: others for each commit.
#[derive(clap::Args)]
pub struct Args {
    /// Install what is missing: the kernel compiler and ptxas.
    #[arg(long)]
    install: bool,
    /// Run those steps alone that run beside the others.
    #[arg(long, hide = true)]
    beside: bool,
}

/// Run all random cases of every property for each target of the emulator, every edit of the sweep, and build
/// all kernels, whatever was checked before: hours.
#[derive(clap::Args)]
pub struct SoakArgs {
    /// Install what is missing: the kernel compiler and ptxas.
    #[arg(long)]
    install: bool,
}

/// A step: what it is called and what it does.
type Step<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);

/// The library and the command without `cust`; `packaged` runs tests of that.
const WITHOUT_CUST: &str = "clippy --package finite-attention --no-default-features --features cli \
                            --all-targets --locked -- -D warnings";

/// Runs the steps, some of them beside the others; the first of each that fails ends these.
///
/// # Errors
/// The error of that step, with its name.
pub fn run(args: &Args) -> Result<()> {
    if args.beside {
        return run_steps(steps_beside());
    }
    let seed = seed()?;
    println!("FATTN_SEED={seed}: with it the same cases are drawn again");
    let beside = Beside::start()?;
    let done = run_steps(steps(args, &seed));
    let done_beside = beside.finish();
    done.and(done_beside)
}

/// A process that runs [`steps_beside`], so that cores have work while a step waits for one crate or for the
/// network.
struct Beside {
    process: Child,
    /// What it prints, until it has ended.
    log: PathBuf,
}

impl Beside {
    fn start() -> Result<Self> {
        let log = target_dir().join("ci-beside.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["ci", "--beside"]).stdout(file.try_clone()?).stderr(file);
        let process = command.spawn().with_context(|| format!("cannot start `{}`", shown(&command)))?;
        Ok(Beside { process, log })
    }

    /// Waits for it, and prints what it said.
    fn finish(mut self) -> Result<()> {
        let started = Instant::now();
        let status = self.process.wait()?;
        println!("\n== beside these, and {:.1} s longer", started.elapsed().as_secs_f64());
        print!("{}", fs::read_to_string(&self.log)?);
        ensure!(status.success(), "a step beside the others failed ({status})");
        Ok(())
    }
}

/// As [`run`], of [`SoakArgs`].
///
/// # Errors
/// As [`run`].
pub fn soak(args: &SoakArgs) -> Result<()> {
    let seed = seed()?;
    println!("FATTN_SEED={seed}: with it the same cases are drawn again");
    let of_target = |device: &'static str, more: &'static [(&str, &str)]| {
        let seed = seed.clone();
        move || {
            let cases = [("FATTN_SEED", &*seed), ("FATTN_DEVICE", device), ("FATTN_CASES", "all")];
            properties(&[&cases[..], more].concat(), &[])
        }
    };
    // What takes broken kernels is the same on every target.
    let once = [("FATTN_MUTATIONS", "all"), ("FATTN_SCHEDULES", "20")].as_slice();
    run_steps(vec![
        ("kernels", Box::new(|| build_kernels::check(args.install))),
        ("sm_80", Box::new(of_target("emulated:sm_80", once))),
        ("sm_90a", Box::new(of_target(HOPPER, &[]))),
    ])
}

fn run_steps(steps: Vec<Step<'_>>) -> Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for (name, step) in steps {
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

fn steps<'a>(args: &'a Args, seed: &'a str) -> Vec<Step<'a>> {
    let mut steps: Vec<Step> = vec![
        ("fmt", Box::new(|| cargo("fmt --all -- --check"))),
        ("tidy", Box::new(tidy::run)),
        ("kernels", Box::new(move || build_kernels::check_once(args.install, seed.parse()?))),
        ("clippy", Box::new(|| cargo("clippy --workspace --all-targets --locked -- -D warnings"))),
        ("no cust", Box::new(|| cargo(WITHOUT_CUST))),
        ("tests", Box::new(move || tests(&[("FATTN_SEED", seed)]))),
        ("hopper", Box::new(move || hopper(seed))),
        ("doctests", Box::new(|| cargo("test --workspace --exclude finite-attention-c --doc --locked"))),
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

/// Steps that need nothing of the others, nor their target folder.
fn steps_beside() -> Vec<Step<'static>> {
    vec![
        ("packaged", Box::new(packaged::run)),
        ("book", Box::new(book::run_in_ci)),
        ("doors", Box::new(integrations::run_in_ci)),
    ]
}

/// The seed of this run: that of the environment, else one of the commit, so that a run can be repeated and
/// another commit tries other cases.
///
/// # Errors
/// When the environment says what is no seed.
fn seed() -> Result<String> {
    if let Some(said) = seed::from_environment().map_err(|error| anyhow!(error))? {
        return Ok(said.to_string());
    }
    let head = output(Command::new("git").current_dir(root()).args(["rev-parse", "--short=8", "HEAD"]));
    let number = head.ok().and_then(|(text, _)| u32::from_str_radix(text.trim().get(..8)?, 16).ok());
    Ok(number.unwrap_or(0).to_string())
}

/// All tests, with such an environment.
fn tests(environment: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new("cargo");
    if on_path("cargo-nextest").is_some() {
        command.args(["nextest", "run", "--workspace", "--locked"]);
    } else {
        command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--locked"]);
    }
    run_shown(command.envs(environment.iter().copied()).current_dir(root()))
}

/// The properties, or those in some of their files, with such an environment. Of the whole workspace, so that
/// nothing is built again with other features than for [`tests`].
fn properties(environment: &[(&str, &str)], files: &[&str]) -> Result<()> {
    let mut command = Command::new("cargo");
    if on_path("cargo-nextest").is_some() {
        // From the beginning of a name: the end of one file's may be another file's.
        let files = if files.is_empty() { String::new() } else { format!("({})::", files.join("|")) };
        let wanted = format!("binary(properties) & test(/^{files}/)");
        command.args(["nextest", "run", "--workspace", "--locked", "-E", &wanted]);
    } else {
        let files = files.iter().map(|file| format!("{file}::"));
        command.args(["test", "--workspace", "--locked", "--test", "properties", "--"]).args(files);
    }
    run_shown(command.envs(environment.iter().copied()).current_dir(root()))
}

/// The device of Hopper's kernels.
const HOPPER: &str = "emulated:sm_90a";

/// What is not drawn at random, for Hopper's kernels: the step before runs it for compute capability 8.0, and
/// draws a target with each random case.
fn hopper(seed: &str) -> Result<()> {
    const FILES: [&str; 7] =
        ["accuracy", "dead_rows", "gradients", "kernels", "large_logits", "msda", "nan_propagation"];
    let environment = [("FATTN_SEED", seed), ("FATTN_DEVICE", HOPPER), ("FATTN_CASES", "0")];
    properties(&environment, &FILES)
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
