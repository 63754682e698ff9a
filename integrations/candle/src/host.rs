//! Tensors in memory of the host.

use crate::lift;
use crate::pass::{Given, Lse, Pass};
use candle_core::{CpuStorage, Device, Result, Storage, Tensor, WithDType, bail};
use finite_attention::{
    BackwardInputs, BackwardOutput, BackwardProblem, Element, ForwardOutput, Layout as ProblemLayout,
    backward_host, forward_host,
};

/// o, dense; lse is kept.
pub fn forward<T: Element + WithDType>(
    pass: &Pass,
    [q, k, v]: [Given<'_, CpuStorage>; 3],
) -> Result<CpuStorage> {
    let problem = &pass.problem.forward;
    let output: ForwardOutput<T> = lift(forward_host(
        &pass.device()?,
        problem,
        elements::<T>(q, &problem.q)?,
        elements(k, &problem.k)?,
        elements(v, &problem.v)?,
    ))?;
    pass.keep(Lse::Host(output.lse))?;
    Ok(T::to_cpu_storage_owned(output.o))
}

/// dq, dk and dv, dense.
pub fn backward<T: Element + WithDType>(
    pass: &Pass,
    problem: &BackwardProblem,
    tensors: [&Tensor; 5],
) -> Result<[Tensor; 3]> {
    #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns, reason = "others with `cuda`"))]
    let Lse::Host(lse) = pass.lse()? else { bail!("lse: expected it in memory of the host") };
    let held = tensors.map(Tensor::storage_and_layout);
    let forward = &problem.forward;
    let layouts = [&forward.q, &forward.k, &forward.v, &forward.o, &problem.d_o];
    let [q, k, v, o, d_o] = [0, 1, 2, 3, 4].map(|place| {
        let (storage, layout) = &held[place];
        match &**storage {
            Storage::Cpu(storage) => elements::<T>((storage, layout), layouts[place]),
            _ => bail!("expected q, k, v and do in memory of the host"),
        }
    });
    let output = ForwardOutput { o: Vec::new(), lse: Vec::new() };
    let inputs = BackwardInputs { o: o?, lse, ..BackwardInputs::new(q?, k?, v?, &output, d_o?) };
    let gradients: BackwardOutput<T> = lift(backward_host(&pass.device()?, problem, &inputs))?;
    let tensor =
        |elements, of: &ProblemLayout| Tensor::from_vec(elements, of.shape.to_vec(), &Device::Cpu);
    let BackwardOutput { dq, dk, dv, .. } = gradients;
    Ok([tensor(dq, &forward.q)?, tensor(dk, &forward.k)?, tensor(dv, &forward.v)?])
}

/// The elements from the first to the last of a tensor, as the library wants them. Strides of candle are
/// never negative, so that the first is element (0, 0, 0, 0).
fn elements<'s, T: WithDType>(
    (storage, layout): Given<'s, CpuStorage>,
    of: &ProblemLayout,
) -> Result<&'s [T]> {
    let start = layout.start_offset();
    Ok(&storage.as_slice::<T>()?[start..start + of.span()])
}
