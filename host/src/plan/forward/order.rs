//! In which order the query tiles of a forward pass are worked on.

use super::super::busy_wave;
use super::super::row_heads::TileRows;
use crate::driver::DeviceProperties;
use crate::problem::ValidForward;
use kernels_gpu::abi::WINDOW_OPEN;
use kernels_gpu::geometry::schedule;

/// The order of a kernel for Hopper.
///
/// All tiles of a head at once, where they take equally long: then all of its keys are read by many blocks
/// at the same time (measured at head dim 128, S 4096: 7 % against as many heads as fit the L2 cache).
/// Otherwise the longest tiles of several heads first, so that short ones fill the gaps at the end, in waves
/// of equal size: [`causal_wave`].
pub(super) fn choose_hopper_wave(
    valid: &ValidForward,
    rows: &TileRows,
    device: &DeviceProperties,
    reasons: &mut Vec<String>,
) -> u32 {
    let (pairs, group) = (rows.pairs(valid), rows.group_size(valid));
    if valid.is_packed() {
        reasons.push(
            "sequence by sequence, of 32 the longest first: their lengths are in device memory".into(),
        );
        return pairs.min(valid.query_heads / rows.heads);
    }
    if valid.sees_all() || are_alike(valid, rows) {
        reasons.push(format!("{group} (batch, head) pairs at once: all their tiles take equally long"));
        return group;
    }
    let columns = u64::from(valid.head_dim) + u64::from(valid.value_dim);
    let bytes = u64::from(valid.key_rows) * columns * u64::from(valid.problem.dtype.bytes());
    let busy = busy_wave(rows.tiles(valid.query_rows), device);
    let wave = causal_wave(pairs, group, bytes, busy, device.l2_bytes);
    reasons.push(format!(
        "{wave} of {pairs} (batch, head) pairs at once: {bytes} bytes of k and v per key head, {} of L2",
        device.l2_bytes
    ));
    wave
}

/// Whether the first query tile sees nearly as many keys as the last one, in spite of a mask: there are few
/// queries and many keys (measured, causal: 512 queries and 8192 keys 5 %, 1024 queries 2 %).
pub(in crate::plan) fn are_alike(valid: &ValidForward, rows: &TileRows) -> bool {
    let visible = valid.visible();
    let keys = |first: u32| {
        let last = (first + rows.queries).min(valid.query_rows) - 1;
        let range = visible.tiles(first as i32, last as i32, 1);
        i64::from(range.end - range.begin)
    };
    let last_tile = (rows.tiles(valid.query_rows) - 1) * rows.queries;
    valid.window_left == WINDOW_OPEN && keys(0) * 8 >= keys(last_tile) * 7
}

/// How many of `pairs` (batch, query head) pairs make a wave, where `group` of them share `bytes` of keys and
/// values, and half of `busy` keeps the machine busy.
///
/// As many as fit a third of the L2 cache, through which queries and output go as well (measured at head dim
/// 128, S 512: 5 % against two thirds). If these are too few, as many as fit two thirds or as are `busy`,
/// whichever is more; but where these do not fit the cache at all, rather fewer that do, if there is a whole
/// number of such waves (head dim 256, S 8192 and 16384: 1.5 %).
fn causal_wave(pairs: u32, group: u32, bytes: u64, busy: u32, l2_bytes: u64) -> u32 {
    let fitting = |l2_bytes| {
        // heads_per_wave fills a half of what it is given.
        let most = schedule::heads_per_wave(bytes, group, 2 * l2_bytes, pairs);
        (most, schedule::even_wave(pairs, most, group))
    };
    let is_busy = |wave: u32| wave >= busy.div_ceil(2);
    let (_, of_a_third) = fitting(l2_bytes / 3);
    if is_busy(of_a_third) {
        return of_a_third;
    }
    let (most, of_two_thirds) = fitting(l2_bytes / 3 * 2);
    let wave = schedule::even_wave(pairs, most.max(busy), group);
    let fits = u64::from(wave / group).saturating_mul(bytes) <= l2_bytes;
    if !fits && is_busy(of_two_thirds) && pairs.is_multiple_of(of_two_thirds) {
        return of_two_thirds;
    }
    wave
}

/// How many (batch, query head) pairs are worked on together, so that their keys and values stay in the
/// L2 cache.
pub(super) fn choose_wave(
    valid: &ValidForward,
    device: &DeviceProperties,
    reasons: &mut Vec<String>,
) -> u32 {
    let columns = u64::from(valid.head_dim) + u64::from(valid.value_dim);
    let row_bytes = columns * u64::from(valid.problem.dtype.bytes());
    let bytes = u64::from(valid.key_rows) * row_bytes;
    let pairs = valid.batches.saturating_mul(valid.query_heads);
    let wave = schedule::heads_per_wave(bytes, valid.group_size, device.l2_bytes, pairs);
    reasons.push(format!(
        "{wave} of {pairs} (batch, head) pairs at once: {bytes} bytes of k and v per key head, {} of L2",
        device.l2_bytes
    ));
    wave
}
