//! Named parts of a block's dynamic shared memory.

use super::layout;
use super::{Arch, Dtype, Family, KernelSpec};
use core::fmt;

/// A named part of a block's dynamic shared memory. Displays as `k[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// What it holds.
    pub name: &'static str,
    /// Which of several with this name.
    pub index: Option<u32>,
    /// First byte, from the start of dynamic shared memory.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// Most regions of a kernel.
const CAPACITY: usize = 48;

/// The regions of a kernel, one behind the other from offset 0.
#[derive(Clone, Copy, Debug)]
pub struct Regions {
    regions: [Region; CAPACITY],
    count: usize,
    bytes: u32,
}

impl Regions {
    /// None.
    pub const fn new() -> Self {
        let none = Region { name: "", index: None, offset: 0, bytes: 0 };
        Regions { regions: [none; CAPACITY], count: 0, bytes: 0 }
    }

    /// Appends `count` regions of `bytes` bytes each, numbered if there are several. The offset of the first.
    ///
    /// # Panics
    /// If there are more than a kernel can have: an error of the compiler, as all lists are constants.
    pub const fn add(&mut self, name: &'static str, count: u32, bytes: u32) -> u32 {
        let first = self.bytes;
        let mut index = 0;
        while index < count {
            self.add_part(name, if count > 1 { Some(index) } else { None }, bytes);
            index += 1;
        }
        first
    }

    /// Appends one region. Its offset.
    ///
    /// # Panics
    /// As [`Regions::add`].
    pub const fn add_part(&mut self, name: &'static str, index: Option<u32>, bytes: u32) -> u32 {
        let offset = self.bytes;
        self.regions[self.count] = Region { name, index, offset, bytes };
        self.count += 1;
        self.bytes += bytes;
        offset
    }

    /// Appends bytes that belong to no region, up to a total.
    ///
    /// # Panics
    /// If there are more already.
    pub const fn pad(&mut self, total: u32) {
        assert!(self.bytes <= total);
        self.bytes = total;
    }

    /// Bytes of all of them, padding included.
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The regions in the order of their offsets.
    pub fn as_slice(&self) -> &[Region] {
        &self.regions[..self.count]
    }
}

impl Default for Regions {
    fn default() -> Self {
        Regions::new()
    }
}

impl KernelSpec {
    /// Whether the two are for the same problems, and differ in their tiles.
    pub fn is_alternative_to(&self, other: &KernelSpec) -> bool {
        let problems =
            |spec: &KernelSpec| (spec.family, spec.arch, spec.dtype, spec.access, spec.head_dim);
        let ways = |spec: &KernelSpec| (spec.gathers_heads, spec.multiplies_parts);
        let same = problems(self) == problems(other) && ways(self) == ways(other);
        same && self.query_rows != other.query_rows
    }

    /// What the kernel keeps where in its dynamic shared memory.
    pub const fn regions(&self) -> Regions {
        let KernelSpec { head_dim, query_rows, key_rows, .. } = *self;
        match (self.family, self.arch, self.dtype) {
            // Two parts of each number.
            (Family::Forward, Arch::Sm80, Dtype::F32) if self.multiplies_parts => {
                layout::forward_mma(2 * head_dim, query_rows, key_rows)
            }
            (Family::Forward, Arch::Sm80, Dtype::F32) => {
                layout::forward_fma(head_dim, query_rows, key_rows)
            }
            (Family::Forward, Arch::Sm80, _) => layout::forward_mma(head_dim, query_rows, key_rows),
            (Family::Forward, Arch::Sm90a, Dtype::F32) => {
                layout::ForwardHopperLayout::new(2 * head_dim, query_rows, key_rows).regions
            }
            (Family::Forward, Arch::Sm90a, _) => {
                layout::ForwardHopperLayout::new(head_dim, query_rows, key_rows).regions
            }
            (Family::Backward, Arch::Sm80, Dtype::F32) if self.multiplies_parts => {
                layout::backward_parts(head_dim, query_rows, key_rows)
            }
            (Family::Backward, Arch::Sm80, Dtype::F32) => {
                layout::backward_fma(head_dim, query_rows, key_rows)
            }
            (Family::Backward, Arch::Sm80, _) => layout::backward_mma(head_dim, query_rows, key_rows),
            (Family::Backward, Arch::Sm90a, _) => {
                layout::BackwardHopperLayout::new(head_dim, query_rows, key_rows).regions
            }
            (Family::ForwardCombine, ..) => layout::forward_combine(head_dim, query_rows),
            (Family::BackwardDelta, _, Dtype::F32)
            | (Family::BackwardConvert | Family::BackwardSum | Family::Accumulate, ..)
            | (Family::MaskBits, ..) => Regions::new(),
            (Family::MaskMap, ..) => layout::mask_map(),
            (Family::SinkGradient, ..) => layout::sink_gradient(),
            (Family::Scan, ..) => layout::scan(),
            (Family::MeasureOperands | Family::SplitOperands, ..) => layout::measure_operands(),
            (Family::Dynamic(stage), ..) => layout::dynamic(stage, self.threads, query_rows),
            (Family::BiasGradient, Arch::Sm90a, _) => {
                layout::BiasGradientHopperLayout::new(head_dim, query_rows).regions
            }
            (Family::BiasGradient, _, Dtype::F32) => layout::bias_gradient(4, head_dim, query_rows),
            (Family::BiasGradient, ..) => layout::bias_gradient(2, head_dim, query_rows),
            (Family::BackwardDelta, ..) => layout::backward_delta(query_rows),
            (Family::Msda(stage), ..) => layout::msda(stage),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use crate::abi::{Arch, Dtype, Family, KERNELS};
    use std::collections::BTreeSet;
    use std::string::ToString;

    #[test]
    fn regions_follow_on_each_other_and_cover_all_shared_bytes_but_padding() {
        for spec in KERNELS {
            let regions = spec.regions();
            assert_eq!(regions.bytes(), spec.shared_bytes, "{}", spec.name);
            let mut end = 0;
            for region in regions.as_slice() {
                assert_eq!(region.offset, end, "{}: {region}", spec.name);
                assert!(region.bytes > 0, "{}: {region}", spec.name);
                end += region.bytes;
            }
            let uses_shared = match spec.family {
                Family::Forward
                | Family::Backward
                | Family::BiasGradient
                | Family::SinkGradient
                | Family::MeasureOperands
                | Family::SplitOperands
                | Family::Scan => true,
                Family::ForwardCombine => spec.query_rows == 1,
                Family::BackwardDelta => spec.dtype != Dtype::F32,
                Family::BackwardConvert | Family::BackwardSum | Family::Accumulate => false,
                Family::MaskBits => false,
                Family::MaskMap => true,
                Family::Dynamic(_) | Family::Msda(_) => spec.shared_bytes > 0,
            };
            assert_eq!(!regions.as_slice().is_empty(), uses_shared, "{}", spec.name);
            let padding = if spec.arch == Arch::Sm90a && uses_shared { 512 } else { 1 };
            assert!((end..end + padding).contains(&spec.shared_bytes), "{}: {end}", spec.name);
        }
    }

    #[test]
    fn regions_of_a_kernel_have_names_of_their_own() {
        for spec in KERNELS {
            let regions = spec.regions();
            let names: BTreeSet<_> = regions.as_slice().iter().map(ToString::to_string).collect();
            assert_eq!(names.len(), regions.as_slice().len(), "{}: {names:?}", spec.name);
        }
    }

    #[test]
    fn tiles_begin_where_swizzles_repeat() {
        for spec in KERNELS {
            for region in spec.regions().as_slice().iter().filter(|region| region.bytes >= 4096) {
                assert!(region.offset.is_multiple_of(1024), "{}: {region}", spec.name);
            }
        }
    }
}
