//! The door for candle: values, gradients and errors.

mod attention;
mod errors;
mod reference;
