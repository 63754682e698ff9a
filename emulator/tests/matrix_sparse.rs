//! `mma.sp`, and the `mma` of 8 x 8 x 4 numbers of f16, against loops over whole matrices. Numbers are small, so that every
//! order of the sums gives the same.

#[path = "matrix_sparse/by_warpgroup.rs"]
mod by_warpgroup;
mod common;
use common::{HEAD, Random, run_with, words};
use ptx_emulator::{FindingKind, Memory, Module, Options, ParseErrorKind, Report};

type Registers = Vec<[u32; 32]>;

/// A vector of registers.
fn names(first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count).map(|index| format!("%r{index}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Runs an instruction with so many registers of results on registers of operands.
fn execute(opcode: &str, operands: &[&Registers], results: usize, tail: &str) -> (Report, Registers) {
    let inputs: Registers = operands.iter().flat_map(|rows| rows.iter().copied()).collect();
    let (count, mut first) = (inputs.len(), 0);
    let mut lists = vec![names(50, results)];
    for rows in operands {
        // Metadata is no vector.
        lists.push(match rows.len() {
            1 if lists.len() == 4 => format!("%r{first}"),
            length => names(first, length),
        });
        first += rows.len();
    }
    let loads: String =
        (0..count).map(|i| format!("ld.global.b32 %r{i}, [%rd2+{}];\n", 128 * i)).collect();
    let stores: String = (0..results)
        .map(|i| format!("st.global.b32 [%rd2+{}], %r{};\n", 128 * (count + i), 50 + i))
        .collect();
    let ptx = format!(
        "{HEAD}.visible .entry m(.param .u64 data) {{ .reg .b32 %r<64>; .reg .b64 %rd<3>; ld.param.u64 %rd1, [data];
         mov.u32 %r63, %laneid; mul.wide.u32 %rd2, %r63, 4; add.s64 %rd2, %rd2, %rd1; {loads}
         {opcode} {}{tail}; {stores} ret; }}",
        lists.join(", ")
    );
    let memory = Memory::new();
    let data = memory.allocate(128 * (count + results));
    let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(data, &bytes).unwrap();
    let report = run_with(&ptx, &memory, 1, 32, 0, &data.to_le_bytes(), &Options::default());
    let all = words(&memory, data, 32 * (count + results));
    let results = all[32 * count..].chunks_exact(32).map(|row| row.try_into().unwrap()).collect();
    (report, results)
}

/// The bits of a small number.
fn encode(ty: &str, value: i64) -> u32 {
    match ty {
        "f16" => u32::from(half::f16::from_f64(value as f64).to_bits()),
        "bf16" => u32::from(half::bf16::from_f64(value as f64).to_bits()),
        "tf32" | "f32" => (value as f32).to_bits(),
        // 0, 1 and 2.
        "e4m3" => [0, 0x38, 0x40][value.unsigned_abs() as usize] | u32::from(value < 0) << 7,
        "e5m2" => [0, 0x3c, 0x40][value.unsigned_abs() as usize] | u32::from(value < 0) << 7,
        "s4" | "u4" => value as u32 & 15,
        "s8" | "u8" => value as u32 & 255,
        _ => value as u32,
    }
}

fn bits_of(ty: &str) -> usize {
    match ty {
        "s4" | "u4" => 4,
        "s8" | "u8" | "e4m3" | "e5m2" => 8,
        "f16" | "bf16" => 16,
        _ => 32,
    }
}

/// Registers of lines of values: 8 lines a register, four lanes a line, and the next lines first.
fn fragment(lines: &[Vec<i64>], ty: &str) -> Registers {
    let each = 32 / bits_of(ty);
    let mut registers = Vec::new();
    for first in (0..lines[0].len()).step_by(4 * each) {
        for half in 0..lines.len() / 8 {
            registers.push(std::array::from_fn(|lane| {
                let line = &lines[half * 8 + lane / 4][first + lane % 4 * each..];
                (0..each).fold(0, |word, e| word | encode(ty, line[e]) << (e * bits_of(ty)))
            }));
        }
    }
    registers
}

/// One sparse product: 16 rows, so many columns of A.
#[derive(Clone, Copy)]
struct Sparse {
    k: usize,
    d: &'static str,
    a: &'static str,
    b: &'static str,
    selector: usize,
    ordered: bool,
    clamps: bool,
}

impl Sparse {
    fn new(k: usize, [d, a, b]: [&'static str; 3], selector: usize) -> Self {
        Sparse { k, d, a, b, selector, ordered: true, clamps: false }
    }

    /// Values of A that are kept or left out together, how many of these are of a group of which some are
    /// kept, and how many.
    fn groups(&self) -> (usize, usize, usize) {
        match self.a {
            "tf32" => (1, 2, 1),
            "s4" | "u4" => (2, 4, 2),
            _ => (1, 4, 2),
        }
    }

    /// A in full, the values that are kept, and the metadata of each lane, in the lanes of the selector.
    fn left(&self, random: &mut Random) -> (Vec<Vec<i64>>, Vec<Vec<i64>>, [u32; 32]) {
        let (unit, of, keep) = self.groups();
        let (mut full, mut kept) = (vec![vec![0; self.k]; 16], vec![Vec::new(); 16]);
        let mut metadata: [u32; 32] = std::array::from_fn(|_| random.next() as u32);
        for row in 0..16 {
            let mut bits: Vec<u32> = Vec::new();
            for group in (0..self.k).step_by(unit * of) {
                let mut all: Vec<usize> = (0..of).collect();
                while all.len() > keep {
                    all.remove((random.next() >> 20) as usize % all.len());
                }
                if !self.ordered && random.next() >> 40 & 1 == 0 {
                    all.reverse();
                }
                for &index in &all {
                    for element in 0..unit {
                        let value = draw(self.a, random);
                        full[row][group + index * unit + element] = value;
                        kept[row].push(value);
                    }
                }
                match self.a {
                    "tf32" => bits.push([0b0100, 0b1110][all[0]]),
                    _ => bits.push(all[0] as u32 | (all[1] as u32) << 2),
                }
            }
            // Four bits a group. Two lanes of 16 bits of each row, or whole lanes of each.
            for (group, bits) in bits.into_iter().enumerate() {
                let (lane, shift) = match self.a {
                    "tf32" | "f16" | "bf16" => (group / 4, row / 8 * 16 + group % 4 * 4),
                    _ => (group / 8 * 2 + row / 8, group % 8 * 4),
                };
                let lanes = match (self.a, self.k * bits_of(self.a)) {
                    ("tf32" | "f16" | "bf16", 256) => 1,
                    ("tf32" | "f16" | "bf16", _) | (_, 256) => 2,
                    _ => 4,
                };
                let word = &mut metadata[row % 8 * 4 + self.selector * lanes + lane];
                *word = *word & !(15 << shift) | bits << shift;
            }
        }
        (full, kept, metadata)
    }

    fn opcode(&self) -> String {
        let Sparse { k, d, a, b, .. } = *self;
        let sp = if self.ordered { "sp::ordered_metadata" } else { "sp" };
        let sat = if self.clamps { ".satfinite" } else { "" };
        format!("mma.{sp}.sync.aligned.m16n8k{k}.row.col{sat}.{d}.{a}.{b}.{d}")
    }

    fn check(&self) {
        let mut random = Random(self.k as u64 + self.selector as u64 + 1);
        let (full, kept, metadata) = self.left(&mut random);
        let right: Vec<Vec<i64>> =
            (0..8).map(|_| (0..self.k).map(|_| draw(self.b, &mut random)).collect()).collect();
        let start = |row: usize, column: usize| match self.clamps {
            true if (row + column).is_multiple_of(2) => i64::from(i32::MAX) - row as i64,
            true => i64::from(i32::MIN) + row as i64,
            false => row as i64 - 3 * column as i64,
        };
        let sum = |row: usize, column: usize| {
            let products = full[row].iter().zip(&right[column]).map(|(a, b)| a * b);
            let sum = start(row, column) + products.sum::<i64>();
            match self.clamps {
                true => sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)),
                false => sum,
            }
        };
        let registers = if self.d == "f16" { 2 } else { 4 };
        let sums = |of: &dyn Fn(usize, usize) -> i64| -> Registers {
            let word = |register: usize, lane: usize| {
                let (row, column) = (lane / 4, lane % 4 * 2);
                match self.d {
                    "f16" => {
                        let row = row + register * 8;
                        encode("f16", of(row, column)) | encode("f16", of(row, column + 1)) << 16
                    }
                    ty => encode(ty, of(row + register / 2 * 8, column + register % 2)),
                }
            };
            (0..registers).map(|register| std::array::from_fn(|lane| word(register, lane))).collect()
        };
        let (a, b, c) = (fragment(&kept, self.a), fragment(&right, self.b), sums(&start));
        let tail = format!(", {}", self.selector);
        let opcode = self.opcode();
        let (report, got) = execute(&opcode, &[&a, &b, &c, &vec![metadata]], registers, &tail);
        assert!(report.is_clean(), "{opcode}: {}", report.findings[0]);
        assert_eq!(got, sums(&sum), "{opcode} {}", self.selector);
    }
}

/// A number of -2 to 2, or 0 to 4.
fn draw(ty: &str, random: &mut Random) -> i64 {
    let drawn = (random.next() >> 20) as i64 % 5;
    if ty.starts_with('u') { drawn } else { drawn - 2 }
}

const HALVES: [[&str; 3]; 3] = [["f32", "f16", "f16"], ["f16", "f16", "f16"], ["f32", "bf16", "bf16"]];

#[test]
fn sparse_products() {
    let mut all = Vec::new();
    for types in HALVES {
        (0..4).for_each(|selector| all.push(Sparse::new(16, types, selector)));
        (0..2).for_each(|selector| all.push(Sparse::new(32, types, selector)));
    }
    (0..4).for_each(|selector| all.push(Sparse::new(8, ["f32", "tf32", "tf32"], selector)));
    (0..2).for_each(|selector| all.push(Sparse::new(16, ["f32", "tf32", "tf32"], selector)));
    for (x, y) in [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")] {
        (0..2).for_each(|selector| all.push(Sparse::new(32, ["s32", x, y], selector)));
        all.push(Sparse::new(64, ["s32", x, y], 0));
        all.push(Sparse { clamps: true, ..Sparse::new(64, ["s32", x, y], 0) });
    }
    for (x, y) in [("s4", "s4"), ("s4", "u4"), ("u4", "s4"), ("u4", "u4")] {
        (0..2).for_each(|selector| all.push(Sparse::new(64, ["s32", x, y], selector)));
        all.push(Sparse { clamps: true, ..Sparse::new(128, ["s32", x, y], 0) });
    }
    for (x, y) in [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")] {
        all.push(Sparse::new(64, ["f32", x, y], 0));
    }
    for sparse in all {
        sparse.check();
        Sparse { ordered: false, ..sparse }.check();
    }
}

/// Why a form does not run, if it does not.
fn refusal(form: &str) -> Option<ParseErrorKind> {
    match Module::parse(&common::hopper::kernel(form)) {
        Ok(module) => module.kernel("k").unwrap().error().map(|error| error.kind),
        Err(error) => Some(error.kind),
    }
}

/// ptxas knows sums in f16 of bytes in whole matrices only, and no selector but those of a shape.
#[test]
fn forms_that_are_not_there_are_refused() {
    for form in [
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f16.e4m3.e4m3.f16 {%r0, %r1}, {%r2, %r3, %r4, %r5}, \
         {%r2, %r3, %r4, %r5}, {%r6, %r7}, %r8, 0;",
        "mma.sp.sync.aligned.m16n8k64.row.col.f16.e5m2.e4m3.f16 {%r0, %r1}, {%r2, %r3, %r4, %r5}, {%r2, %r3, %r4, %r5}, \
         {%r6, %r7}, %r8, 0;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k512.s32.b1.b1.and.popc {%r0, %r1, %r2, %r3}, %d0, %d1, %r8, 0, %p0;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.s32.s8.s8 {%r0, %r1, %r2, %r3}, %d0, %d1, %r8, 0, %p0;",
    ] {
        assert_eq!(refusal(form), Some(ParseErrorKind::UnsupportedInstruction), "{form}");
    }
    for form in [
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.s8.s8 {%r0, %r1, %r2, %r3}, %d0, %d1, %r8, 1, %p0;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f16.f16.f16 {%r0, %r1}, %d0, %d1, %r8, 2, %p0, 1, 1, 0, 0;",
    ] {
        assert!(matches!(refusal(form), Some(ParseErrorKind::Operand(_))), "{form}");
    }
}

/// Two indices of a group that are the same; that fall, where they must grow; the halves of two numbers.
#[test]
fn metadata_that_is_not_valid_is_found() {
    let of = |ty: &'static str| Sparse::new(if ty == "tf32" { 8 } else { 16 }, ["f32", ty, ty], 1);
    for (sparse, bits) in [
        (of("f16"), 0b0101),
        (of("f16"), 0b0001),
        (of("tf32"), 0b1001),
        (Sparse { ordered: false, ..of("f16") }, 0b1111),
    ] {
        let mut random = Random(5);
        let (_, kept, mut metadata) = sparse.left(&mut random);
        // The second group of row 10.
        metadata[4 * 2 + 1] = metadata[4 * 2 + 1] & !(15 << 20) | bits << 20;
        let (a, b) = (fragment(&kept, sparse.a), fragment(&vec![vec![1; sparse.k]; 8], sparse.b));
        let operands = [&a, &b, &vec![[0; 32]; 4], &vec![metadata]];
        let (report, _) = execute(&sparse.opcode(), &operands, 4, ", 1");
        let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::InvalidOperand], "{:?}", report.findings);
        assert!(report.findings[0].message.contains("of row 10"), "{}", report.findings[0].message);
        assert!(report.findings[0].message.contains("of lane 9"), "{}", report.findings[0].message);
    }
}

/// Where a lane of the four products of m8n8k4 has its numbers: its index among the 8 of a product.
fn member(lane: usize) -> usize {
    lane % 4 + lane / 16 * 4
}

#[test]
fn products_of_volta() {
    for layouts in 0..4 {
        let (by_rows_a, by_rows_b) = (layouts & 1 == 0, layouts & 2 == 0);
        for (d, c) in [("f32", "f32"), ("f32", "f16"), ("f16", "f16")] {
            let mut random = Random(layouts + 1);
            let mut matrix = |rows: usize, columns: usize| -> Vec<Vec<i64>> {
                (0..rows).map(|_| (0..columns).map(|_| draw("f16", &mut random)).collect()).collect()
            };
            let a: Vec<_> = (0..4).map(|_| matrix(8, 4)).collect();
            let b: Vec<_> = (0..4).map(|_| matrix(4, 8)).collect();
            let start: Vec<_> = (0..4).map(|_| matrix(8, 8)).collect();
            let product = |lane: usize| lane % 16 / 4;
            let pairs = |of: &dyn Fn(usize, usize) -> i64, count: usize| -> Registers {
                let pair = |register: usize, lane: usize| {
                    encode("f16", of(lane, 2 * register))
                        | encode("f16", of(lane, 2 * register + 1)) << 16
                };
                (0..count).map(|register| std::array::from_fn(|lane| pair(register, lane))).collect()
            };
            let of_a = |lane: usize, i: usize| match by_rows_a {
                true => a[product(lane)][member(lane)][i],
                false => a[product(lane)][i + lane / 16 * 4][lane % 4],
            };
            let of_b = |lane: usize, i: usize| match by_rows_b {
                true => b[product(lane)][lane % 4][i + lane / 16 * 4],
                false => b[product(lane)][i][member(lane)],
            };
            let sums = |of: &dyn Fn(usize, usize, usize) -> i64, ty: &str| -> Registers {
                if ty == "f16" {
                    return pairs(&|lane, i| of(product(lane), member(lane), i), 4);
                }
                let single = |i: usize, lane: usize| {
                    let row = (lane & 1) + (i & 2) + lane / 16 * 4;
                    encode("f32", of(product(lane), row, (i & 4) + (lane & 2) + (i & 1)))
                };
                (0..8).map(|register| std::array::from_fn(|lane| single(register, lane))).collect()
            };
            let sum = |p: usize, row: usize, column: usize| {
                start[p][row][column] + (0..4).map(|k| a[p][row][k] * b[p][k][column]).sum::<i64>()
            };
            let [la, lb] = [by_rows_a, by_rows_b].map(|by_rows| if by_rows { "row" } else { "col" });
            let opcode = format!("mma.sync.aligned.m8n8k4.{la}.{lb}.{d}.f16.f16.{c}");
            let begin = sums(&|p, row, column| start[p][row][column], c);
            let want = sums(&sum, d);
            let operands = [&pairs(&of_a, 2), &pairs(&of_b, 2), &begin];
            let (report, got) = execute(&opcode, &operands, want.len(), "");
            assert!(report.is_clean(), "{opcode}: {}", report.findings[0]);
            assert_eq!(got, want, "{opcode}");
        }
    }
}

/// What is not defined in one of the four products shows in that alone.
#[test]
fn undefined_elements_spoil_their_product() {
    for (lane, spoilt) in [(1, true), (17, true), (4, false), (31, false)] {
        let body = format!(
            "mov.b32 %r4, 0; setp.ne.u32 %p1, %tid, 2; @%p1 mov.b32 %r1, 0;
             mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {{%r5, %r6, %r7, %r8}}, {{%r1, %r4}}, {{%r4, %r4}},
             {{%r4, %r4, %r4, %r4}};
             setp.eq.u32 %p2, %tid, {lane}; @%p2 st.global.b32 [%data], %r6;"
        );
        let outcome = common::run_body(&body, 32, &Options::default());
        let kinds: Vec<FindingKind> =
            outcome.report.findings.iter().map(|finding| finding.kind).collect();
        let want = if spoilt { vec![FindingKind::UninitialisedRegister] } else { Vec::new() };
        assert_eq!(kinds, want, "{lane}");
    }
}
