//! `fattn msda`: multi-scale deformable attention on tensors from a safetensors file.

use crate::console::outln;
use crate::device::DeviceArguments;
use crate::output::OutputFile;
use crate::task::{Input, refuse_unknown};
use anyhow::{Context, Result, bail, ensure};
use bytemuck::allocation::pod_collect_to_vec;
use bytemuck::cast_slice;
use clap::{Args, ValueEnum};
use finite_attention::plan::{plan_msda_backward, plan_msda_forward};
use finite_attention::{
    Device, Dtype, Element, Error, Layout, Mode, MsdaBackwardPointers, MsdaBackwardProblem, MsdaInputs,
    MsdaPointers, MsdaProblem, Padding, msda_backward_host, msda_forward_host,
};
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};
use std::path::{Path, PathBuf};

/// What to compute, from what, and where the results go.
#[derive(Args)]
pub struct MsdaArguments {
    /// File with value [B, cells, H, C] (bf16, f16 or f32), shapes [L, 2] (i64: height, width), locations [B,
    /// N, H, L, P, 2] (x, y; from 0 to 1 across a level) and weights [B, N, H, L, P], both of value's type or
    /// f32. With do [B, N, H, C] gradients are computed too.
    #[arg(long)]
    input: PathBuf,
    /// File to write o, and dvalue, dlocations and dweights if do is given, to; another one than the input.
    /// One that is there is replaced when the new one is complete.
    #[arg(long)]
    output: PathBuf,
    /// What a sample takes from outside a level.
    #[arg(long, default_value = "zeros")]
    padding: PaddingArgument,
    /// Locations 0 and 1 are the centres of the outermost cells, not their outer edges.
    #[arg(long)]
    align_corners: bool,
    /// Gradients that are the same bits from run to run; only with do.
    #[arg(long)]
    deterministic: bool,
    /// Print the plan of each pass first, with its reasons.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    device: DeviceArguments,
}

#[derive(Clone, Copy, ValueEnum)]
enum PaddingArgument {
    Zeros,
    Border,
}

/// Names that tensors of the input file can have.
const KNOWN: [&str; 5] = ["value", "shapes", "locations", "weights", "do"];

/// The tensors of the file, and what is asked.
struct Task<'f> {
    value: Input<'f>,
    locations: Input<'f>,
    weights: Input<'f>,
    d_o: Option<Input<'f>>,
    problem: MsdaBackwardProblem,
}

/// Reads the input, computes, writes the output.
pub fn run(arguments: &MsdaArguments) -> Result<()> {
    let text = || format!("--input {}", arguments.input.display());
    let bytes = std::fs::read(&arguments.input).with_context(text)?;
    let file = SafeTensors::deserialize(&bytes).with_context(text)?;
    let task = Task::new(arguments, &file)?;
    let inputs: Vec<(&'static str, &Path)> =
        [("--input", arguments.input.as_path())].into_iter().chain(arguments.device.inputs()).collect();
    let mut output = OutputFile::new("--output", &arguments.output, &inputs)?;
    let (name, device) = arguments.device.open()?;
    if arguments.explain {
        task.explain(&device)?;
    }
    let forward = &task.problem.forward;
    let is_f32 = [forward.locations_dtype, forward.weights_dtype].map(|dtype| dtype == Dtype::F32);
    let written = match (forward.dtype, is_f32) {
        (Dtype::F32, _) => task.file::<f32, f32, f32>(&device)?,
        (Dtype::Bf16, [true, true]) => task.file::<bf16, f32, f32>(&device)?,
        (Dtype::Bf16, [true, false]) => task.file::<bf16, f32, bf16>(&device)?,
        (Dtype::Bf16, [false, true]) => task.file::<bf16, bf16, f32>(&device)?,
        (Dtype::Bf16, [false, false]) => task.file::<bf16, bf16, bf16>(&device)?,
        (Dtype::F16, [true, true]) => task.file::<f16, f32, f32>(&device)?,
        (Dtype::F16, [true, false]) => task.file::<f16, f32, f16>(&device)?,
        (Dtype::F16, [false, true]) => task.file::<f16, f16, f32>(&device)?,
        (Dtype::F16, [false, false]) => task.file::<f16, f16, f16>(&device)?,
    };
    output.write(&written)?;
    let gradients = if task.d_o.is_some() { ", dvalue, dlocations, dweights" } else { "" };
    let (shape, dtype, path) = (forward.o.shape, forward.dtype.name(), output.path().display());
    outln!("o {shape:?} {dtype}{gradients}, on {name}: {path}")?;
    Ok(())
}

impl<'f> Task<'f> {
    /// The task in a file, with everything refused that can be before a device is opened.
    fn new(arguments: &MsdaArguments, file: &SafeTensors<'f>) -> Result<Self> {
        let [value, locations, weights] =
            ["value", "locations", "weights"].map(|name| Input::find(file, name));
        let (value, locations, weights) = (value?, locations?, weights?);
        let shapes = shapes(file)?;
        let d_o = Input::find_optional(file, "do")?;
        refuse_unknown(file, &KNOWN)?;
        let of_value = sizes::<4>(&value, "[batch, cell, head, channel]")?;
        let [batches, queries, heads, levels, points, two] =
            sizes::<6>(&locations, "[batch, query, head, level, point, 2]")?;
        ensure!(two == 2, "locations: expected 2 coordinates, x and y, got {two}");
        ensure!(
            levels == shapes.len(),
            "locations: expected {} levels like shapes, got {levels}",
            shapes.len()
        );
        let of_weights = sizes::<5>(&weights, "[batch, query, head, level, point]")?;
        let expected = [batches, queries, heads, levels, points];
        ensure!(
            of_weights == expected,
            "weights: expected shape {expected:?} like locations, got {of_weights:?}"
        );
        let at_queries = |columns| Layout::bshd([batches, queries, heads, columns]);
        let all = levels.saturating_mul(points);
        let forward = MsdaProblem::new(value.dtype, Layout::bshd(of_value), &shapes, queries, points)
            .with_locations(at_queries(all.saturating_mul(2)), locations.dtype)
            .with_weights(at_queries(all), weights.dtype)
            .with_padding(match arguments.padding {
                PaddingArgument::Zeros => Padding::Zeros,
                PaddingArgument::Border => Padding::Border,
            });
        let forward = if arguments.align_corners { forward.aligned_to_corners() } else { forward };
        forward.validate()?;
        ensure!(
            !arguments.deterministic || d_o.is_some(),
            "--deterministic: expected a tensor do in the input, got none: the forward pass always is"
        );
        let mut problem = MsdaBackwardProblem::new(forward);
        if arguments.deterministic {
            problem = problem.with_mode(Mode::Deterministic);
        }
        if let Some(d_o) = &d_o {
            let got = d_o.dtype.name();
            ensure!(
                d_o.dtype == value.dtype,
                "do: expected dtype {} like value, got {got}",
                value.dtype.name()
            );
            problem = problem.with_d_o(Layout::bshd(sizes::<4>(d_o, "[batch, query, head, channel]")?));
            problem.validate()?;
        }
        Ok(Task { value, locations, weights, d_o, problem })
    }

    fn explain(&self, device: &Device) -> Result<()> {
        // A plan wants addresses; these are as well aligned as those of allocations.
        let at = 256;
        let forward = MsdaPointers { value: at, locations: at, weights: at, o: at };
        let valid = self.problem.forward.validate()?;
        outln!("{:#}", plan_msda_forward(&valid, device.properties(), &forward)?)?;
        if self.d_o.is_some() {
            let pointers = MsdaBackwardPointers {
                value: at,
                locations: at,
                weights: at,
                d_o: at,
                d_value: at,
                d_locations: at,
                d_weights: at,
            };
            let valid = self.problem.validate()?;
            outln!("{:#}", plan_msda_backward(&valid, device.properties(), &pointers)?)?;
        }
        Ok(())
    }

    /// The bytes of the output file.
    fn file<T: Element, X: Element, A: Element>(&self, device: &Device) -> Result<Vec<u8>> {
        let (value, locations, weights) =
            (self.value.elements::<T>(), self.locations.elements::<X>(), self.weights.elements::<A>());
        let inputs = MsdaInputs { value: &value, locations: &locations, weights: &weights };
        let forward = &self.problem.forward;
        let o = msda_forward_host(device, forward, &inputs)?;
        let mut tensors = vec![("o", view(&forward.o.shape, &o)?)];
        let gradients = match &self.d_o {
            None => None,
            Some(d_o) => Some(msda_backward_host(device, &self.problem, &inputs, &d_o.elements::<T>())?),
        };
        if let Some(gradients) = &gradients {
            tensors.push(("dvalue", view(self.value.view.shape(), &gradients.d_value)?));
            tensors.push(("dlocations", view(self.locations.view.shape(), &gradients.d_locations)?));
            tensors.push(("dweights", view(self.weights.view.shape(), &gradients.d_weights)?));
        }
        Ok(safetensors::serialize(tensors, None)?)
    }
}

/// Height and width of each level.
fn shapes(file: &SafeTensors<'_>) -> Result<Vec<[usize; 2]>> {
    let Ok(view) = file.tensor("shapes") else {
        bail!("shapes: expected a tensor of this name in the input, got none");
    };
    if view.dtype() != FileDtype::I64 {
        let got = format!("{:?}", view.dtype()).to_lowercase();
        bail!(Error::UnsupportedDtype { argument: "shapes", expected: "i64".into(), got });
    }
    let &[_, 2] = view.shape() else {
        bail!("shapes: expected shape [levels, 2], got {:?}", view.shape());
    };
    let sizes = pod_collect_to_vec::<u8, i64>(view.data());
    let size = |size: i64| {
        usize::try_from(size).map_err(|_| {
            anyhow::anyhow!("shapes: expected heights and widths of at least 1, got {size}")
        })
    };
    sizes.chunks_exact(2).map(|level| Ok([size(level[0])?, size(level[1])?])).collect()
}

/// The sizes of a tensor of `N` dimensions.
fn sizes<const N: usize>(input: &Input<'_>, names: &'static str) -> Result<[usize; N]> {
    let (argument, shape) = (input.name, input.view.shape());
    let wrong = |_| Error::WrongRank { argument, expected: N, names, got: shape.len() };
    Ok(shape.try_into().map_err(wrong)?)
}

/// A tensor of the output file.
fn view<'o, T: Element>(shape: &[usize], elements: &'o [T]) -> Result<TensorView<'o>> {
    let dtype = match T::DTYPE {
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::F16 => FileDtype::F16,
        Dtype::F32 => FileDtype::F32,
    };
    Ok(TensorView::new(dtype, shape.to_vec(), cast_slice(elements))?)
}
