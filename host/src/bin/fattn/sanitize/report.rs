//! What all schedules together showed.

mod elements;
mod sarif;
mod write;

use super::buffer::Buffer;
use super::launch::{Ran, Setup};
use elements::Elements;
use ptx_emulator::{FindingKind, Schedule, Severity, Statistics, Survey, Surveyed, Trace, are_spoiled};

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
    survey: Survey,
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

/// The options that run this schedule again.
fn replay_text(schedule: Schedule) -> String {
    match schedule {
        Schedule::Eager => "--schedule eager".to_owned(),
        Schedule::Latest => "--schedule latest".to_owned(),
        Schedule::Random(seed) => format!("--schedule random --seed {seed}"),
    }
}

impl<'k> Summary<'k> {
    pub fn new(setup: &'k Setup<'k>, differences_count: bool, max_printed: usize) -> Self {
        Summary {
            setup,
            survey: Survey::default(),
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
        // What a block leaves that stopped depends on how far the others got: the fault says it all.
        if let (Some(last), Some(&before)) = (&self.last, self.survey.schedules.last())
            && !are_spoiled(&last.reports)
            && !are_spoiled(&ran.reports)
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
        self.statistics = Statistics::default();
        self.output.clear();
        for report in &ran.reports {
            self.statistics.add(&report.statistics);
            self.output += &report.output;
            let traced = self.trace.as_ref().is_some_and(|trace| trace.first.is_some());
            if self.traces && !traced {
                self.trace = Some(report.trace.clone());
            }
        }
        self.survey.add(schedule, &ran.reports);
        self.last = Some(ran);
    }

    /// Whether a block of the last schedule reached the step limit.
    pub fn is_endless(&self) -> bool {
        let mut findings = self.last.iter().flat_map(Ran::findings);
        findings.any(|finding| finding.kind == FindingKind::StepLimit)
    }

    /// The bytes of each buffer after the last schedule.
    pub fn bytes(&self) -> impl Iterator<Item = (&Buffer, &[u8])> {
        let bytes = self.last.iter().flat_map(|ran| &ran.buffers);
        self.setup.buffers.iter().zip(bytes.map(|(bytes, _)| bytes.as_slice()))
    }

    /// Errors, warnings and notes. What is wrong with a buffer is an error.
    pub fn counts(&self) -> [usize; 3] {
        let mut counts = self.survey.counts();
        let differences = if self.differences_count { self.differences.len() } else { 0 };
        let elements = self.elements();
        let demands = elements.iter().map(|(buffer, elements)| elements.broken(buffer).len());
        counts[Severity::Error as usize] += differences + demands.sum::<usize>();
        counts
    }

    /// Those of the emulator's findings that are printed.
    fn printed(&self) -> Vec<&Surveyed> {
        self.survey.worst(self.max_printed)
    }

    /// Launches that did not run in the last schedule, behind one whose results are spoiled.
    fn not_run(&self) -> usize {
        self.last.as_ref().map_or(0, |ran| self.setup.launches.len() - ran.reports.len())
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
