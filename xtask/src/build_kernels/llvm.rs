//! Stage 3: one kernel entry from LLVM IR to PTX text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::compiler::Compiler;
use crate::workspace::output;

/// PTX ISA 8.0: drivers from 525 on read it. sm_80 would do with 7.0.
const PTX_VERSION: &str = "ptx80";

/// PTX ISA 8.1, drivers from 530 on: what kernels need that add vectors to global memory.
const PTX_VERSION_OF_VECTOR_SUMS: &str = "ptx81";

/// Everything but the entry goes, then the usual passes.
const PASSES: &str = "-passes=internalize,globaldce,default<O3>";

/// Loops over register arrays must unroll fully, however long the body: what stays a loop indexes an
/// array in local memory, ten times slower.
const UNROLL: &str = "-unroll-threshold=100000";

/// Writes IR text as `<name>.bc`: LLVM reads that three times as fast, and each part starts from all of
/// it.
///
/// # Errors
/// When the IR is not valid.
pub fn bitcode(compiler: &Compiler, ir: &str, name: &str, dir: &Path) -> Result<PathBuf> {
    let text = dir.join(format!("{name}.ll"));
    let path = dir.join(format!("{name}.bc"));
    fs::write(&text, ir)?;
    output(Command::new(&compiler.opt).arg("-passes=verify").arg(text).arg("-o").arg(&path))?;
    Ok(path)
}

/// Takes some entries, and all that they use, out of the IR of all, as `<name>.bc`.
///
/// # Errors
/// When `opt` fails.
pub fn part(
    compiler: &Compiler,
    ir: &Path,
    entries: &[&str],
    name: &str,
    dir: &Path,
) -> Result<PathBuf> {
    let path = dir.join(format!("{name}.bc"));
    let mut opt = Command::new(&compiler.opt);
    opt.arg("-passes=internalize,globaldce");
    opt.arg(format!("-internalize-public-api-list={}", entries.join(",")));
    output(opt.arg(ir).arg("-o").arg(&path))?;
    Ok(path)
}

/// Compiles one entry. `dir` receives `<entry>.ll` (optimised) and `<entry>.raw.ptx`.
///
/// # Errors
/// When the IR does not define the entry, or `opt` or `llc` fail.
pub fn ptx(
    compiler: &Compiler,
    ir: &Path,
    entry: &str,
    cpu: &str,
    adds_vectors: bool,
    dir: &Path,
) -> Result<String> {
    let optimised = dir.join(format!("{entry}.ll"));
    let raw = dir.join(format!("{entry}.raw.ptx"));
    let mut opt = Command::new(&compiler.opt);
    opt.args([PASSES, UNROLL, "-S"]);
    opt.arg(format!("-mcpu={cpu}")).arg(format!("-internalize-public-api-list={entry}"));
    opt.arg(ir).arg("-o").arg(&optimised);
    output(&mut opt)?;
    let version = if adds_vectors { PTX_VERSION_OF_VECTOR_SUMS } else { PTX_VERSION };
    let mut llc = Command::new(&compiler.llc);
    llc.arg("-O3").arg(format!("-mcpu={cpu}")).arg(format!("-mattr=+{version}"));
    llc.arg(&optimised).arg("-o").arg(&raw);
    output(&mut llc)?;
    fs::read_to_string(&raw).with_context(|| format!("llc wrote no {}", raw.display()))
}

/// The names of the kernel entries that the IR defines.
///
/// # Errors
/// When a line cannot be read.
pub fn entries(ir: &str) -> Result<Vec<String>> {
    let defined = ir.lines().filter(|line| line.starts_with("define ") && line.contains(" ptx_kernel "));
    defined
        .map(|line| {
            let name = line.split_once('@').and_then(|(_, rest)| rest.split_once('('));
            name.map(|(name, _)| name.to_owned())
                .ok_or_else(|| anyhow!("cannot read the entry's name:\n{line}"))
        })
        .collect()
}
