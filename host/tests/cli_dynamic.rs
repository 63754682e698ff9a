//! Dynamic masks from the command line: what `fattn run` refuses, with which text, what it computes either way, and the
//! grid of Flash-DMAttn's tests.

mod command;

use command::{File, fattn, refused};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

#[track_caller]
fn with(name: &str, bias: Option<&[usize]>, options: &[&str]) -> String {
    let (query, key) = ([1, 3, 4, 8].as_slice(), [1, 33, 2, 8].as_slice());
    let mut tensors = vec![("q", Dtype::BF16, query), ("k", Dtype::BF16, key), ("v", Dtype::BF16, key)];
    tensors.extend(bias.map(|shape| ("bias", Dtype::BF16, shape)));
    refused(name, &tensors, options)
}

#[test]
fn dynamic_masks_that_cannot_be_made_are_refused() {
    assert_eq!(
        with("dynamic-no-bias", None, &["--dynamic-mask", "topk:4"]),
        "fattn: dynamic_mask: expected a bias, of which it is made, got none\n"
    );
    for (name, rule) in
        [("zero", "topk:0"), ("none", "topk"), ("other", "largest"), ("negative", "topk:-3")]
    {
        let text = with(&format!("dynamic-{name}"), None, &["--dynamic-mask", rule]);
        let expected = format!("expected topk:N with N of at least 1, or relu, got {rule}");
        assert!(text.contains(&expected), "{text}");
    }
    let text = with("dynamic-block", None, &["--dynamic-block", "4"]);
    assert!(text.contains("--dynamic-mask <topk:N|relu>"), "{text}");
    let gather = ["--dynamic-mask", "topk:4", "--dynamic-way", "gather"];
    let text = with("dynamic-queries", Some(&[1, 2, 3, 33]), &gather);
    let expected = "fattn: dynamic_mask: expected no way, or to mask, since keys cannot be gathered, got to gather: the \
                    choice of keys is another one for each query\n";
    assert!(text.ends_with(expected), "{text}");
    let dropout = [&gather[..], &["--dropout", "0.5"]].concat();
    let text = with("dynamic-dropout", Some(&[1, 2, 1, 33]), &dropout);
    assert!(text.ends_with("to gather: dropout depends on where keys stand\n"), "{text}");
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Two queries of zeros and four keys, causal: the first query sees three keys. Of the bias the two largest are the
/// first and the last key, of which the first query sees one.
#[test]
fn run_chooses_keys_and_writes_gradients_either_way() {
    let (queries, keys) = ([1, 2, 1, 1].as_slice(), [1, 4, 1, 1].as_slice());
    let input = File::new("dynamic");
    let tensors = [
        ("q", Dtype::F32, queries, bytes(&[0.0; 2])),
        ("k", Dtype::F32, keys, bytes(&[1.0, 2.0, 3.0, 4.0])),
        ("v", Dtype::F32, keys, bytes(&[1.0, 2.0, 4.0, 9.0])),
        ("do", Dtype::F32, queries, bytes(&[1.0; 2])),
        ("bias", Dtype::F32, &[1, 1, 1, 4], bytes(&[2.0, 1.0, -1.0, 2.0])),
    ];
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    std::fs::write(&input.0, safetensors::serialize(views, None).unwrap()).unwrap();
    for way in ["mask", "gather"] {
        let output = File::new(&format!("dynamic-{way}-out"));
        let run = ["run", "--device", "emulated", "--input", input.text(), "--output", output.text()];
        let options =
            ["--causal", "--dynamic-mask", "topk:2", "--dynamic-way", way, "--dbias", "--explain"];
        let answer = fattn(&[&run[..], &options].concat());
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        let text = String::from_utf8(answer.stdout).unwrap();
        assert!(text.contains(&format!("way {way}: as asked for")), "{text}");
        assert!(text.contains("dynamic mask topk:2: rows [1, 1, 1] of 4 keys"), "{text}");
        let written = std::fs::read(&output.0).unwrap();
        let written = SafeTensors::deserialize(&written).unwrap();
        let near = |name: &str, expected: &[f32]| {
            let tensor = written.tensor(name).unwrap();
            let got: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(tensor.data());
            let is_near = |(got, expected): (&f32, &f32)| (got - expected).abs() < 1e-5;
            assert!(
                got.len() == expected.len() && got.iter().zip(expected).all(is_near),
                "{way} {name}: {got:?}"
            );
        };
        near("o", &[1.0, 5.0]);
        near("lse", &[2.0, 2.0 + 2f32.ln()]);
        near("dv", &[1.5, 0.0, 0.0, 0.5]);
        // dP is 1 and 9 for the second query, whose delta is 5.
        near("dbias", &[-2.0, 0.0, 0.0, 2.0]);
        near("dk", &[0.0; 4]);
        near("dq", &[0.0, -2.0 * 1.0 + 2.0 * 4.0]);
    }
}

#[test]
fn other_commands_refuse_a_dynamic_mask() {
    let input = File::new("dynamic-trace");
    let (shape, bytes) = (vec![1, 2, 1, 8], bytes(&[0.0; 16]));
    let bias = vec![0u8; 16];
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let views = [
        ("q", view(&shape, &bytes)),
        ("k", view(&shape, &bytes)),
        ("v", view(&shape, &bytes)),
        ("bias", view(&[1, 1, 2, 2], &bias)),
    ];
    std::fs::write(&input.0, safetensors::serialize(views, None).unwrap()).unwrap();
    let options = ["--device", "emulated", "--input", input.text(), "--dynamic-mask", "relu"];
    let answer = fattn(&[&["trace-nonfinite"], &options[..]].concat());
    let text = String::from_utf8(answer.stderr).unwrap();
    assert_eq!(
        text,
        "fattn: --dynamic-mask: expected none, as trace-nonfinite has no dynamic masks, got one\n"
    );
}

#[test]
fn check_runs_random_cases_and_the_grid_of_flash_dmattn() {
    let check = |options: &[&str]| {
        let answer = fattn(&[&["check", "--device", "emulated", "--what", "dynamic"], options].concat());
        (
            answer.status.code(),
            String::from_utf8(answer.stdout).unwrap() + &String::from_utf8_lossy(&answer.stderr),
        )
    };
    let (status, text) = check(&["--cases", "6"]);
    assert!(status == Some(0) && text.contains("6 passed, 0 failed"), "{text}");
    let (status, text) = check(&["--suite", "flash-dmattn", "--cases", "1"]);
    assert!(status == Some(0) && text.contains("1 passed, 0 failed"), "{text}");
    assert!(text.contains("topk:32"), "{text}");
    let (status, text) = check(&["--suite", "msda-triton"]);
    assert!(
        status != Some(0) && text.contains("--suite msda-triton: expected --what msda, got dynamic"),
        "{text}"
    );
}
