//! `fattn check`: the kernels against the reference.

mod msda;
mod msda_triton;

use crate::console::{self, outln};
use crate::device::DeviceArguments;
use crate::progress::Progress;
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use finite_attention::check::msda::MsdaOutcome;
use finite_attention::check::{
    Case, FlashDmattnSize, Outcome, TensorVerdict, dynamic_case, extended_case, featured_case,
    flash_dmattn_cases, run_case, sweep_of,
};
use finite_attention::device::DeviceName;
use finite_attention::problem::{AlibiSlopes, DynamicWay};
use finite_attention::{Device, Dtype, KernelImages, Mode, Precision};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

/// How many cases, and where.
#[derive(Args)]
pub struct CheckArguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// What is checked: attention, attention under dynamic masks, or multi-scale deformable attention.
    #[arg(long, default_value = "attention")]
    what: What,
    /// Of deformable attention: random cases by the tolerance rule, or the tests of msda-triton at its
    /// tolerances, all of them with each of --cases seeds from --seed on; in the emulator with fewer batches,
    /// heads and queries. Of dynamic masks: random cases, or --cases of the grid of Flash-DMAttn's tests, all
    /// if there are fewer, evenly apart; in the emulator with fewer batches and heads. Both by the tolerance
    /// rule.
    #[arg(long, default_value = "random")]
    suite: Suite,
    /// Number of cases.
    #[arg(long, default_value_t = 240)]
    cases: usize,
    /// Seed of the cases and their numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Run only the case with this number.
    #[arg(long, conflicts_with = "dtype")]
    only: Option<usize>,
    /// Of random cases of attention those alone whose q, k and v are of this type.
    #[arg(long, value_name = "bf16|f16|f32", value_parser = crate::task::dtype)]
    dtype: Option<Dtype>,
    /// Bias, boolean masks, slopes of ALiBi, sinks and dropout in about a third of the cases.
    #[arg(long)]
    features: bool,
    /// How products of f32 are made in all cases: on tensor cores (fast3) or by fused multiply-adds (fma); by
    /// default each way in some.
    #[arg(long, value_name = "fast3|fma", value_parser = crate::task::precision)]
    precision: Option<Precision>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Which kernels.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Attention,
    Dynamic,
    Msda,
}

/// Which cases of deformable attention or dynamic masks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    Random,
    MsdaTriton,
    FlashDmattn,
}

/// Runs the sweep and prints it; exit code 1 if a case failed.
pub fn run(arguments: &CheckArguments) -> Result<ExitCode> {
    let &CheckArguments { cases, seed, only, features, .. } = arguments;
    ensure!(cases > 0, "--cases: expected at least 1, got 0");
    if let Some(only) = only {
        ensure!(only < cases, "--only: expected 0..={}, as --cases is {cases}, got {only}", cases - 1);
    }
    let (first, count) = only.map_or((0, cases), |only| (only, 1));
    if arguments.what == What::Msda {
        ensure!(!features, "--features: deformable attention has none; use --what attention");
        ensure!(arguments.dtype.is_none(), "--dtype: expected --what attention or dynamic, got msda");
        return match arguments.suite {
            Suite::Random => msda::run(arguments, first, count),
            Suite::MsdaTriton => msda_triton::run(arguments, first, count),
            Suite::FlashDmattn => bail!("--suite flash-dmattn: expected --what dynamic, got msda"),
        };
    }
    let sweep = Sweep::open(&arguments.device)?;
    let Sweep { name, device_text, .. } = &sweep;
    let (case, cases) = arguments.cases_of_attention(*name)?;
    let (first, count) = only.map_or((0, cases), |only| (only, 1));
    let run = |device: &Device, index| run_case(device, &case(first + index));
    if arguments.json {
        let outcomes = sweep.run(count, run, None)?;
        let failed = count_failed(&outcomes);
        outln!("{}", json_report(device_text, seed, &outcomes, failed))?;
        return Ok(exit_code(failed));
    }
    outln!("{}", heading())?;
    let outcomes = sweep.run(count, run, Some(&line))?;
    let failed = count_failed(&outcomes);
    outln!("o, lse and gradients: largest error as a share of what is allowed")?;
    outln!("device {name} ({device_text}), seed {seed}")?;
    outln!("{} passed, {failed} failed", outcomes.len() - failed)?;
    Ok(exit_code(failed))
}

/// A case by its number.
type CaseOf = Box<dyn Fn(usize) -> Case + Sync>;

impl CheckArguments {
    /// The cases of attention, and how many there are.
    fn cases_of_attention(&self, device: DeviceName) -> Result<(CaseOf, usize)> {
        let &CheckArguments { what, suite, cases, seed, features, dtype, .. } = self;
        let case = match (what, suite) {
            (_, Suite::MsdaTriton) => {
                bail!("--suite msda-triton: expected --what msda, got {}", what.name())
            }
            (What::Dynamic, Suite::FlashDmattn) => {
                ensure!(!features, "--features: Flash-DMAttn's grid has none; use --suite random");
                ensure!(dtype.is_none(), "--dtype: Flash-DMAttn's grid has its own; use --suite random");
                let size = match device {
                    DeviceName::Emulated(_) => FlashDmattnSize::EMULATED,
                    DeviceName::Cuda(_) | DeviceName::CudaAs(..) => FlashDmattnSize::FULL,
                };
                let grid = flash_dmattn_cases(seed, size);
                let count = cases.min(grid.len());
                return Ok((Box::new(move |index| grid[index * grid.len() / count].clone()), count));
            }
            (_, Suite::FlashDmattn) => {
                bail!("--suite flash-dmattn: expected --what dynamic, got {}", what.name())
            }
            (What::Dynamic, _) => dynamic_case,
            _ if features => featured_case,
            _ => extended_case,
        };
        let asked = self.precision;
        // Of one type the first of each hundred: types come in turns, and some twice in a row.
        let drawn = move |index: usize| {
            let Some(dtype) = dtype else { return case(seed, index) };
            let mut drawn = (index.saturating_mul(100)..).map(|number| case(seed, number));
            drawn.find(|case| case.dtype == dtype).expect("there is no last one")
        };
        let with_precision = move |index| {
            let case = drawn(index);
            let of_f32 = asked.filter(|_| case.dtype == Dtype::F32);
            Case { precision: of_f32.or(case.precision), ..case }
        };
        Ok((Box::new(with_precision), cases))
    }
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            What::Attention => "attention",
            What::Dynamic => "dynamic",
            What::Msda => "msda",
        }
    }
}

/// How many cases failed.
pub fn count_failed(outcomes: &[impl CaseOutcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.failed().is_some()).count()
}

/// 1 if a case failed.
pub fn exit_code(failed: usize) -> ExitCode {
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// What came of a case, as far as a sweep shows it.
pub trait CaseOutcome: Send {
    /// The number of the case if it failed.
    fn failed(&self) -> Option<usize>;
}

impl CaseOutcome for Outcome {
    fn failed(&self) -> Option<usize> {
        self.failure.is_some().then_some(self.case.id)
    }
}

impl CaseOutcome for MsdaOutcome {
    fn failed(&self) -> Option<usize> {
        self.failure.is_some().then_some(self.case.id)
    }
}

/// Cases on a device, on all cores: threads share a GPU, and have an emulator each.
pub struct Sweep {
    pub name: DeviceName,
    pub device_text: String,
    first: Device,
    images: KernelImages,
}

/// The lines of outcomes that have come, until those before them have.
#[derive(Default)]
struct InOrder {
    next: usize,
    waiting: BTreeMap<usize, String>,
}

impl InOrder {
    /// The lines that can be shown now that one more has come.
    fn ready(&mut self, index: usize, line: String) -> Vec<String> {
        self.waiting.insert(index, line);
        let mut ready = Vec::new();
        while let Some(line) = self.waiting.remove(&self.next) {
            ready.push(line);
            self.next += 1;
        }
        ready
    }
}

impl Sweep {
    /// The device of these arguments.
    pub fn open(device: &DeviceArguments) -> Result<Self> {
        let (name, first) = device.open()?;
        let device_text = first.properties().name.clone();
        Ok(Sweep { name, device_text, first, images: device.images()? })
    }

    /// Runs `count` cases by their index. With a `line`, that of each case is printed as soon as those of all
    /// before it are, without one a word now and then says how far it is.
    pub fn run<O: CaseOutcome>(
        &self,
        count: usize,
        run: impl Fn(&Device, usize) -> O + Sync,
        line: Option<&(dyn Fn(&O) -> String + Sync)>,
    ) -> Result<Vec<O>> {
        let workers = available_parallelism().map_or(1, usize::from);
        let open = || match self.name {
            DeviceName::Cuda(_) | DeviceName::CudaAs(..) => Ok(self.first.clone()),
            DeviceName::Emulated(_) => Device::open(self.name, self.images.clone()),
        };
        let progress = Progress::new("cases", Some(count), line.is_none());
        let lines = Mutex::new(InOrder::default());
        let run = |device: &Device, index| {
            let outcome = run(device, index);
            progress.step();
            if let Some(id) = outcome.failed() {
                progress.remark(format!("case {id} failed"));
            }
            if let Some(line) = line {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                for line in lines.ready(index, line(&outcome)) {
                    // Nobody is left to see the rest.
                    progress.aside(|| outln!("{line}")).unwrap_or_else(|error| console::leave(error));
                }
            }
            outcome
        };
        Ok(sweep_of(count, run, workers, open, |_: &O| ())?)
    }
}

/// What stands above the lines.
fn heading() -> String {
    format!(
        "{:>4} {:<26} {:<10} {:<18} {:>7} {:<9} {:<6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  {:<28}  \
         verdict",
        "case",
        "shape",
        "dtype",
        "mask",
        "softcap",
        "layout",
        "grad",
        "o",
        "lse",
        "dq",
        "dk",
        "dv",
        "dbias",
        "dsinks",
        "scores",
    )
}

/// Errors of all outputs of a case, each as a share of what is allowed.
fn line(outcome: &Outcome) -> String {
    let case = &outcome.case;
    let share = |name| match outcome.tensor(name).map(|tensor| tensor.verdict) {
        None => "-".to_owned(),
        Some(verdict) if verdict.error == 0.0 => "0".to_owned(),
        Some(verdict) => format!("{:.2}", verdict.error / verdict.allowed),
    };
    format!(
        "{:>4} {:<26} {:<10} {:<18} {:>7} {:<9} {:<6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  {:<28}  {}",
        case.id,
        case.shape_text(),
        dtype_text(case.dtype.name(), case.output_dtype.name()),
        case.mask,
        softcap_text(case),
        case.placement.name(),
        gradients_text(case),
        share("o"),
        share("lse"),
        share("dq"),
        share("dk"),
        share("dv"),
        share("dbias"),
        share("dsinks"),
        case.features.text(),
        verdict_text(outcome),
    )
}

/// `pass`, `pass (of 16 as one)` where more cases of the kind had to be judged as one, or what is wrong.
fn verdict_text(outcome: &Outcome) -> String {
    let verdict = outcome.failure.as_deref().map_or("pass".into(), |failure| format!("FAIL {failure}"));
    if outcome.judged > 1 { format!("{verdict} (of {} as one)", outcome.judged) } else { verdict }
}

/// The cap of scores, `-` where they are not capped.
pub fn softcap_text(case: &Case) -> String {
    case.softcap.map_or("-".to_owned(), |cap| cap.to_string())
}

/// `bf16`, or `bf16->f32` where o is wider.
fn dtype_text(input: &str, output: &str) -> String {
    if input == output { input.to_owned() } else { format!("{input}->{output}") }
}

/// The dtype of gradients, with `d` in deterministic mode and `l` with a dLSE.
fn gradients_text(case: &Case) -> String {
    let Some(gradients) = case.gradients else { return "-".to_owned() };
    let mode = if gradients.mode == Mode::Deterministic { "d" } else { "" };
    format!("{}{mode}{}", gradients.dtype.name(), if gradients.has_d_lse { "l" } else { "" })
}

fn json_report(device: &str, seed: u64, outcomes: &[Outcome], failed: usize) -> Value {
    let cases: Vec<Value> = outcomes.iter().map(json_case).collect();
    let passed = outcomes.len() - failed;
    json!({ "device": device, "seed": seed, "cases": cases, "passed": passed, "failed": failed })
}

/// A case and what came of it. An output that was not asked for is null.
pub fn json_case(outcome: &Outcome) -> Value {
    let Outcome { case, failure, .. } = outcome;
    let window = |side: Option<u32>| side.map_or(-1, i64::from);
    let (left, right) = case.mask.sides();
    let gradients = case.gradients.map(|gradients| {
        json!({
            "dtype": gradients.dtype.name(),
            "has_dlse": gradients.has_d_lse,
            "mode": gradients.mode.name(),
        })
    });
    json!({
        "id": case.id,
        "kernel": outcome.kernel,
        "backward_kernel": outcome.backward_kernel,
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
        "window": [window(left), window(right)],
        "packed": case.packed,
        "num_splits": case.num_splits,
        "pack_gqa": case.pack_gqa,
        "precision": case.precision.map(Precision::name),
        "gradients": gradients,
        "layout": case.placement.name(),
        "scale": case.sizes().scale,
        "softcap": case.softcap,
        "features": json_features(case),
        "amplitude": case.amplitude,
        "logit_shift": case.logit_shift,
        "o": json_tensor(outcome.tensor("o")),
        "lse": json_tensor(outcome.tensor("lse")),
        "dq": json_tensor(outcome.tensor("dq")),
        "dk": json_tensor(outcome.tensor("dk")),
        "dv": json_tensor(outcome.tensor("dv")),
        "dbias": json_tensor(outcome.tensor("dbias")),
        "dsinks": json_tensor(outcome.tensor("dsinks")),
        "judged": outcome.judged,
        "milliseconds": outcome.elapsed.as_secs_f64() * 1e3,
        "pass": failure.is_none(),
        "failure": failure,
    })
}

/// What scores have beside q and k; null for what they do not have.
fn json_features(case: &Case) -> Value {
    let features = &case.features;
    let bias = features.bias.map(|bias| {
        json!({
            "dimensions": bias.dimensions.text(),
            "dtype": bias.dtype.name(),
            "layout": bias.placement.name(),
            "values": bias.values.name(),
            "gradient": bias.gradient.map(Dtype::name),
        })
    });
    let mask = features.mask.map(|mask| {
        json!({
            "dimensions": mask.dimensions.text(),
            "layout": mask.placement.name(),
            "density": mask.density,
            "block": mask.block,
            "dead_rows": mask.has_dead_rows,
        })
    });
    let alibi = features.alibi.map(|alibi| match alibi {
        AlibiSlopes::PerHead => "h",
        AlibiSlopes::PerBatchAndHead => "bh",
    });
    json!({
        "bias": bias,
        "mask": mask,
        "alibi": alibi,
        "sinks": features.has_sinks,
        "dsinks": features.wants_d_sinks,
        "dropout": features.dropout,
        "dynamic_mask": features.dynamic_mask.map(|mask| mask.to_string()),
        "dynamic_way": features.dynamic_mask.and_then(|mask| mask.way).map(DynamicWay::name),
    })
}

fn json_tensor(tensor: Option<&TensorVerdict>) -> Option<Value> {
    tensor.map(|tensor| {
        json!({
            "error": tensor.verdict.error,
            "allowed": tensor.verdict.allowed,
            "relative_error": tensor.relative,
            "non_finite": tensor.non_finite,
            "first_non_finite": tensor.first_non_finite,
        })
    })
}
