//! What shows that a kernel is wrong: findings of the emulator, or results beyond the tolerance rule.

use crate::device::emulated;
use crate::ptx::spec;
use crate::recorder::{of_size, recording, small, with_room_for, without_counters};
use crate::shapes::{in_parts, many_key_tiles_in_order};
use crate::sources::{Place, goes_through};
use finite_attention::check::{
    Case, ComputedGradients, GradientInputs, Inputs, Remembered, Surroundings, compute_with,
    run_case_again, run_case_in_parts,
};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{Device, Error, KernelImages};
use kernels_gpu::abi::Family;

/// Steps of a block after which a mutant counts as endless: some hundred times what a case takes.
const STEP_LIMIT: u64 = 1 << 26;

/// Blocks that share out the tiles, where several do.
const SHARING_BLOCKS: u32 = 3;

/// Random schedules of such.
const SHARING_SCHEDULES: u64 = 64;

/// The cases that kernels were tried with.
static REMEMBERED: Remembered = Remembered::new();

/// A finding of the emulator.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The kind, as its first words say: `race in shared memory`.
    pub kind: String,
    /// The whole text.
    pub text: String,
    /// The source line, then the calls that it was inlined into.
    pub places: Vec<Place>,
}

impl Finding {
    fn parse(text: &str) -> Self {
        let kind = text.split(": ").next().unwrap_or_default().to_owned();
        let place = |line: &str| {
            let line = line.trim_start();
            Place::parse(line.strip_prefix("inlined at ").or(line.strip_prefix("at "))?)
        };
        Finding { kind, text: text.to_owned(), places: text.lines().filter_map(place).collect() }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Everything is as it should be.
    Clean,
    /// The emulator found something.
    Findings(Vec<Finding>),
    /// A result is wrong, or something outside was written.
    Wrong(String),
    /// The text is no kernel.
    Refused(String),
}

impl Verdict {
    /// Whether a finding of this kind is in a place whose chain of calls goes through these lines.
    pub fn has(&self, kind: &str, through: &[&str]) -> bool {
        let Verdict::Findings(findings) = self else { return false };
        findings.iter().any(|finding| finding.kind == kind && goes_through(&finding.places, through))
    }

    /// One line of it.
    pub fn summary(&self) -> String {
        match self {
            Verdict::Clean => "nothing".to_owned(),
            Verdict::Findings(findings) => {
                let mut kinds: Vec<&str> = Vec::new();
                for Finding { kind, .. } in findings {
                    if !kinds.contains(&kind.as_str()) {
                        kinds.push(kind);
                    }
                }
                kinds.join(", ")
            }
            Verdict::Wrong(text) => {
                let tensor = text.split(':').next().unwrap_or_default();
                format!("{tensor} is wrong")
            }
            Verdict::Refused(text) => format!("refused: {text}"),
        }
    }
}

/// Runs a case in the emulator under a schedule, with these images in place of `kernel`. The device is planned for as
/// a small one, so that blocks have several tiles.
///
/// # Panics
/// If the case is planned for another kernel.
pub fn judge(kernel: &str, images: KernelImages, case: &Case, schedule: Schedule) -> Verdict {
    judge_on(&small(&emulated(spec(kernel).arch, images, options(schedule))), kernel, case)
}

/// The options of the emulator under a schedule: strict, as the project's kernels load nothing that nobody wrote.
pub fn options(schedule: Schedule) -> Options {
    Options { schedule, step_limit: Some(STEP_LIMIT), strict: true, ..Options::default() }
}

/// Runs a case on a device that has other images in place of `kernel`. A case of packed sequences runs twice: then
/// with inputs of NaN in every other sequence, which must not reach those between.
///
/// # Panics
/// If the case is planned for another kernel.
pub fn judge_on(device: &Device, kernel: &str, case: &Case) -> Verdict {
    let spec = spec(kernel);
    let is_helper = spec.takes_any_strides()
        || matches!(spec.family, Family::BackwardConvert | Family::BiasGradient);
    let device = if is_helper { device.clone() } else { with_room_for(device, spec) };
    let (device, launched) = &recording(&device);
    match run_case_again(device, case, Inputs::drawn, &REMEMBERED) {
        Ok((outcome, _)) => {
            let ran = launched.names();
            assert!(ran.contains(kernel), "the case is planned for {ran:?}, not {kernel}");
            let failure = outcome.failure.map(Verdict::Wrong);
            failure.or_else(|| case.packed.then(|| neighbours(device, case))).unwrap_or(Verdict::Clean)
        }
        Err(error) => of_error(error),
    }
}

fn of_error(error: Error) -> Verdict {
    match error {
        Error::Findings { findings, .. } => {
            Verdict::Findings(findings.iter().map(|text| Finding::parse(text)).collect())
        }
        error => Verdict::Refused(error.to_string()),
    }
}

/// Sequences 1, 3, 5 of packed ones have inputs of NaN: all results of the others are finite.
fn neighbours(device: &Device, case: &Case) -> Verdict {
    let [first_queries, first_keys] = case.offsets();
    let is_poisoned = |firsts: &[i32], row: usize| {
        (firsts.partition_point(|&first| first as usize <= row) - 1) % 2 == 1
    };
    let poison = |values: &mut [f32], firsts: &[i32], per_row: usize| {
        let rows = values.chunks_mut(per_row).enumerate();
        rows.filter(|(row, _)| is_poisoned(firsts, *row)).for_each(|(_, values)| values.fill(f32::NAN));
    };
    let Case { query_heads, key_heads, head_dim, value_dim, .. } = *case;
    let (mut inputs, mut gradients) = (Inputs::drawn(case), GradientInputs::drawn(case));
    poison(&mut inputs.q, &first_queries, query_heads * head_dim);
    poison(&mut inputs.k, &first_keys, key_heads * head_dim);
    poison(&mut inputs.v, &first_keys, key_heads * value_dim);
    poison(&mut gradients.d_o, &first_queries, query_heads * value_dim);
    let computed = match compute_with(device, case, &inputs, &gradients, Surroundings::Nan) {
        Ok(computed) => computed,
        Err(error) => return of_error(error),
    };
    let mut tensors = vec![("o", &computed.o, &first_queries, query_heads * value_dim)];
    if let Some(gradients) = &computed.gradients {
        tensors.push(("dq", &gradients.dq, &first_queries, query_heads * head_dim));
        tensors.push(("dk", &gradients.dk, &first_keys, key_heads * head_dim));
        tensors.push(("dv", &gradients.dv, &first_keys, key_heads * value_dim));
    }
    for (name, numbers, firsts, per_row) in tensors {
        let infected = numbers.chunks(per_row).enumerate().position(|(row, numbers)| {
            !is_poisoned(firsts, row) && numbers.iter().any(|number| !number.is_finite())
        });
        if let Some(row) = infected {
            return Verdict::Wrong(format!("{name}: row {row}: NaN from another sequence"));
        }
    }
    Verdict::Clean
}

/// As [`judge`], where several blocks share out the tiles: by counters, and without.
///
/// # Panics
/// As [`judge`].
pub fn judge_sharing(kernel: &str, images: KernelImages, case: &Case, schedule: Schedule) -> Verdict {
    let device = emulated(spec(kernel).arch, images, options(schedule));
    match judge_on(&of_size(&device, SHARING_BLOCKS), kernel, case) {
        Verdict::Clean => judge_on(&without_counters(&device, SHARING_BLOCKS), kernel, case),
        verdict => verdict,
    }
}

/// As [`judge`], of a case whose keys are taken apart: passes that merge with what others have left.
///
/// # Panics
/// As [`judge`].
pub fn judge_in_parts(kernel: &str, images: KernelImages, schedule: Schedule) -> Verdict {
    let Some(cases) = in_parts(kernel) else { return Verdict::Clean };
    let device = small(&emulated(spec(kernel).arch, images, options(schedule)));
    let (device, launched) = &recording(&with_room_for(&device, spec(kernel)));
    for (case, parts) in cases {
        match run_case_in_parts(device, &case, &parts) {
            Ok((outcome, _)) => {
                let ran = launched.names();
                assert!(ran.contains(kernel), "the passes are planned for {ran:?}, not {kernel}");
                if let Some(failure) = outcome.failure {
                    return Verdict::Wrong(failure);
                }
            }
            Err(error) => return of_error(error),
        }
    }
    Verdict::Clean
}

/// Whether gradients that are to be the same in every run are so under every schedule, where several blocks share
/// out the tiles. Inputs are as drawn.
///
/// # Panics
/// As [`judge`].
fn judge_repeats(kernel: &str, images: KernelImages, case: &Case) -> Verdict {
    let (inputs, gradients) = (Inputs::drawn(case), GradientInputs::drawn(case));
    let mut first: Option<Vec<Vec<u32>>> = None;
    for schedule in schedules(SHARING_SCHEDULES) {
        let device = emulated(spec(kernel).arch, images.clone(), options(schedule));
        let device = of_size(&device, SHARING_BLOCKS);
        let computed = match compute_with(&device, case, &inputs, &gradients, Surroundings::Nan) {
            Ok(computed) => computed,
            Err(error) => return of_error(error),
        };
        let Some(gradients) = computed.gradients else { return Verdict::Clean };
        let bits = |numbers: &Vec<f32>| numbers.iter().map(|number| number.to_bits()).collect();
        let ComputedGradients { dq, dk, dv, d_bias, d_sinks, .. } = &gradients;
        let now = [dq, dk, dv, d_bias, d_sinks].map(bits).to_vec();
        if *first.get_or_insert_with(|| now.clone()) != now {
            return Verdict::Wrong(format!("gradients: others under schedule {schedule:?}"));
        }
    }
    Verdict::Clean
}

/// One thing that a kernel is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// [`judge_in_parts`].
    InParts(Schedule),
    /// [`judge`] of the case with this number.
    Alone(usize, Schedule),
    /// [`judge_sharing`] of the case with this number.
    Sharing(usize, Schedule),
    /// [`judge_repeats`].
    Repeats,
}

/// All that a kernel is tried with: passes over some of the keys, which are few, under the first schedule, all cases,
/// passes under the other schedules, then the first case, and the first of packed sequences, where blocks share out
/// the tiles, then gradients that are to be the same in every run.
fn trials(cases: &[Case], schedules: &[Schedule]) -> Vec<Trial> {
    let numbers = move |schedule| (0..cases.len()).map(move |case| Trial::Alone(case, schedule));
    let alone = schedules.iter().copied().flat_map(numbers);
    let case = |packed| cases.iter().position(move |case| case.packed == packed);
    let shared = |schedule| {
        let cases = [false, true].into_iter().filter_map(case);
        cases.map(move |case| Trial::Sharing(case, schedule))
    };
    let shared = self::schedules(SHARING_SCHEDULES).into_iter().flat_map(shared);
    let (soon, late) = schedules.split_at(schedules.len().min(1));
    let [soon, late] = [soon, late].map(|some| some.iter().copied().map(Trial::InParts));
    soon.chain(alone).chain(late).chain(shared).chain([Trial::Repeats]).collect()
}

impl Trial {
    /// What becomes of a kernel.
    fn verdict(self, kernel: &str, images: &KernelImages, cases: &[Case]) -> Verdict {
        match self {
            Trial::InParts(schedule) => judge_in_parts(kernel, images.clone(), schedule),
            Trial::Alone(case, schedule) => judge(kernel, images.clone(), &cases[case], schedule),
            Trial::Sharing(case, schedule) => {
                judge_sharing(kernel, images.clone(), &cases[case], schedule)
            }
            Trial::Repeats => many_key_tiles_in_order(kernel)
                .map_or(Verdict::Clean, |case| judge_repeats(kernel, images.clone(), &case)),
        }
    }
}

/// What has shown of other kernels that they are wrong, the last first: it is tried first of the next.
#[derive(Debug, Default)]
pub struct Shown(Vec<Trial>);

impl Shown {
    /// What becomes of the kernel that ships where others have shown that they are wrong: that means nothing unless
    /// this one is clean.
    pub fn control(&self, kernel: &str, shipped: &KernelImages, cases: &[Case]) -> Verdict {
        let mut verdicts = self.0.iter().map(|trial| trial.verdict(kernel, shipped, cases));
        verdicts.find(|verdict| !matches!(verdict, Verdict::Clean)).unwrap_or(Verdict::Clean)
    }
}

/// The first verdict that is not clean of all that a kernel is tried with: what has shown something of others first.
///
/// # Panics
/// As [`judge`].
pub fn first(
    kernel: &str,
    images: &KernelImages,
    cases: &[Case],
    schedules: &[Schedule],
    shown: &mut Shown,
) -> Verdict {
    let trials = trials(cases, schedules);
    let known = shown.0.iter().filter(|trial| trials.contains(trial));
    let others = trials.iter().filter(|trial| !shown.0.contains(trial));
    let mut verdicts = known.chain(others).map(|&trial| (trial, trial.verdict(kernel, images, cases)));
    let Some((trial, verdict)) = verdicts.find(|(_, verdict)| !matches!(verdict, Verdict::Clean)) else {
        return Verdict::Clean;
    };
    shown.0.retain(|known| *known != trial);
    shown.0.insert(0, trial);
    verdict
}

/// Latest, eager, and so many random schedules.
pub fn schedules(random: u64) -> Vec<Schedule> {
    [Schedule::Latest, Schedule::Eager].into_iter().chain((0..random).map(Schedule::Random)).collect()
}
