//! `fattn bench`: how long the kernels take on a GPU.
//!
//! Every shape is timed twice. *Burst*: after a rest, 150 ms of warm-up, then 150 ms timed.
//! *Sustained*: after another second under load, when the power limit has brought the clocks down.
//! A time is the median over launches of the distance between two events on the device, one before
//! and one after the launch, all queued ahead. A backward pass is one launch: all of its kernels
//! are between the events.

mod features;
mod gpu;
mod task;

use crate::console::outln;
use crate::device::DeviceArguments;
use crate::plans::{self, Explained};
use anyhow::{Result, ensure};
use clap::{ArgAction, Args, ValueEnum};
use finite_attention::device::DeviceName;
use finite_attention::driver::DeviceProperties;
use finite_attention::{Error, Precision};
use gpu::{Bench, median};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use task::{Task, tasks};

/// What to time, and how.
#[derive(Args)]
pub struct BenchArguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// Which passes.
    #[arg(long, default_value = "forward")]
    pass: PassChoice,
    /// Time the backward pass in deterministic mode.
    #[arg(long)]
    deterministic: bool,
    /// Element types of all tensors.
    #[arg(long, value_delimiter = ',', default_value = "bf16", action = ArgAction::Set)]
    dtype: Vec<BenchDtype>,
    /// Head dimensions.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256", action = ArgAction::Set)]
    head_dim: Vec<usize>,
    /// Keys, and as many query rows.
    #[arg(long, value_delimiter = ',', default_value = "512,1024,2048,4096,8192,16384")]
    #[arg(action = ArgAction::Set)]
    seqlen: Vec<usize>,
    /// Query rows of each sequence, where they are fewer than keys, as in decoding.
    #[arg(long)]
    queries: Option<usize>,
    /// Ranges of keys that the forward works on side by side; by default as many as pay off. Not with --pass
    /// backward.
    #[arg(long)]
    num_splits: Option<u32>,
    /// Whether the forward works on query heads that share a key head together; by default where it pays off.
    /// Not with --pass backward.
    #[arg(long)]
    pack_gqa: Option<bool>,
    /// How products of f32 are made: on tensor cores (fast3), where there are kernels for it, or by
    /// fused multiply-adds (fma); by default as takes less time.
    #[arg(long, value_name = "fast3|fma", value_parser = crate::task::precision)]
    precision: Option<Precision>,
    /// Instead of --seqlen and --batch: 12 packed sequences of 33 to 4096 rows, 16384 together.
    #[arg(long, conflicts_with_all = ["seqlen", "batch", "queries"])]
    varlen: bool,
    /// Instead of --seqlen and --batch: packed sequences of so many keys each.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["seqlen", "batch", "varlen"])]
    #[arg(action = ArgAction::Set)]
    lengths: Vec<usize>,
    /// Batches; by default as many as make 16384 rows.
    #[arg(long)]
    batch: Option<usize>,
    /// Query heads; by default 2048 / head_dim.
    #[arg(long)]
    heads: Option<usize>,
    /// Key heads; by default as many as query heads.
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Which masks: without and with a causal one; by default both, with --window no.
    #[arg(long)]
    causal: Option<Causal>,
    /// A query sees this many keys before and after its own position; -1 is all. With a causal mask none
    /// after it.
    #[arg(long, num_args = 2, value_names = ["LEFT", "RIGHT"], allow_negative_numbers = true)]
    #[arg(action = ArgAction::Set)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=u32::MAX.into()))]
    window: Vec<i64>,
    /// Cap of scores, above 0; not capped if not given.
    #[arg(long, allow_hyphen_values = true, value_name = "C", value_parser = crate::task::softcap)]
    softcap: Option<f32>,
    #[command(flatten)]
    features: features::FeatureArguments,
    /// Time this many launches instead of 150 ms of them, at least 1.
    #[arg(long)]
    iterations: Option<usize>,
    /// Milliseconds under load before the sustained time; 0 leaves it out.
    #[arg(long, default_value_t = 1000.0, allow_negative_numbers = true)]
    sustain_ms: f32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Print the mask of every shape in words, and its plan with its reasons. On an emulated device nothing
    /// else: no GPU is needed, and nothing is timed.
    #[arg(long)]
    explain: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum BenchDtype {
    Bf16,
    F16,
    F32,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Causal {
    No,
    Yes,
    Both,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum PassChoice {
    Forward,
    Backward,
    Both,
    /// The choice of keys of a dynamic mask alone; the forward pass has it, too.
    Select,
}

/// Rest before a burst, so that the last shape's heat is not this one's.
const REST: Duration = Duration::from_millis(300);
/// Warm-up before a burst, and the length of every measurement.
const WARM_UP_MS: f32 = 150.0;
const MEASURE_MS: f32 = 150.0;

/// What can be had where there is no GPU.
const WITHOUT_GPU: &str =
    "bench times a GPU; with --device emulated:sm_90a --explain it prints the plans alone";

/// One problem, how it is computed, and what it took.
#[derive(Serialize)]
struct Row {
    pass: &'static str,
    dtype: &'static str,
    mask: String,
    softcap: Option<f32>,
    /// Of packed sequences: how many.
    batch: usize,
    /// Keys; of packed sequences, of the longest.
    seqlen: usize,
    /// Query rows of all sequences together.
    rows: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    kernel: String,
    workspace_bytes: u64,
    /// None where plans alone are asked for.
    #[serde(flatten)]
    times: Option<Times>,
    plan: String,
}

#[derive(Serialize)]
struct Times {
    /// Copies of the tensors that launches take turns with.
    sets: usize,
    /// Launches timed for the burst.
    launches: usize,
    burst_ms: f32,
    burst_tflops: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sustained_ms: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sustained_tflops: Option<f64>,
}

/// Times every shape asked for.
pub fn run(arguments: &BenchArguments) -> Result<()> {
    let tasks = tasks(arguments)?;
    let (ordinal, arch) = match arguments.device.device {
        None => (0, None),
        Some(DeviceName::Cuda(ordinal)) => (ordinal, None),
        Some(DeviceName::CudaAs(ordinal, arch)) => (ordinal, Some(arch)),
        Some(name @ DeviceName::Emulated(_)) => {
            ensure!(
                arguments.explain,
                "--device {name}: bench times a GPU, and the emulator does not model time; \
                 with --explain it prints the plans alone"
            );
            let (_, device) = arguments.device.open()?;
            let plan = |task: &Task| planned(device.properties(), task);
            return report(arguments, device.properties(), &tasks, plan);
        }
    };
    let bench = Bench::new(ordinal, arch, arguments.device.images()?).map_err(|error| {
        let without = matches!(error.downcast_ref(), Some(Error::NoDevice { .. }));
        if without { error.context(WITHOUT_GPU) } else { error }
    })?;
    report(arguments, bench.properties(), &tasks, |task| timed(&bench, task, arguments))
}

/// Prints a row for every task.
fn report(
    arguments: &BenchArguments,
    properties: &DeviceProperties,
    tasks: &[Task],
    row: impl Fn(&Task) -> Result<Row>,
) -> Result<()> {
    let mut rows = Vec::new();
    if !arguments.json {
        outln!("{}\n{}", properties.name, heading())?;
    }
    for task in tasks {
        let row = row(task)?;
        if !arguments.json {
            outln!("{}", line(&row))?;
            if arguments.explain {
                outln!("  {}\n  {}", plans::mask(&task.problem), row.plan.replace('\n', "\n  "))?;
            }
        }
        rows.push(row);
    }
    if arguments.json {
        let (major, minor) = properties.compute_capability;
        let report = json!({
            "device": properties.name,
            "compute_capability": format!("{major}.{minor}"),
            "multiprocessors": properties.multiprocessors,
            "rows": rows,
        });
        outln!("{report}")?;
    }
    Ok(())
}

/// Plans one problem.
fn planned(device: &DeviceProperties, task: &Task) -> Result<Row> {
    let explained = match (task.features.dynamic_mask(), task.backward()) {
        (Some(mask), backward) => plans::dynamic(&task.problem, backward.as_ref(), &mask, device)?,
        (None, None) => plans::forward(&task.problem, device)?,
        (None, Some(backward)) => plans::backward(&backward, device)?,
    };
    Ok(row(task, explained, None))
}

/// Times one problem.
fn timed(bench: &Bench, task: &Task, arguments: &BenchArguments) -> Result<Row> {
    let sets = bench.sets(task)?;
    let pilot = median(bench.time(&sets, 5)?);
    let count = |milliseconds: f32| (milliseconds / pilot).ceil().clamp(5.0, 20_000.0) as usize;
    let launches = arguments.iterations.unwrap_or(count(MEASURE_MS));
    std::thread::sleep(REST);
    bench.load(&sets, count(WARM_UP_MS))?;
    let burst_ms = median(bench.time(&sets, launches)?);
    let sustained_ms = if arguments.sustain_ms > 0.0 {
        bench.load(&sets, count(arguments.sustain_ms))?;
        Some(median(bench.time(&sets, launches)?))
    } else {
        None
    };
    let tflops = |milliseconds: f32| task.flops() / f64::from(milliseconds) / 1e9;
    let times = Times {
        sets: sets.len(),
        launches,
        burst_ms,
        burst_tflops: tflops(burst_ms),
        sustained_ms,
        sustained_tflops: sustained_ms.map(tflops),
    };
    Ok(row(task, sets[0].explain(task, bench.properties())?, Some(times)))
}

fn row(task: &Task, explained: Explained, times: Option<Times>) -> Row {
    let [batches, rows, heads, head_dim] = task.problem.q.shape;
    Row {
        pass: task.pass.name(),
        dtype: task.problem.dtype.name(),
        mask: task.problem.mask.to_string(),
        softcap: task.problem.softcap,
        batch: task.sequences(),
        seqlen: task.longest(),
        rows: rows * batches,
        heads,
        kv_heads: task.problem.k.shape[2],
        head_dim,
        kernel: explained.kernel,
        workspace_bytes: explained.workspace_bytes,
        times,
        plan: explained.text,
    }
}

fn heading() -> String {
    format!(
        "{:<8} {:<5} {:<7} {:>3} {:>6} {:>3}/{:<3} {:>4}  {:>9} {:>8}  {:>9} {:>8}  kernel",
        "pass", "dtype", "mask", "B", "S", "Hq", "Hk", "D", "burst ms", "TFLOP/s", "sust. ms", "TFLOP/s"
    )
}

fn line(row: &Row) -> String {
    let Row { pass, dtype, mask, batch, seqlen, heads, kv_heads, head_dim, .. } = row;
    let time = |ms: f32, tflops: f64| format!("{ms:>9.4} {tflops:>8.1}");
    let none = || format!("{:>9} {:>8}", "-", "-");
    let burst = row.times.as_ref().map_or_else(none, |times| time(times.burst_ms, times.burst_tflops));
    let sustained = row.times.as_ref().and_then(|times| times.sustained_ms.zip(times.sustained_tflops));
    let sustained = sustained.map_or_else(none, |(ms, tflops)| time(ms, tflops));
    format!(
        "{pass:<8} {dtype:<5} {mask:<7} {batch:>3} {seqlen:>6} {heads:>3}/{kv_heads:<3} {head_dim:>4}  \
         {burst}  {sustained}  {}",
        row.kernel
    )
}
