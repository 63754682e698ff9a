//! How long the kernels that ship take in the emulator: B1 H2 S256, head dim 128, bf16, full, with and without checks on
//! one core, and with checks on all cores; and a thousand checked runs of forward and backward under random schedules.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use finite_attention::driver::emulated::{Checks, Options, Schedule};
use finite_attention::{
    BackwardInputs, BackwardOutput, BackwardProblem, Device, Dtype, ForwardOutput, ForwardProblem,
    KernelImages, Layout, ScoreSlices, backward_host, forward_host,
};
use finite_attention_tests::device::emulated;
use half::bf16;
use kernels_gpu::abi::Arch;
use rand::RngExt as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const RUNS: u64 = 1000;
const SHAPE: [usize; 4] = [1, 256, 2, 128];

struct Attention {
    problem: ForwardProblem,
    tensors: [Vec<bf16>; 4],
}

impl Attention {
    fn random() -> Self {
        let layout = Layout::bshd(SHAPE);
        let mut random = rand::rng();
        let mut draw = || {
            let numbers = (0..SHAPE.iter().product()).map(|_| random.random_range(-1.0..1.0f32));
            numbers.map(bf16::from_f32).collect::<Vec<_>>()
        };
        let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
        Attention { problem, tensors: [draw(), draw(), draw(), draw()] }
    }

    fn forward(&self, device: &Device) -> ForwardOutput<bf16> {
        let [q, k, v, _] = &self.tensors;
        forward_host(device, &self.problem, q, k, v).unwrap_or_else(|error| panic!("{error}"))
    }

    fn backward(&self, device: &Device, forward: &ForwardOutput<bf16>) -> BackwardOutput<bf16> {
        let [q, k, v, d_o] = &self.tensors;
        let ForwardOutput { o, lse, .. } = forward;
        let inputs = BackwardInputs {
            q,
            k,
            v,
            o,
            lse,
            d_o,
            d_lse: &[],
            scores: ScoreSlices::default(),
            cu_seqlens_q: &[],
            cu_seqlens_k: &[],
        };
        let problem = BackwardProblem::new(self.problem);
        backward_host(device, &problem, &inputs).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn device(arch: Arch, options: Options) -> Device {
    emulated(arch, KernelImages::embedded(), options)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn one_case(criterion: &mut Criterion) {
    let attention = Attention::random();
    let mut group = criterion.benchmark_group("attention");
    let ways = [
        ("checked", Checks::all(), 1),
        ("unchecked", Checks::none(), 1),
        ("checked, all cores", Checks::all(), cores()),
    ];
    for arch in [Arch::Sm80, Arch::Sm90a] {
        for (how, checks, threads) in ways {
            let device = device(arch, Options { checks, threads, ..Options::default() });
            let name = |pass: &str| BenchmarkId::new(format!("{pass} {}", arch.name()), how);
            let forward = attention.forward(&device);
            group.bench_function(name("forward"), |bencher| {
                bencher.iter(|| black_box(attention.forward(&device)));
            });
            group.bench_function(name("backward"), |bencher| {
                bencher.iter(|| black_box(attention.backward(&device, &forward)));
            });
        }
    }
    group.finish();
}

/// Not a mean of many: it takes long enough to be measured once.
fn a_thousand_schedules(_: &mut Criterion) {
    let (attention, next, start) = (Attention::random(), AtomicU64::new(0), Instant::now());
    let threads = cores();
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= RUNS {
                break;
            }
            let schedule = Schedule::Random(seed);
            let device = device(Arch::Sm90a, Options { schedule, ..Options::default() });
            let forward = attention.forward(&device);
            black_box(attention.backward(&device, &forward));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{RUNS} runs under random schedules, sm_90a, forward and backward: {seconds:.1} s, {threads} threads"
    );
}

criterion_group!(benches, one_case, a_thousand_schedules);
criterion_main!(benches);
