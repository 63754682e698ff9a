//! The text of every error of bias, boolean mask, slopes and sinks.

mod support;

use finite_attention::attention::{BiasSlice, MaskSlice, PreparedMask, ScoreSlices};
use finite_attention::problem::{AlibiSlopes, Bias, MaskShape, ScoreLayout};
use finite_attention::{
    BackwardInputs, BackwardProblem, Dtype, Error, ForwardInputs, ForwardProblem, Layout, Sequences,
    Stream, backward_host, forward_inputs_host,
};
use half::bf16;
use kernels_gpu::abi::MAX_ROWS;
use support::{Fault, device};

/// Two batches, five queries of four heads, nine keys of two.
fn problem() -> ForwardProblem {
    let kv = Layout::bshd([2, 9, 2, 128]);
    ForwardProblem::new(Dtype::Bf16, Layout::bshd([2, 5, 4, 128]), kv, kv)
}

fn bias(shape: [usize; 4]) -> Bias {
    Bias { layout: ScoreLayout::dense(shape), dtype: Dtype::Bf16 }
}

fn mask([batches, heads, queries, keys]: [usize; 4]) -> MaskShape {
    MaskShape { batches, heads, queries, keys }
}

fn text(problem: ForwardProblem) -> String {
    problem.validate().unwrap_err().to_string()
}

fn backward_text(problem: BackwardProblem) -> String {
    problem.validate().unwrap_err().to_string()
}

#[test]
fn a_bias_that_does_not_fit() {
    let of = |shape| text(problem().with_bias(bias(shape)));
    assert_eq!(of([2, 4, 5, 8]), "bias: expected keys 1 or 9, got 8");
    assert_eq!(of([2, 4, 9, 9]), "bias: expected queries 1 or 5, got 9");
    assert_eq!(of([2, 3, 5, 9]), "bias: expected heads 1, 2 or 4, got 3");
    assert_eq!(of([3, 4, 5, 9]), "bias: expected batch 1 or 2, got 3");
    for shape in [[2, 4, 5, 9], [1, 2, 1, 9], [2, 1, 5, 1], [1; 4]] {
        assert!(problem().with_bias(bias(shape)).validate().is_ok(), "{shape:?}");
    }
    let q = Layout::bshd([2, 5, 2, 128]);
    let alike = ForwardProblem { q, o: q, ..problem() };
    assert_eq!(text(alike.with_bias(bias([2, 3, 5, 9]))), "bias: expected heads 1 or 2, got 3");
    let dtype = |dtype| problem().with_bias(Bias { dtype, ..bias([1; 4]) });
    assert_eq!(text(dtype(Dtype::F16)), "bias: expected dtype bf16 like q, or f32, got f16");
    assert!(dtype(Dtype::F32).validate().is_ok());
    let layout = ScoreLayout { shape: [2, 4, 5, 9], strides: [0, -7, 1 << 60, 3] };
    assert_eq!(
        text(problem().with_bias(Bias { layout, dtype: Dtype::F32 })),
        "bias: expected a tensor of less than 2^63 bytes, got shape [2, 4, 5, 9] with strides [0, -7, \
         1152921504606846976, 3]"
    );
}

#[test]
fn a_bias_of_packed_sequences_has_the_longest() {
    let (q, kv) = (Layout::packed([7, 4, 128]), Layout::packed([9, 2, 128]));
    let packed = ForwardProblem::new(Dtype::Bf16, q, kv, kv)
        .with_sequences(Sequences::from_offsets(&[0, 3, 7], &[0, 9, 9]).unwrap());
    assert!(packed.with_bias(bias([2, 4, 4, 9])).validate().is_ok());
    assert_eq!(text(packed.with_bias(bias([2, 4, 7, 9]))), "bias: expected queries 1 or 4, got 7");
    assert_eq!(text(packed.with_attn_mask(mask([3, 1, 4, 9]))), "mask: expected batch 1 or 2, got 3");
}

#[test]
fn a_mask_that_does_not_fit() {
    let of = |shape| text(problem().with_attn_mask(mask(shape)));
    assert_eq!(of([2, 4, 5, 8]), "mask: expected keys 9 like k, got 8");
    assert_eq!(of([2, 4, 5, 1]), "mask: expected keys 9 like k, got 1");
    assert_eq!(of([2, 3, 5, 9]), "mask: expected heads 1, 2 or 4, got 3");
    assert!(problem().with_attn_mask(mask([1, 2, 1, 9])).validate().is_ok());
}

#[test]
fn gradients_of_what_is_not_there() {
    let backward = |forward| BackwardProblem::new(forward);
    assert_eq!(
        backward_text(backward(problem()).with_d_bias(bias([2, 4, 5, 9]))),
        "dbias: expected no elements, as the problem has no dbias, got 360"
    );
    assert_eq!(
        backward_text(backward(problem()).with_d_sinks()),
        "dsinks: expected no elements, as the problem has no dsinks, got 4"
    );
    let with_bias = backward(problem().with_bias(bias([2, 4, 5, 9])));
    assert!(with_bias.with_d_bias(bias([2, 4, 5, 9])).validate().is_ok());
    assert_eq!(
        backward_text(with_bias.with_d_bias(bias([2, 4, 5, 1]))),
        "dbias: expected keys 9 like bias, got 1"
    );
    let repeated = ScoreLayout { shape: [2, 4, 5, 9], strides: [180, 45, 9, 0] };
    assert_eq!(
        backward_text(with_bias.with_d_bias(Bias { layout: repeated, dtype: Dtype::F32 })),
        "dbias: expected a positive stride of keys, got 0: outputs are written once"
    );
    let crowded = ScoreLayout { shape: [2, 4, 5, 9], strides: [180, 45, 8, 1] };
    assert_eq!(
        backward_text(with_bias.with_d_bias(Bias { layout: crowded, dtype: Dtype::F32 })),
        "dbias: expected a stride of queries of at least 9, so that no two elements share an address, got 8"
    );
    assert_eq!(
        backward_text(with_bias.with_d_bias(Bias { dtype: Dtype::F16, ..bias([2, 4, 5, 9]) })),
        "dbias: expected dtype bf16 like bias, or f32, got f16"
    );
}

/// What is said of slices, before anything runs.
fn slices(problem: ForwardProblem, scores: ScoreSlices<'_, bf16>) -> Error {
    let (q, kv) = ([bf16::ZERO; 5120], [bf16::ZERO; 4608]);
    let inputs = ForwardInputs { q: &q, k: &kv, v: &kv, scores, cu_seqlens_q: &[], cu_seqlens_k: &[] };
    let forward =
        forward_inputs_host::<bf16, bf16>(&device(Fault::None), &problem, &inputs).unwrap_err();
    // The backward pass says the same.
    let inputs = BackwardInputs {
        q: &q,
        k: &kv,
        v: &kv,
        o: &q,
        lse: &[0.0; 40],
        d_o: &q,
        d_lse: &[],
        scores,
        cu_seqlens_q: &[],
        cu_seqlens_k: &[],
    };
    let problem = BackwardProblem::new(problem);
    let backward =
        backward_host::<bf16, bf16, bf16>(&device(Fault::None), &problem, &inputs).unwrap_err();
    assert_eq!(forward.to_string(), backward.to_string());
    forward
}

#[test]
fn slices_that_are_too_short_or_not_in_the_problem() {
    let (zeros, numbers, shown) = ([bf16::ZERO; 90], [0f32; 90], [true; 90]);
    let none = ScoreSlices::<bf16>::default();
    let of = |problem, scores| slices(problem, scores).to_string();
    let with_bias = problem().with_bias(bias([1, 2, 5, 9]));
    let short = "expected 90 elements for shape [1, 2, 5, 9], got";
    assert_eq!(of(with_bias, none), format!("bias: {short} 0"));
    let bias = |elements| ScoreSlices { bias: Some(elements), ..none };
    assert_eq!(of(with_bias, bias(BiasSlice::LikeQ(&zeros[1..]))), format!("bias: {short} 89"));
    assert_eq!(
        of(with_bias, bias(BiasSlice::F32(&numbers))),
        "bias: expected dtype bf16 like problem, got f32"
    );
    assert_eq!(
        of(problem(), bias(BiasSlice::LikeQ(&zeros))),
        "bias: expected no elements, as the problem has no bias, got 90"
    );
    let with_mask = problem().with_attn_mask(mask([1, 2, 5, 9]));
    assert_eq!(of(with_mask, none), format!("mask: {short} 0"));
    let mask = |shape, elements| {
        let mask = Some(MaskSlice { layout: ScoreLayout::dense(shape), elements });
        ScoreSlices { mask, ..none }
    };
    assert_eq!(of(with_mask, mask([1, 2, 5, 9], &shown[1..])), format!("mask: {short} 89"));
    assert_eq!(of(with_mask, mask([1, 4, 5, 9], &shown)), "mask: expected heads 2 like problem, got 4");
    assert_eq!(of(with_mask, mask([1, 2, 5, 8], &shown)), "mask: expected keys 1 or 9, got 8");
    // Of 2^64 + 9 elements, which would be 9.
    let apart = ScoreLayout { shape: [1, 2, 5, 9], strides: [0, 0, 1 << 62, 1] };
    let mask_apart = ScoreSlices { mask: Some(MaskSlice { layout: apart, elements: &shown }), ..none };
    assert_eq!(
        of(with_mask, mask_apart),
        "mask: expected a tensor of less than 2^63 bytes, got shape [1, 2, 5, 9] with strides [0, 0, \
         4611686018427387904, 1]"
    );
    assert_eq!(
        of(problem(), mask([1, 2, 5, 9], &shown)),
        "mask: expected no elements, as the problem has no mask, got 90"
    );
    let slopes = |count| ScoreSlices { alibi_slopes: &numbers[..count], ..none };
    assert_eq!(
        of(problem().with_alibi(AlibiSlopes::PerHead), slopes(3)),
        "alibi_slopes: expected 4 elements for shape [4], got 3"
    );
    assert_eq!(
        of(problem().with_alibi(AlibiSlopes::PerBatchAndHead), slopes(4)),
        "alibi_slopes: expected 8 elements for shape [2, 4], got 4"
    );
    assert_eq!(
        of(problem(), slopes(4)),
        "alibi_slopes: expected no elements, as the problem has no alibi_slopes, got 4"
    );
    assert_eq!(
        of(problem().with_alibi(AlibiSlopes::PerHead), slopes(5)),
        "alibi_slopes: expected 4 elements for shape [4], got 5"
    );
    let sinks = |count| ScoreSlices { sinks: &numbers[..count], ..none };
    assert_eq!(of(problem().with_sinks(), sinks(3)), "sinks: expected 4 elements for shape [4], got 3");
    assert_eq!(
        of(problem(), sinks(4)),
        "sinks: expected no elements, as the problem has no sinks, got 4"
    );
}

/// What cannot be is refused before there is memory for it.
#[test]
fn masks_that_cannot_be_prepared() {
    let device = device(Fault::OutOfMemory);
    let of = |layout: ScoreLayout, keys, pointer| {
        // SAFETY: the call fails before anything is launched.
        let made = unsafe { PreparedMask::new(&device, &layout, keys, pointer, Stream::default()) };
        made.unwrap_err().to_string()
    };
    let repeated = |shape| ScoreLayout { shape, strides: [0; 4] };
    assert_eq!(of(repeated([2, 4, 5, 8]), 9, 64), "mask: expected keys 1 or 9, got 8");
    assert_eq!(
        of(repeated([1; 4]), MAX_ROWS as usize + 1, 64),
        "mask: expected keys 0..=1073741568, got 1073741569"
    );
    assert_eq!(
        of(repeated([1 << 60, 1 << 60, 1, 1]), 64, 64),
        "mask: expected at most 4294967295 words of 32 keys, got \
         2658455991569831745807614120560689152 for shape [1152921504606846976, 1152921504606846976, 1, 64]"
    );
    let apart = ScoreLayout { shape: [2, 4, 5, 9], strides: [1, 1, 1 << 62, 1] };
    assert_eq!(
        of(apart, 9, 64),
        "mask: expected a tensor of less than 2^63 bytes, got shape [2, 4, 5, 9] with strides [1, 1, \
         4611686018427387904, 1]"
    );
    assert_eq!(
        of(repeated([2, 4, 5, 9]), 9, 0),
        "mask: expected a device pointer, got null for 360 elements"
    );
    // As much as there may be, but for the memory.
    assert_eq!(
        of(repeated([1, 1, u32::MAX as usize, 1]), 32, 64),
        "device mock: out of memory: could not allocate 19327353024 bytes"
    );
}
