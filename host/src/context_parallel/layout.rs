//! Which rows of a sequence stand on which rank.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How a sequence is shared out among the ranks. How keys and values come to where they are needed says
/// [`ContextSharing`](super::ContextSharing).
///
/// | layout | rows of rank r of P | keys and values come | balanced under a causal mask |
/// |--|--|--|--|
/// | [`Contiguous`](Self::Contiguous) | the r-th of P pieces | by heads, or round | no |
/// | [`Zigzag`](Self::Zigzag) | pieces r and 2P - 1 - r of 2P | by heads, or round | yes |
/// | [`Stripe`](Self::Stripe) | r, r + P, r + 2P, ... | round | yes |
/// | [`Gathered`](Self::Gathered) | as zigzag | all of them at once, on every rank | yes |
///
/// Pieces are as long as each other, or differ by a row: no sequence needs to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContextLayout {
    /// One piece a rank, one after the other.
    Contiguous,
    /// Two pieces a rank, from both ends.
    Zigzag,
    /// Every P-th row.
    Stripe,
    /// As zigzag; keys and values are gathered first, and the gradients of them added up at the end.
    Gathered,
}

impl ContextLayout {
    /// All of them.
    pub const ALL: [ContextLayout; 4] = [
        ContextLayout::Contiguous,
        ContextLayout::Zigzag,
        ContextLayout::Stripe,
        ContextLayout::Gathered,
    ];

    /// The name on the command line: `contiguous`, `zigzag`, `stripe`, `gathered`.
    pub const fn name(self) -> &'static str {
        match self {
            ContextLayout::Contiguous => "contiguous",
            ContextLayout::Zigzag => "zigzag",
            ContextLayout::Stripe => "stripe",
            ContextLayout::Gathered => "gathered",
        }
    }

    /// How many chunks a rank has of each sequence.
    pub const fn chunks_per_rank(self) -> usize {
        match self {
            ContextLayout::Contiguous | ContextLayout::Stripe => 1,
            ContextLayout::Zigzag | ContextLayout::Gathered => 2,
        }
    }

    /// What rank `rank` of `ranks` has of a sequence of `rows` rows, in the order in which it stands there.
    pub fn chunks(self, ranks: usize, rank: usize, rows: usize) -> Vec<Chunk> {
        let piece = |index: usize, pieces: usize| {
            let (first, end) = (index * rows / pieces, (index + 1) * rows / pieces);
            Chunk { first, step: 1, rows: end - first }
        };
        match self {
            ContextLayout::Contiguous => vec![piece(rank, ranks)],
            ContextLayout::Zigzag | ContextLayout::Gathered => {
                vec![piece(rank, 2 * ranks), piece(2 * ranks - 1 - rank, 2 * ranks)]
            }
            ContextLayout::Stripe => {
                let count = rows.saturating_sub(rank).div_ceil(ranks);
                vec![Chunk { first: rank, step: ranks, rows: count }]
            }
        }
    }

    /// How many rows of a sequence of `rows` rows stand on a rank.
    pub fn rows_of_rank(self, ranks: usize, rank: usize, rows: usize) -> usize {
        self.chunks(ranks, rank, rows).iter().map(|chunk| chunk.rows).sum()
    }

    /// Which rows of packed sequences that begin at `offsets` stand on a rank, in the order in which they
    /// stand there: the first chunk of every sequence, then the second one of every sequence. A single
    /// sequence has the offsets `[0, rows]`.
    ///
    /// ```
    /// use finite_attention::context_parallel::ContextLayout;
    /// let rows = ContextLayout::Zigzag.positions(2, 0, &[0, 4, 12]);
    /// assert_eq!(rows, [0, 4, 5, 3, 10, 11]);
    /// ```
    pub fn positions(self, ranks: usize, rank: usize, offsets: &[usize]) -> Vec<usize> {
        let chunk_rows = |chunk: usize| {
            offsets.windows(2).flat_map(move |pair| {
                let Chunk { first, step, rows } = self.chunks(ranks, rank, pair[1] - pair[0])[chunk];
                let begin = pair[0] + first;
                (0..rows).map(move |row| begin + step * row)
            })
        };
        (0..self.chunks_per_rank()).flat_map(chunk_rows).collect()
    }
}

impl fmt::Display for ContextLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ContextLayout {
    type Err = Error;

    /// Reads [`ContextLayout::name`].
    ///
    /// # Errors
    /// [`Error::ContextLayout`].
    fn from_str(text: &str) -> Result<Self> {
        let found = ContextLayout::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| Error::ContextLayout { got: text.to_owned() })
    }
}

/// Rows `first`, `first + step`, ... of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The first row.
    pub first: usize,
    /// From one row to the next.
    pub step: usize,
    /// How many rows.
    pub rows: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_on_exactly_one_rank() {
        for layout in ContextLayout::ALL {
            for ranks in 1..=8 {
                for lengths in [vec![0], vec![1, 0, 17], vec![64, 3], vec![5; 4]] {
                    let mut offsets = vec![0];
                    for length in &lengths {
                        offsets.push(offsets.last().unwrap() + length);
                    }
                    let total = *offsets.last().unwrap();
                    let mut all: Vec<usize> =
                        (0..ranks).flat_map(|rank| layout.positions(ranks, rank, &offsets)).collect();
                    all.sort_unstable();
                    assert_eq!(all, (0..total).collect::<Vec<_>>(), "{layout} {ranks} {lengths:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for layout in ContextLayout::ALL {
            assert_eq!(layout.name().parse(), Ok(layout));
        }
        let error = "ring".parse::<ContextLayout>().unwrap_err().to_string();
        assert_eq!(error, "layout: expected contiguous, zigzag, stripe or gathered, got ring");
    }
}
