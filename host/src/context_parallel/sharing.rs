//! How keys and values come to where they are needed, and which way is chosen.

use super::layout::ContextLayout;
use crate::error::{Error, Result};
use crate::problem::{ForwardProblem, Mask, Sequences};
use std::fmt;
use std::iter;
use std::ops::Range;
use std::str::FromStr;

/// How keys and values come to where they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContextExchange {
    /// Those of all heads go round from rank to rank: in each step those of one rank are there.
    Round,
    /// Those of a few heads after the other, of all ranks at once: each query sees all its keys in one pass.
    Heads,
}

impl ContextExchange {
    /// Both of them.
    pub const ALL: [ContextExchange; 2] = [ContextExchange::Round, ContextExchange::Heads];

    /// The name on the command line: `round`, `heads`.
    pub const fn name(self) -> &'static str {
        match self {
            ContextExchange::Round => "round",
            ContextExchange::Heads => "heads",
        }
    }
}

impl fmt::Display for ContextExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ContextExchange {
    type Err = Error;

    /// Reads [`ContextExchange::name`].
    ///
    /// # Errors
    /// [`Error::ContextExchange`].
    fn from_str(text: &str) -> Result<Self> {
        let found = ContextExchange::ALL.into_iter().find(|exchange| exchange.name() == text);
        found.ok_or_else(|| Error::ContextExchange(text.to_owned()))
    }
}

/// How sequences are shared out among ranks, and how keys and values come to where they are needed. A
/// [`ContextLayout`] alone leaves the latter to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextSharing {
    /// Which rows each rank has.
    pub layout: ContextLayout,
    /// How keys and values come; without one it is chosen:
    ///
    /// - by heads: zigzag with a full or a causal mask, contiguous with a full one; not packed, without bias
    ///   and boolean mask
    /// - gathered: by heads, all of them in one group
    /// - otherwise they go round
    ///
    /// Stripes always go round.
    pub exchange: Option<ContextExchange>,
}

impl From<ContextLayout> for ContextSharing {
    fn from(layout: ContextLayout) -> Self {
        ContextSharing { layout, exchange: None }
    }
}

/// `zigzag`, `zigzag by heads`.
impl fmt::Display for ContextSharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exchange {
            None => write!(f, "{}", self.layout),
            Some(ContextExchange::Round) => write!(f, "{} going round", self.layout),
            Some(ContextExchange::Heads) => write!(f, "{} by heads", self.layout),
        }
    }
}

impl ContextSharing {
    /// How keys and values of a problem come, in words: that of all ranks together.
    ///
    /// # Errors
    /// [`Error::ContextExchange`] for stripes by heads.
    pub fn explain(&self, problem: &ForwardProblem, ranks: usize) -> Result<String> {
        let is_packed = match problem.sequences {
            Sequences::Strided => false,
            Sequences::Packed { count, .. } => count != 1,
        };
        Ok(self.choose(problem, is_packed, (problem.k.shape[1], ranks))?.in_words())
    }

    /// What is done for a problem whose keys are so many together: the same on each rank.
    ///
    /// # Errors
    /// [`Error::ContextExchange`] for stripes by heads: no window says which keys of the whole every P-th
    /// query sees.
    pub(super) fn choose(
        &self,
        problem: &ForwardProblem,
        is_packed: bool,
        (key_rows, ranks): (usize, usize),
    ) -> Result<Chosen> {
        let has_scores = problem.bias.is_some() || problem.attn_mask.is_some();
        let is_plain = !is_packed && !has_scores && ranks > 1;
        let exchange = match (self.exchange, self.layout, problem.mask) {
            (Some(ContextExchange::Heads), ContextLayout::Stripe, _) => {
                return Err(Error::ContextExchange(format!("{} of stripes", ContextExchange::Heads)));
            }
            (Some(asked), ..) => asked,
            (None, ContextLayout::Gathered, _) => ContextExchange::Heads,
            (None, ContextLayout::Zigzag, Mask::Full | Mask::Causal(_))
            | (None, ContextLayout::Contiguous, Mask::Full)
                if is_plain =>
            {
                ContextExchange::Heads
            }
            (None, ..) => ContextExchange::Round,
        };
        // Tensors over scores are not taken apart by heads.
        let at_once = has_scores || self.layout == ContextLayout::Gathered && self.exchange.is_none();
        let heads = problem.k.shape[2];
        let all = || iter::once(0..heads).collect();
        let least = match self.exchange {
            Some(_) => 1,
            None => {
                let columns = problem.k.shape[3] + problem.v.shape[3];
                let of_one = problem.k.shape[0] * columns * problem.dtype.bytes() as usize;
                LEAST_BYTES.div_ceil((of_one * (key_rows / ranks)).max(1))
            }
        };
        let groups = |ends| if at_once { all() } else { groups(heads, least, ends) };
        Ok(Chosen { exchange, forward: groups(Ends::First), backward: groups(Ends::Both) })
    }
}

/// How keys and values come, and the groups of key heads if they do by heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub exchange: ContextExchange,
    /// Those of a forward pass.
    pub forward: Vec<Range<usize>>,
    pub backward: Vec<Range<usize>>,
}

/// `round`, `heads in 5 groups`.
impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.exchange, self.forward.len()) {
            (ContextExchange::Round, _) => write!(f, "round"),
            (ContextExchange::Heads, 1) => write!(f, "heads in 1 group"),
            (ContextExchange::Heads, groups) => write!(f, "heads in {groups} groups"),
        }
    }
}

impl Chosen {
    fn in_words(&self) -> String {
        let sizes = |groups: &[Range<usize>]| -> String {
            let sizes: Vec<String> = groups.iter().map(|group| group.len().to_string()).collect();
            sizes.join(", ")
        };
        match self.exchange {
            ContextExchange::Round => "keys and values go round".to_owned(),
            ContextExchange::Heads => format!(
                "keys and values come by heads, {} of them at a time, backward {}",
                sizes(&self.forward),
                sizes(&self.backward)
            ),
        }
    }

    /// Key heads of the largest group.
    pub fn most_heads(&self) -> usize {
        self.forward.iter().chain(&self.backward).map(Range::len).max().unwrap_or(0)
    }
}

/// Which groups are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    First,
    Both,
}

/// The part of all heads that a first group has, and that of a large one.
const SMALL_PART: usize = 16;
const LARGE_PART: usize = 4;
/// Bytes of a rank's keys and values in a group at least, unless groups are asked for: an estimate of what
/// its launches are worth.
const LEAST_BYTES: usize = 1 << 20;
/// How many times as large as the one before a group may be.
const MOST_GROWTH: usize = 3;

/// The groups of key heads of a pass, one after the other.
///
/// What of the exchange is not hidden behind kernels is that of the first group: it is small. Each next one
/// is about twice as large: it comes while the one before is computed, which takes about three times as long
/// as its own exchange did (by arithmetic, at 400 GB/s, with 8,192 rows a rank and as many key heads as query
/// heads; longer with fewer). They grow up to about a quarter of all heads: larger ones would save a few
/// launches, and take memory. In a backward pass gradients of the last group go home when nothing is left to
/// be computed: it is small, too, and those before it shrink likewise. None has fewer heads than `least`, if
/// there are as many.
pub(super) fn groups(key_heads: usize, least: usize, ends: Ends) -> Vec<Range<usize>> {
    let small = key_heads.div_ceil(SMALL_PART).max(least.min(key_heads));
    let large = key_heads.div_ceil(LARGE_PART).max(small);
    let sides = if ends == Ends::Both { 2 } else { 1 };
    let (mut growing, mut left, mut size) = (Vec::new(), key_heads, small);
    while size < large && left >= sides * size {
        growing.push(size);
        left -= sides * size;
        size *= 2;
    }
    // Those between are as large as each other.
    let last = growing.last().copied().unwrap_or(small);
    let middle = if left == 0 { 0 } else { (left / large).max(left.div_ceil(MOST_GROWTH * last)) };
    let even = (0..middle).map(|index| (index + 1) * left / middle - index * left / middle);
    let shrinking = growing.iter().rev().filter(|_| ends == Ends::Both);
    let sizes: Vec<usize> = growing.iter().copied().chain(even).chain(shrinking.copied()).collect();
    let mut first = 0;
    let range = |size: usize| {
        first += size;
        first - size..first
    };
    sizes.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(heads: usize, ends: Ends) -> Vec<usize> {
        groups(heads, 1, ends).iter().map(Range::len).collect()
    }

    #[test]
    fn groups_grow_from_a_small_one_and_shrink_to_one_where_something_follows() {
        assert_eq!(sizes(32, Ends::First), [2, 4, 8, 9, 9]);
        assert_eq!(sizes(32, Ends::Both), [2, 4, 10, 10, 4, 2]);
        assert_eq!(sizes(8, Ends::First), [1, 2, 2, 3]);
        assert_eq!(sizes(8, Ends::Both), [1, 2, 2, 2, 1]);
        assert_eq!(sizes(5, Ends::Both), [1, 3, 1]);
        assert_eq!(sizes(2, Ends::First), [1, 1]);
        assert_eq!(sizes(1, Ends::Both), [1]);
        assert!(groups(0, 1, Ends::First).is_empty());
        for least in [32, usize::MAX] {
            assert!([Ends::First, Ends::Both].iter().all(|&ends| groups(32, least, ends).len() == 1));
        }
    }

    #[test]
    fn each_head_is_in_one_group_and_none_is_too_large_to_come_behind_the_one_before() {
        for (heads, least) in (1..=128).flat_map(|heads| [1, 2, 5, 9].map(|least| (heads, least))) {
            for ends in [Ends::First, Ends::Both] {
                let groups = groups(heads, least, ends);
                let all: Vec<usize> = groups.iter().cloned().flatten().collect();
                assert_eq!(all, (0..heads).collect::<Vec<_>>());
                let sizes: Vec<usize> = groups.iter().map(Range::len).collect();
                let what = format!("{heads} heads, at least {least}: {sizes:?}");
                let most = 2 * heads.div_ceil(LARGE_PART).max(least);
                assert!(sizes.iter().all(|&size| least.min(heads) <= size && size < most), "{what}");
                assert!(sizes[0] <= heads.div_ceil(SMALL_PART) || least > 1, "{what}");
                assert!(sizes.windows(2).all(|pair| pair[1] <= MOST_GROWTH * pair[0]), "{what}");
                let last = sizes[sizes.len() - 1];
                assert!(ends == Ends::First || last <= sizes[0] + 1, "{what}");
            }
        }
    }

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for exchange in ContextExchange::ALL {
            assert_eq!(exchange.name().parse(), Ok(exchange));
        }
        let error = "ring".parse::<ContextExchange>().unwrap_err().to_string();
        assert_eq!(error, "exchange: expected round, or heads, but not of stripes, got ring");
    }
}
