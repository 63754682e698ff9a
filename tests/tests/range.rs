//! Range is the formula's: where q k, scale times it, dO v, dO o and the true results fit f32, gradients are
//! right.

use finite_attention::attention::{BackwardInputs, backward_host};
use finite_attention::check::{Case, Inputs, Placement};
use finite_attention::driver::emulated::Options;
use finite_attention::{
    BackwardProblem, Device, Dtype, Element, ForwardProblem, KernelImages, Layout, Mask, Mode,
    ScoreSlices,
};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::device::{emulated, emulated_arch, open};
use finite_attention_tests::property::check;
use finite_attention_tests::rule::within_the_rule;
use half::{bf16, f16};
use kernels_gpu::abi::Arch;

/// One head of queries and keys, with what the forward gave of them.
#[derive(Clone, Debug)]
struct Head {
    /// Columns of q and k, and of v.
    columns: [usize; 2],
    scale: f32,
    softcap: Option<f32>,
    causal: bool,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    o: Vec<f32>,
    lse: Vec<f32>,
    d_o: Vec<f32>,
}

/// In f32.
#[derive(Debug)]
struct Gradients {
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl Head {
    /// One column, one query that gives `o` and `lse`, scale 1.
    fn of_one_query(q: f32, k: &[f32], v: &[f32], o: f32, lse: f32) -> Self {
        let (q, k, v) = (vec![q], k.to_vec(), v.to_vec());
        let (o, lse, d_o) = (vec![o], vec![lse], vec![1.0]);
        Head { columns: [1, 1], scale: 1.0, softcap: None, causal: false, q, k, v, o, lse, d_o }
    }

    fn gradients<T: Element>(&self, device: &Device, mode: Mode) -> Gradients {
        let [columns, value_columns] = self.columns;
        let tensor = |numbers: &[f32]| -> Vec<T> { numbers.iter().map(|&x| T::from_f32(x)).collect() };
        let layout = |numbers: &[f32], columns| Layout::bshd([1, numbers.len() / columns, 1, columns]);
        let (q, k) = (layout(&self.q, columns), layout(&self.k, columns));
        let mut forward = ForwardProblem::new(T::DTYPE, q, k, layout(&self.v, value_columns))
            .with_scale(self.scale)
            .with_output_dtype(Dtype::F32);
        if self.causal {
            forward = forward.causal();
        }
        if let Some(cap) = self.softcap {
            forward = forward.with_softcap(cap);
        }
        let problem = BackwardProblem::new(forward).with_gradient_dtype(Dtype::F32).with_mode(mode);
        let inputs = BackwardInputs {
            q: &tensor(&self.q),
            k: &tensor(&self.k),
            v: &tensor(&self.v),
            o: &self.o[..],
            lse: &self.lse,
            d_o: &tensor(&self.d_o),
            d_lse: &[],
            scores: ScoreSlices::default(),
            cu_seqlens_q: &[],
            cu_seqlens_k: &[],
        };
        let output = backward_host::<T, f32, f32>(device, &problem, &inputs);
        let output = output.unwrap_or_else(|error| panic!("{error}"));
        Gradients { dq: output.dq, dk: output.dk, dv: output.dv }
    }
}

/// Calls `test` with the gradients in this element type on every device that there is to test.
fn on_every_device<T: Element>(head: &Head, test: impl Fn(&str, &Gradients)) {
    for mode in [Mode::Fast, Mode::Deterministic] {
        if emulated_arch().is_none() {
            let name = format!("{:?} {mode:?}", T::DTYPE);
            test(&name, &head.gradients::<T>(&open(), mode));
            continue;
        }
        for arch in [Arch::Sm80, Arch::Sm90a] {
            let device = emulated(arch, KernelImages::embedded(), Options::default());
            test(&format!("{arch:?} {:?} {mode:?}", T::DTYPE), &head.gradients::<T>(&device, mode));
        }
    }
}

/// Every number is within `tolerance` of what is expected, relative to it.
fn close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (got - expected).abs();
        assert!(error <= tolerance * expected.abs(), "{what}[{at}]: expected {expected:e}, got {got:e}");
    }
}

#[test]
fn one_key_has_all_of_dv_however_large_its_logit() {
    fn test<T: Element>(c: f32) {
        let c = T::from_f32(c).to_f32();
        let head = Head {
            columns: [64, 64],
            scale: 1.0,
            softcap: None,
            causal: false,
            q: vec![c; 64],
            k: vec![c; 64],
            v: vec![1.0; 64],
            o: vec![1.0; 64],
            lse: vec![64.0 * c * c],
            d_o: vec![1.0; 64],
        };
        on_every_device::<T>(&head, |what, Gradients { dq, dk, dv }| {
            close(&format!("{what} {c} dv"), dv, &[1.0; 64], 0.0);
            close(&format!("{what} {c} dq"), dq, &[0.0; 64], 0.0);
            close(&format!("{what} {c} dk"), dk, &[0.0; 64], 0.0);
        });
    }
    for c in [2.0, 3.0, 20.0, 33.0, 86.0, 1000.0, 3000.0, 2f32.powi(50)] {
        test::<bf16>(c);
        test::<f32>(c);
    }
    for c in [2.0, 33.0, 86.0, 250.0] {
        test::<f16>(c);
    }
}

/// What a bias or a mask of the lowest number does to a row: lse is that number again, of however many keys.
#[test]
fn a_row_of_the_lowest_scores_has_equal_probabilities() {
    fn test<T: Element>(lowest: f32) {
        for keys in [1, 2, 5, 300] {
            let share = 1.0 / keys as f32;
            let lse = (f64::from(lowest) + (keys as f64).ln()) as f32;
            let head = Head::of_one_query(lowest, &vec![1.0; keys], &vec![2.0; keys], 2.0, lse);
            on_every_device::<T>(&head, |what, Gradients { dq, dk, dv }| {
                // Probabilities are rounded to T.
                close(&format!("{what} dv of {keys} keys"), dv, &vec![share; keys], 4e-3);
                close(&format!("{what} dq of {keys} keys"), dq, &[0.0], 0.0);
                close(&format!("{what} dk of {keys} keys"), dk, &vec![0.0; keys], 0.0);
            });
        }
    }
    test::<bf16>(bf16::MIN.to_f32());
    test::<f16>(f16::MIN.to_f32());
    test::<f32>(f32::MIN);
}

/// Capped scores are as large as their cap. Of a cap that is larger still nothing is seen.
#[test]
fn one_key_has_all_of_dv_however_large_its_capped_logit() {
    fn test<T: Element>(products: &[f32]) {
        for &product in products {
            for cap in [300.0, 5000.0, 1e6, 1e30] {
                let (q, k) =
                    (T::from_f32(product.sqrt()).to_f32(), T::from_f32(product.sqrt()).to_f32());
                let score = f64::from(cap) * (f64::from(q) * f64::from(k) / f64::from(cap)).tanh();
                let mut head = Head::of_one_query(q, &[k], &[3.0], 3.0, score as f32);
                head.softcap = Some(cap);
                on_every_device::<T>(&head, |what, Gradients { dq, dk, dv }| {
                    let what = format!("{what} {product} capped by {cap}");
                    close(&format!("{what} dv"), dv, &[1.0], exactness::<T>());
                    close(&format!("{what} dq"), dq, &[0.0], 0.0);
                    close(&format!("{what} dk"), dk, &[0.0], 0.0);
                });
            }
        }
    }
    test::<bf16>(&[4.0, 280.0, 3000.0, 70000.0, 2e6, 1e20]);
    test::<f16>(&[4.0, 280.0, 3000.0, 70000.0, 2e6]);
    test::<f32>(&[4.0, 280.0, 3000.0, 70000.0, 2e6, 1e20]);
}

/// What p in this type may be off by: its rounding.
fn exactness<T: Element>() -> f32 {
    match T::DTYPE {
        Dtype::Bf16 => 4e-3,
        Dtype::F16 => 5e-4,
        Dtype::F32 => 2e-5,
    }
}

/// Where all scores are near their cap, or far below it but huge, lse cannot say how many they are.
#[test]
fn equal_capped_scores_share_the_weight() {
    fn test<T: Element>() {
        for (product, cap) in [(65536.0, 1e6), (65536.0, 65536.0), (1e9, 1e5), (1e9, 1e30)] {
            for keys in [2, 300] {
                let (q, k) = (32.0, T::from_f32(product / 32.0).to_f32());
                let score = f64::from(cap) * (f64::from(q * k) / f64::from(cap)).tanh();
                let lse = (score + (keys as f64).ln()) as f32;
                let values: Vec<f32> = (0..keys).map(|key| [3.0, 1.0][key % 2]).collect();
                let mut head = Head::of_one_query(q, &vec![k; keys], &values, 2.0, lse);
                head.softcap = Some(cap);
                let slope = 1.0 - (score / f64::from(cap)).powi(2);
                let share = 1.0 / keys as f32;
                let uncapped: Vec<f32> = values.iter().map(|v| q * share * (v - 2.0)).collect();
                on_every_device::<T>(&head, |what, Gradients { dv, dk, .. }| {
                    let what = format!("{what} {keys} keys of {product} capped by {cap}");
                    close(&format!("{what} dv"), dv, &vec![share; keys], exactness::<T>());
                    // A derivative is 1 minus a square: what rounding tanh leaves of it is not relative.
                    let slope_error = slope as f32 * 2.0 * exactness::<T>() + 4e-7;
                    for (dk, uncapped) in dk.iter().zip(&uncapped) {
                        let error = (dk - uncapped * slope as f32).abs();
                        assert!(error <= slope_error * uncapped.abs(), "{what} dk: {dk} of {uncapped}");
                    }
                });
            }
        }
    }
    test::<bf16>();
    test::<f32>();
}

/// Two keys that share a query's weight, at a size at which lse cannot say so.
#[test]
fn two_keys_share_the_weight_however_large_their_logit() {
    fn test<T: Element>() {
        for logit in [1024.0, 65536.0, 131_072.0, 1e6, 1e9] {
            let (q, k) = (32.0, T::from_f32(logit / 32.0).to_f32());
            let lse = q * k + std::f32::consts::LN_2;
            let head = Head::of_one_query(q, &[k, k, 0.0], &[3.0, 1.0, 100.0], 2.0, lse);
            on_every_device::<T>(&head, |what, Gradients { dq, dk, dv }| {
                close(&format!("{what} dv at {logit}"), dv, &[0.5, 0.5, 0.0], 4e-3);
                close(&format!("{what} dk at {logit}"), dk, &[16.0, -16.0, 0.0], 4e-3);
                assert!(dq[0].abs() <= 4e-3 * k, "{what} dq at {logit}: {}", dq[0]);
            });
        }
    }
    test::<bf16>();
    test::<f32>();
}

/// A row whose lse is that of other keys, too (of other ranks, say): theirs are taken as they are.
#[test]
fn lse_of_more_keys_than_these_is_taken_as_it_is() {
    fn test<T: Element>() {
        // The others have e^32 times the weight of this key: p is e^-32.
        let head = Head::of_one_query(1024.0, &[1024.0], &[1.0], 1.0, 1_048_608.0);
        on_every_device::<T>(&head, |what, Gradients { dv, .. }| {
            close(&format!("{what} dv"), dv, &[(-32f32).exp()], 1e-2);
        });
    }
    test::<bf16>();
    test::<f32>();
}

/// Sums of dS q before the scale is multiplied would be beyond f32.
#[test]
fn small_scales_of_large_sums_lose_no_range() {
    fn test<T: Element>(tolerance: f32) {
        let rounded = |x: f32| T::from_f32(x).to_f32();
        let (q, d_o, scale) = (rounded(1e12), rounded(1e30), 1e-12f32);
        let mut head = Head::of_one_query(q, &[0.0, 0.0], &[1.0, -1.0], 0.0, 2f32.ln());
        (head.d_o, head.scale) = (vec![d_o], scale);
        let expected = 0.5 * d_o * (q * scale);
        on_every_device::<T>(&head, |what, Gradients { dq, dk, .. }| {
            close(&format!("{what} dk"), dk, &[expected, -expected], tolerance);
            close(&format!("{what} dq"), dq, &[0.0], 0.0);
        });
        (head.q, head.k) = (vec![0.0], vec![q, -q]);
        on_every_device::<T>(&head, |what, Gradients { dq, dk, .. }| {
            close(&format!("{what} dq"), dq, &[2.0 * expected], tolerance);
            close(&format!("{what} dk"), dk, &[0.0, 0.0], 0.0);
        });
    }
    test::<bf16>(1e-2);
    test::<f32>(1e-6);
}

/// Also where it is the scale in use: what is beyond f32 without it.
#[test]
fn the_usual_scale_costs_f32_no_range() {
    let mut head = Head::of_one_query(1e8, &[0.0, 0.0], &[1.0, -1.0], 0.0, 2f32.ln());
    (head.d_o, head.scale) = (vec![4e31], 0.125);
    on_every_device::<f32>(&head, |what, Gradients { dk, .. }| {
        // 2e39 before the scale.
        close(&format!("{what} dk"), dk, &[2.5e38, -2.5e38], 1e-6);
    });
}

/// Rows that see no key, with NaN in their dO: what others have of them through a shared tile is not theirs.
#[test]
fn dq_of_a_dead_row_is_0_whatever_its_d_o_holds() {
    fn test<T: Element>() {
        let (queries, keys, columns) = (200, 70, 2);
        let dead = queries - keys;
        let head = Head {
            columns: [columns; 2],
            scale: 1.0,
            softcap: None,
            causal: true,
            q: vec![0.0; queries * columns],
            k: vec![1.0; keys * columns],
            v: vec![1.0; keys * columns],
            o: (0..queries).flat_map(|row| [if row < dead { 0.0 } else { 1.0 }; 2]).collect(),
            lse: (0..queries).map(|row| ((row + 1).saturating_sub(dead) as f32).ln()).collect(),
            d_o: (0..queries).flat_map(|row| [if row < dead { f32::NAN } else { 1.0 }; 2]).collect(),
        };
        on_every_device::<T>(&head, |what, Gradients { dq, .. }| {
            for (at, dq) in dq.iter().enumerate().take(dead * columns) {
                assert_eq!(dq.to_bits(), 0, "{what}: dq[{at}] of a dead row is {dq}");
            }
        });
        // A NaN of a row that sees a key stays.
        let mut live = head.clone();
        live.d_o = vec![1.0; queries * columns];
        live.d_o[(queries - 1) * columns] = f32::NAN;
        on_every_device::<T>(&live, |what, Gradients { dq, .. }| {
            assert!(dq[(queries - 1) * columns].is_nan(), "{what}: the NaN of a live row is hidden");
        });
    }
    test::<bf16>();
    test::<f16>();
    test::<f32>();
}

#[test]
fn tiny_values_and_huge_gradients_of_one_key_cancel() {
    fn test<T: Element>() {
        let rounded = |x: f32| T::from_f32(x).to_f32();
        let (v, d_o) = (rounded(1e-35), rounded(1e35));
        let mut head = Head::of_one_query(1.0, &[1.0], &[v], v, 1.0);
        head.d_o = vec![d_o];
        on_every_device::<T>(&head, |what, Gradients { dq, dk, dv }| {
            close(&format!("{what} dv"), dv, &[d_o], 1e-6);
            close(&format!("{what} dq"), dq, &[0.0], 0.0);
            close(&format!("{what} dk"), dk, &[0.0], 0.0);
        });
    }
    test::<bf16>();
    test::<f32>();
}

/// Which queries have huge scores, so that these are in some tiles, in all rows of one, or in none.
fn is_steep(case: &Case, row: usize) -> bool {
    match case.id % 3 {
        0 => row.is_multiple_of(7),
        1 => row / 64 % 2 == 1,
        _ => true,
    }
}

/// Some rows of q are huge; the first column of the others is 1. k is `key_value(key)` in the first column and 0 in
/// the others, which scores do not depend on: but all columns of dk are judged. Where one key takes all, the first
/// alone would be one number, of which the rule would compare two chances.
fn partly_steep(case: &Case, key_value: impl Fn(usize) -> f32) -> Inputs {
    let huge = match case.dtype {
        Dtype::F16 => 256.0,
        Dtype::Bf16 | Dtype::F32 => [2f32.powi(80), 1024.0, 32768.0][case.id / 3 % 3],
    };
    let mut inputs = Inputs::drawn(case);
    for (at, q) in inputs.q.chunks_exact_mut(case.head_dim).enumerate() {
        let size = if is_steep(case, at / case.query_heads) { huge } else { 1.0 };
        q.iter_mut().for_each(|q| *q *= size);
        q[0] = size;
    }
    for (at, k) in inputs.k.chunks_exact_mut(case.head_dim).enumerate() {
        k.fill(0.0);
        k[0] = key_value(at / case.key_heads % case.key_rows);
    }
    inputs
}

/// A prime: `key * 37 + 11` differs from key to key modulo it.
const DISTINCT_KEYS: usize = 211;

/// Cases with gradients, masks, packed sequences and all, whose keys are few enough to be told apart, capped
/// by one of these or not.
fn with_gradients(caps: &'static [f32]) -> Cases {
    Cases::fitted(move |mut case| {
        case.softcap = caps.get(case.id % caps.len().max(1)).copied();
        case.key_rows = case.key_rows.min(DISTINCT_KEYS);
        case.scale = if case.id.is_multiple_of(2) { None } else { Some(-0.25) };
        case.output_dtype = case.dtype;
        (case.amplitude, case.logit_shift) = (1.0, 0.0);
        if case.placement == Placement::Broadcast {
            case.placement = Placement::Bshd;
        }
        if case.id.is_multiple_of(5) {
            (case.mask, case.packed) = (Mask::Full, false);
        }
        // f32 shows the last bits of tanh, times the cap.
        let is_told = caps.is_empty() || case.dtype != Dtype::F32;
        (case.gradients.is_some() && case.key_rows > 0 && is_told).then_some(case)
    })
    .extended()
    .with_just_enough_rows()
}

#[test]
fn gradients_of_rows_whose_largest_key_takes_all_are_within_the_rule() {
    let distinct = |key: usize| ((key * 37 + 11) % DISTINCT_KEYS) as f32;
    check("range-one-key", 40, with_gradients(&[]), move |device, case| {
        within_the_rule(device, case, |case| partly_steep(case, distinct)).map(drop)
    });
}

#[test]
fn gradients_of_rows_of_equal_huge_scores_are_within_the_rule() {
    check("range-equal", 40, with_gradients(&[]), |device, case| {
        within_the_rule(device, case, |case| partly_steep(case, |_| 3.0)).map(drop)
    });
}

#[test]
fn gradients_of_capped_rows_of_huge_scores_are_within_the_rule() {
    // Which leave scores as they are, or next to nothing of them beside the cap.
    let cases = || with_gradients(&[300.0, 2e4, 1e6, 1e30]);
    let distinct = |key: usize| ((key * 37 + 11) % DISTINCT_KEYS) as f32;
    check("range-capped", 30, cases(), move |device, case| {
        within_the_rule(device, case, |case| partly_steep(case, distinct)).map(drop)
    });
    check("range-capped-equal", 30, cases(), |device, case| {
        within_the_rule(device, case, |case| partly_steep(case, |_| 3.0)).map(drop)
    });
}
