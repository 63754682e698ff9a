//! What scores have beside q and k: bias, boolean mask, slopes of ALiBi and sinks.

use crate::lift;
use candle_core::{DType, Device, DeviceLocation, Layout, Result, Storage, Tensor};
use finite_attention::problem::{
    AlibiSlopes, Bias, MaskShape, SCORE_DIMENSIONS, ScoreLayout, check_sinks,
};
use finite_attention::{Dtype, Error, ForwardProblem};
use std::ops::Deref;

/// The tensors, as many as there are.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, or the last of these.
    pub bias: Option<Tensor>,
    /// As the bias, u8.
    pub mask: Option<Tensor>,
    /// f32 `[Hq]` or `[B, Hq]`; dense once it is checked.
    pub slopes: Option<Tensor>,
    /// f32 `[Hq]`; dense once it is checked.
    pub sinks: Option<Tensor>,
}

/// A tensor that nobody writes as long as this lives.
pub type HeldTensor<'t> = (Box<dyn Deref<Target = Storage> + 't>, &'t Layout);

/// Those that kernels read as numbers, held: nothing of one that the operator is given.
pub struct Held<'t> {
    pub bias: Option<HeldTensor<'t>>,
    pub slopes: Option<HeldTensor<'t>>,
    pub sinks: Option<HeldTensor<'t>>,
}

impl Scores {
    /// The problem with what is here, and the tensors as kernels want them; q says the device.
    pub fn checked(&self, problem: ForwardProblem, q: &Tensor) -> Result<(Scores, ForwardProblem)> {
        let mut problem = problem;
        let [batches, heads, _, keys] = problem.score_shape();
        let named = [
            ("bias", &self.bias),
            ("mask", &self.mask),
            ("alibi_slopes", &self.slopes),
            ("sinks", &self.sinks),
        ];
        for (argument, tensor) in named {
            tensor.as_ref().map_or(Ok(()), |tensor| same_device(argument, tensor, q))?;
        }
        if let Some(bias) = &self.bias {
            let layout = score_layout("bias", bias)?;
            problem.bias = Some(Bias { layout, dtype: lift(bias_dtype(bias, problem.dtype))? });
        }
        if let Some(mask) = &self.mask {
            expect_dtype("mask", mask, DType::U8)?;
            let layout = score_layout("mask", mask)?;
            problem.attn_mask = Some(lift(MaskShape::of(&layout, keys))?);
        }
        if let Some(slopes) = &self.slopes {
            expect_dtype("alibi_slopes", slopes, DType::F32)?;
            problem.alibi = Some(lift(AlibiSlopes::of(slopes.dims(), batches, heads))?);
        }
        if let Some(sinks) = &self.sinks {
            expect_dtype("sinks", sinks, DType::F32)?;
            lift(check_sinks(sinks.dims(), heads))?;
            problem.has_sinks = true;
        }
        let dense = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::contiguous).transpose();
        let (slopes, sinks) = (dense(&self.slopes)?, dense(&self.sinks)?);
        Ok((Scores { bias: self.bias.clone(), mask: self.mask.clone(), slopes, sinks }, problem))
    }

    /// Those that have gradients, where their graphs ask for them: bias and sinks.
    pub fn differentiable(&self) -> [Option<&Tensor>; 2] {
        [&self.bias, &self.sinks].map(|tensor| tensor.as_ref().filter(|tensor| tensor.track_op()))
    }

    /// The same memory, apart from the graph.
    pub fn detached(&self) -> Scores {
        let detached = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::detach);
        Scores {
            bias: detached(&self.bias),
            mask: detached(&self.mask),
            slopes: detached(&self.slopes),
            sinks: detached(&self.sinks),
        }
    }

    /// Keeps others from writing; bias and sinks unless they are held already, since a lock that a thread
    /// has may not be taken again.
    pub fn hold(&self, [has_bias, has_sinks]: [bool; 2]) -> Held<'_> {
        let [bias, sinks] = [(&self.bias, has_bias), (&self.sinks, has_sinks)]
            .map(|(tensor, is_held)| tensor.as_ref().filter(|_| !is_held).map(hold));
        Held { bias, slopes: self.slopes.as_ref().map(hold), sinks }
    }
}

/// Keeps others from writing a tensor.
pub fn hold(tensor: &Tensor) -> HeldTensor<'_> {
    let (storage, layout) = tensor.storage_and_layout();
    (Box::new(storage), layout)
}

/// A tensor is on the device of q.
pub fn same_device(argument: &'static str, tensor: &Tensor, q: &Tensor) -> Result<()> {
    let name = |device: &Device| match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    };
    if tensor.device().same_device(q.device()) {
        return Ok(());
    }
    lift(Err(Error::WrongDevice(argument, name(q.device()), "q", name(tensor.device()))))
}

/// Where the elements of a tensor over scores stand; dimensions that it does not have are 1.
pub fn score_layout(argument: &'static str, tensor: &Tensor) -> Result<ScoreLayout> {
    let got = tensor.dims().len();
    let Some(missing) = SCORE_DIMENSIONS.len().checked_sub(got) else {
        let names = "[batch, head, query, key]";
        return lift(Err(Error::WrongRank { argument, expected: 4, names, got }));
    };
    let mut layout = ScoreLayout { shape: [1; 4], strides: [0; 4] };
    layout.shape[missing..].copy_from_slice(tensor.dims());
    for (place, &stride) in layout.strides[missing..].iter_mut().zip(tensor.stride()) {
        *place = stride as i64;
    }
    Ok(layout)
}

/// The dtype of the bias, of those that there can be.
fn bias_dtype(bias: &Tensor, of_q: Dtype) -> finite_attention::Result<Dtype> {
    match bias.dtype() {
        DType::BF16 => Ok(Dtype::Bf16),
        DType::F16 => Ok(Dtype::F16),
        DType::F32 => Ok(Dtype::F32),
        other => Err(Error::UnsupportedDtype {
            argument: "bias",
            expected: match of_q {
                Dtype::F32 => "f32".to_owned(),
                of_q => format!("{} like q, or f32", of_q.name()),
            },
            got: other.as_str().to_owned(),
        }),
    }
}

fn expect_dtype(argument: &'static str, tensor: &Tensor, expected: DType) -> Result<()> {
    let (got, expected) = (tensor.dtype(), expected.as_str().to_owned());
    if got.as_str() == expected {
        return Ok(());
    }
    lift(Err(Error::UnsupportedDtype { argument, expected, got: got.as_str().to_owned() }))
}
