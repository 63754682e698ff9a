//! Multi-scale deformable attention on a device against the reference: what `fattn check --what msda` and the
//! tests run. Surroundings are as for attention.

mod case;
mod compute;
mod judge;
mod run;
mod triton;

pub use case::{MsdaCase, msda_case};
pub use compute::{MsdaComputed, MsdaNumbers, compute_msda};
pub use judge::judge_msda;
pub use run::{MsdaOutcome, run_msda_case, run_msda_case_with};
pub use triton::{
    MsdaTritonOutcome, MsdaTritonResult, MsdaTritonSize, MsdaTritonTest, msda_triton_tests,
    run_msda_triton,
};
