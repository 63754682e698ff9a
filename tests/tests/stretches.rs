//! Key tiles of the backward for Hopper that several blocks share: gradients are those of whole tiles, and the
//! same in every run.

use finite_attention::check::{Case, Gradients, Inputs, Placement, Surroundings};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::plan::plan_backward;
use finite_attention::{BackwardPointers, CausalAlignment, Device, KernelImages, Mask, Mode};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{finite, has_repeatable_dq, identical, run};
use finite_attention_tests::device::emulated;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::recorder::{of_size, recording, with_room_for};
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::shapes::with_shared_bias;
use finite_attention_tests::share::drawn;
use kernels_gpu::abi::{Arch, Dtype, Family, KERNELS, KernelSpec};

const CAUSAL: Mask = Mask::Causal(CausalAlignment::BottomRight);
const WINDOW: Mask =
    Mask::Window { left: Some(150), right: Some(20), alignment: CausalAlignment::TopLeft };

/// What adds up.
const SUMS: &str = "backward_sum_";

/// Query heads of one key head: 24 steps for each key tile. The kernel with 192 keys is not for so many queries.
fn of_one_key_head(kernel: &KernelSpec, mask: Mask, mode: Mode) -> Case {
    let query_tiles = if kernel.key_rows == 192 { 1 } else { 3 };
    Case {
        seed: u64::from(kernel.head_dim),
        query_rows: query_tiles * kernel.query_rows as usize - 3,
        key_rows: kernel.key_rows as usize + 60,
        query_heads: 24 / query_tiles,
        key_heads: 1,
        batches: 1,
        head_dim: kernel.head_dim as usize,
        value_dim: kernel.head_dim as usize - 8,
        dtype: kernel.dtype,
        output_dtype: kernel.dtype,
        mask,
        placement: Placement::Bshd,
        gradients: Some(Gradients { dtype: kernel.dtype, has_d_lse: true, mode }),
        ..Case::small()
    }
}

/// Aligned addresses that nothing is read from.
fn anywhere() -> BackwardPointers {
    let [q, k, v, o, d_o, dq, dk, dv, lse, d_lse] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|n| n << 12);
    BackwardPointers { q, k, v, o, d_o, dq, dk, dv, lse, d_lse, ..BackwardPointers::default() }
}

fn main_kernels() -> impl Iterator<Item = &'static KernelSpec> {
    KERNELS.iter().filter(|kernel| kernel.family == Family::Backward && kernel.arch == Arch::Sm90a)
}

fn under(schedule: Schedule) -> Device {
    let options = Options { schedule, ..Options::default() };
    emulated(Arch::Sm90a, KernelImages::embedded(), options)
}

/// The case is right, and its key tiles were divided. Which kernels ran.
fn divided(device: &Device, case: &Case) -> Result<Vec<&'static str>, String> {
    let (device, launched) = recording(device);
    finite(case, &within_the_rule(&device, case, Inputs::drawn)?)?;
    let names: Vec<_> = launched.names().into_iter().collect();
    if !names.iter().any(|name| name.starts_with(SUMS)) {
        return Err(format!("nothing was divided: {names:?}"));
    }
    Ok(names)
}

/// Every main kernel, in equal parts of each tile.
#[test]
fn gradients_of_divided_key_tiles_are_right_in_every_kernel() {
    let mut ran = Vec::new();
    for kernel in main_kernels() {
        let modes = [(Mask::Full, Mode::Fast), (CAUSAL, Mode::Deterministic), (WINDOW, Mode::Fast)];
        let device = with_room_for(&under(Schedule::Latest), kernel);
        for (mask, mode) in drawn(kernel.name, 3, modes) {
            let case = of_one_key_head(kernel, mask, mode);
            ran.extend(divided(&device, &case).unwrap_or_else(|wrong| panic!("{case:?}: {wrong}")));
        }
    }
    for kernel in main_kernels() {
        assert!(ran.contains(&kernel.name), "{} did not run", kernel.name);
    }
}

/// Three multiprocessors and four key tiles: the last one is all that is divided. Gradients in f32.
#[test]
fn the_last_wave_alone_is_divided() {
    for kernel in
        drawn("stretches-last-wave", 2, main_kernels().filter(|kernel| kernel.dtype == Dtype::Bf16))
    {
        let case = of_one_key_head(kernel, Mask::Full, Mode::Fast);
        let gradients = Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Fast };
        let case = Case { batches: 2, gradients: Some(gradients), ..case };
        let device = of_size(&with_room_for(&under(Schedule::Latest), kernel), 3);
        divided(&device, &case).unwrap_or_else(|wrong| panic!("{case:?}: {wrong}"));
    }
}

/// Six multiprocessors and eight key tiles, which go in order: two of them are whole, the others in parts of some of
/// their many query heads. Gradients are the same bits under every schedule.
#[test]
fn in_order_the_last_tiles_alone_are_divided() {
    const NAMES: [&str; 3] =
        ["backward_bf16_d64_sm90a", "backward_bf16_d128_sm90a", "backward_bf16_d256_sm90a"];
    for name in drawn("stretches-in-order", 3, NAMES) {
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name).unwrap();
        let keys = kernel.key_rows as usize;
        let case = of_one_key_head(kernel, CAUSAL, Mode::Deterministic);
        let case = Case { query_rows: 4 * keys - 3, key_rows: 4 * keys - 5, ..case };
        // As many steps, whatever a tile has in a head.
        let case = Case { query_heads: 64 * kernel.query_rows as usize / keys, key_heads: 2, ..case };
        let of = |schedule| of_size(&with_room_for(&under(schedule), kernel), 6);
        let valid = case.backward_problem().unwrap().validate().unwrap();
        let plan = plan_backward(&valid, of(Schedule::Latest).properties(), &anywhere()).unwrap();
        let division = (plan.params.whole_tiles, plan.params.unit_bits, plan.params.turn_units);
        assert_eq!(division, (2, 2, 1), "{}", kernel.name);
        divided(&of(Schedule::Latest), &case).unwrap_or_else(|wrong| panic!("{case:?}: {wrong}"));
        let inputs = Inputs::drawn(&case);
        let ran = |schedule| run(&of(schedule), &case, &inputs, Surroundings::Nan);
        let same = || identical("a schedule", true, &ran(Schedule::Eager)?, &ran(Schedule::Random(0))?);
        same().unwrap_or_else(|wrong| panic!("{case:?}: {wrong}"));
    }
}

/// Batches that share a bias come one after the other for each head: what adds up finds the same tiles by their numbers.
#[test]
fn parts_are_those_of_their_tiles_where_batches_share_a_bias() {
    for name in ["backward_bf16_d64_sm90a", "backward_bf16_d128_sm90a"] {
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name).unwrap();
        let case = of_one_key_head(kernel, Mask::Full, Mode::Fast);
        // Of two batches and two heads, the second and the third of all four change places.
        let query_heads = 2 * case.query_heads;
        let case = Case { batches: 2, key_heads: 2, query_heads, ..with_shared_bias(case, false) };
        let device = with_room_for(&under(Schedule::Latest), kernel);
        divided(&device, &case).unwrap_or_else(|wrong| panic!("{case:?}: {wrong}"));
    }
}

/// Three key tiles and five multiprocessors: a turn has the end of a tile and the beginning of the next one.
#[test]
fn turns_may_have_parts_of_two_tiles() {
    for kernel in
        drawn("stretches-two-tiles", 2, main_kernels().filter(|kernel| kernel.dtype == Dtype::Bf16))
    {
        let case = of_one_key_head(kernel, Mask::Full, Mode::Fast);
        let (key_rows, query_heads) = (2 * kernel.key_rows as usize + 60, 2 * case.query_heads);
        let case = Case { key_rows, query_heads, ..case };
        let device = of_size(&with_room_for(&under(Schedule::Latest), kernel), 5);
        let valid = case.backward_problem().unwrap().validate().unwrap();
        let plan = plan_backward(&valid, device.properties(), &anywhere()).unwrap();
        let division = (plan.params.whole_tiles, plan.params.unit_bits, plan.params.turn_units);
        assert_eq!(division, (0, 10, 615), "{}", kernel.name);
        divided(&device, &case).unwrap_or_else(|wrong| panic!("{case:?}: {wrong}"));
    }
}

/// Random shapes of heads that share keys, packed ones too: key tiles that no query sees, or that a sequence does
/// not have, among them.
#[test]
fn any_shape_can_be_divided() {
    let cases = Cases::changed(|case| {
        case.key_heads = 1;
        case.query_heads = 7 + case.seed as usize % 3;
        case.batches = 1 + case.seed as usize % 2;
        (case.query_rows, case.key_rows) = (case.query_rows.min(150) + 130, case.key_rows.min(400) + 1);
        case.dtype = if case.dtype == Dtype::F32 { Dtype::Bf16 } else { case.dtype };
        let mode = if case.seed.is_multiple_of(4) { Mode::Deterministic } else { Mode::Fast };
        case.gradients =
            Some(Gradients { dtype: case.dtype, has_d_lse: case.seed.is_multiple_of(3), mode });
    });
    check("stretches", 12, cases.extended().with_enough_rows(), |device, case| {
        finite(case, &within_the_rule(device, case, Inputs::drawn)?)
    });
}

/// dK and dV are the same bits under every schedule, and dq in deterministic mode.
#[test]
fn sums_over_stretches_have_an_order() {
    let kernel = KERNELS.iter().find(|kernel| kernel.name == "backward_bf16_d128_sm90a").unwrap();
    for (mask, mode) in [(Mask::Full, Mode::Fast), (CAUSAL, Mode::Deterministic)] {
        let case = Case { query_rows: 185, ..of_one_key_head(kernel, mask, mode) };
        let inputs = Inputs::drawn(&case);
        let of = |schedule| -> Result<_, String> {
            let (device, launched) = recording(&under(schedule));
            let computed = run(&device, &case, &inputs, Surroundings::Nan)?;
            assert!(launched.names().iter().any(|name| name.starts_with(SUMS)));
            Ok(computed)
        };
        let same = || -> Finding {
            let first = of(Schedule::Latest)?;
            (0..4).try_for_each(|seed| {
                identical("a schedule", has_repeatable_dq(&case), &first, &of(Schedule::Random(seed))?)
            })
        };
        same().unwrap_or_else(|wrong| panic!("{mask:?} {mode:?}: {wrong}"));
    }
}
