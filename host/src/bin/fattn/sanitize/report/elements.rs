//! What is wrong with the elements of a buffer.

use super::super::buffer::Buffer;
use super::super::element::Class;

/// What is wrong with the elements of a buffer.
pub struct Elements {
    pub nan: Vec<usize>,
    pub infinite: Vec<usize>,
    pub unwritten: Vec<usize>,
    /// Those that are not what is expected.
    pub wrong: Vec<usize>,
}

impl Elements {
    /// Those of a buffer with these bytes, of which some were written.
    pub fn of(buffer: &Buffer, bytes: &[u8], written: &[bool]) -> Self {
        let size = buffer.element.bytes();
        let is_written = |index: usize| written[index * size..][..size].iter().all(|&written| written);
        let all = |class| {
            let classes = bytes.chunks(size).map(|bytes| buffer.element.class(bytes));
            let of_class = classes.enumerate().filter(|&(index, own)| own == class && is_written(index));
            of_class.map(|(index, _)| index).collect()
        };
        let unwritten = (0..buffer.len()).filter(|&index| !is_written(index)).collect();
        let wrong = buffer.expected.iter().flat_map(|expected| {
            let pairs = bytes.chunks(size).zip(expected.bytes.chunks(size)).enumerate();
            let (absolute, relative) = (expected.absolute, expected.relative);
            let is_wrong = move |(got, wanted): (&[u8], &[u8])| {
                !buffer.element.is_near(got, wanted, absolute, relative)
            };
            pairs.filter(move |&(_, pair)| is_wrong(pair)).map(|(index, _)| index)
        });
        let wrong = wrong.collect();
        Elements { nan: all(Class::Nan), infinite: all(Class::Infinite), unwritten, wrong }
    }

    /// Which demands on the buffer do not hold.
    pub fn broken(&self, buffer: &Buffer) -> Vec<&'static str> {
        let demands = [
            ("finite", buffer.finite && !(self.nan.is_empty() && self.infinite.is_empty())),
            ("written", buffer.written && !self.unwritten.is_empty()),
            ("as expected", !self.wrong.is_empty()),
        ];
        demands.into_iter().filter(|&(_, broken)| broken).map(|(name, _)| name).collect()
    }

    /// All of it in a line.
    pub fn line(&self, buffer: &Buffer) -> String {
        let count = |what: &str, places: &[usize]| match places {
            [] => format!("0 {what}"),
            [first, ..] => format!("{} {what} (first: element {first})", places.len()),
        };
        let mut counts = vec![count("never written", &self.unwritten)];
        if buffer.expected.is_some() {
            counts.push(count("not as expected", &self.wrong));
        }
        if buffer.element.is_float() {
            counts.insert(0, count("NaN", &self.nan));
            counts.insert(1, count("infinite", &self.infinite));
        }
        let broken = match self.broken(buffer).as_slice() {
            [] => String::new(),
            broken => format!(" -- not {}", broken.join(", not ")),
        };
        format!(
            "{}: {} {}: {}{broken}",
            buffer.name,
            buffer.len(),
            buffer.element.name(),
            counts.join(", ")
        )
    }
}
