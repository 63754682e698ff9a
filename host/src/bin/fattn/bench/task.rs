//! What is timed: the problems asked for, and how much work each is.

use super::features::FeatureArguments;
use super::{BenchArguments, BenchDtype, Causal, PassChoice};
use crate::task::window;
use anyhow::{Result, ensure};
use finite_attention::{
    BackwardProblem, CausalAlignment, Dtype, ForwardProblem, Layout, Mask, Mode, Sequences,
};

/// Lengths of the packed sequences of `--varlen`.
const RAGGED: [usize; 12] = [1024, 33, 2500, 400, 4096, 89, 1999, 777, 255, 3071, 640, 1500];

/// One of the two passes, or what comes before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pass {
    Forward,
    Backward(Mode),
    /// The choice of keys of a dynamic mask.
    Select,
}

impl Pass {
    /// The name used in tables and JSON: `forward`, `backward`, `backward-deterministic`.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Select => "select",
            Pass::Backward(Mode::Fast) => "backward",
            Pass::Backward(Mode::Deterministic) => "backward-deterministic",
        }
    }
}

/// One pass of one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub pass: Pass,
    /// No sequence has more query rows than keys.
    pub problem: ForwardProblem,
    /// Query rows and keys of packed sequences; none where they are not packed.
    lengths: Vec<[usize; 2]>,
    /// What its scores have beside.
    pub features: FeatureArguments,
}

impl Task {
    /// The backward pass of the problem.
    pub fn backward(&self) -> Option<BackwardProblem> {
        match self.pass {
            Pass::Forward | Pass::Select => None,
            Pass::Backward(mode) => Some(BackwardProblem {
                d_bias: self.features.d_bias(&self.problem),
                wants_d_sinks: self.problem.has_sinks,
                ..BackwardProblem::new(self.problem).with_mode(mode)
            }),
        }
    }

    /// Offsets of packed sequences in q and in k; empty without them.
    pub fn offsets(&self) -> [Vec<i32>; 2] {
        if self.is_packed() { offsets(&self.lengths) } else { Default::default() }
    }

    /// How many sequences: as many as batches unless they are packed.
    pub fn sequences(&self) -> usize {
        if self.is_packed() { self.lengths.len() } else { self.problem.q.shape[0] }
    }

    /// Keys of the longest sequence.
    pub fn longest(&self) -> usize {
        let [_, rows, ..] = self.problem.k.shape;
        self.lengths.iter().map(|&[_, keys]| keys).max().unwrap_or(rows)
    }

    fn is_packed(&self) -> bool {
        self.problem.sequences != Sequences::Strided
    }

    /// 4 D per query head and visible pair of a query and a key; 2.5 times that backward. Causal
    /// counts as half of all pairs, as is the custom; a window counts the pairs that it shows.
    pub fn flops(&self) -> f64 {
        let [batches, rows, heads, columns] = self.problem.q.shape;
        let [batches, heads, columns] = [batches, heads, columns].map(|size| size as f64);
        let pairs: f64 = match self.is_packed() {
            true => {
                let pairs = |&[rows, keys]: &[usize; 2]| pairs(self.problem.mask, rows, keys);
                self.lengths.iter().map(pairs).sum()
            }
            false => batches * pairs(self.problem.mask, rows, self.problem.k.shape[1]),
        };
        let factor = match self.pass {
            Pass::Forward => 4.0,
            Pass::Backward(_) => 10.0,
            Pass::Select => 0.0,
        };
        factor * heads * columns * pairs
    }
}

/// Pairs of a query and a key that count, of a sequence with no more queries than keys, which end together.
fn pairs(mask: Mask, queries: usize, keys: usize) -> f64 {
    let all = queries as f64 * keys as f64;
    match mask {
        Mask::Full => all,
        Mask::Causal(_) => all - queries as f64 * queries as f64 / 2.0,
        Mask::Window { left, right, .. } => {
            let side = |visible: Option<u32>| visible.map_or(keys, |visible| visible as usize);
            let visible = |at: usize| at.min(side(left)) + 1 + (keys - 1 - at).min(side(right));
            (keys - queries..keys).map(visible).sum::<usize>() as f64
        }
    }
}

/// Offsets in q and in k.
fn offsets(lengths: &[[usize; 2]]) -> [Vec<i32>; 2] {
    [0, 1].map(|side| {
        let ends = lengths.iter().scan(0, |end, lengths| {
            *end += lengths[side] as i32;
            Some(*end)
        });
        [0].into_iter().chain(ends).collect()
    })
}

/// Every combination asked for.
pub fn tasks(arguments: &BenchArguments) -> Result<Vec<Task>> {
    let passes = passes(arguments)?;
    at_least_one("iterations", arguments.iterations)?;
    let sustain_ms = arguments.sustain_ms;
    ensure!(sustain_ms >= 0.0, "--sustain-ms: expected a number of at least 0, got {sustain_ms}");
    let mut tasks = Vec::new();
    for dtype in &arguments.dtype {
        let dtype = match dtype {
            BenchDtype::Bf16 => Dtype::Bf16,
            BenchDtype::F16 => Dtype::F16,
            BenchDtype::F32 => Dtype::F32,
        };
        for &head_dim in &arguments.head_dim {
            for (problem, lengths) in shapes(arguments, dtype, head_dim)? {
                for mask in masks(arguments) {
                    let task = |&pass| Task {
                        pass,
                        problem: problem.with_mask(mask),
                        lengths: lengths.clone(),
                        features: arguments.features,
                    };
                    tasks.extend(passes.iter().map(task));
                }
            }
        }
    }
    Ok(tasks)
}

fn passes(arguments: &BenchArguments) -> Result<Vec<Pass>> {
    let BenchArguments { pass, deterministic, num_splits, pack_gqa, features, .. } = *arguments;
    let mode = if deterministic { Mode::Deterministic } else { Mode::Fast };
    ensure!(
        !deterministic || matches!(pass, PassChoice::Backward | PassChoice::Both),
        "--deterministic: the forward pass always is; use --pass backward or both"
    );
    let of_the_forward = [("num-splits", num_splits.is_some()), ("pack-gqa", pack_gqa.is_some())];
    if let Some((option, _)) = of_the_forward.into_iter().find(|&(_, given)| given) {
        ensure!(
            pass != PassChoice::Backward,
            "--{option}: the backward pass has none; use --pass forward or both"
        );
    }
    ensure!(
        pass != PassChoice::Select || features.dynamic_mask().is_some(),
        "--pass select: expected --dynamic-mask, got none"
    );
    Ok(match pass {
        PassChoice::Select => vec![Pass::Select],
        PassChoice::Forward => vec![Pass::Forward],
        PassChoice::Backward => vec![Pass::Backward(mode)],
        PassChoice::Both => vec![Pass::Forward, Pass::Backward(mode)],
    })
}

fn masks(arguments: &BenchArguments) -> Vec<Mask> {
    let window = window(&arguments.window, CausalAlignment::BottomRight);
    let by_default = if window.is_some() { Causal::No } else { Causal::Both };
    let mask = window.unwrap_or(Mask::Full);
    match arguments.causal.unwrap_or(by_default) {
        Causal::No => vec![mask],
        Causal::Yes => vec![mask.and_causal()],
        Causal::Both if mask == mask.and_causal() => vec![mask],
        Causal::Both => vec![mask, mask.and_causal()],
    }
}

/// Query rows and keys of the packed sequences that are asked for.
fn packed_lengths(arguments: &BenchArguments) -> Result<Vec<[usize; 2]>> {
    let lengths = if arguments.varlen { &RAGGED[..] } else { &arguments.lengths };
    let length = |&keys: &usize| {
        at_least_one("lengths", Some(keys))?;
        Ok([query_rows(arguments, "lengths", keys)?, keys])
    };
    lengths.iter().map(length).collect()
}

/// Query rows of a sequence of `keys` keys, as `option` says.
fn query_rows(arguments: &BenchArguments, option: &str, keys: usize) -> Result<usize> {
    let queries = arguments.queries.unwrap_or(keys);
    ensure!(queries <= keys, "--queries: expected at most --{option} {keys}, got {queries}");
    Ok(queries)
}

/// Problems with full masks, with the lengths of packed sequences.
fn shapes(
    arguments: &BenchArguments,
    dtype: Dtype,
    head_dim: usize,
) -> Result<Vec<(ForwardProblem, Vec<[usize; 2]>)>> {
    at_least_one("head-dim", Some(head_dim))?;
    at_least_one("batch", arguments.batch)?;
    at_least_one("heads", arguments.heads)?;
    at_least_one("kv-heads", arguments.kv_heads)?;
    at_least_one("queries", arguments.queries)?;
    let heads = arguments.heads.unwrap_or((2048 / head_dim).max(1));
    let key_heads = arguments.kv_heads.unwrap_or(heads);
    let problem = |batch: usize, queries: usize, keys: usize| {
        let q = Layout::bshd([batch, queries, heads, head_dim]);
        let kv = Layout::bshd([batch, keys, key_heads, head_dim]);
        ForwardProblem {
            softcap: arguments.softcap,
            num_splits: arguments.num_splits,
            pack_gqa: arguments.pack_gqa,
            precision: arguments.precision,
            ..ForwardProblem::new(dtype, q, kv, kv)
        }
    };
    let mut shapes = Vec::new();
    let lengths = packed_lengths(arguments)?;
    if lengths.is_empty() {
        for &keys in &arguments.seqlen {
            at_least_one("seqlen", Some(keys))?;
            let queries = query_rows(arguments, "seqlen", keys)?;
            let batch = arguments.batch.unwrap_or((16384 / keys).max(1));
            shapes.push((arguments.features.add_to(problem(batch, queries, keys))?, Vec::new()));
        }
    } else {
        let [queries, keys] = [0, 1].map(|side| lengths.iter().map(|lengths| lengths[side]).sum());
        let [in_q, in_k] = offsets(&lengths);
        let packed = problem(1, queries, keys).with_sequences(Sequences::from_offsets(&in_q, &in_k)?);
        shapes.push((arguments.features.add_to(packed)?, lengths));
    }
    for (problem, _) in &shapes {
        problem.validate()?;
    }
    Ok(shapes)
}

/// There is nothing to time where there is nothing.
fn at_least_one(option: &str, number: Option<usize>) -> Result<()> {
    ensure!(number != Some(0), "--{option}: expected at least 1, got 0");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pass: Pass, mask: Mask) -> Task {
        let layout = Layout::bshd([2, 3, 5, 7]);
        let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).with_mask(mask);
        let features = FeatureArguments::default();
        Task { pass, problem, lengths: Vec::new(), features }
    }

    #[test]
    fn causal_counts_half_and_backward_two_and_a_half_times() {
        let full = task(Pass::Forward, Mask::Full).flops();
        assert_eq!(full, 4.0 * 2.0 * 5.0 * 3.0 * 3.0 * 7.0);
        let causal = Mask::Causal(CausalAlignment::BottomRight);
        assert_eq!(task(Pass::Forward, causal).flops(), full / 2.0);
        assert_eq!(task(Pass::Backward(Mode::Fast), Mask::Full).flops(), full * 2.5);
        assert_eq!(pairs(causal, 2, 5), 8.0);
    }

    #[test]
    fn a_window_counts_the_pairs_that_it_shows() {
        let window = |left, right| Mask::Window { left, right, alignment: CausalAlignment::TopLeft };
        assert_eq!(pairs(window(None, None), 5, 5), 25.0);
        assert_eq!(pairs(window(None, Some(0)), 5, 5), 15.0);
        assert_eq!(pairs(window(Some(1), Some(1)), 5, 5), 13.0);
        assert_eq!(pairs(window(None, Some(0)), 2, 5), 9.0);
    }

    #[test]
    fn the_ragged_lengths_are_as_documented() {
        assert_eq!(RAGGED.iter().sum::<usize>(), 16384);
        assert_eq!((RAGGED.iter().min(), RAGGED.iter().max()), (Some(&33), Some(&4096)));
        assert_eq!(offsets(&[[2, 7], [0, 1], [3, 0]]), [[0, 2, 2, 5], [0, 7, 8, 8]]);
    }
}
