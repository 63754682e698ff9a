//! Every kernel that ships is run: a fixed grid of cases for each, from which the planner must choose
//! it. Of each grid one case is drawn, and the others follow where it was not planned for that kernel.

use finite_attention::check::{Case, Gradients, Inputs, Placement, with_enough_rows};
use finite_attention::{CausalAlignment, Dtype, Mask, Mode};
use finite_attention_tests::device::{emulated_arch, open};
use finite_attention_tests::recorder::{of_size, recording};
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::shapes::{is_short, precision, several_tiles};
use finite_attention_tests::share::drawn;
use finite_attention_tests::verdict::{Verdict, judge_on};
use kernels_gpu::abi::{Access, Arch, Family, KERNELS, KernelSpec};

/// Cases for one kernel: head dimensions from the smallest that no smaller kernel takes to its own.
fn grid(kernel: &KernelSpec) -> Vec<Case> {
    let same = |other: &&KernelSpec| {
        (other.family, other.arch, other.dtype, other.access, other.gathers_heads)
            == (kernel.family, kernel.arch, kernel.dtype, kernel.access, kernel.gathers_heads)
    };
    let smaller = KERNELS.iter().filter(same).map(|other| other.head_dim);
    let smallest = smaller.filter(|&dim| dim < kernel.head_dim).max().unwrap_or(0) as usize + 1;
    let largest = kernel.head_dim as usize;
    // 16-byte access needs aligned rows: gaps make them so for any head dimension.
    let placements = match kernel.access {
        Access::Vector16 if is_short(kernel) => [Placement::Spaced, Placement::Spaced, Placement::Bshd],
        Access::Vector16 => [Placement::Padded, Placement::Padded, Placement::Bshd],
        // What comes after a kernel for Hopper.
        Access::Element if kernel.arch == Arch::Sm90a => [Placement::Padded; 3],
        Access::Element => [Placement::Unaligned; 3],
    };
    let masks =
        [Mask::Full, Mask::Causal(CausalAlignment::BottomRight), Mask::Causal(CausalAlignment::TopLeft)];
    let output_dtypes = [kernel.dtype, Dtype::F32, kernel.dtype];
    let of_forward =
        [Family::Forward, Family::ForwardCombine, Family::MeasureOperands, Family::SplitOperands];
    let gradients = !of_forward.contains(&kernel.family);
    // Ranges of keys for the kernels that combine them, which take a row together where these are many.
    let ranges = if kernel.query_rows == 1 { 6 } else { 3 };
    let num_splits = (kernel.family == Family::ForwardCombine).then_some(ranges);
    let modes = [Mode::Deterministic, Mode::Fast, Mode::Fast];
    let several = if is_short(kernel) { 2 * kernel.query_rows - 1 } else { kernel.query_rows + 1 };
    let adds_up = kernel.family == Family::BackwardSum;
    let rows = match num_splits {
        // Few key tiles of many steps, which are divided.
        _ if adds_up => [(170, 130), (257, 200), (190, 70)],
        None => [(several, kernel.key_rows - 1), (3, 2 * kernel.key_rows + 1), (70, 70)],
        Some(6) => [(5, 700), (9, 641), (3, 650)],
        Some(_) => [(5, 300), (70, 257), (130, 390)],
    };
    (0..3)
        .map(|id| Case {
            id,
            seed: u64::from(kernel.head_dim) + id as u64,
            query_rows: rows[id].0 as usize,
            key_rows: rows[id].1 as usize,
            query_heads: if adds_up { 9 } else { Case::small().query_heads },
            key_heads: if adds_up { 1 } else { Case::small().key_heads },
            head_dim: [smallest, largest - 1, largest][id],
            value_dim: [smallest, largest, largest][id],
            dtype: kernel.dtype,
            output_dtype: output_dtypes[id],
            mask: masks[id],
            placement: placements[id],
            num_splits,
            pack_gqa: Some(kernel.gathers_heads),
            precision: precision(kernel),
            gradients: gradients.then_some(Gradients {
                dtype: output_dtypes[id],
                has_d_lse: id == 0,
                mode: modes[id],
            }),
            ..Case::small()
        })
        .collect()
}

/// Whether a kernel is planned on Hopper only for tensors that tensor maps cannot describe.
fn gives_way_to_hopper(kernel: &KernelSpec) -> bool {
    let same = |other: &KernelSpec| {
        let problems = |spec: &KernelSpec| (spec.family, spec.dtype, spec.access, spec.multiplies_parts);
        problems(other) == problems(kernel)
    };
    let has_other = || KERNELS.iter().any(|other| other.arch == Arch::Sm90a && same(other));
    kernel.arch == Arch::Sm80 && has_other()
}

/// Every kernel of attention for a dtype that runs on this device.
fn are_run_and_right(dtype: Dtype) {
    let (device, launched) = recording(&open());
    let (major, minor) = device.properties().compute_capability;
    let runs_here = |kernel: &&KernelSpec| {
        kernel.dtype == dtype
            && kernel.is_attention()
            // Those of score features and of ranks have properties of their own.
            && !matches!(kernel.family, Family::BiasGradient | Family::SinkGradient | Family::Accumulate)
            && !matches!(kernel.family, Family::MaskBits | Family::MaskMap | Family::Dynamic(_))
            && kernel.arch.runs_on(major, minor)
            && !(Arch::Sm90a.runs_on(major, minor) && gives_way_to_hopper(kernel))
    };
    let mut failed: Vec<String> = Vec::new();
    let mut run = |case: Case| {
        if let Err(failure) = within_the_rule(&device, &case, Inputs::drawn) {
            failed.push(format!("{} {}: {failure}", case.dtype.name(), case.shape_text()));
        }
    };
    for kernel in KERNELS.iter().filter(runs_here) {
        let cases: Vec<Case> = grid(kernel).into_iter().map(with_enough_rows).collect();
        drawn(kernel.name, 3, cases.clone()).into_iter().for_each(&mut run);
        if !launched.names().contains(kernel.name) {
            cases.into_iter().for_each(&mut run);
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    let launched = launched.names();
    let missing: Vec<&str> = KERNELS
        .iter()
        .filter(runs_here)
        .map(|kernel| kernel.name)
        .filter(|name| !launched.contains(name))
        .collect();
    assert!(missing.is_empty(), "no case is planned for {missing:?}");
}

#[test]
fn every_bf16_kernel_is_run_and_right() {
    are_run_and_right(Dtype::Bf16);
}

#[test]
fn every_f16_kernel_is_run_and_right() {
    are_run_and_right(Dtype::F16);
}

#[test]
fn every_f32_kernel_is_run_and_right() {
    are_run_and_right(Dtype::F32);
}

/// Kernels of which a case of [`several_tiles`] is planned for.
fn forward_kernels_for_hopper() -> impl Iterator<Item = &'static KernelSpec> {
    // A full mask is never planned for the tiles of 128 rows of head dimension 64.
    KERNELS.iter().filter(|kernel| {
        (kernel.family, kernel.arch) == (Family::Forward, Arch::Sm90a)
            && !(kernel.head_dim == 64 && is_short(kernel))
    })
}

/// A warpgroup that goes past a query tile of which it has no row goes on with the next one. It once counted a
/// key tile too many there, and the block waited for ever: unless that tile was the block's first or last.
#[test]
fn warpgroups_without_rows_go_on_with_the_next_query_tile() {
    if emulated_arch() != Some(Arch::Sm90a) {
        return;
    }
    for kernel in drawn("kernels-without-rows", 2, forward_kernels_for_hopper()) {
        let verdict = judge_on(&of_size(&open(), 1), kernel.name, &several_tiles(kernel.name));
        assert!(matches!(verdict, Verdict::Clean), "{}: {verdict:?}", kernel.name);
    }
}

/// The rows of a query tile are handed back behind a fence also where the output leaves otherwise than through
/// them: in f32, or in columns that are no multiple of 8. Only staging the output had one once.
#[test]
fn query_tiles_are_handed_back_behind_a_fence_whatever_the_output() {
    if emulated_arch() != Some(Arch::Sm90a) {
        return;
    }
    for kernel in forward_kernels_for_hopper() {
        let several = several_tiles(kernel.name);
        let odd = Case { value_dim: several.value_dim - 1, ..several.clone() };
        let cases = [odd, Case { output_dtype: Dtype::F32, ..several }];
        for case in drawn(&format!("{} fence", kernel.name), 2, cases) {
            let verdict = judge_on(&of_size(&open(), 1), kernel.name, &case);
            assert!(matches!(verdict, Verdict::Clean), "{}: {verdict:?}", kernel.name);
        }
    }
}

/// In a window the first key tiles of a query tile are those of its first rows, and later warpgroups leave them out.
/// Where these were as many as there are stages, the keys of the next query tile never came, and the block waited
/// for ever: at head dims 72 and 88, whose rows of odd length are for tiles of 192 queries also in a window.
#[test]
fn warpgroups_that_leave_out_the_first_key_tiles_get_the_next_query_tile() {
    if emulated_arch() != Some(Arch::Sm90a) {
        return;
    }
    let kernels = [
        ("forward_bf16_d64_sm90a", 64),
        ("forward_bf16_d80_sm90a", 72),
        ("forward_bf16_d96_sm90a", 88),
        ("forward_bf16_d128_sm90a", 120),
        ("forward_bf16_d160_sm90a", 160),
        ("forward_bf16_d256_sm90a", 256),
    ];
    // From 272 to 287 two tiles of 112 keys begin before the last 64 of the query rows 384 to 575 see any.
    let windows = [(272, 0), (280, 40), (287, 0), (330, 130), (64, 64)];
    for (kernel, head_dim) in kernels {
        for (number, (left, right)) in windows.into_iter().enumerate() {
            let alignment = CausalAlignment::BottomRight;
            let case = Case {
                query_rows: 768 - 20 * number,
                key_rows: 768,
                query_heads: 2,
                key_heads: 1,
                head_dim,
                value_dim: head_dim,
                dtype: Dtype::Bf16,
                output_dtype: Dtype::Bf16,
                mask: Mask::Window { left: Some(left), right: Some(right), alignment },
                placement: Placement::Bshd,
                gradients: None,
                pack_gqa: Some(false),
                ..Case::small()
            };
            let verdict = judge_on(&of_size(&open(), 1), kernel, &case);
            assert!(matches!(verdict, Verdict::Clean), "{kernel}, window {left}, {right}: {verdict:?}");
        }
    }
}
