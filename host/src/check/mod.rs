//! Attention on a device against the reference, over ragged cases: what `fattn check` and the tests run.
//!
//! Every input is surrounded by NaN, between its rows and on both sides; every output starts as NaN and
//! is surrounded by guard bytes that must not change.

mod case;
mod compute;
mod generate;
mod memory;
mod placement;
mod run;

pub use case::Case;
pub use compute::{Computed, Inputs, compute};
pub use generate::{LENGTHS, case, cases};
pub use memory::{GUARD_BYTES, Surroundings, TensorMemory};
pub use placement::Placement;
pub use run::{Outcome, judge, run_case, sweep};
