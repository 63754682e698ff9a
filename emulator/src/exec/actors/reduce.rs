//! What a reducing bulk copy makes of the memory that it goes to, element after element.

use crate::exec::values::atomic::apply;
use crate::isa::{AtomicType, Reduction};
use crate::tensor_map::TensorMapElement;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Reduces elements into memory, each atomically.
///
/// # Safety
///
/// As many bytes as `part` has lie at `at`, aligned to the element.
pub unsafe fn reduce(at: *mut u8, part: &[u8], how: Reduction, element: Option<TensorMapElement>) {
    let (ty, bytes) = elements(how, element);
    macro_rules! each {
        ($type:ty, $atomic:ty) => {
            for (index, bytes) in part.chunks_exact(size_of::<$type>()).enumerate() {
                let value = <$type>::from_le_bytes(bytes.try_into().expect("chunks of this size"));
                // SAFETY: the caller vouches for range and alignment.
                let cell = unsafe { <$atomic>::from_ptr(at.cast::<$type>().add(index)) };
                let next = |old: $type| {
                    Some(apply(how.op, ty, true, u64::from(old), u64::from(value), 0) as $type)
                };
                let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
            }
        };
    }
    match bytes {
        1 => each!(u8, AtomicU8),
        2 => each!(u16, AtomicU16),
        4 => each!(u32, AtomicU32),
        _ => each!(u64, AtomicU64),
    }
}

/// The same of memory that belongs to one cluster, of which `before` is a copy.
pub fn reduced(before: &[u8], part: &[u8], how: Reduction) -> Vec<u8> {
    let (ty, bytes) = elements(how, None);
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let pairs = before.chunks_exact(bytes).zip(part.chunks_exact(bytes));
    pairs
        .flat_map(|(old, value)| {
            let new = apply(how.op, ty, true, number(old), number(value), 0).to_le_bytes();
            new.into_iter().take(bytes)
        })
        .collect()
}

/// The type of the elements, and their bytes.
pub fn elements(how: Reduction, element: Option<TensorMapElement>) -> (AtomicType, usize) {
    use TensorMapElement as E;
    let ty = how.ty.unwrap_or(match element {
        Some(E::F32) => AtomicType::F32,
        Some(E::F64) => AtomicType::F64,
        Some(E::F16) => AtomicType::F16,
        Some(E::Bf16) => AtomicType::Bf16,
        Some(E::U32) => AtomicType::U32,
        Some(E::I32) => AtomicType::S32,
        Some(E::U64) => AtomicType::U64,
        Some(E::I64) => AtomicType::S64,
        _ => AtomicType::B16,
    });
    let bytes = match ty {
        AtomicType::B16 => element.map_or(2, |element| element.bytes() as usize),
        AtomicType::F16 | AtomicType::Bf16 => 2,
        AtomicType::B64 | AtomicType::U64 | AtomicType::S64 | AtomicType::F64 => 8,
        _ => 4,
    };
    (ty, bytes)
}
