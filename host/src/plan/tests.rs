//! What is planned for a forward pass.

use super::*;
use crate::problem::{CausalAlignment, ForwardProblem, Mask, MaskShape, Sequences};
use kernels_gpu::abi::Switch;

pub(super) fn device() -> DeviceProperties {
    DeviceProperties {
        name: "test device".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        shared_bytes_per_block: 227 << 10,
        l2_bytes: 50 << 20,
    }
}

pub(super) fn pointers() -> ForwardPointers {
    ForwardPointers { q: 0x1000, k: 0x2000, v: 0x3000, o: 0x4000, lse: 0x5000, ..Default::default() }
}

/// Two heads to a key head, each on its own.
fn problem(dtype: Dtype, head_dim: usize) -> ForwardProblem {
    let (q, kv) = (Layout::bshd([2, 300, 4, head_dim]), Layout::bshd([2, 200, 2, head_dim]));
    ForwardProblem::new(dtype, q, kv, kv).with_pack_gqa(false)
}

pub(super) fn plan(problem: &ForwardProblem, pointers: &ForwardPointers) -> ForwardPlan {
    plan_forward(&problem.validate().unwrap(), &device(), pointers).unwrap().unwrap()
}

#[test]
fn the_smallest_kernel_that_is_large_enough_is_taken() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for head_dim in [1, 8, 32, 40, 64, 72, 96, 128, 200, 256] {
            let kernel = plan(&problem(dtype, head_dim), &pointers()).variant.kernel;
            assert!(kernel.dtype == dtype && kernel.head_dim as usize >= head_dim);
            let smaller = KERNELS.iter().filter(|spec| {
                (spec.dtype, spec.access, spec.arch) == (dtype, kernel.access, kernel.arch)
            });
            for spec in smaller.filter(|spec| spec.head_dim < kernel.head_dim) {
                assert!((spec.head_dim as usize) < head_dim, "{} for {head_dim}", kernel.name);
            }
        }
    }
}

#[test]
fn the_larger_of_the_two_head_dimensions_decides() {
    let (q, k) = (Layout::bshd([1, 9, 1, 64]), Layout::bshd([1, 9, 1, 64]));
    let wide = ForwardProblem::new(Dtype::Bf16, q, k, Layout::bshd([1, 9, 1, 120]));
    assert!(plan(&wide, &pointers()).variant.kernel.head_dim >= 120);
}

#[test]
fn sixteen_byte_access_needs_every_row_on_sixteen_bytes() {
    let access = |problem: &ForwardProblem, pointers: &ForwardPointers| {
        plan(problem, pointers).variant.kernel.access
    };
    let aligned = problem(Dtype::Bf16, 64);
    assert_eq!(access(&aligned, &pointers()), Access::Vector16);
    assert_eq!(access(&problem(Dtype::Bf16, 63), &pointers()), Access::Element);
    assert_eq!(access(&problem(Dtype::F32, 4), &pointers()), Access::Vector16);
    assert_eq!(access(&problem(Dtype::F32, 6), &pointers()), Access::Element);
    for shift in [
        ForwardPointers { q: 0x1008, ..pointers() },
        ForwardPointers { k: 0x2002, ..pointers() },
        ForwardPointers { v: 0x3004, ..pointers() },
        ForwardPointers { o: 0x4002, ..pointers() },
    ] {
        assert_eq!(access(&aligned, &shift), Access::Element);
    }
    let mut padded = problem(Dtype::Bf16, 63);
    for layout in [&mut padded.q, &mut padded.k, &mut padded.v, &mut padded.o] {
        let heads = layout.shape[2] as i64;
        layout.strides = [64 * heads * layout.shape[1] as i64, 64 * heads, 64, 1];
    }
    assert_eq!(access(&padded, &pointers()), Access::Vector16);
}

#[test]
fn strides_of_single_rows_do_not_count() {
    let mut layout = Layout::bshd([1, 1, 1, 64]);
    layout.strides = [3, i64::MIN, 5, 1];
    let problem = ForwardProblem::new(Dtype::F16, layout, layout, layout).with_output(layout);
    let plan = plan(&problem, &pointers());
    assert_eq!(plan.variant.kernel.access, Access::Vector16);
    assert_eq!(
        plan.params.q,
        TensorView { address: 0x1000, batch_stride: 0, row_stride: 0, head_stride: 0 }
    );
}

#[test]
fn one_block_per_batch_head_and_tile() {
    let plan = plan(&problem(Dtype::Bf16, 128), &pointers());
    assert_eq!(plan.blocks, 300u32.div_ceil(plan.variant.kernel.query_rows) * 4 * 2);
}

#[test]
fn a_wave_fits_half_the_cache_and_keeps_groups_whole() {
    let valid = problem(Dtype::Bf16, 64).validate().unwrap();
    // Hopper has an order of its own.
    let device = DeviceProperties { compute_capability: (8, 0), ..device() };
    let small = DeviceProperties { l2_bytes: 2 * 200 * 256, ..device.clone() };
    let wave = |device: &DeviceProperties| {
        plan_forward(&valid, device, &pointers()).unwrap().unwrap().params.heads_per_wave
    };
    assert_eq!(wave(&small), 2);
    assert_eq!(wave(&DeviceProperties { l2_bytes: 0, ..device.clone() }), 2);
    assert_eq!(wave(&device), 8);
}

#[test]
fn nothing_to_compute_has_no_plan_but_no_keys_has_one() {
    let rows = |query_rows, key_rows| {
        let kv = Layout::bshd([1, key_rows, 1, 8]);
        let q = Layout::bshd([1, query_rows, 1, 8]);
        let valid = ForwardProblem::new(Dtype::F32, q, kv, kv).validate().unwrap();
        let null_inputs = ForwardPointers { k: 0, v: 0, ..pointers() };
        let pointers = if key_rows == 0 { null_inputs } else { pointers() };
        plan_forward(&valid, &device(), &pointers).unwrap()
    };
    assert_eq!(rows(0, 5), None);
    assert_eq!(rows(5, 0).unwrap().params.key_rows, 0);
}

#[test]
fn an_element_kernel_stands_in_where_shared_memory_is_small() {
    // sm_86: 99 KiB per block.
    let small = DeviceProperties { shared_bytes_per_block: 99 << 10, ..device() };
    for spec in KERNELS.iter().filter(|spec| spec.shared_bytes > small.shared_bytes_per_block) {
        let valid = problem(spec.dtype, spec.head_dim as usize).validate().unwrap();
        match plan_forward(&valid, &small, &pointers()) {
            Ok(plan) => {
                assert!(plan.unwrap().variant.kernel.shared_bytes <= small.shared_bytes_per_block)
            }
            Err(error) => assert!(matches!(error, Error::KernelMissing { .. }), "{error}"),
        }
    }
}

#[test]
fn lse_is_passed_only_when_wanted() {
    let wanted = plan(&problem(Dtype::F16, 64), &pointers());
    assert_eq!(wanted.params.lse, 0x5000);
    let without = problem(Dtype::F16, 64).without_lse();
    assert_eq!(plan(&without, &ForwardPointers { lse: 0, ..pointers() }).params.lse, 0);
}

#[test]
fn a_plan_prints_its_kernel_and_its_reasons() {
    let plan = plan(&problem(Dtype::Bf16, 63), &pointers());
    let line = plan.to_string();
    assert!(
        line.starts_with("forward_bf16_d64_strided_sm80: ") && line.ends_with(" 8 heads per wave"),
        "{line}"
    );
    let text = format!("{plan:#}");
    assert!(text.contains("\n  element access: not every row of q starts on 16 bytes\n"), "{text}");
    assert!(text.contains("\n  smallest head_dim of at least 63 is 64\n"), "{text}");
}

#[test]
fn hopper_takes_what_tensor_maps_can_describe_and_says_why_not() {
    let arch = |problem: &ForwardProblem| plan(problem, &pointers()).variant.kernel.arch;
    for (dtype, expected) in
        [(Dtype::Bf16, Arch::Sm90a), (Dtype::F16, Arch::Sm90a), (Dtype::F32, Arch::Sm80)]
    {
        assert_eq!(arch(&problem(dtype, 72)), expected);
    }
    let mut broadcast = problem(Dtype::Bf16, 64);
    broadcast.k.strides[2] = 0;
    let plan = plan(&broadcast, &pointers());
    assert_eq!((plan.variant.kernel.arch, plan.hopper), (Arch::Sm80, None));
    let text = format!("{plan:#}");
    assert!(text.contains("\n  no kernel for Hopper: the head stride of k is 0 bytes\n"), "{text}");
    let blackwell = DeviceProperties { compute_capability: (10, 0), ..device() };
    let valid = problem(Dtype::Bf16, 64).validate().unwrap();
    let plan = plan_forward(&valid, &blackwell, &pointers()).unwrap().unwrap();
    assert_eq!(plan.variant.kernel.arch, Arch::Sm80);
}

#[test]
fn blocks_for_hopper_stay_and_their_waves_are_of_equal_size() {
    let layout = Layout::bshd([2, 4096, 32, 128]);
    let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
    let full = plan(&problem, &pointers());
    assert_eq!((full.blocks, full.params.heads_per_wave), (132, 1));
    let causal = plan(&problem.with_mask(Mask::Causal(CausalAlignment::BottomRight)), &pointers());
    // A third of the cache holds eight of them, which have too few tiles.
    assert_eq!(causal.params.heads_per_wave, 16);
    let wave = |batches, rows, heads, key_heads, dim| {
        let [q, kv] = [heads, key_heads].map(|heads| Layout::bshd([batches, rows, heads, dim]));
        let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal();
        plan(&problem, &pointers()).params.heads_per_wave
    };
    // It holds 66 and 33 of these; with four query heads each, 16 groups.
    assert_eq!((wave(32, 512, 16, 16, 128), wave(16, 1024, 16, 16, 128)), (64, 32));
    assert_eq!((wave(29, 512, 16, 16, 128), wave(8, 2048, 32, 8, 128)), (58, 64));
    // Four of these keep the machine busy and are more than the cache; two thirds hold two.
    assert_eq!(wave(1, 16384, 8, 8, 256), 2);
    // What keeps it busy fits the cache.
    assert_eq!((wave(1, 4096, 20, 20, 256), wave(1, 16384, 14, 14, 128)), (10, 5));
    let maps = causal.hopper.unwrap();
    assert_eq!(maps.q.unwrap().dims, [128, 4096, 32, 2]);
    assert_eq!(maps.k.unwrap().box_dims, [64, causal.variant.kernel.key_rows, 1, 1]);
}

#[test]
fn tiles_are_tall_where_they_waste_little() {
    let rows = |rows: usize, mask: Mask| {
        let layout = Layout::bshd([1, rows, 1, 64]);
        let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout).with_mask(mask);
        plan(&problem.with_num_splits(1), &pointers()).variant.kernel.query_rows
    };
    let causal = |count| rows(count, Mask::Causal(CausalAlignment::BottomRight));
    assert_eq!([193, 247, 256].map(causal), [128; 3]);
    assert_eq!([192, 384, 512, 640, 768, 1024, 1025, 1536, 4096].map(causal), [192; 9]);
    assert_eq!([128, 129, 1024].map(|count| rows(count, Mask::Full)), [128, 192, 192]);
    let alignment = CausalAlignment::BottomRight;
    let window = Mask::Window { left: Some(64), right: Some(0), alignment };
    assert_eq!([256, 1536, 2049].map(|count| rows(count, window)), [128, 192, 192]);
}

#[test]
fn no_keys_need_no_map() {
    let (q, kv) = (Layout::bshd([1, 5, 1, 64]), Layout::bshd([1, 0, 1, 64]));
    let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv);
    let maps = plan(&problem, &ForwardPointers { k: 0, v: 0, ..pointers() }).hopper.unwrap();
    assert!(maps.q.is_some() && maps.k.is_none() && maps.v.is_none());
}

#[test]
fn the_output_has_a_map_in_16_bits() {
    let aligned = plan(&problem(Dtype::Bf16, 128), &pointers());
    let map = aligned.hopper.unwrap().o.unwrap();
    assert_eq!((map.address, map.box_dims, aligned.params.o_is_mapped), (0x4000, [64, 16, 1, 1], 1));
    let in_f32 = plan(&problem(Dtype::Bf16, 128).with_output_dtype(Dtype::F32), &pointers());
    assert_eq!((in_f32.hopper.unwrap().o, in_f32.params.o_is_mapped), (None, 0));
    let text = format!("{in_f32:#}");
    assert!(text.contains("\n  o is not stored by the tensor memory accelerator: o is f32"), "{text}");
    // On sm_80 nobody looks at it.
    assert_eq!(plan(&problem(Dtype::Bf16, 63), &pointers()).params.o_is_mapped, 0);
}

/// A problem of two batches and four heads under a boolean mask of so many batches, heads and queries.
fn masked(head_dim: usize, rows: usize, [batches, heads, queries]: [usize; 3]) -> ForwardProblem {
    let layout = Layout::bshd([2, rows, 4, head_dim]);
    let mask = MaskShape { batches, heads, queries, keys: rows };
    ForwardProblem::new(Dtype::Bf16, layout, layout, layout).with_attn_mask(mask)
}

#[test]
fn tiles_under_a_boolean_mask_are_of_as_many_rows_as_its_blocks() {
    let score = ScorePointers { mask_bits: 0x6000, ..Default::default() };
    for head_dim in [64, 80, 96, 128] {
        let plan = plan(&masked(head_dim, 4096, [1; 3]), &ForwardPointers { score, ..pointers() });
        let kernel = plan.variant.kernel;
        assert_eq!((kernel.query_rows, kernel.key_rows), (128, 128), "{}", kernel.name);
    }
}

#[test]
fn the_map_of_a_mask_stands_behind_its_bits() {
    let score = ScorePointers { mask_bits: 0x6000, ..Default::default() };
    let view = |shape| {
        let problem = masked(64, 2500, shape);
        plan(&problem, &ForwardPointers { score, ..pointers() }).params.score.mask_map
    };
    // Three windows of 1024 keys, of four levels of 40 granules of queries.
    let all = view([2, 4, 2500]);
    assert_eq!(all.address, 0x6000 + 4 * (2 * 4 * 2500 * 79 + 16 * 79 + 32));
    assert_eq!([all.batch_stride, all.head_stride, all.key_head_stride], [4 * 480, 480, 0]);
    assert_eq!([all.query_stride, all.key_stride], [1, 160]);
    // 79 words of one row, a gap of 16 rows and 32 words, and one more: elements are of eight bytes.
    let of_keys = view([1; 3]);
    assert_eq!(of_keys.address, 0x6000 + 4 * (17 * 79 + 32 + 1));
    assert_eq!([of_keys.batch_stride, of_keys.head_stride, of_keys.key_head_stride], [0; 3]);
    assert_eq!([of_keys.query_stride, of_keys.key_stride], [0, 4]);
}

#[test]
fn tall_tiles_are_planned_where_they_are_faster() {
    let rows = |head_dim: usize, rows: usize, mask: Mask| {
        let layout = Layout::bshd([2, rows, 4, head_dim]);
        let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout).with_mask(mask);
        plan(&problem.with_num_splits(1), &pointers()).variant.kernel.query_rows
    };
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    let window_of = |left| Mask::Window {
        left: Some(left),
        right: Some(0),
        alignment: CausalAlignment::BottomRight,
    };
    let without_later_limit =
        Mask::Window { left: Some(64), right: None, alignment: CausalAlignment::BottomRight };
    let (window, narrow_window) = (window_of(1023), window_of(1022));
    let expected = [
        (64, Mask::Full, vec![(128, 128), (129, 192), (512, 192), (1024, 192)]),
        (64, causal, vec![(256, 128), (512, 192), (640, 192), (1024, 192), (2048, 192)]),
        (64, window, vec![(247, 128), (1024, 192), (4096, 192)]),
        (96, Mask::Full, vec![(128, 128), (512, 128), (1024, 128), (1536, 192), (4096, 192)]),
        (96, causal, vec![(1536, 128), (2048, 128), (3072, 192), (4096, 192)]),
        (96, window, vec![(1536, 128), (16384, 128)]),
        (128, Mask::Full, vec![(512, 128), (768, 192), (1024, 128), (2048, 192), (16384, 192)]),
        (128, causal, vec![(768, 128), (1536, 192), (2048, 192), (4096, 192)]),
        (128, window, vec![(1024, 128), (1536, 192), (16384, 192)]),
        (128, narrow_window, vec![(16384, 128)]),
        (128, without_later_limit, vec![(16384, 128)]),
        // Rows that do not start on sectors.
        (72, Mask::Full, vec![(128, 128), (129, 192), (512, 192)]),
        (120, causal, vec![(512, 192), (1024, 192)]),
        (88, window, vec![(1536, 192)]),
        (256, Mask::Full, vec![(768, 128)]),
    ];
    let explained = format!("{:#}", plan(&problem(Dtype::Bf16, 128), &pointers()));
    assert!(
        explained
            .contains("\n  tiles of 192 query rows: keys and values are read less often than with 128")
    );
    for (head_dim, mask, cases) in expected {
        for (count, tile) in cases {
            assert_eq!(rows(head_dim, count, mask), tile, "{head_dim} {mask:?} {count}");
        }
    }
}

/// One long sequence among many short ones: as many tiles as all would have at that length, there are not.
#[test]
fn packed_sequences_are_too_many_only_where_their_tiles_are() {
    let of = |count: usize, rows: usize| {
        let layout = Layout::packed([rows + count, 32, 64]);
        let sequences = Sequences::Packed { count, max_query_rows: rows, max_key_rows: rows };
        let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout)
            .with_sequences(sequences)
            .validate();
        let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
        plan_forward(&problem.unwrap(), &device(), &pointers)
    };
    assert_eq!(of(100_000, 131_072).unwrap().unwrap().blocks, 132);
    let error = of(70_000_000, 131_072).unwrap_err().to_string();
    assert!(error.contains("tiles of 192 query rows x 32 heads"), "{error}");
}

/// A kernel of the table is taken only if its text has what is to be switched on.
#[test]
fn what_is_switched_on_decides_which_kernels_are_candidates() {
    let softcap = Switches::NONE.with(Switch::Softcap);
    let choice = |family, switches| {
        let choice = Choice {
            family,
            dtype: Dtype::Bf16,
            head_dim: 64,
            access: Access::Vector16,
            mappable: true,
            short_tiles: true,
            gathers_heads: false,
            leaves_parts: false,
            switches,
        };
        let mut reasons = Vec::new();
        choose_kernel(&device(), &choice, &mut reasons).map(|variant| (variant, reasons))
    };
    let (off, silent) = choice(Family::Forward, Switches::NONE).unwrap();
    let (on, reasons) = choice(Family::Forward, softcap).unwrap();
    assert_eq!((on.kernel, on.to_string()), (off.kernel, format!("{off}+softcap")));
    assert_eq!(reasons, [&silent[..], &["softcap is switched on".to_owned()]].concat());
    // Of a family without the switch there is none.
    let missing = choice(Family::BackwardConvert, softcap).unwrap_err().to_string();
    assert!(choice(Family::BackwardConvert, Switches::NONE).is_ok());
    assert!(missing.ends_with("there is none with softcap"), "{missing}");
}

/// A pass over some of the keys that others merge with is of a kernel that leaves them its statistics, also
/// on a device whose blocks have too little memory for the one with shorter tiles: the one with taller tiles
/// wrote lse where the state has references and sums.
#[test]
fn passes_that_others_merge_with_leave_parts_however_little_memory_there_is() {
    let partial =
        |is_last| PartialForward { state: 0x10_0000, is_first: false, is_last, total_keys: 400 };
    let tall = KERNELS.iter().filter(|spec| {
        spec.family == Family::Forward && spec.arch == Arch::Sm90a && !spec.multiplies_parts
    });
    let mut found = 0;
    for spec in tall.filter(|spec| !spec.splits_keys()) {
        let device = DeviceProperties { shared_bytes_per_block: spec.shared_bytes, ..device() };
        let valid = problem(spec.dtype, spec.head_dim as usize).validate().unwrap();
        let kernel = |is_last| {
            let plan = plan_forward_partial(&valid, &device, &pointers(), &partial(is_last));
            plan.unwrap().unwrap().variant.kernel
        };
        assert!(kernel(false).splits_keys(), "{} instead of {}", kernel(false).name, spec.name);
        found += u32::from(kernel(true) == spec);
    }
    assert!(found > 0, "no device has room for a tall kernel alone");
}
