//! Small kernels of compute capability 9.0.
#![allow(dead_code, reason = "each test file uses a part of it")]

use super::{run_with, schedules, with_schedule, words};
use ptx_emulator::{Address, Finding, Memory, Options, Report};

/// A kernel around a body: `%data` is the parameter `data`, `map` a tensor map, `%tid` the thread,
/// `%base` the start of 16 KiB of shared memory, `%lane` and `%warp` what they say.
pub fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 dynamic[];
.visible .entry k(.param .u64 data, .param .align 64 .b8 map[128])
.maxntid 384, 1, 1
{{
.reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %d<32>; .reg .f32 %f<300>;
.reg .b64 %data, %mine, %map; .reg .b32 %tid, %base, %lane, %warp; .reg .pred %first;
ld.param.u64 %data, [data]; mov.b64 %map, map; cvta.param.u64 %map, %map;
mov.u32 %tid, %tid.x; mov.u32 %lane, %laneid; shr.u32 %warp, %tid, 5; mov.u32 %base, dynamic;
mul.wide.u32 %mine, %tid, 4; add.s64 %mine, %mine, %data; setp.eq.u32 %first, %tid, 0;
{body}
ret; }}"
    )
}

/// What a body left in its memory, and what was found.
pub struct Outcome {
    pub words: Vec<u32>,
    pub report: Report,
}

/// Bytes of a body's memory.
pub const BYTES: usize = 32768;

/// Runs a body on 32 KiB of memory in which each word holds its number. `map` makes the tensor map from
/// the memory's address.
pub fn run_body(
    body: &str,
    threads: u32,
    map: impl Fn(Address) -> [u64; 16],
    options: &Options,
) -> Outcome {
    let memory = Memory::new();
    let data = memory.allocate(BYTES);
    let bytes: Vec<u8> = (0..BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect();
    memory.write(data, &bytes).unwrap();
    let mut params = vec![0; 64];
    params[..8].copy_from_slice(&data.to_le_bytes());
    params.extend(map(data).iter().flat_map(|word| word.to_le_bytes()));
    let report = run_with(&kernel(body), &memory, 1, threads, 16384, &params, options);
    Outcome { words: words(&memory, data, BYTES / 4), report }
}

/// No tensor map.
pub fn no_map(_: Address) -> [u64; 16] {
    [0; 16]
}

/// Runs a body that must be clean under every schedule, and gives the words of the last run.
pub fn run_clean(body: &str, threads: u32, map: impl Fn(Address) -> [u64; 16]) -> Vec<u32> {
    let mut result = Vec::new();
    for schedule in schedules() {
        let outcome = run_body(body, threads, &map, &with_schedule(schedule));
        assert!(outcome.report.is_clean(), "{schedule:?}: {}", outcome.report.findings[0]);
        result = outcome.words;
    }
    result
}

/// The first finding of a body under every schedule.
pub fn findings(body: &str, threads: u32, map: impl Fn(Address) -> [u64; 16]) -> Vec<Finding> {
    let first = |schedule| {
        let report = run_body(body, threads, &map, &with_schedule(schedule)).report;
        report.findings.into_iter().next().unwrap_or_else(|| panic!("{schedule:?}: clean"))
    };
    schedules().into_iter().map(first).collect()
}
