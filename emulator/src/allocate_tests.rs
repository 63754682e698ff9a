//! Compaction ([`crate::isa::allocate`]) changes the rows of a program and nothing else.

use crate::assemble::module::parse;
use crate::isa::Op;
use crate::{FindingKind, Launch, Memory, Module, Options, launch};

fn module(body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];
         .entry k(.param .u64 data) {{ .reg .b32 %r<2000>; .reg .b64 %d<2000>; .reg .b16 %h<100>;
         .reg .pred %p<100>; {body} ret; }}"
    )
}

fn rows(body: &str) -> u32 {
    Module::parse(&module(body)).unwrap().kernels[0].data.code.rows
}

#[test]
fn a_chain_of_values_needs_few_rows() {
    let chain: String =
        (1..1000).map(|i| format!("add.s32 %r{i}, %r{}, %r{};\n", i - 1, i - 1)).collect();
    assert!(rows(&chain) <= 12, "{}", rows(&chain));
}

#[test]
fn values_that_live_together_keep_their_rows() {
    let all: String = (0..100).map(|i| format!("mov.b64 %d{i}, {i};\n")).collect();
    let uses: String = (0..100).map(|i| format!("add.s64 %d500, %d500, %d{i};\n")).collect();
    // 100 values, 100 constants, the sum.
    assert!(rows(&(all + &uses)) >= 402);
}

#[test]
fn rows_of_a_pair_are_not_passed_on_to_single_registers() {
    // In a pair, lane 16 stands where lane 0 of a single row would: lanes that have diverged would
    // overwrite each other's values.
    let all = |form: &str| (1..40).map(|i| form.replace('#', &i.to_string())).collect::<String>();
    let body = all("add.s64 %d#, %d0, 1;")
        + &all("add.s64 %d100, %d100, %d#;")
        + &all("add.s32 %r#, %r0, 1;")
        + &all("add.s32 %r100, %r100, %r#;");
    let parsed = Module::parse(&module(&body)).unwrap();
    let code = &parsed.kernels[0].data.code.instructions;
    let written = |op: fn(&Op) -> bool| -> Vec<u32> {
        code.iter().filter(|instruction| op(&instruction.op)).map(|instruction| instruction.d).collect()
    };
    let singles = written(|op| matches!(op, Op::Integer32(_)));
    let pairs = written(|op| matches!(op, Op::Integer64(_)));
    assert!(singles.len() > 40 && pairs.len() > 40);
    for row in singles {
        assert!(pairs.iter().all(|&pair| row != pair && row != pair + 1), "row {row} of {pairs:?}");
    }
}

/// A source of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// One instruction of each kind of operands: `r`, `d`, `h` and `p` stand for random registers, `R`,
/// `D` and
/// `H` for those that it writes.
const FORMS: &[&str] = &[
    "add.s32 R, r, r;",
    "mad.lo.s32 R, r, r, r;",
    "mul.wide.u32 D, r, r;",
    "mad.wide.s32 D, r, r, d;",
    "add.s64 D, d, d;",
    "mad.lo.u64 D, d, d, d;",
    "shl.b64 D, d, r;",
    "shr.s32 R, r, r;",
    "popc.b64 R, d;",
    "clz.b32 R, r;",
    "bfe.u64 D, d, r, r;",
    "bfi.b32 R, r, r, r, r;",
    "bfi.b64 D, d, d, r, r;",
    "prmt.b32 R, r, r, r;",
    "lop3.b32 R, r, r, r, 0x96;",
    "shf.l.wrap.b32 R, r, r, r;",
    "brev.b64 D, d;",
    "not.b16 H, h;",
    "mul.wide.u16 R, h, h;",
    "add.u16 H, h, h;",
    "fma.rn.f32 R, r, r, r;",
    "min.f32 R, r, r;",
    "neg.f32 R, r;",
    "fma.rn.f64 D, d, d, d;",
    "abs.f64 D, d;",
    "fma.rn.bf16x2 R, r, r, r;",
    "add.rn.f16 H, h, h;",
    "setp.lt.s32 p, r, r;",
    "setp.ge.u64 p, d, d;",
    "setp.eq.and.b16 p|p, h, h, p;",
    "selp.b32 R, r, r, p;",
    "selp.b64 D, d, d, p;",
    "mov.b32 R, r;",
    "mov.b64 D, d;",
    "mov.b64 {R, R}, d;",
    "mov.b64 D, {r, r};",
    "mov.b32 {H, H}, r;",
    "mov.b32 R, {h, h};",
    "cvt.u64.u32 D, r;",
    "cvt.u32.u64 R, d;",
    "cvt.u16.u32 H, r;",
    "cvt.s32.s16 R, h;",
    "cvt.rn.f32.s64 R, d;",
    "cvt.rzi.s64.f32 D, r;",
    "cvt.rn.bf16x2.f32 R, r, r;",
    "cvt.f32.bf16 R, h;",
    "shfl.sync.bfly.b32 R|p, r, r, 31, -1;",
    "vote.sync.ballot.b32 R, p, -1;",
    "redux.sync.xor.b32 R, r, -1;",
    "match.any.sync.b32 R, r, -1;",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {R, R, R, R}, {r, r, r, r}, {r, r}, {r, r, r, r};",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {R, R, R, R}, {r, r}, {r}, {r, r, r, r};",
    "ld.global.v4.b32 {R, R, R, R}, [%d1900];",
    "ld.global.b64 D, [%d1900+8];",
    "ld.global.u8 D, [%d1900+3];",
    "st.global.v2.b32 [%d1900+16], {r, r};",
    "st.global.v2.b64 [%d1900+32], {d, d};",
    "st.global.b16 [%d1900+48], h;",
    "st.global.b32 [%d1900+52], d;",
    "atom.global.add.u32 R, [%d1901], r;",
    "atom.global.cas.b64 D, [%d1901+8], d, d;",
    "st.shared.v4.b32 [%r1902], {r, r, r, r};",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {R, R, R, R}, [%r1902];",
    "and.b32 R, r, 15; cp.async.ca.shared.global [%r1902], [%d1900], 16, R2; cp.async.wait_all;",
    "activemask.b32 R;",
    "clz.b64 R, d;",
];

/// A program over eight registers of each kind and as many short-lived ones as it has instructions.
fn program(seed: u64, length: usize) -> String {
    let mut random = Random(seed.wrapping_mul(2) + 0x9e37_79b9);
    let mut text = String::from(
        "ld.param.u64 %d1899, [data]; mov.u32 %r1900, %tid.x; mul.wide.u32 %d1902, %r1900, 64;
         add.s64 %d1900, %d1899, %d1902; add.s64 %d1901, %d1899, 2048; mov.u32 %r1902, dynamic;
         shl.b32 %r1901, %r1900, 4; add.s32 %r1902, %r1902, %r1901;\n",
    );
    for i in 0..8 {
        text +=
            &format!("mad.lo.s32 %r{i}, %r1900, {}, {i};\ncvt.u64.u32 %d{i}, %r{i};\n", 7919 * i + 1);
        text += &format!("cvt.u16.u32 %h{i}, %r{i};\nsetp.lt.u32 %p{i}, %r1900, {};\n", 4 * i);
    }
    for step in 0..length {
        let mut last = String::new();
        let form = FORMS[random.below(FORMS.len())];
        if form.contains("cp.async") {
            // The source size has to be what the `and` before it gave.
            let row = 100 + step;
            text += &form
                .replace("R2", &format!("%r{row}"))
                .replace(" R,", &format!(" %r{row},"))
                .replace(" r,", " %r3,");
            text.push('\n');
            continue;
        }
        if !form.contains("sync") && random.below(4) == 0 {
            text += &format!("@{}%p{} ", if random.below(2) == 0 { "!" } else { "" }, random.below(8));
        }
        let mut previous = ' ';
        for letter in form.chars() {
            let alone = !previous.is_ascii_alphanumeric() && previous != '.' && previous != '%';
            match letter {
                'r' | 'd' | 'h' if alone => last += &format!("%{letter}{}", random.below(8)),
                'p' if alone && previous != '.' => last += &format!("%p{}", random.below(8)),
                'R' | 'D' | 'H' if alone => {
                    last += &format!("%{}{}", letter.to_ascii_lowercase(), random.below(8));
                }
                _ => last.push(letter),
            }
            previous = letter;
        }
        // `popc.b64 ...` and the like start with letters that are no operands.
        let (opcode, _) = form.split_once(' ').unwrap();
        let operands = last.split_once(' ').unwrap().1;
        text += &format!("{opcode} {operands}\n");
        if random.below(8) == 0 {
            text += &format!(
                "@%p{} bra L{step}; xor.b32 %r{}, %r{}, {step}; L{step}:\n",
                random.below(8),
                random.below(8),
                random.below(8)
            );
        }
    }
    for i in 0..8 {
        text += &format!("st.global.b32 [%d1900+{}], %r{i};\n", 4096 + 4 * i);
        text += &format!(
            "cvt.u32.u64 %r50, %d{i}; xor.b32 %r51, %r50, %r{i}; st.global.b32 [%d1900+{}], %r51;\n",
            4128 + 4 * i
        );
    }
    text
}

fn run(module: &Module) -> (Vec<u8>, String) {
    let memory = Memory::new();
    let data = memory.allocate(8192);
    memory.write(data, &(0..8192).map(|i| (i * 37 % 251) as u8).collect::<Vec<u8>>()).unwrap();
    let params = data.to_le_bytes();
    let shape = Launch { shared_bytes: 1024, ..Launch::new([1; 3], [32, 1, 1], &params) };
    let report = launch(&module.kernels[0], &memory, &shape, &Options::default()).unwrap();
    let goes_on = |kind| matches!(kind, FindingKind::UninitialisedRead { .. });
    assert!(report.findings.iter().all(|finding| goes_on(finding.kind)), "{:?}", report.findings);
    let mut bytes = vec![0; 8192];
    memory.read(data, &mut bytes).unwrap();
    (bytes, format!("{:?}", report.findings))
}

#[test]
fn random_programs_compute_the_same_with_and_without_it() {
    for seed in 0..400 {
        let text = module(&program(seed, 60));
        let small = parse(&text, true).unwrap_or_else(|error| panic!("{error}"));
        let large = parse(&text, false).unwrap();
        assert_eq!(small.kernels[0].unsupported(), []);
        assert!(small.kernels[0].data.code.rows < large.kernels[0].data.code.rows);
        assert!(run(&small) == run(&large), "seed {seed}:\n{text}");
    }
}
