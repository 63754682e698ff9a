//! What is planned for a backward pass.

use super::dq::choose_splits;
use super::tests::device;
use super::*;
use crate::problem::{BackwardProblem, ForwardProblem, Mode, Sequences};
use kernels_gpu::abi::{BackwardParams, DQ_IN_ORDER, DQ_STAGGERED, ROW_PADDING, Switch};
use proptest::prelude::*;

pub(super) fn pointers() -> BackwardPointers {
    let [q, k, v, o, d_o] = [0x1000, 0x2000, 0x3000, 0x4000, 0x5000];
    let [dq, dk, dv, lse, d_lse] = [0x6000, 0x7000, 0x8000, 0x9000, 0xa000];
    let (cu_seqlens_q, cu_seqlens_k) = (0xb000, 0xc000);
    let pointers = BackwardPointers { q, k, v, o, d_o, dq, dk, dv, lse, d_lse, ..Default::default() };
    BackwardPointers { cu_seqlens_q, cu_seqlens_k, ..pointers }
}

pub(super) fn problem(dtype: Dtype, head_dim: usize) -> BackwardProblem {
    let (q, kv) = (Layout::bshd([2, 300, 4, head_dim]), Layout::bshd([2, 200, 2, head_dim]));
    BackwardProblem::new(ForwardProblem::new(dtype, q, kv, kv))
}

pub(super) fn plan(problem: &BackwardProblem) -> BackwardPlan {
    plan_backward(&problem.validate().unwrap(), &device(), &pointers()).unwrap()
}

pub(super) fn families(plan: &BackwardPlan) -> Vec<Family> {
    plan.launches.iter().map(|launch| launch.variant.kernel.family).collect()
}

#[test]
fn kernels_that_belong_together() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for head_dim in [1, 8, 32, 63, 64, 72, 96, 128, 200, 256] {
            let plan = plan(&problem(dtype, head_dim));
            let mut expected = vec![Family::BackwardDelta, Family::Backward, Family::BackwardConvert];
            if plan.stretches.slots() > 0 {
                expected.push(Family::BackwardSum);
            }
            assert_eq!(families(&plan), expected);
            let [delta, main, convert] = [0, 1, 2].map(|at| plan.launches[at].variant.kernel);
            assert!(delta.dtype == dtype && main.dtype == dtype && convert.dtype == dtype);
            assert!(main.head_dim as usize >= head_dim && main.head_dim == plan.params.padded_dim);
            assert_eq!((convert.head_dim, convert.access), (main.head_dim, main.access));
            assert_eq!((convert.query_rows, convert.arch), (main.query_rows, main.arch));
        }
    }
}

#[test]
fn capped_scores_are_capped_by_the_main_kernel() {
    let of = |softcap| {
        let mut problem = problem(Dtype::Bf16, 128);
        (problem.forward.softcap, problem.forward.scale) = (softcap, Some(0.5));
        plan(&problem)
    };
    let (off, on) = (of(None), of(Some(20.0)));
    let switched: Vec<bool> =
        on.launches.iter().map(|launch| launch.variant.switches.contains(Switch::Softcap)).collect();
    assert_eq!(
        switched,
        families(&on).iter().map(|&family| family == Family::Backward).collect::<Vec<_>>()
    );
    assert!(off.launches.iter().all(|launch| launch.variant.switches.is_empty()));
    assert_eq!((on.params.softcap, on.params.softcap_factor), (20.0, 0.025));
    assert_eq!((off.params.softcap, off.params.softcap_factor), (0.0, 0.0));
}

#[test]
fn capped_rows_are_looked_at_for_steep_ones_where_the_cap_or_sinks_allow_them() {
    let is_on = |cap, has_sinks| {
        let mut problem = problem(Dtype::Bf16, 128);
        (problem.forward.softcap, problem.forward.has_sinks) = (cap, has_sinks);
        problem.forward.validate().unwrap().backward_switches().contains(Switch::SteepCap)
    };
    assert!(!is_on(None, true) && !is_on(Some(50.0), false) && !is_on(Some(191.0), false));
    assert!(is_on(Some(192.0), false) && is_on(Some(50.0), true));
}

#[test]
fn grids_cover_padded_rows_keys_and_query_tiles() {
    let plan = plan(&problem(Dtype::Bf16, 128));
    let blocks: Vec<u32> = plan.launches.iter().map(|launch| launch.blocks).collect();
    assert_eq!(plan.main_kernel().unwrap().kernel.name, "backward_bf16_d128_q80_sm90a");
    assert_eq!(blocks, [320 / 64 * 4 * 2, 200u32.div_ceil(128) * 2 * 2, 300u32.div_ceil(80) * 4 * 2]);
    assert_eq!((plan.params.key_blocks, plan.params.splits, plan.params.split_stride), (2, 1, 0));
}

#[test]
fn workspaces_have_room_for_whole_query_tiles_and_blocks_of_delta() {
    for (value_dim, delta_rows) in [(128, 64), (64, 128)] {
        for rows in [1, 64, 65, 80, 81, 300, 511, 1024, 2100] {
            let layout = |columns| Layout::bshd([2, rows, 4, columns]);
            let forward = ForwardProblem::new(Dtype::Bf16, layout(128), layout(128), layout(value_dim));
            let plan = plan(&BackwardProblem::new(forward));
            let (main, padded) = (plan.main_kernel().unwrap(), plan.params.padded_rows);
            let tiles = (rows as u32).next_multiple_of(main.kernel.query_rows);
            assert!(padded >= tiles && padded - tiles < delta_rows, "{rows} rows: {padded}");
            assert!(padded.is_multiple_of(delta_rows), "{rows} rows: {padded}");
            assert_eq!(plan.params.workspace_rows, 2 * padded);
            assert_eq!(plan.launches[0].blocks, padded / delta_rows * 4 * 2);
        }
    }
}

#[test]
fn the_workspace_holds_statistics_and_accumulators() {
    let fast = plan(&problem(Dtype::F32, 128));
    let rows = 320 * 2;
    assert_eq!(u64::from(fast.params.workspace_rows), rows);
    assert_eq!(fast.workspace_bytes(), 4 * (4 * 4 * rows + 4 * rows * 128));
    let deterministic = plan(&problem(Dtype::F32, 128).with_mode(Mode::Deterministic));
    let splits = u64::from(deterministic.params.splits);
    assert!(splits > 1 && splits == u64::from(deterministic.params.key_blocks));
    assert_eq!(deterministic.params.split_stride, 4 * rows * 128);
    assert_eq!(deterministic.workspace_bytes(), 4 * (4 * 4 * rows + splits * 4 * rows * 128));
    let params = fast.params_with(0x100, fast.workspace_bytes()).unwrap();
    assert_eq!((params.statistics, params.dq_accumulator), (0x100, 0x100 + 4 * 4 * 4 * rows));
    assert_eq!((params.dq_notes, params.counter), (0, 0));
}

#[test]
fn on_hopper_the_workspace_holds_notes_too_and_one_accumulator_in_every_mode() {
    // Tiles of 80 queries, and accumulators to the end of the last eight queries.
    let (rows, accumulated) = (320 * 2, 304 * 2);
    let before_counter = 4 * (4 * 4 * rows + 4 * accumulated * 128);
    for mode in [Mode::Fast, Mode::Deterministic] {
        let plan = plan(&problem(Dtype::Bf16, 128).with_mode(mode));
        assert_eq!(plan.params.dq_order == DQ_IN_ORDER, mode == Mode::Deterministic);
        assert_eq!((plan.params.key_blocks, plan.params.splits), (2, 1));
        // One for the tiles, one for each of two batches of two key heads.
        let counters = 1 + 2 * 2;
        assert_eq!(plan.workspace_bytes(), before_counter + 4 * (counters + 4 * rows / 32));
        let params = plan.params_with(0x100, plan.workspace_bytes()).unwrap();
        assert_eq!(params.counter, 0x100 + before_counter);
        assert_eq!(params.dq_notes, params.counter + 4 * counters);
    }
}

/// What is left of the scale for the end is between 1 and 2, or all of it.
#[test]
fn small_scales_are_split_exactly() {
    for (dtype, scale, expected) in [
        (Dtype::Bf16, 0.0625, 1.0),
        (Dtype::Bf16, 1.0 / 256.0, 1.0),
        (Dtype::Bf16, -0.003, 2f32.powi(-9)),
        (Dtype::Bf16, 1e-40, f32::MIN_POSITIVE),
        (Dtype::Bf16, 0.0, 1.0),
        (Dtype::F16, 1e-30, 1.0),
        (Dtype::F32, 3.0, 1.0),
        (Dtype::F32, 0.3, 0.25),
        (Dtype::F32, 0.0, 1.0),
    ] {
        let forward = problem(dtype, 64).forward.with_scale(scale);
        let BackwardParams { ds_scale, gradient_scale, .. } =
            plan(&BackwardProblem::new(forward)).params;
        assert_eq!(ds_scale, expected, "{dtype:?}, {scale}");
        assert_eq!(ds_scale * gradient_scale, scale, "{dtype:?}, {scale}");
    }
}

#[test]
fn divided_key_tiles_have_slots_between_accumulators_and_counters() {
    let (q, kv) = (Layout::bshd([1, 2048, 32, 128]), Layout::bshd([1, 2048, 1, 128]));
    let problem = BackwardProblem::new(ForwardProblem::new(Dtype::Bf16, q, kv, kv));
    for mode in [Mode::Fast, Mode::Deterministic] {
        let plan = plan(&problem.with_mode(mode));
        let families = families(&plan);
        assert_eq!(families[1..], [Family::Backward, Family::BackwardConvert, Family::BackwardSum]);
        assert_eq!(plan.launches[1].blocks, 128);
        // Rows in sixteens, of dk and dv, of 16 tiles.
        assert_eq!(plan.launches[3].blocks, 16 * 2 * 128 / 16);
        let params = plan.params_with(0x100, plan.workspace_bytes()).unwrap();
        assert!(params.stretch_sums > params.dq_accumulator && params.stretch_sums.is_multiple_of(16));
        let slot_bytes = u64::from(plan.stretches.slots()) * 4 * 2 * 128 * 128;
        assert_eq!(params.counter, params.stretch_sums + slot_bytes);
        assert_eq!(params.tile_keys, 128);
    }
    let whole = plan(&self::problem(Dtype::Bf16, 128));
    let params = whole.params_with(0x100, whole.workspace_bytes()).unwrap();
    assert_eq!((whole.stretches.slots(), params.stretch_sums), (0, 0));
}

#[test]
fn on_hopper_the_workspace_is_dq_in_f32_and_four_rows_and_little_more() {
    let of = |head_dim: usize, rows: usize, causal: bool| {
        let layout = Layout::bshd([16384 / rows, rows, 16, head_dim]);
        let mut forward = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
        if causal {
            forward = forward.causal();
        }
        let plan = plan(&BackwardProblem::new(forward));
        // Statistics are of whole query tiles.
        let padded_rows = (16384 / rows) as u64 * u64::from(plan.params.padded_rows);
        let least = 4 * 16 * (16384 * head_dim as u64 + 4 * padded_rows);
        let over = plan.workspace_bytes() - least;
        assert!(500 * over < least, "head dim {head_dim}, {rows} rows: {over} bytes over {least}");
    };
    for head_dim in [64, 128, 192, 256] {
        for rows in [512, 1024, 2048, 4096, 8192, 16384] {
            of(head_dim, rows, false);
            of(head_dim, rows, true);
        }
    }
}

#[test]
fn accumulators_of_sequences_end_with_their_last_queries() {
    for (rows, head_dim, expected) in
        [(4096, 128, 4096), (4097, 128, 4104), (129, 128, 136), (190, 128, 192), (129, 64, 256)]
    {
        let layout = |columns| Layout::bshd([3, rows, 4, columns]);
        let forward = ForwardProblem::new(Dtype::Bf16, layout(head_dim), layout(head_dim), layout(64));
        let params = plan(&BackwardProblem::new(forward)).params;
        assert_eq!(params.padded_rows - params.dq_gap, expected, "{rows} rows, head dim {head_dim}");
    }
}

#[test]
fn blocks_for_hopper_stay_and_waves_keep_them_busy() {
    let wave_of = |batches, rows, heads, key_heads, causal, mode| {
        let [q, kv] = [heads, key_heads].map(|heads| Layout::bshd([batches, rows, heads, 128]));
        let mut forward = ForwardProblem::new(Dtype::Bf16, q, kv, kv);
        if causal {
            forward = forward.causal();
        }
        let plan = plan(&BackwardProblem { mode, ..BackwardProblem::new(forward) });
        assert_eq!(plan.launches[1].blocks, 132);
        plan.params.heads_per_wave
    };
    let wave = |batches, rows, heads, key_heads, causal| {
        wave_of(batches, rows, heads, key_heads, causal, Mode::Fast)
    };
    assert_eq!(wave(8, 4096, 16, 16, false), 1);
    // Two thirds of the L2 cache hold 8 pairs.
    assert_eq!(wave(8, 4096, 16, 16, true), 8);
    // Half as many of these, whose heads are short.
    assert_eq!([(32, 512), (16, 1024)].map(|(b, s)| wave(b, s, 16, 16, true)), [32, 16]);
    // It holds one pair of 64 key tiles, and 132 blocks take those of two at once. Where no even number of
    // such waves makes up all pairs, a wave keeps the machine busy by itself.
    assert_eq!([(2, 8192), (1, 8192), (4, 4096)].map(|(b, s)| wave(b, s, 32, 8, true)), [2, 2, 4]);
    assert_eq!([(1, 8192), (2, 6144)].map(|(b, s)| wave(b, s, 20, 5, true)), [5, 10]);
    // In order, as many pairs take turns as run at once, and at least two.
    for causal in [false, true] {
        let in_order = |batches, rows| wave_of(batches, rows, 16, 16, causal, Mode::Deterministic);
        assert_eq!((in_order(8, 4096), in_order(16, 1024), in_order(2, 16384)), (4, 16, 2));
    }
}

/// The heads of a sequence: waves of 12 would be followed by ones of 4 in each of them.
#[test]
fn waves_of_packed_sequences_divide_the_heads_where_they_can() {
    let wave = |heads, head_dim| {
        let layout = Layout::packed([16384, heads, head_dim]);
        let sequences = Sequences::Packed { count: 12, max_query_rows: 4096, max_key_rows: 4096 };
        let forward = ForwardProblem::new(Dtype::Bf16, layout, layout, layout).with_sequences(sequences);
        plan(&BackwardProblem::new(forward.causal())).params.heads_per_wave
    };
    assert_eq!(
        [(16, 128), (32, 64), (8, 256), (12, 128), (17, 128)].map(|(h, d)| wave(h, d)),
        [8, 16, 8, 12, 9]
    );
}

#[test]
fn key_tiles_for_hopper_are_staggered_unless_something_is_against_it() {
    let staggers = |problem: BackwardProblem| plan(&problem).params.dq_order == DQ_STAGGERED;
    assert!(staggers(problem(Dtype::Bf16, 128)) && !staggers(problem(Dtype::F32, 128)));
    assert!(!staggers(problem(Dtype::Bf16, 128).with_mode(Mode::Deterministic)));
    let of = |head_dim, rows| {
        let layout = Layout::bshd([1, rows, 2, head_dim]);
        ForwardProblem::new(Dtype::F16, layout, layout, layout)
    };
    let staggers_forward = |forward| staggers(BackwardProblem::new(forward));
    assert!(staggers_forward(of(72, 512)) && staggers_forward(of(256, 512)));
    assert!(!staggers_forward(of(64, 512)) && !staggers_forward(of(128, 512).causal()));
    // The number of key tiles times that of query rows is to be less than 2^32.
    assert!(staggers_forward(of(128, 741_376)) && !staggers_forward(of(128, 741_504)));
    let packed = Layout::packed([300, 4, 128]);
    let sequences = Sequences::Packed { count: 5, max_query_rows: 150, max_key_rows: 130 };
    let forward = ForwardProblem::new(Dtype::Bf16, packed, packed, packed).with_sequences(sequences);
    assert!(!staggers_forward(forward));
}

#[test]
fn packed_rows_are_padded_once_per_sequence() {
    let (q, kv) = (Layout::packed([300, 4, 64]), Layout::packed([200, 2, 64]));
    let sequences = Sequences::Packed { count: 5, max_query_rows: 150, max_key_rows: 130 };
    let forward = ForwardProblem::new(Dtype::F16, q, kv, kv).with_sequences(sequences);
    let plan = plan(&BackwardProblem::new(forward));
    assert_eq!(plan.params.workspace_rows, (300 / 128 + 5) * 128);
    assert_eq!((plan.params.cu_seqlens_q, plan.params.cu_seqlens_k), (0xb000, 0xc000));
    assert_eq!((plan.params.lse_batch_stride, plan.params.lse_head_stride), (0, 300));
    let blocks: Vec<u32> = plan.launches.iter().map(|launch| launch.blocks).collect();
    assert_eq!(blocks, [256 / 128 * 4 * 5, 2 * 2 * 5, 2 * 4 * 5]);
}

/// dk and dv of packed keys without queries are zeroed as those of one batch: waves that were chosen for all
/// sequences would number more tiles than 32 bits hold.
#[test]
fn waves_are_of_what_is_left_without_queries() {
    let count = 1 << 16;
    let (q, kv) = (Layout::packed([0, 1, 256]), Layout::packed([64 * count, 1, 256]));
    let sequences = Sequences::Packed { count, max_query_rows: 0, max_key_rows: 64 * count };
    let forward = ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal().with_sequences(sequences);
    let params = plan(&BackwardProblem::new(forward)).params;
    assert_eq!((params.batches, params.heads_per_wave), (1, 1));
}

#[test]
fn the_fewest_splits_that_end_first_are_taken() {
    // 32 pairs, 32 key tiles, 132 places: 4 splits make one wave of 8 tiles, 8 make two of 4.
    assert_eq!(choose_splits(32, 32, 132), 4);
    assert_eq!(choose_splits(1, 32, 132), 16);
    assert_eq!(choose_splits(1000, 32, 132), 1);
    assert_eq!(choose_splits(1, 1, 132), 1);
    assert_eq!(choose_splits(0, 7, 0), 1);
}

#[test]
fn without_queries_the_main_kernel_runs_alone_and_without_keys_it_does_not() {
    let shape = |query_rows, query_heads, key_rows| {
        let q = Layout::bshd([2, query_rows, query_heads, 8]);
        let kv = Layout::bshd([2, key_rows, 2, 8]);
        plan(&BackwardProblem::new(ForwardProblem::new(Dtype::F32, q, kv, kv)))
    };
    for plan in [shape(0, 4, 9), shape(7, 0, 9)] {
        assert_eq!(families(&plan), [Family::Backward]);
        assert_eq!((plan.launches[0].blocks, plan.workspace_bytes()), (4, 0));
        assert_eq!((plan.params.query_heads, plan.params.group_size), (2, 1));
    }
    assert_eq!(families(&shape(7, 4, 0)), [Family::BackwardDelta, Family::BackwardConvert]);
    assert_eq!(families(&shape(0, 4, 0)), []);
}

#[test]
fn every_tensor_of_the_main_kernel_counts_for_the_access_and_o_does_not() {
    let access = |change: &dyn Fn(&mut BackwardPointers)| {
        let mut pointers = pointers();
        change(&mut pointers);
        let valid = problem(Dtype::Bf16, 64).validate().unwrap();
        plan_backward(&valid, &device(), &pointers).unwrap().main_kernel().unwrap().kernel.access
    };
    assert_eq!(access(&|p| p.o += 2), Access::Vector16);
    assert_eq!(access(&|p| p.d_o += 2), Access::Element);
    assert_eq!(access(&|p| p.dq += 8), Access::Element);
    assert_eq!(access(&|p| p.dv += 4), Access::Element);
}

#[test]
fn a_plan_prints_its_kernels_and_its_reasons() {
    let plan = plan(&problem(Dtype::Bf16, 63).with_mode(Mode::Deterministic));
    let text = plan.to_string();
    assert_eq!(text.lines().count(), 3);
    assert!(
        text.lines().nth(1).unwrap().starts_with("backward_bf16_d64_strided_sm80: 8 blocks"),
        "{text}"
    );
    let text = format!("{plan:#}");
    assert!(text.contains("bytes of workspace\n  element access: not every row of q starts"), "{text}");
    assert!(
        text.contains("\n  2 blocks per key head for 2 key tiles, each with its own sum of dq"),
        "{text}"
    );
}

proptest! {
    /// No workspace row of a packed sequence is used by two, and none is past the end.
    #[test]
    fn packed_sequences_do_not_meet_in_the_workspace(lengths in proptest::collection::vec(0u32..400, 1..9)) {
        use kernels_gpu::abi::workspace_row_packed;
        let total: u32 = lengths.iter().sum();
        let (q, kv) = (Layout::packed([total as usize, 1, 8]), Layout::packed([1, 1, 8]));
        let max_query_rows = *lengths.iter().max().unwrap() as usize;
        let sequences = Sequences::Packed { count: lengths.len(), max_query_rows, max_key_rows: 1 };
        let forward = ForwardProblem::new(Dtype::F32, q, kv, kv).with_sequences(sequences);
        let rows = plan(&BackwardProblem::new(forward)).params.workspace_rows;
        let (mut first_query, mut free) = (0, 0);
        for (batch, length) in lengths.iter().enumerate() {
            let start = workspace_row_packed(first_query, batch as u32);
            prop_assert!(start >= free);
            free = start + length.next_multiple_of(ROW_PADDING);
            first_query += length;
        }
        prop_assert!(total == 0 || free <= rows);
    }

    #[test]
    fn splits_are_never_more_than_tiles_and_never_slower_than_one(
        pairs in 0..5000u64, tiles in 1..600u32, slots in 1..300u64,
    ) {
        let splits = choose_splits(pairs, tiles, slots);
        prop_assert!(splits >= 1 && splits <= tiles && splits <= 16);
        let waves = |splits: u32| (pairs * u64::from(splits)).div_ceil(slots);
        let time = |splits: u32| waves(splits) * u64::from(tiles.div_ceil(splits));
        prop_assert!(time(splits) <= time(1));
    }
}
