//! Numbers as bytes: seven bits a byte, the lowest first; and reading them back from what may be cut.

use crate::Error;

/// Appends a number, in as few bytes as it takes.
#[cfg(feature = "write")]
pub fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A signed number as an unsigned one that is small where it is: 0, -1, 1, -2, 2 are 0 to 4.
#[cfg(feature = "write")]
pub fn fold(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Undoes [`fold`].
pub fn unfold(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// What is left to read.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next so many bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Error::Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next number that [`put`] wrote.
    pub fn number(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::Cut)
    }

    /// The next number, which counts bytes or lines.
    pub fn count(&mut self) -> Result<usize, Error> {
        usize::try_from(self.number()?).map_err(|_| Error::Cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_put() {
        let mut bytes = Vec::new();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        numbers.iter().for_each(|&number| put(&mut bytes, number));
        let mut reader = Reader(&bytes);
        assert!(numbers.iter().all(|&number| reader.number().unwrap() == number));
        assert!(reader.number().is_err());
        assert!(Reader(&[0xff; 11]).number().is_err());
    }

    #[test]
    fn small_numbers_of_either_sign_fold_to_small_ones() {
        assert_eq!([0, -1, 1, -2, 2].map(fold), [0, 1, 2, 3, 4]);
        for number in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(unfold(fold(number)), number);
        }
    }
}
