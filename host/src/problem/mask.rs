//! Which keys a query sees.

use kernels_gpu::abi::WINDOW_OPEN;
use std::fmt;

/// Which key the first query is aligned with, under a mask, when Sq and Sk differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CausalAlignment {
    /// The last query with the last key: query i stands at key `i + Sk - Sq`. The rule of FlashAttention
    /// since 2.1.
    #[default]
    BottomRight,
    /// The first query with the first key: query i stands at key i. The rule of PyTorch's `is_causal`.
    TopLeft,
}

impl CausalAlignment {
    /// The key that query i stands at, in words: `i + Sk - Sq` or `i`.
    pub const fn diagonal(self) -> &'static str {
        match self {
            CausalAlignment::BottomRight => "i + Sk - Sq",
            CausalAlignment::TopLeft => "i",
        }
    }
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All of its sequence.
    #[default]
    Full,
    /// Those up to the diagonal.
    Causal(CausalAlignment),
    /// Those near the diagonal: from `left` keys before it to `right` keys after it, both included.
    /// `right: Some(0)` is causal as well: [`Mask::and_causal`].
    Window {
        /// Keys seen before the diagonal; all if `None`.
        left: Option<u32>,
        /// Keys seen after the diagonal; all if `None`.
        right: Option<u32>,
        /// Where the diagonal is.
        alignment: CausalAlignment,
    },
}

impl Mask {
    /// This mask and a causal one: a key must be visible under both. A window keeps its alignment, and its
    /// right side becomes 0; a full mask becomes causal, aligned at the bottom right.
    ///
    /// ```
    /// use finite_attention::{CausalAlignment, Mask};
    /// let alignment = CausalAlignment::TopLeft;
    /// let window = Mask::Window { left: Some(128), right: None, alignment };
    /// assert_eq!(window.and_causal(), Mask::Window { left: Some(128), right: Some(0), alignment });
    /// ```
    #[must_use]
    pub const fn and_causal(self) -> Mask {
        match self {
            Mask::Full => Mask::Causal(CausalAlignment::BottomRight),
            Mask::Causal(_) => self,
            Mask::Window { left, alignment, .. } => Mask::Window { left, right: Some(0), alignment },
        }
    }

    /// This mask and a window of `left` keys before the diagonal and `right` keys after it, either side open
    /// if `None`: a key must be visible under both. The window has the alignment of this mask; that of a full
    /// mask is the bottom right.
    #[must_use]
    pub fn and_window(self, left: Option<u32>, right: Option<u32>) -> Mask {
        let smaller = |own: Option<u32>, other: Option<u32>| own.into_iter().chain(other).min();
        let (own_left, own_right) = self.sides();
        let (left, right) = (smaller(own_left, left), smaller(own_right, right));
        Mask::Window { left, right, alignment: self.distance_alignment() }
    }

    /// In words, with the inequality that holds for key j of query i.
    pub fn describe(self) -> String {
        let (kind, (left, right)) = match self {
            Mask::Full => ("full", (None, None)),
            Mask::Causal(_) => ("causal", self.sides()),
            Mask::Window { right: Some(0), .. } => ("causal and a window", self.sides()),
            Mask::Window { .. } => ("a window", self.sides()),
        };
        if (left, right) == (None, None) {
            return format!("{kind}: every query sees every key of its sequence");
        }
        let diagonal = self.alignment().diagonal();
        let alignment = match self.alignment() {
            CausalAlignment::BottomRight => "bottom right",
            CausalAlignment::TopLeft => "top left",
        };
        let moved = |sign: &str, keys: u32| match keys {
            0 => diagonal.to_owned(),
            _ => format!("{diagonal} {sign} {keys}"),
        };
        let first = left.map_or(String::new(), |keys| format!("{} <= ", moved("-", keys)));
        let last = right.map_or(String::new(), |keys| format!(" <= {}", moved("+", keys)));
        format!("{kind}, aligned {alignment}: query i sees the keys j with {first}j{last}")
    }

    /// The name used in tables and JSON: `full`, `causal`, `causal-top-left`, `window`, `window-top-left`.
    /// What `Display` writes has the sides of a window too.
    pub const fn name(self) -> &'static str {
        match (self, self.alignment()) {
            (Mask::Full, _) => "full",
            (Mask::Causal(_), CausalAlignment::BottomRight) => "causal",
            (Mask::Causal(_), CausalAlignment::TopLeft) => "causal-top-left",
            (Mask::Window { .. }, CausalAlignment::BottomRight) => "window",
            (Mask::Window { .. }, CausalAlignment::TopLeft) => "window-top-left",
        }
    }

    /// Where the diagonal is; that of a full mask means nothing.
    pub const fn alignment(self) -> CausalAlignment {
        match self {
            Mask::Full => CausalAlignment::TopLeft,
            Mask::Causal(alignment) | Mask::Window { alignment, .. } => alignment,
        }
    }

    /// Where the diagonal is that distances of ALiBi are counted from: that of the mask, of a full mask the
    /// bottom right.
    ///
    /// ```
    /// use finite_attention::{CausalAlignment, Mask};
    /// assert_eq!(Mask::Full.distance_alignment(), CausalAlignment::BottomRight);
    /// let top_left = CausalAlignment::TopLeft;
    /// assert_eq!(Mask::Causal(top_left).distance_alignment(), top_left);
    /// ```
    pub const fn distance_alignment(self) -> CausalAlignment {
        match self {
            Mask::Full => CausalAlignment::BottomRight,
            Mask::Causal(_) | Mask::Window { .. } => self.alignment(),
        }
    }

    /// How many keys are seen before and after the diagonal; all if `None`.
    pub const fn sides(self) -> (Option<u32>, Option<u32>) {
        match self {
            Mask::Full => (None, None),
            Mask::Causal(_) => (None, Some(0)),
            Mask::Window { left, right, .. } => (left, right),
        }
    }

    /// The sides as kernels take them. No sequence is as long as an open window, so that a longer one hides
    /// nothing either.
    pub(super) fn kernel_sides(self) -> (i32, i32) {
        let clamped =
            |side: Option<u32>| side.map_or(WINDOW_OPEN, |keys| keys.min(WINDOW_OPEN as u32) as i32);
        let (left, right) = self.sides();
        (clamped(left), clamped(right))
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mask::Window { left, right, .. } = self else { return f.pad(self.name()) };
        let side = |side: &Option<u32>| side.map_or("open".to_owned(), |keys| keys.to_string());
        f.pad(&format!("{}({},{})", self.name(), side(left), side(right)))
    }
}
