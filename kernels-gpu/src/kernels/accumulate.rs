//! Sums of f32 tensors, rounded once: gradients that come in parts. A warp takes a row of a head.

use crate::abi::{ACCUMULATE_THREADS, AccumulateParams, TensorView};
use crate::arch::{global, math, thread};
use crate::tile::element;
use crate::tile::global_rows::GlobalRows;
use crate::tile::store::{store_four, store_four_f32};

/// Columns of a lane at a time.
const COLUMNS: u32 = 4;

/// A row of a head.
#[derive(Clone, Copy)]
struct Row {
    batch: u32,
    row: u32,
    head: u32,
}

impl Row {
    /// The one of this warp, if there is one.
    #[inline(always)]
    fn of_this_warp(p: &AccumulateParams) -> Option<Self> {
        let index = thread::block_idx_x() * (ACCUMULATE_THREADS / 32) + thread::thread_idx_x() / 32;
        if index >= p.batches * p.rows * p.heads {
            return None;
        }
        let pair = math::divide(index, p.heads);
        let batch = math::divide(pair, p.rows);
        Some(Row { batch, row: pair - batch * p.rows, head: index - pair * p.heads })
    }

    #[inline(always)]
    fn address<const ELEMENT_BYTES: i64>(self, view: &TensorView) -> u64 {
        GlobalRows::address::<ELEMENT_BYTES>(view, self.batch, self.head, self.row as i32)
    }

    /// Four columns of an f32 tensor from `column` on, as far as they exist; of none zeros.
    #[inline(always)]
    unsafe fn load(self, p: &AccumulateParams, view: &TensorView, column: u32) -> [f32; 4] {
        let address = self.address::<4>(view).wrapping_add(4 * column as u64);
        let exists = view.address != 0;
        if p.is_aligned != 0 {
            // It may be the output.
            let read = exists && column < p.columns;
            return global::load_written_u32x4_if(address, read).map(f32::from_bits);
        }
        let mut values = [0.0; COLUMNS as usize];
        let mut e = 0;
        while e < COLUMNS {
            if exists && column + e < p.columns {
                values[e as usize] = global::load_written_f32(address.wrapping_add(4 * e as u64));
            }
            e += 1;
        }
        values
    }
}

#[inline(always)]
unsafe fn accumulate<E: Store>(p: &AccumulateParams) {
    let Some(row) = Row::of_this_warp(p) else { return };
    let mut column = COLUMNS * (thread::thread_idx_x() % 32);
    while column < p.columns {
        let (first, second) = (row.load(p, &p.first, column), row.load(p, &p.second, column));
        let mut sum = [0.0; COLUMNS as usize];
        let mut e = 0;
        while e < sum.len() {
            sum[e] = first[e] + second[e];
            e += 1;
        }
        E::store(p, row, column, sum);
        column += COLUMNS * 32;
    }
}

/// How four columns are written in an element type.
trait Store {
    unsafe fn store(p: &AccumulateParams, row: Row, column: u32, sum: [f32; COLUMNS as usize]);
}

macro_rules! store_16_bits {
    ($($dtype:ident)*) => {
        $(impl Store for element::$dtype {
            #[inline(always)]
            unsafe fn store(p: &AccumulateParams, row: Row, column: u32, sum: [f32; COLUMNS as usize]) {
                let start = row.address::<2>(&p.output);
                let target = GlobalRows::new::<2>(&p.output, start, 1, p.columns);
                store_four::<Self>(&target, 0, column, sum, p.is_aligned != 0);
            }
        })*
    };
}
store_16_bits!(Bf16 F16);

impl Store for element::F32 {
    #[inline(always)]
    unsafe fn store(p: &AccumulateParams, row: Row, column: u32, sum: [f32; COLUMNS as usize]) {
        let target = GlobalRows::new::<4>(&p.output, row.address::<4>(&p.output), 1, p.columns);
        if p.is_aligned != 0 {
            store_four_f32::<true>(&target, 0, column, sum);
        } else {
            store_four_f32::<false>(&target, 0, column, sum);
        }
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The kernel of one element type.
            ///
            /// # Safety
            /// `p` is as [`AccumulateParams`] says; a warp for each row of each head.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: AccumulateParams) {
                accumulate::<element::$dtype>(&p);
            }
        )*
    };
}
crate::for_each_accumulate_sm80!(entries);
