//! The cases of a sweep: stratified where every value must come up, random elsewhere, the same for the
//! same seed.

use super::{Case, Features, Gradients, Placement};
use crate::problem::{CausalAlignment, Mask, Mode, Precision};
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Sequence lengths: none, one, both sides of the edges of 16, 32, 64, 128 and 192 rows, and primes. As
/// many as have no factor in common with the number of dtypes, so that each dtype meets each length.
pub const LENGTHS: [usize; 23] =
    [17, 0, 64, 1, 127, 15, 65, 16, 63, 128, 3, 129, 31, 97, 193, 5, 257, 101, 2, 192, 32, 191, 33];

/// Head dimensions: both sides of every compiled size, and everything that divides badly.
const HEAD_DIMS: [usize; 22] =
    [64, 128, 1, 32, 40, 33, 96, 7, 72, 65, 80, 127, 16, 129, 8, 100, 192, 31, 256, 2, 160, 255];

/// Multiply-adds of a case before its heads and batches are cut down.
const WORK_LIMIT: usize = 16 << 20;

/// `count` cases. The first `n` of a longer sweep with the same seed are the same cases.
pub fn cases(seed: u64, count: usize) -> Vec<Case> {
    (0..count).map(|id| extended_case(seed, id)).collect()
}

/// Case `id` of the sweep with this seed: as [`case`], and now and then with a window, packed sequences
/// or gradients.
pub fn extended_case(seed: u64, id: usize) -> Case {
    let mut case = case(seed, id);
    let mut random = StdRng::seed_from_u64(case.seed.rotate_left(32));
    if random.random_bool(0.25) {
        case.mask = pick_window(&mut random);
        if is_causal_too(case.seed) {
            case.mask = case.mask.and_causal();
        }
    }
    if random.random_bool(0.3) && case.batches > 0 {
        case.packed = true;
        case.batches = random.random_range(1..=5);
    }
    if random.random_bool(0.6) {
        case.gradients = Some(Gradients {
            dtype: if random.random_bool(0.25) { Dtype::F32 } else { case.dtype },
            has_d_lse: random.random_bool(0.3),
            mode: if random.random_bool(0.5) { Mode::Deterministic } else { Mode::Fast },
        });
    }
    shrunk(case)
}

fn pick_window(random: &mut StdRng) -> Mask {
    let mut side = || random.random_bool(0.7).then(|| random.random_range(0..=80));
    let (left, right) = (side(), side());
    let alignment = [CausalAlignment::BottomRight, CausalAlignment::TopLeft][random.random_range(0..2)];
    Mask::Window { left, right, alignment }
}

/// Whether a window is causal as well. A number of its own: what else is drawn for a seed does not depend on
/// it.
fn is_causal_too(case_seed: u64) -> bool {
    StdRng::seed_from_u64(case_seed.rotate_left(8)).random_bool(0.25)
}

/// For f32, what is asked for of how products are made. As [`is_causal_too`], of a generator of its own.
fn pick_precision(dtype: Dtype, case_seed: u64) -> Option<Precision> {
    let mut random = StdRng::seed_from_u64(case_seed.rotate_left(24));
    let picked = [Some(Precision::Fast3), Some(Precision::Fast3), Some(Precision::Fma), None];
    picked[random.random_range(0..picked.len())].filter(|_| dtype == Dtype::F32)
}

/// Case `id` of the plain sweep with this seed: forward only, full or causal, all sequences of the same
/// lengths.
pub fn case(seed: u64, id: usize) -> Case {
    let case_seed = seed.wrapping_add((id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut random = StdRng::seed_from_u64(case_seed);
    let head_dim = pick_head_dim(id, &mut random);
    let dtype = [Dtype::Bf16, Dtype::F16, Dtype::F32][id % 3];
    let key_heads = random.random_range(1..=3);
    let case = Case {
        id,
        seed: case_seed,
        batches: random.random_range(1..=3),
        query_rows: LENGTHS[id % LENGTHS.len()],
        key_rows: LENGTHS[(id / LENGTHS.len()).wrapping_add(id.wrapping_mul(5)) % LENGTHS.len()],
        query_heads: key_heads * random.random_range(1..=4),
        key_heads,
        head_dim,
        value_dim: if random.random_bool(0.25) { random.random_range(1..=256) } else { head_dim },
        dtype,
        output_dtype: if random.random_bool(0.25) { Dtype::F32 } else { dtype },
        mask: pick_mask(&mut random),
        scale: pick_scale(&mut random),
        softcap: pick_softcap(case_seed),
        features: Features::default(),
        amplitude: if random.random_bool(0.1) { 2.0 } else { 1.0 },
        logit_shift: [0.0, 200.0, -200.0][random.random_range(0..24usize).saturating_sub(21)],
        placement: Placement::ALL[id / 3 % Placement::ALL.len()],
        tight: random.random_bool(0.5),
        packed: false,
        num_splits: pick_splits(case_seed),
        pack_gqa: pick_packing(case_seed),
        precision: pick_precision(dtype, case_seed),
        gradients: None,
    };
    without_rows(shrunk(with_enough_rows(case)))
}

/// Rows, over all heads, in each tensor of a case. The tolerance rule compares the largest error in a
/// tensor with the largest one of unfused code. Errors of a row belong together: of a few rows one
/// computation may hit all and the other none, by chance.
const ENOUGH_ROWS: usize = 64;

/// The same with more heads, where there are so few rows that the tolerance rule would compare chances.
pub fn with_enough_rows(case: Case) -> Case {
    let rows = case.batches * case.key_heads * case.query_rows.min(case.key_rows);
    let more = ENOUGH_ROWS.checked_div(rows).unwrap_or(0).clamp(1, ENOUGH_ROWS);
    Case { query_heads: case.query_heads * more, key_heads: case.key_heads * more, ..case }
}

/// Half from the list, in turn, so that each comes up; half anything.
fn pick_head_dim(id: usize, random: &mut StdRng) -> usize {
    let any = random.random_range(1..=256);
    if id.is_multiple_of(2) { HEAD_DIMS[id / 2 % HEAD_DIMS.len()] } else { any }
}

fn pick_mask(random: &mut StdRng) -> Mask {
    match random.random_range(0..5) {
        0 | 1 => Mask::Full,
        2 | 3 => Mask::Causal(CausalAlignment::BottomRight),
        _ => Mask::Causal(CausalAlignment::TopLeft),
    }
}

fn pick_scale(random: &mut StdRng) -> Option<f32> {
    match random.random_range(0..16) {
        0 => Some(0.0),
        1 => Some(-0.1),
        2 => Some(0.3),
        _ => None,
    }
}

/// Numbers of their own: what else is drawn for a seed does not depend on it.
fn pick_splits(case_seed: u64) -> Option<u32> {
    let mut random = StdRng::seed_from_u64(case_seed.rotate_left(16));
    random.random_bool(0.25).then(|| random.random_range(1..=6))
}

/// From caps that most scores reach, where tanh is flat, to such that none comes near; as [`pick_splits`].
fn pick_softcap(case_seed: u64) -> Option<f32> {
    let mut random = StdRng::seed_from_u64(case_seed.rotate_left(48));
    let caps = [0.25, 1.0, 5.0, 30.0, 50.0, 1e3, 1e6];
    random.random_bool(0.25).then(|| caps[random.random_range(0..caps.len())])
}

/// As often as not what pays off, else either way; as [`pick_splits`].
fn pick_packing(case_seed: u64) -> Option<bool> {
    let mut random = StdRng::seed_from_u64(case_seed.rotate_left(32));
    random.random_bool(0.5).then(|| random.random_bool(0.5))
}

/// Fewer heads and batches where the case would take long.
fn shrunk(mut case: Case) -> Case {
    let head = case.query_rows * case.key_rows * (case.head_dim + case.value_dim);
    while case.batches * case.query_heads > 1 && case.batches * case.query_heads * head > WORK_LIMIT {
        if case.batches > 1 {
            case.batches -= 1;
        } else if case.key_heads > 1 {
            case.query_heads -= case.query_heads / case.key_heads;
            case.key_heads -= 1;
        } else {
            case.query_heads -= 1;
        }
    }
    case
}

/// Now and then no batches, or no heads at all.
fn without_rows(case: Case) -> Case {
    match case.id % 100 {
        42 => Case { batches: 0, ..case },
        77 => Case { query_heads: 0, key_heads: 0, ..case },
        _ => case,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_sweep_covers_lengths_dtypes_masks_and_placements() {
        let cases = cases(0, 240);
        assert!(cases.iter().all(|case| case.problem().validate().is_ok()));
        for length in LENGTHS {
            assert!(cases.iter().any(|case| case.query_rows == length), "{length} query rows");
            assert!(cases.iter().any(|case| case.key_rows == length), "{length} keys");
        }
        let kinds: HashSet<_> = cases.iter().map(|case| (case.dtype, case.placement)).collect();
        assert_eq!(kinds.len(), 3 * Placement::ALL.len());
        let masks: HashSet<_> = cases.iter().map(|case| case.mask.name()).collect();
        assert_eq!(masks.len(), 5);
        let both =
            |case: &&Case| matches!(case.mask, Mask::Window { left: Some(_), right: Some(0), .. });
        assert!(cases.iter().filter(both).count() > 5);
        assert!(
            cases.iter().any(|case| case.packed && case.lengths().iter().any(|l| l[0] == 0 && l[1] > 0))
        );
        assert!(
            cases.iter().any(|case| case.packed && case.lengths().iter().any(|l| l[1] == 0 && l[0] > 0))
        );
        let backward = cases.iter().filter_map(|case| Some((case.dtype, case.gradients?)));
        // Three dtypes, two modes, with and without dLSE, and dtypes of gradients: two, one for f32.
        assert_eq!(backward.collect::<HashSet<_>>().len(), 2 * 2 * (2 + 2 + 1));
        let caps: HashSet<_> = cases.iter().filter_map(|case| case.softcap.map(f32::to_bits)).collect();
        assert_eq!(caps.len(), 7);
        let split = |case: &&Case| case.num_splits > Some(1) && !case.packed && case.key_rows > 128;
        assert!(cases.iter().filter(split).count() > 5);
        assert!(cases.iter().any(|case| case.batches == 0));
        assert!(cases.iter().any(|case| case.query_heads == 0));
        assert!(cases.iter().any(|case| case.query_heads > case.key_heads));
        assert!(cases.iter().any(|case| case.value_dim != case.head_dim));
        let dead = |case: &&Case| case.mask != Mask::Full && case.sizes().visible(0) == 0;
        assert!(cases.iter().filter(dead).count() > 10);
    }

    #[test]
    fn the_same_seed_gives_the_same_cases_and_another_gives_others() {
        assert_eq!(cases(7, 20), cases(7, 30)[..20]);
        assert_ne!(cases(7, 20), cases(8, 20));
    }
}
