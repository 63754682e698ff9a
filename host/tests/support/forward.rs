//! The forward pass.

use super::memory::{Lengths, Memory, Sequence, lse_view};
use super::{Fault, params};
use kernels_gpu::abi::{Dtype, ForwardParams, KernelSpec};

pub fn run(kernel: &KernelSpec, bytes: &[u8], memory: &mut Memory, fault: Fault) {
    let params: ForwardParams = params(bytes);
    let lengths = Lengths {
        cu_seqlens_q: params.cu_seqlens_q,
        cu_seqlens_k: params.cu_seqlens_k,
        query_rows: params.query_rows,
        key_rows: params.key_rows,
        bottom_right: params.bottom_right,
        window: [params.window_left, params.window_right],
    };
    let mut launch = Launch { kernel, params, memory, fault };
    for batch in 0..params.batches {
        let sequence = Sequence::new(launch.memory, &lengths, batch);
        let skipped = u32::from(fault == Fault::SkipsLastRow).min(sequence.query_rows);
        let added = u32::from(fault == Fault::WritesPastTheEnd);
        for head in 0..params.query_heads {
            for row in 0..sequence.query_rows - skipped + added {
                launch.row(&sequence, batch == 0, head, row);
            }
        }
    }
}

struct Launch<'l> {
    kernel: &'l KernelSpec,
    params: ForwardParams,
    memory: &'l mut Memory,
    fault: Fault,
}

impl Launch<'_> {
    fn row(&mut self, sequence: &Sequence, first: bool, head: u32, row: u32) {
        let (params, dtype, batch) = (self.params, self.kernel.dtype, sequence.batch);
        let key_heads = params.query_heads / params.group_size;
        let turn = self.fault == Fault::WrongKeyHead;
        let key_head = if turn { head % key_heads } else { head / params.group_size };
        let future = i32::from(self.fault == Fault::SeesTheFuture);
        let past = u32::from(self.fault == Fault::ReadsPastTheEnd && first);
        let keys: Vec<u32> =
            (0..sequence.key_rows + past).filter(|&key| sequence.sees(row, key, future)).collect();
        let q_row = sequence.first_query + row.min(sequence.query_rows.max(1) - 1);
        let read = |view, row, head, column| self.memory.read(view, dtype, [batch, row, head, column]);
        let score = |&key: &u32| {
            let key = sequence.first_key + key;
            let products = (0..params.head_dim).map(|column| {
                read(&params.q, q_row, head, column) * read(&params.k, key, key_head, column)
            });
            f64::from(params.scale) * products.sum::<f64>()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let divisor = if self.fault == Fault::Unnormalised { 1.0 } else { sum };
        let output = if params.output_f32 == 1 { Dtype::F32 } else { dtype };
        let o_row = sequence.first_query + row;
        for column in 0..params.value_dim {
            let products = keys.iter().zip(&weights).map(|(&key, weight)| {
                let index = [batch, sequence.first_key + key, key_head, column];
                weight * self.memory.read(&params.v, dtype, index)
            });
            let value = if keys.is_empty() { 0.0 } else { products.sum::<f64>() / divisor };
            self.memory.write(&params.o, output, [batch, o_row, head, column], value);
        }
        let lse = match self.fault {
            Fault::LowestLse if keys.is_empty() => f64::from(f32::MIN),
            _ if keys.is_empty() => f64::NEG_INFINITY,
            Fault::LseInBaseTwo => (largest + sum.ln()) * std::f64::consts::LOG2_E,
            _ => largest + sum.ln(),
        };
        if params.lse != 0 && row < sequence.query_rows {
            let view = lse_view(params.lse, params.lse_batch_stride, params.lse_head_stride);
            self.memory.write(&view, Dtype::F32, [batch, o_row, head, 0], lse);
        }
    }
}
