//! The lengths of one sequence, read once per block.

use crate::abi::TensorView;
use crate::arch::{global, math};
use crate::geometry::visible::Visible;
use crate::tile::global_rows::GlobalRows;

/// What the launch parameters say of all sequences.
#[derive(Clone, Copy)]
pub struct Sequences {
    /// Device address of B + 1 offsets of the sequences in q's packed rows, i32; 0 when nothing is
    /// packed.
    pub cu_seqlens_q: u64,
    /// The same for k and v.
    pub cu_seqlens_k: u64,
    /// Query rows of each sequence, when nothing is packed.
    pub query_rows: u32,
    /// Key rows of each sequence, when nothing is packed.
    pub key_rows: u32,
    /// 1: the last query is aligned with the last key; 0: the first with the first.
    pub bottom_right: u32,
    /// Keys visible to the left of the diagonal.
    pub window_left: i32,
    /// Keys visible to the right of the diagonal.
    pub window_right: i32,
}

/// One sequence.
#[derive(Clone, Copy)]
pub struct Sequence {
    /// Batch in strided tensors; 0 in packed ones.
    pub batch: u32,
    /// First row in packed q, o and their gradients.
    pub first_query: i32,
    /// First row in packed k, v and their gradients, and of a range of keys.
    pub first_key: i32,
    /// Its queries.
    pub query_rows: i32,
    /// Which keys a query sees, and how many keys there are.
    pub visible: Visible,
}

impl Sequence {
    /// Sequence `batch`.
    ///
    /// # Safety
    /// The offsets are readable, ascend from 0, and end at the packed tensors' rows.
    #[inline(always)]
    pub unsafe fn new(of: &Sequences, batch: u32) -> Self {
        let mut sequence = (batch, 0, 0, of.query_rows as i32, of.key_rows as i32);
        if of.cu_seqlens_q != 0 {
            let q = of.cu_seqlens_q.wrapping_add(4 * batch as u64);
            let k = of.cu_seqlens_k.wrapping_add(4 * batch as u64);
            let (first_query, first_key) = (global::load_u32(q) as i32, global::load_u32(k) as i32);
            let (last_query, last_key) =
                (global::load_u32(q.wrapping_add(4)) as i32, global::load_u32(k.wrapping_add(4)) as i32);
            sequence = (0, first_query, first_key, last_query - first_query, last_key - first_key);
        }
        let (batch, first_query, first_key, query_rows, key_rows) = sequence;
        let diagonal = if of.bottom_right != 0 { key_rows - query_rows } else { 0 };
        let visible = Visible { key_rows, diagonal, left: of.window_left, right: of.window_right };
        Sequence { batch, first_query, first_key, query_rows, visible }
    }

    /// The same queries with the (at most) `count` keys from `first` on alone: these are its keys 0, 1, ...,
    /// and each query is aligned with the key that it was aligned with.
    #[inline(always)]
    pub fn of_keys(mut self, first: i32, count: i32) -> Self {
        let left = self.visible.key_rows - first;
        self.visible.key_rows = if left < count { left } else { count };
        self.visible.diagonal -= first;
        self.first_key += first;
        self
    }

    /// Whether there is range `range` of its keys, which are those of this range alone: where sequences have
    /// different lengths, not all have as many ranges as the longest.
    #[inline(always)]
    pub fn has_range(&self, range: u32) -> bool {
        range == 0 || self.visible.key_rows > 0
    }

    /// Rows of q, o or their gradients, from row `first_row` of the sequence on.
    #[inline(always)]
    pub fn query_rows<const ELEMENT_BYTES: i64>(
        &self,
        view: &TensorView,
        head: u32,
        first_row: i32,
        columns: u32,
    ) -> GlobalRows {
        let start =
            GlobalRows::address::<ELEMENT_BYTES>(view, self.batch, head, self.first_query + first_row);
        GlobalRows::new::<ELEMENT_BYTES>(view, start, self.query_rows - first_row, columns)
    }

    /// Rows of k, v or their gradients, from row `first_row` of the sequence on.
    #[inline(always)]
    pub fn key_rows<const ELEMENT_BYTES: i64>(
        &self,
        view: &TensorView,
        head: u32,
        first_row: i32,
        columns: u32,
    ) -> GlobalRows {
        let start =
            GlobalRows::address::<ELEMENT_BYTES>(view, self.batch, head, self.first_key + first_row);
        GlobalRows::new::<ELEMENT_BYTES>(view, start, self.visible.key_rows - first_row, columns)
    }
}

/// Rows of a packed sequence that there is, by the offsets at `offsets`.
///
/// # Safety
/// As [`Sequence::new`].
#[inline(always)]
pub unsafe fn length(offsets: u64, sequence: u32) -> u32 {
    let offset = offsets.wrapping_add(4 * sequence as u64);
    global::load_u32(offset.wrapping_add(4)) - global::load_u32(offset)
}

/// How many ranges of `split_keys` keys a packed sequence of `keys` keys is worked on in: one, if it has no
/// key.
#[inline(always)]
pub fn ranges(keys: u32, split_keys: u32) -> u32 {
    let ranges = math::divide(keys + (split_keys - 1), split_keys);
    if ranges == 0 { 1 } else { ranges }
}
