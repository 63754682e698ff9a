//! One PTX instruction per function: the only place with `asm!`.
//!
//! Rules of this layer:
//! - An `asm!` is not convergent for the compiler: it may duplicate or merge barriers across branches.
//!   The build marks every inline-asm call site convergent in the LLVM IR before any optimisation, and
//!   counts them in the PTX.
//! - Addresses are numbers: global ones `u64`, shared ones `u32`. A Rust pointer inside a by-value
//!   parameter would become a generic one and cost a conversion and a slower instruction at each access.
//! - Everything is `unsafe`: the caller promises that addresses are valid, aligned, and ordered by the
//!   barriers that the hardware needs, and that warp-wide instructions are reached by all lanes of the
//!   warp together.

pub mod async_copy;
pub mod barrier;
pub mod bulk_copy;
pub mod convert;
pub mod global;
pub mod grid;
pub mod math;
pub mod matrix;
pub mod mbarrier;
pub mod registers;
pub mod shared;
pub mod specialize;
pub mod thread;
pub mod warp;
pub mod wgmma;
