//! One instruction at a time, on rows of random numbers and edge cases.

use super::program::{INPUT_BYTES, Program, ROWS, Random, Tolerance};
use kernels_gpu::abi::Arch;

/// What is in a column of sources.
#[derive(Clone, Copy)]
enum Column {
    /// Random bits of this many, with edge cases among them.
    Bits(u32),
    /// 0 to 40.
    Count,
    /// f32 of all kinds.
    Single,
    /// f32 between -3 and 3.
    Small,
    /// f64 of all kinds.
    Double,
    /// Two f16 or bf16 between 2^-17 and 2^16 in size.
    Pair,
    /// A predicate.
    Flag,
}

impl Column {
    const fn bits(self) -> u32 {
        match self {
            Column::Bits(bits) => bits,
            Column::Count | Column::Single | Column::Small | Column::Pair => 32,
            Column::Double => 64,
            Column::Flag => 1,
        }
    }

    fn value(self, random: &mut Random) -> u64 {
        const SINGLES: [u32; 16] = [
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x007f_ffff,
            0x0080_0000,
            0x3f80_0000,
            0xbf80_0000,
            0x3f00_0000,
            0x7f7f_ffff,
            0xff7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0x7fff_ffff,
            0xffc0_0001,
        ];
        let (pick, word) = (random.next(), random.next() << 20 ^ random.next());
        match self {
            Column::Bits(bits) => {
                let mask = if bits == 64 { !0 } else { (1 << bits) - 1 };
                let edges = [0, 1, mask, mask >> 1, (mask >> 1) + 1];
                if pick % 4 == 0 { edges[(pick >> 8) as usize % 5] } else { word & mask }
            }
            Column::Count => word % 41,
            Column::Single => u64::from(match pick % 4 {
                0 => SINGLES[(pick >> 8) as usize % SINGLES.len()],
                1 => word as u32,
                _ => word as u32 & 0x81ff_ffff | 0x3e00_0000,
            }),
            Column::Small => u64::from(((word as u32 as f32 / u32::MAX as f32 - 0.5) * 6.0).to_bits()),
            Column::Double => match pick % 3 {
                0 => f64::from(f32::from_bits(SINGLES[(pick >> 8) as usize % SINGLES.len()])).to_bits(),
                1 => word,
                _ => word & 0x800f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000,
            },
            Column::Pair => word & 0xbfff_bfff,
            Column::Flag => word & 1,
        }
    }
}

fn register(bits: u32, index: usize) -> String {
    match bits {
        1 => format!("%p{index}"),
        16 => format!("%h{index}"),
        32 => format!("%r{}", 10 + index),
        _ => format!("%d{index}"),
    }
}

/// An instruction with `{d}` for the result and `{a}`, `{b}`, `{c}` for the sources.
fn expression(template: &str, result: u32, columns: &[Column]) -> Program {
    let mut body = String::new();
    let mut text = template.replace("{d}", &register(result, 9));
    let mut random = Random::named(template);
    let mut input = vec![0; INPUT_BYTES];
    for (index, column) in columns.iter().enumerate() {
        let name = register(column.bits(), index);
        text = text.replace(["{a}", "{b}", "{c}"][index], &name);
        let place = format!("[%in+{}]", index * 8 * ROWS);
        body += &match column.bits() {
            1 => format!("ld.global.b32 %r1, {place}; setp.ne.b32 {name}, %r1, 0;\n"),
            bits => format!("ld.global.b{bits} {name}, {place};\n"),
        };
        let rows = input[index * 8 * ROWS..][..8 * ROWS].chunks_mut(8);
        rows.for_each(|row| row.copy_from_slice(&column.value(&mut random).to_le_bytes()));
    }
    let name = register(result, 9);
    let store = match result {
        1 => format!("selp.b32 %r1, 1, 0, {name}; st.global.b32 [%out], %r1;"),
        bits => format!("st.global.b{bits} [%out], {name};"),
    };
    let program = Program::new(template, Arch::Sm80, 128, &format!("{body}{text}\n{store}"));
    Program { blocks: (ROWS / 128) as u32, input, ..program }
}

/// Results of 32 bits from sources of 32 bits.
fn integers() -> Vec<Program> {
    let word = Column::Bits(32);
    let three = [word, word, word];
    let mut programs: Vec<Program> = [
        "add.s32 {d}, {a}, {b};",
        "add.sat.s32 {d}, {a}, {b};",
        "sub.s32 {d}, {a}, {b};",
        "mul.lo.s32 {d}, {a}, {b};",
        "mul.hi.s32 {d}, {a}, {b};",
        "mul.hi.u32 {d}, {a}, {b};",
        "mul24.lo.s32 {d}, {a}, {b};",
        "mul24.hi.s32 {d}, {a}, {b};",
        "mul24.hi.u32 {d}, {a}, {b};",
        "mad24.lo.s32 {d}, {a}, {b}, {c};",
        "mad24.hi.u32 {d}, {a}, {b}, {c};",
        "mad.lo.s32 {d}, {a}, {b}, {c};",
        "mad.hi.u32 {d}, {a}, {b}, {c};",
        "mad.hi.sat.s32 {d}, {a}, {b}, {c};",
        "mad24.hi.sat.s32 {d}, {a}, {b}, {c};",
        "rem.u32 {d}, {a}, {b};",
        "rem.s32 {d}, {a}, {b};",
        "sad.s32 {d}, {a}, {b}, {c};",
        "min.s32 {d}, {a}, {b};",
        "max.u32 {d}, {a}, {b};",
        "and.b32 {d}, {a}, {b};",
        "xor.b32 {d}, {a}, {b};",
        "lop3.b32 {d}, {a}, {b}, {c}, 0x96;",
        "lop3.b32 {d}, {a}, {b}, {c}, 0xE8;",
        "prmt.b32 {d}, {a}, {b}, {c};",
        "prmt.b32.f4e {d}, {a}, {b}, {c};",
        "prmt.b32.b4e {d}, {a}, {b}, {c};",
        "prmt.b32.rc8 {d}, {a}, {b}, {c};",
        "prmt.b32.ecl {d}, {a}, {b}, {c};",
        "prmt.b32.ecr {d}, {a}, {b}, {c};",
        "prmt.b32.rc16 {d}, {a}, {b}, {c};",
        "slct.s32.s32 {d}, {a}, {b}, {c};",
        "dp4a.s32.s32 {d}, {a}, {b}, {c};",
        "dp4a.u32.u32 {d}, {a}, {b}, {c};",
        "dp4a.s32.u32 {d}, {a}, {b}, {c};",
        "dp4a.u32.s32 {d}, {a}, {b}, {c};",
        "dp2a.lo.s32.s32 {d}, {a}, {b}, {c};",
        "dp2a.hi.u32.u32 {d}, {a}, {b}, {c};",
        "dp2a.hi.s32.u32 {d}, {a}, {b}, {c};",
        "dp2a.lo.u32.s32 {d}, {a}, {b}, {c};",
    ]
    .map(|template| {
        let sources = if template.contains("{c}") { 3 } else { 2 };
        expression(template, 32, &three[..sources])
    })
    .into();
    for template in [
        "not.b32 {d}, {a};",
        "neg.s32 {d}, {a};",
        "abs.s32 {d}, {a};",
        "popc.b32 {d}, {a};",
        "clz.b32 {d}, {a};",
        "brev.b32 {d}, {a};",
        "bfind.s32 {d}, {a};",
        "bfind.u32 {d}, {a};",
        "bfind.shiftamt.s32 {d}, {a};",
        "bfind.shiftamt.u32 {d}, {a};",
    ] {
        programs.push(expression(template, 32, &[word]));
    }
    for template in ["shl.b32 {d}, {a}, {b};", "shr.u32 {d}, {a}, {b};", "shr.s32 {d}, {a}, {b};"] {
        programs.push(expression(template, 32, &[word, Column::Count]));
    }
    for template in ["shf.l.wrap.b32 {d}, {a}, {b}, {c};", "shf.r.clamp.b32 {d}, {a}, {b}, {c};"] {
        programs.push(expression(template, 32, &[word, word, Column::Count]));
    }
    programs.push(expression("bfe.s32 {d}, {a}, {b}, {c};", 32, &[word, Column::Count, Column::Count]));
    for template in ["bmsk.clamp.b32 {d}, {a}, {b};", "bmsk.wrap.b32 {d}, {a}, {b};"] {
        programs.push(expression(template, 32, &[Column::Count, Column::Count]));
    }
    for template in ["szext.clamp.s32 {d}, {a}, {b};", "szext.wrap.u32 {d}, {a}, {b};"] {
        programs.push(expression(template, 32, &[word, Column::Count]));
    }
    for (carry, borrow) in [("add.cc.u32", "addc.u32"), ("sub.cc.u32", "subc.u32")] {
        let template = format!("{carry} {{d}}, {{a}}, {{b}}; {borrow} {{d}}, {{d}}, {{c}};");
        programs.push(expression(&template, 32, &three));
    }
    programs.push(expression(
        "bfi.b32 {d}, {a}, {d}, {b}, {c};".replace("{a}, {d}", "{a}, 0x5a5a5a5a").as_str(),
        32,
        &[word, Column::Count, Column::Count],
    ));
    programs.push(expression("mul.wide.s32 {d}, {a}, {b};", 64, &[word, word]));
    let long = Column::Bits(64);
    for template in ["add.s64 {d}, {a}, {b};", "mul.lo.u64 {d}, {a}, {b};", "mul.hi.u64 {d}, {a}, {b};"]
    {
        programs.push(expression(template, 64, &[long, long]));
    }
    for template in ["setp.lt.s32 {d}, {a}, {b};", "setp.hi.u32 {d}, {a}, {b};"] {
        programs.push(expression(template, 1, &[word, word]));
    }
    programs.push(expression("sad.s64 {d}, {a}, {b}, {c};", 64, &[long, long, long]));
    programs.push(expression("rem.s64 {d}, {a}, {b};", 64, &[long, long]));
    programs.push(expression("sad.u16 {d}, {a}, {b}, {c};", 16, &[Column::Bits(16); 3]));
    programs.push(expression("selp.b32 {d}, {a}, {b}, {c};", 32, &[word, word, Column::Flag]));
    programs.push(expression(
        "lop3.or.b32 {d}|%p9, {a}, {b}, 0x55, 0x1e, {c}; selp.b32 %r2, 1, 0, %p9; xor.b32 {d}, {d}, %r2;",
        32,
        &[word, word, Column::Flag],
    ));
    for template in [
        "add.u16x2 {d}, {a}, {b};",
        "min.s16x2 {d}, {a}, {b};",
        "max.u16x2 {d}, {a}, {b};",
        "min.relu.s32 {d}, {a}, {b};",
        "max.relu.s16x2 {d}, {a}, {b};",
    ] {
        programs.push(Program { arch: Arch::Sm90a, ..expression(template, 32, &[word, word]) });
    }
    programs
}

/// Video instructions, where `ptxas` makes of them what PTX says: what it clamps, shifts back, compares with `c` or puts
/// into an upper half are for single numbers something else on a GPU that does not have them.
fn video() -> Vec<Program> {
    let word = Column::Bits(32);
    let mut programs = Vec::new();
    for name in ["vadd", "vsub", "vabsdiff", "vmin", "vmax"] {
        for operands in [
            ".s32.u32.s32 {d}, {a}.b3, {b}.h0;",
            ".u32.s32.u32.add {d}, {a}, {b}.b1, {c};",
            ".s32.s32.s32 {d}.b2, {a}.h1, {b}, {c};",
        ] {
            programs.push(expression(&format!("{name}{operands}"), 32, &[word, word, word]));
        }
    }
    for name in ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"] {
        for operands in [
            "2.s32.u32.s32.sat {d}, {a}, {b}, {c};",
            "2.u32.s32.s32.add {d}.h1, {a}.h13, {b}.h02, {c};",
            "4.u32.s32.u32.sat {d}.b310, {a}.b1357, {b}, {c};",
            "4.s32.u32.u32.add {d}.b20, {a}, {b}.b0246, {c};",
        ] {
            programs.push(expression(&format!("{name}{operands}"), 32, &[word, word, word]));
        }
    }
    for template in [
        "vset.s32.u32.lt.add {d}, {a}.b1, {b}.h1, {c};",
        "vset4.u32.s32.ge {d}.b31, {a}.b7531, {b}, {c};",
        "vshl.u32.s32.u32.clamp {d}, {a}, {b}.b0;",
        "vshr.s32.s32.u32.wrap.add {d}, {a}, {b}, {c};",
        "vmad.u32.u32.u32 {d}, {a}, {b}, {c};",
        "vmad.s32.s32.u32 {d}, -{a}.h1, {b}.b2, {c};",
        "vmad.s32.u32.s32 {d}, {a}, {b}, -{c};",
        "vmad.s32.s32.s32.po {d}, {a}.b0, {b}.b3, {c};",
    ] {
        programs.push(expression(template, 32, &[word, word, word]));
    }
    programs
}

fn floats() -> Vec<Program> {
    let single = Column::Single;
    let mut programs = Vec::new();
    for template in [
        "add.rn.f32 {d}, {a}, {b};",
        "sub.rn.f32 {d}, {a}, {b};",
        "mul.rn.f32 {d}, {a}, {b};",
        "div.rn.f32 {d}, {a}, {b};",
        "add.ftz.f32 {d}, {a}, {b};",
        "mul.rn.ftz.f32 {d}, {a}, {b};",
        "add.sat.f32 {d}, {a}, {b};",
        "min.f32 {d}, {a}, {b};",
        "max.f32 {d}, {a}, {b};",
        "max.NaN.f32 {d}, {a}, {b};",
        "max.ftz.f32 {d}, {a}, {b};",
        "copysign.f32 {d}, {a}, {b};",
    ] {
        programs.push(expression(template, 32, &[single, single]));
    }
    for template in ["fma.rn.f32 {d}, {a}, {b}, {c};", "fma.rn.ftz.f32 {d}, {a}, {b}, {c};"] {
        programs.push(expression(template, 32, &[single, single, single]));
    }
    for template in
        ["rcp.rn.f32 {d}, {a};", "sqrt.rn.f32 {d}, {a};", "neg.f32 {d}, {a};", "abs.f32 {d}, {a};"]
    {
        programs.push(expression(template, 32, &[single]));
    }
    for template in
        ["setp.lt.f32 {d}, {a}, {b};", "setp.geu.f32 {d}, {a}, {b};", "setp.num.f32 {d}, {a}, {b};"]
    {
        programs.push(expression(template, 1, &[single, single]));
    }
    let double = Column::Double;
    for template in ["add.f64 {d}, {a}, {b};", "mul.rn.f64 {d}, {a}, {b};", "div.rn.f64 {d}, {a}, {b};"]
    {
        programs.push(expression(template, 64, &[double, double]));
    }
    programs.push(expression("fma.rn.f64 {d}, {a}, {b}, {c};", 64, &[double, double, double]));
    programs.push(expression("sqrt.rn.f64 {d}, {a};", 64, &[double]));
    for mode in ["rz", "rm", "rp"] {
        for name in ["add", "sub", "mul", "div"] {
            programs.push(expression(
                &format!("{name}.{mode}.f64 {{d}}, {{a}}, {{b}};"),
                64,
                &[double; 2],
            ));
        }
        programs.push(expression(
            &format!("fma.{mode}.f64 {{d}}, {{a}}, {{b}}, {{c}};"),
            64,
            &[double; 3],
        ));
        for name in ["rcp", "sqrt"] {
            programs.push(expression(&format!("{name}.{mode}.f64 {{d}}, {{a}};"), 64, &[double]));
        }
    }
    let is_double = |program: &&mut Program| program.name.contains("f64");
    programs.iter_mut().filter(is_double).for_each(|program| program.tolerance = Tolerance::NanF64);
    for mode in ["rz", "rm", "rp"] {
        programs.push(expression(&format!("div.{mode}.f32 {{d}}, {{a}}, {{b}};"), 32, &[single; 2]));
        programs.push(expression(
            &format!("fma.{mode}.ftz.f32 {{d}}, {{a}}, {{b}}, {{c}};"),
            32,
            &[single; 3],
        ));
        programs.push(expression(&format!("sqrt.{mode}.f32 {{d}}, {{a}};"), 32, &[single]));
    }
    programs.push(expression("testp.normal.f32 {d}, {a};", 1, &[single]));
    programs.push(expression("testp.subnormal.f32 {d}, {a};", 1, &[single]));
    programs.push(expression("testp.normal.f64 {d}, {a};", 1, &[double]));
    let half = Column::Bits(16);
    for template in [
        "neg.f16 {d}, {a};",
        "abs.ftz.f16 {d}, {a};",
        "neg.bf16 {d}, {a};",
        "fma.rn.relu.f16 {d}, {a}, {b}, {c};",
        "fma.rn.relu.bf16 {d}, {a}, {b}, {c};",
    ] {
        let sources = if template.contains("{c}") { 3 } else { 1 };
        programs.push(expression(template, 16, &[half; 3][..sources]));
    }
    for template in ["setp.lt.ftz.f16 {d}, {a}, {b};", "setp.geu.ftz.f16 {d}, {a}, {b};"] {
        programs.push(expression(template, 1, &[half, half]));
    }
    // Of every NaN that there is the emulator and a GPU have to agree which one counts for nothing.
    for (ty, one) in [("f16", 0x3c00), ("bf16", 0x3f80)] {
        let sign = "mov.u16 %h8, 0x8000; and.b16 %h8, {a}, %h8;";
        let template = format!(
            "{sign} cvt.u16.u32 {{d}}, %row; or.b16 {{d}}, {{d}}, 0x7c00; or.b16 {{d}}, {{d}}, %h8; mov.b16 %h7, {one};\n\
             fma.rn.oob.{ty} %h6, {{d}}, %h7, %h7; fma.rn.oob.relu.{ty} %h5, %h7, {{d}}, {{a}};\n\
             fma.rn.oob.{ty} {{d}}, %h7, %h7, {{d}}; xor.b16 {{d}}, {{d}}, %h6; xor.b16 {{d}}, {{d}}, %h5;"
        );
        programs.push(Program { arch: Arch::Sm90a, ..expression(&template, 16, &[half]) });
    }
    let pair = Column::Pair;
    for template in ["add.rn.f16x2 {d}, {a}, {b};", "mul.rn.f16x2 {d}, {a}, {b};"] {
        programs.push(expression(template, 32, &[pair, pair]));
    }
    for template in ["fma.rn.f16x2 {d}, {a}, {b}, {c};", "fma.rn.bf16x2 {d}, {a}, {b}, {c};"] {
        programs.push(expression(template, 32, &[pair, pair, pair]));
    }
    programs
}

/// Approximations: units in the last place are the sum of what PTX allows the GPU and what the emulator's own
/// function misses.
fn approximations() -> Vec<Program> {
    let mut programs = Vec::new();
    for (template, ulps) in [
        ("ex2.approx.f32 {d}, {a};", 3.0),
        ("ex2.approx.ftz.f32 {d}, {a};", 3.0),
        ("rcp.approx.f32 {d}, {a};", 2.0),
        ("rcp.approx.ftz.f32 {d}, {a};", 2.0),
        ("rsqrt.approx.f32 {d}, {a};", 3.0),
        ("sqrt.approx.f32 {d}, {a};", 3.0),
    ] {
        // Flushed where the exact result is hardly normal.
        let absolute = if template.contains("ftz") { 2.0 * f64::from(f32::MIN_POSITIVE) } else { 0.0 };
        programs.push(expression(template, 32, &[Column::Single]).within(ulps, absolute));
    }
    // lg2: 2^-22 between 1/2 and 2, where the result is small.
    programs
        .push(expression("lg2.approx.f32 {d}, {a};", 32, &[Column::Single]).within(4.0, 2f64.powi(-22)));
    let absolute = 2f64.powi(-20);
    for template in ["sin.approx.f32 {d}, {a};", "cos.approx.f32 {d}, {a};"] {
        programs.push(expression(template, 32, &[Column::Small]).within(1.0, absolute));
    }
    programs.push(expression("tanh.approx.f32 {d}, {a};", 32, &[Column::Small]).within(8192.0, 0.0));
    programs.push(
        expression("div.full.f32 {d}, {a}, {b};", 32, &[Column::Small, Column::Small]).within(3.0, 0.0),
    );
    programs
}

fn conversions() -> Vec<Program> {
    let mut programs = Vec::new();
    for template in [
        "cvt.rni.s32.f32 {d}, {a};",
        "cvt.rzi.s32.f32 {d}, {a};",
        "cvt.rmi.s32.f32 {d}, {a};",
        "cvt.rpi.u32.f32 {d}, {a};",
        "cvt.rni.f32.f32 {d}, {a};",
        "cvt.sat.f32.f32 {d}, {a};",
    ] {
        programs.push(expression(template, 32, &[Column::Single]));
    }
    for template in [
        "cvt.rn.f16.f32 {d}, {a};",
        "cvt.rn.bf16.f32 {d}, {a};",
        "cvt.rz.bf16.f32 {d}, {a};",
        "cvt.rn.relu.bf16.f32 {d}, {a};",
        "cvt.rn.satfinite.f16.f32 {d}, {a};",
        "cvt.rz.relu.satfinite.f16.f32 {d}, {a};",
        "cvt.rn.satfinite.bf16.f32 {d}, {a};",
    ] {
        programs.push(expression(template, 16, &[Column::Single]));
    }
    for template in [
        "cvt.rn.f16x2.f32 {d}, {a}, {b};",
        "cvt.rn.bf16x2.f32 {d}, {a}, {b};",
        "cvt.rn.satfinite.relu.bf16x2.f32 {d}, {a}, {b};",
    ] {
        programs.push(expression(template, 32, &[Column::Single, Column::Single]));
    }
    // PTX names no payload of a NaN of tf32.
    let tf32 = |template| expression(template, 32, &[Column::Single]).within(0.0, 0.0);
    programs.push(tf32("cvt.rna.tf32.f32 {d}, {a};"));
    programs.push(tf32("cvt.rna.satfinite.tf32.f32 {d}, {a};"));
    for template in [
        "cvt.rn.tf32.f32 {d}, {a};",
        "cvt.rz.tf32.f32 {d}, {a};",
        "cvt.rn.relu.tf32.f32 {d}, {a};",
        "cvt.rz.relu.tf32.f32 {d}, {a};",
    ] {
        programs.push(Program { arch: Arch::Sm90a, ..tf32(template) });
    }
    programs.push(expression("cvt.f32.f16 {d}, {a};", 32, &[Column::Bits(16)]));
    for template in ["cvt.rn.f32.s32 {d}, {a};", "cvt.rz.f32.u32 {d}, {a};"] {
        programs.push(expression(template, 32, &[Column::Bits(32)]));
    }
    for template in ["cvt.rn.f32.s64 {d}, {a};", "cvt.rp.f32.u64 {d}, {a};"] {
        programs.push(expression(template, 32, &[Column::Bits(64)]));
    }
    programs.push(expression("cvt.rn.f32.f64 {d}, {a};", 32, &[Column::Double]));
    programs.push(expression("cvt.rp.f16.f64 {d}, {a};", 16, &[Column::Double]));
    programs.push(expression("cvt.rn.sat.f64.s32 {d}, {a};", 64, &[Column::Bits(32)]));
    programs.push(expression("cvt.sat.f64.f32 {d}, {a};", 64, &[Column::Single]));
    programs.push(expression("cvt.f32.f32 {d}, {a};", 32, &[Column::Single]));
    programs.push(expression("cvt.f64.f32 {d}, {a};", 64, &[Column::Single]));
    programs.last_mut().expect("one was added").tolerance = Tolerance::NanF64;
    programs.push(expression("cvt.sat.s8.s32 {d}, {a};", 32, &[Column::Bits(32)]));
    programs.push(expression("cvt.s64.s32 {d}, {a};", 64, &[Column::Bits(32)]));
    programs
}

pub fn programs() -> Vec<Program> {
    [integers(), video(), floats(), approximations(), conversions()].concat()
}
