//! `fattn`: checks, times and runs the kernels from the command line.

#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic: `console` does not

mod bench;
mod check;
mod console;
mod device;
mod devices;
mod equivalence;
mod first_call;
mod gradcheck;
mod msda;
mod output;
mod plans;
mod plot;
mod progress;
mod ring;
mod run;
mod sanitize;
mod task;
mod trace_nonfinite;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;

/// Exact attention on NVIDIA GPUs, checked with no GPU at all.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare the kernels with the reference over ragged cases; exit code 1 if any differs.
    Check(check::CheckArguments),
    /// Time the kernels on a GPU; with --explain and an emulated device, print their plans alone.
    Bench(bench::BenchArguments),
    /// Errors of every output over a regular grid of lengths, head dimensions and masks; exit code 1 if
    /// any is too large.
    Equivalence(equivalence::EquivalenceArguments),
    /// Compare the reference's gradients with finite differences, and the kernels' with the reference's.
    Gradcheck(gradcheck::GradcheckArguments),
    /// Attention on tensors from a safetensors file.
    Run(run::RunArguments),
    /// The same over several ranks, each with some rows of every sequence; with --bench, time that on GPUs.
    Ring(ring::RingArguments),
    /// Multi-scale deformable attention on tensors from a safetensors file.
    Msda(msda::MsdaArguments),
    /// Run any PTX in the emulator with every check; exit code 1 if it finds anything.
    Sanitize(sanitize::SanitizeArguments),
    /// Attention as by run, and where values come from that are not finite: every tensor is scanned, and the
    /// smallest part of the problem that shows the first one runs again in the emulator, which names the
    /// instruction; exit code 1 if there are any.
    TraceNonfinite(trace_nonfinite::TraceArguments),
    /// Time the first forward and backward of a process, through the C interface.
    FirstCall(first_call::FirstCallArguments),
    /// List the devices.
    Devices,
}

/// All commands. One of them can do without the file that it shares with others.
fn command() -> clap::Command {
    Arguments::command().mut_subcommand("ring", |ring| {
        ring.mut_arg("input", |input| input.required(false).required_unless_present("bench"))
    })
}

fn main() -> ExitCode {
    console::show_warnings();
    run().unwrap_or_else(|error| console::failed(&error))
}

fn run() -> anyhow::Result<ExitCode> {
    let parsed = command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        // What is asked for by --help and --version goes to standard output.
        Err(text) if !text.use_stderr() => {
            let terminal = std::io::stdout().is_terminal();
            let text = text.render();
            match terminal {
                true => console::write(format_args!("{}", text.ansi()))?,
                false => console::write(format_args!("{text}"))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => error.exit(),
    };
    match arguments.command {
        Command::Check(arguments) => check::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Equivalence(arguments) => equivalence::run(&arguments),
        Command::Gradcheck(arguments) => gradcheck::run(&arguments),
        Command::Run(arguments) => run::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Ring(arguments) => ring::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Msda(arguments) => msda::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Sanitize(arguments) => sanitize::run(&arguments),
        Command::TraceNonfinite(arguments) => trace_nonfinite::run(&arguments),
        Command::FirstCall(arguments) => first_call::run(&arguments),
        Command::Devices => devices::run().map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::command;
    use clap::ArgAction;

    /// Options that name one of several things each. All others count once: of two, one would win silently.
    const REPEATED: [(&str, &str); 4] =
        [("sanitize", "arg"), ("sanitize", "buffer"), ("sanitize", "region"), ("sanitize", "symbol")];

    #[test]
    fn options_are_given_once_unless_they_name_one_of_several_things() {
        let command = command();
        let mut repeated = Vec::new();
        for subcommand in command.get_subcommands() {
            for argument in subcommand.get_arguments() {
                if matches!(argument.get_action(), ArgAction::Append | ArgAction::Count) {
                    repeated.push((subcommand.get_name(), argument.get_long().unwrap_or_default()));
                }
            }
        }
        repeated.sort_unstable();
        assert_eq!(repeated, REPEATED);
    }
}
