//! Plans as text, made for tensors that need not be there.

use anyhow::Result;
use finite_attention::driver::DeviceProperties;
use finite_attention::plan::{BackwardPlan, ForwardPlan, plan_backward, plan_forward};
use finite_attention::{BackwardPointers, BackwardProblem, ForwardPointers, ForwardProblem};

/// What was decided for one problem.
pub struct Explained {
    /// Name of the kernel that does most of the work, with its switches.
    pub kernel: String,
    pub workspace_bytes: u64,
    /// The plan with its reasons.
    pub text: String,
}

impl Explained {
    pub fn forward(plan: &ForwardPlan) -> Self {
        let workspace_bytes = plan.combine.map_or(0, |combine| combine.workspace_bytes);
        Explained { kernel: plan.variant.to_string(), workspace_bytes, text: format!("{plan:#}") }
    }

    pub fn backward(plan: &BackwardPlan) -> Self {
        let kernel = plan.main_kernel().map_or("none".to_owned(), |variant| variant.to_string());
        Explained { kernel, workspace_bytes: plan.workspace_bytes(), text: format!("{plan:#}") }
    }
}

/// An address of its own for each tensor, on as large a boundary as devices give.
const fn address(tensor: u64) -> u64 {
    tensor << 44
}

/// The mask in words.
pub fn mask(problem: &ForwardProblem) -> String {
    format!("mask: {}", problem.mask.describe())
}

/// The plan of a forward pass.
pub fn forward(problem: &ForwardProblem, device: &DeviceProperties) -> Result<Explained> {
    let pointers = ForwardPointers {
        q: address(1),
        k: address(2),
        v: address(3),
        o: address(4),
        lse: address(5),
        cu_seqlens_q: address(6),
        cu_seqlens_k: address(7),
    };
    let plan = plan_forward(&problem.validate()?, device, &pointers)?;
    let nothing =
        || Explained { kernel: "none".into(), workspace_bytes: 0, text: "nothing to compute".into() };
    Ok(plan.as_ref().map_or_else(nothing, Explained::forward))
}

/// The plan of a backward pass.
pub fn backward(problem: &BackwardProblem, device: &DeviceProperties) -> Result<Explained> {
    let pointers = BackwardPointers {
        q: address(1),
        k: address(2),
        v: address(3),
        o: address(4),
        lse: address(5),
        cu_seqlens_q: address(6),
        cu_seqlens_k: address(7),
        d_o: address(8),
        dq: address(9),
        dk: address(10),
        dv: address(11),
        d_lse: address(12),
    };
    let plan = plan_backward(&problem.validate()?, device, &pointers)?;
    Ok(Explained::backward(&plan))
}
