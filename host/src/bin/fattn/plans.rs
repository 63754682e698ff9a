//! Plans as text, made for tensors that need not be there.

use anyhow::Result;
use finite_attention::driver::DeviceProperties;
use finite_attention::plan::{
    BackwardPlan, ForwardPlan, ScorePointers, plan_backward, plan_dynamic, plan_forward,
};
use finite_attention::problem::{AlibiSlopes, Dropout, DynamicMask, MaskShape};
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
        let workspace_bytes = plan.workspace_bytes();
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

/// What scores have beside q and k, and dropout, a line each.
pub fn scores(problem: &ForwardProblem) -> Vec<String> {
    let bias = problem
        .bias
        .map(|bias| format!("bias: {:?} {} is added to scores", bias.layout.shape, bias.dtype.name()));
    let mask = problem.attn_mask.map(|MaskShape { batches, heads, queries, keys }| {
        format!("boolean mask: {:?} hides keys pair by pair", [batches, heads, queries, keys])
    });
    let diagonal = problem.mask.distance_alignment().diagonal();
    let alibi = problem.alibi.map(|alibi| {
        let slopes = match alibi {
            AlibiSlopes::PerHead => "the slope of its head",
            AlibiSlopes::PerBatchAndHead => "the slope of its batch and head",
        };
        format!(
            "ALiBi: {slopes} times |{diagonal} - j| is subtracted from the score of query i and key j"
        )
    });
    let sinks = problem.has_sinks.then(|| "sinks: one for each query head".to_owned());
    let dropout = problem.dropout.map(|dropout| {
        let Dropout { rate, seed, offset } = dropout;
        let dropped = dropout.dropped().unwrap_or(0);
        format!("dropout: {rate}, {dropped} of 65536 numbers, of seed {seed} and offset {offset}")
    });
    [bias, mask, alibi, sinks, dropout].into_iter().flatten().collect()
}

/// Addresses of what scores have beside q and k.
const fn score() -> ScorePointers {
    ScorePointers {
        bias: address(13),
        mask_bits: address(14),
        alibi_slopes: address(15),
        sinks: address(16),
    }
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
        score: score(),
    };
    let plan = plan_forward(&problem.validate()?, device, &pointers)?;
    let nothing =
        || Explained { kernel: "none".into(), workspace_bytes: 0, text: "nothing to compute".into() };
    Ok(plan.as_ref().map_or_else(nothing, Explained::forward))
}

/// The plan of a pass under a dynamic mask, which is made of the problem's bias: that of the mask, and that
/// of the pass that main kernels are asked.
pub fn dynamic(
    problem: &ForwardProblem,
    of_backward: Option<&BackwardProblem>,
    mask: &DynamicMask,
    device: &DeviceProperties,
) -> Result<Explained> {
    let valid = problem.validate()?;
    let plan = plan_dynamic(&valid, mask, device)?;
    let explained = match of_backward {
        None => forward(&plan.launched(&valid), device)?,
        Some(problem) => backward(&plan.launched_backward(&valid, problem), device)?,
    };
    Ok(Explained { text: format!("{}\n{}", plan.describe(), explained.text), ..explained })
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
        score: score(),
        d_bias: address(17),
        d_sinks: address(18),
    };
    let plan = plan_backward(&problem.validate()?, device, &pointers)?;
    Ok(Explained::backward(&plan))
}
