//! `fattn run`: attention on tensors from a safetensors file.

use crate::output::OutputFile;
use crate::plans;
use crate::task::{Results, Task, TaskArguments};
use anyhow::Result;
use bytemuck::cast_slice;
use clap::Args;
use finite_attention::{BackwardOutput, Device, Dtype, Element, ForwardOutput, ForwardProblem, Layout};
use half::{bf16, f16};
use safetensors::Dtype as FileDtype;
use safetensors::tensor::TensorView;
use std::path::PathBuf;

/// What to compute, and where the results go.
#[derive(Args)]
pub struct RunArguments {
    #[command(flatten)]
    task: TaskArguments,
    /// File to write o, lse (f32), and dq, dk and dv if do is given, to; another one than the input. One that
    /// is there is replaced when the new one is complete.
    #[arg(long)]
    output: PathBuf,
    /// Print the mask in words and the plan of each pass first, with its reasons.
    #[arg(long)]
    explain: bool,
}

/// Reads the input, computes, writes the output.
pub fn run(arguments: &RunArguments) -> Result<()> {
    let bytes = arguments.task.read()?;
    let task = Task::new(&arguments.task, &bytes)?;
    let mut output = OutputFile::new("--output", &arguments.output, &arguments.task.inputs())?;
    let (name, device) = arguments.task.device.open()?;
    let problem = &task.problem;
    if arguments.explain {
        println!("{}", plans::mask(problem));
        println!("{}", plans::forward(problem, device.properties())?.text);
        if let Some(backward) = task.backward_problem()? {
            println!("{}", plans::backward(&backward, device.properties())?.text);
        }
    }
    let written = match (problem.dtype, problem.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => file::<bf16, f32>(&task, &device)?,
        (Dtype::Bf16, _) => file::<bf16, bf16>(&task, &device)?,
        (Dtype::F16, Dtype::F32) => file::<f16, f32>(&task, &device)?,
        (Dtype::F16, _) => file::<f16, f16>(&task, &device)?,
        (Dtype::F32, _) => file::<f32, f32>(&task, &device)?,
    };
    output.write(&written)?;
    let path = output.path().display();
    let gradients = if task.inputs.d_o.is_some() { ", dq, dk, dv" } else { "" };
    let dtype = problem.output_dtype.name();
    println!("o {:?} {dtype}, lse f32{gradients}, on {name}: {path}", task.shape(&problem.o));
    Ok(())
}

/// The bytes of the output file. `T` is the element type of q, k, v and do, `O` that of o, dq, dk and dv.
fn file<T: Element, O: Element>(task: &Task<'_>, device: &Device) -> Result<Vec<u8>> {
    let Results { forward: ForwardOutput { o, lse }, gradients } = task.compute::<T, O>(device)?;
    let ForwardProblem { q, k, v, o: o_layout, .. } = &task.problem;
    let lse = TensorView::new(FileDtype::F32, task.lse_shape(), cast_slice(&lse))?;
    let mut tensors = vec![("o", view(task, o_layout, &o)?), ("lse", lse)];
    if let Some(BackwardOutput { dq, dk, dv }) = &gradients {
        tensors.push(("dq", view(task, q, dq)?));
        tensors.push(("dk", view(task, k, dk)?));
        tensors.push(("dv", view(task, v, dv)?));
    }
    Ok(safetensors::serialize(tensors, None)?)
}

/// A tensor of the output file.
fn view<'o, O: Element>(task: &Task<'_>, layout: &Layout, elements: &'o [O]) -> Result<TensorView<'o>> {
    let dtype = match O::DTYPE {
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::F16 => FileDtype::F16,
        Dtype::F32 => FileDtype::F32,
    };
    Ok(TensorView::new(dtype, task.shape(layout), cast_slice(elements))?)
}
