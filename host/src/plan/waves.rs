//! How many heads a backward pass works on together.

use super::{busy_wave, paired_wave};
use crate::driver::DeviceProperties;
use crate::problem::{Mode, ValidForward};
use kernels_gpu::abi::{Arch, KernelSpec, WINDOW_OPEN};
use kernels_gpu::geometry::schedule;

/// Up to how many key tiles a head is a short one.
const SHORT_HEAD_TILES: u32 = 8;

/// How many (batch, key head) pairs are worked on together, so that the q and dO of their query heads
/// stay in the L2 cache; on Hopper also their dq in f32. More, where key tiles differ in length and these are
/// too few to keep the machine busy. Half as many where heads are short: then it is memory that is waited for
/// (measured at head dims 64 and 128 up to S 1024: 0.3 to 2.4 %; from S 2048 on they would be up to 0.4 %
/// slower).
///
/// Two cases on Hopper are of their own. Where all key tiles take equally long, they go pair by pair; but
/// few of them under a boolean mask, which multiprocessors share in stretches, from the first ones of all
/// pairs on: of gathered keys, and of all masks that show what lies before a query, these are the longest.
/// And key tiles that add to dq in order wait for the one before them of their pair: they take turns with
/// those of as many pairs as run at once, so that when one ends, the next one's turn has come. Under a
/// causal mask, where several query heads share keys, tiles of different lengths are soon at different
/// heads: nobody waits then, and the heads of several pairs would be more than stays in the L2 cache
/// (measured: one pair is 1 to 13 % faster than as many as run at once).
pub(super) fn choose_wave(
    valid: &ValidForward,
    main: &KernelSpec,
    mode: Mode,
    device: &DeviceProperties,
    reasons: &mut Vec<String>,
) -> u32 {
    let pairs = valid.batches.saturating_mul(valid.key_heads);
    let hopper = main.arch == Arch::Sm90a;
    let key_tiles = valid.key_rows.div_ceil(main.key_rows).max(1);
    if hopper && mode == Mode::Deterministic {
        let is_spread = valid.group_size > 1 && ends_at_the_diagonal(valid) && !valid.is_packed();
        let wave = if is_spread { 1 } else { (device.multiprocessors / key_tiles).max(2) };
        let wave = wave.min(pairs.max(1));
        reasons.push(format!(
            "{wave} of {pairs} (batch, key head) pairs at once: each adds to dq in order"
        ));
        return wave;
    }
    if hopper && valid.sees_all() {
        let are_few = pairs.saturating_mul(key_tiles) < device.multiprocessors;
        if are_few && valid.problem.attn_mask.is_some() {
            reasons.push(format!(
                "all {pairs} (batch, key head) pairs at once: of few key tiles the first may be the longest"
            ));
            return pairs.max(1);
        }
        reasons.push("one (batch, key head) pair at once: all its key tiles take equally long".into());
        return 1;
    }
    let columns = u64::from(valid.head_dim) + u64::from(valid.value_dim);
    let mut column_bytes = columns * u64::from(valid.problem.dtype.bytes());
    if hopper {
        column_bytes += u64::from(main.head_dim) * 4;
    }
    let bytes = u64::from(valid.query_rows) * column_bytes * u64::from(valid.group_size);
    let wave = if hopper {
        // heads_per_wave fills a half of what it is given.
        let is_short = key_tiles <= SHORT_HEAD_TILES && main.head_dim <= 128 && !valid.is_packed();
        let (l2_bytes, busy) = if is_short {
            (device.l2_bytes / 3 * 2, busy_wave(key_tiles, device).div_ceil(2))
        } else {
            (device.l2_bytes / 3 * 4, busy_wave(key_tiles, device))
        };
        let most = schedule::heads_per_wave(bytes, 1, l2_bytes, pairs);
        if valid.is_packed() {
            // A wave is one of heads of a sequence.
            schedule::even_wave(valid.key_heads, most.max(busy), 1)
        } else {
            let enough = paired_wave(pairs, key_tiles, device).unwrap_or(busy);
            schedule::even_wave(pairs, most.max(enough), 1)
        }
    } else {
        schedule::heads_per_wave(bytes, 1, device.l2_bytes, pairs)
    };
    let of = if hopper && valid.is_packed() {
        format!("{} key heads of a sequence", valid.key_heads)
    } else {
        format!("{pairs} (batch, key head) pairs")
    };
    reasons.push(format!(
        "{wave} of {of} at once: {bytes} bytes of q, dO and dq per key head, {} of L2",
        device.l2_bytes
    ));
    wave
}

/// Whether all keys up to somewhere near a query are visible, and none behind: the earlier a key, the more
/// queries see it.
pub(super) fn ends_at_the_diagonal(valid: &ValidForward) -> bool {
    valid.window_left == WINDOW_OPEN && valid.window_right != WINDOW_OPEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::device;
    use crate::problem::{ForwardProblem, Layout, MaskShape};
    use kernels_gpu::abi::{Dtype, KERNELS};

    /// Gathered keys are few, and the first of them are seen by most queries.
    #[test]
    fn under_a_boolean_mask_few_key_tiles_of_all_pairs_are_worked_on_together() {
        let main = KERNELS.iter().find(|kernel| kernel.name == "backward_bf16_d128_sm90a").unwrap();
        let wave = |keys, is_masked: bool, mode| {
            let layout = |rows, heads| Layout::bshd([2, rows, heads, 128]);
            let of_keys = layout(keys, 2);
            let problem = ForwardProblem::new(Dtype::Bf16, layout(4096, 16), of_keys, of_keys);
            let mask = MaskShape { batches: 1, heads: 2, queries: 4096, keys };
            let problem = if is_masked { problem.with_attn_mask(mask) } else { problem };
            choose_wave(&problem.validate().unwrap(), main, mode, &device(), &mut Vec::new())
        };
        assert_eq!(wave(1024, true, Mode::Fast), 4);
        assert_eq!(wave(1024, false, Mode::Fast), 1);
        assert_eq!(wave(1024, true, Mode::Deterministic), wave(1024, false, Mode::Deterministic));
        // As many tiles as multiprocessors: none is divided.
        assert_eq!(wave(33 * 128, true, Mode::Fast), 1);
    }
}
