//! `fattn ring`: attention on tensors from a safetensors file, whose sequences are shared out among ranks.

mod bench;

use crate::console::outln;
use crate::output::OutputFile;
use crate::plans;
use crate::run::{report, serialized};
use crate::task::{Results, Task, TaskArguments};
use anyhow::{Context as _, Result, ensure};
use bench::BenchArguments;
use clap::{Args, ValueEnum};
use finite_attention::context_parallel::{
    Communicator, ContextExchange, ContextLayout, ContextSharing, LocalCommunicator, NcclCommunicator,
    NcclId,
};
use finite_attention::device::DeviceName;
use finite_attention::driver::cuda::CudaDriver;
use finite_attention::{Device, Dtype, Element, Error};
use half::{bf16, f16};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What to compute, over how many ranks, and where the results go. Ranks are threads: each has a GPU of its
/// own, or, of fewer GPUs, the next one in turn, or an emulator. With --device all have that one.
#[derive(Args)]
pub struct RingArguments {
    #[command(flatten)]
    task: TaskArguments,
    /// File to write what run writes to.
    #[arg(long, required_unless_present = "bench")]
    output: Option<PathBuf>,
    /// How many ranks there are.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// How sequences are shared out: contiguous, zigzag, stripe or gathered.
    #[arg(long, default_value = "zigzag")]
    layout: ContextLayout,
    /// How keys and values come to where they are needed: round, or by heads, a few of all ranks after the
    /// other. Chosen if not given.
    #[arg(long)]
    exchange: Option<ContextExchange>,
    /// How ranks talk to each other.
    #[arg(long, default_value = "local")]
    communicator: CommunicatorArgument,
    /// Seconds that a rank waits for another one at most.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    limit: u64,
    /// Print the mask in words, how rows are shared out, and how keys and values come first.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    bench: BenchArguments,
}

/// Reads the input, computes, writes the output.
pub fn run(arguments: &RingArguments) -> Result<()> {
    let (count, layout) = (usize::from(arguments.ranks), arguments.layout);
    let sharing = ContextSharing { layout, exchange: arguments.exchange };
    let limit = Duration::from_secs(arguments.limit);
    if arguments.bench.bench {
        ensure!(arguments.task.input.is_none(), "--bench: expected no file of tensors, got --input");
        let connections = Connections::new(arguments.communicator, count, limit)?;
        return bench::run(&arguments.bench, count, sharing, connections);
    }
    let options = &arguments.task;
    let path = arguments.output.as_ref().context("--output: expected a file, or --bench, got none")?;
    let bytes = options.read()?;
    let task = Task::new(options, &bytes)?;
    task.refuse_dynamic_mask("ring")?;
    let mut output = OutputFile::new("--output", path, &options.inputs())?;
    let devices = devices(options, count)?;
    let device = devices[0].properties().name.clone();
    let connections = Connections::new(arguments.communicator, count, limit)?;
    if arguments.explain {
        outln!("{}", plans::mask(&task.problem))?;
        outln!("{}", explain(&task, count, layout))?;
        outln!("{}", sharing.explain(&task.problem, count)?)?;
    }
    let compute = match (task.problem.dtype, task.problem.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => file::<bf16, f32>,
        (Dtype::Bf16, _) => file::<bf16, bf16>,
        (Dtype::F16, Dtype::F32) => file::<f16, f32>,
        (Dtype::F16, _) => file::<f16, f16>,
        (Dtype::F32, _) => file::<f32, f32>,
    };
    output.write(&compute(&task, &devices, &connections, sharing)?)?;
    report(&task, &format!("{count} ranks of {device}, {sharing}"), output.path())
}

/// How ranks talk to each other.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommunicatorArgument {
    /// Copies between the memories of the process's devices.
    Local,
    /// NVIDIA's NCCL, found at run time: `libnccl.so.2`, or what `FATTN_NCCL` names. GPUs alone.
    Nccl,
}

/// What gives each rank its communicator.
pub struct Connections {
    local: Vec<Mutex<Option<LocalCommunicator>>>,
    nccl: Option<NcclId>,
    ranks: usize,
    limit: Duration,
}

impl Connections {
    pub fn new(kind: CommunicatorArgument, ranks: usize, limit: Duration) -> Result<Self> {
        let is_nccl = kind == CommunicatorArgument::Nccl;
        let local = if is_nccl { Vec::new() } else { LocalCommunicator::create(ranks, limit) };
        let local = local.into_iter().map(|own| Mutex::new(Some(own))).collect();
        let nccl = is_nccl.then(NcclId::new).transpose()?;
        Ok(Connections { local, nccl, ranks, limit })
    }

    /// That of one rank, once.
    pub fn of(&self, rank: usize, device: &Device) -> Result<Box<dyn Communicator>, Error> {
        if let Some(id) = self.nccl {
            return Ok(Box::new(NcclCommunicator::new(device, id, self.ranks, rank, self.limit)?));
        }
        let mut own = self.local[rank].lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(own.take().expect("each rank is connected once")))
    }
}

/// The device of each rank: the GPUs one after the other, unless one is named.
fn devices(options: &TaskArguments, count: usize) -> Result<Vec<Device>> {
    let gpus = match options.device.device {
        Some(_) => 0,
        None => match CudaDriver::count() {
            Ok(gpus) => gpus,
            Err(Error::NoDevice { .. }) => 0,
            Err(error) => return Err(error.into()),
        },
    };
    let open = |rank: usize| -> Result<Device> {
        if let Some(ordinal) = rank.checked_rem(gpus) {
            return Ok(Device::open(DeviceName::Cuda(ordinal), options.device.images()?)?);
        }
        Ok(options.device.open()?.1)
    };
    (0..count).map(open).collect()
}

/// Rows are named in so many entries at most.
const MOST_RUNS: usize = 8;

/// Which rows of packed sequences, or of each batch, each rank has.
fn explain(task: &Task<'_>, count: usize, layout: ContextLayout) -> String {
    let rows = task.problem.q.shape[1];
    let offsets: Vec<usize> = match &task.inputs.offsets {
        Some([q, _]) => q.iter().map(|&offset| offset as usize).collect(),
        None => vec![0, rows],
    };
    let line = |rank: usize| {
        let positions = layout.positions(count, rank, &offsets);
        let mut runs: Vec<String> = Vec::new();
        let mut rest = &positions[..];
        // What is evenly apart is one entry.
        while let (Some(&first), true) = (rest.first(), runs.len() < MOST_RUNS) {
            let step = rest.get(1).map_or(1, |&next| next.wrapping_sub(first));
            let apart = |pair: &&[usize]| pair[1].wrapping_sub(pair[0]) == step;
            let length = 1 + rest.windows(2).take_while(apart).count();
            let last = rest[length - 1];
            let every = if step == 1 { String::new() } else { format!(" by {step}") };
            runs.push(if length == 1 { first.to_string() } else { format!("{first} to {last}{every}") });
            rest = &rest[length..];
        }
        let more = if rest.is_empty() { "" } else { ", ..." };
        format!("rank {rank}: {} queries: {}{more}", positions.len(), runs.join(", "))
    };
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

/// The bytes of the output file. `T` is the element type of q, k, v and do, `O` that of o, dq, dk and dv.
fn file<T: Element, O: Element>(
    task: &Task<'_>,
    devices: &[Device],
    connections: &Connections,
    sharing: ContextSharing,
) -> Result<Vec<u8>> {
    let connect = |rank: usize| Ok((devices[rank].clone(), connections.of(rank, &devices[rank])?));
    let results: Results<O> = task.compute_over_ranks::<T, O>(devices.len(), connect, sharing)?;
    serialized(task, &results)
}
