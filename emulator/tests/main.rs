//! The emulator from outside: a file per family of instructions, and per kind of finding.
//!
//! One program, since each takes long to link. Files have paths, so that those in folders are found from each of them.
#![expect(clippy::duplicate_mod, reason = "each file has its own copy of the helpers it uses")]

#[path = "async_copy.rs"]
mod async_copy;
#[path = "atomic.rs"]
mod atomic;
#[path = "bulk.rs"]
mod bulk;
#[path = "calls.rs"]
mod calls;
#[path = "cluster_copies.rs"]
mod cluster_copies;
#[path = "clusters.rs"]
mod clusters;
#[path = "control.rs"]
mod control;
#[path = "convert.rs"]
mod convert;
#[path = "dependent.rs"]
mod dependent;
#[path = "faults.rs"]
mod faults;
#[path = "float.rs"]
mod float;
#[path = "forms.rs"]
mod forms;
#[path = "gpu_facts.rs"]
mod gpu_facts;
#[path = "hopper.rs"]
mod hopper;
#[path = "hopper_faults.rs"]
mod hopper_faults;
#[path = "integer.rs"]
mod integer;
#[path = "matrix.rs"]
mod matrix;
#[path = "matrix_sparse.rs"]
mod matrix_sparse;
#[path = "matrix_types.rs"]
mod matrix_types;
#[path = "mbarrier.rs"]
mod mbarrier;
#[path = "memory.rs"]
mod memory;
#[path = "one_side.rs"]
mod one_side;
#[path = "parse.rs"]
mod parse;
#[path = "proxies.rs"]
mod proxies;
#[path = "races.rs"]
mod races;
#[path = "rare.rs"]
mod rare;
#[path = "regions.rs"]
mod regions;
#[path = "registers.rs"]
mod registers;
#[path = "robustness.rs"]
mod robustness;
#[path = "select.rs"]
mod select;
#[path = "strong.rs"]
mod strong;
#[path = "stuck.rs"]
mod stuck;
#[path = "system_shared.rs"]
mod system_shared;
#[path = "taint.rs"]
mod taint;
#[path = "targets.rs"]
mod targets;
#[path = "tensor_map.rs"]
mod tensor_map;
#[path = "trace.rs"]
mod trace;
#[path = "video.rs"]
mod video;
#[path = "warp.rs"]
mod warp;
#[path = "warpgroups.rs"]
mod warpgroups;
#[path = "wgmma.rs"]
mod wgmma;
#[path = "wmma.rs"]
mod wmma;
