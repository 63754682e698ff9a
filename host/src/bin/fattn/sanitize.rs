//! `fattn sanitize`: any PTX in the emulator, with every check.

mod argument;
mod buffer;
mod element;
mod error;
mod launch;
mod names;
mod report;

use crate::console::{self, outln};
use crate::output::{OutputFile, all_different};
use crate::progress::Progress;
use buffer::Buffer;
use clap::{Args, ValueEnum};
use error::{Result, SanitizeError, expected};
use launch::Setup;
use ptx_emulator::{Checks, Kernel, LaunchError, Module, Options, Region, Schedule};
use report::Summary;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most that `--threads` can be.
const MAX_THREADS: usize = 1024;

/// What to launch.
#[derive(Args)]
#[command(after_help = argument::SYNTAX)]
pub struct SanitizeArguments {
    /// The PTX. Its `.target`, from sm_80 to sm_90a, says which instructions there are, and how much shared
    /// memory.
    #[arg(long, value_name = "FILE.ptx")]
    ptx: PathBuf,
    /// The kernel; may be left out where there is only one.
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Blocks.
    #[arg(long, value_name = "X[,Y,Z]", default_value = "1")]
    grid: String,
    /// Threads of a block.
    #[arg(long, value_name = "X[,Y,Z]")]
    block: String,
    /// Bytes of dynamic shared memory.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u32,
    /// What stands at these bytes of dynamic shared memory. Where there is any, every access must stay inside
    /// one, and findings name them.
    #[arg(long = "region", value_name = "NAME=OFFSET:BYTES")]
    regions: Vec<String>,
    /// What a parameter of the kernel is given; see below.
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// A buffer that no parameter points to, for tensor maps and structures; see below.
    #[arg(long = "buffer", value_name = "BUFFER")]
    buffers: Vec<String>,
    /// What a `.const` or `.global` variable of the text holds before the launch: a number, `pack`, `ref`, or
    /// the contents of `buf` or `file`.
    #[arg(long = "symbol", value_name = "NAME=VALUE")]
    symbols: Vec<String>,
    /// Say where the first value comes from that is not finite.
    #[arg(long)]
    trace_nonfinite: bool,
    /// Write findings to a file in SARIF, which editors and CI show.
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// How warps take turns, and when asynchronous copies land.
    #[arg(long, default_value = "all")]
    schedule: ScheduleChoice,
    /// Schedules to run; of `all`, the first two are eager and latest. 10 by default, 1 of eager, latest
    /// and random.
    #[arg(long, value_name = "N")]
    schedules: Option<u64>,
    /// Seed of the first random schedule, 0 by default; not with eager or latest, which are the same every
    /// time.
    #[arg(long)]
    seed: Option<u64>,
    /// Results may differ between schedules: sums in any order.
    #[arg(long)]
    any_order: bool,
    /// Distinct findings that are printed, at least 1. All are counted.
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_findings: usize,
    /// Warp instructions of a block after which it counts as endless, at least 1. No schedule is run after
    /// one that gets there.
    #[arg(long, value_name = "N", default_value_t = 1 << 27)]
    step_limit: u64,
    /// Blocks that run at a time, at most 1024. With more than one, blocks that wait for each other or share
    /// results do so in another order at every run, which no seed brings back.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// What besides errors makes the exit code 1.
    #[arg(long, value_name = "WHAT")]
    deny: Option<Denied>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Denied {
    /// Warnings.
    Warnings,
    /// Warnings and notes.
    Notes,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ScheduleChoice {
    /// Eager, latest, and random ones.
    All,
    /// Copies land at once; a warp runs until it waits.
    Eager,
    /// Copies land when they are waited for; a warp runs until it waits.
    Latest,
    /// All at random, drawn from a seed.
    Random,
}

/// Runs the kernel under all schedules and prints what was found; exit code 1 if there are errors.
pub fn run(arguments: &SanitizeArguments) -> anyhow::Result<ExitCode> {
    let schedules = schedules(arguments)?;
    if arguments.max_findings == 0 {
        return Err(expected("--max-findings", "at least 1", 0).into());
    }
    if arguments.step_limit == 0 {
        return Err(expected("--step-limit", "at least 1", 0).into());
    }
    if !(1..=MAX_THREADS).contains(&arguments.threads) {
        return Err(expected("--threads", format!("1 to {MAX_THREADS}"), arguments.threads).into());
    }
    let grid = size("--grid", &arguments.grid)?;
    let block = size("--block", &arguments.block)?;
    let module = module(&arguments.ptx)?;
    let kernel = kernel(&module, arguments.entry.as_deref())?;
    if let Some(error) = kernel.error() {
        // Before anything is said about arguments: its parameters may be what is wrong.
        let kernel = kernel.name().to_owned();
        return Err(SanitizeError::from(LaunchError::Unsupported { kernel, error }).into());
    }
    let setup = Setup {
        grid,
        block,
        shared_bytes: arguments.shared,
        regions: arguments.regions.iter().map(|text| region(text)).collect::<Result<_>>()?,
        ..Setup::new(kernel, &arguments.arguments, &arguments.buffers)?
            .with_symbols(&arguments.symbols)?
    };
    let inputs = [("--ptx", arguments.ptx.as_path())];
    let sarif = arguments.sarif.as_deref().map(|path| OutputFile::new("--sarif", path, &inputs));
    let mut sarif = sarif.transpose()?;
    let mut outputs = outputs(arguments, &setup)?;
    let mut summary =
        Summary::new(&setup, module.target(), !arguments.any_order, arguments.max_findings);
    summary.traces = arguments.trace_nonfinite;
    let progress = Progress::new("schedules run", schedules.size_hint().1, true);
    for schedule in schedules {
        let options = Options {
            checks: Checks::all(),
            schedule,
            threads: arguments.threads,
            max_findings: usize::MAX, // all are counted, whatever is printed
            step_limit: Some(arguments.step_limit),
            acquire_always: false,
            trace: arguments.trace_nonfinite,
        };
        let mut ran = setup.run(&options)?;
        if Summary::has_global_race(&ran) {
            let acquired = setup.run(&Options { acquire_always: true, ..options })?;
            Summary::weigh_races(&mut ran, &acquired);
        }
        summary.add(schedule, ran);
        progress.step();
        if summary.is_endless() {
            break;
        }
    }
    drop(progress);
    for (output, (_, bytes)) in outputs.iter_mut().zip(summary.bytes()) {
        if let Some(file) = output {
            file.write(bytes)?;
        }
    }
    if let Some(file) = &mut sarif {
        file.write(summary.sarif(&arguments.ptx).to_string().as_bytes())?;
    }
    if arguments.json {
        outln!("{}", summary.json())?;
    } else {
        console::write(format_args!("{}", summary.text()))?;
    }
    let [errors, warnings, notes] = summary.counts();
    let denied = match arguments.deny {
        None => errors,
        Some(Denied::Warnings) => errors + warnings,
        Some(Denied::Notes) => errors + warnings + notes,
    };
    Ok(ExitCode::from(u8::from(denied > 0)))
}

/// The file of each buffer that has an `out=`.
fn outputs(arguments: &SanitizeArguments, setup: &Setup) -> anyhow::Result<Vec<Option<OutputFile>>> {
    let of_buffer =
        |buffer: &Buffer| Some((format!("file: of {}", buffer.name), buffer.source.clone()?));
    let sources: Vec<_> = setup.buffers.iter().filter_map(of_buffer).collect();
    let mut inputs = vec![("--ptx", arguments.ptx.as_path())];
    inputs.extend(sources.iter().map(|(option, path)| (option.as_str(), path.as_path())));
    let open = |buffer: &Buffer| {
        let option = format!("out= of {}", buffer.name);
        buffer.out.as_deref().map(|path| OutputFile::new(&option, path, &inputs)).transpose()
    };
    let files: Vec<_> = setup.buffers.iter().map(open).collect::<Result<_, _>>()?;
    all_different(&files.iter().flatten().collect::<Vec<_>>())?;
    Ok(files)
}

/// The schedules to run, made as they are asked for: there may be as many as there are seeds.
fn schedules(arguments: &SanitizeArguments) -> Result<impl Iterator<Item = Schedule> + use<>> {
    let all = arguments.schedule == ScheduleChoice::All;
    let count = arguments.schedules.unwrap_or(if all { 10 } else { 1 });
    let is_fixed = matches!(arguments.schedule, ScheduleChoice::Eager | ScheduleChoice::Latest);
    if is_fixed && count != 1 {
        return Err(expected("--schedules", "1 of a schedule that is the same every time", count));
    }
    if count == 0 {
        return Err(expected("--schedules", "at least 1", count));
    }
    if let (true, Some(seed)) = (is_fixed, arguments.seed) {
        return Err(expected("--seed", "none with a schedule that is the same every time", seed));
    }
    let seed = arguments.seed.unwrap_or(0);
    let random = (0..=u64::MAX).map(move |index| Schedule::Random(seed.wrapping_add(index)));
    let fixed: &'static [Schedule] = match arguments.schedule {
        ScheduleChoice::All => &[Schedule::Eager, Schedule::Latest],
        ScheduleChoice::Eager => &[Schedule::Eager],
        ScheduleChoice::Latest => &[Schedule::Latest],
        ScheduleChoice::Random => &[],
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok(fixed.iter().copied().chain(random).take(count))
}

/// `4`, `4,2` or `4,2,1`.
fn size(option: &str, text: &str) -> Result<[u32; 3]> {
    let wrong = || expected(option, "1 to 3 numbers of at least 1, such as 4 or 4,2,1", text);
    let mut size = [1; 3];
    for (index, part) in text.split(',').enumerate() {
        let number: u32 = part.trim().parse().map_err(|_| wrong())?;
        *size.get_mut(index).filter(|_| number > 0).ok_or_else(wrong)? = number;
    }
    Ok(size)
}

/// `k[0]=0:4096`; numbers may be hexadecimal, as findings have them.
fn region(text: &str) -> Result<Region> {
    let option = format!("--region `{text}`");
    let wrong = || expected(&option, "NAME=OFFSET:BYTES, such as k[0]=0:4096 or v=0x1000:0x800", text);
    let (name, place) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (offset, bytes) = place.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| {
        let text = text.trim();
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| expected(&option, "a number of bytes below 4 GiB", text))
    };
    let (name, offset, bytes) = (name.trim(), number(offset)?, number(bytes)?);
    if name.is_empty() {
        return Err(wrong());
    }
    if bytes == 0 {
        return Err(expected(&option, "at least 1 byte", bytes));
    }
    Ok(Region::new(name, offset, bytes))
}

fn module(path: &Path) -> Result<Module> {
    let text = std::fs::read_to_string(path).map_err(|error| SanitizeError::File {
        option: "--ptx".to_owned(),
        path: path.to_owned(),
        error,
    })?;
    Module::parse(&text).map_err(|error| SanitizeError::Ptx { path: path.to_owned(), error })
}

fn kernel<'m>(module: &'m Module, name: Option<&str>) -> Result<&'m Kernel> {
    let names = || module.kernels().map(Kernel::name).collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => module
            .kernel(name)
            .ok_or_else(|| expected("--entry", format!("a kernel of the text: {}", names()), name)),
        None => {
            let mut kernels = module.kernels();
            match (kernels.next(), kernels.next()) {
                (Some(only), None) => Ok(only),
                (None, _) => Err(expected("--ptx", "a text with an .entry", "none")),
                _ => Err(expected("--entry", format!("one of {}", names()), "none")),
            }
        }
    }
}
