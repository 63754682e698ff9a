//! Matrix instructions against plain loops.

#![allow(clippy::needless_range_loop, reason = "a row or lane number indexes several columns at once")]

mod common;
use common::{HEAD, Random, run_clean, run_with, words};
use ptx_emulator::{Memory, Options};

/// A matrix by (row, column).
type Matrix = Vec<Vec<f32>>;

fn random_matrix(rows: usize, columns: usize, seed: u64) -> Matrix {
    let mut random = Random(seed);
    let mut value = || ((random.next() % 512) as f32 - 256.0) / 32.0;
    (0..rows).map(|_| (0..columns).map(|_| value()).collect()).collect()
}

/// The word that a lane holds of a fragment of 16-bit values: (row, column) of its two halves.
fn pair(matrix: &Matrix, encode: fn(f32) -> u16, first: (usize, usize), second: (usize, usize)) -> u32 {
    let value = |(row, column): (usize, usize)| u32::from(encode(matrix[row][column]));
    value(first) | value(second) << 16
}

/// Runs one `mma` on fragments given per lane: registers of A, B and C. The registers of D.
fn multiply(opcode: &str, a: &[[u32; 32]], b: &[[u32; 32]], c: &[[u32; 32]]) -> Vec<[u32; 32]> {
    let inputs: Vec<[u32; 32]> = [a, b, c].concat();
    let names = |first: usize, count: usize| {
        let names: Vec<String> = (first..first + count).map(|index| format!("%r{index}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let loads: String =
        (0..inputs.len()).map(|i| format!("ld.global.b32 %r{i}, [%rd2+{}];\n", 128 * i)).collect();
    let first = inputs.len();
    let stores: String = (0..c.len())
        .map(|i| format!("st.global.b32 [%rd2+{}], %r{};\n", 128 * (first + i), 40 + i))
        .collect();
    let (an, bn, cn) = (names(0, a.len()), names(a.len(), b.len()), names(a.len() + b.len(), c.len()));
    let dn = names(40, c.len());
    let ptx = format!(
        "{HEAD}.visible .entry m(.param .u64 data) {{ .reg .b32 %r<48>; .reg .b64 %rd<3>;
        ld.param.u64 %rd1, [data]; mov.u32 %r47, %laneid; mul.wide.u32 %rd2, %r47, 4;
        add.s64 %rd2, %rd2, %rd1; {loads}
        {opcode} {dn}, {an}, {bn}, {cn};
        {stores} ret; }}"
    );
    let memory = Memory::new();
    let data = memory.allocate(128 * (first + c.len()));
    let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(data, &bytes).unwrap();
    let report = run_with(&ptx, &memory, 1, 32, 0, &data.to_le_bytes(), &Options::default());
    assert!(report.is_clean(), "{:?}", report.findings);
    let all = words(&memory, data, 32 * (first + c.len()));
    all[32 * first..].chunks_exact(32).map(|row| row.try_into().unwrap()).collect()
}

fn check(opcode: &str, k: usize, encode: fn(f32) -> u16) {
    let (a, b, c) = (random_matrix(16, k, 1), random_matrix(k, 8, 2), random_matrix(16, 8, 3));
    let lanes = |f: &dyn Fn(usize, usize) -> u32| -> [u32; 32] {
        std::array::from_fn(|lane| f(lane / 4, lane % 4))
    };
    // The layouts of the PTX manual: group = lane / 4, in_group = lane % 4.
    let a_fragment: Vec<[u32; 32]> = (0..k / 4)
        .map(|register| {
            let (row, column) = (register % 2 * 8, register / 2 * 8);
            lanes(&|group, t| {
                pair(&a, encode, (row + group, column + 2 * t), (row + group, column + 2 * t + 1))
            })
        })
        .collect();
    let b_fragment: Vec<[u32; 32]> = (0..k / 8)
        .map(|register| {
            lanes(&|group, t| {
                pair(&b, encode, (8 * register + 2 * t, group), (8 * register + 2 * t + 1, group))
            })
        })
        .collect();
    let c_fragment: Vec<[u32; 32]> = (0..4)
        .map(|register| lanes(&|group, t| c[group + register / 2 * 8][2 * t + register % 2].to_bits()))
        .collect();
    let d = multiply(opcode, &a_fragment, &b_fragment, &c_fragment);
    for register in 0..4 {
        for lane in 0..32 {
            let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
            let want = (0..k).fold(c[row][column], |sum, k| a[row][k].mul_add(b[k][column], sum));
            assert_eq!(f32::from_bits(d[register][lane]), want, "{opcode} row {row} column {column}");
        }
    }
}

#[test]
fn products_of_16_bit_matrices() {
    let brain = |value: f32| half::bf16::from_f32(value).to_bits();
    let half = |value: f32| half::f16::from_f32(value).to_bits();
    check("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, brain);
    check("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, half);
    check("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", 8, brain);
    check("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 8, half);
}

#[test]
fn products_of_tf32_matrices() {
    for k in [4, 8] {
        let (a, b, c) = (random_matrix(16, k, 4), random_matrix(k, 8, 5), random_matrix(16, 8, 6));
        let lanes = |f: &dyn Fn(usize, usize) -> f32| -> [u32; 32] {
            std::array::from_fn(|lane| f(lane / 4, lane % 4).to_bits())
        };
        let a_fragment: Vec<[u32; 32]> =
            (0..k / 2).map(|r| lanes(&|g, t| a[g + r % 2 * 8][t + r / 2 * 4])).collect();
        let b_fragment: Vec<[u32; 32]> = (0..k / 4).map(|r| lanes(&|g, t| b[t + r * 4][g])).collect();
        let c_fragment: Vec<[u32; 32]> =
            (0..4).map(|r| lanes(&|g, t| c[g + r / 2 * 8][2 * t + r % 2])).collect();
        let opcode = format!("mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32");
        let d = multiply(&opcode, &a_fragment, &b_fragment, &c_fragment);
        for register in 0..4 {
            for lane in 0..32 {
                let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
                let want = (0..k).fold(c[row][column], |sum, k| a[row][k].mul_add(b[k][column], sum));
                assert_eq!(f32::from_bits(d[register][lane]), want);
            }
        }
    }
}

/// Exact, whatever the signs; sums beyond i32 are clamped, or go round.
#[test]
fn products_of_matrices_of_bytes() {
    let mut random = common::Random(9);
    for (rows, k) in [(16, 32), (16, 16), (8, 16)] {
        for (left, right) in [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")] {
            for clamp in ["", ".satfinite"] {
                let mut draw = |rows: usize, columns: usize| -> Vec<Vec<u8>> {
                    (0..rows).map(|_| (0..columns).map(|_| random.next() as u8).collect()).collect()
                };
                let (a, b) = (draw(rows, k), draw(8, k));
                let c: Vec<Vec<i32>> = (0..rows)
                    .map(|row| {
                        (0..8)
                            .map(|column| [7, i32::MAX - 9, i32::MIN + 9][(row + column) % 3])
                            .collect()
                    })
                    .collect();
                let lanes = |f: &dyn Fn(usize, usize) -> u32| -> [u32; 32] {
                    std::array::from_fn(|lane| f(lane / 4, lane % 4))
                };
                let word = |line: &[u8], first: usize| {
                    u32::from_le_bytes(line[first..first + 4].try_into().unwrap())
                };
                let (halves, blocks) = (rows / 8, k / 16);
                let a_fragment: Vec<[u32; 32]> = (0..halves * blocks)
                    .map(|r| lanes(&|g, t| word(&a[g + r % halves * 8], r / halves * 16 + 4 * t)))
                    .collect();
                let b_fragment: Vec<[u32; 32]> =
                    (0..blocks).map(|r| lanes(&|g, t| word(&b[g], r * 16 + 4 * t))).collect();
                let c_fragment: Vec<[u32; 32]> = (0..2 * halves)
                    .map(|r| lanes(&|g, t| c[g + r / 2 * 8][2 * t + r % 2] as u32))
                    .collect();
                let opcode =
                    format!("mma.sync.aligned.m{rows}n8k{k}.row.col{clamp}.s32.{left}.{right}.s32");
                let d = multiply(&opcode, &a_fragment, &b_fragment, &c_fragment);
                let number = |byte: u8, ty: &str| {
                    if ty == "s8" { i64::from(byte as i8) } else { i64::from(byte) }
                };
                for register in 0..2 * halves {
                    for lane in 0..32 {
                        let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
                        let products =
                            (0..k).map(|k| number(a[row][k], left) * number(b[column][k], right));
                        let sum = i64::from(c[row][column]) + products.sum::<i64>();
                        let clamped = sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                        let want = if clamp.is_empty() { sum as i32 } else { clamped as i32 };
                        assert_eq!(d[register][lane] as i32, want, "{opcode} row {row} column {column}");
                    }
                }
            }
        }
    }
}

/// Shared memory holds 64 halves per matrix, numbered; each lane gives the address of its row.
const FILL: &str = "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 4; add.s32 %r3, %r1, %r2;
    shl.b32 %r4, %tid, 3; mov.b32 %r5, 0;
    FILL: add.s32 %r6, %r4, %r5; cvt.u16.u32 %h1, %r6; shl.b32 %r7, %r5, 1; add.s32 %r7, %r7, %r3;
    st.shared.b16 [%r7], %h1; add.s32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8; @%p1 bra FILL;
    bar.warp.sync -1;";

#[test]
fn ldmatrix_distributes_rows_and_columns() {
    for (count, transpose) in [(1, false), (2, false), (4, false), (1, true), (2, true), (4, true)] {
        let trans = if transpose { ".trans" } else { "" };
        let registers: Vec<String> = (0..count).map(|index| format!("%r{}", 10 + index)).collect();
        let stores: String = (0..count)
            .map(|index| format!("st.global.b32 [%mine+{}], %r{};", 128 * index, 10 + index))
            .collect();
        let words = run_clean(
            &format!(
                "{FILL} ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%r3]; {stores}",
                registers.join(", ")
            ),
            32,
        );
        for matrix in 0..count {
            for lane in 0..32 {
                let word = words[matrix * 32 + lane];
                for half in 0..2 {
                    let (row, column) = (lane / 4, lane % 4 * 2 + half);
                    let (row, column) = if transpose { (column, row) } else { (row, column) };
                    let want = (matrix * 8 + row) * 8 + column;
                    assert_eq!(word >> (16 * half) & 0xffff, want as u32, "x{count}{trans} lane {lane}");
                }
            }
        }
    }
}

/// Some compilers have shape, count and transposition in another order.
#[test]
fn stmatrix_undoes_ldmatrix() {
    for middle in ["m8n8.x4", "x4.m8n8", "m8n8.x4.trans", "x4.trans.m8n8", "trans.m8n8.x4"] {
        let words = run_clean(
            &format!(
                "{FILL}
                ldmatrix.sync.aligned.{middle}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r3];
                add.s32 %r8, %r3, 512;
                stmatrix.sync.aligned.{middle}.shared.b16 [%r8], {{%r10, %r11, %r12, %r13}};
                bar.warp.sync -1;
                ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r8];
                mul.wide.u32 %d1, %tid, 16; add.s64 %d1, %d1, %data;
                st.global.v4.b32 [%d1], {{%r10, %r11, %r12, %r13}};"
            ),
            32,
        );
        (0..128u32)
            .for_each(|word| assert_eq!(words[word as usize], (2 * word) | ((2 * word + 1) << 16)));
    }
}

/// Of a matrix whose element at (row, column) is `8 row + column`.
#[test]
fn movmatrix_transposes() {
    let ptx = format!(
        "{HEAD}.visible .entry m(.param .u64 data) {{ .reg .b32 %r<4>; .reg .b64 %rd<3>;
        ld.param.u64 %rd1, [data]; mov.u32 %r1, %laneid; mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd2, %rd2, %rd1; ld.global.b32 %r2, [%rd2];
        movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2; st.global.b32 [%rd2], %r3; ret; }}"
    );
    let memory = Memory::new();
    let data = memory.allocate(128);
    let bytes: Vec<u8> = (0..64u16).flat_map(u16::to_le_bytes).collect();
    memory.write(data, &bytes).unwrap();
    let report = run_with(&ptx, &memory, 1, 32, 0, &data.to_le_bytes(), &Options::default());
    assert!(report.is_clean(), "{:?}", report.findings);
    for (lane, word) in words(&memory, data, 32).into_iter().enumerate() {
        let (row, column) = (lane as u32 / 4, 2 * (lane as u32 % 4));
        assert_eq!(word, (8 * column + row) | (8 * (column + 1) + row) << 16, "lane {lane}");
    }
}
