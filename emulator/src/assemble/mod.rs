//! A module from its text: directives, and the bodies of kernels, whose statements become instructions.

mod body;
pub mod module;
