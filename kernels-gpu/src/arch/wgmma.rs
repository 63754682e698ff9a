//! `wgmma`: matrix products of a warpgroup (four warps, 128 threads), asynchronous. sm_90a.
//!
//! A warpgroup multiplies a 64 x 16 operand A by a 16 x N operand B into a 64 x N accumulator, spread over
//! the registers of its 128 threads: warp `w` holds rows `16 w..16 w + 16`, each warp in the fragment of
//! [`crate::geometry::fragment::mma_accumulator`]. B is read from shared memory, A from shared memory or
//! from registers.
//!
//! ```text
//! wgmma.fence          registers and accumulators written before are seen by what follows
//! wgmma.mma_async ...  any number, each adds to the accumulator; runs beside the warps
//! wgmma.commit_group   closes a group
//! ... other work: neither the accumulator nor A's registers may be touched ...
//! wgmma.wait_group N   all but the youngest N groups are done
//! ```
//!
//! One function holds fence, products and commit in one `asm!`: the assembler must see that nothing
//! touches the accumulators in between, or it waits after every instruction ("wgmma serialized").
//! [`Wait`] names the registers that it makes readable, so that no use of them can move before it.
//!
//! Shared operands are described by [`crate::geometry::descriptor`]; a step of 16 along the inner
//! dimension is an addition to the descriptor, whose low bits are an address in units of 16 bytes.

use crate::geometry::size::TileSize;
use core::arch::asm;

/// `{0}, {1}, ...`: operands by their numbers.
macro_rules! list {
    ([$first:literal $($next:literal)*]) => { concat!("{", $first, "}" $(, ", {", $next, "}")*) };
}

/// The instruction for a shape and an element type.
macro_rules! instruction {
    ($shape:literal $type:literal) => {
        concat!("wgmma.mma_async.sync.aligned.", $shape, ".f32.", $type, ".", $type)
    };
}

/// One `wgmma` with A in shared memory, `$offset` (16-byte units) into the panel.
macro_rules! step_shared {
    ($shape:literal $type:literal, $cs:tt, $scale:literal, $offset:literal) => {
        concat!(
            "add.s64 %a, %a_panel, ", $offset, "; add.s64 %b, %b_panel, ", $offset, ";\n",
            instruction!($shape $type), " {{", list!($cs), "}}, %a, %b, ", $scale, ", 1, 1, 0, 0;\n"
        )
    };
}

/// What the first step of scores multiplies where these sink with the distance
/// ([`specialize::alibi`](crate::arch::specialize::alibi)): a step that is not there else.
#[derive(Clone, Copy)]
pub struct SlopeStep {
    /// 8 columns of tf32 of the 64 rows.
    pub rows: [u32; 4],
    /// The descriptor of as many columns of the keys.
    pub columns: u64,
}

/// That step, with `{a0}` to `{a3}` and `{columns}`, after which others are added: lines that the host turns
/// into code, as no product may stand behind a branch. First: measured 1 to 2 % faster than last, and a group
/// of its own 5 % slower.
macro_rules! slope_step {
    ($shape:literal, $cs:tt) => {
        concat!(
            "// ", instruction!($shape "tf32"), " {{", list!($cs),
            "}}, {{{a0}, {a1}, {a2}, {a3}}}, {columns}, %fresh, 1, 1; // only with alibi\n",
            "// setp.eq.b32 %fresh, 0, 0; // only with alibi\n",
        )
    };
}

/// `scores = q k^T` with both operands in shared memory, in 128-byte panels: 64 columns of q and k each.
/// `$panel`, repeated, is one for each whole panel after the first; `$tail` the offsets in one that is not.
/// `$slopes`: a parameter for a [`SlopeStep`], and the shape of that.
macro_rules! shared_by_shared {
    ($name:ident $([$slopes:ident $slope_shape:literal])?, $shape:literal $type:literal, $count:literal,
        [$($c:literal)*] $cs:tt, [$($panel:literal)*] $([$($tail:literal)*])?) => {
        /// Starts `q k^T`; a group of its own; q is of a tile of size `Q`.
        ///
        /// # Safety
        /// The warpgroup calls it together, with the same descriptors; both tiles are visible to the async
        /// proxy until the group is done.
        #[inline(always)]
        pub unsafe fn $name<Q: TileSize>(q: u64, k: u64 $(, $slopes: &SlopeStep)?) -> [f32; $count] {
            let mut c = [0.0; $count];
            asm!(
                concat!(
                    "{{\n.reg .pred %fresh, %running; .reg .b64 %a, %b, %a_panel, %b_panel;\n",
                    "setp.ne.b32 %fresh, 0, 0; setp.eq.b32 %running, 0, 0;\n",
                    "mov.b64 %a_panel, {q}; mov.b64 %b_panel, {k};\n",
                    "wgmma.fence.sync.aligned;\n",
                    $(slope_step!($slope_shape, $cs),)?
                    step_shared!($shape $type, $cs, "%fresh", 0),
                    step_shared!($shape $type, $cs, "%running", 2),
                    step_shared!($shape $type, $cs, "%running", 4),
                    step_shared!($shape $type, $cs, "%running", 6),
                    $(
                        "add.s64 %a_panel, %a_panel, {q_panel}; ",
                        "add.s64 %b_panel, %b_panel, {k_panel}; // panel ", $panel, "\n",
                        step_shared!($shape $type, $cs, "%running", 0),
                        step_shared!($shape $type, $cs, "%running", 2),
                        step_shared!($shape $type, $cs, "%running", 4),
                        step_shared!($shape $type, $cs, "%running", 6),
                    )*
                    $(
                        "add.s64 %a_panel, %a_panel, {q_panel}; add.s64 %b_panel, %b_panel, {k_panel};\n",
                        $(step_shared!($shape $type, $cs, "%running", $tail),)*
                    )?
                    "wgmma.commit_group.sync.aligned; // {q_panel} {k_panel}\n}}",
                ),
                $(out(reg32) c[$c],)*
                q = in(reg64) q, k = in(reg64) k,
                $(
                    a0 = in(reg32) $slopes.rows[0], a1 = in(reg32) $slopes.rows[1],
                    a2 = in(reg32) $slopes.rows[2], a3 = in(reg32) $slopes.rows[3],
                    columns = in(reg64) $slopes.columns,
                )?
                q_panel = const Q::ROWS * 8, k_panel = const $count * 2 * 8,
                options(nostack)
            );
            c
        }
    };
}

/// `scores = q k^T` with q in registers: four for each 16 columns. `[a b c d; panel step]` for each step.
macro_rules! registers_by_shared {
    ($name:ident [$slope_shape:literal], $shape:literal $type:literal, $count:literal,
        [$($c:literal)*] $cs:tt, $registers:literal,
        [$([$($first:literal)*; $first_offset:literal $scale:literal])*]
        $([$([$($a:literal)*; $offset:literal])*])*) => {
        /// Starts `q k^T`; a group of its own.
        ///
        /// # Safety
        /// The warpgroup calls it together, with the same descriptor; k is visible to the async proxy and
        /// q's registers stay as they are until the group is done.
        #[inline(always)]
        pub unsafe fn $name(q: &[u32; $registers], k: u64, slopes: &SlopeStep) -> [f32; $count] {
            let mut c = [0.0; $count];
            asm!(
                concat!(
                    "{{\n.reg .pred %fresh, %running; .reg .b64 %b, %b_panel;\n",
                    "setp.ne.b32 %fresh, 0, 0; setp.eq.b32 %running, 0, 0;\n",
                    "mov.b64 %b_panel, {k};\n",
                    "wgmma.fence.sync.aligned;\n",
                    slope_step!($slope_shape, $cs),
                    $(
                        "add.s64 %b, %b_panel, ", $first_offset, ";\n",
                        instruction!($shape $type), " {{", list!($cs), "}}, {{",
                        list!([$($first)*]), "}}, %b, ",
                        $scale, ", 1, 1, 0;\n",
                    )*
                    $(
                        "add.s64 %b_panel, %b_panel, {k_panel};\n",
                        $(
                            "add.s64 %b, %b_panel, ", $offset, ";\n",
                            instruction!($shape $type), " {{", list!($cs), "}}, {{",
                            list!([$($a)*]), "}}, %b, ",
                            "%running, 1, 1, 0;\n",
                        )*
                    )*
                    "wgmma.commit_group.sync.aligned; // {k_panel}\n}}",
                ),
                $(out(reg32) c[$c],)*
                $($(in(reg32) q[$first - $count],)*)*
                $($($(in(reg32) q[$a - $count],)*)*)*
                k = in(reg64) k, k_panel = const $count * 2 * 8,
                a0 = in(reg32) slopes.rows[0], a1 = in(reg32) slopes.rows[1],
                a2 = in(reg32) slopes.rows[2], a3 = in(reg32) slopes.rows[3],
                columns = in(reg64) slopes.columns,
                options(nostack)
            );
            c
        }
    };
}

/// `output += p v` with p in registers and v stored as rows of output columns; `[a b c d; offset]` for each
/// step of 16 keys, the offset in units of 16 bytes.
macro_rules! accumulate {
    ($name:ident, $shape:literal $type:literal, $count:literal, [$($c:literal)*] $cs:tt, $registers:literal,
        [$($first:literal)*; $first_offset:literal] $([$($a:literal)*; $offset:literal])*) => {
        /// Starts `output += p v`, or `output = p v` where `adds` is 0; a group of its own.
        ///
        /// # Safety
        /// The warpgroup calls it together, with the same descriptor; v is visible to the async proxy, and
        /// p and the output stay as they are until the group is done.
        #[inline(always)]
        pub unsafe fn $name(output: &mut [f32; $count], p: &[u32; $registers], v: u64, adds: u32) {
            asm!(
                concat!(
                    "{{\n.reg .pred %first, %running; .reg .b64 %b;\n",
                    "setp.ne.b32 %first, {adds}, 0; setp.eq.b32 %running, 0, 0;\n",
                    "wgmma.fence.sync.aligned;\n",
                    "add.s64 %b, {v}, ", $first_offset, ";\n",
                    instruction!($shape $type), " {{", list!($cs), "}}, {{", list!([$($first)*]),
                    "}}, %b, %first, 1, 1, 1;\n",
                    $(
                        "add.s64 %b, {v}, ", $offset, ";\n",
                        instruction!($shape $type), " {{", list!($cs), "}}, {{",
                        list!([$($a)*]), "}}, %b, ",
                        "%running, 1, 1, 1;\n",
                    )*
                    "wgmma.commit_group.sync.aligned;\n}}",
                ),
                $(inout(reg32) output[$c],)*
                $(in(reg32) p[$first - $count],)*
                $($(in(reg32) p[$a - $count],)*)*
                v = in(reg64) v, adds = in(reg32) adds,
                options(nostack)
            );
        }
    };
}

/// 1. The compiler must not know, or it makes a copy of a loop for the first product.
#[inline(always)]
pub fn one() -> u32 {
    let value;
    // SAFETY: writes its output only.
    unsafe { asm!("mov.b32 {}, 1;", out(reg32) value, options(nomem, nostack)) };
    value
}

/// `c = a b` with a in shared memory as 128-byte panels of rows, and b as rows of output columns;
/// or its transpose, `b^T a^T`. `$operands` are those of the instruction, and which of them are columns;
/// `[scale; a step; b step]` for each step of 16, in units of 16 bytes; behind each bar those of the next
/// panel.
macro_rules! shared_by_shared_transposed {
    ($name:ident, $shape:literal $type:literal $operands:literal $columns:literal, $count:literal,
        [$($c:literal)*] $cs:tt,
        $([$scale:literal; $a:literal; $b:literal])* $(| $([$next_a:literal; $next_b:literal])*)*) => {
        /// Starts `a b`, or its transpose; a group of its own; a is of a tile of size `A`.
        ///
        /// # Safety
        /// The warpgroup calls it together, with the same descriptors; both tiles are visible to the async
        /// proxy until the group is done.
        #[inline(always)]
        pub unsafe fn $name<A: TileSize>(a: u64, b: u64) -> [f32; $count] {
            let mut c = [0.0; $count];
            asm!(
                concat!(
                    "{{\n.reg .pred %fresh, %running; .reg .b64 %a, %b, %a_panel;\n",
                    "setp.ne.b32 %fresh, 0, 0; setp.eq.b32 %running, 0, 0;\n",
                    "mov.b64 %a_panel, {a};\n",
                    "wgmma.fence.sync.aligned;\n",
                    $(
                        "add.s64 %a, {a}, ", $a, "; add.s64 %b, {b}, ", $b, ";\n",
                        instruction!($shape $type), " {{", list!($cs), "}}, ", $operands, ", ", $scale,
                        ", 1, 1, ", $columns, ";\n",
                    )*
                    $(
                        "add.s64 %a_panel, %a_panel, {panel};\n",
                        $(
                            "add.s64 %a, %a_panel, ", $next_a, "; add.s64 %b, {b}, ", $next_b, ";\n",
                            instruction!($shape $type), " {{", list!($cs), "}}, ", $operands,
                            ", %running, 1, 1, ", $columns, ";\n",
                        )*
                    )*
                    "wgmma.commit_group.sync.aligned; // {panel}\n}}",
                ),
                $(out(reg32) c[$c],)*
                a = in(reg64) a, b = in(reg64) b, panel = const A::ROWS * 8,
                options(nostack)
            );
            c
        }
    };
}

/// Waits until at most a number of groups of this warpgroup are in flight, and lets the accumulator of the
/// group that is done be read.
pub trait Wait {
    /// PTX: `wgmma.wait_group.sync.aligned PENDING`.
    ///
    /// # Safety
    /// The warpgroup calls it together; `self` is the accumulator of a group that is then done.
    unsafe fn wait<const PENDING: u32>(&mut self);
}

macro_rules! wait {
    ($count:literal, [$($c:literal)*] $cs:tt) => {
        impl Wait for [f32; $count] {
            #[inline(always)]
            unsafe fn wait<const PENDING: u32>(&mut self) {
                asm!(
                    concat!("wgmma.wait_group.sync.aligned {pending}; // ", list!($cs)),
                    $(inout(reg32) self[$c],)*
                    pending = const PENDING,
                    options(nostack)
                );
            }
        }
    };
}

/// Hands a list on twice: to be taken apart, and as a whole.
macro_rules! doubled {
    ($callback:ident [$($before:tt)*] $count:literal, $list:tt $($after:tt)*) => {
        $callback! { $($before)* $count, $list $list $($after)* }
    };
}

/// Hands the numbers of 32 accumulator registers to a macro.
macro_rules! with_32 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 32, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31
        ] $($after)* }
    };
}

/// Hands the numbers of 40 accumulator registers to a macro.
macro_rules! with_40 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 40, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31 32 33 34 35 36 37 38 39
        ] $($after)* }
    };
}

/// Hands the numbers of 48 accumulator registers to a macro.
macro_rules! with_48 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 48, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
            28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
        ] $($after)* }
    };
}

/// Hands the numbers of 56 accumulator registers to a macro.
macro_rules! with_56 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 56, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55
        ] $($after)* }
    };
}

/// Hands the numbers of 64 accumulator registers to a macro.
macro_rules! with_64 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 64, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
            57 58 59 60 61 62 63
        ] $($after)* }
    };
}

/// Hands the numbers of 80 accumulator registers to a macro.
macro_rules! with_80 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 80, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
            28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52
            53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77
            78 79
        ] $($after)* }
    };
}

/// Hands the numbers of 96 accumulator registers to a macro.
macro_rules! with_96 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 96, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
            57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83
            84 85 86 87 88 89 90 91 92 93 94 95
        ] $($after)* }
    };
}

/// Hands the numbers of 128 accumulator registers to a macro.
macro_rules! with_128 {
    ($callback:ident!($($before:tt)*) $($after:tt)*) => {
        doubled! { $callback [$($before)*] 128, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
            57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83
            84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107
            108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127
        ] $($after)* }
    };
}
with_32!(wait!());
with_40!(wait!());
with_48!(wait!());
with_56!(wait!());
with_64!(wait!());
with_80!(wait!());
with_96!(wait!());
with_128!(wait!());

/// The products of one element type: for each head dim, scores of a tile of keys, and output from it.
macro_rules! products {
    ($module:ident, $type:literal) => {
        /// Products of this element type; `d` is the columns of head dim, `n` the rows of a tile; `q` the
        /// queries of a product that is transposed.
        pub mod $module {
            use super::{SlopeStep, TileSize, asm};

            with_32!(shared_by_shared!(scores_d64_n64, "m64n64k16" $type,), []);
            with_32!(shared_by_shared!(scores_d128_n64, "m64n64k16" $type,), [1]);
            with_40!(shared_by_shared!(plain_scores_d128_n80, "m64n80k16" $type,), [1]);
            with_40!(shared_by_shared!(scores_d128_n80 [slopes "m64n80k8"], "m64n80k16" $type,), [1]);
            with_32!(shared_by_shared!(scores_d192_n64, "m64n64k16" $type,), [1 2]);
            with_32!(shared_by_shared!(scores_d256_n64, "m64n64k16" $type,), [1 2 3]);
            with_64!(shared_by_shared!(plain_scores_d64_n128, "m64n128k16" $type,), []);
            with_64!(shared_by_shared!(scores_d64_n128 [slopes "m64n128k8"], "m64n128k16" $type,), []);
            with_64!(shared_by_shared!(shared_scores_d128_n128, "m64n128k16" $type,), [1]);
            with_56!(shared_by_shared!(scores_d80_n112 [slopes "m64n112k8"], "m64n112k16" $type,), [] [0]);
            with_56!(shared_by_shared!(scores_d96_n112 [slopes "m64n112k8"], "m64n112k16" $type,), [] [0 2]);
            with_56!(shared_by_shared!(scores_d160_n112 [slopes "m64n112k8"], "m64n112k16" $type,),
                [1] [0 2]);
            with_56!(shared_by_shared!(scores_d192_n112 [slopes "m64n112k8"], "m64n112k16" $type,), [1 2]);
            with_40!(shared_by_shared!(scores_d256_n80 [slopes "m64n80k8"], "m64n80k16" $type,), [1 2 3]);
            with_64!(registers_by_shared!(scores_d80_n128 ["m64n128k8"], "m64n128k16" $type,), 20,
                [
                    [64 65 66 67; 0 "%fresh"] [68 69 70 71; 2 "%running"]
                    [72 73 74 75; 4 "%running"] [76 77 78 79; 6 "%running"]
                ]
                [[80 81 82 83; 0]]);
            with_64!(registers_by_shared!(scores_d96_n128 ["m64n128k8"], "m64n128k16" $type,), 24,
                [
                    [64 65 66 67; 0 "%fresh"] [68 69 70 71; 2 "%running"]
                    [72 73 74 75; 4 "%running"] [76 77 78 79; 6 "%running"]
                ]
                [[80 81 82 83; 0] [84 85 86 87; 2]]);
            with_64!(registers_by_shared!(scores_d128_n128 ["m64n128k8"], "m64n128k16" $type,), 32,
                [
                    [64 65 66 67; 0 "%fresh"] [68 69 70 71; 2 "%running"]
                    [72 73 74 75; 4 "%running"] [76 77 78 79; 6 "%running"]
                ]
                [[80 81 82 83; 0] [84 85 86 87; 2] [88 89 90 91; 4] [92 93 94 95; 6]]);
            with_32!(accumulate!(accumulate_d64_n64, "m64n64k16" $type,), 16,
                [32 33 34 35; 0] [36 37 38 39; 128] [40 41 42 43; 256] [44 45 46 47; 384]);
            with_32!(accumulate!(accumulate_d64_n128, "m64n64k16" $type,), 32,
                [32 33 34 35; 0] [36 37 38 39; 128] [40 41 42 43; 256] [44 45 46 47; 384]
                [48 49 50 51; 512] [52 53 54 55; 640] [56 57 58 59; 768] [60 61 62 63; 896]);
            with_40!(accumulate!(accumulate_d80_n128, "m64n80k16" $type,), 32,
                [40 41 42 43; 0] [44 45 46 47; 128] [48 49 50 51; 256] [52 53 54 55; 384]
                [56 57 58 59; 512] [60 61 62 63; 640] [64 65 66 67; 768] [68 69 70 71; 896]);
            with_48!(accumulate!(accumulate_d96_n128, "m64n96k16" $type,), 32,
                [48 49 50 51; 0] [52 53 54 55; 128] [56 57 58 59; 256] [60 61 62 63; 384]
                [64 65 66 67; 512] [68 69 70 71; 640] [72 73 74 75; 768] [76 77 78 79; 896]);
            with_40!(accumulate!(accumulate_d80_n112, "m64n80k16" $type,), 28,
                [40 41 42 43; 0] [44 45 46 47; 128] [48 49 50 51; 256] [52 53 54 55; 384]
                [56 57 58 59; 512] [60 61 62 63; 640] [64 65 66 67; 768]);
            with_48!(accumulate!(accumulate_d96_n112, "m64n96k16" $type,), 28,
                [48 49 50 51; 0] [52 53 54 55; 128] [56 57 58 59; 256] [60 61 62 63; 384]
                [64 65 66 67; 512] [68 69 70 71; 640] [72 73 74 75; 768]);
            with_64!(accumulate!(accumulate_d128_n64, "m64n128k16" $type,), 16,
                [64 65 66 67; 0] [68 69 70 71; 128] [72 73 74 75; 256] [76 77 78 79; 384]);
            with_64!(accumulate!(accumulate_d128_n80, "m64n128k16" $type,), 20,
                [64 65 66 67; 0] [68 69 70 71; 128] [72 73 74 75; 256] [76 77 78 79; 384]
                [80 81 82 83; 512]);
            with_32!(shared_by_shared_transposed!(product_d64_n128, "m64n64k16" $type "%a, %b" "0, 1",),
                ["%fresh"; 0; 0] ["%running"; 2; 128] ["%running"; 4; 256] ["%running"; 6; 384]
                | [0; 512] [2; 640] [4; 768] [6; 896]);
            with_40!(shared_by_shared_transposed!(product_q80_n128, "m64n80k16" $type "%b, %a" "1, 0",),
                ["%fresh"; 0; 0] ["%running"; 2; 128] ["%running"; 4; 256] ["%running"; 6; 384]
                | [0; 512] [2; 640] [4; 768] [6; 896]);
            with_32!(shared_by_shared_transposed!(product_d64_n192, "m64n64k16" $type "%a, %b" "0, 1",),
                ["%fresh"; 0; 0] ["%running"; 2; 128] ["%running"; 4; 256] ["%running"; 6; 384]
                | [0; 512] [2; 640] [4; 768] [6; 896] | [0; 1024] [2; 1152] [4; 1280] [6; 1408]);
            with_32!(shared_by_shared_transposed!(product_d64_n64, "m64n64k16" $type "%a, %b" "0, 1",),
                ["%fresh"; 0; 0] ["%running"; 2; 128] ["%running"; 4; 256] ["%running"; 6; 384]);
            with_64!(shared_by_shared_transposed!(product_d128_n64, "m64n128k16" $type "%a, %b" "0, 1",),
                ["%fresh"; 0; 0] ["%running"; 2; 128] ["%running"; 4; 256] ["%running"; 6; 384]);
            with_64!(accumulate!(accumulate_d128_n128, "m64n128k16" $type,), 32,
                [64 65 66 67; 0] [68 69 70 71; 128] [72 73 74 75; 256] [76 77 78 79; 384]
                [80 81 82 83; 512] [84 85 86 87; 640] [88 89 90 91; 768] [92 93 94 95; 896]);
            with_96!(accumulate!(accumulate_d192_n64, "m64n192k16" $type,), 16,
                [96 97 98 99; 0] [100 101 102 103; 128] [104 105 106 107; 256] [108 109 110 111; 384]);
            with_128!(accumulate!(accumulate_d256_n64, "m64n256k16" $type,), 16,
                [128 129 130 131; 0] [132 133 134 135; 128] [136 137 138 139; 256] [140 141 142 143; 384]);
            with_80!(accumulate!(accumulate_d160_n112, "m64n160k16" $type,), 28,
                [80 81 82 83; 0] [84 85 86 87; 128] [88 89 90 91; 256] [92 93 94 95; 384]
                [96 97 98 99; 512] [100 101 102 103; 640] [104 105 106 107; 768]);
            with_96!(accumulate!(accumulate_d192_n112, "m64n192k16" $type,), 28,
                [96 97 98 99; 0] [100 101 102 103; 128] [104 105 106 107; 256] [108 109 110 111; 384]
                [112 113 114 115; 512] [116 117 118 119; 640] [120 121 122 123; 768]);
            with_128!(accumulate!(accumulate_d256_n80, "m64n256k16" $type,), 20,
                [128 129 130 131; 0] [132 133 134 135; 128] [136 137 138 139; 256] [140 141 142 143; 384]
                [144 145 146 147; 512]);
        }
    };
}
products!(bf16, "bf16");
products!(f16, "f16");

pub mod split;
