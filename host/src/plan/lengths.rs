//! Lengths of packed sequences, as far as the host knows: how many sequences there are, all rows, and the
//! longest. The lengths are in device memory.

use crate::problem::ValidForward;

/// Sequences of the same lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Alike {
    /// How many.
    pub count: u64,
    /// The problem with the lengths of one.
    pub sequence: ValidForward,
}

/// All sequences, packed ones of likely lengths: those that have the rows that there are, no longer ones than
/// there are, and are otherwise equal.
///
/// Where queries and keys have the same lengths, the most queries are those of the longest sequence.
/// Otherwise they may be anybody's, and every sequence has as many as they have on average; but where one has
/// four times as many as the others have on average, those with so many are prompts, with as many keys as
/// queries, and the others texts to go on with; unless no query is left for these, as where one query each is
/// followed by empty sequences.
pub(super) fn likely(valid: &ValidForward) -> Vec<Alike> {
    let alike = |count: u32, query_rows: u32, key_rows: u32| Alike {
        count: count.into(),
        sequence: valid.with(valid.problem, query_rows, key_rows),
    };
    let ValidForward { batches, query_rows: most_queries, key_rows: most_keys, .. } = *valid;
    if !valid.is_packed() {
        return vec![alike(batches, most_queries, most_keys)];
    }
    let [queries, keys] = [&valid.problem.q, &valid.problem.k].map(|layout| layout.shape[1] as u32);
    let are_the_same = queries == keys && most_queries == most_keys;
    let of_others = u64::from(queries.saturating_sub(most_queries));
    let are_few = 4 * of_others <= u64::from(most_queries) * u64::from(batches.saturating_sub(1));
    let are_mixed = !are_the_same && are_few && queries.checked_rem(most_queries).unwrap_or(0) > 0;
    let prompts = if are_mixed { queries / most_queries } else { 0 };
    let of_prompt = most_queries.min(most_keys);
    let (others, queries) = (batches - prompts, queries - prompts * most_queries);
    let keys = keys.saturating_sub(prompts * of_prompt).max(most_keys);
    let share = |rows: u32, count: u32| rows.div_ceil(count.max(1));
    let of_longest = if are_the_same { most_queries } else { share(queries, others) };
    let rest = others.saturating_sub(1);
    let sequences = [
        alike(prompts, most_queries, of_prompt),
        alike(others.min(1), of_longest, most_keys),
        alike(rest, share(queries - of_longest, rest), share(keys - most_keys, rest).min(most_keys)),
    ];
    sequences.into_iter().filter(|alike| alike.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{ForwardProblem, Layout, Sequences};
    use kernels_gpu::abi::Dtype;
    use proptest::prelude::*;

    /// How many, queries and keys of each.
    fn likely_lengths(lengths: &[[usize; 2]]) -> Vec<[u64; 3]> {
        let rows = |side: usize| lengths.iter().map(|lengths| lengths[side]).sum();
        let longest = |side: usize| lengths.iter().map(|lengths| lengths[side]).max().unwrap_or(0);
        let (q, kv) = (Layout::packed([rows(0), 2, 8]), Layout::packed([rows(1), 2, 8]));
        let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_sequences(Sequences::Packed {
            count: lengths.len(),
            max_query_rows: longest(0),
            max_key_rows: longest(1),
        });
        let of = |Alike { count, sequence }| {
            [count, u64::from(sequence.query_rows), u64::from(sequence.key_rows)]
        };
        likely(&problem.validate().unwrap()).into_iter().map(of).collect()
    }

    #[test]
    fn lengths_are_those_that_are_known_and_otherwise_equal() {
        assert_eq!(likely_lengths(&[[7, 7], [3, 3], [2, 2]]), [[1, 7, 7], [2, 3, 3]]);
        assert_eq!(likely_lengths(&[[1, 10], [1, 90], [1, 30]]), [[1, 1, 90], [2, 1, 20]]);
        assert_eq!(likely_lengths(&[[9, 50]]), [[1, 9, 50]]);
        // Two prompts beside four texts to go on with.
        let mixed = [[64, 64], [1, 500], [64, 64], [1, 200], [1, 100], [1, 100]];
        assert_eq!(likely_lengths(&mixed), [[2, 64, 64], [1, 1, 500], [3, 1, 134]]);
        // Empty ones follow.
        assert_eq!(likely_lengths(&[[1, 90], [1, 30], [0, 0], [0, 0]]), [[1, 1, 90], [3, 1, 10]]);
        assert_eq!(likely_lengths(&[[0, 5], [0, 9]]), [[1, 0, 9], [1, 0, 5]]);
        assert_eq!(likely_lengths(&[[4, 0], [4, 0]]), [[1, 4, 0], [1, 4, 0]]);
    }

    proptest! {
        #[test]
        fn they_are_as_many_and_none_is_longer(
            lengths in prop::collection::vec([0..90usize, 0..900usize], 1..40),
        ) {
            let likely = likely_lengths(&lengths);
            let most = |side: usize| lengths.iter().map(|l| l[side] as u64).max().unwrap_or(0);
            prop_assert_eq!(likely.iter().map(|l| l[0]).sum::<u64>(), lengths.len() as u64);
            prop_assert!(likely.iter().all(|l| l[1] <= most(0) && l[2] <= most(1)), "{:?}", likely);
            prop_assert!(likely.iter().any(|l| l[2] == most(1)));
        }
    }
}
