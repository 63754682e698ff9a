//! `fattn run`: attention on tensors from a safetensors file.

use crate::console::outln;
use crate::output::OutputFile;
use crate::plans;
use crate::task::{Results, Task, TaskArguments};
use anyhow::Result;
use bytemuck::cast_slice;
use clap::Args;
use finite_attention::attention::Elements;
use finite_attention::{BackwardOutput, Device, Dtype, Element, ForwardOutput, ForwardProblem, Layout};
use half::{bf16, f16};
use safetensors::Dtype as FileDtype;
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};

/// What to compute, and where the results go.
#[derive(Args)]
pub struct RunArguments {
    #[command(flatten)]
    task: TaskArguments,
    /// File to write o, lse (f32), and dq, dk and dv if do is given, to; another one than the input. With
    /// --dbias it has dbias, and with sinks and do dsinks (f32). One that is there is replaced when the new
    /// one is complete.
    #[arg(long)]
    output: PathBuf,
    /// Print the mask in words, what scores have beside q and k, dropout, and the plan of each pass first,
    /// with its reasons.
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
        outln!("{}", plans::mask(problem))?;
        plans::scores(problem).iter().try_for_each(|line| outln!("{line}"))?;
        let (backward, properties) = (task.backward_problem()?, device.properties());
        match &task.dynamic_mask {
            None => {
                outln!("{}", plans::forward(problem, properties)?.text)?;
                if let Some(backward) = backward {
                    outln!("{}", plans::backward(&backward, properties)?.text)?;
                }
            }
            Some(mask) => {
                outln!("{}", plans::dynamic(problem, None, mask, properties)?.text)?;
                if let Some(backward) = &backward {
                    outln!("{}", plans::dynamic(problem, Some(backward), mask, properties)?.text)?;
                }
            }
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
    report(&task, &name.to_string(), output.path())
}

/// Says what was written, by what, and where.
pub fn report(task: &Task<'_>, by: &str, path: &Path) -> Result<()> {
    let problem = &task.problem;
    let path = path.display();
    let backward = task.backward_problem()?;
    let d_bias = backward.is_some_and(|backward| backward.d_bias.is_some());
    let d_sinks = backward.is_some_and(|backward| backward.wants_d_sinks);
    let gradients: String =
        [(backward.is_some(), ", dq, dk, dv"), (d_bias, ", dbias"), (d_sinks, ", dsinks")]
            .into_iter()
            .filter_map(|(is_there, names)| is_there.then_some(names))
            .collect();
    let dtype = problem.output_dtype.name();
    outln!("o {:?} {dtype}, lse f32{gradients}, on {by}: {path}", task.shape(&problem.o))?;
    Ok(())
}

/// The bytes of the output file. `T` is the element type of q, k, v and do, `O` that of o, dq, dk and dv.
fn file<T: Element, O: Element>(task: &Task<'_>, device: &Device) -> Result<Vec<u8>> {
    serialized(task, &task.compute::<T, O>(device)?)
}

/// Results as the bytes of a file.
pub fn serialized<O: Element>(task: &Task<'_>, results: &Results<O>) -> Result<Vec<u8>> {
    let Results { forward: ForwardOutput { o, lse }, gradients } = results;
    let ForwardProblem { q, k, v, o: o_layout, .. } = &task.problem;
    let lse = TensorView::new(FileDtype::F32, task.lse_shape(), cast_slice(lse))?;
    let mut tensors = vec![("o", view(task, o_layout, o)?), ("lse", lse)];
    if let Some(BackwardOutput { dq, dk, dv, d_bias, d_sinks }) = gradients {
        tensors.push(("dq", view(task, q, dq)?));
        tensors.push(("dk", view(task, k, dk)?));
        tensors.push(("dv", view(task, v, dv)?));
        if let (Some(d_bias), Some(bias)) = (d_bias, task.problem.bias) {
            let (dtype, bytes) = match d_bias {
                Elements::Bf16(elements) => (FileDtype::BF16, cast_slice(elements)),
                Elements::F16(elements) => (FileDtype::F16, cast_slice(elements)),
                Elements::F32(elements) => (FileDtype::F32, cast_slice(elements)),
            };
            tensors.push(("dbias", TensorView::new(dtype, bias.layout.shape.to_vec(), bytes)?));
        }
        if task.problem.has_sinks {
            let shape = vec![d_sinks.len()];
            tensors.push(("dsinks", TensorView::new(FileDtype::F32, shape, cast_slice(d_sinks))?));
        }
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
