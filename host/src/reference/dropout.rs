//! Which probabilities are dropped: section 8 of `docs/semantics.md`, written down once more.

/// Dropout of a problem, as it is asked for. Numbers are those of the batches from `first_batch` on: a packed
/// sequence that is computed alone may not be the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutNumbers {
    /// The share that is dropped, from 0 to below 1.
    pub rate: f32,
    /// Seed of the numbers.
    pub seed: u64,
    /// Which numbers of the seed.
    pub offset: u64,
    /// What the first batch counts as.
    pub first_batch: usize,
}

impl DropoutNumbers {
    /// `T = round(2^16 rate)`.
    fn threshold(&self) -> u32 {
        (65536.0 * f64::from(self.rate)).round() as u32
    }

    /// What probabilities that are kept are multiplied by.
    pub fn scale(&self) -> f64 {
        65536.0 / f64::from(65536 - self.threshold())
    }

    /// Whether the pair of a batch, query head, query and key is kept, where there are so many query heads.
    pub fn keeps(&self, [batch, head, query, key]: [usize; 4], query_heads: usize) -> bool {
        let counter = [
            (query / 16 * 8 + query % 8) as u32,
            (key / 16 * 4 + key % 8 / 2) as u32,
            ((self.first_batch + batch) * query_heads + head) as u32,
            self.offset as u32,
        ];
        let high = |number: u64| (number >> 32) as u32;
        let words = philox(counter, [self.seed as u32, high(self.seed) ^ high(self.offset)]);
        let number = query / 8 % 2 * 4 + key / 8 % 2 * 2 + key % 2;
        (words[number / 2] >> (16 * (number % 2))) & 0xffff >= self.threshold()
    }
}

/// Philox4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw 2011).
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let round = |[a, b, c, d]: [u32; 4], round: u32| {
        let [low, high] = [(key[0], 0x9e37_79b9_u32), (key[1], 0xbb67_ae85)]
            .map(|(key, step)| key.wrapping_add(step.wrapping_mul(round)));
        let (left, right) = (u64::from(a) * 0xd251_1f53, u64::from(c) * 0xcd9e_8d57);
        [(right >> 32) as u32 ^ b ^ low, right as u32, (left >> 32) as u32 ^ d ^ high, left as u32]
    };
    (0..7).fold(counter, round)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the authors' library for 7 rounds. That pairs find the same numbers as in kernels is a
    /// test of the problem.
    #[test]
    fn words_are_those_of_the_authors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let words = [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a];
        assert_eq!(philox(counter, [0xa409_3822, 0x299f_31d0]), words);
    }

    #[test]
    fn the_share_that_is_kept_is_what_the_rate_leaves() {
        for rate in [0.0, 0.1, 0.5, 0.9, 0.999] {
            let dropout = DropoutNumbers { rate, seed: 7, offset: 1 << 40, first_batch: 0 };
            let places = (0..1 << 18).map(|at| [at >> 17, at >> 16 & 1, at >> 8 & 255, at & 255]);
            let kept = places.filter(|&at| dropout.keeps(at, 2)).count() as f64;
            let (count, rate) = (f64::from(1 << 18), f64::from(rate));
            // Six deviations, and what rounding the rate makes.
            let allowed = 6.0 * (count * rate * (1.0 - rate)).sqrt() + count / 131_072.0;
            assert!((kept - count * (1.0 - rate)).abs() <= allowed, "{rate}: {kept}");
            assert!((dropout.scale() * (1.0 - rate) - 1.0).abs() < 1e-2, "{rate}");
        }
    }
}
