//! A kernel and its switches: what a text is loaded as.

use super::{Dtype, Family, KernelSpec};
use core::fmt;

/// A feature that a kernel has in its text, and that the host turns on there (`arch::specialize`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Switch {
    /// Scores are capped, `s = cap tanh(s / cap)`: [`ForwardParams::softcap`](super::ForwardParams::softcap).
    Softcap,
    /// The cap is [so large](super::STEEP_CAP), or there are sinks, so that a capped row can be steep in
    /// the backward.
    SteepCap,
    /// A bias of the dtype of q is added to scores: [`ScoreParams::bias`](super::ScoreParams::bias).
    Bias,
    /// A bias of f32 is added to scores of 16-bit elements.
    BiasF32,
    /// A boolean mask hides keys: [`ScoreParams::mask`](super::ScoreParams::mask).
    AttnMask,
    /// A slope times the distance is subtracted from scores:
    /// [`ScoreParams::alibi_slopes`](super::ScoreParams::alibi_slopes).
    Alibi,
    /// Sums have a sink: [`ScoreParams::sinks`](super::ScoreParams::sinks).
    Sinks,
    /// Probabilities are dropped at random: [`ScoreParams::dropout`](super::ScoreParams::dropout).
    Dropout,
    /// What passes over other keys have left is merged in: in the forward
    /// [`ForwardParams::previous`](super::ForwardParams::previous), in the backward dk and dv as they are,
    /// and [`BackwardParams::previous_dq`](super::BackwardParams::previous_dq).
    Merge,
}

impl Switch {
    /// Every switch.
    pub const ALL: [Switch; 9] = [
        Switch::Softcap,
        Switch::SteepCap,
        Switch::Bias,
        Switch::BiasF32,
        Switch::AttnMask,
        Switch::Alibi,
        Switch::Sinks,
        Switch::Dropout,
        Switch::Merge,
    ];

    /// The name in the marker of the PTX text, in the names of variants and in errors: `softcap`,
    /// `steep-cap`, `bias`, `bias-f32`, `mask`, `alibi`, `sinks`, `dropout`, `merge`.
    pub const fn name(self) -> &'static str {
        match self {
            Switch::Softcap => "softcap",
            Switch::SteepCap => "steep-cap",
            Switch::Bias => "bias",
            Switch::BiasF32 => "bias-f32",
            Switch::AttnMask => "mask",
            Switch::Alibi => "alibi",
            Switch::Sinks => "sinks",
            Switch::Dropout => "dropout",
            Switch::Merge => "merge",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of switches.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Switches(u32);

impl Switches {
    /// None of them: a kernel as it is compiled.
    pub const NONE: Switches = Switches(0);

    /// These and `switch`.
    #[must_use]
    pub const fn with(self, switch: Switch) -> Self {
        Switches(self.0 | switch.bit())
    }

    /// Whether `switch` is one of them.
    pub const fn contains(self, switch: Switch) -> bool {
        self.0 & switch.bit() != 0
    }

    /// Whether all of `others` are among them.
    pub const fn contains_all(self, others: Switches) -> bool {
        others.0 & !self.0 == 0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that the kernels of a backward have for what the forward had: a sink is in lse, and so are all
    /// keys.
    #[must_use]
    pub const fn of_scores(self) -> Self {
        Switches(self.0 & !(Switch::Sinks.bit() | Switch::Merge.bit()))
    }

    /// Each of them once, in the order of [`Switch::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Switch> {
        Switch::ALL.into_iter().filter(move |&switch| self.contains(switch))
    }

    /// Those that kernels of a family have in their text, for elements of type `dtype`.
    pub(super) const fn of_family(family: Family, dtype: Dtype) -> Self {
        let scores = Switches::NONE
            .with(Switch::Softcap)
            .with(Switch::Bias)
            .with(Switch::AttnMask)
            .with(Switch::Alibi)
            .with(Switch::Dropout);
        let scores = match dtype {
            Dtype::Bf16 | Dtype::F16 => scores.with(Switch::BiasF32),
            Dtype::F32 => scores,
        };
        match family {
            Family::Forward => scores.with(Switch::Sinks).with(Switch::Merge),
            Family::Backward => scores.with(Switch::SteepCap).with(Switch::Merge),
            Family::BiasGradient => scores,
            Family::BackwardConvert | Family::BackwardSum => Switches::NONE.with(Switch::Merge),
            Family::ForwardCombine
            | Family::BackwardDelta
            | Family::Accumulate
            | Family::SinkGradient
            | Family::MaskBits
            | Family::MeasureOperands
            | Family::SplitOperands
            | Family::Scan
            | Family::MaskMap
            | Family::Dynamic(_)
            | Family::Msda(_) => Switches::NONE,
        }
    }
}

impl fmt::Debug for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A kernel with some of its switches on: what is loaded, launched, pinned and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelVariant {
    /// The kernel.
    pub kernel: &'static KernelSpec,
    /// Those of its [switches](KernelSpec::switches) that are on.
    pub switches: Switches,
}

/// What loaded kernels are kept by: the name of the kernel, and the switches.
pub type VariantKey = (&'static str, Switches);

impl KernelVariant {
    /// The key of a map of loaded kernels.
    pub const fn key(self) -> VariantKey {
        (self.kernel.name, self.switches)
    }

    /// Whether penalties of ALiBi are products, and scores therefore in units of the scale: nothing else is
    /// added to them.
    pub const fn multiplies_slopes(self) -> bool {
        let Switches(others) =
            Switches::NONE.with(Switch::Softcap).with(Switch::Bias).with(Switch::BiasF32);
        let are_alone = self.switches.contains(Switch::Alibi) && self.switches.0 & others == 0;
        are_alone && self.kernel.may_multiply_slopes()
    }
}

/// As in pins, plans and reports: `forward_bf16_d128_sm90a`, `forward_bf16_d128_sm90a+softcap`.
impl fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kernel.name)?;
        self.switches.iter().try_for_each(|switch| write!(f, "+{}", switch.name()))
    }
}

impl From<&'static KernelSpec> for KernelVariant {
    fn from(kernel: &'static KernelSpec) -> Self {
        KernelVariant { kernel, switches: Switches::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::KERNELS;
    extern crate std;
    use std::string::ToString as _;

    #[test]
    fn a_set_has_what_was_put_in() {
        let softcap = Switches::NONE.with(Switch::Softcap);
        assert!(softcap.contains(Switch::Softcap) && !Switches::NONE.contains(Switch::Softcap));
        assert!(softcap.contains_all(Switches::NONE) && !Switches::NONE.contains_all(softcap));
        assert!(Switches::NONE.is_empty() && softcap.iter().eq([Switch::Softcap]));
    }

    #[test]
    fn variants_are_named_after_kernel_and_switches() {
        let kernel = KernelVariant::from(&KERNELS[0]);
        assert_eq!(kernel.to_string(), KERNELS[0].name);
        let softcap = KernelVariant { switches: Switches::NONE.with(Switch::Softcap), ..kernel };
        assert_ne!(softcap.key(), kernel.key());
        assert_eq!(softcap.to_string(), std::format!("{}+softcap", KERNELS[0].name));
    }

    #[test]
    fn kernels_that_make_scores_can_cap_them() {
        for kernel in KERNELS {
            let makes_scores =
                matches!(kernel.family, Family::Forward | Family::Backward | Family::BiasGradient);
            assert_eq!(kernel.switches.contains(Switch::Softcap), makes_scores, "{}", kernel.name);
        }
    }
}
