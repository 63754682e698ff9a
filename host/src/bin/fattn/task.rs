//! A task from a safetensors file: its tensors, the problem, and the results on a device.

pub mod dynamic;
mod scores;

use crate::device::DeviceArguments;
use anyhow::{Context, Result, bail, ensure};
use bytemuck::allocation::pod_collect_to_vec;
use clap::{ArgAction, Args, ValueEnum};
use dynamic::DynamicArguments;
use finite_attention::context_parallel::host::{
    ContextInputs, ContextOutput, context_parallel_connected,
};
use finite_attention::context_parallel::{Communicator, ContextLayout};
use finite_attention::problem::{Bias, Dropout, DynamicMask, MAX_SCALE, ScoreLayout, common_dtype};
use finite_attention::{
    BackwardInputs, BackwardOutput, BackwardProblem, CausalAlignment, Device, Dtype, Element, Error,
    ForwardInputs, ForwardOutput, ForwardProblem, Layout, Mask, Mode, Precision, ScoreSlices, Sequences,
    backward_host, forward_inputs_host,
};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};
use scores::ScoreTensors;
use std::path::{Path, PathBuf};

/// What to compute, from what, and where.
#[derive(Args)]
pub struct TaskArguments {
    /// File with q [B, Sq, Hq, D], k [B, Sk, Hk, D] and v [B, Sk, Hk, Dv], all bf16, f16 or f32. With do [B,
    /// Sq, Hq, Dv], and dlse [B, Hq, Sq] (f32) if there is one, gradients are computed too. With cu_seqlens_q
    /// and cu_seqlens_k [B + 1] (i32) sequences are packed: q [Tq, Hq, D], k [Tk, Hk, D], v [Tk, Hk, Dv],
    /// dlse [Hq, Tq]. Scores can have more: bias [B|1, Hq|Hk|1, Sq|1, Sk|1] (the dtype of q, or f32) is
    /// added, mask (bool, of such a shape) hides keys where it is false, alibi_slopes `[Hq]` or `[B, Hq]`
    /// (f32) times distances are subtracted, and sinks `[Hq]` (f32) are in the denominators. Of packed
    /// sequences B, Sq and Sk are here how many there are and the longest.
    #[arg(long, required = true)]
    pub input: Option<PathBuf>,
    /// A query sees the keys up to its own position, counted from the end; with --window, of those the ones
    /// that the window shows.
    #[arg(long)]
    causal: bool,
    /// Positions are counted from the start, for --causal and --window alike; causal unless there is a
    /// window.
    #[arg(long)]
    top_left: bool,
    /// A query sees this many keys before and after its own position; -1 is all. With --causal none after it.
    #[arg(long, num_args = 2, value_names = ["LEFT", "RIGHT"], allow_negative_numbers = true)]
    #[arg(action = ArgAction::Set, value_parser = clap::value_parser!(i64).range(-1..=u32::MAX.into()))]
    window: Vec<i64>,
    /// Softmax scale, at most 1.179e38 in size; 1/sqrt(D) if not given.
    #[arg(long, allow_hyphen_values = true, value_parser = scale)]
    scale: Option<f32>,
    /// Cap of scores, above 0: each becomes C tanh(score / C); not capped if not given.
    #[arg(long, allow_hyphen_values = true, value_name = "C", value_parser = softcap)]
    softcap: Option<f32>,
    /// The share of probabilities that is dropped at random, from 0 to below 1; none if not given.
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = dropout)]
    dropout: Option<f32>,
    /// Seed of the numbers that decide what is dropped; 0 if not given.
    #[arg(long, value_name = "N", requires = "dropout")]
    seed: Option<u64>,
    /// Which numbers of the seed; from 0 on if not given.
    #[arg(long, value_name = "N", requires = "dropout")]
    offset: Option<u64>,
    /// How products of f32 are made: on tensor cores (fast3), where there are kernels for it, or by
    /// fused multiply-adds (fma); by default as takes less time.
    #[arg(long, value_name = "fast3|fma", value_parser = precision)]
    precision: Option<Precision>,
    /// Element type of o, dq, dk and dv; that of q if not given.
    #[arg(long)]
    out_dtype: Option<OutputDtype>,
    /// Gradients that are the same bits from run to run; only with do.
    #[arg(long)]
    deterministic: bool,
    /// The gradient of the bias, too; only with bias and do.
    #[arg(long)]
    dbias: bool,
    #[command(flatten)]
    dynamic: DynamicArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
}

impl TaskArguments {
    /// The bytes of the input file.
    pub fn read(&self) -> Result<Vec<u8>> {
        std::fs::read(self.path()).with_context(|| self.text())
    }

    /// The files that are read, with the options that name them.
    pub fn inputs(&self) -> Vec<(&'static str, &Path)> {
        [("--input", self.path())].into_iter().chain(self.device.inputs()).collect()
    }

    fn text(&self) -> String {
        format!("--input {}", self.path().display())
    }

    /// Of the input file: there is one, unless a command can do without and has looked.
    fn path(&self) -> &Path {
        self.input.as_deref().unwrap_or(Path::new(""))
    }
}

/// A cap of scores: above 0, and nothing that kernels cannot multiply by `log2(e)`.
pub fn softcap(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(cap) if cap > 0.0 && cap <= MAX_SCALE => Ok(cap),
        _ => Err(format!("expected a number above 0 and of at most {MAX_SCALE:e}, got {text}")),
    }
}

/// How products of f32 are made.
pub fn precision(text: &str) -> Result<Precision, String> {
    let named = Precision::ALL.into_iter().find(|precision| precision.name() == text);
    named.ok_or_else(|| format!("expected fast3 or fma, got {text}"))
}

/// The type of q, k and v.
pub fn dtype(text: &str) -> Result<Dtype, String> {
    let all = [Dtype::Bf16, Dtype::F16, Dtype::F32];
    let named = all.into_iter().find(|dtype| dtype.name() == text);
    named.ok_or_else(|| format!("expected bf16, f16 or f32, got {text}"))
}

/// A share of probabilities such that something is kept.
pub fn dropout(text: &str) -> Result<f32, String> {
    let Ok(rate) = text.parse() else { return Err(format!("expected a number, got {text}")) };
    let refused = |error: Error| error.to_string().replace("dropout_rate: ", "");
    Dropout { rate, seed: 0, offset: 0 }.dropped().map(|_| rate).map_err(refused)
}

/// A softmax scale that f32 holds: no NaN, nothing that kernels cannot multiply by `log2(e)`, and 0 only if
/// it is meant.
fn scale(text: &str) -> Result<f32, String> {
    let (most, number) = (MAX_SCALE, text.parse::<f32>());
    let is_zero =
        |text: &str| !text.split(['e', 'E']).next().unwrap_or("").contains(|c| matches!(c, '1'..='9'));
    match number {
        Ok(scale) if scale.abs() <= most && (scale != 0.0 || is_zero(text)) => Ok(scale),
        Ok(0.0) => Err(format!("expected a number that f32 does not round to 0, or 0, got {text}")),
        _ => Err(format!("expected a number from -{most:e} to {most:e}, got {text}")),
    }
}

/// Element types that the outputs can have.
#[derive(Clone, Copy, ValueEnum)]
enum OutputDtype {
    Bf16,
    F16,
    F32,
}

fn mode(arguments: &TaskArguments) -> Mode {
    if arguments.deterministic { Mode::Deterministic } else { Mode::Fast }
}

fn mask(arguments: &TaskArguments) -> Mask {
    let alignment =
        if arguments.top_left { CausalAlignment::TopLeft } else { CausalAlignment::BottomRight };
    if let Some(window) = window(&arguments.window, alignment) {
        return if arguments.causal { window.and_causal() } else { window };
    }
    if arguments.causal || arguments.top_left { Mask::Causal(alignment) } else { Mask::Full }
}

/// The two numbers of `--window` as a mask, if they are given. -1 is the only number of its range that is no
/// u32.
pub fn window(sides: &[i64], alignment: CausalAlignment) -> Option<Mask> {
    let &[left, right] = sides else { return None };
    Some(Mask::Window { left: u32::try_from(left).ok(), right: u32::try_from(right).ok(), alignment })
}

/// A tensor of the input file.
pub struct Input<'f> {
    pub name: &'static str,
    pub dtype: Dtype,
    pub view: TensorView<'f>,
}

impl<'f> Input<'f> {
    /// The tensor of this name.
    pub fn find(file: &SafeTensors<'f>, name: &'static str) -> Result<Self> {
        let Some(input) = Input::find_optional(file, name)? else {
            let mut names = file.names();
            names.sort();
            bail!("{name}: expected a tensor of this name in the input, got {}", names.join(", "));
        };
        Ok(input)
    }

    /// The tensor of this name, if there is one.
    pub fn find_optional(file: &SafeTensors<'f>, name: &'static str) -> Result<Option<Self>> {
        let Ok(view) = file.tensor(name) else { return Ok(None) };
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
        Ok(Some(Input { name, dtype, view }))
    }

    /// The layout of a dense tensor; packed ones have three dimensions.
    fn layout(&self, packed: bool) -> Result<Layout, Error> {
        let shape = self.view.shape();
        if !packed {
            // Only the rank is taken from here; safetensors are dense.
            return Ok(Layout::bshd(
                Layout::from_slices(self.name, shape, &vec![0; shape.len()])?.shape,
            ));
        }
        let shape = shape.try_into().map_err(|_| Error::WrongRank {
            argument: self.name,
            expected: 3,
            names: "[row, head, column]",
            got: shape.len(),
        })?;
        Ok(Layout::packed(shape))
    }

    /// The elements. Data in a file has no alignment: copied to a vector that has it.
    pub fn elements<T: Element>(&self) -> Vec<T> {
        pod_collect_to_vec::<u8, T>(self.view.data())
    }
}

/// The tensors of the input file.
pub struct Inputs<'f> {
    pub q: Input<'f>,
    pub k: Input<'f>,
    pub v: Input<'f>,
    pub d_o: Option<Input<'f>>,
    pub d_lse: Option<Input<'f>>,
    /// What scores have beside q and k.
    pub scores: ScoreTensors<'f>,
    /// Offsets of packed sequences in q and in k.
    pub offsets: Option<[Vec<i32>; 2]>,
}

impl<'f> Inputs<'f> {
    fn read(file: &SafeTensors<'f>) -> Result<Self> {
        let [q, k, v] = ["q", "k", "v"].map(|name| Input::find(file, name));
        let (q, k, v) = (q?, k?, v?);
        refuse_unknown(file, &KNOWN)?;
        let names = ["cu_seqlens_q", "cu_seqlens_k"];
        let offsets = if names.iter().any(|name| file.tensor(name).is_ok()) {
            Some([offsets(file, names[0])?, offsets(file, names[1])?])
        } else {
            None
        };
        Ok(Inputs {
            q,
            k,
            v,
            d_o: Input::find_optional(file, "do")?,
            d_lse: Input::find_optional(file, "dlse")?,
            scores: ScoreTensors::read(file)?,
            offsets,
        })
    }

    fn problem(&self, arguments: &TaskArguments) -> Result<ForwardProblem> {
        let all = [Some(&self.q), Some(&self.k), Some(&self.v), self.d_o.as_ref()];
        let dtypes: Vec<_> = all.into_iter().flatten().map(|input| (input.name, input.dtype)).collect();
        let dtype = common_dtype(&dtypes)?;
        let layout = |input: &Input<'_>| input.layout(self.offsets.is_some());
        let mut problem =
            ForwardProblem::new(dtype, layout(&self.q)?, layout(&self.k)?, layout(&self.v)?);
        problem.scale = arguments.scale;
        problem.softcap = arguments.softcap;
        problem.precision = arguments.precision;
        problem.mask = mask(arguments);
        let &TaskArguments { seed, offset, .. } = arguments;
        let (seed, offset) = (seed.unwrap_or(0), offset.unwrap_or(0));
        problem.dropout = arguments.dropout.map(|rate| Dropout { rate, seed, offset });
        problem.output_dtype = match arguments.out_dtype {
            None => dtype,
            Some(OutputDtype::Bf16) => Dtype::Bf16,
            Some(OutputDtype::F16) => Dtype::F16,
            Some(OutputDtype::F32) => Dtype::F32,
        };
        if let Some([q, k]) = &self.offsets {
            problem.sequences = Sequences::from_offsets(q, k)?;
        }
        self.scores.add_to(problem)
    }
}

/// Names that tensors of the input file can have.
const KNOWN: [&str; 11] = [
    "q",
    "k",
    "v",
    "do",
    "dlse",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "bias",
    "mask",
    "alibi_slopes",
    "sinks",
];

/// Whoever gives a tensor wants it to matter.
pub fn refuse_unknown(file: &SafeTensors<'_>, known: &[&str]) -> Result<()> {
    let mut unknown = file.names();
    unknown.retain(|name| !known.contains(name));
    unknown.sort();
    ensure!(
        unknown.is_empty(),
        "--input: expected no tensors but {}, got {}",
        known.join(", "),
        unknown.join(", ")
    );
    Ok(())
}

/// A tensor of i32, with one dimension.
fn offsets(file: &SafeTensors<'_>, name: &'static str) -> Result<Vec<i32>> {
    let Ok(view) = file.tensor(name) else {
        bail!("{name}: expected a tensor of this name in the input, as for the other side");
    };
    if view.dtype() != FileDtype::I32 {
        let got = format!("{:?}", view.dtype()).to_lowercase();
        bail!(Error::UnsupportedDtype { argument: name, expected: "i32".into(), got });
    }
    let got = view.shape().len();
    if got != 1 {
        bail!(Error::WrongRank { argument: name, expected: 1, names: "[sequence]", got });
    }
    Ok(pod_collect_to_vec(view.data()))
}

/// What is computed, from what.
pub struct Task<'f> {
    pub problem: ForwardProblem,
    mode: Mode,
    wants_d_bias: bool,
    /// The mask that is made of the bias, if there is one.
    pub dynamic_mask: Option<DynamicMask>,
    pub inputs: Inputs<'f>,
}

/// What a device made of a task; gradients if do was given.
pub struct Results<O> {
    pub forward: ForwardOutput<O>,
    pub gradients: Option<BackwardOutput<O>>,
}

impl<'f> Task<'f> {
    /// The task in a file, with everything refused that can be before a device is opened.
    pub fn new(arguments: &TaskArguments, bytes: &'f [u8]) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes).with_context(|| arguments.text())?;
        let inputs = Inputs::read(&file)?;
        let task = Task {
            problem: inputs.problem(arguments)?,
            mode: mode(arguments),
            wants_d_bias: arguments.dbias,
            dynamic_mask: arguments.dynamic.mask(),
            inputs,
        };
        task.validate()?;
        Ok(task)
    }

    /// Everything that can be refused before a device is opened.
    fn validate(&self) -> Result<()> {
        // Offsets first: where they do not fit the rows, it is they who are wrong.
        let [rows_q, rows_k] = [self.problem.q.shape[1], self.problem.k.shape[1]];
        if let Some([q, k]) = &self.inputs.offsets {
            self.problem.sequences.check_offsets(rows_q, rows_k, q, k)?;
        }
        self.problem.validate()?;
        if let Some(mask) = &self.dynamic_mask {
            self.problem.dynamic_mask_shape(mask)?;
        }
        ensure!(
            self.mode == Mode::Fast || self.inputs.d_o.is_some(),
            "--deterministic: expected a tensor do in the input, got none: the forward pass always is"
        );
        for (name, is_there) in
            [("bias", self.inputs.scores.bias.is_some()), ("do", self.inputs.d_o.is_some())]
        {
            ensure!(
                !self.wants_d_bias || is_there,
                "--dbias: expected a tensor {name} in the input, got none"
            );
        }
        if let Some(problem) = self.backward_problem()? {
            problem.validate()?;
        }
        if let Some(d_lse) = &self.inputs.d_lse {
            ensure!(self.inputs.d_o.is_some(), "do: expected a tensor of this name beside dlse");
            let (expected, got) = (self.lse_shape(), d_lse.view.shape());
            ensure!(got == expected, "dlse: expected shape {expected:?} like lse, got {got:?}");
            let got = d_lse.dtype.name();
            ensure!(d_lse.dtype == Dtype::F32, "dlse: expected dtype f32, got {got}");
        }
        Ok(())
    }

    /// The gradients asked for; none without do.
    pub fn backward_problem(&self) -> Result<Option<BackwardProblem>> {
        let Some(d_o) = &self.inputs.d_o else { return Ok(None) };
        let problem = BackwardProblem::new(self.problem)
            .with_d_o(d_o.layout(self.inputs.offsets.is_some())?)
            .with_gradient_dtype(self.problem.output_dtype)
            .with_mode(self.mode);
        let problem = match self.problem.bias {
            Some(Bias { layout: ScoreLayout { shape, .. }, dtype }) if self.wants_d_bias => {
                let in_f32 = self.problem.output_dtype == Dtype::F32;
                let dtype = if in_f32 { Dtype::F32 } else { dtype };
                problem.with_d_bias(Bias { layout: ScoreLayout::dense(shape), dtype })
            }
            _ => problem,
        };
        let problem = if self.problem.has_sinks { problem.with_d_sinks() } else { problem };
        Ok(Some(if self.inputs.d_lse.is_some() { problem.with_d_lse() } else { problem }))
    }

    /// `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub fn lse_shape(&self) -> Vec<usize> {
        let [batches, rows, heads, _] = self.problem.q.shape;
        if self.inputs.offsets.is_some() { vec![heads, rows] } else { vec![batches, heads, rows] }
    }

    /// The shape of a tensor in the file: packed ones have no batches.
    pub fn shape(&self, layout: &Layout) -> Vec<usize> {
        layout.shape[usize::from(self.inputs.offsets.is_some())..].to_vec()
    }

    /// Computes over several ranks. `T` is the element type of q, k, v and do, `O` that of o, dq, dk and dv.
    pub fn compute_over_ranks<T: Element, O: Element>(
        &self,
        count: usize,
        connect: impl Fn(usize) -> Result<(Device, Box<dyn Communicator>), Error> + Sync,
        layout: ContextLayout,
    ) -> Result<Results<O>> {
        let Inputs { q, k, v, d_o, d_lse, offsets, scores, .. } = &self.inputs;
        let [q, k, v] = [q, k, v].map(Input::elements::<T>);
        let scores = scores.elements::<T>()?;
        let d_o = d_o.as_ref().map_or(Vec::new(), Input::elements::<T>);
        let d_lse = d_lse.as_ref().map_or(Vec::new(), Input::elements::<f32>);
        let [cu_seqlens_q, cu_seqlens_k] =
            offsets.as_ref().map_or([[].as_slice(); 2], |offsets| offsets.each_ref().map(Vec::as_slice));
        let (q, k, v, d_o, d_lse) = (&q[..], &k[..], &v[..], &d_o[..], &d_lse[..]);
        let scores = scores.slices();
        let inputs = ContextInputs { q, k, v, d_o, d_lse, cu_seqlens_q, cu_seqlens_k, scores };
        let backward = self.backward_problem()?;
        let (problem, backward) = (&self.problem, backward.as_ref());
        let output: ContextOutput<O> =
            context_parallel_connected(count, connect, layout, problem, backward, &inputs)?;
        Ok(Results { forward: output.forward, gradients: output.gradients })
    }

    /// Computes. `T` is the element type of q, k, v and do, `O` that of o, dq, dk and dv.
    pub fn compute<T: Element, O: Element>(&self, device: &Device) -> Result<Results<O>> {
        let Inputs { q, k, v, d_o, d_lse, scores, offsets } = &self.inputs;
        let [q, k, v] = [q, k, v].map(Input::elements::<T>);
        let (q, k, v, scores) = (&q[..], &k[..], &v[..], scores.elements::<T>()?);
        let scores = ScoreSlices { dynamic_mask: self.dynamic_mask, ..scores.slices() };
        let [cu_seqlens_q, cu_seqlens_k] =
            offsets.as_ref().map_or([[].as_slice(); 2], |offsets| offsets.each_ref().map(Vec::as_slice));
        let inputs = ForwardInputs { q, k, v, scores, cu_seqlens_q, cu_seqlens_k };
        let forward: ForwardOutput<O> = forward_inputs_host(device, &self.problem, &inputs)?;
        let mut gradients = None;
        if let (Some(problem), Some(d_o)) = (self.backward_problem()?, d_o) {
            let d_o = d_o.elements::<T>();
            let d_lse = d_lse.as_ref().map_or(Vec::new(), Input::elements::<f32>);
            let (o, lse) = (&forward.o[..], &forward.lse[..]);
            let (d_o, d_lse) = (&d_o[..], &d_lse[..]);
            let inputs =
                BackwardInputs { q, k, v, o, lse, d_o, d_lse, scores, cu_seqlens_q, cu_seqlens_k };
            gradients = Some(backward_host(device, &problem, &inputs)?);
        }
        Ok(Results { forward, gradients })
    }
}
