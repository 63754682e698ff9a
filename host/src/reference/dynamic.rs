//! Which keys a dynamic mask keeps: a plain sort of each row.

use super::{OverScores, Sizes};
use crate::problem::{DynamicMask, DynamicRule};

/// The boolean mask that a dynamic one becomes, and its shape, `[batch, head, query, key]` with all keys:
/// `docs/semantics.md`, section 4. `lowest` is the lowest finite number of the bias's type.
///
/// # Panics
/// If the shapes do not fit together.
pub fn dynamic_mask(
    sizes: &Sizes,
    mask: &DynamicMask,
    bias: &OverScores<'_, f32>,
    lowest: f32,
    padding: Option<&OverScores<'_, bool>>,
) -> ([usize; 4], Vec<bool>) {
    let keys = sizes.key_rows;
    let of_padding = padding.map_or([1; 4], |padding| padding.shape);
    let shape = [0, 1, 2].map(|at| match (bias.shape[at], of_padding[at]) {
        (1, other) | (other, 1) => other,
        (one, other) => one.max(other),
    });
    let [batches, heads, queries] = shape;
    let mut kept = Vec::with_capacity(batches * heads * queries * keys);
    for row in 0..batches * heads * queries {
        let (query, pair) = (row % queries, row / queries);
        let (head, batch) = (pair % heads, pair / heads);
        // A head of the result as one of the problem's query heads.
        let query_head = if heads == 1 { 0 } else { head * (sizes.query_heads / heads) };
        let rows = if queries == 1 { 0..sizes.query_rows } else { query..query + 1 };
        let number = |key: usize| {
            let head = bias.head(query_head, sizes.query_heads);
            bias.values[bias.place([batch, head, query, key])]
        };
        let shows = |key: usize| {
            padding.is_none_or(|padding| {
                let head = padding.head(query_head, sizes.query_heads);
                padding.values[padding.place([batch, head, query, key])]
            })
        };
        let is_seen = |key: usize| {
            shows(key) && rows.clone().any(|query| sizes.visible_keys(query).contains(&key))
        };
        let is_candidate = |key: &usize| {
            let number = number(*key);
            is_seen(*key) && (number.is_nan() || number > lowest)
        };
        let candidates = (0..keys).filter(is_candidate);
        let chosen = match mask.rule {
            DynamicRule::TopK { window } if keys <= window => vec![true; keys],
            DynamicRule::TopK { window } => {
                let mut order: Vec<usize> = candidates.collect();
                // NaN first, then from large to small; what is equal stays in order.
                order.sort_by(|&a, &b| {
                    let (a, b) = (number(a), number(b));
                    b.is_nan()
                        .cmp(&a.is_nan())
                        .then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
                });
                order.truncate(window);
                of_indices(keys, order)
            }
            DynamicRule::Relu => {
                let is_kept = |key: &usize| number(*key).is_nan() || number(*key) > 0.0;
                of_indices(keys, candidates.filter(is_kept).collect())
            }
        };
        let smoothed = smoothed(&chosen, mask.block_size);
        kept.extend(smoothed.into_iter().enumerate().map(|(key, kept)| kept && shows(key)));
    }
    ([batches, heads, queries, keys], kept)
}

fn of_indices(keys: usize, indices: Vec<usize>) -> Vec<bool> {
    let mut kept = vec![false; keys];
    indices.into_iter().for_each(|key| kept[key] = true);
    kept
}

/// Blocks that are kept whole if more than half of them is.
fn smoothed(chosen: &[bool], block_size: usize) -> Vec<bool> {
    let block = |block: &[bool]| {
        let count = block.iter().filter(|&&kept| kept).count();
        vec![2 * count > block.len(); block.len()]
    };
    chosen.chunks(block_size).flat_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{CausalAlignment, Mask};

    fn sizes(query_rows: usize, key_rows: usize, mask: Mask) -> Sizes {
        Sizes {
            batches: 1,
            query_rows,
            key_rows,
            query_heads: 2,
            key_heads: 1,
            head_dim: 1,
            value_dim: 1,
            scale: 1.0,
            softcap: None,
            mask,
        }
    }

    fn kept(sizes: &Sizes, mask: DynamicMask, shape: [usize; 4], values: &[f32]) -> String {
        let bias = OverScores { shape, values };
        let (_, kept) = dynamic_mask(sizes, &mask, &bias, f32::MIN, None);
        let rows = kept.chunks(sizes.key_rows);
        let text =
            |row: &[bool]| row.iter().map(|&kept| if kept { '#' } else { '.' }).collect::<String>();
        rows.map(text).collect::<Vec<_>>().join(" ")
    }

    fn row(mask: DynamicMask, values: &[f32]) -> String {
        kept(&sizes(1, values.len(), Mask::Full), mask, [1, 1, 1, values.len()], values)
    }

    #[test]
    fn the_largest_are_kept_and_the_first_of_equal_ones() {
        assert_eq!(row(DynamicMask::top_k(2), &[1.0, 3.0, 2.0, 3.0]), ".#.#");
        assert_eq!(row(DynamicMask::top_k(3), &[2.0, 2.0, 1.0, 2.0, 2.0]), "##.#.");
        assert_eq!(row(DynamicMask::top_k(1), &[-0.0, 0.0, -1.0]), "#..");
        assert_eq!(row(DynamicMask::top_k(2), &[1.0, f32::INFINITY, -f32::NAN, 2.0]), ".##.");
    }

    #[test]
    fn the_lowest_number_is_kept_only_where_nothing_is_chosen() {
        let low = f32::MIN;
        assert_eq!(row(DynamicMask::top_k(3), &[low, 1.0, low, f32::NEG_INFINITY]), ".#..");
        assert_eq!(row(DynamicMask::top_k(4), &[low, 1.0, low, f32::NEG_INFINITY]), "####");
        assert_eq!(row(DynamicMask::top_k(9), &[low, 1.0]), "##");
    }

    #[test]
    fn relu_keeps_what_is_above_zero() {
        assert_eq!(row(DynamicMask::relu(), &[-1.0, 0.0, -0.0, 1e-40, f32::NAN]), "...##");
    }

    #[test]
    fn blocks_are_kept_if_more_than_half_of_them_is() {
        let values = [1.0, 2.0, -1.0, -1.0, 3.0, 4.0, 5.0, -1.0, 1.0];
        assert_eq!(row(DynamicMask::relu().with_block_size(4), &values), "....#####");
        assert_eq!(row(DynamicMask::top_k(8).with_block_size(2), &[1.0; 9]), "########.");
        assert_eq!(
            row(DynamicMask::top_k(2).with_block_size(3), &[1.0, 0.0, 1.0, 0.0, 0.5, 0.0]),
            "###..."
        );
    }

    #[test]
    fn hidden_keys_are_not_chosen() {
        let causal = Mask::Causal(CausalAlignment::TopLeft);
        let values = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0];
        let text = kept(&sizes(3, 3, causal), DynamicMask::top_k(1), [1, 1, 3, 3], &values);
        assert_eq!(text, "#.. .#. ..#");
        // One row for all: the last query sees all three, and no query the fourth.
        let text =
            kept(&sizes(3, 4, causal), DynamicMask::top_k(1), [1, 1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(text, "..#.");
        let padding = OverScores { shape: [1, 1, 1, 3], values: &[true, true, false] };
        let bias = OverScores { shape: [1, 1, 1, 3], values: &[1.0, 2.0, 3.0] };
        let of = |mask| dynamic_mask(&sizes(1, 3, Mask::Full), &mask, &bias, f32::MIN, Some(&padding)).1;
        assert_eq!(of(DynamicMask::top_k(1)), [false, true, false]);
        assert_eq!(of(DynamicMask::top_k(5)), [true, true, false]);
        assert_eq!(of(DynamicMask::relu().with_block_size(3)), [true, true, false]);
    }
}
