//! The library and the command from outside.
//!
//! One program, since each takes long to link. Files have paths, so that those in folders are found from each of them.
#![expect(clippy::duplicate_mod, reason = "each file has its own copy of the helpers it uses")]

#[path = "anomaly.rs"]
mod anomaly;
#[path = "backward.rs"]
mod backward;
#[path = "backward_errors.rs"]
mod backward_errors;
#[path = "c_header.rs"]
mod c_header;
#[path = "check.rs"]
mod check;
#[cfg(feature = "cli")]
#[path = "cli.rs"]
mod cli;
#[cfg(feature = "cli")]
#[path = "cli_console.rs"]
mod cli_console;
#[cfg(feature = "cli")]
#[path = "cli_dropout.rs"]
mod cli_dropout;
#[cfg(feature = "cli")]
#[path = "cli_dynamic.rs"]
mod cli_dynamic;
#[cfg(feature = "cli")]
#[path = "cli_msda.rs"]
mod cli_msda;
#[cfg(feature = "cli")]
#[path = "cli_options.rs"]
mod cli_options;
#[cfg(feature = "cli")]
#[path = "cli_output.rs"]
mod cli_output;
#[cfg(feature = "cli")]
#[path = "cli_readme.rs"]
mod cli_readme;
#[cfg(feature = "cli")]
#[path = "cli_scores.rs"]
mod cli_scores;
#[path = "errors.rs"]
mod errors;
#[path = "forward.rs"]
mod forward;
#[path = "msda_errors.rs"]
mod msda_errors;
#[path = "no_device.rs"]
mod no_device;
#[cfg(feature = "cli")]
#[path = "sanitize.rs"]
mod sanitize;
#[cfg(feature = "cli")]
#[path = "sanitize_cases.rs"]
mod sanitize_cases;
#[cfg(feature = "cli")]
#[path = "sanitize_clusters.rs"]
mod sanitize_clusters;
#[cfg(feature = "cli")]
#[path = "sanitize_options.rs"]
mod sanitize_options;
#[cfg(feature = "cli")]
#[path = "sanitize_values.rs"]
mod sanitize_values;
#[path = "score_errors.rs"]
mod score_errors;
#[cfg(feature = "cli")]
#[path = "trace.rs"]
mod trace;
