//! Sinks and biases beside large scores, rows of lowest biases, and rows that a bias hides all keys from:
//! right, and finite where the formula is.

use finite_attention::attention::{
    BackwardInputs, BiasSlice, Elements, ForwardInputs, ScoreSlices, backward_host, forward_inputs_host,
};
use finite_attention::driver::emulated::Options;
use finite_attention::problem::{Bias, Dropout, ScoreLayout};
use finite_attention::reference::DropoutNumbers;
use finite_attention::{
    BackwardOutput, BackwardProblem, Device, Dtype, Element, ForwardOutput, ForwardProblem,
    KernelImages, Layout,
};
use finite_attention_tests::device::{emulated, emulated_arch, open};
use half::{bf16, f16};
use kernels_gpu::abi::Arch;

/// One head of one column, scale 1 unless there is another.
#[derive(Clone, Debug, Default)]
struct Head {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    o: Vec<f32>,
    lse: Vec<f32>,
    d_o: Vec<f32>,
    /// `[query, key]`; broadcast over queries where it has one row alone.
    bias: Vec<f32>,
    bias_is_f32: bool,
    sinks: Vec<f32>,
    splits: Option<u32>,
    scale: Option<f32>,
    softcap: Option<f32>,
    dropout: Option<Dropout>,
}

impl Head {
    fn bias(&self, dtype: Dtype) -> Option<Bias> {
        let queries = self.bias.len().checked_div(self.k.len()).filter(|&queries| queries > 0)?;
        let layout = ScoreLayout::dense([1, 1, queries, self.k.len()]);
        Some(Bias { layout, dtype: if self.bias_is_f32 { Dtype::F32 } else { dtype } })
    }

    fn problem<T: Element>(&self) -> ForwardProblem {
        let rows = |count: usize| Layout::bshd([1, count, 1, 1]);
        let (q, k, v) = (rows(self.q.len()), rows(self.k.len()), rows(self.v.len()));
        let mut problem = ForwardProblem::new(T::DTYPE, q, k, v).with_output_dtype(Dtype::F32);
        problem.scale = self.scale.or(Some(1.0));
        (problem.softcap, problem.dropout) = (self.softcap, self.dropout);
        problem.bias = self.bias(T::DTYPE);
        problem.has_sinks = !self.sinks.is_empty();
        match self.splits {
            Some(splits) => problem.with_num_splits(splits),
            None => problem,
        }
    }

    /// Calls `run` with what scores have.
    fn with_scores<T: Element, R>(&self, run: impl FnOnce(ScoreSlices<'_, T>) -> R) -> R {
        let bias = tensor::<T>(&self.bias);
        let slice = if self.bias_is_f32 { BiasSlice::F32(&self.bias) } else { BiasSlice::LikeQ(&bias) };
        let bias = self.bias(T::DTYPE).map(|_| slice);
        run(ScoreSlices { bias, sinks: &self.sinks, ..ScoreSlices::default() })
    }

    fn forward<T: Element>(&self, device: &Device) -> ForwardOutput<f32> {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|numbers| tensor::<T>(numbers));
        self.with_scores(|scores| {
            let (cu_seqlens_q, cu_seqlens_k) = (&[][..], &[][..]);
            let inputs = ForwardInputs { q: &q, k: &k, v: &v, scores, cu_seqlens_q, cu_seqlens_k };
            forward_inputs_host(device, &self.problem::<T>(), &inputs)
                .unwrap_or_else(|error| panic!("{error}"))
        })
    }

    /// With the gradients of bias, in f32, and sinks.
    fn backward<T: Element>(&self, device: &Device) -> BackwardOutput<f32> {
        let mut problem = BackwardProblem::new(self.problem::<T>()).with_gradient_dtype(Dtype::F32);
        problem.d_bias = self.bias(T::DTYPE).map(|bias| Bias { dtype: Dtype::F32, ..bias });
        problem.wants_d_sinks = !self.sinks.is_empty();
        let [q, k, v, d_o] = [&self.q, &self.k, &self.v, &self.d_o].map(|numbers| tensor::<T>(numbers));
        self.with_scores(|scores| {
            let inputs = BackwardInputs {
                q: &q,
                k: &k,
                v: &v,
                o: &self.o[..],
                lse: &self.lse,
                d_o: &d_o,
                d_lse: &[],
                scores,
                cu_seqlens_q: &[],
                cu_seqlens_k: &[],
            };
            backward_host(device, &problem, &inputs).unwrap_or_else(|error| panic!("{error}"))
        })
    }
}

fn tensor<T: Element>(numbers: &[f32]) -> Vec<T> {
    numbers.iter().map(|&x| T::from_f32(x)).collect()
}

/// Calls `test` on every device that there is to test.
fn on_every_device(test: impl Fn(&str, &Device)) {
    if emulated_arch().is_none() {
        return test("the GPU", &open());
    }
    for arch in [Arch::Sm80, Arch::Sm90a] {
        test(&format!("{arch:?}"), &emulated(arch, KernelImages::embedded(), Options::default()));
    }
}

/// Every number is within `tolerance` of what is expected, relative to it.
fn close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= tolerance * expected.abs(), "{what}[{at}]: expected {expected:e}, got {got:e}");
    }
}

/// What rounding an operand to the type costs, and the few roundings beside it.
fn exactness<T: Element>() -> f64 {
    match T::DTYPE {
        Dtype::Bf16 => 2f64.powi(-7),
        Dtype::F16 => 2f64.powi(-10),
        Dtype::F32 => 1e-5,
    }
}

#[test]
fn a_sink_beside_large_scores_keeps_its_share() {
    fn test<T: Element>(score: f32, splits: Option<u32>) {
        let keys = 300;
        let (q, k, v) = (vec![score], vec![1.0; keys], vec![1.0; keys]);
        let sink = score + 100f32.ln();
        let head = Head { q, k, v, sinks: vec![sink], splits, ..Head::default() };
        let of_keys = keys as f64 * f64::from(score - sink).exp();
        on_every_device(|name, device| {
            let ForwardOutput { o, lse } = head.forward::<T>(device);
            let what = format!("{name} {:?} {score} {splits:?}", T::DTYPE);
            close(&format!("{what} o"), &o, &[of_keys / (of_keys + 1.0)], exactness::<T>());
            close(&format!("{what} lse"), &lse, &[f64::from(sink) + (of_keys + 1.0).ln()], 3e-7);
        });
    }
    for splits in [None, Some(3)] {
        for score in [1024.0, 65536.0, -65536.0] {
            test::<bf16>(score, splits);
            test::<f32>(score, splits);
        }
        test::<f16>(1024.0, splits);
    }
}

/// The lse of these rows holds next to nothing of what their scores and their sink differ by.
#[test]
fn gradients_of_steep_rows_with_a_sink() {
    fn test<T: Element>() {
        let score = 131_072f32;
        let sink = score - 3.1;
        let of_sink = f64::from(sink - score).exp();
        let (p, p_sink) = (1.0 / (1.0 + of_sink), of_sink / (1.0 + of_sink));
        let lse = f64::from(score) + (1.0 + of_sink).ln();
        let head = Head {
            q: vec![score],
            k: vec![1.0],
            v: vec![1.0],
            o: vec![p as f32],
            lse: vec![lse as f32],
            d_o: vec![1.0],
            sinks: vec![sink],
            ..Head::default()
        };
        on_every_device(|name, device| {
            let what = format!("{name} {:?}", T::DTYPE);
            let BackwardOutput { dq, dv, d_sinks, .. } = head.backward::<T>(device);
            close(&format!("{what} dv"), &dv, &[p], exactness::<T>());
            // 1 - p of what o is rounded to.
            let tolerance = 32.0 * exactness::<T>();
            close(&format!("{what} dq"), &dq, &[p * p_sink], tolerance);
            close(&format!("{what} dsinks"), &d_sinks, &[-p * p_sink], exactness::<T>());
        });
    }
    test::<bf16>();
    test::<f32>();
}

/// A row of the lowest number of the bias's type is a uniform softmax, and so are its gradients.
#[test]
fn gradients_of_rows_of_the_lowest_bias() {
    fn test<T: Element>(bias_is_f32: bool) {
        let (queries, keys) = (3, 70);
        let lowest = match T::DTYPE {
            _ if bias_is_f32 => f32::MIN,
            Dtype::Bf16 => bf16::MIN.to_f32(),
            Dtype::F16 => f16::MIN.to_f32(),
            Dtype::F32 => f32::MIN,
        };
        let v: Vec<f32> = (0..keys).map(|key| key as f32 / 64.0).collect();
        let mean = v.iter().sum::<f32>() / keys as f32;
        let head = Head {
            q: vec![0.5; queries],
            k: vec![0.5; keys],
            v: v.clone(),
            o: vec![mean; queries],
            lse: vec![(f64::from(lowest + 0.25) + (keys as f64).ln()) as f32; queries],
            d_o: vec![1.0; queries],
            bias: vec![lowest; queries * keys],
            bias_is_f32,
            ..Head::default()
        };
        let p = 1.0 / keys as f64;
        on_every_device(|name, device| {
            let what = format!("{name} {:?} {bias_is_f32}", T::DTYPE);
            let BackwardOutput { dq, dk, dv, d_bias, .. } = head.backward::<T>(device);
            close(&format!("{what} dv"), &dv, &[queries as f64 * p; 70], exactness::<T>());
            let Some(Elements::F32(d_bias)) = d_bias else { panic!("{what}: dbias in f32") };
            for (at, &d_bias) in d_bias.iter().enumerate() {
                let ds = p * f64::from(v[at % keys] - mean);
                let error = (f64::from(d_bias) - ds).abs();
                assert!(
                    error < exactness::<T>() * p,
                    "{what}: dbias[{at}]: expected {ds}, got {d_bias}"
                );
            }
            for (at, (&dk, &v)) in dk.iter().zip(&v).enumerate() {
                let expected = 0.5 * queries as f64 * p * f64::from(v - mean);
                let error = (f64::from(dk) - expected).abs();
                assert!(error < 2.0 * exactness::<T>() * p, "{what}: dk[{at}]: {expected}, got {dk}");
            }
            // A sum of what cancels.
            assert!(dq.iter().all(|dq| dq.abs() < exactness::<T>() as f32), "{what}: dq {dq:?}");
        });
    }
    test::<bf16>(false);
    test::<bf16>(true);
    test::<f16>(false);
    test::<f16>(true);
    test::<f32>(false);
}

/// What q and dO of a row that a bias of minus infinity hides all keys from hold is nothing to o,
/// lse, dq and dbias.
#[test]
fn nan_in_a_row_that_a_bias_hides_all_keys_from_stays_there() {
    fn test<T: Element>(bias_is_f32: bool) {
        let (queries, keys, dead) = (40, 21, 17);
        let bias = |at: usize| if at / keys == dead { f32::NEG_INFINITY } else { 0.0 };
        let of = |row: usize, alive: f32, of_dead: f32| if row == dead { of_dead } else { alive };
        let rows =
            |alive, of_dead| (0..queries).map(|row| of(row, alive, of_dead)).collect::<Vec<f32>>();
        let head = Head {
            q: rows(0.5, f32::NAN),
            k: vec![0.5; keys],
            v: vec![1.0; keys],
            o: rows(1.0, 0.0),
            lse: rows(0.25 + (keys as f32).ln(), f32::NEG_INFINITY),
            d_o: rows(1.0, f32::NAN),
            bias: (0..queries * keys).map(bias).collect(),
            bias_is_f32,
            ..Head::default()
        };
        on_every_device(|name, device| {
            let what = format!("{name} {:?} {bias_is_f32}", T::DTYPE);
            let ForwardOutput { o, lse } = head.forward::<T>(device);
            assert_eq!((o[dead], lse[dead]), (0.0, f32::NEG_INFINITY), "{what}");
            assert!(o.iter().all(|o| o.is_finite()), "{what}: o {o:?}");
            let BackwardOutput { dq, d_bias, .. } = head.backward::<T>(device);
            assert_eq!(dq[dead], 0.0, "{what}: dq");
            let Some(Elements::F32(d_bias)) = d_bias else { panic!("{what}: dbias in f32") };
            assert!(d_bias.iter().all(|d| d.is_finite()), "{what}: dbias {d_bias:?}");
            // And where it is summed over queries.
            let hidden = Head { bias: vec![f32::NEG_INFINITY; keys], ..head.clone() };
            let hidden = Head {
                o: vec![0.0; queries],
                lse: vec![f32::NEG_INFINITY; queries],
                d_o: vec![f32::NAN; queries],
                ..hidden
            };
            let d_bias = hidden.backward::<T>(device).d_bias;
            assert_eq!(
                d_bias,
                Some(Elements::F32(vec![0.0; keys])),
                "{what}: of one row for all queries"
            );
        });
    }
    test::<bf16>(false);
    test::<bf16>(true);
    test::<f32>(false);
}

/// What the delta kernel reads of a bias for rows with a coarse lse are those of the sequence, also in its
/// last tile.
#[test]
fn a_bias_of_steep_rows_in_a_ragged_tile_is_read_to_its_end_and_no_further() {
    let (queries, keys) = (17, 64);
    let score = 131_072f32;
    let head = Head {
        q: vec![score; queries],
        k: vec![1.0; keys],
        v: vec![1.0; keys],
        o: vec![1.0; queries],
        lse: vec![score + (keys as f32).ln(); queries],
        d_o: vec![1.0; queries],
        bias: vec![0.0; queries * keys],
        ..Head::default()
    };
    on_every_device(|name, device| {
        let dv = head.backward::<bf16>(device).dv;
        close(name, &dv, &[queries as f64 / keys as f64; 64], exactness::<bf16>());
        let dv = head.backward::<f32>(device).dv;
        close(name, &dv, &[queries as f64 / keys as f64; 64], exactness::<f32>());
    });
}

/// Each of a thread's rows adds more than half of the largest f32.
#[test]
fn a_gradient_of_a_sink_beyond_f32_is_infinite() {
    let rows = 1100;
    let head = Head {
        q: vec![0.0; rows],
        k: vec![1.0],
        v: vec![1.0],
        o: vec![0.5; rows],
        lse: vec![2f32.ln(); rows],
        d_o: vec![3e38; rows],
        sinks: vec![0.0],
        ..Head::default()
    };
    on_every_device(|name, device| {
        assert_eq!(head.backward::<f32>(device).d_sinks, [f32::NEG_INFINITY], "{name}");
    });
}

/// What a key of query 0 counts for: 0, or 1 / (1 - rate).
fn kept(dropout: Dropout, key: usize) -> f64 {
    let Dropout { rate, seed, offset } = dropout;
    let numbers = DropoutNumbers { rate, seed, offset, first_batch: 0 };
    if numbers.keeps([0, 0, 0, key], 1) { numbers.scale() } else { 0.0 }
}

/// `dO v` fits f32, and ten times that does not: where a key is hidden, and where its probability is small.
#[test]
fn gradients_with_dropout_of_large_values() {
    fn test<T: Element>(seed: u64) {
        let large = 2f32.powi(63);
        let dropout = Dropout { rate: 0.9, seed, offset: 0 };
        // The second of three keys is hidden.
        let k = [0.0, 0.0, 7.0f32];
        let sum = 1.0 + f64::from(k[2]).exp();
        let (p, v) = ([1.0 / sum, 0.0, f64::from(k[2]).exp() / sum], [large, large, 0.0]);
        let kept = [0, 1, 2].map(|key| kept(dropout, key));
        let o: f64 = (0..3).map(|key| kept[key] * p[key] * f64::from(v[key])).sum();
        let head = Head {
            q: vec![1.0],
            k: k.to_vec(),
            v: v.to_vec(),
            o: vec![o as f32],
            lse: vec![sum.ln() as f32],
            d_o: vec![large],
            bias: vec![0.0, f32::NEG_INFINITY, 0.0],
            dropout: Some(dropout),
            ..Head::default()
        };
        let delta = f64::from(large) * o;
        let ds = [0, 1, 2].map(|key| {
            let dp = kept[key] * f64::from(large) * f64::from(v[key]);
            p[key] * (dp - delta)
        });
        let largest = ds.iter().map(|ds| ds.abs()).fold(0.0, f64::max);
        on_every_device(|name, device| {
            let what = format!("{name} {:?}, seed {seed}", T::DTYPE);
            let BackwardOutput { dq, dk, dv, d_bias, .. } = head.backward::<T>(device);
            let Some(Elements::F32(d_bias)) = d_bias else { panic!("{what}: dbias in f32") };
            for (key, &ds) in ds.iter().enumerate() {
                for (tensor, got) in [("dk", dk[key]), ("dbias", d_bias[key])] {
                    let error = (f64::from(got) - ds).abs();
                    assert!(
                        error <= 2.0 * exactness::<T>() * largest,
                        "{what} {tensor}[{key}]: expected {ds:e}, got {got:e}"
                    );
                }
                let expected = kept[key] * p[key] * f64::from(large);
                let error = (f64::from(dv[key]) - expected).abs();
                assert!(error <= exactness::<T>() * expected, "{what} dv[{key}]: {expected:e}");
            }
            let error = (f64::from(dq[0]) - 7.0 * ds[2]).abs();
            assert!(error <= 14.0 * exactness::<T>() * largest, "{what}: dq {:e}", dq[0]);
        });
    }
    for seed in 0..8 {
        test::<bf16>(seed);
        test::<f32>(seed);
    }
}

/// The last range of keys has one key, whose value has no room for the factor of what is kept.
#[test]
fn ranges_of_keys_with_dropout_of_large_values() {
    fn test<T: Element>(seed: u64) {
        let (keys, large) = (129, 2f32.powi(127));
        let dropout = Dropout { rate: 0.5, seed, offset: 0 };
        let mut v = vec![0.0; keys];
        v[keys - 1] = large;
        let head = Head {
            q: vec![1.0],
            k: vec![0.0; keys],
            v,
            splits: Some(2),
            dropout: Some(dropout),
            ..Head::default()
        };
        let expected = f64::from(large) / keys as f64 * kept(dropout, keys - 1);
        on_every_device(|name, device| {
            let what = format!("{name} {:?}, seed {seed}", T::DTYPE);
            close(&what, &head.forward::<T>(device).o, &[expected], exactness::<T>());
        });
    }
    for seed in 0..4 {
        test::<bf16>(seed);
        test::<f32>(seed);
    }
}

/// No key is hidden, though nothing is left to any.
#[test]
fn nan_in_v_is_seen_where_a_sink_takes_all() {
    let (q, k, v) = (vec![0.0], vec![0.0; 3], vec![1.0, f32::NAN, 1.0]);
    let head = Head { q, k, v, bias: vec![0.0; 3], sinks: vec![200.0], ..Head::default() };
    on_every_device(|name, device| {
        assert!(head.forward::<bf16>(device).o[0].is_nan(), "{name} bf16");
        assert!(head.forward::<f32>(device).o[0].is_nan(), "{name} f32");
    });
}

/// A cap whose reciprocal f32 does not hold.
#[test]
fn a_sink_beside_the_smallest_caps() {
    for sink in [0.0, 300.0] {
        let p_sink = f64::from(sink).exp() / (f64::from(sink).exp() + 1.0);
        let head = Head {
            q: vec![0.0],
            k: vec![0.0],
            v: vec![1.0],
            o: vec![(1.0 - p_sink) as f32],
            lse: vec![if sink > 0.0 { sink } else { 2f32.ln() }],
            d_o: vec![1.0],
            sinks: vec![sink],
            scale: Some(1e-36),
            softcap: Some(1e-39),
            ..Head::default()
        };
        on_every_device(|name, device| {
            let what = format!("{name} {sink}");
            let BackwardOutput { dq, dk, dv, d_sinks, .. } = head.backward::<f32>(device);
            assert_eq!((dq[0], dk[0]), (0.0, 0.0), "{what}");
            close(&what, &d_sinks, &[-p_sink * (1.0 - p_sink)], 1e-5);
            close(&what, &dv, &[1.0 - p_sink], 1e-5);
        });
    }
}
