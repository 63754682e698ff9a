//! Multi-scale deformable attention: gradients of locations and weights, and of value unless these are added
//! up in order ([`super::msda_gather`]).
//!
//! ```text
//! with d(v) = sum over channels of g v, and corners v00, v01, v10, v11     docs/semantics.md, section 5
//! slant = d(v11 - v10) - d(v01 - v00)
//! dx = s_x a (d(v01 - v00) + fy slant)                dy = s_y a (d(v10 - v00) + fx slant)
//! da = d(v00) + fx d(v01 - v00) + fy (d(v10 - v00) + fx slant)         dvalue += a share g, each corner
//! ```
//!
//! Points are shared as in [`super::msda_forward`]. Each lane has the products of its channels; the sums over
//! the lanes of a query go to the lane that computed the point.

use crate::abi::{MSDA_BACKWARD_THREADS, MsdaParams};
use crate::arch::{math, shared, thread, warp};
use crate::msda::levels::Levels;
use crate::msda::point::{Board, Corners, Point, corner_shares, levels_offset};
use crate::msda::strip::{DOT_UNIT, Group, Strip, Strips};
use crate::msda::tensor::{Row, row_address};
use crate::msda::walk::{Query, Walk};
use crate::tile::element;

/// Threads of a block.
const THREADS: u32 = MSDA_BACKWARD_THREADS;

/// Where the rows of a query's head are, and which channels of them this lane has.
struct Lane<S: Strip> {
    /// Value, at the lane's first channel.
    value: u64,
    /// Bytes from a cell of value to the next.
    value_stride: i32,
    /// Sums of gradients of value, at channel 0.
    sums: u64,
    sums_stride: i32,
    /// Gradient of the query's o, at channel 0.
    output: u64,
    /// The lane's first channel.
    channel: u32,
    /// The lane in its group.
    group: Group,
    /// Its gradients of o from `held` on.
    g: S::Raw,
    /// The same of the channels that it adds to sums.
    spread: S::Values,
    /// Which channel they begin with.
    held: u32,
    is_there: bool,
}

impl<S: Strip> Lane<S> {
    #[inline(always)]
    unsafe fn new<const WIDE: bool>(p: &MsdaParams, of: Query, slot: u32) -> Self {
        let channel = slot * S::CHANNELS;
        let skipped = (channel * S::ELEMENT_BYTES) as u64;
        let value = row_address(&p.value, of.batch, 0, of.head, S::ELEMENT_BYTES);
        let output = row_address(&p.output, of.batch, of.query, of.head, S::ELEMENT_BYTES);
        let sums = row_address(&p.sums, of.batch, 0, of.head, 4);
        let mut lane = Lane {
            value: value.wrapping_add(skipped),
            value_stride: p.value.row_stride as i32 * S::ELEMENT_BYTES as i32,
            sums,
            sums_stride: p.sums.row_stride as i32 * 4,
            output,
            channel,
            group: Group { lanes: p.lanes, slot },
            g: S::load_if(0, false),
            spread: S::ZEROS,
            held: 0,
            is_there: of.query < p.queries,
        };
        lane.hold::<WIDE>(p, 0);
        lane
    }

    /// Reads the gradients of o from `first` on, counted from the lane's own first channel.
    #[inline(always)]
    unsafe fn hold<const WIDE: bool>(&mut self, p: &MsdaParams, first: u32) {
        let is_there = self.is_there && self.channel + first < p.channels;
        let at = self.output.wrapping_add((first * S::ELEMENT_BYTES) as u64);
        let own = at.wrapping_add((self.channel * S::ELEMENT_BYTES) as u64);
        self.g = S::load_if(own, is_there);
        if p.sums.address != 0 {
            let end = if self.is_there { p.channels - first } else { 0 };
            self.spread = if WIDE {
                // Of four channels a lane adds those that it has.
                S::values(self.g)
            } else {
                S::load_spread(at, self.group, end)
            };
        }
        self.held = first;
    }

    /// Adds products with the corners of a point to `dots`, and the point's gradients to the sums.
    #[inline(always)]
    unsafe fn visit<const WIDE: bool>(
        &mut self,
        p: &MsdaParams,
        corners: Corners,
        shares: [f32; 4],
        dots: &mut [f32; 4],
    ) {
        let mut first = 0;
        while first < p.channels {
            if first != self.held {
                self.hold::<WIDE>(p, first);
            }
            let value = self.value.wrapping_add((first * S::ELEMENT_BYTES) as u64);
            let has_channels = self.channel + first < p.channels;
            let loaded = corners.only_if(has_channels).load::<S>(value, self.value_stride);
            if p.sums.address != 0 {
                let sums = self.sums.wrapping_add((4 * first) as u64);
                let addresses = corners.addresses(sums, self.sums_stride);
                let (group, end) = (self.group, p.channels - first);
                let mut corner = 0;
                while corner < 4 {
                    if corners.has(corner as u32) {
                        let (at, share) = (addresses[corner], shares[corner]);
                        S::add_spread::<WIDE>(at, group, end, share, &self.spread);
                    }
                    corner += 1;
                }
            }
            S::dots(dots, &S::values(self.g), loaded);
            first += p.lanes * S::CHANNELS;
        }
    }
}

#[inline(always)]
unsafe fn backward<E, S, const WIDE: bool>(p: &MsdaParams)
where
    E: Strips<Element: Strip<Values = [f32; 1]>>,
    S: Strip,
{
    let base = shared::dynamic_base();
    let levels = Levels::new(p, base + levels_offset(THREADS));
    let board = Board::new(base, THREADS, p.lanes);
    let slot = thread::thread_idx_x() & (p.lanes - 1);
    let mut walk = Walk::<{ THREADS / 32 }>::new(p);
    while let Some(of) = walk.next(p) {
        let mut lane = Lane::<S>::new::<WIDE>(p, of, slot);
        // Addresses are computed where they are used: registers are for what points share.
        let row = |view, is_f32| {
            let [batch, query, head] = [of.batch, of.query, of.head].map(thread::opaque_here);
            Row::new::<E>(view, batch, query, head, is_f32 != 0)
        };
        let mut first = 0;
        while first < p.points {
            let index = first + slot;
            let has_point = lane.is_there && index < p.points;
            let point = if has_point {
                let locations = row(&p.locations, p.locations_f32);
                let weights = row(&p.weights, p.weights_f32);
                Point::new::<E>(p, levels, locations, weights, index)
            } else {
                Point::none()
            };
            board.write(&point, [point.x.fraction, point.y.fraction, point.weight, 0.0]);
            warp::warp_sync();
            let left = p.points - first;
            let count = if left < p.lanes { left } else { p.lanes };
            let mut sums = [0.0; 3];
            let mut next = 0;
            while next < count {
                let ([x, y, weight, _], corners) = board.read(next);
                let mut dots = [0.0; 4];
                lane.visit::<WIDE>(p, corners, corner_shares(x, y, weight), &mut dots);
                let found = over_lanes(p.lanes, combine(dots, x, y));
                if next == slot {
                    sums = found;
                }
                next += 1;
            }
            warp::warp_sync();
            if has_point {
                let [dx, dy, d_weight] = sums;
                let (a, poison) = (point.weight, point.poison());
                let d_weights = row(&p.d_weights, p.weights_f32);
                let d_locations = row(&p.d_locations, p.locations_f32);
                d_weights.store::<E>(index, d_weight * (1.0 / DOT_UNIT));
                d_locations.store::<E>(2 * index, gradient(dx, a, point.x.slope) + poison);
                d_locations.store::<E>(2 * index + 1, gradient(dy, a, point.y.slope) + poison);
            }
            first += p.lanes;
        }
    }
}

/// The gradient of a coordinate, of the sum in units of [`DOT_UNIT`]: `sum a slope`. A slope is 0 or at least
/// 1; where it is 0 no product before it may leave the range of f32.
#[inline(always)]
fn gradient(sum: f32, a: f32, slope: f32) -> f32 {
    sum * math::min_or_nan(slope, 1.0) * a * (math::max(slope, 1.0) * (1.0 / DOT_UNIT))
}

/// From products with corners: those with the slopes along x and y, and with the sample.
#[inline(always)]
fn combine([corner, right, down, right_below]: [f32; 4], x: f32, y: f32) -> [f32; 3] {
    let slant = right_below - right;
    let along_y = down + x * slant;
    [right + y * slant, along_y, corner + x * right + y * along_y]
}

/// Sums over the lanes of a query, the same for all of them.
#[inline(always)]
unsafe fn over_lanes(lanes: u32, mut sums: [f32; 3]) -> [f32; 3] {
    let mut mask = lanes / 2;
    while mask > 0 {
        let others = sums.map(|sum| warp::shuffle_xor(sum, mask));
        sums = [sums[0] + others[0], sums[1] + others[1], sums[2] + others[2]];
        mask /= 2;
    }
    sums
}

macro_rules! entries {
    ($(($forward:ident, $name:ident, $gather:ident, $dtype:ident, $access:ident))*) => {
        $(
            /// The main kernel of the backward, of one element type and access.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                backward::<element::$dtype, <element::$dtype as Strips>::$access, false>(&p);
            }
        )*
    };
}
crate::for_each_msda_sampling_sm80!(entries);

macro_rules! wide_entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// As the kernel for compute capability 8.0 with 16-byte access, with four channels a lane, whose
            /// gradients of value are added 16 bytes at a time.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says, and `sums_aligned`.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                backward::<element::$dtype, <element::$dtype as Strips>::Four, true>(&p);
            }
        )*
    };
}
crate::for_each_msda_backward_sm90a!(wide_entries);
