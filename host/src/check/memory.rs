//! A tensor in device memory, with poison wherever no element stands.

use crate::attention::Element;
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;
use crate::problem::{Layout, ScoreLayout};
use bytemuck::Pod;
use std::ops::Range;

/// Bytes on each side of a tensor.
pub const GUARD_BYTES: usize = 256;

/// What stands in memory wherever no element stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Surroundings {
    /// Bytes 0xff: NaN in every dtype.
    #[default]
    Nan,
    /// Positive infinity, element by element.
    Infinity,
    /// Zero.
    Zero,
}

impl Surroundings {
    /// One element of it.
    fn element<T: Stored>(self) -> T {
        match self {
            Surroundings::Nan => bytemuck::pod_read_unaligned(&[0xff; 4][..size_of::<T>()]),
            Surroundings::Infinity => T::infinity(),
            Surroundings::Zero => T::zeroed(),
        }
    }
}

/// What tensors consist of: numbers, and the bytes of a boolean mask.
pub trait Stored: Pod {
    /// Infinity; of a byte, 1.
    fn infinity() -> Self;
}

impl<T: Element> Stored for T {
    fn infinity() -> Self {
        T::from_f32(f32::INFINITY)
    }
}

impl Stored for u8 {
    fn infinity() -> Self {
        1
    }
}

/// Where the elements of any tensor stand.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    shape: [usize; 4],
    strides: [i64; 4],
    span: usize,
    origin: usize,
}

impl From<Layout> for Strided {
    fn from(layout: Layout) -> Self {
        let Layout { shape, strides } = layout;
        Strided { shape, strides, span: layout.span(), origin: layout.origin() }
    }
}

impl From<ScoreLayout> for Strided {
    fn from(layout: ScoreLayout) -> Self {
        let ScoreLayout { shape, strides } = layout;
        Strided { shape, strides, span: layout.span(), origin: layout.origin() }
    }
}

impl Strided {
    /// How many elements stand side by side at least: a row of columns, or one.
    fn width(&self) -> usize {
        let [.., columns] = self.shape;
        if self.strides[3] == 1 { columns } else { columns.min(1) }
    }

    /// Where the elements lie, [`Strided::width`] of them at a time, in logical order, in bytes of a `T`, if
    /// element (0, 0, 0, 0) lies at byte `origin`.
    fn places<T>(&self, origin: usize) -> impl Iterator<Item = Range<usize>> + use<T> {
        let Strided { shape, strides, .. } = *self;
        let width = self.width();
        let [outer, middle, inner, columns] = shape;
        let pieces = columns.checked_div(width).unwrap_or(0);
        (0..outer * middle * inner * pieces).map(move |at| {
            let piece = at % pieces;
            let row = at / pieces;
            let index = [row / inner / middle, row / inner % middle, row % inner, piece * width];
            let steps = index.into_iter().zip(strides).map(|(index, stride)| index as i64 * stride);
            let start =
                origin.wrapping_add_signed(steps.sum::<i64>() as isize * size_of::<T>() as isize);
            start..start + width * size_of::<T>()
        })
    }
}

/// A tensor on a device, surrounded by guard bytes; freed when dropped.
pub struct TensorMemory<'d, T> {
    device: &'d Device,
    allocation: DevicePointer,
    layout: Strided,
    /// Byte offset of element (0, 0, 0, 0) in the allocation.
    origin: usize,
    /// What was written: a copy of the whole allocation.
    bytes: Vec<u8>,
    element: std::marker::PhantomData<T>,
}

impl<'d, T: Stored> TensorMemory<'d, T> {
    /// Puts `values` (one per element, in logical order; where elements share an address the last one
    /// counts) between guard bytes; with none all is `surroundings`. `lead` elements stand between a
    /// 256-byte boundary and the lowest element; without `guard_after` the allocation ends with the
    /// highest one.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        device: &'d Device,
        layout: impl Into<Strided>,
        lead: usize,
        guard_after: bool,
        values: Option<&[T]>,
        surroundings: Surroundings,
    ) -> Result<Self> {
        let layout = layout.into();
        let size = size_of::<T>();
        let lowest = GUARD_BYTES + lead * size;
        let after = if guard_after { GUARD_BYTES } else { 0 };
        let fill = surroundings.element::<T>();
        let mut bytes = bytemuck::bytes_of(&fill).repeat((lowest + layout.span * size + after) / size);
        let origin = lowest + layout.origin * size;
        let width = layout.width().max(1);
        for (row, place) in values.unwrap_or(&[]).chunks(width).zip(layout.places::<T>(origin)) {
            bytes[place].copy_from_slice(bytemuck::cast_slice(row));
        }
        let allocation = device.driver().allocate(bytes.len())?;
        let element = std::marker::PhantomData;
        let memory = TensorMemory { device, allocation, layout, origin, bytes, element };
        device.driver().copy_to_device(allocation, &memory.bytes)?;
        Ok(memory)
    }

    /// Address of element (0, 0, 0, 0).
    pub fn pointer(&self) -> DevicePointer {
        self.allocation + self.origin as u64
    }

    /// The elements as they were written, in logical order.
    pub fn written(&self) -> Vec<T> {
        gather(&self.bytes, &self.layout, self.origin)
    }

    /// Reads the elements back in logical order, and the byte offset from element (0, 0, 0, 0) of the
    /// first byte outside the elements that changed, if any did.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn read(&self, stream: Stream) -> Result<(Vec<T>, Option<isize>)> {
        let mut bytes = vec![0; self.bytes.len()];
        self.device.driver().copy_to_host(&mut bytes, self.allocation, stream)?;
        let elements = gather(&bytes, &self.layout, self.origin);
        let mut changed: Vec<bool> =
            bytes.iter().zip(&self.bytes).map(|(now, then)| now != then).collect();
        self.layout.places::<T>(self.origin).for_each(|place| changed[place].fill(false));
        let first = changed.iter().position(|&changed| changed);
        Ok((elements, first.map(|byte| byte as isize - self.origin as isize)))
    }
}

impl<T> Drop for TensorMemory<'_, T> {
    fn drop(&mut self) {
        // What these report was reported before or comes again at the next call.
        let _ = self.device.synchronize(Stream::default());
        // SAFETY: allocated in `new`, freed once, and nothing is in flight.
        let _ = unsafe { self.device.driver().free(self.allocation) };
    }
}

fn gather<T: Stored>(bytes: &[u8], layout: &Strided, origin: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(layout.shape.iter().product());
    for place in layout.places::<T>(origin) {
        all.extend(bytes[place].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>));
    }
    all
}
