//! Runs PTX on the CPU and checks it.
//!
//! The text that a GPU driver would compile is parsed ([`Module::parse`]), decoded once, and executed warp
//! by warp ([`launch`]) against an emulated global memory ([`Memory`]). Every access is checked for bounds
//! and alignment; optional checks find reads of bytes that nobody wrote, copies read before their wait,
//! registers that nothing wrote, divergent barriers and deadlocks, races in shared memory and, between all
//! blocks of a launch, in global memory, accesses beyond the named regions of shared memory that a launch
//! declares ([`Region`]), and, in kernels of compute capability 9.0, missing fences between the proxies and
//! registers of unfinished multiplications. A finding names kernel, block, thread, the PTX
//! line and, where the module carries line tables, the source line. With [`Options::trace`] on, the report
//! names the first instruction whose finite operands gave NaN or infinity ([`Trace`]).
//!
//! ```
//! use ptx_emulator::{Launch, Memory, Module, Options, launch};
//!
//! let ptx = "
//!     .version 7.8
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry double(.param .u64 data) {
//!         .reg .b32 %r<4>;
//!         .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [data];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.s64 %rd3, %rd1, %rd2;
//!         ld.global.u32 %r2, [%rd3];
//!         add.s32 %r3, %r2, %r2;
//!         st.global.u32 [%rd3], %r3;
//!         ret;
//!     }";
//! let module = Module::parse(ptx)?;
//! let memory = Memory::new();
//! let data = memory.allocate(128);
//! memory.write(data, &[1; 128])?;
//! let params = &data.to_le_bytes();
//! let (grid, block) = ([1; 3], [32, 1, 1]);
//! let shape = Launch::new(grid, block, params);
//! let kernel = module.kernel("double").expect("the entry above");
//! let report = launch(kernel, &memory, &shape, &Options::default())?;
//! assert!(report.findings.is_empty());
//! let mut result = [0; 128];
//! memory.read(data, &mut result)?;
//! assert_eq!(result, [2; 128]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layers: `isa` (the decoded form and its control-flow graph), `module` (what a parsed module consists of),
//! `parse` (text to statements), `decode` (statements to instructions), `assemble` (a module from its text),
//! `shadow` (what is known about each byte), `memory` (the state spaces), `exec` (warps, divergence,
//! schedule, blocks, grid; one file per instruction family in `exec::ops`).
//!
//! Kernels of compute capability 9.0 have a few actors more: bulk and tensor copies that report to an
//! `mbarrier`, and multiplications by a warpgroup. They happen at the latest legal moment, at once, or at
//! random ([`Schedule`]). The host makes the tensor maps that such a kernel takes ([`TensorMap`]).
//!
//! The blocks of a cluster run together, their warps in turns, and reach each other's shared memory; whether
//! that is ordered is checked as within a block, and whether it is there, too.
//!
//! A kernel may start before the one before it has ended, as its dependent ([`launch_dependent`]): blocks of
//! both run together, and their accesses to global memory are checked as if they were of one launch, until
//! `griddepcontrol.wait`.
//!
//! Values that are not defined are followed until something comes of them. Kernels call functions, print and
//! assert ([`Report::output`]).
//!
//! Not modelled: time, the memory model's reorderings, caches, and what `ptxas` does to the text. Not
//! covered: textures and surfaces, `multimem`, copies of windows of images (im2col), arguments of calls in
//! registers, dynamic parallelism. A kernel that uses an instruction which is not covered refuses to launch
//! and says so.

#[cfg(test)]
mod allocate_tests;
mod assemble;
mod decode;
mod error;
mod exec;
mod isa;
mod memory;
mod module;
mod options;
mod parse;
mod region;
mod report;
mod shadow;
mod space;
mod survey;
mod tensor_map;
mod unaligned;

pub use error::{LaunchError, MemoryError, ParseError, ParseErrorKind};
pub use exec::{launch, launch_dependent};
pub use memory::global::{Memory, MemoryStatistics};
pub use module::{Kernel, Module, Parameter, Unsupported};
pub use options::{Checks, Launch, Options, Schedule};
pub use region::Region;
pub use report::severity::Severity;
pub use report::source::SourceLocation;
pub use report::trace::{Number, Operand, Origin, OriginKind, Trace};
pub use report::{Finding, FindingKind, Report, Statistics};
pub use space::{Address, Space};
pub use survey::{Survey, Surveyed, are_spoiled, has_global_race, weigh_races};
pub use tensor_map::{TensorMap, TensorMapElement, TensorMapError, TensorMapSwizzle};

/// With which `opt-level` the crate was built: "0" is 20 to 140 times slower than "3".
pub const OPT_LEVEL: &str = env!("PTX_EMULATOR_OPT_LEVEL");
