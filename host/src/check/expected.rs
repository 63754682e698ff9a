//! What the reference makes of a case.

use super::{Case, GradientInputs, Inputs, Part};
use crate::reference::{
    ExactGradients, NaiveGradients, Precision, exact, exact_backward, naive, naive_backward,
};
use kernels_gpu::abi::Dtype;

/// The exact results of a case and the unfused ones, in logical order.
#[derive(Clone, Debug)]
pub struct Expected {
    /// `[B, Sq, Hq, Dv]`.
    pub o: Vec<f64>,
    /// `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub lse: Vec<f64>,
    /// o of unfused code.
    pub naive_o: Vec<f32>,
    /// The gradients, and those of unfused code, if the case has them.
    pub gradients: Option<(ExactGradients, NaiveGradients)>,
}

/// Computes a case in f64 and as unfused code, packed sequences one by one. `gradients` are not looked
/// at unless the case has any.
pub fn expected(case: &Case, inputs: &Inputs, gradients: &GradientInputs) -> Expected {
    let [_, rows, heads, _] = case.problem().q.shape;
    let mut whole = Expected {
        o: Vec::new(),
        lse: if case.packed { vec![f64::NAN; rows * heads] } else { Vec::new() },
        naive_o: Vec::new(),
        gradients: case.gradients.map(|_| {
            let (dq, dk, dv) = Default::default();
            (ExactGradients { dq, dk, dv }, NaiveGradients { dq: vec![], dk: vec![], dv: vec![] })
        }),
    };
    let output = precision(case.output_dtype);
    for part in case.parts() {
        let Part { sizes, first_query, .. } = &part;
        let [q, k, v, d_o] = slices(&part, inputs, &gradients.d_o);
        let exact = exact(sizes, q, k, v);
        whole.o.extend(exact.o);
        whole.naive_o.extend(naive(sizes, precision(case.dtype), output, q, k, v).o);
        if case.packed {
            for (at, lse) in exact.lse.into_iter().enumerate() {
                let (head, row) = (at / sizes.query_rows, at % sizes.query_rows);
                whole.lse[head * rows + first_query + row] = lse;
            }
        } else {
            whole.lse.extend(exact.lse);
        }
        let (Some(asked), Some((exact, naive))) = (case.gradients, &mut whole.gradients) else {
            continue;
        };
        let precisions = [case.dtype, case.output_dtype, asked.dtype].map(precision);
        let d_lse = asked.has_d_lse.then(|| part_of_lse(case, &part, rows, &gradients.d_lse));
        let more = exact_backward(sizes, q, k, v, d_o, d_lse.as_deref());
        exact.dq.extend(more.dq);
        exact.dk.extend(more.dk);
        exact.dv.extend(more.dv);
        let more = naive_backward(sizes, precisions, [q, k, v], d_o, d_lse.as_deref());
        naive.dq.extend(more.dq);
        naive.dk.extend(more.dk);
        naive.dv.extend(more.dv);
    }
    whole
}

/// q, k, v and dO of a part. The rows of all its heads stand side by side.
fn slices<'i>(part: &Part, inputs: &'i Inputs, d_o: &'i [f32]) -> [&'i [f32]; 4] {
    let sizes = &part.sizes;
    let cut = |tensor: &'i [f32], first: usize, rows: usize, columns: usize| {
        if tensor.is_empty() {
            tensor
        } else {
            &tensor[first * columns..][..sizes.batches * rows * columns]
        }
    };
    let (query_heads, key_heads) = (sizes.query_heads, sizes.key_heads);
    [
        cut(&inputs.q, part.first_query, sizes.query_rows, query_heads * sizes.head_dim),
        cut(&inputs.k, part.first_key, sizes.key_rows, key_heads * sizes.head_dim),
        cut(&inputs.v, part.first_key, sizes.key_rows, key_heads * sizes.value_dim),
        cut(d_o, part.first_query, sizes.query_rows, query_heads * sizes.value_dim),
    ]
}

/// The rows of a part, `[Hq, Sq]`, of a tensor like lse.
fn part_of_lse(case: &Case, part: &Part, rows: usize, tensor: &[f32]) -> Vec<f32> {
    if !case.packed {
        return tensor.to_vec();
    }
    let head = |head: usize| tensor[head * rows + part.first_query..][..part.sizes.query_rows].iter();
    (0..part.sizes.query_heads).flat_map(head).copied().collect()
}

/// The reference's name for a dtype.
pub(super) fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
}
