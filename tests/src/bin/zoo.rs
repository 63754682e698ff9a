//! The zoo on another device than the emulator.
//!
//! ```text
//! zoo write FOLDER            every mutant's PTX, and mutants.tsv: file, kernel, device, name, what the emulator says
//! zoo run FILE [DEVICE]       a mutant's case with the PTX in FILE, on cuda unless said otherwise
//! ```
//!
//! Exit code of `run`: 0 all is as it should be, 1 results are wrong, 2 the device gave an error.

use finite_attention::KernelImages;
use finite_attention::device::DeviceName;
use finite_attention_tests::device::open_with;
use finite_attention_tests::ptx::spec;
use finite_attention_tests::verdict::Verdict;
use finite_attention_tests::zoo::{FAMILIES, Family, Mutant};
use kernels_gpu::abi::Arch;
use std::path::Path;
use std::process::ExitCode;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["write", folder] => write(Path::new(folder)).map(|()| ExitCode::SUCCESS),
        ["run", file] => run(Path::new(file), "cuda"),
        ["run", file, device] => run(Path::new(file), device),
        _ => Err("expected: zoo write FOLDER, or zoo run FILE [DEVICE]".into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

/// All mutants, those of a family behind its kernels as they ship.
fn mutants() -> impl Iterator<Item = Mutant> {
    FAMILIES.iter().flat_map(Family::all)
}

fn write(folder: &Path) -> Fallible<()> {
    std::fs::create_dir_all(folder)?;
    let mut table = String::new();
    for mutant in mutants() {
        let file = format!("{}.ptx", mutant.slug());
        std::fs::write(folder.join(&file), mutant.ptx().lines().join("\n"))?;
        let device = match spec(mutant.kernel).arch {
            Arch::Sm80 => "cuda:0:sm_80",
            Arch::Sm90a => "cuda",
        };
        let found = mutant.verdict().summary();
        table += &[&file, mutant.kernel, device, mutant.name, &found].join("\t");
        table += "\n";
    }
    Ok(std::fs::write(folder.join("mutants.tsv"), table)?)
}

fn run(file: &Path, device: &str) -> Fallible<ExitCode> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let mutant =
        mutants().find(|mutant| mutant.slug() == stem).ok_or("no mutant has the name of this file")?;
    let images = KernelImages::with_override(&std::fs::read_to_string(file)?)?;
    let name: DeviceName = device.parse()?;
    let verdict = mutant.judge(&open_with(name, images));
    println!("{}", verdict.summary());
    Ok(match verdict {
        Verdict::Clean => ExitCode::SUCCESS,
        Verdict::Wrong(_) | Verdict::Findings(_) => ExitCode::FAILURE,
        Verdict::Refused(_) => ExitCode::from(2),
    })
}
