//! One forward pass and the gradients of it, as candle's graph holds them.

use crate::scores::{HeldTensor, Scores, hold};
use crate::{columns_together, host, layout, lift};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, bail,
};
use finite_attention::{Arch, BackwardProblem, Device, Dtype};
use half::{bf16, f16};
use std::sync::{Arc, OnceLock};

/// What an operator of candle does: it is made for one forward pass, of which it keeps lse.
///
/// Nobody else gets it, so that lse is always of the tensors that the backward pass is given; it stays as
/// long as the graph, in which backward passes may be run again.
pub struct Pass {
    /// With the layouts of the forward pass's tensors.
    pub problem: BackwardProblem,
    /// Not in the graph: bias and sinks that have gradients are inputs of [`Joined`], too.
    pub scores: Scores,
    /// Of packed sequences in q and in k; else there are none.
    pub offsets: [Arc<[i32]>; 2],
    device: Option<Device>,
    kept: OnceLock<Kept>,
}

/// What a forward pass leaves for its backward pass; lse is f32 `[B, Hq, Sq]`, packed `[Hq, Tq]`.
pub enum Kept {
    /// In memory of the host.
    Host { lse: Vec<f32> },
    /// In memory of the GPU.
    #[cfg(feature = "cuda")]
    Cuda(crate::cuda::OnDevice),
}

/// What an operator is given of a tensor: the memory, and where in it the first element stands.
pub type Given<'s, S> = (&'s S, usize);

/// Bias and sinks, where an operator is given them.
pub type GivenScores<'s, S> = [Option<Given<'s, S>>; 2];

/// q, k, v, o and do of a backward pass, held, and how many elements of the tensor come before theirs.
pub struct Inputs<'t> {
    /// Each once: nothing where a tensor is held as one that comes before.
    held: [Option<HeldTensor<'t>>; 5],
    /// As which one each is held, and what comes before it.
    places: [(usize, usize); 5],
}

impl<'t> Inputs<'t> {
    fn new(tensors: [(&'t Tensor, usize); 5]) -> Self {
        let same = |place: usize, other: &usize| tensors[place].0.id() == tensors[*other].0.id();
        let places = [0, 1, 2, 3, 4].map(|place| {
            let first = (0..place).find(|other| same(place, other)).unwrap_or(place);
            (first, tensors[place].1)
        });
        let held =
            [0, 1, 2, 3, 4].map(|place| (places[place].0 == place).then(|| hold(tensors[place].0)));
        Inputs { held, places }
    }

    /// The memory of one of them, and where in it the first element stands.
    pub fn given(&self, place: usize) -> Result<Given<'_, Storage>> {
        let (first, skipped) = self.places[place];
        let Some((storage, layout)) = &self.held[first] else { bail!("expected a tensor, got none") };
        Ok((storage, layout.start_offset() + skipped))
    }
}

/// What a backward pass gives.
pub struct Gradients {
    /// dq, dk and dv, each dense, one after another.
    pub qkv: Tensor,
    /// Of the bias's shape and dtype, if it is wanted.
    pub bias: Option<Tensor>,
    /// f32 `[Hq]`, if it is wanted.
    pub sinks: Option<Tensor>,
}

impl Pass {
    pub fn new(
        problem: BackwardProblem,
        scores: Scores,
        offsets: [Arc<[i32]>; 2],
        device: Option<Device>,
    ) -> Self {
        Pass { problem, scores, offsets, device, kept: OnceLock::new() }
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

    /// Keeps what a backward pass needs, if there can be one.
    pub fn keep(&self, kept: Kept) -> Result<()> {
        if self.problem.forward.wants_lse && self.kept.set(kept).is_err() {
            bail!("attention: expected one forward pass of an operator, got a second one");
        }
        Ok(())
    }

    /// What the forward pass left.
    pub fn kept(&self) -> Result<&Kept> {
        let Some(kept) = self.kept.get() else {
            bail!("attention: expected lse of a forward pass with gradients, got none");
        };
        Ok(kept)
    }

    /// Elements of q, k and v.
    fn sizes(&self) -> [usize; 3] {
        let forward = &self.problem.forward;
        [&forward.q, &forward.k, &forward.v].map(|layout| layout.shape.iter().product())
    }

    /// Elements of all three.
    pub fn joined_elements(&self) -> usize {
        self.sizes().iter().sum()
    }

    /// The bias as the caller has it.
    pub fn bias_dims(&self) -> Vec<usize> {
        self.scores.bias.as_ref().map_or(Vec::new(), |bias| bias.dims().to_vec())
    }

    fn output_shape(&self) -> Shape {
        Shape::from(self.problem.forward.o.shape.to_vec())
    }

    fn on_host(
        &self,
        given: [Given<'_, CpuStorage>; 3],
        scores: GivenScores<'_, CpuStorage>,
    ) -> Result<(CpuStorage, Shape)> {
        let o = match self.problem.forward.dtype {
            Dtype::Bf16 => host::forward::<bf16>(self, given, scores),
            Dtype::F16 => host::forward::<f16>(self, given, scores),
            Dtype::F32 => host::forward::<f32>(self, given, scores),
        }?;
        Ok((o, self.output_shape()))
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(
        &self,
        given: [Given<'_, CudaStorage>; 3],
        scores: GivenScores<'_, CudaStorage>,
    ) -> Result<(CudaStorage, Shape)> {
        use crate::cuda;
        let o = match self.problem.forward.dtype {
            Dtype::Bf16 => cuda::forward::<bf16>(self, given, scores),
            Dtype::F16 => cuda::forward::<f16>(self, given, scores),
            Dtype::F32 => cuda::forward::<f32>(self, given, scores),
        }?;
        Ok((o, self.output_shape()))
    }

    #[cfg(not(feature = "cuda"))]
    fn on_gpu(
        &self,
        _: [Given<'_, CudaStorage>; 3],
        _: GivenScores<'_, CudaStorage>,
    ) -> Result<(CudaStorage, Shape)> {
        bail!("q: expected a tensor of the host, since the feature `cuda` is off, got one on a GPU")
    }

    /// All gradients; q, k and v with how many elements of their tensors come before theirs.
    fn gradients(
        &self,
        [q, k, v]: [(&Tensor, usize); 3],
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<Gradients> {
        let d_o = columns_together(d_o)?;
        if d_o.dtype() != o.dtype() {
            let (expected, got): (DType, DType) = (o.dtype(), d_o.dtype());
            bail!("do: expected dtype {} like o, got {}", expected.as_str(), got.as_str());
        }
        let problem = self.problem.with_d_o(layout("do", &d_o)?);
        let inputs = Inputs::new([q, k, v, (o, 0), (&d_o, 0)]);
        let on_host = matches!(inputs.given(0)?.0, Storage::Cpu(_));
        match (problem.forward.dtype, on_host) {
            (Dtype::Bf16, true) => host::backward::<bf16>(self, &problem, &inputs),
            (Dtype::F16, true) => host::backward::<f16>(self, &problem, &inputs),
            (Dtype::F32, true) => host::backward::<f32>(self, &problem, &inputs),
            #[cfg(feature = "cuda")]
            (Dtype::Bf16, false) => crate::cuda::backward::<bf16>(self, &problem, &inputs),
            #[cfg(feature = "cuda")]
            (Dtype::F16, false) => crate::cuda::backward::<f16>(self, &problem, &inputs),
            #[cfg(feature = "cuda")]
            (Dtype::F32, false) => crate::cuda::backward::<f32>(self, &problem, &inputs),
            #[cfg(not(feature = "cuda"))]
            (_, false) => bail!("q: expected a tensor of the host, got one on a GPU"),
        }
    }
}

/// The operator of q, k and v, which are read where they are.
pub struct Apart(pub Pass);

impl CustomOp3 for Apart {
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
        let [of_q, of_k, of_v] = [q_layout, k_layout, v_layout].map(Layout::start_offset);
        self.0.on_host([(q, of_q), (k, of_k), (v, of_v)], [None; 2])
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let [of_q, of_k, of_v] = [q_layout, k_layout, v_layout].map(Layout::start_offset);
        self.0.on_gpu([(q, of_q), (k, of_k), (v, of_v)], [None; 2])
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Gradients { qkv, .. } = self.0.gradients([(q, 0), (k, 0), (v, 0)], o, d_o)?;
        let [of_q, of_k, of_v] = self.0.sizes();
        let wanted = |of: &Tensor, first: usize, elements: usize| match of.track_op() {
            true => qkv.narrow(0, first, elements)?.reshape(of.shape()).map(Some),
            false => Ok(None),
        };
        Ok((wanted(q, 0, of_q)?, wanted(k, of_q, of_k)?, wanted(v, of_q + of_k, of_v)?))
    }
}

/// The operator where bias or sinks have gradients: candle's operators have no more than three inputs, so
/// that q, k and v are one, each dense, one after another.
///
/// The other inputs are bias and sinks; what has no gradient is not looked at here, but in [`Pass::scores`].
pub struct Joined(pub Pass);

impl CustomOp3 for Joined {
    fn name(&self) -> &'static str {
        "finite-attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        layout: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
        sinks: &CpuStorage,
        of_sinks: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let places = self.places().map(|place| layout.start_offset() + place);
        self.0.on_host(places.map(|place| (qkv, place)), self.scores((bias, of_bias), (sinks, of_sinks)))
    }

    fn cuda_fwd(
        &self,
        qkv: &CudaStorage,
        layout: &Layout,
        bias: &CudaStorage,
        of_bias: &Layout,
        sinks: &CudaStorage,
        of_sinks: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let places = self.places().map(|place| layout.start_offset() + place);
        self.0.on_gpu(places.map(|place| (qkv, place)), self.scores((bias, of_bias), (sinks, of_sinks)))
    }

    fn bwd(
        &self,
        qkv: &Tensor,
        _: &Tensor,
        _: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = self.0.gradients(self.places().map(|place| (qkv, place)), o, d_o)?;
        Ok((qkv.track_op().then_some(gradients.qkv), gradients.bias, gradients.sinks))
    }
}

impl Joined {
    /// Bias and sinks, as far as they have gradients.
    fn scores<'s, S>(
        &self,
        (bias, of_bias): (&'s S, &Layout),
        (sinks, of_sinks): (&'s S, &Layout),
    ) -> GivenScores<'s, S> {
        let BackwardProblem { d_bias, wants_d_sinks, .. } = self.0.problem;
        let bias = d_bias.map(|_| (bias, of_bias.start_offset()));
        [bias, wants_d_sinks.then(|| (sinks, of_sinks.start_offset()))]
    }

    /// Where q, k and v begin.
    fn places(&self) -> [usize; 3] {
        let [of_q, of_k, _] = self.0.sizes();
        [0, of_q, of_q + of_k]
    }
}
