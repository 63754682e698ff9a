//! The tests that msda-triton 90cda22 has of its kernels (`tests/test_msda.py`), run on ours: its shapes, its
//! distributions, every parametrisation that has a type of ours, at its tolerances, against the reference in
//! f64.
//!
//! Its tests compare with `grid_sample`, whose formula for positions is rounded otherwise than its own; its
//! `test_backward` therefore fails now and then. The reference here shares the cell of a location with the
//! kernels: no element of any tensor is exempt.

use super::{MsdaCase, MsdaNumbers};
use crate::attention::Element;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::check::TensorVerdict;
use crate::device::Device;
use crate::driver::Stream;
use crate::error::Result;
use crate::msda::{msda_backward_and_wait, msda_forward};
use crate::plan::{MsdaBackwardPointers, MsdaPointers};
use crate::problem::{Mode, Padding};
use crate::reference::{
    ExactMsdaGradients, MsdaSizes, MsdaTensors, Verdict, exact_msda, exact_msda_backward,
};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// Absolute and relative: of o in f32, of o in 16 bits, and of gradients in f32. It has none of bf16, which
/// is held to that of f16, and none of gradients in 16 bits.
const FORWARD_F32: [f64; 2] = [1e-4, 1e-3];
const FORWARD_16: [f64; 2] = [1e-1, 1e-1];
const BACKWARD_F32: [f64; 2] = [1e-3, 1e-2];

/// Its tests, by the names of its functions.
const FORWARD: &str = "forward";
const OUTSIDE: &str = "forward_oob_sampling";
const BACKWARD: &str = "backward";

/// Every padding, corners aligned or not.
const SAMPLINGS: [(Padding, bool); 4] =
    [(Padding::Border, true), (Padding::Border, false), (Padding::Zeros, true), (Padding::Zeros, false)];

/// How much of its tensors is computed: all levels, points and channels, and some of what is all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsdaTritonSize {
    /// B; its tests have 4.
    pub batches: usize,
    /// N; its tests have 1000.
    pub queries: usize,
    /// H; its tests have 8.
    pub heads: usize,
}

impl MsdaTritonSize {
    /// That of its tests.
    pub const FULL: Self = Self { batches: 4, queries: 1000, heads: 8 };

    /// What the emulator takes a second for.
    pub const EMULATED: Self = Self { batches: 1, queries: 150, heads: 2 };
}

/// One of its tests with one choice of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaTritonTest {
    /// `forward`, `forward_oob_sampling` or `backward`, as its functions are called.
    pub name: &'static str,
    /// The problem.
    pub case: MsdaCase,
}

/// What came of one test.
#[derive(Clone, Debug)]
pub struct MsdaTritonResult {
    /// The test.
    pub test: MsdaTritonTest,
    /// Of each tensor the element that is nearest to its tolerance, or farthest beyond; none without a
    /// result.
    pub tensors: Vec<TensorVerdict>,
    /// Why it failed; `None` when it passed.
    pub failure: Option<String>,
}

/// What came of all tests with one seed.
#[derive(Clone, Debug)]
pub struct MsdaTritonOutcome {
    /// The seed.
    pub seed: u64,
    /// Each test, in the order of [`msda_triton_tests`].
    pub results: Vec<MsdaTritonResult>,
}

/// Its tests with one seed. Its `test_triton_forward_oob_sampling` draws nothing out of bounds; here it does.
/// The backward runs in both of our modes.
pub fn msda_triton_tests(seed: u64, size: MsdaTritonSize) -> Vec<MsdaTritonTest> {
    let mut tests = Vec::new();
    let mut add = |name, dtype, mode| {
        for (padding, align_corners) in SAMPLINGS {
            let case = MsdaCase {
                id: tests.len(),
                seed,
                batches: size.batches,
                queries: size.queries,
                heads: size.heads,
                channels: 32,
                shapes: vec![[64, 64], [32, 32], [16, 16], [8, 8]],
                level_points: 3,
                dtype,
                locations_dtype: dtype,
                weights_dtype: dtype,
                padding,
                align_corners,
                mode,
                ..MsdaCase::small()
            };
            tests.push(MsdaTritonTest { name, case });
        }
    };
    for dtype in [Dtype::F16, Dtype::F32] {
        add(FORWARD, dtype, Mode::Fast);
        add(OUTSIDE, dtype, Mode::Fast);
    }
    add(FORWARD, Dtype::Bf16, Mode::Fast);
    add(BACKWARD, Dtype::F32, Mode::Fast);
    add(BACKWARD, Dtype::F32, Mode::Deterministic);
    tests
}

/// Runs all tests with one seed.
pub fn run_msda_triton(device: &Device, seed: u64, size: MsdaTritonSize) -> MsdaTritonOutcome {
    let tests = msda_triton_tests(seed, size);
    let inside = drawn(&tests[0].case);
    let spread = |x: &f32| 2.0 * x - 0.5;
    let outside =
        MsdaNumbers { locations: inside.locations.iter().map(spread).collect(), ..inside.clone() };
    let mut results = Vec::new();
    for (numbers, is_outside) in [(&inside, false), (&outside, true)] {
        let of = |dtype| -> Vec<&MsdaTritonTest> {
            let of_numbers = tests.iter().filter(|test| (test.name == OUTSIDE) == is_outside);
            of_numbers.filter(|test| test.case.dtype == dtype).collect()
        };
        results.extend(run_all::<f16>(device, &of(Dtype::F16), numbers));
        results.extend(run_all::<f32>(device, &of(Dtype::F32), numbers));
        results.extend(run_all::<bf16>(device, &of(Dtype::Bf16), numbers));
    }
    results.sort_by_key(|result| result.test.case.id);
    MsdaTritonOutcome { seed, results }
}

/// Runs tests of one type on the same numbers.
fn run_all<T: Element>(
    device: &Device,
    tests: &[&MsdaTritonTest],
    numbers: &MsdaNumbers,
) -> Vec<MsdaTritonResult> {
    let Some(first) = tests.first() else { return Vec::new() };
    let inputs = Inputs::<T>::new(device, numbers);
    let mut results = Vec::new();
    for (padding, align_corners) in SAMPLINGS {
        let of_sampling: Vec<_> = tests
            .iter()
            .filter(|test| test.case.padding == padding && test.case.align_corners == align_corners)
            .collect();
        let sizes = MsdaSizes { padding, align_corners, ..first.case.sizes() };
        let has_backward = of_sampling.iter().any(|test| test.name == BACKWARD);
        let exact = inputs.as_ref().ok().map(|inputs| Exact::new(&sizes, &inputs.rounded, has_backward));
        for &&test in &of_sampling {
            let compared = inputs.as_ref().map_err(ToString::to_string).and_then(|inputs| {
                let outputs = inputs.outputs(device, &test.case, test.name == BACKWARD);
                outputs.map_err(|error| error.to_string())
            });
            let (tensors, failure) = match (compared, &exact) {
                (Ok(outputs), Some(exact)) => {
                    let tensors = judged(test, &outputs, exact);
                    let wrong = tensors.iter().find(|tensor| !tensor.verdict.passes()).map(failure_text);
                    (tensors, wrong)
                }
                (Err(error), _) => (Vec::new(), Some(error)),
                (Ok(_), None) => (Vec::new(), Some("no reference".to_owned())),
            };
            results.push(MsdaTritonResult { test: test.clone(), tensors, failure });
        }
    }
    results
}

/// The inputs of tests on a device, and as the reference takes them: rounded to `T`.
struct Inputs<T> {
    rounded: MsdaNumbers,
    value: DeviceBuffer<T>,
    locations: DeviceBuffer<T>,
    weights: DeviceBuffer<T>,
    d_o: DeviceBuffer<T>,
}

/// What the kernels made: o, and with a backward dvalue, dlocations and dweights.
type Outputs = Vec<Vec<f32>>;

impl<T: Element> Inputs<T> {
    fn new(device: &Device, numbers: &MsdaNumbers) -> Result<Self> {
        let copied = |numbers: &[f32]| -> Result<(DeviceBuffer<T>, Vec<f32>)> {
            let elements: Vec<T> = numbers.iter().map(|&number| T::from_f32(number)).collect();
            let rounded = elements.iter().map(|&element| element.to_f32()).collect();
            Ok((DeviceBuffer::from_slice(device, &elements)?, rounded))
        };
        let (value, of_value) = copied(&numbers.value)?;
        let (locations, of_locations) = copied(&numbers.locations)?;
        let (weights, of_weights) = copied(&numbers.weights)?;
        let (d_o, of_d_o) = copied(&numbers.d_o)?;
        let rounded =
            MsdaNumbers { value: of_value, locations: of_locations, weights: of_weights, d_o: of_d_o };
        Ok(Inputs { rounded, value, locations, weights, d_o })
    }

    /// Runs a case on them; the outputs start as NaN.
    fn outputs(&self, device: &Device, case: &MsdaCase, has_backward: bool) -> Result<Outputs> {
        let unwritten = |like: &DeviceBuffer<T>| {
            DeviceBuffer::from_slice(device, &vec![T::from_f32(f32::NAN); like.len()])
        };
        let read = |buffer: &DeviceBuffer<T>| -> Result<Vec<f32>> {
            Ok(buffer.to_vec(Stream::default())?.into_iter().map(Element::to_f32).collect())
        };
        let problem = case.backward_problem();
        let [value, locations, weights] =
            [&self.value, &self.locations, &self.weights].map(DeviceBuffer::device_pointer);
        let o = unwritten(&self.d_o)?;
        let pointers = MsdaPointers { value, locations, weights, o: o.device_pointer() };
        // SAFETY: tensors of the case are dense, as large as these allocations, which live until they
        // are read.
        unsafe { msda_forward(device, &problem.forward, &pointers, Stream::default()) }?;
        let mut outputs = vec![read(&o)?];
        if has_backward {
            let [d_value, d_locations, d_weights] =
                [unwritten(&self.value)?, unwritten(&self.locations)?, unwritten(&self.weights)?];
            let pointers = MsdaBackwardPointers {
                value,
                locations,
                weights,
                d_o: self.d_o.device_pointer(),
                d_value: d_value.device_pointer(),
                d_locations: d_locations.device_pointer(),
                d_weights: d_weights.device_pointer(),
            };
            // SAFETY: as above; the call waits for its end.
            unsafe { msda_backward_and_wait(device, &problem, &pointers, Stream::default()) }?;
            for gradient in [d_value, d_locations, d_weights] {
                outputs.push(read(&gradient)?);
            }
        }
        Ok(outputs)
    }
}

/// The results in f64.
struct Exact {
    o: Vec<f64>,
    gradients: Option<ExactMsdaGradients>,
}

impl Exact {
    fn new(sizes: &MsdaSizes, numbers: &MsdaNumbers, has_backward: bool) -> Self {
        let MsdaNumbers { value, locations, weights, d_o } = numbers;
        let tensors = MsdaTensors { value, locations, weights };
        Exact {
            o: exact_msda(sizes, tensors),
            gradients: has_backward.then(|| exact_msda_backward(sizes, tensors, d_o)),
        }
    }
}

/// As `get_functional_data` draws them: values normal, locations and dO uniform from 0 to 1, and weights a
/// softmax of normal numbers over the points of each level.
fn drawn(case: &MsdaCase) -> MsdaNumbers {
    let mut random = StdRng::seed_from_u64(case.seed);
    let sizes = case.sizes();
    let rows = case.batches * case.heads * case.channels;
    let mut normal =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.sample(StandardNormal)).collect() };
    let value = normal(rows * sizes.cells());
    let mut weights = normal(sizes.all_points());
    for of_level in weights.chunks_mut(case.level_points) {
        of_level.iter_mut().for_each(|weight| *weight = weight.exp());
        let sum: f32 = of_level.iter().sum();
        of_level.iter_mut().for_each(|weight| *weight /= sum);
    }
    // Of small numbers there are more than multiples of 2^-24, as of CUDA's.
    let mut uniform = |count: usize| -> Vec<f32> {
        (0..count).map(|_| random.random::<u32>() as f32 / 2f32.powi(32)).collect()
    };
    let locations = uniform(2 * sizes.all_points());
    let d_o = uniform(rows * case.queries);
    MsdaNumbers { value, locations, weights, d_o }
}

/// What a test compares.
fn judged(test: &MsdaTritonTest, outputs: &Outputs, exact: &Exact) -> Vec<TensorVerdict> {
    let tolerance = match (test.name, test.case.dtype) {
        (BACKWARD, _) => BACKWARD_F32,
        (_, Dtype::F32) => FORWARD_F32,
        _ => FORWARD_16,
    };
    let mut tensors = vec![("o", &exact.o)];
    if let (BACKWARD, Some(ExactMsdaGradients { d_value, d_locations, d_weights })) =
        (test.name, &exact.gradients)
    {
        tensors.extend([("dvalue", d_value), ("dlocations", d_locations), ("dweights", d_weights)]);
    }
    assert_eq!(outputs.len(), tensors.len(), "{test:?}");
    tensors.iter().zip(outputs).map(|((name, exact), got)| close(name, tolerance, got, exact)).collect()
}

/// `|got - exact| <= absolute + relative |exact|` for each element, as `torch.testing.assert_close` has it.
fn close(
    name: &'static str,
    [absolute, relative]: [f64; 2],
    got: &[f32],
    exact: &[f64],
) -> TensorVerdict {
    let mut verdict = Verdict { error: 0.0, allowed: absolute, worst: None };
    if got.len() != exact.len() {
        verdict.error = f64::NAN;
    }
    let (mut non_finite, mut first_non_finite) = (0, None);
    let (mut farthest, mut largest) = (0.0f64, 0.0f64);
    for (index, (&got, &exact)) in got.iter().zip(exact).enumerate() {
        let error = (f64::from(got) - exact).abs();
        let allowed = absolute + relative * exact.abs();
        (farthest, largest) = (farthest.max(error), largest.max(exact.abs()));
        if !got.is_finite() {
            non_finite += 1;
            first_non_finite = first_non_finite.or(Some(index));
        }
        // Of two shares of what is allowed the larger: NaN is, and stays.
        let is_worse = error.is_nan() || error * verdict.allowed > verdict.error * allowed;
        if is_worse && !verdict.error.is_nan() {
            verdict = Verdict { error, allowed, worst: Some(index) };
        }
    }
    let relative = if farthest == 0.0 { 0.0 } else { farthest / largest };
    TensorVerdict { name, verdict, relative, non_finite, first_non_finite }
}

fn failure_text(tensor: &TensorVerdict) -> String {
    let verdict = &tensor.verdict;
    let place = verdict.worst.map_or(String::new(), |worst| format!(" at element {worst}"));
    format!("{}: error {:e}{place}, allowed {:e}", tensor.name, verdict.error, verdict.allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn an_element_beyond_its_tolerance_fails_and_is_named() {
        let exact = [0.0, 100.0, -1.0];
        let passes = |got: [f32; 3]| close("o", [1e-3, 1e-2], &got, &exact).verdict.passes();
        assert!(passes([0.0, 100.0, -1.0]) && passes([9e-4, 101.0, -1.01]));
        assert!(!passes([1.1e-3, 100.0, -1.0]) && !passes([0.0, 101.1, -1.0]));
        assert!(!passes([0.0, 100.0, f32::NAN]) && !passes([f32::INFINITY, 100.0, -1.0]));
        let found = close("o", [1e-3, 1e-2], &[9e-4, 100.5, -1.1], &exact);
        assert_eq!((found.verdict.worst, found.verdict.allowed), (Some(2), 1e-3 + 1e-2));
        let found = close("o", [1e-3, 1e-2], &[f32::NAN, 100.0, 9.0], &exact);
        assert_eq!(
            (found.verdict.worst, found.non_finite, found.first_non_finite),
            (Some(0), 1, Some(0))
        );
        assert!(!close("o", [1e-3, 1e-2], &[0.0], &exact).verdict.passes());
    }

    #[test]
    fn every_parametrisation_is_there_once() {
        let tests = msda_triton_tests(3, MsdaTritonSize::FULL);
        let kinds: HashSet<_> = tests
            .iter()
            .map(|MsdaTritonTest { name, case }| {
                (*name, case.dtype, case.padding, case.align_corners, case.mode)
            })
            .collect();
        assert_eq!((kinds.len(), tests.len()), (28, 28));
        let count = |name| tests.iter().filter(|test| test.name == name).count();
        assert_eq!(["forward", "forward_oob_sampling", "backward"].map(count), [12, 8, 8]);
        for (index, test) in tests.iter().enumerate() {
            assert_eq!((test.case.id, test.case.seed), (index, 3));
            assert!(test.case.backward_problem().validate().is_ok());
        }
    }

    #[test]
    fn numbers_have_the_distributions_of_its_tests() {
        let size = MsdaTritonSize { batches: 1, queries: 40, heads: 2 };
        let [first, again, other] = [0, 0, 1].map(|seed| drawn(&msda_triton_tests(seed, size)[0].case));
        assert!(first == again && first != other);
        let mean = |numbers: &[f32]| numbers.iter().sum::<f32>() / numbers.len() as f32;
        assert!(mean(&first.value).abs() < 0.02);
        assert!((mean(&first.value.iter().map(|v| v * v).collect::<Vec<_>>()) - 1.0).abs() < 0.02);
        for uniform in [&first.locations, &first.d_o] {
            assert!(
                uniform.iter().all(|x| (0.0..=1.0).contains(x)) && (mean(uniform) - 0.5).abs() < 0.02
            );
        }
        assert_eq!(first.weights.len(), 40 * 2 * 4 * 3);
        assert!(
            first.weights.chunks(3).all(|of_level| (of_level.iter().sum::<f32>() - 1.0).abs() < 1e-6)
        );
    }
}
