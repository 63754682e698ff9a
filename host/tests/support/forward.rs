//! The forward pass.

use super::memory::{Lengths, Memory, Sequence, lse_view};
use super::scores::{self, Scores};
use super::{Fault, params};
use kernels_gpu::abi::{
    CombineParams, Dtype, ForwardFmaParams, ForwardParams, KernelSpec, KernelVariant, Switch, TensorView,
};

pub fn run(variant: KernelVariant, bytes: &[u8], memory: &mut Memory, fault: Fault) {
    let params: ForwardParams = match variant.kernel.dtype {
        Dtype::F32 => params::<ForwardFmaParams>(bytes).forward,
        _ => params(bytes),
    };
    let lengths = Lengths {
        cu_seqlens_q: params.cu_seqlens_q,
        cu_seqlens_k: params.cu_seqlens_k,
        query_rows: params.query_rows,
        key_rows: params.key_rows,
        bottom_right: params.bottom_right,
        window: [params.window_left, params.window_right],
    };
    let is_capped = variant.switches.contains(Switch::Softcap) && fault != Fault::Uncapped;
    let scores = Scores::new(variant, params.score, params.group_size, fault);
    let mut launch = Launch { kernel: variant.kernel, is_capped, scores, params, memory, fault };
    for batch in 0..params.batches {
        let sequence = Sequence::new(launch.memory, &lengths, batch);
        let skipped = u32::from(fault == Fault::SkipsLastRow).min(sequence.query_rows);
        let added = u32::from(fault == Fault::WritesPastTheEnd);
        for range in 0..params.splits {
            let part = Part::new(&params, &sequence, batch, range);
            for head in 0..params.query_heads {
                for row in 0..sequence.query_rows - skipped + added {
                    launch.row(&sequence, &part, batch == 0, head, row);
                }
            }
        }
    }
}

/// A range of keys, and where its results go.
struct Part {
    batch: u32,
    keys: std::ops::Range<u32>,
    /// Whether the sequence has no key behind it.
    is_last: bool,
}

impl Part {
    fn new(params: &ForwardParams, sequence: &Sequence, batch: u32, range: u32) -> Self {
        if params.splits == 1 {
            return Part { batch: sequence.batch, keys: 0..sequence.key_rows, is_last: true };
        }
        let first = range * params.split_keys;
        let end = sequence.key_rows.min(first + params.split_keys);
        assert!(first < end && (range + 1 < params.splits || end == sequence.key_rows));
        let is_last = end == sequence.key_rows;
        Part { batch: batch * params.splits + range, keys: first..end, is_last }
    }
}

/// o and lse from those of ranges of keys.
pub fn combine(kernel: &KernelSpec, bytes: &[u8], memory: &mut Memory) {
    let params: CombineParams = params(bytes);
    let CombineParams { query_heads, query_rows, splits, .. } = params;
    let part_columns = params.value_dim.next_multiple_of(4);
    let head_rows = i64::from(query_rows);
    let batch_rows = i64::from(query_heads) * head_rows;
    let part_o = TensorView {
        address: params.part_o,
        batch_stride: batch_rows * i64::from(part_columns),
        row_stride: part_columns.into(),
        head_stride: head_rows * i64::from(part_columns),
    };
    let statistics = TensorView {
        address: params.part_statistics,
        batch_stride: 2 * batch_rows,
        row_stride: 2,
        head_stride: 2 * head_rows,
    };
    let lse_view = lse_view(params.lse, params.lse_batch_stride, params.lse_head_stride);
    let output = if params.output_f32 == 1 { Dtype::F32 } else { kernel.dtype };
    for batch in 0..params.batches {
        for (head, row) in (0..query_heads).flat_map(|head| (0..query_rows).map(move |row| (head, row)))
        {
            let parts = (0..splits).map(|range| batch * splits + range);
            let read = |part, column| memory.read(&part_o, Dtype::F32, [part, row, head, column]);
            let statistic = |part, which| memory.read(&statistics, Dtype::F32, [part, row, head, which]);
            let of_part = |part| match (statistic(part, 0), statistic(part, 1)) {
                (_, -1.0) => f64::NEG_INFINITY,
                (reference, sum) => reference * f64::from(params.scale.abs()) + sum.ln(),
            };
            let lses: Vec<f64> = parts.clone().map(of_part).collect();
            let largest = lses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let is_dead = largest == f64::NEG_INFINITY;
            let sum: f64 = lses.iter().map(|lse| (lse - largest).exp()).sum();
            let sink = if params.sinks == 0 {
                0.0
            } else {
                (scores::sink(memory, params.sinks, head) - largest).exp()
            };
            let lse = if is_dead { largest } else { largest + (sum + sink).ln() };
            let weight = |own: f64| if is_dead { 0.0 } else { (own - lse).exp() };
            let columns: Vec<f64> = (0..params.value_dim)
                .map(|column| {
                    parts.clone().zip(&lses).map(|(part, &own)| weight(own) * read(part, column)).sum()
                })
                .collect();
            for (column, value) in columns.into_iter().enumerate() {
                memory.write(&params.o, output, [batch, row, head, column as u32], value);
            }
            if params.lse != 0 {
                memory.write(&lse_view, Dtype::F32, [batch, row, head, 0], lse);
            }
        }
    }
}

struct Launch<'l> {
    kernel: &'l KernelSpec,
    is_capped: bool,
    scores: Scores,
    params: ForwardParams,
    memory: &'l mut Memory,
    fault: Fault,
}

impl Launch<'_> {
    fn row(&mut self, sequence: &Sequence, part: &Part, first: bool, head: u32, row: u32) {
        let (params, dtype, batch) = (self.params, self.kernel.dtype, sequence.batch);
        let key_heads = params.query_heads / params.group_size;
        let turn = self.fault == Fault::WrongKeyHead;
        let key_head = if turn { head % key_heads } else { head / params.group_size };
        let future = i32::from(self.fault == Fault::SeesTheFuture);
        let past = u32::from(self.fault == Fault::ReadsPastTheEnd && first && part.is_last);
        let visible =
            (part.keys.start..part.keys.end + past).filter(|&key| sequence.sees(row, key, future));
        // What stands behind the last query is as the last one.
        let own_row = row.min(sequence.query_rows.max(1) - 1);
        let added = |key: u32| self.scores.added(self.memory, sequence, [head, own_row, key]);
        let keys: Vec<(u32, f64)> = visible.filter_map(|key| Some((key, added(key)?))).collect();
        let q_row = sequence.first_query + row.min(sequence.query_rows.max(1) - 1);
        let read = |view, row, head, column| self.memory.read(view, dtype, [batch, row, head, column]);
        let score = |&(key, added): &(u32, f64)| {
            let key = sequence.first_key + key;
            let products = (0..params.head_dim).map(|column| {
                read(&params.q, q_row, head, column) * read(&params.k, key, key_head, column)
            });
            let product = products.sum::<f64>();
            added
                + match self.is_capped {
                    true => {
                        f64::from(params.softcap) * (f64::from(params.softcap_factor) * product).tanh()
                    }
                    false => f64::from(params.scale) * product,
                }
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        // Where ranges of keys are combined, the sink comes then.
        let sink = self.scores.sink(self.memory, head).filter(|_| params.splits == 1);
        let sink = sink.unwrap_or(f64::NEG_INFINITY);
        let largest = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - largest).exp();
        let divisor = if self.fault == Fault::Unnormalised { 1.0 } else { sum };
        let output = if params.output_f32 != 0 { Dtype::F32 } else { dtype };
        let o_row = sequence.first_query + row;
        for column in 0..params.value_dim {
            let products = keys.iter().zip(&weights).map(|(&(key, _), weight)| {
                let index = [batch, sequence.first_key + key, key_head, column];
                weight
                    * self.scores.kept(sequence, [head, own_row, key])
                    * self.memory.read(&params.v, dtype, index)
            });
            let value = if keys.is_empty() { 0.0 } else { products.sum::<f64>() / divisor };
            self.memory.write(&params.o, output, [part.batch, o_row, head, column], value);
        }
        let lse = match self.fault {
            Fault::LowestLse if keys.is_empty() => f64::from(f32::MIN),
            _ if keys.is_empty() => f64::NEG_INFINITY,
            Fault::LseInBaseTwo => (largest + sum.ln()) * std::f64::consts::LOG2_E,
            _ => largest + sum.ln(),
        };
        if params.splits > 1 && row < sequence.query_rows {
            let TensorView { address, batch_stride, row_stride, head_stride } =
                lse_view(params.lse, params.lse_batch_stride, params.lse_head_stride);
            let view = TensorView {
                address,
                batch_stride: 2 * batch_stride,
                row_stride: 2 * row_stride,
                head_stride: 2 * head_stride,
            };
            let unit = match (self.scores.are_natural(), self.is_capped) {
                (true, _) => 1.0,
                (_, true) => params.softcap,
                _ => params.scale.abs(),
            };
            let scale = f64::from(unit);
            let (reference, sum) = match (keys.is_empty(), scale == 0.0) {
                (true, _) => (0.0, -1.0),
                (_, true) => (0.0, lse.exp()),
                _ => (lse / scale, 1.0),
            };
            for (which, value) in [(0, reference), (1, sum)] {
                self.memory.write(&view, Dtype::F32, [part.batch, o_row, head, which], value);
            }
        } else if params.lse != 0 && row < sequence.query_rows {
            let view = lse_view(params.lse, params.lse_batch_stride, params.lse_head_stride);
            self.memory.write(&view, Dtype::F32, [part.batch, o_row, head, 0], lse);
        }
    }
}
