//! f32 on tensor cores: operands are made two f16 parts each, in a workspace, and a kernel multiplies these:
//! one for Hopper where the device is one, and else one for sm_80.
//! Where the parts would not be as exact as f32, a word in the workspace says so: then the kernel that
//! follows computes in f32, and this one returns at once.

mod choice;

pub(super) use self::choice::{forward_kernel, no_kernel};
use super::forward::{ForwardPlan, ForwardPointers, HopperPlan};
use super::{KernelLaunch, Tensor, count_blocks, tensor_maps, view};
use crate::driver::{DevicePointer, DeviceProperties, TensorMapDescription};
use crate::error::Result;
use crate::problem::{Layout, ValidForward};
use kernels_gpu::abi::{
    Arch, Dtype, Family, ForwardFmaParams, ForwardParams, KERNELS, KernelSpec, KernelVariant,
    SPLIT_MOST_SCORE, SPLIT_RECORD_WORDS, SPLIT_ROWS, SPLIT_TENSORS, SplitFactors, SplitParams,
    SplitTensor, Switches, TensorView, panel_columns,
};

/// What comes before and behind a forward of f32 in two parts.
///
/// The pass in f32 that follows is launched twice: where operands need it, it gives o and lse; where the
/// output alone does, o. So lse is of parts unless operands are such that a backward, which finds the same
/// of them, makes its scores in f32, too ([`ForwardAgain`](super::ForwardAgain)). Each of both launches looks
/// at a pair of words, one of them a 0:
///
/// ```text
/// turn - 4  0                                                   first pair: o and lse
/// turn      how often operands are not as exact as f32
/// turn + 4  how often the output is not                         second pair: o
/// turn + 8  0
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OperandsPlan {
    /// The kernel that measures operands, which has a block more that makes the second pair 0, and the one
    /// that splits them.
    pub launches: [KernelLaunch; 2],
    /// The parameter of the one that splits. What is in the workspace counts from its beginning.
    pub params: SplitParams,
    /// What the main kernel is told. Likewise.
    pub factors: SplitFactors,
    /// The pass in f32 that follows, and does nothing where the parts are as exact.
    pub exact: Box<ForwardPlan>,
    /// Bytes of device memory that are needed from before the first kernel to behind the last.
    pub workspace_bytes: u64,
}

/// The parameters of the kernels around a main one that multiplies parts.
pub(crate) struct OperandsParams {
    /// Of the kernel that measures.
    pub measure: SplitParams,
    /// Of the kernel that splits.
    pub split: SplitParams,
    /// What the main kernel is told.
    pub factors: SplitFactors,
    /// Of both launches in f32.
    pub exact: [ForwardFmaParams; 2],
}

impl OperandsPlan {
    /// The parameters with the workspace at `address`.
    pub(crate) fn at(&self, address: DevicePointer) -> OperandsParams {
        let (mut split, mut factors) = (self.params, self.factors);
        for tensor in &mut split.tensors {
            tensor.parts += address;
            tensor.records += address;
        }
        let of_split = [&mut split.score_factors, &mut split.value_factors, &mut split.turn];
        let of_factors = [&mut factors.score_factors, &mut factors.value_factors, &mut factors.turn];
        of_split.into_iter().chain(of_factors).for_each(|pointer| *pointer += address);
        let first_pair = split.turn - 4;
        let measure = SplitParams { turn: first_pair, ..split };
        let forward = self.exact.params;
        let exact = [
            ForwardFmaParams { forward, turn: first_pair },
            ForwardFmaParams { forward: ForwardParams { lse: 0, ..forward }, turn: first_pair + 8 },
        ];
        OperandsParams { measure, split, factors, exact }
    }
}

/// The kernel by which a problem of f32 is computed on tensor cores, if it is; and why or why not.
pub(super) fn kernel_for(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    reasons: &mut Vec<String>,
) -> Option<&'static KernelSpec> {
    if valid.problem.dtype != Dtype::F32 {
        return None;
    }
    let at = [pointers.q, pointers.k, pointers.v, pointers.o];
    with_reason(forward_kernel(valid, at, device), reasons)
}

/// The kernel that multiplies parts, if there is one; and why or why not.
pub(super) fn with_reason(
    kernel: Result<&'static KernelSpec, String>,
    reasons: &mut Vec<String>,
) -> Option<&'static KernelSpec> {
    reasons.push(match &kernel {
        Ok(_) => "fast3: f32 as two f16 parts on tensor cores, unless numbers need fma".to_owned(),
        Err(why_not) => format!("fma: {why_not}"),
    });
    kernel.ok()
}

/// Completes the plan of a main kernel that multiplies parts: what makes them, and `exact`, what follows.
///
/// # Errors
/// [`GridTooLarge`](crate::Error::GridTooLarge).
pub(super) fn with_operands(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    mut plan: ForwardPlan,
    exact: ForwardPlan,
) -> Result<ForwardPlan> {
    let (problem, kernel) = (&valid.problem, plan.variant.kernel);
    let columns = panel_columns(kernel.head_dim);
    let mut workspace = Workspace::default();
    // Two pairs of words, of which the second is the beginning of a record.
    let turn = workspace.add(8 + 4 * u64::from(SPLIT_RECORD_WORDS)) + 4;
    let score_factors = workspace.add(4 * pairs(&problem.q));
    let value_factors = workspace.add(4 * pairs(&problem.v));
    let mut params = SplitParams {
        score_factors,
        value_factors,
        turn,
        padded_columns: columns,
        group_size: valid.group_size,
        most_product: SPLIT_MOST_SCORE / (valid.scale.abs() * valid.head_dim as f32),
        ..SplitParams::default()
    };
    let operands = [(&problem.q, pointers.q), (&problem.k, pointers.k), (&problem.v, pointers.v)];
    let Operands { tensors, layouts, blocks } = Operands::of(&operands, columns, &mut workspace)?;
    params.tensors = tensors;
    // A tensor of no rows, of which a block makes a record of zeros.
    params.tensors[operands.len()] = SplitTensor {
        records: turn + 4,
        heads: 1,
        chunks: 1,
        first_block: blocks,
        ..Default::default()
    };
    let rows = [kernel.query_rows, kernel.key_rows, kernel.key_rows];
    let mut maps: [Option<TensorMapDescription>; 3] = [None; 3];
    let mut views = [TensorView::default(); 3];
    for (index, parts) in layouts.iter().enumerate() {
        let address = tensors[index].parts;
        let tensor = Tensor { argument: "parts", layout: parts, address, dtype: Dtype::F16 };
        maps[index] = tensor_maps::describe(&tensor, rows[index]);
        views[index] = view(address, parts);
    }
    if kernel.arch == Arch::Sm90a {
        let [q, k, v] = maps;
        plan.hopper = Some(HopperPlan { q, k, v, o: None });
        plan.params.o_is_mapped = 0;
    } else {
        [plan.params.q, plan.params.k, plan.params.v] = views;
    }
    let launch = |family, blocks| KernelLaunch { variant: only(family), blocks };
    plan.operands = Some(OperandsPlan {
        launches: [launch(Family::MeasureOperands, blocks + 1), launch(Family::SplitOperands, blocks)],
        params,
        factors: SplitFactors {
            score_factors,
            value_factors,
            turn,
            query_heads: valid.query_heads,
            key_heads: valid.key_heads,
        },
        exact: Box::new(exact),
        workspace_bytes: workspace.bytes,
    });
    Ok(plan)
}

/// Operands of a launch, and where their parts are in a workspace.
pub(super) struct Operands {
    /// As the kernels that split are told them.
    pub tensors: [SplitTensor; SPLIT_TENSORS],
    /// Parts of those that there are.
    pub layouts: Vec<Layout>,
    /// Blocks of all.
    pub blocks: u32,
}

impl Operands {
    /// Those of these tensors, with so many columns of parts.
    ///
    /// # Errors
    /// [`GridTooLarge`](crate::Error::GridTooLarge).
    pub fn of(
        operands: &[(&Layout, DevicePointer)],
        columns: u32,
        workspace: &mut Workspace,
    ) -> Result<Self> {
        let mut tensors = [SplitTensor::default(); SPLIT_TENSORS];
        let (mut layouts, mut blocks) = (Vec::new(), 0);
        for (index, &(layout, address)) in operands.iter().enumerate() {
            let [batches, height, heads, width] = layout.shape;
            let chunks = (height as u32).div_ceil(SPLIT_ROWS);
            let records = pairs(layout) * u64::from(chunks) * u64::from(SPLIT_RECORD_WORDS);
            let parts = parts_layout(layout, columns);
            tensors[index] = SplitTensor {
                tensor: view(address, layout),
                parts: workspace.add(2 * parts.elements() as u64),
                records: workspace.add(4 * records),
                rows: height as u32,
                heads: heads as u32,
                columns: width as u32,
                chunks,
                first_block: blocks,
                reserved: 0,
            };
            layouts.push(parts);
            let what = format!("chunks of {SPLIT_ROWS} rows of an operand");
            blocks += count_blocks(chunks, &what, heads as u32, batches as u32)?;
        }
        // Behind the last block: there is none of them.
        tensors[operands.len()..].iter_mut().for_each(|tensor| tensor.first_block = blocks);
        Ok(Operands { tensors, layouts, blocks })
    }
}

/// Pairs of batch and head.
fn pairs(layout: &Layout) -> u64 {
    layout.shape[0] as u64 * layout.shape[2] as u64
}

/// The one kernel of a family.
pub(super) fn only(family: Family) -> KernelVariant {
    let kernel = KERNELS.iter().find(|spec| spec.family == family).expect("there is one of each");
    KernelVariant { kernel, switches: Switches::NONE }
}

/// The parts of an operand, f16 `[B, heads, rows, 2 columns]`, as a tensor of rows of both.
fn parts_layout(layout: &Layout, columns: u32) -> Layout {
    let [batches, rows, heads, _] = layout.shape;
    let row = 2 * i64::from(columns);
    let head = row * rows as i64;
    Layout { shape: [batches, rows, heads, row as usize], strides: [head * heads as i64, row, head, 1] }
}

/// Parts of a workspace, one behind the other.
#[derive(Default)]
pub(super) struct Workspace {
    /// Of all parts.
    pub bytes: u64,
}

impl Workspace {
    /// Room for so many bytes: where it begins.
    pub fn add(&mut self, bytes: u64) -> u64 {
        let first = self.bytes;
        self.bytes += bytes.next_multiple_of(ForwardPlan::WORKSPACE_ALIGNMENT.into());
        first
    }
}
