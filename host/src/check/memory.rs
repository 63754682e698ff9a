//! A tensor in device memory, with poison wherever no element stands.

use crate::attention::Element;
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;
use crate::problem::Layout;
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
    fn element<T: Element>(self) -> T {
        match self {
            Surroundings::Nan => bytemuck::pod_read_unaligned(&[0xff; 4][..size_of::<T>()]),
            Surroundings::Infinity => T::from_f32(f32::INFINITY),
            Surroundings::Zero => T::zeroed(),
        }
    }
}

/// A tensor on a device, surrounded by guard bytes; freed when dropped.
pub struct TensorMemory<'d, T> {
    device: &'d Device,
    allocation: DevicePointer,
    layout: Layout,
    /// Byte offset of element (0, 0, 0, 0) in the allocation.
    origin: usize,
    /// What was written: a copy of the whole allocation.
    bytes: Vec<u8>,
    element: std::marker::PhantomData<T>,
}

impl<'d, T: Element> TensorMemory<'d, T> {
    /// Puts `values` (one per element, in logical order; where elements share an address the last one
    /// counts) between guard bytes; with none all is `surroundings`. `lead` elements stand between a
    /// 256-byte boundary and the lowest element; without `guard_after` the allocation ends with the
    /// highest one.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        device: &'d Device,
        layout: Layout,
        lead: usize,
        guard_after: bool,
        values: Option<&[T]>,
        surroundings: Surroundings,
    ) -> Result<Self> {
        let size = size_of::<T>();
        let lowest = GUARD_BYTES + lead * size;
        let after = if guard_after { GUARD_BYTES } else { 0 };
        let fill = surroundings.element::<T>();
        let mut bytes = bytemuck::bytes_of(&fill).repeat((lowest + layout.span() * size + after) / size);
        let origin = lowest + layout.origin() * size;
        let columns = layout.shape[3].max(1);
        for (row, place) in values.unwrap_or(&[]).chunks(columns).zip(rows::<T>(&layout, origin)) {
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
        rows::<T>(&self.layout, self.origin).for_each(|row| changed[row].fill(false));
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

/// Where the rows of a tensor of `T` lie, in logical order, if element (0, 0, 0, 0) lies at byte `origin`:
/// columns are contiguous.
fn rows<T>(layout: &Layout, origin: usize) -> impl Iterator<Item = Range<usize>> {
    let layout = *layout;
    let [batches, rows, heads, columns] = layout.shape;
    (0..batches).flat_map(move |batch| {
        (0..rows).flat_map(move |row| {
            (0..heads).map(move |head| {
                let offset = layout.offset([batch, row, head, 0]) * size_of::<T>() as isize;
                let start = origin.wrapping_add_signed(offset);
                start..start + columns * size_of::<T>()
            })
        })
    })
}

fn gather<T: Element>(bytes: &[u8], layout: &Layout, origin: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(layout.shape.iter().product());
    for row in rows::<T>(layout, origin) {
        all.extend(bytes[row].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>));
    }
    all
}
