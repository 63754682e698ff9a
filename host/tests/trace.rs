//! Where values come from that are not finite: `fattn trace-nonfinite`.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// A tensor of the input: name, shape, and its elements by index.
struct Tensor<'t>(&'static str, &'t [usize], &'t dyn Fn(usize) -> f32);

/// Writes the tensors as elements of a type and runs `trace-nonfinite` on them: its text and its JSON.
fn trace(
    test: &str,
    dtype: Dtype,
    tensors: &[Tensor<'_>],
    options: &[&str],
) -> (Option<i32>, String, Value) {
    let bytes = |tensor: &Tensor<'_>| -> Vec<u8> {
        let values = (0..tensor.1.iter().product()).map(tensor.2);
        match dtype {
            Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
            Dtype::F16 => values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect(),
            _ => values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        }
    };
    let all: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let views = tensors
        .iter()
        .zip(&all)
        .map(|(tensor, bytes)| (tensor.0, TensorView::new(dtype, tensor.1.to_vec(), bytes).unwrap()));
    let name = format!("fattn-trace-{}-{test}.safetensors", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fattn"));
        command.args(["trace-nonfinite", "--input", path.to_str().unwrap()]).args(options).args(more);
        let output = command.output().unwrap();
        // Nothing, but for what runs in the emulator unasked.
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.is_empty() || said.starts_with("fattn: no GPU (") && said.lines().count() == 1,
            "{said}"
        );
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let ((code, text), (_, json)) = (run(&[]), run(&["--json"]));
    std::fs::remove_file(&path).unwrap();
    (code, text, serde_json::from_str(&json).unwrap())
}

const EMULATED: [&str; 2] = ["emulated:sm_80", "emulated:sm_90a"];

#[test]
fn finite_results_are_said_to_be() {
    let shape = [1, 3, 2, 8];
    let tensors = ["q", "k", "v", "do"].map(|name| Tensor(name, &shape, &|index| index as f32 / 50.0));
    let (code, text, json) = trace("finite", Dtype::F32, &tensors, &["--causal"]);
    assert_eq!((code, &json["cause"]), (Some(0), &json!({ "kind": "all_finite" })));
    assert!(text.contains("dv     [1, 3, 2, 8]                 0         0         0  -\n"), "{text}");
    // A query that sees no key has lse -inf.
    let (q, k) = ([1, 3, 1, 8], [1, 2, 1, 8]);
    let one = |_: usize| 1.0;
    let tensors = [Tensor("q", &q, &one), Tensor("k", &k, &one), Tensor("v", &k, &one)];
    assert_eq!(trace("dead", Dtype::F32, &tensors, &["--causal"]).0, Some(0));
}

#[test]
fn an_input_that_is_not_finite_is_named() {
    let shape = [1, 3, 2, 8];
    let nan = |index: usize| if index == 21 { f32::NAN } else { 1.0 };
    let one = |_: usize| 1.0;
    let tensors = [Tensor("q", &shape, &one), Tensor("k", &shape, &nan), Tensor("v", &shape, &one)];
    let (code, text, json) = trace("input", Dtype::F32, &tensors, &[]);
    assert_eq!((code, &json["cause"]["kind"]), (Some(1), &json!("input")));
    assert!(text.contains("the input k is not finite at [0, 1, 0, 5]"), "{text}");
    assert_eq!(json["tensors"][1]["nan"], 1);
}

#[test]
fn a_score_that_overflows_is_traced_to_its_product() {
    // Query 70 of head 1 and key 3 of its key head: 1e30 squared is too large, whatever the scale.
    let (q, k) = ([1, 80, 2, 64], [1, 90, 1, 64]);
    let large_q = |index: usize| if index == (70 * 2 + 1) * 64 + 20 { 1e30 } else { 0.5 };
    let large_k = |index: usize| if index == 3 * 64 + 20 { 1e30 } else { 0.25 };
    let one = |_: usize| 1.0;
    let tensors = [Tensor("q", &q, &large_q), Tensor("k", &k, &large_k), Tensor("v", &k, &one)];
    for (dtype, device) in
        EMULATED.map(|device| (Dtype::BF16, device)).into_iter().chain([(Dtype::F32, EMULATED[0])])
    {
        let (code, text, json) = trace("scores", dtype, &tensors, &["--causal", "--device", device]);
        let cause = &json["cause"];
        assert_eq!(
            (code, &cause["kind"], &cause["stage"]),
            (Some(1), &json!("origin"), &json!("scores")),
            "{text}"
        );
        let part = json!({
            "batch": 0, "queries": { "start": 70, "end": 71 }, "query_heads": { "start": 1, "end": 2 },
            "keys": { "start": 0, "end": 81 }, "key_head": 0
        });
        assert_eq!(cause["part"], part);
        assert_eq!(json["tensors"][3]["first"], json!([0, 70, 1, 0]));
        let origin = &cause["trace"]["first"];
        assert_eq!((&origin["kind"], &origin["result"]), (&json!("overflow"), &json!("inf")), "{text}");
        assert!(origin["source"]["file"].as_str().unwrap().starts_with("kernels-gpu/src/"), "{text}");
        assert!(text.contains("stage scores of forward_"), "{text}");
        assert!(
            text.contains("in the emulator: batch 0, queries 70..71 of heads 1..2, keys 0..81"),
            "{text}"
        );
    }
}

/// What is traced for gradients in f16 or f32 of two queries and one key, with these inputs.
fn backward_stage(test: &str, dtype: Dtype, [q, k, v, d_o]: [f32; 4]) -> (String, String) {
    let (rows, key) = ([1, 2, 1, 16], [1, 1, 1, 16]);
    let (q, k, v, d_o) = (move |_| q, move |_| k, move |_| v, move |_| d_o);
    let tensors = [
        Tensor("q", &rows, &q),
        Tensor("k", &key, &k),
        Tensor("v", &key, &v),
        Tensor("do", &rows, &d_o),
    ];
    let (code, text, json) = trace(test, dtype, &tensors, &[]);
    assert_eq!((code, &json["cause"]["kind"]), (Some(1), &json!("origin")), "{text}");
    (json["cause"]["stage"].as_str().unwrap().to_owned(), text)
}

#[test]
fn stages_of_the_backward_are_told_apart() {
    // dv is the sum of two gradients of 40000 each: more than f16 holds.
    let (stage, text) = backward_stage("dv", Dtype::F16, [1.0, 1.0, 1.0, 40000.0]);
    assert_eq!(stage, "dV", "{text}");
    // The sum of 16 products of 1e20 and 1e20: too large for f32.
    let (stage, text) = backward_stage("delta", Dtype::F32, [1.0, 1.0, 1e20, 1e20]);
    assert_eq!(stage, "delta", "{text}");
    let (stage, text) = backward_stage("delta-bf16", Dtype::BF16, [1.0, 1.0, 1e20, 1e20]);
    assert_eq!(stage, "delta", "{text}");
    let (stage, text) = backward_stage("dv-f32", Dtype::F32, [1.0, 1.0, 1e-20, 3e38]);
    assert_eq!(stage, "dV", "{text}");
}
