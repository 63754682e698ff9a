//! What both passes are asked for beside their tensors.

use crate::error::{Failure, Result};
use finite_attention::{CausalAlignment, Mask, Mode, Precision, Sequences};
use pyo3::{pyclass, pyfunction, pymethods};

/// Options of attention: see `finite_attention.attention`.
#[pyclass(frozen, module = "finite_attention._native")]
pub struct Options {
    pub mask: Mask,
    pub scale: Option<f32>,
    pub softcap: Option<f32>,
    /// Rate, seed and offset.
    pub dropout: Option<(f32, u64, u64)>,
    pub mode: Mode,
    pub num_splits: Option<u32>,
    pub pack_gqa: Option<bool>,
    pub precision: Option<Precision>,
    /// The most rows of q and of k of a packed sequence; `None` if sequences are not packed.
    pub longest: Option<(usize, usize)>,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (
        *, causal = false, top_left = false, window = (None, None), scale = None, softcap = None,
        dropout = None, deterministic = false, num_splits = None, pack_gqa = None, precision = None,
        longest = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn new(
        causal: bool,
        top_left: bool,
        window: (Option<i64>, Option<i64>),
        scale: Option<f32>,
        softcap: Option<f32>,
        dropout: Option<(f32, u64, u64)>,
        deterministic: bool,
        num_splits: Option<u32>,
        pack_gqa: Option<bool>,
        precision: Option<&str>,
        longest: Option<(usize, usize)>,
    ) -> Result<Self> {
        let mask = mask(causal, top_left, window)?;
        let mode = if deterministic { Mode::Deterministic } else { Mode::Fast };
        let precision = precision.map(named_precision).transpose()?;
        Ok(Options { mask, scale, softcap, dropout, mode, num_splits, pack_gqa, precision, longest })
    }
}

/// How products of f32 are made, by its name.
fn named_precision(name: &str) -> Result<Precision> {
    let named = Precision::ALL.into_iter().find(|precision| precision.name() == name);
    named.ok_or_else(|| {
        Failure::argument(format!("precision: expected 'fast3', 'fma' or None, got '{name}'"))
    })
}

/// Which keys a query sees.
fn mask(causal: bool, top_left: bool, window: (Option<i64>, Option<i64>)) -> Result<Mask> {
    let alignment = if top_left { CausalAlignment::TopLeft } else { CausalAlignment::BottomRight };
    let (left, right) = (side(window.0)?, side(window.1)?);
    let mask = match (causal, left, right) {
        // A full mask has no alignment of its own: distances of ALiBi need one.
        (false, None, None) if top_left => Mask::Window { left: None, right: None, alignment },
        (false, None, None) => Mask::Full,
        (true, None, None) => Mask::Causal(alignment),
        _ => Mask::Window { left, right, alignment },
    };
    Ok(if causal { mask.and_causal() } else { mask })
}

/// Keys of a side of the window. More than any sequence has are all.
fn side(keys: Option<i64>) -> Result<Option<u32>> {
    match keys {
        Some(got) if got < 0 => Err(Failure::argument(format!(
            "window: expected None or at least 0 on each side, got {got}"
        ))),
        keys => Ok(keys.and_then(|keys| u32::try_from(keys).ok())),
    }
}

/// The most rows of q and of k that a packed sequence has, by these offsets on the host, which are checked;
/// with the most that the caller says, these.
#[pyfunction]
pub fn longest_sequences(
    cu_seqlens_q: Vec<i32>,
    cu_seqlens_k: Vec<i32>,
    rows: (usize, usize),
    said: (Option<usize>, Option<usize>),
) -> Result<(usize, usize)> {
    let sequences = match Sequences::from_offsets(&cu_seqlens_q, &cu_seqlens_k)? {
        Sequences::Strided => Sequences::Strided,
        Sequences::Packed { count, max_query_rows, max_key_rows } => Sequences::Packed {
            count,
            max_query_rows: said.0.unwrap_or(max_query_rows),
            max_key_rows: said.1.unwrap_or(max_key_rows),
        },
    };
    sequences.check_offsets(rows.0, rows.1, &cu_seqlens_q, &cu_seqlens_k)?;
    match sequences {
        Sequences::Strided => Ok(rows),
        Sequences::Packed { max_query_rows, max_key_rows, .. } => Ok((max_query_rows, max_key_rows)),
    }
}
