//! The operations that burn's backends are extended by.
#![allow(missing_docs, reason = "what the macro generates; nothing of this module is public")]
#![cfg_attr(feature = "ndarray", allow(deprecated, reason = "burn's name for its older backend"))]

use crate::host;
use crate::pass::Pass;
#[cfg(feature = "flex")]
use burn::backend::Flex;
#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, ExtensionType, backend_extension};
use finite_attention::Error;

/// Numbers, if there are any.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub enum Floats<B: Backend> {
    /// There are none.
    Nothing,
    /// A tensor.
    Tensor(FloatTensor<B>),
}

/// A boolean tensor, if there is one.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub enum Bools<B: Backend> {
    /// There is none.
    Nothing,
    /// A tensor.
    Tensor(BoolTensor<B>),
}

/// What attention is made of.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub struct Inputs<B: Backend> {
    pub q: FloatTensor<B>,
    pub k: FloatTensor<B>,
    pub v: FloatTensor<B>,
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    #[extension_type]
    pub bias: Floats<B>,
    /// f32 `[Hq]`.
    #[extension_type]
    pub sinks: Floats<B>,
    /// f32 of `[Hq]` or `[B, Hq]`, in one dimension.
    #[extension_type]
    pub slopes: Floats<B>,
    /// As the bias, true where a key is visible.
    #[extension_type]
    pub mask: Bools<B>,
}

/// What a forward pass gives.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub enum Outcome<B: Backend> {
    /// o `[B, Hq, Sq, Dv]` and lse, f32 `[B, Hq, Sq]`.
    Done { o: FloatTensor<B>, lse: FloatTensor<B> },
    /// It could not be.
    Failed(Error),
}

/// Gradients, each of the shape and dtype of its tensor.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub struct Gradients<B: Backend> {
    pub dq: FloatTensor<B>,
    pub dk: FloatTensor<B>,
    pub dv: FloatTensor<B>,
    /// If it is wanted.
    #[extension_type]
    pub d_bias: Floats<B>,
    /// If they are wanted.
    #[extension_type]
    pub d_sinks: Floats<B>,
}

/// Forward passes.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "cuda"),
    Fusion: cfg(feature = "cuda"),
    Autodiff
)]
pub trait AttentionOps: Backend {
    #[fusion(meta = fused::outcome)]
    fn attention_forward(#[extension_type] inputs: Inputs<Self>, pass: Pass) -> Outcome<Self>;
}

/// Backward passes. Burn's gradients are of first order: its autodiff backend has none of these.
///
/// # Panics
/// Burn's backward passes return no errors: where a device fails, with the error's text.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "cuda"),
    Fusion: cfg(feature = "cuda")
)]
pub trait AttentionGradients: Backend {
    #[fusion(meta = fused::gradients)]
    fn attention_backward(
        #[extension_type] inputs: Inputs<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        pass: Pass,
    ) -> Gradients<Self>;
}

/// What outputs are, before they are there.
#[cfg(feature = "cuda")]
mod fused {
    use super::{FloatsMetadata, GradientsMetadata, InputsMetadata, OutcomeMetadata};
    use crate::pass::Pass;
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub fn outcome(inputs: &InputsMetadata, pass: &Pass) -> OutcomeMetadata {
        let [batches, rows, heads, columns] = pass.problem.forward.o.shape;
        OutcomeMetadata::Done {
            o: TensorSpec::new(Shape::new([batches, heads, rows, columns]), inputs.q.dtype),
            lse: TensorSpec::new(Shape::new([batches, heads, rows]), DType::F32),
        }
    }

    pub fn gradients(
        inputs: &InputsMetadata,
        _o: &TensorSpec,
        _lse: &TensorSpec,
        _d_o: &TensorSpec,
        pass: &Pass,
    ) -> GradientsMetadata {
        let InputsMetadata { q, k, v, bias, sinks, .. } = inputs;
        let wanted = |of: &FloatsMetadata, is_wanted: bool| match of {
            FloatsMetadata::Tensor(spec) if is_wanted => FloatsMetadata::Tensor(spec.clone()),
            _ => FloatsMetadata::Nothing,
        };
        GradientsMetadata {
            dq: q.clone(),
            dk: k.clone(),
            dv: v.clone(),
            d_bias: wanted(bias, pass.problem.d_bias.is_some()),
            d_sinks: wanted(sinks, pass.problem.wants_d_sinks),
        }
    }
}

impl<B: Backend> From<Option<FloatTensor<B>>> for Floats<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Floats::Nothing, Floats::Tensor)
    }
}

impl<B: Backend> From<Option<BoolTensor<B>>> for Bools<B> {
    fn from(tensor: Option<BoolTensor<B>>) -> Self {
        tensor.map_or(Bools::Nothing, Bools::Tensor)
    }
}

impl<B: Backend> Floats<B> {
    /// The tensor, if there is one.
    pub fn tensor(self) -> Option<FloatTensor<B>> {
        match self {
            Floats::Nothing => None,
            Floats::Tensor(tensor) => Some(tensor),
        }
    }
}

impl<B: Backend> Bools<B> {
    /// The tensor, if there is one.
    pub fn tensor(self) -> Option<BoolTensor<B>> {
        match self {
            Bools::Nothing => None,
            Bools::Tensor(tensor) => Some(tensor),
        }
    }
}

/// The gradients, or the panic that burn's backward passes have instead of an error.
pub fn or_panic<B: Backend>(gradients: finite_attention::Result<Gradients<B>>) -> Gradients<B> {
    gradients.unwrap_or_else(|error| panic!("{error}"))
}

impl<B: Backend> From<finite_attention::Result<[FloatTensor<B>; 2]>> for Outcome<B> {
    fn from(result: finite_attention::Result<[FloatTensor<B>; 2]>) -> Self {
        match result {
            Ok([o, lse]) => Outcome::Done { o, lse },
            Err(error) => Outcome::Failed(error),
        }
    }
}

/// The operations of a backend whose tensors are copied to the host.
macro_rules! through_host {
    ($backend:ty) => {
        impl AttentionOps for $backend {
            fn attention_forward(inputs: Inputs<Self>, pass: Pass) -> Outcome<Self> {
                host::forward::<Self>(inputs, &pass).into()
            }
        }

        impl AttentionGradients for $backend {
            fn attention_backward(
                inputs: Inputs<Self>,
                o: FloatTensor<Self>,
                lse: FloatTensor<Self>,
                d_o: FloatTensor<Self>,
                pass: Pass,
            ) -> Gradients<Self> {
                or_panic(host::backward::<Self>(inputs, [o, lse, d_o], &pass))
            }
        }
    };
}

#[cfg(feature = "flex")]
through_host!(Flex);

#[cfg(feature = "ndarray")]
through_host!(NdArray);
