//! How far a command is, on standard error: a bar on a terminal, elsewhere a line now and then.

use crate::console;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two lines, where there is no terminal.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two pictures of a bar.
const TICK: Duration = Duration::from_millis(500);

/// How far the thing is that is being done.
#[derive(Clone)]
pub struct Detail {
    /// What there is of it, and what it is called: `blocks`.
    pub total: u64,
    pub what: &'static str,
    /// How many are done, which somebody else counts.
    pub done: Arc<AtomicU64>,
}

impl std::fmt::Display for Detail {
    /// `, 12 of 80 blocks`; nothing where there is one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.total {
            0 | 1 => Ok(()),
            total => write!(f, ", {} of {total} {}", self.done.load(Ordering::Relaxed), self.what),
        }
    }
}

/// How far a command is. Says so until it is dropped.
pub struct Progress {
    bar: ProgressBar,
    done: Arc<AtomicUsize>,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Of `total` things, which are called `what`. With `lines` also where there is no terminal.
    pub fn new(what: &'static str, total: Option<usize>, lines: bool) -> Self {
        Progress::detailed(what, total, lines, None)
    }

    /// The same, and how far the one is that is being done.
    pub fn detailed(
        what: &'static str,
        total: Option<usize>,
        lines: bool,
        detail: Option<Detail>,
    ) -> Self {
        if std::io::stderr().is_terminal() {
            return Progress::with_bar(what, total, detail);
        }
        if !lines {
            return Progress { bar: ProgressBar::hidden(), done: Arc::default(), ticker: None };
        }
        let say = |line| console::note(format_args!("{line}"));
        Progress::with_lines(what, total, INTERVAL, detail, say)
    }

    fn with_bar(what: &str, total: Option<usize>, detail: Option<Detail>) -> Self {
        let (bar, template) = match total {
            Some(total) => {
                let template =
                    format!("{{bar:40}} {{pos}}/{{len}} {what}, {{elapsed}}{{detail}} {{msg}}");
                (ProgressBar::new(total as u64), template)
            }
            None => {
                (ProgressBar::new_spinner(), format!("{{pos}} {what}, {{elapsed}}{{detail}} {{msg}}"))
            }
        };
        let write = move |_: &ProgressState, text: &mut dyn std::fmt::Write| {
            // What cannot be shown of a bar is no matter.
            let _ = detail.iter().try_for_each(|detail| write!(text, "{detail}"));
        };
        let bar = match ProgressStyle::with_template(&template) {
            Ok(style) => bar.with_style(style.with_key("detail", write)),
            Err(_) => bar,
        };
        bar.enable_steady_tick(TICK);
        Progress { bar, done: Arc::default(), ticker: None }
    }

    /// A line for each interval that passes.
    fn with_lines(
        what: &'static str,
        total: Option<usize>,
        interval: Duration,
        detail: Option<Detail>,
        say: impl Fn(String) + Send + 'static,
    ) -> Self {
        let done = Arc::<AtomicUsize>::default();
        let counted = done.clone();
        let (stop, stopped): (Sender<()>, Receiver<()>) = channel();
        let started = Instant::now();
        let of = total.map_or_else(String::new, |total| format!(" of {total}"));
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                let (done, seconds) = (counted.load(Ordering::Relaxed), started.elapsed().as_secs());
                let detail = detail.as_ref().map_or(String::new(), Detail::to_string);
                say(format!("{done}{of} {what} after {seconds} s{detail}"));
            }
        });
        Progress { bar: ProgressBar::hidden(), done, ticker: Some((stop, thread)) }
    }

    /// One thing more is done.
    pub fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
    }

    /// Something to be seen beside the bar.
    pub fn remark(&self, text: String) {
        self.bar.set_message(text);
    }

    /// Does something with the bar out of the way.
    pub fn aside<R>(&self, act: impl FnOnce() -> R) -> R {
        self.bar.suspend(act)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if let Some((stop, thread)) = self.ticker.take() {
            drop(stop);
            // It only writes lines, and what went wrong with one is no matter.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn where_there_is_no_terminal_lines_say_how_far_it_is() {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let heard = lines.clone();
        let say = move |line| heard.lock().unwrap().push(line);
        let detail = Detail { total: 80, what: "blocks", done: Arc::new(AtomicU64::new(12)) };
        let interval = Duration::from_millis(5);
        let progress = Progress::with_lines("schedules run", Some(3), interval, Some(detail), say);
        progress.step();
        let begun = Instant::now();
        while lines.lock().unwrap().len() < 2 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(progress);
        let lines = lines.lock().unwrap();
        assert!(
            lines.len() >= 2 && lines[1] == "1 of 3 schedules run after 0 s, 12 of 80 blocks",
            "{lines:?}"
        );
    }
}
