//! `fattn ring --bench`: a causal pass over several GPUs beside the same pass on one of them.

use super::Connections;
use crate::console::outln;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use finite_attention::attention::{launch_backward, launch_forward};
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory as _};
use finite_attention::context_parallel::{ContextParallel, ContextPass, ContextProblem, ContextSharing};
use finite_attention::driver::cuda::{CudaDriver, CudaEvent};
use finite_attention::plan::{plan_backward, plan_forward};
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, Dtype, ForwardPointers, ForwardProblem, KernelImages,
    Layout, Stream, Workspace,
};
use half::bf16;
use std::sync::Arc;
use std::thread;

/// What to time.
#[derive(Args)]
pub struct BenchArguments {
    /// Time bf16 passes over GPUs, one for each rank, instead of computing anything.
    #[arg(long)]
    pub bench: bool,
    /// Rows of q, k and v on each rank.
    #[arg(long, default_value_t = 8192, requires = "bench")]
    rows_per_rank: usize,
    /// Query heads.
    #[arg(long, default_value_t = 32, requires = "bench")]
    heads: usize,
    /// Key heads.
    #[arg(long, default_value_t = 32, requires = "bench")]
    heads_k: usize,
    /// Head dimension.
    #[arg(long, default_value_t = 128, requires = "bench")]
    head_dim: usize,
    /// Every query sees every key.
    #[arg(long, requires = "bench")]
    full: bool,
    /// Passes that are timed.
    #[arg(long, default_value_t = 10, requires = "bench")]
    passes: usize,
}

/// Milliseconds of a forward, and of forward and backward.
type Times = [f32; 2];

/// Prints a table.
pub fn run(
    arguments: &BenchArguments,
    ranks: usize,
    sharing: ContextSharing,
    connections: Connections,
) -> Result<()> {
    let gpus = CudaDriver::count()?;
    ensure!(gpus >= ranks, "--ranks: expected at most {gpus}, one for each GPU, got {ranks}");
    let connections = Arc::new(connections);
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            let (shape, connections) = (Shape::of(arguments, ranks), connections.clone());
            thread::spawn(move || shape.time(rank, &connections, sharing))
        })
        .collect();
    let mut all = Vec::new();
    for thread in threads {
        all.push(thread.join().expect("no rank panics")?);
    }
    let shape = Shape::of(arguments, ranks);
    let worst = |pass: usize| all.iter().map(|(ring, _)| ring[pass]).fold(0.0, f32::max);
    let one = all[0].1.context("rank 0 times the pass on one GPU")?;
    let (forward, both) = (worst(0), worst(1));
    let rate = |one: f32, ring: f32| 100.0 * one / (ring * ranks as f32);
    outln!(
        "{ranks} ranks, {sharing}, {} rows each, {}:{} heads, head_dim {}, {}",
        shape.rows,
        shape.heads,
        shape.heads_k,
        shape.head_dim,
        if shape.full { "full" } else { "causal" }
    )?;
    outln!("{}", sharing.explain(&shape.problem(shape.rows * ranks).forward, ranks)?)?;
    outln!("                      one GPU    {ranks} ranks    % of one GPU's rate")?;
    outln!("forward            {:10.3} {forward:10.3} {:10.1}", one[0], rate(one[0], forward))?;
    outln!("forward + backward {:10.3} {both:10.3} {:10.1}", one[1], rate(one[1], both))?;
    Ok(())
}

#[derive(Clone, Copy)]
struct Shape {
    ranks: usize,
    rows: usize,
    heads: usize,
    heads_k: usize,
    head_dim: usize,
    full: bool,
    passes: usize,
}

/// The tensors of a pass, and where they stand.
struct Tensors {
    problem: BackwardProblem,
    forward: ForwardPointers,
    backward: BackwardPointers,
    _memory: Vec<DeviceBuffer<u8>>,
}

impl Shape {
    fn of(arguments: &BenchArguments, ranks: usize) -> Self {
        let &BenchArguments { rows_per_rank: rows, heads, heads_k, head_dim, full, passes, .. } =
            arguments;
        Shape { ranks, rows, heads, heads_k, head_dim, full, passes }
    }

    fn problem(&self, rows: usize) -> BackwardProblem {
        let q = Layout::bshd([1, rows, self.heads, self.head_dim]);
        let k = Layout::bshd([1, rows, self.heads_k, self.head_dim]);
        let forward = ForwardProblem::new(Dtype::Bf16, q, k, k);
        BackwardProblem::new(if self.full { forward } else { forward.causal() })
    }

    fn tensors(&self, device: &Device, rows: usize) -> Result<Tensors> {
        let problem = self.problem(rows);
        let ForwardProblem { q, k, .. } = problem.forward;
        let mut memory = Vec::new();
        // Numbers of mean 0 that look random: a linear congruence, made once and repeated.
        let mut state = 1_u32;
        let pattern: Vec<bf16> = (0..1 << 16)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bf16::from_f32((state >> 8) as f32 / (1 << 22) as f32 - 2.0)
            })
            .collect();
        let mut tensor = |bytes: usize, is_input: bool| -> Result<u64> {
            let buffer = DeviceBuffer::<u8>::uninitialised(device, bytes)?;
            let pointer = buffer.device_pointer();
            if is_input {
                let bytes_of: &[u8] = bytemuck::cast_slice(&pattern);
                for start in (0..bytes).step_by(bytes_of.len()) {
                    let count = bytes_of.len().min(bytes - start);
                    device.driver().copy_to_device(pointer + start as u64, &bytes_of[..count])?;
                }
            }
            memory.push(buffer);
            Ok(pointer)
        };
        let bytes = |layout: &Layout| 2 * layout.span();
        let (in_q, in_k, in_v) =
            (tensor(bytes(&q), true)?, tensor(bytes(&k), true)?, tensor(bytes(&k), true)?);
        let (o, lse) = (tensor(bytes(&q), false)?, tensor(4 * rows * self.heads, false)?);
        let d_o = tensor(bytes(&q), true)?;
        let (dq, dk, dv) =
            (tensor(bytes(&q), false)?, tensor(bytes(&k), false)?, tensor(bytes(&k), false)?);
        let forward =
            ForwardPointers { q: in_q, k: in_k, v: in_v, o, lse, ..ForwardPointers::default() };
        let backward = BackwardPointers {
            q: in_q,
            k: in_k,
            v: in_v,
            o,
            d_o,
            dq,
            dk,
            dv,
            lse,
            ..BackwardPointers::default()
        };
        Ok(Tensors { problem, forward, backward, _memory: memory })
    }

    /// The medians of this rank, and, on rank 0, of the whole pass on one GPU.
    fn time(
        self,
        rank: usize,
        connections: &Connections,
        sharing: ContextSharing,
    ) -> Result<(Times, Option<Times>)> {
        let driver = Arc::new(CudaDriver::new(rank, KernelImages::embedded())?);
        let device = Device::from_driver(driver.clone());
        let own = self.tensors(&device, self.rows)?;
        let whole = if rank == 0 { Some(self.tensors(&device, self.rows * self.ranks)?) } else { None };
        let communicator = connections.of(rank, &device)?;
        let group = ContextParallel::new(device.clone(), communicator, sharing)?;
        let rows = self.rows * self.ranks;
        let mut pass = group.prepare(&ContextProblem::new(own.problem.forward, rows, rows))?;
        let alone = whole.as_ref().map(|whole| Alone::new(&device, whole)).transpose()?;
        let stream = Stream::default();
        let (mut ring, mut one): (Vec<Times>, Vec<Times>) = (Vec::new(), Vec::new());
        let backward = |pass: &mut ContextPass<'_>| {
            // SAFETY: the tensors live until `wait`.
            unsafe { pass.backward(&own.problem, &own.backward, stream) }
        };
        let forward = |pass: &mut ContextPass<'_>| {
            // SAFETY: as above.
            unsafe { pass.forward(&own.forward, stream) }
        };
        // The first ones load kernels and warm the GPU up.
        const WARM: usize = 3;
        for round in 0..WARM + self.passes {
            let alone = alone.as_ref();
            let whole = [
                timed(&driver, || alone.map_or(Ok(()), |alone| alone.forward(&device)))?,
                timed(&driver, || {
                    let Some(alone) = alone else { return Ok(()) };
                    alone.forward(&device)?;
                    alone.backward(&device)
                })?,
            ];
            group.meet()?;
            // One after the other: ranks end at different times, and who is early would wait in what follows.
            let shared_forward = timed(&driver, || Ok(forward(&mut pass)?))?;
            group.meet()?;
            let shared_both = timed(&driver, || {
                forward(&mut pass)?;
                Ok(backward(&mut pass)?)
            })?;
            group.meet()?;
            if round >= WARM {
                ring.push([shared_forward, shared_both]);
                one.push(whole);
            }
        }
        group.wait(stream)?;
        Ok((medians(&ring), alone.map(|_| medians(&one))))
    }
}

/// Milliseconds of `work`, which has run once just before: a GPU that has idled is slower at first.
fn timed(driver: &CudaDriver, mut work: impl FnMut() -> Result<()>) -> Result<f32> {
    let stream = Stream::default();
    work()?;
    let (start, end) = (CudaEvent::new(driver)?, CudaEvent::new(driver)?);
    // SAFETY: the default stream always exists.
    unsafe { start.record(stream) }?;
    work()?;
    // SAFETY: as above.
    unsafe { end.record(stream) }?;
    Ok(end.milliseconds_since(&start)?)
}

fn medians(times: &[Times]) -> Times {
    [0, 1].map(|which| {
        let mut of: Vec<f32> = times.iter().map(|times| times[which]).collect();
        of.sort_by(f32::total_cmp);
        of[of.len() / 2]
    })
}

/// The whole pass on one GPU.
struct Alone {
    forward: finite_attention::plan::ForwardPlan,
    backward: finite_attention::plan::BackwardPlan,
    workspace: Workspace,
    _memory: DeviceBuffer<u8>,
}

impl Alone {
    fn new(device: &Device, tensors: &Tensors) -> Result<Self> {
        let valid = tensors.problem.validate()?;
        let forward = plan_forward(&valid.forward, device.properties(), &tensors.forward)?;
        let backward = plan_backward(&valid, device.properties(), &tensors.backward)?;
        let bytes = backward.workspace_bytes();
        let memory = DeviceBuffer::<u8>::uninitialised(device, usize::try_from(bytes)?)?;
        let workspace = Workspace { pointer: memory.device_pointer(), bytes };
        let forward = forward.context("there are rows")?;
        Ok(Alone { forward, backward, workspace, _memory: memory })
    }

    fn forward(&self, device: &Device) -> Result<()> {
        // SAFETY: the tensors live as long as the plan.
        Ok(unsafe { launch_forward(device, &self.forward, Stream::default()) }?)
    }

    fn backward(&self, device: &Device) -> Result<()> {
        // SAFETY: as above.
        Ok(unsafe { launch_backward(device, &self.backward, self.workspace, Stream::default()) }?)
    }
}
