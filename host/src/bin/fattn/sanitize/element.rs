//! Types of scalars and of the elements of buffers.

use super::error::{Result, expected};
use half::{bf16, f16};
use ptx_emulator::TensorMapElement;

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

/// What a number is, where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Finite,
    Nan,
    Infinite,
}

/// The names, in the order in which an error lists them.
pub const NAMES: &str = "u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32 or f64";

impl Element {
    const ALL: [(&str, Element); 12] = [
        ("u8", Element::U8),
        ("i8", Element::I8),
        ("u16", Element::U16),
        ("i16", Element::I16),
        ("u32", Element::U32),
        ("i32", Element::I32),
        ("u64", Element::U64),
        ("i64", Element::I64),
        ("f16", Element::F16),
        ("bf16", Element::Bf16),
        ("f32", Element::F32),
        ("f64", Element::F64),
    ];

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        Element::ALL.iter().find(|(own, _)| *own == name).map(|(_, element)| *element)
    }

    /// As [`Element::named`], for an option.
    pub fn parse(option: &str, name: &str) -> Result<Self> {
        Element::named(name).ok_or_else(|| expected(option, format!("the type {NAMES}"), name))
    }

    pub fn name(self) -> &'static str {
        let own = Element::ALL.iter().find(|(_, element)| *element == self);
        own.map_or("", |(name, _)| name)
    }

    pub fn bytes(self) -> usize {
        match self {
            Element::U8 | Element::I8 => 1,
            Element::U16 | Element::I16 | Element::F16 | Element::Bf16 => 2,
            Element::U32 | Element::I32 | Element::F32 => 4,
            Element::U64 | Element::I64 | Element::F64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Element::F16 | Element::Bf16 | Element::F32 | Element::F64)
    }

    /// The values that an integer type has.
    fn range(self) -> (i128, i128) {
        let bits = 8 * self.bytes() as u32;
        if matches!(self, Element::I8 | Element::I16 | Element::I32 | Element::I64) {
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            (0, (1 << bits) - 1)
        }
    }

    /// The bytes of a number that is written out: integers decimal or `0x`, floats as Rust writes them.
    pub fn value(self, option: &str, text: &str) -> Result<Vec<u8>> {
        if self.is_float() {
            let number: f64 = text
                .parse()
                .map_err(|_| expected(option, format!("a number ({})", self.name()), text))?;
            return Ok(self.of_float(number));
        }
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
        let magnitude = match digits.strip_prefix("0x") {
            Some(hex) => i128::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        let (least, most) = self.range();
        let number = magnitude.ok().filter(|_| !digits.starts_with(['+', '-']));
        match number.map(|number| sign * number).filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(self.of_integer(number)),
            None => Err(expected(option, format!("{least} to {most} ({})", self.name()), text)),
        }
    }

    /// A number, rounded to the type.
    pub fn of_float(self, number: f64) -> Vec<u8> {
        match self {
            Element::F16 => f16::from_f64(number).to_le_bytes().to_vec(),
            Element::Bf16 => bf16::from_f64(number).to_le_bytes().to_vec(),
            Element::F32 => (number as f32).to_le_bytes().to_vec(),
            Element::F64 => number.to_le_bytes().to_vec(),
            _ => self.of_integer(number as i128),
        }
    }

    /// An integer; as many low bits as the type has.
    pub fn of_integer(self, number: i128) -> Vec<u8> {
        if self.is_float() {
            return self.of_float(number as f64);
        }
        number.to_le_bytes()[..self.bytes()].to_vec()
    }

    /// What the number in these bytes is.
    pub fn class(self, bytes: &[u8]) -> Class {
        match self.float(bytes) {
            Some(number) if number.is_nan() => Class::Nan,
            Some(number) if number.is_infinite() => Class::Infinite,
            _ => Class::Finite,
        }
    }

    /// The number in these bytes, as text.
    pub fn text(self, bytes: &[u8]) -> String {
        if let Some(number) = self.float(bytes) {
            return format!("{number:e}");
        }
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        let number = i128::from_le_bytes(wide);
        let (_, most) = self.range();
        if number > most { number - (1 << (8 * self.bytes())) } else { number }.to_string()
    }

    /// Whether an element is what is expected, within `absolute + relative * |expected|`.
    pub fn is_near(self, got: &[u8], wanted: &[u8], absolute: f64, relative: f64) -> bool {
        if got == wanted {
            return true;
        }
        let number = |bytes: &[u8]| self.float(bytes).or_else(|| self.text(bytes).parse().ok());
        let (Some(got), Some(wanted)) = (number(got), number(wanted)) else { return false };
        let is_close = (got - wanted).abs() <= absolute + relative * wanted.abs();
        is_close || got == wanted || got.is_nan() && wanted.is_nan()
    }

    fn float(self, bytes: &[u8]) -> Option<f64> {
        Some(match (self, bytes) {
            (Element::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            (Element::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (Element::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (Element::F64, bytes) => f64::from_le_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }

    /// The type in a tensor map.
    pub fn in_tensor_map(self) -> Option<TensorMapElement> {
        Some(match self {
            Element::U8 => TensorMapElement::U8,
            Element::U16 => TensorMapElement::U16,
            Element::U32 => TensorMapElement::U32,
            Element::I32 => TensorMapElement::I32,
            Element::U64 => TensorMapElement::U64,
            Element::I64 => TensorMapElement::I64,
            Element::F16 => TensorMapElement::F16,
            Element::Bf16 => TensorMapElement::Bf16,
            Element::F32 => TensorMapElement::F32,
            Element::F64 => TensorMapElement::F64,
            Element::I8 | Element::I16 => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_bytes_and_text_again() {
        for (name, text, back) in [
            ("u8", "255", "255"),
            ("i8", "-1", "-1"),
            ("i32", "-0x80000000", "-2147483648"),
            ("u64", "0xffffffffffffffff", "18446744073709551615"),
            ("f16", "0.5", "5e-1"),
            ("bf16", "-inf", "-inf"),
            ("f32", "1e-3", "1.0000000474974513e-3"),
            ("f64", "2", "2e0"),
        ] {
            let element = Element::named(name).unwrap();
            let bytes = element.value("--arg", text).unwrap();
            assert_eq!((bytes.len(), element.text(&bytes).as_str()), (element.bytes(), back), "{name}");
        }
    }

    #[test]
    fn numbers_that_the_type_does_not_have_are_refused() {
        let refusal = |name, text| {
            Element::parse("--arg", name)
                .and_then(|element| element.value("--arg", text))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(refusal("u8", "256"), "--arg: expected 0 to 255 (u8), got `256`");
        assert_eq!(refusal("i8", "--1"), "--arg: expected -128 to 127 (i8), got `--1`");
        assert_eq!(refusal("u32", "0.5"), "--arg: expected 0 to 4294967295 (u32), got `0.5`");
        assert_eq!(refusal("f32", "one"), "--arg: expected a number (f32), got `one`");
        assert_eq!(refusal("s32", "1"), format!("--arg: expected the type {NAMES}, got `s32`"));
    }

    #[test]
    fn classes_of_numbers() {
        let class = |name, number| {
            let element = Element::named(name).unwrap();
            element.class(&element.of_float(number))
        };
        for name in ["f16", "bf16", "f32", "f64"] {
            assert_eq!(class(name, f64::NAN), Class::Nan);
            assert_eq!(class(name, f64::NEG_INFINITY), Class::Infinite);
            assert_eq!(class(name, 1.0), Class::Finite);
        }
        assert_eq!(Element::U32.class(&[0xff; 4]), Class::Finite);
    }
}
