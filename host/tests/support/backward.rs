//! The backward pass, in the three kernels that are not for Hopper alone: what is between them stands in the workspace, as on a GPU.

use super::memory::{Lengths, Memory, Sequence, lse_view};
use super::scores::{self, Scores};
use super::{Fault, params};
use kernels_gpu::abi::{
    BackwardFmaParams, BackwardParams, Dtype, Family, KernelVariant, ROW_PADDING, Switch, TensorView,
    workspace_row_packed,
};

pub fn run(family: Family, variant: KernelVariant, bytes: &[u8], memory: &mut Memory, fault: Fault) {
    let key_rows = variant.kernel.key_rows;
    let mut launch = Launch::new(variant, bytes, memory, fault);
    for (sequence, first_row) in launch.sequences() {
        match family {
            Family::BackwardDelta => launch.delta(&sequence, first_row),
            Family::Backward => launch.main(&sequence, first_row, key_rows),
            _ => launch.convert(&sequence, first_row),
        }
    }
}

/// The gradient of the bias: the sum over all pairs that an element is used for.
pub fn bias_gradient(variant: KernelVariant, bytes: &[u8], memory: &mut Memory, fault: Fault) {
    let launch = Launch::new(variant, bytes, memory, fault);
    let p = launch.p;
    let [_, heads, queries, keys] = p.d_bias_shape;
    let mut sums = vec![0.0; p.d_bias_shape.iter().map(|&size| size as usize).product()];
    let at = |size: u32, index: u32| if size == 1 { 0 } else { index };
    for (sequence, first_row) in launch.sequences() {
        let rows = (0..p.query_heads)
            .flat_map(|head| (0..sequence.query_rows).map(move |row| (head, row)))
            .flat_map(|(head, row)| (0..sequence.key_rows).map(move |key| [head, row, key]));
        for [head, row, key] in rows.filter(|&[_, row, key]| sequence.sees(row, key, 0)) {
            let Some(pair) = launch.gradient_of_pair(&sequence, first_row, [head, row, key]) else {
                continue;
            };
            let of_head = if heads == p.query_heads { head } else { at(heads, head / p.group_size) };
            let outer = at(p.d_bias_shape[0], sequence.index) * heads + of_head;
            let place = (outer * queries + at(queries, row)) * keys + at(keys, key);
            sums[place as usize] += pair.ds;
        }
    }
    let scale = if fault == Fault::ScaledBiasGradient { f64::from(p.scale) } else { 1.0 };
    let dtype = match (p.d_bias_f32, variant.switches.contains(Switch::BiasF32)) {
        (0, false) => variant.kernel.dtype,
        _ => Dtype::F32,
    };
    for (place, sum) in sums.into_iter().enumerate() {
        let place = place as u32;
        let (key, query, outer) = (place % keys, place / keys % queries, place / keys / queries);
        // The view counts query heads: the first of those that an element is for.
        let head = outer % heads * (p.query_heads / heads);
        let address = launch.scores.address(&p.d_bias, dtype, [outer / heads, head, query, key]);
        launch.memory.write_at(address, dtype, scale * sum);
    }
}

/// The gradient of the sinks.
pub fn sink_gradient(variant: KernelVariant, bytes: &[u8], memory: &mut Memory, fault: Fault) {
    let launch = Launch::new(variant, bytes, memory, fault);
    let p = launch.p;
    let mut sums = vec![0.0; p.query_heads as usize];
    for (sequence, first_row) in launch.sequences() {
        for (head, sum) in (0..).zip(&mut sums) {
            for row in 0..sequence.query_rows {
                let at = [0, first_row + row, head, 0];
                let lse = launch.memory.read(&launch.statistics(0), Dtype::F32, at);
                let delta = launch.memory.read(&launch.statistics(1), Dtype::F32, at);
                *sum -= (scores::sink(launch.memory, p.score.sinks, head) - lse).exp() * delta;
            }
        }
    }
    let sign = if fault == Fault::NegatedSinkGradient { -1.0 } else { 1.0 };
    for (head, sum) in (0..).zip(sums) {
        launch.memory.write_at(p.d_sinks + 4 * head, Dtype::F32, sign * sum);
    }
}

struct Launch<'l> {
    dtype: Dtype,
    is_capped: bool,
    scores: Scores,
    gradient: Dtype,
    lengths: Lengths,
    p: BackwardParams,
    memory: &'l mut Memory,
    fault: Fault,
}

/// What comes of one query and one key that see each other.
struct PairGradient {
    /// The probability as dropout leaves it.
    weight: f64,
    /// Before the derivative of the cap.
    ds: f64,
    slope: f64,
}

impl<'l> Launch<'l> {
    fn new(variant: KernelVariant, bytes: &[u8], memory: &'l mut Memory, fault: Fault) -> Self {
        let kernel = variant.kernel;
        let mut params: BackwardParams = match (kernel.family, kernel.dtype) {
            (Family::Backward | Family::BackwardConvert, Dtype::F32) => {
                params::<BackwardFmaParams>(bytes).backward
            }
            _ => params(bytes),
        };
        if fault == Fault::DropsOthersBackward {
            params.score.dropout.offset ^= 1;
        }
        let is_capped = variant.switches.contains(Switch::Softcap);
        let lengths = Lengths {
            cu_seqlens_q: params.cu_seqlens_q,
            cu_seqlens_k: params.cu_seqlens_k,
            query_rows: params.query_rows,
            key_rows: params.key_rows,
            bottom_right: params.bottom_right,
            window: [params.window_left, params.window_right],
        };
        let gradient = if params.gradients_f32 == 1 { Dtype::F32 } else { kernel.dtype };
        let scores = Scores::new(variant, params.score, params.group_size, fault);
        let dtype = kernel.dtype;
        Launch { dtype, is_capped, scores, gradient, lengths, p: params, memory, fault }
    }

    /// Each of them, and its first row in the workspace.
    fn sequences(&self) -> Vec<(Sequence, u32)> {
        let of = |batch| {
            let sequence = Sequence::new(self.memory, &self.lengths, batch);
            let first_row = if self.p.cu_seqlens_q == 0 {
                self.p.padded_rows * batch
            } else {
                workspace_row_packed(sequence.first_query, batch)
            };
            (sequence, first_row)
        };
        (0..self.p.batches).map(of).collect()
    }

    /// f32 `[2, Hq, workspace_rows]`.
    fn statistics(&self, which: u32) -> TensorView {
        let rows = i64::from(self.p.workspace_rows);
        let address = self.p.statistics + u64::from(which * self.p.query_heads) * rows as u64 * 4;
        TensorView { address, batch_stride: 0, row_stride: 1, head_stride: rows }
    }

    /// f32 `[splits, Hq, accumulator_rows, padded_dim]`: splits as batches. No kernel for Hopper runs here,
    /// so that rows stand as in the rest of the workspace.
    fn accumulator(&self) -> TensorView {
        let columns = i64::from(self.p.padded_dim);
        TensorView {
            address: self.p.dq_accumulator,
            batch_stride: self.p.split_stride as i64,
            row_stride: columns,
            head_stride: columns * i64::from(self.p.accumulator_rows),
        }
    }

    fn delta(&mut self, sequence: &Sequence, first_row: u32) {
        let (p, batch) = (self.p, sequence.batch);
        let rows = match p.cu_seqlens_q {
            0 => p.padded_rows,
            _ => sequence.query_rows.next_multiple_of(ROW_PADDING),
        };
        let o_dtype = if p.output_f32 == 1 { Dtype::F32 } else { self.dtype };
        for head in 0..p.query_heads {
            for row in 0..rows {
                let (mut lse, mut delta) = (f64::INFINITY, 0.0);
                if row < sequence.query_rows {
                    let at = sequence.first_query + row;
                    let product = |column| {
                        let index = [batch, at, head, column];
                        self.memory.read(&p.d_o, self.dtype, index)
                            * self.memory.read(&p.o, o_dtype, index)
                    };
                    delta = (0..p.value_dim).map(product).sum();
                    let like_lse = |address| lse_view(address, p.lse_batch_stride, p.lse_head_stride);
                    let index = [batch, at, head, 0];
                    lse = self.memory.read(&like_lse(p.lse), Dtype::F32, index);
                    if lse == f64::NEG_INFINITY && self.fault != Fault::LivingDeadRows {
                        lse = f64::INFINITY;
                    }
                    if p.d_lse != 0 && self.fault != Fault::IgnoresLseGradient {
                        delta -= self.memory.read(&like_lse(p.d_lse), Dtype::F32, index);
                    }
                }
                let index = [0, first_row + row, head, 0];
                self.memory.write(&self.statistics(0), Dtype::F32, index, lse);
                self.memory.write(&self.statistics(1), Dtype::F32, index, delta);
                if self.fault != Fault::DirtyWorkspace {
                    self.zero(head, first_row + row);
                }
            }
        }
    }

    fn zero(&mut self, head: u32, row: u32) {
        for split in 0..self.p.splits {
            for column in 0..self.p.padded_dim {
                self.memory.write(&self.accumulator(), Dtype::F32, [split, row, head, column], 0.0);
            }
        }
        if self.fault == Fault::WritesPastTheWorkspace {
            let end = [self.p.splits, 0, 0, 0];
            let whole = u64::from(self.p.query_heads * self.p.accumulator_rows * self.p.padded_dim);
            let past = TensorView { batch_stride: whole as i64, ..self.accumulator() };
            self.memory.write(&past, Dtype::F32, end, 1.0);
        }
    }

    fn main(&mut self, sequence: &Sequence, first_row: u32, key_tile: u32) {
        let p = self.p;
        for key_head in 0..p.query_heads / p.group_size {
            for key in 0..sequence.key_rows {
                let split = if p.splits == 1 { 0 } else { key / key_tile % p.key_blocks };
                let mut dk = vec![0.0; p.head_dim as usize];
                let mut dv = vec![0.0; p.value_dim as usize];
                for head in key_head * p.group_size..(key_head + 1) * p.group_size {
                    for row in (0..sequence.query_rows).filter(|&row| sequence.sees(row, key, 0)) {
                        self.pair(sequence, first_row, [key, head, row, split], &mut dk, &mut dv);
                    }
                }
                let skipped = self.fault == Fault::SkipsLastKey && key + 1 == sequence.key_rows;
                for (column, dk) in dk.iter().enumerate().filter(|_| !skipped) {
                    let index = [sequence.batch, sequence.first_key + key, key_head, column as u32];
                    self.memory.write(&p.dk, self.gradient, index, f64::from(p.scale) * dk);
                }
                for (column, &dv) in dv.iter().enumerate() {
                    let index = [sequence.batch, sequence.first_key + key, key_head, column as u32];
                    self.memory.write(&p.dv, self.gradient, index, dv);
                }
            }
        }
    }

    /// One query and one key that are within each other's sight; none if a mask or a bias hides the key.
    fn gradient_of_pair(
        &self,
        sequence: &Sequence,
        first_row: u32,
        [head, row, key]: [u32; 3],
    ) -> Option<PairGradient> {
        let p = self.p;
        let added = self.scores.added(self.memory, sequence, [head, row, key])?;
        let [q, k, v, d_o] = self.columns(sequence, [head, row, key]);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let at = [0, first_row + row, head, 0];
        let lse = self.memory.read(&self.statistics(0), Dtype::F32, at);
        let delta = self.memory.read(&self.statistics(1), Dtype::F32, at);
        let (score, slope) = if self.is_capped {
            let tanh = (f64::from(p.softcap_factor) * dot(&q, &k)).tanh();
            let slope = if self.fault == Fault::WithoutSlope { 1.0 } else { 1.0 - tanh * tanh };
            (f64::from(p.softcap) * tanh, slope)
        } else {
            (f64::from(p.scale) * dot(&q, &k), 1.0)
        };
        let probability = (score + added - lse).exp();
        let kept = self.scores.kept(sequence, [head, row, key]);
        let ds = probability * (kept * dot(&d_o, &v) - delta);
        Some(PairGradient { weight: kept * probability, ds, slope })
    }

    /// q, k, v and dO of a pair.
    fn columns(&self, sequence: &Sequence, [head, row, key]: [u32; 3]) -> [Vec<f64>; 4] {
        let (p, batch, key_head) = (&self.p, sequence.batch, head / self.p.group_size);
        let (key, query) = (sequence.first_key + key, sequence.first_query + row);
        let columns = |view: &TensorView, row, head, count: u32| -> Vec<f64> {
            (0..count)
                .map(|column| self.memory.read(view, self.dtype, [batch, row, head, column]))
                .collect()
        };
        [
            columns(&p.q, query, head, p.head_dim),
            columns(&p.k, key, key_head, p.head_dim),
            columns(&p.v, key, key_head, p.value_dim),
            columns(&p.d_o, query, head, p.value_dim),
        ]
    }

    /// Adds what comes of a pair.
    fn pair(
        &mut self,
        sequence: &Sequence,
        first_row: u32,
        [key, head, row, split]: [u32; 4],
        dk: &mut [f64],
        dv: &mut [f64],
    ) {
        let Some(PairGradient { weight, ds, slope }) =
            self.gradient_of_pair(sequence, first_row, [head, row, key])
        else {
            return;
        };
        let ([q, k, _, d_o], ds) = (self.columns(sequence, [head, row, key]), ds * slope);
        dv.iter_mut().zip(&d_o).for_each(|(dv, d_o)| *dv += weight * d_o);
        dk.iter_mut().zip(&q).for_each(|(dk, q)| *dk += ds * q);
        for (column, k) in k.iter().enumerate() {
            let index = [split, first_row + row, head, column as u32];
            let sum = self.memory.read(&self.accumulator(), Dtype::F32, index) + ds * k;
            self.memory.write(&self.accumulator(), Dtype::F32, index, sum);
        }
    }

    fn convert(&mut self, sequence: &Sequence, first_row: u32) {
        let p = self.p;
        let scale = if self.fault == Fault::UnscaledGradient { 1.0 } else { f64::from(p.scale) };
        for head in 0..p.query_heads {
            for row in 0..sequence.query_rows {
                for column in 0..p.head_dim {
                    let at = |split| [split, first_row + row, head, column];
                    let sum: f64 = (0..p.splits)
                        .map(|split| self.memory.read(&self.accumulator(), Dtype::F32, at(split)))
                        .sum();
                    let index = [sequence.batch, sequence.first_query + row, head, column];
                    self.memory.write(&p.dq, self.gradient, index, scale * sum);
                }
            }
        }
    }
}
