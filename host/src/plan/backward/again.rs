//! A forward of fused multiply-adds, for a backward that makes scores so behind a forward that multiplied f32
//! in two parts: what scores are off by cancels in `e^(s - lse)`, and in `dp - delta`, only if they are made
//! alike.

use super::super::forward::plan_again;
use super::super::operands::Workspace;
use super::super::{AccumulatePlan, ForwardPlan, ForwardPointers, Term, plan_accumulate};
use super::{BackwardPlan, BackwardPointers, KernelLaunch};
use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::Result;
use crate::problem::{ForwardProblem, Layout, ValidBackward};
use kernels_gpu::abi::{
    AccumulateParams, BackwardParams, Dtype, Family, ForwardFmaParams, ForwardParams, TensorView,
};

/// An o and an lse in the workspace, which kernels of fused multiply-adds are told in place of the given
/// ones.
///
/// Where the plan knows that gradients are made by fused multiply-adds, a forward makes them first. Where the
/// device decides, it returns at once where parts are as exact. Those that multiply parts have statistics of
/// the given o and lse. A gradient of the bias, whose kernel knows fused multiply-adds only, has a forward
/// and statistics of its own then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardAgain {
    /// The forward. o and lse count from their part of the workspace.
    pub forward: ForwardParams,
    /// What o and lse are where the forward returns at once. Likewise their outputs.
    pub fills: [AccumulateParams; 2],
    /// Bytes of their part of the workspace.
    pub workspace_bytes: u64,
}

/// Parameters of the kernels that it needs.
pub(crate) struct AgainParams {
    /// Of the forward that computes where the device says so, and of one that does so in any case.
    pub forwards: [ForwardFmaParams; 2],
    /// Of what o and lse are where the first one does not compute.
    pub fills: [AccumulateParams; 2],
    /// Of the kernel that makes statistics for those that multiply parts.
    pub delta: BackwardParams,
}

/// What is launched for it.
pub(super) struct AgainLaunches {
    /// The forward.
    pub forward: KernelLaunch,
    /// What makes o and lse where the device decides.
    pub fills: [KernelLaunch; 2],
}

impl AgainLaunches {
    /// What makes statistics by fused multiply-adds behind these launches, which have made dq: the first
    /// kernel of a backward also zeroes what that was added up in.
    pub fn statistics(&self, launches: &[KernelLaunch]) -> Vec<KernelLaunch> {
        let is_delta = |launch: &&KernelLaunch| launch.variant.kernel.family == Family::BackwardDelta;
        [self.forward].into_iter().chain(launches.iter().find(is_delta).copied()).collect()
    }
}

/// Plans a forward of fused multiply-adds; `None` if o or lse has no elements.
///
/// # Errors
/// [`GridTooLarge`](crate::Error::GridTooLarge), [`KernelMissing`](crate::Error::KernelMissing).
pub(super) fn plan(
    valid: &ValidBackward,
    pointers: &BackwardPointers,
    device: &DeviceProperties,
) -> Result<Option<(ForwardAgain, AgainLaunches)>> {
    let forward = &valid.forward;
    let of_o = dense_rows(&forward.problem.o);
    let of_lse = rows_of(forward.lse_elements(), &forward.lse_shape());
    let mut workspace = Workspace::default();
    let at_lse = workspace.add(4 * of_lse.elements() as u64);
    let at_o = workspace.add(4 * of_o.span() as u64);
    // Where nothing is computed again, nothing is made of them but the gradient of sinks. Zeros are no rows
    // for which the first kernel of a backward makes scores.
    let are_used = valid.problem.wants_d_sinks;
    let fill = |[given, own]: [Term; 2]| {
        plan_accumulate((own, Dtype::F32), [are_used.then_some(given), None], device)
    };
    let [given_o, own_o] = as_wide_rows([forward.problem.o, of_o]);
    let term = |pointer, layout| Term { pointer, layout };
    let o = fill([term(pointers.o, given_o), term(at_o, own_o)])?;
    let lse = fill([pointers.lse, at_lse].map(|pointer| term(pointer, of_lse)))?;
    let (Some(o), Some(lse)) = (o, lse) else { return Ok(None) };
    let problem = ForwardProblem { o: of_o, wants_lse: true, ..forward.problem };
    let again = forward.with(problem, forward.query_rows, forward.key_rows);
    let &BackwardPointers { q, k, v, cu_seqlens_q, cu_seqlens_k, score, .. } = pointers;
    let places = ForwardPointers { q, k, v, o: at_o, lse: at_lse, cu_seqlens_q, cu_seqlens_k, score };
    let ForwardPlan { variant, blocks, params, .. } = plan_again(&again, &places, device)?;
    let launches = AgainLaunches {
        forward: KernelLaunch { variant, blocks },
        fills: [o, lse].map(|AccumulatePlan { variant, blocks, .. }| KernelLaunch { variant, blocks }),
    };
    let fills = [o.params, lse.params];
    Ok(Some((ForwardAgain { forward: params, fills, workspace_bytes: workspace.bytes }, launches)))
}

/// Rows one behind the other, each on 16 bytes.
fn dense_rows(layout: &Layout) -> Layout {
    let [batches, rows, heads, columns] = layout.shape;
    let head = columns.next_multiple_of(4) as i64;
    let row = head * heads as i64;
    Layout { shape: [batches, rows, heads, columns], strides: [row * rows as i64, row, head, 1] }
}

/// The heads of a row as one, where they stand side by side in both: a warp takes a row.
fn as_wide_rows(both: [Layout; 2]) -> [Layout; 2] {
    let are_side_by_side = both.iter().all(|layout| layout.strides[2] == layout.shape[3] as i64);
    both.map(|layout| {
        let ([batches, rows, heads, columns], [batch, row, ..]) = (layout.shape, layout.strides);
        let wide = heads * columns;
        match are_side_by_side {
            true => Layout { shape: [batches, rows, 1, wide], strides: [batch, row, wide as i64, 1] },
            false => layout,
        }
    })
}

/// Dense numbers as rows for a warp each, short ones where that divides them.
fn rows_of(elements: usize, shape: &[usize]) -> Layout {
    const COLUMNS: usize = 128;
    let columns = if elements.is_multiple_of(COLUMNS) { COLUMNS } else { shape[shape.len() - 1] };
    Layout::bshd([1, elements / columns.max(1), 1, columns])
}

impl ForwardAgain {
    /// o and lse in its part of the workspace, at `address`.
    fn outputs(&self, address: DevicePointer) -> (TensorView, DevicePointer) {
        let ForwardParams { o, lse, .. } = self.forward;
        (TensorView { address: o.address + address, ..o }, lse + address)
    }

    /// Has the kernels take o and lse from its part of the workspace, at `address`.
    pub(super) fn tell(&self, params: &mut BackwardParams, address: DevicePointer) {
        (params.o, params.lse) = self.outputs(address);
    }
}

impl BackwardPlan {
    /// Where the part of the workspace begins that has o and lse, which is its last.
    pub(super) fn again_begin(&self) -> u64 {
        self.operands_end().next_multiple_of(BackwardPlan::WORKSPACE_ALIGNMENT.into())
    }

    /// The parameters of what makes o and lse again, if anything does, with what
    /// [`BackwardPlan::params_with`] gives. `turn` is the address of the words by which the device decides.
    pub(crate) fn again_at(&self, params: &BackwardParams, turn: DevicePointer) -> Option<AgainParams> {
        let again = self.again.as_ref()?;
        let &BackwardParams { o, lse, .. } = params;
        let forward = ForwardParams { o, lse, ..again.forward };
        let forwards = [turn, 0].map(|turn| ForwardFmaParams { forward, turn });
        let mut fills = again.fills;
        (fills[0].output.address, fills[1].output.address) = (o.address, lse);
        // Of large scores this kernel makes the largest one anew, by fused multiply-adds. Without columns of
        // q and k it does not find what lse says, and leaves it as it is: the largest one of parts.
        let BackwardParams { o, lse, .. } = self.params;
        let delta = BackwardParams { o, lse, head_dim: 0, ..*params };
        Some(AgainParams { forwards, fills, delta })
    }
}
