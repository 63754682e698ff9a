//! Multi-scale deformable attention: o, for every query and head the weighted sum of samples of value.
//!
//! ```text
//! o = sum over points of a sum over corners of share * v          docs/semantics.md, section 5
//! ```
//!
//! Each lane of a query first computes one point, all that does not depend on channels, and leaves it in
//! shared memory. Then all lanes take the points two by two, 16 bytes of each corner at a time.

use crate::abi::{MSDA_FORWARD_THREADS, MsdaParams};
use crate::arch::{shared, thread, warp};
use crate::msda::levels::Levels;
use crate::msda::point::{Board, Point, levels_offset};
use crate::msda::strip::{Strip, Strips};
use crate::msda::tensor::{Row, row_address};
use crate::msda::walk::{Query, Walk};
use crate::tile::element;

/// Threads of a block.
const THREADS: u32 = MSDA_FORWARD_THREADS;

#[inline(always)]
unsafe fn forward<E, S>(p: &MsdaParams)
where
    E: Strips<Element: Strip<Values = [f32; 1]>>,
    S: Strip,
{
    let base = shared::dynamic_base();
    let levels = Levels::new(p, base + levels_offset(THREADS));
    let board = Board::new(base, THREADS, p.lanes);
    let mut walk = Walk::<{ THREADS / 32 }>::new(p);
    while let Some(query) = walk.next(p) {
        let mut first_channel = 0;
        while first_channel < p.channels {
            strip::<E, S>(p, levels, board, query, first_channel);
            first_channel += p.lanes * S::CHANNELS;
        }
    }
}

/// The channels from `first_channel` on, as many as lanes hold.
#[inline(always)]
unsafe fn strip<E, S>(p: &MsdaParams, levels: Levels, board: Board, of: Query, first_channel: u32)
where
    E: Strips<Element: Strip<Values = [f32; 1]>>,
    S: Strip,
{
    let slot = thread::thread_idx_x() & (p.lanes - 1);
    let is_there = of.query < p.queries;
    let channel = first_channel + slot * S::CHANNELS;
    let has_channels = channel < p.channels;
    let locations = Row::new::<E>(&p.locations, of.batch, of.query, of.head, p.locations_f32 != 0);
    let weights = Row::new::<E>(&p.weights, of.batch, of.query, of.head, p.weights_f32 != 0);
    let value = row_address(&p.value, of.batch, 0, of.head, S::ELEMENT_BYTES)
        .wrapping_add((channel * S::ELEMENT_BYTES) as u64);
    let stride = p.value.row_stride as i32 * S::ELEMENT_BYTES as i32;
    let mut sum = S::ZEROS;
    let mut first = 0;
    while first < p.points {
        let index = first + slot;
        let point = if is_there && index < p.points {
            Point::new::<E>(p, levels, locations, weights, index)
        } else {
            Point::none()
        };
        board.write(&point, point.shares());
        warp::warp_sync();
        let left = p.points - first;
        let count = if left < p.lanes { left } else { p.lanes };
        let mut next = 0;
        while next < count {
            // There are at least two lanes, and one without a point left one without corners.
            let (a_shares, a) = board.read(next);
            let (b_shares, b) = board.read(next + 1);
            let a = a.only_if(has_channels).load::<S>(value, stride);
            let b = b.only_if(has_channels).load::<S>(value, stride);
            let mut corner = 0;
            while corner < 4 {
                S::add(&mut sum, a_shares[corner], a[corner]);
                corner += 1;
            }
            let mut corner = 0;
            while corner < 4 {
                S::add(&mut sum, b_shares[corner], b[corner]);
                corner += 1;
            }
            next += 2;
        }
        warp::warp_sync();
        first += p.lanes;
    }
    if is_there && has_channels {
        let row = row_address(&p.output, of.batch, of.query, of.head, S::ELEMENT_BYTES);
        S::store(row.wrapping_add((channel * S::ELEMENT_BYTES) as u64), &sum);
    }
}

macro_rules! entries {
    ($(($name:ident, $backward:ident, $gather:ident, $dtype:ident, $access:ident))*) => {
        $(
            /// The forward of one element type and access.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                forward::<element::$dtype, <element::$dtype as Strips>::$access>(&p);
            }
        )*
    };
}
crate::for_each_msda_sampling_sm80!(entries);
