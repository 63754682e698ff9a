//! Attention of candle's own operations, with candle's own gradients: what the door is compared with.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use finite_attention_candle::finite_attention::ForwardProblem;
use finite_attention_candle::finite_attention::reference::{Precision, judge_output, output_allowance};

/// A case: sizes, and what is asked.
pub struct Case {
    pub batch: usize,
    pub rows: [usize; 2],
    pub heads: [usize; 2],
    pub columns: [usize; 2],
    /// Window before and after the diagonal, bottom-right aligned; all of a side that has none.
    pub window: [Option<u32>; 2],
    pub softcap: Option<f32>,
    pub scale: Option<f32>,
}

impl Case {
    /// Full attention.
    pub fn new(batch: usize, rows: [usize; 2], heads: [usize; 2], columns: [usize; 2]) -> Self {
        Case { batch, rows, heads, columns, window: [None; 2], softcap: None, scale: None }
    }

    pub fn causal(self) -> Self {
        Case { window: [self.window[0], Some(0)], ..self }
    }

    pub fn with_window(self, left: u32, right: u32) -> Self {
        Case { window: [Some(left), Some(right)], ..self }
    }

    pub fn with_softcap(self, softcap: f32) -> Self {
        Case { softcap: Some(softcap), ..self }
    }

    pub fn with_scale(self, scale: f32) -> Self {
        Case { scale: Some(scale), ..self }
    }

    /// What the door is asked.
    pub fn ask(&self, problem: ForwardProblem) -> ForwardProblem {
        let [left, right] = self.window;
        let problem = problem.with_window(left, right);
        ForwardProblem { softcap: self.softcap, scale: self.scale, ..problem }
    }

    /// q, k, v and do: numbers of a seed, rounded to the dtype, of which all other dtypes are made.
    pub fn tensors(&self, seed: u32, dtype: DType) -> Result<[Tensor; 4]> {
        let Case { batch, rows: [queries, keys], heads: [heads, key_heads], columns: [d, dv], .. } =
            *self;
        let shapes = [
            [batch, queries, heads, d],
            [batch, keys, key_heads, d],
            [batch, keys, key_heads, dv],
            [batch, queries, heads, dv],
        ];
        let mut state = seed;
        let mut tensor = |shape: [usize; 4]| {
            let numbers: Vec<f32> = (0..shape.iter().product())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 22) as f32 - 2.0
                })
                .collect();
            Tensor::from_vec(numbers, shape.to_vec(), &Device::Cpu)?.to_dtype(dtype)
        };
        Ok([tensor(shapes[0])?, tensor(shapes[1])?, tensor(shapes[2])?, tensor(shapes[3])?])
    }

    /// 1 where a query sees a key, else 0: `[Sq, Sk]`.
    fn visible(&self) -> Vec<f64> {
        let [queries, keys] = self.rows.map(|rows| rows as i64);
        let [left, right] = self.window.map(|side| side.map_or(i64::MAX / 2, i64::from));
        let sees = |query: i64, key: i64| {
            let diagonal = query + keys - queries;
            key >= diagonal - left && key <= diagonal + right
        };
        (0..queries).flat_map(|q| (0..keys).map(move |k| f64::from(u8::from(sees(q, k))))).collect()
    }

    /// o of candle's own operations: `[B, Sq, Hq, Dv]`.
    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let Case { batch, rows: [queries, keys], heads: [heads, key_heads], columns: [d, dv], .. } =
            *self;
        let dtype = q.dtype();
        let repeated = |tensor: &Tensor, columns: usize| {
            let group = heads / key_heads;
            let each = tensor.transpose(1, 2)?.unsqueeze(2)?;
            let all = each.broadcast_as((batch, key_heads, group, keys, columns))?;
            all.reshape((batch, heads, keys, columns))
        };
        let (k, v) = (repeated(k, d)?, repeated(v, dv)?);
        let scale = self.scale.map_or((d as f64).sqrt().recip(), f64::from);
        let q = q.transpose(1, 2)?.contiguous()?;
        let mut scores = (q.matmul(&k.t()?.contiguous()?)? * scale)?;
        if let Some(cap) = self.softcap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        let visible =
            Tensor::from_vec(self.visible(), (queries, keys), &Device::Cpu)?.to_dtype(dtype)?;
        let visible = visible.broadcast_as(scores.shape())?;
        // Relative to the largest of all scores, hidden or not, of a row: they are close in these cases.
        let largest = scores.detach().max_keepdim(D::Minus1)?;
        let p = (scores.broadcast_sub(&largest)?.exp()? * &visible)?;
        let sum = p.sum_keepdim(D::Minus1)?;
        // Of a row without keys 0 is divided by 1.
        let dead = sum.detach().eq(0f64)?.to_dtype(dtype)?;
        p.broadcast_div(&(sum + dead)?)?.matmul(&v)?.transpose(1, 2)
    }

    /// o, dq, dk and dv of candle's own operations in a dtype, as f64.
    pub fn of_candle(&self, [q, k, v, d_o]: &[Tensor; 4], dtype: DType) -> Result<[Vec<f64>; 4]> {
        let variable = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(dtype)?);
        let [q, k, v] = [variable(q)?, variable(k)?, variable(v)?];
        let o = self.attention(&q, &k, &v)?;
        gradients(&o, &d_o.to_dtype(dtype)?, [&q, &k, &v])
    }
}

/// o and the gradients of variables, given that of o, as f64.
pub fn gradients(o: &Tensor, d_o: &Tensor, variables: [&Var; 3]) -> Result<[Vec<f64>; 4]> {
    let gradients = (o * d_o)?.sum_all()?.backward()?;
    let of = |variable: &Var| numbers(gradients.get(variable).expect("a gradient"));
    let [q, k, v] = variables;
    Ok([numbers(o)?, of(q)?, of(k)?, of(v)?])
}

pub fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Fails unless a tensor is as close to the reference as docs/semantics.md demands, with candle's own
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
