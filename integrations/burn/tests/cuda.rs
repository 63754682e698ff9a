//! Tensors in memory of a GPU: o and gradients are those of burn's own operations on the host.

use crate::reference::{Case, assert_close};
use burn::tensor::{DType, Device, Tensor};

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
