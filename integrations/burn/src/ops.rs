//! The operations that burn's backends are extended by.
#![allow(missing_docs, reason = "what the macro generates; nothing of this module is public")]
#![cfg_attr(feature = "ndarray", allow(deprecated, reason = "burn's name for its older backend"))]

use crate::host;
use crate::pass::Pass;
#[cfg(feature = "flex")]
use burn::backend::Flex;
#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};
use finite_attention::Error;

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
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        pass: Pass,
    ) -> Outcome<Self>;
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
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        pass: Pass,
    ) -> Gradients<Self>;
}

/// What outputs are, before they are there.
#[cfg(feature = "cuda")]
mod fused {
    use super::{GradientsMetadata, OutcomeMetadata};
    use crate::pass::Pass;
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub fn outcome(q: &TensorSpec, _k: &TensorSpec, _v: &TensorSpec, pass: &Pass) -> OutcomeMetadata {
        let [batches, rows, heads, columns] = pass.problem.forward.o.shape;
        OutcomeMetadata::Done {
            o: TensorSpec::new(Shape::new([batches, heads, rows, columns]), q.dtype),
            lse: TensorSpec::new(Shape::new([batches, heads, rows]), DType::F32),
        }
    }

    pub fn gradients(
        q: &TensorSpec,
        k: &TensorSpec,
        v: &TensorSpec,
        _o: &TensorSpec,
        _lse: &TensorSpec,
        _d_o: &TensorSpec,
        _pass: &Pass,
    ) -> GradientsMetadata {
        GradientsMetadata { dq: q.clone(), dk: k.clone(), dv: v.clone() }
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
            fn attention_forward(
                q: FloatTensor<Self>,
                k: FloatTensor<Self>,
                v: FloatTensor<Self>,
                pass: Pass,
            ) -> Outcome<Self> {
                host::forward::<Self>([q, k, v], &pass).into()
            }
        }

        impl AttentionGradients for $backend {
            fn attention_backward(
                q: FloatTensor<Self>,
                k: FloatTensor<Self>,
                v: FloatTensor<Self>,
                o: FloatTensor<Self>,
                lse: FloatTensor<Self>,
                d_o: FloatTensor<Self>,
                pass: Pass,
            ) -> Gradients<Self> {
                or_panic(host::backward::<Self>([q, k, v, o, lse, d_o], &pass))
            }
        }
    };
}

#[cfg(feature = "flex")]
through_host!(Flex);

#[cfg(feature = "ndarray")]
through_host!(NdArray);
