//! Attention on host slices: copied to the device, computed, copied back.

use super::{Element, forward};
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use crate::plan::ForwardPointers;
use crate::problem::{ForwardProblem, Layout, common_dtype};

/// What a forward pass gives, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardOutput<T> {
    /// `[B, Sq, Hq, Dv]` in the layout of the problem's o: [`Layout::span`] elements, zeros between
    /// them.
    pub o: Vec<T>,
    /// Dense `[B, Hq, Sq]`; empty when the problem does not want it.
    pub lse: Vec<f32>,
}

/// Forward pass on host slices. A slice starts with the element of the lowest address (with non-negative
/// strides: element (0, 0, 0, 0)) and holds at least [`Layout::span`] elements of its layout.
///
/// `T` is the element type of q, k and v, `O` that of o: `T` again, or f32.
///
/// ```no_run
/// use finite_attention::{Device, Dtype, ForwardOutput, ForwardProblem, Layout, forward_host};
/// # fn main() -> finite_attention::Result<()> {
/// let layout = Layout::bshd([1, 3, 1, 4]);
/// let (q, k, v) = ([0.5f32; 12], [1f32; 12], [2f32; 12]);
/// let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).causal();
/// let output: ForwardOutput<f32> = forward_host(&Device::default()?, &problem, &q, &k, &v)?;
/// assert_eq!(output.o, [2.0; 12]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::WrongDtype`] if `T` or `O` is not the problem's dtype, [`Error::WrongLength`] if a slice is
/// too short, and everything that [`forward`] refuses.
pub fn forward_host<T: Element, O: Element>(
    device: &Device,
    problem: &ForwardProblem,
    q: &[T],
    k: &[T],
    v: &[T],
) -> Result<ForwardOutput<O>> {
    common_dtype(&[("problem", problem.dtype), ("q", T::DTYPE)])?;
    common_dtype(&[("problem", problem.output_dtype), ("o", O::DTYPE)])?;
    let valid = problem.validate()?;
    let stream = Stream::default();
    let q = Copied::new(device, "q", &problem.q, q)?;
    let k = Copied::new(device, "k", &problem.k, k)?;
    let v = Copied::new(device, "v", &problem.v, v)?;
    let o = output_buffer::<O>(device, &problem.o)?;
    let lse_elements = if problem.wants_lse { valid.lse_elements() } else { 0 };
    let lse = DeviceBuffer::<f32>::uninitialised(device, lse_elements)?;
    let pointers = ForwardPointers {
        q: q.pointer(),
        k: k.pointer(),
        v: v.pointer(),
        o: o.device_pointer(),
        lse: lse.device_pointer(),
    };
    // SAFETY: each allocation holds the span of its layout, is used by nobody else, and lives past
    // `synchronize`.
    unsafe { forward(device, problem, &pointers, stream) }?;
    device.synchronize(stream)?;
    Ok(ForwardOutput { o: o.to_vec(stream)?, lse: lse.to_vec(stream)? })
}

/// Zeros where a layout has gaps; else left uninitialised, so that the emulator sees an element that is
/// not written.
fn output_buffer<O: Element>(device: &Device, layout: &Layout) -> Result<DeviceBuffer<O>> {
    if layout.span() as u128 == layout.elements() {
        return DeviceBuffer::uninitialised(device, layout.span());
    }
    DeviceBuffer::from_slice(device, &vec![O::zeroed(); layout.span()])
}

/// A tensor copied to the device.
struct Copied<T> {
    buffer: DeviceBuffer<T>,
    /// Where element (0, 0, 0, 0) stands in the buffer, in elements.
    origin: usize,
}

impl<T: Element> Copied<T> {
    fn new(device: &Device, argument: &'static str, layout: &Layout, elements: &[T]) -> Result<Self> {
        let expected = layout.span();
        let Some(elements) = elements.get(..expected) else {
            let (shape, got) = (layout.shape, elements.len());
            return Err(Error::WrongLength { argument, expected, shape, got });
        };
        Ok(Copied { buffer: DeviceBuffer::from_slice(device, elements)?, origin: layout.origin() })
    }

    /// Address of element (0, 0, 0, 0).
    fn pointer(&self) -> DevicePointer {
        self.buffer.device_pointer() + (self.origin * size_of::<T>()) as u64
    }
}
