//! Guards of training: what is not finite is found where it comes from, and does not reach the weights.
#![doc = include_str!("../../docs/training.md")]

mod anomaly;
mod clip;
mod error;
mod scaler;
#[cfg(test)]
mod scaler_tests;
mod scan;
mod tensor;

pub use anomaly::{AnomalyMode, AnomalyReport};
pub use clip::{Clipped, NonFiniteNorm, clip_by_global_norm};
pub use error::{Result, TrainingError};
pub use scaler::{GradScaler, GradScalerState};
pub use scan::{Scanned, multiply, scan};
pub use tensor::DeviceTensor;
