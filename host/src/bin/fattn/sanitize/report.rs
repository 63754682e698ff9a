//! What all schedules together showed, as text and as JSON.

use super::buffer::Buffer;
use super::element::Class;
use super::launch::{Ran, Setup};
use ptx_emulator::{Finding, FindingKind, Region, Schedule, Statistics};
use serde_json::{Value, json};
use std::fmt::Write as _;

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

/// What is wrong with the elements of a buffer.
struct Elements {
    nan: Vec<usize>,
    infinite: Vec<usize>,
    unwritten: Vec<usize>,
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
            |ran: &Ran| ran.report.findings.iter().any(|found| found.kind.stops_the_block());
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

    /// Faults of all kinds.
    pub fn count(&self) -> usize {
        let differences = if self.differences_count { self.differences.len() } else { 0 };
        let elements = self.elements();
        let demands = elements.iter().map(|(buffer, elements)| elements.broken(buffer).len());
        self.found.len() + differences + demands.sum::<usize>()
    }

    /// Those of the emulator's findings that are printed.
    fn printed(&self) -> &[Found] {
        &self.found[..self.found.len().min(self.max_printed)]
    }

    /// Faults that are printed; of those in buffers, all are.
    fn shown(&self) -> usize {
        self.count() - (self.found.len() - self.printed().len())
    }

    fn elements(&self) -> Vec<(&Buffer, Elements)> {
        let left = self.last.iter().flat_map(|ran| &ran.buffers);
        let elements = |(buffer, (bytes, written)): (_, &(Vec<u8>, Vec<bool>))| {
            (buffer, Elements::of(buffer, bytes, written))
        };
        self.setup.buffers.iter().zip(left).map(elements).collect()
    }

    /// The report for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let Setup { kernel, grid, block, shared_bytes, regions, .. } = self.setup;
        let size = |[x, y, z]: [u32; 3]| format!("{x}x{y}x{z}");
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "kernel {} ({}), grid {}, block {}, {shared_bytes} bytes of dynamic shared memory",
            kernel.name(),
            self.target,
            size(*grid),
            size(*block),
        );
        for region in regions {
            let _ = writeln!(text, "region {region}");
        }
        let names: Vec<String> = self.schedules.iter().copied().map(schedule_text).collect();
        let plural = if names.len() == 1 { "" } else { "s" };
        let _ = writeln!(text, "{} schedule{plural}: {}", names.len(), names.join(", "));
        for (number, Found { finding, schedule, schedules }) in self.printed().iter().enumerate() {
            let _ = writeln!(text, "\n{}. {finding}", number + 1);
            let _ = writeln!(
                text,
                "  under {schedules} of {} schedules, again with {}",
                names.len(),
                replay_text(*schedule)
            );
        }
        let _ = writeln!(text);
        for (buffer, elements) in self.elements() {
            let _ = writeln!(text, "{}", elements.line(buffer));
        }
        for Difference { buffer, schedules: [a, b], element, values } in &self.differences {
            let _ = writeln!(
                text,
                "{}: depends on the schedule: element {element} is {} under {} and {} under {} (--any-order \
                 if that is meant: sums in any order, slots that atomic operations hand out)",
                self.setup.buffers[*buffer].name,
                values[0],
                schedule_text(*a),
                values[1],
                schedule_text(*b)
            );
        }
        let (count, shown) = (self.count(), self.shown());
        let _ = match count {
            0 => writeln!(text, "nothing found"),
            1 => writeln!(text, "1 finding"),
            _ if shown < count => writeln!(text, "{count} findings, {shown} shown"),
            _ => writeln!(text, "{count} findings"),
        };
        text
    }

    /// The report for a program.
    pub fn json(&self) -> Value {
        let Setup { kernel, grid, block, shared_bytes, regions, .. } = self.setup;
        let region = |region: &Region| {
            let Region { name, offset, bytes } = region;
            json!({ "name": name, "offset": offset, "bytes": bytes })
        };
        let found = |Found { finding, schedule, schedules }: &Found| {
            json!({
                "kind": finding.kind.to_string(),
                "block": finding.block,
                "thread": finding.thread,
                "ptx_line": finding.ptx_line,
                "ptx": finding.ptx,
                "source": finding.source,
                "message": finding.message,
                "occurrences": finding.occurrences,
                "schedules": schedules,
                "replay": replay_text(*schedule),
            })
        };
        let elements = |(buffer, elements): (&Buffer, Elements)| {
            json!({
                "name": buffer.name,
                "dtype": buffer.element.name(),
                "elements": buffer.len(),
                "nan": elements.nan.len(),
                "first_nan": elements.nan.first(),
                "infinite": elements.infinite.len(),
                "first_infinite": elements.infinite.first(),
                "unwritten": elements.unwritten.len(),
                "first_unwritten": elements.unwritten.first(),
                "broken": elements.broken(buffer),
            })
        };
        let difference = |difference: &Difference| {
            json!({
                "buffer": self.setup.buffers[difference.buffer].name,
                "element": difference.element,
                "values": difference.values,
                "replay": difference.schedules.map(replay_text),
            })
        };
        json!({
            "kernel": kernel.name(),
            "target": self.target,
            "grid": grid,
            "block": block,
            "shared_bytes": shared_bytes,
            "regions": regions.iter().map(region).collect::<Vec<_>>(),
            "schedules": self.schedules.iter().copied().map(schedule_text).collect::<Vec<_>>(),
            "findings": self.printed().iter().map(found).collect::<Vec<_>>(),
            "buffers": self.elements().into_iter().map(elements).collect::<Vec<_>>(),
            "differences": self.differences.iter().map(difference).collect::<Vec<_>>(),
            "statistics": self.statistics,
            "count": self.count(),
            "shown": self.shown(),
        })
    }
}

/// The first element that two schedules left different, and both values.
fn first_difference(buffer: &Buffer, left: &[u8], right: &[u8]) -> Option<(usize, [String; 2])> {
    let size = buffer.element.bytes();
    let mut pairs = left.chunks(size).zip(right.chunks(size)).enumerate();
    let (element, (left, right)) = pairs.find(|(_, (left, right))| left != right)?;
    Some((element, [left, right].map(|bytes| buffer.element.text(bytes))))
}

impl Elements {
    fn of(buffer: &Buffer, bytes: &[u8], written: &[bool]) -> Self {
        let size = buffer.element.bytes();
        let is_written = |index: usize| written[index * size..][..size].iter().all(|&written| written);
        let all = |class| {
            let classes = bytes.chunks(size).map(|bytes| buffer.element.class(bytes));
            let of_class = classes.enumerate().filter(|&(index, own)| own == class && is_written(index));
            of_class.map(|(index, _)| index).collect()
        };
        let unwritten = (0..buffer.len()).filter(|&index| !is_written(index)).collect();
        Elements { nan: all(Class::Nan), infinite: all(Class::Infinite), unwritten }
    }

    /// Which demands on the buffer do not hold.
    fn broken(&self, buffer: &Buffer) -> Vec<&'static str> {
        let demands = [
            ("finite", buffer.finite && !(self.nan.is_empty() && self.infinite.is_empty())),
            ("written", buffer.written && !self.unwritten.is_empty()),
        ];
        demands.into_iter().filter(|&(_, broken)| broken).map(|(name, _)| name).collect()
    }

    fn line(&self, buffer: &Buffer) -> String {
        let count = |what: &str, places: &[usize]| match places {
            [] => format!("0 {what}"),
            [first, ..] => format!("{} {what} (first: element {first})", places.len()),
        };
        let mut counts = vec![count("never written", &self.unwritten)];
        if buffer.element.is_float() {
            counts.insert(0, count("NaN", &self.nan));
            counts.insert(1, count("infinite", &self.infinite));
        }
        let broken = match self.broken(buffer).as_slice() {
            [] => String::new(),
            broken => format!(" -- not {}", broken.join(", not ")),
        };
        format!(
            "{}: {} {}: {}{broken}",
            buffer.name,
            buffer.len(),
            buffer.element.name(),
            counts.join(", ")
        )
    }
}
