//! The kernel that scans tensors with one thing taken away: it is found, by the emulator or in the results.

use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::driver::emulated::Options;
use finite_attention::training::{DeviceTensor, TrainingError, multiply};
use finite_attention::{Dtype, Error, KernelImages, Stream};
use finite_attention_tests::device::{emulated, emulated_arch};
use finite_attention_tests::ptx::{Ptx, Which, dropped, operand, spec, with_operand};
use std::cell::Cell;

const KERNEL: &str = "scan_f32_sm80";
/// Of a block with a step for each warp, and more for some.
const ELEMENTS: usize = 5001;

/// What is wrong with the results of a kernel, of tensors that show each of them.
fn wrong(images: &KernelImages) -> Option<String> {
    let finite = |at: usize| (at % 7) as f32 - 2.5;
    // In the last lane of the first warp, and nowhere else.
    let planted = |at: usize| match at {
        125 => f32::NAN,
        126 => f32::INFINITY,
        127 => f32::NEG_INFINITY,
        _ => finite(at),
    };
    // In the last warp.
    let late = |at: usize| if at == 7 * 512 + 509 { f32::NAN } else { finite(at) };
    // The last one begins off 16 bytes, and is read element by element.
    let tensors: [(&dyn Fn(usize) -> f32, usize); 4] =
        [(&finite, 0), (&planted, 0), (&late, 0), (&planted, 1)];
    for (case, (value, skipped)) in tensors.into_iter().enumerate() {
        let values: Vec<f32> = (0..ELEMENTS).map(value).collect();
        let memory = [&[0.0][..skipped], &values].concat();
        let device = emulated(spec(KERNEL).arch, images.clone(), Options::default());
        let buffer = DeviceBuffer::from_slice(&device, &memory).unwrap();
        let address = buffer.device_pointer() + 4 * skipped as u64;
        let tensor = DeviceTensor::dense("x", Dtype::F32, &[ELEMENTS], address);
        // SAFETY: the buffer holds all of the tensor, and nobody else uses it.
        let found = match unsafe { multiply(&device, &tensor, 3.0, Stream::default()) } {
            Ok(found) => found,
            Err(TrainingError::Library(Error::Findings { findings, .. })) => {
                return Some(findings.join("\n"));
            }
            Err(error) => panic!("the mutant does not run: {error}"),
        };
        let count = |of: fn(f32) -> bool| values.iter().filter(|value| of(**value)).count();
        let expected = [
            count(f32::is_nan),
            count(|value| value == f32::INFINITY),
            count(|value| value == f32::NEG_INFINITY),
            values.iter().position(|value| !value.is_finite()).unwrap_or(usize::MAX),
        ];
        let non_finite = &found.non_finite;
        let got = [
            non_finite.nan,
            non_finite.positive_infinity,
            non_finite.negative_infinity,
            non_finite.first.unwrap_or(usize::MAX),
        ];
        let products: Vec<f32> = values.iter().map(|value| value * 3.0).collect();
        let norm = products.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        let is_near =
            (found.norm - norm).abs() <= 1e-6 * norm || products.iter().any(|value| !value.is_finite());
        let now = buffer.to_vec(Stream::default()).unwrap()[skipped..].to_vec();
        let is_same = |(now, product): (&f32, &f32)| now == product || now.is_nan() && product.is_nan();
        if got != expected || !is_near || !now.iter().zip(&products).all(is_same) {
            return Some(format!("tensor {case}: {got:?}, norm {} and {norm}", found.norm));
        }
    }
    None
}

#[test]
fn the_kernel_that_ships_is_right() {
    assert_eq!(wrong(&Ptx::shipped(KERNEL).images()), None);
}

#[test]
fn barriers_shuffles_and_stores_of_a_scan_are_needed() {
    if emulated_arch().is_none() && std::env::var_os("FATTN_DEVICE").is_some() {
        return;
    }
    for opcode in ["bar.sync", "shfl.sync.bfly", "st.global.v4", "st.shared.v4", "st.shared.v2"] {
        let shipped = Ptx::shipped(KERNEL);
        let count = shipped.find(opcode, "").len();
        assert!(count > 0, "{opcode}");
        for number in 0..count {
            let mutant = shipped.edited(opcode, "", Which::Number(number), dropped);
            assert!(wrong(&mutant.images()).is_some(), "the mutant without {opcode} {number} passes");
        }
    }
}

/// Each of the four pieces that a lane has in flight counts its own elements.
#[test]
fn groups_of_an_element_too_many_are_found() {
    if emulated_arch().is_none() && std::env::var_os("FATTN_DEVICE").is_some() {
        return;
    }
    let shipped = Ptx::shipped(KERNEL);
    let changed = Cell::new(0);
    for number in 0..shipped.find("min.u64", "").len() {
        let before = changed.get();
        let mutant = shipped.edited("min.u64", "", Which::Number(number), |instruction| {
            if operand(instruction, 2) != "4" {
                return format!("{instruction} "); // another one, of no interest here
            }
            changed.set(before + 1);
            with_operand(instruction, 2, "5")
        });
        let is_found = changed.get() == before || wrong(&mutant.images()).is_some();
        assert!(is_found, "the mutant of min.u64 {number} passes");
    }
    assert_eq!(changed.get(), 4);
}
