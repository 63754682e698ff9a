//! Stage 1: Rust to LLVM IR, nothing optimised yet.
//!
//! `core` is not linked: the kernels take from it only what is generic or `#[inline]`, and that is
//! compiled into their own IR. So its metadata with the bodies of all functions (`-Zalways-encode-mir`)
//! is enough; it is made once per compiler and kept in the target folder. Whatever a kernel calls that
//! is *not* inline stays an external function, which the lint refuses: it is a panic or something as
//! unwelcome.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::compiler::Compiler;
use crate::workspace::{output, target_dir};

/// What every crate in the GPU build is compiled with.
///
/// - `-Zmir-enable-passes=-JumpThreading`: the pass copies blocks, and with them barriers.
/// - `-Cdebuginfo=line-directives-only`: `.loc` lines for the emulator and the profilers, no debug
///   sections.
/// - `-Aunsafe_op_in_unsafe_fn`: as in `kernels-gpu/Cargo.toml`, which rustc does not read.
const FLAGS: [&str; 8] = [
    "--edition=2024",
    "--target=nvptx64-nvidia-cuda",
    "-Copt-level=3",
    "-Cpanic=abort",
    "-Ccodegen-units=1",
    "-Cdebuginfo=line-directives-only",
    "-Zmir-enable-passes=-JumpThreading",
    "-Aunsafe_op_in_unsafe_fn",
];

/// rustc asks every program for this crate; kernels need nothing of it.
const COMPILER_BUILTINS: &str =
    "#![feature(compiler_builtins)]\n#![allow(internal_features)]\n#![compiler_builtins]\n#![no_std]\n";

/// The crate to compile.
pub struct Source<'a> {
    /// Path prefix that is removed from every file name in the output; the compiler runs there.
    pub root: &'a Path,
    /// `lib.rs`, relative to `root`.
    pub lib: &'a str,
    /// Name of the crate.
    pub name: &'a str,
}

/// Compiles a `no_std` crate for one PTX target (such as `sm_80`) and returns its LLVM IR as text.
///
/// `dir` receives `<name>.ll` and what rustc writes on the way.
///
/// # Errors
/// When the crate does not compile.
pub fn llvm_ir(compiler: &Compiler, source: &Source, cpu: &str, dir: &Path) -> Result<String> {
    let sysroot = core_metadata(compiler)?;
    // rustc sees its own folder with links resolved, and so must the prefix be.
    let root = source.root.canonicalize()?;
    let mut command = rustc(compiler, cpu);
    command.current_dir(&root);
    command.args(["--crate-type=lib", "--crate-name", source.name, source.lib]);
    command.args(["-Cno-prepopulate-passes", "-Cembed-bitcode=no"]);
    command.arg(format!("--remap-path-prefix={}=", root.display()));
    command.arg("--emit=llvm-ir").arg("--out-dir").arg(dir);
    for name in ["core", "compiler_builtins"] {
        command.arg(format!("--extern={name}={}", sysroot.join(format!("lib{name}.rmeta")).display()));
    }
    let (_, warnings) = output(&mut command)?;
    eprint!("{warnings}");
    let ir = dir.join(format!("{}.ll", source.name));
    fs::read_to_string(&ir).with_context(|| format!("rustc wrote no {}", ir.display()))
}

fn rustc(compiler: &Compiler, cpu: &str) -> Command {
    let mut command = Command::new(&compiler.rustc);
    command.env("RUSTC_BOOTSTRAP", "1").args(FLAGS).arg(format!("-Ctarget-cpu={cpu}"));
    command.arg(format!("--remap-path-prefix={}=library", compiler.library.display()));
    command
}

/// Compiling `core` once is enough when several threads ask for it.
static CORE: Mutex<()> = Mutex::new(());

/// The PTX target that `core` is compiled for. Kernels of all targets use it: of a function's body, metadata
/// holds what comes before code for any of them, and nothing in what they take from `core` asks for one.
const CORE_CPU: &str = "sm_80";

/// The folder that holds the metadata of `core` for this compiler; made when it is not there.
fn core_metadata(compiler: &Compiler) -> Result<PathBuf> {
    let mut key = Sha256::new();
    for part in
        [compiler.version.as_str(), &compiler.library.to_string_lossy(), CORE_CPU, COMPILER_BUILTINS]
    {
        key.update(part);
        key.update([0]);
    }
    FLAGS.iter().for_each(|flag| key.update(flag));
    let name = super::hex(&key.finalize()[..8]);
    let dir = target_dir().join("kernels").join(format!("core-{name}"));
    let _one_at_a_time = CORE.lock();
    if dir.is_dir() {
        return Ok(dir);
    }
    eprintln!("compiling core (once per compiler, half a minute)");
    let building = dir.with_extension(std::process::id().to_string());
    fs::create_dir_all(&building)?;
    let emit =
        ["--crate-type=rlib", "--emit=metadata", "-Zforce-unstable-if-unmarked", "--cap-lints=allow"];
    let core = compiler.library.join("core/src/lib.rs");
    let mut command = rustc(compiler, CORE_CPU);
    command
        .args(emit)
        .args(["-Zalways-encode-mir", "--crate-name=core", "--out-dir"])
        .arg(&building)
        .arg(core);
    output(&mut command)?;

    let stub = building.join("compiler_builtins.rs");
    fs::write(&stub, COMPILER_BUILTINS)?;
    let mut command = rustc(compiler, CORE_CPU);
    command.args(emit).args(["--crate-name=compiler_builtins", "--out-dir"]).arg(&building).arg(&stub);
    command.arg(format!("--extern=core={}", building.join("libcore.rmeta").display()));
    output(&mut command)?;
    if fs::rename(&building, &dir).is_err() {
        // Another process was quicker.
        fs::remove_dir_all(&building)?;
    }
    Ok(dir)
}
