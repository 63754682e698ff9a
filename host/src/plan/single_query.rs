//! A single query of each head, as in decoding: heads that share keys and values become rows of one tile.

use super::ForwardPointers;
use crate::problem::{ForwardProblem, Layout, Mask, ValidForward};
use kernels_gpu::abi::{MAX_ROWS, WINDOW_OPEN};
use std::ops::Range;

/// The same forward pass with the query heads of a key head as queries, which read its keys once, and only
/// those that a mask shows; `None` unless there is one query in each batch, of several heads to a key head,
/// or where it is unwanted.
///
/// A tile takes as long for one query as for all that it has room for. lse stands in memory as it would
/// anyway: `[B, Hq, 1]` is `[B, Hk, Hq / Hk]`.
pub(super) fn heads_as_rows(
    valid: &ValidForward,
    pointers: &ForwardPointers,
) -> Option<(ValidForward, ForwardPointers)> {
    let &ValidForward { group_size, .. } = valid;
    let is_unwanted = valid.problem.pack_gqa == Some(false);
    if is_unwanted
        || valid.is_packed()
        || valid.query_rows != 1
        || group_size == 1
        || of_heads(valid)
        || group_size > MAX_ROWS
    {
        return None;
    }
    let keys = visible_keys(valid);
    Some((gathered(valid, &keys), places(valid, pointers, &keys)))
}

/// Whether scores have what is each head's own, or each key's, which rows and keys of another number would
/// not find.
fn of_heads(valid: &ValidForward) -> bool {
    let ForwardProblem { bias, attn_mask, alibi, has_sinks, .. } = valid.problem;
    bias.is_some() || attn_mask.is_some() || alibi.is_some() || has_sinks || valid.dropout().is_some()
}

/// The problem, with the heads of a key head as queries, all of which see these keys and no others.
fn gathered(valid: &ValidForward, keys: &Range<u32>) -> ValidForward {
    // Every field has a name here: of one that is new it must be said what it becomes.
    let &ValidForward {
        problem:
            ForwardProblem {
                q,
                k,
                v,
                o,
                dtype,
                output_dtype,
                scale: asked_scale,
                softcap: asked_softcap,
                mask: _,
                bias,
                attn_mask,
                alibi,
                has_sinks,
                dropout,
                sequences,
                wants_lse,
                num_splits,
                pack_gqa,
                precision,
            },
        batches,
        query_rows: _,
        key_rows: _,
        query_heads: _,
        key_heads,
        group_size,
        head_dim,
        value_dim,
        bottom_right: _,
        window_left: _,
        window_right: _,
        scale,
        softcap,
    } = valid;
    let of_keys = |layout: Layout| {
        let [batches, _, heads, columns] = layout.shape;
        Layout { shape: [batches, keys.len(), heads, columns], strides: layout.strides }
    };
    let rows = |layout: Layout| {
        let [batches, _, _, columns] = layout.shape;
        let [batch, _, head, column] = layout.strides;
        Layout {
            shape: [batches, group_size as usize, key_heads as usize, columns],
            strides: [batch, head, head.wrapping_mul(i64::from(group_size)), column],
        }
    };
    ValidForward {
        problem: ForwardProblem {
            q: rows(q),
            k: of_keys(k),
            v: of_keys(v),
            o: rows(o),
            dtype,
            output_dtype,
            scale: asked_scale,
            softcap: asked_softcap,
            mask: Mask::Full,
            bias,
            attn_mask,
            alibi,
            has_sinks,
            dropout,
            sequences,
            wants_lse,
            num_splits,
            pack_gqa,
            precision,
        },
        batches,
        query_rows: group_size,
        key_rows: keys.len() as u32,
        query_heads: key_heads,
        key_heads,
        group_size: 1,
        head_dim,
        value_dim,
        bottom_right: false,
        window_left: WINDOW_OPEN,
        window_right: WINDOW_OPEN,
        scale,
        softcap,
    }
}

/// Where its tensors stand: keys and values begin with the first of these keys.
fn places(valid: &ValidForward, pointers: &ForwardPointers, keys: &Range<u32>) -> ForwardPointers {
    let &ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score } = pointers;
    let problem = &valid.problem;
    let first_key = |address: u64, layout: &Layout| {
        let stride = layout.strides[1].wrapping_mul(i64::from(problem.dtype.bytes()));
        address.wrapping_add_signed(stride.wrapping_mul(i64::from(keys.start)))
    };
    let (k, v) = (first_key(k, &problem.k), first_key(v, &problem.v));
    ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score }
}

/// The keys that the first query sees.
fn visible_keys(valid: &ValidForward) -> Range<u32> {
    let key_rows = i64::from(valid.key_rows);
    let diagonal = if valid.bottom_right { key_rows - i64::from(valid.query_rows) } else { 0 };
    let side = |keys: i32| if keys == WINDOW_OPEN { i64::MAX / 2 } else { i64::from(keys) };
    let begin = (diagonal - side(valid.window_left)).clamp(0, key_rows);
    let end = (diagonal + side(valid.window_right) + 1).clamp(begin, key_rows);
    begin as u32..end as u32
}
