//! Helpers shared by the property tests of `tests/`, one file per property.
//!
//! Set by environment variables:
//! - `FATTN_DEVICE`: where the tests run, `emulated:sm_80` unless said otherwise; `cuda` on a machine
//!   with a GPU
//! - `FATTN_CASES`: cases per property; by default few on the emulator and hundreds on a GPU
//! - `FATTN_SCHEDULES`: schedules of the emulator under which the kernels of the zoo must be clean, 3
//!   unless said otherwise
//! - `FATTN_SEED`: seed of the cases; `random` for a new one. Unless said otherwise each test has its own, the
//!   same in every run. Printed with every failure: with it the case is drawn again
//!
//! A failing case is shrunk together with its schedule ([`attempts`]) and its seed kept under `proptest-regressions/`, to be run first
//! from then on.

pub mod attempts;
pub mod cases;
pub mod compare;
pub mod device;
pub mod property;
pub mod ptx;
pub mod recorder;
pub mod rule;
pub mod shapes;
pub mod sources;
pub mod sweep;
pub mod verdict;
pub mod zoo;
