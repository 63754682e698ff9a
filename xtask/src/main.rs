//! The project's chores, a subcommand and a file each: `cargo xtask --help`.

mod book;
mod build_kernels;
mod bundle;
mod ci;
mod integrations;
mod mutate;
mod packaged;
#[path = "../../tests/src/seed.rs"]
mod seed;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Compile the kernels to PTX, check what came out, and write kernels-gpu/artifacts.
    BuildKernels(build_kernels::Args),
    /// Build the book from the pages of docs.
    Book,
    /// Put everything that runs on a GPU into one folder.
    Bundle(bundle::Args),
    /// Take the safety out of kernels, one instruction at a time, and write docs/mutations.md: what shows it.
    Mutate(mutate::Args),
    /// Package the published crates as for a registry, and run a program from them alone.
    Packaged,
    /// Check the rules of the tree that no compiler knows.
    Tidy,
    /// Run everything that must be green, with the time of each step.
    Ci(ci::Args),
    /// Build and test the doors for other frameworks: Python, burn and candle.
    Integrations(integrations::Args),
    /// Run all random cases for every target, every edit of the sweep, and build all kernels: hours.
    Soak(ci::SoakArgs),
}

fn main() -> ExitCode {
    let done = match Xtask::parse() {
        Xtask::BuildKernels(args) => build_kernels::run(&args),
        Xtask::Book => book::run(),
        Xtask::Bundle(args) => bundle::run(&args),
        Xtask::Mutate(args) => mutate::run(&args),
        Xtask::Packaged => packaged::run(),
        Xtask::Tidy => tidy::run(),
        Xtask::Ci(args) => ci::run(&args),
        Xtask::Integrations(args) => integrations::run(&args),
        Xtask::Soak(args) => ci::soak(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
