//! The door for burn: values, gradients and errors.

mod attention;
#[cfg(feature = "cuda")]
mod cuda;
mod errors;
mod packed;
mod reference;
mod scores;
