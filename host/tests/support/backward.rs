//! The backward pass, in the three kernels that are not for Hopper alone: what is between them stands in the workspace, as on a GPU.

use super::memory::{Lengths, Memory, Sequence, lse_view};
use super::{Fault, params};
use kernels_gpu::abi::{
    BackwardParams, Dtype, Family, KernelVariant, ROW_PADDING, Switch, TensorView, workspace_row_packed,
};

pub fn run(family: Family, variant: KernelVariant, bytes: &[u8], memory: &mut Memory, fault: Fault) {
    let params: BackwardParams = params(bytes);
    let kernel = variant.kernel;
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
    let mut launch = Launch { dtype: kernel.dtype, is_capped, gradient, p: params, memory, fault };
    for batch in 0..params.batches {
        let sequence = Sequence::new(launch.memory, &lengths, batch);
        let first_row = if params.cu_seqlens_q == 0 {
            params.padded_rows * batch
        } else {
            workspace_row_packed(sequence.first_query, batch)
        };
        match family {
            Family::BackwardDelta => launch.delta(&sequence, first_row),
            Family::Backward => launch.main(&sequence, first_row, kernel.key_rows),
            _ => launch.convert(&sequence, first_row),
        }
    }
}

struct Launch<'l> {
    dtype: Dtype,
    is_capped: bool,
    gradient: Dtype,
    p: BackwardParams,
    memory: &'l mut Memory,
    fault: Fault,
}

impl Launch<'_> {
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
                        self.pair(
                            sequence,
                            first_row,
                            [key_head, key, head, row, split],
                            &mut dk,
                            &mut dv,
                        );
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

    /// One query and one key that see each other.
    fn pair(
        &mut self,
        sequence: &Sequence,
        first_row: u32,
        [key_head, key, head, row, split]: [u32; 5],
        dk: &mut [f64],
        dv: &mut [f64],
    ) {
        let (p, batch) = (self.p, sequence.batch);
        let (key, query) = (sequence.first_key + key, sequence.first_query + row);
        let columns = |view: &TensorView, row, head, count: u32| -> Vec<f64> {
            (0..count)
                .map(|column| self.memory.read(view, self.dtype, [batch, row, head, column]))
                .collect()
        };
        let q = columns(&p.q, query, head, p.head_dim);
        let k = columns(&p.k, key, key_head, p.head_dim);
        let v = columns(&p.v, key, key_head, p.value_dim);
        let d_o = columns(&p.d_o, query, head, p.value_dim);
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
        let probability = (score - lse).exp();
        let ds = probability * (dot(&d_o, &v) - delta) * slope;
        dv.iter_mut().zip(&d_o).for_each(|(dv, d_o)| *dv += probability * d_o);
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
