//! Arguments as they are before a caller sets any: what must be said is not, and the rest is off.

use super::types::{CAttention, CMsda, CScores};
use super::types::{CBackwardArgs, CForwardArgs, CMsdaBackwardArgs, CMsdaForwardArgs, Versioned};
use super::{guarded, invalid};

/// `FATTN_SAME`: of a dtype that follows another one. Of one that does not, an error, until it is set.
pub const SAME: i32 = -1;

/// No mask, no cap, the usual scale, and a dtype that is yet to be set.
fn attention() -> CAttention {
    CAttention {
        dtype: SAME,
        output_dtype: SAME,
        window_left: -1,
        window_right: -1,
        scale: f32::NAN,
        ..CAttention::default()
    }
}

fn scores() -> CScores {
    CScores { bias_dtype: SAME, ..CScores::default() }
}

fn msda() -> CMsda {
    CMsda { dtype: SAME, locations_dtype: SAME, weights_dtype: SAME, ..CMsda::default() }
}

/// Writes `whole`, as much of it as the caller's version of the struct has.
///
/// # Safety
/// `args` is null, or writable for `struct_bytes`.
unsafe fn initialise<A: Versioned>(
    function: &str,
    args: *mut A,
    struct_bytes: u32,
    whole: impl FnOnce(u32) -> A,
) -> i32 {
    guarded(|| {
        if args.is_null() {
            return Err(invalid(format!("{function}: expected arguments, got null")));
        }
        let bytes = A::known_size(function, struct_bytes)?;
        let whole = whole(struct_bytes);
        // SAFETY: as many bytes as an `A` has, or fewer; writable by the caller's word.
        unsafe { (&raw const whole).cast::<u8>().copy_to_nonoverlapping(args.cast(), bytes) };
        Ok(())
    })
}

/// Arguments of a forward pass without a mask, with the usual scale, and no dtype yet.
///
/// # Safety
/// `args` is null, or writable for `struct_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_forward_args_init(args: *mut CForwardArgs, struct_bytes: u32) -> i32 {
    let whole = |struct_bytes| CForwardArgs {
        struct_bytes,
        attention: attention(),
        scores: scores(),
        ..CForwardArgs::default()
    };
    // SAFETY: passed on to the caller.
    unsafe { initialise("fattn_forward_args_init", args, struct_bytes, whole) }
}

/// The same of a backward pass, in the fast mode.
///
/// # Safety
/// As [`fattn_forward_args_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_backward_args_init(args: *mut CBackwardArgs, struct_bytes: u32) -> i32 {
    let whole = |struct_bytes| CBackwardArgs {
        struct_bytes,
        attention: attention(),
        scores: scores(),
        ..CBackwardArgs::default()
    };
    // SAFETY: passed on to the caller.
    unsafe { initialise("fattn_backward_args_init", args, struct_bytes, whole) }
}

/// The same of multi-scale deformable attention, with zeros outside of levels.
///
/// # Safety
/// As [`fattn_forward_args_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_forward_args_init(
    args: *mut CMsdaForwardArgs,
    struct_bytes: u32,
) -> i32 {
    let whole =
        |struct_bytes| CMsdaForwardArgs { struct_bytes, msda: msda(), ..CMsdaForwardArgs::default() };
    // SAFETY: passed on to the caller.
    unsafe { initialise("fattn_msda_forward_args_init", args, struct_bytes, whole) }
}

/// The same of its backward pass, in the fast mode.
///
/// # Safety
/// As [`fattn_forward_args_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_backward_args_init(
    args: *mut CMsdaBackwardArgs,
    struct_bytes: u32,
) -> i32 {
    let whole =
        |struct_bytes| CMsdaBackwardArgs { struct_bytes, msda: msda(), ..CMsdaBackwardArgs::default() };
    // SAFETY: passed on to the caller.
    unsafe { initialise("fattn_msda_backward_args_init", args, struct_bytes, whole) }
}
