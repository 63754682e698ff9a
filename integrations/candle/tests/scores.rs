//! Bias, boolean mask, slopes, sinks and dropout: o and gradients are those of candle's own operations.

use crate::reference::{Beside, Case, assert_close, numbers, precision, random};
use candle_core::{DType, Device, Result, Tensor, Var};
use finite_attention_candle::Attention;
use finite_attention_candle::finite_attention::reference::{
    self, DropoutNumbers, OverScores, Scores, naive_backward_with, naive_with,
};

/// What a case has, as the door is given it.
#[derive(Clone, Default)]
struct Given {
    bias: Option<Tensor>,
    mask: Option<Tensor>,
    slopes: Option<Tensor>,
    sinks: Option<Tensor>,
    dropout: Option<DropoutNumbers>,
}

const NAMES: [&str; 6] = ["o", "dq", "dk", "dv", "dbias", "dsinks"];

/// The tensor with as many dimensions, those that are missing in front being 1.
fn with_rank(tensor: &Tensor, rank: usize) -> Result<Tensor> {
    let mut dims = vec![1; rank - tensor.rank()];
    dims.extend(tensor.dims());
    tensor.reshape(dims)
}

impl Given {
    /// o, dq, dk and dv, and the gradients of bias and sinks that there are; of the door, or of candle's own
    /// operations in f64.
    fn gradients(&self, case: &Case, tensors: &[Tensor; 4], is_own: bool) -> Result<Vec<Vec<f64>>> {
        let cast = |tensor: &Tensor| {
            if is_own { tensor.to_dtype(DType::F64) } else { Ok(tensor.clone()) }
        };
        let variable = |tensor: &Tensor| Var::from_tensor(&cast(tensor)?);
        let [q, k, v, d_o] = tensors;
        let [q, k, v] = [variable(q)?, variable(k)?, variable(v)?];
        let bias = self.bias.as_ref().map(variable).transpose()?;
        let sinks = self.sinks.as_ref().map(variable).transpose()?;
        let o = if is_own {
            let four = |tensor: &Tensor| with_rank(tensor, 4);
            let beside = Beside {
                bias: bias.as_deref().map(four).transpose()?,
                mask: self.mask.as_ref().map(four).transpose()?,
                slopes: self.slopes.as_ref().map(|slopes| with_rank(slopes, 2)).transpose()?,
                sinks: sinks.as_deref().cloned(),
                dropout: self.dropout,
            };
            case.attention([&q, &k, &v], &beside)?
        } else {
            let mut attention = Attention::default();
            attention = bias.iter().fold(attention, |door, bias| door.with_bias(bias));
            attention = self.mask.iter().fold(attention, Attention::with_mask);
            attention = self.slopes.iter().fold(attention, Attention::with_alibi);
            attention = sinks.iter().fold(attention, |door, sinks| door.with_sinks(sinks));
            attention.apply(&q, &k, &v, |problem| {
                let problem = case.ask(problem);
                match self.dropout {
                    Some(numbers) => problem.with_dropout(numbers.rate, numbers.seed, numbers.offset),
                    None => problem,
                }
            })?
        };
        let gradients = (&o * cast(d_o)?)?.sum_all()?.backward()?;
        let variables = [Some(&q), Some(&k), Some(&v), bias.as_ref(), sinks.as_ref()];
        let mut all = vec![numbers(&o)?];
        for variable in variables {
            all.push(match variable {
                None => Vec::new(),
                Some(variable) => {
                    let gradient = gradients.get(variable).expect("a gradient");
                    assert_eq!((gradient.dims(), gradient.dtype()), (variable.dims(), variable.dtype()));
                    numbers(gradient)?
                }
            });
        }
        Ok(all)
    }

    /// The same as the tolerance rule has it, of the o that the door gave.
    fn naive(
        &self,
        case: &Case,
        tensors: &[Tensor; 4],
        o: &[f64],
        dtype: DType,
    ) -> Result<Vec<Vec<f64>>> {
        let single = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let four = |tensor: &Tensor| {
            with_rank(tensor, 4)?
                .dims()
                .to_vec()
                .try_into()
                .map_err(|_| candle_core::Error::Msg("expected four dimensions".to_owned()))
        };
        let of = |tensor: &Option<Tensor>| tensor.as_ref().map(single).transpose();
        let shape = |tensor: &Option<Tensor>| tensor.as_ref().map(four).transpose();
        let (bias, slopes, sinks) = (of(&self.bias)?, of(&self.slopes)?, of(&self.sinks)?);
        let mask: Option<Vec<bool>> =
            of(&self.mask)?.map(|mask| mask.iter().map(|&m| m != 0.0).collect());
        let scores = Scores {
            bias: shape(&self.bias)?
                .zip(bias.as_deref())
                .map(|(shape, values)| OverScores { shape, values }),
            mask: shape(&self.mask)?
                .zip(mask.as_deref())
                .map(|(shape, values)| OverScores { shape, values }),
            alibi_slopes: slopes.as_deref(),
            sinks: sinks.as_deref(),
            dropout: self.dropout,
        };
        let [q, k, v, d_o] = [0, 1, 2, 3].map(|place| single(&tensors[place]));
        let (q, k, v, d_o, sizes, precision) = (q?, k?, v?, d_o?, case.sizes(), precision(dtype));
        let o_given: Vec<f32> = o.iter().map(|&number| number as f32).collect();
        let qkv = [&q[..], &k, &v];
        let o = naive_with(&sizes, &scores, [precision; 2], qkv).o;
        let of_all = naive_backward_with(&sizes, &scores, [precision; 2], qkv, [&o_given, &d_o], None);
        let reference::NaiveGradients { dq, dk, dv, d_bias, d_sinks } = of_all;
        let all = [o, dq, dk, dv, d_bias, d_sinks];
        Ok(all.map(|all| all.into_iter().map(f64::from).collect()).to_vec())
    }

    /// Compares o and all gradients of a case.
    fn compare(&self, case: &Case, seed: u32, dtype: DType) -> Result<()> {
        let tensors = case.tensors(seed, dtype)?;
        let got = self.gradients(case, &tensors, false)?;
        let reference = self.gradients(case, &tensors, true)?;
        let naive = self.naive(case, &tensors, &got[0], dtype)?;
        for (place, name) in NAMES.into_iter().enumerate() {
            assert_close(name, &got[place], &reference[place], &naive[place], dtype);
        }
        Ok(())
    }
}

/// 0 for one key in three, and for every key of query 1.
fn mask(shape: [usize; 4]) -> Result<Tensor> {
    let [_, _, queries, keys] = shape;
    let visible = |at: usize| at % 3 != 1 && (queries == 1 || at / keys % queries != 1);
    let bytes: Vec<u8> = (0..shape.iter().product()).map(|at| u8::from(visible(at))).collect();
    Tensor::from_vec(bytes, shape.to_vec(), &Device::Cpu)
}

#[test]
fn biases_of_every_shape() -> Result<()> {
    let case = Case::new(2, [19, 21], [4, 2], [8, 12]);
    let shapes: [&[usize]; 5] =
        [&[2, 4, 19, 21], &[1, 2, 19, 21], &[2, 1, 1, 21], &[4, 19, 1], &[19, 21]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        let bias = Some(random(&mut 40, shape, DType::F32)?);
        let case = if seed == 0 { case.with_softcap(2.5) } else { case };
        Given { bias, ..Given::default() }.compare(&case, 20 + seed as u32, DType::F32)?;
    }
    Ok(())
}

#[test]
fn biases_of_sixteen_bits_and_of_f32_beside_them() -> Result<()> {
    let case = Case::new(1, [17, 33], [2, 1], [16, 16]).causal();
    for (dtype, of_bias) in
        [(DType::BF16, DType::BF16), (DType::F16, DType::F16), (DType::BF16, DType::F32)]
    {
        let bias = Some(random(&mut 41, &[2, 17, 33], of_bias)?);
        Given { bias, ..Given::default() }.compare(&case, 25, dtype)?;
    }
    Ok(())
}

#[test]
fn masks_of_every_shape_and_a_query_that_sees_no_key() -> Result<()> {
    let case = Case::new(2, [19, 35], [4, 2], [8, 8]);
    for shape in [[2, 4, 19, 35], [2, 2, 19, 35], [1, 1, 19, 35], [2, 1, 1, 35]] {
        Given { mask: Some(mask(shape)?), ..Given::default() }.compare(&case, 26, DType::F32)?;
    }
    let [q, k, v, _] = case.tensors(26, DType::F32)?;
    // A view whose keys do not stand side by side, and candle's own rule turned around.
    let hidden = mask([1, 1, 19, 35])?.eq(0u8)?.t()?.contiguous()?.t()?;
    let of = |mask: &Tensor| Attention::default().with_mask(mask).apply(&q, &k, &v, |problem| problem);
    let o = of(&hidden.eq(0u8)?)?;
    assert!(numbers(&o.narrow(1, 1, 1)?)?.iter().all(|&number| number == 0.0));
    assert_eq!(numbers(&o)?, numbers(&of(&mask([1, 1, 19, 35])?)?)?);
    Ok(())
}

#[test]
fn slopes_of_heads_and_of_batches() -> Result<()> {
    let case = Case::new(2, [19, 35], [4, 2], [8, 8]);
    for (case, shape) in [(case, [4].as_slice()), (case.causal(), &[2, 4])] {
        let slopes = Some(random(&mut 42, shape, DType::F32)?.abs()?);
        Given { slopes, ..Given::default() }.compare(&case, 27, DType::F32)?;
    }
    Ok(())
}

#[test]
fn sinks_with_queries_that_see_no_key() -> Result<()> {
    let case = Case::new(2, [35, 19], [4, 2], [8, 8]).causal();
    let sinks = Some(random(&mut 43, &[4], DType::F32)?);
    Given { sinks, ..Given::default() }.compare(&case, 28, DType::F32)
}

#[test]
fn dropout_of_the_forward_is_that_of_the_backward() -> Result<()> {
    let case = Case::new(2, [35, 19], [4, 2], [8, 8]);
    let dropout = Some(DropoutNumbers { rate: 0.3, seed: 0x1_0000_0007, offset: 5, first_batch: 0 });
    Given { dropout, ..Given::default() }.compare(&case, 29, DType::F32)?;
    Given { dropout, ..Given::default() }.compare(&case, 30, DType::BF16)
}

#[test]
fn all_of_it_together() -> Result<()> {
    let case = Case::new(2, [19, 35], [4, 2], [8, 12]).with_window(20, 2).with_softcap(3.0);
    let given = Given {
        bias: Some(random(&mut 44, &[2, 2, 1, 35], DType::F32)?),
        mask: Some(mask([2, 1, 19, 35])?),
        slopes: Some(random(&mut 45, &[4], DType::F32)?.abs()?),
        sinks: Some(random(&mut 46, &[4], DType::F32)?),
        dropout: Some(DropoutNumbers { rate: 0.2, seed: 9, offset: 0, first_batch: 0 }),
    };
    given.compare(&case, 31, DType::F32)
}

#[test]
fn a_bias_alone_can_have_a_gradient_and_views_can_be_given() -> Result<()> {
    let case = Case::new(1, [9, 11], [4, 2], [8, 8]);
    let [q, k, v, d_o] = case.tensors(32, DType::F32)?;
    let exact = Attention::default().deterministic();
    let of = |q: &Tensor, bias: &Tensor, sinks: &Tensor| {
        let (bias, sinks) = (Var::from_tensor(bias)?, sinks.detach());
        let turned = bias.transpose(0, 2)?.contiguous()?.transpose(0, 2)?;
        let o =
            exact.clone().with_bias(&turned).with_sinks(&sinks).apply(q, &k, &v, |problem| problem)?;
        let gradients = (&o * &d_o)?.sum_all()?.backward()?;
        assert!(gradients.get(&sinks).is_none());
        Ok::<_, candle_core::Error>([numbers(&o)?, numbers(gradients.get(&bias).expect("a gradient"))?])
    };
    let (bias, sinks) = (random(&mut 47, &[4, 9, 11], DType::F32)?, random(&mut 48, &[4], DType::F32)?);
    let q_view = q.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    // Every other one of twice as many.
    let apart = Tensor::stack(&[&sinks, &sinks], 1)?.narrow(1, 1, 1)?.squeeze(1)?;
    assert!(!apart.is_contiguous());
    assert_eq!(of(&q_view, &bias, &apart)?, of(&q, &bias, &sinks)?);
    Ok(())
}

#[test]
fn of_no_queries_gradients_are_zeros() -> Result<()> {
    let q = Var::zeros((1, 0, 2, 8), DType::F32, &Device::Cpu)?;
    let kv = Var::ones((1, 3, 2, 8), DType::F32, &Device::Cpu)?;
    let (bias, sinks) =
        (Var::ones((2, 1, 3), DType::F32, &Device::Cpu)?, Var::ones(2, DType::F32, &Device::Cpu)?);
    let o = Attention::default()
        .with_bias(&bias)
        .with_sinks(&sinks)
        .apply(&q, &kv, &kv, |problem| problem)?;
    let gradients = o.sum_all()?.backward()?;
    for variable in [&kv, &bias, &sinks] {
        let gradient = numbers(gradients.get(variable).expect("a gradient"))?;
        assert_eq!(gradient, vec![0.0; variable.elem_count()]);
    }
    Ok(())
}
