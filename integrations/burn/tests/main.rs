//! The door for burn: values, gradients and errors.

mod attention;
mod errors;
mod reference;
