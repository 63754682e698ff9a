//! Floating-point instructions against plain Rust.

mod common;
use common::{Random, evaluate};

const COUNT: usize = 4096;

/// Edge values and random bits, among them many of similar size.
fn singles(seed: u64) -> Vec<u64> {
    let edges = [
        0u32,
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
    let mut random = Random(seed | 1);
    (0..COUNT)
        .map(|_| {
            let pick = random.next();
            let bits = random.next() as u32;
            match pick % 4 {
                0 => edges[(pick >> 8) as usize % edges.len()],
                1 => bits,
                _ => bits & 0x81ff_ffff | 0x3e00_0000,
            }
        })
        .map(u64::from)
        .collect()
}

fn doubles(seed: u64) -> Vec<u64> {
    let mut random = Random(seed | 1);
    singles(seed)
        .into_iter()
        .map(|bits| match random.next() % 3 {
            0 => f64::from(f32::from_bits(bits as u32)).to_bits(),
            1 => random.next(),
            _ => random.next() & 0x800f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000,
        })
        .collect()
}

fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// Equal bits, or NaN where the canonical NaN is expected.
fn check32(template: &str, operands: usize, expected: impl Fn(&[f32]) -> f32) {
    let sources: Vec<(u32, Vec<u64>)> = (0..operands).map(|i| (32, singles(5 + i as u64))).collect();
    let got = evaluate(template, 32, &sources);
    for row in 0..COUNT {
        let inputs: Vec<f32> = sources.iter().map(|(_, c)| f32::from_bits(c[row] as u32)).collect();
        let want = expected(&inputs);
        // Compared as integers: the compiler may take one NaN of a computation for another.
        let bits = std::hint::black_box(want.to_bits());
        let want = if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { bits };
        assert_eq!(
            got[row] as u32,
            want,
            "{template} on {inputs:?}: {:e}",
            f32::from_bits(got[row] as u32)
        );
    }
}

/// Equal to a rounding error of so many units in the last place.
fn check_close(template: &str, ulps: f64, ftz: bool, expected: impl Fn(f64) -> f64) {
    let source = singles(3);
    let got = evaluate(template, 32, &[(32, source.clone())]);
    for row in 0..COUNT {
        let x = f32::from_bits(source[row] as u32);
        let x = if ftz { flush(x) } else { x };
        let exact = expected(f64::from(x));
        let rounded = exact as f32;
        let want = if ftz { flush(rounded) } else { rounded };
        let value = f32::from_bits(got[row] as u32);
        let ulp = f64::from(rounded.abs().max(f32::MIN_POSITIVE)) * 2f64.powi(-23);
        let edge = ftz
            && exact.abs() < 2.0 * f64::from(f32::MIN_POSITIVE)
            && value.abs() <= 2.0 * f32::MIN_POSITIVE;
        let good = value == want
            || value.is_nan() && want.is_nan()
            || (f64::from(value) - exact).abs() <= ulps * ulp
            || edge;
        assert!(good, "{template} of {x:e}: {value:e}, expected {exact:e}");
    }
}

#[test]
fn arithmetic_rounds_to_nearest() {
    for form in ["add.f32", "add.rn.f32"] {
        check32(&format!("{form} {{d}}, {{a}}, {{b}};"), 2, |v| v[0] + v[1]);
    }
    check32("sub.rn.f32 {d}, {a}, {b};", 2, |v| v[0] - v[1]);
    check32("mul.f32 {d}, {a}, {b};", 2, |v| v[0] * v[1]);
    check32("div.rn.f32 {d}, {a}, {b};", 2, |v| v[0] / v[1]);
    check32("fma.rn.f32 {d}, {a}, {b}, {c};", 3, |v| v[0].mul_add(v[1], v[2]));
    check32("rcp.rn.f32 {d}, {a};", 1, |v| 1.0 / v[0]);
    check32("sqrt.rn.f32 {d}, {a};", 1, |v| v[0].sqrt());
}

#[test]
fn ftz_flushes_inputs_and_results() {
    check32("add.ftz.f32 {d}, {a}, {b};", 2, |v| flush(flush(v[0]) + flush(v[1])));
    check32("mul.rn.ftz.f32 {d}, {a}, {b};", 2, |v| flush(flush(v[0]) * flush(v[1])));
    check32("fma.rn.ftz.f32 {d}, {a}, {b}, {c};", 3, |v| {
        flush(flush(v[0]).mul_add(flush(v[1]), flush(v[2])))
    });
    check32("max.ftz.f32 {d}, {a}, {b};", 2, |v| max(flush(v[0]), flush(v[1])));
}

#[test]
fn sat_clamps_to_the_unit_interval() {
    let clamp = |value: f32| if value > 0.0 { value.min(1.0) } else { 0.0 };
    check32("add.sat.f32 {d}, {a}, {b};", 2, |v| clamp(v[0] + v[1]));
    check32("fma.rn.sat.f32 {d}, {a}, {b}, {c};", 3, |v| clamp(v[0].mul_add(v[1], v[2])));
}

fn max(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        _ => {
            if a > b {
                a
            } else {
                b
            }
        }
    }
}

#[test]
fn minimum_and_maximum_order_zeros_and_skip_nan() {
    check32("max.f32 {d}, {a}, {b};", 2, |v| max(v[0], v[1]));
    check32("min.f32 {d}, {a}, {b};", 2, |v| -max(-v[0], -v[1]));
    let nan = |v: &[f32]| v[0].is_nan() || v[1].is_nan();
    check32("max.NaN.f32 {d}, {a}, {b};", 2, |v| if nan(v) { f32::NAN } else { max(v[0], v[1]) });
    check32("min.NaN.f32 {d}, {a}, {b};", 2, |v| if nan(v) { f32::NAN } else { -max(-v[0], -v[1]) });
}

#[test]
fn signs_are_bits_except_of_nan() {
    let source = singles(9);
    let check = |template: &str, expected: &dyn Fn(u32, u32) -> u32| {
        let other = singles(10);
        let got = evaluate(template, 32, &[(32, source.clone()), (32, other.clone())]);
        for row in 0..COUNT {
            assert_eq!(got[row] as u32, expected(source[row] as u32, other[row] as u32), "{template}");
        }
    };
    let or_nan = |a: u32, bits: u32| if a & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { bits };
    check("neg.f32 {d}, {a};", &|a, _| or_nan(a, a ^ 0x8000_0000));
    check("abs.f32 {d}, {a};", &|a, _| or_nan(a, a & 0x7fff_ffff));
    check("copysign.f32 {d}, {a}, {b};", &|a, b| b & 0x7fff_ffff | a & 0x8000_0000);
}

#[test]
fn approximations_are_within_their_bounds() {
    check_close("ex2.approx.f32 {d}, {a};", 1.0, false, f64::exp2);
    check_close("ex2.approx.ftz.f32 {d}, {a};", 1.0, true, f64::exp2);
    check_close("lg2.approx.f32 {d}, {a};", 1.0, false, f64::log2);
    check_close("lg2.approx.ftz.f32 {d}, {a};", 1.0, true, f64::log2);
    check_close("rcp.approx.ftz.f32 {d}, {a};", 1.0, true, f64::recip);
    check_close("rcp.approx.f32 {d}, {a};", 1.0, false, f64::recip);
    check_close("sqrt.approx.f32 {d}, {a};", 1.0, false, f64::sqrt);
    check_close("rsqrt.approx.f32 {d}, {a};", 1.0, false, |x| 1.0 / x.sqrt());
    check_close("tanh.approx.f32 {d}, {a};", 1.0, false, f64::tanh);
    check_close("sin.approx.f32 {d}, {a};", 1.0, false, f64::sin);
    check_close("cos.approx.f32 {d}, {a};", 1.0, false, f64::cos);
    check32("div.approx.f32 {d}, {a}, {b};", 2, |v| v[0] / v[1]);
    check32("div.full.f32 {d}, {a}, {b};", 2, |v| v[0] / v[1]);
}

#[test]
fn doubles_are_exact() {
    let check = |template: &str, operands: usize, expected: fn(&[f64]) -> f64| {
        let sources: Vec<(u32, Vec<u64>)> =
            (0..operands).map(|i| (64, doubles(50 + i as u64))).collect();
        let got = evaluate(template, 64, &sources);
        for row in 0..COUNT {
            let inputs: Vec<f64> = sources.iter().map(|(_, c)| f64::from_bits(c[row])).collect();
            let (want, got) = (expected(&inputs), f64::from_bits(got[row]));
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{template} {inputs:?}"
            );
        }
    };
    check("add.f64 {d}, {a}, {b};", 2, |v| v[0] + v[1]);
    check("sub.rn.f64 {d}, {a}, {b};", 2, |v| v[0] - v[1]);
    check("mul.rn.f64 {d}, {a}, {b};", 2, |v| v[0] * v[1]);
    check("div.rn.f64 {d}, {a}, {b};", 2, |v| v[0] / v[1]);
    check("fma.rn.f64 {d}, {a}, {b}, {c};", 3, |v| v[0].mul_add(v[1], v[2]));
    check("sqrt.rn.f64 {d}, {a};", 1, |v| v[0].sqrt());
    check("rcp.rn.f64 {d}, {a};", 1, |v| 1.0 / v[0]);
    check("abs.f64 {d}, {a};", 1, |v| v[0].abs());
}

#[test]
fn minimum_and_maximum_of_doubles_order_zeros() {
    let (minus, plus) = ((-0f64).to_bits(), 0f64.to_bits());
    let sources = [(64, vec![minus, plus, minus, plus]), (64, vec![plus, minus, minus, plus])];
    let got = |name: &str| evaluate(&format!("{name}.f64 {{d}}, {{a}}, {{b}};"), 64, &sources);
    assert_eq!(got("min"), [minus, minus, minus, plus]);
    assert_eq!(got("max"), [plus, plus, minus, plus]);
}

/// Sixteen-bit formats, by the exact result in f64 rounded once.
fn check16(template: &str, brain: bool, operands: usize, expected: fn(&[f64]) -> f64) {
    let mut random = Random(99);
    let column =
        |random: &mut Random| -> Vec<u64> { (0..COUNT).map(|_| random.next() & 0xffff).collect() };
    let sources: Vec<(u32, Vec<u64>)> = (0..operands).map(|_| (16, column(&mut random))).collect();
    let got = evaluate(template, 16, &sources);
    for row in 0..COUNT {
        let value = |bits: u64| {
            if brain {
                half::bf16::from_bits(bits as u16).to_f64()
            } else {
                half::f16::from_bits(bits as u16).to_f64()
            }
        };
        let inputs: Vec<f64> = sources.iter().map(|(_, c)| value(c[row])).collect();
        let exact = expected(&inputs);
        let want = if exact.is_nan() {
            0x7fff
        } else if brain {
            half::bf16::from_f64(exact).to_bits()
        } else {
            half::f16::from_f64(exact).to_bits()
        };
        assert_eq!(got[row] as u16, want, "{template} on {inputs:?}, exact {exact:e}");
    }
}

#[test]
fn half_precision_rounds_once() {
    for (name, brain) in [("f16", false), ("bf16", true)] {
        check16(&format!("add.rn.{name} {{d}}, {{a}}, {{b}};"), brain, 2, |v| v[0] + v[1]);
        check16(&format!("sub.rn.{name} {{d}}, {{a}}, {{b}};"), brain, 2, |v| v[0] - v[1]);
        check16(&format!("mul.rn.{name} {{d}}, {{a}}, {{b}};"), brain, 2, |v| v[0] * v[1]);
    }
}

/// `a * b + c` rounded once, by integers: of bf16 from 2^-31 to 2.
fn fused_bf16(a: u16, b: u16, c: u16) -> u16 {
    // In units of 2^-38.
    let units = |bits: u16| (half::bf16::from_bits(bits).to_f64() * 2f64.powi(38)) as i128;
    let sum = units(a) * units(b) + (units(c) << 38);
    let magnitude = sum.unsigned_abs();
    let shift = (128 - magnitude.leading_zeros()).saturating_sub(8);
    let (kept, rest, half) = (magnitude >> shift, magnitude & ((1 << shift) - 1), 1 << shift >> 1);
    let up = shift > 0 && (rest > half || rest == half && kept & 1 == 1);
    let rounded = (kept + u128::from(up)) as f64 * 2f64.powi(shift as i32 - 76);
    half::bf16::from_f64(if sum < 0 { -rounded } else { rounded }).to_bits()
}

#[test]
fn pairs_are_two_values() {
    let column = |seed: u64| -> Vec<u64> {
        let mut random = Random(seed);
        (0..COUNT).map(|_| random.next() & 0x8fff_8fff | 0x3000_3000).collect()
    };
    let sources = [(32, column(1)), (32, column(2)), (32, column(3))];
    let got = evaluate("fma.rn.bf16x2 {d}, {a}, {b}, {c};", 32, &sources);
    let half = evaluate("add.rn.f16x2 {d}, {a}, {b};", 32, &sources);
    for row in 0..COUNT {
        for shift in [0, 16] {
            let part = |source: usize| (sources[source].1[row] >> shift) as u16;
            assert_eq!((got[row] >> shift) as u16, fused_bf16(part(0), part(1), part(2)));
            let value = |source| half::f16::from_bits(part(source)).to_f64();
            assert_eq!((half[row] >> shift) as u16, half::f16::from_f64(value(0) + value(1)).to_bits());
        }
    }
}

/// The value of f32 nearest to an exact one on a side of it: `towards` says which.
fn rounded(exact: f64, low: bool, high: bool) -> f32 {
    let nearest = exact as f32;
    match f64::from(nearest).partial_cmp(&exact) {
        Some(std::cmp::Ordering::Greater) if low => nearest.next_down(),
        Some(std::cmp::Ordering::Less) if high => nearest.next_up(),
        _ => nearest,
    }
}

/// Numbers whose sums and products are exact in f64.
fn near(seed: u64) -> Vec<u64> {
    let mut random = Random(seed | 1);
    let mut one = || {
        let (bits, scale) = (random.next() as i32 >> 8, random.next() % 20);
        u64::from((bits as f32 * 0.5f32.powi(scale as i32)).to_bits())
    };
    (0..COUNT).map(|_| one()).collect()
}

#[test]
fn arithmetic_rounds_to_a_side() {
    let sources = [(32, near(1)), (32, near(2)), (32, near(3))];
    type Exact = fn(f64, f64, f64) -> f64;
    let cases: [(&str, Exact); 4] = [
        ("add", |a, b, _| a + b),
        ("sub", |a, b, _| a - b),
        ("mul", |a, b, _| a * b),
        ("fma", |a, b, c| a.mul_add(b, c)),
    ];
    for (name, exact) in cases {
        let third = if name == "fma" { ", {c}" } else { "" };
        for mode in ["rz", "rm", "rp"] {
            let got = evaluate(&format!("{name}.{mode}.f32 {{d}}, {{a}}, {{b}}{third};"), 32, &sources);
            for (row, &got) in got.iter().enumerate() {
                let [a, b, c] = [0, 1, 2].map(|i| f64::from(f32::from_bits(sources[i].1[row] as u32)));
                let exact = exact(a, b, c);
                let (low, high) = match mode {
                    "rz" => (exact > 0.0, exact < 0.0),
                    mode => (mode == "rm", mode == "rp"),
                };
                let want = rounded(exact, low, high);
                assert_eq!(f32::from_bits(got as u32), want, "{name}.{mode} {a:e} {b:e} {c:e}");
            }
        }
    }
}

#[test]
fn rounding_to_a_side_at_the_edges() {
    let (least, most) = (1u64, u64::from(f32::MAX.to_bits()));
    let minus = 1u64 << 31;
    let one = u64::from(1f32.to_bits());
    let tiny = u64::from(f32::MIN_POSITIVE.to_bits());
    let cases = [
        // A sum of which f64 keeps no trace.
        ("add.rp.f32", one, least, one + 1),
        ("add.rm.f32", one, least | minus, one - 1),
        ("add.rz.f32", one, least | minus, one - 1),
        ("add.rz.f32", one, least, one),
        ("add.rm.f32", one, one | minus, minus),
        ("add.rp.f32", one, one | minus, 0),
        ("sub.rm.f32", 0, 0, minus),
        ("add.rm.f32", 0, 0, 0),
        ("add.rz.f32", most, most, most),
        ("add.rp.f32", most | minus, most | minus, most | minus),
        ("add.rm.f32", most | minus, most | minus, 0xff80_0000),
        ("mul.rp.f32", least, least, least),
        ("mul.rm.f32", least, least, 0),
        ("mul.rm.f32", least, least | minus, least | minus),
        ("mul.rp.ftz.f32", tiny, u64::from(0.5f32.to_bits()), 0),
        ("add.rz.sat.f32", one, one, one),
        ("mul.rz.f32", 0x7f80_0000, 0, 0x7fff_ffff),
    ];
    for (name, a, b, want) in cases {
        let got = evaluate(&format!("{name} {{d}}, {{a}}, {{b}};"), 32, &[(32, vec![a]), (32, vec![b])]);
        assert_eq!(got[0], want, "{name} {a:#x} {b:#x}");
    }
}

#[test]
fn extremes_of_magnitudes_have_the_sign_of_both() {
    let value = |x: f32| u64::from(x.to_bits());
    let cases = [(1.0, -2.0), (-1.0, -2.0), (3.0, 0.5), (-0.0, 4.0), (f32::NAN, -2.0), (-2.0, f32::NAN)];
    let sources = [
        (32, cases.iter().map(|case| value(case.0)).collect()),
        (32, cases.iter().map(|case| value(case.1)).collect()),
    ];
    let run = |name: &str| -> Vec<f32> {
        let got = evaluate(&format!("{name}.xorsign.abs.f32 {{d}}, {{a}}, {{b}};"), 32, &sources);
        got.into_iter().map(|bits| f32::from_bits(bits as u32)).collect()
    };
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&run("min")[..4]), bits(&[-1.0, 1.0, 0.5, -0.0]));
    assert_eq!(bits(&run("max")[..4]), bits(&[-2.0, 2.0, 3.0, -4.0]));
    assert!(run("max")[4..].iter().all(|x| x.abs() == 2.0));
    assert!(run("max.NaN")[4..].iter().all(|x| x.is_nan()));
    let half = |a: u64, b: u64| {
        evaluate("min.xorsign.abs.f16 {d}, {a}, {b};", 16, &[(16, vec![a]), (16, vec![b])])[0]
    };
    assert_eq!(half(0xbc00, 0x4000), 0xbc00);
}

#[test]
fn f16_flushes_if_told() {
    // 2^-15 and 1.5 times that, both subnormal, beside 1 and 2^-14, the least that is not.
    let pair = |high: u64, low: u64| high << 16 | low;
    let sources = [
        (32, vec![pair(0x0200, 0x3c00), pair(0x8300, 0x0400)]),
        (32, vec![pair(0x3c00, 0x0200), pair(0x3c00, 0x3800)]),
        (32, vec![pair(0x0001, 0x3c00), pair(0x8001, 0x0000)]),
    ];
    let plain = evaluate("fma.rn.f16x2 {d}, {a}, {b}, {c};", 32, &sources);
    let flushed = evaluate("fma.rn.ftz.f16x2 {d}, {a}, {b}, {c};", 32, &sources);
    assert_eq!(plain, [pair(0x0201, 0x3c00), pair(0x8301, 0x0200)]);
    assert_eq!(flushed, [pair(0, 0x3c00), pair(0x8000, 0)]);
    let sum = evaluate("add.ftz.f16 {d}, {a}, {b};", 16, &[(16, vec![0x8200]), (16, vec![0x8000])]);
    assert_eq!(sum, [0x8000]);
}

/// The value on the required side is the nearest one, or its neighbour: whichever lies there, exactly.
#[test]
fn reciprocals_and_roots_round_to_one_side() {
    let mut random = common::Random(11);
    let edges =
        [0.0f32, -0.0, 1.0, -3.0, f32::MAX, f32::MIN_POSITIVE, 1e-40, f32::INFINITY, 4.0, 2.0, -0.5];
    let bits: Vec<u64> = edges
        .iter()
        .map(|value| u64::from(value.to_bits()))
        .chain((0..2000).map(|_| random.next() >> 32))
        .collect();
    for (opcode, is_root) in [("rcp", false), ("sqrt", true)] {
        for (side, below, above) in [("rz", true, true), ("rm", true, false), ("rp", false, true)] {
            let got = common::evaluate(
                &format!("{opcode}.{side}.f32 {{d}}, {{a}};"),
                32,
                &[(32, bits.clone())],
            );
            for (&bits, &got) in bits.iter().zip(&got) {
                let (a, got) = (f32::from_bits(bits as u32), f32::from_bits(got as u32));
                if a == 0.0 || !a.is_finite() || is_root && a < 0.0 {
                    let want = if is_root { a.sqrt() } else { 1.0 / a };
                    assert!(
                        got == want || got.is_nan() && want.is_nan(),
                        "{opcode}.{side} {a:e}: {got:e}"
                    );
                    continue;
                }
                // How a value compares with the exact one.
                let beyond = |value: f32| match is_root {
                    true => f64::from(value) * f64::from(value) - f64::from(a),
                    false => (f64::from(value) * f64::from(a) - 1.0) * f64::from(a.signum()),
                };
                let towards_zero_from_above = side == "rz" && got < 0.0;
                let (may_be_below, may_be_above) = match side {
                    "rz" if towards_zero_from_above => (false, true),
                    "rz" => (true, false),
                    _ => (below, above),
                };
                assert!(beyond(got) <= 0.0 || may_be_above, "{opcode}.{side} {a:e}: {got:e}");
                assert!(beyond(got) >= 0.0 || may_be_below, "{opcode}.{side} {a:e}: {got:e}");
                let next = if beyond(got) < 0.0 { got.next_up() } else { got.next_down() };
                let passes =
                    beyond(got) == 0.0 || !next.is_finite() || beyond(next) * beyond(got) <= 0.0;
                assert!(passes, "{opcode}.{side} {a:e}: {got:e}");
            }
        }
    }
}
