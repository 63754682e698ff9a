//! Everything that can go wrong, with the argument's name, what was expected and what came.

mod partial;
mod text;

use crate::problem::MAX_SCALE;
pub use partial::PartialError;
use text::{comma, count_text, detail_text, list_text, plural};

/// Short for a result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. The texts are part of the interface and are tested.
///
/// `argument` is always the name of a tensor or parameter: `q`, `k`, `v`, `o`, `lse`, `dq`, `dk`, `dv`,
/// `cu_seqlens_q`, `cu_seqlens_k`, `max_query_rows`, `max_key_rows`, `scale`, `softcap`, `dropout_rate`,
/// `num_splits`, `bias`, `mask`, `dynamic_mask`, `alibi_slopes`, `sinks`, `dbias`, `dsinks`, `workspace`; of
/// multi-scale deformable attention `value`, `shapes`, `level_points`, `locations`, `weights`, and `dvalue`,
/// `dlocations`, `dweights`. Gradients of o and lse are `do` and `dlse`, as in files; their fields are
/// `d_o` and `d_lse`, and so with `d_bias` and `d_sinks`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has the wrong number of dimensions.
    #[error("{argument}: expected {expected} dimension{} {names}, got {got}", plural(*.expected))]
    WrongRank {
        /// Which tensor.
        argument: &'static str,
        /// How many dimensions it should have.
        expected: usize,
        /// What these dimensions are, e.g. `[batch, row, head, column]`.
        names: &'static str,
        /// How many it has.
        got: usize,
    },
    /// One size of a tensor differs from the same size of another.
    #[error("{argument}: expected {dimension} {expected} like {like}, got {got}")]
    WrongSize {
        /// Which tensor.
        argument: &'static str,
        /// Which dimension: `batch`, `rows`, `heads`, `head_dim`.
        dimension: &'static str,
        /// The size it should have.
        expected: usize,
        /// The tensor that says so.
        like: &'static str,
        /// The size it has.
        got: usize,
    },
    /// One size of a tensor is outside what kernels accept.
    #[error("{argument}: expected {dimension} {min}..={max}, got {got}")]
    SizeRange {
        /// Which tensor.
        argument: &'static str,
        /// Which dimension: `batch`, `rows`, `heads`, `head_dim`.
        dimension: &'static str,
        /// Smallest size.
        min: u64,
        /// Largest size.
        max: u64,
        /// The size it has.
        got: usize,
    },
    /// A size of a tensor that may be broadcast is neither 1 nor that of the problem.
    #[error("{argument}: expected {dimension} 1{} or {expected}, got {got}", comma(*.also))]
    BroadcastSize {
        /// Which tensor.
        argument: &'static str,
        /// Which dimension: `batch`, `heads`, `queries`, `keys`.
        dimension: &'static str,
        /// The size that is not broadcast.
        expected: usize,
        /// Another size that it may have: of heads, those of k.
        also: Option<usize>,
        /// The size it has.
        got: usize,
    },
    /// The query heads cannot be shared out evenly among the key heads.
    #[error("q: expected heads to be a multiple of the {key_heads} of k, got {query_heads}")]
    HeadRatio {
        /// Hq.
        query_heads: usize,
        /// Hk.
        key_heads: usize,
    },
    /// Two tensors that must have the same element type do not.
    #[error("{argument}: expected dtype {expected} like {like}, got {got}")]
    WrongDtype {
        /// Which tensor.
        argument: &'static str,
        /// Name of the dtype that it should have.
        expected: &'static str,
        /// The tensor that says so.
        like: &'static str,
        /// Name of the dtype that it has.
        got: String,
    },
    /// A dtype that the library does not know or cannot write.
    #[error("{argument}: expected dtype {expected}, got {got}")]
    UnsupportedDtype {
        /// Which tensor.
        argument: &'static str,
        /// What is possible, e.g. `bf16 or f32`.
        expected: String,
        /// What was asked for.
        got: String,
    },
    /// The elements of a row do not stand side by side.
    #[error("{argument}: expected contiguous columns (stride 1), got stride {got}")]
    ColumnStride {
        /// Which tensor.
        argument: &'static str,
        /// Elements from one column to the next.
        got: i64,
    },
    /// Rows of a tensor are too far apart for kernels that count their bytes in 32 bits.
    #[error("{argument}: expected a stride of rows of at most {max} elements in size, got {got}")]
    RowStride {
        /// Which tensor.
        argument: &'static str,
        /// The largest stride in elements.
        max: i64,
        /// The stride in elements.
        got: i64,
    },
    /// An output has a stride that is zero or negative.
    #[error(
        "{argument}: expected a positive stride of {dimension}, got {got}: outputs are written once"
    )]
    OutputStride {
        /// Which tensor.
        argument: &'static str,
        /// Which dimension.
        dimension: &'static str,
        /// The stride in elements.
        got: i64,
    },
    /// The elements of an output are not provably apart.
    #[error(
        "{argument}: expected a stride of {dimension} of at least {expected}, so that no two elements \
         share an address, got {got}"
    )]
    OutputOverlap {
        /// Which tensor.
        argument: &'static str,
        /// Which dimension.
        dimension: &'static str,
        /// Elements that one step of this dimension must skip.
        expected: i128,
        /// The stride in elements.
        got: i64,
    },
    /// From the first to the last byte of a tensor is more than an address can say.
    #[error(
        "{argument}: expected a tensor of less than 2^63 bytes, got shape {shape:?} with strides {strides:?}"
    )]
    AddressSpan {
        /// Which tensor.
        argument: &'static str,
        /// Its shape.
        shape: [usize; 4],
        /// Its strides in elements.
        strides: [i64; 4],
    },
    /// A device address that is no multiple of what it must be.
    #[error("{argument}: expected an address that is a multiple of {alignment} bytes, got {address:#x}")]
    Misaligned {
        /// Which tensor.
        argument: &'static str,
        /// Bytes per element; of a workspace, [`crate::plan::BackwardPlan::WORKSPACE_ALIGNMENT`].
        alignment: u32,
        /// The address.
        address: u64,
    },
    /// A null pointer for a tensor that has elements.
    #[error("{argument}: expected a device pointer, got null for {elements} elements")]
    NullPointer {
        /// Which tensor.
        argument: &'static str,
        /// How many elements the tensor has.
        elements: u128,
    },
    /// A host slice has not exactly the elements of its layout, or of the device buffer that it is for.
    #[error("{argument}: expected {expected} elements for shape {shape:?}, got {got}")]
    WrongLength {
        /// Which tensor.
        argument: &'static str,
        /// Elements from the first to the last that the layout touches.
        expected: usize,
        /// The shape, as it is documented: of lse `[B, Hq, Sq]`, packed `[Hq, Tq]`.
        shape: Vec<usize>,
        /// Elements that are there.
        got: usize,
    },
    /// Elements of a tensor that the problem does not have.
    #[error("{argument}: expected no elements, as the problem has no {argument}, got {got}")]
    NotInProblem {
        /// Which tensor.
        argument: &'static str,
        /// Elements that are there.
        got: usize,
    },
    /// The bits of a boolean mask are more words than the kernel that makes them can count.
    #[error("mask: expected at most {max} words of 32 keys, got {got} for shape {shape:?}")]
    MaskWords {
        /// The most words.
        max: u32,
        /// `[batch, head, query, key]`: all keys, also where the tensor has one that stands for them.
        shape: [usize; 4],
        /// Words needed.
        got: u128,
    },
    /// A dynamic mask that cannot be made: what it needs, and what there is.
    #[error("dynamic_mask: expected {0}, got {1}")]
    DynamicMask(&'static str, String),
    /// Packed sequences of at most this length cannot have that many rows.
    #[error("{argument}: expected at most {count} sequences of {longest} rows, got {got} rows")]
    PackedRows {
        /// Which tensor.
        argument: &'static str,
        /// How many sequences.
        count: usize,
        /// Rows of the longest.
        longest: usize,
        /// Rows that are there.
        got: usize,
    },
    /// The offsets of packed sequences are not as many as they should be.
    #[error("{argument}: expected {expected} offsets, got {got}")]
    OffsetCount {
        /// `cu_seqlens_q` or `cu_seqlens_k`.
        argument: &'static str,
        /// How many there should be: one more than sequences, none without packed sequences.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// An offset of a packed sequence is wrong.
    #[error("{argument}: expected offset {index} to be {expected}, got {got}")]
    Offset {
        /// `cu_seqlens_q` or `cu_seqlens_k`.
        argument: &'static str,
        /// Which offset.
        index: usize,
        /// What it should be.
        expected: String,
        /// What it is.
        got: i32,
    },
    /// A packed sequence is longer than the caller said that any is.
    #[error("{argument}: expected at most {max} rows per sequence, got {got} in sequence {sequence}")]
    SequenceTooLong {
        /// `cu_seqlens_q` or `cu_seqlens_k`.
        argument: &'static str,
        /// Which sequence.
        sequence: usize,
        /// The longest that was announced.
        max: usize,
        /// Its rows.
        got: usize,
    },
    /// The workspace of a backward pass is too small.
    #[error("workspace: expected at least {expected} bytes, got {got}")]
    WorkspaceTooSmall {
        /// Bytes that the plan needs.
        expected: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// The workspace of a backward pass would be larger than any memory.
    #[error("workspace: expected at most {max} bytes for this problem, got {got}")]
    WorkspaceTooLarge {
        /// The most bytes.
        max: u64,
        /// Bytes needed.
        got: u128,
    },
    /// The workspace of a backward pass has more rows than the kernels can count.
    #[error("workspace: expected at most {max} rows per head, got {got}")]
    WorkspaceRows {
        /// The most rows.
        max: u32,
        /// Rows needed.
        got: u64,
    },
    /// The softmax scale is NaN, infinite, or so large that kernels, which take powers of two, could not
    /// multiply it by `log2(e)`.
    #[error("scale: expected a number from -{max:e} to {max:e}, got {got:e}", max = MAX_SCALE)]
    Scale {
        /// The scale.
        got: f32,
    },
    /// The cap of scores is not above 0, or NaN, or so large that kernels could not multiply it by `log2(e)`.
    #[error("softcap: expected a number above 0 and of at most {max:e}, got {got:e}", max = MAX_SCALE)]
    Softcap {
        /// The cap.
        got: f32,
    },
    /// f32 does not hold `scale / softcap`, by which kernels multiply products.
    #[error(
        "softcap: expected a number that the scale {scale:e} is from {min:e} to {max:e} times in size, got \
         {got:e}",
        min = f32::MIN_POSITIVE,
        max = f32::MAX
    )]
    SoftcapFactor {
        /// The softmax scale.
        scale: f32,
        /// The cap.
        got: f32,
    },
    /// The share of probabilities that is dropped is below 0, NaN, or rounds to all of them.
    #[error(
        "dropout_rate: expected a number of at least 0 and below {below}, so that something is kept, got \
         {got}",
        below = 65535.5 / 65536.0f32
    )]
    DropoutRate {
        /// The share.
        got: f32,
    },
    /// There can be no such number of ranges of keys.
    #[error("num_splits: expected 1 to {max} ranges of keys, got {got}")]
    NumSplits {
        /// The largest number.
        max: u32,
        /// The number asked for.
        got: u32,
    },
    /// The problem needs more blocks than a grid can have.
    #[error("grid: expected at most {max} blocks, got {got} ({detail})")]
    GridTooLarge {
        /// Largest grid.
        max: u32,
        /// Blocks needed.
        got: u128,
        /// Where the number comes from.
        detail: String,
    },
    /// Text that names no device.
    #[error(
        "device: expected cuda, cuda:N, cuda:N:sm_80, emulated, emulated:sm_80 or emulated:sm_90a, \
         got `{got}`"
    )]
    UnknownDevice {
        /// The text.
        got: String,
    },
    /// The device is not there.
    #[error("device {device}: not available: {reason}")]
    NoDevice {
        /// Name of the device, e.g. `cuda:0`.
        device: String,
        /// What the driver says.
        reason: String,
    },
    /// No kernel accepts the problem and runs on the device.
    #[error("device {device}: no {family} kernel for {dtype} with head_dim {head_dim}: {reason}")]
    KernelMissing {
        /// Name of the device.
        device: String,
        /// What should be computed, e.g. `forward`.
        family: &'static str,
        /// Name of the dtype of q, k and v.
        dtype: &'static str,
        /// The larger of D and Dv.
        head_dim: u32,
        /// What is there instead.
        reason: String,
    },
    /// Memory of a device is used up, or of the host.
    #[error("device {device}: out of memory: could not allocate {bytes} bytes")]
    OutOfMemory {
        /// What the device calls itself ([`crate::driver::DeviceProperties::name`]), or `host`.
        device: String,
        /// Size of the allocation that failed.
        bytes: usize,
    },
    /// The compiled kernel was not built into the library.
    #[error("kernel {kernel}: no PTX is built in; run `cargo xtask build-kernels` and build again")]
    KernelImageMissing {
        /// Name of the kernel.
        kernel: String,
    },
    /// A text that should replace kernels holds none of the library's.
    #[error(
        "kernels: expected an .entry with the name of a kernel of the library, got {}",
        .entries.join(", ")
    )]
    NoKernelReplaced {
        /// The entries that it holds.
        entries: Vec<String>,
    },
    /// The compiled kernel cannot be read.
    #[error("kernel {kernel}: the PTX cannot be read: {reason}")]
    KernelImageCorrupt {
        /// Name of the kernel.
        kernel: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A switch is to be on that the text of the kernel does not have.
    #[error("kernel {kernel}: expected a marker `// specialize {switch}` in the PTX, got none")]
    SwitchMissing {
        /// Name of the kernel.
        kernel: String,
        /// Name of the switch, e.g. `softcap`.
        switch: &'static str,
    },
    /// A call to the CUDA driver failed.
    #[error("CUDA: {call} failed: {name} ({code}){}", detail_text(.detail))]
    Cuda {
        /// The function that was called, e.g. `cuLaunchKernel`.
        call: &'static str,
        /// The `CUresult` as a number.
        code: i32,
        /// Its name, e.g. `CUDA_ERROR_ILLEGAL_ADDRESS`.
        name: String,
        /// What else is known (e.g. the log of the JIT compiler); may be empty.
        detail: String,
    },
    /// The emulator ran the kernel and found faults in it.
    #[error("kernel {kernel}: the emulator reports {}{}", count_text(.findings), list_text(.findings))]
    Findings {
        /// Name of the kernel.
        kernel: String,
        /// One text per finding.
        findings: Vec<String>,
    },
    /// A layout of context parallelism that there is not.
    #[error("layout: expected contiguous, zigzag, stripe or gathered, got {got}")]
    ContextLayout {
        /// What was asked for.
        got: String,
    },
    /// A way of exchanging keys and values that there is not: the one that was asked for.
    #[error("exchange: expected round, or heads, but not of stripes, got {0}")]
    ContextExchange(String),
    /// Something that scores can have, but not where sequences are shared out among ranks.
    #[error("{argument}: expected none, since sequences are shared out among ranks, got one")]
    NotInContext {
        /// Which tensor or option.
        argument: &'static str,
    },
    #[error(transparent)]
    /// A pass over some of the keys that cannot be.
    Partial(#[from] PartialError),
    /// A tensor that is sent to other ranks is not dense.
    #[error("{argument}: expected strides {expected:?}, since it is sent to other ranks, got {got:?}")]
    NotDense {
        /// Which tensor.
        argument: &'static str,
        /// Strides of a dense tensor, in elements.
        expected: [i64; 4],
        /// Those that it has.
        got: [i64; 4],
    },
    /// Ranks that work on one problem together were given different ones.
    #[error("{argument}: expected {expected} like rank {rank}, got {got} on rank {peer}")]
    RanksDisagree {
        /// What differs.
        argument: &'static str,
        /// This rank.
        rank: usize,
        /// What it was given.
        expected: String,
        /// The other rank.
        peer: usize,
        /// What that one was given.
        got: String,
    },
    /// A backward pass is of another problem than its forward pass.
    #[error("problem: expected the forward pass that was prepared, got another one")]
    WrongForward,
    /// A call to NCCL failed, or there is no NCCL.
    #[error("NCCL: {call} failed: {reason}")]
    Nccl {
        /// The function that was called; `dlopen` if the library was not found.
        call: &'static str,
        /// What it says.
        reason: String,
    },
    /// Another rank has failed, or does not come.
    #[error("rank {rank}: rank {peer} {reason}")]
    Peer {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The emulator could not run the kernel at all, or was used wrongly.
    #[error("emulator: {reason}")]
    Emulator {
        /// What is wrong.
        reason: String,
    },
}
