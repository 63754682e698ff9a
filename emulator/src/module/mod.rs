//! What a parsed module consists of.

pub mod locations;
pub mod quote;

use crate::error::{ParseError, ParseErrorKind};
use crate::isa::Code;
use crate::report::source::SourceLocation;
use crate::space::SYSTEM_SHARED_BYTES;
use locations::Locations;
use quote::quote;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A parsed PTX module.
#[derive(Debug)]
pub struct Module {
    pub(crate) shared: Arc<ModuleData>,
    pub(crate) kernels: Vec<Kernel>,
}

/// What the kernels of a module share.
#[derive(Debug)]
pub(crate) struct ModuleData {
    /// Tells modules apart, so that a memory can hold the variables of several.
    pub id: u64,
    pub source: String,
    pub target: String,
    pub locations: Locations,
    pub variables: Vec<Variable>,
}

impl ModuleData {
    pub fn fresh_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A `.global` or `.const` variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    /// Its name in the text.
    pub name: String,
    /// Initial contents; zero where the declaration gave no values.
    pub bytes: Vec<u8>,
    /// Whether it is `.const`.
    pub read_only: bool,
    /// Places that hold the address of another variable: offset, variable, addend.
    pub addresses: Vec<(u32, u32, i64)>,
}

impl Module {
    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name() == name)
    }

    /// The kernels in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter()
    }

    /// The architecture that the module was compiled for, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.shared.target
    }
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Where it starts in the parameter buffer.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
    /// Its alignment.
    pub align: usize,
}

/// An instruction that the emulator does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Line of the text, from 1.
    pub line: u32,
    /// The instruction.
    pub text: String,
}

impl Unsupported {
    pub(crate) fn to_error(&self) -> ParseError {
        let kind = ParseErrorKind::UnsupportedInstruction;
        ParseError { line: self.line, text: self.text.clone(), kind }
    }
}

/// A kernel: an entry point of a module, ready to launch.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) data: KernelData,
    pub(crate) module: Arc<ModuleData>,
}

/// What belongs to one kernel alone.
#[derive(Debug, Default)]
pub(crate) struct KernelData {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: usize,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) required_threads: Option<[u32; 3]>,
    /// `.reqnctapercluster`: blocks of a cluster, by dimension.
    pub(crate) required_cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`: blocks that a cluster has at most.
    pub(crate) max_cluster: Option<u32>,
    /// `.explicitcluster`: a launch has to have clusters.
    pub(crate) explicit_cluster: bool,
    /// `.maxnreg`: registers that a thread has at most, at the start.
    pub(crate) max_registers: Option<u32>,
    /// `.minnctapersm`: blocks whose registers fit on a multiprocessor together.
    pub(crate) min_blocks: Option<u32>,
    pub(crate) static_shared_bytes: u32,
    /// Offset of the system's part of shared memory, if the kernel uses it.
    pub(crate) system_shared: Option<u32>,
    pub(crate) dynamic_shared_align: u32,
    /// Local memory of a thread: its own variables, and behind them what calls take.
    pub(crate) local_bytes: u32,
    /// Its own variables alone.
    pub(crate) frame_bytes: u32,
    pub(crate) code: Code,
    pub(crate) unsupported: Vec<Unsupported>,
    /// What is wrong with its text, if anything.
    pub(crate) error: Option<ParseError>,
    /// The first instruction that the target does not have, and those that do; found at the first launch.
    pub(crate) too_new: OnceLock<Option<(u32, &'static str)>>,
}

impl Kernel {
    /// The name of the entry.
    pub fn name(&self) -> &str {
        &self.data.name
    }

    /// The parameters in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.data.parameters
    }

    /// Bytes of all parameters with their padding.
    pub fn parameter_bytes(&self) -> usize {
        self.data.parameter_bytes
    }

    /// The largest block that `.maxntid` allows.
    pub fn max_threads(&self) -> Option<[u32; 3]> {
        self.data.max_threads
    }

    /// The blocks of a cluster that `.reqnctapercluster` demands, by dimension.
    pub fn required_cluster(&self) -> Option<[u32; 3]> {
        self.data.required_cluster
    }

    /// Bytes of shared memory that the kernel declares itself.
    pub fn static_shared_bytes(&self) -> u32 {
        self.data.static_shared_bytes - self.system_shared_bytes()
    }

    /// Bytes of the system's part of shared memory, which counts for no limit, if the kernel uses it.
    pub(crate) fn system_shared_bytes(&self) -> u32 {
        if self.data.system_shared.is_some() { SYSTEM_SHARED_BYTES } else { 0 }
    }

    /// Bytes of local memory of each thread.
    pub fn local_bytes(&self) -> u32 {
        self.data.local_bytes
    }

    /// The `.global` and `.const` variables of the module: name and bytes, in the order of the text.
    pub fn variables(&self) -> impl Iterator<Item = (&str, usize)> {
        self.module.variables.iter().map(|variable| (variable.name.as_str(), variable.bytes.len()))
    }

    /// Instructions in the text, without the final exit.
    pub fn instructions(&self) -> usize {
        self.data.code.instructions.len().saturating_sub(1)
    }

    /// The instructions that the emulator does not know; a kernel with any does not launch.
    pub fn unsupported(&self) -> &[Unsupported] {
        &self.data.unsupported
    }

    /// Why it does not launch: what is wrong with its text, or the first instruction that the emulator does
    /// not know.
    pub fn error(&self) -> Option<ParseError> {
        let unsupported = || self.unsupported().first().map(Unsupported::to_error);
        self.data.error.clone().or_else(unsupported)
    }

    /// PTX line of an instruction.
    pub(crate) fn line(&self, pc: u32) -> u32 {
        self.data.code.lines[pc as usize]
    }

    /// Text of an instruction.
    pub(crate) fn text(&self, pc: u32) -> String {
        let (start, end) = self.data.code.texts[pc as usize];
        if start == end {
            "end of the kernel".to_string()
        } else {
            quote(&self.module.source, start, end)
        }
    }

    /// Source location of an instruction.
    pub(crate) fn location(&self, pc: u32) -> Option<SourceLocation> {
        self.module.locations.resolve(self.data.code.locations[pc as usize], &self.module.source)
    }
}
