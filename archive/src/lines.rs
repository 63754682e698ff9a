//! The shapes of lines that texts share: sorted, each as what it has more than the one before it.

use crate::Error;
use crate::bytes::Reader;

/// The lines, by their number.
pub struct Lines {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Lines {
    /// Reads what [`put`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let count = reader.count()?;
        let mut shared = Vec::new();
        for _ in 0..count {
            shared.push(reader.count()?);
        }
        let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(count));
        let mut start = 0_usize;
        let mut rests = reader.0.split(|&byte| byte == b'\n');
        for shared in shared {
            let rest = rests.next().ok_or(Error::Cut)?;
            let end = start.checked_add(shared).filter(|&end| end <= text.len()).ok_or(Error::Cut)?;
            text.extend_from_within(start..end);
            start = text.len() - shared;
            text.extend_from_slice(rest);
            ends.push(text.len());
        }
        Ok(Lines { text, ends })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The line of this number.
    pub fn get(&self, number: usize) -> Result<&[u8], Error> {
        let end = *self.ends.get(number).ok_or(Error::Cut)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        Ok(&self.text[start..end])
    }
}

/// Lines in this order, which have no line ends: how many bytes each shares with the start of the one before
/// it, then the rest of each.
#[cfg(feature = "write")]
pub fn put<'a>(lines: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    crate::bytes::put(&mut bytes, lines.len() as u64);
    let (mut rests, mut before): (Vec<&[u8]>, &[u8]) = (Vec::new(), &[]);
    for line in lines {
        let shared = line.iter().zip(before).take_while(|(byte, before)| byte == before).count();
        crate::bytes::put(&mut bytes, shared as u64);
        rests.push(&line[shared..]);
        before = line;
    }
    bytes.extend(rests.join(&b'\n'));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_put() {
        let lines: [&[u8]; 5] = [b"", b"\tadd a", b"\tadd ab", b"\tadd b", b"x"];
        let bytes = put(lines.into_iter());
        let read = Lines::read(&bytes).unwrap();
        assert_eq!(read.len(), 5);
        assert!(lines.iter().zip(0..).all(|(line, number)| read.get(number).unwrap() == *line));
        assert!(read.get(5).is_err());
        assert_eq!(Lines::read(&put([].into_iter())).unwrap().len(), 0);
        assert!(Lines::read(&[3, 0, 0]).is_err() && Lines::read(&[1, 9, b'a']).is_err());
    }
}
