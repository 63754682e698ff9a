//! The report as text and as JSON.

use super::super::buffer::Buffer;
use super::super::launch::{Shape, Step};
use super::super::names::readable;
use super::elements::Elements;
use super::{Difference, Summary, replay_text};
use ptx_emulator::{Finding, Region, SourceLocation, Surveyed};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Findings of one line of the source.
struct Group<'f> {
    place: String,
    found: Vec<&'f Surveyed>,
}

/// The line that a finding is about: where the outermost call stands that the code was inlined into, or,
/// without line tables, the line of the PTX.
fn place(finding: &Finding) -> String {
    match &finding.source {
        Some(SourceLocation { file, line, .. }) => format!("{file}:{line}"),
        None => format!("PTX line {}", finding.ptx_line),
    }
}

/// The clusters of a launch, if it has any.
fn cluster_of(step: &Step<'_>) -> Option<[u32; 3]> {
    step.shape.cluster.or(step.kernel.required_cluster())
}

/// `2 errors, 1 note`.
pub fn counts([errors, warnings, notes]: [usize; 3]) -> String {
    let mut parts = Vec::new();
    for (count, name) in [(errors, "error"), (warnings, "warning"), (notes, "note")] {
        match count {
            0 => {}
            1 => parts.push(format!("1 {name}")),
            _ => parts.push(format!("{count} {name}s")),
        }
    }
    parts.join(", ")
}

fn by_severity<'f>(found: impl Iterator<Item = &'f Surveyed>) -> [usize; 3] {
    let mut counts = [0; 3];
    found.for_each(|found| counts[found.finding.severity() as usize] += 1);
    counts
}

impl Summary<'_> {
    /// The findings that are printed, by line of the source: first those with the worst.
    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for found in self.printed() {
            let place = place(&found.finding);
            match groups.iter_mut().find(|group| group.place == place) {
                Some(group) => group.found.push(found),
                None => groups.push(Group { place, found: vec![found] }),
            }
        }
        groups
    }

    /// The report for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let size = |[x, y, z]: [u32; 3]| format!("{x}x{y}x{z}");
        let launches = &self.setup.launches;
        for (number, step) in launches.iter().enumerate() {
            let Step { source, kernel, shape, .. } = step;
            let Shape { grid, block, shared_bytes, regions, .. } = shape;
            let cluster =
                cluster_of(step).map_or(String::new(), |sizes| format!(", cluster {}", size(sizes)));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{}kernel {} ({}), grid {}, block {}{cluster}, {shared_bytes} bytes of dynamic shared memory",
                if launches.len() > 1 { format!("launch {}: ", number + 1) } else { String::new() },
                readable(kernel.name()),
                source.module.target(),
                size(*grid),
                size(*block),
            );
            for region in regions {
                let _ = writeln!(text, "region {region}");
            }
        }
        let names: Vec<String> = self.survey.schedules.iter().map(|schedule| schedule.name()).collect();
        let plural = if names.len() == 1 { "" } else { "s" };
        let _ = writeln!(text, "{} schedule{plural}: {}", names.len(), names.join(", "));
        let mut number = 0;
        for Group { place, found } in self.groups() {
            if found.len() > 1 {
                let _ = writeln!(text, "\n{place}: {}", counts(by_severity(found.iter().copied())));
            }
            for Surveyed { finding, launch, schedule, schedules } in found {
                number += 1;
                let finding = Finding { kernel: readable(&finding.kernel), ..finding.clone() };
                let _ = writeln!(text, "\n{number}. {}: {finding}", finding.severity());
                if launches.len() > 1 {
                    let _ = writeln!(text, "  in launch {} of {}", launch + 1, launches.len());
                }
                let _ = writeln!(
                    text,
                    "  under {schedules} of {} schedules, again with {}",
                    names.len(),
                    replay_text(*schedule)
                );
            }
        }
        let _ = writeln!(text);
        match self.not_run() {
            0 => {}
            1 => text += "the last launch did not run: the one before it has left spoiled results\n\n",
            left => {
                let _ = writeln!(
                    text,
                    "the last {left} launches did not run: the one before them has left spoiled results\n"
                );
            }
        }
        if let Some(trace) = &self.trace {
            let first = trace.first.as_ref().or(trace.suspect.as_ref());
            let _ = match first {
                Some(origin) => writeln!(text, "first value that is not finite: {origin}\n"),
                None => writeln!(text, "no value that is not finite comes from finite ones\n"),
            };
        }
        for line in self.output.lines() {
            let _ = writeln!(text, "printed: {line}");
        }
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
                a.name(),
                values[1],
                b.name()
            );
        }
        let all = counts(self.counts());
        let hidden = self.survey.found.len() - self.printed().len();
        let _ = match (all.is_empty(), hidden) {
            (true, _) => writeln!(text, "nothing found"),
            (_, 0) => writeln!(text, "{all}"),
            _ => writeln!(text, "{all}; {hidden} of them not shown"),
        };
        text
    }

    /// The report for a program.
    pub fn json(&self) -> Value {
        let region = |region: &Region| {
            let Region { name, offset, bytes } = region;
            json!({ "name": name, "offset": offset, "bytes": bytes })
        };
        let launch = |step: &Step| {
            let Step { source, kernel, shape, .. } = step;
            let Shape { grid, block, shared_bytes, regions, .. } = shape;
            json!({
                "kernel": kernel.name(),
                "name": readable(kernel.name()),
                "target": source.module.target(),
                "grid": grid,
                "block": block,
                "cluster": cluster_of(step),
                "shared_bytes": shared_bytes,
                "regions": regions.iter().map(region).collect::<Vec<_>>(),
            })
        };
        let found = |Surveyed { finding, launch, schedule, schedules }: &Surveyed| {
            json!({
                "launch": launch,
                "kernel": finding.kernel,
                "severity": finding.severity(),
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
                "wrong": elements.wrong.len(),
                "first_wrong": elements.wrong.first(),
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
        let [errors, warnings, notes] = self.counts();
        let mut report = json!({
            "launches": self.setup.launches.iter().map(launch).collect::<Vec<_>>(),
            "not_run": self.not_run(),
            "schedules": self.survey.schedules.iter().map(|schedule| schedule.name()).collect::<Vec<_>>(),
            "findings": self.printed().into_iter().map(found).collect::<Vec<_>>(),
            "buffers": self.elements().into_iter().map(elements).collect::<Vec<_>>(),
            "differences": self.differences.iter().map(difference).collect::<Vec<_>>(),
            "output": self.output,
            "trace": self.trace,
            "statistics": self.statistics,
            "errors": errors,
            "warnings": warnings,
            "notes": notes,
            "count": errors + warnings + notes,
            "shown": errors + warnings + notes - (self.survey.found.len() - self.printed().len()),
        });
        // A single launch also stands at the top.
        if let [only] = self.setup.launches.as_slice()
            && let (Value::Object(report), Value::Object(launch)) = (&mut report, launch(only))
        {
            report.extend(launch);
        }
        report
    }
}
