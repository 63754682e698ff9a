//! Dropout: right with everything else that a problem can have, and the same pairs in every kernel, forward and
//! backward, whatever its tiles.

use finite_attention::attention::{ForwardInputs, ScoreSlices, forward_inputs_host};
use finite_attention::check::{
    BiasFeature, BiasValues, Case, Dimensions, Features, GradientInputs, Gradients, Inputs, Placement,
    ScorePlacement, Surroundings, compute_with,
};
use finite_attention::driver::emulated::Options;
use finite_attention::problem::Dropout;
use finite_attention::reference::DropoutNumbers;
use finite_attention::{
    CausalAlignment, Device, Dtype, ForwardProblem, KernelImages, Layout, Mask, Mode,
};
use finite_attention_tests::cases::{Cases, retyped};
use finite_attention_tests::compare::{has_repeatable_dq, identical, run};
use finite_attention_tests::device::{emulated, emulated_arch, open};
use finite_attention_tests::property::check;
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::share::drawn;
use half::bf16;
use kernels_gpu::abi::Arch;

/// In this dtype, with dropout; what was to differ from the inputs is f32.
fn of(dtype: Dtype) -> Cases {
    Cases::fitted(move |case| {
        let mut case = retyped(case, dtype);
        let rates = [0.001, 0.1, 0.5, 0.9, 0.999];
        case.features.dropout.get_or_insert(rates[(case.seed >> 8) as usize % 5]);
        Some(case)
    })
}

fn accurate(test: &str, count: u32, cases: Cases) {
    check(test, count, cases.featured().with_just_enough_rows(), |device, case| {
        within_the_rule(device, case, Inputs::drawn).map(|_| ())
    });
}

#[test]
fn dropout_in_bf16_is_within_the_rule() {
    accurate("dropout-bf16", 40, of(Dtype::Bf16));
}

#[test]
fn dropout_in_f16_is_within_the_rule() {
    accurate("dropout-f16", 40, of(Dtype::F16));
}

#[test]
fn dropout_in_f32_is_within_the_rule() {
    accurate("dropout-f32", 30, of(Dtype::F32));
}

/// Rates that random cases are too small for, of numbers that are always the same.
#[test]
fn a_rate_of_0_999_is_within_the_rule() {
    for dtype in drawn("dropout-0.999", 3, [Dtype::Bf16, Dtype::F16, Dtype::F32]) {
        let features = Features { dropout: Some(0.999), ..Features::default() };
        let case = Case { query_rows: 257, key_rows: 301, value_dim: 32, features, ..base(dtype) };
        let result = within_the_rule(&open(), &case, Inputs::drawn);
        assert!(result.is_ok(), "{dtype:?}: {}", result.err().unwrap_or_default());
    }
}

/// Ranges of keys, a single query, and heads that share keys, which without dropout would be rows of a tile.
#[test]
fn dropout_of_few_queries_is_within_the_rule() {
    let cases = Cases::fitted(|mut case: Case| {
        (case.query_rows, case.key_rows) = (1 + case.id % 3, 200 + case.key_rows % 200);
        case.pack_gqa = Some(true);
        case.features.dropout.get_or_insert(0.25);
        Some(case)
    });
    accurate("dropout-decoding", 16, cases);
}

#[test]
fn dropout_of_rate_0_changes_no_bit() {
    check("dropout-rate-0", 12, Cases::changed(|_| ()).featured(), |device, case| {
        let with = |dropout| {
            let features = Features { dropout, ..case.features };
            Case { features, ..case.clone() }
        };
        let (without, zero) = (with(None), with(Some(0.0)));
        let inputs = Inputs::drawn(case);
        let results = [&without, &zero].map(|case| run(device, case, &inputs, Surroundings::Nan));
        let [without, zero] = results;
        let (without, zero) = (without?, zero?);
        if without.kernel != zero.kernel {
            return Err(format!("{} with a rate of 0, {} without", zero.kernel, without.kernel));
        }
        identical(&without.kernel, has_repeatable_dq(case), &without, &zero)
    });
}

/// Calls `test` on every device that there is to test.
fn on_every_device(test: impl Fn(&str, &Device)) {
    if emulated_arch().is_none() {
        return test("the GPU", &open());
    }
    for arch in [Arch::Sm80, Arch::Sm90a] {
        test(arch.name(), &emulated(arch, KernelImages::embedded(), Options::default()));
    }
}

/// 70 queries and 100 keys, fewer than columns of v.
fn base(dtype: Dtype) -> Case {
    let gradients = Gradients { dtype, has_d_lse: false, mode: Mode::Fast };
    Case {
        batches: 2,
        query_rows: 70,
        key_rows: 100,
        query_heads: 4,
        key_heads: 2,
        head_dim: 32,
        value_dim: 104,
        dtype,
        output_dtype: dtype,
        amplitude: 0.5,
        gradients: Some(gradients),
        features: Features { dropout: Some(0.5), ..Features::default() },
        seed: 12,
        ..Case::small()
    }
}

/// For every kind of kernel, and every way to say which pair is which.
fn kinds() -> Vec<Case> {
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    let mut cases = vec![];
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let base = base(dtype);
        let long = Case { key_rows: 200, value_dim: 200, ..base.clone() };
        cases.extend([
            base.clone(),
            Case { placement: Placement::Unaligned, mask: causal, ..base.clone() },
            Case { packed: true, batches: 4, seed: 7, ..base.clone() },
            Case { num_splits: Some(2), ..long.clone() },
            Case { num_splits: Some(2), packed: true, batches: 3, seed: 5, ..long },
            Case { query_rows: 1, pack_gqa: Some(true), ..base.clone() },
            Case { query_rows: 5, pack_gqa: Some(true), ..base },
        ]);
    }
    cases
}

/// Sequence, query head, query and key of every pair that is visible, the rows of q and k that these are, and whether
/// dropout keeps it, in the reference.
fn pairs(case: &Case) -> Vec<([usize; 4], [usize; 2], bool)> {
    let Dropout { rate, seed, offset } = case.dropout().expect("there is dropout");
    let dropout = DropoutNumbers { rate, seed, offset, first_batch: 0 };
    let [first_queries, first_keys] = case.offsets();
    let mut pairs = vec![];
    for (sequence, [query_rows, key_rows]) in case.lengths().into_iter().enumerate() {
        let sizes = finite_attention::reference::Sizes { query_rows, key_rows, ..case.sizes() };
        let [first_query, first_key] = [&first_queries, &first_keys].map(|of| of[sequence] as usize);
        for (head, query) in
            (0..case.query_heads).flat_map(|head| (0..query_rows).map(move |query| (head, query)))
        {
            pairs.extend(sizes.visible_keys(query).map(|key| {
                let at = [sequence, head, query, key];
                (at, [first_query + query, first_key + key], dropout.keeps(at, case.query_heads))
            }));
        }
    }
    pairs
}

/// Rows of unit vectors: that of each sequence's first row is the first. So many heads and columns.
fn unit_vectors(firsts: &[i32], heads: usize, columns: usize) -> Vec<f32> {
    let rows = firsts.windows(2).flat_map(|ends| 0..(ends[1] - ends[0]) as usize);
    let lines = rows.flat_map(|row| std::iter::repeat_n(row, heads));
    lines.flat_map(|row| (0..columns).map(move |column| f32::from(u8::from(column == row)))).collect()
}

/// o of values that are unit vectors has a column for each key, and dv of gradients that are has one for each query:
/// what is 0 there was dropped.
#[test]
fn the_same_pairs_are_dropped_forward_and_backward_and_by_every_kernel() {
    on_every_device(|name, device| {
        for case in drawn(&format!("dropout-pairs {name}"), 3, kinds()) {
            let (mut inputs, mut gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
            let [first_queries, first_keys] = case.offsets();
            inputs.v = unit_vectors(&first_keys, case.key_heads, case.value_dim);
            gradients.d_o = unit_vectors(&first_queries, case.query_heads, case.value_dim);
            let what =
                format!("{name} {} {} {:?}", case.shape_text(), case.dtype.name(), case.placement);
            let computed = compute_with(device, &case, &inputs, &gradients, Surroundings::Nan)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let dv = computed.gradients.expect("the case has gradients").dv;
            let group = case.query_heads / case.key_heads;
            let mut is_kept = vec![false; dv.len()];
            let mut counts = [0; 2];
            for ([_, head, query, key], [query_row, key_row], keeps) in pairs(&case) {
                let o = computed.o[(query_row * case.query_heads + head) * case.value_dim + key];
                assert_eq!(o != 0.0, keeps, "{what}: head {head} query {query} key {key}: o is {o}");
                let line = key_row * case.key_heads + head / group;
                is_kept[line * case.value_dim + query] |= keeps;
                counts[usize::from(keeps)] += 1;
            }
            for (at, (dv, keeps)) in dv.iter().zip(is_kept).enumerate() {
                assert_eq!(*dv != 0.0, keeps, "{what}: dv[{at}] is {dv}");
            }
            let [dropped, kept]: [i32; 2] = counts;
            assert!((dropped - kept).abs() < (dropped + kept) / 5, "{what}: {dropped} {kept}");
        }
    });
}

/// Of values and gradients whose products are 1, `dBias = p (2 - delta)` of what is kept, and `-p delta` of what is
/// not, with a delta between 0 and 2.
#[test]
fn the_gradient_of_a_bias_drops_the_same_pairs() {
    on_every_device(|name, device| {
        for dtype in [Dtype::Bf16, Dtype::F32] {
            for packed in [false, true] {
                let bias = BiasFeature {
                    dtype,
                    dimensions: Dimensions::ALL,
                    placement: ScorePlacement::Dense,
                    values: BiasValues::Normal,
                    gradient: Some(Dtype::F32),
                };
                let base = base(dtype);
                let features = Features { bias: Some(bias), ..base.features };
                let case = Case { features, packed, batches: 3, ..base };
                let (mut inputs, mut gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
                for numbers in [&mut inputs.v, &mut gradients.d_o] {
                    for row in numbers.chunks_mut(case.value_dim) {
                        row.fill(0.0);
                        row[0] = 1.0;
                    }
                }
                let computed = compute_with(device, &case, &inputs, &gradients, Surroundings::Nan)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                let d_bias = computed.gradients.expect("the case has gradients").d_bias;
                let [heads, queries, keys] = [case.query_heads, case.query_rows, case.key_rows];
                let (pairs, mut told) = (pairs(&case), 0);
                for &([sequence, head, query, key], [query_row, _], keeps) in &pairs {
                    // Rows that keep nothing or everything have a delta of 0 or 2, and tell nothing.
                    let o = computed.o[(query_row * heads + head) * case.value_dim];
                    let tells = (0.1..1.9).contains(&o);
                    let d_bias = d_bias[((sequence * heads + head) * queries + query) * keys + key];
                    let at = format!("{name} {}: {sequence} {head} {query} {key}", dtype.name());
                    assert!(!tells || d_bias != 0.0 && (d_bias > 0.0) == keeps, "{at}: {d_bias}");
                    told += usize::from(tells);
                }
                assert!(told > pairs.len() / 2, "{name}: {told} of {}", pairs.len());
            }
        }
    });
}

/// o of one head whose values are unit vectors.
fn dropped(device: &Device, seed: u64, offset: u64) -> Vec<f32> {
    let layout = Layout::bshd([1, 64, 1, 64]);
    let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout)
        .with_output_dtype(Dtype::F32)
        .with_dropout(0.5, seed, offset);
    let zeros = vec![bf16::ZERO; 64 * 64];
    let v: Vec<bf16> = unit_vectors(&[0, 64], 1, 64).into_iter().map(bf16::from_f32).collect();
    let (q, k, v, scores) = (&zeros[..], &zeros[..], &v[..], ScoreSlices::default());
    let inputs = ForwardInputs { q, k, v, scores, cu_seqlens_q: &[], cu_seqlens_k: &[] };
    let output = forward_inputs_host::<bf16, f32>(device, &problem, &inputs);
    output.unwrap_or_else(|error| panic!("{error}")).o
}

#[test]
fn another_offset_drops_other_pairs() {
    on_every_device(|name, device| {
        let (seed, offset) = (0xfedc_ba98_7654_3210, 0x8000_0000_ffff_ffff);
        let first = dropped(device, seed, offset);
        assert_eq!(first, dropped(device, seed, offset), "{name}");
        let kept = first.iter().filter(|&&o| o != 0.0).count();
        assert!((1700..2400).contains(&kept), "{name}: {kept}");
        // Scores are alike: 2/64 of what is kept.
        assert!(first.iter().all(|&o| o == 0.0 || (o - 1.0 / 32.0).abs() < 1e-6), "{name}");
        for (other_seed, other_offset) in [
            (seed, offset + 1),
            (seed, offset - 1),
            (seed, offset ^ 1 << 40),
            (seed ^ 1, offset),
            (seed ^ 1 << 63, offset),
        ] {
            let other = dropped(device, other_seed, other_offset);
            let alike = first.iter().zip(&other).filter(|(first, other)| first == other).count();
            assert!((1700..2400).contains(&alike), "{name} {other_seed:x} {other_offset:x}: {alike}");
        }
    });
}
