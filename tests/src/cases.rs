//! Random cases that shrink to the smallest failing shape.

use crate::device::emulated_arch;
use finite_attention::check::{
    BiasFeature, BiasValues, Case, Features, Gradients, MaskFeature, Placement, ScorePlacement, case,
    extended_case, featured_case, judgeable, with_enough_rows,
};
use finite_attention::{Dtype, Mask, Mode};
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rand::Rng as _;
use std::fmt;
use std::sync::Arc;

/// Makes a case of the property's own kind out of any case, or refuses it.
type Fit = Arc<dyn Fn(Case) -> Option<Case> + Send + Sync>;

/// Cases of the library's own generator, fitted to a property.
///
/// Where the generator is stratified (lengths, head dimensions, dtypes, placements) every value is as
/// likely as the others, and any two of them can meet.
#[derive(Clone)]
pub struct Cases {
    generate: fn(u64, usize) -> Case,
    fit: Fit,
}

impl fmt::Debug for Cases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cases")
    }
}

/// Length of the sweep that cases are drawn from: far more than there are strata.
const STRATA: u64 = 1 << 16;

/// Fits drawn before it is concluded that a property refuses everything.
const MOST_TRIES: usize = 10_000;

impl Cases {
    /// Every case that `fit` accepts, as it returns it. What `fit` returns it must accept unchanged, or shrinking is
    /// less thorough.
    pub fn fitted(fit: impl Fn(Case) -> Option<Case> + Send + Sync + 'static) -> Self {
        Cases { generate: case, fit: Arc::new(fit) }
    }

    /// Every case after `change`.
    pub fn changed(change: impl Fn(&mut Case) + Send + Sync + 'static) -> Self {
        Cases::fitted(move |mut case| {
            change(&mut case);
            Some(case)
        })
    }

    /// The same, out of cases that may have windows, packed sequences and gradients too.
    pub fn extended(self) -> Self {
        Cases { generate: extended_case, ..self }
    }

    /// The same, out of cases that may have bias, boolean masks, slopes, sinks and dropout beside all that.
    pub fn featured(self) -> Self {
        Cases { generate: featured_case, ..self }
    }

    /// The same, with as many heads as the tolerance rule needs, and what it cannot judge left out; failing cases
    /// shrink no further.
    pub fn with_enough_rows(self) -> Self {
        let Cases { generate, fit } = self;
        let enough = |case| judgeable(with_enough_rows(case));
        Cases { generate, ..Cases::fitted(move |case| fit(case).map(enough)) }
    }

    /// The same, and no more heads and batches than that where these have much to do: for properties that say nothing of
    /// how many there are.
    pub fn with_just_enough_rows(self) -> Self {
        let Cases { generate, fit } = self.with_enough_rows();
        let fewer = |case| judgeable(with_fewer_heads(case, ENOUGH_ROWS));
        Cases { generate, ..Cases::fitted(move |case| fit(case).map(fewer)) }
    }

    /// The same with fewer heads and batches where these have much to do: for properties of each
    /// element, which need no tolerance rule.
    pub fn with_fewer_heads(self) -> Self {
        let Cases { generate, fit } = self;
        let fewer = |case| with_fewer_heads(case, 0);
        Cases { generate, ..Cases::fitted(move |case| fit(case).map(fewer)) }
    }
}

/// Rows, over all heads, of each tensor that the tolerance rule compares: those of [`with_enough_rows`].
pub const ENOUGH_ROWS: usize = 64;

/// Multiply-adds of a case in the emulator, in whole tiles, before its heads and batches are cut down to two: a tenth of a
/// second. Before they are cut down to one, it is twice that.
const WORK_LIMIT: usize = 16 << 20;

/// The case with fewer query heads of a key head, then key heads, then batches, where in the emulator they have much to do,
/// as long as each tensor has so many rows. Heads that may be worked on together stay as many as they are.
pub fn with_fewer_heads(mut case: Case, least_rows: usize) -> Case {
    let head = [case.query_rows, case.key_rows, case.head_dim + case.value_dim];
    let head: usize = head.map(|size| size.next_multiple_of(64)).iter().product();
    let rows = case.query_rows.min(case.key_rows);
    let keeps_groups = case.pack_gqa == Some(true) || case.query_rows == 1;
    for least in [2, 1] {
        let limit = if least == 2 { WORK_LIMIT } else { 2 * WORK_LIMIT };
        while emulated_arch().is_some() && case.batches * case.query_heads * head > limit {
            let group = case.query_heads.checked_div(case.key_heads).unwrap_or(0);
            let is_enough = |lines: usize| lines * rows >= least_rows;
            if group > least && !keeps_groups {
                case.query_heads -= case.key_heads;
            } else if case.key_heads > least && is_enough(case.batches * (case.key_heads - 1)) {
                (case.key_heads, case.query_heads) = (case.key_heads - 1, case.query_heads - group);
            } else if case.batches > least && is_enough((case.batches - 1) * case.key_heads) {
                case.batches -= 1;
            } else {
                break;
            }
        }
    }
    case
}

impl Strategy for Cases {
    type Tree = CaseTree;
    type Value = Case;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        for _ in 0..MOST_TRIES {
            let random = runner.rng();
            let (seed, id) = (random.next_u64(), random.next_u64() % STRATA);
            if let Some(case) = (self.fit)((self.generate)(seed, id as usize)) {
                return Ok(CaseTree {
                    fit: self.fit.clone(),
                    failing: case.clone(),
                    shown: case,
                    next: 0,
                });
            }
        }
        Err("no case fits the property".into())
    }
}

/// A case and how it becomes simpler: greedily, one field (or two that belong together) at a time.
pub struct CaseTree {
    fit: Fit,
    /// The simplest case known to fail.
    failing: Case,
    /// The case that is being tried.
    shown: Case,
    /// Which simplification of `failing` is tried next.
    next: usize,
}

impl fmt::Debug for CaseTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaseTree").field("shown", &self.shown).field("next", &self.next).finish()
    }
}

impl CaseTree {
    /// Shows the next simpler case, if there is one.
    fn advance(&mut self) -> bool {
        let candidates = simpler(&self.failing);
        while let Some(candidate) = candidates.get(self.next) {
            self.next += 1;
            if let Some(fitted) = (self.fit)(candidate.clone())
                && size(&fitted) < size(&self.failing)
            {
                self.shown = fitted;
                return true;
            }
        }
        self.shown = self.failing.clone();
        false
    }
}

impl ValueTree for CaseTree {
    type Value = Case;

    fn current(&self) -> Case {
        self.shown.clone()
    }

    fn simplify(&mut self) -> bool {
        self.failing = self.shown.clone();
        self.next = 0;
        self.advance()
    }

    fn complicate(&mut self) -> bool {
        self.advance()
    }
}

/// How far a case is from the simplest one. Every step of shrinking makes it smaller, so that shrinking
/// ends.
fn size(case: &Case) -> usize {
    let numbers = [
        case.batches,
        case.query_rows,
        case.key_rows,
        case.query_heads,
        case.key_heads,
        case.head_dim,
        case.value_dim,
    ];
    let options = [
        case.mask != Mask::Full,
        case.placement != Placement::Bshd,
        case.output_dtype != case.dtype,
        case.scale.is_some(),
        case.softcap.is_some(),
        case.amplitude != 1.0,
        case.logit_shift != 0.0,
        case.tight,
        case.packed,
        case.num_splits.is_some(),
        case.pack_gqa.is_some(),
        case.precision.is_some(),
        case.gradients.is_some(),
        case.gradients.is_some_and(|gradients| gradients.has_d_lse),
        case.gradients.is_some_and(|gradients| gradients.dtype != case.dtype),
        case.gradients.is_some_and(|gradients| gradients.mode != Mode::Deterministic),
    ];
    let window = match case.mask {
        Mask::Window { left, right, .. } => 1 + (left.unwrap_or(81) + right.unwrap_or(81)) as usize,
        _ => 0,
    };
    let options = options.into_iter().chain(feature_options(&case.features));
    numbers.iter().sum::<usize>() + window + options.filter(|&option| option).count()
}

/// What of its features keeps a case from being the simplest.
fn feature_options(features: &Features) -> [bool; 15] {
    let (bias, mask) = (features.bias, features.mask);
    [
        bias.is_some(),
        bias.is_some_and(|bias| bias.gradient.is_some()),
        bias.is_some_and(|bias| bias.values != BiasValues::Normal),
        bias.is_some_and(|bias| bias.placement != ScorePlacement::Dense),
        bias.is_some_and(|bias| bias.gradient.is_some_and(|gradient| gradient != bias.dtype)),
        mask.is_some(),
        mask.is_some_and(|mask| mask.has_dead_rows),
        mask.is_some_and(|mask| mask.placement != ScorePlacement::Dense),
        mask.is_some_and(|mask| mask.density < 1.0),
        mask.is_some_and(|mask| mask.block > 1),
        features.alibi.is_some(),
        features.has_sinks,
        features.wants_d_sinks,
        features.dropout.is_some(),
        features.dropout.is_some_and(|rate| rate != 0.5),
    ]
}

/// `features` without one of them, or simpler in one thing.
fn simpler_features(features: &Features) -> Vec<Features> {
    let whole = *features;
    let mut found = vec![
        Features::default(),
        Features { bias: None, ..whole },
        Features { mask: None, ..whole },
        Features { alibi: None, ..whole },
        Features { has_sinks: false, ..whole },
        Features { wants_d_sinks: false, ..whole },
        Features { dropout: None, ..whole },
        Features { dropout: whole.dropout.map(|_| 0.5), ..whole },
    ];
    if let Some(bias) = whole.bias {
        let simpler = [
            BiasFeature { gradient: None, ..bias },
            BiasFeature { values: BiasValues::Normal, ..bias },
            BiasFeature { placement: ScorePlacement::Dense, ..bias },
            BiasFeature { gradient: bias.gradient.map(|_| bias.dtype), ..bias },
        ];
        found.extend(simpler.map(|bias| Features { bias: Some(bias), ..whole }));
    }
    if let Some(mask) = whole.mask {
        let simpler = [
            MaskFeature { has_dead_rows: false, ..mask },
            MaskFeature { placement: ScorePlacement::Dense, ..mask },
            MaskFeature { density: 1.0, ..mask },
            MaskFeature { block: 1, ..mask },
        ];
        found.extend(simpler.map(|mask| Features { mask: Some(mask), ..whole }));
    }
    found
}

/// Cases that differ from `case` in one step, the largest steps first.
fn simpler(case: &Case) -> Vec<Case> {
    let mut found = Vec::new();
    let mut push = |change: &dyn Fn(&mut Case)| {
        let mut next = case.clone();
        change(&mut next);
        if next != *case {
            found.push(next);
        }
    };
    push(&|next| next.batches = 1);
    push(&|next| (next.query_heads, next.key_heads) = (1, 1));
    push(&|next| next.query_heads = next.key_heads);
    push(&|next| next.mask = Mask::Full);
    push(&|next| next.placement = Placement::Bshd);
    push(&|next| next.output_dtype = next.dtype);
    push(&|next| next.scale = None);
    push(&|next| next.softcap = None);
    push(&|next| next.amplitude = 1.0);
    push(&|next| next.logit_shift = 0.0);
    for features in simpler_features(&case.features) {
        push(&|next| next.features = features);
    }
    push(&|next| next.tight = false);
    push(&|next| next.packed = false);
    push(&|next| next.num_splits = None);
    push(&|next| next.pack_gqa = None);
    push(&|next| next.precision = None);
    push(&|next| next.gradients = None);
    push(&|next| {
        next.gradients = next.gradients.map(|gradients| Gradients { has_d_lse: false, ..gradients })
    });
    push(&|next| {
        next.gradients = next.gradients.map(|gradients| Gradients { dtype: next.dtype, ..gradients })
    });
    push(&|next| {
        let mode = Mode::Deterministic;
        next.gradients = next.gradients.map(|gradients| Gradients { mode, ..gradients })
    });
    if let Mask::Window { left, right, alignment } = case.mask {
        push(&|next| next.mask = Mask::Causal(alignment));
        for step in steps(left.unwrap_or(0) as usize) {
            let left = left.map(|left| left - step as u32);
            push(&|next| next.mask = Mask::Window { left, right, alignment });
        }
        for step in steps(right.unwrap_or(0) as usize) {
            let right = right.map(|right| right - step as u32);
            push(&|next| next.mask = Mask::Window { left, right, alignment });
        }
    }
    for step in steps(case.query_rows.min(case.key_rows)) {
        push(&|next| (next.query_rows, next.key_rows) = (next.query_rows - step, next.key_rows - step));
    }
    for step in steps(case.query_rows) {
        push(&|next| next.query_rows -= step);
    }
    for step in steps(case.key_rows) {
        push(&|next| next.key_rows -= step);
    }
    if case.head_dim == case.value_dim {
        for step in steps(case.head_dim - 1) {
            push(&|next| {
                (next.head_dim, next.value_dim) = (next.head_dim - step, next.value_dim - step)
            });
        }
    }
    for step in steps(case.head_dim - 1) {
        push(&|next| next.head_dim -= step);
    }
    for step in steps(case.value_dim - 1) {
        push(&|next| next.value_dim -= step);
    }
    for step in steps(case.batches) {
        push(&|next| next.batches -= step);
    }
    if let Some(group) = case.query_heads.checked_div(case.key_heads) {
        for step in steps(group) {
            push(&|next| next.query_heads = (group - step) * next.key_heads);
        }
        for step in steps(case.key_heads) {
            push(&|next| {
                (next.query_heads, next.key_heads) =
                    (group * (next.key_heads - step), next.key_heads - step)
            });
        }
    }
    found
}

/// What to take from a number that may become 0: all of it, half, a quarter, down to 1.
fn steps(number: usize) -> Vec<usize> {
    std::iter::successors(Some(number), |step| Some(step / 2)).take_while(|&step| step > 0).collect()
}

/// What a failure shrinks to.
/// The case in this dtype; what was to differ from the inputs is f32.
pub fn retyped(case: Case, dtype: Dtype) -> Case {
    let retype = |output: Dtype| if output == case.dtype { dtype } else { Dtype::F32 };
    let mut features = case.features;
    features.bias = features.bias.map(|bias| BiasFeature {
        dtype: retype(bias.dtype),
        gradient: bias.gradient.map(retype),
        ..bias
    });
    Case {
        dtype,
        output_dtype: retype(case.output_dtype),
        gradients: case
            .gradients
            .map(|gradients| Gradients { dtype: retype(gradients.dtype), ..gradients }),
        features,
        ..case
    }
}

#[cfg(test)]
pub(crate) fn smallest<S: Strategy>(strategy: S, fails: impl Fn(&S::Value) -> bool) -> S::Value {
    use proptest::test_runner::{Config, RngSeed, TestError};

    let config = Config {
        cases: 2000,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&strategy, |value| {
        proptest::prop_assert!(!fails(&value));
        Ok(())
    });
    match result {
        Err(TestError::Fail(_, value)) => value,
        other => panic!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shrinks_to_the_smallest_shape_that_fails() {
        let case = smallest(Cases::changed(|_| ()), |case| {
            case.key_rows > 64 && case.head_dim >= 33 && case.mask != Mask::Full
        });
        assert_eq!(shape(&case), [0, 0, 65, 0, 0, 33, 1]);
        assert!(case.mask != Mask::Full && case.placement == Placement::Bshd);
        assert!(
            case.output_dtype == case.dtype
                && case.scale.is_none()
                && case.softcap.is_none()
                && case.amplitude == 1.0
        );
    }

    #[test]
    fn shrinking_keeps_to_what_the_property_asks() {
        let cases = Cases::fitted(|case| (case.query_rows > case.key_rows + 3).then_some(case));
        let case = smallest(cases, |case| case.key_rows >= 5 && case.query_heads >= 2 * case.key_heads);
        assert_eq!(shape(&case), [0, 9, 5, 0, 0, 1, 1]);
    }

    #[test]
    fn features_that_do_not_matter_shrink_away() {
        let case = smallest(Cases::changed(|_| ()).featured(), |case| {
            case.features.mask.is_some_and(|mask| mask.density < 0.5)
        });
        let mask = case.features.mask.map(|mask| MaskFeature { density: 0.0, ..mask });
        let shrunk = Features { mask, ..Features::default() };
        assert_eq!(Features { mask, ..case.features }, shrunk);
        let mask = mask.expect("there is one");
        assert!(mask.placement == ScorePlacement::Dense && !mask.has_dead_rows);
    }

    fn shape(case: &Case) -> [usize; 7] {
        let Case { batches, query_rows, key_rows, query_heads, key_heads, head_dim, value_dim, .. } =
            *case;
        [batches, query_rows, key_rows, query_heads, key_heads, head_dim, value_dim]
    }
}
