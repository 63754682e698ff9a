//! Tensors that are copied to the host: of backends for CPUs, and of runtimes without CUDA.

use crate::ops::{Floats, Gradients, Inputs};
use crate::pass::Pass;
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, TensorMetadata, read_sync};
use burn::tensor::{Element as BurnElement, TensorData};
use finite_attention::attention::{BiasSlice, Elements, MaskSlice};
use finite_attention::problem::ScoreLayout;
use finite_attention::{
    BackwardInputs, BackwardOutput, Dtype, Element, Error, ForwardInputs, ForwardOutput, Layout, Result,
    ScoreSlices, backward_host, forward_inputs_host,
};
use half::{bf16, f16};

/// o and lse.
pub fn forward<B: Backend>(inputs: Inputs<B>, pass: &Pass) -> Result<[FloatTensor<B>; 2]> {
    match pass.problem.forward.dtype {
        Dtype::Bf16 => forward_of::<B, bf16>(inputs, pass),
        Dtype::F16 => forward_of::<B, f16>(inputs, pass),
        Dtype::F32 => forward_of::<B, f32>(inputs, pass),
    }
}

/// All gradients that are wanted, of the inputs, and o, lse and do.
pub fn backward<B: Backend>(
    inputs: Inputs<B>,
    tensors: [FloatTensor<B>; 3],
    pass: &Pass,
) -> Result<Gradients<B>> {
    match pass.problem.forward.dtype {
        Dtype::Bf16 => backward_of::<B, bf16>(inputs, tensors, pass),
        Dtype::F16 => backward_of::<B, f16>(inputs, tensors, pass),
        Dtype::F32 => backward_of::<B, f32>(inputs, tensors, pass),
    }
}

fn forward_of<B: Backend, T: Element + BurnElement>(
    inputs: Inputs<B>,
    pass: &Pass,
) -> Result<[FloatTensor<B>; 2]> {
    let problem = &pass.problem.forward;
    let device = inputs.q.device();
    let inputs = OnHost::new(inputs);
    let [cu_seqlens_q, cu_seqlens_k] = &pass.offsets;
    let slices = ForwardInputs {
        q: elements::<T>("q", &inputs.q)?,
        k: elements("k", &inputs.k)?,
        v: elements("v", &inputs.v)?,
        scores: inputs.scores(pass)?,
        cu_seqlens_q,
        cu_seqlens_k,
    };
    let output: ForwardOutput<T> = forward_inputs_host(&pass.device()?, problem, &slices)?;
    let [batches, rows, heads, _] = problem.o.shape;
    let lse = TensorData::new(output.lse, [batches, heads, rows]);
    Ok([tensor::<B, T>(output.o, &problem.o, &device), B::float_from_data(lse, &device)])
}

fn backward_of<B: Backend, T: Element + BurnElement>(
    inputs: Inputs<B>,
    [o, lse, d_o]: [FloatTensor<B>; 3],
    pass: &Pass,
) -> Result<Gradients<B>> {
    let forward = &pass.problem.forward;
    let device = inputs.q.device();
    let inputs = OnHost::new(inputs);
    let [o, lse, d_o] = [data::<B>("o", o), data::<B>("lse", lse), data::<B>("do", d_o)];
    let [cu_seqlens_q, cu_seqlens_k] = &pass.offsets;
    let slices = BackwardInputs {
        q: elements::<T>("q", &inputs.q)?,
        k: elements("k", &inputs.k)?,
        v: elements("v", &inputs.v)?,
        o: elements::<T>("o", &o)?,
        lse: elements("lse", &lse)?,
        d_o: elements("do", &d_o)?,
        d_lse: &[],
        scores: inputs.scores(pass)?,
        cu_seqlens_q,
        cu_seqlens_k,
    };
    let gradients: BackwardOutput<T> = backward_host(&pass.device()?, &pass.problem, &slices)?;
    let BackwardOutput { dq, dk, dv, d_bias, d_sinks } = gradients;
    let floats = |data| Floats::Tensor(B::float_from_data(data, &device));
    let d_bias = match (d_bias, &inputs.bias) {
        (Some(elements), Some(bias)) => floats(match elements {
            Elements::Bf16(elements) => TensorData::new(elements, bias.shape().clone()),
            Elements::F16(elements) => TensorData::new(elements, bias.shape().clone()),
            Elements::F32(elements) => TensorData::new(elements, bias.shape().clone()),
        }),
        _ => Floats::Nothing,
    };
    let heads = d_sinks.len();
    let d_sinks = match pass.problem.wants_d_sinks {
        true => floats(TensorData::new(d_sinks, [heads])),
        false => Floats::Nothing,
    };
    Ok(Gradients {
        dq: tensor::<B, T>(dq, &forward.q, &device),
        dk: tensor::<B, T>(dk, &forward.k, &device),
        dv: tensor::<B, T>(dv, &forward.v, &device),
        d_bias,
        d_sinks,
    })
}

/// The elements of all inputs, dense.
struct OnHost {
    q: TensorData,
    k: TensorData,
    v: TensorData,
    bias: Option<TensorData>,
    sinks: Option<TensorData>,
    slopes: Option<TensorData>,
    mask: Option<(ScoreLayout, Vec<bool>)>,
}

impl OnHost {
    fn new<B: Backend>(inputs: Inputs<B>) -> Self {
        let Inputs { q, k, v, bias, sinks, slopes, mask } = inputs;
        OnHost {
            q: data::<B>("q", q),
            k: data::<B>("k", k),
            v: data::<B>("v", v),
            bias: bias.tensor().map(|tensor| data::<B>("bias", tensor)),
            sinks: sinks.tensor().map(|tensor| data::<B>("sinks", tensor)),
            slopes: slopes.tensor().map(|tensor| data::<B>("alibi_slopes", tensor)),
            mask: mask.tensor().map(bools::<B>),
        }
    }

    /// What scores have, as the library wants it.
    fn scores<T: Element + BurnElement>(&self, pass: &Pass) -> Result<ScoreSlices<'_, T>> {
        let mut scores = ScoreSlices::default();
        if let (Some(data), Some(bias)) = (&self.bias, pass.problem.forward.bias) {
            scores.bias = Some(match bias.dtype == T::DTYPE {
                true => BiasSlice::LikeQ(elements("bias", data)?),
                false => BiasSlice::F32(elements("bias", data)?),
            });
        }
        if let Some((layout, elements)) = &self.mask {
            scores.mask = Some(MaskSlice { layout: *layout, elements });
        }
        if let Some(data) = &self.slopes {
            scores.alibi_slopes = elements("alibi_slopes", data)?;
        }
        if let Some(data) = &self.sinks {
            scores.sinks = elements("sinks", data)?;
        }
        Ok(scores)
    }
}

/// A boolean mask, dense.
///
/// # Panics
/// Where burn cannot read it, as burn's own `into_data` does.
fn bools<B: Backend>(mask: BoolTensor<B>) -> (ScoreLayout, Vec<bool>) {
    let shape = mask.shape().dims::<4>();
    let data = read_sync(B::bool_into_data(mask)).unwrap_or_else(|error| panic!("mask: {error:?}"));
    let elements = data.convert::<bool>().try_to_vec();
    (ScoreLayout::dense(shape), elements.unwrap_or_else(|error| panic!("mask: {error:?}")))
}

/// The elements of a tensor, dense.
///
/// # Panics
/// Where burn cannot read it, as burn's own `into_data` does.
fn data<B: Backend>(argument: &'static str, tensor: FloatTensor<B>) -> TensorData {
    read_sync(B::float_into_data(tensor)).unwrap_or_else(|error| panic!("{argument}: {error:?}"))
}

fn elements<'d, T: BurnElement>(argument: &'static str, data: &'d TensorData) -> Result<&'d [T]> {
    data.as_slice().map_err(|_| Error::WrongDtype {
        argument,
        expected: T::dtype().name(),
        like: "q",
        got: data.dtype().name().to_owned(),
    })
}

/// A tensor `[batch, head, row, column]` of dense elements.
fn tensor<B: Backend, T: BurnElement>(
    elements: Vec<T>,
    of: &Layout,
    device: &B::Device,
) -> FloatTensor<B> {
    let [batches, rows, heads, columns] = of.shape;
    B::float_from_data(TensorData::new(elements, [batches, heads, rows, columns]), device)
}
