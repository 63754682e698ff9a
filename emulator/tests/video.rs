//! Video instructions against plain Rust, written down from what PTX says of them.

mod common;
use common::{EDGES_OF_PARTS, Random, evaluate};

const COUNT: usize = 512;

/// Bytes and halves at the edges of what they hold, and any.
fn column(seed: u64) -> Vec<u64> {
    let mut random = Random(seed | 1);
    let value = |_| match random.next() % 3 {
        0 => EDGES_OF_PARTS[(random.next() >> 8) as usize % EDGES_OF_PARTS.len()],
        1 => random.next() >> 58, // as an amount of a shift
        _ => random.next() >> 32,
    };
    (0..COUNT).map(value).collect()
}

/// An instruction of three sources of 32 bits, and the same in Rust.
fn check(template: &str, expected: impl Fn([u32; 3]) -> u32) {
    let columns = [column(7), column(9), column(11)];
    let used = 3 - usize::from(!template.contains("{c}"));
    let sources: Vec<(u32, Vec<u64>)> =
        columns[..used].iter().map(|column| (32, column.clone())).collect();
    for (row, got) in evaluate(template, 32, &sources).into_iter().enumerate() {
        let operands = [0, 1, 2].map(|index: usize| columns[index][row] as u32);
        assert_eq!(got as u32, expected(operands), "{template} {operands:x?}");
    }
}

const TYPES: [(&str, bool); 2] = [("u32", false), ("s32", true)];

/// The number in so many bits from one on.
fn number(value: u32, first: u32, bits: u32, signed: bool) -> i128 {
    let all = i128::from(value >> first) & ((1 << bits) - 1);
    if signed && all >> (bits - 1) != 0 { all - (1 << bits) } else { all }
}

fn clamped(value: i128, bits: u32, signed: bool) -> i128 {
    if signed {
        value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

/// Those bits of a register replaced.
fn merged(into: u32, value: i128, first: u32, bits: u32) -> u32 {
    let mask = (((1u64 << bits) - 1) as u32) << first;
    into & !mask | (value as u32) << first & mask
}

type Operation = (&'static str, fn(i128, i128) -> i128);

const OPERATIONS: [Operation; 5] = [
    ("vadd", |a, b| a + b),
    ("vsub", |a, b| a - b),
    ("vabsdiff", |a, b| (a - b).abs()),
    ("vmin", |a, b| a.min(b)),
    ("vmax", |a, b| a.max(b)),
];

/// What is behind an operand, where the part begins, and its bits.
const PARTS: [(&str, u32, u32); 7] = [
    ("", 0, 32),
    (".b0", 0, 8),
    (".b1", 8, 8),
    (".b2", 16, 8),
    (".b3", 24, 8),
    (".h0", 0, 16),
    (".h1", 16, 16),
];

#[test]
fn a_number_of_each_source() {
    for ((name, f), place) in OPERATIONS.into_iter().zip(0..) {
        for (d, d_signed) in TYPES {
            for (a, a_signed) in TYPES {
                for (b, b_signed) in TYPES {
                    let opcode = format!("{name}.{d}.{a}.{b}");
                    for at in 0..7 {
                        let (x_part, x_first, x_bits) = PARTS[at];
                        let (y_part, y_first, y_bits) = PARTS[(at + place) % 7];
                        let result = |x: u32, y: u32| {
                            let x = number(x, x_first, x_bits, a_signed);
                            f(x, number(y, y_first, y_bits, b_signed))
                        };
                        let sources = format!("{{a}}{x_part}, {{b}}{y_part}");
                        check(&format!("{opcode} {{d}}, {sources};"), |[x, y, _]| result(x, y) as u32);
                        check(&format!("{opcode}.sat {{d}}, {sources};"), |[x, y, _]| {
                            clamped(result(x, y), 32, d_signed) as u32
                        });
                        check(&format!("{opcode}.add {{d}}, {sources}, {{c}};"), |[x, y, c]| {
                            c.wrapping_add(result(x, y) as u32)
                        });
                        check(&format!("{opcode}.sat.min {{d}}, {sources}, {{c}};"), |[x, y, c]| {
                            clamped(result(x, y), 32, d_signed).min(number(c, 0, 32, d_signed)) as u32
                        });
                        check(&format!("{opcode}.max {{d}}, {sources}, {{c}};"), |[x, y, c]| {
                            result(x, y).max(number(c, 0, 32, d_signed)) as u32
                        });
                        let (d_part, d_first, d_bits) = PARTS[(at + 2 * place) % 6 + 1];
                        let to = format!("{{d}}{d_part}, {sources}, {{c}};");
                        check(&format!("{opcode} {to}"), |[x, y, c]| {
                            merged(c, result(x, y), d_first, d_bits)
                        });
                        check(&format!("{opcode}.sat {to}"), |[x, y, c]| {
                            merged(c, clamped(result(x, y), d_bits, d_signed), d_first, d_bits)
                        });
                    }
                }
            }
        }
    }
    check("vset.s32.u32.ge {d}.h1, {a}.b2, {b}.h0, {c};", |[x, y, c]| {
        let holds = number(x, 16, 8, true) >= number(y, 0, 16, false);
        merged(c, i128::from(holds), 16, 16)
    });
}

#[test]
fn numbers_by_lanes() {
    let average = |a: i128, b: i128| (a + b + i128::from(a + b >= 0)) >> 1;
    let operations = OPERATIONS.into_iter().chain([("vavrg", average as fn(i128, i128) -> i128)]);
    for (name, f) in operations {
        for types in 0..8 {
            let [d, a, b] = [0, 1, 2].map(|bit| TYPES[types >> bit & 1]);
            for (lanes, bits) in [(2u32, 16u32), (4, 8)] {
                let opcode = format!("{name}{lanes}.{}.{}.{}", d.0, a.0, b.0);
                let choices: [[&str; 3]; 3] = match lanes {
                    2 => [["", "", ""], [".h0", ".h31", ".h22"], [".h10", "", ".h03"]],
                    _ => [["", "", ""], [".b20", ".b7310", ""], [".b3210", ".b0123", ".b4567"]],
                };
                for [mask, first, second] in choices {
                    // The lanes that count, and what each takes of the numbers of both sources.
                    let digits = |text: &str, usual: u32| -> Vec<u32> {
                        let chosen: Vec<u32> =
                            text.chars().rev().filter_map(|c| c.to_digit(8)).collect();
                        if chosen.is_empty() { (usual..usual + lanes).collect() } else { chosen }
                    };
                    let (mask_of, of_a, of_b) =
                        (digits(mask, 0), digits(first, 0), digits(second, lanes));
                    let from = |x: u32, y: u32, place: u32, signed: bool| match place.checked_sub(lanes)
                    {
                        None => number(x, place * bits, bits, signed),
                        Some(place) => number(y, place * bits, bits, signed),
                    };
                    let result = |x: u32, y: u32, lane: u32| {
                        let lane = lane as usize;
                        f(from(x, y, of_a[lane], a.1), from(x, y, of_b[lane], b.1))
                    };
                    let operands = format!("{{d}}{mask}, {{a}}{first}, {{b}}{second}, {{c}};");
                    check(&format!("{opcode} {operands}"), |[x, y, c]| {
                        mask_of
                            .iter()
                            .fold(c, |into, &lane| merged(into, result(x, y, lane), lane * bits, bits))
                    });
                    check(&format!("{opcode}.sat {operands}"), |[x, y, c]| {
                        mask_of.iter().fold(c, |into, &lane| {
                            merged(into, clamped(result(x, y, lane), bits, d.1), lane * bits, bits)
                        })
                    });
                    check(&format!("{opcode}.add {operands}"), |[x, y, c]| {
                        mask_of.iter().fold(c, |sum, &lane| sum.wrapping_add(result(x, y, lane) as u32))
                    });
                }
            }
        }
    }
    check("vset4.u32.s32.lt.add {d}.b310, {a}, {b}, {c};", |[x, y, c]| {
        let holds = |lane: &u32| number(x, lane * 8, 8, false) < number(y, lane * 8, 8, true);
        c.wrapping_add([0u32, 1, 3].iter().filter(|lane| holds(lane)).count() as u32)
    });
}

#[test]
fn shifts_and_multiply_adds() {
    for (d, d_signed) in TYPES {
        for (a, a_signed) in TYPES {
            for (name, left) in [("vshl", true), ("vshr", false)] {
                for mode in ["clamp", "wrap"] {
                    let shifted = |x: u32, y: u32| {
                        let by = if mode == "wrap" { y & 31 } else { y.min(32) };
                        let x = number(x, 0, 32, a_signed);
                        if left { x << by } else { x >> by }
                    };
                    let opcode = format!("{name}.{d}.{a}.u32");
                    check(&format!("{opcode}.{mode} {{d}}, {{a}}, {{b}};"), |[x, y, _]| {
                        shifted(x, y) as u32
                    });
                    check(
                        &format!("{opcode}.sat.{mode}.add {{d}}, {{a}}, {{b}}, {{c}};"),
                        |[x, y, c]| c.wrapping_add(clamped(shifted(x, y), 32, d_signed) as u32),
                    );
                    check(&format!("{opcode}.{mode} {{d}}.h1, {{a}}, {{b}}.b1, {{c}};"), |[x, y, c]| {
                        merged(c, shifted(x, y >> 8 & 0xff), 16, 16)
                    });
                }
            }
        }
    }
    for (a, a_signed) in TYPES {
        for (b, b_signed) in TYPES {
            for (signs, minus) in [
                (["", "", ""], [false; 2]),
                (["-", "", ""], [true, false]),
                (["", "-", ""], [true, false]),
                (["-", "-", ""], [false; 2]),
                (["", "", "-"], [false, true]),
            ] {
                for (scale, shift) in [("", 0), (".shr7", 7), (".shr15", 15)] {
                    let is_signed = a_signed || b_signed || minus[0];
                    let sum = |[x, y, c]: [u32; 3], one: i128| {
                        let product = number(x, 8, 8, a_signed) * number(y, 0, 32, b_signed);
                        let c = number(c, 0, 32, is_signed);
                        let sum =
                            if minus[0] { -product } else { product } + if minus[1] { -c } else { c };
                        (sum + one) >> shift
                    };
                    let [first, second, third] = signs;
                    let operands = format!("{{d}}, {first}{{a}}.b1, {second}{{b}}, {third}{{c}};");
                    check(&format!("vmad.s32.{a}.{b}{scale} {operands}"), |all| sum(all, 0) as u32);
                    check(&format!("vmad.u32.{a}.{b}.sat{scale} {operands}"), |all| {
                        clamped(sum(all, 0), 32, is_signed || minus[1]) as u32
                    });
                    if signs == [""; 3] {
                        check(&format!("vmad.s32.{a}.{b}.po{scale} {operands}"), |all| {
                            sum(all, 1) as u32
                        });
                    }
                }
            }
        }
    }
}
