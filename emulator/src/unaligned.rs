//! Values of the emulated memories, at any address.
//!
//! `read_unaligned` and `write_unaligned` check in builds with debug assertions, each time, that their two
//! ranges do not overlap, and lanes are read one by one: that took a third of a load's time.

/// A value with no alignment.
#[repr(C, packed)]
struct Unaligned<T>(T);

/// The value at an address.
///
/// # Safety
///
/// The bytes of a `T` there may be read, and any bits are a `T`.
#[inline(always)]
pub unsafe fn read<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller vouches for the range, and the type has no alignment.
    unsafe { (*at.cast::<Unaligned<T>>()).0 }
}

/// Writes the value at an address.
///
/// # Safety
///
/// The bytes of a `T` there may be written.
#[inline(always)]
pub unsafe fn write<T: Copy>(at: *mut u8, value: T) {
    // SAFETY: as in `read`.
    unsafe { (*at.cast::<Unaligned<T>>()).0 = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written_at_any_address() {
        for at in 0..8 {
            let mut bytes: [u8; 16] = std::array::from_fn(|byte| byte as u8);
            let expected = u64::from_le_bytes(std::array::from_fn(|byte| (at + byte) as u8));
            // SAFETY: at + 8 is at most 15.
            let value: u64 = unsafe { read(bytes.as_ptr().add(at)) };
            assert_eq!(value.to_le(), expected);
            // SAFETY: as above.
            unsafe { write(bytes.as_mut_ptr().add(at), [0xff_u8; 8]) };
            assert_eq!(bytes.iter().filter(|&&byte| byte == 0xff).count(), 8);
            assert!(bytes[at..at + 8].iter().all(|&byte| byte == 0xff));
        }
    }
}
