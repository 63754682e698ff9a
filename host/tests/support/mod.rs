//! A device in plain host memory that computes attention, in f64, from the launch parameters alone, and
//! can be told to do it wrongly: so that the library's errors and the checker itself can be tested
//! without emulator or GPU.
#![allow(dead_code)] // each test file uses its own part

use finite_attention::driver::{DevicePointer, DeviceProperties, Driver, Stream};
use finite_attention::{Device, Error};
use half::{bf16, f16};
use kernels_gpu::abi::{Dtype, ForwardParams, KernelSpec, TensorView};
use std::sync::{Arc, Mutex};

/// What the device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every allocation fails.
    OutOfMemory,
    /// Every launch fails.
    Launch,
    /// The last query row is not written.
    SkipsLastRow,
    /// One row more than there is of the last head is written.
    WritesPastTheEnd,
    /// The key after the last one takes part, as if it were zero times poison.
    ReadsPastTheEnd,
    /// The diagonal is one too far to the right.
    SeesTheFuture,
    /// lse is in base 2.
    LseInBaseTwo,
    /// A dead row's lse is the lowest finite number.
    LowestLse,
    /// Probabilities are not rescaled by their sum.
    Unnormalised,
    /// Query heads take key heads in turn.
    WrongKeyHead,
}

/// Address of the first byte of the memory: high enough that null pointers are none of it.
const BASE: u64 = 0x1000;

pub struct MockDriver {
    properties: DeviceProperties,
    memory: Mutex<Vec<u8>>,
    fault: Fault,
}

/// A device that does nothing but this wrong.
pub fn device(fault: Fault) -> Device {
    device_with(fault, (9, 0))
}

pub fn device_with(fault: Fault, compute_capability: (u32, u32)) -> Device {
    let properties = DeviceProperties {
        name: "mock".into(),
        compute_capability,
        multiprocessors: 1,
        shared_bytes_per_block: 227 << 10,
        l2_bytes: 1 << 20,
    };
    Device::from_driver(Arc::new(MockDriver { properties, memory: Mutex::default(), fault }))
}

impl Driver for MockDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer, Error> {
        if self.fault == Fault::OutOfMemory {
            return Err(Error::OutOfMemory { device: "mock".into(), bytes });
        }
        let mut memory = self.memory.lock().unwrap();
        let start = memory.len().next_multiple_of(256);
        memory.resize(start + bytes, 0xaa);
        Ok(BASE + start as u64)
    }

    unsafe fn free(&self, _: DevicePointer) -> Result<(), Error> {
        Ok(())
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<(), Error> {
        let start = (destination - BASE) as usize;
        self.memory.lock().unwrap()[start..start + source.len()].copy_from_slice(source);
        Ok(())
    }

    fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePointer,
        _: Stream,
    ) -> Result<(), Error> {
        let start = (source - BASE) as usize;
        destination.copy_from_slice(&self.memory.lock().unwrap()[start..start + destination.len()]);
        Ok(())
    }

    unsafe fn launch(&self, kernel: &KernelSpec, _: u32, params: &[u8], _: Stream) -> Result<(), Error> {
        if self.fault == Fault::Launch {
            let findings = vec!["first".to_owned(), "second".to_owned()];
            return Err(Error::Findings { kernel: kernel.name.into(), findings });
        }
        assert_eq!(params.len(), size_of::<ForwardParams>());
        // SAFETY: the length was checked, and every bit pattern is a value of these plain integers and
        // floats.
        let params: ForwardParams = unsafe { std::ptr::read_unaligned(params.as_ptr().cast()) };
        let mut memory = self.memory.lock().unwrap();
        Launch { kernel, params, memory: &mut memory, fault: self.fault }.run();
        Ok(())
    }

    fn synchronize(&self, _: Stream) -> Result<(), Error> {
        Ok(())
    }
}

struct Launch<'l> {
    kernel: &'l KernelSpec,
    params: ForwardParams,
    memory: &'l mut [u8],
    fault: Fault,
}

impl Launch<'_> {
    fn run(&mut self) {
        let params = self.params;
        let skipped = u32::from(self.fault == Fault::SkipsLastRow);
        let added = u32::from(self.fault == Fault::WritesPastTheEnd);
        for batch in 0..params.batches {
            for head in 0..params.query_heads {
                for row in 0..params.query_rows - skipped + added {
                    self.row(batch, head, row);
                }
            }
        }
    }

    fn row(&mut self, batch: u32, head: u32, row: u32) {
        let params = self.params;
        let dtype = self.kernel.dtype;
        let key_heads = params.query_heads / params.group_size;
        let turn = self.fault == Fault::WrongKeyHead;
        let key_head = if turn { head % key_heads } else { head / params.group_size };
        let future = i32::from(self.fault == Fault::SeesTheFuture);
        let ends = params.key_rows as i32 - params.query_rows as i32;
        let diagonal = if params.bottom_right == 1 { ends } else { 0 };
        let position = row as i32 + diagonal + future;
        let visible =
            |key: i32| key >= position - params.window_left && key <= position + params.window_right;
        let past = u32::from(self.fault == Fault::ReadsPastTheEnd && batch == 0);
        let keys: Vec<u32> = (0..params.key_rows + past).filter(|&key| visible(key as i32)).collect();
        let q_row = row.min(params.query_rows - 1);
        let scores: Vec<f64> = keys
            .iter()
            .map(|&key| {
                let products = (0..params.head_dim).map(|column| {
                    self.read(&params.q, dtype, [batch, q_row, head, column])
                        * self.read(&params.k, dtype, [batch, key, key_head, column])
                });
                f64::from(params.scale) * products.sum::<f64>()
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let divisor = if self.fault == Fault::Unnormalised { 1.0 } else { sum };
        let output = if params.output_f32 == 1 { Dtype::F32 } else { dtype };
        for column in 0..params.value_dim {
            let products = keys.iter().zip(&weights).map(|(&key, weight)| {
                weight * self.read(&params.v, dtype, [batch, key, key_head, column])
            });
            let value = if keys.is_empty() { 0.0 } else { products.sum::<f64>() / divisor };
            self.write(&params.o, output, [batch, row, head, column], value as f32);
        }
        let lse = match self.fault {
            Fault::LowestLse if keys.is_empty() => f64::from(f32::MIN),
            _ if keys.is_empty() => f64::NEG_INFINITY,
            Fault::LseInBaseTwo => (largest + sum.ln()) * std::f64::consts::LOG2_E,
            _ => largest + sum.ln(),
        };
        if params.lse != 0 && row < params.query_rows {
            let view = TensorView {
                address: params.lse,
                batch_stride: i64::from(params.query_heads * params.query_rows),
                row_stride: 1,
                head_stride: i64::from(params.query_rows),
            };
            self.write(&view, Dtype::F32, [batch, row, head, 0], lse as f32);
        }
    }

    fn read(&self, view: &TensorView, dtype: Dtype, index: [u32; 4]) -> f64 {
        let start = place(view, dtype, index);
        let bytes = &self.memory[start..];
        match dtype {
            Dtype::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
            Dtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
            Dtype::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        }
    }

    fn write(&mut self, view: &TensorView, dtype: Dtype, index: [u32; 4], value: f32) {
        let start = place(view, dtype, index);
        match dtype {
            Dtype::Bf16 => {
                self.memory[start..start + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes())
            }
            Dtype::F16 => {
                self.memory[start..start + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes())
            }
            Dtype::F32 => self.memory[start..start + 4].copy_from_slice(&value.to_le_bytes()),
        }
    }
}

/// Offset of an element in the memory.
fn place(view: &TensorView, dtype: Dtype, [batch, row, head, column]: [u32; 4]) -> usize {
    let offset = i64::from(batch) * view.batch_stride
        + i64::from(row) * view.row_stride
        + i64::from(head) * view.head_stride
        + i64::from(column);
    (view.address as i64 + offset * i64::from(dtype.bytes()) - BASE as i64) as usize
}
