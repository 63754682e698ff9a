//! `fattn trace-nonfinite`: which tensor has a value that is not finite, and which instruction made it.

use crate::console::outln;
use crate::task::{Input, Results, Task, TaskArguments};
use anyhow::Result;
use clap::Args;
use finite_attention::device::DeviceName;
use finite_attention::trace::{
    Cause, Computation, NonFinite, ScannedTensor, Source, arch_of, lse_layout, named, search,
};
use finite_attention::{Device, Dtype, Element, ForwardOutput, KernelImages};
use half::{bf16, f16};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What to compute, and how to print what is found.
#[derive(Args)]
pub struct TraceArguments {
    #[command(flatten)]
    task: TaskArguments,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Computes, scans, traces, prints; exit code 1 if something is not finite.
pub fn run(arguments: &TraceArguments) -> Result<ExitCode> {
    let bytes = arguments.task.read()?;
    let task = Task::new(&arguments.task, &bytes)?;
    task.refuse_dynamic_mask("trace-nonfinite")?;
    let (name, device) = arguments.task.device.open()?;
    let images = arguments.task.device.images()?;
    let run = match (task.problem.dtype, task.problem.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => find::<bf16, f32>,
        (Dtype::Bf16, _) => find::<bf16, bf16>,
        (Dtype::F16, Dtype::F32) => find::<f16, f32>,
        (Dtype::F16, _) => find::<f16, f16>,
        (Dtype::F32, _) => find::<f32, f32>,
    };
    let (tensors, cause) = run(&task, &device, &images)?;
    if arguments.json {
        outln!("{}", report(name, &tensors, &cause))?;
    } else {
        print(name, &tensors, &cause)?;
    }
    Ok(if matches!(cause, Cause::AllFinite) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn find<T: Element, O: Element>(
    task: &Task<'_>,
    device: &Device,
    images: &KernelImages,
) -> Result<(Vec<ScannedTensor>, Cause)> {
    let mut tensors = scan_inputs::<T>(task);
    let in_inputs = tensors.iter().any(|tensor| tensor.found.count() != 0);
    let results = task.compute::<T, O>(device)?;
    let inputs = &task.inputs;
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(Input::elements::<T>);
    let d_o = inputs.d_o.as_ref().map(Input::elements::<T>);
    let d_lse = inputs.d_lse.as_ref().map(Input::elements::<f32>);
    let (forward, lse) = (task.problem, lse_layout(&task.problem));
    let ForwardOutput { o, lse: lse_elements } = &results.forward;
    let computation = Computation {
        forward,
        backward: task.backward_problem()?,
        q: Source::host(forward.q, &q),
        k: Source::host(forward.k, &k),
        v: Source::host(forward.v, &v),
        d_o: d_o.as_ref().map(|d_o| Source::host(forward.o, d_o)),
        d_lse: d_lse.as_ref().map(|d_lse| Source::host(lse, d_lse)),
        output: Some((Source::host(forward.o, o), Source::host(lse, lse_elements))),
        scores: inputs.scores.elements()?,
        offsets: inputs.offsets.clone(),
    };
    tensors.extend(scan_results(task, &computation, &results));
    let first = tensors.iter().find_map(|tensor| Some((tensor, tensor.found.first?)));
    let Some((tensor, index)) = first else { return Ok((tensors, Cause::AllFinite)) };
    if in_inputs {
        return Ok((tensors, Cause::Input));
    }
    let arch = arch_of(device);
    let cause = search::<T, O, O>(&computation, tensor.name, index, arch, images, u128::MAX)?;
    Ok((tensors, cause))
}

fn scan_inputs<T: Element>(task: &Task<'_>) -> Vec<ScannedTensor> {
    let inputs = &task.inputs;
    let scanned = |name, shape: &[usize], values: Vec<f32>| ScannedTensor {
        name,
        is_input: true,
        shape: shape.to_vec(),
        found: NonFinite::scan(values, |_, _| false),
    };
    let tensors = [Some(&inputs.q), Some(&inputs.k), Some(&inputs.v), inputs.d_o.as_ref()];
    let tensors = tensors.into_iter().flatten().map(|input| {
        let values = input.elements::<T>().into_iter().map(T::to_f32).collect();
        scanned(input.name, input.view.shape(), values)
    });
    let d_lse = inputs
        .d_lse
        .iter()
        .map(|d_lse| scanned(d_lse.name, d_lse.view.shape(), d_lse.elements::<f32>()));
    let scores = &inputs.scores;
    let of_scores = [&scores.bias, &scores.alibi_slopes, &scores.sinks].into_iter().flatten();
    // Minus infinity hides a key, or is no sink.
    let of_scores = of_scores.map(|input| {
        let values = match input.dtype {
            Dtype::F32 => input.elements::<f32>(),
            _ => input.elements::<T>().into_iter().map(T::to_f32).collect(),
        };
        let is_meant = input.name != "alibi_slopes";
        let meant = |_, value| is_meant && value == f32::NEG_INFINITY;
        let (name, shape) = (input.name, input.view.shape().to_vec());
        ScannedTensor { name, is_input: true, shape, found: NonFinite::scan(values, meant) }
    });
    tensors.chain(d_lse).chain(of_scores).collect()
}

fn scan_results<T: Element, O: Element>(
    task: &Task<'_>,
    computation: &Computation<'_, T, O>,
    results: &Results<O>,
) -> Vec<ScannedTensor> {
    let problem = &task.problem;
    let scanned = |(name, values): (&'static str, Vec<f32>)| {
        let shape = match name {
            "lse" => task.lse_shape(),
            "o" => task.shape(&problem.o),
            "dq" => task.shape(&problem.q),
            "dk" => task.shape(&problem.k),
            "dbias" => problem.bias.map_or(vec![], |bias| bias.layout.shape.to_vec()),
            "dsinks" => vec![problem.q.shape[2]],
            _ => task.shape(&problem.v),
        };
        // The lse of a query that sees no key is minus infinity.
        let is_expected = |index: usize, value: f32| {
            name == "lse" && value == f32::NEG_INFINITY && computation.is_dead(index)
        };
        ScannedTensor { name, is_input: false, shape, found: NonFinite::scan(values, is_expected) }
    };
    named(Some(&results.forward), results.gradients.as_ref()).into_iter().map(scanned).collect()
}

fn print(device: DeviceName, tensors: &[ScannedTensor], cause: &Cause) -> Result<()> {
    let width = tensors.iter().map(|tensor| tensor.name.len()).fold("tensor".len(), usize::max);
    outln!("{:<width$} {:<20} {:>9} {:>9} {:>9}  first", "tensor", "shape", "NaN", "+inf", "-inf")?;
    for tensor in tensors {
        let NonFinite { nan, positive_infinity, negative_infinity, .. } = tensor.found;
        let shape = format!("{:?}", tensor.shape);
        let first = tensor.first().map_or("-".to_owned(), |first| format!("{first:?}"));
        let name = tensor.name;
        outln!(
            "{name:<width$} {shape:<20} {nan:>9} {positive_infinity:>9} {negative_infinity:>9}  {first}"
        )?;
    }
    outln!("device {device}")?;
    let first = tensors.iter().find(|tensor| tensor.is_input && tensor.found.count() != 0);
    match (cause, first.and_then(|tensor| Some((tensor, tensor.first()?)))) {
        (Cause::Input, Some((tensor, at))) => {
            outln!("the input {} is not finite at {at:?}: nothing was traced", tensor.name)?;
        }
        _ => outln!("{cause}")?,
    }
    Ok(())
}

fn report(device: DeviceName, tensors: &[ScannedTensor], cause: &Cause) -> Value {
    let tensors: Vec<Value> = tensors
        .iter()
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "input": tensor.is_input,
                "shape": tensor.shape,
                "nan": tensor.found.nan,
                "positive_infinity": tensor.found.positive_infinity,
                "negative_infinity": tensor.found.negative_infinity,
                "first": tensor.first(),
            })
        })
        .collect();
    let cause = match cause {
        Cause::AllFinite => json!({ "kind": "all_finite" }),
        Cause::Input => json!({ "kind": "input" }),
        Cause::Instruction { part, kernel, stage, trace } => json!({
            "kind": if trace.first.is_some() { "origin" } else { "suspect" },
            "part": part,
            "kernel": kernel.to_string(),
            "stage": stage,
            "trace": trace,
        }),
        Cause::Findings { part, error } => {
            json!({ "kind": "findings", "part": part, "error": error.to_string() })
        }
        Cause::NotReproduced { parts } => json!({ "kind": "not_reproduced", "parts": parts }),
        _ => json!({ "kind": "unknown" }),
    };
    json!({ "device": device.to_string(), "tensors": tensors, "cause": cause })
}
