//! One case of multi-scale deformable attention: the problem, and where its tensors stand.

use crate::check::Placement;
use crate::problem::{Layout, Mode, MsdaBackwardProblem, MsdaProblem, Padding};
use crate::reference::MsdaSizes;
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// One case. The same case gives the same numbers on every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaCase {
    /// Position in the sweep.
    pub id: usize,
    /// Seed of the numbers.
    pub seed: u64,
    /// B.
    pub batches: usize,
    /// N.
    pub queries: usize,
    /// H.
    pub heads: usize,
    /// C.
    pub channels: usize,
    /// Height and width of each level.
    pub shapes: Vec<[usize; 2]>,
    /// P.
    pub level_points: usize,
    /// Element type of value and o.
    pub dtype: Dtype,
    /// That of locations: f32, or that of value.
    pub locations_dtype: Dtype,
    /// That of weights: f32, or that of value.
    pub weights_dtype: Dtype,
    /// What a sample takes from outside.
    pub padding: Padding,
    /// Whether corners are aligned.
    pub align_corners: bool,
    /// Where the tensors stand.
    pub placement: Placement,
    /// How gradients of value are added up.
    pub mode: Mode,
}

impl MsdaCase {
    /// A small f32 case to change with struct update syntax.
    pub fn small() -> Self {
        MsdaCase {
            id: 0,
            seed: 0,
            batches: 1,
            queries: 9,
            heads: 2,
            channels: 32,
            shapes: vec![[6, 4], [3, 2]],
            level_points: 2,
            dtype: Dtype::F32,
            locations_dtype: Dtype::F32,
            weights_dtype: Dtype::F32,
            padding: Padding::Zeros,
            align_corners: false,
            placement: Placement::Bshd,
            mode: Mode::Fast,
        }
    }

    /// The forward problem that the library is asked.
    pub fn problem(&self) -> MsdaProblem {
        let place = self.placement;
        let points = self.shapes.len() * self.level_points;
        let queries = |columns| [self.batches, self.queries, self.heads, columns];
        let value = place.key(self.value_shape());
        let problem = MsdaProblem::new(self.dtype, value, &self.shapes, self.queries, self.level_points)
            .with_locations(place.input(queries(2 * points)), self.locations_dtype)
            .with_weights(place.input(queries(points)), self.weights_dtype)
            .with_output(place.query(queries(self.channels)))
            .with_padding(self.padding);
        if self.align_corners { problem.aligned_to_corners() } else { problem }
    }

    /// The backward problem that the library is asked.
    pub fn backward_problem(&self) -> MsdaBackwardProblem {
        let place = self.placement;
        let forward = self.problem();
        let outputs = |layout: &Layout| place.query(layout.shape);
        let [d_value, d_locations, d_weights] =
            [&forward.value, &forward.locations, &forward.weights].map(outputs);
        let d_o = place.input(forward.o.shape);
        MsdaBackwardProblem::new(forward)
            .with_d_o(d_o)
            .with_gradients(d_value, d_locations, d_weights)
            .with_mode(self.mode)
    }

    /// The problem that the reference is asked.
    pub fn sizes(&self) -> MsdaSizes {
        MsdaSizes {
            batches: self.batches,
            queries: self.queries,
            heads: self.heads,
            channels: self.channels,
            shapes: self.shapes.clone(),
            level_points: self.level_points,
            padding: self.padding,
            align_corners: self.align_corners,
        }
    }

    fn value_shape(&self) -> [usize; 4] {
        let cells = self.shapes.iter().map(|[height, width]| height * width).sum();
        [self.batches, cells, self.heads, self.channels]
    }

    /// `B2 N9 H2 C32 L6x4,3x2 P4`.
    pub fn shape_text(&self) -> String {
        let MsdaCase { batches, queries, heads, channels, shapes, level_points, .. } = self;
        let levels: Vec<String> = shapes.iter().map(|[h, w]| format!("{h}x{w}")).collect();
        let levels = levels.join(",");
        format!("B{batches} N{queries} H{heads} C{channels} L{levels} P{level_points}")
    }
}

/// Channels: what kernels read in whole vectors, and what they do not; more than a warp has lanes for.
const CHANNELS: [usize; 12] = [32, 16, 64, 8, 5, 128, 1, 24, 30, 264, 4, 33];

/// Gradients of weights that a case has at least, if any: the error of one is that of another by chance.
const ENOUGH_POINTS: usize = 32;

/// Case `id` of the sweep with this seed.
pub fn msda_case(seed: u64, id: usize) -> MsdaCase {
    let case_seed = seed.wrapping_add((id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut random = StdRng::seed_from_u64(case_seed);
    let dtype = [Dtype::Bf16, Dtype::F16, Dtype::F32][id % 3];
    let mut other = || if random.random_bool(0.5) { Dtype::F32 } else { dtype };
    let (locations_dtype, weights_dtype) = (other(), other());
    let mut side = |most: usize| random.random_range(1..=most);
    let levels = side(4);
    let shapes = (0..levels).map(|_| [side(9), side(9)]).collect();
    let empty = |at: usize| id % 50 == at;
    let channels = CHANNELS[id / 3 % CHANNELS.len()];
    let mut case = MsdaCase {
        id,
        seed: case_seed,
        batches: if empty(41) { 0 } else { side(2) },
        queries: if empty(17) { 0 } else { side(40) },
        heads: if empty(33) { 0 } else { side(3) },
        channels,
        shapes,
        level_points: if empty(25) { 0 } else { side(5) },
        dtype,
        locations_dtype,
        weights_dtype,
        padding: if random.random_bool(0.5) { Padding::Zeros } else { Padding::Border },
        align_corners: random.random_bool(0.5),
        placement: Placement::ALL[id / 2 % Placement::ALL.len()],
        mode: if random.random_bool(0.5) { Mode::Deterministic } else { Mode::Fast },
    };
    let of_batch = case.queries * case.heads * case.shapes.len() * case.level_points;
    if case.batches > 0 && of_batch > 0 {
        case.batches = case.batches.max(ENOUGH_POINTS.div_ceil(of_batch));
    }
    case
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_sweep_is_valid_and_covers_options() {
        let cases: Vec<MsdaCase> = (0..240).map(|id| msda_case(0, id)).collect();
        for case in &cases {
            let problem = case.backward_problem();
            assert!(problem.validate().is_ok(), "{case:?}");
            let weights = problem.d_weights.elements() as usize;
            assert!(weights == 0 || weights >= ENOUGH_POINTS, "{case:?}");
        }
        let kinds: HashSet<_> =
            cases.iter().map(|case| (case.dtype, case.padding, case.align_corners, case.mode)).collect();
        assert_eq!(kinds.len(), 3 * 2 * 2 * 2);
        let places: HashSet<_> = cases.iter().map(|case| case.placement).collect();
        assert_eq!(places.len(), Placement::ALL.len());
        for empty in [
            |case: &MsdaCase| case.batches,
            |case: &MsdaCase| case.queries,
            |case: &MsdaCase| case.heads,
            |case: &MsdaCase| case.level_points,
        ] {
            assert!(cases.iter().any(|case| empty(case) == 0));
        }
        assert!(cases.iter().any(|case| case.shapes.iter().any(|[h, w]| h != w)));
    }
}
