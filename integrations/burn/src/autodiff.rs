//! Gradients: a step of burn's graph for each forward pass.

use crate::ops::{
    AttentionGradients, AttentionOps, Bools, Floats, Gradients as AttentionGradient, Inputs, Outcome,
};
use crate::pass::Pass;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend};

/// The step whose parents are q, k, v, bias and sinks; q stands for those that are not there.
#[derive(Debug)]
struct Step;

/// What a forward pass leaves: its inputs, which burn keeps where they are in the graph, and o and lse, which
/// are nobody else's.
#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    qkv: [NodeId; 3],
    bias: Option<NodeId>,
    sinks: Option<NodeId>,
    slopes: Floats<B>,
    mask: Bools<B>,
    o: FloatTensor<B>,
    lse: FloatTensor<B>,
    pass: Pass,
}

impl<B: AttentionGradients> Backward<B, 5> for Step {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_o = gradients.consume::<B>(&ops.node);
        let Saved { qkv, bias, sinks, slopes, mask, o, lse, pass } = ops.state;
        let [of_q, of_k, of_v, of_bias, of_sinks] = ops.parents;
        let (of_bias, of_sinks) =
            (of_bias.filter(|_| bias.is_some()), of_sinks.filter(|_| sinks.is_some()));
        let pass = pass.wanting(of_bias.is_some(), of_sinks.is_some());
        let mut input = |node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node);
        let [q, k, v] = qkv.map(&mut input);
        let [bias, sinks] = [bias, sinks].map(|node| match node {
            None => Floats::Nothing,
            Some(node) => Floats::Tensor(input(node)),
        });
        let inputs = Inputs { q, k, v, bias, sinks, slopes, mask };
        let of_inputs = B::attention_backward(inputs, o, lse, d_o, pass);
        let AttentionGradient { dq, dk, dv, d_bias, d_sinks } = of_inputs;
        let all = [Some(dq), Some(dk), Some(dv), d_bias.tensor(), d_sinks.tensor()];
        for (parent, gradient) in [of_q, of_k, of_v, of_bias, of_sinks].into_iter().zip(all) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// The tensor without its place in the graph.
fn inner<B: Backend, C: CheckpointStrategy>(floats: &Floats<Autodiff<B, C>>) -> Floats<B> {
    match floats {
        Floats::Nothing => Floats::Nothing,
        Floats::Tensor(tensor) => Floats::Tensor(tensor.primitive().clone()),
    }
}

impl<B, C> AttentionOps for Autodiff<B, C>
where
    B: AttentionOps + AttentionGradients,
    C: CheckpointStrategy,
{
    fn attention_forward(inputs: Inputs<Self>, pass: Pass) -> Outcome<Self> {
        let Inputs { q, k, v, bias, sinks, slopes, mask } = inputs;
        let slopes = inner(&slopes);
        let mask = match mask {
            Bools::Nothing => Bools::Nothing,
            Bools::Tensor(mask) => Bools::Tensor(mask),
        };
        let forward = |pass| {
            let [q, k, v] = [&q, &k, &v].map(|tensor| tensor.primitive().clone());
            let (slopes, mask) = (slopes.clone(), mask.clone());
            let inputs = Inputs { q, k, v, bias: inner(&bias), sinks: inner(&sinks), slopes, mask };
            match B::attention_forward(inputs, pass) {
                Outcome::Done { o, lse } => Ok((o, lse)),
                Outcome::Failed(error) => Err(error),
            }
        };
        let node = |floats: &Floats<Self>| match floats {
            Floats::Nothing => q.node(),
            Floats::Tensor(tensor) => tensor.node(),
        };
        let nodes = [q.node(), k.node(), v.node(), node(&bias), node(&sinks)];
        let step = Backward::<B, 5>::prepare::<C>(Step, nodes);
        let (o, lse) = match step.compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let qkv = [&q, &k, &v].map(|tensor| step.checkpoint(tensor));
                let [of_bias, of_sinks] = [&bias, &sinks].map(|floats| match floats {
                    Floats::Nothing => None,
                    Floats::Tensor(tensor) => Some(step.checkpoint(tensor)),
                });
                match forward(pass.clone()) {
                    Err(error) => return Outcome::Failed(error),
                    Ok((o, lse)) => {
                        let saved = Saved {
                            qkv,
                            bias: of_bias,
                            sinks: of_sinks,
                            slopes: slopes.clone(),
                            mask: mask.clone(),
                            o: o.clone(),
                            lse: lse.clone(),
                            pass,
                        };
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
