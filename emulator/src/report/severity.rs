//! How bad a fault is.

use super::FindingKind;
use serde::Serialize;
use std::fmt;

/// How bad a fault is; the worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The kernel may do something else than what its text says.
    Error,
    /// The memory model does not promise what the kernel relies on, though known GPUs do it.
    Warning,
    /// Against the letter of the memory model, and harmless wherever it was looked at.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

impl FindingKind {
    /// How bad a fault of this kind is.
    pub fn severity(self) -> Severity {
        match self {
            FindingKind::MissingAcquire | FindingKind::MissingMbarrierFence => Severity::Warning,
            FindingKind::RedundantWrites | FindingKind::CompareAndSwapLoad => Severity::Note,
            _ => Severity::Error,
        }
    }
}
