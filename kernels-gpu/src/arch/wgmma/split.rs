//! `wgmma` of f32 operands that are two f16 parts each, `x = high + low`: the three largest of the four
//! products of parts, in one accumulator. sm_90a.
//!
//! ```text
//! a b = a.low b.high + a.high b.low + a.high b.high        (+ a.low b.low, below the rounding of f32)
//! ```
//!
//! Small products before large ones: tensor cores cut off what a sum has beyond its last bit, which costs as
//! little as it can while the sum is small. Half a unit is cut off on average, always towards zero, in each
//! step of 16: scores are sums of 32 columns each, which are then added as f32 are.
//!
//! The order is that of [`crate::tile::mma`], by which gradients are made: `mma.sync` and `wgmma` of Hopper
//! add the same products in the same order to the same bits, and what scores are off by cancels in
//! `e^(s - lse)`.
//!
//! In shared memory the parts of a row stand side by side, first the panels of the high parts, then those of
//! the low ones.

use crate::geometry::size::TileSize;
use core::arch::asm;

/// Products `q k^T` with both operands in shared memory, each a sum of its own: `{registers} [a b; steps]
/// [a b; steps]...`, the panels of q and k that are multiplied, one after the other, and of them which 16
/// columns, in units of 16 bytes.
macro_rules! scores {
    ($name:ident, $shape:literal, $keys:literal, $count:literal, [$($c:literal)*] $all:tt
        $({$cs:tt [$first_a:literal $first_b:literal; $first:literal $($step:literal)*]
            $([$a:literal $b:literal; $($further:literal)*])*})*) => {
        /// Starts sums of products of q and k, one group; q is of a tile of size `Q`.
        ///
        /// # Safety
        /// The warpgroup calls it together, with the same descriptors; both tiles are visible to the async
        /// proxy until the group is done.
        #[inline(always)]
        pub unsafe fn $name<Q: TileSize>(q: u64, k: u64) -> [f32; $count] {
            let mut c = [0.0; $count];
            asm!(
                concat!(
                    "{{\n.reg .pred %fresh, %running; .reg .b64 %a, %b, %a_panel, %b_panel;\n",
                    "setp.ne.b32 %fresh, 0, 0; setp.eq.b32 %running, 0, 0;\n",
                    "wgmma.fence.sync.aligned;\n",
                    $(
                        "add.s64 %a_panel, {q}, {q", $first_a, "}; ",
                        "add.s64 %b_panel, {k}, {k", $first_b, "};\n",
                        step_shared!($shape "f16", $cs, "%fresh", $first),
                        $(step_shared!($shape "f16", $cs, "%running", $step),)*
                        $(
                            "add.s64 %a_panel, {q}, {q", $a, "}; add.s64 %b_panel, {k}, {k", $b, "};\n",
                            $(step_shared!($shape "f16", $cs, "%running", $further),)*
                        )*
                    )*
                    "wgmma.commit_group.sync.aligned; ",
                    "// {q0} {q1} {q2} {q3} {k0} {k1} {k2} {k3}\n}}",
                ),
                $(out(reg32) c[$c],)*
                q = in(reg64) q, k = in(reg64) k,
                q0 = const 0, q1 = const Q::ROWS * 8, q2 = const Q::ROWS * 16, q3 = const Q::ROWS * 24,
                k0 = const 0, k1 = const $keys * 8, k2 = const $keys * 16, k3 = const $keys * 24,
                options(nostack)
            );
            c
        }
    };
}

/// `p v` with p in registers, its high parts before its low ones, and v stored as rows of output columns:
/// `[a b c d; offset]` for each step of 16 keys, the offset in units of 16 bytes.
macro_rules! output {
    ($name:ident, $shape:literal, $count:literal, [$($c:literal)*] $cs:tt, $registers:literal,
        [$($p:literal)*] [$($first:literal)*; $first_offset:literal]
        $([$($a:literal)*; $offset:literal])*) => {
        /// Starts `p v`; a group of its own.
        ///
        /// # Safety
        /// The warpgroup calls it together, with the same descriptor; v is visible to the async proxy, and p
        /// stays as it is until the group is done.
        #[inline(always)]
        pub unsafe fn $name(p: &[u32; $registers], v: u64) -> [f32; $count] {
            let mut c = [0.0; $count];
            asm!(
                concat!(
                    "{{\n.reg .pred %fresh, %running; .reg .b64 %b;\n",
                    "setp.ne.b32 %fresh, 0, 0; setp.eq.b32 %running, 0, 0;\n",
                    "wgmma.fence.sync.aligned;\n",
                    "add.s64 %b, {v}, ", $first_offset, ";\n",
                    instruction!($shape "f16"), " {{", list!($cs), "}}, {{", list!([$($first)*]),
                    "}}, %b, %fresh, 1, 1, 1;\n",
                    $(
                        "add.s64 %b, {v}, ", $offset, ";\n",
                        instruction!($shape "f16"), " {{", list!($cs), "}}, {{", list!([$($a)*]),
                        "}}, %b, %running, 1, 1, 1;\n",
                    )*
                    "wgmma.commit_group.sync.aligned;\n}}",
                ),
                $(out(reg32) c[$c],)*
                $(in(reg32) p[$p - $count],)*
                v = in(reg64) v,
                options(nostack)
            );
            c
        }
    };
}

with_64!(scores!(scores_d64_n64, "m64n64k16", 64,)
    {[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
        [1 0; 0] [0 1; 0] [1 0; 2] [0 1; 2] [0 0; 0 2]}
    {[32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63]
        [1 0; 4] [0 1; 4] [1 0; 6] [0 1; 6] [0 0; 4 6]});

/// Of products `q k^T` one sum of 32 columns, where all at once would take too many registers.
macro_rules! scores_of_32_columns {
    ($name:ident, $($products:tt)*) => {
        with_32!(scores!($name, "m64n64k16", 64,)
            {[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
                $($products)*});
    };
}
scores_of_32_columns!(scores_d128_n64_first, [2 0; 0] [0 2; 0] [2 0; 2] [0 2; 2] [0 0; 0 2]);
scores_of_32_columns!(scores_d128_n64_second, [2 0; 4] [0 2; 4] [2 0; 6] [0 2; 6] [0 0; 4 6]);
scores_of_32_columns!(scores_d128_n64_third, [3 1; 0] [1 3; 0] [3 1; 2] [1 3; 2] [1 1; 0 2]);
scores_of_32_columns!(scores_d128_n64_fourth, [3 1; 4] [1 3; 4] [3 1; 6] [1 3; 6] [1 1; 4 6]);
with_32!(output!(output_d64_n64, "m64n64k16",), 32,
    [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63]
    [48 49 50 51; 0] [52 53 54 55; 128] [56 57 58 59; 256] [60 61 62 63; 384]
    [32 33 34 35; 512] [36 37 38 39; 640] [40 41 42 43; 768] [44 45 46 47; 896]
    [32 33 34 35; 0] [36 37 38 39; 128] [40 41 42 43; 256] [44 45 46 47; 384]);
with_64!(output!(output_d128_n64, "m64n128k16",), 32,
    [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95]
    [80 81 82 83; 0] [84 85 86 87; 128] [88 89 90 91; 256] [92 93 94 95; 384]
    [64 65 66 67; 1024] [68 69 70 71; 1152] [72 73 74 75; 1280] [76 77 78 79; 1408]
    [64 65 66 67; 0] [68 69 70 71; 128] [72 73 74 75; 256] [76 77 78 79; 384]);
