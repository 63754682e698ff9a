//! Which compiler turns the kernels into PTX: found in a fixed order, its version checked, and installed
//! on request.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::workspace::{on_path, output, run_shown};

/// The Rust release whose NVPTX backend the kernels are compiled with. Others produce other PTX.
pub const RUST_RELEASE: &str = "1.96.0";
/// The LLVM major version of that release: `opt` and `llc` must read what it wrote.
pub const LLVM_MAJOR: &str = "22";

const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "rust-web-src", "llvm-22"];

/// A compiler for the kernels, complete: `rustc`, the source of `core`, `opt` and `llc`.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The compiler itself, never a rustup proxy.
    pub rustc: PathBuf,
    /// First line of `rustc --version`.
    pub version: String,
    /// LLVM's version, as `opt` says it.
    pub llvm: String,
    /// The `library` folder of the Rust source tree of the same release.
    pub library: PathBuf,
    /// LLVM's optimiser.
    pub opt: PathBuf,
    /// LLVM's code generator.
    pub llc: PathBuf,
}

/// Finds the compiler: `$KERNEL_RUSTC`, then rustup's toolchain, then Debian's packages.
///
/// # Errors
/// When none is complete: the error says what each candidate lacks and which commands install one.
pub fn find() -> Result<Compiler> {
    if let Some(path) = std::env::var_os("KERNEL_RUSTC") {
        return complete(Path::new(&path))
            .context("$KERNEL_RUSTC is set but cannot compile the kernels");
    }
    let mut tried = Vec::new();
    for (place, rustc) in [("rustup", rustup_rustc()), ("Debian", Some(PathBuf::from("/usr/bin/rustc")))]
    {
        let Some(rustc) = rustc else {
            tried.push(format!("{place}: no toolchain {RUST_RELEASE}"));
            continue;
        };
        match complete(&rustc) {
            Ok(compiler) => return Ok(compiler),
            Err(error) => tried.push(format!("{place}: {error:#}")),
        }
    }
    bail!(
        "no compiler for the kernels\n  {}\ninstall one with either\n  {}\n  {}\nor let `--install` do it",
        tried.join("\n  "),
        rustup_command().join(" "),
        apt_command().join(" ")
    )
}

/// Installs the compiler, printing the commands.
///
/// # Errors
/// When there is neither apt-get nor rustup, or the commands fail.
pub fn install() -> Result<()> {
    let commands = if on_path("apt-get").is_some() {
        let update = [sudo(), vec!["apt-get".into(), "update".into()]].concat();
        vec![update, apt_command()]
    } else if on_path("rustup").is_some() {
        vec![rustup_command()]
    } else {
        bail!(
            "neither apt-get nor rustup is at hand: \
             install Rust {RUST_RELEASE}, its source and LLVM {LLVM_MAJOR}"
        );
    };
    for words in commands {
        run_shown(Command::new(&words[0]).args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    Ok(())
}

fn sudo() -> Vec<String> {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|(id, _)| id.trim() == "0");
    if is_root { vec![] } else { vec!["sudo".into()] }
}

fn apt_command() -> Vec<String> {
    let mut words = sudo();
    words.extend(["apt-get", "install", "-y", "--no-install-recommends"].map(String::from));
    words.extend(DEBIAN_PACKAGES.map(String::from));
    words
}

fn rustup_command() -> Vec<String> {
    let line = format!("rustup toolchain install {RUST_RELEASE} --component rust-src,llvm-tools");
    line.split(' ').map(String::from).collect()
}

/// rustup's own compiler of the wanted release, without letting rustup install anything.
fn rustup_rustc() -> Option<PathBuf> {
    let (list, _) = output(Command::new("rustup").args(["toolchain", "list"])).ok()?;
    let wanted = format!("{RUST_RELEASE}-");
    let toolchain = list.lines().find(|line| line.starts_with(&wanted))?.split_whitespace().next()?;
    let (path, _) =
        output(Command::new("rustup").args(["which", "--toolchain", toolchain, "rustc"])).ok()?;
    Some(PathBuf::from(path.trim()))
}

/// Checks versions and finds everything that belongs to this `rustc`.
fn complete(rustc: &Path) -> Result<Compiler> {
    let (verbose, _) = output(Command::new(rustc).arg("-vV"))?;
    let field = |name: &str| {
        let value = verbose.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.ok_or_else(|| anyhow!("`{} -vV` has no line `{name}`", rustc.display()))
    };
    if field("release")? != RUST_RELEASE {
        bail!("{} is {}, wanted {RUST_RELEASE}", rustc.display(), field("release")?);
    }
    let (sysroot, _) = output(Command::new(rustc).args(["--print", "sysroot"]))?;
    let rustlib = Path::new(sysroot.trim()).join("lib/rustlib");
    let library = rustlib.join("src/rust/library");
    if !library.join("core/src/lib.rs").is_file() {
        bail!("{} has no source of core under {}", rustc.display(), library.display());
    }
    let library = library.canonicalize()?;
    let tools = rustlib.join(field("host")?).join("bin");
    let (opt, llvm) = llvm_tool("opt", &tools)?;
    let (llc, _) = llvm_tool("llc", &tools)?;
    let version = verbose.lines().next().unwrap_or_default().to_owned();
    Ok(Compiler { rustc: rustc.to_path_buf(), version, llvm, library, opt, llc })
}

/// An LLVM tool of the right major version, with the version: beside rustc, then as Debian installs it.
fn llvm_tool(name: &str, beside_rustc: &Path) -> Result<(PathBuf, String)> {
    let versioned = format!("{name}-{LLVM_MAJOR}");
    let candidates = [
        Some(beside_rustc.join(name)),
        on_path(&versioned),
        Some(PathBuf::from(format!("/usr/lib/llvm-{LLVM_MAJOR}/bin/{name}"))),
        on_path(name),
    ];
    for path in candidates.into_iter().flatten().filter(|path| path.is_file()) {
        let (text, _) = output(Command::new(&path).arg("--version"))?;
        let version =
            text.lines().find_map(|line| line.split_once("LLVM version ")).map(|(_, v)| v.trim());
        if let Some(version) = version.filter(|v| v.starts_with(&format!("{LLVM_MAJOR}."))) {
            return Ok((path, version.to_owned()));
        }
    }
    bail!("no `{name}` of LLVM {LLVM_MAJOR}")
}
