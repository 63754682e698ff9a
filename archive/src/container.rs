//! The file: a header of plain lines, which `head` shows, and compressed blocks of members.
//!
//! ```text
//! kernels 1
//! block 35512 188422 93                 bytes compressed, bytes, properties of the compression
//! 94211 forward_bf16_d128_sm90a         bytes, name: the members of the block, one after another
//! 94211 forward_f16_d128_sm90a
//! (an empty line; then the blocks)
//! ```

use crate::block;
use std::ops::Range;

/// What an archive starts with.
const MAGIC: &str = "kernels 1\n";

/// What can be wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not start as one, or its header makes no sense.
    #[error("not an archive of kernels")]
    NotAnArchive,
    /// It ends early.
    #[error("the archive is cut short")]
    Cut,
    /// A block cannot be expanded.
    #[error("a block of the archive cannot be expanded: {0}")]
    Compression(String),
    /// A text holds control characters that the format has a use for, or is not UTF-8.
    #[error("{0}: expected text without control characters other than tabs and line ends")]
    NotText(String),
    /// A member is larger than the format allows, or has more lines.
    #[error("the members are too large for one archive")]
    TooLarge,
    /// A member's name is empty, or has spaces or line ends.
    #[error("expected names without spaces, got `{0}`")]
    Name(String),
}

/// Where a block is, and what is in it.
#[derive(Debug)]
struct Block {
    /// Its place in the file.
    at: Range<usize>,
    plain_bytes: u32,
    properties: u8,
    /// Names, and places in the expanded block.
    members: Vec<(String, Range<usize>)>,
}

/// An archive whose header has been read.
#[derive(Debug)]
pub struct Archive<'a> {
    file: &'a [u8],
    blocks: Vec<Block>,
}

impl<'a> Archive<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`Error::NotAnArchive`], or [`Error::Cut`] if blocks are missing.
    pub fn open(file: &'a [u8]) -> Result<Self, Error> {
        let mut rest = file.strip_prefix(MAGIC.as_bytes()).ok_or(Error::NotAnArchive)?;
        let mut blocks: Vec<Block> = Vec::new();
        let mut lengths = Vec::new();
        loop {
            let end = rest.iter().position(|&byte| byte == b'\n').ok_or(Error::Cut)?;
            let line = std::str::from_utf8(&rest[..end]).map_err(|_| Error::NotAnArchive)?;
            rest = &rest[end + 1..];
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                [""] => break,
                ["block", compressed, plain, properties] => {
                    lengths.push(number::<usize>(compressed)?);
                    let (plain_bytes, properties) = (number(plain)?, number(properties)?);
                    blocks.push(Block { at: 0..0, plain_bytes, properties, members: Vec::new() });
                }
                [bytes, name] => {
                    let block = blocks.last_mut().ok_or(Error::NotAnArchive)?;
                    let start = block.members.last().map_or(0, |(_, place)| place.end);
                    let end = start.checked_add(number(bytes)?).ok_or(Error::NotAnArchive)?;
                    if end > block.plain_bytes as usize {
                        return Err(Error::NotAnArchive);
                    }
                    block.members.push((name.to_owned(), start..end));
                }
                _ => return Err(Error::NotAnArchive),
            }
        }
        let mut start = file.len() - rest.len();
        for (block, length) in blocks.iter_mut().zip(lengths) {
            let end = start.checked_add(length).filter(|&end| end <= file.len()).ok_or(Error::Cut)?;
            (block.at, start) = (start..end, end);
        }
        Ok(Archive { file, blocks })
    }

    /// The names of all members, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.blocks.iter().flat_map(|block| &block.members).map(|(name, _)| name.as_str())
    }

    /// A member; none of another name is there. Expands its block alone.
    ///
    /// # Errors
    /// [`Error::Compression`].
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        for block in &self.blocks {
            if let Some((_, place)) = block.members.iter().find(|(member, _)| member == name) {
                let compressed = &self.file[block.at.clone()];
                let mut plain = block::expand(compressed, block.plain_bytes, block.properties)?;
                plain.truncate(place.end);
                return Ok(Some(plain.split_off(place.start)));
            }
        }
        Ok(None)
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, Error> {
    text.parse().map_err(|_| Error::NotAnArchive)
}

/// Largest block of several groups, bytes. A block takes about 3 ms to expand; smaller ones compress worse.
#[cfg(feature = "write")]
const BLOCK_BYTES: usize = 256 * 1024;

/// Names have a line of the header, behind a space.
///
/// # Errors
/// [`Error::Name`].
#[cfg(feature = "write")]
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.contains([' ', '\n']) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}

/// An archive of members, each a name and bytes, in groups that are much alike: a group is in one block, and
/// so are several that are small.
///
/// # Errors
/// [`Error::Name`], [`Error::TooLarge`], [`Error::Compression`].
#[cfg(feature = "write")]
pub fn pack<M: AsRef<[u8]>>(groups: &[Vec<(String, M)>]) -> Result<Vec<u8>, Error> {
    use std::fmt::Write as _;
    let mut blocks: Vec<Vec<(&str, &[u8])>> = Vec::new();
    let mut bytes = usize::MAX;
    for group in groups.iter().filter(|group| !group.is_empty()) {
        let group = group.iter().map(|(name, member)| (name.as_str(), member.as_ref()));
        let more: usize = group.clone().map(|(_, member)| member.len()).sum();
        bytes = bytes.saturating_add(more);
        if bytes > BLOCK_BYTES {
            blocks.push(Vec::new());
            bytes = more;
        }
        blocks.last_mut().expect("the first group starts a block").extend(group);
    }
    let (mut header, mut packed) = (MAGIC.to_owned(), Vec::new());
    for block in blocks {
        let plain = block.iter().map(|(_, member)| *member).collect::<Vec<_>>().concat();
        let (compressed, properties) = block::compress(&plain)?;
        // Writing to a String cannot fail.
        let _ = writeln!(header, "block {} {} {properties}", compressed.len(), plain.len());
        for (name, member) in block {
            check_name(name)?;
            let _ = writeln!(header, "{} {name}", member.len());
        }
        packed.extend(compressed);
    }
    header.push('\n');
    let mut file = header.into_bytes();
    file.extend(packed);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &[&str], bytes: usize) -> Vec<(String, Vec<u8>)> {
        names.iter().map(|name| ((*name).to_owned(), name.repeat(bytes).into_bytes())).collect()
    }

    #[test]
    fn members_come_back_and_small_groups_share_a_block() {
        let groups =
            [members(&["a", "b"], 10), members(&["c"], 7), Vec::new(), members(&["d"], 300_000)];
        let file = pack(&groups).unwrap();
        assert_eq!(file, pack(&groups).unwrap());
        let archive = Archive::open(&file).unwrap();
        assert!(archive.names().eq(["a", "b", "c", "d"]));
        assert_eq!(archive.blocks.len(), 2);
        for (name, member) in groups.iter().flatten() {
            assert_eq!(archive.get(name).unwrap().as_ref(), Some(member));
        }
        assert_eq!(archive.get("e"), Ok(None));
        assert!(Archive::open(&pack::<Vec<u8>>(&[]).unwrap()).unwrap().names().next().is_none());
    }

    #[test]
    fn what_is_no_archive_or_cut_is_refused() {
        let file = pack(&[members(&["a", "b"], 1000)]).unwrap();
        assert_eq!(Archive::open(b"gzip").unwrap_err(), Error::NotAnArchive);
        for length in MAGIC.len()..file.len() {
            assert!(Archive::open(&file[..length]).is_err(), "{length}");
        }
        for header in
            ["block 1\n\n", "10 a\n\n", "block 0 5 93\n6 a\n\n", "block 9 5 93\n5 a\n\n", "block"]
        {
            assert!(Archive::open(format!("{MAGIC}{header}").as_bytes()).is_err(), "{header}");
        }
        let wrong = Archive::open(b"kernels 1\nblock 3 10 93\n10 a\n\nxyz").unwrap().get("a");
        assert!(matches!(wrong, Err(Error::Compression(_))), "{wrong:?}");
    }

    #[test]
    fn names_have_no_spaces() {
        for name in ["", "a b", "a\n"] {
            assert_eq!(pack(&[members(&[name], 1)]), Err(Error::Name(name.to_owned())));
        }
    }
}
