//! Packed sequences: o and gradients are those of candle's own operations, a sequence at a time.

use crate::reference::{Beside, Case, assert_close, gradients, numbers, random};
use candle_core::{DType, Device, Result, Tensor, Var};
use finite_attention_candle::Attention;
use finite_attention_candle::finite_attention::reference::DropoutNumbers;

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

/// What a case has; bias, mask and slopes of all sequences.
struct Packed {
    is_causal: bool,
    beside: Beside,
}

impl Packed {
    /// o `[Tq, Hq, Dv]` of the door.
    fn of_door(&self, qkv: [&Tensor; 3]) -> Result<Tensor> {
        let mut attention = Attention::default().deterministic().packed(&OFFSETS_Q, &OFFSETS_K);
        let Beside { bias, mask, slopes, sinks, dropout } = &self.beside;
        attention = bias.iter().fold(attention, Attention::with_bias);
        attention = mask.iter().fold(attention, Attention::with_mask);
        attention = slopes.iter().fold(attention, Attention::with_alibi);
        attention = sinks.iter().fold(attention, Attention::with_sinks);
        let [q, k, v] = qkv;
        attention.apply(q, k, v, |problem| {
            let problem = if self.is_causal { problem.causal() } else { problem };
            match dropout {
                Some(numbers) => problem.with_dropout(numbers.rate, numbers.seed, numbers.offset),
                None => problem,
            }
        })
    }

    /// The same of candle's own operations.
    fn of_candle(&self, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let mut all = Vec::new();
        for sequence in 0..COUNT {
            let of = |offsets: &[i32; 6]| {
                let (first, end) = (offsets[sequence] as usize, offsets[sequence + 1] as usize);
                (first, end - first)
            };
            let ((first_q, queries), (first_k, keys)) = (of(&OFFSETS_Q), of(&OFFSETS_K));
            if queries == 0 {
                continue;
            }
            if keys == 0 {
                all.push(Tensor::zeros((queries, 4, 12), q.dtype(), &Device::Cpu)?);
                continue;
            }
            let case = Case { rows: [queries, keys], ..whole() };
            let case = if self.is_causal { case.causal() } else { case };
            let of_scores = |tensor: &Option<Tensor>| {
                let Some(tensor) = tensor else { return Ok(None) };
                tensor.narrow(0, sequence, 1)?.narrow(2, 0, queries)?.narrow(3, 0, keys).map(Some)
            };
            let beside = Beside {
                bias: of_scores(&self.beside.bias)?,
                mask: of_scores(&self.beside.mask)?,
                slopes: self.beside.slopes.as_ref().map(|all| all.narrow(0, sequence, 1)).transpose()?,
                sinks: self.beside.sinks.clone(),
                dropout: self
                    .beside
                    .dropout
                    .map(|numbers| DropoutNumbers { first_batch: sequence, ..numbers }),
            };
            let part = |tensor: &Tensor, first, rows| tensor.narrow(0, first, rows)?.unsqueeze(0);
            let (q, k) = (part(q, first_q, queries)?, part(k, first_k, keys)?);
            let o = case.attention([&q, &k, &part(v, first_k, keys)?], &beside)?;
            all.push(o.squeeze(0)?);
        }
        Tensor::cat(&all, 0)
    }
}

/// q, k, v and do without a dimension of batches.
fn tensors(seed: u32) -> Result<[Tensor; 4]> {
    let [q, k, v, d_o] = whole().tensors(seed, DType::F32)?;
    Ok([q.squeeze(0)?, k.squeeze(0)?, v.squeeze(0)?, d_o.squeeze(0)?])
}

#[test]
fn sequences_are_apart() -> Result<()> {
    let [q, k, v, d_o] = tensors(60)?;
    for is_causal in [false, true] {
        let packed = Packed { is_causal, beside: Beside::default() };
        let of = |dtype: Option<DType>| {
            let cast = |tensor: &Tensor| tensor.to_dtype(dtype.unwrap_or(DType::F32));
            let variable = |tensor: &Tensor| Var::from_tensor(&cast(tensor)?);
            let [q, k, v] = [variable(&q)?, variable(&k)?, variable(&v)?];
            let o = match dtype {
                None => packed.of_door([&q, &k, &v]),
                Some(_) => packed.of_candle([&q, &k, &v]),
            }?;
            assert_eq!(o.dims(), [15, 4, 12]);
            gradients(&o, &cast(&d_o)?, [&q, &k, &v])
        };
        let (got, reference, naive) = (of(None)?, of(Some(DType::F64))?, of(Some(DType::F32))?);
        for (place, name) in ["o", "dq", "dk", "dv"].into_iter().enumerate() {
            assert_close(name, &got[place], &reference[place], &naive[place], DType::F32);
        }
    }
    Ok(())
}

#[test]
fn with_bias_mask_slopes_sinks_and_dropout() -> Result<()> {
    let [q, k, v, d_o] = tensors(61)?;
    let [longest_q, longest_k] = LONGEST;
    let of_all = [COUNT, 4, longest_q, longest_k];
    let bias = random(&mut 62, &of_all, DType::F32)?;
    let mask = random(&mut 63, &of_all, DType::F32)?.gt(-1.0f32)?;
    let slopes = random(&mut 64, &[COUNT, 4], DType::F32)?.abs()?;
    let sinks = random(&mut 65, &[4], DType::F32)?;
    let dropout = Some(DropoutNumbers { rate: 0.2, seed: 3, offset: 1, first_batch: 0 });
    let of = |dtype: Option<DType>| {
        let cast = |tensor: &Tensor| tensor.to_dtype(dtype.unwrap_or(DType::F32));
        let variable = |tensor: &Tensor| Var::from_tensor(&cast(tensor)?);
        let all = [variable(&q)?, variable(&k)?, variable(&v)?, variable(&bias)?, variable(&sinks)?];
        let beside = Beside {
            bias: Some(all[3].as_tensor().clone()),
            mask: Some(mask.clone()),
            slopes: Some(slopes.clone()),
            sinks: Some(all[4].as_tensor().clone()),
            dropout,
        };
        let packed = Packed { is_causal: false, beside };
        let qkv = [all[0].as_tensor(), all[1].as_tensor(), all[2].as_tensor()];
        let o = if dtype.is_some() { packed.of_candle(qkv)? } else { packed.of_door(qkv)? };
        let gradients = (&o * cast(&d_o)?)?.sum_all()?.backward()?;
        let mut of_all = vec![numbers(&o)?];
        for variable in &all {
            of_all.push(numbers(gradients.get(variable).expect("a gradient"))?);
        }
        Ok::<_, candle_core::Error>(of_all)
    };
    let (got, reference, naive) = (of(None)?, of(Some(DType::F64))?, of(Some(DType::F32))?);
    for (place, name) in ["o", "dq", "dk", "dv", "dbias", "dsinks"].into_iter().enumerate() {
        assert_close(name, &got[place], &reference[place], &naive[place], DType::F32);
    }
    Ok(())
}
