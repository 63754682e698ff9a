//! `wmma`: products of all shapes and types from memory to memory, against loops over integers; and what is found when it
//! is used wrongly. Which lane has which element shows nowhere but in the test of that.

mod common;
use common::{HEAD, Random, run_with, schedules, with_schedule};
use ptx_emulator::{FindingKind, Memory, Options, Report, Space};

/// Bytes of memory for each of A, B, C and D.
const PART: usize = 4096;

fn bits_of(ty: &str) -> usize {
    match ty {
        "b1" => 1,
        "s4" | "u4" => 4,
        "s8" | "u8" => 8,
        "f16" | "bf16" => 16,
        "f64" => 64,
        _ => 32,
    }
}

/// The bits of a small number.
fn encode(ty: &str, value: i64) -> u64 {
    match ty {
        "f16" => u64::from(half::f16::from_f64(value as f64).to_bits()),
        "bf16" => u64::from(half::bf16::from_f64(value as f64).to_bits()),
        "f32" | "tf32" => u64::from((value as f32).to_bits()),
        "f64" => (value as f64).to_bits(),
        "s4" | "u4" => value as u64 & 15,
        "s32" => u64::from(value as u32),
        _ => value as u64 & 0xff,
    }
}

/// A number that the type has, between -4 and 4 or 0 and 8.
fn draw(ty: &str, random: &mut Random) -> i64 {
    let drawn = (random.next() >> 20) as i64;
    match ty {
        "b1" => drawn & 1,
        "u4" | "u8" => drawn & 7,
        _ => drawn % 5 - 2,
    }
}

fn put(bytes: &mut [u8], ty: &str, index: usize, value: i64) {
    let (bits, word) = (bits_of(ty), encode(ty, value).to_le_bytes());
    if bits < 8 {
        bytes[index * bits / 8] |= word[0] << (index * bits % 8);
    } else {
        bytes[index * bits / 8..][..bits / 8].copy_from_slice(&word[..bits / 8]);
    }
}

/// How a matrix of so many rows and columns lies in memory: the index of an element.
#[derive(Clone, Copy)]
struct Layout {
    by_rows: bool,
    stride: usize,
}

impl Layout {
    fn index(self, row: usize, column: usize) -> usize {
        if self.by_rows { row * self.stride + column } else { column * self.stride + row }
    }

    fn word(self) -> &'static str {
        if self.by_rows { "row" } else { "col" }
    }
}

/// Registers of a fragment, as PTX lists them.
fn registers(operand: char, [m, n, _]: [usize; 3], ty: &str) -> usize {
    let lines = if operand == 'a' { m } else { n };
    match (operand, ty) {
        (_, "f64" | "s4" | "u4" | "b1") if operand != 'c' => 1,
        ('a' | 'b', "f16") => 8,
        ('a' | 'b', "bf16") => lines / 4,
        ('a' | 'b', "tf32") => 4,
        ('a' | 'b', _) => lines / 8,
        (_, _) if m * n == 64 => 2,
        (_, "f16") => 4,
        _ => 8,
    }
}

fn names(prefix: &str, first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count).map(|index| format!("%{prefix}{index}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// One product.
#[derive(Clone)]
struct Product {
    shape: [usize; 3],
    /// Of D, A and B, and C.
    types: [&'static str; 3],
    /// Of A, B, C and D.
    by_rows: [bool; 4],
    space: &'static str,
    /// What strides are longer than lines, in bytes.
    pad: usize,
    clamps: bool,
    /// Of single bits.
    op: &'static str,
    rounding: &'static str,
}

impl Product {
    fn new(shape: [usize; 3], types: [&'static str; 3]) -> Self {
        let op = if types[1] == "b1" { ".xor.popc" } else { "" };
        let (space, by_rows) = (".global", [true, false, true, true]);
        Product { shape, types, by_rows, space, pad: 0, clamps: false, op, rounding: "" }
    }

    fn layouts(&self) -> [Layout; 4] {
        let [m, n, k] = self.shape;
        let [d, f, c] = self.types;
        let of = |index: usize, rows: usize, columns: usize, ty: &str| Layout {
            by_rows: self.by_rows[index],
            stride: (if self.by_rows[index] { columns } else { rows }) + self.pad * 8 / bits_of(ty),
        };
        [of(0, m, k, f), of(1, k, n, f), of(2, m, n, c), of(3, m, n, d)]
    }

    /// From `data` on stand A, B, C and D, each in its own part; shared memory is a copy of that.
    fn text(&self) -> String {
        let [d, f, c] = self.types;
        let [m, n, k] = self.shape;
        let shape = format!("m{m}n{n}k{k}");
        let (space, is_shared) = (self.space, self.space.starts_with(".shared"));
        let prefix = if f == "f64" { "g" } else { "r" };
        let counts = ['a', 'b', 'c', 'c'].iter().zip([f, f, c, d]);
        let counts: Vec<usize> = counts.map(|(&o, ty)| registers(o, self.shape, ty)).collect();
        let firsts = [0, 10, 20, 30];
        let list = |index: usize| names(prefix, firsts[index], counts[index]);
        let base = if is_shared { "%r60" } else { "%d1" };
        let layouts = self.layouts();
        let transfer = |index: usize, verb: &str, ty: &str| {
            let at = format!("[{base}+{}]", index * PART);
            let (list, stride) = (list(index), layouts[index].stride);
            let operands =
                if verb == "store.d" { format!("{at}, {list}") } else { format!("{list}, {at}") };
            format!(
                "mov.u32 %r50, {stride}; wmma.{verb}.sync.aligned.{}.{shape}{space}.{ty} {operands}, %r50;\n",
                layouts[index].word()
            )
        };
        let types = if f == "f16" { format!("{d}.{c}") } else { format!("{d}.{f}.{f}.{c}") };
        let sat = if self.clamps { ".satfinite" } else { "" };
        let copy = |from: &str, to: &str, from_space: &str, to_space: &str| {
            format!(
                "mov.u32 %r53, 0; {to_space}COPY: mov.u32 %r51, %laneid; add.u32 %r51, %r51, %r53; shl.b32 %r51, %r51, 2;
                 cvt.u64.u32 %d2, %r51; add.s64 %d2, %d2, %d1; add.u32 %r51, %r51, %r60;
                 ld.{from_space}.b32 %r52, [{from}]; st.{to_space}.b32 [{to}], %r52; add.u32 %r53, %r53, 32;
                 setp.lt.u32 %p1, %r53, {}; @%p1 bra {to_space}COPY; bar.warp.sync -1;\n",
                4 * PART / 4
            )
        };
        let (before, behind) = match is_shared {
            true => (copy("%d2", "%r51", "global", "shared"), copy("%r51", "%d2", "shared", "global")),
            false => (String::new(), String::new()),
        };
        format!(
            "{HEAD}.shared .align 128 .b8 room[{}];
             .visible .entry w(.param .u64 data) {{ .reg .b32 %r<64>; .reg .b64 %d<4>; .reg .f64 %g<40>; .reg .pred %p<2>;
             ld.param.u64 %d1, [data]; mov.u32 %r60, room;
             {before}{}{}{}wmma.mma{}.sync.aligned.{}.{}.{shape}{}.{types}{sat} {}, {}, {}, {};
             {}{behind} ret; }}",
            4 * PART,
            transfer(0, "load.a", f),
            transfer(1, "load.b", f),
            transfer(2, "load.c", c),
            self.op,
            layouts[0].word(),
            layouts[1].word(),
            self.rounding,
            list(3),
            list(0),
            list(1),
            list(2),
            if is_shared {
                format!("bar.warp.sync -1; {} bar.warp.sync -1;", transfer(3, "store.d", d))
            } else {
                transfer(3, "store.d", d)
            }
        )
    }

    /// Runs it and compares all that stands in D's part.
    fn check(&self) {
        let [m, n, k] = self.shape;
        let [d, f, c] = self.types;
        let layouts = self.layouts();
        let mut random = Random((m * n * k + self.pad + 7) as u64);
        let mut matrix = |rows: usize, columns: usize, ty: &str| -> Vec<Vec<i64>> {
            (0..rows).map(|_| (0..columns).map(|_| draw(ty, &mut random)).collect()).collect()
        };
        let (a, b, mut start) = (matrix(m, k, f), matrix(k, n, f), matrix(m, n, c));
        if self.clamps {
            for (index, value) in start.iter_mut().flatten().enumerate() {
                let near = if index % 2 == 0 { i32::MAX } else { i32::MIN };
                *value += i64::from(near);
                *value = (*value).clamp(i64::from(i32::MIN), i64::from(i32::MAX));
            }
        }
        let mut bytes = vec![0; 4 * PART];
        for (part, (matrix, ty)) in [(&a, f), (&b, f), (&start, c)].into_iter().enumerate() {
            for (row, values) in matrix.iter().enumerate() {
                for (column, &value) in values.iter().enumerate() {
                    let index = layouts[part].index(row, column);
                    put(&mut bytes[part * PART..], ty, index, value);
                }
            }
        }
        let mut want = bytes[3 * PART..].to_vec();
        for row in 0..m {
            for column in 0..n {
                let one = |k: usize| match self.op {
                    ".xor.popc" => a[row][k] ^ b[k][column],
                    _ => a[row][k] * b[k][column],
                };
                let sum = start[row][column] + (0..k).map(one).sum::<i64>();
                let limits = (i64::from(i32::MIN), i64::from(i32::MAX));
                let sum = if self.clamps { sum.clamp(limits.0, limits.1) } else { sum };
                put(&mut want, d, layouts[3].index(row, column), sum);
            }
        }
        let memory = Memory::new();
        let data = memory.allocate(4 * PART);
        memory.write(data, &bytes).unwrap();
        let text = self.text();
        let report = run_with(&text, &memory, 1, 32, 0, &data.to_le_bytes(), &Options::default());
        assert!(report.is_clean(), "{}\n{text}", report.findings[0]);
        let mut got = vec![0; PART];
        memory.read(data.offset(3 * PART as u64), &mut got).unwrap();
        assert_eq!(got, want, "{text}");
    }
}

const LARGE: [[usize; 3]; 3] = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];

#[test]
fn products_of_floating_point_numbers() {
    for shape in LARGE {
        for types in [
            ["f16", "f16", "f16"],
            ["f32", "f16", "f32"],
            ["f32", "f16", "f16"],
            ["f16", "f16", "f32"],
            ["f32", "bf16", "f32"],
        ] {
            for layouts in 0..16 {
                let by_rows = std::array::from_fn(|index| layouts >> index & 1 != 0);
                Product { by_rows, pad: layouts % 2 * 16, ..Product::new(shape, types) }.check();
            }
        }
    }
    for layouts in 0..16 {
        let by_rows = std::array::from_fn(|index| layouts >> index & 1 != 0);
        Product { by_rows, pad: 16, ..Product::new([16, 16, 8], ["f32", "tf32", "f32"]) }.check();
        Product { by_rows, pad: 16, ..Product::new([8, 8, 4], ["f64", "f64", "f64"]) }.check();
    }
}

#[test]
fn products_of_integers_and_bits() {
    for shape in LARGE {
        for ty in ["s8", "u8"] {
            for layouts in 0..16 {
                let by_rows = std::array::from_fn(|index| layouts >> index & 1 != 0);
                let product = Product::new(shape, ["s32", ty, "s32"]);
                Product { by_rows, clamps: layouts % 3 == 0, pad: 16, ..product }.check();
            }
        }
    }
    for sums in 0..4 {
        let by_rows = [true, false, sums & 1 != 0, sums & 2 != 0];
        for ty in ["s4", "u4"] {
            let product = Product::new([8, 8, 32], ["s32", ty, "s32"]);
            Product { by_rows, clamps: sums == 3, pad: 16, ..product }.check();
        }
        let product = Product::new([8, 8, 128], ["s32", "b1", "s32"]);
        Product { by_rows, pad: 16, ..product.clone() }.check();
        Product { by_rows, op: ".and.popc", ..product }.check();
    }
}

#[test]
fn matrices_in_every_space() {
    for space in ["", ".global", ".shared", ".shared::cta"] {
        for types in [["f32", "f16", "f32"], ["s32", "s8", "s32"]] {
            for layouts in [0, 15] {
                let by_rows = [layouts != 0; 4];
                Product { space, by_rows, pad: 16, ..Product::new([16, 16, 16], types) }.check();
            }
        }
    }
}

/// Sums in f64 that are rounded to one side, against a sum that is exact in integers.
#[test]
fn sums_of_doubles_are_rounded_to_one_side() {
    for (rounding, sign, want) in [
        (".rn", 1.0, 1.0),
        (".rz", 1.0, 1.0),
        (".rm", 1.0, 1.0),
        (".rp", 1.0, 1.0 + f64::EPSILON),
        (".rz", -1.0, -1.0),
        (".rm", -1.0, -1.0 - f64::EPSILON),
        (".rp", -1.0, -1.0),
    ] {
        let product = Product { rounding, ..Product::new([8, 8, 4], ["f64", "f64", "f64"]) };
        let memory = Memory::new();
        let data = memory.allocate(4 * PART);
        let mut bytes = vec![0; 4 * PART];
        // A is 2^-60 in its first column, B the sign in its first row, and C the sign everywhere.
        for row in 0..8 {
            bytes[row * 32..][..8].copy_from_slice(&2f64.powi(-60).to_le_bytes());
            bytes[PART + row * 32..][..8].copy_from_slice(&f64::to_le_bytes(sign));
        }
        for index in 0..64 {
            bytes[2 * PART + index * 8..][..8].copy_from_slice(&f64::to_le_bytes(sign));
        }
        memory.write(data, &bytes).unwrap();
        let (text, params) = (product.text(), data.to_le_bytes());
        assert!(run_with(&text, &memory, 1, 32, 0, &params, &Options::default()).is_clean());
        let mut got = [0; 8];
        memory.read(data.offset(3 * PART as u64 + 8 * 63), &mut got).unwrap();
        assert_eq!(f64::from_le_bytes(got), want, "{rounding} {sign}");
    }
}

/// Runs a body on 4096 bytes of zeros at `%data`, in so many threads, with 4096 bytes of shared memory at `%r60`.
fn run(body: &str, threads: u32, options: &Options) -> (Report, Vec<u32>) {
    let text = format!(
        "{HEAD}.shared .align 128 .b8 room[4096];
         .visible .entry k(.param .u64 data) {{ .reg .b32 %r<64>; .reg .b64 %d<8>; .reg .pred %p<4>; .reg .b64 %data;
         .reg .f32 %f<16>; ld.param.u64 %data, [data]; mov.u32 %r60, room; mov.u32 %r61, %tid.x; shr.u32 %r62, %r61, 5;
         {body}
         ret; }}"
    );
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &(0..1024u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let report = run_with(&text, &memory, 1, threads, 0, &data.to_le_bytes(), options);
    (report, common::words(&memory, data, 1024))
}

/// The fragments that sm_80 and newer have: the accumulators of two `mma` of 8 columns; A of f16 twice.
#[test]
fn elements_lie_as_on_a_gpu() {
    let (report, words) = run(
        "wmma.load.c.sync.aligned.row.m16n16k16.global.s32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%data], 16;
         mul.wide.u32 %d1, %r61, 4; add.s64 %d1, %d1, %data; st.global.b32 [%d1+1024], %r1; st.global.b32 [%d1+1152], %r2;
         st.global.b32 [%d1+1280], %r3; st.global.b32 [%d1+1408], %r5;
         wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%data], 16;
         st.global.b32 [%d1+1536], %r2; st.global.b32 [%d1+1664], %r6; st.global.b32 [%d1+1792], %r3;",
        32,
        &Options::default(),
    );
    assert!(report.is_clean(), "{:?}", report.findings);
    for lane in 0..32 {
        let at = |register: usize| words[256 + 32 * register + lane] as usize;
        let (row, column) = (lane / 4, lane % 4 * 2);
        assert_eq!(at(0), row * 16 + column);
        assert_eq!(at(1), row * 16 + column + 1);
        assert_eq!(at(2), (row + 8) * 16 + column);
        assert_eq!(at(3), row * 16 + column + 8);
        // Pairs of halves, of which there are 8 in a row of 16.
        assert_eq!(at(4), (row + 8) * 8 + lane % 4);
        assert_eq!(at(5), at(4));
        assert_eq!(at(6), row * 8 + lane % 4 + 4);
    }
}

const LOAD: &str =
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, ";
const STORE: &str = "wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [%r60], {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, 16;";

fn only(body: &str, threads: u32) -> (FindingKind, String) {
    let (report, _) = run(body, threads, &Options::default());
    let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert!(!kinds.is_empty(), "{body}");
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{:#?}", report.findings);
    (kinds[0], report.findings[0].message.clone())
}

/// Every warp writes 512 bytes of shared memory at its own place, 16 of each lane.
const FILL: &str = "shl.b32 %r50, %r61, 4; add.u32 %r50, %r50, %r60; st.shared.v4.b32 [%r50], {%r61, %r61, %r61, %r61};";

#[test]
fn what_is_wrong_with_a_load_is_found() {
    // A stride too long by far reaches beyond the room.
    let (kind, _) = only(&format!("{FILL} bar.warp.sync -1; {LOAD} [%r60], 160;"), 32);
    assert!(matches!(kind, FindingKind::OutOfBounds { space: Space::Shared }), "{kind:?}");
    let (kind, message) = only(&format!("{FILL} bar.warp.sync -1; {LOAD} [%r60+8], 16;"), 32);
    assert!(matches!(kind, FindingKind::Misaligned { space: Space::Shared }), "{message}");
    for (stride, part) in [("%r61", "lane 1"), ("12", "no multiple of 16")] {
        let (kind, message) =
            only(&format!("{FILL} bar.warp.sync -1; mov.u32 %r51, {stride}; {LOAD} [%r60], %r51;"), 32);
        assert_eq!(kind, FindingKind::InvalidOperand);
        assert!(message.contains(part), "{message}");
    }
    let (kind, _) = only(&format!("setp.lt.u32 %p1, %r61, 16; @%p1 {LOAD} [%r60], 16;"), 32);
    assert_eq!(kind, FindingKind::WarpDivergence);
    // Nothing wrote what is stored to global memory.
    let (kind, _) = only(&format!("{LOAD} [%r60], 16; st.global.b32 [%data], %r1;"), 32);
    assert_eq!(kind, FindingKind::UninitialisedRead { space: Space::Shared });
}

#[test]
fn races_of_fragments_are_found() {
    // What other lanes of the warp wrote, then what another warp did.
    let (kind, _) = only(&format!("{FILL} {LOAD} [%r60], 16;"), 32);
    assert_eq!(kind, FindingKind::SharedRace);
    let other = "shl.b32 %r50, %r62, 9; xor.b32 %r50, %r50, 512; add.u32 %r50, %r50, %r60;";
    for schedule in schedules() {
        let with = format!("{FILL} bar.sync 0; {other} {LOAD} [%r50], 16;");
        let (report, _) = run(&with, 64, &with_schedule(schedule));
        assert!(report.is_clean(), "{:?}", report.findings);
    }
    let found = schedules().into_iter().filter(|&schedule| {
        let without = format!("{FILL} bar.warp.sync -1; {other} {LOAD} [%r50], 16;");
        let (report, _) = run(&without, 64, &with_schedule(schedule));
        report.findings.iter().any(|finding| finding.kind == FindingKind::SharedRace)
    });
    assert_eq!(found.count(), schedules().len());
    let fill: String = (1..9).map(|register| format!("mov.u32 %r{register}, %r61;")).collect();
    let (kind, _) = only(&format!("{fill} {STORE}"), 64);
    assert_eq!(kind, FindingKind::SharedRace);
}

/// Of a product, what is not defined in A spoils the rows of D that it is in, and no others.
#[test]
fn undefined_elements_spoil_their_rows() {
    for (result, spoilt) in [("%f2", false), ("%f4", true)] {
        // The first 16 lanes write 8 rows; what lane 0 stores is of the first row, or of the ninth.
        let (report, _) = run(
            &format!(
                "setp.lt.u32 %p1, %r61, 16; shl.b32 %r50, %r61, 4; add.u32 %r50, %r50, %r60; mov.b32 %r10, 0;
                 @%p1 st.shared.v4.b32 [%r50], {{%r10, %r10, %r10, %r10}}; bar.warp.sync -1; {LOAD} [%r60], 16;
                 mov.f32 %f1, 0f00000000;
                 wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {{%f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9}},
                 {{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}}, {{%r10, %r10, %r10, %r10, %r10, %r10, %r10, %r10}},
                 {{%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}};
                 setp.eq.u32 %p2, %r61, 0; @%p2 st.global.f32 [%data], {result};"
            ),
            32,
            &Options::default(),
        );
        assert_eq!(report.is_clean(), !spoilt, "{:?}", report.findings);
        let kinds = report.findings.iter().map(|finding| finding.kind);
        let uninitialised = FindingKind::UninitialisedRead { space: Space::Shared };
        assert!(kinds.into_iter().all(|kind| kind == uninitialised), "{:?}", report.findings);
    }
}

/// D may be in the registers of A, B and C.
#[test]
fn results_may_overwrite_operands() {
    let list = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}";
    let (report, words) = run(
        &format!(
            "mov.b32 %r1, 0x01010101; mov.b32 %r2, 0x02020202; mov.u32 %r3, 3; mov.u32 %r4, 3; mov.u32 %r5, 3; mov.u32 %r6, 3;
             mov.u32 %r7, 3; mov.u32 %r8, 3;
             wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32 {list}, {{%r1, %r2}}, {{%r1, %r2}},
             {{%r3, %r3, %r4, %r4, %r5, %r5, %r6, %r6}};
             wmma.store.d.sync.aligned.row.m16n16k16.global.s32 [%data], {list}, 16;"
        ),
        32,
        &Options::default(),
    );
    assert!(report.is_clean(), "{:?}", report.findings);
    for row in 0..16 {
        for column in 0..16 {
            let (a, b) = (1 + row / 8, 1 + column / 8);
            assert_eq!(words[row * 16 + column], (3 + 16 * a * b) as u32, "{row} {column}");
        }
    }
}
