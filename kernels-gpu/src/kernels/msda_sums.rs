//! Before and after the main kernel of a backward of multi-scale deformable attention: zeros where gradients
//! of value are added up in f32, and these gradients, rounded once.
//!
//! A warp takes one cell of one batch, all its heads.

use crate::abi::{MSDA_SMALL_THREADS, MsdaParams};
use crate::arch::{global, math, thread};
use crate::msda::strip::{Strip, Strips};
use crate::msda::tensor::row_address;
use crate::tile::element;

/// Calls `f` for runs of `width` channels: with the batch, cell and head, and the first channel.
#[inline(always)]
fn for_each_run(p: &MsdaParams, width: u32, mut f: impl FnMut(u32, u32, u32, u32)) {
    const WARPS: u32 = MSDA_SMALL_THREADS / 32;
    let (thread, block) = (thread::thread_idx_x(), thread::block_idx_x());
    let blocks = math::divide(p.cells + WARPS - 1, WARPS);
    let batch = math::divide(block, blocks);
    let cell = (block - batch * blocks) * WARPS + thread / 32;
    if cell >= p.cells {
        return;
    }
    let runs = math::divide(p.channels, width);
    let mut run = thread & 31;
    while run < p.heads * runs {
        let head = math::divide(run, runs);
        f(batch, cell, head, (run - head * runs) * width);
        run += 32;
    }
}

#[inline(always)]
unsafe fn zero(p: &MsdaParams) {
    let row = |batch, cell, head, channel| {
        row_address(&p.sums, batch, cell, head, 4).wrapping_add((4 * channel) as u64)
    };
    if p.sums_aligned != 0 {
        for_each_run(p, 4, |batch, cell, head, channel| {
            global::store_u32x4(row(batch, cell, head, channel), [0; 4])
        });
    } else {
        for_each_run(p, 1, |batch, cell, head, channel| {
            global::store_u32(row(batch, cell, head, channel), 0)
        });
    }
}

#[inline(always)]
unsafe fn convert<E: Strips<Element: Strip<Values = [f32; 1]>>>(p: &MsdaParams) {
    let bytes = <E::Element as Strip>::ELEMENT_BYTES;
    for_each_run(p, 1, |batch, cell, head, channel| {
        let from = row_address(&p.sums, batch, cell, head, 4).wrapping_add((4 * channel) as u64);
        let to =
            row_address(&p.d_value, batch, cell, head, bytes).wrapping_add((bytes * channel) as u64);
        E::Element::store(to, &[global::load_f32(from)]);
    });
}

macro_rules! zero_entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The kernel that zeroes sums.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                zero(&p);
            }
        )*
    };
}
crate::for_each_msda_zero_sm80!(zero_entries);

macro_rules! convert_entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The kernel that rounds sums to one element type.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                convert::<element::$dtype>(&p);
            }
        )*
    };
}
crate::for_each_msda_convert_sm80!(convert_entries);
