//! Memory of the device, and what it holds.

use half::{bf16, f16};
use kernels_gpu::abi::{Dtype, TensorView};

/// Address of the first byte of the memory: high enough that null pointers are none of it.
const BASE: u64 = 0x1000;

/// All allocations, one after the other; nothing is freed.
#[derive(Default)]
pub struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    pub fn allocate(&mut self, bytes: usize) -> u64 {
        let start = self.bytes.len().next_multiple_of(256);
        self.bytes.resize(start + bytes, 0xaa);
        BASE + start as u64
    }

    pub fn bytes(&self, address: u64, count: usize) -> &[u8] {
        &self.bytes[(address - BASE) as usize..][..count]
    }

    pub fn bytes_mut(&mut self, address: u64, count: usize) -> &mut [u8] {
        &mut self.bytes[(address - BASE) as usize..][..count]
    }

    pub fn read(&self, view: &TensorView, dtype: Dtype, index: [u32; 4]) -> f64 {
        let bytes = self.bytes(address(view, dtype, index), dtype.bytes() as usize);
        match dtype {
            Dtype::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
            Dtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
            Dtype::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        }
    }

    pub fn write(&mut self, view: &TensorView, dtype: Dtype, index: [u32; 4], value: f64) {
        self.write_at(address(view, dtype, index), dtype, value);
    }

    pub fn write_at(&mut self, address: u64, dtype: Dtype, value: f64) {
        let bytes = self.bytes_mut(address, dtype.bytes() as usize);
        match dtype {
            Dtype::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value as f32).to_le_bytes()),
            Dtype::F16 => bytes.copy_from_slice(&f16::from_f32(value as f32).to_le_bytes()),
            Dtype::F32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
        }
    }

    fn offset(&self, offsets: u64, at: u32) -> u32 {
        let bytes = self.bytes(offsets + 4 * u64::from(at), 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

fn address(view: &TensorView, dtype: Dtype, [batch, row, head, column]: [u32; 4]) -> u64 {
    let offset = i64::from(batch) * view.batch_stride
        + i64::from(row) * view.row_stride
        + i64::from(head) * view.head_stride
        + i64::from(column);
    (view.address as i64 + offset * i64::from(dtype.bytes())) as u64
}

/// A tensor like lse, seen with one column.
pub fn lse_view(address: u64, batch_stride: i64, head_stride: i64) -> TensorView {
    TensorView { address, batch_stride, row_stride: 1, head_stride }
}

/// What the parameters say of all sequences.
#[derive(Clone, Copy)]
pub struct Lengths {
    pub cu_seqlens_q: u64,
    pub cu_seqlens_k: u64,
    pub query_rows: u32,
    pub key_rows: u32,
    pub bottom_right: u32,
    pub window: [i32; 2],
}

/// One sequence.
#[derive(Clone, Copy)]
pub struct Sequence {
    /// Which it is.
    pub index: u32,
    /// In the tensors: 0 when packed.
    pub batch: u32,
    pub first_query: u32,
    pub first_key: u32,
    pub query_rows: u32,
    pub key_rows: u32,
    bottom_right: u32,
    window: [i32; 2],
}

impl Sequence {
    pub fn new(memory: &Memory, of: &Lengths, batch: u32) -> Self {
        let &Lengths { query_rows, key_rows, bottom_right, window, .. } = of;
        let (index, first_query, first_key) = (batch, 0, 0);
        let whole = Sequence {
            index,
            batch,
            first_query,
            first_key,
            query_rows,
            key_rows,
            bottom_right,
            window,
        };
        if of.cu_seqlens_q == 0 {
            return whole;
        }
        let [first_query, first_key] =
            [of.cu_seqlens_q, of.cu_seqlens_k].map(|at| memory.offset(at, batch));
        let query_rows = memory.offset(of.cu_seqlens_q, batch + 1) - first_query;
        let key_rows = memory.offset(of.cu_seqlens_k, batch + 1) - first_key;
        assert!(query_rows <= of.query_rows && key_rows <= of.key_rows, "longer than the longest");
        Sequence { batch: 0, first_query, first_key, query_rows, key_rows, ..whole }
    }

    /// The key that query `row` stands at.
    pub fn diagonal(&self, row: u32) -> i32 {
        let ends = self.key_rows as i32 - self.query_rows as i32;
        row as i32 + if self.bottom_right == 1 { ends } else { 0 }
    }

    /// Whether query `row` sees `key`, with the diagonal moved to the right by `shift`.
    pub fn sees(&self, row: u32, key: u32, shift: i32) -> bool {
        let position = self.diagonal(row) + shift;
        let [left, right] = self.window;
        key as i32 >= position - left && key as i32 <= position + right
    }
}
