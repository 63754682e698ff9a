//! `fattn run`: attention on tensors from a safetensors file.

use crate::device::DeviceArguments;
use anyhow::{Context, Result, bail};
use bytemuck::allocation::pod_collect_to_vec;
use bytemuck::cast_slice;
use clap::{Args, ValueEnum};
use finite_attention::problem::common_dtype;
use finite_attention::{
    CausalAlignment, Device, Dtype, Element, Error, ForwardOutput, ForwardProblem, Layout, Mask,
    forward_host,
};
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};
use std::path::PathBuf;

/// What to compute.
#[derive(Args)]
pub struct RunArguments {
    /// File with q [B, Sq, Hq, D], k [B, Sk, Hk, D] and v [B, Sk, Hk, Dv], all bf16, f16 or f32.
    #[arg(long)]
    input: PathBuf,
    /// File to write o [B, Sq, Hq, Dv] and lse [B, Hq, Sq] (f32) to.
    #[arg(long)]
    output: PathBuf,
    /// A query sees the keys up to its own position, counted from the end.
    #[arg(long)]
    causal: bool,
    /// Causal, with positions counted from the start.
    #[arg(long)]
    top_left: bool,
    /// Softmax scale; 1/sqrt(D) if not given.
    #[arg(long, allow_negative_numbers = true)]
    scale: Option<f32>,
    /// Element type of o; that of q if not given.
    #[arg(long)]
    out_dtype: Option<OutputDtype>,
    #[command(flatten)]
    device: DeviceArguments,
}

/// Element types that o can have.
#[derive(Clone, Copy, ValueEnum)]
enum OutputDtype {
    Bf16,
    F16,
    F32,
}

/// Reads the input, computes, writes the output.
pub fn run(arguments: &RunArguments) -> Result<()> {
    let path = arguments.input.display();
    let bytes = std::fs::read(&arguments.input).with_context(|| format!("--input {path}"))?;
    let file = SafeTensors::deserialize(&bytes).with_context(|| format!("--input {path}"))?;
    let [q, k, v] = ["q", "k", "v"].map(|name| Input::find(&file, name));
    let inputs = [q?, k?, v?];
    let problem = problem(arguments, &inputs)?;
    problem.validate()?;
    let (name, device) = arguments.device.open()?;
    let written = match (problem.dtype, problem.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => compute::<bf16, f32>(&device, &problem, &inputs)?,
        (Dtype::Bf16, _) => compute::<bf16, bf16>(&device, &problem, &inputs)?,
        (Dtype::F16, Dtype::F32) => compute::<f16, f32>(&device, &problem, &inputs)?,
        (Dtype::F16, _) => compute::<f16, f16>(&device, &problem, &inputs)?,
        (Dtype::F32, _) => compute::<f32, f32>(&device, &problem, &inputs)?,
    };
    let path = arguments.output.display();
    std::fs::write(&arguments.output, written).with_context(|| format!("--output {path}"))?;
    println!("o {:?} {}, lse f32, on {name}: {path}", problem.o.shape, problem.output_dtype.name());
    Ok(())
}

/// A tensor of the input file.
struct Input<'f> {
    name: &'static str,
    dtype: Dtype,
    view: TensorView<'f>,
}

impl<'f> Input<'f> {
    fn find(file: &SafeTensors<'f>, name: &'static str) -> Result<Self> {
        let Ok(view) = file.tensor(name) else {
            let mut names = file.names();
            names.sort();
            bail!("{name}: expected a tensor of this name in the input, got {}", names.join(", "));
        };
        let dtype = match view.dtype() {
            FileDtype::BF16 => Dtype::Bf16,
            FileDtype::F16 => Dtype::F16,
            FileDtype::F32 => Dtype::F32,
            other => bail!(Error::UnsupportedDtype {
                argument: name,
                expected: "bf16, f16 or f32".into(),
                got: format!("{other:?}").to_lowercase(),
            }),
        };
        Ok(Input { name, dtype, view })
    }

    fn layout(&self) -> Result<Layout, Error> {
        let shape: Vec<usize> = self.view.shape().to_vec();
        // Only the rank is taken from here; safetensors are dense.
        let layout = Layout::from_slices(self.name, &shape, &vec![0; shape.len()])?;
        Ok(Layout::bshd(layout.shape))
    }
}

fn problem(arguments: &RunArguments, inputs: &[Input<'_>; 3]) -> Result<ForwardProblem, Error> {
    let dtype = common_dtype(&inputs.each_ref().map(|input| (input.name, input.dtype)))?;
    let [q, k, v] = inputs;
    let mut problem = ForwardProblem::new(dtype, q.layout()?, k.layout()?, v.layout()?);
    problem.scale = arguments.scale;
    problem.mask = match (arguments.causal, arguments.top_left) {
        (_, true) => Mask::Causal(CausalAlignment::TopLeft),
        (true, false) => Mask::Causal(CausalAlignment::BottomRight),
        (false, false) => Mask::Full,
    };
    problem.output_dtype = match arguments.out_dtype {
        None => dtype,
        Some(OutputDtype::Bf16) => Dtype::Bf16,
        Some(OutputDtype::F16) => Dtype::F16,
        Some(OutputDtype::F32) => Dtype::F32,
    };
    Ok(problem)
}

/// The bytes of the output file. `T` is the element type of q, k and v, `O` that of o.
fn compute<T: Element, O: Element>(
    device: &Device,
    problem: &ForwardProblem,
    inputs: &[Input<'_>; 3],
) -> Result<Vec<u8>> {
    // Data in a file has no alignment: copied to vectors that have it.
    let [q, k, v] = inputs.each_ref().map(|input| pod_collect_to_vec::<u8, T>(input.view.data()));
    let output: ForwardOutput<O> = forward_host(device, problem, &q, &k, &v)?;
    let [batches, rows, heads, _] = problem.q.shape;
    let o = TensorView::new(file_dtype(O::DTYPE), problem.o.shape.to_vec(), cast_slice(&output.o))?;
    let lse_shape = vec![batches, heads, rows];
    let lse = TensorView::new(FileDtype::F32, lse_shape, cast_slice(&output.lse))?;
    Ok(safetensors::serialize([("o", o), ("lse", lse)], None)?)
}

fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::F16 => FileDtype::F16,
        Dtype::F32 => FileDtype::F32,
    }
}
