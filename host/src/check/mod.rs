//! Attention on a device against the reference, over ragged cases: what `fattn check` and the tests run.
//!
//! Every input is surrounded by NaN, between its rows and on both sides; every output and the workspace of
//! a backward starts as NaN and is surrounded by guard bytes that must not change.

mod backward;
mod case;
mod compute;
mod dynamic;
mod equivalence;
mod expected;
mod features;
mod flash_dmattn;
mod generate;
mod generate_features;
mod gradcheck;
mod inputs;
mod judge;
mod memory;
pub mod msda;
mod partial;
mod placement;
mod ranks;
mod remembered;
mod run;
mod scores;

pub use backward::ComputedGradients;
pub use case::{Case, Gradients, Part};
pub use compute::{Computed, compute, compute_with};
pub use dynamic::{Kept, dynamic_case, with_dynamic_mask};
pub use equivalence::equivalence_cases;
pub use expected::{Expected, expected, visible_keys};
pub use features::{
    BiasFeature, BiasValues, Dimensions, Features, MaskFeature, ScoreHeads, ScoreInputs, ScorePlacement,
};
pub use flash_dmattn::{FlashDmattnSize, flash_dmattn_cases};
pub use generate::{LENGTHS, case, cases, extended_case, with_enough_rows};
pub use generate_features::{featured_case, judgeable};
pub use gradcheck::{GradcheckRow, gradcheck, gradcheck_cases};
pub use inputs::{GradientInputs, Inputs};
pub use judge::TensorVerdict;
pub use memory::{GUARD_BYTES, Stored, Strided, Surroundings, TensorMemory};
pub use partial::{mask_of_part, run_case_in_parts};
pub use placement::Placement;
pub use ranks::{compute_over_ranks, run_case_over_ranks};
pub use remembered::Remembered;
pub use run::{Outcome, run_case, run_case_again, run_case_with, sweep, sweep_of};
