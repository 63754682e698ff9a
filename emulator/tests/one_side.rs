//! Rounding to one side, against integers that hold every bit of a result.

mod common;
use common::{Random, evaluate};
use std::cmp::Ordering;

/// A number as an integer of any length, lowest word first, and its sign.
#[derive(Clone, Debug)]
struct Long {
    negative: bool,
    words: Vec<u64>,
}

impl Long {
    /// In units of 2^-1074, the lowest bit of f64.
    fn new(value: f64) -> Self {
        let bits = value.to_bits();
        let (field, low) = ((bits >> 52 & 0x7ff) as usize, bits & ((1 << 52) - 1));
        let mantissa = if field == 0 { low } else { low | 1 << 52 };
        let shift = field.max(1) - 1;
        let mut words = vec![0; shift / 64];
        words.push(mantissa << (shift % 64));
        words.push(if shift % 64 == 0 { 0 } else { mantissa >> (64 - shift % 64) });
        Long { negative: value.is_sign_negative(), words }
    }

    fn product(&self, other: &Self) -> Self {
        let mut words = vec![0u64; self.words.len() + other.words.len()];
        for (i, &a) in self.words.iter().enumerate() {
            let mut carry = 0u128;
            for (j, &b) in other.words.iter().enumerate() {
                let sum = u128::from(words[i + j]) + u128::from(a) * u128::from(b) + carry;
                (words[i + j], carry) = (sum as u64, sum >> 64);
            }
            words[i + other.words.len()] = carry as u64;
        }
        Long { negative: self.negative != other.negative, words }
    }

    fn size(&self, other: &Self) -> Ordering {
        let word = |words: &[u64], at: usize| words.get(at).copied().unwrap_or(0);
        (0..self.words.len().max(other.words.len()))
            .rev()
            .map(|at| word(&self.words, at).cmp(&word(&other.words, at)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    fn is_zero(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.negative && !self.is_zero(), other.negative && !other.is_zero()) {
            (false, false) => self.size(other),
            (true, true) => other.size(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }

    fn sum(&self, other: &Self) -> Self {
        let (large, small) = if self.size(other).is_ge() { (self, other) } else { (other, self) };
        let mut words = large.words.clone();
        words.push(0);
        let mut carry = false;
        for (at, place) in words.iter_mut().enumerate() {
            let word = small.words.get(at).copied().unwrap_or(0);
            let step = if large.negative == small.negative {
                u64::overflowing_add
            } else {
                u64::overflowing_sub
            };
            let (first, a) = step(*place, word);
            let (second, b) = step(first, u64::from(carry));
            (*place, carry) = (second, a || b);
        }
        Long { negative: large.negative, words }
    }
}

/// A format: its bits to f64, and the next bits in a direction.
#[derive(Clone, Copy)]
struct Format {
    bits: u32,
    name: &'static str,
}

impl Format {
    fn value(self, bits: u64) -> f64 {
        if self.bits == 32 { f32::from_bits(bits as u32).into() } else { f64::from_bits(bits) }
    }

    fn next(self, bits: u64, up: bool) -> f64 {
        match (self.bits, up) {
            (32, true) => f32::from_bits(bits as u32).next_up().into(),
            (32, false) => f32::from_bits(bits as u32).next_down().into(),
            (_, true) => f64::from_bits(bits).next_up(),
            (_, false) => f64::from_bits(bits).next_down(),
        }
    }

    /// Operands: edges, all bits, and such of similar size.
    fn values(self, seed: u64) -> Vec<u64> {
        let mut random = Random(seed | 1);
        let (mantissa, exponent) = if self.bits == 32 { (23, 8) } else { (52, 11) };
        let infinity = ((1u64 << exponent) - 1) << mantissa;
        let least_normal = 1u64 << mantissa;
        let one = (infinity >> 1) & infinity;
        let edges = [
            0,
            1,
            2,
            least_normal - 1,
            least_normal,
            least_normal + 1,
            one - 1,
            one,
            one + 1,
            infinity - 1,
        ];
        let sign = 1u64 << (self.bits - 1);
        let mut value = || {
            let (pick, word) = (random.next(), random.next());
            let near = (word & (least_normal - 1)) | (one + (pick >> 8 & 7) * least_normal);
            // Few bits, so that results are exact or in the middle between two numbers.
            let few = near & !(least_normal / 64 - 1);
            let size = match pick % 5 {
                0 => edges[(pick >> 16) as usize % edges.len()],
                1 => (word & (sign - 1)).min(infinity - 1),
                2 => few,
                _ => near,
            };
            size | if pick >> 40 & 1 != 0 { sign } else { 0 }
        };
        (0..1500).map(|_| value()).collect()
    }
}

const FORMATS: [Format; 2] = [Format { bits: 32, name: "f32" }, Format { bits: 64, name: "f64" }];

/// Whether the exact result lies where a number says: below, on, or above it. A quotient or root is compared by what it
/// comes from.
fn side(op: &str, [a, b, c]: [f64; 3], result: f64) -> Ordering {
    let long = Long::new;
    let (one, d) = (long(1.0), long(result));
    let flipped = |order: Ordering, negative: bool| if negative { order.reverse() } else { order };
    match op {
        "add" => long(a).sum(&long(b)).compare(&d),
        "sub" => long(a).sum(&long(-b)).compare(&d),
        "mul" => long(a).product(&long(b)).compare(&d.product(&one)),
        "fma" => long(a).product(&long(b)).sum(&long(c).product(&one)).compare(&d.product(&one)),
        "div" => flipped(long(a).product(&one).compare(&d.product(&long(b))), b < 0.0),
        "rcp" => flipped(one.product(&one).compare(&d.product(&long(a))), a < 0.0),
        _ if result < 0.0 => Ordering::Greater,
        _ => long(a).product(&one).compare(&d.product(&d)),
    }
}

#[test]
fn results_are_the_next_number_on_the_side_that_is_asked_for() {
    for format in FORMATS {
        let columns = [format.values(3), format.values(5), format.values(7)];
        for (op, count) in
            [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("div", 2), ("rcp", 1), ("sqrt", 1)]
        {
            for mode in ["rz", "rm", "rp"] {
                let operands = ["{a}", "{b}", "{c}"][..count].join(", ");
                let template = format!("{op}.{mode}.{} {{d}}, {operands};", format.name);
                let sources: Vec<(u32, Vec<u64>)> =
                    columns[..count].iter().map(|column| (format.bits, column.clone())).collect();
                let got = evaluate(&template, format.bits, &sources);
                for (row, &bits) in got.iter().enumerate() {
                    let inputs = [0, 1, 2].map(|index: usize| format.value(columns[index][row]));
                    check(op, mode, format, inputs, bits);
                }
            }
        }
    }
}

fn check(op: &str, mode: &str, format: Format, inputs: [f64; 3], bits: u64) {
    let [a, b, _] = inputs;
    let (result, text) = (format.value(bits), format!("{op}.{mode}.{} {inputs:?}", format.name));
    let divisor = if op == "rcp" { a } else { b };
    if matches!(op, "div" | "rcp") && divisor == 0.0 {
        let is_nan = op == "div" && a == 0.0;
        return assert!(
            if is_nan { result.is_nan() } else { result.is_infinite() },
            "{text}: {result:e}"
        );
    }
    if op == "sqrt" && a < 0.0 {
        return assert!(result.is_nan(), "{text}: {result:e}");
    }
    // Infinity is the next number behind the largest one, and no result goes beyond the number before it.
    let of = |number: f64| match number {
        f64::INFINITY => Ordering::Less,
        f64::NEG_INFINITY => Ordering::Greater,
        number => side(op, inputs, number),
    };
    let exact = of(result);
    let down = match mode {
        "rm" => true,
        "rp" => false,
        _ => side(op, inputs, 0.0).is_gt(),
    };
    let (good, beyond) = if down {
        (exact.is_ge(), exact.is_eq() || of(format.next(bits, true)).is_lt())
    } else {
        (exact.is_le(), exact.is_eq() || of(format.next(bits, false)).is_gt())
    };
    assert!(good && beyond, "{text}: {result:e}, where the exact result is {exact:?}");
}

#[test]
fn zeros_have_the_sign_that_the_side_gives_them() {
    let minus = 1u64 << 63;
    let one = 1f64.to_bits();
    for (name, operands, want) in [
        ("add.rm.f64", vec![one, one | minus], minus),
        ("add.rp.f64", vec![one, one | minus], 0),
        ("add.rz.f64", vec![minus, minus], minus),
        ("add.rm.f64", vec![0, 0], 0),
        ("add.rm.f64", vec![0, minus], minus),
        ("sub.rm.f64", vec![0, 0], minus),
        ("sub.rz.f64", vec![minus, 0], minus),
        ("fma.rm.f64", vec![one, one, one | minus], minus),
        ("fma.rp.f64", vec![one, one, one | minus], 0),
        ("fma.rm.f64", vec![minus, one, minus], minus),
        ("fma.rz.f64", vec![0, one | minus, minus], minus),
        ("mul.rp.f64", vec![1, 1], 1),
        ("mul.rm.f64", vec![1, 1 | minus], 1 | minus),
        ("mul.rz.f64", vec![1, 1 | minus], minus),
        ("div.rm.f64", vec![0, one | minus], minus),
        ("sqrt.rm.f64", vec![minus], minus),
        ("rcp.rz.f64", vec![minus], 0xfff0_0000_0000_0000),
        ("add.rz.f64", vec![f64::MAX.to_bits(); 2], f64::MAX.to_bits()),
        ("add.rp.f64", vec![f64::MAX.to_bits(); 2], f64::INFINITY.to_bits()),
    ] {
        let places = ["{a}", "{b}", "{c}"][..operands.len()].join(", ");
        let sources: Vec<(u32, Vec<u64>)> = operands.iter().map(|&bits| (64, vec![bits])).collect();
        let got = evaluate(&format!("{name} {{d}}, {places};"), 64, &sources);
        assert_eq!(got[0], want, "{name} {operands:x?}: {:#x}", got[0]);
    }
}
