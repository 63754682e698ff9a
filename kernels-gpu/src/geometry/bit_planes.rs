//! Numbers as bit planes: of 32 keys in a row of a bias, a word for each bit of their rank. Comparing and
//! counting are then logic on 32 keys at once, and the words stand in the order in which masks have bits.
//!
//! A rank is the number's bits as an unsigned integer that grows with it. 0 and -0 have one rank, and so have
//! all NaN, which is the highest.

/// The rank of 0, and of -0, of a type of so many bits.
pub const fn rank_of_zero(bits: u32) -> u32 {
    1 << (bits - 1)
}

/// The rank of the lowest finite number of a type, whose infinity has these bits: that of minus infinity is
/// the one below.
pub const fn rank_of_lowest(bits: u32, infinity: u32) -> u32 {
    rank_of_zero(bits) - infinity
}

/// Ranks of two numbers of 16 bits, in the halves of a word.
#[inline(always)]
pub const fn rank_pair(word: u32, infinity: u32) -> u32 {
    const HALVES: u32 = 0x0001_0001;
    let size = word & (0x7fff * HALVES);
    // Sums of halves stay in them: their top bits say whether a size is above 0, or above infinity.
    let is_negative = word & size.wrapping_add(0x7fff * HALVES) & (0x8000 * HALVES);
    let is_nan = size.wrapping_add((0x7fff - infinity) * HALVES) & (0x8000 * HALVES);
    let flipped = is_negative - (is_negative >> 15);
    let rank = (size ^ flipped) | (!is_negative & (0x8000 * HALVES));
    rank | is_nan | (is_nan - (is_nan >> 15))
}

/// The rank of an f32.
#[inline(always)]
pub const fn rank_f32(bits: u32) -> u32 {
    let size = bits & 0x7fff_ffff;
    if size > 0x7f80_0000 {
        u32::MAX
    } else if bits == size || size == 0 {
        size | 0x8000_0000
    } else {
        size ^ 0x7fff_ffff
    }
}

/// Keys 0 and 1, 2 and 3, ... of 32 in the halves of words, as keys 0 and 16, 1 and 17, ...
#[inline(always)]
pub const fn pair_far_keys(words: &mut [u32; 32]) {
    let near = *words;
    let mut i = 0;
    while i < 8 {
        words[2 * i] = (near[i] & 0xffff) | (near[i + 8] << 16);
        words[2 * i + 1] = (near[i] >> 16) | (near[i + 8] & 0xffff_0000);
        i += 1;
    }
}

/// Transposes the bits of the first `BITS` words, 16 or 32, in blocks of as many columns: bit j of word i
/// becomes bit i of word j. By exchanging halves of blocks, halves of these, and so on (Hacker's Delight,
/// section 7-3).
#[inline(always)]
pub const fn transpose<const BITS: usize>(words: &mut [u32; 32]) {
    let mut half = BITS / 2;
    while half > 0 {
        // Columns of the lower half of each block.
        let columns = u32::MAX / ((1 << half) + 1);
        let mut i = 0;
        while i < BITS {
            if i & half == 0 {
                let (upper, lower) = (words[i], words[i + half]);
                words[i] = (upper & columns) | ((lower & columns) << half);
                words[i + half] = ((upper >> half) & columns) | (lower & !columns);
            }
            i += 1;
        }
        half /= 2;
    }
}

/// A bit for each key whose rank is above `rank`; with `or_equal` all bits set, also if it is equal.
#[inline(always)]
pub const fn above<const BITS: usize>(planes: &[u32; 32], rank: u32, or_equal: u32) -> u32 {
    let mut above = or_equal;
    let mut bit = 0;
    while bit < BITS {
        // All bits set if the rank has the bit: a key must then have it as well.
        let needed = 0u32.wrapping_sub((rank >> bit) & 1);
        above = (planes[bit] & above) | (!needed & (planes[bit] | above));
        bit += 1;
    }
    above
}

/// The lowest `count` set bits of a word.
#[inline(always)]
pub const fn lowest_bits(word: u32, count: u32) -> u32 {
    if count >= word.count_ones() {
        return word;
    }
    let (mut rest, mut left) = (word, count);
    while left > 0 {
        rest &= rest - 1;
        left -= 1;
    }
    word & !rest
}

/// Bits of a word whose keys begin at `first`, of those from `begin` to before `end`.
#[inline(always)]
pub const fn range_bits(first: i32, begin: i32, end: i32) -> u32 {
    below(end - first) & !below(begin - first)
}

/// So many of the lowest bits: none if there are fewer, all if there are more.
#[inline(always)]
const fn below(count: i32) -> u32 {
    if count <= 0 {
        0
    } else if count >= 32 {
        u32::MAX
    } else {
        (1 << count) - 1
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const BF16: u32 = 0x7f80;
    const F16: u32 = 0x7c00;

    /// A rank of 16 bits, by itself.
    fn rank_16(bits: u16, infinity: u32) -> u32 {
        let size = u32::from(bits & 0x7fff);
        match (size, bits >> 15) {
            (size, _) if size > infinity => 0xffff,
            (size, 1) if size > 0 => 0x7fff - size,
            (size, _) => 0x8000 + size,
        }
    }

    #[test]
    fn ranks_of_pairs_are_those_of_each() {
        for infinity in [BF16, F16] {
            for bits in 0..=u16::MAX {
                let other = bits.wrapping_mul(0x9e37).wrapping_add(0x1234);
                let got = rank_pair(u32::from(bits) | u32::from(other) << 16, infinity);
                let expected = rank_16(bits, infinity) | rank_16(other, infinity) << 16;
                assert_eq!(got, expected, "{bits:x} {other:x}");
            }
        }
    }

    #[test]
    fn ranks_grow_with_numbers() {
        let numbers =
            [f32::NEG_INFINITY, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        let ranks: Vec<u32> = numbers.iter().map(|number| rank_f32(number.to_bits())).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:x?}");
        assert_eq!(rank_f32((-0.0f32).to_bits()), rank_f32(0));
        for nan in [0x7f80_0001, 0xff80_0001, 0xffff_ffff, 0x7fc0_0000] {
            assert_eq!(rank_f32(nan), u32::MAX);
        }
        assert_eq!(rank_f32(0), rank_of_zero(32));
        assert_eq!(rank_f32(f32::MIN.to_bits()), rank_of_lowest(32, 0x7f80_0000));
        assert_eq!(rank_16(0xff7f, BF16), rank_of_lowest(16, BF16));
        assert_eq!(rank_16(0xfbff, F16), rank_of_lowest(16, F16));
    }

    proptest! {
        #[test]
        fn planes_have_a_bit_of_each_key(keys in prop::array::uniform32(any::<u32>()), rank: u32) {
            let mut planes = keys;
            transpose::<32>(&mut planes);
            for (key, &number) in keys.iter().enumerate() {
                let gathered: u32 = (0..32).map(|bit| (planes[bit] >> key & 1) << bit).sum();
                prop_assert_eq!(gathered, number);
                prop_assert_eq!(above::<32>(&planes, rank, 0) >> key & 1 == 1, number > rank);
                prop_assert_eq!(above::<32>(&planes, number, u32::MAX) >> key & 1, 1);
                prop_assert_eq!(above::<32>(&planes, number, 0) >> key & 1, 0);
            }
        }

        #[test]
        fn planes_of_pairs_have_a_bit_of_each_key(
            keys in prop::array::uniform32(any::<u16>()), rank: u16,
        ) {
            let mut planes = [0; 32];
            for (word, pair) in planes.iter_mut().zip(keys.chunks(2)) {
                *word = u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
            pair_far_keys(&mut planes);
            transpose::<16>(&mut planes);
            for (key, &number) in keys.iter().enumerate() {
                let gathered: u32 = (0..16).map(|bit| (planes[bit] >> key & 1) << bit).sum();
                prop_assert_eq!(gathered, u32::from(number));
                let is_above = above::<16>(&planes, u32::from(rank), 0) >> key & 1 == 1;
                prop_assert_eq!(is_above, number > rank);
            }
        }

        #[test]
        fn the_lowest_bits_are_the_first(word: u32, count in 0..40u32) {
            let got = lowest_bits(word, count);
            prop_assert_eq!(got & !word, 0);
            prop_assert_eq!(got.count_ones(), count.min(word.count_ones()));
            prop_assert!(got == 0 || word & !got & ((1u64 << (31 - got.leading_zeros())) - 1) as u32 == 0);
        }

        #[test]
        fn bits_of_a_range(first in 0..100i32, begin in -10..200i32, length in -5..100i32) {
            let bits = range_bits(first, begin, begin + length);
            for key in 0..32 {
                let is_in = (begin..begin + length).contains(&(first + key));
                prop_assert_eq!(bits >> key & 1 == 1, is_in);
            }
        }
    }
}
