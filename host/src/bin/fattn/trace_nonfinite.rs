//! `fattn trace-nonfinite`: which tensor has a value that is not finite, and which instruction made it.

mod part;

use crate::console::outln;
use crate::task::{Results, Task, TaskArguments};
use anyhow::Result;
use clap::Args;
use finite_attention::attention::Elements;
use finite_attention::device::DeviceName;
use finite_attention::driver::emulated::{EmulatedDriver, Options, Origin, Trace};
use finite_attention::trace::{NonFinite, Stage, coordinates, stage};
use finite_attention::{Device, Dtype, Element, Error, KernelImages};
use half::{bf16, f16};
use kernels_gpu::abi::{Arch, KernelVariant};
use part::{Part, Sizes};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;

/// What to compute, and how to print what is found.
#[derive(Args)]
pub struct TraceArguments {
    #[command(flatten)]
    task: TaskArguments,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// A tensor and what is not finite in it.
struct Scanned {
    name: &'static str,
    is_input: bool,
    shape: Vec<usize>,
    found: NonFinite,
}

impl Scanned {
    /// The indices of the first element that is not finite.
    fn first(&self) -> Option<Vec<usize>> {
        self.found.first.map(|index| coordinates(&self.shape, index))
    }
}

/// Why the first result that is not finite is not.
enum Cause {
    /// There is none.
    AllFinite,
    /// It was in an input.
    Input,
    /// An instruction made it, or, if the kind is a suspect, may have.
    Instruction { part: Part, kernel: KernelVariant, stage: Stage, trace: Box<Trace> },
    /// The emulator finds fault with the kernel.
    Findings { part: Part, error: Error },
    /// The emulator computes finite numbers for the parts that were tried.
    NotReproduced { parts: Vec<Part> },
}

/// Computes, scans, traces, prints; exit code 1 if something is not finite.
pub fn run(arguments: &TraceArguments) -> Result<ExitCode> {
    let bytes = arguments.task.read()?;
    let task = Task::new(&arguments.task, &bytes)?;
    let (name, device) = arguments.task.device.open()?;
    let images = arguments.task.device.images()?;
    let run = match (task.problem.dtype, task.problem.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => search::<bf16, f32>,
        (Dtype::Bf16, _) => search::<bf16, bf16>,
        (Dtype::F16, Dtype::F32) => search::<f16, f32>,
        (Dtype::F16, _) => search::<f16, f16>,
        (Dtype::F32, _) => search::<f32, f32>,
    };
    let (tensors, cause) = run(&task, &device, &images)?;
    if arguments.json {
        outln!("{}", report(name, &tensors, &cause))?;
    } else {
        print(name, &tensors, &cause)?;
    }
    Ok(if matches!(cause, Cause::AllFinite) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn search<T: Element, O: Element>(
    task: &Task<'_>,
    device: &Device,
    images: &KernelImages,
) -> Result<(Vec<Scanned>, Cause)> {
    let sizes = Sizes::<T>::new(task)?;
    let mut tensors = scan_inputs::<T>(task);
    let in_inputs = tensors.iter().any(|tensor| tensor.found.count() != 0);
    let results = task.compute::<T, O>(device)?;
    tensors.extend(scan_results(task, &sizes, &results));
    let first = tensors.iter().find_map(|tensor| Some((tensor, tensor.found.first?)));
    let Some((tensor, index)) = first else { return Ok((tensors, Cause::AllFinite)) };
    if in_inputs {
        return Ok((tensors, Cause::Input));
    }
    let columns = if tensor.name == "lse" { 1 } else { *tensor.shape.last().unwrap_or(&1) };
    let parts = sizes.parts(tensor.name, index, columns);
    let gradients = !["o", "lse"].contains(&tensor.name);
    for part in &parts {
        let driver = EmulatedDriver::new(arch_of(device), images.clone())?;
        let driver = Arc::new(driver.with_options(Options { trace: true, ..Options::default() }));
        let emulated = Device::from_driver(driver.clone());
        let results = match part.compute::<T, O>(task, &sizes, &emulated, gradients) {
            Ok(results) => results,
            Err(error) => match error.downcast::<Error>()? {
                error @ Error::Findings { .. } => {
                    return Ok((tensors, Cause::Findings { part: part.clone(), error }));
                }
                other => return Err(other.into()),
            },
        };
        if !named(&results).any(|(name, values)| is_not_finite(name, values)) {
            continue;
        }
        if let Some((kernel, trace, origin)) = first_origin(driver.take_traces()) {
            let (part, stage) = (part.clone(), stage(&origin));
            let trace = Box::new(trace);
            return Ok((tensors, Cause::Instruction { part, kernel, stage, trace }));
        }
    }
    Ok((tensors, Cause::NotReproduced { parts }))
}

/// Whether a result of a part is not finite; queries that see no key are left out.
fn is_not_finite(name: &str, values: Vec<f32>) -> bool {
    NonFinite::scan(values, |_, value| name == "lse" && value == f32::NEG_INFINITY).count() != 0
}

/// The first origin of some launches, or, if there is none, the first suspect.
fn first_origin(traces: Vec<(KernelVariant, Trace)>) -> Option<(KernelVariant, Trace, Origin)> {
    let pick = |of: fn(&Trace) -> Option<&Origin>| {
        traces.iter().find_map(|(kernel, trace)| Some((*kernel, trace.clone(), of(trace)?.clone())))
    };
    pick(|trace| trace.first.as_ref()).or_else(|| pick(|trace| trace.suspect.as_ref()))
}

/// The target whose kernels run on a device.
fn arch_of(device: &Device) -> Arch {
    let (major, minor) = device.properties().compute_capability;
    Arch::ALL.into_iter().rfind(|arch| arch.runs_on(major, minor)).unwrap_or(Arch::Sm80)
}

fn scan_inputs<T: Element>(task: &Task<'_>) -> Vec<Scanned> {
    let inputs = &task.inputs;
    let scanned = |name, shape: &[usize], values: Vec<f32>| Scanned {
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
        Scanned { name, is_input: true, shape, found: NonFinite::scan(values, meant) }
    });
    tensors.chain(d_lse).chain(of_scores).collect()
}

/// The results by name.
fn named<O: Element>(results: &Results<O>) -> impl Iterator<Item = (&'static str, Vec<f32>)> {
    let wide = |values: &[O]| -> Vec<f32> { values.iter().map(|value| value.to_f32()).collect() };
    let forward = &results.forward;
    let mut all = vec![("o", wide(&forward.o)), ("lse", forward.lse.clone())];
    if let Some(gradients) = &results.gradients {
        let [dq, dk, dv] = [&gradients.dq, &gradients.dk, &gradients.dv].map(|values| wide(values));
        all.extend([("dq", dq), ("dk", dk), ("dv", dv)]);
        let d_bias = gradients.d_bias.as_ref().map(|d_bias| match d_bias {
            Elements::Bf16(elements) => elements.iter().map(|value| value.to_f32()).collect(),
            Elements::F16(elements) => elements.iter().map(|value| value.to_f32()).collect(),
            Elements::F32(elements) => elements.clone(),
        });
        all.extend(d_bias.map(|d_bias| ("dbias", d_bias)));
        let d_sinks = &gradients.d_sinks;
        all.extend((!d_sinks.is_empty()).then(|| ("dsinks", d_sinks.clone())));
    }
    all.into_iter()
}

fn scan_results<T: Element, O: Element>(
    task: &Task<'_>,
    sizes: &Sizes<T>,
    results: &Results<O>,
) -> Vec<Scanned> {
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
            name == "lse" && value == f32::NEG_INFINITY && sizes.is_dead(index)
        };
        Scanned { name, is_input: false, shape, found: NonFinite::scan(values, is_expected) }
    };
    named(results).map(scanned).collect()
}

fn print(device: DeviceName, tensors: &[Scanned], cause: &Cause) -> Result<()> {
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
    match cause {
        Cause::AllFinite => outln!("all finite")?,
        Cause::Input => {
            let first = tensors.iter().find(|tensor| tensor.is_input && tensor.found.count() != 0);
            if let Some((tensor, at)) = first.and_then(|tensor| Some((tensor, tensor.first()?))) {
                outln!("the input {} is not finite at {at:?}: nothing was traced", tensor.name)?;
            }
        }
        Cause::Instruction { part, kernel, stage, trace } => {
            outln!("traced in the emulator: {}", part_text(part))?;
            let (origin, others, what) = match (&trace.first, &trace.suspect) {
                (Some(origin), _) => (origin, trace.origins - 1, "origin"),
                (None, Some(suspect)) => (suspect, trace.suspects - 1, "suspect, there is no origin"),
                (None, None) => return Ok(()),
            };
            outln!("stage {stage} of {kernel} ({what}; {others} elements more of the kind)")?;
            outln!("{origin}")?;
        }
        Cause::Findings { part, error } => {
            outln!("the emulator finds fault with the kernel, for {}", part_text(part))?;
            outln!("{error}")?;
        }
        Cause::NotReproduced { parts } => {
            outln!("the emulator computes finite numbers for what was tried:")?;
            parts.iter().try_for_each(|part| outln!("  {}", part_text(part)))?;
        }
    }
    Ok(())
}

fn part_text(part: &Part) -> String {
    let Part { batch, queries, query_heads, keys, key_head } = part;
    format!(
        "batch {batch}, queries {queries:?} of heads {query_heads:?}, keys {keys:?} of key head {key_head}"
    )
}

fn report(device: DeviceName, tensors: &[Scanned], cause: &Cause) -> Value {
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
    };
    json!({ "device": device.to_string(), "tensors": tensors, "cause": cause })
}
