//! Packed sequences: o and gradients are those of burn's own operations, a sequence at a time.

use crate::reference::{Beside, Case, assert_close, exact, numbers, random};
use crate::scores::naive;
use burn::tensor::{DType, Device, Tensor};
use finite_attention_burn::finite_attention::reference::DropoutNumbers;

/// Five queries and seven keys; keys without queries; queries without keys; nothing; four and three.
const OFFSETS_Q: [i32; 6] = [0, 5, 5, 11, 11, 15];
const OFFSETS_K: [i32; 6] = [0, 7, 9, 9, 9, 12];
const COUNT: usize = OFFSETS_Q.len() - 1;
/// The longest.
const LONGEST: [usize; 2] = [6, 7];

/// All rows of all sequences, as if they were one.
fn whole() -> Case {
    Case::new(1, [15, 12], [4, 2], [8, 12])
}

/// o `[1, Hq, Tq, Dv]` of the door.
fn of_door(is_causal: bool, beside: &Beside, [q, k, v]: [Tensor<4>; 3]) -> Tensor<4> {
    let attention = beside.given_to(exact().packed(&OFFSETS_Q, &OFFSETS_K));
    let ask =
        |problem| beside.drop_from(if is_causal { whole().causal() } else { whole() }.ask(problem));
    attention.apply(q, k, v, ask).expect("attention")
}

/// Each sequence that has queries: its case, what its scores have, and its first query and key.
fn sequences(is_causal: bool, beside: &Beside) -> Vec<(Case, Beside, [usize; 2])> {
    let mut all = Vec::new();
    for number in 0..COUNT {
        let of = |offsets: &[i32; 6]| {
            let (first, end) = (offsets[number] as usize, offsets[number + 1] as usize);
            (first, end - first)
        };
        let ((first_q, queries), (first_k, keys)) = (of(&OFFSETS_Q), of(&OFFSETS_K));
        if queries == 0 {
            continue;
        }
        let mut own = beside.clone();
        if keys > 0 {
            own.bias =
                own.bias.map(|all| all.narrow(0, number, 1).narrow(2, 0, queries).narrow(3, 0, keys));
            own.mask =
                own.mask.map(|all| all.narrow(0, number, 1).narrow(2, 0, queries).narrow(3, 0, keys));
        }
        own.slopes = own.slopes.map(|all| all.narrow(0, number, 1));
        own.dropout = own.dropout.map(|numbers| DropoutNumbers { first_batch: number, ..numbers });
        let case = Case { rows: [queries, keys], is_causal, ..whole() };
        all.push((case, own, [first_q, first_k]));
    }
    all
}

/// dSinks as the tolerance rule has it, of the o that the door gave.
fn naive_d_sinks(
    is_causal: bool,
    beside: &Beside,
    [q, k, v, d_o]: &[Tensor<4>; 4],
    o: &[f64],
) -> Vec<f64> {
    let mut sums = vec![0.0; 4];
    for (case, beside, [first_q, first_k]) in sequences(is_causal, beside) {
        let [queries, keys] = case.rows;
        // o is 0, and so is delta.
        if keys == 0 {
            continue;
        }
        let part = |all: &Tensor<4>, first, rows| all.clone().narrow(2, first, rows);
        let of_keys = |all| part(all, first_k, keys);
        let tensors = [part(q, first_q, queries), of_keys(k), of_keys(v), part(d_o, first_q, queries)];
        let rows = o.chunks_exact(15 * 12);
        let o: Vec<f64> = rows.flat_map(|head| &head[12 * first_q..][..12 * queries]).copied().collect();
        let of_sequence = naive(&case, &beside, &tensors, &o, DType::F32);
        sums.iter_mut().zip(&of_sequence[5]).for_each(|(sum, d_sink)| *sum += d_sink);
    }
    sums
}

/// The same of burn's own operations.
fn of_burn(is_causal: bool, beside: &Beside, [q, k, v]: [Tensor<4>; 3]) -> Tensor<4> {
    let mut all = Vec::new();
    for (case, beside, [first_q, first_k]) in sequences(is_causal, beside) {
        let [queries, keys] = case.rows;
        if keys == 0 {
            all.push(Tensor::zeros([1, 4, queries, 12], (&q.device(), q.dtype())));
            continue;
        }
        let part = |all: &Tensor<4>, first, rows| all.clone().narrow(2, first, rows);
        let (q, k) = (part(&q, first_q, queries), part(&k, first_k, keys));
        all.push(case.attention([q, k, part(&v, first_k, keys)], &beside));
    }
    Tensor::cat(all, 2)
}

/// Compares o and all gradients.
fn compare(is_causal: bool, beside: &Beside, seed: u32) {
    let [q, k, v, d_o] = whole().tensors(seed, DType::F32, &Device::flex().autodiff());
    let of = |own: Option<DType>| {
        let cast = |tensor: &Tensor<4>| tensor.clone().detach().cast(own.unwrap_or(DType::F32));
        let qkv = [&q, &k, &v].map(|tensor| cast(tensor).require_grad());
        let bias = beside.bias.as_ref().map(|bias| cast(bias).require_grad());
        let sinks = beside
            .sinks
            .as_ref()
            .map(|sinks| sinks.clone().detach().cast(own.unwrap_or(DType::F32)).require_grad());
        let beside = Beside { bias: bias.clone(), sinks: sinks.clone(), ..beside.clone() };
        let o = match own {
            None => of_door(is_causal, &beside, qkv.clone()),
            Some(_) => of_burn(is_causal, &beside, qkv.clone()),
        };
        assert_eq!(o.dims(), [1, 4, 15, 12]);
        let gradients = (o.clone() * cast(&d_o)).sum().backward();
        let mut all = vec![numbers(o)];
        for tensor in qkv.iter().chain(&bias) {
            all.push(numbers(tensor.grad(&gradients).expect("a gradient")));
        }
        all.extend(sinks.map(|sinks| numbers(sinks.grad(&gradients).expect("a gradient"))));
        all
    };
    let (got, reference, mut naive) = (of(None), of(Some(DType::F64)), of(Some(DType::F32)));
    if beside.sinks.is_some() {
        let tensors = [q.clone(), k.clone(), v.clone(), d_o.clone()];
        // Of few heads: delta of o as it was rounded is most of what these are off by.
        naive[5] = naive_d_sinks(is_causal, beside, &tensors, &got[0]);
    }
    assert_eq!(got.len(), reference.len());
    for (place, name) in
        ["o", "dq", "dk", "dv", "dbias", "dsinks"].into_iter().enumerate().take(got.len())
    {
        assert_close(name, &got[place], &reference[place], &naive[place], DType::F32);
    }
}

#[test]
fn sequences_are_apart() {
    compare(false, &Beside::default(), 60);
    compare(true, &Beside::default(), 60);
}

#[test]
fn with_bias_mask_slopes_sinks_and_dropout() {
    let ([longest_q, longest_k], device) = (LONGEST, Device::flex().autodiff());
    let of_all = [COUNT, 4, longest_q, longest_k];
    let mask: Tensor<4> = random(&mut 63, of_all, DType::F32, &device);
    let beside = Beside {
        bias: Some(random(&mut 62, of_all, DType::F32, &device)),
        mask: Some(mask.greater_elem(-1.0)),
        slopes: Some(random(&mut 64, [COUNT, 4], DType::F32, &device).abs()),
        sinks: Some(random(&mut 65, [4], DType::F32, &device)),
        dropout: Some(DropoutNumbers { rate: 0.2, seed: 3, offset: 1, first_batch: 0 }),
    };
    compare(false, &beside, 61);
}
