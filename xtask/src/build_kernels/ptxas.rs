//! Stage 6: what NVIDIA's assembler makes of the kernels. Optional: it is not free software and not
//! everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use object::{Object as _, ObjectSection as _};
use serde::{Deserialize, Serialize};

use crate::workspace::{on_path, output, run_shown, target_dir};

/// The wheel that `--install` installs.
const WHEEL: &str = "nvidia-cuda-nvcc==13.0.88";

/// Its full version. Register counts are pinned for it, and kernels that ship assembled are assembled by it.
pub const PINNED: &str = "13.0.88";

/// Bytes of a machine instruction, of compute capability 7.0 and newer.
const INSTRUCTION_BYTES: u64 = 16;

/// What `ptxas -v` says about one kernel on one device, and how large the kernel is.
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
    /// Machine instructions, those that fill its end up to whole cache lines included.
    pub instructions: u32,
}

impl Resources {
    /// The figures by name, each better when smaller.
    pub fn figures(&self) -> [(&'static str, u32); 6] {
        [
            ("registers", self.registers),
            ("spill_bytes", self.spill_bytes),
            ("stack_bytes", self.stack_bytes),
            ("barriers", self.barriers),
            ("warnings", self.warnings),
            ("instructions", self.instructions),
        ]
    }
}

/// An assembler and its version, such as `13.0`.
#[derive(Clone, Debug)]
pub struct Ptxas {
    path: PathBuf,
    /// Major and minor version.
    pub version: String,
    /// All of its version, such as `13.0.88`.
    pub full_version: String,
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

/// Finds the assembler: `$PTXAS`, or the first of the pinned version, or else the first, on `PATH`, in
/// `$FATTN_NV_TOOLS`, the folder that `--install` fills, the wheels of the Python at hand, and a CUDA
/// toolkit in its usual place.
///
/// # Errors
/// When none is of the pinned version, and the first does not run.
pub fn find() -> Result<Option<Ptxas>> {
    let mut found = candidates().into_iter().filter(|path| path.is_file()).map(described);
    if is_chosen() { found.next().transpose() } else { preferred(found) }
}

/// Whether `$PTXAS` says which one it is to be.
pub fn is_chosen() -> bool {
    std::env::var_os("PTXAS").is_some_and(|path| Path::new(&path).is_file())
}

/// The first of the pinned version, or else the first. Those behind it need not run.
fn preferred(found: impl Iterator<Item = Result<Ptxas>>) -> Result<Option<Ptxas>> {
    let mut first = None;
    for one in found {
        if one.as_ref().is_ok_and(Ptxas::is_pinned) {
            return one.map(Some);
        }
        first = first.or(Some(one));
    }
    first.transpose()
}

/// Why the pinned assembler is not there.
pub fn missing(found: Option<&Ptxas>) -> String {
    match found {
        None => format!("there is no ptxas {PINNED}"),
        Some(ptxas) => format!("{} is {}, not {PINNED}", ptxas.path.display(), ptxas.full_version),
    }
}

fn described(path: PathBuf) -> Result<Ptxas> {
    let (text, _) = output(Command::new(&path).arg("--version"))?;
    let release = text.split_once("release ").and_then(|(_, rest)| rest.split_once(','));
    let version = release.map(|(version, _)| version.to_owned());
    let version = version.ok_or_else(|| anyhow!("`{} --version` names no release", path.display()))?;
    let full = text.split_once(&format!("release {version}, V")).map_or("", |(_, rest)| rest);
    let full_version = full.split_whitespace().next().unwrap_or_default().to_owned();
    Ok(Ptxas { path, version, full_version })
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
    /// Whether it is the version that kernels ship assembled by.
    pub fn is_pinned(&self) -> bool {
        self.full_version == PINNED
    }

    /// Assembles a PTX file, which holds this kernel alone, for a device: the figures, and the assembled
    /// kernel, which depends on the text and the device alone.
    ///
    /// # Errors
    /// When ptxas refuses the file, or its answer or what it wrote cannot be read.
    pub fn assemble(&self, ptx: &Path, kernel: &str, device: &str) -> Result<(Resources, Vec<u8>)> {
        let mut command = Command::new(&self.path);
        command.arg("-v").arg(format!("-arch={device}")).arg(ptx);
        let cubin = ptx.with_extension(format!("{device}.cubin"));
        command.arg("-o").arg(&cubin);
        let (stdout, stderr) = output(&mut command)?;
        let text = stdout + &stderr;
        let assembled = || -> Result<_> {
            let bytes = fs::read(&cubin)?;
            Ok((instructions(&bytes, kernel)?, bytes))
        };
        let (instructions, bytes) =
            assembled().with_context(|| format!("cannot read {}", cubin.display()))?;
        let resources = read(&text, instructions)
            .with_context(|| format!("cannot read what ptxas says about {}:\n{text}", ptx.display()))?;
        Ok((resources, bytes))
    }
}

/// The machine instructions of a kernel in an assembled file: those of its section of code.
///
/// # Errors
/// When it is no object file, or has no code of the kernel.
fn instructions(cubin: &[u8], kernel: &str) -> Result<u32> {
    let file = object::File::parse(cubin)?;
    let name = format!(".text.{kernel}");
    let section = file.section_by_name(&name).ok_or_else(|| anyhow!("no section {name}"))?;
    Ok(u32::try_from(section.size() / INSTRUCTION_BYTES)?)
}

/// Reads the answer of `ptxas -v` about one kernel of so many instructions.
fn read(text: &str, instructions: u32) -> Option<Resources> {
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
        instructions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_assembler_is_preferred_to_others_that_come_before_it() {
        let of = |full: &str| Ptxas {
            path: PathBuf::from(full),
            version: "13.0".into(),
            full_version: full.into(),
        };
        let found = |versions: &[&str]| {
            let all = versions.iter().map(|&full| match full {
                "broken" => Err(anyhow!("it does not run")),
                _ => Ok(of(full)),
            });
            preferred(all).map(|one| one.map(|one| one.full_version))
        };
        assert_eq!(found(&["13.0.1", "broken", PINNED, "14.0.1"]).unwrap().as_deref(), Some(PINNED));
        assert_eq!(found(&["13.0.1", "14.0.1", "broken"]).unwrap().as_deref(), Some("13.0.1"));
        assert_eq!(found(&["broken", PINNED]).unwrap().as_deref(), Some(PINNED));
        assert!(found(&["broken", "13.0.1"]).is_err());
        assert_eq!(found(&[]).unwrap(), None);
        assert_eq!(missing(Some(&of("13.0.1"))), format!("13.0.1 is 13.0.1, not {PINNED}"));
        assert_eq!(missing(None), format!("there is no ptxas {PINNED}"));
    }

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
        let want = Resources {
            registers: 128,
            spill_bytes: 12,
            stack_bytes: 16,
            barriers: 1,
            warnings: 0,
            instructions: 40,
        };
        assert_eq!(read(text, 40), Some(want));
    }

    /// A little-endian object file of 64 bits with a section of code, of so many bytes, and one of names.
    fn object_file(code: &str, bytes: u64) -> Vec<u8> {
        let names = format!("\0{code}\0.shstrtab\0");
        let (at_names, at_code) = (64, 64 + names.len() as u64);
        let at_sections = at_code + bytes;
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xbe\0\x01\0\0\0".to_vec();
        file.extend(words(&[0, 0, at_sections]));
        // No flags; headers of 64 bytes, no segments; three sections of 64, the last of which has the names.
        file.extend([0u16, 0, 64, 0, 0, 64, 3, 2].iter().flat_map(|half| half.to_le_bytes()));
        file.extend(names.bytes());
        file.resize(at_sections as usize, 0);
        let mut section = |name: u64, kind: u64, at: u64, size: u64| {
            file.extend(words(&[kind << 32 | name, 0, 0, at, size, 0, 1, 0]));
        };
        section(0, 0, 0, 0);
        section(1, 1, at_code, bytes);
        section(2 + code.len() as u64, 3, at_names, names.len() as u64);
        file
    }

    #[test]
    fn the_instructions_are_those_of_the_kernels_section() {
        let file = object_file(".text.kernel", 640);
        assert_eq!(instructions(&file, "kernel").unwrap(), 40);
        assert_eq!(instructions(&file, "other").unwrap_err().to_string(), "no section .text.other");
        assert!(instructions(&file[..100], "kernel").is_err() && instructions(b"", "kernel").is_err());
    }

    #[test]
    fn warnings_are_counted_and_nonsense_is_refused() {
        let text = "ptxas warning : x\nptxas info : (C7510) Potential Performance Loss: wgmma serialized\n\
                    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 8 registers\n";
        assert_eq!(read(text, 0).unwrap().warnings, 2);
        assert_eq!(read("hello", 0), None);
    }
}
