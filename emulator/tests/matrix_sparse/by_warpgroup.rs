//! `wgmma` with a sparse A, against loops over whole matrices: what a warp has of it is as for `mma.sp`.

use super::common::hopper::no_map;
use super::common::{self, Random, run_with, schedules, with_schedule};
use super::{HALVES, Sparse, bits_of, draw, encode, fragment, names};
use ptx_emulator::{FindingKind, Memory, Options};

/// A `wgmma` with a sparse A of 64 rows and 16 columns of B, of which 64 bytes lie in each.
struct ByWarpgroup {
    /// What a warp multiplies.
    sparse: Sparse,
    a_in_registers: bool,
    /// Bytes of B's swizzle, 16 without.
    span: usize,
    /// Whether A and B lie along rows and columns.
    transposed: [bool; 2],
}

impl ByWarpgroup {
    /// Where a value lies: of A, as if there were no swizzle.
    fn offset(
        span: usize,
        transposed: bool,
        (row, k): (usize, usize),
        bytes: usize,
        width: usize,
    ) -> usize {
        let along = k * bytes;
        let plain = match (transposed, span) {
            (false, 16) => row / 8 * 8 * width + along / 16 * 128 + row % 8 * 16 + along % 16,
            (false, _) => row / 8 * 8 * span + along / span * 512 + row % 8 * span + along % span,
            (true, 16) => row / 8 * 128 + k / 8 * 1024 + k % 8 * 16 + row % 8 * 2,
            (true, _) => k * span + row * 2,
        };
        plain ^ (plain >> 7 & (span / 16 - 1)) << 4
    }

    /// Start, and what lies between two groups of 8 rows and two pieces of k.
    fn descriptor(span: usize, transposed: bool, start: usize, width: usize) -> u64 {
        let (leading, stride, mode) = match (transposed, span) {
            (false, 16) => (128, 8 * width, 0),
            (true, 16) => (1024, 128, 0),
            (_, span) => (512, 8 * span, [3, 2, 0, 1][span / 32 - 1]),
        };
        (start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62) as u64
    }

    fn text(&self) -> String {
        let Sparse { k, d, a, b, clamps, selector, .. } = self.sparse;
        let registers = if d == "f16" { 4 } else { 8 };
        let sums = names(8, registers);
        let stores: String =
            (0..registers).map(|i| format!("st.global.b32 [%d6+{}], %r{};\n", 4 * i, 8 + i)).collect();
        let fill: String = (0..registers).map(|i| format!("mov.b32 %r{}, 0;\n", 8 + i)).collect();
        let [turns_a, turns_b] = self.transposed.map(u8::from);
        let tail = match (d, bits_of(a), self.a_in_registers) {
            ("s32", _, _) => String::new(),
            (_, 16, true) => format!(", -1, 1, {turns_b}"),
            (_, 16, false) => format!(", -1, 1, {turns_a}, {turns_b}"),
            _ => ", -1, 1".to_string(),
        };
        let left = if self.a_in_registers { "{%r4, %r5, %r6, %r7}" } else { "%d3" };
        // The other two lanes of a row have no metadata.
        let guard = if bits_of(a) == 8 { "" } else { "@%p1" };
        let clamps = if clamps { ".satfinite" } else { "" };
        format!(
            "mul.wide.u32 %d1, %tid, 64; add.s64 %d2, %data, %d1; shl.b32 %r1, %tid, 6; add.s32 %r1, %r1, %base;
             mov.u32 %r2, 0;
             COPY: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2]; st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
             add.s64 %d2, %d2, 16; add.s32 %r1, %r1, 16; add.s32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 4; @%p1 bra COPY;
             fence.proxy.async; bar.sync 0; mul.wide.u32 %d1, %tid, 16; add.s64 %d2, %data, %d1;
             ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2+8192];
             mul.wide.u32 %d1, %tid, 4; add.s64 %d2, %data, %d1;
             and.b32 %r2, %tid, 3; shr.u32 %r2, %r2, 1; setp.eq.u32 %p1, %r2, {selector};
             {guard} ld.global.b32 %r3, [%d2+10240]; mov.b64 %d3, {}; mov.b64 %d4, {}; {fill}
             setp.ne.s32 %p2, 0, 0; wgmma.fence.sync.aligned;
             wgmma.mma_async.sp.sync.aligned.m64n16k{k}{clamps}.{d}.{a}.{b} {sums}, {left}, %d4, %r3, {selector}, %p2{tail};
             wgmma.commit_group.sync.aligned; mov.b32 %r3, 0; wgmma.wait_group.sync.aligned 0;
             mul.wide.u32 %d5, %tid, {}; add.s64 %d6, %data, %d5; add.s64 %d6, %d6, 10752; {stores}",
            Self::descriptor(16, self.transposed[0], 1024, 32),
            Self::descriptor(self.span, self.transposed[1], 1024 + 2048, 64),
            4 * registers
        )
    }

    fn check(&self) {
        let Sparse { k, d, a, b, .. } = self.sparse;
        let bytes = bits_of(a) / 8;
        let mut random = Random(self.span as u64 + self.sparse.selector as u64);
        let right: Vec<Vec<i64>> =
            (0..16).map(|_| (0..k).map(|_| draw(b, &mut random)).collect()).collect();
        let mut image = vec![0u8; 8192 + 2048 + 512];
        let mut put = |at: usize, ty: &str, value: i64| {
            image[at..at + bytes].copy_from_slice(&encode(ty, value).to_le_bytes()[..bytes]);
        };
        for (column, values) in right.iter().enumerate() {
            for (along, &value) in values.iter().enumerate() {
                let at = Self::offset(self.span, self.transposed[1], (column, along), bytes, 64);
                put(2048 + at, b, value);
            }
        }
        let mut full = Vec::new();
        let mut words = vec![[0u32; 5]; 128];
        for warp in 0..4 {
            let (whole, kept, metadata) = self.sparse.left(&mut random);
            for (row, values) in kept.iter().enumerate() {
                for (along, &value) in values.iter().enumerate() {
                    let place = (16 * warp + row, along);
                    put(Self::offset(16, self.transposed[0], place, bytes, 32), a, value);
                }
            }
            for (register, lanes) in fragment(&kept, a).iter().enumerate() {
                (0..32).for_each(|lane| words[32 * warp + lane][register] = lanes[lane]);
            }
            (0..32).for_each(|lane| words[32 * warp + lane][4] = metadata[lane]);
            full.extend(whole);
        }
        for (thread, words) in words.iter().enumerate() {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            image[8192 + 16 * thread..][..16].copy_from_slice(&bytes[..16]);
            image[10240 + 4 * thread..][..4].copy_from_slice(&bytes[16..]);
        }
        let sign = if d == "s32" { 1 } else { -1 };
        let sum = |row: usize, column: usize| {
            sign * full[row].iter().zip(&right[column]).map(|(a, b)| a * b).sum::<i64>()
        };
        let registers = if d == "f16" { 4 } else { 8 };
        let text = common::hopper::kernel(&self.text());
        for schedule in schedules().into_iter().take(3) {
            let memory = Memory::new();
            let data = memory.allocate(image.len() + 512 * registers);
            memory.write(data, &image).unwrap();
            let mut params = data.to_le_bytes().to_vec();
            params.resize(192, 0);
            let report = run_with(&text, &memory, 1, 128, 16384, &params, &with_schedule(schedule));
            assert!(report.is_clean(), "{}", report.findings[0]);
            let got = common::words(&memory, data.offset(10752), 128 * registers);
            for (at, &got) in got.iter().enumerate() {
                let (thread, register) = (at / registers, at % registers);
                let (row, column) = (thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
                let want = match d {
                    "f16" => {
                        let (row, column) = (row + register % 2 * 8, column + register / 2 * 8);
                        encode(d, sum(row, column)) | encode(d, sum(row, column + 1)) << 16
                    }
                    _ => encode(
                        d,
                        sum(row + register / 2 % 2 * 8, column + register % 2 + register / 4 * 8),
                    ),
                };
                assert_eq!(got, want, "{d} {a} {b} {} {:?} {at}", self.span, self.transposed);
            }
        }
    }
}

#[test]
fn sparse_products_by_a_warpgroup() {
    let mut all = Vec::new();
    for types in HALVES {
        for span in [16, 32, 64, 128] {
            for (turned, transposed) in
                [[false, false], [false, true], [true, false]].into_iter().enumerate()
            {
                let sparse = Sparse { ordered: false, ..Sparse::new(32, types, turned % 2) };
                all.push(ByWarpgroup { sparse, a_in_registers: !transposed[0], span, transposed });
                all.push(ByWarpgroup { sparse, a_in_registers: false, span, transposed });
            }
        }
    }
    let bytes =
        [["s32", "s8", "u8"], ["s32", "u8", "s8"], ["f32", "e4m3", "e5m2"], ["f16", "e5m2", "e4m3"]];
    for types in bytes {
        all.push(ByWarpgroup {
            sparse: Sparse { clamps: types[1] == "s8", ..Sparse::new(64, types, 0) },
            a_in_registers: types[0] == "f16",
            span: 64,
            transposed: [false; 2],
        });
    }
    for selector in 0..2 {
        let sparse = Sparse::new(16, ["f32", "tf32", "tf32"], selector);
        all.push(ByWarpgroup {
            sparse,
            a_in_registers: selector == 0,
            span: 32,
            transposed: [false; 2],
        });
    }
    all.iter().for_each(ByWarpgroup::check);
}

/// Metadata is read when the multiplication is issued.
#[test]
fn metadata_of_a_warpgroup_is_looked_at() {
    let body = |metadata: &str| {
        format!(
            "{metadata} mov.b32 %r4, 0; mov.b64 %d4, 64; setp.ne.s32 %p2, 0, 0; wgmma.fence.sync.aligned;
             wgmma.mma_async.sp.sync.aligned.m64n8k32.f16.f16.f16 {{%r5, %r6}}, {{%r4, %r4, %r4, %r4}}, %d4, %r3, 1, %p2, \
             1, 1, 0;
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
        )
    };
    let kinds = |metadata: &str| -> Vec<FindingKind> {
        let findings = common::hopper::run_body(&body(metadata), 128, no_map, &Options::default());
        let mut kinds: Vec<FindingKind> =
            findings.report.findings.iter().map(|finding| finding.kind).collect();
        kinds.retain(|kind| !matches!(kind, FindingKind::UninitialisedRead { .. }));
        kinds.dedup();
        kinds
    };
    assert_eq!(kinds("mov.b32 %r3, 0x44444444;"), []);
    assert_eq!(kinds("mov.b32 %r3, 0x44544444;"), [FindingKind::InvalidOperand]);
    let half = |lanes: &str| {
        format!("and.b32 %r2, %tid, 2; setp.{lanes}.u32 %p1, %r2, 0; @%p1 mov.b32 %r3, 0x44444444;")
    };
    assert_eq!(kinds(&half("ne")), []);
    assert!(kinds(&half("eq")).contains(&FindingKind::UninitialisedRegister));
}
