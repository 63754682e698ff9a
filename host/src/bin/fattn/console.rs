//! What `fattn` says: the one way to standard output and to standard error.
//!
//! Nothing here panics. Who reads may go away, as `head` does: that ends the command quietly, with the exit
//! code that a shell shows for it. A disk that is full is an error like others.

use crate::output::OutputError;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output: cannot be written: {0}")]
pub struct ConsoleError(io::Error);

/// What a shell shows for a process that a broken pipe has ended: 128 and the number of the signal.
const BROKEN_PIPE: u8 = 141;
/// Bad arguments, and whatever else keeps a command from its result.
const FAILED: u8 = 2;

/// Writes to standard output; at once, also where that is a pipe or a file.
///
/// # Errors
/// [`ConsoleError`].
pub fn write(text: Arguments<'_>) -> Result<(), ConsoleError> {
    let mut stdout = io::stdout().lock();
    stdout.write_fmt(text).and_then(|()| stdout.flush()).map_err(ConsoleError)
}

/// Writes a line to standard output: [`write()`] with the arguments of `println!`.
macro_rules! outln {
    ($($text:tt)*) => { $crate::console::write(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use outln;

/// Writes a line to standard error. That nobody hears it is no reason to stop.
pub fn note(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "fattn: {text}");
}

/// Says why the command has failed, unless it is that nobody reads its output; and how it is to end.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(code(error))
}

/// As [`failed`], from a thread that cannot return: the process ends.
pub fn leave(error: ConsoleError) -> ! {
    std::process::exit(i32::from(code(&error.into())))
}

fn code(error: &anyhow::Error) -> u8 {
    let kind = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ConsoleError(error)), _) | (_, Some(OutputError::Refused { error, .. })) => error.kind(),
        _ => ErrorKind::Other,
    };
    if kind == ErrorKind::BrokenPipe {
        return BROKEN_PIPE;
    }
    note(format_args!("{error:#}"));
    FAILED
}

/// Has what the library warns of written to standard error, each as a line of this command.
pub fn show_warnings() {
    use tracing_subscriber::filter::LevelFilter;

    // The only one of the process.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(io::stderr)
        .event_format(Warning)
        .try_init();
}

/// `fattn: ` and the message.
struct Warning;

impl<S, N> tracing_subscriber::fmt::FormatEvent<S, N> for Warning
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    N: for<'a> tracing_subscriber::fmt::FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &tracing_subscriber::fmt::FmtContext<'_, S, N>,
        mut writer: tracing_subscriber::fmt::format::Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        write!(writer, "fattn: ")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
