//! Attention of candle's own operations, with candle's own gradients: what the door is compared with.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use finite_attention_candle::finite_attention::reference::{
    DropoutNumbers, Precision, Sizes, judge_output, output_allowance,
};
use finite_attention_candle::finite_attention::{Dtype, ForwardProblem, Layout};

/// What scores have beside q and k, with all four dimensions where a tensor is over scores.
#[derive(Clone, Default)]
pub struct Beside {
    /// `[B|1, Hq|Hk|1, Sq|1, Sk|1]`.
    pub bias: Option<Tensor>,
    /// As the bias, 1 where a key is visible.
    pub mask: Option<Tensor>,
    /// `[B|1, Hq]`.
    pub slopes: Option<Tensor>,
    /// `[Hq]`.
    pub sinks: Option<Tensor>,
    pub dropout: Option<DropoutNumbers>,
}

/// A case: sizes, and what is asked.
#[derive(Clone, Copy)]
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
        let mut tensor = |shape: [usize; 4]| random(&mut state, &shape, dtype);
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

    /// Of all query heads, where there is an entry for each key head.
    fn of_query_heads(&self, tensor: &Tensor) -> Result<Tensor> {
        let (batch, heads, rows, columns) = tensor.dims4()?;
        if heads != self.heads[1] {
            return Ok(tensor.clone());
        }
        let group = self.heads[0] / heads;
        let all = tensor.unsqueeze(2)?.broadcast_as((batch, heads, group, rows, columns))?;
        all.reshape((batch, heads * group, rows, columns))
    }

    /// What probabilities are multiplied by: `[B, Hq, Sq, Sk]`.
    fn kept(&self, dropout: &DropoutNumbers) -> Result<Tensor> {
        let Case { batch, rows: [queries, keys], heads: [heads, _], .. } = *self;
        let factors: Vec<f64> = (0..batch * heads * queries * keys)
            .map(|at| {
                let (row, key) = (at / keys, at % keys);
                let (head, query) = (row / queries, row % queries);
                let kept = dropout.keeps([head / heads, head % heads, query, key], heads);
                f64::from(u8::from(kept)) * dropout.scale()
            })
            .collect();
        Tensor::from_vec(factors, (batch, heads, queries, keys), &Device::Cpu)
    }

    /// `|i + Sk - Sq - j|`: `[Sq, Sk]`.
    fn distances(&self) -> Result<Tensor> {
        let [queries, keys] = self.rows.map(|rows| rows as i64);
        let distance = |query: i64, key: i64| (query + keys - queries - key).abs() as f64;
        let all: Vec<f64> = (0..queries).flat_map(|q| (0..keys).map(move |k| distance(q, k))).collect();
        Tensor::from_vec(all, (self.rows[0], self.rows[1]), &Device::Cpu)
    }

    /// o of candle's own operations: `[B, Sq, Hq, Dv]`.
    pub fn attention(&self, [q, k, v]: [&Tensor; 3], beside: &Beside) -> Result<Tensor> {
        let (d, dtype) = (self.columns[0], q.dtype());
        let repeated = |tensor: &Tensor| self.of_query_heads(&tensor.transpose(1, 2)?);
        let (k, v) = (repeated(k)?, repeated(v)?);
        let scale = self.scale.map_or((d as f64).sqrt().recip(), f64::from);
        let q = q.transpose(1, 2)?.contiguous()?;
        let mut scores = (q.matmul(&k.t()?.contiguous()?)? * scale)?;
        if let Some(cap) = self.softcap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        if let Some(bias) = &beside.bias {
            scores = scores.broadcast_add(&self.of_query_heads(bias)?)?;
        }
        if let Some(slopes) = &beside.slopes {
            let slopes = slopes.unsqueeze(2)?.unsqueeze(3)?.to_dtype(dtype)?;
            scores =
                scores.broadcast_sub(&slopes.broadcast_mul(&self.distances()?.to_dtype(dtype)?)?)?;
        }
        let visible = Tensor::from_vec(self.visible(), self.rows.to_vec(), &Device::Cpu)?;
        let mut visible = visible.to_dtype(dtype)?.broadcast_as(scores.shape())?;
        if let Some(mask) = &beside.mask {
            visible = visible.broadcast_mul(&self.of_query_heads(mask)?.to_dtype(dtype)?)?;
        }
        // Relative to the largest of all scores, hidden or not, of a row: they are close in these cases.
        let largest = scores.detach().max_keepdim(D::Minus1)?;
        let p = (scores.broadcast_sub(&largest)?.exp()? * &visible)?;
        let mut sum = p.sum_keepdim(D::Minus1)?;
        if let Some(sinks) = &beside.sinks {
            let sinks = sinks.reshape((1, self.heads[0], 1, 1))?;
            sum = (sum + sinks.broadcast_sub(&largest)?.exp()?)?;
        }
        // Of a row without keys 0 is divided by 1.
        let dead = sum.detach().eq(0f64)?.to_dtype(dtype)?;
        let mut p = p.broadcast_div(&(sum + dead)?)?;
        if let Some(dropout) = &beside.dropout {
            p = (p * self.kept(dropout)?.to_dtype(dtype)?)?;
        }
        p.matmul(&v)?.transpose(1, 2)
    }

    /// o, dq, dk and dv of candle's own operations in a dtype, as f64.
    pub fn of_candle(&self, [q, k, v, d_o]: &[Tensor; 4], dtype: DType) -> Result<[Vec<f64>; 4]> {
        let variable = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(dtype)?);
        let [q, k, v] = [variable(q)?, variable(k)?, variable(v)?];
        let o = self.attention([&q, &k, &v], &Beside::default())?;
        gradients(&o, &d_o.to_dtype(dtype)?, [&q, &k, &v])
    }
}

/// Numbers from -2 to 2, rounded to the dtype.
pub fn random(state: &mut u32, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (*state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)
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
