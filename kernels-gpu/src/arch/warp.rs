//! Exchange between the 32 lanes of a warp. All lanes take part.

use super::math;
use core::arch::asm;

/// The value of lane `lane ^ mask`. PTX: `shfl.sync.bfly.b32`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn shuffle_xor(value: f32, mask: u32) -> f32 {
    let result: f32;
    asm!("shfl.sync.bfly.b32 {}, {}, {}, 31, -1;", out(reg32) result, in(reg32) value, in(reg32) mask,
        options(nomem, nostack));
    result
}

/// The bits of lane `lane ^ mask`. PTX: `shfl.sync.bfly.b32`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn exchange(value: u32, mask: u32) -> u32 {
    let result: u32;
    asm!("shfl.sync.bfly.b32 {}, {}, {}, 31, -1;", out(reg32) result, in(reg32) value, in(reg32) mask,
        options(nomem, nostack));
    result
}

/// The value of lane `lane`, the same for all. PTX: `shfl.sync.idx.b32`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn shuffle(value: f32, lane: u32) -> f32 {
    let result: f32;
    asm!("shfl.sync.idx.b32 {}, {}, {}, 31, -1;", out(reg32) result, in(reg32) value, in(reg32) lane,
        options(nomem, nostack));
    result
}

/// The largest value of all lanes, the same for all; NaN is passed over. Five [`shuffle_xor`].
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn max(mut value: f32) -> f32 {
    let mut mask = 16;
    while mask > 0 {
        value = math::max(value, shuffle_xor(value, mask));
        mask /= 2;
    }
    value
}

/// The sum over all lanes, the same bits for all. Five [`shuffle_xor`].
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn sum(mut value: f32) -> f32 {
    let mut mask = 16;
    while mask > 0 {
        value += shuffle_xor(value, mask);
        mask /= 2;
    }
    value
}

/// The value of lane `lane`, which may be another one for each lane. PTX: `shfl.sync.idx.b32`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn broadcast(value: u32, lane: u32) -> u32 {
    let result: u32;
    asm!("shfl.sync.idx.b32 {}, {}, {}, 31, -1;", out(reg32) result, in(reg32) value, in(reg32) lane,
        options(nomem, nostack));
    result
}

/// The value of the lane `distance` below; the lane's own where there is none. PTX: `shfl.sync.up.b32`.
/// sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn shuffle_up(value: u32, distance: u32) -> u32 {
    let result: u32;
    asm!("shfl.sync.up.b32 {}, {}, {}, 0, -1;", out(reg32) result, in(reg32) value, in(reg32) distance,
        options(nomem, nostack));
    result
}

/// A bit for each lane that has the same value. PTX: `match.any.sync.b32`. sm_70.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn match_any(value: u32) -> u32 {
    let result: u32;
    asm!("match.any.sync.b32 {}, {}, -1;", out(reg32) result, in(reg32) value, options(nomem, nostack));
    result
}

/// A bit for each lane that says so. PTX: `vote.sync.ballot.b32`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn ballot(condition: bool) -> u32 {
    let result: u32;
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {1}, 0;",
        "vote.sync.ballot.b32 {0}, %p_in, -1;", "}}",
        out(reg32) result, in(reg32) condition as u32, options(nomem, nostack));
    result
}

/// Whether any lane says so. PTX: `vote.sync.any.pred`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn any(condition: bool) -> bool {
    let result: u32;
    asm!("{{", ".reg .pred %p_in, %p_out;", "setp.ne.u32 %p_in, {1}, 0;",
        "vote.sync.any.pred %p_out, %p_in, -1;", "selp.u32 {0}, 1, 0, %p_out;", "}}",
        out(reg32) result, in(reg32) condition as u32, options(nomem, nostack));
    result != 0
}

/// The lanes meet, and see each other's writes to shared memory. PTX: `bar.warp.sync`. sm_30.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn warp_sync() {
    asm!("bar.warp.sync -1;", options(nostack));
}

/// Whether this is the one lane of the warp that was elected; the same lane every time. PTX: `elect.sync`.
/// sm_90.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn elect() -> bool {
    let result: u32;
    asm!("{{", ".reg .pred %p_out;", "elect.sync _|%p_out, -1;", "selp.u32 {}, 1, 0, %p_out;", "}}",
        out(reg32) result, options(nomem, nostack));
    result != 0
}

/// `value`, which is the same in all lanes, in a register that the assembler knows to be uniform.
///
/// Descriptors that depend on loaded data would otherwise be carried to uniform registers by dozens of
/// instructions before every `wgmma`. PTX: `redux.sync.or.b32`. sm_80.
///
/// # Safety
/// All 32 lanes call it together, with the same value.
#[inline(always)]
pub unsafe fn uniform(value: u32) -> u32 {
    let result: u32;
    asm!("redux.sync.or.b32 {}, {}, -1;", out(reg32) result, in(reg32) value, options(nomem, nostack));
    result
}

/// The sum over all lanes, the same for all; it wraps around. PTX: `redux.sync.add.u32`. sm_80.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn sum_u32(value: u32) -> u32 {
    let result: u32;
    asm!("redux.sync.add.u32 {}, {}, -1;", out(reg32) result, in(reg32) value, options(nomem, nostack));
    result
}

/// The largest value of all lanes, the same for all. PTX: `redux.sync.max.u32`. sm_80.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn max_u32(value: u32) -> u32 {
    let result: u32;
    asm!("redux.sync.max.u32 {}, {}, -1;", out(reg32) result, in(reg32) value, options(nomem, nostack));
    result
}
