//! Tensors in memory of the host.

use crate::lift;
use crate::pass::{Given, GivenScores, Gradients, Inputs, Kept, Pass};
use crate::scores::{Held, HeldTensor, hold, score_layout};
use candle_core::{CpuStorage, Device, Result, Storage, Tensor, WithDType, bail};
use finite_attention::attention::{BiasSlice, Elements, MaskSlice};
use finite_attention::{
    BackwardInputs, BackwardOutput, BackwardProblem, Element, ForwardInputs, ForwardOutput,
    ForwardProblem, ScoreSlices, backward_host, forward_inputs_host,
};

/// o, dense; lse is kept.
pub fn forward<T: Element + WithDType>(
    pass: &Pass,
    [q, k, v]: [Given<'_, CpuStorage>; 3],
    scores: GivenScores<'_, CpuStorage>,
) -> Result<CpuStorage> {
    let problem = &pass.problem.forward;
    let (held, mask) = (pass.scores.hold(scores.map(|given| given.is_some())), mask_of(pass)?);
    let [cu_seqlens_q, cu_seqlens_k] = &pass.offsets;
    let inputs = ForwardInputs {
        q: elements::<T>(q, problem.q.span())?,
        k: elements(k, problem.k.span())?,
        v: elements(v, problem.v.span())?,
        scores: slices(pass, scores, &held, mask.as_deref())?,
        cu_seqlens_q,
        cu_seqlens_k,
    };
    let output: ForwardOutput<T> = lift(forward_inputs_host(&pass.device()?, problem, &inputs))?;
    pass.keep(Kept::Host { lse: output.lse })?;
    Ok(T::to_cpu_storage_owned(output.o))
}

/// dq, dk and dv one after another, and those of bias and sinks that are wanted.
pub fn backward<T: Element + WithDType>(
    pass: &Pass,
    problem: &BackwardProblem,
    tensors: &Inputs<'_>,
) -> Result<Gradients> {
    #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns, reason = "others with `cuda`"))]
    let Kept::Host { lse } = pass.kept()? else { bail!("lse: expected it in memory of the host") };
    let forward = &problem.forward;
    let layouts = [&forward.q, &forward.k, &forward.v, &forward.o, &problem.d_o];
    let [q, k, v, o, d_o] = [0, 1, 2, 3, 4].map(|place| {
        let (storage, start) = tensors.given(place)?;
        elements::<T>((on_host("q, k, v and do", storage)?, start), layouts[place].span())
    });
    let (scores, mask) = (pass.scores.hold([false; 2]), mask_of(pass)?);
    let [cu_seqlens_q, cu_seqlens_k] = &pass.offsets;
    let inputs = BackwardInputs {
        q: q?,
        k: k?,
        v: v?,
        o: o?,
        lse,
        d_o: d_o?,
        d_lse: &[],
        scores: slices(pass, [None; 2], &scores, mask.as_deref())?,
        cu_seqlens_q,
        cu_seqlens_k,
    };
    let output: BackwardOutput<T> = lift(backward_host(&pass.device()?, problem, &inputs))?;
    let BackwardOutput { dq, dk, dv, d_bias, d_sinks } = output;
    let qkv = [dq, dk, dv].concat();
    let qkv = Tensor::from_vec(qkv, pass.joined_elements(), &Device::Cpu)?;
    let bias = d_bias.map(|elements| {
        let shape = pass.bias_dims();
        match elements {
            Elements::Bf16(elements) => Tensor::from_vec(elements, shape, &Device::Cpu),
            Elements::F16(elements) => Tensor::from_vec(elements, shape, &Device::Cpu),
            Elements::F32(elements) => Tensor::from_vec(elements, shape, &Device::Cpu),
        }
    });
    let sinks = problem.wants_d_sinks.then(|| {
        let heads = d_sinks.len();
        Tensor::from_vec(d_sinks, heads, &Device::Cpu)
    });
    Ok(Gradients { qkv, bias: bias.transpose()?, sinks: sinks.transpose()? })
}

/// The elements of the boolean mask.
fn mask_of(pass: &Pass) -> Result<Option<Vec<bool>>> {
    let Some(mask) = &pass.scores.mask else { return Ok(None) };
    let span = score_layout("mask", mask)?.span();
    let (storage, layout) = hold(mask);
    let bytes = elements::<u8>((on_host("mask", &storage)?, layout.start_offset()), span)?;
    Ok(Some(bytes.iter().map(|&byte| byte != 0).collect()))
}

/// What scores have, as the library wants it: bias and sinks that are given, or else those of the pass.
fn slices<'h, T: Element + WithDType>(
    pass: &Pass,
    [bias, sinks]: GivenScores<'h, CpuStorage>,
    held: &'h Held<'_>,
    mask: Option<&'h [bool]>,
) -> Result<ScoreSlices<'h, T>> {
    let ForwardProblem { bias: of_bias, q, .. } = &pass.problem.forward;
    let mut slices = ScoreSlices::default();
    if let (Some(bias), Some(of)) = (bias.or(given("bias", &held.bias)?), of_bias) {
        slices.bias = Some(if of.dtype == <T as Element>::DTYPE {
            BiasSlice::LikeQ(elements(bias, of.layout.span())?)
        } else {
            BiasSlice::F32(elements(bias, of.layout.span())?)
        });
    }
    if let (Some(elements), Some(mask)) = (mask, &pass.scores.mask) {
        slices.mask = Some(MaskSlice { layout: score_layout("mask", mask)?, elements });
    }
    if let (Some(slopes), Some(tensor)) = (given("alibi_slopes", &held.slopes)?, &pass.scores.slopes) {
        slices.alibi_slopes = elements(slopes, tensor.elem_count())?;
    }
    if let Some(sinks) = sinks.or(given("sinks", &held.sinks)?) {
        slices.sinks = elements(sinks, q.shape[2])?;
    }
    Ok(slices)
}

/// A tensor that is held, as operators are given it.
fn given<'h>(
    argument: &'static str,
    held: &'h Option<HeldTensor<'_>>,
) -> Result<Option<Given<'h, CpuStorage>>> {
    let Some((storage, layout)) = held else { return Ok(None) };
    Ok(Some((on_host(argument, storage)?, layout.start_offset())))
}

fn on_host<'s>(argument: &'static str, storage: &'s Storage) -> Result<&'s CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("{argument}: expected memory of the host, got that of a GPU"),
    }
}

/// The elements from the first to the last of a tensor, as the library wants them. Strides of candle are
/// never negative, so that the first is element (0, 0, 0, 0).
fn elements<'s, T: WithDType>((storage, start): Given<'s, CpuStorage>, span: usize) -> Result<&'s [T]> {
    Ok(&storage.as_slice::<T>()?[start..start + span])
}
