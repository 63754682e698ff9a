//! Instructions that compilers hardly ever write, against plain Rust on edge and random values.

mod common;
use common::{EDGES_OF_PARTS, Random, evaluate, run_clean};

/// Edge values and random ones, in columns.
fn columns(count: usize, random: &mut Random) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> = vec![Vec::new(); count];
    for (index, &edge) in EDGES_OF_PARTS.iter().enumerate() {
        for (column, values) in all.iter_mut().enumerate() {
            values.push(if column == 0 {
                edge
            } else {
                EDGES_OF_PARTS[(index * (column + 4) + column) % EDGES_OF_PARTS.len()]
            });
        }
    }
    (0..500).for_each(|_| all.iter_mut().for_each(|values| values.push(random.next() >> 32)));
    all
}

/// An instruction with sources of 32 bits and the same in Rust.
fn check(template: &str, sources: usize, expected: impl Fn([u32; 3]) -> u32) {
    let columns = columns(3, &mut Random(7));
    let given: Vec<(u32, Vec<u64>)> =
        columns[..sources].iter().map(|column| (32, column.clone())).collect();
    let got = evaluate(template, 32, &given);
    for (index, got) in got.iter().enumerate() {
        let operands = [0, 1, 2].map(|column: usize| columns[column][index] as u32);
        assert_eq!(*got as u32, expected(operands), "{template} {operands:x?}");
    }
}

fn limits(bits: u32, signed: bool) -> [i64; 2] {
    if signed { [-(1 << (bits - 1)), (1 << (bits - 1)) - 1] } else { [0, (1 << bits) - 1] }
}

#[test]
fn packing_with_clamps() {
    for (ty, bits, signed) in [
        ("u8", 8, false),
        ("s8", 8, true),
        ("u4", 4, false),
        ("s4", 4, true),
        ("u2", 2, false),
        ("s2", 2, true),
    ] {
        let [low, high] = limits(bits, signed);
        let one = move |value: u32| i64::from(value as i32).clamp(low, high) as u32 & ((1 << bits) - 1);
        check(&format!("cvt.pack.sat.{ty}.s32.b32 {{d}}, {{a}}, {{b}}, {{c}};"), 3, |[a, b, c]| {
            c << (2 * bits) | one(a) << bits | one(b)
        });
    }
    for (ty, signed) in [("u16", false), ("s16", true)] {
        let [low, high] = limits(16, signed);
        let one = move |value: u32| i64::from(value as i32).clamp(low, high) as u32 & 0xffff;
        check(&format!("cvt.pack.sat.{ty}.s32 {{d}}, {{a}}, {{b}};"), 2, |[a, b, _]| {
            one(a) << 16 | one(b)
        });
    }
}

/// The nearest of all values of a format, ties to the even one; beyond the largest, that.
fn nearest(values: &[(u8, f64)], value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return 0x7f;
    }
    let distance = |&(bits, other): &(u8, f64)| ((value.abs() - other).abs(), bits & 1);
    let best = values.iter().min_by(|a, b| distance(a).partial_cmp(&distance(b)).unwrap());
    let &(largest, limit) = values.last().unwrap();
    sign | if value.abs() >= limit { largest } else { best.unwrap().0 }
}

#[test]
fn numbers_of_eight_bits() {
    let formats = [("e4m3x2", 3, 7, 0x7e), ("e5m2x2", 2, 15, 0x7b)];
    for (name, mantissa, bias, largest) in formats {
        let number = |bits: u8| {
            let (exponent, fraction) =
                (i32::from(bits >> mantissa), f64::from(bits & ((1 << mantissa) - 1)));
            let scale = f64::from(1 << mantissa);
            match exponent {
                0 => fraction / scale * 2f64.powi(1 - bias),
                _ => (1.0 + fraction / scale) * 2f64.powi(exponent - bias),
            }
        };
        let values: Vec<(u8, f64)> = (0..=largest).map(|bits| (bits, number(bits))).collect();
        let mut floats: Vec<f32> =
            values.iter().flat_map(|&(_, value)| [value as f32, -(value as f32) * 1.01]).collect();
        floats.extend(values.windows(2).map(|pair| ((pair[0].1 + pair[1].1) / 2.0) as f32));
        floats.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e-30, f32::MIN_POSITIVE]);
        let mut random = Random(3);
        floats.extend((0..2000).map(|_| {
            (random.next() as i64 as f64 / 2f64.powi(64)) as f32
                * 2f32.powi((random.next() % 40) as i32 - 20)
        }));
        let bits = |values: &[f32]| {
            (32, values.iter().map(|value| u64::from(value.to_bits())).collect::<Vec<_>>())
        };
        let mut turned = floats.clone();
        turned.rotate_left(5);
        let got = evaluate(
            &format!("cvt.rn.satfinite.{name}.f32 {{d}}, {{a}}, {{b}};"),
            16,
            &[bits(&floats), bits(&turned)],
        );
        for (index, got) in got.iter().enumerate() {
            let want = [turned[index], floats[index]].map(|value| nearest(&values, f64::from(value)));
            assert_eq!((*got as u16).to_le_bytes(), want, "{name} {} {}", floats[index], turned[index]);
        }
        // Every pair of bytes to halves, and back.
        let pairs: Vec<u64> = (0..256).map(|low| low | (255 - low) << 8).collect();
        let halves = evaluate(&format!("cvt.rn.f16x2.{name} {{d}}, {{a}};"), 32, &[(16, pairs.clone())]);
        for (pair, halves) in pairs.iter().zip(&halves) {
            for (byte, half) in
                [(*pair as u8, *halves as u16), ((*pair >> 8) as u8, (*halves >> 16) as u16)]
            {
                let got = half::f16::from_bits(half).to_f64();
                match byte & 0x7f {
                    magnitude if magnitude <= largest => {
                        let value = number(magnitude);
                        assert_eq!(
                            got,
                            if byte & 0x80 == 0 { value } else { -value },
                            "{name} {byte:#x}"
                        );
                    }
                    0x7c if largest == 0x7b => assert!(got.is_infinite()),
                    _ => assert!(got.is_nan(), "{name} {byte:#x}"),
                }
            }
        }
        let finite: Vec<u64> = pairs
            .iter()
            .copied()
            .filter(|pair| [pair & 0x7f, pair >> 8 & 0x7f].iter().all(|&b| b <= u64::from(largest)))
            .collect();
        let there = evaluate(&format!("cvt.rn.f16x2.{name} {{d}}, {{a}};"), 32, &[(16, finite.clone())]);
        let back = evaluate(&format!("cvt.rn.satfinite.{name}.f16x2 {{d}}, {{a}};"), 16, &[(32, there)]);
        assert_eq!(back.iter().map(|&bits| bits & 0xffff).collect::<Vec<_>>(), finite);
    }
}

#[test]
fn classes_of_numbers() {
    let mut values: Vec<f32> =
        [0.0, -0.0, 1.0, -1.5, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]
            .to_vec();
    values.extend(
        [1, 0x7f_ffff, 0x80_0000, 0x7f7f_ffff, 0x7f80_0001, 0xffc0_0000, 0x8000_0001]
            .map(f32::from_bits),
    );
    let bits: Vec<u64> = values.iter().map(|value| u64::from(value.to_bits())).collect();
    let wide: Vec<u64> =
        values.iter().map(|&value| f64::from(value).to_bits()).chain([1, 0xf_ffff_ffff_ffff]).collect();
    type Test = (&'static str, fn(f32) -> bool, fn(f64) -> bool);
    let tests: [Test; 6] = [
        ("finite", f32::is_finite, f64::is_finite),
        ("infinite", f32::is_infinite, f64::is_infinite),
        ("number", |value| !value.is_nan(), |value| !value.is_nan()),
        ("notanumber", f32::is_nan, f64::is_nan),
        ("normal", |value| value == 0.0 || value.is_normal(), |value| value == 0.0 || value.is_normal()),
        ("subnormal", f32::is_subnormal, f64::is_subnormal),
    ];
    for (class, narrow, double) in tests {
        let got = evaluate(&format!("testp.{class}.f32 {{d}}, {{a}};"), 1, &[(32, bits.clone())]);
        let want: Vec<u64> = values.iter().map(|&value| u64::from(narrow(value))).collect();
        assert_eq!(got.iter().map(|bit| bit & 1).collect::<Vec<_>>(), want, "{class}");
        let got = evaluate(&format!("testp.{class}.f64 {{d}}, {{a}};"), 1, &[(64, wide.clone())]);
        let want: Vec<u64> = wide.iter().map(|&bits| u64::from(double(f64::from_bits(bits)))).collect();
        assert_eq!(got.iter().map(|bit| bit & 1).collect::<Vec<_>>(), want, "{class}");
    }
}

#[test]
fn comparisons_to_registers_and_of_pairs() {
    check(
        "set.lt.u32.s32 {d}, {a}, {b};",
        2,
        |[a, b, _]| if (a as i32) < b as i32 { u32::MAX } else { 0 },
    );
    check("set.ge.f32.u32 {d}, {a}, {b};", 2, |[a, b, _]| if a >= b { 1f32.to_bits() } else { 0 });
    let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
    let brain = |bits: u32| half::bf16::from_bits(bits as u16).to_f32();
    check("set.gt.u32.f16x2 {d}, {a}, {b};", 2, |[a, b, _]| {
        let one = |shift: u32| if half(a >> shift) > half(b >> shift) { 0xffff } else { 0 };
        one(0) | one(16) << 16
    });
    // Unordered: also where one is NaN.
    check("set.gtu.f16x2.f16x2 {d}, {a}, {b};", 2, |[a, b, _]| {
        let one = |shift: u32| if half(a >> shift) <= half(b >> shift) { 0 } else { 0x3c00 };
        one(0) | one(16) << 16
    });
    check(
        "{ .reg .pred %x, %y; .reg .b32 %s, %t; setp.le.bf16x2 %x|%y, {a}, {b}; selp.b32 %s, 1, 0, %x; selp.b32 %t, 2, 0, %y; or.b32 {d}, %s, %t; }",
        2,
        |[a, b, _]| u32::from(brain(a) <= brain(b)) | u32::from(brain(a >> 16) <= brain(b >> 16)) << 1,
    );
}

#[test]
fn reciprocals_of_upper_halves() {
    let mut random = Random(5);
    let edges =
        [1.0, -2.0, 0.0, -0.0, 1e300, 1e-300, f64::INFINITY, f64::MAX, 5e-324, 3.0].map(f64::to_bits);
    let bits: Vec<u64> = edges.into_iter().chain((0..500).map(|_| random.next())).collect();
    for (opcode, f) in [("rcp", (|x| 1.0 / x) as fn(f64) -> f64), ("rsqrt", |x| 1.0 / x.sqrt())] {
        let got = evaluate(&format!("{opcode}.approx.ftz.f64 {{d}}, {{a}};"), 64, &[(64, bits.clone())]);
        for (&bits, &got) in bits.iter().zip(&got) {
            let exact = f(f64::from_bits(bits));
            let (got_value, input) = (f64::from_bits(got), f64::from_bits(bits));
            assert_eq!(got & 0xffff_ffff, 0, "{opcode} {input:e}");
            if exact.is_nan() || input.is_subnormal() || exact.is_subnormal() {
                assert!(
                    got_value.is_nan() || got_value.is_infinite() || got_value == 0.0,
                    "{opcode} {input:e}"
                );
            } else if exact.is_infinite() || exact == 0.0 {
                assert_eq!(got_value, exact, "{opcode} {input:e}");
            } else {
                assert!(
                    ((got_value - exact) / exact).abs() < 2f64.powi(-19),
                    "{opcode} {input:e}: {got_value:e}"
                );
            }
        }
    }
}

#[test]
fn vectors_and_numbers_of_128_bits_are_changed_atomically() {
    // Sums of four f32, each by 64 threads; the old values come back.
    let got = run_clean(
        "mov.b32 %r1, 0x3f800000; mov.b32 %r2, 0x40000000; atom.global.add.v4.f32 {%r3, %r4, %r5, %r6}, [%data], {%r1, %r2, %r1, %r2};
         setp.lt.u32 %p1, %tid, 0; @%p1 st.global.b32 [%mine], %r3;",
        64,
    );
    assert_eq!(
        got[..4].iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>(),
        [64.0, 128.0, 64.0, 128.0]
    );
    // The largest of pairs of halves: 0 to 63, and minus that.
    let got = run_clean(
        "cvt.rn.f16.u32 %h1, %tid; neg.f16 %h2, %h1; mov.b32 %r1, {%h1, %h2};
         red.global.v2.f16x2.max.noftz [%data], {%r1, %r1}; red.global.v2.f16x2.min.noftz [%data+8], {%r1, %r1};",
        64,
    );
    let halves =
        |word: u32| [word as u16, (word >> 16) as u16].map(|bits| half::f16::from_bits(bits).to_f32());
    assert_eq!((halves(got[0]), halves(got[1])), ([63.0, 0.0], [63.0, 0.0]));
    assert_eq!((halves(got[2]), halves(got[3])), ([0.0, -63.0], [0.0, -63.0]));
    // A counter of 128 bits, by compare-and-swap of all of it.
    let got = run_clean(
        ".reg .b128 %q<4>; mov.b64 %d1, 0; mov.b64 %d2, 0; LOOP: mov.b128 %q1, {%d1, %d2}; add.s64 %d3, %d1, 1;
         add.s64 %d4, %d2, 3; mov.b128 %q2, {%d3, %d4}; atom.global.cas.b128 %q3, [%data], %q1, %q2;
         mov.b128 {%d5, %d6}, %q3; setp.ne.s64 %p1, %d5, %d1; setp.ne.or.s64 %p1, %d6, %d2, %p1; mov.b64 %d1, %d5;
         mov.b64 %d2, %d6; @%p1 bra LOOP;",
        64,
    );
    assert_eq!(got[..4], [64, 0, 192, 0]);
}

#[test]
fn a_copy_whose_source_is_ignored_brings_zeros() {
    let got = run_clean(
        "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 4; add.s32 %r1, %r1, %r2; mul.wide.u32 %d1, %tid, 16; add.s64 %d1, %d1, %data;
         st.global.v4.b32 [%d1+1024], {%tid, %tid, %tid, %tid}; setp.gt.u32 %p1, %tid, 20;
         cp.async.cg.shared.global [%r1], [%d1+1024], 16, %p1; cp.async.wait_all; ld.shared.b32 %r3, [%r1+12];
         st.global.b32 [%mine], %r3;",
        32,
    );
    (0..32).for_each(|lane| assert_eq!(got[lane], if lane > 20 { 0 } else { lane as u32 }));
}

#[test]
fn copies_arrive_at_barriers() {
    // The barrier counts all 64 threads, each of which arrives when its copies have come.
    let body = |arrive: &str, count: u32| {
        format!(
            "mov.u32 %r1, dynamic; setp.eq.u32 %p1, %tid, 0; @%p1 mbarrier.init.shared.b64 [%r1], {count}; bar.sync 0;
             shl.b32 %r2, %tid, 2; add.s32 %r2, %r2, %r1; cp.async.ca.shared.global [%r2+16], [%mine], 4; {arrive}
             W: mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W; xor.b32 %r3, %r2, 252;
             and.b32 %r4, %tid, 63; sub.s32 %r4, 63, %r4; shl.b32 %r4, %r4, 2; add.s32 %r4, %r4, %r1; ld.shared.b32 %r5, [%r4+16];
             add.s32 %r5, %r5, 3; st.global.b32 [%mine+1024], %r5;"
        )
    };
    let arrive = "mbarrier.arrive.shared.b64 _, [%r1];";
    let got = run_clean(&body("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];", 64), 64);
    assert_eq!(got[256..320], [3; 64]);
    let got = run_clean(&body(&format!("cp.async.mbarrier.arrive.shared.b64 [%r1]; {arrive}"), 64), 64);
    assert_eq!(got[256..320], [3; 64]);
}
