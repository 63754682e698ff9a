//! Training steps over two ranks, each with half of one sequence: on two GPUs, or else in the emulator.
//!
//! `cargo run --release -p finite-attention --example context_parallel`
//!
//! What is learnt are q, k and v themselves, so that o comes close to a target. Each rank keeps its own rows
//! of all of them; keys and values come from the other one in every pass.

use finite_attention::buffer::{DeviceBuffer, InDeviceMemory as _};
use finite_attention::context_parallel::{
    Communicator, ContextLayout, ContextParallel, ContextProblem, LocalCommunicator,
};
use finite_attention::{
    Arch, BackwardPointers, BackwardProblem, Device, Dtype, Error, ForwardPointers, ForwardProblem,
    Layout, Result, Stream,
};
use std::thread;
use std::time::Duration;

const RANKS: usize = 2;
const ROWS: usize = 96;
const HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const STEPS: usize = 12;
const LEARNING_RATE: f32 = 0.5;

fn main() -> Result<()> {
    let threads: Vec<_> = LocalCommunicator::create(RANKS, Duration::from_secs(60))
        .into_iter()
        .map(|communicator| thread::spawn(move || train(communicator)))
        .collect();
    let losses: Vec<Vec<f32>> =
        threads.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Result<_>>()?;
    for step in 0..STEPS {
        // Each rank has the loss of its own rows.
        let loss: f32 = losses.iter().map(|losses| losses[step]).sum();
        println!("step {step:2}: loss {loss:.4}");
    }
    Ok(())
}

/// The GPU of this rank, or an emulator.
fn open(rank: usize) -> Result<Device> {
    match Device::cuda(rank) {
        Err(Error::NoDevice { .. }) => Device::emulated(Arch::Sm80),
        device => device,
    }
}

/// Numbers for the elements of these rows, the same whoever has them.
fn numbers(rows: &[usize], seed: u32) -> Vec<f32> {
    let per_row = HEADS * HEAD_DIM;
    let number = |index: usize| {
        let mixed = (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503));
        (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    rows.iter().flat_map(|row| (0..per_row).map(move |column| number(row * per_row + column))).collect()
}

/// The losses of one rank's rows, step by step.
fn train(communicator: LocalCommunicator) -> Result<Vec<f32>> {
    let (rank, layout, stream) = (communicator.rank(), ContextLayout::Zigzag, Stream::default());
    let device = open(rank)?;
    let rows = layout.positions(RANKS, rank, &[0, ROWS]);
    let group = ContextParallel::new(device.clone(), communicator, layout)?;
    let own = Layout::bshd([1, rows.len(), HEADS, HEAD_DIM]);
    let forward = ForwardProblem::new(Dtype::F32, own, own, own).causal();
    let problem = BackwardProblem::new(forward);
    let mut pass = group.prepare(&ContextProblem::new(forward, ROWS, ROWS))?;
    let [mut q, mut k, mut v] = [1, 2, 3].map(|seed| numbers(&rows, seed));
    let target = numbers(&rows, 4);
    let output = |elements: usize| DeviceBuffer::<f32>::uninitialised(&device, elements);
    let (o, lse) = (output(q.len())?, output(rows.len() * HEADS)?);
    let (dq, dk, dv) = (output(q.len())?, output(q.len())?, output(q.len())?);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let on_device = |numbers: &[f32]| DeviceBuffer::from_slice(&device, numbers);
        let inputs = (on_device(&q)?, on_device(&k)?, on_device(&v)?);
        let pointers = ForwardPointers {
            q: inputs.0.device_pointer(),
            k: inputs.1.device_pointer(),
            v: inputs.2.device_pointer(),
            o: o.device_pointer(),
            lse: lse.device_pointer(),
            ..ForwardPointers::default()
        };
        // SAFETY: the buffers are as large as the problem says, and live until `wait`.
        unsafe { pass.forward(&pointers, stream) }?;
        group.wait(stream)?;
        // The loss is the mean of (o - target)^2 / 2 over all rows.
        let scale = 1.0 / (ROWS * HEADS) as f32;
        let d_o: Vec<f32> =
            o.to_vec(stream)?.iter().zip(&target).map(|(o, target)| (o - target) * scale).collect();
        losses.push(d_o.iter().map(|d| d * d).sum::<f32>() / (2.0 * scale));
        let d_o = on_device(&d_o)?;
        let gradients = BackwardPointers {
            q: pointers.q,
            k: pointers.k,
            v: pointers.v,
            o: pointers.o,
            lse: pointers.lse,
            d_o: d_o.device_pointer(),
            dq: dq.device_pointer(),
            dk: dk.device_pointer(),
            dv: dv.device_pointer(),
            ..BackwardPointers::default()
        };
        // SAFETY: as above.
        unsafe { pass.backward(&problem, &gradients, stream) }?;
        group.wait(stream)?;
        for (numbers, gradient) in [(&mut q, &dq), (&mut k, &dk), (&mut v, &dv)] {
            for (number, gradient) in numbers.iter_mut().zip(gradient.to_vec(stream)?) {
                *number -= LEARNING_RATE * (ROWS * HEADS) as f32 * gradient;
            }
        }
    }
    Ok(losses)
}
