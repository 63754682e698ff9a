//! o and gradients are those of burn's own operations, for each kind of case and each backend for CPUs.

use crate::reference::{Case, assert_close, exact, numbers};
use burn::tensor::{DType, Device, Tensor};
use finite_attention_burn::finite_attention::{self, CausalAlignment, Mask};
use finite_attention_burn::{Attention, attention};

/// Devices of each backend, with gradients.
fn devices() -> Vec<Device> {
    #[allow(unused_mut)]
    let mut devices = vec![Device::flex().autodiff()];
    #[cfg(feature = "ndarray")]
    #[allow(deprecated)]
    devices.push(Device::ndarray().autodiff());
    devices
}

/// Compares o, dq, dk and dv of a case.
fn compare(case: &Case, seed: u32, dtype: DType) {
    for device in devices() {
        compare_on(case, seed, dtype, &device);
    }
}

fn compare_on(case: &Case, seed: u32, dtype: DType, device: &Device) {
    let tensors = case.tensors(seed, dtype, device);
    let got = case.of_door(&tensors);
    let reference = case.of_burn(&tensors, DType::F64);
    let naive = case.of_burn(&tensors, dtype);
    for (place, name) in ["o", "dq", "dk", "dv"].into_iter().enumerate() {
        assert_close(name, &got[place], &reference[place], &naive[place], dtype);
    }
}

#[test]
fn full_attention() {
    compare(&Case::new(2, [16, 16], [2, 2], [16, 16]), 1, DType::F32);
}

#[test]
fn ragged_tails_and_heads_that_share_keys() {
    compare(&Case::new(2, [67, 35], [4, 2], [20, 12]), 2, DType::F32);
    compare(&Case::new(3, [5, 70], [6, 1], [33, 64]), 3, DType::F32);
}

#[test]
fn causal_with_more_keys_than_queries() {
    compare(&Case::new(1, [19, 41], [2, 1], [16, 16]).causal(), 4, DType::F32);
}

#[test]
fn causal_with_queries_that_see_no_key() {
    let case = Case::new(1, [41, 19], [2, 2], [8, 8]).causal();
    compare(&case, 5, DType::F32);
    let [q, k, v, _] = case.tensors(5, DType::F32, &Device::flex());
    let o = attention(q, k, v, |problem| problem.causal()).expect("attention");
    assert!(numbers(o.clone().narrow(2, 0, 22)).iter().all(|&number| number == 0.0));
    assert!(numbers(o.narrow(2, 22, 19)).iter().any(|&number| number != 0.0));
}

#[test]
fn scale_and_softcap() {
    let case = Case::new(1, [40, 40], [2, 1], [16, 24]).causal();
    compare(&case.with_scale(0.4).with_softcap(2.5), 6, DType::F32);
}

#[test]
fn sixteen_bits() {
    let case = Case::new(1, [37, 37], [4, 2], [32, 32]).causal();
    compare_on(&case, 7, DType::BF16, &Device::flex().autodiff());
    compare_on(&case, 8, DType::F16, &Device::flex().autodiff());
}

#[test]
fn no_rows_give_no_elements() {
    let device = Device::flex().autodiff();
    let none = Tensor::<4>::zeros([1, 2, 0, 8], &device);
    let kv = Tensor::<4>::ones([1, 2, 3, 8], &device).require_grad();
    let o = attention(none, kv.clone(), kv.clone(), |problem| problem).expect("attention");
    assert_eq!(o.dims(), [1, 2, 0, 8]);
    let gradients = o.sum().backward();
    let gradient = numbers(kv.grad(&gradients).expect("a gradient"));
    assert!(gradient.iter().all(|&number| number == 0.0), "{gradient:?}");
}

#[test]
fn views_give_what_their_copies_give() {
    for device in devices() {
        let case = Case::new(2, [9, 11], [4, 2], [8, 8]);
        let [q, k, v, d_o] = case.tensors(9, DType::F32, &device);
        // Rows before heads in memory, as after a linear layer; a part of a longer tensor.
        let copy = |tensor: Tensor<4>| Tensor::from_data(tensor.into_data(), &device);
        let q_view = copy(q.clone().swap_dims(1, 2)).swap_dims(1, 2);
        let k_view = Tensor::cat(vec![v.clone(), k.clone(), v.clone()], 2).narrow(2, 11, 11);
        let of = |q: Tensor<4>, k: Tensor<4>, v: Tensor<4>| {
            let [q, k, v] = [q, k, v].map(|tensor| tensor.detach().require_grad());
            let o = exact().apply(q.clone(), k.clone(), v.clone(), |problem| problem);
            let o = o.expect("attention");
            let gradients = (o.clone() * d_o.clone()).sum().backward();
            [o, q.grad(&gradients).unwrap(), k.grad(&gradients).unwrap(), v.grad(&gradients).unwrap()]
                .map(numbers)
        };
        assert_eq!(of(q_view, k_view, v.clone()), of(q, k, v));
    }
}

#[test]
fn gradients_of_one_tensor_that_is_q_k_and_v_add_up() {
    let device = Device::flex().autodiff();
    let case = Case::new(1, [6, 6], [2, 2], [8, 8]).causal();
    let [x, _, _, d_o] = case.tensors(10, DType::F32, &device);
    let [_, dq, dk, dv] = case.of_door(&[x.clone(), x.clone(), x.clone(), d_o.clone()]);
    let x = x.require_grad();
    let o = attention(x.clone(), x.clone(), x.clone(), |problem| problem.causal()).expect("attention");
    let gradients = (o * d_o).sum().backward();
    for (place, sum) in numbers(x.grad(&gradients).expect("a gradient")).into_iter().enumerate() {
        assert!((dq[place] + dk[place] + dv[place] - sum).abs() < 1e-5, "element {place}");
    }
}

#[test]
fn each_pass_keeps_the_lse_of_its_own() {
    let device = Device::flex().autodiff();
    let case = Case::new(1, [6, 9], [2, 1], [8, 8]);
    let [q, k, v, d_o] = case.tensors(11, DType::F32, &device);
    let alone = case.of_door(&[q.clone(), k.clone(), v.clone(), d_o.clone()]);
    let [q, k, v] = [q, k, v].map(Tensor::require_grad);
    let o = attention(q.clone(), k.clone(), v.clone(), |problem| problem).expect("attention");
    // A pass of other tensors and its gradients, and a layer above, before the first one's.
    let other = attention(q.clone() * 3.0, k.clone(), v.clone(), |problem| problem.causal());
    other.expect("attention").sum().backward();
    let [_, _, rows, _] = o.dims();
    let above = attention(o.clone(), o.clone(), o.clone(), |problem| problem).expect("attention");
    assert_eq!(above.dims()[2], rows);
    let gradients = (o * d_o).sum().backward();
    assert_eq!(numbers(k.grad(&gradients).expect("a gradient")), alone[2]);
}

#[test]
fn checkpointed_graphs_have_the_same_gradients() {
    let case = Case::new(1, [17, 17], [2, 1], [8, 8]).causal();
    let of = |device: &Device| {
        let [q, k, v, d_o] = case.tensors(12, DType::F32, device);
        let [q, k, v] = [q, k, v].map(Tensor::require_grad);
        // Products and sums, which burn computes again instead of keeping them.
        let scaled = |tensor: &Tensor<4>| (tensor.clone() * 2.0 + 0.25).exp().log();
        let o = exact().apply(scaled(&q), scaled(&k), scaled(&v), |problem| problem.causal());
        let gradients = (o.expect("attention") * d_o).sum().backward();
        [q, k, v].map(|tensor| numbers(tensor.grad(&gradients).expect("a gradient")))
    };
    let balanced = Device::flex().autodiff().gradient_checkpointing();
    assert_eq!(of(&balanced), of(&Device::flex().autodiff()));
}

#[test]
fn only_tensors_that_ask_for_them_have_gradients() {
    let device = Device::flex().autodiff();
    let [q, k, v, _] = Case::new(1, [5, 5], [1, 1], [8, 8]).tensors(13, DType::F32, &device);
    let v = v.require_grad();
    let o = attention(q.clone(), k.clone(), v.clone(), |problem| problem).expect("attention");
    let gradients = o.sum().backward();
    assert!(v.grad(&gradients).is_some());
    assert!(q.grad(&gradients).is_none() && k.grad(&gradients).is_none());
}

#[test]
fn other_devices_and_alignments_are_asked_for() {
    let case = Case::new(1, [5, 9], [1, 1], [64, 64]);
    let [q, k, v, _] = case.tensors(14, DType::BF16, &Device::flex());
    let hopper = finite_attention::Device::parse("emulated:sm_90a").expect("an emulator");
    let top_left = Mask::Causal(CausalAlignment::TopLeft);
    let on_hopper = Attention::default().on(hopper);
    let o = on_hopper.apply(q, k, v.clone(), |problem| problem.with_mask(top_left));
    // The first query sees the first key alone.
    assert_eq!(numbers(o.expect("attention").narrow(2, 0, 1)), numbers(v.narrow(2, 0, 1)));
}
