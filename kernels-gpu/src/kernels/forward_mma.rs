//! The tensor-core forward for sm_80 and newer: `o = softmax(scale q k^T) v`, lse
//! (docs/semantics.md, section 1).
//!
//! A block takes `QUERIES` query rows of one head and walks over the visible key tiles. Each warp has
//! `16 M` rows to itself, so that softmax never crosses warps:
//!
//! ```text
//! for each key tile:   s = q k^T      (tensor cores, q and k from shared memory)
//!                      softcap, mask  (attention/score)
//!                      p = 2^(c (s - m)), o rescaled if m moved
//!                      o += p v       (tensor cores, p from registers)
//! o = o / sum,  lse = ln(sum) + m
//! ```
//!
//! All but the products is [`QueryRows`].
//!
//! f32 is multiplied as two f16 parts ([`SplitF32`]), which another kernel has made of q, k and v; where that
//! one found that they would not be as exact as f32, this one returns at once.

use crate::abi::{Access, ForwardMmaSplitParams, ForwardParams};
use crate::arch::{global, shared, specialize, thread};
use crate::attention::query_block::QueryBlock;
use crate::attention::query_rows::QueryRows;
use crate::pipeline::key_value_ring::KeyValueRing;
use crate::tile::add;
use crate::tile::element::{self, SplitF32, TensorCoreElement};
use crate::tile::fragment::MmaFragment;
use crate::tile::global_rows::GlobalRows;
use crate::tile::mma::{multiply_accumulate, multiply_transposed, pack_all};
use crate::tile::shared_tile::SharedTile;
use crate::tile::store;
use crate::tile::warpgroup::{SplitUnits, Units};

/// One block. `S = KEYS / 2` and `O = ROW_BYTES / 4` registers per lane hold 16 rows of scores and of
/// output, `P = S / 2` those of packed probabilities; `QUERIES = WARPS * 16 * M`. Of f32 in two parts rows
/// are twice as long as the output, and there are as many words of probabilities as scores.
#[inline(always)]
unsafe fn forward<
    E: TensorCoreElement,
    U: Units,
    const VECTOR: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const THREADS: u32,
    const M: usize,
    const S: usize,
    const P: usize,
    const O: usize,
>(
    p: &ForwardParams,
    units: U,
) {
    const {
        assert!(QUERIES == THREADS / 32 * QueryRows::<M, 2, O>::WARP_ROWS);
        assert!(2 * S == KEYS as usize && 2 * P == S * E::WORDS_OF_PAIR);
        assert!(4 * O * E::WORDS_OF_PAIR == ROW_BYTES as usize);
    }
    let block = QueryBlock::of_this_block(p, QUERIES);
    if block.is_empty() {
        return;
    }
    let in_parts = E::WORDS_OF_PAIR > 1;
    let is_exact = in_parts || p.is_exact();
    let mut rows = QueryRows::<M, 2, O>::of_this_warp::<E>(p, block, QUERIES, KEYS, is_exact);
    let thread = thread::thread_idx_x();
    let q = SharedTile::<QUERIES, ROW_BYTES>::at(shared::dynamic_base());
    let (k, v) = (operand::<E, ROW_BYTES>(block.k::<2>(p)), operand::<E, ROW_BYTES>(block.v::<2>(p)));
    let after_q = q.address + SharedTile::<QUERIES, ROW_BYTES>::BYTES;
    let key_values = KeyValueRing::<KEYS, ROW_BYTES, THREADS, VECTOR>::new(after_q, thread, k, v);
    let of_scores = units.of_scores(|| (block.sequence.batch, block.head));

    let has_rows = rows.walk::<E, [[u32; P]; M], QUERIES, KEYS, ROW_BYTES>(
        q,
        #[inline(always)]
        || q.load::<E, THREADS, VECTOR>(thread, &operand::<E, ROW_BYTES>(block.q::<2>(p))),
        &key_values,
        #[inline(always)]
        |rows, at, key| {
            let mut scores: [[f32; S]; M] =
                multiply_transposed::<E, false, _, _, _, M, S>(rows.lane, q, rows.first_row, key);
            scores.iter_mut().for_each(|scores| U::apply(of_scores, scores));
            rows.probabilities::<E, MmaFragment, S>(&mut scores, at, KEYS);
            if in_parts {
                rows.count_small(&scores);
            }
            let mut p: [[u32; P]; M] = pack_all::<E, M, S, P>(&scores);
            rows.drop_packed::<MmaFragment, S, P>(&mut p, at.tile, KEYS);
            p
        },
        #[inline(always)]
        |rows, p, value| {
            let (lane, output) = (rows.lane, &mut rows.output);
            multiply_accumulate::<E, _, _, _, M, P, O>(lane, output, &p, value, &[(); M]);
        },
    );
    if !has_rows {
        return;
    }
    write_output::<E, U, VECTOR, QUERIES, ROW_BYTES, M, O>(p, &units, &block, q, &mut rows);
}

/// Rows of an operand. Those of parts have no columns but those of the tile.
#[inline(always)]
fn operand<E: TensorCoreElement, const ROW_BYTES: u32>(rows: GlobalRows) -> GlobalRows {
    let columns = if E::WORDS_OF_PAIR > 1 { ROW_BYTES / E::BYTES } else { rows.columns };
    GlobalRows { columns, ..rows }
}

/// Ends the warp's rows: divides by their sums, writes lse and o. Rows of the tile of q are free.
#[inline(always)]
unsafe fn write_output<
    E: TensorCoreElement,
    U: Units,
    const VECTOR: bool,
    const QUERIES: u32,
    const ROW_BYTES: u32,
    const M: usize,
    const O: usize,
>(
    p: &ForwardParams,
    units: &U,
    block: &QueryBlock,
    q: SharedTile<QUERIES, ROW_BYTES>,
    rows: &mut QueryRows<M, 2, O>,
) {
    let is_f32 = E::WORDS_OF_PAIR > 1 || p.output_f32 != 0;
    let target = if is_f32 { block.o::<4>(p) } else { block.o::<2>(p) };
    let mut m = 0;
    while m < M {
        units.tell_loss(|| rows.have_lost::<MmaFragment>(m));
        let of_previous = rows.finalize::<E, MmaFragment>(m);
        let (row, output) = (rows.row(m), &mut rows.output[m]);
        U::apply(units.of_output(|| (block.sequence.batch, block.key_head)), output);
        if specialize::merge() && p.previous.statistics != 0 {
            let source = block.previous_o(p);
            add::add_pairs::<O, true>(rows.lane, output, of_previous, row, 0, &source);
        }
        if VECTOR && !is_f32 {
            store::store_staged::<E, QUERIES, ROW_BYTES, O>(rows.lane, output, q, row, &target);
        } else {
            store::store_pairs::<E, O, VECTOR>(rows.lane, output, row, 0, &target, is_f32);
        }
        m += 1;
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`forward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardParams) {
                forward::<
                    element::$dtype, (), { matches!(Access::$access, Access::Vector16) }, $queries,
                        $keys, { $dim * 2 },
                    { $warps * 32 }, { $queries / ($warps * 16) }, { $keys / 2 }, { $keys / 4 }, { $dim / 2 },
                >(&p, ());
            }
        )*
    };
}
crate::for_each_forward_mma_sm80!(entries);

macro_rules! split_entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`forward`] for f32 in two parts, chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardMmaSplitParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardMmaSplitParams) {
                if global::load_u32(p.split.turn) != 0 {
                    return;
                }
                forward::<
                    SplitF32, SplitUnits, { matches!(Access::$access, Access::Vector16) }, $queries,
                        $keys, { $dim * 4 },
                    { $warps * 32 }, { $queries / ($warps * 16) }, { $keys / 2 }, { $keys / 2 }, { $dim / 2 },
                >(&p.forward, SplitUnits::new(&p.split));
            }
        )*
    };
}
crate::for_each_forward_split_sm80!(split_entries);
