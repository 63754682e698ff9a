//! Tensors in memory of a GPU: o and gradients are those of candle's own operations on the host, and stay
//! there.

use crate::reference::{Case, assert_close, gradients};
use candle_core::{DType, Device, Result, Var};
use finite_attention_candle::attention;

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda -- --ignored"]
fn tensors_of_a_gpu_stay_there_and_have_the_same_gradients() -> Result<()> {
    let gpu = Device::new_cuda(0)?;
    let cases = [
        Case::new(2, [67, 35], [4, 2], [64, 64]),
        Case::new(1, [300, 300], [4, 1], [128, 128]).causal(),
        Case::new(1, [190, 70], [2, 2], [40, 24]).causal(),
    ];
    for (seed, case) in cases.iter().enumerate() {
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let tensors = case.tensors(seed as u32, dtype)?;
            let [q, k, v, d_o] = &tensors;
            let on_gpu = |tensor| Var::from_tensor(&candle_core::Tensor::to_device(tensor, &gpu)?);
            let [q, k, v] = [on_gpu(q)?, on_gpu(k)?, on_gpu(v)?];
            // The first element is not the first of the allocation, and rows are apart.
            let longer = candle_core::Tensor::cat(&[v.as_tensor(), k.as_tensor()], 3)?;
            let columns = case.columns;
            let k_view = longer.narrow(3, columns[1], columns[0])?;
            let o = attention(&q, &k_view, &v, |problem| case.ask(problem))?;
            assert!(o.device().is_cuda());
            let got = gradients(&o, &d_o.to_device(&gpu)?, [&q, &k, &v])?;
            let reference = case.of_candle(&tensors, DType::F64)?;
            let naive = case.of_candle(&tensors, dtype)?;
            for (place, name) in ["o", "dq", "dk", "dv"].into_iter().enumerate() {
                assert_close(name, &got[place], &reference[place], &naive[place], dtype);
            }
        }
    }
    Ok(())
}
