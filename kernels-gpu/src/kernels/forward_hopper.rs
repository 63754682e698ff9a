//! The forward for Hopper: `o = softmax(scale q k^T) v`, lse (docs/semantics.md, section 1), at the rate
//! of its tensor cores.
//!
//! A block is persistent: it takes work tiles, query tiles of a head, until there are none left. One thread
//! of its producer warpgroup has the tensor memory accelerator bring tiles; each of two or three consumer
//! warpgroups computes 64 query rows. Products run beside the softmax: while a warpgroup turns scores into
//! probabilities, its tensor core multiplies the probabilities of the tile before with their values.
//!
//! ```text
//! s = q k(last)^T                                                                first_scores
//! for each work tile:
//!     p = softmax(s)                                                             mainloop
//!     for the other key tiles, last to first (see [`work::Turn`]):
//!         start s = q k^T             start o += p v(the tile before)
//!         wait for s;  wait for o;    p = softmax(s), and rescale o if the row max moved
//!     start s = q' k'(last)^T of the next work tile, and o += p v(first)         last_step
//!     wait for both;  o = o / sum,  lse = ln(sum) + m                            epilogue
//! ```
//!
//! Warpgroups skip key tiles that none of their rows sees, and three of them work tiles of which they have
//! no row ([`tile::KeyTiles`]). Where o has memory of its own, they start the last product with values
//! before the scores of the next work tile, and write o while these are made ([`tile::OutputPath`]).
//!
//! What lies outside of a tensor arrives as zeros. In packed sequences the rows after a sequence's end are
//! those of the next one: the tail-zeroing warp overwrites them with zeros before the tile is used
//! (queries, so that they have no say in when the row max moves; values, since 0 x NaN is NaN; keys need
//! none of it, their scores are replaced). It also multiplies q by the sign of the scale.
//!
//! f32 is multiplied as two f16 parts ([`crate::tile::element::SplitF32`]), which another kernel has made
//! of q, k and v; where that one found that they would not be as exact as f32, this one returns at once.
//!
//! Where there are few queries, rows of a query tile are those of several heads that share keys
//! ([`crate::geometry::row_heads`]); rows for which there is no whole query are zeroed, too.

mod consumer;
mod epilogue;
mod key_range;
mod pipelines;
mod producer;
mod scores;
mod shared_storage;
mod slopes;
mod tile;
mod work;

use crate::abi::{ForwardHopperParams, ForwardSplitParams, tiles_split_keys};
use crate::arch::{global, grid, thread};
use crate::pipeline::roles::{Helper, Recruit};
use crate::tile::element::{self, SplitF32, TensorCoreElement};
use crate::tile::warpgroup::{SplitUnits, Wait, WarpgroupElement};
use consumer::Consumer;
use pipelines::Pipelines;
use producer::Maps;
use shared_storage::SharedStorage;
use tile::{ForwardKernel, Instance, WARPGROUP_ROWS, query_registers};

/// One block: a producer warpgroup, and one consumer warpgroup for each 64 query rows.
#[inline(always)]
unsafe fn forward<K, const A: usize, const S: usize, const P: usize, const O: usize>(
    p: &ForwardHopperParams,
    maps: Maps,
    units: <K::Element as WarpgroupElement<A, S, P, O>>::Units,
) where
    K: ForwardKernel<Element: WarpgroupElement<A, S, P, O>>,
    [f32; S]: Wait,
    [f32; O]: Wait,
{
    const { assert!(2 * S == K::KEYS as usize && 2 * P == S * K::Element::WORDS_OF_PAIR) };
    let storage = SharedStorage::<K>::new();
    storage.open(&p.forward);
    let warp = Recruit::new();
    if warp.helps() {
        let helper =
            if K::WARPGROUPS == 2 { warp.become_helper::<40>() } else { warp.become_helper::<32>() };
        match helper {
            Helper::Producer => {
                storage.produce(p, &maps);
                if const { tiles_split_keys(K::QUERIES) && K::Element::WORDS_OF_PAIR == 1 } {
                    grid::allow_next();
                }
            }
            Helper::Repairer if storage.may_zero_tails(&p.forward) => {
                storage.zero_tails(p, thread::thread_idx_x() % 32)
            }
            _ => {}
        }
    } else {
        let warpgroup = if K::WARPGROUPS == 2 {
            warp.become_consumer::<232>()
        } else {
            warp.become_consumer::<160>()
        };
        let pipelines = Pipelines::new(storage);
        Consumer::<K, A, S, P, O>::new(pipelines, &p.forward, maps.o, warpgroup, units).consume();
    }
}

macro_rules! entries {
    ($gathers_heads:literal,
        $(($name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal, $warpgroups:literal))*
    ) => {
        $(
            /// An instance of [`forward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardHopperParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardHopperParams) {
                let first = crate::parameter_address!($name);
                let maps = Maps { q: first, k: first + 128, v: first + 256, o: first + 384 };
                const { assert!($queries == $warpgroups * WARPGROUP_ROWS) };
                forward::<
                    Instance<element::$dtype, $dim, $queries, $keys, $gathers_heads>,
                    { query_registers($dim, $queries, $keys) }, { $keys / 2 }, { $keys / 4 }, { $dim / 2 },
                >(&p, maps, ());
            }
        )*
    };
}

macro_rules! entries_for_queries { ($($row:tt)*) => { entries!(false, $($row)*); } }
crate::for_each_forward_sm90a!(entries_for_queries);

macro_rules! entries_for_heads { ($($row:tt)*) => { entries!(true, $($row)*); } }
crate::for_each_forward_heads_sm90a!(entries_for_heads);

macro_rules! split_entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal, $warpgroups:literal))*) => {
        $(
            /// An instance of [`forward`] for f32 in two parts, chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardSplitParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardSplitParams) {
                const { assert!($queries == $warpgroups * WARPGROUP_ROWS) };
                if global::load_u32(p.split.turn) != 0 {
                    return;
                }
                let first = crate::parameter_address!($name);
                let maps = Maps { q: first, k: first + 128, v: first + 256, o: first + 384 };
                forward::<
                    Instance<SplitF32, { 2 * $dim }, $queries, $keys, false>,
                    0, { $keys / 2 }, { $keys / 2 }, { $dim / 2 },
                >(&p.hopper, maps, SplitUnits::new(&p.split));
            }
        )*
    };
}
crate::for_each_forward_split_sm90a!(split_entries);
