//! Options of `fattn` that stand twice, contradict each other, or hold numbers that cannot be.

mod command;

use command::{File, fattn, wrong};
use safetensors::SafeTensors;
use serde_json::Value;

/// Options of every subcommand, with a value where they take one. That only `--arg`, `--buffer` and `--region` of
/// `sanitize` may stand several times is a unit test of the command.
const OPTIONS: [(&str, &[&[&str]]); 8] = [
    (
        "check",
        &[&["--device", "emulated"], &["--cases", "3"], &["--seed", "1"], &["--only", "0"], &["--json"]],
    ),
    (
        "bench",
        &[
            &["--device", "emulated"],
            &["--kernels", "k.ptx"],
            &["--pass", "both"],
            &["--deterministic"],
            &["--dtype", "bf16"],
            &["--head-dim", "64"],
            &["--seqlen", "64,128"],
            &["--queries", "1"],
            &["--num-splits", "2"],
            &["--pack-gqa", "true"],
            &["--varlen"],
            &["--lengths", "5,6"],
            &["--batch", "1"],
            &["--heads", "1"],
            &["--kv-heads", "1"],
            &["--causal", "no"],
            &["--window", "1", "1"],
            &["--softcap", "30"],
            &["--dropout", "0.1"],
            &["--iterations", "1"],
            &["--sustain-ms", "0"],
            &["--json"],
            &["--explain"],
        ],
    ),
    (
        "equivalence",
        &[
            &["--dtype", "f16"],
            &["--seqlen", "1"],
            &["--head-dim", "8"],
            &["--softcap", "30"],
            &["--svg", "a"],
        ],
    ),
    ("gradcheck", &[&["--device", "emulated"], &["--kernels", "k.ptx"]]),
    (
        "first-call",
        &[
            &["--device", "emulated"],
            &["--head-dims", "64"],
            &["--rows", "1"],
            &["--f16"],
            &["--limit", "1"],
            &["--prepare"],
        ],
    ),
    (
        "run",
        &[
            &["--input", "in"],
            &["--output", "out"],
            &["--causal"],
            &["--top-left"],
            &["--window", "1", "-1"],
            &["--scale", "-1"],
            &["--softcap", "30"],
            &["--dropout", "0.1"],
            &["--seed", "1"],
            &["--offset", "2"],
            &["--out-dtype", "f32"],
            &["--deterministic"],
            &["--explain"],
        ],
    ),
    (
        "trace-nonfinite",
        &[
            &["--input", "in"],
            &["--window", "0", "0"],
            &["--scale", "1"],
            &["--softcap", "1"],
            &["--dropout", "0.1"],
            &["--seed", "1"],
            &["--offset", "2"],
            &["--json"],
        ],
    ),
    (
        "sanitize",
        &[
            &["--ptx", "k.ptx"],
            &["--entry", "k"],
            &["--grid", "1"],
            &["--block", "1"],
            &["--shared", "1"],
            &["--schedule", "all"],
            &["--schedules", "1"],
            &["--seed", "1"],
            &["--any-order"],
            &["--max-findings", "1"],
            &["--step-limit", "1"],
            &["--threads", "1"],
            &["--json"],
        ],
    ),
];

#[test]
fn an_option_that_stands_twice_is_refused() {
    for (subcommand, options) in OPTIONS {
        for &option in options {
            let text = wrong(&[&[subcommand], option, option].concat());
            let start = format!("error: the argument '{}", option[0]);
            assert!(
                text.starts_with(&start) && text.contains("' cannot be used multiple times\n"),
                "{subcommand} {option:?}: {text}"
            );
        }
    }
}

#[test]
fn options_of_bench_that_contradict_each_other_are_refused() {
    let bench = |options: &[&str]| wrong(&[&["bench"], options].concat());
    for (option, value) in [("--num-splits", "2"), ("--pack-gqa", "false")] {
        assert_eq!(
            bench(&["--pass", "backward", option, value]),
            format!("fattn: {option}: the backward pass has none; use --pass forward or both\n")
        );
    }
    assert_eq!(
        bench(&["--deterministic"]),
        "fattn: --deterministic: the forward pass always is; use --pass backward or both\n"
    );
    assert_eq!(bench(&["--iterations", "0"]), "fattn: --iterations: expected at least 1, got 0\n");
    for milliseconds in ["-1", "NaN"] {
        assert_eq!(
            bench(&["--sustain-ms", milliseconds]),
            format!("fattn: --sustain-ms: expected a number of at least 0, got {milliseconds}\n")
        );
    }
    let exclusive = [&["--lengths", "5"][..], &["--varlen"], &["--seqlen", "5"], &["--batch", "5"]];
    for other in &exclusive[1..] {
        assert!(bench(&[exclusive[0], other].concat()).contains("cannot be used with"), "{other:?}");
    }
}

#[test]
fn a_seed_is_refused_where_no_schedule_is_random() {
    let dv_broken = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sanitize/dv_broken.ptx");
    for schedule in ["eager", "latest"] {
        let options = ["--ptx", dv_broken, "--block", "64", "--schedule", schedule, "--seed", "5"];
        assert_eq!(
            wrong(&[&["sanitize"], &options[..]].concat()),
            "fattn: --seed: expected none with a schedule that is the same every time, got `5`\n"
        );
    }
}

/// lse of `fattn run` on zeros, three queries and three keys, is the logarithm of how many keys a query sees.
fn visible_keys(name: &str, options: &[&str]) -> (Vec<f32>, String) {
    let (input, output) = (File::qkv(name), File::new(&format!("{name}-out")));
    let paths = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
    let answer = fattn(&[&paths, options].concat());
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let bytes = std::fs::read(&output.0).unwrap();
    let lse = SafeTensors::deserialize(&bytes).unwrap().tensor("lse").unwrap().data().to_vec();
    let lse: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(&lse);
    (lse[..3].iter().map(|lse| lse.exp().round()).collect(), String::from_utf8(answer.stdout).unwrap())
}

#[test]
fn a_causal_mask_and_a_window_hold_together() {
    let (keys, _) = visible_keys("window", &["--window", "1", "1"]);
    assert_eq!(keys, [2.0, 3.0, 2.0]);
    for (name, alignment, diagonal, options) in [
        ("both", "bottom right", "i + Sk - Sq", &["--window", "1", "1", "--causal"][..]),
        ("both-top-left", "top left", "i", &["--causal", "--window", "1", "1", "--top-left"]),
    ] {
        let (keys, text) = visible_keys(name, &[options, &["--explain"]].concat());
        assert_eq!(keys, [1.0, 2.0, 2.0], "{options:?}");
        let mask = format!(
            "mask: causal and a window, aligned {alignment}: query i sees the keys j with \
             {diagonal} - 1 <= j <= {diagonal}\nforward_f32_"
        );
        assert!(text.starts_with(&mask), "{text}");
    }
}

#[test]
fn bench_plans_windows_with_and_without_a_causal_mask() {
    let masks = |options: &[&str]| -> Vec<String> {
        let shape = ["bench", "--device", "emulated:sm_90a", "--explain", "--head-dim", "64"];
        let answer = fattn(&[&shape[..], &["--seqlen", "512", "--json"], options].concat());
        let report: Value = serde_json::from_slice(&answer.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        rows.iter().map(|row| row["mask"].as_str().unwrap().to_owned()).collect()
    };
    let window = ["--window", "100", "5"];
    let with = |causal| masks(&[&window[..], &["--causal", causal]].concat());
    assert_eq!(masks(&[]), ["full", "causal"]);
    assert_eq!(masks(&window), ["window(100,5)"]);
    assert_eq!(with("no"), ["window(100,5)"]);
    assert_eq!(with("yes"), ["window(100,0)"]);
    assert_eq!(with("both"), ["window(100,5)", "window(100,0)"]);
    assert_eq!(masks(&["--window", "100", "0", "--causal", "both"]), ["window(100,0)"]);
}

/// Packed or not, the kernels that are planned have what is asked for.
#[test]
fn bench_plans_what_scores_have_beside() {
    let device = ["bench", "--device", "emulated:sm_90a", "--explain", "--json", "--head-dim", "64"];
    let features = ["--bias", "hqk", "--dbias", "--attn-mask", "q", "--alibi", "--sinks"];
    for lengths in [&["--seqlen", "512"][..], &["--lengths", "100,200"], &["--varlen"]] {
        let options = ["--causal", "no", "--pass", "both"];
        let answer = fattn(&[&device[..], &options, lengths, &features].concat());
        let report: Value = serde_json::from_slice(&answer.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let kernels: Vec<&str> = rows.iter().map(|row| row["kernel"].as_str().unwrap()).collect();
        assert_eq!(kernels.len(), 2, "{lengths:?}");
        for (kernel, switches) in kernels.iter().zip(["+bias+mask+alibi+sinks", "+bias+mask+alibi"]) {
            assert!(kernel.ends_with(switches), "{lengths:?}: {kernel}");
        }
        let plan = rows[1]["plan"].as_str().unwrap();
        assert!(plan.contains("bias_gradient") && plan.contains("sink_gradient"), "{plan}");
    }
}

#[test]
fn a_softcap_that_is_none_is_refused() {
    for cap in ["0", "-30", "NaN", "inf", "3e38", "1e-60", "thirty", ""] {
        for command in [
            &["run", "--input", "in", "--output", "out"][..],
            &["trace-nonfinite", "--input", "in"],
            &["bench", "--device", "emulated"],
            &["equivalence"],
        ] {
            let text = wrong(&[command, &["--softcap", cap]].concat());
            let expected = format!(
                "error: invalid value '{cap}' for '--softcap <C>': expected a number above 0 and of at most \
                 1.1793287e38, got {cap}"
            );
            assert_eq!(text.lines().next(), Some(&*expected));
        }
    }
    // And one that goes with no scale is an error of the problem.
    let (input, output) = (File::qkv("softcap"), File::new("softcap-out"));
    let paths = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
    let answer = fattn(&[&paths[..], &["--scale", "1e30", "--softcap", "1e-30"]].concat());
    let text = String::from_utf8(answer.stderr).unwrap();
    assert!(
        text.starts_with("fattn: softcap: expected a number that the scale 1e30 is from "),
        "{text}"
    );
}

#[test]
fn a_scale_that_f32_does_not_hold_is_refused() {
    let refused = |subcommand: &str, scale: &str, expected: &str| {
        assert_eq!(
            wrong(&[subcommand, "--input", "in", "--output", "out", "--scale", scale]).lines().next(),
            Some(&*format!(
                "error: invalid value '{scale}' for '--scale <SCALE>': expected {expected}, got {scale}"
            ))
        );
    };
    for scale in ["NaN", "-nan", "inf", "-inf", "1e60", "-1e60", "1e999", "3e38", "one", ""] {
        refused("run", scale, "a number from -1.1793287e38 to 1.1793287e38");
    }
    for scale in ["1e-60", "-1e-60", "1E-999", "0.0001e-60", "-.5e-50"] {
        refused("run", scale, "a number that f32 does not round to 0, or 0");
    }
    for scale in ["0", "-0.0", "0e5", "1e-44", "1.1793287e38", "-0.125"] {
        let (input, output) = (File::qkv("scale"), File::new("scale-out"));
        let paths = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
        let answer = fattn(&[&paths[..], &["--scale", scale]].concat());
        assert!(answer.status.success(), "{scale}: {}", String::from_utf8_lossy(&answer.stderr));
    }
}
