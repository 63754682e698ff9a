//! A case on a device: its numbers, the launches, and what came out.

use super::MsdaCase;
use crate::attention::{Element, Workspace};
use crate::check::{Surroundings, TensorMemory};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;
use crate::msda::launch_msda;
use crate::plan::{MsdaBackwardPointers, MsdaPlan, MsdaPointers, plan_msda_backward, plan_msda_forward};
use crate::problem::Layout;
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::time::{Duration, Instant};

/// The numbers of the inputs in logical order; each is rounded to the dtype of its tensor when used.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaNumbers {
    /// `[B, cells, H, C]`.
    pub value: Vec<f32>,
    /// `[B, N, H, L, P, 2]`.
    pub locations: Vec<f32>,
    /// `[B, N, H, L, P]`.
    pub weights: Vec<f32>,
    /// `[B, N, H, C]`.
    pub d_o: Vec<f32>,
}

impl MsdaNumbers {
    /// Normally distributed values and gradients; weights of each query and head that add up to about 1;
    /// locations from -0.15 to 1.15, some on centres and edges of cells, some far outside.
    pub fn drawn(case: &MsdaCase) -> Self {
        let mut random = StdRng::seed_from_u64(case.seed);
        let sizes = case.sizes();
        let mut normal =
            |count: usize| -> Vec<f32> { (0..count).map(|_| random.sample(StandardNormal)).collect() };
        let value = normal(case.batches * sizes.cells() * case.heads * case.channels);
        let d_o = normal(case.batches * case.queries * case.heads * case.channels);
        let share = 2.0 / sizes.points().max(1) as f32;
        let weights = (0..sizes.all_points()).map(|_| share * random.random::<f32>()).collect();
        let location = |index: usize| {
            let level = index / 2 % sizes.points().max(1) / case.level_points.max(1);
            let [height, width] = case.shapes[level];
            let side = if index.is_multiple_of(2) { width } else { height } as f32;
            match random.random_range(0..10) {
                0 => (random.random_range(0..2 * side as usize + 2) as f32 - 0.5) / (2.0 * side),
                1 => [-3.0, 4.0, 3e4, -3e4, 0.0, 1.0][random.random_range(0..6usize)],
                _ => random.random_range(-0.15..1.15),
            }
        };
        let locations = (0..2 * sizes.all_points()).map(location).collect();
        MsdaNumbers { value, locations, weights, d_o }
    }
}

/// What a device made of a case, in logical order.
#[derive(Clone, Debug)]
pub struct MsdaComputed {
    /// The kernels that ran, in their order.
    pub kernels: Vec<&'static str>,
    /// The inputs as the kernels saw them: rounded, and with one value where elements share an address.
    pub numbers: MsdaNumbers,
    /// `[B, N, H, C]`.
    pub o: Vec<f32>,
    /// `[B, cells, H, C]`.
    pub d_value: Vec<f32>,
    /// `[B, N, H, L, P, 2]`.
    pub d_locations: Vec<f32>,
    /// `[B, N, H, L, P]`.
    pub d_weights: Vec<f32>,
    /// Which output changed outside its elements, and where; `None` when none did.
    pub spilled: Option<String>,
    /// How long the device took, copies of the results included.
    pub elapsed: Duration,
}

/// A tensor of any element type in device memory.
enum Memory<'d> {
    Bf16(TensorMemory<'d, bf16>),
    F16(TensorMemory<'d, f16>),
    F32(TensorMemory<'d, f32>),
}

/// The same of each element type.
macro_rules! of_any {
    ($memory:expr, $tensor:ident => $result:expr) => {
        match $memory {
            Memory::Bf16($tensor) => $result,
            Memory::F16($tensor) => $result,
            Memory::F32($tensor) => $result,
        }
    };
}

impl<'d> Memory<'d> {
    /// One with these numbers, or with NaN.
    fn new(
        device: &'d Device,
        case: &MsdaCase,
        layout: Layout,
        dtype: Dtype,
        numbers: Option<&[f32]>,
        surroundings: Surroundings,
    ) -> Result<Self> {
        fn typed<'d, T: Element>(
            device: &'d Device,
            layout: Layout,
            lead: usize,
            numbers: Option<&[f32]>,
            surroundings: Surroundings,
        ) -> Result<TensorMemory<'d, T>> {
            let rounded = |numbers: &[f32]| -> Vec<T> {
                numbers.iter().map(|&number| T::from_f32(number)).collect()
            };
            let numbers = numbers.map(rounded);
            TensorMemory::new(device, layout, lead, true, numbers.as_deref(), surroundings)
        }
        let lead = case.placement.lead();
        Ok(match dtype {
            Dtype::Bf16 => Memory::Bf16(typed(device, layout, lead, numbers, surroundings)?),
            Dtype::F16 => Memory::F16(typed(device, layout, lead, numbers, surroundings)?),
            Dtype::F32 => Memory::F32(typed(device, layout, lead, numbers, surroundings)?),
        })
    }

    fn pointer(&self) -> DevicePointer {
        of_any!(self, tensor => tensor.pointer())
    }

    fn written(&self) -> Vec<f32> {
        of_any!(self, tensor => tensor.written().into_iter().map(Element::to_f32).collect())
    }

    /// The elements, and where anything outside them changed.
    fn read(&self) -> Result<(Vec<f32>, Option<isize>)> {
        of_any!(self, tensor => {
            let (elements, spilled) = tensor.read(Stream::default())?;
            Ok((elements.into_iter().map(Element::to_f32).collect(), spilled))
        })
    }
}

/// Runs both passes of a case with these numbers on `device`, `surroundings` around and between all elements
/// of the inputs; those of the outputs, the outputs themselves and the workspace start as NaN.
///
/// # Errors
/// Errors of the problem, of the planner, and of the device.
pub fn compute_msda(
    device: &Device,
    case: &MsdaCase,
    numbers: &MsdaNumbers,
    surroundings: Surroundings,
) -> Result<MsdaComputed> {
    let problem = case.backward_problem();
    let valid = problem.validate()?;
    let of = &problem.forward;
    let input = |layout: Layout, dtype, numbers: &[f32]| {
        Memory::new(device, case, layout, dtype, Some(numbers), surroundings)
    };
    let output = |layout, dtype| Memory::new(device, case, layout, dtype, None, Surroundings::Nan);
    let value = input(of.value, of.dtype, &numbers.value)?;
    let locations = input(of.locations, of.locations_dtype, &numbers.locations)?;
    let weights = input(of.weights, of.weights_dtype, &numbers.weights)?;
    let d_o = input(problem.d_o, of.dtype, &numbers.d_o)?;
    let o = output(of.o, of.dtype)?;
    let d_value = output(problem.d_value, of.dtype)?;
    let d_locations = output(problem.d_locations, of.locations_dtype)?;
    let d_weights = output(problem.d_weights, of.weights_dtype)?;
    let pointers = MsdaPointers {
        value: value.pointer(),
        locations: locations.pointer(),
        weights: weights.pointer(),
        o: o.pointer(),
    };
    let gradients = MsdaBackwardPointers {
        value: value.pointer(),
        locations: locations.pointer(),
        weights: weights.pointer(),
        d_o: d_o.pointer(),
        d_value: d_value.pointer(),
        d_locations: d_locations.pointer(),
        d_weights: d_weights.pointer(),
    };
    let start = Instant::now();
    let forward = plan_msda_forward(&valid.forward, device.properties(), &pointers)?;
    let backward = plan_msda_backward(&valid, device.properties(), &gradients)?;
    run(device, &forward)?;
    run(device, &backward)?;
    let (mut results, mut spilled) = (Vec::new(), None);
    let names = ["o", "dvalue", "dlocations", "dweights"];
    for (name, tensor) in names.into_iter().zip([&o, &d_value, &d_locations, &d_weights]) {
        let (elements, place) = tensor.read()?;
        results.push(elements);
        let text = |byte| format!("{name}: byte {byte} from its start is outside and was changed");
        spilled = spilled.or(place.map(text));
    }
    let elapsed = start.elapsed();
    let mut results = results.into_iter();
    let mut next = || results.next().unwrap_or_default();
    let launches = forward.launches.iter().chain(&backward.launches);
    Ok(MsdaComputed {
        kernels: launches.map(|launch| launch.variant.kernel.name).collect(),
        numbers: MsdaNumbers {
            value: value.written(),
            locations: locations.written(),
            weights: weights.written(),
            d_o: d_o.written(),
        },
        o: next(),
        d_value: next(),
        d_locations: next(),
        d_weights: next(),
        spilled,
        elapsed,
    })
}

/// Launches a plan with a workspace full of NaN, and waits.
fn run(device: &Device, plan: &MsdaPlan) -> Result<()> {
    let bytes = plan.workspace_bytes();
    let layout = Layout::bshd([1, 1, 1, bytes.div_ceil(4) as usize]);
    let memory = TensorMemory::<f32>::new(device, layout, 0, true, None, Surroundings::Nan)?;
    let workspace = Workspace { pointer: memory.pointer(), bytes };
    // SAFETY: every allocation holds its layout, is used by this call alone, and lives past the end of it.
    unsafe { launch_msda(device, plan, workspace, Stream::default()) }?;
    device.synchronize(Stream::default())
}
