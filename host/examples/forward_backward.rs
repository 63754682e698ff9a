//! Training steps with buffers of the device: forward, backward, loss scaling, clipping; on a GPU, or else in
//! the emulator.
//!
//! `cargo run --release -p finite-attention --example forward_backward`
//!
//! What is learnt are q, k and v themselves, so that o comes close to a target: four heads of q share two of
//! k and v, causal, in bf16, with gradients and weights in f32.

use finite_attention::attention::Workspace;
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory as _};
use finite_attention::plan::{plan_backward, plan_forward};
use finite_attention::training::{DeviceTensor, GradScaler, NonFiniteNorm, Result, clip_by_global_norm};
use finite_attention::{
    BackwardPointers, BackwardProblem, Device, Dtype, ForwardPointers, ForwardProblem, Layout, Stream,
    backward, forward,
};
use half::bf16;

const ROWS: usize = 48;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const STEPS: usize = 12;
const LEARNING_RATE: f32 = 30.0;
const MAX_NORM: f32 = 0.1;

/// Numbers from -1 to 1, the same at each run.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let number = |index: usize| {
        let mixed = (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503));
        (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(number).collect()
}

fn to_bf16(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&number| bf16::from_f32(number)).collect()
}

fn main() -> Result<()> {
    let (device, stream) = (Device::default()?, Stream::default());
    let queries = Layout::bshd([1, ROWS, HEADS, HEAD_DIM]);
    let keys = Layout::bshd([1, ROWS, KEY_HEADS, HEAD_DIM]);
    let forward_problem = ForwardProblem::new(Dtype::Bf16, queries, keys, keys).causal();
    let problem = BackwardProblem::new(forward_problem).with_gradient_dtype(Dtype::F32);

    // Weights on the host, and everything that the two passes use on the device.
    let mut weights = [(queries, 1), (keys, 2), (keys, 3)].map(|(of, seed)| numbers(of.span(), seed));
    let target = numbers(queries.span(), 4);
    let [mut q, mut k, mut v] = {
        let [q, k, v] = &weights;
        let copied = |numbers: &[f32]| DeviceBuffer::from_slice(&device, &to_bf16(numbers));
        [copied(q)?, copied(k)?, copied(v)?]
    };
    let o = DeviceBuffer::<bf16>::uninitialised(&device, queries.span())?;
    let lse = DeviceBuffer::<f32>::uninitialised(&device, ROWS * HEADS)?;
    let mut d_o = DeviceBuffer::<bf16>::uninitialised(&device, queries.span())?;
    let gradient = |of: Layout| DeviceBuffer::<f32>::uninitialised(&device, of.span());
    let gradients = [gradient(queries)?, gradient(keys)?, gradient(keys)?];

    let inputs = ForwardPointers {
        q: q.device_pointer(),
        k: k.device_pointer(),
        v: v.device_pointer(),
        o: o.device_pointer(),
        lse: lse.device_pointer(),
        ..ForwardPointers::default()
    };
    let [dq, dk, dv] = [0, 1, 2].map(|place| gradients[place].device_pointer());
    let pointers = BackwardPointers {
        q: inputs.q,
        k: inputs.k,
        v: inputs.v,
        o: inputs.o,
        lse: inputs.lse,
        d_o: d_o.device_pointer(),
        dq,
        dk,
        dv,
        ..BackwardPointers::default()
    };
    // What will run, and how much memory it wants beside the tensors.
    let properties = device.properties();
    if let Some(plan) = plan_forward(&forward_problem.validate()?, properties, &inputs)? {
        device.prepare(&plan)?;
    }
    let plan = plan_backward(&problem.validate()?, properties, &pointers)?;
    device.prepare(&plan)?;
    let memory = DeviceBuffer::<u8>::uninitialised(&device, plan.workspace_bytes() as usize)?;
    let workspace = Workspace { pointer: memory.device_pointer(), bytes: plan.workspace_bytes() };
    println!("{}, {} bytes of workspace", properties.name, workspace.bytes);

    let tensors = [("dq", dq, queries), ("dk", dk, keys), ("dv", dv, keys)]
        .map(|(name, address, of)| DeviceTensor::of_layout(name, Dtype::F32, &of, address));
    let mut scaler = GradScaler::default();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        // SAFETY: the buffers are as large as the problem says, and nobody else uses them.
        unsafe { forward(&device, &forward_problem, &inputs, stream) }?;
        // The loss is the mean of (o - target)^2 / 2 over all rows; its gradient is scaled.
        let per_row = 1.0 / (ROWS * HEADS) as f32;
        let off: Vec<f32> =
            o.to_vec(stream)?.iter().zip(&target).map(|(o, target)| o.to_f32() - target).collect();
        let loss = off.iter().map(|off| off * off).sum::<f32>() * per_row / 2.0;
        let scaled: Vec<f32> = off.iter().map(|off| off * per_row * scaler.scale()).collect();
        d_o.copy_from_slice(&to_bf16(&scaled), stream)?;
        // SAFETY: as above, and the workspace is as large as the plan says.
        unsafe { backward(&device, &problem, &pointers, workspace, stream) }?;

        // SAFETY: the tensors are those of the buffers.
        let found = unsafe { scaler.unscale(&device, 0, &tensors, stream) }?;
        for (name, what) in found {
            println!("step {step:2}: {name} has {what}");
        }
        if scaler.step(0)? {
            // SAFETY: as above.
            let clipped = unsafe {
                clip_by_global_norm(&device, &tensors, MAX_NORM, NonFiniteNorm::Refuse, stream)
            }?;
            println!("step {step:2}: loss {loss:.4}, norm of gradients {:.4}", clipped.total_norm);
            let buffers = [&mut q, &mut k, &mut v];
            for ((weight, gradient), buffer) in weights.iter_mut().zip(&gradients).zip(buffers) {
                for (number, gradient) in weight.iter_mut().zip(gradient.to_vec(stream)?) {
                    *number -= LEARNING_RATE * gradient;
                }
                buffer.copy_from_slice(&to_bf16(weight), stream)?;
            }
        }
        scaler.update()?;
        losses.push(loss);
    }
    assert!(losses[STEPS - 1] < 0.8 * losses[0], "nothing was learnt: {losses:?}");
    Ok(())
}
