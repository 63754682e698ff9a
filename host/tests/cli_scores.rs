//! Bias, mask, slopes and sinks in files: what `fattn run` refuses, with which text, and what it computes.

mod command;

use command::{File, fattn, refused};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// One batch, three queries of four heads, 33 keys of two, and this tensor.
#[track_caller]
fn with(name: &str, tensor: (&str, Dtype, &[usize]), options: &[&str]) -> String {
    let (query, key) = ([1, 3, 4, 8].as_slice(), [1, 33, 2, 8].as_slice());
    let tensors = [("q", Dtype::BF16, query), ("k", Dtype::BF16, key), ("v", Dtype::BF16, key), tensor];
    refused(name, &tensors, options)
}

#[test]
fn a_bias_that_does_not_fit_is_refused() {
    let bias = |name, dtype, shape: &[usize]| with(name, ("bias", dtype, shape), &[]);
    assert_eq!(
        bias("bias-keys", Dtype::BF16, &[1, 4, 3, 32]),
        "fattn: bias: expected keys 1 or 33, got 32\n"
    );
    assert_eq!(
        bias("bias-heads", Dtype::F32, &[1, 3, 3, 33]),
        "fattn: bias: expected heads 1, 2 or 4, got 3\n"
    );
    assert_eq!(
        bias("bias-rank", Dtype::BF16, &[3, 33]),
        "fattn: bias: expected 4 dimensions [batch, head, query, key], got 2\n"
    );
    assert_eq!(
        bias("bias-dtype", Dtype::F16, &[1, 1, 3, 33]),
        "fattn: bias: expected dtype bf16 like q, or f32, got f16\n"
    );
    assert_eq!(
        bias("bias-bool", Dtype::BOOL, &[1, 1, 3, 33]),
        "fattn: bias: expected dtype bf16, f16 or f32, got bool\n"
    );
}

#[test]
fn a_mask_that_does_not_fit_is_refused() {
    let mask = |name, dtype, shape: &[usize]| with(name, ("mask", dtype, shape), &[]);
    assert_eq!(
        mask("mask-keys", Dtype::BOOL, &[1, 1, 3, 32]),
        "fattn: mask: expected keys 1 or 33, got 32\n"
    );
    assert_eq!(
        mask("mask-queries", Dtype::BOOL, &[1, 1, 2, 1]),
        "fattn: mask: expected queries 1 or 3, got 2\n"
    );
    assert_eq!(
        mask("mask-rank", Dtype::BOOL, &[33]),
        "fattn: mask: expected 4 dimensions [batch, head, query, key], got 1\n"
    );
    assert_eq!(
        mask("mask-dtype", Dtype::U8, &[1, 1, 3, 33]),
        "fattn: mask: expected dtype bool, got u8\n"
    );
}

#[test]
fn slopes_and_sinks_that_do_not_fit_are_refused() {
    let slopes = |name, dtype, shape: &[usize]| with(name, ("alibi_slopes", dtype, shape), &[]);
    assert_eq!(
        slopes("slopes-heads", Dtype::F32, &[2]),
        "fattn: alibi_slopes: expected heads 4 like q, got 2\n"
    );
    assert_eq!(
        slopes("slopes-batch", Dtype::F32, &[2, 4]),
        "fattn: alibi_slopes: expected batch 1 like q, got 2\n"
    );
    assert_eq!(
        slopes("slopes-rank", Dtype::F32, &[1, 1, 4]),
        "fattn: alibi_slopes: expected 1 dimension [head], or 2 [batch, head], got 3\n"
    );
    assert_eq!(
        slopes("slopes-dtype", Dtype::BF16, &[4]),
        "fattn: alibi_slopes: expected dtype f32, got bf16\n"
    );
    let sinks = |name, dtype, shape: &[usize]| with(name, ("sinks", dtype, shape), &[]);
    assert_eq!(sinks("sinks-heads", Dtype::F32, &[2]), "fattn: sinks: expected heads 4 like q, got 2\n");
    assert_eq!(
        sinks("sinks-rank", Dtype::F32, &[1, 4]),
        "fattn: sinks: expected 1 dimension [head], got 2\n"
    );
    assert_eq!(sinks("sinks-dtype", Dtype::F16, &[4]), "fattn: sinks: expected dtype f32, got f16\n");
}

#[test]
fn a_gradient_of_a_bias_needs_a_bias_and_a_gradient_of_o() {
    assert_eq!(
        with("dbias-of-none", ("do", Dtype::BF16, &[1, 3, 4, 8]), &["--dbias"]),
        "fattn: --dbias: expected a tensor bias in the input, got none\n"
    );
    assert_eq!(
        with("dbias-forward", ("bias", Dtype::BF16, &[1, 1, 1, 33]), &["--dbias"]),
        "fattn: --dbias: expected a tensor do in the input, got none\n"
    );
}

/// A file of tensors with these bytes.
fn file(name: &str, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> File {
    let file = File::new(name);
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    std::fs::write(&file.0, safetensors::serialize(views, None).unwrap()).unwrap();
    file
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Scores of the first query: 0 and ln 3 from bias and slopes, and a hidden key; with a sink of ln 4 the
/// probabilities are 1/8 and 3/8. The second query is dead by the mask. q and k are 0.
#[test]
fn run_computes_with_all_of_them_and_writes_their_gradients() {
    let (queries, keys) = ([1, 2, 1, 8].as_slice(), [1, 3, 1, 8].as_slice());
    let v: Vec<f32> = (0..24).map(|at| (1 + at / 8) as f32).collect();
    let bias = [2f32.ln(), 3f32.ln(), f32::NEG_INFINITY];
    let input = file(
        "scores",
        &[
            ("q", Dtype::F32, queries, bytes(&[0.0; 16])),
            ("k", Dtype::F32, keys, bytes(&[0.0; 24])),
            ("v", Dtype::F32, keys, bytes(&v)),
            ("do", Dtype::F32, queries, bytes(&[1.0; 16])),
            ("bias", Dtype::F32, &[1, 1, 1, 3], bytes(&bias)),
            ("mask", Dtype::BOOL, &[1, 1, 2, 1], vec![1, 0]),
            ("alibi_slopes", Dtype::F32, &[1], bytes(&[2f32.ln()])),
            ("sinks", Dtype::F32, &[1], bytes(&[4f32.ln()])),
        ],
    );
    let output = File::new("scores-out");
    let run = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
    let answer = fattn(&[&run[..], &["--dbias", "--explain"]].concat());
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let text = String::from_utf8(answer.stdout).unwrap();
    for line in [
        "bias: [1, 1, 1, 3] f32 is added to scores\n",
        "boolean mask: [1, 1, 2, 3] hides keys pair by pair\n",
        "ALiBi: the slope of its head times |i + Sk - Sq - j| is subtracted from the score of query i and key j\n",
        "sinks: one for each query head\n",
        "lse f32, dq, dk, dv, dbias, dsinks, on emulated",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let written = std::fs::read(&output.0).unwrap();
    let written = SafeTensors::deserialize(&written).unwrap();
    let near = |name: &str, shape: &[usize], expected: &[f32]| {
        let tensor = written.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, shape), "{name}");
        let got: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(tensor.data());
        let is_near = |(got, expected): (&f32, &f32)| got == expected || (got - expected).abs() < 1e-4;
        assert!(got.iter().zip(expected).all(is_near), "{name}: {got:?}");
    };
    let halves = |first: f32, second: f32| [[first; 8], [second; 8]].concat();
    near("o", queries, &halves(7.0 / 8.0, 0.0));
    near("lse", &[1, 1, 2], &[8f32.ln(), f32::NEG_INFINITY]);
    // dO v is 8 and 16, and delta 7.
    near("dbias", &[1, 1, 1, 3], &[1.0 / 8.0, 27.0 / 8.0, 0.0]);
    near("dsinks", &[1], &[-3.5]);
    near("dq", queries, &[0.0; 16]);
    let trace = fattn(&["trace-nonfinite", "--device", "emulated", "--input", input.text()]);
    let text = String::from_utf8(trace.stdout).unwrap();
    assert!(text.ends_with("all finite\n") && text.contains("\nalibi_slopes "), "{text}");
}

/// Minus infinity hides a key, which is no fault; NaN is one.
#[test]
fn trace_names_a_bias_that_is_not_finite() {
    let shape = [1, 2, 1, 8].as_slice();
    let zeros = || bytes(&[0.0; 16]);
    for (name, number, status) in [("hidden", f32::NEG_INFINITY, 0), ("nan", f32::NAN, 1)] {
        let input = file(
            &format!("trace-bias-{name}"),
            &[
                ("q", Dtype::F32, shape, zeros()),
                ("k", Dtype::F32, shape, zeros()),
                ("v", Dtype::F32, shape, zeros()),
                ("bias", Dtype::F32, &[1, 1, 2, 2], bytes(&[0.0, number, number, number])),
            ],
        );
        let answer = fattn(&["trace-nonfinite", "--device", "emulated", "--input", input.text()]);
        let text = String::from_utf8(answer.stdout).unwrap();
        assert_eq!(answer.status.code(), Some(status), "{text}");
        let named = text.contains("the input bias is not finite at [0, 0, 0, 1]: nothing was traced");
        assert_eq!(named, status == 1, "{text}");
    }
}

/// Eight queries of one key and a sink, each with a probability of 1/2: dP is 3e38, ds and the part of the sink's
/// gradient 0.75e38 each, and their sums are more than f32 holds.
#[test]
fn sums_that_overflow_are_traced_to_the_gradients_of_bias_and_sinks() {
    let (queries, key) = ([1, 8, 1, 8].as_slice(), [1, 1, 1, 8].as_slice());
    let common = [
        ("q", Dtype::F32, queries, bytes(&[0.0; 64])),
        ("k", Dtype::F32, key, bytes(&[0.0; 8])),
        ("v", Dtype::F32, key, bytes(&[1e30; 8])),
        ("do", Dtype::F32, queries, bytes(&[3.75e7; 64])),
        ("sinks", Dtype::F32, &[1], bytes(&[0.0])),
    ];
    let bias = ("bias", Dtype::F32, [1; 4].as_slice(), bytes(&[0.0]));
    let with_bias = [&common[..], &[bias]].concat();
    for (tensor, stage, tensors, options) in
        [("dsinks", "dSinks", &common[..], &[][..]), ("dbias", "dBias", &with_bias, &["--dbias"])]
    {
        let input = file(&format!("trace-{tensor}"), tensors);
        let trace = ["trace-nonfinite", "--device", "emulated", "--json", "--input", input.text()];
        let answer = fattn(&[&trace[..], options].concat());
        let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        let tensors = report["tensors"].as_array().unwrap();
        let first = tensors.iter().find(|tensor| !tensor["first"].is_null()).unwrap();
        assert_eq!(
            (&first["name"], &report["cause"]["stage"]),
            (&tensor.into(), &stage.into()),
            "{report}"
        );
    }
}
