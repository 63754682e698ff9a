//! Gradients where fused kernels have failed before: tails in every tile configuration, f16 near its range,
//! keys alone, and many runs of the same call.

use finite_attention::check::{
    Case, Computed, GradientInputs, Gradients, Inputs, Placement, Surroundings, expected,
    with_enough_rows,
};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{CausalAlignment, Device, Dtype, KernelImages, Mask, Mode};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{finite, has_repeatable_dq, identical, run, run_with};
use finite_attention_tests::device::{arch_of, emulated, emulated_arch, open};
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::recorder::{recording, recording_as, small, with_room_for};
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::shapes::precision;
use finite_attention_tests::share::{drawn, is_whole};
use kernels_gpu::abi::{Access, Arch, Family, KERNELS, KernelSpec};

const CAUSAL: Mask = Mask::Causal(CausalAlignment::BottomRight);
const MODES: [Mode; 2] = [Mode::Fast, Mode::Deterministic];

fn right(device: &Device, case: &Case, numbers: impl Fn(&Case) -> Inputs) -> Result<Computed, String> {
    let computed = within_the_rule(device, case, numbers)?;
    finite(case, &computed)?;
    Ok(computed)
}

/// The case in which dV of another library's kernel was NaN, with the head dimension of `kernel`; or, where
/// other tiles would be planned for its 256 rows, a shorter one.
fn original_case(kernel: &KernelSpec, mode: Mode) -> Case {
    let head_dim = kernel.head_dim as usize;
    let (query_rows, key_rows) = match (kernel.query_rows, kernel.key_rows) {
        (80, _) => (160, 160),
        (_, 192) => (64, 256),
        _ => (256, 256),
    };
    Case {
        seed: u64::from(kernel.head_dim),
        query_rows,
        key_rows,
        query_heads: 1,
        key_heads: 1,
        head_dim,
        value_dim: head_dim,
        dtype: kernel.dtype,
        output_dtype: kernel.dtype,
        mask: CAUSAL,
        placement: if kernel.access == Access::Element { Placement::Unaligned } else { Placement::Bshd },
        gradients: Some(Gradients { dtype: kernel.dtype, has_d_lse: false, mode }),
        precision: precision(kernel),
        ..Case::small()
    }
}

/// One head of 256 rows, causal: every main kernel of the backward, with key tiles side by side or one
/// after another, as is drawn.
#[test]
fn one_causal_head_of_256_rows_is_right_in_every_tile_configuration() {
    let device = open();
    let (major, minor) = device.properties().compute_capability;
    let runs_here =
        |kernel: &&KernelSpec| kernel.family == Family::Backward && kernel.arch.runs_on(major, minor);
    for kernel in KERNELS.iter().filter(runs_here) {
        for mode in MODES {
            let case = original_case(kernel, mode);
            let (device, launched) = recording_as(&with_room_for(&device, kernel), kernel.arch);
            for device in drawn(&format!("{} {mode:?}", kernel.name), 2, [&device, &small(&device)]) {
                right(device, &case, Inputs::drawn)
                    .unwrap_or_else(|wrong| panic!("{} {mode:?}: {wrong}", kernel.name));
            }
            assert!(launched.names().contains(kernel.name), "{} {mode:?} did not run", kernel.name);
        }
    }
}

/// q five times and k and v three times as large as usual, at short lengths.
#[test]
fn large_f16_inputs_have_finite_gradients() {
    for rows in [1, 2, 5, 17, 128] {
        for (mask, mode) in [(Mask::Full, Mode::Fast), (CAUSAL, Mode::Deterministic)] {
            let case = with_enough_rows(Case {
                seed: rows as u64,
                query_rows: rows,
                key_rows: rows,
                dtype: Dtype::F16,
                output_dtype: Dtype::F16,
                mask,
                gradients: Some(Gradients { dtype: Dtype::F16, has_d_lse: false, mode }),
                ..Case::small()
            });
            let large = |case: &Case| {
                let mut inputs = Inputs::drawn(case);
                inputs.q.iter_mut().for_each(|q| *q *= 5.0);
                inputs.k.iter_mut().chain(&mut inputs.v).for_each(|number| *number *= 3.0);
                inputs
            };
            right(&open(), &case, large).unwrap_or_else(|wrong| panic!("{rows} rows: {wrong}"));
        }
    }
}

/// dO near the largest f16, as with a loss scaled for f16, and large v: dS exceeds the range of f16 by far,
/// dQ, dK and dV do not exceed that of f32.
#[test]
fn f16_gradients_beyond_its_range_are_right() {
    let (fast, deterministic) = ((Mask::Full, Mode::Fast), (CAUSAL, Mode::Deterministic));
    let small = Case::small().head_dim;
    // Head dim, and rows of usual size.
    let runs =
        [(fast, small, 40), (deterministic, small, 40), (fast, 256, 70), (deterministic, 192, 70)];
    for ((mask, mode), head_dim, usual_rows) in runs {
        let case = Case {
            query_rows: 150,
            key_rows: 170,
            head_dim,
            value_dim: head_dim,
            dtype: Dtype::F16,
            output_dtype: Dtype::F16,
            mask,
            gradients: Some(Gradients { dtype: Dtype::F32, has_d_lse: false, mode }),
            ..Case::small()
        };
        let (mut inputs, mut gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
        inputs.v.iter_mut().for_each(|v| *v *= 1000.0);
        // Not all rows, so that usual and unusual tiles meet in one sum.
        let columns = case.query_heads * case.value_dim;
        gradients.d_o[usual_rows * columns..].iter_mut().for_each(|d_o| *d_o *= 10_000.0);
        let computed = run_with(&open(), &case, &inputs, &gradients, Surroundings::Nan).unwrap();
        finite(&case, &computed).unwrap();
        let got = computed.gradients.as_ref().unwrap();
        let (exact, _) = expected(&case, &computed.inputs, &got.inputs, &computed.o).gradients.unwrap();
        for (name, got, exact) in
            [("dq", &got.dq, &exact.dq), ("dk", &got.dk, &exact.dk), ("dv", &got.dv, &exact.dv)]
        {
            let size = exact.iter().fold(0.0, |size: f64, exact| size.max(exact.abs()));
            let errors = got.iter().zip(exact).map(|(&got, exact)| (f64::from(got) - exact).abs());
            let error = errors.fold(0.0, f64::max);
            // Probabilities and dS are rounded to 11 bits, each sum holds both.
            assert!(error <= 2f64.powi(-10) * size, "{head_dim} {mode:?} {name}: {error:e} of {size:e}");
            assert!(name == "dv" || size > 1e6, "{name}: {size:e} is no large gradient");
        }
    }
}

/// Whether the emulator runs kernels that have nothing of what some tests are about.
fn is_older_than_hopper() -> bool {
    emulated_arch() == Some(Arch::Sm80)
}

/// Where every query sees every key, key tiles begin with different query tiles, and those who compute count
/// them from the first one: they hid rows of the wrong tile, since the last one, which is ragged, had a mask.
#[test]
fn staggered_key_tiles_hide_no_rows_of_a_ragged_query_tile() {
    if is_older_than_hopper() {
        return;
    }
    for (head_dim, query_rows) in [(128, 73), (128, 330), (256, 73), (72, 191)] {
        let case = Case {
            query_rows,
            key_rows: 390,
            head_dim,
            value_dim: head_dim,
            dtype: Dtype::Bf16,
            output_dtype: Dtype::Bf16,
            mask: Mask::Full,
            gradients: Some(Gradients { dtype: Dtype::F32, has_d_lse: true, mode: Mode::Fast }),
            ..Case::small()
        };
        right(&open(), &case, Inputs::drawn).unwrap();
    }
}

/// Where the backward for Hopper takes 80 queries a step, dq is multiplied transposed, and another kernel turns
/// it: with every kind of last tile, columns that are no whole chunks of 16 bytes, either element type and either
/// order.
#[test]
fn tiles_of_80_queries_are_right_with_any_rest() {
    if is_older_than_hopper() {
        return;
    }
    let (device, launched) = recording(&open());
    for (number, query_rows) in [66, 80, 137, 160, 201, 300].into_iter().enumerate() {
        for (head_dim, value_dim, key_rows) in [(128, 128, 390), (101, 72, 130), (72, 101, 60)] {
            let dtype = [Dtype::Bf16, Dtype::F16][number % 2];
            let mode = MODES[number / 2 % 2];
            let gradient = if head_dim == 101 { Dtype::F32 } else { dtype };
            let gradients = Gradients { dtype: gradient, has_d_lse: true, mode };
            let case = Case {
                batches: 2,
                mask: if key_rows == 130 { CAUSAL } else { Mask::Full },
                query_rows,
                key_rows,
                head_dim,
                value_dim,
                dtype,
                output_dtype: dtype,
                placement: Placement::Padded,
                gradients: Some(gradients),
                ..Case::small()
            };
            right(&device, &case, Inputs::drawn).unwrap();
        }
    }
    if device.properties().compute_capability == (9, 0) {
        for name in ["backward_bf16_d128_q80_sm90a", "backward_f16_d128_q80_sm90a"] {
            assert!(launched.names().contains(name), "{name} did not run");
        }
    }
}

/// Three warpgroups that take turns at dq: four warps of one were apart by three steps, one of them still
/// multiplied what another one overwrote. Long walks, with every kind of last tile.
#[test]
fn warps_of_three_warpgroups_do_not_overtake_their_turns() {
    if is_older_than_hopper() {
        return;
    }
    let (device, launched) = recording(&open());
    let window = Mask::Window { left: Some(38), right: Some(20), alignment: CausalAlignment::TopLeft };
    for (number, (query_rows, key_rows)) in
        [(65, 128), (64, 192), (130, 385), (47, 191)].into_iter().enumerate()
    {
        for (dtype, mask) in [(Dtype::F16, window), (Dtype::Bf16, Mask::Full), (Dtype::Bf16, CAUSAL)] {
            let gradients = Gradients { dtype, has_d_lse: number % 2 == 1, mode: MODES[number / 2] };
            let case = Case {
                seed: number as u64,
                batches: 3,
                query_rows,
                key_rows,
                query_heads: 8,
                key_heads: 2,
                head_dim: 40,
                value_dim: 40,
                dtype,
                output_dtype: dtype,
                mask,
                placement: Placement::Padded,
                gradients: Some(gradients),
                ..Case::small()
            };
            for device in [&device, &small(&device)] {
                right(device, &case, Inputs::drawn).unwrap();
            }
        }
    }
    if device.properties().compute_capability == (9, 0) {
        for name in ["backward_bf16_d64_k192_sm90a", "backward_f16_d64_k192_sm90a"] {
            assert!(launched.names().contains(name), "{name} did not run");
        }
    }
}

/// A key alone has probability 1: dV is the sum of dO, and dQ and dK are 0, exactly.
#[test]
fn sequences_of_one_key_are_right() {
    let cases = Cases::fitted(|mut case| {
        (case.packed, case.key_rows, case.mask) = (true, 1, Mask::Full);
        // Many heads have a key each.
        case.query_rows = case.query_rows.min(100);
        if let Some(gradients) = &mut case.gradients {
            gradients.has_d_lse = false;
        }
        (case.gradients.is_some() && case.batches > 0).then_some(case)
    });
    check("gradients-one-key", 30, cases.extended().with_just_enough_rows(), |device, case| {
        let computed = right(device, case, Inputs::drawn)?;
        let gradients = computed.gradients.as_ref().ok_or("no gradients")?;
        for (name, tensor) in [("dq", &gradients.dq), ("dk", &gradients.dk)] {
            if let Some(at) = tensor.iter().position(|&number| number != 0.0) {
                return Err(format!("{}: {name}: element {at} is {}", gradients.kernel, tensor[at]));
            }
        }
        Ok(())
    });
}

/// So many runs: on a GPU, where blocks come in any order, of the same; in the emulator, which repeats itself, under other
/// schedules, and four unless all is run.
fn repeats_give_the_same_bits(device: &Device, case: &Case, repeats: usize) -> Finding {
    let inputs = Inputs::drawn(case);
    let first = run(device, case, &inputs, Surroundings::Nan)?;
    let same = |device: &Device| {
        let again = run(device, case, &inputs, Surroundings::Nan)?;
        identical(&first.kernel, has_repeatable_dq(case), &first, &again)
    };
    if emulated_arch().is_none() {
        return (1..repeats).try_for_each(|_| same(device));
    }
    same(device)?;
    (2..if is_whole() { repeats as u64 } else { 4 }).try_for_each(|number| {
        let options = Options { schedule: Schedule::Random(case.seed ^ number), ..Options::default() };
        same(&emulated(arch_of(device), KernelImages::embedded(), options))
    })
}

/// A fixed grid in deterministic mode: several key tiles, ragged, grouped heads, for each dtype.
#[test]
fn a_grid_has_the_same_bits_in_every_run() {
    let device = open();
    let repeats = if emulated_arch().is_some() { 20 } else { 100 };
    let grid = [(200, 333, 64), (257, 130, 128), (70, 193, 40)];
    for (dtype, (query_rows, key_rows, head_dim)) in
        [Dtype::Bf16, Dtype::F16, Dtype::F32].into_iter().zip(grid)
    {
        for mask in [Mask::Full, CAUSAL] {
            let case = Case {
                query_rows,
                key_rows,
                head_dim,
                value_dim: head_dim,
                dtype,
                output_dtype: dtype,
                mask,
                gradients: Some(Gradients { dtype, has_d_lse: true, mode: Mode::Deterministic }),
                ..Case::small()
            };
            let shape = case.shape_text();
            repeats_give_the_same_bits(&device, &case, repeats)
                .unwrap_or_else(|wrong| panic!("{dtype:?} {shape}: {wrong}"));
        }
    }
}

/// Random cases in either mode: in the fast one dk and dv repeat, and dq need not.
#[test]
fn many_runs_give_the_same_bits() {
    let cases = Cases::fitted(|case| case.gradients.is_some().then_some(case)).extended();
    check("gradients-repeat", 12, cases.with_fewer_heads(), |device, case| {
        repeats_give_the_same_bits(device, case, 20)
    });
}
