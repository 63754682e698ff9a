//! How computing warpgroups of the Hopper backward give dQ to its writers.

use crate::arch::{bulk_copy, shared, warp};
use crate::geometry::size::Count;
use crate::pipeline::roles::WARPGROUP;
use crate::pipeline::stages::{Cursor, Stages};

/// Gives `COUNT` registers of dQ, from `FIRST` on, to the writer, by the thread's `slot` in shared memory,
/// which must have been acquired.
#[inline(always)]
pub(super) unsafe fn hand_over<const N: usize, const FIRST: usize, const COUNT: usize>(
    lane: u32,
    dq: &[f32; N],
    slot: u32,
    stage: Stages<Count<1>>,
    turn: &Cursor<Count<1>>,
) {
    put::<N, FIRST, COUNT>(dq, slot);
    announce(lane == 0, stage, turn);
}

/// The first half of [`hand_over`]: writes the registers, four at a time.
#[inline(always)]
pub(super) unsafe fn put<const N: usize, const FIRST: usize, const COUNT: usize>(
    dq: &[f32; N],
    slot: u32,
) {
    let mut i = 0;
    while i < COUNT / 4 {
        let four = [0, 1, 2, 3].map(|e| dq[FIRST + 4 * i + e].to_bits());
        shared::store_u32x4(slot + i as u32 * 16 * WARPGROUP, four);
        i += 1;
    }
}

/// The second half of [`hand_over`]: the one lane of a warp that `tells` says that the warp has written.
#[inline(always)]
pub(super) unsafe fn announce(tells: bool, stage: Stages<Count<1>>, turn: &Cursor<Count<1>>) {
    bulk_copy::fence();
    warp::warp_sync();
    if tells {
        stage.fill(turn);
    }
}
