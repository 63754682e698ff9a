//! What a boolean mask shows of a tile, by its map ([`crate::geometry::mask_map`]): tiles of which it shows
//! nothing are skipped, and of tiles of which it shows all the bits are not looked at.
//!
//! Which tiles are skipped depends on the map and on where a tile stands, and on nothing else: whoever asks
//! gets the same answer.

use super::ScorePlace;
use crate::abi::ScoreParams;
use crate::arch::global;
use crate::geometry::mask_map::{LEVELS, Place, Shown};

/// What the mask shows of queries `first..=last` and keys `first..=last`, none of which lies past the end of
/// its sequence, of the first `heads` query heads from that of `place` on.
///
/// # Safety
/// The map is as [`ScoreParams`] says.
#[inline(always)]
pub unsafe fn shown(
    p: &ScoreParams,
    place: &ScorePlace,
    heads: u32,
    queries: (i32, i32),
    (first_key, last_key): (i32, i32),
) -> Shown {
    let view = &p.mask_map;
    let at = Place::of(queries, (place.first_key + first_key, place.first_key + last_key));
    // A window has as many elements of each level.
    let of_level = view.key_stride as u32 / LEVELS;
    let granule = at.granule * view.query_stride as u32;
    let element = (at.window * LEVELS + at.level) as u64 * of_level as u64 + granule as u64;
    let mut shown = Shown::NOTHING;
    let mut head = 0;
    loop {
        let offset = place.sequence as i64 * view.batch_stride
            + (place.head + head) as i64 * view.head_stride
            + place.key_head as i64 * view.key_head_stride;
        let address = view.address.wrapping_add(8 * (element.wrapping_add(offset as u64)));
        shown = shown.and(global::load_u32x2(address), at.bits);
        head += 1;
        if head >= heads || view.head_stride == 0 {
            break;
        }
    }
    shown
}
