//! Gradients: a step of burn's graph for each forward pass.

use crate::ops::{AttentionGradients, AttentionOps, Gradients as AttentionGradient, Outcome};
use crate::pass::Pass;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend};

/// The step whose parents are q, k and v.
#[derive(Debug)]
struct Step;

/// What a forward pass leaves: its inputs, which burn keeps, and o and lse, which are nobody else's.
#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    inputs: [NodeId; 3],
    o: FloatTensor<B>,
    lse: FloatTensor<B>,
    pass: Pass,
}

impl<B: AttentionGradients> Backward<B, 3> for Step {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_o = gradients.consume::<B>(&ops.node);
        let Saved { inputs, o, lse, pass } = ops.state;
        let [q, k, v] = inputs.map(|input| checkpointer.retrieve_node_output::<FloatTensor<B>>(input));
        let AttentionGradient { dq, dk, dv } = B::attention_backward(q, k, v, o, lse, d_o, pass);
        for (parent, gradient) in ops.parents.into_iter().zip([dq, dk, dv]) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

impl<B, C> AttentionOps for Autodiff<B, C>
where
    B: AttentionOps + AttentionGradients,
    C: CheckpointStrategy,
{
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        pass: Pass,
    ) -> Outcome<Self> {
        let forward = |pass| {
            let [q, k, v] = [&q, &k, &v].map(|tensor| tensor.primitive().clone());
            match B::attention_forward(q, k, v, pass) {
                Outcome::Done { o, lse } => Ok((o, lse)),
                Outcome::Failed(error) => Err(error),
            }
        };
        let step = Backward::<B, 3>::prepare::<C>(Step, [q.node(), k.node(), v.node()]);
        let (o, lse) = match step.compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let inputs = [&q, &k, &v].map(|tensor| step.checkpoint(tensor));
                match forward(pass.clone()) {
                    Err(error) => return Outcome::Failed(error),
                    Ok((o, lse)) => {
                        let saved = Saved { inputs, o: o.clone(), lse: lse.clone(), pass };
                        (step.finish(saved, o), lse)
                    }
                }
            }
            OpsKind::UnTracked(step) => match forward(pass) {
                Err(error) => return Outcome::Failed(error),
                Ok((o, lse)) => (step.finish(o), lse),
            },
        };
        Outcome::Done { o, lse: Self::from_inner(lse) }
    }
}
