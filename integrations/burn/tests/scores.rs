//! Bias, boolean mask, slopes, sinks and dropout: o and gradients are those of burn's own operations.

use crate::reference::{Beside, Case, assert_close, exact, numbers, precision, random};
use burn::tensor::module::attention as of_burn;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use finite_attention_burn::Attention;
use finite_attention_burn::finite_attention::reference::{
    DropoutNumbers, NaiveGradients, OverScores, Scores, naive_backward_with, naive_with,
};

const NAMES: [&str; 6] = ["o", "dq", "dk", "dv", "dbias", "dsinks"];

fn device() -> Device {
    Device::flex().autodiff()
}

/// o, dq, dk and dv, and the gradients of bias and sinks that there are; of the door, or of burn's own
/// operations in f64.
fn gradients(case: &Case, beside: &Beside, tensors: &[Tensor<4>; 4], is_own: bool) -> Vec<Vec<f64>> {
    fn variable<const D: usize>(tensor: &Tensor<D>, is_own: bool) -> Tensor<D> {
        let tensor = tensor.clone().detach();
        if is_own { tensor.cast(DType::F64) } else { tensor }.require_grad()
    }
    let [q, k, v, d_o] = tensors;
    let qkv = [q, k, v].map(|tensor| variable(tensor, is_own));
    let bias = beside.bias.as_ref().map(|bias| variable(bias, is_own));
    let sinks = beside.sinks.as_ref().map(|sinks| variable(sinks, is_own));
    let beside = Beside { bias: bias.clone(), sinks: sinks.clone(), ..beside.clone() };
    let o = if is_own {
        case.attention(qkv.clone(), &beside)
    } else {
        let [q, k, v] = qkv.clone();
        let ask = |problem| beside.drop_from(case.ask(problem));
        beside.given_to(Attention::default()).apply(q, k, v, ask).expect("attention")
    };
    let gradients = (o.clone() * d_o.clone().cast(o.dtype())).sum().backward();
    let mut all = vec![numbers(o)];
    for tensor in qkv.iter().chain(&bias) {
        let gradient = tensor.grad(&gradients).expect("a gradient");
        assert_eq!((gradient.dims(), gradient.dtype()), (tensor.dims(), tensor.dtype()));
        all.push(numbers(gradient));
    }
    if bias.is_none() {
        all.push(Vec::new());
    }
    all.push(sinks.map_or(Vec::new(), |sinks| numbers(sinks.grad(&gradients).expect("a gradient"))));
    all
}

/// Numbers `[a, b, c, d]` as `[a, c, b, d]`: rows before heads, as the library has them, or heads before rows.
fn turned(numbers: &[f32], [a, b, c, d]: [usize; 4]) -> Vec<f32> {
    let places = (0..a).flat_map(|a| (0..c).flat_map(move |y| (0..b).map(move |x| (a * b + x) * c + y)));
    places.flat_map(|place| numbers[place * d..][..d].iter().copied()).collect()
}

/// The same as the tolerance rule has it, of the o that the door gave.
pub fn naive(
    case: &Case,
    beside: &Beside,
    tensors: &[Tensor<4>; 4],
    o: &[f64],
    dtype: DType,
) -> Vec<Vec<f64>> {
    fn single(numbers: &[f64]) -> Vec<f32> {
        numbers.iter().map(|&number| number as f32).collect()
    }
    let bias = beside.bias.clone().map(|bias| (bias.dims(), single(&numbers(bias))));
    let mask = beside.mask.clone().map(|mask| {
        let bools: Vec<bool> = mask.clone().into_data().iter::<bool>().collect();
        (mask.dims(), bools)
    });
    let slopes = beside.slopes.clone().map(|slopes| single(&numbers(slopes)));
    let sinks = beside.sinks.clone().map(|sinks| single(&numbers(sinks)));
    let scores = Scores {
        bias: bias.as_ref().map(|(shape, values)| OverScores { shape: *shape, values }),
        mask: mask.as_ref().map(|(shape, values)| OverScores { shape: *shape, values }),
        alibi_slopes: slopes.as_deref(),
        sinks: sinks.as_deref(),
        dropout: beside.dropout,
    };
    let (sizes, precision) = (case.sizes(), precision(dtype));
    let [q, k, v, d_o] =
        tensors.each_ref().map(|tensor| turned(&single(&numbers(tensor.clone())), tensor.dims()));
    let [of_q, of_k, of_v, of_o] = tensors.each_ref().map(Tensor::dims);
    let (given, qkv) = (turned(&single(o), of_o), [&q[..], &k, &v]);
    let o = naive_with(&sizes, &scores, [precision; 2], qkv).o;
    let NaiveGradients { dq, dk, dv, d_bias, d_sinks } =
        naive_backward_with(&sizes, &scores, [precision; 2], qkv, [&given, &d_o], None);
    let back = |all: &[f32], [a, heads, rows, d]: [usize; 4]| turned(all, [a, rows, heads, d]);
    let all = [back(&o, of_o), back(&dq, of_q), back(&dk, of_k), back(&dv, of_v), d_bias, d_sinks];
    all.map(|all| all.into_iter().map(f64::from).collect()).to_vec()
}

/// Compares o and all gradients of a case.
fn compare(case: &Case, beside: &Beside, seed: u32, dtype: DType) {
    let device = match (&beside.bias, &beside.mask) {
        (Some(bias), _) => bias.device(),
        (_, Some(mask)) => mask.device(),
        _ => device(),
    };
    let tensors = case.tensors(seed, dtype, &device);
    let got = gradients(case, beside, &tensors, false);
    let reference = gradients(case, beside, &tensors, true);
    let naive = naive(case, beside, &tensors, &got[0], dtype);
    for (place, name) in NAMES.into_iter().enumerate() {
        assert_close(name, &got[place], &reference[place], &naive[place], dtype);
    }
}

/// False for one key in three, and for every key of query 1.
fn mask(shape: [usize; 4], device: &Device) -> Tensor<4, Bool> {
    let [_, _, queries, keys] = shape;
    let visible = |at: usize| at % 3 != 1 && (queries == 1 || at / keys % queries != 1);
    let bools: Vec<bool> = (0..shape.iter().product()).map(visible).collect();
    Tensor::from_data(TensorData::new(bools, shape), device)
}

#[test]
fn biases_of_every_shape() {
    let case = Case::new(2, [19, 21], [4, 2], [8, 12]);
    let shapes = [[2, 4, 19, 21], [1, 2, 19, 21], [2, 1, 1, 21], [1, 4, 19, 1], [1, 1, 19, 21]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        let bias = Some(random(&mut 40, shape, DType::F32, &device()));
        let case = if seed == 0 { case.with_softcap(2.5) } else { case };
        compare(&case, &Beside { bias, ..Beside::default() }, 20 + seed as u32, DType::F32);
    }
}

#[test]
fn biases_of_sixteen_bits_and_of_f32_beside_them() {
    let case = Case::new(1, [17, 33], [2, 1], [16, 16]).causal();
    for (dtype, of_bias) in
        [(DType::BF16, DType::BF16), (DType::F16, DType::F16), (DType::BF16, DType::F32)]
    {
        let bias = Some(random(&mut 41, [1, 2, 17, 33], of_bias, &device()));
        compare(&case, &Beside { bias, ..Beside::default() }, 25, dtype);
    }
}

#[test]
fn masks_of_every_shape_and_a_query_that_sees_no_key() {
    let case = Case::new(2, [19, 35], [4, 2], [8, 8]);
    for shape in [[2, 4, 19, 35], [2, 2, 19, 35], [1, 1, 19, 35], [2, 1, 1, 35]] {
        let mask = Some(mask(shape, &device()));
        compare(&case, &Beside { mask, ..Beside::default() }, 26, DType::F32);
    }
}

#[test]
fn masks_of_burn_say_what_is_hidden() {
    let [q, k, v, _] = Case::new(2, [19, 35], [2, 2], [8, 8]).tensors(27, DType::F32, &device());
    // A view whose keys do not stand side by side.
    let visible = mask([1, 1, 35, 19], &device()).swap_dims(2, 3);
    let hidden = visible.clone().bool_not();
    let door = |attention: Attention| {
        let o = attention.apply(q.clone(), k.clone(), v.clone(), |problem| problem);
        numbers(o.expect("attention"))
    };
    let got = door(Attention::default().with_hidden(hidden.clone()));
    assert_eq!(got, door(Attention::default().with_mask(visible)));
    let all = Some(hidden.expand([2, 2, 19, 35]));
    let options = AttentionModuleOptions { scale: None, softcap: None, is_causal: false };
    let of_burn = numbers(of_burn(q.clone(), k.clone(), v.clone(), all, None, options));
    for (place, (got, expected)) in got.into_iter().zip(of_burn).enumerate() {
        assert!((got - expected).abs() < 1e-5, "element {place}: {got}, {expected}");
    }
}

#[test]
fn slopes_of_heads_and_of_batches() {
    let case = Case::new(2, [19, 35], [4, 2], [8, 8]);
    let slopes = Some(random(&mut 42, [2, 4], DType::F32, &device()).abs());
    compare(&case.causal(), &Beside { slopes, ..Beside::default() }, 28, DType::F32);
    let of_heads: Tensor<1> = random(&mut 43, [4], DType::F32, &device()).abs();
    let of_batches = of_heads.clone().unsqueeze::<2>().expand([2, 4]);
    let slopes = Some(of_batches.clone());
    compare(&case, &Beside { slopes, ..Beside::default() }, 28, DType::F32);
    let [q, k, v, _] = case.tensors(28, DType::F32, &device());
    let of = |attention: Attention| attention.apply(q.clone(), k.clone(), v.clone(), |problem| problem);
    let [got, expected] =
        [Attention::default().with_alibi(of_heads), Attention::default().with_alibi(of_batches)]
            .map(|attention| numbers(of(attention).expect("attention")));
    assert_eq!(got, expected);
}

#[test]
fn sinks_with_queries_that_see_no_key() {
    let case = Case::new(2, [35, 19], [4, 2], [8, 8]).causal();
    let sinks = Some(random(&mut 43, [4], DType::F32, &device()));
    compare(&case, &Beside { sinks, ..Beside::default() }, 29, DType::F32);
}

#[test]
fn dropout_of_the_forward_is_that_of_the_backward() {
    let case = Case::new(2, [35, 19], [4, 2], [8, 8]);
    let dropout = Some(DropoutNumbers { rate: 0.3, seed: 0x1_0000_0007, offset: 5, first_batch: 0 });
    compare(&case, &Beside { dropout, ..Beside::default() }, 30, DType::F32);
    compare(&case, &Beside { dropout, ..Beside::default() }, 31, DType::BF16);
}

#[test]
fn all_of_it_together_on_each_backend() {
    let case = Case::new(2, [19, 35], [4, 2], [8, 12]).causal().with_softcap(3.0).with_scale(0.4);
    #[allow(unused_mut)]
    let mut devices = vec![device(), device().gradient_checkpointing()];
    #[cfg(feature = "ndarray")]
    #[allow(deprecated)]
    devices.push(Device::ndarray().autodiff());
    for device in devices {
        let beside = Beside {
            bias: Some(random(&mut 44, [2, 2, 1, 35], DType::F32, &device)),
            mask: Some(mask([2, 1, 19, 35], &device)),
            slopes: Some(random(&mut 45, [2, 4], DType::F32, &device).abs()),
            sinks: Some(random(&mut 46, [4], DType::F32, &device)),
            dropout: Some(DropoutNumbers { rate: 0.2, seed: 9, offset: 0, first_batch: 0 }),
        };
        compare(&case, &beside, 32, DType::F32);
    }
}

#[test]
fn a_bias_alone_can_have_a_gradient() {
    let case = Case::new(1, [9, 11], [4, 2], [8, 8]);
    let tensors = case.tensors(33, DType::F32, &device());
    let bias: Tensor<4> = random(&mut 47, [1, 4, 9, 11], DType::F32, &device());
    let sinks: Tensor<1> = random(&mut 48, [4], DType::F32, &device());
    let all = Beside { bias: Some(bias.clone()), sinks: Some(sinks), ..Beside::default() };
    let expected = gradients(&case, &all, &tensors, true);
    let [q, k, v, d_o] = tensors.clone();
    let bias = bias.require_grad();
    // Within a graph, and a view.
    let turned = (bias.clone().swap_dims(1, 3) * 2.0).swap_dims(1, 3) * 0.5;
    // Of a device without gradients.
    let sinks = random(&mut 48, [4], DType::F32, &Device::flex());
    let attention = exact().with_bias(turned).with_sinks(sinks);
    let o = attention.apply(q.clone(), k.clone(), v.clone(), |problem| problem).expect("attention");
    let naive = naive(&case, &all, &tensors, &numbers(o.clone()), DType::F32);
    let gradients = (o * d_o).sum().backward();
    assert!(
        q.grad(&gradients).is_none() && k.grad(&gradients).is_none() && v.grad(&gradients).is_none()
    );
    let got = numbers(bias.grad(&gradients).expect("a gradient"));
    assert_close("dbias", &got, &expected[4], &naive[4], DType::F32);
}

#[test]
fn of_no_queries_gradients_are_zeros() {
    let kv = Tensor::<4>::ones([1, 2, 3, 8], &device()).require_grad();
    let bias = Tensor::<4>::ones([1, 2, 1, 3], &device()).require_grad();
    let sinks = Tensor::<1>::ones([2], &device()).require_grad();
    let attention = Attention::default().with_bias(bias.clone()).with_sinks(sinks.clone());
    let q = Tensor::zeros([1, 2, 0, 8], &device());
    let o = attention.apply(q, kv.clone(), kv.clone(), |problem| problem).expect("attention");
    let gradients = o.sum().backward();
    let of = |tensor: &Tensor<4>| numbers(tensor.grad(&gradients).expect("a gradient"));
    assert_eq!((of(&kv), of(&bias)), (vec![0.0; 48], vec![0.0; 6]));
    assert_eq!(numbers(sinks.grad(&gradients).expect("a gradient")), vec![0.0; 2]);
}
