//! Attention of burn's own operations, with burn's own gradients: what the door is compared with.

use burn::tensor::module::attention_fallback;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use finite_attention_burn::finite_attention::reference::{
    DropoutNumbers, Precision, Sizes, judge_output, output_allowance,
};
use finite_attention_burn::finite_attention::{Dtype, ForwardProblem, Layout};
use finite_attention_burn::{Attention, attention};

/// What scores have beside q and k.
#[derive(Clone, Default)]
pub struct Beside {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    pub bias: Option<Tensor<4>>,
    /// As the bias, true where a key is visible.
    pub mask: Option<Tensor<4, Bool>>,
    /// `[B|1, Hq]`.
    pub slopes: Option<Tensor<2>>,
    /// `[Hq]`.
    pub sinks: Option<Tensor<1>>,
    pub dropout: Option<DropoutNumbers>,
}

impl Beside {
    /// The door with all of it but dropout.
    pub fn given_to(&self, door: Attention) -> Attention {
        let Beside { bias, mask, slopes, sinks, .. } = self.clone();
        let door = bias.into_iter().fold(door, Attention::with_bias);
        let door = mask.into_iter().fold(door, Attention::with_mask);
        let door = slopes.into_iter().fold(door, Attention::with_alibi);
        sinks.into_iter().fold(door, Attention::with_sinks)
    }

    /// The problem with its dropout.
    pub fn drop_from(&self, problem: ForwardProblem) -> ForwardProblem {
        match self.dropout {
            Some(numbers) => problem.with_dropout(numbers.rate, numbers.seed, numbers.offset),
            None => problem,
        }
    }
}

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

    /// The case as the library's reference has it.
    pub fn sizes(&self) -> Sizes {
        let &Case { batch, rows: [query_rows, key_rows], heads: [query_heads, key_heads], .. } = self;
        let [head_dim, value_dim] = self.columns;
        let one = Layout::bshd([1, 1, 1, 1]);
        let asked = self.ask(ForwardProblem::new(Dtype::F32, one, one, one));
        Sizes {
            batches: batch,
            query_rows,
            key_rows,
            query_heads,
            key_heads,
            head_dim,
            value_dim,
            scale: self.scale.unwrap_or((head_dim as f32).sqrt().recip()),
            softcap: self.softcap,
            mask: asked.mask,
        }
    }

    /// q, k, v and do `[batch, head, row, column]`: numbers of a seed that the dtype holds.
    pub fn tensors(&self, seed: u32, dtype: DType, device: &Device) -> [Tensor<4>; 4] {
        let Case { batch, rows: [queries, keys], heads: [heads, key_heads], columns: [d, dv], .. } =
            *self;
        let mut state = seed;
        let mut tensor = |shape: [usize; 4]| random(&mut state, shape, dtype, device);
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

    /// Of all query heads, where there is an entry for each key head.
    fn of_query_heads(&self, tensor: Tensor<4>) -> Tensor<4> {
        let [batch, heads, rows, columns] = tensor.dims();
        let group = self.heads[0] / self.heads[1];
        if heads != self.heads[1] || group == 1 {
            return tensor;
        }
        let all = tensor.unsqueeze_dim::<5>(2).expand([batch, heads, group, rows, columns]);
        all.reshape([batch, heads * group, rows, columns])
    }

    /// A number for each pair of a batch, query head, query and key.
    fn of_pairs(&self, like: &Tensor<4>, number: impl Fn([usize; 4]) -> f64) -> Tensor<4> {
        let Case { batch, rows: [queries, keys], heads: [heads, _], .. } = *self;
        let numbers: Vec<f64> = (0..batch * heads * queries * keys)
            .map(|at| {
                let (row, key) = (at / keys, at % keys);
                let (head, query) = (row / queries, row % queries);
                number([head / heads, head % heads, query, key])
            })
            .collect();
        let data = TensorData::new(numbers, [batch, heads, queries, keys]);
        Tensor::from_data(data.convert_dtype(like.dtype()), (&like.device(), like.dtype()))
    }

    /// o of burn's own operations, with all that scores can have.
    pub fn attention(&self, [q, k, v]: [Tensor<4>; 3], beside: &Beside) -> Tensor<4> {
        let [queries, keys] = self.rows;
        let dtype = q.dtype();
        let (k, v) = (self.of_query_heads(k), self.of_query_heads(v));
        let scale = self.scale.map_or((self.columns[0] as f64).sqrt().recip(), f64::from);
        let mut scores = q.matmul(k.swap_dims(2, 3)) * scale;
        if let Some(cap) = self.softcap {
            scores = (scores / f64::from(cap)).tanh() * f64::from(cap);
        }
        if let Some(bias) = &beside.bias {
            scores = scores + self.of_query_heads(bias.clone());
        }
        if let Some(slopes) = &beside.slopes {
            let distances = self.of_pairs(&scores, |[.., query, key]| {
                (query as f64 + keys as f64 - queries as f64 - key as f64).abs()
            });
            let [batches, heads] = slopes.dims();
            let slopes = slopes.clone().cast(dtype).reshape([batches, heads, 1, 1]);
            scores = scores - distances * slopes;
        }
        let mut visible = self.of_pairs(&scores, |[.., query, key]| {
            f64::from(u8::from(!self.is_causal || key + queries <= query + keys))
        });
        if let Some(mask) = &beside.mask {
            visible = visible * self.of_query_heads(mask.clone().float().cast(dtype));
        }
        // Relative to the largest of all scores, hidden or not, of a row: they are close in these cases.
        let largest = scores.clone().detach().max_dim(3);
        let p = (scores - largest.clone()).exp() * visible;
        let mut sum = p.clone().sum_dim(3);
        if let Some(sinks) = &beside.sinks {
            sum = sum + (sinks.clone().reshape([1, self.heads[0], 1, 1]) - largest).exp();
        }
        // Of a row without keys 0 is divided by 1.
        let dead = sum.clone().detach().equal_elem(0.0).float().cast(dtype);
        let mut p = p / (sum + dead);
        if let Some(dropout) = &beside.dropout {
            let kept = |at| f64::from(u8::from(dropout.keeps(at, self.heads[0]))) * dropout.scale();
            p = p.clone() * self.of_pairs(&p, kept);
        }
        p.matmul(v)
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

/// Numbers from -2 to 2 that the dtype holds.
pub fn random<const D: usize>(
    state: &mut u32,
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (*state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape).convert_dtype(dtype), (device, dtype))
}

pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_to_vec().expect("f64")
}

/// The library's name of a dtype.
pub fn precision(dtype: DType) -> Precision {
    match dtype {
        DType::BF16 => Precision::Bf16,
        DType::F16 => Precision::F16,
        _ => Precision::F32,
    }
}

/// Fails unless a tensor is as close to the reference as docs/semantics.md demands, with what is not fused in
/// the dtype.
pub fn assert_close(name: &str, got: &[f64], reference: &[f64], naive: &[f64], dtype: DType) {
    let single = |numbers: &[f64]| numbers.iter().map(|&number| number as f32).collect::<Vec<_>>();
    let allowed = output_allowance(&single(naive), reference, precision(dtype));
    let verdict = judge_output(&single(got), reference, allowed);
    assert!(verdict.passes(), "{name}: {verdict:?}");
}
