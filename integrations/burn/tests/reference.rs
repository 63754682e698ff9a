//! Attention of burn's own operations, with burn's own gradients: what the door is compared with.

use burn::tensor::module::attention_fallback;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};
use finite_attention_burn::finite_attention::ForwardProblem;
use finite_attention_burn::finite_attention::reference::{Precision, judge_output, output_allowance};
use finite_attention_burn::{Attention, attention};

/// A case: sizes, and what is asked.
#[derive(Clone, Copy)]
pub struct Case {
    pub batch: usize,
    pub rows: [usize; 2],
    pub heads: [usize; 2],
    pub columns: [usize; 2],
    pub is_causal: bool,
    pub softcap: Option<f32>,
    pub scale: Option<f32>,
}

impl Case {
    /// Full attention.
    pub fn new(batch: usize, rows: [usize; 2], heads: [usize; 2], columns: [usize; 2]) -> Self {
        Case { batch, rows, heads, columns, is_causal: false, softcap: None, scale: None }
    }

    pub fn causal(self) -> Self {
        Case { is_causal: true, ..self }
    }

    pub fn with_softcap(self, softcap: f32) -> Self {
        Case { softcap: Some(softcap), ..self }
    }

    pub fn with_scale(self, scale: f32) -> Self {
        Case { scale: Some(scale), ..self }
    }

    /// What the door is asked.
    pub fn ask(&self, problem: ForwardProblem) -> ForwardProblem {
        let problem = if self.is_causal { problem.causal() } else { problem };
        ForwardProblem { softcap: self.softcap, scale: self.scale, ..problem }
    }

    /// q, k, v and do `[batch, head, row, column]`: numbers of a seed that the dtype holds.
    pub fn tensors(&self, seed: u32, dtype: DType, device: &Device) -> [Tensor<4>; 4] {
        let Case { batch, rows: [queries, keys], heads: [heads, key_heads], columns: [d, dv], .. } =
            *self;
        let mut state = seed;
        let mut tensor = |shape: [usize; 4]| {
            let numbers: Vec<f32> = (0..shape.iter().product())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 22) as f32 - 2.0
                })
                .collect();
            Tensor::from_data(TensorData::new(numbers, shape).convert_dtype(dtype), (device, dtype))
        };
        [
            tensor([batch, heads, queries, d]),
            tensor([batch, key_heads, keys, d]),
            tensor([batch, key_heads, keys, dv]),
            tensor([batch, heads, queries, dv]),
        ]
    }

    /// o, dq, dk and dv of the door.
    pub fn of_door(&self, tensors: &[Tensor<4>; 4]) -> [Vec<f64>; 4] {
        self.with_gradients(tensors, |q, k, v| {
            attention(q, k, v, |problem| self.ask(problem)).expect("attention")
        })
    }

    /// o, dq, dk and dv of burn's own operations in a dtype.
    pub fn of_burn(&self, tensors: &[Tensor<4>; 4], dtype: DType) -> [Vec<f64>; 4] {
        let tensors = tensors.clone().map(|tensor| tensor.cast(dtype));
        let [heads, key_heads] = self.heads;
        let repeated = |tensor: Tensor<4>| {
            let [batch, _, rows, columns] = tensor.dims();
            let each = tensor.unsqueeze_dim::<5>(2);
            let all = each.expand([batch, key_heads, heads / key_heads, rows, columns]);
            all.reshape([batch, heads, rows, columns])
        };
        let options = AttentionModuleOptions {
            scale: self.scale.map(f64::from),
            softcap: self.softcap.map(f64::from),
            is_causal: self.is_causal,
        };
        self.with_gradients(&tensors, |q, k, v| {
            attention_fallback(q, repeated(k), repeated(v), None, None, options)
        })
    }

    fn with_gradients(
        &self,
        [q, k, v, d_o]: &[Tensor<4>; 4],
        attention: impl FnOnce(Tensor<4>, Tensor<4>, Tensor<4>) -> Tensor<4>,
    ) -> [Vec<f64>; 4] {
        let [q, k, v] = [q, k, v].map(|tensor| tensor.clone().detach().require_grad());
        let o = attention(q.clone(), k.clone(), v.clone());
        let gradients = (o.clone() * d_o.clone()).sum().backward();
        let of = |tensor: Tensor<4>| numbers(tensor.grad(&gradients).expect("a gradient"));
        [numbers(o), of(q), of(k), of(v)]
    }
}

/// dq, dk and dv of the same bits in each run.
pub fn exact() -> Attention {
    Attention::default().deterministic()
}

pub fn numbers(tensor: Tensor<4>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_to_vec().expect("f64")
}

/// Fails unless a tensor is as close to the reference as docs/semantics.md demands, with burn's own
/// operations in the dtype for what is not fused.
pub fn assert_close(name: &str, got: &[f64], reference: &[f64], naive: &[f64], dtype: DType) {
    let precision = match dtype {
        DType::BF16 => Precision::Bf16,
        DType::F16 => Precision::F16,
        _ => Precision::F32,
    };
    let single = |numbers: &[f64]| numbers.iter().map(|&number| number as f32).collect::<Vec<_>>();
    let allowed = output_allowance(&single(naive), reference, precision);
    let verdict = judge_output(&single(got), reference, allowed);
    assert!(verdict.passes(), "{name}: {verdict:?}");
}
