//! The report in the Static Analysis Results Interchange Format (SARIF) 2.1.0, which editors and CI show.

use super::super::names::readable;
use super::{Summary, replay_text};
use ptx_emulator::{Finding, Severity, SourceLocation, Surveyed};
use serde_json::{Value, json};

/// A rule's name: `raceInSharedMemory`.
fn rule(finding: &Finding) -> String {
    let kind = finding.kind.to_string();
    let words = kind.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = String::new();
    for (index, word) in words.enumerate() {
        let (first, rest) = word.split_at(1);
        name += &if index == 0 { first.to_lowercase() } else { first.to_uppercase() };
        name += rest;
    }
    name
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// A place in a file; columns count from 1, and 0 is none.
fn location(file: &str, line: u32, column: u32) -> Value {
    let mut region = json!({ "startLine": line.max(1) });
    if column != 0 {
        region["startColumn"] = column.into();
    }
    json!({ "physicalLocation": { "artifactLocation": { "uri": file }, "region": region } })
}

/// A finding, and where it stands: in the source if that is known, and then in the PTX, too.
fn result(Surveyed { finding, schedule, .. }: &Surveyed, ptx: &str) -> Value {
    let in_ptx = location(ptx, finding.ptx_line, 0);
    let mut places: Vec<Value> =
        std::iter::successors(finding.source.as_ref(), |place| place.inlined_at.as_deref())
            .map(|SourceLocation { file, line, column, .. }| location(file, *line, *column))
            .collect();
    places.push(in_ptx);
    let ([x, y, z], [a, b, c]) = (finding.block, finding.thread);
    json!({
        "ruleId": rule(finding),
        "level": level(finding.severity()),
        "message": { "text": format!(
            "{}: {} (in {}, block ({x}, {y}, {z}), thread ({a}, {b}, {c}); again with {})",
            finding.kind, finding.message, readable(&finding.kernel), replay_text(*schedule)
        ) },
        "locations": [places.remove(0)],
        "relatedLocations": places,
    })
}

impl Summary<'_> {
    /// All findings of the emulator, and what is wrong with buffers.
    pub fn sarif(&self) -> Value {
        let texts: Vec<String> =
            self.setup.launches.iter().map(|step| step.source.path.display().to_string()).collect();
        let found = self.survey.found.iter().map(|found| result(found, &texts[found.launch]));
        let mut results: Vec<Value> = found.collect();
        let buffers = self.elements().into_iter().flat_map(|(buffer, elements)| {
            let name = &buffer.name;
            elements
                .broken(buffer)
                .into_iter()
                .map(|demand| format!("{name}: not {demand}"))
                .collect::<Vec<_>>()
        });
        let differences = self.differences.iter().filter(|_| self.differences_count);
        let differences = differences
            .map(|found| format!("{}: depends on the schedule", self.setup.buffers[found.buffer].name));
        for text in buffers.chain(differences) {
            results.push(json!({
                "ruleId": "buffer",
                "level": "error",
                "message": { "text": text },
                "locations": texts.last().map(|ptx| location(ptx, 1, 0)).into_iter().collect::<Vec<_>>(),
            }));
        }
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": { "name": "fattn sanitize", "version": env!("CARGO_PKG_VERSION") } },
                "results": results,
            }],
        })
    }
}
