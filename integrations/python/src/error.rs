//! From the library's errors to exceptions, with the library's texts.

use finite_attention::Error;
use finite_attention::training::TrainingError;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    finite_attention,
    DeviceError,
    PyRuntimeError,
    "A device that is not there, has failed, or on which the emulator found a kernel at fault."
);

/// Short for a result whose error is an exception.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// What becomes an exception.
pub struct Failure(PyErr);

impl Failure {
    /// `ValueError`: an argument is wrong.
    pub fn argument(text: impl Into<String>) -> Self {
        Failure(PyValueError::new_err(text.into()))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        Failure(match error {
            Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
            Error::NoDevice { .. }
            | Error::KernelImageMissing { .. }
            | Error::KernelImageCorrupt { .. }
            | Error::Cuda { .. }
            | Error::Findings { .. }
            | Error::Emulator { .. } => DeviceError::new_err(text),
            _ => PyValueError::new_err(text),
        })
    }
}

impl From<TrainingError> for Failure {
    fn from(error: TrainingError) -> Self {
        match error {
            TrainingError::Library(error) => error.into(),
            TrainingError::Order { .. } | TrainingError::NonFiniteNorm { .. } => {
                Failure(PyRuntimeError::new_err(error.to_string()))
            }
            _ => Failure::argument(error.to_string()),
        }
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure(error)
    }
}

impl From<Failure> for PyErr {
    fn from(Failure(error): Failure) -> Self {
        error
    }
}
