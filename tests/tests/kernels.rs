//! Every kernel that ships is run: a fixed grid of cases for each, which the planner must give to it.

use finite_attention::check::{Case, Placement, run_case};
use finite_attention::{CausalAlignment, Device, Dtype, Mask};
use finite_attention_tests::device::open;
use kernels_gpu::abi::{Access, Family, KERNELS, KernelSpec};

/// Cases for one kernel: head dimensions from the smallest that no smaller kernel takes to its own.
fn grid(kernel: &KernelSpec) -> Vec<Case> {
    let same = |other: &&KernelSpec| {
        (other.family, other.arch, other.dtype, other.access)
            == (kernel.family, kernel.arch, kernel.dtype, kernel.access)
    };
    let smaller = KERNELS.iter().filter(same).map(|other| other.head_dim);
    let smallest = smaller.filter(|&dim| dim < kernel.head_dim).max().unwrap_or(0) as usize + 1;
    let largest = kernel.head_dim as usize;
    // 16-byte access needs aligned rows: gaps make them so for any head dimension.
    let placements = match kernel.access {
        Access::Vector16 => [Placement::Padded, Placement::Padded, Placement::Bshd],
        Access::Element => [Placement::Unaligned; 3],
    };
    let masks =
        [Mask::Full, Mask::Causal(CausalAlignment::BottomRight), Mask::Causal(CausalAlignment::TopLeft)];
    let output_dtypes = [kernel.dtype, Dtype::F32, kernel.dtype];
    let rows = [(kernel.query_rows + 1, kernel.key_rows - 1), (3, 2 * kernel.key_rows + 1), (70, 70)];
    (0..3)
        .map(|id| Case {
            id,
            seed: u64::from(kernel.head_dim) + id as u64,
            query_rows: rows[id].0 as usize,
            key_rows: rows[id].1 as usize,
            head_dim: [smallest, largest - 1, largest][id],
            value_dim: [smallest, largest, largest][id],
            dtype: kernel.dtype,
            output_dtype: output_dtypes[id],
            mask: masks[id],
            placement: placements[id],
            ..Case::small()
        })
        .collect()
}

/// What is wrong with one case of a forward kernel.
fn forward_failure(device: &Device, kernel: &KernelSpec, case: &Case) -> Option<String> {
    let outcome = run_case(device, case);
    let text = format!("{}, {}", kernel.name, case.shape_text());
    match outcome.failure {
        Some(failure) => Some(format!("{text}: {failure}")),
        None if outcome.kernel != kernel.name => {
            Some(format!("{text} is planned for {}", outcome.kernel))
        }
        None => None,
    }
}

#[test]
fn every_forward_kernel_is_run_and_right() {
    let device = open();
    let wrong: Vec<String> = KERNELS
        .iter()
        .flat_map(|kernel| match kernel.family {
            Family::Forward => {
                let failures =
                    grid(kernel).into_iter().map(|case| forward_failure(&device, kernel, &case));
                failures.flatten().collect::<Vec<_>>()
            }
            // `check` has no backward cases yet.
            Family::BackwardDelta | Family::Backward | Family::BackwardConvert => Vec::new(),
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
