//! Tensors in memory of a GPU: o and gradients are those of burn's own operations on the host.

use crate::reference::{Case, assert_close, exact, numbers, random};
use burn::tensor::{DType, Device, Tensor, TensorData};

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda -- --ignored"]
fn tensors_of_a_gpu_have_the_same_gradients() {
    let (host, gpu) = (Device::flex().autodiff(), Device::cuda(0).autodiff());
    let cases = [
        Case::new(2, [67, 35], [4, 2], [64, 64]),
        Case::new(1, [300, 300], [4, 1], [128, 128]).causal(),
        Case::new(1, [190, 70], [2, 2], [40, 24]).causal(),
    ];
    for (seed, case) in cases.iter().enumerate() {
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let tensors = case.tensors(seed as u32, dtype, &host);
            let reference = case.of_burn(&tensors, DType::F64);
            let naive = case.of_burn(&tensors, dtype);
            // Rows before heads in memory, as after a linear layer.
            let on_gpu = |tensor: Tensor<4>| {
                let data = tensor.swap_dims(1, 2).into_data();
                Tensor::<4>::from_data(data, (&gpu, dtype)).swap_dims(1, 2)
            };
            let got = case.of_door(&tensors.map(on_gpu));
            for (place, name) in ["o", "dq", "dk", "dv"].into_iter().enumerate() {
                assert_close(name, &got[place], &reference[place], &naive[place], dtype);
            }
        }
    }
}

/// o and all gradients with all that scores can have, of tensors of a device: batches, or packed sequences.
fn with_everything(device: &Device, is_packed: bool, dtype: DType) -> Vec<Vec<f64>> {
    let mut state = 70;
    let batches = if is_packed { 1 } else { 2 };
    let [longest_q, longest_k] = if is_packed { [30, 60] } else { [35, 67] };
    let qkv = [[batches, 4, 35, 40], [batches, 2, 67, 40], [batches, 2, 67, 24]]
        .map(|shape| random(&mut state, shape, dtype, device).require_grad());
    let bias = random(&mut state, [2, 2, longest_q, longest_k], dtype, device).require_grad();
    let sinks = random(&mut state, [4], DType::F32, device).require_grad();
    let shape = [2, 1, longest_q, longest_k];
    let visible: Vec<bool> = (0..2 * longest_q * longest_k).map(|at| at % 3 != 1).collect();
    let mask = Tensor::from_data(TensorData::new(visible, shape), device);
    let slopes: Tensor<2> = random(&mut state, [2, 4], DType::F32, device).abs();
    let attention = exact().with_bias(bias.clone()).with_sinks(sinks.clone());
    let attention = attention.with_mask(mask).with_alibi(slopes);
    let attention = if is_packed { attention.packed(&[0, 5, 35], &[0, 60, 67]) } else { attention };
    let [q, k, v] = qkv.clone();
    let o = attention.apply(q, k, v, |problem| problem.with_softcap(3.0).with_dropout(0.2, 7, 1));
    let o = o.expect("attention");
    let gradients = (o.clone() * o.clone()).sum().backward();
    let mut all = vec![numbers(o)];
    for tensor in qkv.iter().chain([&bias]) {
        all.push(numbers(tensor.grad(&gradients).expect("a gradient")));
    }
    all.push(numbers(sinks.grad(&gradients).expect("a gradient")));
    all
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda -- --ignored"]
fn all_that_scores_can_have_is_as_on_the_host() {
    for (dtype, allowed) in [(DType::F32, 1e-4), (DType::BF16, 3e-2)] {
        for is_packed in [false, true] {
            let on_host = with_everything(&Device::flex().autodiff(), is_packed, dtype);
            let on_gpu = with_everything(&Device::cuda(0).autodiff(), is_packed, dtype);
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
}
