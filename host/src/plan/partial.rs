//! Passes over some of the keys, forward and backward, which merge with what those before them have left, as
//! they store.

use super::backward::{BackwardPlan, BackwardPointers, plan_backward_into};
use super::forward::{ForwardPlan, ForwardPointers, plan_alone, plan_whole};
use super::split::{Split, layout_of_parts, part_columns, parts, rows, to_parts};
use super::{check_pointer, view};
use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::{Error, PartialError, Result};
use crate::problem::{ForwardProblem, Layout, Precision, ValidBackward, ValidForward};
use kernels_gpu::abi::{Dtype, Family, PreviousParams, Switch, probability_unit_log2};

/// What the address of a state must be a multiple of.
const STATE_ALIGNMENT: u32 = 16;

/// Which of several forward passes one is, each of them over some of the keys of the same queries, in any
/// order: each merges with what those before it have left in f32, and the last one writes o and lse of all of
/// them, rounded once (docs/semantics.md, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialForward {
    /// Device address of what passes leave to each other: [`ValidForward::state_bytes`], a multiple of 16.
    /// Not looked at by a pass that is first and last.
    pub state: DevicePointer,
    /// Nothing is merged: what the state holds does not matter.
    pub is_first: bool,
    /// o and lse are written; otherwise the state, and o and lse are not looked at.
    pub is_last: bool,
    /// Keys of the queries in all passes together, those of the longest of packed sequences: the same number
    /// in each pass.
    pub total_keys: u32,
}

impl PartialForward {
    fn check(&self, valid: &ValidForward) -> Result<()> {
        refuse_positions(&valid.problem)?;
        if self.total_keys < valid.key_rows {
            let (expected, got) = (valid.key_rows, self.total_keys);
            return Err(PartialError::TotalKeys { expected, got }.into());
        }
        check_state(self.state, valid.state_bytes())
    }
}

/// What goes by positions in the whole is not there.
fn refuse_positions(problem: &ForwardProblem) -> Result<()> {
    let there = [("dropout", problem.dropout.is_some()), ("alibi_slopes", problem.alibi.is_some())];
    let refused = there.into_iter().find(|(_, is_there)| *is_there);
    refused.map_or(Ok(()), |(argument, _)| Err(PartialError::Positions { argument }.into()))
}

/// A state has an address, if it has any bytes.
fn check_state(address: DevicePointer, bytes: u64) -> Result<()> {
    check_pointer("state", address, Dtype::F32, u128::from(bytes / 4))?;
    if !address.is_multiple_of(STATE_ALIGNMENT.into()) {
        return Err(Error::Misaligned { argument: "state", alignment: STATE_ALIGNMENT, address });
    }
    Ok(())
}

impl ValidForward {
    /// Bytes of device memory for what passes over some of the keys leave to each other: for every row of o
    /// its columns in f32, rounded up to a multiple of 4, and two numbers.
    pub fn state_bytes(&self) -> u64 {
        statistics_bytes(self) + 4 * rows(self) * u64::from(part_columns(self.value_dim))
    }
}

/// Bytes of the reference and the sum of every row, rounded up: o stands behind them.
fn statistics_bytes(valid: &ValidForward) -> u64 {
    (8 * rows(valid)).next_multiple_of(STATE_ALIGNMENT.into())
}

/// Plans one of several forward passes over some of the keys; `None` where there is no row of o.
///
/// Positions, window and mask are those of the problem, whose keys are those of this pass: whoever takes a
/// causal problem apart gives each pass the alignment or the window that its keys have. Bias and boolean mask
/// are those of this pass's keys; sinks count in the last one. f32 is by fused multiply-adds.
///
/// # Errors
/// Those of [`plan_forward`](super::plan_forward); [`PartialError::Positions`] for dropout and ALiBi, which
/// go by positions in the whole; [`PartialError::TotalKeys`].
pub fn plan_forward_partial(
    valid: &ValidForward,
    device: &DeviceProperties,
    pointers: &ForwardPointers,
    partial: &PartialForward,
) -> Result<Option<ForwardPlan>> {
    if valid.is_empty() {
        return Ok(None);
    }
    if partial.is_first && partial.is_last {
        return plan_whole(valid, pointers, device, vec!["all keys at once".to_owned()]).map(Some);
    }
    partial.check(valid)?;
    // o last: what is read behind its last row is outside of the state.
    let (statistics, o) = (partial.state, partial.state + statistics_bytes(valid));
    let mut plan = if partial.is_last {
        let why = "the last of several passes over keys: merges with what is there".to_owned();
        plan_whole(valid, pointers, device, vec![why])?
    } else {
        pointers.check_inputs(valid)?;
        let why = "one of several passes over keys: others merge with its f32".to_owned();
        let whole = Split { ranges: 1, keys: valid.key_rows };
        let (alone, places) = parts(valid, pointers, &whole);
        let mut plan = plan_alone(&alone, &places, device, vec![why])?;
        let keys = plan.variant.kernel.key_rows;
        to_parts(valid, &mut plan.params, [o, statistics]);
        plan.params.split_keys = valid.key_rows.max(1).next_multiple_of(keys);
        plan
    };
    let [_, rows, heads, _] = valid.problem.o.shape;
    let params = &mut plan.params;
    params.previous = PreviousParams {
        o: view(o, &layout_of_parts(valid, 1)),
        statistics: if partial.is_first { 0 } else { statistics },
        batch_stride: (heads * rows) as i64,
        head_stride: rows as i64,
    };
    let unit_log2 = probability_unit_log2(partial.total_keys);
    (params.unit, params.unit_log2) = ((unit_log2 as f32).exp2(), unit_log2 as f32);
    plan.variant.switches = plan.variant.switches.with(Switch::Merge);
    Ok(Some(plan))
}

/// Which of several backward passes one is, each of them over some of the keys of the same queries, in any
/// order, with o and lse of all keys: dq is added up in f32 from pass to pass and rounded once, and dk and dv
/// may be added, in f32, to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialBackward {
    /// Device address of dq so far: [`ValidBackward::state_bytes`], a multiple of 16. Not looked at by a pass
    /// that is first and last.
    pub state: DevicePointer,
    /// Nothing is added to dq: what the state holds does not matter.
    pub is_first: bool,
    /// dq is written; otherwise the state, and dq is not looked at.
    pub is_last: bool,
    /// Element type of dq: that of q, or f32. That of dk and dv is the problem's `gradient_dtype`.
    pub dq_dtype: Dtype,
    /// dk and dv are added to what is there, which is f32; otherwise they are written.
    pub adds_to_keys: bool,
}

impl PartialBackward {
    fn check(&self, valid: &ValidBackward) -> Result<()> {
        let (problem, forward) = (&valid.problem, &valid.problem.forward);
        refuse_positions(forward)?;
        if self.adds_to_keys && problem.gradient_dtype != Dtype::F32 {
            let got = problem.gradient_dtype.name();
            return Err(PartialError::NotAdded { argument: "dk", got }.into());
        }
        if self.dq_dtype != forward.dtype && self.dq_dtype != Dtype::F32 {
            return Err(Error::UnsupportedDtype {
                argument: "dq",
                expected: format!("{} or f32", forward.dtype.name()),
                got: self.dq_dtype.name().to_owned(),
            });
        }
        if self.is_first && self.is_last {
            return Ok(());
        }
        check_state(self.state, valid.state_bytes())
    }
}

impl ValidBackward {
    /// Bytes of device memory for dq between passes over some of the keys: f32, columns rounded up to a
    /// multiple of 4.
    pub fn state_bytes(&self) -> u64 {
        let [batches, rows, heads, _] = self.problem.forward.q.shape.map(|extent| extent as u64);
        4 * batches * rows * heads * u64::from(part_columns(self.forward.head_dim))
    }

    /// dq in a state: dense `[B, Hq, Sq, D]`.
    fn state_layout(&self) -> Layout {
        let shape @ [_, rows, heads, _] = self.problem.forward.q.shape;
        let row = i64::from(part_columns(self.forward.head_dim));
        let head = row * rows as i64;
        Layout { shape, strides: [head * heads as i64, row, head, 1] }
    }
}

/// Plans one of several backward passes over some of the keys.
///
/// Positions are as for [`plan_forward_partial`]. f32 is by fused multiply-adds, as in forward passes over
/// some of the keys, whatever the problem asks: o and lse of a pass over all keys at once are to be of
/// [`Precision::Fma`], too.
///
/// # Errors
/// Those of [`plan_backward`](super::plan_backward); [`PartialError::Positions`]; [`PartialError::NotAdded`]
/// for dk and dv that are to be added but are not f32.
pub fn plan_backward_partial(
    valid: &ValidBackward,
    device: &DeviceProperties,
    pointers: &BackwardPointers,
    partial: &PartialBackward,
) -> Result<BackwardPlan> {
    partial.check(valid)?;
    let why = match (partial.is_first, partial.is_last) {
        (true, true) => "all keys at once",
        (_, true) => "the last of several passes over keys: rounds dq",
        (..) => "one of several passes over keys: dq stays f32",
    };
    let (mut problem, mut pointers, mut dq_dtype) = (valid.problem, *pointers, partial.dq_dtype);
    if !partial.is_last {
        (problem.dq, pointers.dq, dq_dtype) = (valid.state_layout(), partial.state, Dtype::F32);
    }
    // As in forward passes over some of the keys: what scores are off by is to be the same.
    problem.forward.precision = Some(Precision::Fma);
    let ValidForward { query_rows, key_rows, .. } = valid.forward;
    let forward = valid.forward.with(problem.forward, query_rows, key_rows);
    let into = ValidBackward { problem, forward };
    let mut plan = plan_backward_into(&into, device, &pointers, dq_dtype, vec![why.to_owned()])?;
    plan.params.previous_dq = view(partial.state, &valid.state_layout());
    for launch in &mut plan.launches {
        let merges = match launch.variant.kernel.family {
            Family::Backward | Family::BackwardSum => partial.adds_to_keys,
            Family::BackwardConvert => !partial.is_first,
            _ => false,
        };
        if merges {
            launch.variant.switches = launch.variant.switches.with(Switch::Merge);
        }
    }
    Ok(plan)
}
