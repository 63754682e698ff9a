//! `examples/c`, as a C compiler builds them, on the emulator.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library of this build: cargo puts it beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.with_file_name("libfinite_attention.so")
}

/// Runs a target of the Makefile with such variables; returns what it prints. None where there is no compiler.
fn make(name: &str, arguments: &[String]) -> Option<String> {
    for program in ["make", "cc"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("not tested: there is no `{program}`");
            return None;
        }
    }
    let build = std::env::temp_dir().join(format!("fattn-{}-c-{name}", std::process::id()));
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c");
    let made = Command::new("make")
        .current_dir(examples)
        .args([format!("BUILD={}", build.display()), format!("LIBRARY={}", library().display())])
        .args(arguments)
        .output()
        .expect("make starts");
    std::fs::remove_dir_all(&build).ok();
    let said = [made.stdout, made.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(made.status.success(), "{}\n{}", said[0], said[1]);
    let [printed, _] = said;
    Some(printed)
}

#[test]
fn the_examples_run_on_the_emulator() {
    let Some(printed) = make("plain", &["run".to_owned()]) else { return };
    assert!(printed.contains(&format!("finite-attention {}\n", env!("CARGO_PKG_VERSION"))), "{printed}");
    assert!(printed.contains("3 steps taken, scale 32768\n"), "{printed}");
}

#[test]
fn the_examples_run_with_kernels_for_hopper_under_sanitizers() {
    let arguments = ["run", "DEVICE=emulated:sm_90a", "SANITIZE=address,undefined"].map(str::to_owned);
    let Some(printed) = make("sanitized", &arguments) else { return };
    assert!(printed.contains("3 steps taken, scale 32768\n"), "{printed}");
}

/// What programs are linked with is found by the name in it.
#[test]
fn an_installed_library_has_its_header_and_both_names() {
    let prefix = std::env::temp_dir().join(format!("fattn-{}-c-prefix", std::process::id()));
    let arguments = ["install".to_owned(), format!("PREFIX={}", prefix.display())];
    if make("installed", &arguments).is_none() {
        return;
    }
    let text =
        std::fs::read_to_string(prefix.join("lib/pkgconfig/finite_attention.pc")).expect("is there");
    assert!(text.contains(&format!("Version: {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(prefix.join("include/finite_attention.h").is_file());
    let [short, named] = ["libfinite_attention.so", "libfinite_attention.so.0"]
        .map(|name| std::fs::canonicalize(prefix.join("lib").join(name)).expect("is there"));
    assert_eq!(short, named);
    let library = std::fs::read(&named).expect("is there");
    let name = b"\0libfinite_attention.so.0\0";
    assert!(library.windows(name.len()).any(|bytes| bytes == name), "it has no SONAME");
    std::fs::remove_dir_all(&prefix).expect("was made above");
}
