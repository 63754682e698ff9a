//! What one run has of much that is alike: a share that is drawn with the seed, so that another run has another one.

use crate::device::{emulated, emulated_arch, emulated_archs, open};
use crate::property::{seed_from_environment, seed_of};
use finite_attention::driver::emulated::Options;
use finite_attention::{Device, KernelImages};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

/// Whether all is run, and not a share of it: with `FATTN_CASES=all`, and on a GPU, which is quick.
pub fn is_whole() -> bool {
    emulated_arch().is_none() || std::env::var("FATTN_CASES").is_ok_and(|text| text == "all")
}

/// One of `of` of `all`, and one at least, in their order: each as likely as the others, for every `test` others. All of
/// them [where all is run](is_whole).
pub fn drawn<T>(test: &str, of: usize, all: impl IntoIterator<Item = T>) -> Vec<T> {
    let all = all.into_iter().collect();
    if is_whole() { all } else { draw(seed_of(test, seed_from_environment()), of, all) }
}

fn draw<T>(seed: u64, of: usize, all: Vec<T>) -> Vec<T> {
    let mut numbers: Vec<usize> = (0..all.len()).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(seed));
    numbers.truncate(all.len().div_ceil(of));
    all.into_iter()
        .enumerate()
        .filter(|(number, _)| numbers.contains(number))
        .map(|(_, one)| one)
        .collect()
}

/// As [`crate::device::on_each`], for one of the emulator's targets, which is drawn.
pub fn on_one(test: &str, run: impl Fn(&Device)) {
    if emulated_arch().is_none() {
        return run(&open());
    }
    for arch in drawn(test, 2, emulated_archs()) {
        run(&emulated(arch, KernelImages::embedded(), Options::default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_drawn_anew_with_each_seed_and_all_have_their_turn() {
        let draw = |seed| draw(seed, 3, (0..10).collect());
        assert_eq!(draw(7), draw(7));
        let shares: Vec<Vec<u32>> = (0..400).map(draw).collect();
        assert!(shares.iter().all(|share| share.len() == 4 && share.is_sorted()));
        for one in 0..10 {
            let times = shares.iter().filter(|share| share.contains(&one)).count();
            assert!((120..=200).contains(&times), "{one}: {times} of 400");
        }
    }

    #[test]
    fn of_few_there_is_one() {
        assert_eq!(draw(0, 5, vec!["alone"]), ["alone"]);
        assert_eq!(draw(0, 5, vec![(); 3]).len(), 1);
        assert!(draw(0, 5, Vec::<()>::new()).is_empty());
    }
}
