//! Bias, boolean mask, slopes, sinks and dropout.

use super::Fault;
use super::memory::{Memory, Sequence};
use half::{bf16, f16};
use kernels_gpu::abi::{
    Dtype, KernelVariant, MASK_BITS, MaskBitsParams, ScoreParams, ScoreView, Switch,
};
use kernels_gpu::geometry::philox;

/// What of them a launch has.
#[derive(Clone, Copy)]
pub struct Scores {
    params: ScoreParams,
    bias: Option<Dtype>,
    has_mask: bool,
    has_slopes: bool,
    has_sinks: bool,
    has_dropout: bool,
    group_size: u32,
    fault: Fault,
}

impl Scores {
    pub fn new(variant: KernelVariant, params: ScoreParams, group_size: u32, fault: Fault) -> Self {
        let has = |switch| variant.switches.contains(switch);
        Scores {
            params,
            bias: match (has(Switch::Bias), has(Switch::BiasF32)) {
                (true, _) => Some(variant.kernel.dtype),
                (_, true) => Some(Dtype::F32),
                _ => None,
            },
            has_mask: has(Switch::AttnMask) && fault != Fault::Unmasked,
            has_slopes: has(Switch::Alibi) && fault != Fault::IgnoresSlopes,
            has_sinks: has(Switch::Sinks) && fault != Fault::IgnoresSinks,
            has_dropout: has(Switch::Dropout) && fault != Fault::IgnoresDropout,
            group_size,
            fault,
        }
    }

    /// Whether something is added to scores.
    pub fn are_natural(&self) -> bool {
        self.bias.is_some() || self.has_slopes
    }

    /// What is added to the score of a query and a key; none if the key is hidden.
    pub fn added(
        &self,
        memory: &Memory,
        sequence: &Sequence,
        [head, row, key]: [u32; 3],
    ) -> Option<f64> {
        let at = [sequence.index, head, row, key];
        if self.has_mask {
            let word = self.place(&self.params.mask, [at[0], head, row, key / MASK_BITS]);
            let bits = memory.bytes((self.params.mask.address as i64 + 2 * word) as u64, 2);
            if u16::from_le_bytes([bits[0], bits[1]]) >> (key % MASK_BITS) & 1 == 0 {
                return None;
            }
        }
        let mut added = 0.0;
        if let Some(dtype) = self.bias {
            let at = if self.fault == Fault::BiasOfFirstSequence { [0, head, row, key] } else { at };
            let place = self.place(&self.params.bias, at) * i64::from(dtype.bytes());
            added = number(memory, (self.params.bias.address as i64 + place) as u64, dtype);
            if added == f64::NEG_INFINITY {
                return None;
            }
        }
        if self.has_slopes {
            let batch = i64::from(sequence.index) * self.params.alibi_batch_stride;
            let place = self.params.alibi_slopes + 4 * (batch as u64 + u64::from(head));
            let distance = f64::from(sequence.diagonal(row)) - f64::from(key);
            added -= number(memory, place, Dtype::F32) * distance.abs();
        }
        Some(added)
    }

    /// What the probability of a pair is multiplied by: 0 if it is dropped.
    pub fn kept(&self, sequence: &Sequence, [head, row, key]: [u32; 3]) -> f64 {
        if !self.has_dropout {
            return 1.0;
        }
        let dropout = self.params.dropout;
        let batch = if self.fault == Fault::DropsAlikeInEveryBatch { 0 } else { sequence.index };
        let [x0, x1] = philox::call(row, key);
        let counter = [x0, x1, batch * dropout.query_heads + head, dropout.offset];
        let number = philox::scaled(philox::philox(counter, dropout.key), philox::number(row, key));
        match number >= dropout.threshold {
            true if self.fault == Fault::UnscaledDropout => 1.0,
            true => f64::from(dropout.scale),
            false => 0.0,
        }
    }

    fn place(&self, view: &ScoreView, [batch, head, query, key]: [u32; 4]) -> i64 {
        i64::from(batch) * view.batch_stride
            + i64::from(head) * view.head_stride
            + i64::from(head / self.group_size) * view.key_head_stride
            + i64::from(query) * view.query_stride
            + i64::from(key) * view.key_stride
    }

    /// The sink of a head.
    pub fn sink(&self, memory: &Memory, head: u32) -> Option<f64> {
        self.has_sinks.then(|| sink(memory, self.params.sinks, head))
    }

    /// Where an element of the gradient of the bias stands.
    pub fn address(&self, view: &ScoreView, dtype: Dtype, at: [u32; 4]) -> u64 {
        (view.address as i64 + self.place(view, at) * i64::from(dtype.bytes())) as u64
    }
}

pub fn sink(memory: &Memory, sinks: u64, head: u32) -> f64 {
    number(memory, sinks + 4 * u64::from(head), Dtype::F32)
}

fn number(memory: &Memory, address: u64, dtype: Dtype) -> f64 {
    let bytes = memory.bytes(address, dtype.bytes() as usize);
    match dtype {
        Dtype::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        Dtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        Dtype::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}

/// The bits of a boolean mask.
pub fn prepare(bytes: &[u8], memory: &mut Memory) {
    let p: MaskBitsParams = super::params(bytes);
    for row in 0..p.rows {
        let (pair, query) = (row / p.queries, row % p.queries);
        let (batch, head) = (pair / p.heads, pair % p.heads);
        let offset = i64::from(batch) * p.mask.batch_stride
            + i64::from(head) * p.mask.head_stride
            + i64::from(query) * p.mask.query_stride;
        let mut words = vec![0u32; p.words as usize];
        for key in 0..p.keys {
            let address = p.mask.address as i64 + offset + i64::from(key) * p.mask.key_stride;
            let shown = memory.bytes(address as u64, 1)[0] != 0;
            words[key as usize / 32] |= u32::from(shown) << (key % 32);
        }
        let place = p.bits + 4 * u64::from(row) * u64::from(p.words);
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        memory.bytes_mut(place, words.len()).copy_from_slice(&words);
    }
}
