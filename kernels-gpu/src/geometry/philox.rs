//! Which pairs of query and key dropout keeps: Philox4x32 with 7 rounds (Salmon, Moraes, Dror, Shaw:
//! *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011), one call for eight pairs of a block of 16 x 16.
//!
//! ```text
//! counter   x0 = (i / 16) 8 + i % 8      x1 = (j / 16) 4 + (j % 8) / 2      x2 = b Hq + h      x3 = offset
//! number    n = (i / 8 % 2) 4 + (j / 8 % 2) 2 + j % 2: bits 16 (n % 2) .. of word n / 2    
//! docs/semantics.md, section 8
//! ```
//!
//! A lane of a fragment whose rows are queries has all eight pairs of a call: rows r and r + 8, columns 2c,
//! 2c + 1, 2c + 8 and 2c + 9.

/// Rounds.
const ROUNDS: u32 = 7;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What the key grows by after each round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four words of a counter and a key.
#[inline(always)]
pub fn philox([mut x0, mut x1, mut x2, mut x3]: [u32; 4], [mut k0, mut k1]: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < ROUNDS {
        let (first, second) = (x0 as u64 * MULTIPLIERS[0] as u64, x2 as u64 * MULTIPLIERS[1] as u64);
        x0 = (second >> 32) as u32 ^ x1 ^ k0;
        x1 = second as u32;
        x2 = (first >> 32) as u32 ^ x3 ^ k1;
        x3 = first as u32;
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
        round += 1;
    }
    [x0, x1, x2, x3]
}

/// The first two words of the counter of a pair's call.
#[inline(always)]
pub fn call(query: u32, key: u32) -> [u32; 2] {
    [query / 16 * 8 + query % 8, key / 16 * 4 + key % 8 / 2]
}

/// Which number of its call a pair has.
#[inline(always)]
pub fn number(query: u32, key: u32) -> u32 {
    query / 8 % 2 * 4 + key / 8 % 2 * 2 + key % 2
}

/// Number `number` of a call's words, times 2^16.
#[inline(always)]
pub fn scaled(words: [u32; 4], number: u32) -> u32 {
    let word = words[number as usize / 2];
    if number.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the authors' library for 7 rounds.
    #[test]
    fn words_are_those_of_the_reference() {
        assert_eq!(philox([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]
        );
    }

    #[test]
    fn a_block_of_16_by_16_has_each_number_once() {
        let mut seen = [[false; 8]; 32];
        for (query, key) in (0..16).flat_map(|query| (0..16).map(move |key| (query, key))) {
            let [x0, x1] = call(query, key);
            let seen = &mut seen[(x0 * 4 + x1) as usize][number(query, key) as usize];
            assert!(!*seen);
            *seen = true;
        }
        assert!(seen.as_flattened().iter().all(|&seen| seen));
        assert_eq!((call(16, 32), number(31, 25)), ([8, 8], 7));
        assert_eq!(scaled([0x1234_5678, 0, 0, 0], 0), 0x5678_0000);
        assert_eq!(scaled([0x1234_5678, 0, 0, 0], 1), 0x1234_0000);
    }
}
