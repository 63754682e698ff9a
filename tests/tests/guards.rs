//! Guards of training on the device (docs/semantics.md, section 7): scans, products in place, clipping and unscaling of
//! tensors of any shape and strides, against plain loops; nothing outside a tensor is read or written.

use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::training::{
    Clipped, DeviceTensor, GradScaler, NonFiniteNorm, Scanned, TrainingError, clip_by_global_norm,
    multiply, scan,
};
use finite_attention::{Device, Dtype, Element, KernelImages, Stream};
use finite_attention_tests::device::{emulated, emulated_archs, open};
use finite_attention_tests::property::{count_from_environment, seed_from_environment};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Elements on each side of a tensor, all NaN.
const GUARD: usize = 64;

/// A tensor, all memory around it, and what is in it.
struct Drawn<T> {
    shape: Vec<usize>,
    strides: Vec<i64>,
    /// Where the element whose indices are 0 stands in `memory`.
    origin: usize,
    memory: Vec<T>,
}

/// A number of any size that is likely to find something.
fn size(random: &mut StdRng) -> usize {
    match random.random_range(0..6) {
        0 => 1,
        1 => random.random_range(2..9),
        2 => [8, 16, 64, 128][random.random_range(0..4)],
        _ => random.random_range(1..70),
    }
}

impl<T: Element> Drawn<T> {
    /// Of up to four dimensions: dense, in another order, with gaps, backwards, off 16 bytes, of several blocks.
    fn new(random: &mut StdRng, planted: &[f32]) -> Self {
        let rank = random.random_range(0..5);
        let mut shape: Vec<usize> = (0..rank).map(|_| size(random)).collect();
        while shape.iter().product::<usize>() > 60_000 {
            shape.pop();
        }
        if random.random_bool(0.1) {
            shape = vec![random.random_range(30_000..150_000)];
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if random.random_bool(0.3) {
            (0..shape.len()).for_each(|at| order.swap(at, random.random_range(0..=at)));
        }
        let gap = [0, 0, 0, 8, 3][random.random_range(0..5)];
        let mut strides = vec![0i64; shape.len()];
        let mut step = if random.random_bool(0.1) { 2 } else { 1 };
        for (place, &dimension) in order.iter().rev().enumerate() {
            strides[dimension] = step;
            step *= shape[dimension] as i64;
            if place == 0 {
                step += gap;
            }
        }
        let mut origin = GUARD + [0, 0, 1, 8][random.random_range(0..4)];
        for (stride, &size) in strides.iter_mut().zip(&shape) {
            if random.random_bool(0.1) {
                *stride = -*stride;
                origin += (size - 1) * stride.unsigned_abs() as usize;
            }
        }
        let memory = vec![T::from_f32(f32::NAN); origin + step as usize + GUARD];
        let mut drawn = Drawn { shape, strides, origin, memory };
        let places = drawn.places();
        for &place in &places {
            drawn.memory[place] = T::from_f32(random.random_range(-4.0..4.0));
        }
        for &value in planted {
            let place = places[random.random_range(0..places.len())];
            drawn.memory[place] = T::from_f32(value);
        }
        drawn
    }

    /// Where the elements stand, in logical order.
    fn places(&self) -> Vec<usize> {
        let mut places = vec![self.origin as i64];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let along = |place: i64| (0..size as i64).map(move |index| place + index * stride);
            places = places.into_iter().flat_map(along).collect();
        }
        places.into_iter().map(|place| place as usize).collect()
    }

    fn values(&self) -> Vec<f32> {
        self.places().into_iter().map(|place| self.memory[place].to_f32()).collect()
    }

    fn buffer(&self, device: &Device) -> DeviceBuffer<T> {
        DeviceBuffer::from_slice(device, &self.memory).unwrap()
    }

    fn tensor(&self, name: &str, buffer: &DeviceBuffer<T>) -> DeviceTensor {
        let address = buffer.device_pointer() + (self.origin * size_of::<T>()) as u64;
        DeviceTensor::dense(name, T::DTYPE, &self.shape, address).with_strides(&self.strides)
    }

    /// The memory with every element multiplied and rounded once.
    fn product(&self, factor: f32) -> Vec<T> {
        let mut memory = self.memory.clone();
        for place in self.places() {
            memory[place] = T::from_f32(memory[place].to_f32() * factor);
        }
        memory
    }
}

/// The same numbers, and NaN wherever there is one: of which kind is nobody's promise.
fn assert_same<T: Element>(got: &[T], expected: &[T], what: &str) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected) = (got.to_f32(), expected.to_f32());
        let is_same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(is_same, "{what}: {got} at {index}, expected {expected}");
    }
}

/// What plain loops find.
fn expected(values: &[f32]) -> (usize, usize, usize, Option<usize>, f64) {
    let count = |of: fn(f32) -> bool| values.iter().filter(|value| of(**value)).count();
    (
        count(f32::is_nan),
        count(|value| value == f32::INFINITY),
        count(|value| value == f32::NEG_INFINITY),
        values.iter().position(|value| !value.is_finite()),
        values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt(),
    )
}

fn assert_found(scanned: &Scanned, values: &[f32], what: &str) {
    let (nan, positive, negative, first, norm) = expected(values);
    let found = &scanned.non_finite;
    assert_eq!(
        (found.nan, found.positive_infinity, found.negative_infinity, found.first),
        (nan, positive, negative, first),
        "{what}"
    );
    if norm.is_finite() {
        let difference = (scanned.norm - norm).abs();
        assert!(difference <= 1e-6 * norm, "{what}: norm {}, expected {norm}", scanned.norm);
    } else {
        assert!(!scanned.norm.is_finite(), "{what}: norm {}", scanned.norm);
    }
}

/// The devices that the tests run on: each target of the emulator, under a schedule of its own.
fn devices(schedule: Schedule) -> Vec<Device> {
    let options = Options { schedule, ..Options::default() };
    let archs = emulated_archs();
    let emulated = |arch| emulated(arch, KernelImages::embedded(), options.clone());
    if archs.is_empty() { vec![(*open()).clone()] } else { archs.into_iter().map(emulated).collect() }
}

const PLANTED: [&[f32]; 5] = [
    &[],
    &[f32::NAN],
    &[f32::INFINITY, f32::NEG_INFINITY],
    &[f32::NEG_INFINITY, f32::NAN, f32::NAN, f32::INFINITY],
    &[0.0, -0.0, 1e-30, 6e4],
];

fn scans_and_products<T: Element>(stream: u64) {
    let count = count_from_environment(90, 1);
    let seed = seed_from_environment().wrapping_add(stream << 32);
    for id in 0..u64::from(count) {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(id));
        let planted = PLANTED[id as usize % PLANTED.len()];
        let drawn = Drawn::<T>::new(&mut random, planted);
        let what = format!(
            "FATTN_SEED={seed}, case {id}: {:?} strides {:?} origin {}",
            drawn.shape, drawn.strides, drawn.origin
        );
        let schedule = [Schedule::Latest, Schedule::Eager, Schedule::Random(id)][id as usize % 3];
        for device in devices(schedule) {
            let buffer = drawn.buffer(&device);
            let tensor = drawn.tensor("x", &buffer);
            let stream = Stream::default();
            // SAFETY: the buffer holds all of the tensor, and nobody else uses it.
            let scanned = unsafe { scan(&device, &tensor, stream) }
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_found(&scanned, &drawn.values(), &what);
            // SAFETY: as above.
            let again = unsafe { scan(&device, &tensor, stream) }.unwrap();
            assert_eq!(again.norm.to_bits(), scanned.norm.to_bits(), "{what}");
            assert_same(&buffer.to_vec(stream).unwrap(), &drawn.memory, &what);
            let factor = [0.5, 1.0 / 65536.0, -3.25, 1e6][random.random_range(0..4)];
            // SAFETY: as above.
            let before = unsafe { multiply(&device, &tensor, factor, stream) }.unwrap();
            assert_eq!(before.non_finite, scanned.non_finite, "{what}");
            let product = drawn.product(factor);
            assert_same(&buffer.to_vec(stream).unwrap(), &product, &what);
            let products: Vec<f32> = drawn.places().into_iter().map(|at| product[at].to_f32()).collect();
            let (.., norm) = expected(&products);
            let is_close = (before.norm - norm).abs() <= 1e-6 * norm;
            assert!(is_close || !norm.is_finite() && !before.norm.is_finite(), "{what}");
        }
    }
}

#[test]
fn scans_and_products_of_bf16_are_those_of_plain_loops() {
    scans_and_products::<bf16>(1);
}

#[test]
fn scans_and_products_of_f16_are_those_of_plain_loops() {
    scans_and_products::<f16>(2);
}

#[test]
fn scans_and_products_of_f32_are_those_of_plain_loops() {
    scans_and_products::<f32>(3);
}

/// Broadcast dimensions count as often as they are seen; nothing is written through them.
#[test]
fn broadcast_dimensions_are_scanned_and_not_written() {
    for device in devices(Schedule::Latest) {
        let buffer = DeviceBuffer::from_slice(&device, &[1.0f32, f32::NAN, 2.0]).unwrap();
        let tensor = DeviceTensor::dense("x", Dtype::F32, &[4, 3], buffer.device_pointer());
        let tensor = tensor.with_strides(&[0, 1]);
        // SAFETY: the buffer holds all of the tensor, and nobody else uses it.
        let scanned = unsafe { scan(&device, &tensor, Stream::default()) }.unwrap();
        assert_eq!(scanned.to_string(), "4 NaN, 0 +inf, 0 -inf, the first at [0, 1]");
        // SAFETY: as above.
        let error = unsafe { multiply(&device, &tensor, 2.0, Stream::default()) }.unwrap_err();
        assert!(error.to_string().starts_with("x: expected no two elements at one address"), "{error}");
    }
}

/// Squares that f32 does not hold, or holds with few bits.
#[test]
fn norms_have_the_range_of_f32() {
    for device in devices(Schedule::Latest) {
        for value in [f32::MAX, 1e30, 3e19, 1.0, 1e-15, 1e-25, 1e-38, f32::from_bits(1)] {
            for count in [1usize, 7, 5000] {
                let values: Vec<f32> = (0..count).map(|at| value / (1 + at % 3) as f32).collect();
                let buffer = DeviceBuffer::from_slice(&device, &values).unwrap();
                let tensor = DeviceTensor::dense("x", Dtype::F32, &[count], buffer.device_pointer());
                // SAFETY: the buffer holds all of the tensor, and nobody else uses it.
                let scanned = unsafe { scan(&device, &tensor, Stream::default()) }.unwrap();
                assert_found(&scanned, &values, &format!("{count} of {value:e}"));
            }
        }
    }
}

/// Gradients of some sizes on a device.
struct Gradients {
    values: Vec<Vec<f32>>,
    buffers: Vec<DeviceBuffer<f32>>,
    tensors: Vec<DeviceTensor>,
}

impl Gradients {
    fn new(device: &Device, values: Vec<Vec<f32>>) -> Self {
        let buffers: Vec<_> =
            values.iter().map(|values| DeviceBuffer::from_slice(device, values).unwrap()).collect();
        let tensors = buffers
            .iter()
            .enumerate()
            .map(|(index, buffer)| {
                let address = buffer.device_pointer();
                DeviceTensor::dense(format!("g{index}"), Dtype::F32, &[buffer.len()], address)
            })
            .collect();
        Gradients { values, buffers, tensors }
    }

    fn now(&self) -> Vec<Vec<f32>> {
        self.buffers.iter().map(|buffer| buffer.to_vec(Stream::default()).unwrap()).collect()
    }

    fn clip(&self, device: &Device, most: f32, rule: NonFiniteNorm) -> Result<Clipped, TrainingError> {
        // SAFETY: the buffers hold all of the tensors, and nobody else uses them.
        unsafe { clip_by_global_norm(device, &self.tensors, most, rule, Stream::default()) }
    }
}

/// PyTorch's rule in f64.
#[test]
fn clipping_multiplies_by_what_the_norm_of_all_gradients_asks_for() {
    let mut random = StdRng::seed_from_u64(seed_from_environment());
    for device in devices(Schedule::Latest) {
        for most in [0.0, 1e-3, 1.0, 50.0, f32::INFINITY] {
            let values: Vec<Vec<f32>> = [1, 17, 4096, 300]
                .iter()
                .map(|&count| (0..count).map(|_| random.random_range(-1.0..1.0)).collect())
                .collect();
            let total =
                values.iter().flatten().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            let coefficient = (f64::from(most) / (total + 1e-6)).min(1.0);
            let gradients = Gradients::new(&device, values);
            let clipped = gradients.clip(&device, most, NonFiniteNorm::Refuse).unwrap();
            assert!((f64::from(clipped.total_norm) - total).abs() <= 1e-6 * total);
            assert!((f64::from(clipped.coefficient) - coefficient).abs() <= 1e-6 * coefficient);
            for (now, before) in gradients.now().iter().zip(&gradients.values) {
                let product: Vec<f32> = before.iter().map(|value| value * clipped.coefficient).collect();
                assert_same(now, &product, "clipped");
            }
        }
    }
}

#[test]
fn a_norm_that_is_not_finite_is_an_error_unless_it_is_asked_for() {
    for device in devices(Schedule::Latest) {
        let values = vec![vec![1.0, 2.0], vec![3.0, f32::INFINITY, 4.0]];
        let gradients = Gradients::new(&device, values.clone());
        let error = gradients.clip(&device, 1.0, NonFiniteNorm::Refuse).unwrap_err();
        assert_eq!(
            error.to_string(),
            "total norm: expected a finite number, got inf: g1 has 0 NaN, 1 +inf, 0 -inf, the first at [1]"
        );
        assert_eq!(gradients.now(), values);
        let clipped = gradients.clip(&device, 1.0, NonFiniteNorm::Multiply).unwrap();
        assert_eq!((clipped.total_norm, clipped.coefficient), (f32::INFINITY, 0.0));
        let now = gradients.now();
        assert!(now[0] == [0.0, 0.0] && now[1][0] == 0.0 && now[1][1].is_nan(), "{now:?}");
        // All finite, and more than f32 holds.
        let gradients = Gradients::new(&device, vec![vec![f32::MAX; 2]]);
        let error = gradients.clip(&device, 1.0, NonFiniteNorm::Refuse).unwrap_err();
        assert!(error.to_string().ends_with("the norm is more than f32 holds"), "{error}");
        let error = gradients.clip(&device, -1.0, NonFiniteNorm::Refuse).unwrap_err();
        assert_eq!(error.to_string(), "max_norm: expected a number of at least 0, got -1");
        assert!(gradients.clip(&device, f32::NAN, NonFiniteNorm::Refuse).is_err());
    }
}

#[test]
fn unscaling_divides_gradients_on_the_device_and_finds_what_is_not_finite() {
    for device in devices(Schedule::Latest) {
        let mut scaler = GradScaler::default();
        let gradients = Gradients::new(&device, vec![vec![65536.0, 1.0], vec![-131072.0]]);
        let stream = Stream::default();
        // SAFETY: the buffers hold all of the tensors, and nobody else uses them.
        let unscale = |scaler: &mut GradScaler, gradients: &Gradients| unsafe {
            scaler.unscale(&device, 0, &gradients.tensors, stream)
        };
        assert!(unscale(&mut scaler, &gradients).unwrap().is_empty());
        assert_eq!(gradients.now(), [vec![1.0, 1.0 / 65536.0], vec![-2.0]]);
        let error = unscale(&mut scaler, &gradients).unwrap_err().to_string();
        assert!(error.contains("got a second call since the last update"), "{error}");
        assert_eq!(gradients.now()[1], [-2.0]);
        assert!(scaler.step(0).unwrap());
        scaler.update().unwrap();
        let gradients = Gradients::new(&device, vec![vec![1.0], vec![2.0, f32::NAN]]);
        let found = unscale(&mut scaler, &gradients).unwrap();
        assert_eq!((found.len(), found[0].0.as_str(), &found[0].1.first), (1, "g1", &Some(vec![1])));
        assert!(!scaler.step(0).unwrap());
        assert_eq!(scaler.update().unwrap(), 32768.0);
    }
}
