//! The Rust half of the Python package `finite_attention`: addresses, shapes and strides in, launches out.
//!
//! What users see is in `python/finite_attention`, which owns the memory: arrays of NumPy, tensors of
//! PyTorch, or a [`device::Buffer`]. Nothing here looks at a Python object that is not a number, a text or a
//! tuple.

mod attention;
mod device;
mod error;
mod msda;
mod options;
mod sanitize;
mod tensor;
mod training;

/// The native module.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::device::{Buffer, Device};
    #[pymodule_export]
    use super::error::DeviceError;
    #[pymodule_export]
    use super::options::{Options, longest_sequences};
    #[pymodule_export]
    use super::sanitize::{ptx_kernels, ptx_run};
    #[pymodule_export]
    use super::training::GradScaler;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
