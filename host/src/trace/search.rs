//! From a value that is not finite to the instruction that made it.

use super::{Computation, NonFinite, Part, Stage, coordinates, stage};
use crate::attention::Element;
use crate::device::Device;
use crate::driver::emulated::{EmulatedDriver, Options, Origin, Trace};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{Arch, KernelVariant};
use std::fmt;
use std::sync::Arc;

/// A tensor of a computation, and what is not finite in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedTensor {
    /// `q`, `lse`, `dk`, ...
    pub name: &'static str,
    /// Whether the computation was given it.
    pub is_input: bool,
    /// Its shape, as it is documented.
    pub shape: Vec<usize>,
    /// What is not finite in it, of what should be.
    pub found: NonFinite,
}

impl ScannedTensor {
    /// The indices of the first element that is not finite.
    pub fn first(&self) -> Option<Vec<usize>> {
        self.found.first.map(|index| coordinates(&self.shape, index))
    }
}

/// Why the first result that is not finite is not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// There is none.
    AllFinite,
    /// It was in an input.
    Input,
    /// An instruction made it, or, if the trace has a suspect and no origin, may have.
    Instruction {
        /// The part that was computed again in the emulator.
        part: Part,
        /// The kernel.
        kernel: KernelVariant,
        /// What of attention the instruction computes.
        stage: Stage,
        /// What the emulator saw.
        trace: Box<Trace>,
    },
    /// The emulator finds fault with the kernel.
    Findings {
        /// The part that was computed again.
        part: Part,
        /// What it finds.
        error: Error,
    },
    /// The emulator computes finite numbers for the parts that were tried.
    NotReproduced {
        /// These.
        parts: Vec<Part>,
    },
}

impl Cause {
    /// What made the value, how many more it made, and whether that is certain.
    pub fn origin(&self) -> Option<(&Origin, u64, bool)> {
        let Cause::Instruction { trace, .. } = self else { return None };
        match (&trace.first, &trace.suspect) {
            (Some(origin), _) => Some((origin, trace.origins - 1, true)),
            (None, Some(suspect)) => Some((suspect, trace.suspects - 1, false)),
            (None, None) => None,
        }
    }

    /// The stage that made the first value that is not finite, if it is known.
    pub fn stage(&self) -> Option<Stage> {
        if let Cause::Instruction { stage, .. } = self { Some(*stage) } else { None }
    }
}

/// What `fattn trace-nonfinite` prints below its table, but for the name of an input.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::AllFinite => write!(f, "all finite"),
            Cause::Input => write!(f, "an input is not finite: nothing was traced"),
            Cause::Instruction { part, kernel, stage, .. } => {
                writeln!(f, "traced in the emulator: {part}")?;
                let Some((origin, others, is_origin)) = self.origin() else { return Ok(()) };
                let what = if is_origin { "origin" } else { "suspect, there is no origin" };
                writeln!(f, "stage {stage} of {kernel} ({what}; {others} elements more of the kind)")?;
                write!(f, "{origin}")
            }
            Cause::Findings { part, error } => {
                write!(f, "the emulator finds fault with the kernel, for {part}\n{error}")
            }
            Cause::NotReproduced { parts } => {
                write!(f, "the emulator computes finite numbers for what was tried:")?;
                parts.iter().try_for_each(|part| write!(f, "\n  {part}"))
            }
        }
    }
}

/// Computes the smallest part that shows the element `index` of a result again, in the emulator of `arch`,
/// and asks which instruction made the first value that is not finite; of larger and larger parts, until
/// there is one. Those of more than `most_pairs` pairs of a query and a key are left out: the emulator needs
/// about a second for a million of them. Where an instruction is of a stage that the result does not depend
/// on, kernels for compute capability 8.0 are asked as well. `G` is the element type of gradients.
///
/// # Errors
/// What the emulator and the device refuse, but for findings.
pub fn search<T: Element, O: Element, G: Element>(
    of: &Computation<'_, T, O>,
    tensor: &str,
    index: usize,
    arch: Arch,
    images: &KernelImages,
    most_pairs: u128,
) -> Result<Cause> {
    let mut parts = of.parts(tensor, index);
    parts.retain(|part| part.pairs() <= most_pairs);
    // Another target has other kernels for the same stages.
    let other = (arch != Arch::Sm80).then_some(Arch::Sm80);
    let mut doubtful = None;
    for part in &parts {
        for arch in [Some(arch), other].into_iter().flatten() {
            match traced::<T, O, G>(of, tensor, part, arch, images)? {
                Some(cause @ Cause::Instruction { stage, .. }) if !leads_to(stage, tensor) => {
                    doubtful = doubtful.or(Some(cause));
                }
                Some(cause) => return Ok(cause),
                None => {}
            }
        }
    }
    Ok(doubtful.unwrap_or(Cause::NotReproduced { parts }))
}

/// Why a part is not finite on a target, if it is not.
fn traced<T: Element, O: Element, G: Element>(
    of: &Computation<'_, T, O>,
    tensor: &str,
    part: &Part,
    arch: Arch,
    images: &KernelImages,
) -> Result<Option<Cause>> {
    let driver = EmulatedDriver::new(arch, images.clone())?;
    let driver = Arc::new(driver.with_options(Options { trace: true, ..Options::default() }));
    let emulated = Device::from_driver(driver.clone());
    let gradients = !["o", "lse"].contains(&tensor);
    let results = match part.compute::<T, O, G>(of, &emulated, gradients) {
        Ok(results) => results,
        Err(error @ Error::Findings { .. }) => {
            return Ok(Some(Cause::Findings { part: part.clone(), error }));
        }
        Err(other) => return Err(other),
    };
    if !results.iter().any(|(name, values)| is_not_finite(name, values)) {
        return Ok(None);
    }
    Ok(first_origin(driver.take_traces()).map(|(kernel, trace, origin)| {
        let (part, stage, trace) = (part.clone(), stage(&origin), Box::new(trace));
        Cause::Instruction { part, kernel, stage, trace }
    }))
}

/// Whether a tensor depends on a stage. A kernel may well compute infinities that go nowhere, of keys behind
/// the last one for example, before the one that is looked for.
fn leads_to(stage: Stage, tensor: &str) -> bool {
    match stage {
        Stage::Scores | Stage::Probabilities => true,
        Stage::Lse => tensor != "o",
        Stage::Output => !["lse", "dv"].contains(&tensor),
        Stage::Delta => ["dq", "dk", "dbias", "dsinks"].contains(&tensor),
        Stage::Dp | Stage::Ds => ["dq", "dk", "dbias"].contains(&tensor),
        Stage::Dq => tensor == "dq",
        Stage::Dk => tensor == "dk",
        Stage::Dv => tensor == "dv",
        Stage::DBias => tensor == "dbias",
        Stage::DSinks => tensor == "dsinks",
        Stage::Unknown => false,
    }
}

/// Whether a result of a part is not finite; queries that see no key are left out.
fn is_not_finite(name: &str, values: &[f32]) -> bool {
    let is_meant = |_, value| name == "lse" && value == f32::NEG_INFINITY;
    NonFinite::scan(values.iter().copied(), is_meant).count() != 0
}

/// The first origin of some launches, or, if there is none, the first suspect.
fn first_origin(traces: Vec<(KernelVariant, Trace)>) -> Option<(KernelVariant, Trace, Origin)> {
    let pick = |of: fn(&Trace) -> Option<&Origin>| {
        traces.iter().find_map(|(kernel, trace)| Some((*kernel, trace.clone(), of(trace)?.clone())))
    };
    pick(|trace| trace.first.as_ref()).or_else(|| pick(|trace| trace.suspect.as_ref()))
}

/// The target whose kernels run on a device.
pub fn arch_of(device: &Device) -> Arch {
    let (major, minor) = device.properties().compute_capability;
    Arch::ALL.into_iter().rfind(|arch| arch.runs_on(major, minor)).unwrap_or(Arch::Sm80)
}
