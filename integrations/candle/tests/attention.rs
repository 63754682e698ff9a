//! o and gradients are those of candle's own operations, for each kind of case.

use crate::reference::{Case, assert_close, gradients, numbers};
use candle_core::{DType, Device, Result, Tensor, Var};
use finite_attention_candle::finite_attention::{self, CausalAlignment, Mask};
use finite_attention_candle::{Attention, attention};

/// Compares o, dq, dk and dv of a case.
fn compare(case: &Case, seed: u32, dtype: DType) -> Result<()> {
    let tensors = case.tensors(seed, dtype)?;
    let [q, k, v, d_o] = &tensors;
    let [q, k, v] = [Var::from_tensor(q)?, Var::from_tensor(k)?, Var::from_tensor(v)?];
    let o = attention(&q, &k, &v, |problem| case.ask(problem))?;
    assert_eq!(o.dtype(), dtype);
    let got = gradients(&o, d_o, [&q, &k, &v])?;
    let reference = case.of_candle(&tensors, DType::F64)?;
    let naive = case.of_candle(&tensors, dtype)?;
    for (place, name) in ["o", "dq", "dk", "dv"].into_iter().enumerate() {
        assert_close(name, &got[place], &reference[place], &naive[place], dtype);
    }
    Ok(())
}

#[test]
fn full_attention() -> Result<()> {
    compare(&Case::new(2, [16, 16], [2, 2], [16, 16]), 1, DType::F32)
}

#[test]
fn ragged_tails_and_heads_that_share_keys() -> Result<()> {
    compare(&Case::new(2, [67, 35], [4, 2], [20, 12]), 2, DType::F32)?;
    compare(&Case::new(3, [5, 70], [6, 1], [33, 64]), 3, DType::F32)
}

#[test]
fn causal_with_more_keys_than_queries() -> Result<()> {
    compare(&Case::new(1, [19, 41], [2, 1], [16, 16]).causal(), 4, DType::F32)
}

#[test]
fn causal_with_queries_that_see_no_key() -> Result<()> {
    let case = Case::new(1, [41, 19], [2, 2], [8, 8]).causal();
    compare(&case, 5, DType::F32)?;
    let [q, k, v, _] = case.tensors(5, DType::F32)?;
    let o = attention(&q, &k, &v, |problem| problem.causal())?;
    assert!(numbers(&o.narrow(1, 0, 22)?)?.iter().all(|&number| number == 0.0));
    assert!(numbers(&o.narrow(1, 22, 19)?)?.iter().any(|&number| number != 0.0));
    Ok(())
}

#[test]
fn window_scale_and_softcap() -> Result<()> {
    let case = Case::new(1, [40, 40], [2, 1], [16, 24]).with_window(7, 3);
    compare(&case.with_scale(0.4).with_softcap(2.5), 6, DType::F32)
}

#[test]
fn sixteen_bits() -> Result<()> {
    let case = || Case::new(1, [37, 37], [4, 2], [32, 32]).causal();
    compare(&case(), 7, DType::BF16)?;
    compare(&case(), 8, DType::F16)
}

#[test]
fn no_rows_give_no_elements() -> Result<()> {
    let none = Var::zeros((1, 0, 2, 8), DType::F32, &Device::Cpu)?;
    let kv = Var::ones((1, 3, 2, 8), DType::F32, &Device::Cpu)?;
    let o = attention(&none, &kv, &kv, |problem| problem)?;
    assert_eq!(o.dims(), [1, 0, 2, 8]);
    let gradients = o.sum_all()?.backward()?;
    assert!(numbers(gradients.get(&kv).expect("a gradient"))?.iter().all(|&number| number == 0.0));
    Ok(())
}

#[test]
fn views_give_what_their_copies_give() -> Result<()> {
    let case = Case::new(2, [9, 11], [4, 2], [8, 8]);
    let [q, k, v, d_o] = case.tensors(9, DType::F32)?;
    // Heads before rows in memory, a part of a longer tensor, and columns that do not stand side by side.
    let q_view = q.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    let k_view = Tensor::cat(&[&v, &k, &v], 1)?.narrow(1, 11, 11)?;
    let v_view = v.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    assert!(!q_view.is_contiguous() && !k_view.is_contiguous() && v_view.stride()[3] != 1);
    let of = |[q, k, v]: [&Tensor; 3]| {
        let [q, k, v] = [Var::from_tensor(q)?, Var::from_tensor(k)?, Var::from_tensor(v)?];
        let o = Attention::default().deterministic().apply(&q, &k, &v, |problem| problem)?;
        // The gradient of o has columns that do not stand side by side, either.
        let turned = o.transpose(1, 3)?.contiguous()?.transpose(1, 3)?;
        gradients(&turned, &d_o, [&q, &k, &v])
    };
    assert_eq!(of([&q_view, &k_view, &v_view])?, of([&q, &k, &v])?);
    Ok(())
}

#[test]
fn gradients_of_one_tensor_that_is_q_k_and_v_add_up() -> Result<()> {
    let [x, .., d_o] = Case::new(1, [6, 6], [2, 2], [8, 8]).tensors(10, DType::F32)?;
    let apart = [Var::from_tensor(&x)?, Var::from_tensor(&x)?, Var::from_tensor(&x)?];
    let exact = Attention::default().deterministic();
    let o = exact.apply(&apart[0], &apart[1], &apart[2], |problem| problem.causal())?;
    let [_, dq, dk, dv] = gradients(&o, &d_o, [&apart[0], &apart[1], &apart[2]])?;
    let x = Var::from_tensor(&x)?;
    let o = exact.apply(&x, &x, &x, |problem| problem.causal())?;
    let [_, sum, ..] = gradients(&o, &d_o, [&x, &x, &x])?;
    for (place, sum) in sum.iter().enumerate() {
        assert!((dq[place] + dk[place] + dv[place] - sum).abs() < 1e-5, "element {place}");
    }
    Ok(())
}

#[test]
fn lse_stays_for_a_second_backward_pass() -> Result<()> {
    let [q, k, v, d_o] = Case::new(1, [6, 9], [2, 1], [8, 8]).tensors(11, DType::F32)?;
    let [q, k, v] = [Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?];
    let exact = Attention::default().deterministic();
    let o = exact.apply(&q, &k, &v, |problem| problem)?;
    // Another forward pass, of other tensors, in between.
    exact.apply(&(q.as_tensor() * 3.0)?, &k, &v, |problem| problem.causal())?.sum_all()?.backward()?;
    let first = gradients(&o, &d_o, [&q, &k, &v])?;
    assert_eq!(gradients(&o, &d_o, [&q, &k, &v])?, first);
    Ok(())
}

#[test]
fn only_variables_have_gradients() -> Result<()> {
    let [q, k, v, _] = Case::new(1, [5, 5], [1, 1], [8, 8]).tensors(12, DType::F32)?;
    let v = Var::from_tensor(&v)?;
    let gradients = attention(&q, &k, &v, |problem| problem)?.sum_all()?.backward()?;
    assert!(gradients.get(&v).is_some() && gradients.get(&q).is_none() && gradients.get(&k).is_none());
    Ok(())
}

#[test]
fn other_devices_and_alignments_are_asked_for() -> Result<()> {
    let [q, k, v, _] = Case::new(1, [5, 9], [1, 1], [64, 64]).tensors(13, DType::BF16)?;
    let hopper = finite_attention::Device::parse("emulated:sm_90a").map_err(candle_core::Error::wrap)?;
    let top_left = Mask::Causal(CausalAlignment::TopLeft);
    let on_hopper = Attention::default().on(hopper);
    let o = on_hopper.apply(&q, &k, &v, |problem| problem.with_mask(top_left))?;
    // The first query sees the first key alone.
    assert_eq!(numbers(&o.narrow(1, 0, 1)?)?, numbers(&v.narrow(1, 0, 1)?)?);
    Ok(())
}
