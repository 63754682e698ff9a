//! The gradient of a bias with an element for each query and key, which Hopper has kernels of its own for: blocks of
//! them stay and make several tiles, of which some are shared by batches and heads.

use finite_attention::check::{
    Case, Dimensions, Features, Gradients, Inputs, ScoreHeads, Surroundings, judgeable,
};
use finite_attention::{CausalAlignment, Dtype, Mask, Mode};
use finite_attention_tests::cases::{Cases, retyped};
use finite_attention_tests::compare::{run, same_bits};
use finite_attention_tests::device::{arch_of, emulated_arch, open};
use finite_attention_tests::property::check;
use finite_attention_tests::recorder::{of_size, recording};
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::shapes::with_shared_bias;
use kernels_gpu::abi::Arch;

/// 16-bit cases whose bias has an element for each query and key, and a gradient: several tiles, whole and ragged,
/// heads up to 128 wide, in half of them nothing else that scores can have.
fn of_pairs() -> Cases {
    Cases::fitted(|mut case: Case| {
        let dtype = if case.seed.is_multiple_of(3) { Dtype::F16 } else { Dtype::Bf16 };
        case = retyped(case, dtype);
        if (case.seed >> 4).is_multiple_of(2) {
            case.features = Features { bias: case.features.bias, ..Features::default() };
        }
        let bias = case.features.bias.as_mut()?;
        let heads = [ScoreHeads::One, ScoreHeads::Key, ScoreHeads::Query][(case.seed >> 8) as usize % 3];
        let batches = (case.seed >> 16).is_multiple_of(3);
        bias.dimensions = Dimensions { batches, heads, queries: true, keys: true };
        bias.gradient = Some(if (case.seed >> 20).is_multiple_of(3) { Dtype::F32 } else { bias.dtype });
        case.gradients = Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast });
        case.query_rows = case.query_rows % 170 + 100;
        case.key_rows = [127, 128, 136, 200, 257, 300][case.seed as usize % 6];
        (case.head_dim, case.value_dim) =
            ((case.head_dim - 1) % 128 + 1, (case.value_dim - 1) % 128 + 1);
        (case.packed, case.tight) = (false, false);
        case.batches = case.batches.clamp(1, 3);
        let group = (case.query_heads / case.key_heads.max(1)).clamp(1, 2);
        case.key_heads = case.key_heads.clamp(1, 2);
        case.query_heads = group * case.key_heads;
        Some(judgeable(case))
    })
    .featured()
}

/// On devices of one to three multiprocessors, whose blocks make several tiles each.
#[test]
fn gradients_of_a_bias_of_pairs_are_within_the_rule() {
    check("dbias-pairs", 60, of_pairs(), |device, case| {
        let device = of_size(device, case.seed as u32 % 3 + 1);
        within_the_rule(&device, case, Inputs::drawn).map(|_| ())
    });
}

/// A bias of `[1, Hq, Sq, Sk]` that three batches share.
fn shared_by_batches(head_dim: usize, dtype: Dtype) -> Case {
    let case = Case {
        batches: 3,
        query_rows: 200,
        key_rows: 264,
        head_dim,
        value_dim: head_dim,
        dtype,
        output_dtype: dtype,
        gradients: Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast }),
        ..Case::small()
    };
    with_shared_bias(case, true)
}

/// Which kernel is taken, where heads are wide, sequences are packed, and queries share the bias.
#[test]
fn hopper_has_kernels_for_a_bias_of_pairs() {
    let taken = |case: &Case| {
        let (device, launched) = recording(&open());
        // However many heads.
        let case = &Case { query_heads: 1, key_heads: 1, ..case.clone() };
        run(&device, case, &Inputs::drawn(case), Surroundings::Nan).unwrap();
        launched.names().into_iter().find(|name| name.starts_with("bias_gradient")).unwrap()
    };
    let is_hopper = arch_of(&open()) == Arch::Sm90a;
    let of = |hopper, other| if is_hopper { hopper } else { other };
    for (dim, dtype, hopper, other) in [
        (64, Dtype::Bf16, "bias_gradient_bf16_d64_sm90a", "bias_gradient_bf16_d64_sm80"),
        (40, Dtype::F16, "bias_gradient_f16_d64_sm90a", "bias_gradient_f16_d64_sm80"),
        (128, Dtype::Bf16, "bias_gradient_bf16_d128_sm90a", "bias_gradient_bf16_d128_sm80"),
        (96, Dtype::F16, "bias_gradient_f16_d128_sm90a", "bias_gradient_f16_d128_sm80"),
    ] {
        assert_eq!(taken(&shared_by_batches(dim, dtype)), of(hopper, other));
    }
    let case = shared_by_batches(64, Dtype::Bf16);
    assert_eq!(taken(&shared_by_batches(136, Dtype::Bf16)), "bias_gradient_bf16_d256_sm80");
    assert_eq!(taken(&Case { packed: true, ..case.clone() }), "bias_gradient_bf16_d64_sm80");
    let mut of_keys = case;
    of_keys.features.bias.as_mut().unwrap().dimensions.queries = false;
    assert_eq!(taken(&of_keys), "bias_gradient_bf16_d64_sm80");
}

/// The order of sums depends on the problem alone: not on how many blocks there are, nor on which tiles they make.
#[test]
fn blocks_of_any_number_make_the_same_gradient() {
    if emulated_arch().is_none() {
        return;
    }
    for mask in [Mask::Full, Mask::Causal(CausalAlignment::TopLeft)] {
        // One range of keys, so that lse is the same on devices of any size.
        let case = Case { mask, num_splits: Some(1), ..shared_by_batches(64, Dtype::Bf16) };
        let inputs = Inputs::drawn(&case);
        let of = |multiprocessors| {
            run(&of_size(&open(), multiprocessors), &case, &inputs, Surroundings::Nan).unwrap()
        };
        let one = of(1);
        for some in [of(2), of(5), of(132)] {
            same_bits("lse", &one.lse, &some.lse).unwrap();
            let [one, some] = [&one, &some].map(|computed| &computed.gradients.as_ref().unwrap().d_bias);
            same_bits("dbias", one, some).unwrap();
        }
    }
}
