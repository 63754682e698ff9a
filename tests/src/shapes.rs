//! Cases that together go through every part of a kernel.

use crate::ptx::spec;
use finite_attention::check::{
    BiasFeature, BiasValues, Case, Dimensions, Features, Gradients, MaskFeature, Placement, ScoreHeads,
    ScorePlacement,
};
use finite_attention::problem::AlibiSlopes;
use finite_attention::{CausalAlignment, Dtype, Mask, Mode, Precision};
use kernels_gpu::abi::{Access, Arch, Family, KERNELS, KernelSpec, MAX_SPLITS};
use std::iter::once;
use std::ops::Range;

/// Whether there is a kernel for Hopper that takes more query rows, and is planned unless these are few more than
/// whole tiles, or many short of them, in rows on 32 bytes.
pub fn is_short(spec: &KernelSpec) -> bool {
    spec.family == Family::Forward
        && spec.arch == Arch::Sm90a
        && KERNELS
            .iter()
            .any(|other| other.is_alternative_to(spec) && other.query_rows > spec.query_rows)
}

/// What is asked for so that a kernel is planned: those of f32 on tensor cores, and those that make their operands,
/// are not for so little to do.
pub fn precision(spec: &KernelSpec) -> Option<Precision> {
    let makes_parts = matches!(spec.family, Family::MeasureOperands | Family::SplitOperands);
    (makes_parts || spec.multiplies_parts).then_some(Precision::Fast3)
}

/// Three key tiles and two query tiles, or of 192 keys and 64 queries three, both ragged, D and Dv below those of
/// the kernel, causal.
pub fn ragged(kernel: &str) -> Case {
    let spec = spec(kernel);
    let rows = spec.query_rows as usize;
    let placement = if is_short(spec) { Placement::Spaced } else { Placement::Padded };
    Case {
        query_rows: match spec.key_rows {
            _ if is_short(spec) => 2 * rows - 9,
            192 => 2 * rows + 23,
            _ => rows + 9,
        },
        key_rows: 2 * spec.key_rows as usize + 13,
        head_dim: spec.head_dim as usize - 4,
        value_dim: spec.head_dim as usize - 12,
        dtype: spec.dtype,
        output_dtype: spec.dtype,
        mask: Mask::Causal(CausalAlignment::BottomRight),
        gradients: (!matches!(spec.family, Family::Forward | Family::ForwardCombine)).then_some(
            Gradients {
                dtype: spec.dtype,
                has_d_lse: true,
                mode: if spec.arch == Arch::Sm90a { Mode::Fast } else { Mode::Deterministic },
            },
        ),
        placement: if spec.access == Access::Element { Placement::Unaligned } else { placement },
        pack_gqa: Some(spec.gathers_heads),
        precision: precision(spec),
        ..Case::small()
    }
}

/// Several heads with full query tiles, and one with rows for its first warpgroup only: with a block for all of
/// them each stands before and behind the other.
pub fn several_tiles(kernel: &str) -> Case {
    let spec = spec(kernel);
    let full_tiles = if is_short(spec) { 3 } else { 1 };
    Case {
        query_rows: full_tiles * spec.query_rows as usize + 8,
        key_rows: 5 * spec.key_rows as usize + 60,
        query_heads: 4,
        key_heads: if spec.gathers_heads { 1 } else { 4 },
        batches: 2,
        mask: Mask::Full,
        ..ragged(kernel)
    }
}

/// Six key tiles of one step each: what a backward kernel orders follows each other closely.
pub fn many_key_tiles(kernel: &str) -> Case {
    let spec = spec(kernel);
    let (query_rows, key_rows) = (spec.query_rows as usize - 4, 6 * spec.key_rows as usize - 68);
    Case { query_rows, key_rows, query_heads: 1, mask: Mask::Full, ..ragged(kernel) }
}

/// The same for one head, with gradients that are to be the same in every run: key tiles add to dq one after the
/// other. None for a forward kernel.
pub fn many_key_tiles_in_order(kernel: &str) -> Option<Case> {
    let case = many_key_tiles(kernel);
    let gradients = Gradients { mode: Mode::Deterministic, ..case.gradients? };
    Some(Case { gradients: Some(gradients), batches: 1, key_heads: 1, ..case })
}

/// The same of a packed sequence of whole tiles, for which there is nothing to repair.
pub fn nothing_to_repair(kernel: &str) -> Case {
    let spec = spec(kernel);
    let (query_rows, key_rows) = (spec.query_rows as usize, 6 * spec.key_rows as usize);
    Case { packed: true, batches: 1, query_rows, key_rows, ..many_key_tiles(kernel) }
}

/// Whether plans take another kernel where there is a boolean mask: one whose tiles are of 64 or 128 rows.
fn gives_way_to_masks(spec: &KernelSpec) -> bool {
    let is_alone = !KERNELS.iter().any(|other| {
        let problems = |spec: &KernelSpec| {
            let KernelSpec { family, arch, dtype, access, head_dim, .. } = *spec;
            (family, arch, dtype, access, head_dim, spec.gathers_heads, spec.multiplies_parts)
        };
        problems(other) == problems(spec) && other.name != spec.name
    });
    !is_alone && [spec.query_rows, spec.key_rows].iter().any(|rows| ![64, 128].contains(rows))
}

/// The case with a bias in its element type that batches share, `[1, Hq, Sq, Sk]`, and nothing else that scores can have.
/// `has_gradient`: it has one, of the same type, where the case has gradients.
pub fn with_shared_bias(case: Case, has_gradient: bool) -> Case {
    let bias = BiasFeature {
        dtype: case.dtype,
        dimensions: Dimensions { batches: false, ..Dimensions::ALL },
        placement: ScorePlacement::Dense,
        values: BiasValues::Normal,
        gradient: has_gradient.then_some(case.dtype),
    };
    Case { features: Features { bias: Some(bias), ..Features::default() }, ..case }
}

/// Of a case for this kernel, a bias and a boolean mask that end where their memory ends, or at other times f32 with
/// queries side by side, slopes, sinks and dropout; with rows that see nothing.
fn with_features(kernel: &str, case: Case, in_f32: bool) -> Case {
    let dimensions = Dimensions { batches: true, heads: ScoreHeads::Query, queries: true, keys: true };
    let (dtype, placement, values) = if in_f32 {
        (Dtype::F32, ScorePlacement::Transposed, BiasValues::Normal)
    } else {
        (case.dtype, ScorePlacement::Padded, BiasValues::Hiding)
    };
    let bias = BiasFeature { dtype, dimensions, placement, values, gradient: None };
    let placement = ScorePlacement::Dense;
    let mask = MaskFeature { dimensions, placement, density: 0.7, block: 1, has_dead_rows: true };
    let features = Features {
        bias: Some(bias),
        mask: (!gives_way_to_masks(spec(kernel))).then_some(mask),
        alibi: in_f32.then_some(AlibiSlopes::PerBatchAndHead),
        has_sinks: in_f32,
        wants_d_sinks: false,
        // Not where heads are worked on together.
        dropout: (in_f32 && case.pack_gqa != Some(true)).then_some(0.3),
        dynamic_mask: None,
    };
    Case { features, tight: true, ..case }
}

/// Of a case, such of which the last row is a lane's first one, and so is the last key; and of a forward, rows that a
/// mask or a bias hides all keys from: all, and those of a window among keys that are shown.
fn featured_at_edges(kernel: &str, case: &Case) -> Vec<Case> {
    let mut cases = vec![];
    let featured = [false, true].map(|in_f32| with_features(kernel, case.clone(), in_f32));
    for case in featured {
        let (query_rows, key_rows) = (case.query_rows / 16 * 16 + 1, case.key_rows / 16 * 16 + 1);
        let bias = case.features.bias.map(|b| BiasFeature { placement: ScorePlacement::Padded, ..b });
        let features = Features { bias, ..case.features };
        let first = Case { query_rows, key_rows, mask: Mask::Full, features, ..case.clone() };
        cases.extend([Case { softcap: Some(2.0), ..first.clone() }, first.clone()]);
        if case.gradients.is_none() {
            let mask = features.mask.map(|mask| MaskFeature { density: 0.0, ..mask });
            let window =
                Mask::Window { left: Some(2), right: Some(0), alignment: CausalAlignment::TopLeft };
            cases.push(Case { features: Features { mask, ..features }, ..first });
            cases.push(Case { mask: window, ..case });
        }
    }
    cases
}

/// [`ragged`] with a bias in its element type and a boolean mask.
pub fn featured(kernel: &str) -> Case {
    with_features(kernel, ragged(kernel), false)
}

/// [`several_tiles`] of whole rows, with a bias in its element type and a boolean mask.
pub fn featured_in_several_tiles(kernel: &str) -> Case {
    let dim = spec(kernel).head_dim as usize;
    with_features(kernel, Case { head_dim: dim, value_dim: dim, ..several_tiles(kernel) }, false)
}

/// Several tiles either way, under a boolean mask of blocks of 64 of which half are hidden, and nothing else.
pub fn of_blocks(kernel: &str) -> Case {
    let spec = spec(kernel);
    let dimensions = Dimensions { batches: true, heads: ScoreHeads::Query, queries: true, keys: true };
    let placement = ScorePlacement::Dense;
    let mask = MaskFeature { dimensions, placement, density: 0.5, block: 64, has_dead_rows: true };
    Case {
        query_rows: 3 * spec.query_rows as usize + 9,
        key_rows: 5 * spec.key_rows as usize + 13,
        mask: Mask::Full,
        features: Features { mask: Some(mask), ..Features::default() },
        ..ragged(kernel)
    }
}

/// Several tiles before, on and behind the diagonal, with slopes of ALiBi and nothing else.
pub fn sloped(kernel: &str) -> Case {
    let (spec, ragged) = (spec(kernel), ragged(kernel));
    let rows = 2 * spec.query_rows as usize + 9;
    Case {
        query_rows: if is_short(spec) { ragged.query_rows } else { rows },
        key_rows: 4 * spec.key_rows as usize + 13,
        mask: Mask::Full,
        features: Features { alibi: Some(AlibiSlopes::PerHead), ..Features::default() },
        ..ragged
    }
}

/// [`sloped`], causal, and under a boolean mask whose last row and last key are a lane's first ones, if plans take the
/// kernel for masks.
fn sloped_and_hidden(kernel: &str) -> Vec<Case> {
    let sloped = sloped(kernel);
    let causal = Case { mask: ragged(kernel).mask, ..sloped.clone() };
    let (query_rows, key_rows) = (sloped.query_rows / 16 * 16 + 1, sloped.key_rows / 16 * 16 + 1);
    let features = Features { mask: featured_in_f32(kernel).features.mask, ..sloped.features };
    let hidden = Case { query_rows, key_rows, features, tight: true, ..sloped.clone() };
    [sloped, causal].into_iter().chain(features.mask.is_some().then_some(hidden)).collect()
}

/// [`ragged`] with a bias in f32, a boolean mask, slopes, sinks and dropout.
pub fn featured_in_f32(kernel: &str) -> Case {
    with_features(kernel, ragged(kernel), true)
}

/// Rows of a tile are those of three heads, 42 queries, which leaves two rows of 128 to nobody, or of four heads, 32
/// queries; of two batches and two key heads, in two tiles or more, the last one not full. Causal, in ranges of keys,
/// packed, with a negative scale and capped scores, in f32, with odd columns, a bias alone, and queries that see nothing.
fn heads_together(kernel: &str) -> Vec<Case> {
    let dim = spec(kernel).head_dim as usize;
    let heads = |count: usize| Case {
        query_rows: 50,
        query_heads: 2 * count,
        key_heads: 2,
        batches: 2,
        num_splits: Some(1),
        ..ragged(kernel)
    };
    let (three, four) = (heads(3), heads(4));
    let full = Case { head_dim: dim, value_dim: dim, mask: Mask::Full, tight: true, ..four.clone() };
    let packed = Case { packed: true, batches: 5, seed: 3, ..three.clone() };
    let window = Mask::Window { left: Some(20), right: Some(3), alignment: CausalAlignment::TopLeft };
    let in_f32 = |case: &Case| Case { output_dtype: Dtype::F32, ..case.clone() };
    let odd = Case { value_dim: dim - 15, ..three.clone() };
    let dead = Case { mask: window, key_rows: 5, ..four.clone() };
    let of_one_head = |case: Case| Case { query_heads: 4, key_heads: 1, ..case };
    let mut cases = vec![three.clone(), full.clone(), with_shared_bias(full.clone(), false)];
    cases.extend(featured_at_edges(kernel, &three));
    cases.extend(sloped_and_hidden(kernel).into_iter().map(of_one_head));
    cases.extend([
        Case { num_splits: Some(3), ..three.clone() },
        Case { num_splits: Some(3), ..packed.clone() },
        Case { scale: Some(-0.2), softcap: Some(2.0), ..packed.clone() },
        Case { mask: Mask::Full, seed: 4, query_heads: 8, ..packed.clone() },
        in_f32(&three),
        in_f32(&odd),
        odd,
        // Whole chunks of 16 bytes, but not as many as a kernel has.
        Case { value_dim: dim - 8, ..three.clone() },
        Case { mask: window, key_rows: 40, ..four.clone() },
        Case { scale: Some(-0.2), tight: true, ..three.clone() },
        several_tiles(kernel),
        Case { batches: 34, query_rows: 4, ..packed.clone() },
        // The first tile sees nothing, or the last one, behind which there is nothing to write to.
        Case { key_rows: 5, ..three.clone() },
        dead.clone(),
        in_f32(&dead),
        in_f32(&Case { value_dim: 3, ..dead.clone() }),
        Case { value_dim: 3, ..dead },
        // The first tile sees nothing in any range of keys.
        of_one_head(Case {
            query_rows: three.key_rows + 40,
            num_splits: Some(3),
            batches: 1,
            ..three.clone()
        }),
        of_one_head(of_blocks(kernel)),
        Case { num_splits: Some(3), ..of_one_head(sloped(kernel)) },
        Case { key_rows: 0, ..four },
        Case { query_rows: 3, ..full },
        Case { features: Features { has_sinks: true, ..Features::default() }, ..three.clone() },
        Case { features: Features { has_sinks: true, ..Features::default() }, ..packed.clone() },
        with_features(kernel, Case { num_splits: Some(3), ..three }, true),
        with_features(kernel, packed, false),
    ]);
    cases
}

/// Rows of as many ranges as the kernel is for, few enough for it, with two heads. In 16 bits and in f32; with columns
/// of a lane, of two rounds of a warp, and odd ones; where rows start anywhere; with more ranges than lanes; packed, with
/// more sequences than lanes, of which some have no query, no key, or one range; with ranges that show nothing.
fn combined(kernel: &str) -> Vec<Case> {
    let KernelSpec { arch, query_rows, .. } = *spec(kernel);
    let (ranges, tile) =
        (if query_rows == 1 { 7 } else { 3 }, if arch == Arch::Sm80 { 64 } else { 128 });
    let base = Case {
        query_rows: 5,
        key_rows: (ranges - 1) * tile + 13,
        num_splits: Some(ranges as u32),
        mask: Mask::Causal(CausalAlignment::BottomRight),
        ..ragged(kernel)
    };
    let base = Case { head_dim: 60, value_dim: 52, placement: Placement::Padded, ..base };
    let in_f32 = |case: &Case| Case { output_dtype: Dtype::F32, ..case.clone() };
    let wide = Case { value_dim: 150, ..base.clone() };
    let packed = Case { packed: true, batches: 4, query_rows: 2, seed: 3, ..base.clone() };
    // As many as there can be but for two, so that the last lanes have none.
    let many = Case {
        key_rows: (MAX_SPLITS as usize - 3) * tile + 5,
        num_splits: Some(MAX_SPLITS),
        // Where a block has several rows these are too many for a block each.
        query_rows: if query_rows == 1 { 5 } else { 9 },
        ..base.clone()
    };
    let window = Mask::Window { left: Some(20), right: Some(3), alignment: CausalAlignment::TopLeft };
    let mut cases = vec![
        base.clone(),
        in_f32(&base),
        in_f32(&wide),
        wide,
        Case { value_dim: 3, ..base.clone() },
        in_f32(&Case { value_dim: 3, ..base.clone() }),
        Case { value_dim: 50, ..many.clone() },
        many,
        Case { batches: 2, query_rows: 3, softcap: Some(0.5), scale: Some(-0.2), ..base.clone() },
        Case { batches: 34, query_rows: 1, query_heads: 1, ..packed.clone() },
        packed,
        Case { mask: window, ..base.clone() },
    ];
    if arch == Arch::Sm80 {
        let anywhere = Case { placement: Placement::Unaligned, ..base };
        cases.extend([in_f32(&anywhere), anywhere]);
    }
    cases
}

/// Cases whose keys are taken apart, for kernels that merge: a key tile, none, seven keys, and the rest; of a backward,
/// whose gradients of keys every other pass adds to, so many that the last one is in either half of either of two
/// fragments. Columns are whole pairs, or odd, or few; the last row is in either half of a fragment; whole tiles see none
/// of the keys of a pass, behind a boolean mask or a window. Inputs and the state end where their memory ends.
pub fn in_parts(kernel: &str) -> Option<Vec<(Case, Vec<Range<usize>>)>> {
    let spec = spec(kernel);
    if !matches!(spec.family, Family::Forward | Family::Backward) || spec.multiplies_parts {
        return None;
    }
    let ragged = ragged(kernel);
    let few_keys: &[usize] = if ragged.gradients.is_some() { &[7, 14, 22, 30] } else { &[7] };
    let tile = spec.key_rows as usize;
    let rows = ragged.key_rows.max(tile + few_keys.iter().sum::<usize>() + 3);
    let mut end = tile;
    let few = few_keys.iter().flat_map(|keys| {
        let first = end;
        end += keys;
        [first..first, first..end]
    });
    let mut parts: Vec<_> = once(0..tile).chain(few).collect();
    parts.push(end..rows);
    let gradients = ragged.gradients.map(|gradients| Gradients { dtype: Dtype::F32, ..gradients });
    let pairs = Case { key_rows: rows, mask: Mask::Full, batches: 2, tight: true, gradients, ..ragged };
    let odd = spec.head_dim as usize - 15;
    let odd = Case { head_dim: odd, value_dim: odd, ..pairs.clone() };
    let few = Case { head_dim: 3, value_dim: 3, ..pairs.clone() };
    // The kernel is that of its head dim: few columns are of one of the two.
    let dim = spec.head_dim as usize;
    let few = [Case { head_dim: dim, ..few.clone() }, Case { value_dim: dim, ..few }];
    // Tiles that see nothing at all hand on what is there.
    let mut dead = with_features(kernel, pairs.clone(), false);
    dead.features.bias = None;
    dead.features.mask = dead.features.mask.map(|mask| MaskFeature { density: 0.0, ..mask });
    let dead = dead.features.mask.is_some().then_some(dead);
    // The last query is in the other half of a fragment than above. Queries from the eighth on, and of the next pass
    // from the fifteenth on, see keys of the last pass alone: whole tiles see nothing.
    let mask = Mask::Window { left: Some(0), right: None, alignment: CausalAlignment::TopLeft };
    let windows = few.clone().map(|few| Case { mask, query_rows: few.query_rows - 8, ..few });
    let others: Vec<_> = if spec.family == Family::Forward && !spec.splits_keys() {
        // A kernel that leaves no parts is that of the last pass alone. Whole tiles see nothing there, behind others and all of
        // them; the last query, and the last one that sees keys, is in either half of a fragment.
        let last = [vec![14..rows, 7..14, 0..7], vec![0..7, 7..rows, rows..rows]];
        let seeing = windows.clone().map(|case| (Case { mask: Mask::Full, ..case }, parts.clone()));
        let windows = windows.into_iter().chain(few.clone().map(|few| Case { mask, ..few }));
        let windows = windows.flat_map(|case| last.clone().map(|parts| (case.clone(), parts)));
        windows.chain(seeing).collect()
    } else {
        windows.map(|case| (case, vec![0..7, 7..14, 14..rows])).into()
    };
    let cases = [pairs, odd].into_iter().chain(few).chain(dead);
    Some(cases.map(|case| (case, parts.clone())).chain(others).collect())
}

/// [`ragged`], and what else the kernel can be asked: a negative scale, capped scores, outputs in f32, columns that fill
/// the tile, packed sequences, a window with rows that see nothing, odd columns, hardly any columns, tiles without keys, and inputs
/// that end where their memory ends.
pub fn cases(kernel: &str) -> Vec<Case> {
    if spec(kernel).gathers_heads {
        return heads_together(kernel);
    }
    if spec(kernel).family == Family::ForwardCombine {
        return combined(kernel);
    }
    let ragged = ragged(kernel);
    let dim = spec(kernel).head_dim as usize;
    let in_f32 = |case: Case| Case {
        output_dtype: Dtype::F32,
        gradients: case.gradients.map(|gradients| Gradients { dtype: Dtype::F32, ..gradients }),
        ..case
    };
    let is_aligned = spec(kernel).access == Access::Vector16;
    let full = Case { head_dim: dim, value_dim: dim, mask: Mask::Full, tight: true, ..ragged.clone() };
    let packed = Case { packed: true, batches: 4, seed: 3, query_heads: 1, ..ragged.clone() };
    let window = Mask::Window { left: Some(20), right: Some(3), alignment: CausalAlignment::TopLeft };
    let window = Case { mask: window, key_rows: 40, batches: 2, ..ragged.clone() };
    // One element more than whole chunks of 16 bytes, in f32 and in 16 bits; odd in any case.
    let odd = if is_aligned { dim - 16 + 1 } else { dim - 3 };
    let odd = Case { head_dim: odd, value_dim: odd, tight: true, ..ragged.clone() };
    let is_forward = spec(kernel).family == Family::Forward;
    let mut cases = vec![
        ragged.clone(),
        Case { scale: Some(-0.2), tight: true, ..ragged.clone() },
        full.clone(),
        in_f32(Case { mask: Mask::Full, ..ragged.clone() }),
        packed.clone(),
        featured(kernel),
        featured_in_f32(kernel),
        Case { softcap: Some(2.0), ..featured(kernel) },
        Case { softcap: Some(2.0), ..featured_in_f32(kernel) },
        with_features(kernel, packed.clone(), false),
        in_f32(Case { seed: 5, scale: Some(-0.1), ..packed }),
        window,
    ];
    cases.extend(featured_at_edges(kernel, &ragged));
    cases.extend([
        in_f32(odd.clone()),
        odd,
        Case { softcap: Some(2.0), scale: Some(-0.2), ..ragged.clone() },
        in_f32(Case { value_dim: 3, ..ragged.clone() }),
        in_f32(Case { head_dim: 3, ..ragged.clone() }),
        Case { value_dim: 3, ..ragged.clone() },
        // Whole chunks, but few.
        Case { value_dim: 24, ..ragged.clone() },
        Case { head_dim: 3, ..ragged.clone() },
        Case { query_rows: 2 * ragged.query_rows, key_rows: 5, query_heads: 4, key_heads: 2, ..full },
    ]);
    if is_forward {
        cases.extend(sloped_and_hidden(kernel));
        cases.push(Case { softcap: Some(2.0), ..sloped(kernel) });
    }
    if is_forward && spec(kernel).splits_keys() {
        // Three ranges of a key tile, of which rows see nothing, a part or all. The last warp has few rows: what it
        // wrote of others would be the next ones', or behind the workspace.
        let query_rows = ragged.query_rows - 6;
        let split = Case { num_splits: Some(3), batches: 2, query_rows, ..ragged.clone() };
        // The same of packed sequences, of which one may have fewer ranges, and one no key.
        cases.extend([Case { packed: true, batches: 4, seed: 3, ..split.clone() }, split]);
    }
    if let (Arch::Sm90a, Some(gradients)) = (spec(kernel).arch, ragged.gradients) {
        let in_order = Gradients { mode: Mode::Deterministic, ..gradients };
        let in_order = |case: &Case| Case { gradients: Some(in_order), ..case.clone() };
        cases.extend([
            in_order(&ragged),
            in_order(&cases[2]),
            in_order(&cases[4]),
            in_order(&cases[11]),
        ]);
        cases.push(nothing_to_repair(kernel));
        // The bias of the next step is asked for where no mask says which step that is.
        cases.push(Case { tight: true, ..with_shared_bias(ragged.clone(), false) });
    }
    if is_forward && spec(kernel).arch == Arch::Sm90a {
        // As many key tiles as there are stages, or one more: a warpgroup that goes past them can be all of them
        // ahead.
        let key_rows = 3 * spec(kernel).key_rows as usize - 10;
        let several = several_tiles(kernel);
        // 14 rows for the last warp: the last four are there, and it is no whole one.
        let query_rows = several.query_rows + 6;
        cases.push(Case { value_dim: dim - 8, key_rows, query_rows, ..several });
        // The first key tiles are those of the first rows alone, two of 80 keys for 64 of 192 rows; the last ones
        // are those of all rows, or of the last alone.
        for right in [None, Some(0)] {
            let mask = Mask::Window { left: Some(140), right, alignment: CausalAlignment::BottomRight };
            cases.push(Case { mask, ..several_tiles(kernel) });
        }
        // The first query tile lacks a warpgroup's rows, and the last one nine. Short tiles of head dim 64 are not
        // for so few rows.
        if is_short(spec(kernel)) && spec(kernel).head_dim > 64 {
            let moved = Case { query_rows: ragged.query_rows - 64, ..ragged.clone() };
            cases.extend([in_f32(Case { scale: Some(-0.2), ..moved.clone() }), moved]);
        }
        // More packed sequences than a warp has lanes.
        cases.push(Case { packed: true, batches: 34, query_heads: 1, ..ragged.clone() });
    }
    // Query tiles that see no key: three of four, and in a forward all of them.
    for key_rows in if is_forward { vec![5, 0] } else { vec![5] } {
        let dead = Case { query_rows: 3 * ragged.query_rows, key_rows, ..ragged.clone() };
        let narrow = Case { value_dim: 3, ..dead.clone() };
        cases.extend([in_f32(narrow.clone()), narrow, in_f32(dead.clone()), dead]);
    }
    cases
}
