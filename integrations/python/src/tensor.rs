//! A tensor as Python gives it, and what the library makes of it.

use crate::error::{Failure, Result};
use finite_attention::problem::ScoreLayout;
use finite_attention::training::DeviceTensor;
use finite_attention::{DevicePointer, Dtype, Error, Layout};
use pyo3::FromPyObject;

/// `(address of the first element, shape, strides in elements, name of the dtype)`.
#[derive(FromPyObject)]
pub struct Tensor(DevicePointer, Vec<usize>, Vec<i64>, String);

impl Tensor {
    /// Address of the element whose indices are all 0.
    pub fn address(&self) -> DevicePointer {
        self.0
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        &self.1
    }

    /// The element type, by the name that NumPy and PyTorch give it.
    pub fn dtype(&self, argument: &'static str) -> Result<Dtype> {
        match self.3.as_str() {
            "bfloat16" => Ok(Dtype::Bf16),
            "float16" => Ok(Dtype::F16),
            "float32" => Ok(Dtype::F32),
            got => Err(wrong_dtype(argument, "bf16, f16 or f32", got)),
        }
    }

    /// The name of the element type is this one.
    fn check_dtype(&self, argument: &'static str, expected: &str) -> Result<()> {
        if self.3 == expected { Ok(()) } else { Err(wrong_dtype(argument, expected, &self.3)) }
    }

    /// `[batch, row, head, column]`, of packed sequences `[row, head, column]`.
    pub fn layout(&self, argument: &'static str, is_packed: bool) -> Result<Layout> {
        let Tensor(_, shape, strides, _) = self;
        if !is_packed {
            return Ok(Layout::from_slices(argument, shape, strides)?);
        }
        let (&[rows, heads, columns], &[row, head, column]) = (shape.as_slice(), strides.as_slice())
        else {
            let (expected, names) = (3, "[row, head, column]");
            return Err(Error::WrongRank { argument, expected, names, got: shape.len() }.into());
        };
        Ok(Layout { shape: [1, rows, heads, columns], strides: [0, row, head, column] })
    }

    /// `[batch, head, query, key]`, or the last of these dimensions.
    pub fn score_layout(&self, argument: &'static str) -> Result<ScoreLayout> {
        let Tensor(_, shape, strides, _) = self;
        let rank = shape.len();
        if rank > 4 || strides.len() != rank {
            let (expected, names) = (4, "[batch, head, query, key]");
            return Err(Error::WrongRank { argument, expected, names, got: rank }.into());
        }
        let mut layout = ScoreLayout { shape: [1; 4], strides: [0; 4] };
        layout.shape[4 - rank..].copy_from_slice(shape);
        layout.strides[4 - rank..].copy_from_slice(strides);
        Ok(layout)
    }

    /// A dense tensor of this dtype and one of these shapes: its address.
    pub fn dense(
        &self,
        argument: &'static str,
        dtype: &str,
        shapes: &[&[usize]],
    ) -> Result<DevicePointer> {
        self.check_dtype(argument, dtype)?;
        let Tensor(address, shape, strides, _) = self;
        if !shapes.contains(&shape.as_slice()) {
            let expected: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            let expected = expected.join(" or ");
            return Err(Failure::argument(format!(
                "{argument}: expected shape {expected}, got {shape:?}"
            )));
        }
        let mut step = 1;
        for (&size, &got) in shape.iter().zip(strides).rev() {
            if size > 1 && got != step && !shape.contains(&0) {
                let text = format!("{argument}: expected a dense tensor, got strides {strides:?}");
                return Err(Failure::argument(text));
            }
            step *= size as i64;
        }
        Ok(*address)
    }

    /// For the guards of training.
    pub fn to_scan(&self, name: &str) -> Result<DeviceTensor> {
        let dtype = self.dtype("tensor")?;
        let tensor = DeviceTensor::dense(name, dtype, &self.1, self.0);
        Ok(tensor.with_strides(&self.2))
    }
}

fn wrong_dtype(argument: &'static str, expected: &str, got: &str) -> Failure {
    let (expected, got) = (expected.to_owned(), got.to_owned());
    Error::UnsupportedDtype { argument, expected, got }.into()
}
