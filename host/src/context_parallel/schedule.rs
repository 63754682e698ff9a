//! What a rank computes, and when: a pure function of the layout, the exchange, the ranks, the lengths and
//! the mask. By heads, all of it once for each group of heads.
//!
//! Positions of a rank's chunk are `first + step i`, and of the chunk of keys that it meets
//! `first' + step j`, with the same step: whether a key is visible depends on `j - i` alone. So each pair of
//! chunks is a problem of attention of its own, whose mask is a window, with sides that may be negative
//! ([`Sides`]).

use super::layout::{Chunk, ContextLayout};
use super::sharing::ContextExchange;
use crate::problem::{CausalAlignment, Mask};
use kernels_gpu::abi::WINDOW_OPEN;

/// Key j of a part is visible to its query i iff `i - left <= j <= i + right`; all on a side that is
/// `WINDOW_OPEN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// Keys before.
    pub left: i32,
    /// Keys after.
    pub right: i32,
}

impl Sides {
    /// Every key is visible to every query.
    pub const OPEN: Sides = Sides { left: WINDOW_OPEN, right: WINDOW_OPEN };
}

/// Queries that see the same keys at the same time, with all that they see. Rows are those of the rank's own
/// tensor, in the order of [`ContextLayout::positions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first row, and how many. Of a piece of all packed sequences, those of one chunk of each.
    pub queries: Rows,
    /// What they see, in the order in which it comes.
    pub parts: Vec<Part>,
}

/// Keys that a piece sees at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// When: keys and values of rank `(rank - step) mod P` are there then. By heads, all at 0.
    pub step: usize,
    /// The rows of that rank's own tensor; by heads, of the whole.
    pub keys: Rows,
    /// Which of them are visible.
    pub sides: Sides,
}

/// Rows of a tensor: of one sequence, or of a chunk of all packed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The first one.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// The chunk, if these are rows of that chunk of all packed sequences.
    pub chunk: Option<usize>,
}

/// The sequences of a problem, as they are before they are shared out.
#[derive(Clone, Copy, Debug)]
pub struct Lengths<'a> {
    /// Where each begins in q, and all end: `[0, Sq]` if they are not packed.
    pub queries: &'a [usize],
    /// The same of k and v.
    pub keys: &'a [usize],
}

/// Two chunks that meet: as many queries, as many keys, and which of these are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meeting {
    queries: usize,
    keys: usize,
    sides: Sides,
}

impl Meeting {
    /// Which keys of chunk `k` the queries of chunk `q` see, where `diagonal` is the key that query 0 of the
    /// sequence is aligned with.
    fn new(q: &Chunk, k: &Chunk, mask: Mask, diagonal: i64) -> Self {
        let step = q.step as i64;
        let offset = q.first as i64 + diagonal - k.first as i64;
        let (left, right) = mask.sides();
        // Key j of chunk k is at `offset - step (j - i)` before query i.
        let left = left.map(|left| (i64::from(left) - offset).div_euclid(step));
        let right = right.map(|right| (offset + i64::from(right)).div_euclid(step));
        let (least, most) = (1 - q.rows as i64, k.rows as i64 - 1);
        // What is further than any two rows are apart is an open side, or shows nothing.
        let limit = i64::from(WINDOW_OPEN);
        let side = |keys: Option<i64>, all: i64| match keys {
            Some(keys) if keys < all => keys.max(-limit) as i32,
            _ => WINDOW_OPEN,
        };
        let sides = Sides { left: side(left, -least), right: side(right, most) };
        Meeting { queries: q.rows, keys: k.rows, sides }
    }

    /// The least and the largest `j - i` of a visible pair, if there is one, with these sides.
    fn shown(&self, sides: Sides) -> Option<(i64, i64)> {
        let (mut least, mut most) = (1 - self.queries as i64, self.keys as i64 - 1);
        if sides.left != WINDOW_OPEN {
            least = least.max(-i64::from(sides.left));
        }
        if sides.right != WINDOW_OPEN {
            most = most.min(i64::from(sides.right));
        }
        (self.queries > 0 && self.keys > 0 && least <= most).then_some((least, most))
    }

    fn shows_anything(&self) -> bool {
        self.shown(self.sides).is_some()
    }

    /// The part without the keys at its ends that no query sees.
    fn trimmed(&self, part: Part) -> Part {
        let Part { step, keys, sides } = part;
        let (left, right) = (sides.left, sides.right);
        let hidden = if left == WINDOW_OPEN { 0 } else { (-left).max(0) };
        let mut end = self.keys;
        if right != WINDOW_OPEN {
            end = end.min((self.queries as i64 + i64::from(right)) as usize);
        }
        let shifted = |side: i32, by: i32| if side == WINDOW_OPEN { side } else { side + by };
        let sides = Sides { left: shifted(left, hidden), right: shifted(right, -hidden) };
        let hidden = hidden as usize;
        let keys = Rows { first: keys.first + hidden, count: end - hidden, chunk: keys.chunk };
        Part { step, keys, sides }
    }

    /// Whether other sides show the same.
    fn allows(&self, sides: Sides) -> bool {
        self.shown(sides) == self.shown(self.sides)
    }
}

/// One part in place of two whose keys stand one after the other, if a window can say what both see.
fn merged(first: &Part, second: &Part, queries: usize) -> Option<Part> {
    let (a, b) = (&first.keys, &second.keys);
    if first.step != second.step || a.chunk.is_some() || a.first + a.count != b.first {
        return None;
    }
    let count = a.count as i32;
    let shifted = |side: i32, by: i32| if side == WINDOW_OPEN { side } else { side + by };
    let (left, right) = (first.sides.left, shifted(second.sides.right, count));
    // The second's right side hides no key of the first that the first's own shows, nor shows another.
    let right_fits =
        if first.sides.right == WINDOW_OPEN { right >= count - 1 } else { right == first.sides.right };
    let of_second = shifted(left, count);
    let left_fits = if second.sides.left == WINDOW_OPEN {
        i64::from(of_second) >= queries as i64 - 1
    } else {
        of_second == second.sides.left
    };
    let keys = Rows { first: a.first, count: a.count + b.count, chunk: None };
    (right_fits && left_fits).then_some(Part { step: first.step, keys, sides: Sides { left, right } })
}

/// What rank `rank` of `ranks` computes. The union of all ranks' parts is the mask, each pair once.
///
/// Every row of the rank's queries is in exactly one piece, and every piece has a part, if only one that sees
/// nothing: its rows are dead.
///
/// Stripes by heads are nothing that a schedule can say.
pub fn schedule(
    (layout, exchange): (ContextLayout, ContextExchange),
    (ranks, rank): (usize, usize),
    lengths: &Lengths<'_>,
    mask: Mask,
) -> Vec<Piece> {
    schedule_of_chunks((layout, exchange), (ranks, rank), lengths, mask, true)
}

/// The same, where parts whose keys stand one after the other may be one (`joins`), or are of one chunk each,
/// whose keys are equally far apart in the whole.
pub(super) fn schedule_of_chunks(
    (layout, exchange): (ContextLayout, ContextExchange),
    (ranks, rank): (usize, usize),
    lengths: &Lengths<'_>,
    mask: Mask,
    joins: bool,
) -> Vec<Piece> {
    let is_packed = lengths.queries.len() != 2;
    let by_heads = exchange == ContextExchange::Heads;
    let places = Places { layout, by_heads, ranks, lengths };
    let mut pieces = Vec::new();
    for chunk in 0..layout.chunks_per_rank() {
        let meet =
            |sequence: usize, source: Source| places.meeting((rank, chunk), sequence, source, mask);
        let sources = places.sources(rank);
        let sequences = 0..lengths.queries.len() - 1;
        // All sequences together, where one window is right for all of them.
        let together = |source: &Source| -> Option<Option<Part>> {
            let meetings: Vec<Meeting> =
                sequences.clone().map(|sequence| meet(sequence, *source)).collect();
            let Some(first) = meetings.iter().find(|meeting| meeting.shows_anything()) else {
                return Some(None);
            };
            let mut candidates = vec![first.sides];
            candidates.extend(
                meetings.iter().map(|meeting| meeting.sides).find(|&sides| sides != first.sides),
            );
            let fits = |sides: &Sides| meetings.iter().all(|meeting| meeting.allows(*sides));
            let sides = candidates.into_iter().find(fits)?;
            Some(Some(Part { step: source.step, keys: places.keys_of_all(*source), sides }))
        };
        let together: Option<Vec<Option<Part>>> =
            (is_packed && !by_heads).then_some(()).and_then(|()| sources.iter().map(together).collect());
        let together: Option<Vec<Part>> =
            together.map(|parts: Vec<Option<Part>>| parts.into_iter().flatten().collect());
        if let Some(mut parts) = together {
            let queries = places.queries_of_all(rank, chunk);
            if parts.is_empty() {
                parts.push(places.nothing(rank));
            }
            if queries.count > 0 {
                pieces.push(Piece { queries, parts });
            }
            continue;
        }
        for sequence in sequences.clone() {
            let queries = places.queries((rank, chunk), sequence);
            if queries.count == 0 {
                continue;
            }
            let mut parts: Vec<Part> = Vec::new();
            for &source in &sources {
                let meeting = meet(sequence, source);
                if !meeting.shows_anything() {
                    continue;
                }
                let keys = places.keys(source, sequence);
                let mut part = Part { step: source.step, keys, sides: meeting.sides };
                if by_heads {
                    part = meeting.trimmed(part);
                }
                let last = parts.last().filter(|_| joins);
                match last.and_then(|last| merged(last, &part, queries.count)) {
                    Some(both) => *parts.last_mut().expect("there is one") = both,
                    None => parts.push(part),
                }
            }
            if parts.is_empty() {
                let keys = Rows { first: 0, count: 0, chunk: None };
                parts.push(Part { step: 0, keys, sides: Sides::OPEN });
            }
            pieces.push(Piece { queries, parts });
        }
    }
    pieces
}

/// A chunk of keys of a rank, and when it comes; by heads the whole sequence.
#[derive(Clone, Copy, Debug)]
struct Source {
    step: usize,
    rank: usize,
    chunk: usize,
}

/// Where chunks stand.
struct Places<'a> {
    layout: ContextLayout,
    by_heads: bool,
    ranks: usize,
    lengths: &'a Lengths<'a>,
}

impl Places<'_> {
    /// In the order in which they come; chunks of one rank in the order in which they stand.
    fn sources(&self, rank: usize) -> Vec<Source> {
        if self.by_heads {
            return vec![Source { step: 0, rank, chunk: 0 }];
        }
        let of_step = |step: usize| {
            let source = (rank + self.ranks - step) % self.ranks;
            (0..self.layout.chunks_per_rank()).map(move |chunk| Source { step, rank: source, chunk })
        };
        (0..self.ranks).flat_map(of_step).collect()
    }

    fn key_chunk(&self, source: Source, rows: usize) -> Chunk {
        if self.by_heads {
            return Chunk { first: 0, step: 1, rows };
        }
        self.layout.chunks(self.ranks, source.rank, rows)[source.chunk]
    }

    fn meeting(
        &self,
        (rank, chunk): (usize, usize),
        sequence: usize,
        source: Source,
        mask: Mask,
    ) -> Meeting {
        let (query_rows, key_rows) =
            (length(self.lengths.queries, sequence), length(self.lengths.keys, sequence));
        let queries = self.layout.chunks(self.ranks, rank, query_rows)[chunk];
        let diagonal = match mask.alignment() {
            CausalAlignment::BottomRight => key_rows as i64 - query_rows as i64,
            CausalAlignment::TopLeft => 0,
        };
        Meeting::new(&queries, &self.key_chunk(source, key_rows), mask, diagonal)
    }

    /// Rows of one chunk of one sequence in a rank's own tensor of sequences with these offsets.
    fn rows(&self, offsets: &[usize], rank: usize, chunk: usize, sequence: usize) -> Rows {
        let of = |sequence: usize, chunk: usize| {
            self.layout.chunks(self.ranks, rank, length(offsets, sequence))[chunk].rows
        };
        let sequences = 0..offsets.len() - 1;
        let before: usize = (0..chunk)
            .map(|chunk| sequences.clone().map(|sequence| of(sequence, chunk)).sum::<usize>())
            .sum();
        let first = before + (0..sequence).map(|sequence| of(sequence, chunk)).sum::<usize>();
        Rows { first, count: of(sequence, chunk), chunk: None }
    }

    /// The rows of one chunk of all sequences.
    fn rows_of_all(&self, offsets: &[usize], rank: usize, chunk: usize) -> Rows {
        let each = (0..offsets.len() - 1).map(|sequence| self.rows(offsets, rank, chunk, sequence));
        let (mut first, mut count) = (None, 0);
        for rows in each {
            first.get_or_insert(rows.first);
            count += rows.count;
        }
        Rows { first: first.unwrap_or(0), count, chunk: Some(chunk) }
    }

    fn queries(&self, (rank, chunk): (usize, usize), sequence: usize) -> Rows {
        self.rows(self.lengths.queries, rank, chunk, sequence)
    }

    fn queries_of_all(&self, rank: usize, chunk: usize) -> Rows {
        self.rows_of_all(self.lengths.queries, rank, chunk)
    }

    fn keys(&self, source: Source, sequence: usize) -> Rows {
        if self.by_heads {
            let offsets = self.lengths.keys;
            return Rows { first: offsets[sequence], count: length(offsets, sequence), chunk: None };
        }
        self.rows(self.lengths.keys, source.rank, source.chunk, sequence)
    }

    fn keys_of_all(&self, source: Source) -> Rows {
        self.rows_of_all(self.lengths.keys, source.rank, source.chunk)
    }

    /// A part of all packed sequences that shows no key: no distance is that small.
    fn nothing(&self, rank: usize) -> Part {
        let keys = self.rows_of_all(self.lengths.keys, rank, 0);
        Part { step: 0, keys, sides: Sides { left: WINDOW_OPEN, right: -WINDOW_OPEN } }
    }
}

fn length(offsets: &[usize], sequence: usize) -> usize {
    offsets[sequence + 1] - offsets[sequence]
}

#[cfg(test)]
mod tests;
