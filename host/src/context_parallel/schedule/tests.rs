//! The union of all steps of all ranks is the mask, each pair once.

use super::*;
use proptest::prelude::*;

fn masks() -> impl Strategy<Value = Mask> {
    let alignment = prop_oneof![Just(CausalAlignment::BottomRight), Just(CausalAlignment::TopLeft)];
    let side = prop_oneof![Just(None), (0..40_u32).prop_map(Some)];
    prop_oneof![
        Just(Mask::Full),
        alignment.clone().prop_map(Mask::Causal),
        (side.clone(), side, alignment).prop_map(|(left, right, alignment)| Mask::Window {
            left,
            right,
            alignment
        }),
    ]
}

/// All layouts, going round and, but for stripes, by heads.
fn ways() -> Vec<(ContextLayout, ContextExchange)> {
    let round = ContextLayout::ALL.map(|layout| (layout, ContextExchange::Round));
    let by_heads = ContextLayout::ALL.map(|layout| (layout, ContextExchange::Heads));
    let is_there =
        |way: &(ContextLayout, ContextExchange)| *way != (ContextLayout::Stripe, by_heads[0].1);
    round.into_iter().chain(by_heads).filter(is_there).collect()
}

fn offsets(lengths: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    for length in lengths {
        offsets.push(offsets.last().unwrap() + length);
    }
    offsets
}

/// The mask, pair by pair, as docs/semantics.md has it.
fn is_visible(mask: Mask, [query_rows, key_rows]: [usize; 2], i: usize, j: usize) -> bool {
    let diagonal = match mask.alignment() {
        CausalAlignment::BottomRight => key_rows as i64 - query_rows as i64,
        CausalAlignment::TopLeft => 0,
    };
    let (left, right) = mask.sides();
    let distance = j as i64 - i as i64 - diagonal;
    left.is_none_or(|left| -i64::from(left) <= distance)
        && right.is_none_or(|right| distance <= i64::from(right))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The proof: what all ranks compute in all steps is the mask, each pair once.
    #[test]
    fn the_union_of_all_steps_of_all_ranks_is_the_mask_once(
        way in prop::sample::select(ways()),
        ranks in 1..=8_usize,
        lengths in prop::collection::vec((0..40_usize, 0..40_usize), 1..4),
        are_alike in any::<bool>(),
        mask in masks(),
    ) {
        let keys_of = |&(queries, keys): &(usize, usize)| if are_alike { queries } else { keys };
        let queries = offsets(&lengths.iter().map(|pair| pair.0).collect::<Vec<_>>());
        let keys = offsets(&lengths.iter().map(keys_of).collect::<Vec<_>>());
        let lengths = Lengths { queries: &queries, keys: &keys };
        let (all_queries, all_keys) = (*queries.last().unwrap(), *keys.last().unwrap());
        let mut seen = vec![0_u32; all_queries * all_keys];
        for rank in 0..ranks {
            let own = way.0.positions(ranks, rank, &queries);
            let mut covered = vec![0; own.len()];
            for piece in schedule(way, (ranks, rank), &lengths, mask) {
                prop_assert!(!piece.parts.is_empty());
                (piece.queries.first..piece.queries.first + piece.queries.count)
                    .for_each(|row| covered[row] += 1);
                for part in &piece.parts {
                    let source = (rank + ranks - part.step) % ranks;
                    let theirs = if way.1 == ContextExchange::Heads {
                        (0..all_keys).collect()
                    } else {
                        way.0.positions(ranks, source, &keys)
                    };
                    mark(&mut seen, all_keys, (&piece.queries, &own), (&part.keys, &theirs),
                         (part.sides, &lengths));
                }
            }
            prop_assert!(covered.iter().all(|&count| count == 1), "{covered:?}");
        }
        for sequence in 0..queries.len() - 1 {
            let sizes = [length(&queries, sequence), length(&keys, sequence)];
            for i in 0..sizes[0] {
                for j in 0..sizes[1] {
                    let place = (queries[sequence] + i) * all_keys + keys[sequence] + j;
                    prop_assert_eq!(
                        seen[place], u32::from(is_visible(mask, sizes, i, j)), "{} {} {}", sequence, i, j
                    );
                    seen[place] = 0;
                }
            }
        }
        // Nobody sees a key of another sequence.
        prop_assert!(seen.iter().all(|&count| count == 0));
    }

    /// Nobody waits for keys that nobody sends: the steps of a part are those of a ring.
    #[test]
    fn steps_are_those_of_a_ring(
        way in prop::sample::select(ways()),
        ranks in 1..=8_usize, rows in 0..64_usize, mask in masks(),
    ) {
        let offsets = [0, rows];
        let lengths = Lengths { queries: &offsets, keys: &offsets };
        for rank in 0..ranks {
            for piece in schedule(way, (ranks, rank), &lengths, mask) {
                let steps: Vec<usize> = piece.parts.iter().map(|part| part.step).collect();
                prop_assert!(steps.is_sorted() && steps.iter().all(|&step| step < ranks));
            }
        }
    }
}

/// Counts the pairs of a part.
fn mark(
    seen: &mut [u32],
    all_keys: usize,
    (queries, own): (&Rows, &[usize]),
    (keys, theirs): (&Rows, &[usize]),
    (sides, lengths): (Sides, &Lengths<'_>),
) {
    // Of packed sequences together, each row counts within its own.
    let sequence_of = |offsets: &[usize], row: usize| offsets.partition_point(|&first| first <= row) - 1;
    let mut next = std::collections::HashMap::new();
    let mut numbered =
        |rows: &Rows, places: &[usize], offsets: &[usize], which: u32| -> Vec<(usize, usize, i64)> {
            (rows.first..rows.first + rows.count)
                .map(|row| {
                    let place = places[row];
                    let sequence = sequence_of(offsets, place);
                    let number = next.entry((which, sequence)).or_insert(0_i64);
                    *number += 1;
                    (place, sequence, *number - 1)
                })
                .collect()
        };
    let queries = numbered(queries, own, lengths.queries, 0);
    let keys = numbered(keys, theirs, lengths.keys, 1);
    for &(row, sequence, i) in &queries {
        for &(key, of, j) in &keys {
            let is_left = sides.left == WINDOW_OPEN || i - i64::from(sides.left) <= j;
            let is_right = sides.right == WINDOW_OPEN || j <= i + i64::from(sides.right);
            if sequence == of && is_left && is_right {
                seen[row * all_keys + key] += 1;
            }
        }
    }
}

#[test]
fn a_causal_zigzag_has_three_launches_first_and_then_one_or_two() {
    let offsets = [0, 32];
    let lengths = Lengths { queries: &offsets, keys: &offsets };
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    let pieces = schedule((ContextLayout::Zigzag, ContextExchange::Round), (4, 1), &lengths, causal);
    let parts: Vec<Vec<(usize, usize, usize)>> = pieces
        .iter()
        .map(|piece| {
            piece.parts.iter().map(|part| (part.step, part.keys.first, part.keys.count)).collect()
        })
        .collect();
    // The low chunk sees itself and that of rank 0; the high one all of them, and those of ranks above.
    assert_eq!(parts[0], [(0, 0, 4), (1, 0, 4)]);
    assert_eq!(parts[1], [(0, 0, 8), (1, 0, 4), (2, 0, 8), (3, 0, 8)]);
}

#[test]
fn by_heads_each_chunk_sees_all_its_keys_at_once_and_no_more_are_read() {
    let offsets = [0, 32];
    let lengths = Lengths { queries: &offsets, keys: &offsets };
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    let window = Mask::Window { left: Some(5), right: Some(1), alignment: CausalAlignment::BottomRight };
    let of = |mask| -> Vec<(usize, usize, Sides)> {
        let way = (ContextLayout::Zigzag, ContextExchange::Heads);
        let pieces = schedule(way, (4, 1), &lengths, mask);
        let part = |piece: &Piece| {
            assert_eq!(piece.parts.len(), 1);
            (piece.parts[0].keys.first, piece.parts[0].keys.count, piece.parts[0].sides)
        };
        pieces.iter().map(part).collect()
    };
    let sides = |left, right| Sides { left, right };
    assert_eq!(of(causal), [(0, 8, sides(WINDOW_OPEN, 4)), (0, 28, sides(WINDOW_OPEN, 24))]);
    assert_eq!(of(Mask::Full), [(0, 32, Sides::OPEN); 2]);
    assert_eq!(of(window), [(0, 9, sides(1, 5)), (19, 10, sides(0, 6))]);
}
