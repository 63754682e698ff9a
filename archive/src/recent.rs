//! Numbers that come again soon: those of registers, of which a line of code names a few, most of them named
//! in the lines before.
//!
//! A number that was there before is how many others have been there since (move to front). One that was not
//! is mostly the one after that which was new before: compilers number registers in the order of what they
//! write.

use crate::Error;
use crate::bytes::{Reader, unfold};

/// What is written of a number that is new, and one more than that which was new before it.
const NEXT: u64 = 0;
/// Of another one that is new; the folded difference to that follows.
const OTHER: u64 = 1;
/// Of one that is not new: from this on, how many others have been there since.
const SEEN: u64 = 2;

/// The numbers that were there, in the order in which they were last.
#[derive(Default)]
pub struct Recent {
    numbers: Vec<u64>,
    /// What [`NEXT`] stands for.
    next: u64,
}

impl Recent {
    /// The next number.
    pub fn read(&mut self, reader: &mut Reader<'_>) -> Result<u64, Error> {
        let number = match reader.number()? {
            NEXT => self.next,
            OTHER => self.next.wrapping_add_signed(unfold(reader.number()?)),
            since => {
                let since = usize::try_from(since - SEEN).map_err(|_| Error::Cut)?;
                let place = self.numbers.len().checked_sub(1 + since).ok_or(Error::Cut)?;
                self.numbers[place..].rotate_left(1);
                return self.numbers.last().copied().ok_or(Error::Cut);
            }
        };
        self.add(number);
        Ok(number)
    }

    fn add(&mut self, number: u64) {
        self.numbers.push(number);
        self.next = number.wrapping_add(1);
    }

    /// Writes the next number.
    #[cfg(feature = "write")]
    pub fn put(&mut self, bytes: &mut Vec<u8>, number: u64) {
        use crate::bytes::{fold, put};
        if let Some(place) = self.numbers.iter().rposition(|&other| other == number) {
            put(bytes, SEEN + (self.numbers.len() - 1 - place) as u64);
            self.numbers[place..].rotate_left(1);
            return;
        }
        if number == self.next {
            put(bytes, NEXT);
        } else {
            put(bytes, OTHER);
            put(bytes, fold(number.wrapping_sub(self.next).cast_signed()));
        }
        self.add(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put_all(numbers: &[u64]) -> Vec<u8> {
        let (mut bytes, mut recent) = (Vec::new(), Recent::default());
        numbers.iter().for_each(|&number| recent.put(&mut bytes, number));
        bytes
    }

    #[test]
    fn what_is_new_is_the_next_one_and_what_is_not_is_counted_back() {
        assert_eq!(put_all(&[0, 1, 2, 1, 1, 0, 3]), [0, 0, 0, 3, 2, 4, 0]);
        // 7 instead of 0 is 7 more; 5 instead of 8 is 3 less.
        assert_eq!(put_all(&[7, 5, 6, 7]), [1, 14, 1, 5, 0, 4]);
        // What is the next one was there before.
        assert_eq!(put_all(&[1, 0, 1]), [1, 2, 1, 3, 3]);
    }

    #[test]
    fn what_was_never_there_is_an_error() {
        for bytes in [&[2][..], &[0, 3], &[1], &[]] {
            let (mut reader, mut recent) = (Reader(bytes), Recent::default());
            let mut read = || recent.read(&mut reader);
            assert!(read().and_then(|_| read()).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(numbers in prop::collection::vec(prop_oneof![0..20u64, any::<u64>()], 0..60)) {
            let bytes = put_all(&numbers);
            let (mut reader, mut recent) = (Reader(&bytes), Recent::default());
            for number in numbers {
                prop_assert_eq!(recent.read(&mut reader), Ok(number));
            }
            prop_assert!(reader.0.is_empty());
        }
    }
}
