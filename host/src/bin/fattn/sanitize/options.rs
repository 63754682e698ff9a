//! How launches are run: options of the command, which a case may give too.

use super::error::{Result, expected};
use clap::{Args, ValueEnum};
use ptx_emulator::Schedule;
use serde::{Deserialize, Serialize};

/// Steps of a block after which it counts as endless.
const STEP_LIMIT: u64 = 1 << 27;

/// What a run depends on besides what is launched.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    /// How warps take turns, and when asynchronous copies land; all by default.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<ScheduleChoice>,
    /// Schedules to run; of `all`, the first two are eager and latest. 10 by default, 1 of eager, latest
    /// and random.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    schedules: Option<u64>,
    /// Seed of the first random schedule, 0 by default; not with eager or latest, which are the same every
    /// time.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Report every read of memory that nothing wrote, even if nothing comes of it.
    #[arg(long)]
    pub strict: bool,
    /// Results may differ between schedules: sums in any order.
    #[arg(long)]
    pub any_order: bool,
    /// Steps of a block after which it counts as endless, at least 1; 2^27 by default. A warp instruction is
    /// one step or, if the emulator takes longer for it, several. No schedule is run after one that gets
    /// there.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    step_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScheduleChoice {
    /// Eager, latest, and random ones.
    All,
    /// Copies land at once; a warp runs until it waits.
    Eager,
    /// Copies land when they are waited for; a warp runs until it waits.
    Latest,
    /// All at random, drawn from a seed.
    Random,
}

impl RunOptions {
    /// These, and where they say nothing those of a case. Schedules and seeds are of one of the two.
    pub fn or(&self, other: &RunOptions) -> RunOptions {
        let says = self.schedule.is_some() || self.schedules.is_some() || self.seed.is_some();
        let RunOptions { schedule, schedules, seed, .. } = if says { self } else { other }.clone();
        RunOptions {
            schedule,
            schedules,
            seed,
            strict: self.strict || other.strict,
            any_order: self.any_order || other.any_order,
            step_limit: self.step_limit.or(other.step_limit),
        }
    }

    /// Steps of a block after which it counts as endless.
    pub fn step_limit(&self) -> Result<u64> {
        match self.step_limit {
            Some(0) => Err(expected("--step-limit", "at least 1", 0)),
            limit => Ok(limit.unwrap_or(STEP_LIMIT)),
        }
    }

    /// The schedules to run, made as they are asked for: there may be as many as there are seeds.
    pub fn schedules(&self) -> Result<impl Iterator<Item = Schedule> + use<>> {
        let choice = self.schedule.unwrap_or(ScheduleChoice::All);
        let count = self.schedules.unwrap_or(if choice == ScheduleChoice::All { 10 } else { 1 });
        let is_fixed = matches!(choice, ScheduleChoice::Eager | ScheduleChoice::Latest);
        if is_fixed && count != 1 {
            return Err(expected("--schedules", "1 of a schedule that is the same every time", count));
        }
        if count == 0 {
            return Err(expected("--schedules", "at least 1", count));
        }
        if let (true, Some(seed)) = (is_fixed, self.seed) {
            return Err(expected("--seed", "none with a schedule that is the same every time", seed));
        }
        let seed = self.seed.unwrap_or(0);
        let before = match choice {
            ScheduleChoice::All | ScheduleChoice::Eager => 0,
            ScheduleChoice::Latest => 1,
            ScheduleChoice::Random => 2,
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(Schedule::usual(seed).skip(before).take(count))
    }
}
