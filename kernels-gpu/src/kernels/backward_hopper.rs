//! The backward for Hopper: dV, dK and a share of dQ (docs/semantics.md, section 1), at the rate of its
//! tensor cores.
//!
//! A block stays on its multiprocessor and takes key tiles, or stretches of some
//! ([`crate::attention::key_stretch`]), until there are none left: 128 keys of one key head. It walks over
//! the query tiles that see them, of every query head of the group. Each of two warpgroups computes 64
//! keys. Score tiles are transposed (rows are keys): then p and ds feed the products with dO and q from
//! registers. For dq, ds goes through shared memory, since it sums over the keys of both warpgroups:
//!
//! ```text
//! for each query tile:
//!     start s = k q^T
//!     wait for s;            exponents c s - lse
//!     start dp = v dO^T;     p = 2^exponents
//!     wait for dp;           ds = p (dp - delta), to shared memory
//!     start dv += p dO
//!     meet the other warpgroup
//!     start dq = ds^T k (half of it)       start dk += ds q
//!     wait for dq, dv;       dq to shared memory: two threads have it stored or added (writer.rs)
//!     wait for dk
//! ```
//!
//! Products with both operands in shared memory keep it busy: what is read from it meanwhile comes late. So
//! lse is read before dp is started, and all exponentials, which need nothing more, are beside it. Measured:
//! 1.3 % faster than to start dp at once.
//!
//! With 128 queries a step (head dim 64) dp is started at once (2 % faster), and the warpgroups take turns:
//! one multiplies dq of a whole step, the other of the next, and goes on meanwhile. Measured: 2 % faster than
//! halves; with 64 queries a step (head dim 128), 2 % slower.
//!
//! At head dim 128, long sequences take 80 queries a step: 20 % fewer steps, and 5 % less shared memory
//! traffic a query. As 80 is no multiple of 64, dq is then multiplied transposed, 64 columns by each
//! warpgroup, and the last kernel turns it.
//!
//! From head dim 192 on the warpgroups divide the work otherwise: see [`wide`]. At head dim 64 there are
//! three where that is less to do: see [`three`].
//!
//! What lies outside of a tensor arrives as zeros: such queries have p = 0 through their lse, and the
//! products of such keys are not stored. In packed sequences the rows after a sequence's end are those of the
//! next one: one warp, the repairer, overwrites them with zeros before anybody uses the tile.

mod consumer;
mod helpers;
mod key_tile;
mod room;
mod three;
mod tile;
mod wide;
mod writer;

use crate::abi::BackwardHopperParams;
use crate::attention::score::backward::BackwardScale;
use crate::pipeline::roles::{Recruit, WARPGROUP};
use crate::tile::element;
use crate::tile::warpgroup::{GradientElement, QueryGradientElement, Wait};
use consumer::Consumer;
pub(super) use helpers::Maps;
use room::Room;
use tile::{BackwardKernel, Instance};

/// Warpgroups that compute, and their threads.
const WARPGROUPS: u32 = 2;
const CONSUMERS: u32 = WARPGROUPS * WARPGROUP;

/// Keys of a block.
const KEYS: u32 = 128;

/// One block: a warpgroup of helpers and two that compute.
#[inline(always)]
unsafe fn backward<K, const S: usize, const P: usize, const O: usize, const DQ: usize>(
    p: &BackwardHopperParams,
    maps: Maps,
) where
    K: BackwardKernel<Element: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ>>,
    [f32; S]: Wait,
    [f32; O]: Wait,
    [f32; DQ]: Wait,
{
    const { assert!(K::KEYS == KEYS) };
    let room = Room::<K>::new();
    room.open(&p.backward);
    let warp = Recruit::new();
    if warp.helps() {
        room.help(p, &maps, warp);
    } else {
        let warpgroup = warp.become_consumer::<240>();
        let scale = BackwardScale::new::<K::Element>(&p.backward);
        Consumer::<K, S, P, O, DQ>::new(&room, &p.backward, &scale, warpgroup).consume();
    }
}

macro_rules! entries {
    ($(($name:ident, $convert:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal))*) => {
        $(
            /// An instance of [`backward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardHopperParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardHopperParams) {
                let maps = Maps::at(crate::parameter_address!($name));
                backward::<
                    Instance<element::$dtype, $dim, $queries, $keys>,
                    { $queries / 2 }, { $queries / 4 }, { $dim / 2 }, { $queries * $dim / 256 },
                >(&p, maps);
            }
        )*
    };
}
crate::for_each_backward_sm90a!(entries);
