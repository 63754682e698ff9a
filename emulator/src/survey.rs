//! What the same launches showed under several schedules.

use crate::options::Schedule;
use crate::report::{Finding, FindingKind, Report};

/// A finding, and under which schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct Surveyed {
    /// As the first of them met it.
    pub finding: Finding,
    /// The launch that it is of, from 0.
    pub launch: usize,
    /// The first of them.
    pub schedule: Schedule,
    /// How many.
    pub schedules: usize,
}

/// The findings of launches that ran one after the other, once under each of some schedules.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// One for each launch, kind and instruction, in the order in which they were met.
    pub found: Vec<Surveyed>,
    /// The schedules, in order.
    pub schedules: Vec<Schedule>,
}

impl Survey {
    /// Adds what a schedule showed, launch by launch.
    pub fn add(&mut self, schedule: Schedule, reports: &[Report]) {
        for (launch, report) in reports.iter().enumerate() {
            for finding in &report.findings {
                let is_same = |found: &&mut Surveyed| {
                    let other = &found.finding;
                    (found.launch, other.kind, other.ptx_line)
                        == (launch, finding.kind, finding.ptx_line)
                };
                match self.found.iter_mut().find(is_same) {
                    Some(found) => found.schedules += 1,
                    None => {
                        let finding = finding.clone();
                        self.found.push(Surveyed { finding, launch, schedule, schedules: 1 });
                    }
                }
            }
        }
        self.schedules.push(schedule);
    }

    /// How many are errors, warnings and notes.
    pub fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        self.found.iter().for_each(|found| counts[found.finding.severity() as usize] += 1);
        counts
    }

    /// So many at most: the worst, and of them those that were met first.
    pub fn worst(&self, most: usize) -> Vec<&Surveyed> {
        let mut found: Vec<&Surveyed> = self.found.iter().collect();
        found.sort_by_key(|found| found.finding.severity());
        found.truncate(most);
        found
    }
}

/// Whether there is a race in global memory, which may lack an acquire alone: [`weigh_races`].
pub fn has_global_race(reports: &[Report]) -> bool {
    let mut findings = reports.iter().flat_map(|report| &report.findings);
    findings.any(|finding| finding.kind == FindingKind::GlobalRace)
}

/// Of races in global memory, those that are not found where every atomic operation acquires
/// ([`crate::Options::acquire_always`]) are of the kind [`FindingKind::MissingAcquire`].
pub fn weigh_races(reports: &mut [Report], acquired: &[Report]) {
    for (report, acquired) in reports.iter_mut().zip(acquired) {
        for finding in &mut report.findings {
            let stays = acquired.findings.iter().any(|other| {
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
}

/// Whether what launches have left is not what their kernels compute: blocks have stopped, or left lanes out.
pub fn are_spoiled(reports: &[Report]) -> bool {
    let mut findings = reports.iter().flat_map(|report| &report.findings);
    findings.any(|finding| finding.kind.spoils_results())
}

impl Schedule {
    /// What it is called: `eager`, `latest`, `random (seed 3)`.
    pub fn name(self) -> String {
        match self {
            Schedule::Eager => "eager".to_owned(),
            Schedule::Latest => "latest".to_owned(),
            Schedule::Random(seed) => format!("random (seed {seed})"),
        }
    }

    /// Eager, latest, and random ones from this seed on.
    pub fn usual(seed: u64) -> impl Iterator<Item = Schedule> {
        let random = (0..=u64::MAX).map(move |index| Schedule::Random(seed.wrapping_add(index)));
        [Schedule::Eager, Schedule::Latest].into_iter().chain(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::severity::Severity;
    use crate::space::Space;

    fn report(kinds: &[FindingKind]) -> Report {
        let finding = |(line, &kind): (usize, &FindingKind)| Finding {
            kind,
            kernel: "k".to_owned(),
            block: [0; 3],
            thread: [0; 3],
            ptx_line: line as u32,
            ptx: "st".to_owned(),
            source: None,
            message: String::new(),
            occurrences: 1,
        };
        Report { findings: kinds.iter().enumerate().map(finding).collect(), ..Report::default() }
    }

    #[test]
    fn findings_of_schedules_are_counted_once_for_each_launch_and_line() {
        let beyond = FindingKind::OutOfBounds { space: Space::Global };
        let reports = [report(&[FindingKind::RedundantWrites, beyond]), report(&[beyond])];
        let mut survey = Survey::default();
        survey.add(Schedule::Eager, &reports[..1]);
        survey.add(Schedule::Latest, &reports);
        let found: Vec<_> =
            survey.found.iter().map(|found| (found.launch, found.schedule, found.schedules)).collect();
        assert_eq!(found, [(0, Schedule::Eager, 2), (0, Schedule::Eager, 2), (1, Schedule::Latest, 1)]);
        assert_eq!(survey.counts(), [2, 0, 1]);
        assert_eq!(survey.worst(1)[0].finding.kind, beyond);
        assert!(are_spoiled(&reports) && !are_spoiled(&[report(&[FindingKind::GlobalRace])]));
    }

    #[test]
    fn a_race_that_an_acquire_ends_lacks_only_that() {
        let mut reports = [report(&[FindingKind::GlobalRace, FindingKind::GlobalRace])];
        assert!(has_global_race(&reports));
        weigh_races(&mut reports, &[report(&[FindingKind::GlobalRace])]);
        let kinds: Vec<_> = reports[0].findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::GlobalRace, FindingKind::MissingAcquire]);
        assert_eq!(reports[0].findings[1].severity(), Severity::Warning);
    }
}
