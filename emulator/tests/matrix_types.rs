//! `mma` and `wgmma` of types beside bf16, f16 and tf32 with sums in f32, against plain loops. Inputs are small, so that
//! every order of the sums gives the same.

#![allow(clippy::needless_range_loop, reason = "a lane or row number indexes several columns at once")]

mod common;
use common::hopper::no_map;
use common::{HEAD, Random, run_with, schedules, with_schedule, words};
use ptx_emulator::{Memory, Options};

/// A type of A and B: its bits, and the bits of a small number drawn from a random one with its value.
#[derive(Clone, Copy)]
struct Type {
    name: &'static str,
    bits: usize,
    draw: fn(u64) -> (u64, f64),
}

const TYPES: [Type; 9] = [
    Type {
        name: "f16",
        bits: 16,
        draw: |r| {
            let v = (r % 9) as f64 / 2.0 - 2.0;
            (u64::from(half::f16::from_f64(v).to_bits()), v)
        },
    },
    Type {
        name: "tf32",
        bits: 32,
        draw: |r| {
            let v = (r % 9) as f64 / 2.0 - 2.0;
            (u64::from((v as f32).to_bits()), v)
        },
    },
    Type { name: "s8", bits: 8, draw: |r| (r & 0xff, f64::from(r as u8 as i8)) },
    Type { name: "u8", bits: 8, draw: |r| (r & 0xff, (r & 0xff) as f64) },
    Type { name: "s4", bits: 4, draw: |r| (r & 15, f64::from(((r as i8) << 4) >> 4)) },
    Type { name: "u4", bits: 4, draw: |r| (r & 15, (r & 15) as f64) },
    Type { name: "b1", bits: 1, draw: |r| (r & 1, (r & 1) as f64) },
    // 0, 0.5, 1, 1.5 and 2, and the opposites.
    Type {
        name: "e4m3",
        bits: 8,
        draw: |r| {
            let t = [(0, 0.0), (0x30, 0.5), (0x38, 1.0), (0x3c, 1.5), (0x40, 2.0)][(r % 5) as usize];
            (t.0 | (r >> 8 & 1) << 7, if r >> 8 & 1 == 0 { t.1 } else { -t.1 })
        },
    },
    Type {
        name: "e5m2",
        bits: 8,
        draw: |r| {
            let t = [(0, 0.0), (0x38, 0.5), (0x3c, 1.0), (0x3e, 1.5), (0x40, 2.0)][(r % 5) as usize];
            (t.0 | (r >> 8 & 1) << 7, if r >> 8 & 1 == 0 { t.1 } else { -t.1 })
        },
    },
];

fn named(name: &str) -> Type {
    TYPES.into_iter().find(|ty| ty.name == name).unwrap()
}

/// A matrix of a type: bits and values, by row and k.
struct Matrix {
    bits: Vec<Vec<u64>>,
    values: Vec<Vec<f64>>,
}

impl Matrix {
    fn new(ty: Type, rows: usize, k: usize, random: &mut Random) -> Self {
        let drawn: Vec<Vec<(u64, f64)>> =
            (0..rows).map(|_| (0..k).map(|_| (ty.draw)(random.next() >> 20)).collect()).collect();
        let bits = drawn.iter().map(|row| row.iter().map(|one| one.0).collect()).collect();
        Matrix { bits, values: drawn.iter().map(|row| row.iter().map(|one| one.1).collect()).collect() }
    }
}

/// The registers of a fragment, lane by lane: `32 / bits` values of k, four lanes a row, registers for 8 more rows first.
fn fragment(matrix: &Matrix, bits: usize) -> Vec<[u32; 32]> {
    let (rows, k) = (matrix.bits.len(), matrix.bits[0].len());
    let (each, halves) = (32 / bits, rows / 8);
    (0..halves * k / (4 * each))
        .map(|register| {
            std::array::from_fn(|lane| {
                let row = lane / 4 + register % halves * 8;
                let first = register / halves * 4 * each + lane % 4 * each;
                (0..each).fold(0, |word, e| word | (matrix.bits[row][first + e] as u32) << (e * bits))
            })
        })
        .collect()
}

/// Runs one `mma` on registers of A, B and C. Those of D.
fn multiply(opcode: &str, [a, b, c]: [&[[u32; 32]]; 3]) -> Vec<[u32; 32]> {
    let inputs: Vec<[u32; 32]> = [a, b, c].concat();
    let names = |first: usize, count: usize| {
        let names: Vec<String> = (first..first + count).map(|index| format!("%r{index}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let count = inputs.len();
    let loads: String =
        (0..count).map(|i| format!("ld.global.b32 %r{i}, [%rd2+{}];\n", 128 * i)).collect();
    let stores: String = (0..c.len())
        .map(|i| format!("st.global.b32 [%rd2+{}], %r{};\n", 128 * (count + i), 40 + i))
        .collect();
    let lists = [
        names(40, c.len()),
        names(0, a.len()),
        names(a.len(), b.len()),
        names(a.len() + b.len(), c.len()),
    ];
    // The popcount of b1 stands behind the types.
    let ptx = format!(
        "{HEAD}.visible .entry m(.param .u64 data) {{ .reg .b32 %r<48>; .reg .b64 %rd<3>; ld.param.u64 %rd1, [data];
         mov.u32 %r47, %laneid; mul.wide.u32 %rd2, %r47, 4; add.s64 %rd2, %rd2, %rd1; {loads}
         {opcode} {}; {stores} ret; }}",
        lists.join(", ")
    );
    let memory = Memory::new();
    let data = memory.allocate(128 * (count + c.len()));
    let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(data, &bytes).unwrap();
    let report = run_with(&ptx, &memory, 1, 32, 0, &data.to_le_bytes(), &Options::default());
    assert!(report.is_clean(), "{:?}", report.findings);
    let all = words(&memory, data, 32 * (count + c.len()));
    all[32 * count..].chunks_exact(32).map(|row| row.try_into().unwrap()).collect()
}

/// Sums of a row of A and a column of B, with what is added to them.
fn products(a: &Matrix, b: &Matrix, xors: bool, row: usize, column: usize) -> f64 {
    let pairs = a.values[row].iter().zip(&b.values[column]);
    pairs.map(|(x, y)| if xors { f64::from(u8::from(x != y)) } else { x * y }).sum()
}

/// An `mma` of integers.
fn integers(rows: usize, k: usize, [x, y]: [&str; 2], clamps: bool, suffix: &str) {
    let mut random = Random(k as u64 + rows as u64);
    let (ty, other) = (named(x), named(y));
    let (a, b) = (Matrix::new(ty, rows, k, &mut random), Matrix::new(other, 8, k, &mut random));
    let registers = rows / 4;
    let edge = |register: usize, lane: usize| match (register + lane) % 3 {
        0 => i32::MAX - 100,
        1 => i32::MIN + 100,
        _ => lane as i32 - 7,
    };
    let c: Vec<[u32; 32]> =
        (0..registers).map(|r| std::array::from_fn(|lane| edge(r, lane) as u32)).collect();
    let sat = if clamps { ".satfinite" } else { "" };
    let opcode = format!("mma.sync.aligned.m{rows}n8k{k}.row.col{sat}.s32.{x}.{y}.s32{suffix}");
    let d = multiply(&opcode, [&fragment(&a, ty.bits), &fragment(&b, other.bits), &c]);
    for (register, d) in d.iter().enumerate() {
        for lane in 0..32 {
            let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
            let sum = products(&a, &b, suffix.starts_with(".xor"), row, column) as i64
                + i64::from(edge(register, lane));
            let want =
                if clamps { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { sum } as i32;
            assert_eq!(d[lane] as i32, want, "{opcode} row {row} column {column}");
        }
    }
}

#[test]
fn products_of_integers_and_bits() {
    for (rows, k) in [(8, 32), (16, 32), (16, 64)] {
        for types in [["s4", "s4"], ["s4", "u4"], ["u4", "s4"], ["u4", "u4"]] {
            integers(rows, k, types, k == 64, "");
        }
    }
    for (rows, k) in [(8, 128), (16, 128), (16, 256)] {
        integers(rows, k, ["b1", "b1"], false, ".xor.popc");
        integers(rows, k, ["b1", "b1"], false, ".and.popc");
    }
    for (rows, k) in [(8, 16), (16, 16), (16, 32)] {
        integers(rows, k, ["s8", "u8"], true, "");
    }
}

/// An `mma` of floating-point numbers with sums in f32 or f16.
fn floats(k: usize, [x, y]: [&str; 2], halves: bool) {
    let mut random = Random(k as u64);
    let (ty, other) = (named(x), named(y));
    let (a, b) = (Matrix::new(ty, 16, k, &mut random), Matrix::new(other, 8, k, &mut random));
    let start = |row: usize, column: usize| row as f64 / 4.0 - column as f64;
    let half = |value: f64| u32::from(half::f16::from_f64(value).to_bits());
    let place = |register: usize, lane: usize| match halves {
        true => (lane / 4 + register * 8, lane % 4 * 2),
        false => (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2),
    };
    let word = |register: usize, lane: usize, value: &dyn Fn(usize, usize) -> f64| {
        let (row, column) = place(register, lane);
        match halves {
            true => half(value(row, column)) | half(value(row, column + 1)) << 16,
            false => (value(row, column) as f32).to_bits(),
        }
    };
    let registers = if halves { 2 } else { 4 };
    let c: Vec<[u32; 32]> =
        (0..registers).map(|r| std::array::from_fn(|lane| word(r, lane, &start))).collect();
    let d = if halves { "f16" } else { "f32" };
    let opcode = format!("mma.sync.aligned.m16n8k{k}.row.col.{d}.{x}.{y}.{d}");
    let got = multiply(&opcode, [&fragment(&a, ty.bits), &fragment(&b, other.bits), &c]);
    let sum = |row: usize, column: usize| start(row, column) + products(&a, &b, false, row, column);
    for (register, got) in got.iter().enumerate() {
        (0..32).for_each(|lane| {
            assert_eq!(got[lane], word(register, lane, &sum), "{opcode} {register} {lane}")
        });
    }
}

#[test]
fn products_with_sums_in_halves_and_of_eight_bits() {
    for k in [8, 16] {
        floats(k, ["f16", "f16"], true);
    }
    for k in [16, 32] {
        for types in [["e4m3", "e4m3"], ["e4m3", "e5m2"], ["e5m2", "e4m3"], ["e5m2", "e5m2"]] {
            floats(k, types, false);
            floats(k, types, true);
        }
    }
}

#[test]
fn products_of_doubles() {
    for (rows, k) in [(8usize, 4usize), (16, 4), (16, 8), (16, 16)] {
        let mut random = Random(9);
        let mut value = || (random.next() % 4096) as f64 / 64.0 - 32.0;
        let a: Vec<Vec<f64>> = (0..rows).map(|_| (0..k).map(|_| value()).collect()).collect();
        let b: Vec<Vec<f64>> = (0..8).map(|_| (0..k).map(|_| value()).collect()).collect();
        let halves = rows / 8;
        let (of_a, of_b, of_d) = (halves * k / 4, k / 4, 2 * halves);
        // A, B and C of each lane, one behind the other.
        let mut bytes = Vec::new();
        for lane in 0..32usize {
            let of =
                |register: usize| a[lane / 4 + register % halves * 8][register / halves * 4 + lane % 4];
            (0..of_a).for_each(|register| bytes.extend(of(register).to_le_bytes()));
            (0..of_b)
                .for_each(|register| bytes.extend(b[lane / 4][register * 4 + lane % 4].to_le_bytes()));
            (0..of_d).for_each(|register| bytes.extend((register as f64 + lane as f64).to_le_bytes()));
        }
        let count = of_a + of_b + of_d;
        let names = |prefix: &str, first: usize, count: usize| {
            let names: Vec<String> =
                (first..first + count).map(|index| format!("%{prefix}{index}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let loads: String =
            (0..count).map(|i| format!("ld.global.f64 %g{i}, [%rd2+{}];\n", 8 * i)).collect();
        let stores: String = (0..of_d)
            .map(|i| format!("st.global.f64 [%rd2+{}], %o{i};\n", 8 * (of_a + of_b + i)))
            .collect();
        let lists = [
            names("o", 0, of_d),
            names("g", 0, of_a),
            names("g", of_a, of_b),
            names("g", of_a + of_b, of_d),
        ];
        let ptx = format!(
            "{HEAD}.visible .entry m(.param .u64 data) {{ .reg .b32 %r<2>; .reg .f64 %g<32>, %o<8>; .reg .b64 %rd<3>;
             ld.param.u64 %rd1, [data]; mov.u32 %r1, %laneid; mul.wide.u32 %rd2, %r1, {}; add.s64 %rd2, %rd2, %rd1; {loads}
             mma.sync.aligned.m{rows}n8k{k}.row.col.f64.f64.f64.f64 {}; {stores} ret; }}",
            8 * count,
            lists.join(", ")
        );
        let memory = Memory::new();
        let data = memory.allocate(bytes.len());
        memory.write(data, &bytes).unwrap();
        let report = run_with(&ptx, &memory, 1, 32, 0, &data.to_le_bytes(), &Options::default());
        assert!(report.is_clean(), "{:?}", report.findings);
        memory.read(data, &mut bytes).unwrap();
        for lane in 0..32usize {
            for register in 0..of_d {
                let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
                let sum: f64 = (0..k).map(|k| a[row][k] * b[column][k]).sum::<f64>()
                    + register as f64
                    + lane as f64;
                let at = 8 * (lane * count + of_a + of_b + register);
                assert_eq!(
                    f64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()),
                    sum,
                    "m{rows} k{k} {row} {column}"
                );
            }
        }
    }
}

/// A `wgmma` of 64 rows and 16 columns: A from registers or shared memory, without a swizzle; 32 bytes of k.
fn by_warpgroup([d, x, y]: [&str; 3], from_registers: bool, accumulates: bool) {
    let (ty, other) = (named(x), named(y));
    let k = 256 / ty.bits;
    let mut random = Random(k as u64);
    let (a, b) = (Matrix::new(ty, 64, k, &mut random), Matrix::new(other, 16, k, &mut random));
    let bytes_of = |matrix: &Matrix, row: usize| -> Vec<u8> {
        (0..8)
            .flat_map(|word| {
                let each = 32 / ty.bits;
                let values =
                    (0..each).map(|e| (matrix.bits[row][word * each + e] as u32) << (e * ty.bits));
                values.fold(0, |all, value| all | value).to_le_bytes()
            })
            .collect()
    };
    // Atoms of 8 rows and 16 bytes, the two of a row of 32 bytes one behind the other.
    let mut shared = vec![0u8; 4096];
    for (matrix, rows, start) in [(&a, 64, 0), (&b, 16, 2048)] {
        for row in 0..rows {
            for (half, bytes) in bytes_of(matrix, row).chunks(16).enumerate() {
                let at = start + row / 8 * 256 + half * 128 + row % 8 * 16;
                shared[at..at + 16].copy_from_slice(bytes);
            }
        }
    }
    let mut fragments = Vec::new();
    for thread in 0..128 {
        let part = Matrix { bits: a.bits[thread / 32 * 16..][..16].to_vec(), values: Vec::new() };
        fragment(&part, ty.bits)
            .iter()
            .for_each(|register| fragments.extend(register[thread % 32].to_le_bytes()));
    }
    let descriptor = |start: u64| start >> 4 | (128 >> 4) << 16 | (256 >> 4) << 32;
    let registers = if d == "f16" { 4 } else { 8 };
    let one = match d {
        "f16" => 0x3c00_3c00u32,
        "f32" => 1f32.to_bits(),
        _ => 1,
    };
    let list: Vec<String> = (8..8 + registers).map(|index| format!("%r{index}")).collect();
    let fill: String = list.iter().map(|name| format!("mov.b32 {name}, {one};\n")).collect();
    let store: String = list
        .iter()
        .enumerate()
        .map(|(i, name)| format!("st.global.b32 [%d6+{}], {name};\n", 4 * i))
        .collect();
    let tail = match (d, x) {
        ("s32", _) => String::new(),
        (_, "f16") if from_registers => ", 1, 1, 0".to_string(),
        (_, "f16") => ", 1, 1, 0, 0".to_string(),
        _ => ", 1, 1".to_string(),
    };
    let suffix = if x == "b1" { ".and.popc" } else { "" };
    let left = if from_registers { "{%r4, %r5, %r6, %r7}" } else { "%d3" };
    let body = format!(
        "mul.wide.u32 %d1, %tid, 32; add.s64 %d2, %data, %d1; shl.b32 %r1, %tid, 5; add.s32 %r1, %r1, %base;
         ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2]; st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
         ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2+16]; st.shared.v4.b32 [%r1+16], {{%r4, %r5, %r6, %r7}};
         fence.proxy.async; bar.sync 0; mul.wide.u32 %d1, %tid, 16; add.s64 %d2, %data, %d1;
         ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2+4096]; mov.b64 %d3, {}; mov.b64 %d4, {}; {fill}
         setp.ne.s32 %p2, {}, 0; wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n16k{k}.{d}.{x}.{y}{suffix} {{{}}}, {left}, %d4, %p2{tail};
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
         mul.wide.u32 %d5, %tid, {}; add.s64 %d6, %data, %d5; add.s64 %d6, %d6, 6144; {store}",
        descriptor(1024),
        descriptor(1024 + 2048),
        u8::from(accumulates),
        list.join(", "),
        4 * registers
    );
    for schedule in schedules().into_iter().take(3) {
        let memory = Memory::new();
        let data = memory.allocate(6144 + 128 * 4 * registers);
        memory.write(data, &shared).unwrap();
        memory.write(data.offset(4096), &fragments).unwrap();
        let mut params = data.to_le_bytes().to_vec();
        params.resize(64, 0);
        params.extend(no_map(data).iter().flat_map(|word| word.to_le_bytes()));
        let text = common::hopper::kernel(&body);
        let report = run_with(&text, &memory, 1, 128, 4096, &params, &with_schedule(schedule));
        assert!(report.is_clean(), "{}", report.findings[0]);
        let got = words(&memory, data.offset(6144), 128 * registers);
        for thread in 0..128 {
            let lane = thread % 32;
            for register in 0..registers {
                let sum = |half: usize, column: usize| {
                    let row = thread / 32 * 16 + half * 8 + lane / 4;
                    products(&a, &b, false, row, column) + if accumulates { 1.0 } else { 0.0 }
                };
                let half = |value: f64| u32::from(half::f16::from_f64(value).to_bits());
                let column = lane % 4 * 2;
                let want = match d {
                    "f16" => {
                        let (side, column) = (register % 2, register / 2 * 8 + column);
                        half(sum(side, column)) | half(sum(side, column + 1)) << 16
                    }
                    "f32" => (sum(register / 2 % 2, register / 4 * 8 + column + register % 2) as f32)
                        .to_bits(),
                    _ => sum(register / 2 % 2, register / 4 * 8 + column + register % 2) as i32 as u32,
                };
                assert_eq!(got[thread * registers + register], want, "{d} {x} {y} {thread} {register}");
            }
        }
    }
}

#[test]
fn products_by_a_warpgroup() {
    for types in [
        ["f16", "f16", "f16"],
        ["f32", "tf32", "tf32"],
        ["f32", "e4m3", "e5m2"],
        ["f16", "e5m2", "e4m3"],
        ["s32", "s8", "u8"],
        ["s32", "u8", "s8"],
    ] {
        for from_registers in [false, true] {
            by_warpgroup(types, from_registers, !from_registers);
        }
    }
    by_warpgroup(["s32", "b1", "b1"], false, true);
}
