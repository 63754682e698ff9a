//! How f32 is multiplied.

use std::fmt;

/// How products of f32 are made, and so how long they take; what is rounded, and when, is said in
/// docs/semantics.md, section 3. Not looked at for other element types.
///
/// Where none is asked for, it is [`Precision::Fast3`] where that takes less time, and else
/// [`Precision::Fma`]: one choice for a forward and its backward, whose problems must have the same tensors
/// and the same precision (docs/f32-tensor-cores.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// On tensor cores: each number as the sum of two f16, three products for one, sums in f32. Where the
    /// kernel that makes the parts finds numbers for which that is not as exact as f32 (or that are not
    /// finite), and where there is no kernel for it, as [`Precision::Fma`].
    Fast3,
    /// Fused multiply-adds of f32.
    Fma,
}

impl Precision {
    /// Every one.
    pub const ALL: [Precision; 2] = [Precision::Fast3, Precision::Fma];

    /// The name in options and reports: `fast3`, `fma`.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Fast3 => "fast3",
            Precision::Fma => "fma",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
