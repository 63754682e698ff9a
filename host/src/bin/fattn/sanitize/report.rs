//! What all schedules together showed.

mod elements;
mod sarif;
mod write;

use super::buffer::Buffer;
use super::launch::{Ran, Setup};
use elements::Elements;
use ptx_emulator::{Finding, FindingKind, Schedule, Severity, Statistics, Trace};

/// A finding, and under which schedules.
struct Found {
    finding: Finding,
    /// The first.
    schedule: Schedule,
    schedules: usize,
}

/// A buffer whose bytes depend on the schedule.
struct Difference {
    buffer: usize,
    schedules: [Schedule; 2],
    /// The first element that differs, and both values.
    element: usize,
    values: [String; 2],
}

/// All of it.
pub struct Summary<'k> {
    setup: &'k Setup<'k>,
    target: String,
    schedules: Vec<Schedule>,
    found: Vec<Found>,
    differences: Vec<Difference>,
    /// Of the last schedule.
    last: Option<Ran>,
    /// Whether a difference is a finding.
    differences_count: bool,
    /// Findings of the emulator that are printed at most.
    max_printed: usize,
    statistics: Statistics,
    /// What the last schedule printed.
    output: String,
    /// Whether it is asked where values come from that are not finite.
    pub traces: bool,
    /// Where the first value came from that is not finite, if that is asked for.
    trace: Option<Trace>,
}

/// `eager`, `latest`, `random (seed 3)`.
fn schedule_text(schedule: Schedule) -> String {
    match schedule {
        Schedule::Eager => "eager".to_owned(),
        Schedule::Latest => "latest".to_owned(),
        Schedule::Random(seed) => format!("random (seed {seed})"),
    }
}

/// The options that run this schedule again.
fn replay_text(schedule: Schedule) -> String {
    match schedule {
        Schedule::Eager => "--schedule eager".to_owned(),
        Schedule::Latest => "--schedule latest".to_owned(),
        Schedule::Random(seed) => format!("--schedule random --seed {seed}"),
    }
}

impl<'k> Summary<'k> {
    pub fn new(setup: &'k Setup<'k>, target: &str, differences_count: bool, max_printed: usize) -> Self {
        Summary {
            setup,
            target: target.to_owned(),
            schedules: Vec::new(),
            found: Vec::new(),
            differences: Vec::new(),
            last: None,
            differences_count,
            max_printed,
            statistics: Statistics::default(),
            output: String::new(),
            traces: false,
            trace: None,
        }
    }

    /// Adds what a schedule showed.
    pub fn add(&mut self, schedule: Schedule, ran: Ran) {
        for finding in &ran.report.findings {
            let is_same = |found: &&mut Found| {
                let other = &found.finding;
                (other.kind, other.ptx_line) == (finding.kind, finding.ptx_line)
            };
            match self.found.iter_mut().find(is_same) {
                Some(found) => found.schedules += 1,
                None => self.found.push(Found { finding: finding.clone(), schedule, schedules: 1 }),
            }
        }
        // What a block leaves that stopped depends on how far the others got: the fault says it all.
        let has_stopped =
            |ran: &Ran| ran.report.findings.iter().any(|found| found.kind.spoils_results());
        if let (Some(last), Some(&before)) = (&self.last, self.schedules.last())
            && !has_stopped(last)
            && !has_stopped(&ran)
        {
            for (index, buffer) in self.setup.buffers.iter().enumerate() {
                let is_known = self.differences.iter().any(|difference| difference.buffer == index);
                let (left, right) = (&last.buffers[index].0, &ran.buffers[index].0);
                if let Some((element, values)) =
                    first_difference(buffer, left, right).filter(|_| !is_known)
                {
                    let schedules = [before, schedule];
                    self.differences.push(Difference { buffer: index, schedules, element, values });
                }
            }
        }
        self.statistics = ran.report.statistics;
        self.output.clone_from(&ran.report.output);
        let traced = self.trace.as_ref().is_some_and(|trace| trace.first.is_some());
        if self.traces && !traced {
            self.trace = Some(ran.report.trace.clone());
        }
        self.schedules.push(schedule);
        self.last = Some(ran);
    }

    /// Whether a block of the last schedule reached the step limit.
    pub fn is_endless(&self) -> bool {
        let findings = self.last.iter().flat_map(|ran| &ran.report.findings);
        findings.into_iter().any(|finding| finding.kind == FindingKind::StepLimit)
    }

    /// The bytes of each buffer after the last schedule.
    pub fn bytes(&self) -> impl Iterator<Item = (&Buffer, &[u8])> {
        let bytes = self.last.iter().flat_map(|ran| &ran.buffers);
        self.setup.buffers.iter().zip(bytes.map(|(bytes, _)| bytes.as_slice()))
    }

    /// Errors, warnings and notes. What is wrong with a buffer is an error.
    pub fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        self.found.iter().for_each(|found| counts[found.finding.severity() as usize] += 1);
        let differences = if self.differences_count { self.differences.len() } else { 0 };
        let elements = self.elements();
        let demands = elements.iter().map(|(buffer, elements)| elements.broken(buffer).len());
        counts[Severity::Error as usize] += differences + demands.sum::<usize>();
        counts
    }

    /// Those of the emulator's findings that are printed: the worst, and of them those that were met first.
    fn printed(&self) -> Vec<&Found> {
        let mut found: Vec<&Found> = self.found.iter().collect();
        found.sort_by_key(|found| found.finding.severity());
        found.truncate(self.max_printed);
        found
    }

    /// Whether a race in global memory was found under a schedule, which may lack an acquire alone.
    pub fn has_global_race(ran: &Ran) -> bool {
        ran.report.findings.iter().any(|finding| finding.kind == FindingKind::GlobalRace)
    }

    /// Of races in global memory those lack only an acquire that are not found where there always is one.
    pub fn weigh_races(ran: &mut Ran, acquired: &Ran) {
        for finding in &mut ran.report.findings {
            let stays = acquired.report.findings.iter().any(|other| {
                (other.kind, other.ptx_line, &other.ptx)
                    == (finding.kind, finding.ptx_line, &finding.ptx)
            });
            if finding.kind == FindingKind::GlobalRace && !stays {
                finding.kind = FindingKind::MissingAcquire;
                finding.message +=
                    "; a fence or an acquire behind the atomic operation that saw the other's would";
            }
        }
    }

    fn elements(&self) -> Vec<(&Buffer, Elements)> {
        let left = self.last.iter().flat_map(|ran| &ran.buffers);
        let elements = |(buffer, (bytes, written)): (_, &(Vec<u8>, Vec<bool>))| {
            (buffer, Elements::of(buffer, bytes, written))
        };
        self.setup.buffers.iter().zip(left).map(elements).collect()
    }
}

/// The first element that two schedules left different, and both values.
fn first_difference(buffer: &Buffer, left: &[u8], right: &[u8]) -> Option<(usize, [String; 2])> {
    let size = buffer.element.bytes();
    let mut pairs = left.chunks(size).zip(right.chunks(size)).enumerate();
    let (element, (left, right)) = pairs.find(|(_, (left, right))| left != right)?;
    Some((element, [left, right].map(|bytes| buffer.element.text(bytes))))
}
