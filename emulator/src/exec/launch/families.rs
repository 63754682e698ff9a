//! The tables of instruction families, and of the checks that cost most: one per kind of CPU.
//!
//! The families are plain Rust loops, compiled twice: portably, and with AVX2 and FMA, where a
//! fused multiply-add is one instruction instead of a library call; a few a third time, with AVX-512. The
//! table is chosen once per launch.

use crate::exec::actors::wgmma;
use crate::exec::check::race;
use crate::exec::ops;
use crate::exec::state::context::{Context, Flow};
use crate::exec::state::families::Families;
use crate::exec::state::warp::Warp;
use crate::exec::state::wgmma::Pending;
use crate::exec::state::window::Window;
use crate::exec::values::registers::Registers;
use crate::isa::{CompareType, FloatOp, Instruction, IntegerOp, MatrixOp, Op};
use crate::space::Space;

macro_rules! families {
    ($wrap:ident) => {
        Families {
            integer16: $wrap!(ops::integer::run16,
                (r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) -> ()),
            integer32: $wrap!(ops::integer::run32,
                (r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) -> ()),
            integer64: $wrap!(ops::integer::run64,
                (r: &mut Registers, i: &Instruction, m: u32, op: IntegerOp) -> ()),
            float32: $wrap!(ops::float::run32,
                (r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) -> ()),
            float64: $wrap!(ops::float::run64,
                (r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) -> ()),
            half: $wrap!(ops::half::run,
                (r: &mut Registers, i: &Instruction, m: u32, op: Op) -> ()),
            compare: $wrap!(ops::compare::run,
                (r: &mut Registers, i: &Instruction, m: u32, op: CompareType) -> ()),
            convert: $wrap!(ops::convert::run,
                (r: &mut Registers, i: &Instruction, m: u32, op: Op) -> ()),
            load: $wrap!(ops::memory::load,
                (c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, space: Space) -> Flow),
            store: $wrap!(ops::memory::store,
                (c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, space: Space) -> Flow),
            wgmma: $wrap!(wgmma::run,
                (c: &mut Context<'_>, w: &mut Warp, pending: &Pending) -> ()),
            matrix: $wrap!(ops::matrix::run,
                (c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: MatrixOp) -> Flow),
            race_lanes: $wrap!(race::lanes_access,
                (c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32, store: bool) -> bool),
            race_copies: $wrap!(race::copies_begin,
                (c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32) -> ()),
            race_copies_end: $wrap!(race::copies_end,
                (c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32, pc: u32) -> ()),
            race_operand: $wrap!(race::operand_is_read,
                (c: &mut Context<'_>, w: &Warp, place: usize, group: u32) -> ()),
        }
    };
}

macro_rules! portable {
    ($path:path, ($($name:ident: $type:ty),*) -> $result:ty) => {{
        fn run($($name: $type),*) -> $result {
            $path($($name),*)
        }
        run
    }};
}

#[cfg(target_arch = "x86_64")]
macro_rules! with_features {
    ($features:literal, $path:path, ($($name:ident: $type:ty),*) -> $result:ty) => {{
        #[target_feature(enable = $features)]
        fn vector($($name: $type),*) -> $result {
            $path($($name),*)
        }
        fn run($($name: $type),*) -> $result {
            // SAFETY: `families` hands out this table only where the CPU has these features.
            unsafe { vector($($name),*) }
        }
        run
    }};
}

#[cfg(target_arch = "x86_64")]
macro_rules! avx2 {
    ($($family:tt)*) => {
        with_features!("avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt", $($family)*)
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! avx512 {
    ($($family:tt)*) => {
        with_features!(
            "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt",
            $($family)*
        )
    };
}

static PORTABLE: Families = families!(portable);
#[cfg(target_arch = "x86_64")]
const WITH_AVX2: Families = families!(avx2);
#[cfg(target_arch = "x86_64")]
static AVX2: Families = WITH_AVX2;
/// What is mostly multiplications, and comparing and filling of many words, with vectors of 512 bits.
#[cfg(target_arch = "x86_64")]
static AVX512: Families = Families {
    wgmma: avx512!(wgmma::run_wide, (c: &mut Context<'_>, w: &mut Warp, pending: &Pending) -> ()),
    matrix: avx512!(ops::matrix::run_wide,
        (c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: MatrixOp) -> Flow),
    race_operand: avx512!(race::operand_is_read,
        (c: &mut Context<'_>, w: &Warp, place: usize, group: u32) -> ()),
    ..WITH_AVX2
};

/// The fastest table for this CPU.
pub fn families() -> &'static Families {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        return if has_avx512() { &AVX512 } else { &AVX2 };
    }
    &PORTABLE
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}
