//! Which of both ways to multiply f32 a problem takes: one choice for its forward and its backward, which
//! must make scores alike (docs/f32-tensor-cores.md).

use super::super::forward::can_count_sequences;
use crate::driver::{DevicePointer, DeviceProperties};
use crate::problem::{Precision, ValidForward};
use kernels_gpu::abi::{Arch, Dtype, Family, KERNELS, KernelSpec, WINDOW_OPEN};

/// The most columns of kernels that multiply parts.
const MOST_COLUMNS: u32 = 128;
/// The least columns of q and k: of fewer, what parts are off by is more than what f32 rounds their sum by.
const LEAST_COLUMNS: u32 = 8;
/// The least cap of scores. What a gradient is multiplied by, `1 - tanh^2`, changes by `2 / cap`
/// of itself for each unit of a score: of smaller caps by more than the probability does. What parts are off
/// by then counts more than what lse is rounded by.
const LEAST_CAP: f32 = 2.0;

/// Keys of a query below which fused multiply-adds take no longer than making the parts does, unless parts
/// are asked for.
const LEAST_KEYS: u64 = 256;
/// Floating point operations of a forward below which launching the kernels that make parts takes longer than
/// these save. Likewise.
const LEAST_OPERATIONS: u64 = 1_000_000_000;
/// Query rows of a block that multiplies parts.
const BLOCK_ROWS: u64 = 128;
/// How many times as fast as fused multiply-adds parts are, about: with fewer query tiles than a device has
/// multiprocessors, divided by this, fused multiply-adds over ranges of keys are faster. Likewise.
const TIMES_AS_FAST: u64 = 4;

/// The kernel by which the forward of a problem of f32 multiplies parts, whose q, k, v and o are `at` these
/// addresses, or why it does not. A backward asks the same.
pub(in crate::plan) fn forward_kernel(
    valid: &ValidForward,
    at: [DevicePointer; 4],
    device: &DeviceProperties,
) -> Result<&'static KernelSpec, String> {
    let precision = valid.problem.precision;
    let why_not = match precision {
        Some(Precision::Fma) => Some("asked for".to_owned()),
        Some(Precision::Fast3) => obstacle(valid, at),
        None => obstacle(valid, at).or_else(|| is_not_worth_it(valid, device)),
    };
    match why_not {
        Some(why_not) => Err(why_not),
        None => kernel(valid, device),
    }
}

/// The kernel for a device.
fn kernel(valid: &ValidForward, device: &DeviceProperties) -> Result<&'static KernelSpec, String> {
    let on_hopper = can_count_sequences(valid, &mut Vec::new());
    let runs = |spec: &&KernelSpec| {
        runs(spec, Family::Forward, valid, device) && (on_hopper || spec.arch != Arch::Sm90a)
    };
    let kernel =
        KERNELS.iter().filter(runs).min_by_key(|spec| (spec.arch != Arch::Sm90a, spec.head_dim));
    kernel.ok_or_else(|| no_kernel(device))
}

/// Why there is no kernel.
pub(in crate::plan) fn no_kernel(device: &DeviceProperties) -> String {
    format!("no kernel runs with {} bytes of shared memory", device.shared_bytes_per_block)
}

/// Whether a kernel of a family multiplies parts of so many columns on a device.
fn runs(spec: &KernelSpec, family: Family, valid: &ValidForward, device: &DeviceProperties) -> bool {
    let (major, minor) = device.compute_capability;
    spec.multiplies_parts
        && spec.family == family
        && spec.head_dim >= valid.head_dim.max(valid.value_dim)
        && spec.arch.runs_on(major, minor)
        && spec.shared_bytes <= device.shared_bytes_per_block
}

/// Why a forward does not multiply parts, whatever kernels there are.
fn obstacle(valid: &ValidForward, at: [DevicePointer; 4]) -> Option<String> {
    let (problem, columns) = (&valid.problem, valid.head_dim.max(valid.value_dim));
    let tensors = [("q", &problem.q), ("k", &problem.k), ("v", &problem.v), ("o", &problem.o)];
    let unaligned = || {
        let mut all = tensors.into_iter().zip(at);
        all.find(|((_, layout), at)| !layout.rows_aligned(*at, Dtype::F32, 16))
            .map(|((name, _), _)| name)
    };
    // A backward need not know how its forward was shared out: where parts are not asked for, ranges of keys
    // decide nothing.
    let are_ranges = problem.num_splits.is_some_and(|ranges| ranges > 1) && problem.precision.is_some();
    if columns > MOST_COLUMNS {
        Some(format!("head_dim {columns} is above {MOST_COLUMNS}"))
    } else if valid.head_dim < LEAST_COLUMNS {
        Some(format!("head_dim {} is below {LEAST_COLUMNS}", valid.head_dim))
    } else if let Some(cap) = problem.softcap.filter(|&cap| cap < LEAST_CAP) {
        Some(format!("softcap {cap} is below {LEAST_CAP}"))
    } else if are_ranges {
        Some("ranges of keys are asked for".to_owned())
    } else if problem.k.elements() == 0 {
        Some("there are no keys".to_owned())
    } else if problem.q.shape[1] == 1 {
        // A column of one number may be small by chance, which is then left to fma on the device.
        Some("q has a single row".to_owned())
    } else if valid.key_rows == 1 {
        // Its probability is 1, and dq and dk are exactly 0 where dp and delta are the same sum.
        Some("a query sees a single key".to_owned())
    } else {
        unaligned().map(|name| format!("not every row of {name} starts on 16 bytes"))
    }
}

/// Why parts are not faster, forward and backward together: what is asked where nobody asked for them.
///
/// Measured (H200, 32 batches of 32 heads, head dim 64): at S 512 making parts takes half of the forward's
/// 0.98 ms, and fused multiply-adds take 2.05; the times of both, but for making parts, go with S.
fn is_not_worth_it(valid: &ValidForward, device: &DeviceProperties) -> Option<String> {
    let keys = seen_keys(valid);
    let [batches, rows, heads, _] = valid.problem.q.shape.map(|extent| extent as u64);
    let columns = u64::from(valid.head_dim) + u64::from(valid.value_dim);
    let all_rows = batches.saturating_mul(rows).saturating_mul(heads);
    let operations = all_rows.saturating_mul(2 * keys * columns);
    let sequences = if valid.is_packed() { u64::from(valid.batches) } else { 0 };
    let tiles = batches.saturating_mul(rows.div_ceil(BLOCK_ROWS)).saturating_add(sequences);
    let tiles = tiles.saturating_mul(heads);
    let has_backward = KERNELS.iter().any(|spec| runs(spec, Family::Backward, valid, device));
    if keys < LEAST_KEYS {
        Some(format!("a query sees at most {keys} keys: parts would take as long to make"))
    } else if operations < LEAST_OPERATIONS {
        Some(format!("{operations} operations: parts would take as long to make"))
    } else if tiles.saturating_mul(TIMES_AS_FAST) < u64::from(device.multiprocessors) {
        Some(format!("{tiles} query tiles of parts would leave the device idle"))
    } else if valid.problem.wants_lse && !has_backward {
        Some(format!("of gradients {}", no_kernel(device)))
    } else {
        None
    }
}

/// The most keys that a query sees.
fn seen_keys(valid: &ValidForward) -> u64 {
    let sides = [valid.window_left, valid.window_right];
    if sides.contains(&WINDOW_OPEN) {
        return valid.key_rows.into();
    }
    let width: i64 = sides.into_iter().map(i64::from).sum::<i64>() + 1;
    u64::from(valid.key_rows).min(width.max(0) as u64)
}
