//! `fattn sanitize`: any PTX in the emulator, with every check.

mod argument;
mod buffer;
mod case;
mod element;
mod error;
mod launch;
mod names;
mod options;
mod report;
mod source;

use crate::console::{self, outln};
use crate::output::{OutputFile, all_different};
use crate::progress::{Detail, Progress};
use buffer::Buffer;
use case::Case;
use clap::{Args, ValueEnum};
use error::{Result, expected};
use launch::{Setup, Shape, Step};
use options::RunOptions;
use ptx_emulator::{Checks, Options, Region, has_global_race, weigh_races};
use report::Summary;
use source::Source;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most that `--threads` can be.
const MAX_THREADS: usize = 1024;

/// What to launch.
#[derive(Args)]
#[command(after_help = argument::SYNTAX)]
pub struct SanitizeArguments {
    /// The PTX. Its `.target`, from sm_70 to sm_90a, says which instructions there are, and how much shared
    /// memory.
    #[arg(long, value_name = "FILE.ptx", required_unless_present = "case")]
    ptx: Option<PathBuf>,
    /// Launches from a file, instead of all options that say what is launched; see below.
    #[arg(
        long,
        value_name = "FILE.json",
        conflicts_with_all = [
            "ptx", "entry", "grid", "block", "cluster", "shared", "regions", "arguments", "buffers",
            "symbols"
        ]
    )]
    case: Option<PathBuf>,
    /// Write what is run to a file for `--case`, with all texts and bytes in it, before it runs.
    #[arg(long, value_name = "FILE.json")]
    save_case: Option<PathBuf>,
    /// The kernel; may be left out where there is only one.
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Blocks.
    #[arg(long, value_name = "X[,Y,Z]", default_value = "1")]
    grid: String,
    /// Threads of a block.
    #[arg(long, value_name = "X[,Y,Z]", required_unless_present = "case")]
    block: Option<String>,
    /// Blocks of a cluster: up to 8, or 16, which a kernel has to be allowed. Left out: as the kernel
    /// demands, or none.
    #[arg(long, value_name = "X[,Y,Z]")]
    cluster: Option<String>,
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
    #[command(flatten)]
    options: RunOptions,
    /// Distinct findings that are printed, at least 1. All are counted.
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_findings: usize,
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

/// Runs the kernel under all schedules and prints what was found; exit code 1 if there are errors.
pub fn run(arguments: &SanitizeArguments) -> anyhow::Result<ExitCode> {
    let (case, sources) = match (&arguments.case, &arguments.ptx) {
        (Some(path), _) => {
            let (case, sources) = Case::read(path)?;
            (Some(case), sources)
        }
        (None, Some(path)) => (None, vec![Source::read("--ptx", name_of(path), path)?]),
        (None, None) => (None, Vec::new()),
    };
    let given = case.as_ref().map(|case| case.options.clone()).unwrap_or_default();
    let run = arguments.options.or(&given);
    let (schedules, step_limit) = (run.schedules()?, run.step_limit()?);
    if arguments.max_findings == 0 {
        return Err(expected("--max-findings", "at least 1", 0).into());
    }
    if !(1..=MAX_THREADS).contains(&arguments.threads) {
        return Err(expected("--threads", format!("1 to {MAX_THREADS}"), arguments.threads).into());
    }
    let setup = match &case {
        Some(case) => case.setup(&sources)?,
        None => single(arguments, &sources)?,
    };
    let mut inputs: Vec<(&str, &Path)> = Vec::new();
    inputs.extend(arguments.case.as_deref().map(|path| ("--case", path)));
    let option = if case.is_some() { "a module of --case" } else { "--ptx" };
    inputs.extend(sources.iter().map(|source| (option, source.path.as_path())));
    let output = |option: &str, path: &Option<PathBuf>| {
        path.as_deref().map(|path| OutputFile::new(option, path, &inputs)).transpose()
    };
    let mut sarif = output("--sarif", &arguments.sarif)?;
    if let Some(mut file) = output("--save-case", &arguments.save_case)? {
        let case = serde_json::to_string_pretty(&Case::of(&setup, run.clone()))?;
        file.write((case + "\n").as_bytes())?;
    }
    let mut outputs = outputs(&inputs, &setup)?;
    let mut summary = Summary::new(&setup, !run.any_order, arguments.max_findings);
    summary.traces = arguments.trace_nonfinite;
    let blocks_ended = Arc::<AtomicU64>::default();
    let detail = Detail { total: setup.blocks(), what: "blocks", done: blocks_ended.clone() };
    let progress = Progress::detailed("schedules run", schedules.size_hint().1, true, Some(detail));
    for schedule in schedules {
        let options = Options {
            checks: Checks::all(),
            schedule,
            threads: arguments.threads,
            max_findings: usize::MAX, // all are counted, whatever is printed
            step_limit: Some(step_limit),
            strict: run.strict,
            acquire_always: false,
            trace: arguments.trace_nonfinite,
            blocks_ended: Some(blocks_ended.clone()),
        };
        blocks_ended.store(0, Ordering::Relaxed);
        let mut ran = setup.run(&options)?;
        if has_global_race(&ran.reports) {
            let acquired = setup.run(&Options { acquire_always: true, ..options })?;
            weigh_races(&mut ran.reports, &acquired.reports);
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
        file.write(summary.sarif().to_string().as_bytes())?;
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

/// What a case calls the text of a file.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().replace('.', "_"));
    stem.unwrap_or_default()
}

/// The launch that the options say.
fn single<'k>(arguments: &SanitizeArguments, sources: &'k [Source]) -> Result<Setup<'k>> {
    let [source] = sources else { return Err(expected("--ptx", "a text", "none")) };
    let shape = Shape {
        grid: size("--grid", &arguments.grid)?,
        block: size("--block", arguments.block.as_deref().unwrap_or_default())?,
        cluster: arguments.cluster.as_deref().map(|text| size("--cluster", text)).transpose()?,
        shared_bytes: arguments.shared,
        regions: (arguments.regions.iter())
            .map(|text| region(&format!("--region `{text}`"), text))
            .collect::<Result<_>>()?,
    };
    let kernel = source.kernel("--ptx", "--entry", arguments.entry.as_deref())?;
    let mut setup = Setup::default();
    for text in &arguments.buffers {
        setup.with_buffer(&format!("--buffer `{text}`"), text)?;
    }
    let step = Step { source, kernel, shape, arguments: Vec::new() };
    setup.with_launch(step, &arguments.arguments, "--arg")?;
    for text in &arguments.symbols {
        let option = format!("--symbol `{text}`");
        let Some(value) = text.split_once('=') else {
            return Err(expected(&option, "NAME=VALUE", text));
        };
        setup.with_symbol(option, source, value)?;
    }
    Ok(setup)
}

/// The file of each buffer that has an `out=`; none of `inputs`.
fn outputs(inputs: &[(&str, &Path)], setup: &Setup) -> anyhow::Result<Vec<Option<OutputFile>>> {
    let of_buffer =
        |buffer: &Buffer| Some((format!("file: of {}", buffer.name), buffer.source.clone()?));
    let sources: Vec<_> = setup.buffers.iter().filter_map(of_buffer).collect();
    let mut inputs = inputs.to_vec();
    inputs.extend(sources.iter().map(|(option, path)| (option.as_str(), path.as_path())));
    let open = |buffer: &Buffer| {
        let option = format!("out= of {}", buffer.name);
        buffer.out.as_deref().map(|path| OutputFile::new(&option, path, &inputs)).transpose()
    };
    let files: Vec<_> = setup.buffers.iter().map(open).collect::<Result<_, _>>()?;
    all_different(&files.iter().flatten().collect::<Vec<_>>())?;
    Ok(files)
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
fn region(option: &str, text: &str) -> Result<Region> {
    let wrong = || expected(option, "NAME=OFFSET:BYTES, such as k[0]=0:4096 or v=0x1000:0x800", text);
    let (name, place) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (offset, bytes) = place.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| {
        let text = text.trim();
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| expected(option, "a number of bytes below 4 GiB", text))
    };
    let (name, offset, bytes) = (name.trim(), number(offset)?, number(bytes)?);
    if name.is_empty() {
        return Err(wrong());
    }
    if bytes == 0 {
        return Err(expected(option, "at least 1 byte", bytes));
    }
    Ok(Region::new(name, offset, bytes))
}
