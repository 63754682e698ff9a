//! The regions of a launch: whether they fit, and which one bytes of shared memory belong to.

use crate::error::LaunchError;
use crate::region::Region;
use crate::space::SHARED_BASE;
use std::fmt::{self, Write};

/// A region by its place in all of shared memory, static variables included.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    name: &'a str,
    /// First byte.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { name, start, end } = self;
        write!(f, "{name} ({:#x} to {:#x})", SHARED_BASE + start, SHARED_BASE + end)
    }
}

/// Bytes of a line of shared memory, for which it is known how many regions begin before it.
const LINE: u32 = 64;

/// The regions of a launch, which have no bytes in common.
#[derive(Debug)]
pub struct Regions<'a> {
    /// In the order of their places.
    parts: Vec<Part<'a>>,
    /// For each line how many parts begin at its first byte or before.
    begun: Vec<u32>,
}

impl<'a> Regions<'a> {
    /// The regions of a launch of a kernel with so many static and dynamic bytes of shared memory, of which
    /// the latter begin at `base`. `None` if there are none.
    pub fn new(
        kernel: &str,
        regions: &'a [Region],
        [static_bytes, base, dynamic_bytes]: [u32; 3],
    ) -> Result<Option<Self>, LaunchError> {
        if regions.is_empty() {
            return Ok(None);
        }
        let mut sorted: Vec<&Region> = regions.iter().filter(|region| region.bytes > 0).collect();
        sorted.sort_by_key(|region| region.offset);
        for region in &sorted {
            if region.end() > u64::from(dynamic_bytes) {
                let (kernel, region) = (kernel.to_owned(), (*region).clone());
                return Err(LaunchError::RegionBounds { kernel, region, bytes: dynamic_bytes });
            }
        }
        if let Some(pair) = sorted.windows(2).find(|pair| u64::from(pair[1].offset) < pair[0].end()) {
            let regions = [pair[0].clone(), pair[1].clone()];
            return Err(LaunchError::RegionOverlap { kernel: kernel.to_owned(), regions });
        }
        let part = |region: &&'a Region| {
            let start = base + region.offset;
            Part { name: &region.name, start, end: start + region.bytes }
        };
        // Static variables are declared as well; one region for all.
        let variables = Part { name: "static variables", start: 0, end: static_bytes };
        let parts: Vec<Part> =
            (static_bytes > 0).then_some(variables).into_iter().chain(sorted.iter().map(part)).collect();
        let begun = (0..(base + dynamic_bytes).div_ceil(LINE))
            .map(|line| parts.partition_point(|part| part.start <= line * LINE) as u32)
            .collect();
        Ok(Some(Regions { parts, begun }))
    }

    /// The region of a byte, by its offset in all of shared memory.
    #[inline(always)]
    pub fn find(&self, offset: u32) -> Option<&Part<'a>> {
        let mut begun = *self.begun.get((offset / LINE) as usize)? as usize;
        while self.parts.get(begun).is_some_and(|part| part.start <= offset) {
            begun += 1;
        }
        self.parts.get(begun.checked_sub(1)?).filter(|part| offset < part.end)
    }

    /// Whether all of a range lies in one region.
    #[inline(always)]
    pub fn hold(&self, offset: u32, bytes: u32) -> bool {
        self.find(offset).is_some_and(|part| bytes <= part.end - offset)
    }

    /// `k[1] + 0x80`, for a byte that belongs to a region; `k[1]` for its first.
    pub fn name(&self, offset: u32) -> Option<String> {
        let part = self.find(offset)?;
        Some(match offset - part.start {
            0 => part.name.to_owned(),
            behind => format!("{} + {behind:#x}", part.name),
        })
    }

    /// What a range touches that does not lie in one region.
    pub fn describe(&self, offset: u32, bytes: u32) -> String {
        let end = offset.saturating_add(bytes);
        let first = self.parts.partition_point(|part| part.end <= offset);
        let last = self.parts.partition_point(|part| part.start < end).max(first);
        let mut text = match &self.parts[first..last] {
            [] => {
                let before = first.checked_sub(1).map(|index| format!(" behind {}", self.parts[index]));
                let after = self.parts.get(first).map(|part| format!(" before {part}"));
                let place: Vec<String> = before.into_iter().chain(after).collect();
                return format!("no region,{}", place.join(" and"));
            }
            [one] => format!("{one}"),
            [one, .., other] => format!("{one} and {other}"),
        };
        let touched = &self.parts[first..last];
        if touched.len() > 2 {
            // Writing to a String cannot fail.
            let _ = write!(text, ", and {} between them", touched.len() - 2);
        }
        let inside = |part: &Part<'_>| part.end.min(end) - part.start.max(offset);
        let outside = bytes - touched.iter().map(inside).sum::<u32>();
        if outside > 0 {
            let _ = write!(text, ", and {outside} bytes of no region");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Region; 4] {
        [
            Region::new("v", 160, 96),
            Region::new("k", 0, 130),
            Region::new("nothing", 140, 0),
            Region::new("word", 130, 4),
        ]
    }

    #[test]
    fn bytes_belong_to_the_region_that_holds_them() {
        let all = all();
        let regions = Regions::new("t", &all, [12, 16, 256]).unwrap().unwrap();
        let name = |offset| regions.find(offset).map(|part| part.name);
        assert_eq!(
            [0, 11, 12, 15].map(name),
            [Some("static variables"), Some("static variables"), None, None]
        );
        assert_eq!([16, 145, 146, 149].map(name), [Some("k"), Some("k"), Some("word"), Some("word")]);
        assert_eq!([150, 175, 176, 271].map(name), [None, None, Some("v"), Some("v")]);
        assert_eq!([272, 1 << 20, u32::MAX].map(name), [None; 3]);
        assert!(regions.hold(16, 130) && !regions.hold(16, 131) && !regions.hold(150, 1));
        assert_eq!(regions.name(176).as_deref(), Some("v"));
        assert_eq!(regions.name(180).as_deref(), Some("v + 0x4"));
    }

    #[test]
    fn what_a_range_touches_is_told() {
        let all = all();
        let regions = Regions::new("t", &all, [0, 0, 256]).unwrap().unwrap();
        let (k, word, v) = ("k (0x400 to 0x482)", "word (0x482 to 0x486)", "v (0x4a0 to 0x500)");
        assert_eq!(regions.describe(128, 4), format!("{k} and {word}"));
        assert_eq!(
            regions.describe(128, 64),
            format!("{k} and {v}, and 1 between them, and 26 bytes of no region")
        );
        assert_eq!(regions.describe(156, 8), format!("{v}, and 4 bytes of no region"));
        assert_eq!(regions.describe(140, 4), format!("no region, behind {word} and before {v}"));
        assert_eq!(regions.describe(300, 4), format!("no region, behind {v}"));
    }

    #[test]
    fn no_regions_cost_nothing() {
        assert!(Regions::new("t", &[], [0, 0, 256]).unwrap().is_none());
    }
}
