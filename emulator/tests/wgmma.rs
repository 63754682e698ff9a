//! `wgmma` against plain Rust: shapes, types, layouts, transpositions, signs.

mod common;
use common::hopper::{kernel, no_map};
use common::{Random, run_with, schedules, with_schedule};
use ptx_emulator::Memory;

/// How an operand lies in shared memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of the swizzle's span, 16 without.
    span: u32,
    transposed: bool,
}

/// Bytes of 64 rows, or columns, of one operand; room for 256.
const SIZE: u32 = 8192;

impl Layout {
    /// Where element (row, k) of an operand with so many rows lies: atoms one behind the other.
    fn offset(self, row: u32, k: u32) -> u32 {
        let Layout { span, transposed } = self;
        let (atoms_k, along) = (16 * 2 / span.min(32), span / 2);
        let plain = match (transposed, span) {
            (false, 16) => row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2,
            (false, _) => row / 8 * 8 * span + row % 8 * span + k * 2,
            (true, 16) => row / 8 * 256 + k / 8 * 128 + k % 8 * 16 + row % 8 * 2,
            (true, _) => row / along * 16 * span + k * span + row % along * 2,
        };
        assert!(atoms_k >= 1);
        plain ^ (plain >> 7 & (span / 16 - 1)) << 4
    }

    fn descriptor(self, start: u32) -> u64 {
        let (leading, stride, mode) = match (self.transposed, self.span) {
            (_, 16) => (128, 256, 0u64),
            (false, span) => (0, 8 * span, [3, 2, 0, 1][span as usize / 32 - 1]),
            (true, span) => (16 * span, 8 * span, [3, 2, 0, 1][span as usize / 32 - 1]),
        };
        u64::from(start >> 4) | (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | mode << 62
    }
}

struct Case {
    columns: u32,
    half: bool,
    /// `None`: from registers.
    a: Option<Layout>,
    b: Layout,
    signs: [i32; 2],
    accumulates: bool,
}

fn bits(half: bool, value: f32) -> u16 {
    if half { half::f16::from_f32(value).to_bits() } else { half::bf16::from_f32(value).to_bits() }
}

fn check(case: &Case, random: &mut Random) {
    let Case { columns, half, a, b, signs, accumulates } = *case;
    let mut small = |count: usize| -> Vec<f32> {
        (0..count).map(|_| ((random.next() >> 40) % 33) as f32 / 8.0 - 2.0).collect()
    };
    let (left, right) = (small(64 * 16), small(columns as usize * 16));
    // Global memory: the bytes of shared memory, then A as fragments, then D.
    let mut shared = vec![0u8; 2 * SIZE as usize];
    let mut put = |at: u32, value: f32| {
        shared[at as usize..at as usize + 2].copy_from_slice(&bits(half, value).to_le_bytes());
    };
    for row in 0..64u32 {
        for k in 0..16 {
            if let Some(layout) = a {
                put(SIZE + layout.offset(row, k), left[(row * 16 + k) as usize]);
            }
        }
    }
    for column in 0..columns {
        (0..16).for_each(|k| put(b.offset(column, k), right[(column * 16 + k) as usize]));
    }
    let mut fragments = vec![0u8; 128 * 16];
    for thread in 0..128u32 {
        let (warp, lane) = (thread / 32, thread % 32);
        for register in 0..4 {
            for element in 0..2 {
                let row = warp * 16 + register % 2 * 8 + lane / 4;
                let k = register / 2 * 8 + lane % 4 * 2 + element;
                let at = (thread * 16 + register * 4 + element * 2) as usize;
                let value = bits(half, left[(row * 16 + k) as usize]);
                fragments[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    let ty = if half { "f16" } else { "bf16" };
    let list: Vec<String> = (0..columns / 2).map(|index| format!("%f{index}")).collect();
    let list = list.join(", ");
    let start = 1024;
    let a_text = if a.is_some() { "%d3" } else { "{%r4, %r5, %r6, %r7}" };
    let a_bits = a.map_or(0, |layout| layout.descriptor(start + SIZE));
    let tail = match a {
        Some(layout) => format!("{}, {}", u8::from(layout.transposed), u8::from(b.transposed)),
        None => u8::from(b.transposed).to_string(),
    };
    let fill: String =
        (0..columns / 2).map(|index| format!("mov.f32 %f{index}, 0f40400000;\n")).collect();
    let store: String = (0..columns / 2)
        .map(|index| format!("st.global.f32 [%d6+{}], %f{index};\n", index * 4))
        .collect();
    let body = format!(
        "mul.wide.u32 %d1, %tid, 16; add.s64 %d2, %data, %d1; shl.b32 %r1, %tid, 4; add.s32 %r1, %r1, %base; mov.u32 %r2, 0;
         COPY: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2]; st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
         add.s64 %d2, %d2, 2048; add.s32 %r1, %r1, 2048; add.s32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 8; @%p1 bra COPY;
         fence.proxy.async; bar.sync 0;
         ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2];
         mov.b64 %d3, {a_bits}; mov.b64 %d4, {}; {fill}
         setp.ne.s32 %p2, {}, 0;
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ty}.{ty} {{{list}}}, {a_text}, %d4, %p2, {}, {}, {tail};
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
         mul.wide.u32 %d5, %tid, {}; add.s64 %d6, %data, %d5; add.s64 %d6, %d6, {};
         {store}",
        b.descriptor(start),
        u8::from(accumulates),
        signs[0],
        signs[1],
        columns * 2,
        2 * SIZE + 2048,
    );
    for schedule in schedules().into_iter().take(3) {
        let memory = Memory::new();
        let data = memory.allocate((2 * SIZE + 2048 + 128 * columns * 2) as usize);
        memory.write(data, &shared).unwrap();
        memory.write(data.offset(u64::from(2 * SIZE)), &fragments).unwrap();
        let mut params = data.to_le_bytes().to_vec();
        params.resize(64, 0);
        params.extend(no_map(data).iter().flat_map(|word| word.to_le_bytes()));
        let options = with_schedule(schedule);
        let report = run_with(&kernel(&body), &memory, 1, 128, 16384, &params, &options);
        assert!(report.is_clean(), "{}", report.findings[0]);
        let out = data.offset(u64::from(2 * SIZE + 2048));
        let words = common::words(&memory, out, (128 * columns / 2) as usize);
        for thread in 0..128u32 {
            for index in 0..columns / 2 {
                let row = thread / 32 * 16 + index / 2 % 2 * 8 + thread % 32 / 4;
                let column = index / 4 * 8 + thread % 4 * 2 + index % 2;
                let product = |k: u32| left[(row * 16 + k) as usize] * right[(column * 16 + k) as usize];
                let sum: f32 = (0..16).map(product).sum::<f32>() * (signs[0] * signs[1]) as f32;
                // Small multiples of 1/64: every order gives the same sum.
                let expected = sum + if accumulates { 3.0 } else { 0.0 };
                let got = f32::from_bits(words[(thread * columns / 2 + index) as usize]);
                assert_eq!(got, expected, "n {columns} a {a:?} b {b:?} row {row} column {column}");
            }
        }
    }
}

#[test]
fn every_layout_of_both_operands() {
    let mut random = Random(7);
    let spans = [16, 32, 64, 128];
    for span in spans {
        for transposed in [false, true] {
            let b = Layout { span, transposed };
            for a in [
                None,
                Some(Layout { span: 128, transposed: false }),
                Some(Layout { span, transposed: !transposed }),
            ] {
                check(
                    &Case { columns: 64, half: false, a, b, signs: [1, 1], accumulates: true },
                    &mut random,
                );
            }
        }
    }
}

#[test]
fn every_width_type_and_sign() {
    let mut random = Random(8);
    let (a, b) = (None, Layout { span: 32, transposed: false });
    for columns in (8..=256).step_by(8) {
        let half = columns % 16 == 0;
        let signs = [[1, 1], [-1, 1], [1, -1], [-1, -1]][columns as usize / 8 % 4];
        check(&Case { columns, half, a, b, signs, accumulates: columns % 24 == 0 }, &mut random);
    }
}
