//! From tensors and options to problems and pointers.

use crate::error::{Failure, Result};
use crate::options::Options;
use crate::tensor::Tensor;
use finite_attention::plan::ScorePointers;
use finite_attention::problem::{AlibiSlopes, Bias, MaskShape, common_dtype};
use finite_attention::{
    BackwardPointers, BackwardProblem, DevicePointer, ForwardPointers, ForwardProblem, Sequences,
};
use pyo3::FromPyObject;

/// `(q, k, v, cu_seqlens_q, cu_seqlens_k)`.
#[derive(FromPyObject)]
pub struct Inputs(Tensor, Tensor, Tensor, Option<Tensor>, Option<Tensor>);

/// `(bias, (mask, address of the prepared one), alibi_slopes, sinks)`.
#[derive(FromPyObject)]
pub struct Scores(Option<Tensor>, Option<(Tensor, DevicePointer)>, Option<Tensor>, Option<Tensor>);

/// `(o, lse)`.
#[derive(FromPyObject)]
pub struct Outputs(Tensor, Option<Tensor>);

/// `(do, dlse, dq, dk, dv, dbias, dsinks)`.
#[derive(FromPyObject)]
pub struct Gradients(Tensor, Option<Tensor>, Tensor, Tensor, Tensor, Option<Tensor>, Option<Tensor>);

const F32: &str = "float32";

/// The forward problem, and where its tensors are.
pub fn forward_problem(
    options: &Options,
    inputs: &Inputs,
    scores: &Scores,
    outputs: &Outputs,
) -> Result<(ForwardProblem, ForwardPointers)> {
    let Inputs(q, k, v, cu_seqlens_q, cu_seqlens_k) = inputs;
    let Outputs(o, lse) = outputs;
    let is_packed = cu_seqlens_q.is_some() || cu_seqlens_k.is_some();
    let layout = |argument, tensor: &Tensor| tensor.layout(argument, is_packed);
    let dtype = common_dtype(&[("q", q.dtype("q")?), ("k", k.dtype("k")?), ("v", v.dtype("v")?)])?;
    let mut problem = ForwardProblem::new(dtype, layout("q", q)?, layout("k", k)?, layout("v", v)?)
        .with_output(layout("o", o)?)
        .with_output_dtype(o.dtype("o")?)
        .with_mask(options.mask);
    problem.scale = options.scale;
    problem.softcap = options.softcap;
    problem.num_splits = options.num_splits;
    problem.pack_gqa = options.pack_gqa;
    problem.precision = options.precision;
    problem.wants_lse = lse.is_some();
    if let Some((rate, seed, offset)) = options.dropout {
        problem = problem.with_dropout(rate, seed, offset);
    }
    let (sequences, offsets) = sequences(options, cu_seqlens_q.as_ref(), cu_seqlens_k.as_ref())?;
    problem.sequences = sequences;
    let score = with_scores(&mut problem, scores)?;
    let lse = like_lse("lse", &problem, lse.as_ref())?;
    let pointers = ForwardPointers {
        q: q.address(),
        k: k.address(),
        v: v.address(),
        o: o.address(),
        lse,
        cu_seqlens_q: offsets[0],
        cu_seqlens_k: offsets[1],
        score,
    };
    Ok((problem, pointers))
}

/// The backward problem, and where its tensors are.
pub fn backward_problem(
    options: &Options,
    inputs: &Inputs,
    scores: &Scores,
    outputs: &Outputs,
    gradients: &Gradients,
) -> Result<(BackwardProblem, BackwardPointers)> {
    let (forward, at) = forward_problem(options, inputs, scores, outputs)?;
    let Gradients(d_o, d_lse, dq, dk, dv, d_bias, d_sinks) = gradients;
    let is_packed = inputs.3.is_some();
    common_dtype(&[("q", forward.dtype), ("do", d_o.dtype("do")?)])?;
    let gradient_dtype =
        common_dtype(&[("dq", dq.dtype("dq")?), ("dk", dk.dtype("dk")?), ("dv", dv.dtype("dv")?)])?;
    let mut problem = BackwardProblem::new(forward)
        .with_d_o(d_o.layout("do", is_packed)?)
        .with_gradients(
            dq.layout("dq", is_packed)?,
            dk.layout("dk", is_packed)?,
            dv.layout("dv", is_packed)?,
        )
        .with_gradient_dtype(gradient_dtype)
        .with_mode(options.mode);
    if let Some(d_bias) = d_bias {
        let (layout, dtype) = (d_bias.score_layout("dbias")?, d_bias.dtype("dbias")?);
        problem = problem.with_d_bias(Bias { layout, dtype });
    }
    problem.wants_d_sinks = d_sinks.is_some();
    problem.has_d_lse = d_lse.is_some();
    let heads = forward.q.shape[2];
    let pointers = BackwardPointers {
        q: at.q,
        k: at.k,
        v: at.v,
        o: at.o,
        d_o: d_o.address(),
        dq: dq.address(),
        dk: dk.address(),
        dv: dv.address(),
        lse: at.lse,
        d_lse: like_lse("dlse", &forward, d_lse.as_ref())?,
        cu_seqlens_q: at.cu_seqlens_q,
        cu_seqlens_k: at.cu_seqlens_k,
        score: at.score,
        d_bias: d_bias.as_ref().map_or(0, Tensor::address),
        d_sinks: d_sinks.as_ref().map_or(Ok(0), |sinks| sinks.dense("dsinks", F32, &[&[heads]]))?,
    };
    Ok((problem, pointers))
}

/// How sequences stand, and where their offsets are.
fn sequences(
    options: &Options,
    cu_seqlens_q: Option<&Tensor>,
    cu_seqlens_k: Option<&Tensor>,
) -> Result<(Sequences, [DevicePointer; 2])> {
    let (q, k) = match (cu_seqlens_q, cu_seqlens_k) {
        (None, None) => return Ok((Sequences::Strided, [0, 0])),
        (Some(q), Some(k)) => (q, k),
        (None, Some(_)) => return Err(Failure::argument("cu_seqlens_q: expected offsets, got None")),
        (Some(_), None) => return Err(Failure::argument("cu_seqlens_k: expected offsets, got None")),
    };
    let Some((max_query_rows, max_key_rows)) = options.longest else {
        return Err(Failure::argument("max_seqlen_q: expected the most rows of a sequence, got None"));
    };
    let offsets = match q.shape() {
        [] | [0] => {
            let text = format!("cu_seqlens_q: expected shape [sequences + 1], got {:?}", q.shape());
            return Err(Failure::argument(text));
        }
        [offsets, ..] => *offsets,
    };
    let of = |argument, tensor: &Tensor| tensor.dense(argument, "int32", &[&[offsets]]);
    let at = [of("cu_seqlens_q", q)?, of("cu_seqlens_k", k)?];
    Ok((Sequences::Packed { count: offsets - 1, max_query_rows, max_key_rows }, at))
}

/// What scores have beside q and k.
fn with_scores(problem: &mut ForwardProblem, scores: &Scores) -> Result<ScorePointers> {
    let Scores(bias, mask, alibi_slopes, sinks) = scores;
    let [batches, heads, _, keys] = problem.score_shape();
    let mut pointers = ScorePointers::default();
    if let Some(bias) = bias {
        problem.bias = Some(Bias { layout: bias.score_layout("bias")?, dtype: bias.dtype("bias")? });
        pointers.bias = bias.address();
    }
    if let Some((mask, prepared)) = mask {
        problem.attn_mask = Some(MaskShape::of(&mask.score_layout("mask")?, keys)?);
        pointers.mask_bits = *prepared;
    }
    if let Some(slopes) = alibi_slopes {
        let shapes = [&[heads][..], &[batches, heads]];
        pointers.alibi_slopes = slopes.dense("alibi_slopes", F32, &shapes)?;
        let per_head = slopes.shape().len() == 1;
        problem.alibi = Some(if per_head { AlibiSlopes::PerHead } else { AlibiSlopes::PerBatchAndHead });
    }
    if let Some(sinks) = sinks {
        pointers.sinks = sinks.dense("sinks", F32, &[&[heads]])?;
        problem.has_sinks = true;
    }
    Ok(pointers)
}

/// Where a tensor of the shape of lse is; nowhere if there is none.
fn like_lse(
    argument: &'static str,
    problem: &ForwardProblem,
    tensor: Option<&Tensor>,
) -> Result<DevicePointer> {
    let [batches, rows, heads, _] = problem.q.shape;
    let strided = [batches, heads, rows];
    let shape = match problem.sequences {
        Sequences::Strided => strided.as_slice(),
        Sequences::Packed { .. } => &strided[1..],
    };
    tensor.map_or(Ok(0), |tensor| tensor.dense(argument, F32, &[shape]))
}
