//! What is timed: the problems asked for, and how much work each is.

use super::{BenchArguments, BenchDtype, Causal, PassChoice};
use anyhow::{Result, ensure};
use finite_attention::{
    BackwardProblem, CausalAlignment, Dtype, ForwardProblem, Layout, Mask, Mode, Sequences,
};

/// Lengths of the packed sequences of `--varlen`.
const RAGGED: [usize; 12] = [1024, 33, 2500, 400, 4096, 89, 1999, 777, 255, 3071, 640, 1500];

/// One of the two passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pass {
    Forward,
    Backward(Mode),
}

impl Pass {
    /// The name used in tables and JSON: `forward`, `backward`, `backward-deterministic`.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward(Mode::Fast) => "backward",
            Pass::Backward(Mode::Deterministic) => "backward-deterministic",
        }
    }
}

/// One pass of one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub pass: Pass,
    /// No more rows of q than of k; packed sequences are those of [`RAGGED`].
    pub problem: ForwardProblem,
}

impl Task {
    /// The backward pass of the problem.
    pub fn backward(&self) -> Option<BackwardProblem> {
        match self.pass {
            Pass::Forward => None,
            Pass::Backward(mode) => Some(BackwardProblem::new(self.problem).with_mode(mode)),
        }
    }

    /// Offsets of packed sequences, the same for q and k; empty without them.
    pub fn offsets(&self) -> Vec<i32> {
        if self.is_packed() { offsets(&RAGGED) } else { Vec::new() }
    }

    /// How many sequences: as many as batches unless they are packed.
    pub fn sequences(&self) -> usize {
        if self.is_packed() { RAGGED.len() } else { self.problem.q.shape[0] }
    }

    /// Keys of the longest sequence.
    pub fn longest(&self) -> usize {
        let [_, rows, ..] = self.problem.k.shape;
        if self.is_packed() { RAGGED.into_iter().max().unwrap_or(0) } else { rows }
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
            true => RAGGED.into_iter().map(|rows| pairs(self.problem.mask, rows, rows)).sum(),
            false => batches * pairs(self.problem.mask, rows, self.problem.k.shape[1]),
        };
        let factor = if self.pass == Pass::Forward { 4.0 } else { 10.0 };
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

fn offsets(lengths: &[usize]) -> Vec<i32> {
    let ends = lengths.iter().scan(0, |end, &length| {
        *end += length as i32;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

/// Every combination asked for.
pub fn tasks(arguments: &BenchArguments) -> Result<Vec<Task>> {
    let passes = passes(arguments)?;
    let mut tasks = Vec::new();
    for dtype in &arguments.dtype {
        let dtype = match dtype {
            BenchDtype::Bf16 => Dtype::Bf16,
            BenchDtype::F16 => Dtype::F16,
            BenchDtype::F32 => Dtype::F32,
        };
        for &head_dim in &arguments.head_dim {
            for problem in shapes(arguments, dtype, head_dim)? {
                for mask in masks(arguments) {
                    let problem = problem.with_mask(mask);
                    tasks.extend(passes.iter().map(|&pass| Task { pass, problem }));
                }
            }
        }
    }
    Ok(tasks)
}

fn passes(arguments: &BenchArguments) -> Result<Vec<Pass>> {
    let BenchArguments { pass, deterministic, .. } = *arguments;
    let mode = if deterministic { Mode::Deterministic } else { Mode::Fast };
    ensure!(
        !deterministic || pass != PassChoice::Forward,
        "--deterministic: the forward pass always is; use --pass backward or both"
    );
    Ok(match pass {
        PassChoice::Forward => vec![Pass::Forward],
        PassChoice::Backward => vec![Pass::Backward(mode)],
        PassChoice::Both => vec![Pass::Forward, Pass::Backward(mode)],
    })
}

fn masks(arguments: &BenchArguments) -> Vec<Mask> {
    let alignment = CausalAlignment::BottomRight;
    if let &[left, right] = arguments.window.as_slice() {
        // -1 is the only number of the range that is no u32.
        let (left, right) = (u32::try_from(left).ok(), u32::try_from(right).ok());
        return vec![Mask::Window { left, right, alignment }];
    }
    match arguments.causal {
        Causal::No => vec![Mask::Full],
        Causal::Yes => vec![Mask::Causal(alignment)],
        Causal::Both => vec![Mask::Full, Mask::Causal(alignment)],
    }
}

/// Problems with full masks.
fn shapes(arguments: &BenchArguments, dtype: Dtype, head_dim: usize) -> Result<Vec<ForwardProblem>> {
    at_least_one("head-dim", Some(head_dim))?;
    at_least_one("batch", arguments.batch)?;
    at_least_one("heads", arguments.heads)?;
    at_least_one("kv-heads", arguments.kv_heads)?;
    at_least_one("queries", arguments.queries)?;
    let heads = arguments.heads.unwrap_or((2048 / head_dim).max(1));
    let key_heads = arguments.kv_heads.unwrap_or(heads);
    let problem = |batch: usize, rows: usize| {
        let queries = arguments.queries.unwrap_or(rows);
        let q = Layout::bshd([batch, queries, heads, head_dim]);
        let kv = Layout::bshd([batch, rows, key_heads, head_dim]);
        ForwardProblem {
            num_splits: arguments.num_splits,
            pack_gqa: arguments.pack_gqa,
            ..ForwardProblem::new(dtype, q, kv, kv)
        }
    };
    let mut shapes = Vec::new();
    if arguments.varlen {
        let offsets = offsets(&RAGGED);
        let packed =
            problem(1, RAGGED.iter().sum()).with_sequences(Sequences::from_offsets(&offsets, &offsets)?);
        shapes.push(packed);
    } else {
        for &rows in &arguments.seqlen {
            at_least_one("seqlen", Some(rows))?;
            let queries = arguments.queries.unwrap_or(rows);
            ensure!(queries <= rows, "--queries: expected at most --seqlen {rows}, got {queries}");
            shapes.push(problem(arguments.batch.unwrap_or((16384 / rows).max(1)), rows));
        }
    }
    for problem in &shapes {
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
        Task { pass, problem }
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
        assert_eq!(offsets(&[2, 0, 3]), [0, 2, 2, 5]);
    }
}
