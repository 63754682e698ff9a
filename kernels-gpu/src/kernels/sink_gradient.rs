//! The gradient of the sinks: `dsink = -sum p_sink delta` over all rows of a head, `p_sink = e^(sink - lse)`
//! (docs/semantics.md, section 1). A block takes a head. The order of all additions depends on the problem
//! alone.

use crate::abi::{BackwardParams, RowStatistic, SINK_GRADIENT_THREADS};
use crate::arch::{barrier, global, math, shared, thread, warp};
use crate::attention::key_block::{self, statistics};
use crate::attention::score::dropout;
use crate::attention::score::references::{self, STEEP};
use core::f32::consts::LOG2_E;

/// `ln(2)`, and what f32 lacks of the first eleven bits of it.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// From here on f32 has integers alone, above and below.
const INTEGERS: f32 = 1.5 * (1 << 23) as f32;
/// `1 / n!` from n = 7 on.
const FACTORIALS: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
/// Rows of a thread that are read at once: a block has little else to wait for memory with.
const ROWS_AT_ONCE: usize = 8;

/// `e^x` of an x that is at most little above 0, as exact as f32: the instruction is off by 2e-7, and its
/// argument, in powers of two, by the size of x times that.
#[inline(always)]
fn exact_power(x: f32) -> f32 {
    let x = math::clamp_or_nan(x, 200.0);
    // Rounded to an integer, where f32 has no bits behind the point.
    let whole = math::fma(x, LOG2_E, INTEGERS) - INTEGERS;
    let rest = math::fma(whole, -LN_2_LOW, math::fma(whole, -LN_2_HIGH, x));
    let mut power = FACTORIALS[0];
    let mut i = 1;
    while i < FACTORIALS.len() {
        power = math::fma(power, rest, FACTORIALS[i]);
        i += 1;
    }
    // Exact: a power of two.
    power * math::exp2(whole)
}

/// `sink - lse`, of a row whose statistic is `statistic`. Of steep rows lse is too coarse for it: they have
/// what it consists of ([`references`](crate::attention::score::references)).
#[inline(always)]
unsafe fn exponent(
    p: &BackwardParams,
    sink: f32,
    (lse, statistic): (f32, f32),
    (head, row): (u32, u32),
) -> f32 {
    if references::all_rows_have_one(p) || statistic == STEEP {
        let [reference, rest] = global::load_u32x2(key_block::references(p, head, row));
        return math::fma(f32::from_bits(rest), references::factor(p), sink - f32::from_bits(reference));
    }
    sink - lse
}

/// The kernel.
///
/// # Safety
/// `p` is as [`BackwardParams`] says; a block for each query head.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sink_gradient_sm80(p: BackwardParams) {
    let (thread, head) = (thread::thread_idx_x(), thread::block_idx_x());
    let sink = global::load_f32(p.score.sinks.wrapping_add(4 * head as u64));
    let (mut sum, mut lost) = (0.0, 0.0);
    let mut batch = 0;
    while batch < p.batches {
        let sequence = key_block::sequence(&p, batch);
        let workspace_row = key_block::workspace_row(&p, &sequence, batch);
        let first = sequence.batch as i64 * p.lse_batch_stride
            + head as i64 * p.lse_head_stride
            + sequence.first_query as i64;
        let mut row = thread;
        while (row as i32) < sequence.query_rows {
            let (mut lses, mut own, mut deltas) =
                ([0; ROWS_AT_ONCE], [0; ROWS_AT_ONCE], [0; ROWS_AT_ONCE]);
            let row_of = |i: usize| row + i as u32 * SINK_GRADIENT_THREADS;
            let is_there = |i: usize| (row_of(i) as i32) < sequence.query_rows;
            let mut i = 0;
            while i < ROWS_AT_ONCE {
                let lse = p.lse.wrapping_add((4 * (first + row_of(i) as i64)) as u64);
                let of = |which| statistics(&p, which, head, workspace_row + row_of(i));
                lses[i] = global::load_u32_if(lse, is_there(i));
                own[i] = global::load_u32_if(of(RowStatistic::Lse), is_there(i));
                // With dropout without its factor, which comes at the end.
                deltas[i] = global::load_u32_if(of(RowStatistic::Delta), is_there(i));
                i += 1;
            }
            let mut i = 0;
            while i < ROWS_AT_ONCE {
                let [lse, statistic, delta] = [lses[i], own[i], deltas[i]].map(f32::from_bits);
                if is_there(i) && lse != f32::NEG_INFINITY {
                    // Kahan's sum: there may be millions of rows.
                    let place = (head, workspace_row + row_of(i));
                    let exponent = exponent(&p, sink, (lse, statistic), place);
                    let term = math::fma(exact_power(exponent), delta, -lost);
                    let next = sum + term;
                    lost = if next.abs() < f32::INFINITY { (next - sum) - term } else { 0.0 };
                    sum = next;
                }
                i += 1;
            }
            row += ROWS_AT_ONCE as u32 * SINK_GRADIENT_THREADS;
        }
        batch += 1;
    }
    let sum = warp::sum(sum);
    let address = shared::dynamic_base();
    if thread % 32 == 0 {
        shared::store_u32(address + thread / 32 * 4, sum.to_bits());
    }
    barrier::block_sync();
    if thread == 0 {
        let mut total = 0.0;
        let mut warp = 0;
        while warp < SINK_GRADIENT_THREADS / 32 {
            total += f32::from_bits(shared::load_u32(address + 4 * warp));
            warp += 1;
        }
        let total = total * dropout::gradient_scale(&p.score);
        global::store_f32(p.d_sinks.wrapping_add(4 * head as u64), -total);
    }
}
