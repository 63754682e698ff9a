//! Integer instructions against plain Rust.

mod common;
use common::{Random, evaluate};

/// Edge values and random ones, cut to a width.
fn values(bits: u32, count: usize, seed: u64) -> Vec<u64> {
    let mask = if bits == 64 { !0 } else { (1u64 << bits) - 1 };
    let top = 1u64 << (bits - 1);
    let edges =
        [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 255, top - 1, top, top + 1, mask, mask - 1, 0x00ff_00ff];
    let mut random = Random(seed | 1);
    (0..count)
        .map(|_| {
            let pick = random.next();
            let value = random.next() >> (random.next() % 64);
            if pick.is_multiple_of(3) { edges[(pick >> 8) as usize % edges.len()] } else { value }
        })
        .map(|value| value & mask)
        .collect()
}

const COUNT: usize = 2048;

fn check(template: &str, result: u32, widths: &[u32], expected: impl Fn(&[u64]) -> u64) {
    let sources: Vec<(u32, Vec<u64>)> =
        widths.iter().enumerate().map(|(i, &w)| (w, values(w, COUNT, 77 + 13 * i as u64))).collect();
    let got = evaluate(template, result, &sources);
    let mask = if result == 64 { !0 } else { (1u64 << result) - 1 };
    for row in 0..COUNT {
        let inputs: Vec<u64> = sources.iter().map(|(_, column)| column[row]).collect();
        let want = expected(&inputs) & mask;
        assert_eq!(got[row] & mask, want, "{template} on {inputs:x?}: {:#x} != {want:#x}", got[row]);
    }
}

fn signed(value: u64, bits: u32) -> i64 {
    (value << (64 - bits)) as i64 >> (64 - bits)
}

#[test]
fn sums_products_and_logic_of_every_width() {
    for w in [16u32, 32, 64] {
        let two = [w, w];
        check(&format!("add.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0].wrapping_add(v[1]));
        check(&format!("add.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0].wrapping_add(v[1]));
        check(&format!("sub.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0].wrapping_sub(v[1]));
        check(&format!("mul.lo.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0].wrapping_mul(v[1]));
        check(&format!("mul.hi.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            ((u128::from(v[0]) * u128::from(v[1])) >> w) as u64
        });
        check(&format!("mul.hi.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            ((i128::from(signed(v[0], w)) * i128::from(signed(v[1], w))) >> w) as u64
        });
        check(&format!("mad.lo.u{w} {{d}}, {{a}}, {{b}}, {{c}};"), w, &[w, w, w], |v| {
            v[0].wrapping_mul(v[1]).wrapping_add(v[2])
        });
        check(&format!("and.b{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0] & v[1]);
        check(&format!("or.b{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0] | v[1]);
        check(&format!("xor.b{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0] ^ v[1]);
        check(&format!("not.b{w} {{d}}, {{a}};"), w, &[w], |v| !v[0]);
        check(&format!("cnot.b{w} {{d}}, {{a}};"), w, &[w], |v| u64::from(v[0] == 0));
        check(&format!("neg.s{w} {{d}}, {{a}};"), w, &[w], |v| v[0].wrapping_neg());
        check(&format!("abs.s{w} {{d}}, {{a}};"), w, &[w], |v| signed(v[0], w).wrapping_abs() as u64);
        check(&format!("min.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            signed(v[0], w).min(signed(v[1], w)) as u64
        });
        check(&format!("max.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            signed(v[0], w).max(signed(v[1], w)) as u64
        });
        check(&format!("min.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0].min(v[1]));
        check(&format!("max.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| v[0].max(v[1]));
    }
}

#[test]
fn immediates_are_operands_like_any_other() {
    check("add.s32 {d}, {a}, -5;", 32, &[32], |v| v[0].wrapping_sub(5));
    check("and.b64 {d}, {a}, 0xFF00;", 64, &[64], |v| v[0] & 0xff00);
    check("sub.s16 {d}, 7, {a};", 16, &[16], |v| 7u64.wrapping_sub(v[0]));
    check("mad.lo.s32 {d}, {a}, 12, 0x10U;", 32, &[32], |v| v[0].wrapping_mul(12).wrapping_add(16));
}

#[test]
fn divisions_follow_the_hardware_by_zero_and_on_overflow() {
    for w in [16u32, 32, 64] {
        let divide = |a: i128, b: i128, none: i128| if b == 0 { none } else { a / b } as u64;
        let two = [w, w];
        check(&format!("div.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            divide(v[0].into(), v[1].into(), -1)
        });
        check(&format!("div.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            divide(signed(v[0], w).into(), signed(v[1], w).into(), -1)
        });
        check(&format!("rem.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            v[0].checked_rem(v[1]).unwrap_or(!0)
        });
        check(&format!("rem.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            let (a, b) = (i128::from(signed(v[0], w)), i128::from(signed(v[1], w)));
            if b == 0 { !0 } else { (a % b) as u64 }
        });
    }
}

#[test]
fn wide_products() {
    for w in [16u32, 32] {
        let unsigned = |v: &[u64]| v[0] * v[1];
        let product = |v: &[u64]| (signed(v[0], w) * signed(v[1], w)) as u64;
        check(&format!("mul.wide.u{w} {{d}}, {{a}}, {{b}};"), 2 * w, &[w, w], unsigned);
        check(&format!("mul.wide.s{w} {{d}}, {{a}}, {{b}};"), 2 * w, &[w, w], product);
        let template = format!("mad.wide.u{w} {{d}}, {{a}}, {{b}}, {{c}};");
        check(&template, 2 * w, &[w, w, 2 * w], |v| unsigned(v).wrapping_add(v[2]));
        let template = format!("mad.wide.s{w} {{d}}, {{a}}, {{b}}, {{c}};");
        check(&template, 2 * w, &[w, w, 2 * w], |v| product(v).wrapping_add(v[2]));
    }
    check("mad.hi.u32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| ((v[0] * v[1]) >> 32).wrapping_add(v[2]));
    check("mad.hi.s32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        ((signed(v[0], 32) * signed(v[1], 32)) >> 32).wrapping_add(v[2] as i64) as u64
    });
    check("mad.hi.sat.s32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        let high = ((signed(v[0], 32) * signed(v[1], 32)) >> 32) as i32;
        high.saturating_add(v[2] as i32) as u64
    });
    check("mad24.hi.sat.s32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        let high = (signed(v[0] & 0xff_ffff, 24) * signed(v[1] & 0xff_ffff, 24)) >> 16;
        (high as i32).saturating_add(v[2] as i32) as u64
    });
    check("mul24.lo.u32 {d}, {a}, {b};", 32, &[32; 2], |v| (v[0] & 0xff_ffff) * (v[1] & 0xff_ffff));
    check("mul24.lo.s32 {d}, {a}, {b};", 32, &[32; 2], |v| {
        signed(v[0] & 0xff_ffff, 24).wrapping_mul(signed(v[1] & 0xff_ffff, 24)) as u64
    });
}

#[test]
fn shifts_clamp_their_amount() {
    for w in [16u32, 32, 64] {
        let amount = |v: &[u64]| v[1].min(u64::from(w)) as u32;
        let two = [w, 32];
        check(&format!("shl.b{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            v[0].checked_shl(amount(v)).unwrap_or(0)
        });
        check(&format!("shr.u{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            v[0].checked_shr(amount(v)).unwrap_or(0)
        });
        check(&format!("shr.b{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            v[0].checked_shr(amount(v)).unwrap_or(0)
        });
        check(&format!("shr.s{w} {{d}}, {{a}}, {{b}};"), w, &two, |v| {
            (signed(v[0], w) >> amount(v).min(63)) as u64
        });
    }
    let pair = |v: &[u64]| v[1] << 32 | v[0];
    check("shf.l.wrap.b32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| pair(v) << (v[2] & 31) >> 32);
    check("shf.l.clamp.b32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| pair(v) << v[2].min(32) >> 32);
    check("shf.r.wrap.b32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| pair(v) >> (v[2] & 31));
    check("shf.r.clamp.b32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| pair(v) >> v[2].min(32));
}

#[test]
fn counts_and_searches() {
    for w in [32u32, 64] {
        check(&format!("popc.b{w} {{d}}, {{a}};"), 32, &[w], |v| u64::from(v[0].count_ones()));
        check(&format!("clz.b{w} {{d}}, {{a}};"), 32, &[w], |v| {
            u64::from(v[0].leading_zeros()) - u64::from(64 - w)
        });
        check(&format!("brev.b{w} {{d}}, {{a}};"), w, &[w], |v| v[0].reverse_bits() >> (64 - w));
        check(&format!("bfind.u{w} {{d}}, {{a}};"), 32, &[w], |v| {
            v[0].checked_ilog2().map_or(!0, u64::from)
        });
        check(&format!("bfind.s{w} {{d}}, {{a}};"), 32, &[w], |v| {
            let value = signed(v[0], w);
            let magnitude = if value < 0 { !value } else { value } as u64;
            magnitude.checked_ilog2().map_or(!0, u64::from)
        });
    }
}

/// The definition of the PTX manual, bit by bit.
fn field_extract(a: u64, position: u64, length: u64, bits: u64, sign_extend: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let top = bits - 1;
    let sign = sign_extend && length != 0 && a >> (position + length - 1).min(top) & 1 != 0;
    (0..bits).fold(0, |value, bit| {
        let inside = bit < length && position + bit <= top;
        let one = if inside { a >> (position + bit) & 1 != 0 } else { sign };
        value | u64::from(one) << bit
    })
}

fn field_insert(a: u64, b: u64, position: u64, length: u64, bits: u64) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    (0..length)
        .take_while(|bit| position + bit < bits)
        .fold(b, |value, bit| value & !(1 << (position + bit)) | (a >> bit & 1) << (position + bit))
}

#[test]
fn bit_fields_follow_the_manual() {
    for w in [32u32, 64] {
        let bits = u64::from(w);
        check(&format!("bfe.u{w} {{d}}, {{a}}, {{b}}, {{c}};"), w, &[w, 32, 32], |v| {
            field_extract(v[0], v[1], v[2], bits, false)
        });
        check(&format!("bfe.s{w} {{d}}, {{a}}, {{b}}, {{c}};"), w, &[w, 32, 32], |v| {
            field_extract(v[0], v[1], v[2], bits, true)
        });
        check(&format!("bfi.b{w} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};"), w, &[w, w, 32, 32], |v| {
            field_insert(v[0], v[1], v[2], v[3], bits)
        });
    }
}

#[test]
fn permutation_logic_and_dot_products() {
    check("prmt.b32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        let bytes = [v[0].to_le_bytes(), v[1].to_le_bytes()];
        (0..4).fold(0, |value, position| {
            let selector = v[2] >> (4 * position);
            let byte = bytes[(selector >> 2 & 1) as usize][(selector & 3) as usize];
            let byte = if selector & 8 != 0 { if byte >= 128 { 255 } else { 0 } } else { byte };
            value | u64::from(byte) << (8 * position)
        })
    });
    for table in [0u64, 0x96, 0xe8, 0xca, 0xff, 0x80, 0x01] {
        check(&format!("lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};"), 32, &[32; 3], |v| {
            (0..32).fold(0, |value, bit| {
                let entry = (v[0] >> bit & 1) << 2 | (v[1] >> bit & 1) << 1 | v[2] >> bit & 1;
                value | (table >> entry & 1) << bit
            })
        });
    }
    check("sad.u32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| v[0].abs_diff(v[1]) + v[2]);
    check("sad.s32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        signed(v[0], 32).abs_diff(signed(v[1], 32)) + v[2]
    });
    check("dp4a.s32.s32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        (0..4).fold(v[2], |sum, byte| {
            let part = |value: u64| signed(value >> (8 * byte) & 0xff, 8);
            sum.wrapping_add((part(v[0]) * part(v[1])) as u64)
        })
    });
    check("dp4a.u32.u32 {d}, {a}, {b}, {c};", 32, &[32; 3], |v| {
        (0..4).fold(v[2], |sum, byte| sum + (v[0] >> (8 * byte) & 0xff) * (v[1] >> (8 * byte) & 0xff))
    });
    check("add.sat.s32 {d}, {a}, {b};", 32, &[32; 2], |v| {
        (v[0] as i32).saturating_add(v[1] as i32) as u64
    });
    check("sub.sat.s32 {d}, {a}, {b};", 32, &[32; 2], |v| {
        (v[0] as i32).saturating_sub(v[1] as i32) as u64
    });
}

#[test]
fn dot_products_of_mixed_signs() {
    let part = |value: u64, bits: u32, at: u32, ty: &str| {
        let field = value >> (bits * at) & ((1 << bits) - 1);
        if ty == "s32" { signed(field, bits) } else { field as i64 }
    };
    for (a, b) in [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")] {
        check(&format!("dp4a.{a}.{b} {{d}}, {{a}}, {{b}}, {{c}};"), 32, &[32; 3], |v| {
            let product = |at| part(v[0], 8, at, a) * part(v[1], 8, at, b);
            v[2].wrapping_add((0..4).map(product).sum::<i64>() as u64)
        });
        for (half, first) in [("lo", 0), ("hi", 2)] {
            check(&format!("dp2a.{half}.{a}.{b} {{d}}, {{a}}, {{b}}, {{c}};"), 32, &[32; 3], |v| {
                let product = |at| part(v[0], 16, at, a) * part(v[1], 8, first + at, b);
                v[2].wrapping_add((0..2).map(product).sum::<i64>() as u64)
            });
        }
    }
}

#[test]
fn products_of_24_bits() {
    let upper = |product: i128| ((product as u64) >> 16) & 0xffff_ffff;
    let number = |value: u64, is_signed: bool| {
        i128::from(if is_signed { signed(value & 0xff_ffff, 24) } else { (value & 0xff_ffff) as i64 })
    };
    for (ty, is_signed) in [("u32", false), ("s32", true)] {
        let product = |v: &[u64]| number(v[0], is_signed) * number(v[1], is_signed);
        check(&format!("mul24.lo.{ty} {{d}}, {{a}}, {{b}};"), 32, &[32; 2], |v| product(v) as u64);
        check(&format!("mul24.hi.{ty} {{d}}, {{a}}, {{b}};"), 32, &[32; 2], |v| upper(product(v)));
        check(&format!("mad24.lo.{ty} {{d}}, {{a}}, {{b}}, {{c}};"), 32, &[32; 3], |v| {
            (product(v) as u64).wrapping_add(v[2])
        });
        check(&format!("mad24.hi.{ty} {{d}}, {{a}}, {{b}}, {{c}};"), 32, &[32; 3], |v| {
            upper(product(v)) + v[2]
        });
    }
}

/// As the PTX manual has them, step by step.
#[test]
fn masks_and_extensions() {
    for (mode, clamps) in [("wrap", false), ("clamp", true)] {
        check(&format!("bmsk.{mode}.b32 {{d}}, {{a}}, {{b}};"), 32, &[32; 2], |v| {
            let (first, count) = (v[0] & 31, v[1] & 31);
            let first_is_there = !(clamps && v[0] >= 32);
            let mask = if first_is_there { 0xffff_ffffu64 << first } else { 0 };
            let is_cut = first + count < 32 && first_is_there && !(clamps && v[1] >= 32);
            let beyond = if is_cut { 0xffff_ffffu64 << (first + count) } else { 0 };
            let beyond = if count == 0 && is_cut { !0 } else { beyond };
            mask & !beyond
        });
        for (ty, is_signed) in [("u32", false), ("s32", true)] {
            check(&format!("szext.{mode}.{ty} {{d}}, {{a}}, {{b}};"), 32, &[32; 2], |v| {
                let (bits, all) = (v[1] as u32 & 31, clamps && v[1] >= 32);
                match (all, bits, is_signed) {
                    (true, ..) => v[0],
                    (_, 0, _) => 0,
                    (_, bits, true) => signed(v[0] & ((1 << bits) - 1), bits) as u64,
                    (_, bits, false) => v[0] & ((1 << bits) - 1),
                }
            });
        }
    }
    for w in [32u32, 64] {
        check(&format!("bfind.shiftamt.u{w} {{d}}, {{a}};"), 32, &[w], |v| {
            (0..u64::from(w)).find(|&bit| v[0] << bit >> (w - 1) & 1 != 0).unwrap_or(!0)
        });
        check(&format!("bfind.shiftamt.s{w} {{d}}, {{a}};"), 32, &[w], |v| {
            let sign = v[0] >> (w - 1);
            (0..u64::from(w)).find(|&bit| v[0] << bit >> (w - 1) & 1 != sign).unwrap_or(!0)
        });
    }
}

#[test]
fn halves_and_least_zeros() {
    let halves = |v: &[u64], f: &dyn Fn(u64, u64) -> u64| {
        let half = |at: u32| f(v[0] >> at & 0xffff, v[1] >> at & 0xffff) & 0xffff;
        half(0) | half(16) << 16
    };
    let by_sign = |f: fn(i64, i64) -> i64| move |a, b| f(signed(a, 16), signed(b, 16)) as u64;
    let check_halves = |opcode: &str, f: &dyn Fn(u64, u64) -> u64| {
        check(&format!("{opcode} {{d}}, {{a}}, {{b}};"), 32, &[32; 2], |v| halves(v, f));
    };
    check_halves("add.u16x2", &|a, b| a + b);
    check_halves("add.s16x2", &|a, b| a + b);
    check_halves("min.u16x2", &|a, b| a.min(b));
    check_halves("max.u16x2", &|a, b| a.max(b));
    check_halves("min.s16x2", &by_sign(i64::min));
    check_halves("max.s16x2", &by_sign(i64::max));
    check_halves("min.relu.s16x2", &by_sign(|a, b| a.min(b).max(0)));
    check_halves("max.relu.s16x2", &by_sign(|a, b| a.max(b).max(0)));
    check("min.relu.s32 {d}, {a}, {b};", 32, &[32; 2], |v| {
        signed(v[0], 32).min(signed(v[1], 32)).max(0) as u64
    });
    check("max.relu.s32 {d}, {a}, {b};", 32, &[32; 2], |v| {
        signed(v[0], 32).max(signed(v[1], 32)).max(0) as u64
    });
}

/// The bytes of `b:a`, 0 the lowest, from the highest of the result to the lowest.
#[test]
fn permutations_by_mode() {
    let modes = [
        ("f4e", [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
        ("b4e", [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
        ("rc8", [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]),
        ("ecl", [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
        ("rc16", [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
    ];
    for (mode, table) in modes {
        check(&format!("prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};"), 32, &[32; 3], |v| {
            let bytes = v[1] << 32 | v[0];
            table[v[2] as usize & 3].iter().fold(0, |out, byte| out << 8 | bytes >> (8 * byte) & 0xff)
        });
    }
}

#[test]
fn selections_by_sign() {
    for (ty, w) in [("b16", 16u32), ("u16", 16), ("s32", 32), ("f32", 32), ("b64", 64), ("f64", 64)] {
        check(&format!("slct.{ty}.s32 {{d}}, {{a}}, {{b}}, {{c}};"), w, &[w, w, 32], |v| {
            if v[2] >> 31 == 0 { v[0] } else { v[1] }
        });
        for (ftz, least) in [("", 1), (".ftz", 0x80_0000)] {
            check(&format!("slct{ftz}.{ty}.f32 {{d}}, {{a}}, {{b}}, {{c}};"), w, &[w, w, 32], |v| {
                let (is_negative, magnitude) = (v[2] >> 31 != 0, v[2] & 0x7fff_ffff);
                let is_nan = magnitude > 0x7f80_0000;
                let is_below = is_negative && magnitude >= least;
                if is_nan || is_below { v[1] } else { v[0] }
            });
        }
    }
}

/// Numbers of four parts, low part first, as wide integers are computed part by part.
fn chain(part: &str, op: &str, carry: &str) -> String {
    let (parts, d) = if part == "u32" { (4, "%r") } else { (2, "%d") };
    let mut text = String::new();
    for index in 0..parts {
        let name = if index == 0 { format!("{op}.cc") } else { format!("{carry}.cc") };
        let name = if index == parts - 1 { name.replace("c.cc", "c") } else { name };
        text += &format!("{name}.{part} {d}{}, {d}{index}, {d}{};\n", 20 + index, 10 + index);
    }
    text
}

#[test]
fn carries_go_from_part_to_part() {
    let numbers: Vec<u128> = {
        let mut random = Random(5);
        let mut next = || u128::from(random.next()) << 64 | u128::from(random.next());
        let edges = [0, 1, u128::MAX, u128::MAX - 1, 1 << 32, 1 << 64, (1 << 64) - 1, 1 << 127];
        edges.into_iter().chain((0..8).map(|_| next())).collect()
    };
    for (index, &x) in numbers.iter().enumerate() {
        let y = numbers[(index * 7 + 3) % numbers.len()];
        let words = |value: u128| (0..4).map(move |word| (value >> (32 * word)) as u32);
        let mut set = String::new();
        for (word, (a, b)) in words(x).zip(words(y)).enumerate() {
            set += &format!("mov.b32 %r{word}, {a}; mov.b32 %r{}, {b};\n", 10 + word);
        }
        set += "mov.b64 %d0, {%r0, %r1}; mov.b64 %d1, {%r2, %r3}; mov.b64 %d10, {%r10, %r11}; mov.b64 %d11, {%r12, %r13};\n";
        let store = "st.global.v4.b32 [%data], {%r20, %r21, %r22, %r23};";
        let unpack = "mov.b64 {%r20, %r21}, %d20; mov.b64 {%r22, %r23}, %d21;";
        for (op, carry, want) in [("add", "addc", x.wrapping_add(y)), ("sub", "subc", x.wrapping_sub(y))]
        {
            for part in ["u32", "u64"] {
                let unpack = if part == "u64" { unpack } else { "" };
                let body = format!("{set} {} {unpack} {store}", chain(part, op, carry));
                let got = common::run_clean(&body, 32);
                assert_eq!(got[..4], words(want).collect::<Vec<_>>(), "{x:#x} {op} {y:#x} by {part}");
            }
        }
    }
}

#[test]
fn products_carry() {
    // 64-bit product of 32-bit parts plus a 64-bit number, then the carry out of it all.
    let body = "mov.b32 %r1, 0xfedcba98; mov.b32 %r2, 0x89abcdef; mov.b32 %r3, 0xfffffff0; mov.b32 %r4, 0xf0000000;
         mad.lo.cc.u32 %r5, %r1, %r2, %r3; madc.hi.cc.u32 %r6, %r1, %r2, %r4; addc.u32 %r7, 0, 0;
         mov.b32 %r8, -3; mad.lo.cc.s32 %r9, %r8, 5, 20; madc.hi.s32 %r10, %r8, 5, 0;
         mov.b64 %d1, -2; mad.lo.cc.u64 %d2, %d1, %d1, 0; madc.hi.u64 %d3, %d1, %d1, 7;
         st.global.v4.b32 [%data], {%r5, %r6, %r7, %r9}; st.global.b32 [%data+16], %r10;
         st.global.v2.b64 [%data+32], {%d2, %d3};";
    let got = common::run_clean(body, 32);
    let sum = 0xfedc_ba98u128 * 0x89ab_cdef + 0xf000_0000_ffff_fff0;
    assert_eq!(got[..3], [sum as u32, (sum >> 32) as u32, (sum >> 64) as u32]);
    assert_eq!((got[3], got[4]), (5, 0));
    let square = u128::from(u64::MAX - 1).pow(2).wrapping_add(7 << 64);
    let wide = |at: usize| u64::from(got[at + 1]) << 32 | u64::from(got[at]);
    assert_eq!((wide(8), wide(10)), (square as u64, (square >> 64) as u64));
}

#[test]
fn a_carry_that_nothing_set_is_found() {
    let options = common::with_schedule(ptx_emulator::Schedule::Eager);
    let finding =
        common::only_finding("addc.u32 %r1, %tid, %tid; st.global.b32 [%mine], %r1;", 32, &options);
    assert_eq!(finding.kind, ptx_emulator::FindingKind::UninitialisedRegister);
}

/// The carry of a difference is that nothing was borrowed: compilers add it to something else, as in a division of
/// 128 bits.
#[test]
fn a_difference_carries_into_sums() {
    for (x, y) in [(5u32, 3u32), (3, 5), (7, 7), (0, 0), (u32::MAX, 0), (0, u32::MAX)] {
        let borrows = u32::from(x < y);
        let body = format!(
            "mov.b32 %r1, {x}; mov.b32 %r2, {y}; mov.b64 %d1, {x}; mov.b64 %d2, {y};
             sub.cc.u32 %r3, %r1, %r2; addc.u32 %r4, 0, 0; sub.cc.u64 %d3, %d1, %d2; addc.u32 %r5, 40, 2;
             add.cc.u32 %r6, %r1, %r2; subc.u32 %r7, 9, 2; add.cc.u64 %d3, %d1, %d2; subc.cc.u32 %r8, 9, 9;
             addc.u32 %r9, 0, 0; st.global.v4.b32 [%data], {{%r3, %r4, %r5, %r7}};
             st.global.v2.b32 [%data+16], {{%r8, %r9}};"
        );
        let carried = x.checked_add(y).is_none();
        let (less, more) = (7 - u32::from(!carried), 0u32.wrapping_sub(1));
        let want = [x.wrapping_sub(y), 1 - borrows, 43 - borrows, less, more, 0];
        assert_eq!(common::run_clean(&body, 32)[..6], want, "{x} {y}");
    }
}
