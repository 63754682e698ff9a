//! Additions that a bulk copy makes in global memory, element after element.

use crate::exec::values::float::add_flushed;
use crate::exec::values::half::{Bfloat, Format, Half};
use crate::isa::ReduceOp;
use crate::tensor_map::TensorMapElement;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Adds elements to memory, each atomically.
///
/// # Safety
///
/// As many bytes as `part` has lie at `at`, aligned to the element.
pub unsafe fn add(at: *mut u8, part: &[u8], reduce: ReduceOp, element: Option<TensorMapElement>) {
    macro_rules! each {
        ($type:ty, $atomic:ty, $sum:expr) => {
            for (index, bytes) in part.chunks_exact(size_of::<$type>()).enumerate() {
                let value = <$type>::from_le_bytes(bytes.try_into().expect("chunks of this size"));
                // SAFETY: the caller vouches for range and alignment.
                let cell = unsafe { <$atomic>::from_ptr(at.cast::<$type>().add(index)) };
                let next = |old: $type| Some($sum(old, value));
                let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
            }
        };
    }
    fn half<T: Format>(a: u16, b: u16) -> u16 {
        T::from_f32(T::from_bits(a).to_f32() + T::from_bits(b).to_f32()).bits()
    }
    let double = |a: u64, b: u64| (f64::from_bits(a) + f64::from_bits(b)).to_bits();
    match operation(reduce, element) {
        ReduceOp::AddF32 => each!(u32, AtomicU32, add_flushed),
        ReduceOp::AddF64 => each!(u64, AtomicU64, double),
        ReduceOp::AddU32 => each!(u32, AtomicU32, u32::wrapping_add),
        ReduceOp::AddU64 => each!(u64, AtomicU64, u64::wrapping_add),
        ReduceOp::AddF16 => each!(u16, AtomicU16, half::<Half>),
        ReduceOp::AddBf16 => each!(u16, AtomicU16, half::<Bfloat>),
        ReduceOp::None | ReduceOp::AddElement => match element.map(TensorMapElement::bytes) {
            Some(2) => each!(u16, AtomicU16, u16::wrapping_add),
            _ => each!(u8, AtomicU8, u8::wrapping_add),
        },
    }
}

/// What is added, and how.
pub fn operation(reduce: ReduceOp, element: Option<TensorMapElement>) -> ReduceOp {
    use TensorMapElement as E;
    match (reduce, element) {
        (ReduceOp::AddElement, Some(E::F32)) => ReduceOp::AddF32,
        (ReduceOp::AddElement, Some(E::F64)) => ReduceOp::AddF64,
        (ReduceOp::AddElement, Some(E::F16)) => ReduceOp::AddF16,
        (ReduceOp::AddElement, Some(E::Bf16)) => ReduceOp::AddBf16,
        (ReduceOp::AddElement, Some(E::U32 | E::I32)) => ReduceOp::AddU32,
        (ReduceOp::AddElement, Some(E::U64 | E::I64)) => ReduceOp::AddU64,
        (reduce, _) => reduce,
    }
}
