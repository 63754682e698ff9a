//! Sequences of different lengths, packed one after another.

use crate::error::{Error, Result};
use kernels_gpu::abi::MAX_ROWS;

/// How the sequences of a problem stand in its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sequences {
    /// One per batch, all of the same lengths.
    #[default]
    Strided,
    /// One after another along the rows ("varlen"). The tensors have a batch size of 1 (see
    /// [`crate::Layout::packed`]): q `[Tq, Hq, D]`, k `[Tk, Hk, D]`, v `[Tk, Hk, Dv]`, lse `[Hq, Tq]`.
    /// Where each begins say `cu_seqlens_q` and `cu_seqlens_k`: offsets (i32) that ascend from 0 to Tq
    /// or Tk.
    Packed {
        /// B: how many sequences, one less than the offsets.
        count: usize,
        /// No sequence of q is longer; may be larger than the longest, at most 1,073,741,568.
        max_query_rows: usize,
        /// No sequence of k is longer; may be larger than the longest, at most 1,073,741,568.
        max_key_rows: usize,
    },
}

impl Sequences {
    /// Packed as these offsets say: how many, and the longest.
    ///
    /// # Errors
    /// [`Error::OffsetCount`] and [`Error::Offset`], unless both ascend from 0 and are as many.
    pub fn from_offsets(cu_seqlens_q: &[i32], cu_seqlens_k: &[i32]) -> Result<Self> {
        let count = cu_seqlens_q.len().saturating_sub(1);
        let longest = |argument, offsets: &[i32]| -> Result<usize> {
            check_count(argument, count, offsets)?;
            check_ascending(argument, offsets)?;
            Ok(lengths(offsets).max().unwrap_or(0))
        };
        let max_query_rows = longest("cu_seqlens_q", cu_seqlens_q)?;
        Ok(Sequences::Packed {
            count,
            max_query_rows,
            max_key_rows: longest("cu_seqlens_k", cu_seqlens_k)?,
        })
    }

    /// Checks the offsets on the host: as many as there should be, from 0 to the rows that are there,
    /// ascending, no sequence longer than was said. Without packed sequences there must be none.
    ///
    /// # Errors
    /// [`Error::OffsetCount`], [`Error::Offset`], [`Error::SequenceTooLong`].
    pub fn check_offsets(
        &self,
        query_rows: usize,
        key_rows: usize,
        cu_seqlens_q: &[i32],
        cu_seqlens_k: &[i32],
    ) -> Result<()> {
        let tensors =
            [("cu_seqlens_q", query_rows, cu_seqlens_q), ("cu_seqlens_k", key_rows, cu_seqlens_k)];
        let Sequences::Packed { count, max_query_rows, max_key_rows } = *self else {
            return match tensors.into_iter().find(|(.., offsets)| !offsets.is_empty()) {
                None => Ok(()),
                Some((argument, _, offsets)) => {
                    Err(Error::OffsetCount { argument, expected: 0, got: offsets.len() })
                }
            };
        };
        for ((argument, rows, offsets), max) in tensors.into_iter().zip([max_query_rows, max_key_rows]) {
            check_count(argument, count, offsets)?;
            check_ascending(argument, offsets)?;
            let last = offsets.len() - 1;
            if offsets[last] as usize != rows {
                let expected = format!("{rows} like the rows that are there");
                return Err(Error::Offset { argument, index: last, expected, got: offsets[last] });
            }
            if let Some((sequence, got)) = lengths(offsets).enumerate().find(|&(_, length)| length > max)
            {
                return Err(Error::SequenceTooLong { argument, sequence, max, got });
            }
        }
        Ok(())
    }
}

/// Offsets of packed sequences of q and of k, checked, as host numbers.
///
/// # Errors
/// [`Error::OffsetCount`] and [`Error::Offset`], unless both ascend from 0 and are as many.
pub(crate) fn sequence_offsets(
    cu_seqlens_q: &[i32],
    cu_seqlens_k: &[i32],
) -> Result<(Vec<usize>, Vec<usize>)> {
    Sequences::from_offsets(cu_seqlens_q, cu_seqlens_k)?;
    let numbers = |offsets: &[i32]| offsets.iter().map(|&offset| offset as usize).collect();
    Ok((numbers(cu_seqlens_q), numbers(cu_seqlens_k)))
}

/// No sequence has more rows than kernels can count.
pub(super) fn check_row_count(
    argument: &'static str,
    dimension: &'static str,
    got: usize,
) -> Result<()> {
    let max = u64::from(MAX_ROWS);
    if got as u64 <= max {
        return Ok(());
    }
    Err(Error::SizeRange { argument, dimension, min: 0, max, got })
}

fn check_count(argument: &'static str, count: usize, offsets: &[i32]) -> Result<()> {
    // No slice is as long as the largest number: what saturates is refused.
    let (expected, got) = (count.saturating_add(1), offsets.len());
    if got == expected { Ok(()) } else { Err(Error::OffsetCount { argument, expected, got }) }
}

/// Of at least one offset: the first is 0, and none is smaller than the one before.
fn check_ascending(argument: &'static str, offsets: &[i32]) -> Result<()> {
    let wrong =
        |index: usize, expected| Err(Error::Offset { argument, index, expected, got: offsets[index] });
    if offsets[0] != 0 {
        return wrong(0, "0".to_owned());
    }
    match offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        None => Ok(()),
        Some(index) => wrong(index + 1, format!("at least {}, the one before", offsets[index])),
    }
}

/// Of ascending offsets from 0.
fn lengths(offsets: &[i32]) -> impl Iterator<Item = usize> {
    offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize)
}
