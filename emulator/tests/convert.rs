//! Conversions against plain Rust.

mod common;
use common::{Random, evaluate};

const COUNT: usize = 2048;
const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

fn random_bits(bits: u32, seed: u64) -> Vec<u64> {
    let mask = if bits == 64 { !0 } else { (1u64 << bits) - 1 };
    let mut random = Random(seed | 1);
    let edges = [0, 1, mask, mask >> 1, (mask >> 1) + 1, 127, 128, 255, 65535];
    (0..COUNT)
        .map(|_| match random.next() % 4 {
            0 => edges[random.next() as usize % edges.len()] & mask,
            1 => (random.next() & mask) >> (random.next() % u64::from(bits)),
            _ => random.next() & mask,
        })
        .collect()
}

/// The value of the low bits of a register.
fn value(raw: u64, bits: u32, signed: bool) -> i128 {
    let unused = 64 - bits;
    if signed {
        i128::from((raw << unused) as i64 >> unused)
    } else {
        i128::from(raw << unused >> unused)
    }
}

/// Registers that a type lives in: never narrower than 16 bits.
fn register(bits: u32) -> u32 {
    bits.max(16)
}

#[test]
fn integers_are_cut_and_extended() {
    for (from, from_bits, from_signed) in INTEGERS {
        for (to, to_bits, to_signed) in INTEGERS {
            for sat in ["", ".sat"] {
                let column = random_bits(register(from_bits), 7);
                let template = format!("cvt{sat}.{to}.{from} {{d}}, {{a}};");
                let got =
                    evaluate(&template, register(to_bits), &[(register(from_bits), column.clone())]);
                for row in 0..COUNT {
                    let x = value(column[row], from_bits, from_signed);
                    let (low, high) = if to_signed {
                        (-(1i128 << (to_bits - 1)), (1i128 << (to_bits - 1)) - 1)
                    } else {
                        (0, (1i128 << to_bits) - 1)
                    };
                    let x = if sat.is_empty() { x } else { x.clamp(low, high) };
                    // The result is extended from its type to its register.
                    let want = value(x as u64, to_bits, to_signed) as u64;
                    let mask = if to_bits >= 64 { !0 } else { (1 << register(to_bits)) - 1 };
                    assert_eq!(got[row] & mask, want & mask, "{template} of {:#x}", column[row]);
                }
            }
        }
    }
}

#[test]
fn registers_may_be_wider_than_the_types() {
    let column = random_bits(64, 3);
    let got = evaluate("cvt.s32.s8 {d}, {a};", 32, &[(32, column.clone())]);
    let wide = evaluate("cvt.u32.u16 {d}, {a};", 64, &[(64, column.clone())]);
    for row in 0..COUNT {
        assert_eq!(got[row] as i32, i32::from(column[row] as i8));
        assert_eq!(wide[row], u64::from(column[row] as u16));
    }
}

fn floats(seed: u64) -> Vec<u64> {
    let edges = [
        0f32,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -2.5,
        1e-40,
        3e9,
        -3e9,
        1e19,
        -1e20,
        f32::MAX,
        65504.0,
        65520.0,
    ];
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut random = Random(seed | 1);
    (0..COUNT)
        .map(|_| match random.next() % 5 {
            0 => edges[random.next() as usize % edges.len()],
            1 => special[random.next() as usize % 3],
            2 => f32::from_bits(random.next() as u32),
            3 => (random.next() as i32) as f32 / 256.0,
            _ => (random.next() as i16) as f32 / 64.0,
        })
        .map(|value| u64::from(value.to_bits()))
        .collect()
}

#[test]
fn floats_to_integers_round_and_clamp() {
    let column = floats(1);
    for (to, bits, signed) in INTEGERS {
        for (mode, round) in [
            ("rni", f64::round_ties_even as fn(f64) -> f64),
            ("rzi", f64::trunc),
            ("rmi", f64::floor),
            ("rpi", f64::ceil),
        ] {
            let template = format!("cvt.{mode}.{to}.f32 {{d}}, {{a}};");
            let got = evaluate(&template, register(bits), &[(32, column.clone())]);
            for row in 0..COUNT {
                let x = f64::from(f32::from_bits(column[row] as u32));
                let (low, high) = if signed {
                    (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
                } else {
                    (0, (1i128 << bits) - 1)
                };
                // NaN: 0, or of 64 bits the highest.
                let of_nan = if bits == 64 { 1 << 63 } else { 0 };
                let want = if x.is_nan() { of_nan } else { (round(x) as i128).clamp(low, high) };
                let mask = if bits == 64 { !0 } else { (1u64 << register(bits)) - 1 };
                assert_eq!(got[row] & mask, want as u64 & mask, "{template} of {x}");
            }
        }
    }
}

#[test]
fn nan_as_an_integer_depends_on_the_types() {
    let nan = [
        ("f16", 16, 0x7e00),
        ("bf16", 16, 0x7fc0),
        ("f32", 32, 0x7fc0_0000),
        ("f64", 64, 0x7ff8_0000_0000_0000),
    ];
    for (from, width, pattern) in nan {
        for (to, bits, signed) in INTEGERS {
            let only_highest = from == "f64" || bits == 64;
            let got = evaluate(
                &format!("cvt.rzi.{to}.{from} {{d}}, {{a}};"),
                64,
                &[(width, vec![pattern; 2])],
            );
            let want = if only_highest { 1u64 << (bits - 1) } else { 0 };
            let extended =
                if signed { (want << (64 - bits)) as i64 >> (64 - bits) } else { want as i64 };
            assert_eq!(got[0], extended as u64, "{to} {from}");
        }
    }
}

#[test]
fn integers_to_floats_round_to_nearest_or_as_told() {
    let column = random_bits(64, 5);
    let sources = [(64, column.clone())];
    let nearest = evaluate("cvt.rn.f32.s64 {d}, {a};", 32, &sources);
    let unsigned = evaluate("cvt.rn.f32.u64 {d}, {a};", 32, &sources);
    let double = evaluate("cvt.rn.f64.u64 {d}, {a};", 64, &sources);
    let down = evaluate("cvt.rm.f32.s64 {d}, {a};", 32, &sources);
    let up = evaluate("cvt.rp.f32.s64 {d}, {a};", 32, &sources);
    let zero = evaluate("cvt.rz.f32.s64 {d}, {a};", 32, &sources);
    let single = |bits: u64| f32::from_bits(bits as u32);
    for row in 0..COUNT {
        let x = column[row] as i64;
        assert_eq!(single(nearest[row]), x as f32);
        assert_eq!(single(unsigned[row]), column[row] as f32);
        assert_eq!(f64::from_bits(double[row]), column[row] as f64);
        let (low, high) = (single(down[row]), single(up[row]));
        assert!(low as i128 <= i128::from(x) && high as i128 >= i128::from(x), "{x}");
        assert!(low == high || low.next_up() == high, "{x}");
        assert_eq!(single(zero[row]), if x < 0 { high } else { low });
    }
    let small = random_bits(32, 6);
    let got = evaluate("cvt.rn.f32.u32 {d}, {a};", 32, &[(32, small.clone())]);
    let half = evaluate("cvt.rn.f16.s32 {d}, {a};", 16, &[(32, small.clone())]);
    for row in 0..COUNT {
        assert_eq!(single(got[row]), small[row] as u32 as f32);
        let want = half::f16::from_f64(f64::from(small[row] as i32));
        assert_eq!(half[row] as u16, want.to_bits());
    }
}

#[test]
fn floats_to_narrower_floats() {
    let column = floats(8);
    let sources = [(32, column.clone())];
    let brain = evaluate("cvt.rn.bf16.f32 {d}, {a};", 16, &sources);
    let half = evaluate("cvt.rn.f16.f32 {d}, {a};", 16, &sources);
    let cut = evaluate("cvt.rz.bf16.f32 {d}, {a};", 16, &sources);
    let relu = evaluate("cvt.rn.relu.bf16.f32 {d}, {a};", 16, &sources);
    for row in 0..COUNT {
        let x = f32::from_bits(column[row] as u32);
        if x.is_nan() {
            let all = [brain[row], half[row], cut[row], relu[row]];
            assert!(all.iter().all(|&bits| bits == 0x7fff), "{all:x?}");
            continue;
        }
        assert_eq!(brain[row] as u16, half::bf16::from_f32(x).to_bits());
        assert_eq!(half[row] as u16, half::f16::from_f32(x).to_bits());
        assert_eq!(cut[row] as u32, x.to_bits() >> 16, "{x:e}");
        let want = if x > 0.0 { brain[row] } else { 0 };
        assert_eq!(relu[row], want, "{x:e}");
    }
}

#[test]
fn pairs_put_the_first_source_high() {
    let (high, low) = (floats(20), floats(21));
    let sources = [(32, high.clone()), (32, low.clone())];
    let brain = evaluate("cvt.rn.bf16x2.f32 {d}, {a}, {b};", 32, &sources);
    let half = evaluate("cvt.rn.f16x2.f32 {d}, {a}, {b};", 32, &sources);
    let relu = evaluate("cvt.rn.relu.f16x2.f32 {d}, {a}, {b};", 32, &sources);
    for row in 0..COUNT {
        for (shift, column) in [(16, &high), (0, &low)] {
            let x = f32::from_bits(column[row] as u32);
            let nan = |bits: u16| if x.is_nan() { 0x7fff } else { bits };
            assert_eq!((brain[row] >> shift) as u16, nan(half::bf16::from_f32(x).to_bits()));
            assert_eq!((half[row] >> shift) as u16, nan(half::f16::from_f32(x).to_bits()));
            let positive = if x > 0.0 { half::f16::from_f32(x).to_bits() } else { 0 };
            assert_eq!((relu[row] >> shift) as u16, nan(positive));
        }
    }
}

#[test]
fn floats_to_wider_floats_are_exact() {
    let column: Vec<u64> = (0..=0xffff).collect();
    let sources = [(16, column)];
    let half = evaluate("cvt.f32.f16 {d}, {a};", 32, &sources);
    let brain = evaluate("cvt.f32.bf16 {d}, {a};", 32, &sources);
    let double = evaluate("cvt.f64.f16 {d}, {a};", 64, &sources);
    for bits in 0..=0xffffu16 {
        let row = usize::from(bits);
        assert_eq!(brain[row] as u32, u32::from(bits) << 16);
        let x = half::f16::from_bits(bits);
        let want = if x.is_nan() { 0x7fff_ffff } else { x.to_f32().to_bits() };
        assert_eq!(half[row] as u32, want);
        let got = f64::from_bits(double[row]);
        assert!(got == x.to_f64() || got.is_nan() && x.is_nan());
    }
}

#[test]
fn floats_round_to_integral_floats() {
    let column = floats(30);
    let sources = [(32, column.clone())];
    for (mode, round) in [
        ("rni", f32::round_ties_even as fn(f32) -> f32),
        ("rzi", f32::trunc),
        ("rmi", f32::floor),
        ("rpi", f32::ceil),
    ] {
        let got = evaluate(&format!("cvt.{mode}.f32.f32 {{d}}, {{a}};"), 32, &sources);
        for row in 0..COUNT {
            let x = f32::from_bits(column[row] as u32);
            let got = f32::from_bits(got[row] as u32);
            assert!(got.to_bits() == round(x).to_bits() || got.is_nan() && x.is_nan(), "{mode} {x}");
        }
    }
    let got = evaluate("cvt.sat.f32.f32 {d}, {a};", 32, &sources);
    for row in 0..COUNT {
        let x = f32::from_bits(column[row] as u32);
        assert_eq!(f32::from_bits(got[row] as u32), if x > 0.0 { x.min(1.0) } else { 0.0 });
    }
}

#[test]
fn f64_and_f32_convert_both_ways() {
    let mut random = Random(4);
    let column: Vec<u64> =
        (0..COUNT).map(|_| random.next() & 0x83ff_ffff_ffff_ffff | 0x3c00_0000_0000_0000).collect();
    let sources = [(64, column.clone())];
    let nearest = evaluate("cvt.rn.f32.f64 {d}, {a};", 32, &sources);
    let up = evaluate("cvt.rp.f32.f64 {d}, {a};", 32, &sources);
    let integers = evaluate("cvt.rzi.s64.f64 {d}, {a};", 64, &sources);
    for row in 0..COUNT {
        let x = f64::from_bits(column[row]);
        assert_eq!(f32::from_bits(nearest[row] as u32), x as f32);
        assert!(f64::from(f32::from_bits(up[row] as u32)) >= x);
        assert_eq!(integers[row] as i64, x as i64);
    }
    // The sign and the upper bits of a payload stay.
    let nan = vec![(64, vec![0xfff8_0000_2000_0000, 0x7ff0_0000_0000_0001, 0x7fff_ffff_ffff_ffff])];
    let got = evaluate("cvt.rn.f32.f64 {d}, {a};", 32, &nan);
    assert_eq!(got[..3], [0xffc0_0001, 0x7fc0_0000, 0x7fff_ffff]);
    let singles = floats(41);
    let got = evaluate("cvt.f64.f32 {d}, {a};", 64, &[(32, singles.clone())]);
    for row in 0..COUNT {
        let x = f64::from(f32::from_bits(singles[row] as u32));
        let got = f64::from_bits(got[row]);
        assert!(got == x || got.is_nan() && x.is_nan());
    }
}

#[test]
fn tf32_rounds_ties_away() {
    let mut column = floats(31);
    // Ties of either sign, and what overflows.
    column.extend([0x3f80_1000, 0xbf80_1000, 0x3f80_0fff, 0x7f7f_ffff, 0xff7f_f000, 1]);
    let got = evaluate("cvt.rna.tf32.f32 {d}, {a};", 32, &[(32, column.clone())]);
    for (&bits, got) in column.iter().zip(got) {
        let x = f32::from_bits(bits as u32);
        let magnitude = (x.to_bits() & 0x7fff_ffff) as u64;
        let want = match x.is_nan() {
            // Of a NaN what the type has room for, as on a GPU.
            true => bits & !0x1fff,
            false => (magnitude + 4096) & !0x1fff | bits & 1 << 31,
        };
        assert_eq!(got, want, "{x:e}");
    }
}

/// As the nearest of the two neighbours whose lower 13 bits are zeros, or the one that is nearer to zero.
#[test]
fn tf32_rounds_to_even_and_to_zero() {
    let mut random = Random(31);
    let mut column: Vec<u64> = (0..COUNT).map(|_| random.next() & 0xffff_ffff).collect();
    let edges = [
        0x1000u64,
        0x3000,
        0x0fff,
        0x1001,
        0x3f80_1000,
        0x3f80_3000,
        0x7f7f_ffff,
        0x7f80_0000,
        0xff80_0000,
    ];
    column[..edges.len()].copy_from_slice(&edges);
    for mode in ["rn", "rz"] {
        let got = evaluate(&format!("cvt.{mode}.tf32.f32 {{d}}, {{a}};"), 32, &[(32, column.clone())]);
        for (&value, &got) in column.iter().zip(&got) {
            let number = f32::from_bits(value as u32);
            if number.is_nan() {
                assert_eq!(got, 0x7fff_e000, "{mode} {value:#x}");
                continue;
            }
            let (below, rest) = (value & !0x1fff, value & 0x1fff);
            let up = mode == "rn" && (rest > 0x1000 || rest == 0x1000 && value & 0x2000 != 0);
            assert_eq!(got, if up { below + 0x2000 } else { below }, "{mode} {value:#x}");
        }
    }
}
