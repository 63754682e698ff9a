//! A compressed block: LZMA without a header, of a length that is known.

use crate::Error;
use lzma_rust2::LzmaReader;
use std::io::Read as _;

/// No block is larger when expanded: what says more is no archive.
const MOST_BYTES: u32 = 1 << 30;

/// Smallest window that the format knows.
const LEAST_WINDOW: u32 = 4096;

/// The window of a block: all of it.
fn window(plain_bytes: u32) -> u32 {
    plain_bytes.max(LEAST_WINDOW)
}

/// Expands a block.
pub fn expand(compressed: &[u8], plain_bytes: u32, properties: u8) -> Result<Vec<u8>, Error> {
    if plain_bytes > MOST_BYTES {
        return Err(Error::NotAnArchive);
    }
    let broken = |error: &dyn std::fmt::Display| Error::Compression(error.to_string());
    let size = u64::from(plain_bytes);
    let mut reader = LzmaReader::new_with_props(compressed, size, properties, window(plain_bytes), None)
        .map_err(|error| broken(&error))?;
    let mut plain = vec![0; plain_bytes as usize];
    reader.read_exact(&mut plain).map_err(|error| broken(&error))?;
    Ok(plain)
}

/// Compresses a block, with those of a few properties that make it smallest.
#[cfg(feature = "write")]
pub fn compress(plain: &[u8]) -> Result<(Vec<u8>, u8), Error> {
    use lzma_rust2::{EncodeMode, LzmaOptions, LzmaWriter, MfType};
    use std::io::Write as _;
    // Bits of a literal's context: those before it, and of its place; bits of the place in other contexts.
    const TRIED: [(u32, u32, u32); 4] = [(3, 0, 0), (4, 0, 0), (0, 0, 0), (2, 1, 1)];
    let bytes = u32::try_from(plain.len()).ok().filter(|&bytes| bytes <= MOST_BYTES);
    let bytes = bytes.ok_or(Error::TooLarge)?;
    let mut best: Option<(Vec<u8>, u8)> = None;
    for (lc, lp, pb) in TRIED {
        let options = LzmaOptions {
            dict_size: window(bytes),
            lc,
            lp,
            pb,
            mode: EncodeMode::Normal,
            nice_len: 273,
            mf: MfType::Bt4,
            depth_limit: 512,
            preset_dict: None,
        };
        let compressed = || -> std::io::Result<(Vec<u8>, u8)> {
            let mut writer = LzmaWriter::new_no_header(Vec::new(), &options, false)?;
            let properties = writer.props();
            writer.write_all(plain)?;
            Ok((writer.finish()?, properties))
        };
        let found = compressed().map_err(|error| Error::Compression(error.to_string()))?;
        if best.as_ref().is_none_or(|best| found.0.len() < best.0.len()) {
            best = Some(found);
        }
    }
    best.ok_or(Error::NotAnArchive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_expands_to_what_was_compressed_and_not_if_it_is_cut() {
        let empty: &[u8] = &[];
        let counted: Vec<u8> = (0..100_000u32).map(|number| (number / 100) as u8).collect();
        for plain in [empty, b"a", &counted] {
            let (compressed, properties) = compress(plain).unwrap();
            let bytes = plain.len() as u32;
            assert_eq!(expand(&compressed, bytes, properties).unwrap(), plain);
            assert!(bytes < 1000 || compressed.len() < plain.len() / 10);
            assert!(expand(&compressed[..compressed.len() / 2], bytes.max(1), properties).is_err());
        }
        assert!(expand(&[0; 100], u32::MAX, 0).is_err() && expand(&[0; 100], 10, 255).is_err());
    }
}
