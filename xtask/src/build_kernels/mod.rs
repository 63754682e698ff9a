//! `build-kernels`: from the Rust of `kernels-gpu` to the PTX that ships, in named stages, a file each.

mod artifacts;
mod compiler;
mod convergent;
mod cubins;
mod lint;
mod llvm;
mod packs;
mod pins;
mod post;
mod ptx;
mod ptxas;
mod rustc;
pub mod stamp;
#[cfg(test)]
mod tests;
mod variants;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kernels_gpu::abi::{Arch, KERNELS, KernelSpec, KernelVariant};
use rayon::prelude::*;

use crate::workspace::{root, target_dir};
use compiler::Compiler;
use ptxas::{Ptxas, Resources};

/// Devices that ptxas assembles the kernels of a target for.
fn devices(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::Sm80 => &["sm_80", "sm_90"],
        Arch::Sm90a => &["sm_90a"],
    }
}

/// Entries that are taken out of the IR of all together: reading all of it takes longer than optimising most
/// of them.
const PART: usize = 6;

/// Compile the kernels to PTX.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Write nothing: fail when the committed artifacts are not what the source compiles to.
    #[arg(long)]
    pub check: bool,
    /// With --check: compare the hash of the source alone; needs no compiler.
    #[arg(long, requires = "check")]
    pub hash_only: bool,
    /// Install what is missing (Debian packages or a rustup toolchain, the ptxas wheel), printing the
    /// commands.
    #[arg(long)]
    pub install: bool,
    /// Build only kernels whose name contains this; writes no artifacts.
    #[arg(long, value_name = "SUBSTRING")]
    pub only: Option<String>,
    /// Keep the optimised IR and the PTX of every kernel here [default: kernels/out in the target
    /// folder].
    #[arg(long, value_name = "DIR")]
    pub emit_dir: Option<PathBuf>,
    /// Insist on ptxas; without this it is used when at hand, and not for --only.
    #[arg(long)]
    pub ptxas: bool,
    /// Pin what was found in kernels-gpu/pins.
    #[arg(long)]
    pub bless: bool,
    /// Build only this share of all kernels.
    #[arg(skip)]
    pub share: Option<Share>,
}

/// One of [`Share::COUNT`] shares of all kernels: every other one is of either target.
#[derive(Clone, Copy, Debug)]
pub struct Share(usize);

impl Share {
    const COUNT: usize = 8;

    fn of_seed(seed: u64) -> Self {
        Share((seed % Self::COUNT as u64) as usize)
    }

    fn kernels(self) -> Vec<&'static KernelSpec> {
        let targets = Arch::ALL.len();
        let of_target = KERNELS.iter().filter(|spec| spec.arch == Arch::ALL[self.0 % targets]);
        of_target.skip(self.0 / targets).step_by(Self::COUNT / targets).collect()
    }
}

impl Args {
    fn kernels(&self) -> Vec<&'static KernelSpec> {
        let of_share = self.share.map_or_else(|| KERNELS.iter().collect(), Share::kernels);
        let is_wanted =
            |spec: &&KernelSpec| self.only.as_ref().is_none_or(|only| spec.name.contains(only));
        of_share.into_iter().filter(is_wanted).collect()
    }

    fn are_all(&self) -> bool {
        self.only.is_none() && self.share.is_none()
    }
}

/// A kernel that went through all stages.
pub struct Built {
    spec: &'static KernelSpec,
    ptx: String,
    /// Figures by device: of the kernel as it is compiled, and of its variants that are pinned.
    assembled: Vec<(KernelVariant, BTreeMap<String, Resources>)>,
    /// The assembled kernel for each device that it ships assembled for, by [`cubins::name`].
    cubins: BTreeMap<String, Vec<u8>>,
}

/// Runs the stages.
///
/// # Errors
/// When the compiler is missing, a stage fails, or a check finds something.
pub fn run(args: &Args) -> Result<()> {
    if args.hash_only {
        return artifacts::check_hashes();
    }
    let specs = args.kernels();
    if specs.is_empty() {
        bail!("no kernel's name contains `{}`", args.only.as_deref().unwrap_or_default());
    }
    if args.check {
        artifacts::check_hashes()?;
    }
    let started = Instant::now();
    let compiler = find_compiler(args.install)?;
    let ptxas = find_ptxas(args)?;
    let emit = args.emit_dir.clone().unwrap_or_else(|| target_dir().join("kernels/out"));
    fs::create_dir_all(&emit).with_context(|| format!("cannot create {}", emit.display()))?;
    let mut built = Vec::new();
    for arch in archs(&specs) {
        let ir = prepare_ir(&compiler, arch, args.only.is_some(), &emit)?;
        let of_arch: Vec<_> = specs.iter().filter(|spec| spec.arch == arch).copied().collect();
        let parts: Vec<_> = of_arch.chunks(PART).enumerate().collect();
        let parts = parts.par_iter().with_max_len(1).map(|(number, part)| {
            let names: Vec<&str> = part.iter().map(|spec| spec.name).collect();
            let path =
                llvm::part(&compiler, &ir, &names, &format!("part-{}-{number}", arch.name()), &emit)?;
            Ok(part.iter().map(|&spec| (spec, path.clone())).collect::<Vec<_>>())
        });
        let parts = parts.collect::<Result<Vec<_>>>()?.concat();
        let compiled = parts
            .par_iter()
            .with_max_len(1)
            .map(|(spec, part)| compile(&compiler, ptxas.as_ref(), part, spec, &emit));
        built.extend(compiled.collect::<Result<Vec<_>>>()?);
    }
    println!("{}", table(&built));
    finish(args, &compiler, ptxas.as_ref(), &built)?;
    if args.are_all() && !args.check && ptxas.as_ref().is_some_and(Ptxas::is_pinned) {
        stamp::record(&stamp::of(&compiler, ptxas.as_ref())?)?;
    }
    println!("{} kernels in {:.1} s", built.len(), started.elapsed().as_secs_f64());
    Ok(())
}

/// Builds everything and compares: nothing is written, and what is missing is installed when allowed.
///
/// # Errors
/// As [`run`].
pub fn check(install: bool) -> Result<()> {
    run(&Args { check: true, install, ..Args::default() })
}

/// As [`check`], unless it has been done in this clone: for the same source, artifacts, pins and stages, with
/// the same versions of compiler and ptxas. Where the tree says that the artifacts come from such a build, a
/// share of them is built, another one with another seed.
///
/// # Errors
/// As [`run`].
pub fn check_once(install: bool, seed: u64) -> Result<()> {
    let args = Args { check: true, install, ..Args::default() };
    let (compiler, ptxas) = (find_compiler(install)?, find_ptxas(&args)?);
    let stamp = || stamp::of(&compiler, ptxas.as_ref());
    let share = stamp::is_recorded(&stamp()?).then(|| Share::of_seed(seed));
    let check = || {
        if let Some(Share(number)) = share {
            println!("all of this was built before: share {number} of {} is built again", Share::COUNT);
        }
        run(&Args { share, ..args })
    };
    if !stamp::check_once(&stamp::path(), stamp, check)? {
        tell_of_cubins(ptxas.as_ref());
    }
    Ok(())
}

/// Says so where a check does not compare assembled kernels.
fn tell_of_cubins(ptxas: Option<&Ptxas>) {
    if !ptxas.is_some_and(Ptxas::is_pinned) {
        println!("assembled kernels are not compared: {}", ptxas::missing(ptxas));
    }
}

/// Lints the kernels, compares them with the pins, and writes or checks the artifacts.
fn finish(args: &Args, compiler: &Compiler, ptxas: Option<&Ptxas>, built: &[Built]) -> Result<()> {
    let faults: Vec<_> = built.iter().flat_map(|one| lint::faults(&one.ptx, one.spec)).collect();
    fail(&faults, "")?;
    let partial = !args.are_all();
    if args.only.is_none() {
        let manifest = artifacts::manifest(compiler, built)?;
        let has_ptxas = ptxas.is_some_and(Ptxas::is_pinned);
        if args.check {
            artifacts::check(&manifest, built, has_ptxas)?;
            tell_of_cubins(ptxas);
        } else {
            artifacts::write(manifest, built, has_ptxas)?;
        }
    }
    let counts =
        built.iter().map(|one| (one.spec.name.to_owned(), lint::convergent(&one.ptx))).collect();
    let mut faults = pins::convergent(&counts, args.bless, partial)?;
    if let Some(ptxas) = ptxas {
        let all = built.iter().flat_map(|one| &one.assembled);
        let kernels = all.map(|(variant, figures)| (variant.to_string(), figures.clone())).collect();
        let found = pins::Assembled { ptxas: ptxas.version.clone(), kernels };
        faults.extend(pins::assembled(&found, args.bless, partial)?);
    }
    fail(&faults, "when this is what you want: `cargo xtask build-kernels --bless`")
}

fn fail(faults: &[String], hint: &str) -> Result<()> {
    const SHOWN: usize = 20;
    if faults.is_empty() {
        return Ok(());
    }
    let more = match faults.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("\nand {more} more"),
    };
    bail!("{}{more}\n{hint}", faults[..faults.len().min(SHOWN)].join("\n"))
}

fn find_compiler(install: bool) -> Result<Compiler> {
    match compiler::find() {
        Err(error) if install => {
            eprintln!("{error:#}");
            compiler::install()?;
            compiler::find()
        }
        found => found,
    }
}

fn find_ptxas(args: &Args) -> Result<Option<Ptxas>> {
    if args.only.is_some() && !args.ptxas {
        return Ok(None);
    }
    let mut found = ptxas::find()?;
    if args.install && !ptxas::is_chosen() && !found.as_ref().is_some_and(Ptxas::is_pinned) {
        ptxas::install()?;
        found = ptxas::find()?;
    }
    if found.is_none() {
        let hint =
            format!("no ptxas: registers and spills are not checked; `{}`", ptxas::install_command());
        if args.ptxas {
            bail!(hint);
        }
        println!("{hint}");
    }
    Ok(found)
}

fn archs(specs: &[&KernelSpec]) -> Vec<Arch> {
    let mut archs = Vec::new();
    for spec in specs {
        if !archs.contains(&spec.arch) {
            archs.push(spec.arch);
        }
    }
    archs
}

/// Stages 1 and 2, and whether the table and the entries in the IR are the same set.
fn prepare_ir(compiler: &Compiler, arch: Arch, partial: bool, emit: &Path) -> Result<PathBuf> {
    let root = root();
    let source = rustc::Source { root: &root, lib: "kernels-gpu/src/lib.rs", name: "kernels_gpu" };
    let ir = rustc::llvm_ir(compiler, &source, arch.name(), emit)?;
    if !partial {
        check_entries(&llvm::entries(&ir)?)?;
    }
    llvm::bitcode(compiler, &convergent::mark(&ir)?, &format!("marked-{}", arch.name()), emit)
}

fn check_entries(entries: &[String]) -> Result<()> {
    let missing = KERNELS.iter().filter(|spec| !entries.iter().any(|entry| entry == spec.name));
    let mut faults: Vec<_> =
        missing.map(|spec| format!("{}: in abi::KERNELS, not in the IR", spec.name)).collect();
    let unknown = entries.iter().filter(|entry| !KERNELS.iter().any(|spec| spec.name == *entry));
    faults.extend(unknown.map(|entry| format!("{entry}: compiled, but not in abi::KERNELS")));
    fail(&faults, "")
}

/// Stages 3, 4 and 6 for one kernel, which is in this part of the IR.
fn compile(
    compiler: &Compiler,
    ptxas: Option<&Ptxas>,
    ir: &Path,
    spec: &'static KernelSpec,
    emit: &Path,
) -> Result<Built> {
    let raw = llvm::ptx(compiler, ir, spec.name, spec.arch.name(), spec.adds_vectors(), emit)?;
    let ptx = post::finish(&raw, spec)?;
    fs::write(emit.join(format!("{}.ptx", spec.name)), &ptx)?;
    let mut built = Built { spec, ptx, assembled: Vec::new(), cubins: BTreeMap::new() };
    if let Some(ptxas) = ptxas.filter(|_| lint::faults(&built.ptx, spec).is_empty()) {
        for variant in variants::assembled(spec) {
            assemble(ptxas, variant, &mut built, emit)?;
        }
    }
    Ok(built)
}

/// Stage 6 for one variant of a kernel, for each device.
fn assemble(ptxas: &Ptxas, variant: KernelVariant, built: &mut Built, emit: &Path) -> Result<()> {
    let code = cubins::code(&match variant.switches.is_empty() {
        true => built.ptx.clone(),
        false => variants::switched(&built.ptx, variant.switches),
    });
    let path = emit.join(format!("{variant}.code.ptx"));
    fs::write(&path, &code)?;
    let mut figures = BTreeMap::new();
    for &device in devices(variant.kernel.arch) {
        let (resources, cubin) = ptxas.assemble(&path, variant.kernel.name, device)?;
        figures.insert(device.to_owned(), resources);
        if cubins::is_shipped(variant) && ptxas.is_pinned() {
            built.cubins.insert(cubins::name(variant.kernel.name, device), cubin);
        }
    }
    built.assembled.push((variant, figures));
    Ok(())
}

/// The names of the assembled kernels that ship of one.
fn shipped_cubins(spec: &'static KernelSpec) -> Vec<String> {
    if !cubins::is_shipped(spec.into()) {
        return Vec::new();
    }
    devices(spec.arch).iter().map(|device| cubins::name(spec.name, device)).collect()
}

/// What a person wants to see of a build.
fn table(built: &[Built]) -> String {
    let width = built.iter().map(|one| one.spec.name.len()).max().unwrap_or(0);
    let mut lines = vec![format!(
        "{:width$} {:>7} {:>5} {:>5}  registers / spilled bytes / machine instructions",
        "kernel", "instr", "mma", "bar"
    )];
    let figures = |of: &BTreeMap<String, Resources>| -> String {
        let figure = |(device, r): (&String, &Resources)| {
            format!("  {device}: {} / {} / {}", r.registers, r.spill_bytes, r.instructions)
        };
        of.iter().map(figure).collect()
    };
    for one in built {
        let counts = lint::convergent(&one.ptx);
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        let instructions = ptx::opcodes(&one.ptx).len();
        let (mma, bar) = (count("mma.sync") + count("wgmma"), count("bar.sync"));
        let off: String = one.assembled.first().map_or(String::new(), |(_, of)| figures(of));
        lines.push(format!("{:width$} {instructions:>7} {mma:>5} {bar:>5}{off}", one.spec.name));
        let variants = one.assembled.iter().skip(1);
        lines.extend(variants.map(|(variant, of)| {
            let switches: String =
                variant.switches.iter().map(|on| format!(" +{}", on.name())).collect();
            format!("{switches:<w$}{}", figures(of), w = width + 20)
        }));
    }
    lines.join("\n")
}

/// Lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
