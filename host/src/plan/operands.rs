//! f32 on tensor cores: operands are made two f16 parts each, in a workspace, and a kernel multiplies these:
//! one for Hopper where the device is one, and else one for sm_80.
//! Where the parts would not be as exact as f32, a word in the workspace says so: then the kernel that
//! follows computes in f32, and this one returns at once.

use super::forward::{ForwardPlan, ForwardPointers, HopperPlan, can_count_sequences};
use super::{KernelLaunch, Tensor, count_blocks, tensor_maps, view};
use crate::driver::{DevicePointer, DeviceProperties, TensorMapDescription};
use crate::error::Result;
use crate::problem::{ForwardProblem, Layout, Precision, ValidForward};
use kernels_gpu::abi::{
    Arch, Dtype, Family, ForwardFmaParams, KERNELS, KernelSpec, KernelVariant, SPLIT_MOST_SCORE,
    SPLIT_RECORD_WORDS, SPLIT_ROWS, SPLIT_TENSORS, SplitFactors, SplitParams, SplitTensor, Switches,
    TensorView, panel_columns,
};

/// What comes before and behind a forward of f32 in two parts.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandsPlan {
    /// The kernel that measures operands, and the one that splits them.
    pub launches: [KernelLaunch; 2],
    /// The parameter of both. What is in the workspace counts from its beginning.
    pub params: SplitParams,
    /// What the main kernel is told. Likewise.
    pub factors: SplitFactors,
    /// The pass in f32 that follows, and does nothing where the parts are as exact.
    pub exact: Box<ForwardPlan>,
    /// Bytes of device memory that are needed from before the first kernel to behind the last.
    pub workspace_bytes: u64,
}

impl OperandsPlan {
    /// The parameters with the workspace at `address`: of the kernels that split, of what the main kernel is
    /// told, and of the one that follows.
    pub(crate) fn at(&self, address: DevicePointer) -> (SplitParams, SplitFactors, ForwardFmaParams) {
        let (mut params, mut factors) = (self.params, self.factors);
        for tensor in &mut params.tensors {
            tensor.parts += address;
            tensor.records += address;
        }
        let of_params = [&mut params.score_factors, &mut params.value_factors, &mut params.turn];
        let of_factors = [&mut factors.score_factors, &mut factors.value_factors, &mut factors.turn];
        of_params.into_iter().chain(of_factors).for_each(|pointer| *pointer += address);
        let exact = ForwardFmaParams { forward: self.exact.params, turn: params.turn };
        (params, factors, exact)
    }
}

/// The most columns of kernels that multiply parts.
pub(super) const MOST_COLUMNS: u32 = 128;

/// The least columns of q and k: of fewer, what parts are off by is more than what f32 rounds their sum by.
const LEAST_COLUMNS: u32 = 8;

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
    where_asked_for(&valid.problem, || kernel_of_parts(valid, pointers, device), reasons)
}

/// What `kernel_of_parts` finds, if parts are asked for in a problem of f32; and why or why not.
pub(super) fn where_asked_for(
    problem: &ForwardProblem,
    kernel_of_parts: impl FnOnce() -> Result<&'static KernelSpec, String>,
    reasons: &mut Vec<String>,
) -> Option<&'static KernelSpec> {
    let kernel = match problem.precision {
        Some(Precision::Fma) => Err("asked for".to_owned()),
        // A forward does not know what its backward will be (docs/f32-tensor-cores.md).
        None => Err("fast3 is not asked for".to_owned()),
        Some(Precision::Fast3) => kernel_of_parts(),
    };
    reasons.push(match &kernel {
        Ok(_) => "fast3: f32 as two f16 parts on tensor cores, unless numbers need fma".to_owned(),
        Err(why_not) => format!("fma: {why_not}"),
    });
    kernel.ok()
}

/// The kernel that multiplies parts, or why there is none.
fn kernel_of_parts(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
) -> Result<&'static KernelSpec, String> {
    if let Some(why_not) = obstacle(valid, [pointers.q, pointers.k, pointers.v, pointers.o]) {
        return Err(why_not);
    }
    let columns = valid.head_dim.max(valid.value_dim);
    let (major, minor) = device.compute_capability;
    let on_hopper = can_count_sequences(valid, &mut Vec::new());
    let runs = |spec: &&KernelSpec| {
        spec.multiplies_parts
            && spec.family == Family::Forward
            && spec.head_dim >= columns
            && spec.arch.runs_on(major, minor)
            && spec.shared_bytes <= device.shared_bytes_per_block
            && (on_hopper || spec.arch != Arch::Sm90a)
    };
    let kernel =
        KERNELS.iter().filter(runs).min_by_key(|spec| (spec.arch != Arch::Sm90a, spec.head_dim));
    kernel.ok_or_else(|| {
        format!("no kernel runs with {} bytes of shared memory", device.shared_bytes_per_block)
    })
}

/// Why a forward whose q, k, v and o are `at` these addresses does not multiply parts, whatever kernels there
/// are. Nor does a backward then: its scores must be off as those of the forward are, so that what would be
/// an obstacle to it is one to the forward, too.
pub(super) fn obstacle(valid: &ValidForward, at: [DevicePointer; 4]) -> Option<String> {
    let (problem, columns) = (&valid.problem, valid.head_dim.max(valid.value_dim));
    let tensors = [("q", &problem.q), ("k", &problem.k), ("v", &problem.v), ("o", &problem.o)];
    let unaligned = || {
        let mut all = tensors.into_iter().zip(at);
        all.find(|((_, layout), at)| !layout.rows_aligned(*at, Dtype::F32, 16))
            .map(|((name, _), _)| name)
    };
    if columns > MOST_COLUMNS {
        Some(format!("head_dim {columns} is above {MOST_COLUMNS}"))
    } else if valid.head_dim < LEAST_COLUMNS {
        Some(format!("head_dim {} is below {LEAST_COLUMNS}", valid.head_dim))
    } else if problem.num_splits.is_some_and(|ranges| ranges > 1) {
        Some("ranges of keys are asked for".to_owned())
    } else if problem.k.elements() == 0 {
        Some("there are no keys".to_owned())
    } else if let Some((name, _)) = tensors[..2].iter().find(|(_, layout)| layout.shape[1] == 1) {
        // A column of one number may be small by chance, whose gradient is then left to fma on the device:
        // behind a forward that was not.
        Some(format!("{name} has a single row"))
    } else {
        unaligned().map(|name| format!("not every row of {name} starts on 16 bytes"))
    }
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
    let turn = workspace.add(8);
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
    let launch = |family| KernelLaunch { variant: only(family), blocks };
    plan.operands = Some(OperandsPlan {
        launches: [launch(Family::MeasureOperands), launch(Family::SplitOperands)],
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
