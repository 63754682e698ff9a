//! Stage 6: what NVIDIA's assembler makes of the kernels. Optional: it is not free software and not
//! everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::workspace::{on_path, output, run_shown, target_dir};

/// The wheel that `--install` installs. Register counts are pinned for this version.
const WHEEL: &str = "nvidia-cuda-nvcc==13.0.88";

/// What `ptxas -v` says about one kernel on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes stored and loaded because the registers did not suffice.
    pub spill_bytes: u32,
    /// Bytes of local memory per thread.
    pub stack_bytes: u32,
    /// Hardware barriers.
    pub barriers: u32,
    /// Warnings, by number: "wgmma serialized" is one.
    pub warnings: u32,
}

impl Resources {
    /// The figures by name, each better when smaller.
    pub fn figures(&self) -> [(&'static str, u32); 5] {
        [
            ("registers", self.registers),
            ("spill_bytes", self.spill_bytes),
            ("stack_bytes", self.stack_bytes),
            ("barriers", self.barriers),
            ("warnings", self.warnings),
        ]
    }
}

/// An assembler and its version, such as `13.0`.
#[derive(Clone, Debug)]
pub struct Ptxas {
    path: PathBuf,
    /// Major and minor version.
    pub version: String,
}

/// The command that installs the assembler.
pub fn install_command() -> String {
    let venv = target_dir().join("nv-tools");
    format!("python3 -m venv {0} && {0}/bin/pip install {WHEEL}", venv.display())
}

/// Installs the assembler into a virtual environment in the target folder, printing the commands.
///
/// # Errors
/// When Python has no `venv`, or the registry cannot be reached.
pub fn install() -> Result<()> {
    let venv = target_dir().join("nv-tools");
    run_shown(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    run_shown(Command::new(venv.join("bin/pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        WHEEL,
    ]))
}

/// Finds the assembler: `$PTXAS`, `PATH`, `$FATTN_NV_TOOLS`, the folder that `--install` fills, the
/// wheels of the Python at hand, and a CUDA toolkit in its usual place.
///
/// # Errors
/// When the one found does not run.
pub fn find() -> Result<Option<Ptxas>> {
    let Some(path) = candidates().into_iter().find(|path| path.is_file()) else { return Ok(None) };
    let (text, _) = output(Command::new(&path).arg("--version"))?;
    let release = text.split_once("release ").and_then(|(_, rest)| rest.split_once(','));
    let version = release.map(|(version, _)| version.to_owned());
    let version = version.ok_or_else(|| anyhow!("`{} --version` names no release", path.display()))?;
    Ok(Some(Ptxas { path, version }))
}

fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::env::var_os("PTXAS").map(PathBuf::from).into_iter().collect();
    found.extend(on_path("ptxas"));
    let tools = std::env::var_os("FATTN_NV_TOOLS").map(PathBuf::from);
    for dir in tools.into_iter().chain([target_dir().join("nv-tools")]) {
        found.push(dir.join("bin/ptxas"));
        for python in folders(&dir.join("lib")) {
            found.extend(wheel_tools(&python.join("site-packages")));
        }
    }
    let sites = "import site; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))";
    if let Ok((text, _)) = output(Command::new("python3").args(["-c", sites])) {
        text.lines().for_each(|site| found.extend(wheel_tools(Path::new(site))));
    }
    found.push(PathBuf::from("/usr/local/cuda/bin/ptxas"));
    found
}

/// Where NVIDIA's wheels put the assembler: `nvidia/cu13/bin` or `nvidia/cuda_nvcc/bin`.
fn wheel_tools(site_packages: &Path) -> Vec<PathBuf> {
    folders(&site_packages.join("nvidia")).into_iter().map(|dir| dir.join("bin/ptxas")).collect()
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

impl Ptxas {
    /// Assembles a PTX file for a device and reads the figures.
    ///
    /// # Errors
    /// When ptxas refuses the file, or its answer cannot be read.
    pub fn assemble(&self, ptx: &Path, device: &str) -> Result<Resources> {
        let mut command = Command::new(&self.path);
        command.arg("-v").arg(format!("-arch={device}")).arg(ptx);
        command.arg("-o").arg(ptx.with_extension(format!("{device}.cubin")));
        let (stdout, stderr) = output(&mut command)?;
        let text = stdout + &stderr;
        let resources = read(&text);
        resources
            .with_context(|| format!("cannot read what ptxas says about {}:\n{text}", ptx.display()))
    }
}

/// Reads the answer of `ptxas -v` about one kernel.
fn read(text: &str) -> Option<Resources> {
    let before = |unit: &str| {
        let (head, _) = text.split_once(unit)?;
        head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
    };
    let warnings = text.lines().filter(|line| line.contains("warning") || line.contains("(C75"));
    Some(Resources {
        registers: before(" registers")?,
        spill_bytes: before(" bytes spill stores")? + before(" bytes spill loads")?,
        stack_bytes: before(" bytes stack frame")?,
        barriers: before(" barriers").unwrap_or(0),
        warnings: u32::try_from(warnings.count()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_ptxas_is_read() {
        let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size, 368 bytes cmem[0]
ptxas info    : Compile time = 9.695 ms
";
        let want =
            Resources { registers: 128, spill_bytes: 12, stack_bytes: 16, barriers: 1, warnings: 0 };
        assert_eq!(read(text), Some(want));
    }

    #[test]
    fn warnings_are_counted_and_nonsense_is_refused() {
        let text = "ptxas warning : x\nptxas info : (C7510) Potential Performance Loss: wgmma serialized\n\
                    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 8 registers\n";
        assert_eq!(read(text).unwrap().warnings, 2);
        assert_eq!(read("hello"), None);
    }
}
