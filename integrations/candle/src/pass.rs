//! One forward pass and the gradients of it, as candle's graph holds them.

use crate::{columns_together, host, layout, lift};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, bail,
};
use finite_attention::{Arch, BackwardProblem, Device, Dtype};
use half::{bf16, f16};
use std::sync::OnceLock;

/// An operator of candle: it is made for one forward pass, whose lse it keeps.
///
/// Nobody else gets it, so that lse is always of the tensors that the backward pass is given; it stays as
/// long as the graph, in which backward passes may be run again.
pub struct Pass {
    /// With the layouts of the forward pass's tensors.
    pub problem: BackwardProblem,
    device: Option<Device>,
    lse: OnceLock<Lse>,
}

/// What a forward pass leaves for its backward pass, f32 `[B, Hq, Sq]`.
pub enum Lse {
    /// In memory of the host.
    Host(Vec<f32>),
    /// In memory of the GPU.
    #[cfg(feature = "cuda")]
    Cuda(candle_core::cuda_backend::cudarc::driver::CudaSlice<f32>),
}

/// What an operator is given of a tensor.
pub type Given<'s, S> = (&'s S, &'s Layout);

impl Pass {
    pub fn new(problem: BackwardProblem, device: Option<Device>) -> Self {
        Pass { problem, device, lse: OnceLock::new() }
    }

    /// The device for tensors of the host: what was asked for, or an emulator that the process shares.
    pub fn device(&self) -> Result<Device> {
        static EMULATOR: OnceLock<Device> = OnceLock::new();
        if let Some(device) = self.device.as_ref().or(EMULATOR.get()) {
            return Ok(device.clone());
        }
        let emulator = lift(Device::emulated(Arch::Sm80))?;
        Ok(EMULATOR.get_or_init(|| emulator).clone())
    }

    /// Keeps lse, if it is wanted.
    pub fn keep(&self, lse: Lse) -> Result<()> {
        if self.problem.forward.wants_lse && self.lse.set(lse).is_err() {
            bail!("attention: expected one forward pass of an operator, got a second one");
        }
        Ok(())
    }

    /// lse of the forward pass.
    pub fn lse(&self) -> Result<&Lse> {
        let Some(lse) = self.lse.get() else {
            bail!("attention: expected lse of a forward pass with gradients, got none");
        };
        Ok(lse)
    }

    fn output_shape(&self) -> Shape {
        Shape::from(self.problem.forward.o.shape.to_vec())
    }
}

impl CustomOp3 for Pass {
    fn name(&self) -> &'static str {
        "finite-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let given = [(q, q_layout), (k, k_layout), (v, v_layout)];
        let o = match self.problem.forward.dtype {
            Dtype::Bf16 => host::forward::<bf16>(self, given),
            Dtype::F16 => host::forward::<f16>(self, given),
            Dtype::F32 => host::forward::<f32>(self, given),
        }?;
        Ok((o, self.output_shape()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use crate::cuda;
        let given = [(q, q_layout), (k, k_layout), (v, v_layout)];
        let o = match self.problem.forward.dtype {
            Dtype::Bf16 => cuda::forward::<bf16>(self, given),
            Dtype::F16 => cuda::forward::<f16>(self, given),
            Dtype::F32 => cuda::forward::<f32>(self, given),
        }?;
        Ok((o, self.output_shape()))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        bail!("q: expected a tensor of the host, since the feature `cuda` is off, got one on a GPU")
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let d_o = columns_together(d_o)?;
        if d_o.dtype() != o.dtype() {
            let (expected, got): (DType, DType) = (o.dtype(), d_o.dtype());
            bail!("do: expected dtype {} like o, got {}", expected.as_str(), got.as_str());
        }
        let problem = self.problem.with_d_o(layout("do", &d_o)?);
        let tensors = [q, k, v, o, &d_o];
        let on_host = matches!(&*q.storage_and_layout().0, Storage::Cpu(_));
        let gradients = match (problem.forward.dtype, on_host) {
            (Dtype::Bf16, true) => host::backward::<bf16>(self, &problem, tensors),
            (Dtype::F16, true) => host::backward::<f16>(self, &problem, tensors),
            (Dtype::F32, true) => host::backward::<f32>(self, &problem, tensors),
            #[cfg(feature = "cuda")]
            (Dtype::Bf16, false) => crate::cuda::backward::<bf16>(self, &problem, tensors),
            #[cfg(feature = "cuda")]
            (Dtype::F16, false) => crate::cuda::backward::<f16>(self, &problem, tensors),
            #[cfg(feature = "cuda")]
            (Dtype::F32, false) => crate::cuda::backward::<f32>(self, &problem, tensors),
            #[cfg(not(feature = "cuda"))]
            (_, false) => bail!("q: expected a tensor of the host, got one on a GPU"),
        }?;
        let [dq, dk, dv] = gradients;
        let wanted = |of: &Tensor, gradient| of.track_op().then_some(gradient);
        Ok((wanted(q, dq), wanted(k, dk), wanted(v, dv)))
    }
}
