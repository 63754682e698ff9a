//! How dq is added up in a backward pass.

use crate::driver::DeviceProperties;
use crate::problem::{Mode, ValidForward};
use kernels_gpu::abi::{Arch, BackwardParams, DQ_IN_ORDER, DQ_STAGGERED, DQ_UNORDERED, KernelSpec};

/// How key tiles are shared out, and into how many accumulators dq is added up.
pub(super) fn split(
    mode: Mode,
    key_tiles: u32,
    main: &KernelSpec,
    device: &DeviceProperties,
    params: &mut BackwardParams,
    reasons: &mut Vec<String>,
) {
    let key_tiles = key_tiles.max(1);
    if mode == Mode::Fast || main.arch == Arch::Sm90a {
        (params.key_blocks, params.splits, params.split_stride) = (key_tiles, 1, 0);
        return;
    }
    let pairs = u64::from(params.batches) * u64::from(params.query_heads / params.group_size);
    let splits = choose_splits(pairs, key_tiles, u64::from(device.multiprocessors * main.min_blocks));
    (params.key_blocks, params.splits) = (splits, splits);
    params.split_stride = u64::from(params.query_heads)
        * u64::from(params.accumulator_rows)
        * u64::from(params.padded_dim);
    reasons.push(format!(
        "{splits} blocks per key head for {key_tiles} key tiles, each with its own sum of dq"
    ));
}

/// Most accumulators of dq, which is what deterministic mode costs in memory.
const MAX_SPLITS: u32 = 16;

/// How many blocks each of `pairs` (batch, key head) pairs gets, when block b takes the key tiles b, b +
/// blocks, ...: the fewest that end within a tenth of the earliest end, on a machine with room for
/// `slots` blocks. More blocks mean more accumulators, which are to be zeroed and added up.
pub(super) fn choose_splits(pairs: u64, key_tiles: u32, slots: u64) -> u32 {
    let time = |splits: u32| {
        let waves = (pairs * u64::from(splits)).div_ceil(slots.max(1));
        waves * u64::from(key_tiles.div_ceil(splits))
    };
    let candidates = 1..=key_tiles.clamp(1, MAX_SPLITS);
    let best = candidates.clone().map(time).min().unwrap_or(0);
    candidates.into_iter().find(|&splits| 10 * time(splits) <= 11 * best).unwrap_or(1)
}

/// In which order key tiles add to dq in a main kernel for Hopper. Staggered where that is faster: measured,
/// with a full mask, 0.5 to 2 % at head dim 128, 1 to 8 % at 256; at 64 up to 3 % slower.
pub(super) fn dq_order(
    mode: Mode,
    valid: &ValidForward,
    main: &KernelSpec,
    params: &BackwardParams,
    reasons: &mut Vec<String>,
) -> u32 {
    if mode == Mode::Deterministic {
        return DQ_IN_ORDER;
    }
    let is_alike = valid.sees_all() && !valid.is_packed();
    let is_small = u64::from(params.key_blocks) * u64::from(params.query_rows) < 1 << 32;
    if main.head_dim > 64 && is_alike && is_small {
        reasons.push(
            "key tiles begin with different query tiles, so that they seldom wait to add to dq".into(),
        );
        return DQ_STAGGERED;
    }
    DQ_UNORDERED
}
