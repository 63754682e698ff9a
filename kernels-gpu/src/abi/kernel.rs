//! What a compiled kernel is.

use super::{
    MSDA_BACKWARD_THREADS, MSDA_BLOCKS, MSDA_FORWARD_THREADS, MSDA_SCAN_THREADS, MSDA_SMALL_THREADS,
    Switches,
};

/// Element type of a tensor in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16: 8 exponent bits, 7 mantissa bits.
    Bf16,
    /// IEEE binary16: 5 exponent bits, 10 mantissa bits.
    F16,
    /// IEEE binary32.
    F32,
}

impl Dtype {
    /// Bytes per element.
    pub const fn bytes(self) -> u32 {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
        }
    }

    /// The name used in kernel names, tables and JSON: `bf16`, `f16`, `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
        }
    }
}

/// The PTX target a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// `sm_80`: Ampere and everything newer, through the driver's JIT.
    Sm80,
    /// `sm_90a`: Hopper alone. Its matrix instructions are neither in older nor in newer devices.
    Sm90a,
}

impl Arch {
    /// Every target.
    pub const ALL: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

    /// The name given to the compiler and used in kernel names: `sm_80`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90a => "sm_90a",
        }
    }

    /// The smallest compute capability that runs its kernels.
    pub const fn compute_capability(self) -> (u32, u32) {
        match self {
            Arch::Sm80 => (8, 0),
            Arch::Sm90a => (9, 0),
        }
    }

    /// Whether a device of this compute capability can run the kernel.
    pub const fn runs_on(self, major: u32, minor: u32) -> bool {
        match self {
            Arch::Sm80 => major >= 8,
            Arch::Sm90a => major == 9 && minor == 0,
        }
    }
}

/// How a kernel reads and writes rows in global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// 16 bytes at a time: every row of q, k, v and o must start on a 16-byte boundary.
    Vector16,
    /// One element at a time: any strides. Slower.
    Element,
}

impl Access {
    /// The suffix of the kernel name: empty for the aligned kernel, `_strided` for the other.
    pub const fn suffix(self) -> &'static str {
        match self {
            Access::Vector16 => "",
            Access::Element => "_strided",
        }
    }
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// o and lse from q, k and v.
    Forward,
    /// o and lse from those of ranges of keys. Any head dim, any strides.
    ForwardCombine,
    /// First kernel of a backward: delta and lse per row, and zeroed accumulators or, for Hopper, notes. Any
    /// head dim, any strides.
    BackwardDelta,
    /// Main kernel of a backward: dk, dv and dq before conversion.
    Backward,
    /// The kernel of a backward that makes dq, mostly the last one.
    BackwardConvert,
    /// The last one of a backward for Hopper that has divided key tiles: their dk and dv. Any head dim, any
    /// strides.
    BackwardSum,
    /// How large f32 operands of tensor cores are, head by head. Any strides.
    MeasureOperands,
    /// Their two f16 parts, behind that. Any strides.
    SplitOperands,
    /// Sums of f32 tensors, rounded. Any head dim, any strides.
    Accumulate,
    /// The gradient of the bias, behind the first kernel of a backward.
    BiasGradient,
    /// The gradient of the sinks, behind the first kernel of a backward. Any head dim, any strides.
    SinkGradient,
    /// The bits of a boolean mask, for the kernels that make scores.
    MaskBits,
    /// What is in a tensor of one element type: how much is not finite, and the sum of squares. Any strides.
    Scan,
    /// Which tiles of it are empty, and which full.
    MaskMap,
    /// A kernel of dynamic masks. Any strides.
    Dynamic(DynamicStage),
    /// A kernel of multi-scale deformable attention. Any number of channels.
    Msda(MsdaStage),
}

/// What a kernel of dynamic masks computes. Of those that select there is one for each element type of the
/// bias, of others one for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicStage {
    /// Bits: which keys of a row of a bias are kept.
    Select,
    /// The same in blocks of keys.
    Blocks,
    /// Positions of the keys that are kept for all queries.
    Positions,
    /// Their k, v and bias, side by side, and which of them a query sees.
    Gather,
    /// Gradients of these, back to where the keys stand.
    Scatter,
}

/// What a kernel of multi-scale deformable attention computes. Where it says so, in any element type and any
/// strides; of others there is one for each element type, and of main kernels and `Gather` one for each
/// access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MsdaStage {
    /// o.
    Forward,
    /// f32 zeros where gradients of value are added up. Any strides.
    Zero,
    /// Gradients of locations and weights, and, unless they are added up in order, of value in f32.
    Backward,
    /// Gradients of value, rounded. Any strides.
    Convert,
    /// How many points of a chunk are in each bin: the first of four that add up in order. Any strides.
    Count,
    /// Where the points of each bin, and there of each chunk, go. Any element type.
    Scan,
    /// Points by bins. Any strides.
    Fill,
    /// Gradients of value, each cell added up by itself, in the order of points.
    Gather,
}

impl MsdaStage {
    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        match self {
            MsdaStage::Forward => MSDA_FORWARD_THREADS,
            MsdaStage::Backward => MSDA_BACKWARD_THREADS,
            MsdaStage::Scan => MSDA_SCAN_THREADS,
            _ => MSDA_SMALL_THREADS,
        }
    }

    /// Blocks whose registers must fit on one multiprocessor.
    pub const fn min_blocks(self) -> u32 {
        match self {
            MsdaStage::Forward | MsdaStage::Backward => MSDA_BLOCKS,
            MsdaStage::Gather => 3,
            _ => 1,
        }
    }
}

/// One compiled kernel: what it accepts and what it needs to be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Entry point in the PTX, also the name of the PTX file.
    pub name: &'static str,
    /// What it computes.
    pub family: Family,
    /// PTX target.
    pub arch: Arch,
    /// Element type of q, k and v.
    pub dtype: Dtype,
    /// Head dimensions (of q and k, and of v) up to this one are accepted; smaller ones are padded with
    /// zeros on chip.
    pub head_dim: u32,
    /// How global memory is accessed.
    pub access: Access,
    /// Query rows per block, or per step of the inner loop of a backward; of a delta kernel, per tile, of
    /// which a block takes one or two; of a combining kernel, one for each warp, or one of all; of a
    /// selecting kernel, rows of a bias.
    pub query_rows: u32,
    /// Keys per step of the inner loop; of a kernel that adds up dk and dv, per block; of a selecting kernel,
    /// those that it has in registers.
    pub key_rows: u32,
    /// Threads per block (`.maxntid`).
    pub threads: u32,
    /// Blocks whose registers must fit on one multiprocessor (`.minnctapersm`): caps those of a thread.
    pub min_blocks: u32,
    /// Dynamic shared memory per block, bytes.
    pub shared_bytes: u32,
    /// Whether this forward kernel is for rows of several heads: [`super::ForwardParams::row_heads`].
    pub gathers_heads: bool,
    /// Whether this kernel multiplies f32 in two parts, or ends a backward that did: see
    /// [`super::SplitParams`].
    pub multiplies_parts: bool,
    /// The switches that are in its text.
    pub switches: Switches,
}

impl KernelSpec {
    /// Whether this forward kernel looks at [`super::ForwardParams::splits`]. Those of f32 in parts do not,
    /// since what they leave to others is all keys.
    pub const fn splits_keys(&self) -> bool {
        tiles_split_keys(self.query_rows) && !self.multiplies_parts
    }

    /// Whether this forward kernel adds penalties of ALiBi by a product, where nothing else is added to
    /// scores.
    pub const fn may_multiply_slopes(&self) -> bool {
        matches!((self.family, self.arch), (Family::Forward, Arch::Sm90a)) && !self.multiplies_parts
    }

    /// Whether it adds vectors to global memory, which needs PTX 8.1.
    pub const fn adds_vectors(&self) -> bool {
        matches!((self.family, self.arch), (Family::Msda(MsdaStage::Backward), Arch::Sm90a))
    }

    /// Whether it is a kernel of attention, and not of multi-scale deformable attention or of any tensor.
    pub const fn is_attention(&self) -> bool {
        !matches!(self.family, Family::Msda(_) | Family::Scan)
    }

    /// Whether it is the same for every head dim and every access.
    pub const fn takes_any_strides(&self) -> bool {
        match self.family {
            Family::ForwardCombine
            | Family::BackwardDelta
            | Family::BackwardSum
            | Family::Accumulate
            | Family::SinkGradient
            | Family::MaskBits
            | Family::MaskMap
            | Family::Dynamic(_)
            | Family::MeasureOperands
            | Family::SplitOperands
            | Family::Scan => true,
            Family::Forward | Family::Backward | Family::BackwardConvert | Family::BiasGradient => false,
            Family::Msda(stage) => {
                !matches!(stage, MsdaStage::Forward | MsdaStage::Backward | MsdaStage::Gather)
            }
        }
    }

    /// Whether it is the same for every element type of q.
    pub const fn takes_any_dtype(&self) -> bool {
        match self.family {
            Family::Dynamic(stage) => !matches!(stage, DynamicStage::Select),
            family => matches!(family, Family::SinkGradient | Family::MaskBits | Family::MaskMap),
        }
    }

    /// Whether it may start while the kernel before it ends, since it waits for that one itself.
    pub const fn may_start_early(&self) -> bool {
        matches!(self.arch, Arch::Sm90a)
            && matches!(self.family, Family::ForwardCombine | Family::Backward | Family::BackwardConvert)
    }
}

/// Whether forward kernels with `query_rows` query rows a tile work on ranges of keys: those with three
/// warpgroups have no register left for it, and are for many rows anyway.
#[inline(always)]
pub const fn tiles_split_keys(query_rows: u32) -> bool {
    query_rows <= 128
}
