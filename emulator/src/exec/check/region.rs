//! Whether accesses to shared memory stay inside one of its named regions.

use crate::exec::state::bulk::Transfer;
use crate::exec::state::cluster::in_block;
use crate::exec::state::context::Context;
use crate::exec::state::regions::Regions;
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::{FULL, LANES, lanes};
use crate::report::FindingKind;
use crate::space::{RANK_SHIFT, SHARED_BASE, Space};

impl<'a> Context<'a> {
    /// The regions, if there are any and accesses are held to them.
    #[inline(always)]
    fn checked_regions(&self) -> Option<&'a Regions<'a>> {
        let environment = self.environment;
        environment.regions.as_ref().filter(|_| environment.options.checks.regions)
    }

    /// Lanes access so many bytes each, all of which must lie in one region.
    #[inline(always)]
    pub fn region_access(&mut self, w: &Warp, window: &Window, bytes: u32, what: &'static str) {
        if window.space == Space::Shared
            && let Some(regions) = self.checked_regions()
        {
            self.region_lanes(regions, w, window, bytes, what);
        }
    }

    #[inline(never)]
    fn region_lanes(
        &mut self,
        regions: &Regions<'_>,
        w: &Warp,
        window: &Window,
        bytes: u32,
        what: &'static str,
    ) {
        let cluster = &self.environment.cluster;
        let in_block =
            |offset: u64| offset as u32 - cluster.start(cluster.rank_of_offset(offset as u32));
        let first = window.offsets[window.mask.trailing_zeros() as usize & 31];
        if let Some(part) = regions.find(in_block(first)) {
            let base = first - u64::from(in_block(first));
            // As for bounds: nothing is negative if all lanes are in the region of the first.
            let (start, last) = (
                base + u64::from(part.start),
                (base + u64::from(part.end)).wrapping_sub(u64::from(bytes)),
            );
            let mut high = last;
            if window.mask == FULL {
                for lane in 0..LANES {
                    high |= window.offsets[lane].wrapping_sub(start)
                        | last.wrapping_sub(window.offsets[lane]);
                }
            } else {
                for lane in lanes(window.mask) {
                    high |= window.offsets[lane].wrapping_sub(start)
                        | last.wrapping_sub(window.offsets[lane]);
                }
            }
            if high >> 63 == 0 {
                return;
            }
        }
        let stray =
            lanes(window.mask).find(|&lane| !regions.hold(in_block(window.offsets[lane]), bytes));
        if let Some(lane) = stray {
            let offset = in_block(window.offsets[lane]);
            self.region_report(w.pc, (w.id, lane as u32), what, offset, bytes);
        }
    }

    /// A range of shared memory, by its address, must lie in one region.
    #[inline(always)]
    pub fn region_range(&mut self, w: &Warp, lane: u32, what: &'static str, address: u32, bytes: u32) {
        let offset = in_block(address) - SHARED_BASE;
        if self.checked_regions().is_some_and(|regions| !regions.hold(offset, bytes)) {
            self.region_report(w.pc, (w.id, lane), what, offset, bytes);
        }
    }

    /// The bytes of a bulk copy must lie in one region.
    pub fn region_bulk(&mut self, w: &Warp, t: &Transfer) {
        self.region_range(w, t.issuer.lane, "bulk copy", t.shared, t.bytes.shared());
    }

    /// An operand of a multiplication must lie in one region.
    #[inline(always)]
    pub fn region_operand(&mut self, w: &Warp, place: usize, what: &'static str) {
        if self.checked_regions().is_some() {
            let [first, end] = self.tiles.get(place).hull;
            self.region_range(w, 0, what, self.environment.cluster.address(first), end - first);
        }
    }

    #[cold]
    #[inline(never)]
    fn region_report(
        &mut self,
        pc: u32,
        (warp, lane): (u32, u32),
        what: &'static str,
        offset: u32,
        bytes: u32,
    ) {
        self.report(FindingKind::OutOfRegion, pc, warp, lane, |context| {
            let regions = &context.environment.regions;
            let touched =
                regions.as_ref().map_or(String::new(), |regions| regions.describe(offset, bytes));
            let (first, end) = (SHARED_BASE + offset, SHARED_BASE + offset + bytes);
            format!(
                "{what} of {bytes} bytes, shared addresses {first:#x} to {end:#x}, touches {touched}"
            )
        });
    }

    /// A shared address for a message, with its region if it has one, and in a cluster the block that it
    /// belongs to: `0x1480 (k[1] + 0x80)`.
    pub fn shared_place(&self, address: u32) -> String {
        let offset = in_block(address).checked_sub(SHARED_BASE);
        let regions = self.environment.regions.as_ref();
        let place = match offset.zip(regions).and_then(|(offset, regions)| regions.name(offset)) {
            Some(name) => format!("{address:#x} ({name})"),
            None => format!("{address:#x}"),
        };
        if self.environment.cluster.is_one() {
            return place;
        }
        let [x, y, z] = self.block_at(address >> RANK_SHIFT);
        format!("{place} of block ({x}, {y}, {z})")
    }
}
