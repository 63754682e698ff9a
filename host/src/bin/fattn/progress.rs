//! How far a command is, on standard error: a bar on a terminal, elsewhere a line now and then.

use crate::console;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two lines, where there is no terminal.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two pictures of a bar.
const TICK: Duration = Duration::from_millis(500);

/// How far a command is. Says so until it is dropped.
pub struct Progress {
    bar: ProgressBar,
    done: Arc<AtomicUsize>,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Of `total` things, which are called `what`. With `lines` also where there is no terminal.
    pub fn new(what: &'static str, total: Option<usize>, lines: bool) -> Self {
        if std::io::stderr().is_terminal() {
            return Progress::with_bar(what, total);
        }
        if !lines {
            return Progress { bar: ProgressBar::hidden(), done: Arc::default(), ticker: None };
        }
        Progress::with_lines(what, total, INTERVAL, |line| console::note(format_args!("{line}")))
    }

    fn with_bar(what: &str, total: Option<usize>) -> Self {
        let (bar, template) = match total {
            Some(total) => {
                let template = format!("{{bar:40}} {{pos}}/{{len}} {what}, {{elapsed}} {{msg}}");
                (ProgressBar::new(total as u64), template)
            }
            None => (ProgressBar::new_spinner(), format!("{{pos}} {what}, {{elapsed}} {{msg}}")),
        };
        let bar = match ProgressStyle::with_template(&template) {
            Ok(style) => bar.with_style(style),
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
                say(format!("{done}{of} {what} after {seconds} s"));
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
        let progress = Progress::with_lines("schedules run", Some(3), Duration::from_millis(5), say);
        progress.step();
        let begun = Instant::now();
        while lines.lock().unwrap().len() < 2 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(progress);
        let lines = lines.lock().unwrap();
        assert!(lines.len() >= 2 && lines[1] == "1 of 3 schedules run after 0 s", "{lines:?}");
    }
}
