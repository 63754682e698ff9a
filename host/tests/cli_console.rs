//! What `fattn` does where nobody reads its output, where there is no room for it, and while it works.
#![cfg(target_os = "linux")] // pipes and devices as Linux has them

mod command;

use command::{Directory, File, fattn};
use safetensors::Dtype;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

/// With standard output into a pipe whose other end is closed, or to a device that is full.
fn with_stdout(to: &str, arguments: &[&str]) -> Output {
    let script = match to {
        // The command waits until nobody reads: `true` is then long gone.
        "closed" => "{ sleep 0.2; \"$@\"; echo $? >&3; } 3>&2 2>&1 >&1 | true",
        _ => "\"$@\" > /dev/full; echo $? >&2",
    };
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_fattn")]).args(arguments);
    command.output().unwrap()
}

const DEVICE: [&str; 2] = ["--device", "emulated"];

/// Every subcommand that prints, with little to do.
fn commands(input: &str, output: &str, ptx: &str) -> Vec<Vec<String>> {
    let lines = [
        "--help".to_owned(),
        "devices".to_owned(),
        format!("check {} --cases 3", DEVICE.join(" ")),
        format!("check {} --cases 2 --what msda", DEVICE.join(" ")),
        format!("check {} --cases 2 --json", DEVICE.join(" ")),
        format!("equivalence {} --seqlen 3 --head-dim 8", DEVICE.join(" ")),
        format!("run {} --explain --input {input} --output {output}", DEVICE.join(" ")),
        format!("trace-nonfinite {} --input {input}", DEVICE.join(" ")),
        "bench --device emulated:sm_90a --explain --seqlen 512 --head-dim 64".to_owned(),
        format!("sanitize --ptx {ptx} --block 1"),
        "first-call --device emulated --rows 4 --head-dims 64".to_owned(),
    ];
    lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\nret; }\n";

#[test]
fn a_broken_pipe_is_a_quiet_end_and_a_full_disk_an_error_like_others() {
    let (input, place) = (File::qkv("console"), Directory::new("console"));
    let (output, ptx) = (place.file("output"), place.file("k.ptx"));
    std::fs::write(&ptx, PTX).unwrap();
    for arguments in commands(input.text(), &output, &ptx) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let answer = with_stdout("closed", &arguments);
        assert_eq!(String::from_utf8(answer.stderr).unwrap(), "141\n", "{arguments:?}");
        let answer = with_stdout("full", &arguments);
        assert_eq!(
            String::from_utf8(answer.stderr).unwrap(),
            "fattn: standard output: cannot be written: No space left on device (os error 28)\n2\n",
            "{arguments:?}"
        );
    }
    // What is written to a pipe in place of a file.
    let paths = ["run", "--device", "emulated", "--input", input.text(), "--output", "/dev/stdout"];
    let answer = with_stdout("closed", &paths);
    assert_eq!(String::from_utf8(answer.stderr).unwrap(), "141\n");
}

/// The first lines are there long before the last case has run: of so many, it never does.
#[test]
fn check_shows_each_case_on_a_pipe_as_soon_as_it_has_run() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fattn"));
    command.args(["check", "--device", "emulated", "--cases", "1000000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("case "));
    for case in 0..3 {
        let line = lines.next().unwrap();
        assert_eq!(line.split_whitespace().next(), Some(case.to_string().as_str()), "{line}");
        assert!(line.contains("pass"), "{line}");
    }
    // Nobody reads any more: it ends by itself.
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

/// Nothing is allocated for a dimension of which no element comes.
#[test]
fn tensors_without_elements_need_no_memory_however_long_they_are() {
    const MOST: usize = u32::MAX as usize;
    const ROWS: usize = (1 << 30) - 256;
    let qkv = ["q", "k", "v"];
    let run = |name: &str, tensors: &[(&str, Dtype, &[usize])]| {
        let input = File::with(name, tensors);
        let output = File::new(&format!("{name}-out"));
        let script = "ulimit -v 4000000; exec timeout 60 \"$@\"";
        let limited = |arguments: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_fattn")]).args(arguments);
            command.args(DEVICE).args(["--input", input.text()]).output().unwrap()
        };
        let answer = limited(&["trace-nonfinite"]);
        let text = String::from_utf8(answer.stdout).unwrap();
        assert!(text.ends_with("all finite\n"), "{name}: {text}");
        let answer = limited(&["run", "--output", output.text()]);
        assert!(answer.status.success(), "{name}: {}", String::from_utf8_lossy(&answer.stderr));
    };
    let shapes: [(&str, &[usize]); 4] = [
        ("batches", &[MOST, 0, 1, 64]),
        ("heads", &[MOST, 3, 0, 64]),
        ("rows", &[1, ROWS, 0, 64]),
        ("none", &[0, ROWS, MOST, 64]),
    ];
    for (name, shape) in shapes {
        let mut tensors = qkv.map(|name| (name, Dtype::F32, shape)).to_vec();
        run(name, &tensors);
        tensors.push(("do", Dtype::F32, shape));
        run(&format!("{name}-do"), &tensors);
    }
    let rows: &[usize] = &[1, ROWS, 0, 64];
    let mut tensors = qkv.map(|name| (name, Dtype::F32, rows)).to_vec();
    tensors.push(("mask", Dtype::BOOL, &[1, 1, 1, 1]));
    run("mask", &tensors);
}

#[test]
fn msda_without_elements_needs_no_memory_however_many_queries_there_are() {
    const ROWS: usize = (1 << 30) - 256;
    let shapes: (&str, Dtype, &[usize]) = ("shapes", Dtype::I64, &[1, 2]);
    let input = File::with_bytes(
        "msda-none",
        &[
            ("value", Dtype::F32, &[1, 1, 0, 8], vec![]),
            ("locations", Dtype::F32, &[1, ROWS, 0, 1, 1, 2], vec![]),
            ("weights", Dtype::F32, &[1, ROWS, 0, 1, 1], vec![]),
            ("do", Dtype::F32, &[1, ROWS, 0, 8], vec![]),
            (shapes.0, shapes.1, shapes.2, [1i64.to_le_bytes(), 1i64.to_le_bytes()].concat()),
        ],
    );
    let output = File::new("msda-none-out");
    for mode in [&[][..], &["--deterministic"][..]] {
        let paths = ["--input", input.text(), "--output", output.text()];
        let answer = fattn(&[&["msda"], &DEVICE[..], &paths[..], mode].concat());
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    }
}

/// A machine with a GPU has none for this process.
fn without_gpu(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fattn"));
    command.env("CUDA_VISIBLE_DEVICES", "").args(arguments).output().unwrap()
}

#[test]
fn a_command_that_falls_back_to_the_emulator_says_so_once() {
    let (input, output) = (File::qkv("fallback"), File::new("fallback-out"));
    let paths = ["run", "--input", input.text(), "--output", output.text()];
    let said = |arguments: &[&str]| String::from_utf8(without_gpu(arguments).stderr).unwrap();
    let text = said(&paths);
    assert!(text.starts_with("fattn: no GPU (") && text.lines().count() == 1, "{text}");
    assert!(text.contains("runs in the emulator, emulated:sm_80"), "{text}");
    assert_eq!(said(&[&paths[..], &DEVICE[..]].concat()), "");
}

#[test]
fn bench_without_a_gpu_points_to_the_plans_of_the_emulated_device() {
    let answer = without_gpu(&["bench"]);
    let text = String::from_utf8(answer.stderr).unwrap();
    assert!(
        text.starts_with(
            "fattn: bench times a GPU; with --device emulated:sm_90a --explain it prints the plans alone: \
             device cuda:0: not available: "
        ),
        "{text}"
    );
    assert_eq!(answer.status.code(), Some(2));
}
