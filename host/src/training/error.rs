//! What the guards refuse.

use super::Scanned;
use crate::error::Error;

/// Short for a result of this module.
pub type Result<T, E = TrainingError> = std::result::Result<T, E>;

/// Why a guard does not do what it was asked for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// A tensor that cannot be scanned or changed.
    #[error("{argument}: expected {expected}, got {got}")]
    Tensor {
        /// Its name.
        argument: String,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A number that makes no sense.
    #[error("{argument}: expected {expected}, got {got}")]
    Number {
        /// Its name.
        argument: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        got: f64,
    },
    /// Methods of a scaler in an order that makes no sense.
    #[error("{call}: expected {expected}, got {got}")]
    Order {
        /// The method.
        call: &'static str,
        /// When it may be called.
        expected: &'static str,
        /// When it was.
        got: &'static str,
    },
    /// The norm of all gradients is not finite.
    #[error(
        "total norm: expected a finite number, got {total}{}",
        .first.as_ref().map_or_else(
            || ": all elements are finite, and the norm is more than f32 holds".to_owned(),
            |(name, scanned)| format!(": {name} has {scanned}")
        )
    )]
    NonFiniteNorm {
        /// The norm.
        total: f32,
        /// The first tensor that has an element that is not finite.
        first: Option<(String, Box<Scanned>)>,
    },
    /// What the library or the device says.
    #[error(transparent)]
    Library(#[from] Error),
}
