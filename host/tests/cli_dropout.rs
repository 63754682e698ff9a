//! Dropout on the command line: what is refused, what is planned, and which pairs are dropped.

mod command;

use command::{File, fattn, wrong};
use finite_attention::reference::DropoutNumbers;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// A file of f32 tensors with these numbers.
fn file(name: &str, tensors: &[(&str, [usize; 4], Vec<f32>)]) -> File {
    let file = File::new(name);
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, numbers)| numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
    });
    std::fs::write(&file.0, safetensors::serialize(views, None).unwrap()).unwrap();
    file
}

#[test]
fn a_rate_that_keeps_nothing_or_is_none_is_refused() {
    let range = "expected a number of at least 0 and below 0.9999924, so that something is kept, got ";
    for (rate, expected) in [
        ("1", format!("{range}1")),
        ("-0.5", format!("{range}-0.5")),
        ("NaN", format!("{range}NaN")),
        ("inf", format!("{range}inf")),
        ("half", "expected a number, got half".to_owned()),
    ] {
        for command in [
            &["run", "--input", "in", "--output", "out"][..],
            &["trace-nonfinite", "--input", "in"],
            &["bench", "--device", "emulated"],
        ] {
            let text = wrong(&[command, &["--dropout", rate]].concat());
            let expected = format!("error: invalid value '{rate}' for '--dropout <RATE>': {expected}");
            assert_eq!(text.lines().next(), Some(&*expected));
        }
    }
}

#[test]
fn numbers_of_no_dropout_are_refused() {
    for option in ["--seed", "--offset"] {
        for command in
            [&["run", "--input", "in", "--output", "out"][..], &["trace-nonfinite", "--input", "in"]]
        {
            let text = wrong(&[command, &[option, "1"]].concat());
            assert!(text.contains("not provided") && text.contains("--dropout <RATE>"), "{text}");
            let text = wrong(&[command, &["--dropout", "0.1", option, "-1"]].concat());
            assert!(text.contains("-1"), "{text}");
        }
    }
}

#[test]
fn plans_say_that_probabilities_are_dropped() {
    let bench = ["bench", "--device", "emulated:sm_90a", "--explain", "--pass", "both"];
    let shape = ["--head-dim", "64", "--seqlen", "512", "--causal", "no", "--dropout", "0.1"];
    let few = ["--queries", "2", "--heads", "8", "--kv-heads", "2"];
    let answer = fattn(&[&bench[..], &shape, &few].concat());
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success(), "{text}");
    assert_eq!(text.matches("dropout is switched on").count(), 2, "{text}");
    assert!(text.contains("forward_bf16_d64_q128_sm90a+dropout"), "{text}");
    assert!(text.contains("backward_bf16_d64_k192_sm90a+dropout"), "{text}");
    assert!(text.contains("heads that share keys are worked on alone: each has numbers of its own"));
}

/// Two batches, three queries of four heads, 20 keys of two; values and gradients are unit vectors, so that o has a
/// column for each key, and dv one for each query.
#[test]
fn run_drops_what_the_formula_says() {
    let (batches, queries, heads, keys, key_heads) = (2, 3, 4, 20, 2);
    let unit = |count: usize, heads: usize, rows: usize| -> Vec<f32> {
        (0..count).map(|at| f32::from(u8::from(at % 20 == at / 20 / heads % rows))).collect()
    };
    let (of_q, of_k) = ([batches, queries, heads, 20], [batches, keys, key_heads, 20]);
    let (in_q, in_k): (usize, usize) = (of_q.iter().product(), of_k.iter().product());
    let input = file(
        "dropout",
        &[
            ("q", of_q, vec![0.0; in_q]),
            ("k", of_k, vec![0.0; in_k]),
            ("v", of_k, unit(in_k, key_heads, keys)),
            ("do", of_q, unit(in_q, heads, queries)),
        ],
    );
    let output = File::new("dropout-out");
    let run = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
    let (seed, offset) = (0x1234_5678_9abc_def0, 1 << 32 | 2);
    let numbers = ["--dropout", "0.25", "--seed", "1311768467463790320", "--offset", "4294967298"];
    let answer = fattn(&[&run[..], &numbers, &["--explain"]].concat());
    let text = String::from_utf8(answer.stdout).unwrap();
    let line =
        "dropout: 0.25, 16384 of 65536 numbers, of seed 1311768467463790320 and offset 4294967298\n";
    assert!(text.contains(line), "{text}");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let written = std::fs::read(&output.0).unwrap();
    let written = SafeTensors::deserialize(&written).unwrap();
    let read = |name: &str| -> Vec<f32> {
        bytemuck::allocation::pod_collect_to_vec(written.tensor(name).unwrap().data())
    };
    let (o, lse, dv) = (read("o"), read("lse"), read("dv"));
    assert!(lse.iter().all(|lse| (lse - 20f32.ln()).abs() < 1e-5), "{lse:?}");
    let dropout = DropoutNumbers { rate: 0.25, seed, offset, first_batch: 0 };
    let weight = |keeps: bool| if keeps { 4.0 / 3.0 / 20.0 } else { 0.0 };
    let mut in_dv = vec![0.0; dv.len()];
    for (at, &o) in o.iter().enumerate() {
        let (key, head, query, batch) = (at % 20, at / 20 % 4, at / 80 % 3, at / 240);
        let expected = weight(dropout.keeps([batch, head, query, key], heads));
        assert!((o - expected).abs() < 1e-6 && (o == 0.0) == (expected == 0.0), "{at}: {o}");
        in_dv[((batch * keys + key) * key_heads + head / 2) * 20 + query] += expected;
    }
    let near = |(got, expected): (&f32, &f32)| (got - expected).abs() < 1e-6;
    assert!(dv.iter().zip(&in_dv).all(near), "{dv:?}");
}

/// One value is so large that o is infinite where its probability is kept, and finite where it is dropped: a part of
/// the problem that counted batches and heads for itself would drop it.
#[test]
fn a_part_of_a_trace_drops_what_the_whole_does() {
    let of_seed = |seed| DropoutNumbers { rate: 0.99, seed, offset: 3, first_batch: 0 };
    let tells = |seed: &u64| {
        let keeps = |batch, head| of_seed(*seed).keeps([batch, head, 0, 5], 4);
        keeps(1, 3) && !keeps(1, 2) && (0..4).all(|head| !keeps(0, head))
    };
    let seed = (0..).find(tells).unwrap();
    let (of_q, of_k) = ([2, 1, 4, 8], [2, 20, 2, 8]);
    let mut v = vec![0.0; 2 * 20 * 2 * 8];
    let first = ((20 + 5) * 2 + 1) * 8;
    v[first..first + 8].fill(3e38);
    let tensors = [("q", of_q, vec![0.0; 64]), ("k", of_k, vec![0.0; 640]), ("v", of_k, v)];
    let input = file("trace-dropout", &tensors);
    let trace = ["trace-nonfinite", "--device", "emulated", "--json", "--input", input.text()];
    let seed = seed.to_string();
    let answer = fattn(&[&trace[..], &["--dropout", "0.99", "--seed", &seed, "--offset", "3"]].concat());
    let text = String::from_utf8_lossy(&answer.stderr);
    let report: Value = serde_json::from_slice(&answer.stdout).expect(&text);
    let cause = &report["cause"];
    assert!(cause["kind"] == "origin" || cause["kind"] == "suspect", "{report}");
    assert_eq!(
        (&cause["part"]["batch"], &cause["part"]["key_head"]),
        (&json!(1), &json!(1)),
        "{report}"
    );
}
