//! The range of the forward is that of its formula: where products, scores and results fit f32, they are right
//! whatever their size (docs/semantics.md, section 2).

use finite_attention::check::{Case, Computed, Inputs, Surroundings};
use finite_attention::device::DeviceName;
use finite_attention::reference::exact;
use finite_attention::{Device, Dtype, KernelImages};
use finite_attention_tests::compare::run;
use finite_attention_tests::device::{emulated_arch, name, open_with};
use kernels_gpu::abi::Arch;

/// Both emulated targets, or the GPU that is asked for.
fn each_device(test: impl Fn(&Device)) {
    let names = match emulated_arch() {
        Some(_) => Arch::ALL.map(DeviceName::Emulated).to_vec(),
        None => vec![name()],
    };
    names.into_iter().for_each(|name| test(&open_with(name, KernelImages::embedded())));
}

/// One query of one head, D and Dv 1, against these keys and values.
struct Row<'r> {
    q: f32,
    k: &'r [f32],
    v: &'r [f32],
    scale: f32,
}

impl Row<'_> {
    /// o, lse on the device and by the reference; q, k and v are rounded to the element type first.
    fn run(&self, device: &Device, dtype: Dtype, output_dtype: Dtype) -> [(f64, f64); 2] {
        let case = Case {
            query_rows: 1,
            key_rows: self.k.len(),
            query_heads: 1,
            head_dim: 1,
            value_dim: 1,
            scale: Some(self.scale),
            dtype,
            output_dtype,
            ..Case::small()
        };
        let inputs =
            Inputs { q: vec![self.q], k: self.k.to_vec(), v: self.v.to_vec(), ..Inputs::default() };
        let Computed { o, lse, inputs: Inputs { q, k, v, .. }, .. } =
            run(device, &case, &inputs, Surroundings::Nan).unwrap();
        let expected = exact(&case.sizes(), &q, &k, &v);
        [(o[0].into(), expected.o[0]), (lse[0].into(), expected.lse[0])]
    }

    /// o and lse are as exact as their types, in each of these pairs of types.
    fn is_right(&self, types: &[(Dtype, Dtype)]) {
        each_device(|device| {
            for &(dtype, output_dtype) in types {
                let [(o, expected_o), (lse, expected_lse)] = self.run(device, dtype, output_dtype);
                // Probabilities are rounded to the element type, and then o.
                let precision = match dtype {
                    Dtype::Bf16 => 2f64.powi(-7),
                    Dtype::F16 => 2f64.powi(-9),
                    Dtype::F32 => 1e-5,
                };
                let name = (&device.properties().name, dtype, output_dtype);
                let error = (o - expected_o).abs();
                assert!(error <= precision * expected_o.abs(), "{name:?}: o {o:e}, not {expected_o:e}");
                let error = (lse - expected_lse).abs();
                assert!(
                    error <= 2e-5 * expected_lse.abs().max(1.0),
                    "{name:?}: lse {lse:e}, not {expected_lse:e}"
                );
            }
        });
    }
}

const WIDE: [(Dtype, Dtype); 3] =
    [(Dtype::Bf16, Dtype::Bf16), (Dtype::Bf16, Dtype::F32), (Dtype::F32, Dtype::F32)];

#[test]
fn a_small_probability_times_a_large_value_counts() {
    Row { q: 1.0, k: &[0.0, -60.0], v: &[0.0, 1e38], scale: 1.0 }.is_right(&WIDE);
}

#[test]
fn values_near_the_smallest_normal_number_are_not_lost() {
    Row { q: 1.0, k: &[1.0], v: &[1e-35], scale: 1.0 }.is_right(&WIDE);
    Row { q: 1.0, k: &[1.0, 1.0, 1.0], v: &[1e-33, 3e-33, 2e-33], scale: 1.0 }.is_right(&WIDE);
}

#[test]
fn scores_may_be_further_apart_than_the_largest_number() {
    let row = Row { q: 1e19, k: &[2e19, -2e19], v: &[1.0, -1.0], scale: 1e-38 };
    row.is_right(&WIDE);
    // The row max moves so far between key tiles, too.
    let k: Vec<f32> = (0..300).map(|key| if key < 150 { 2e19 } else { -2e19 }).collect();
    let v: Vec<f32> = (0..300).map(|key| if key < 150 { 1.0 } else { -1.0 }).collect();
    Row { k: &k, v: &v, ..row }.is_right(&WIDE);
    let v: Vec<f32> = v.iter().map(|v| -v).collect();
    Row { q: -1e19, k: &k, v: &v, ..row }.is_right(&WIDE);
}

/// The lowest finite value is a score like any other: a row of it is uniform.
#[test]
fn a_row_of_the_lowest_finite_score_is_uniform() {
    let lowest = |dtype| match dtype {
        Dtype::Bf16 => f32::from_bits(0xff7f_0000),
        Dtype::F16 => -65504.0,
        Dtype::F32 => f32::MIN,
    };
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let row = Row { q: lowest(dtype), k: &[1.0; 4], v: &[1.0, 2.0, 3.0, 6.0], scale: 1.0 };
        each_device(|device| {
            let [(o, _), (lse, expected_lse)] = row.run(device, dtype, dtype);
            let expected = (3.0, f64::from(expected_lse as f32));
            assert_eq!((o, lse), expected, "{dtype:?} on {}", device.properties().name);
        });
    }
}
