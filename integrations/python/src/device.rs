//! Devices and their memory.

use crate::attention::{self, Gradients, Inputs, Outputs, Scores};
use crate::error::Result;
use crate::msda;
use crate::options::Options;
use crate::tensor::Tensor;
use crate::training;
use finite_attention::attention::{
    launch_backward, launch_forward_in, prepare_mask, prepared_mask_bytes,
};
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory as _};
use finite_attention::msda::launch_msda;
use finite_attention::plan::{plan_backward, plan_forward, plan_msda_backward};
use finite_attention::training::{AnomalyMode, NonFiniteNorm};
use finite_attention::{DevicePointer, Stream, Workspace};
use pyo3::types::{PyAny, PyAnyMethods as _, PyTuple};
use pyo3::{Bound, Python, pyclass, pymethods};

/// A GPU, or the emulator: `cuda:0`, `emulated:sm_80`, `emulated:sm_90a`.
#[pyclass(frozen, module = "finite_attention._native")]
pub struct Device(finite_attention::Device);

/// Bytes in the memory of a device, freed with the object.
#[pyclass(frozen, module = "finite_attention._native")]
pub struct Buffer(DeviceBuffer<u8>);

impl Device {
    pub fn inner(&self) -> &finite_attention::Device {
        &self.0
    }
}

/// Memory of the caller's allocator for what kernels have between them.
fn workspace(allocate: &Bound<'_, PyAny>, bytes: u64) -> Result<Workspace> {
    if bytes == 0 {
        return Ok(Workspace::default());
    }
    Ok(Workspace { pointer: allocate.call1((bytes,))?.extract()?, bytes })
}

#[pymethods]
impl Buffer {
    /// Address on the device; 0 of no bytes.
    #[getter]
    fn address(&self) -> DevicePointer {
        self.0.device_pointer()
    }

    /// Copies all bytes to host memory, after all work of the default stream.
    fn read(&self, py: Python<'_>, destination: usize) -> Result<()> {
        py.detach(|| {
            let bytes = self.0.to_vec(Stream::default())?;
            // SAFETY: the Python half of the package gives an array of as many bytes that is its own.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), destination as *mut u8, bytes.len())
            };
            Ok(())
        })
    }
}

#[pymethods]
impl Device {
    #[new]
    fn new(py: Python<'_>, name: &str) -> Result<Self> {
        Ok(Device(py.detach(|| finite_attention::Device::parse(name))?))
    }

    /// What the device calls itself.
    #[getter]
    fn description(&self) -> &str {
        &self.0.properties().name
    }

    /// Memory of so many bytes, which count as never written.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> Result<Buffer> {
        Ok(Buffer(py.detach(|| DeviceBuffer::uninitialised(&self.0, bytes))?))
    }

    /// A copy of so many bytes of host memory.
    fn upload(&self, py: Python<'_>, source: usize, bytes: usize) -> Result<Buffer> {
        py.detach(|| {
            if bytes == 0 {
                return Ok(Buffer(DeviceBuffer::uninitialised(&self.0, 0)?));
            }
            // SAFETY: the Python half of the package gives an array of as many bytes, and holds it.
            let bytes = unsafe { std::slice::from_raw_parts(source as *const u8, bytes) };
            Ok(Buffer(DeviceBuffer::from_slice(&self.0, bytes)?))
        })
    }

    /// Waits for all work of a stream.
    #[pyo3(signature = (stream = 0))]
    fn synchronize(&self, py: Python<'_>, stream: usize) -> Result<()> {
        Ok(py.detach(|| self.0.synchronize(Stream(stream)))?)
    }

    /// Bytes that a boolean mask takes once it is prepared.
    fn mask_bytes(&self, mask: Tensor, keys: usize) -> Result<u64> {
        Ok(prepared_mask_bytes(&mask.score_layout("mask")?, keys)?)
    }

    /// Queues what prepares a boolean mask in memory of the caller.
    fn prepare_mask(
        &self,
        py: Python<'_>,
        mask: Tensor,
        keys: usize,
        memory: (DevicePointer, u64),
        stream: usize,
    ) -> Result<()> {
        let layout = mask.score_layout("mask")?;
        // SAFETY: the Python half of the package holds both until the work is done, or in the order of the
        // stream.
        py.detach(|| unsafe {
            prepare_mask(&self.0, &layout, keys, mask.address(), memory, Stream(stream))
        })?;
        Ok(())
    }

    /// Queues a forward pass. `allocate` is called with a number of bytes if there is to be a workspace, and
    /// gives the address of memory that lives until the work is done, or in the order of the stream.
    fn forward(
        &self,
        py: Python<'_>,
        problem: (Bound<'_, Options>, Inputs, Scores, Outputs),
        allocate: &Bound<'_, PyAny>,
        stream: usize,
    ) -> Result<()> {
        let (options, inputs, scores, outputs) = problem;
        let (problem, pointers) = attention::forward_problem(options.get(), &inputs, &scores, &outputs)?;
        let plan = plan_forward(&problem.validate()?, self.0.properties(), &pointers)?;
        let Some(plan) = plan else { return Ok(()) };
        let workspace = workspace(allocate, plan.workspace_bytes())?;
        // SAFETY: as for `prepare_mask`.
        py.detach(|| unsafe { launch_forward_in(&self.0, &plan, workspace, Stream(stream)) })?;
        Ok(())
    }

    /// Queues a backward pass. `allocate` as for `forward`.
    fn backward(
        &self,
        py: Python<'_>,
        problem: (Bound<'_, Options>, Inputs, Scores, Outputs, Gradients),
        allocate: &Bound<'_, PyAny>,
        stream: usize,
    ) -> Result<()> {
        let (options, inputs, scores, outputs, gradients) = problem;
        let (problem, pointers) =
            attention::backward_problem(options.get(), &inputs, &scores, &outputs, &gradients)?;
        let plan = plan_backward(&problem.validate()?, self.0.properties(), &pointers)?;
        let workspace = workspace(allocate, plan.workspace_bytes())?;
        // SAFETY: as for `prepare_mask`.
        py.detach(|| unsafe { launch_backward(&self.0, &plan, workspace, Stream(stream)) })?;
        Ok(())
    }

    /// A forward pass that is looked at afterwards; what is not finite, if anything is. Waits.
    fn watched_forward(
        &self,
        py: Python<'_>,
        problem: (Bound<'_, Options>, Inputs, Scores, Outputs),
        stream: usize,
    ) -> Result<Option<training::Report>> {
        let (options, inputs, scores, outputs) = problem;
        let (problem, pointers) = attention::forward_problem(options.get(), &inputs, &scores, &outputs)?;
        let mode = AnomalyMode::new(&self.0);
        // SAFETY: as for `prepare_mask`; what is between the elements of a tensor is the same array's.
        let report = py.detach(|| unsafe { mode.forward(&problem, &pointers, Stream(stream)) })?;
        Ok(training::report(&report))
    }

    /// A backward pass that is looked at afterwards, as `watched_forward`.
    fn watched_backward(
        &self,
        py: Python<'_>,
        problem: (Bound<'_, Options>, Inputs, Scores, Outputs, Gradients),
        stream: usize,
    ) -> Result<Option<training::Report>> {
        let (options, inputs, scores, outputs, gradients) = problem;
        let (problem, pointers) =
            attention::backward_problem(options.get(), &inputs, &scores, &outputs, &gradients)?;
        let mode = AnomalyMode::new(&self.0);
        // SAFETY: as for `watched_forward`.
        let report = py.detach(|| unsafe { mode.backward(&problem, &pointers, Stream(stream)) })?;
        Ok(training::report(&report))
    }

    /// Queues a forward pass of multi-scale deformable attention.
    fn msda_forward(
        &self,
        py: Python<'_>,
        problem: msda::Problem,
        o: Tensor,
        stream: usize,
    ) -> Result<()> {
        let (problem, pointers) = msda::forward_problem(&problem, &o)?;
        // SAFETY: as for `prepare_mask`.
        py.detach(|| unsafe {
            finite_attention::msda_forward(&self.0, &problem, &pointers, Stream(stream))
        })?;
        Ok(())
    }

    /// Queues a backward pass of multi-scale deformable attention. `allocate` as for `forward`.
    fn msda_backward(
        &self,
        py: Python<'_>,
        problem: msda::Problem,
        gradients: msda::Gradients,
        deterministic: bool,
        allocate: &Bound<'_, PyAny>,
        stream: usize,
    ) -> Result<()> {
        let (problem, pointers) = msda::backward_problem(&problem, &gradients, deterministic)?;
        let plan = plan_msda_backward(&problem.validate()?, self.0.properties(), &pointers)?;
        let workspace = workspace(allocate, plan.workspace_bytes())?;
        // SAFETY: as for `prepare_mask`.
        py.detach(|| unsafe { launch_msda(&self.0, &plan, workspace, Stream(stream)) })?;
        Ok(())
    }

    /// Counts what is not finite: `(nan, positive infinities, negative infinities, indices of the first,
    /// norm)`. Waits.
    fn scan<'py>(&self, py: Python<'py>, tensor: Tensor, stream: usize) -> Result<Bound<'py, PyTuple>> {
        let tensor = tensor.to_scan("tensor")?;
        // SAFETY: as for `prepare_mask`.
        let found =
            py.detach(|| unsafe { finite_attention::training::scan(&self.0, &tensor, Stream(stream)) })?;
        training::found(py, &found)
    }

    /// Clips gradients, `(name, tensor)` each: `(total norm, coefficient)`. Waits.
    fn clip(
        &self,
        py: Python<'_>,
        gradients: Vec<(String, Tensor)>,
        max_norm: f32,
        refuses_non_finite: bool,
        stream: usize,
    ) -> Result<(f32, f32)> {
        let gradients = training::tensors(&gradients)?;
        let non_finite =
            if refuses_non_finite { NonFiniteNorm::Refuse } else { NonFiniteNorm::Multiply };
        // SAFETY: as for `prepare_mask`.
        let clipped = py.detach(|| unsafe {
            finite_attention::training::clip_by_global_norm(
                &self.0,
                &gradients,
                max_norm,
                non_finite,
                Stream(stream),
            )
        })?;
        Ok((clipped.total_norm, clipped.coefficient))
    }

    fn __repr__(&self) -> String {
        format!("Device({:?})", self.0.properties().name)
    }
}
