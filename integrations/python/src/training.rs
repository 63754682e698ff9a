//! The guards of training.

use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;
use finite_attention::Stream;
use finite_attention::trace::NonFinite;
use finite_attention::training::{self, AnomalyReport, DeviceTensor, GradScalerState, Scanned};
use pyo3::types::PyTuple;
use pyo3::{Bound, IntoPyObject as _, Python, pyclass, pymethods};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tensors with their names.
pub fn tensors(named: &[(String, Tensor)]) -> Result<Vec<DeviceTensor>> {
    named.iter().map(|(name, tensor)| tensor.to_scan(name)).collect()
}

/// What a scan has found, as a tuple.
pub fn found<'py>(py: Python<'py>, scanned: &Scanned) -> Result<Bound<'py, PyTuple>> {
    let NonFinite { nan, positive_infinity, negative_infinity, .. } = scanned.non_finite;
    let first = scanned.first.as_ref().map(|first| PyTuple::new(py, first)).transpose()?;
    let fields = (nan, positive_infinity, negative_infinity, first, scanned.norm);
    Ok(fields.into_pyobject(py)?)
}

/// The first tensor of a pass that is not finite, the stage that made it so if that is known, and the whole
/// report.
pub type Report = (Option<&'static str>, Option<String>, String);

/// What is not finite in a pass that was looked at.
pub fn report(report: &AnomalyReport) -> Option<Report> {
    if report.is_finite() {
        return None;
    }
    let stage = report.stage().map(|stage| stage.to_string());
    Some((report.first().map(|tensor| tensor.name), stage, report.to_string()))
}

/// The rules of loss scaling: see `finite_attention.GradScaler`.
#[pyclass(frozen, module = "finite_attention._native")]
pub struct GradScaler(Mutex<training::GradScaler>);

/// `(scale, growth_factor, backoff_factor, growth_interval, growth_tracker)`.
type State = (f32, f64, f64, u32, u32);

impl GradScaler {
    fn lock(&self) -> MutexGuard<'_, training::GradScaler> {
        // Whole even if a thread panicked: its numbers are set one by one, and all are legal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl GradScaler {
    #[new]
    fn new(state: State) -> Result<Self> {
        let (scale, growth_factor, backoff_factor, growth_interval, growth_tracker) = state;
        let state =
            GradScalerState { scale, growth_factor, backoff_factor, growth_interval, growth_tracker };
        Ok(GradScaler(Mutex::new(training::GradScaler::new(state)?)))
    }

    /// All that it is between two steps.
    #[getter]
    fn state(&self) -> State {
        let GradScalerState { scale, growth_factor, backoff_factor, growth_interval, growth_tracker } =
            self.lock().state();
        (scale, growth_factor, backoff_factor, growth_interval, growth_tracker)
    }

    /// Divides gradients by the scale, in place, and returns what was not finite in them, by name. Waits.
    fn unscale<'py>(
        &self,
        py: Python<'py>,
        device: &Bound<'py, Device>,
        optimizer: usize,
        gradients: Vec<(String, Tensor)>,
        stream: usize,
    ) -> Result<Vec<(String, Bound<'py, PyTuple>)>> {
        let (gradients, device) = (tensors(&gradients)?, device.get().inner());
        // SAFETY: the Python half of the package holds the tensors.
        let not_finite =
            py.detach(|| unsafe { self.lock().unscale(device, optimizer, &gradients, Stream(stream)) })?;
        not_finite.into_iter().map(|(name, scanned)| Ok((name, found(py, &scanned)?))).collect()
    }

    /// Notes what other code has found while it unscaled the gradients of an optimizer.
    fn note_unscaled(&self, optimizer: usize, found_non_finite: bool) -> Result<()> {
        Ok(self.lock().note_unscaled(optimizer, found_non_finite)?)
    }

    /// Whether an optimizer may take its step.
    fn step(&self, optimizer: usize) -> Result<bool> {
        Ok(self.lock().step(optimizer)?)
    }

    /// Chooses the scale of the next step.
    fn update(&self) -> Result<f32> {
        Ok(self.lock().update()?)
    }
}
