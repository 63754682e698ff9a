//! `fattn msda` and `fattn check --what msda`.

mod command;

use bytemuck::cast_slice;
use command::{File, fattn, wrong};
use finite_attention::Padding;
use finite_attention::check::msda::{MsdaCase, MsdaNumbers};
use finite_attention::reference::{MsdaTensors, exact_msda, exact_msda_backward};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Tensors of a file by name.
type Tensors<'t> = Vec<(&'t str, Dtype, Vec<usize>)>;

fn zeros() -> Tensors<'static> {
    vec![
        ("value", Dtype::BF16, vec![1, 1, 2, 8]),
        ("shapes", Dtype::I64, vec![1, 2]),
        ("locations", Dtype::F32, vec![1, 3, 2, 1, 4, 2]),
        ("weights", Dtype::F32, vec![1, 3, 2, 1, 4]),
    ]
}

/// What `fattn msda` says of a file with these tensors of zeros.
fn refused(name: &str, change: impl FnOnce(&mut Tensors), options: &[&str]) -> String {
    let mut tensors = zeros();
    change(&mut tensors);
    let views: Vec<_> = tensors.iter().map(|(name, dtype, shape)| (*name, *dtype, &shape[..])).collect();
    let (input, output) = (File::with(name, &views), File::new(&format!("{name}-out")));
    let answer =
        fattn(&[&["msda", "--input", input.text(), "--output", output.text()], options].concat());
    assert_eq!(answer.status.code(), Some(2));
    String::from_utf8(answer.stderr).unwrap()
}

#[test]
fn msda_refuses_what_is_missing_or_does_not_fit() {
    let text = refused("msda-missing", |tensors| drop(tensors.remove(2)), &[]);
    assert_eq!(
        text,
        "fattn: locations: expected a tensor of this name in the input, got shapes, value, weights\n"
    );
    let text = refused("msda-shapes", |tensors| tensors[1].1 = Dtype::I32, &[]);
    assert_eq!(text, "fattn: shapes: expected dtype i64, got i32\n");
    let text = refused("msda-shape", |tensors| tensors[1].2 = vec![2], &[]);
    assert_eq!(text, "fattn: shapes: expected shape [levels, 2], got [2]\n");
    let text = refused("msda-levels", |tensors| tensors[1].2 = vec![2, 2], &[]);
    assert_eq!(text, "fattn: locations: expected 2 levels like shapes, got 1\n");
    let text = refused("msda-zero", |_| (), &[]);
    assert_eq!(text, "fattn: shapes: expected height 1..=16777216, got 0\n");
    let text = refused("msda-rank", |tensors| tensors[2].2 = vec![1, 3, 2, 4, 2], &[]);
    assert_eq!(
        text,
        "fattn: locations: expected 6 dimensions [batch, query, head, level, point, 2], got 5\n"
    );
    let text = refused("msda-weights", |tensors| tensors[3].2[4] = 3, &[]);
    assert_eq!(
        text,
        "fattn: weights: expected shape [1, 3, 2, 1, 4] like locations, got [1, 3, 2, 1, 3]\n"
    );
    let text = refused("msda-unknown", |tensors| tensors[3].0 = "weight", &[]);
    assert!(text.starts_with("fattn: weights: expected a tensor of this name"), "{text}");
    let text = refused("msda-more", |tensors| tensors.push(("q", Dtype::F32, vec![1])), &[]);
    assert_eq!(
        text,
        "fattn: --input: expected no tensors but value, shapes, locations, weights, do, got q\n"
    );
}

#[test]
fn msda_computes_from_file_to_file() {
    let case = MsdaCase {
        padding: Padding::Border,
        align_corners: true,
        shapes: vec![[6, 4], [3, 5]],
        ..MsdaCase::small()
    };
    let numbers = MsdaNumbers::drawn(&case);
    let sizes = case.sizes();
    let tensors =
        MsdaTensors { value: &numbers.value, locations: &numbers.locations, weights: &numbers.weights };
    let (exact_o, exact) =
        (exact_msda(&sizes, tensors), exact_msda_backward(&sizes, tensors, &numbers.d_o));
    let of_value = vec![1, sizes.cells(), case.heads, case.channels];
    let of_points = vec![1, case.queries, case.heads, 2, case.level_points];
    let of_locations = [&of_points[..], &[2]].concat();
    let of_o = vec![1, case.queries, case.heads, case.channels];
    let view = |shape: &[usize], numbers: &'static [f32]| {
        TensorView::new(Dtype::F32, shape.to_vec(), cast_slice(numbers)).unwrap()
    };
    let leak = |numbers: &[f32]| -> &'static [f32] { numbers.to_vec().leak() };
    let views = [
        ("value", view(&of_value, leak(&numbers.value))),
        ("locations", view(&of_locations, leak(&numbers.locations))),
        ("weights", view(&of_points, leak(&numbers.weights))),
        ("do", view(&of_o, leak(&numbers.d_o))),
        ("shapes", TensorView::new(Dtype::I64, vec![2, 2], cast_slice(&[6i64, 4, 3, 5])).unwrap()),
    ];
    let (input, output) = (File::new("msda"), File::new("msda-out"));
    std::fs::write(&input.0, safetensors::serialize(views, None).unwrap()).unwrap();
    for mode in [None, Some("--deterministic")] {
        let mut arguments = vec!["msda", "--input", input.text(), "--output", output.text()];
        arguments.extend([
            "--padding",
            "border",
            "--align-corners",
            "--device",
            "emulated",
            "--explain",
        ]);
        arguments.extend(mode);
        let answer = fattn(&arguments);
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        let text = String::from_utf8(answer.stdout).unwrap();
        assert!(text.contains("msda_forward_f32_sm80: "), "{text}");
        assert_eq!(text.contains("points sorted by cell"), mode.is_some(), "{text}");
        let bytes = std::fs::read(&output.0).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let all = [
            ("o", &of_o, &exact_o),
            ("dvalue", &of_value, &exact.d_value),
            ("dlocations", &of_locations, &exact.d_locations),
            ("dweights", &of_points, &exact.d_weights),
        ];
        for (name, shape, exact) in all {
            let tensor = file.tensor(name).unwrap();
            assert_eq!(tensor.shape(), &shape[..], "{name}");
            let got: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(tensor.data());
            for (index, (&got, exact)) in got.iter().zip(exact).enumerate() {
                assert!((f64::from(got) - exact).abs() < 1e-4, "{name} {index}: {got}, exactly {exact}");
            }
        }
    }
}

#[test]
fn check_runs_cases_of_msda() {
    let answer = fattn(&["check", "--what", "msda", "--cases", "6", "--device", "emulated", "--json"]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((report["passed"].as_u64(), report["failed"].as_u64()), (Some(6), Some(0)));
    let case = &report["cases"][3];
    assert!(case["tensors"]["dlocations"]["error"].is_f64(), "{case}");
    let answer =
        fattn(&["check", "--what", "msda", "--cases", "6", "--only", "5", "--device", "emulated"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.contains("1 passed, 0 failed"), "{text}");
    assert_eq!(
        wrong(&["check", "--what", "msda", "--features", "--device", "emulated"]),
        "fattn: --features: deformable attention has none; use --what attention\n"
    );
}

#[test]
fn check_runs_the_tests_of_msda_triton() {
    let suite =
        ["check", "--what", "msda", "--suite", "msda-triton", "--seed", "5", "--device", "emulated"];
    let answer = fattn(&[&suite[..], &["--cases", "3", "--only", "2", "--json"]].concat());
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((report["first_seed"].as_u64(), report["seeds"].as_u64()), (Some(7), Some(1)));
    assert_eq!((report["passed"].as_u64(), report["failed"].as_u64()), (Some(28), Some(0)));
    let backward = &report["tests"][27];
    let what = (backward["test"].as_str(), backward["mode"].as_str(), backward["passed"].as_u64());
    assert_eq!(what, (Some("backward"), Some("deterministic"), Some(1)));
    let share = &backward["tensors"]["dlocations"];
    assert_eq!(share["seed"].as_u64(), Some(7));
    assert!(share["largest_share"].as_f64().is_some_and(|share| share > 0.0 && share < 1.0), "{share}");
    let answer = fattn(&[&suite[..], &["--cases", "1"]].concat());
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.contains("seeds 5 to 5\n28 passed, 0 failed\n"), "{text}");
    assert_eq!(
        wrong(&["check", "--suite", "msda-triton", "--device", "emulated"]),
        "fattn: --suite msda-triton: expected --what msda, got attention\n"
    );
}
