//! Tensors in memory of a GPU: o and gradients are those of candle's own operations on the host, and stay
//! there.

use crate::reference::{Case, assert_close, gradients, numbers, random};
use candle_core::{DType, Device, Result, Var};
use finite_attention_candle::{Attention, attention};

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

/// o and all gradients with all that scores can have, of tensors of a device: batches, or packed sequences.
fn with_everything(device: &Device, is_packed: bool, dtype: DType) -> Result<Vec<Vec<f64>>> {
    let mut state = 70;
    let mut tensor = |shape: &[usize], dtype| random(&mut state, shape, dtype)?.to_device(device);
    let (of_q, of_k, of_v): (&[usize], &[usize], &[usize]) = match is_packed {
        false => (&[2, 35, 4, 40], &[2, 67, 2, 40], &[2, 67, 2, 24]),
        true => (&[35, 4, 40], &[67, 2, 40], &[67, 2, 24]),
    };
    let [longest_q, longest_k] = if is_packed { [30, 60] } else { [35, 67] };
    let qkv = [tensor(of_q, dtype)?, tensor(of_k, dtype)?, tensor(of_v, dtype)?];
    let bias = Var::from_tensor(&tensor(&[2, 2, longest_q, longest_k], dtype)?)?;
    let sinks = Var::from_tensor(&tensor(&[4], DType::F32)?)?;
    let mask = tensor(&[2, 1, longest_q, longest_k], DType::F32)?.gt(-1.0f32)?;
    let slopes = tensor(&[2, 4], DType::F32)?.abs()?;
    let [q, k, v] = qkv.map(|tensor| Var::from_tensor(&tensor));
    let (q, k, v) = (q?, k?, v?);
    let attention = Attention::default().with_bias(&bias).with_sinks(&sinks);
    let attention = attention.with_mask(&mask).with_alibi(&slopes).deterministic();
    let attention = if is_packed { attention.packed(&[0, 5, 35], &[0, 60, 67]) } else { attention };
    let o = attention.apply(&q, &k, &v, |problem| problem.with_softcap(3.0).with_dropout(0.2, 7, 1))?;
    let gradients = o.sqr()?.sum_all()?.backward()?;
    let mut all = vec![numbers(&o)?];
    for variable in [&q, &k, &v, &bias, &sinks] {
        all.push(numbers(gradients.get(variable).expect("a gradient"))?);
    }
    Ok(all)
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda -- --ignored"]
fn all_that_scores_can_have_is_as_on_the_host() -> Result<()> {
    let gpu = Device::new_cuda(0)?;
    for (dtype, allowed) in [(DType::F32, 1e-4), (DType::BF16, 3e-2)] {
        for is_packed in [false, true] {
            let on_host = with_everything(&Device::Cpu, is_packed, dtype)?;
            let on_gpu = with_everything(&gpu, is_packed, dtype)?;
            for (tensor, (got, expected)) in on_gpu.iter().zip(&on_host).enumerate() {
                let largest =
                    expected.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
                for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
                    let difference = (got - expected).abs();
                    assert!(
                        difference <= allowed * largest,
                        "tensor {tensor}, element {place}: {difference}"
                    );
                }
            }
        }
    }
    Ok(())
}
