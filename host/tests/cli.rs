//! The command line: what it refuses, with which text and exit code, and a run from file to file.

mod command;

use command::{File, fattn, refused, wrong};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

const SHAPE: &[usize] = &[1, 3, 2, 8];

#[test]
fn run_refuses_what_is_missing_or_does_not_fit() {
    let (q, k, v) = (("q", Dtype::F32, SHAPE), ("k", Dtype::F32, SHAPE), ("v", Dtype::F32, SHAPE));
    assert_eq!(
        refused("missing", &[q, k, ("value", Dtype::F32, SHAPE)], &[]),
        "fattn: v: expected a tensor of this name in the input, got k, q, value\n"
    );
    assert_eq!(
        refused("mixed", &[q, ("k", Dtype::BF16, SHAPE), v], &[]),
        "fattn: k: expected dtype f32 like q, got bf16\n"
    );
    assert_eq!(
        refused("integers", &[("q", Dtype::I64, SHAPE), k, v], &[]),
        "fattn: q: expected dtype bf16, f16 or f32, got i64\n"
    );
    assert_eq!(
        refused("rank", &[q, k, ("v", Dtype::F32, &[3, 2, 8])], &[]),
        "fattn: v: expected 4 dimensions [batch, row, head, column], got 3\n"
    );
    assert_eq!(
        refused("rows", &[q, k, ("v", Dtype::F32, &[1, 4, 2, 8])], &[]),
        "fattn: v: expected rows 3 like k, got 4\n"
    );
    assert_eq!(
        refused("output", &[q, k, v], &["--out-dtype", "bf16"]),
        "fattn: o: expected dtype f32 like q, or f32, got bf16\n"
    );
    let others = [("dO", Dtype::F32, SHAPE), ("cu_seqlens", Dtype::I32, [2].as_slice())];
    assert_eq!(
        refused("unknown", &[&[q, k, v], &others[..]].concat(), &[]),
        "fattn: --input: expected no tensors but q, k, v, do, dlse, cu_seqlens_q, cu_seqlens_k, bias, \
         mask, alibi_slopes, sinks, got cu_seqlens, dO\n"
    );
    assert_eq!(
        refused("deterministic", &[q, k, v], &["--deterministic"]),
        "fattn: --deterministic: expected a tensor do in the input, got none: the forward pass always is\n"
    );
}

#[test]
fn run_refuses_files_that_are_not_there_or_not_safetensors() {
    let answer = fattn(&["run", "--input", "/nowhere/in", "--output", "/nowhere/out"]);
    let text = String::from_utf8(answer.stderr).unwrap();
    assert!(text.starts_with("fattn: --input /nowhere/in: "), "{text}");
    let input = File::new("garbage");
    std::fs::write(&input.0, b"not safetensors").unwrap();
    let answer = fattn(&["run", "--input", input.0.to_str().unwrap(), "--output", "/nowhere/out"]);
    let text = String::from_utf8(answer.stderr).unwrap();
    assert!(text.starts_with(&format!("fattn: --input {}: ", input.0.display())), "{text}");
}

#[test]
fn an_unknown_device_is_refused_by_name() {
    let answer = fattn(&["check", "--device", "metal"]);
    let text = String::from_utf8(answer.stderr).unwrap();
    assert!(
        text.contains("expected cuda, cuda:N, cuda:N:sm_80, emulated, emulated:sm_80 or emulated:sm_90a, got `metal`"),
        "{text}"
    );
    assert_eq!(answer.status.code(), Some(2));
}

#[test]
fn numbers_for_which_there_is_nothing_to_run_or_no_memory_are_refused_by_name() {
    assert_eq!(wrong(&["check", "--cases", "0"]), "fattn: --cases: expected at least 1, got 0\n");
    assert_eq!(
        wrong(&["check", "--only", "999"]),
        "fattn: --only: expected 0..=239, as --cases is 240, got 999\n"
    );
    for option in ["--heads", "--kv-heads", "--batch", "--head-dim", "--seqlen"] {
        assert_eq!(
            wrong(&["bench", option, "0"]),
            format!("fattn: {option}: expected at least 1, got 0\n")
        );
    }
    assert_eq!(
        wrong(&["bench", "--batch", "99999999999999"]),
        "fattn: q: expected batch 0..=4294967295, got 99999999999999\n"
    );
    for head_dim in ["0", "257", "18446744073709551615"] {
        assert_eq!(
            wrong(&["equivalence", "--seqlen", "5", "--head-dim", head_dim]),
            format!("fattn: --head-dim {head_dim}: q: expected head_dim 1..=256, got {head_dim}\n")
        );
    }
    assert_eq!(
        wrong(&["equivalence", "--seqlen", "4294967296", "--head-dim", "8"]),
        "fattn: --seqlen: expected 0..=1048576, got 4294967296\n"
    );
}

#[test]
fn one_case_of_any_number_of_cases_runs() {
    let most = usize::MAX.to_string();
    let answer = fattn(&["check", "--device", "emulated", "--cases", &most, "--only", "5"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success() && text.ends_with("1 passed, 0 failed\n"), "{text}");
}

#[test]
fn cases_of_one_dtype_are_checked() {
    // As many as there are types, which come in turns: a multiple of that is as good as any number.
    let answer = fattn(&["check", "--device", "emulated", "--cases", "3", "--dtype", "f32", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let dtypes = report["cases"].as_array().unwrap().iter().map(|case| &case["dtype"]);
    assert_eq!(dtypes.collect::<Vec<_>>(), ["f32"; 3]);
    assert_eq!(
        wrong(&["check", "--what", "msda", "--dtype", "f16", "--device", "emulated"]),
        "fattn: --dtype: expected --what attention or dynamic, got msda\n"
    );
}

#[test]
fn kernels_that_replace_none_are_refused() {
    let file = File::new("kernels");
    std::fs::write(&file.0, ".version 8.0\n.visible .entry mine(\n.entry yours(\n").unwrap();
    let path = file.0.to_str().unwrap();
    assert_eq!(
        wrong(&["check", "--device", "emulated", "--only", "5", "--kernels", path]),
        format!(
            "fattn: --kernels {path}: kernels: expected an .entry with the name of a kernel of the library, \
             got mine, yours\n"
        )
    );
}

#[test]
fn plans_are_explained_where_there_is_no_gpu() {
    let bench = ["bench", "--device", "emulated:sm_90a", "--pass", "both", "--head-dim", "128"];
    let shape = ["--seqlen", "4096", "--causal", "no"];
    let answer = fattn(&[&bench[..], &shape, &["--explain"]].concat());
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success(), "{text}");
    assert!(
        text.contains("\n    the device is Hopper, and tensor maps can describe the tensors\n"),
        "{text}"
    );
    assert!(text.contains("\n  mask: full: every query sees every key of its sequence\n"), "{text}");
    assert!(text.contains("\n  backward_bf16_d128") && text.contains(" bytes of workspace\n"), "{text}");
    let answer = fattn(&[&bench[..], &shape, &["--explain", "--json"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(report["rows"][0]["kernel"], "forward_bf16_d128_sm90a");
    assert_eq!(report["rows"][0].get("burst_ms"), None);
    assert!(
        wrong(&[&bench[..], &shape].concat()).ends_with("with --explain it prints the plans alone\n")
    );
}

#[test]
fn devices_lists_the_emulator_on_every_machine() {
    let answer = fattn(&["devices"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success());
    assert!(text.contains("\nemulated:sm_80  ") && text.starts_with("cuda"), "{text}");
}

#[test]
fn run_writes_o_and_lse() {
    let tensors = [("q", Dtype::F32, SHAPE), ("k", Dtype::F32, SHAPE), ("v", Dtype::F32, SHAPE)];
    let (input, output) = (File::with("zeros", &tensors), File::new("zeros-out"));
    let answer = fattn(&[
        "run",
        "--input",
        input.0.to_str().unwrap(),
        "--output",
        output.0.to_str().unwrap(),
        "--causal",
        "--device",
        "emulated",
    ]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let bytes = std::fs::read(&output.0).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (o, lse) = (file.tensor("o").unwrap(), file.tensor("lse").unwrap());
    assert_eq!((o.dtype(), o.shape()), (Dtype::F32, SHAPE));
    assert_eq!((lse.dtype(), lse.shape()), (Dtype::F32, [1, 2, 3].as_slice()));
    assert!(o.data().iter().all(|&byte| byte == 0));
    let lse: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(lse.data());
    for (got, keys) in lse.iter().zip([1f32, 2.0, 3.0].into_iter().cycle()) {
        assert!((got - keys.ln()).abs() < 1e-5, "{lse:?}");
    }
}

/// Of a single key lse is the score: 24, or 10 tanh(2.4).
#[test]
fn run_caps_scores() {
    let input = File::new("capped");
    let bytes: Vec<u8> = [1f32; 8].iter().flat_map(|one| one.to_le_bytes()).collect();
    let tensors = ["q", "k", "v", "do"]
        .map(|name| (name, TensorView::new(Dtype::F32, vec![1, 1, 1, 8], &bytes).unwrap()));
    std::fs::write(&input.0, safetensors::serialize(tensors, None).unwrap()).unwrap();
    for (options, switch, expected) in
        [(&[][..], ": ", 24.0), (&["--softcap", "10"], "+softcap: ", 10.0 * 2.4f32.tanh())]
    {
        let output = File::new("capped-out");
        let run = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
        let answer = fattn(&[&run[..], &["--scale", "3", "--explain"], options].concat());
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        let text = String::from_utf8(answer.stdout).unwrap();
        for kernel in ["forward_f32_d32_sm80", "backward_f32_d64_sm80"] {
            assert!(text.contains(&format!("{kernel}{switch}")), "{text}");
        }
        let bytes = std::fs::read(&output.0).unwrap();
        let lse = SafeTensors::deserialize(&bytes).unwrap();
        let lse: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(lse.tensor("lse").unwrap().data());
        assert!((lse[0] - expected).abs() < 1e-5, "{lse:?}");
        let trace = ["trace-nonfinite", "--device", "emulated", "--input", input.text(), "--scale", "3"];
        let answer = fattn(&[&trace[..], options].concat());
        assert!(String::from_utf8(answer.stdout).unwrap().ends_with("all finite\n"));
    }
}

/// Zeros, with offsets of i32.
fn packed_file(name: &str, offsets: &[i32]) -> File {
    let file = File::new(name);
    let zeros = vec![0u8; 5 * 2 * 8 * 4];
    let rows: &[usize] = &[5, 2, 8];
    let offsets: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let tensor = |name| (name, TensorView::new(Dtype::F32, rows.to_vec(), &zeros).unwrap());
    let count = vec![offsets.len() / 4];
    let cu_seqlens = |name| (name, TensorView::new(Dtype::I32, count.clone(), &offsets).unwrap());
    let mut tensors = ["q", "k", "v", "do"].map(tensor).to_vec();
    tensors.extend(["cu_seqlens_q", "cu_seqlens_k"].map(cu_seqlens));
    tensors.push(("dlse", TensorView::new(Dtype::F32, vec![2, 5], &zeros[..40]).unwrap()));
    std::fs::write(&file.0, safetensors::serialize(tensors, None).unwrap()).unwrap();
    file
}

#[test]
fn run_refuses_gradients_and_offsets_that_do_not_fit() {
    let (q, k, v) = (("q", Dtype::F32, SHAPE), ("k", Dtype::F32, SHAPE), ("v", Dtype::F32, SHAPE));
    assert_eq!(
        refused("do", &[q, k, v, ("do", Dtype::F32, &[1, 4, 2, 8])], &[]),
        "fattn: do: expected rows 3 like o, got 4\n"
    );
    assert_eq!(
        refused("do-dtype", &[q, k, v, ("do", Dtype::F16, SHAPE)], &[]),
        "fattn: do: expected dtype f32 like q, got f16\n"
    );
    let dlse = ("dlse", Dtype::F32, [1, 3, 2].as_slice());
    assert_eq!(
        refused("dlse", &[q, k, v, ("do", Dtype::F32, SHAPE), dlse], &[]),
        "fattn: dlse: expected shape [1, 2, 3] like lse, got [1, 3, 2]\n"
    );
    assert_eq!(
        refused("dlse-alone", &[q, k, v, ("dlse", Dtype::F32, &[1, 2, 3])], &[]),
        "fattn: do: expected a tensor of this name beside dlse\n"
    );
    assert_eq!(
        refused("one-side", &[q, k, v, ("cu_seqlens_q", Dtype::I32, &[2])], &[]),
        "fattn: cu_seqlens_k: expected a tensor of this name in the input, as for the other side\n"
    );
    let offsets = |name, dtype| (name, dtype, [3].as_slice());
    let of_i64 = [q, k, v, offsets("cu_seqlens_q", Dtype::I64), offsets("cu_seqlens_k", Dtype::I32)];
    assert_eq!(refused("i64", &of_i64, &[]), "fattn: cu_seqlens_q: expected dtype i32, got i64\n");
    let of_i32 = [q, k, v, offsets("cu_seqlens_q", Dtype::I32), offsets("cu_seqlens_k", Dtype::I32)];
    assert_eq!(
        refused("four", &of_i32, &[]),
        "fattn: q: expected 3 dimensions [row, head, column], got 4\n"
    );
    let square = |name| (name, Dtype::I32, [1, 3].as_slice());
    assert_eq!(
        refused("square", &[q, k, v, square("cu_seqlens_q"), square("cu_seqlens_k")], &[]),
        "fattn: cu_seqlens_q: expected 1 dimension [sequence], got 2\n"
    );
    let rows = packed_file("rows", &[0, 2, 4]);
    let answer = fattn(&["run", "--input", rows.0.to_str().unwrap(), "--output", "/nowhere/out"]);
    assert_eq!(
        String::from_utf8(answer.stderr).unwrap(),
        "fattn: cu_seqlens_q: expected offset 2 to be 5 like the rows that are there, got 4\n"
    );
}

#[test]
fn run_computes_gradients_of_packed_sequences_in_a_window() {
    let (input, output) = (packed_file("packed", &[0, 2, 2, 5]), File::new("packed-out"));
    let answer = fattn(&[
        "run",
        "--input",
        input.0.to_str().unwrap(),
        "--output",
        output.0.to_str().unwrap(),
        "--window",
        "1",
        "-1",
        "--deterministic",
        "--explain",
        "--device",
        "emulated",
    ]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.starts_with("mask: a window, aligned bottom right: "), "{text}");
    assert!(text.contains("\nforward_f32_") && text.contains("\nbackward_f32_"), "{text}");
    let bytes = std::fs::read(&output.0).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for name in ["o", "dq", "dk", "dv"] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, [5, 2, 8].as_slice()));
        let numbers: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(tensor.data());
        assert!(numbers.iter().all(|&number| number == 0.0), "{name}: {numbers:?}");
    }
    let lse: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(file.tensor("lse").unwrap().data());
    for (got, keys) in lse.iter().zip([2f32, 2.0, 3.0, 3.0, 2.0].into_iter().cycle()) {
        assert!((got - keys.ln()).abs() < 1e-5, "{lse:?}");
    }
}

#[test]
fn gradcheck_compares_the_reference_with_differences_and_the_kernels_with_it() {
    let answer = fattn(&["gradcheck", "--device", "emulated"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success(), "{text}");
    assert!(
        text.contains("central differences") && text.matches("  pass").count() == 26 + 3 * 11,
        "{text}"
    );
}

#[test]
fn equivalence_writes_numbers_and_a_picture() {
    let (json, svg) = (File::new("equivalence-json"), File::new("equivalence-svg"));
    let answer = fattn(&[
        "equivalence",
        "--device",
        "emulated",
        "--seqlen",
        "1,33",
        "--head-dim",
        "40",
        "--json",
        json.0.to_str().unwrap(),
        "--svg",
        svg.0.to_str().unwrap(),
    ]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success() && text.ends_with("6 passed, 0 failed\n"), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json.0).unwrap()).unwrap();
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        for name in ["o", "lse", "dq", "dk", "dv"] {
            assert!(case[name]["error"].as_f64().unwrap() <= case[name]["allowed"].as_f64().unwrap());
            assert_eq!(case[name]["non_finite"], 0);
        }
    }
    let picture = std::fs::read_to_string(&svg.0).unwrap();
    assert!(picture.starts_with("<svg ") && picture.matches("<polyline").count() > 10, "{picture}");
}

/// Both with kernels as they are and from PTX, each in a process of its own; a limit that nothing keeps is an error.
#[test]
fn first_call_times_the_first_forward_and_backward() {
    let device = ["first-call", "--device", "emulated:sm_90a", "--head-dims", "64", "--rows", "8"];
    let answer = fattn(&[&device[..], &["--prepare", "--limit", "1e9"]].concat());
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success(), "{text}");
    let rows: Vec<&str> = text.lines().skip(2).collect();
    assert!(matches!(rows[..], [built_in, ptx] if built_in.contains("built in") && ptx.contains("PTX")));
    for row in rows {
        let times: Vec<f64> =
            row.split_whitespace().filter_map(|word| word.parse().ok()).skip(1).collect();
        let [_, prepare, forward, backward, together, _] = times[..] else { panic!("{row}") };
        assert!(prepare > 0.0 && (forward + backward - together).abs() < 0.2, "{row}");
    }
    let slow = fattn(&[&device[..], &["--f16", "--limit", "0"]].concat());
    assert_eq!(slow.status.code(), Some(1));
    let missing = fattn(&["first-call", "--device", "cuda:99"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cuda:99"));
}
