//! Exact attention on NVIDIA GPUs, forward and backward, with kernels in plain Rust.
//!
//! ```
//! use finite_attention::*;
//! # fn main() -> Result<()> {
//! let device = Device::default()?; // the first GPU, else the emulator
//! let layout = Layout::bshd([1, 3, 2, 4]); // batch, sequence, heads, head dimension
//! let (q, k, v, d_o) = ([0.5f32; 24], [1f32; 24], [2f32; 24], [1f32; 24]);
//! let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).causal();
//! let output: ForwardOutput<f32> = forward_host(&device, &problem, &q, &k, &v)?;
//! let inputs = BackwardInputs::new(&q, &k, &v, &output, &d_o);
//! let gradients: BackwardOutput<f32> = backward_host(&device, &BackwardProblem::new(problem), &inputs)?;
//! assert_eq!((output.o, gradients.dk), (vec![2.0; 24], vec![0.0; 24]));
//! # Ok(())
//! # }
//! ```
//!
//! # Guide
//!
//! **Problem, plan, launch.** A [`ForwardProblem`] or [`BackwardProblem`] says what is asked and owns every
//! error; [`plan::plan_forward`] and [`plan::plan_backward`] decide and are pure, so that they can be printed
//! and tested without a device; [`forward`] and [`backward`] launch and have no decisions left.
//!
//! **Devices.** A [`Device`] is a GPU ([`Device::cuda`]) or the emulator ([`Device::emulated`]), which runs
//! the same kernels and checks every access. [`Device::default`] takes a GPU if there is one, and says
//! through `tracing` if there is none. The driver's library is found at run time. Kernels are loaded at their
//! first launch, or ahead of it by [`Device::prepare`].
//!
//! **Memory.** Functions whose names end in `_host` take slices of the host, copy them and wait. The others
//! take addresses in device memory ([`buffer::DeviceBuffer`], or another library's: a GPU is opened in its
//! primary context) and a [`Stream`], and return at once; they are `unsafe`, as an address can be wrong. A
//! backward pass wants a workspace, whose size its plan knows.
//!
//! **What a problem can have.** Any strides ([`Layout`]), a [`Mask`], a softcap, packed [`Sequences`], fewer
//! heads of k and v, bias, boolean masks, ALiBi and sinks ([`problem`], [`ScoreSlices`]), dropout that can be
//! replayed, gradients that are the same bits every time ([`Mode::Deterministic`]).
//!
//! **Errors** name the argument, what was expected and what came: [`Error`]. Nothing falls back silently.
//!
//! **Training.** [`training`] has scans for NaN and infinities, loss scaling, clipping, and an anomaly mode
//! that names the stage of a computation. **More GPUs**: [`context_parallel`]. **Deformable attention**:
//! [`msda`]. **Other languages**: [`c_api`]; Python, burn and candle have packages of their own in
//! `integrations`. **Tests of your own**: [`check`] and [`reference`](mod@reference), plain loops in f64.
//!
//! # Features
//!
//! - `cust` (on by default): contexts and memory go through `cust`, whose buffers and pointers are
//!   [`buffer::InDeviceMemory`]; its build script wants a CUDA toolkit. Without it nothing but stable Rust is
//!   needed
//! - `cli` (on by default): what the command `fattn` needs

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
    MsdaProblem, Padding, Precision, Sequences,
};

/// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs of the book.
#[cfg(doctest)]
#[doc = include_str!("../docs/features.md")]
struct Features;
