//! `cargo xtask bundle`: everything that runs on a GPU, in one folder that needs neither Rust nor CUDA
//! but a driver.
//!
//! ```text
//! target/bundle/
//!   run.sh                    runs all of the below, prints a table, exits with 1 if anything failed
//!   fattn                     the command
//!   libfinite_attention.so    the C interface
//!   compare.py, comparison/   the comparison with other libraries
//!   mutants.tar.xz            broken kernels, and zoo, which runs one of them
//!   sanitizer.py              what compute-sanitizer finds of those
//!   tests.tar.xz              every test binary of the library and of the property tests
//! ```
//!
//! The test binaries hold the same kernels, which cannot be compressed further but can be stored
//! once: hence one archive with a window that is wider than a binary. A program of integration tests has many
//! files of them, which run one by one, each with a time of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace;

/// What to put together.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to make, emptied first; target/bundle by default.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Fail when the folder grows larger than this.
    #[arg(long, default_value_t = 40)]
    max_megabytes: u64,
}

/// Packages whose tests run on a GPU too.
const TESTED: [&str; 2] = ["finite-attention", TESTS];

/// The package of the property tests, and of the zoo.
const TESTS: &str = "finite-attention-tests";

/// Folders of the files of tests.
const TEST_FOLDERS: [&str; 2] = ["host/tests", "tests/tests"];

/// What a file of tests has that looks for the command, or the source, where cargo built it: it is left out.
const NEEDS_CARGO: [&str; 3] = ["CARGO_BIN_EXE", "CARGO_MANIFEST_DIR", "use command::"];

/// What runs on the other machine.
const RUN: &str = r#"#!/bin/sh
# Runs every test binary and `fattn check` on a device, prints a table, and exits with 1 if any failed.
#
#     run.sh [LOGS] [TEST...]     logs go to LOGS, or to logs/ here; without tests, all of them. A test is a
#                                 file of tests, as tests-test-properties:accuracy, or a program
#
# FATTN_DEVICE   where: the first GPU (cuda) by default
# FATTN_CASES    cases of every property test; FATTN_SEED their seed, or `random`
# CHECK_CASES    cases of `fattn check` (240)
# JOBS           commands at a time (4)
# TIME_LIMIT     seconds for one command (240)
# TOTAL_LIMIT    seconds for all of them (450): what is not done by then has failed
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

# One command of the table: run.sh --one LOGS NAME COMMAND...
if [ "${1:-}" = --one ]; then
    logs=$2
    name=$3
    shift 3
    start=$(date +%s)
    left=$((DEADLINE - start))
    [ "$left" -lt "$TIME_LIMIT" ] || left=$TIME_LIMIT
    if [ "$left" -gt 0 ]; then
        timeout "$left" "$@" >"$logs/$name.log" 2>&1
        code=$?
    else
        echo "no time left" >"$logs/$name.log"
        code=124
    fi
    seconds=$(($(date +%s) - start))
    summary=$(sed -n 's/^test result: //p' "$logs/$name.log" | tail -n 1)
    [ "$code" -ne 124 ] || summary="out of time"
    line=$(printf '%-48s %4s %5ss  %s' "$name" "$code" "$seconds" "$summary")
    if [ "$code" -ne 0 ]; then
        echo "$name" >>"$logs/failed"
        line=$(printf '%s\n' "$line"; tail -n 40 "$logs/$name.log" | sed 's/^/    /')
    fi
    printf '%s\n' "$line"
    exit 0
fi

logs=${1:-$here/logs}
mkdir -p "$logs" && logs=$(CDPATH= cd -- "$logs" && pwd) || exit 1
[ "$#" -eq 0 ] || shift
rm -f "$logs/failed"
cd "$here" || exit 1
rm -rf tests
tar -xJf tests.tar.xz || python3 -m tarfile -e tests.tar.xz . || exit 1
chmod +x tests/*
FATTN_DEVICE=${FATTN_DEVICE:-cuda}
TIME_LIMIT=${TIME_LIMIT:-240}
DEADLINE=$(($(date +%s) + ${TOTAL_LIMIT:-450}))
LEFT_OUT="@LEFT_OUT@"
export FATTN_DEVICE TIME_LIMIT DEADLINE

printf '%-48s %4s %6s\n' command exit time
"$here/run.sh" --one "$logs" devices ./fattn devices
{
    if [ "$#" -gt 0 ]; then
        printf '%s\n' "$@" | sed 's|^\([^:]*\):\(.*\)$|\1:\2 tests/\1 \2::|; t; s|.*|& tests/&|'
    else
        echo "check ./fattn check --device $FATTN_DEVICE --cases ${CHECK_CASES:-240}"
        for program in $(ls tests); do
            case $program in
            *-test-*)
                files=$("tests/$program" --list | sed -n 's/^\([a-z0-9_]*\)::.*: test$/\1/p' | sort -u)
                for file in $files; do
                    case " $LEFT_OUT " in
                    *" $file "*) ;;
                    *) echo "$program:$file tests/$program $file::" ;;
                    esac
                done
                ;;
            *) echo "$program tests/$program" ;;
            esac
        done
    fi
} | xargs -P "${JOBS:-4}" -L 1 "$here/run.sh" --one "$logs"
failed=$(cat "$logs/failed" 2>/dev/null | wc -l)
echo "$failed failed"
[ "$failed" -eq 0 ]
"#;

/// Builds and collects.
///
/// # Errors
/// When a build fails, a file is missing, or the folder is too large.
pub fn run(args: &Args) -> Result<()> {
    let output = args.output.clone().unwrap_or_else(|| workspace::target_dir().join("bundle"));
    let release = ["--release", "--message-format=json-render-diagnostics"];
    let built = cargo("build", &release, &["finite-attention", "finite-attention-c", TESTS])?;
    let tested = cargo("test", &[&release[..], &["--no-run"]].concat(), &TESTED)?;
    let program = |name: &str| find(&built, |artifact| artifact.executable && artifact.name == name);
    let (fattn, zoo) = (program("fattn")?, program("zoo")?);
    let library = find(&built, |artifact| artifact.path.ends_with("libfinite_attention.so"))?;

    if output.exists() {
        fs::remove_dir_all(&output).with_context(|| format!("cannot empty {}", output.display()))?;
    }
    fs::create_dir_all(output.join("tests"))?;
    collect(&fattn.path, &output.join("fattn"))?;
    collect(&library.path, &output.join("libfinite_attention.so"))?;
    for test in tested.iter().filter(|artifact| artifact.test) {
        collect(&test.path, &output.join("tests").join(&test.name))?;
    }
    pack(&output, "tests")?;
    println!("writing the zoo's kernels, with what the emulator makes of them");
    workspace::output(Command::new(&zoo.path).arg("write").arg(output.join("mutants")))?;
    collect(&zoo.path, &output.join("mutants").join("zoo"))?;
    pack(&output, "mutants")?;
    copy_comparison(&workspace::root().join("benchmarks"), &output)?;
    let script = output.join("run.sh");
    fs::write(&script, RUN.replace("@LEFT_OUT@", &left_out()?.join(" ")))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    report(&output, args.max_megabytes)
}

/// Files of tests that only run where cargo built them.
fn left_out() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in TEST_FOLDERS {
        let folder = workspace::root().join(folder);
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
        {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            if NEEDS_CARGO.iter().any(|needed| text.contains(needed)) {
                names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// A file that cargo made.
#[derive(Debug, PartialEq)]
struct Artifact {
    /// Package and target, or the target alone outside of tests.
    name: String,
    path: PathBuf,
    executable: bool,
    test: bool,
}

/// Runs cargo on some packages and returns what it made.
fn cargo(command: &str, options: &[&str], packages: &[&str]) -> Result<Vec<Artifact>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace::root()).arg(command).args(options);
    for package in packages {
        cargo.args(["--package", package]);
    }
    let (messages, _) = workspace::output(&mut cargo)?;
    Ok(messages.lines().flat_map(artifacts).collect())
}

/// The files that one message of cargo names.
fn artifacts(message: &str) -> Vec<Artifact> {
    let Ok(message) = serde_json::from_str::<Value>(message) else { return Vec::new() };
    if message["reason"] != "compiler-artifact" {
        return Vec::new();
    }
    let test = message["profile"]["test"] == true;
    let executable = message["executable"].as_str();
    let target = message["target"]["name"].as_str().unwrap_or_default();
    let package = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
    let folder = package.and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    let name = if test { format!("{folder}-{kind}-{target}") } else { target.to_owned() };
    let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let paths: Vec<&str> = match executable {
        Some(path) => vec![path],
        None => files.collect(),
    };
    let artifact = |path| Artifact {
        name: name.clone(),
        path: PathBuf::from(path),
        executable: executable.is_some(),
        test: test && executable.is_some(),
    };
    paths.into_iter().map(artifact).collect()
}

fn find(artifacts: &[Artifact], is_it: impl Fn(&Artifact) -> bool) -> Result<&Artifact> {
    artifacts
        .iter()
        .find(|artifact| is_it(artifact))
        .context("cargo did not build what the bundle needs")
}

/// Copies a program or library without its symbols, if `strip` is at hand.
fn collect(from: &Path, to: &Path) -> Result<()> {
    ensure!(!to.exists(), "two files want to be {}", to.display());
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    match workspace::on_path("strip") {
        Some(strip) => workspace::output(Command::new(strip).arg("--strip-all").arg(to)).map(|_| ()),
        None => Ok(()),
    }
}

/// Puts a folder into one archive.
fn pack(output: &Path, folder: &str) -> Result<()> {
    let mut tar = Command::new("tar");
    // -9 for its window of 64 MiB, which sees the kernels of the files before.
    tar.env("XZ_OPT", "-9 -T1").current_dir(output).args(["-cJf", &format!("{folder}.tar.xz"), folder]);
    workspace::output(&mut tar)?;
    Ok(fs::remove_dir_all(output.join(folder))?)
}

/// Copies compare.py with its parts, and sanitizer.py.
fn copy_comparison(from: &Path, to: &Path) -> Result<()> {
    for script in ["compare.py", "sanitizer.py"] {
        fs::copy(from.join(script), to.join(script)).with_context(|| format!("cannot copy {script}"))?;
    }
    fs::create_dir_all(to.join("comparison"))?;
    for entry in fs::read_dir(from.join("comparison")).context("cannot read comparison/")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let name = path.file_name().context("a file has a name")?;
            fs::copy(&path, to.join("comparison").join(name))?;
        }
    }
    Ok(())
}

/// Prints the size of every file, and fails if they are too large together.
fn report(output: &Path, max_megabytes: u64) -> Result<()> {
    let mut total = 0;
    for folder in [output.to_path_buf(), output.join("comparison")] {
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.path()))
            .filter(|path: &Result<PathBuf>| path.as_ref().map_or(true, |path| path.is_file()))
            .collect::<Result<_>>()?;
        files.sort();
        for file in files {
            let bytes = file.metadata()?.len();
            total += bytes;
            println!("{:>8} KB  {}", bytes / 1000, file.strip_prefix(output)?.display());
        }
    }
    println!("{:>8} KB  in {}", total / 1000, output.display());
    if total > max_megabytes * 1_000_000 {
        bail!("the bundle is larger than {max_megabytes} MB");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They failed on a machine without cargo, one after the other, as files were added.
    #[test]
    fn tests_of_the_command_are_left_out() {
        let names = left_out().unwrap();
        for name in
            ["c_header", "cli", "cli_console", "cli_scores", "sanitize", "sanitize_clusters", "trace"]
        {
            assert!(names.iter().any(|found| found == name), "{name} of {names:?}");
        }
        for name in ["forward", "agreement", "check", "range"] {
            assert!(names.iter().all(|found| found != name), "{name}");
        }
    }

    #[test]
    fn a_test_binary_is_named_after_its_package_and_target() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/host/Cargo.toml",
            "target":{"kind":["test"],"name":"no_device"},"profile":{"test":true},
            "filenames":["/t/no_device-1"],"executable":"/t/no_device-1"}"#;
        let expected = Artifact {
            name: "host-test-no_device".to_owned(),
            path: "/t/no_device-1".into(),
            executable: true,
            test: true,
        };
        assert_eq!(artifacts(message), [expected]);
    }

    #[test]
    fn a_library_is_all_of_its_files() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/host/Cargo.toml",
            "target":{"kind":["lib","cdylib"],"name":"finite_attention"},"profile":{"test":false},
            "filenames":["/t/libfinite_attention.rlib","/t/libfinite_attention.so"],"executable":null}"#;
        let found = artifacts(message);
        assert_eq!(found.len(), 2);
        let library = find(&found, |artifact| artifact.path.ends_with("libfinite_attention.so"));
        assert!(!library.expect("it is there").executable);
    }

    #[test]
    fn other_messages_name_nothing() {
        assert_eq!(artifacts("not json"), []);
        assert_eq!(artifacts(r#"{"reason":"build-finished","success":true}"#), []);
    }
}
