//! Exact attention on NVIDIA GPUs, with kernels in plain Rust.
//!
//! `Problem -> Plan -> Launch`: [`ForwardProblem`] says what is asked and owns every error,
//! [`plan::plan_forward`] decides and is pure, [`attention`] launches and has no decisions left. A
//! [`Device`] is a GPU or the emulator, which runs the same PTX and checks every access.

pub mod attention;
pub mod buffer;
pub mod c_api;
pub mod check;
pub mod context_parallel;
mod counters;
pub mod device;
pub mod driver;
pub mod error;
pub mod images;
pub mod msda;
pub mod plan;
pub mod problem;
pub mod reference;
pub mod trace;
pub mod training;

pub use attention::{
    BackwardInputs, BackwardOutput, Element, ForwardInputs, ForwardOutput, ScoreSlices, Workspace,
    backward, backward_host, forward, forward_host, forward_inputs_host, forward_packed_host,
};
pub use device::Device;
pub use driver::{DevicePointer, Stream};
pub use error::{Error, Result};
pub use images::KernelImages;
pub use kernels_gpu::abi::{Arch, Dtype};
pub use msda::{
    MsdaGradients, MsdaInputs, msda_backward, msda_backward_host, msda_forward, msda_forward_host,
};
pub use plan::{BackwardPointers, ForwardPointers, MsdaBackwardPointers, MsdaPointers};
pub use problem::{
    BackwardProblem, CausalAlignment, ForwardProblem, Layout, Mask, Mode, MsdaBackwardProblem,
    MsdaProblem, Padding, Sequences,
};
