//! `fattn bench`: how long the kernels take on a GPU.
//!
//! Every shape is timed twice. *Burst*: after a rest, 150 ms of warm-up, then 150 ms timed. *Sustained*: after another
//! second under load, when the power limit has brought the clocks down. A time is the median over launches of the
//! distance between two events on the device, one before and one after the launch, all queued ahead.

use crate::device::DeviceArguments;
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use finite_attention::attention::launch_forward;
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::device::DeviceName;
use finite_attention::driver::Driver;
use finite_attention::driver::cuda::{CudaDriver, CudaEvent};
use finite_attention::plan::{ForwardPlan, plan_forward};
use finite_attention::{Device, Dtype, Element, ForwardPointers, ForwardProblem, Layout, Stream};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// What to time, and how.
#[derive(Args)]
pub struct BenchArguments {
    #[command(flatten)]
    device: DeviceArguments,
    /// Element types of q, k, v and o.
    #[arg(long, value_delimiter = ',', default_value = "bf16")]
    dtype: Vec<BenchDtype>,
    /// Head dimensions.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256")]
    head_dim: Vec<usize>,
    /// Query rows, and as many keys.
    #[arg(long, value_delimiter = ',', default_value = "512,1024,2048,4096,8192,16384")]
    seqlen: Vec<usize>,
    /// Batches; by default as many as make 16384 rows.
    #[arg(long)]
    batch: Option<usize>,
    /// Query heads; by default 2048 / head_dim.
    #[arg(long)]
    heads: Option<usize>,
    /// Key heads; by default as many as query heads.
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Which masks.
    #[arg(long, default_value = "both")]
    causal: Causal,
    /// Time this many launches instead of 150 ms of them.
    #[arg(long)]
    iterations: Option<usize>,
    /// Milliseconds under load before the sustained time; 0 leaves it out.
    #[arg(long, default_value_t = 1000.0)]
    sustain_ms: f32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Print the plan of every shape, with its reasons.
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

/// Rest before a burst, so that the last shape's heat is not this one's.
const REST: Duration = Duration::from_millis(300);
/// Warm-up before a burst, and the length of every measurement.
const WARM_UP_MS: f32 = 150.0;
const MEASURE_MS: f32 = 150.0;
/// Sets of tensors at most, however small they are.
const MAX_SETS: u64 = 64;

/// One problem and what it took.
#[derive(Serialize)]
struct Row {
    dtype: &'static str,
    mask: &'static str,
    batch: usize,
    seqlen: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    kernel: &'static str,
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
    plan: String,
}

/// Times every shape asked for.
pub fn run(arguments: &BenchArguments) -> Result<()> {
    let ordinal = match arguments.device.device {
        None => 0,
        Some(DeviceName::Cuda(ordinal)) => ordinal,
        Some(name) => bail!("--device {name}: bench times a GPU, and the emulator does not model time"),
    };
    let driver = Arc::new(CudaDriver::new(ordinal, arguments.device.images()?)?);
    let bench = Bench { device: Device::from_driver(driver.clone()), driver };
    let mut rows = Vec::new();
    if !arguments.json {
        println!("{}\n{}", bench.device.properties().name, heading());
    }
    for problem in problems(arguments)? {
        let row = bench.row(&problem, arguments)?;
        if !arguments.json {
            println!("{}", line(&row));
            if arguments.explain {
                println!("  {}", row.plan.replace('\n', "\n  "));
            }
        }
        rows.push(row);
    }
    if arguments.json {
        let properties = bench.device.properties();
        let (major, minor) = properties.compute_capability;
        let report = json!({
            "device": properties.name,
            "compute_capability": format!("{major}.{minor}"),
            "version": env!("CARGO_PKG_VERSION"),
            "warm_up_ms": WARM_UP_MS,
            "sustain_ms": arguments.sustain_ms,
            "rows": rows,
        });
        println!("{report}");
    }
    Ok(())
}

/// Every combination asked for.
fn problems(arguments: &BenchArguments) -> Result<Vec<ForwardProblem>> {
    let mut problems = Vec::new();
    for dtype in &arguments.dtype {
        let dtype = match dtype {
            BenchDtype::Bf16 => Dtype::Bf16,
            BenchDtype::F16 => Dtype::F16,
            BenchDtype::F32 => Dtype::F32,
        };
        for &head_dim in &arguments.head_dim {
            for &seqlen in &arguments.seqlen {
                ensure!(head_dim > 0 && seqlen > 0, "--head-dim and --seqlen: expected at least 1");
                let batch = arguments.batch.unwrap_or((16384 / seqlen).max(1));
                let heads = arguments.heads.unwrap_or((2048 / head_dim).max(1));
                let q = Layout::bshd([batch, seqlen, heads, head_dim]);
                let kv = Layout::bshd([batch, seqlen, arguments.kv_heads.unwrap_or(heads), head_dim]);
                let problem = ForwardProblem::new(dtype, q, kv, kv);
                problem.validate()?;
                ensure!(q.elements() * kv.elements() > 0, "expected at least 1 batch and 1 head");
                if arguments.causal != Causal::Yes {
                    problems.push(problem);
                }
                if arguments.causal != Causal::No {
                    problems.push(problem.causal());
                }
            }
        }
    }
    Ok(problems)
}

/// 4 B Hq Sq Sk D, and half of that for causal.
fn flops(problem: &ForwardProblem) -> f64 {
    let [batches, rows, heads, columns] = problem.q.shape.map(|size| size as f64);
    let full = 4.0 * batches * heads * rows * problem.k.shape[1] as f64 * columns;
    if problem.mask.name() == "full" { full } else { full / 2.0 }
}

fn tflops(problem: &ForwardProblem, milliseconds: f32) -> f64 {
    flops(problem) / f64::from(milliseconds) / 1e9
}

fn heading() -> String {
    format!(
        "{:<5} {:<7} {:>3} {:>6} {:>3}/{:<3} {:>4}  {:>9} {:>8}  {:>9} {:>8}  kernel",
        "dtype", "mask", "B", "S", "Hq", "Hk", "D", "burst ms", "TFLOP/s", "sust. ms", "TFLOP/s"
    )
}

fn line(row: &Row) -> String {
    let Row { dtype, mask, batch, seqlen, heads, kv_heads, head_dim, burst_ms, burst_tflops, .. } = row;
    let sustained = match (row.sustained_ms, row.sustained_tflops) {
        (Some(ms), Some(tflops)) => format!("{ms:>9.4} {tflops:>8.1}"),
        _ => format!("{:>9} {:>8}", "-", "-"),
    };
    format!(
        "{dtype:<5} {mask:<7} {batch:>3} {seqlen:>6} {heads:>3}/{kv_heads:<3} {head_dim:>4}  \
         {burst_ms:>9.4} {burst_tflops:>8.1}  {sustained}  {}",
        row.kernel
    )
}

/// A GPU on which kernels are timed.
struct Bench {
    driver: Arc<CudaDriver>,
    device: Device,
}

impl Bench {
    fn row(&self, problem: &ForwardProblem, arguments: &BenchArguments) -> Result<Row> {
        let sets = match problem.dtype {
            Dtype::Bf16 => self.sets::<bf16>(problem)?,
            Dtype::F16 => self.sets::<f16>(problem)?,
            Dtype::F32 => self.sets::<f32>(problem)?,
        };
        let plans: Vec<&ForwardPlan> = sets.iter().map(|set| &set.plan).collect();
        let pilot = median(self.time(&plans, 5)?);
        let count = |milliseconds: f32| (milliseconds / pilot).ceil().clamp(5.0, 20_000.0) as usize;
        let launches = arguments.iterations.unwrap_or(count(MEASURE_MS)).max(1);
        std::thread::sleep(REST);
        self.load(&plans, count(WARM_UP_MS))?;
        let burst_ms = median(self.time(&plans, launches)?);
        let sustained_ms = if arguments.sustain_ms > 0.0 {
            self.load(&plans, count(arguments.sustain_ms))?;
            Some(median(self.time(&plans, launches)?))
        } else {
            None
        };
        let [batch, seqlen, heads, head_dim] = problem.q.shape;
        Ok(Row {
            dtype: problem.dtype.name(),
            mask: problem.mask.name(),
            batch,
            seqlen,
            heads,
            kv_heads: problem.k.shape[2],
            head_dim,
            kernel: plans[0].kernel.name,
            sets: sets.len(),
            launches,
            burst_ms,
            burst_tflops: tflops(problem, burst_ms),
            sustained_ms,
            sustained_tflops: sustained_ms.map(|ms| tflops(problem, ms)),
            plan: format!("{:#}", plans[0]),
        })
    }

    /// As many copies of the tensors as leave nothing of the last use of a copy in the L2 cache.
    fn sets<T: Element>(&self, problem: &ForwardProblem) -> Result<Vec<TensorSet>> {
        let tensors = [&problem.q, &problem.k, &problem.v, &problem.o];
        let bytes =
            tensors.iter().map(|layout| layout.span() as u64).sum::<u64>() * size_of::<T>() as u64;
        let count = (2 * self.device.properties().l2_bytes).div_ceil(bytes).clamp(1, MAX_SETS);
        let pattern = pattern::<T>();
        (0..count).map(|_| TensorSet::new(&self.device, problem, &pattern)).collect()
    }

    /// Queues launches and waits for them.
    fn load(&self, plans: &[&ForwardPlan], count: usize) -> Result<()> {
        for plan in plans.iter().cycle().take(count) {
            // SAFETY: the tensors of the plan live as long as the row is measured, and nothing else uses them.
            unsafe { launch_forward(&self.device, plan, Stream::default()) }?;
        }
        Ok(self.driver.synchronize(Stream::default())?)
    }

    /// Milliseconds of each of `count` launches, queued back to back.
    fn time(&self, plans: &[&ForwardPlan], count: usize) -> Result<Vec<f32>> {
        let stream = Stream::default();
        let events: Vec<CudaEvent> =
            (0..=count).map(|_| CudaEvent::new(&self.driver)).collect::<Result<_, _>>()?;
        // SAFETY: the default stream always exists.
        unsafe { events[0].record(stream) }?;
        for (plan, event) in plans.iter().cycle().zip(&events[1..]) {
            // SAFETY: as in `load`.
            unsafe { launch_forward(&self.device, plan, stream) }?;
            // SAFETY: the default stream always exists.
            unsafe { event.record(stream) }?;
        }
        self.driver.synchronize(stream)?;
        let pairs = events.windows(2);
        Ok(pairs.map(|pair| pair[1].milliseconds_since(&pair[0])).collect::<Result<_, _>>()?)
    }
}

/// The tensors of one problem, and the plan made for their addresses.
struct TensorSet {
    plan: ForwardPlan,
    _tensors: [Box<dyn InDeviceMemory>; 5],
}

impl TensorSet {
    fn new<T: Element>(device: &Device, problem: &ForwardProblem, pattern: &[T]) -> Result<Self> {
        let valid = problem.validate()?;
        let input = |layout: &Layout| -> Result<DeviceBuffer<T>> {
            let elements: Vec<T> = pattern.iter().copied().cycle().take(layout.span()).collect();
            Ok(DeviceBuffer::from_slice(device, &elements)?)
        };
        let (q, k, v) = (input(&problem.q)?, input(&problem.k)?, input(&problem.v)?);
        let o = DeviceBuffer::<T>::uninitialised(device, problem.o.span())?;
        let lse = DeviceBuffer::<f32>::uninitialised(device, valid.lse_elements())?;
        let pointers = ForwardPointers {
            q: q.device_pointer(),
            k: k.device_pointer(),
            v: v.device_pointer(),
            o: o.device_pointer(),
            lse: lse.device_pointer(),
            ..ForwardPointers::default()
        };
        let Some(plan) = plan_forward(&valid, device.properties(), &pointers)? else {
            bail!("nothing to compute");
        };
        Ok(TensorSet {
            plan,
            _tensors: [Box::new(q), Box::new(k), Box::new(v), Box::new(o), Box::new(lse)],
        })
    }
}

/// Normally distributed numbers, as many as no dimension is a divisor of: the power that a multiplication draws
/// depends on its operands, so they must not be zeros.
fn pattern<T: Element>() -> Vec<T> {
    let mut random = StdRng::seed_from_u64(0);
    (0..1_000_003).map(|_| T::from_f32(random.sample(StandardNormal))).collect()
}

/// The middle one, or the mean of the two in the middle.
fn median(mut times: Vec<f32>) -> f32 {
    times.sort_by(f32::total_cmp);
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn causal_counts_half() {
        let layout = Layout::bshd([2, 3, 5, 7]);
        let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout);
        assert_eq!(flops(&problem), 4.0 * 2.0 * 5.0 * 3.0 * 3.0 * 7.0);
        assert_eq!(flops(&problem.causal()), flops(&problem) / 2.0);
    }
}
