//! Literals.

/// A literal of PTX.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// `12`, `0x1F`, `017`, `0b101`, with an optional `U`.
    Integer(u64),
    /// `0f3F800000`: the bits of an f32.
    Single(u32),
    /// `0d3FF0000000000000`, `1.5` or `1.5e-3`: the bits of an f64.
    Double(u64),
}

impl Number {
    /// The value of an integer literal.
    pub fn integer(self) -> Option<u64> {
        match self {
            Number::Integer(value) => Some(value),
            _ => None,
        }
    }
}

/// Reads a literal without a sign.
pub fn parse(text: &str) -> Option<Number> {
    let bytes = text.as_bytes();
    if bytes.first() == Some(&b'0') && bytes.len() > 1 && text.is_ascii() {
        let digits = text[2..].trim_end_matches('U');
        match bytes[1] {
            b'f' | b'F' if text.len() == 10 => {
                return u32::from_str_radix(&text[2..], 16).ok().map(Number::Single);
            }
            b'd' | b'D' if text.len() == 18 => {
                return u64::from_str_radix(&text[2..], 16).ok().map(Number::Double);
            }
            b'x' | b'X' => return u64::from_str_radix(digits, 16).ok().map(Number::Integer),
            b'b' | b'B' => return u64::from_str_radix(digits, 2).ok().map(Number::Integer),
            b'0'..=b'7' if !text.contains(['.', 'e', 'E']) => {
                let digits = text[1..].trim_end_matches('U');
                return u64::from_str_radix(digits, 8).ok().map(Number::Integer);
            }
            _ => {}
        }
    }
    if !bytes.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    if text.contains(['.', 'e', 'E']) {
        return text.parse::<f64>().ok().map(|value| Number::Double(value.to_bits()));
    }
    text.trim_end_matches('U').parse().ok().map(Number::Integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_literal() {
        for (text, value) in [
            ("0", Number::Integer(0)),
            ("12U", Number::Integer(12)),
            ("0x1fU", Number::Integer(31)),
            ("0b101", Number::Integer(5)),
            ("017", Number::Integer(15)),
            ("0f3F800000", Number::Single(0x3f80_0000)),
            ("0d3FF0000000000000", Number::Double(0x3ff0_0000_0000_0000)),
            ("1.5", Number::Double(1.5f64.to_bits())),
            ("1.5e-3", Number::Double(1.5e-3f64.to_bits())),
            ("2E+10", Number::Double(2e10f64.to_bits())),
            ("0.25e2", Number::Double(25f64.to_bits())),
            ("18446744073709551615", Number::Integer(u64::MAX)),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in ["", "abc", "0xg", "1z", "1e", "1e+", "0xe.", "99999999999999999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
