//! Helpers shared by the property tests of `tests/`, one file per property.
//!
//! Set by environment variables:
//! - `FATTN_DEVICE`: where the tests run; `cuda` on a machine with a GPU. Unless said otherwise the emulator: each case
//!   of a property for a target that is drawn with it, everything else for `sm_80`
//! - `FATTN_CASES`: cases per property, or `all` that it names, and then all of what shares are drawn of ([`share`]); by
//!   default a third of these on the emulator, and hundreds on a GPU
//! - `FATTN_SCHEDULES`: schedules of the emulator under which the kernels of the zoo must be clean, 3
//!   unless said otherwise
//! - `FATTN_SEED`: a number that moves the seeds of all cases, or `random` for any; 0 unless said otherwise. Printed
//!   with every failure: with it the case is drawn again. `cargo xtask ci` takes another one for each commit
//!
//! A failing case is shrunk together with its schedule ([`attempts`]) and its seed kept under `proptest-regressions/`, to be run first
//! from then on.

pub mod attempts;
pub mod cases;
pub mod compare;
pub mod device;
pub mod errors;
pub mod kept;
pub mod property;
pub mod ptx;
pub mod recorder;
pub mod rule;
pub mod seed;
pub mod shapes;
pub mod share;
pub mod sources;
pub mod sweep;
pub mod verdict;
pub mod zoo;
