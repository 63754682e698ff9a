//! Instructions of a whole warp: shuffles, votes, reductions, matrices.

use super::program::{Program, Random};
use kernels_gpu::abi::Arch;

fn warp(name: &str, body: &str) -> Program {
    Program::new(name, Arch::Sm80, 32, body)
}

/// Every lane has the input word of its row in `%r1`.
fn on_a_word(name: &str, body: &str) -> Program {
    warp(name, &format!("ld.global.b32 %r1, [%in]; {body}"))
}

fn exchanges() -> Vec<Program> {
    let mut programs = Vec::new();
    for (mode, amount, clamp) in [
        ("up", 3, 0),
        ("up", 5, 0x1800),
        ("down", 3, 31),
        ("down", 1, 0x1c1f),
        ("bfly", 16, 31),
        ("bfly", 5, 0x181f),
        ("idx", 7, 31),
        ("idx", 2, 0x181f),
    ] {
        programs.push(on_a_word(
            &format!("shfl.{mode} by {amount}, {clamp:#x}"),
            &format!(
                "shfl.sync.{mode}.b32 %r2|%p1, %r1, {amount}, {clamp}, -1; selp.b32 %r3, 1, 0, %p1;
                 st.global.b32 [%mine], %r2; st.global.b32 [%mine+128], %r3;"
            ),
        ));
    }
    programs.push(on_a_word(
        "votes",
        "and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 0; setp.ge.u32 %p2, %r1, 0; vote.sync.ballot.b32 %r3, %p1, -1;
         vote.sync.any.pred %p3, %p1, -1; vote.sync.all.pred %p4, %p2, -1; vote.sync.uni.pred %p5, %p1, -1;
         selp.b32 %r4, 1, 0, %p3; selp.b32 %r5, 2, 0, %p4; selp.b32 %r6, 4, 0, %p5; or.b32 %r4, %r4, %r5;
         or.b32 %r4, %r4, %r6; st.global.b32 [%mine], %r3; st.global.b32 [%mine+128], %r4;",
    ));
    for operation in ["add.u32", "add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"] {
        programs.push(on_a_word(
            &format!("redux.{operation}"),
            &format!("or.b32 %r1, %r1, 0x10f0; redux.sync.{operation} %r2, %r1, -1; st.global.b32 [%mine], %r2;"),
        ));
    }
    programs.push(on_a_word(
        "matches",
        "and.b32 %r1, %r1, 7; match.any.sync.b32 %r2, %r1, -1; match.all.sync.b32 %r3|%p1, 5, -1;
         add.s32 %r2, %r2, %r3; st.global.b32 [%mine], %r2;",
    ));
    programs.push(on_a_word(
        "lanes that went two ways meet at a shuffle",
        "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN; mul.lo.u32 %r1, %r1, 3; bra MEET;
         EVEN: add.u32 %r1, %r1, 77; MEET: bar.warp.sync -1; shfl.sync.bfly.b32 %r2, %r1, 9, 31, -1;
         st.global.b32 [%mine], %r2;",
    ));
    programs.push(on_a_word(
        "a loop of as many turns as the lane says",
        "mov.u32 %r2, 0; mov.u32 %r3, 0; AGAIN: mad.lo.u32 %r2, %r2, 5, %r1; add.u32 %r3, %r3, 1;
         setp.le.u32 %p1, %r3, %lane; @%p1 bra AGAIN; st.global.b32 [%mine], %r2;",
    ));
    programs
}

/// A tile of 16-bit elements in shared memory, a row of 16 bytes per lane; `%r3` is the lane's row.
const TILE: &str = "shl.b32 %r2, %thread, 4; add.u32 %r3, %base, %r2; mul.wide.u32 %d1, %thread, 16;
    add.u64 %d1, %d1, %data; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d1];
    st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7}; bar.warp.sync -1;";

fn matrices() -> Vec<Program> {
    let mut programs = Vec::new();
    for count in [1, 2, 4] {
        for trans in ["", ".trans"] {
            let names: Vec<String> = (0..count).map(|index| format!("%r{}", 10 + index)).collect();
            let stores: String = (0..count)
                .map(|index| format!("st.global.b32 [%mine+{}], %r{};", 128 * index, 10 + index))
                .collect();
            let load = format!(
                "ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%r3];",
                names.join(", ")
            );
            programs
                .push(warp(&format!("ldmatrix x{count}{trans}"), &format!("{TILE} {load} {stores}")));
        }
    }
    // Small multiples of 1/8, whose sums are exact in any order, and numbers whose sums are not.
    for (types, k, a, b) in [
        ("bf16.bf16", 16, 4, 2),
        ("f16.f16", 16, 4, 2),
        ("bf16.bf16", 8, 2, 1),
        ("f16.f16", 8, 2, 1),
        ("tf32.tf32", 8, 4, 2),
        ("tf32.tf32", 4, 2, 1),
    ] {
        for exact in [true, false] {
            programs.push(product(types, k, [a, b], exact));
        }
    }
    for types in ["s8.s8", "u8.u8", "s8.u8", "u8.s8"] {
        for satfinite in ["", ".satfinite"] {
            programs.push(byte_product("m16n8k32", satfinite, types, [4, 2, 4]));
        }
        programs.push(byte_product("m16n8k16", "", types, [2, 1, 4]));
        programs.push(byte_product("m8n8k16", "", types, [1, 1, 2]));
    }
    programs
}

/// A vector of so many registers.
fn registers(first: u32, count: u32) -> String {
    let names: Vec<String> = (first..first + count).map(|index| format!("%r{index}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// A multiplication of matrices whose operands have so many registers each, filled with words of the input one after
/// the other; of a sparse one, the metadata come last.
fn multiplication(opcode: &str, [a, b, c]: [u32; 3], selector: Option<u32>) -> String {
    let loaded = a + b + c + u32::from(selector.is_some());
    let loads: String = (0..loaded)
        .map(|index| format!("ld.global.b32 %r{}, [%d1+{}];", 10 + index, 128 * index))
        .collect();
    let (left, right, sum, result) =
        (registers(10, a), registers(10 + a, b), registers(10 + a + b, c), registers(40, c));
    let metadata =
        selector.map_or(String::new(), |selector| format!(", %r{}, {selector}", 10 + a + b + c));
    let stores: String = (0..c)
        .map(|index| format!("st.global.b32 [%mine+{}], %r{};", 128 * index, 40 + index))
        .collect();
    format!(
        "mul.wide.u32 %d1, %thread, 4; add.u64 %d1, %d1, %data; {loads}
         {opcode} {result}, {left}, {right}, {sum}{metadata}; {stores}"
    )
}

/// One `mma` of bytes, all of whose registers are words of the input; sums of the saturated are near their limits.
fn byte_product(shape: &str, satfinite: &str, types: &str, [a, b, c]: [u32; 3]) -> Program {
    let opcode = format!("mma.sync.aligned.{shape}.row.col{satfinite}.s32.{types}.s32");
    let body = multiplication(&opcode, [a, b, c], None);
    let program = warp(&format!("mma {shape}{satfinite} {types}"), &body);
    let operands = (a + b) * 32;
    let is_near_limits = !satfinite.is_empty();
    program.on_words(move |index| {
        let word = Random(u64::from(index) * 977 + 1).next() as u32;
        match index {
            _ if index < operands || !is_near_limits => word,
            _ if word.is_multiple_of(2) => i32::MAX as u32 - word % 4096,
            _ => i32::MIN as u32 + word % 4096,
        }
    })
}

/// One `mma`, with registers of A and B from words of the input, and C from 4 more.
fn product(types: &str, k: u32, [a, b]: [u32; 2], exact: bool) -> Program {
    let opcode = format!("mma.sync.aligned.m16n8k{k}.row.col.f32.{types}.f32");
    let body = multiplication(&opcode, [a, b, 4], None);
    let kind = if exact { "exact" } else { "rounded" };
    let program = warp(&format!("mma k{k} {types}, {kind}"), &body);
    let words = numbered(program, types, (a + b) * 32, exact);
    // Products of at most 1 (4 where exact), and k + 1 of them.
    if exact { words } else { words.within(0.0, f64::from(k + 1) * 2f64.powi(-20)) }
}

/// Input words of so many that hold numbers of a type, or two of 16 bits; those behind hold f32.
fn numbered(program: Program, types: &str, operands: u32, exact: bool) -> Program {
    let is_tf32 = types.starts_with("tf32");
    let number = move |index: u32| {
        let bits = Random(u64::from(index) * 977 + 1).next();
        if exact { (bits % 33) as f32 / 8.0 - 2.0 } else { (bits % 8191) as f32 / 4096.0 - 1.0 }
    };
    let half = types.starts_with("f16");
    let encode = move |value: f32| {
        // Numbers this small and short are exact in both types, or cut to what is.
        if half { f16_bits(value) } else { value.to_bits() >> 16 }
    };
    program.on_words(move |index| match index {
        _ if index < operands && is_tf32 => number(index).to_bits() & 0xffff_e000,
        _ if index < operands => encode(number(2 * index)) | encode(number(2 * index + 1)) << 16,
        _ => number(index).to_bits(),
    })
}

/// Metadata of `mma.sp`, a nibble for four values, drawn from these.
fn metadata(index: u32, nibbles: &[u32]) -> u32 {
    let mut random = Random(u64::from(index) * 977 + 5);
    (0..8).fold(0, |word, _| word << 4 | nibbles[random.next() as usize % nibbles.len()])
}

/// That which keeps two of four values, in order: 0 1, 0 2, 0 3, 1 2, 1 3, 2 3.
pub fn two_of_four(index: u32) -> u32 {
    metadata(index, &[0x4, 0x8, 0xc, 0x9, 0xd, 0xe])
}

/// That which keeps one of two values of 32 bits: the first, the second.
fn one_of_two(index: u32) -> u32 {
    metadata(index, &[0x4, 0xe])
}

/// A program with other input words from one on.
fn with_metadata(program: Program, first: u32, word: fn(u32) -> u32) -> Program {
    let words = program.words();
    program.on_words(move |index| if index < first { words[index as usize] } else { word(index) })
}

/// `mma.sp` of numbers whose sums are exact, and of bytes.
fn sparse_products() -> Vec<Program> {
    let mut programs = Vec::new();
    for (types, k, a, b, selectors) in [
        ("f16.f16", 16, 2, 2, 4),
        ("bf16.bf16", 16, 2, 2, 4),
        ("f16.f16", 32, 4, 4, 2),
        ("bf16.bf16", 32, 4, 4, 2),
        ("tf32.tf32", 8, 2, 2, 4),
        ("tf32.tf32", 16, 4, 4, 2),
    ] {
        for selector in 0..selectors {
            let opcode = format!("mma.sp.sync.aligned.m16n8k{k}.row.col.f32.{types}.f32");
            let body = multiplication(&opcode, [a, b, 4], Some(selector));
            let program = warp(&format!("mma.sp k{k} {types}, selector {selector}"), &body);
            let word = if types.starts_with("tf32") { one_of_two } else { two_of_four };
            let words = numbered(program, types, (a + b) * 32, true);
            programs.push(with_metadata(words, (a + b + 4) * 32, word));
        }
    }
    for (types, k, a, b, selectors) in [("s8.u8", 32, 2, 2, 2), ("u8.s8", 64, 4, 4, 1)] {
        for selector in 0..selectors {
            let opcode = format!("mma.sp.sync.aligned.m16n8k{k}.row.col.s32.{types}.s32");
            let body = multiplication(&opcode, [a, b, 4], Some(selector));
            let program = warp(&format!("mma.sp k{k} {types}, selector {selector}"), &body);
            programs.push(with_metadata(program, (a + b + 4) * 32, two_of_four));
        }
    }
    programs
}

/// `wmma`: tiles from global memory and back, of numbers whose sums are exact.
fn warp_matrices() -> Vec<Program> {
    let mut programs = Vec::new();
    for (types, shape, [a, b, c]) in [
        ("f16", "m16n16k16", [8, 8, 8]),
        ("f16", "m32n8k16", [8, 8, 8]),
        ("f16", "m8n32k16", [8, 8, 8]),
        ("bf16", "m16n16k16", [4, 4, 8]),
        ("tf32", "m16n16k8", [4, 4, 8]),
    ] {
        for (row, col) in [("row", "col"), ("col", "row")] {
            // A and B are the same words, C is behind them; strides leave gaps.
            let (left, right, sum) = (registers(10, a), registers(20, b), registers(30, c));
            let product = match types {
                "f16" => "f32.f32".to_owned(),
                other => format!("f32.{other}.{other}.f32"),
            };
            let body = format!(
                "add.u64 %d1, %data, 16384;
                 wmma.load.a.sync.aligned.{row}.{shape}.global.{types} {left}, [%data], 40;
                 wmma.load.b.sync.aligned.{col}.{shape}.global.{types} {right}, [%data+4096], 48;
                 wmma.load.c.sync.aligned.row.{shape}.global.f32 {sum}, [%d1], 36;
                 wmma.mma.sync.aligned.{row}.{col}.{shape}.{product} {sum}, {left}, {right}, {sum};
                 add.u64 %d2, %data, 32768; wmma.store.d.sync.aligned.col.{shape}.global.f32 [%d2], {sum}, 44;"
            );
            let program = warp(&format!("wmma {shape} {types}, {row} by {col}"), &body);
            programs.push(numbered(program, types, 4096, true));
        }
    }
    programs
}

/// f16 of a normal number, cut.
fn f16_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    let sign = bits >> 16 & 0x8000;
    if exponent <= 0 { sign } else { sign | (exponent as u32) << 10 | bits >> 13 & 0x3ff }
}

pub fn programs() -> Vec<Program> {
    [exchanges(), matrices(), sparse_products(), warp_matrices()].concat()
}
