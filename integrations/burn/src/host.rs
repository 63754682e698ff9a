//! Tensors that are copied to the host: of backends for CPUs, and of runtimes without CUDA.

use crate::ops::Gradients;
use crate::pass::Pass;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, read_sync};
use burn::tensor::{Element as BurnElement, TensorData};
use finite_attention::{
    BackwardInputs, BackwardOutput, Dtype, Element, Error, ForwardOutput, Layout, Result, backward_host,
    forward_host,
};
use half::{bf16, f16};

/// o and lse.
pub fn forward<B: Backend>(tensors: [FloatTensor<B>; 3], pass: &Pass) -> Result<[FloatTensor<B>; 2]> {
    match pass.problem.forward.dtype {
        Dtype::Bf16 => forward_of::<B, bf16>(tensors, pass),
        Dtype::F16 => forward_of::<B, f16>(tensors, pass),
        Dtype::F32 => forward_of::<B, f32>(tensors, pass),
    }
}

/// dq, dk and dv of q, k, v, o, lse and do.
pub fn backward<B: Backend>(tensors: [FloatTensor<B>; 6], pass: &Pass) -> Result<Gradients<B>> {
    match pass.problem.forward.dtype {
        Dtype::Bf16 => backward_of::<B, bf16>(tensors, pass),
        Dtype::F16 => backward_of::<B, f16>(tensors, pass),
        Dtype::F32 => backward_of::<B, f32>(tensors, pass),
    }
}

fn forward_of<B: Backend, T: Element + BurnElement>(
    [q, k, v]: [FloatTensor<B>; 3],
    pass: &Pass,
) -> Result<[FloatTensor<B>; 2]> {
    let problem = &pass.problem.forward;
    let device = q.device();
    let [q, k, v] = [data::<B>("q", q), data::<B>("k", k), data::<B>("v", v)];
    let (q, k, v) = (elements::<T>("q", &q)?, elements("k", &k)?, elements("v", &v)?);
    let output: ForwardOutput<T> = forward_host(&pass.device()?, problem, q, k, v)?;
    let [batches, rows, heads, _] = problem.o.shape;
    let lse = TensorData::new(output.lse, [batches, heads, rows]);
    Ok([tensor::<B, T>(output.o, &problem.o, &device), B::float_from_data(lse, &device)])
}

fn backward_of<B: Backend, T: Element + BurnElement>(
    [q, k, v, o, lse, d_o]: [FloatTensor<B>; 6],
    pass: &Pass,
) -> Result<Gradients<B>> {
    let forward = &pass.problem.forward;
    let device = q.device();
    let [q, k, v] = [data::<B>("q", q), data::<B>("k", k), data::<B>("v", v)];
    let [o, lse, d_o] = [data::<B>("o", o), data::<B>("lse", lse), data::<B>("do", d_o)];
    let output: ForwardOutput<T> = ForwardOutput { o: Vec::new(), lse: Vec::new() };
    let (q, k, v) = (elements::<T>("q", &q)?, elements("k", &k)?, elements("v", &v)?);
    let (o, d_o) = (elements("o", &o)?, elements("do", &d_o)?);
    let lse = elements("lse", &lse)?;
    let inputs = BackwardInputs { o, lse, ..BackwardInputs::new(q, k, v, &output, d_o) };
    let gradients: BackwardOutput<T> = backward_host(&pass.device()?, &pass.problem, &inputs)?;
    Ok(Gradients {
        dq: tensor::<B, T>(gradients.dq, &forward.q, &device),
        dk: tensor::<B, T>(gradients.dk, &forward.k, &device),
        dv: tensor::<B, T>(gradients.dv, &forward.v, &device),
    })
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
