//! Small kernels in clusters of several blocks.
#![allow(dead_code, reason = "each test file uses a part of it")]

use super::{schedules, words};
use ptx_emulator::{FindingKind, Launch, Memory, Module, Options, Report, Schedule, launch};

/// Threads of a block.
pub const THREADS: u32 = 64;
/// All threads of a cluster meet.
pub const SYNC: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
/// A block's thread 0 makes an mbarrier at offset 1024 that awaits one arrival; all of the cluster know of it.
pub const INIT: &str =
    "@%first mbarrier.init.shared::cta.b64 [%base+1024], 1; @%first fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
/// All threads wait for its first phase.
pub const WAIT: &str =
    "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%base+1024], 0; @!%p9 bra W;";

/// A kernel whose threads know their number in `%tid`, 4 bytes of their block's shared memory at `%own`, the same
/// of the other block of a pair at `%peer`, and 4 bytes of global memory at `%mine`, of which each thread of the
/// grid has some.
pub fn kernel(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 data) {{
.shared .align 1024 .b8 room[4096];
.reg .pred %p<10>, %first; .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .f32 %f<4>; .reg .b64 %d<10>, %data, %mine;
.reg .b32 %tid, %rank, %other, %base, %far, %own, %peer;
ld.param.u64 %data, [data];
mov.u32 %tid, %tid.x; setp.eq.u32 %first, %tid, 0;
mov.u32 %rank, %cluster_ctarank; xor.b32 %other, %rank, 1;
mov.u32 %base, room; mapa.shared::cluster.u32 %far, %base, %other;
shl.b32 %r0, %tid, 2; add.u32 %own, %base, %r0; add.u32 %peer, %far, %r0;
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %tid;
mul.wide.u32 %mine, %r0, 4; add.u64 %mine, %mine, %data;
{body}
ret; }}"
    )
}

/// Words of global memory.
pub const WORDS: usize = 2048;

/// What the kernel leaves in global memory, whose words are their own numbers at the start, and what is found.
pub fn run_in(body: &str, grid: [u32; 3], cluster: [u32; 3], options: &Options) -> (Vec<u32>, Report) {
    run_with(body, grid, cluster, THREADS, options)
}

/// The same with so many threads in each block.
pub fn run_with(
    body: &str,
    grid: [u32; 3],
    cluster: [u32; 3],
    threads: u32,
    options: &Options,
) -> (Vec<u32>, Report) {
    let text = kernel(body);
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let memory = Memory::new();
    let data = memory.allocate(4 * WORDS);
    let numbers: Vec<u8> = (0..WORDS as u32).flat_map(u32::to_le_bytes).collect();
    memory.write(data, &numbers).unwrap();
    let (block, params) = ([threads, 1, 1], data.to_le_bytes());
    let shape =
        Launch { grid, block, shared_bytes: 0, regions: &[], cluster: Some(cluster), params: &params };
    let report = launch(module.kernel("k").unwrap(), &memory, &shape, options).unwrap();
    (words(&memory, data, WORDS), report)
}

/// All checks under a schedule.
pub fn under(schedule: Schedule) -> Options {
    Options { schedule, ..Options::default() }
}

/// The same in four blocks, two of each cluster, which must be clean under every schedule.
pub fn clean(body: &str) -> Vec<u32> {
    let mut words = Vec::new();
    for schedule in schedules() {
        let (left, report) = run_in(body, [4, 1, 1], [2, 1, 1], &under(schedule));
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        words = left;
    }
    words
}

/// The kinds that are found under some schedule.
pub fn found(body: &str) -> Vec<FindingKind> {
    let mut kinds = Vec::new();
    for schedule in schedules() {
        let (_, report) = run_in(body, [4, 1, 1], [2, 1, 1], &under(schedule));
        kinds.extend(report.findings.iter().map(|finding| finding.kind));
    }
    kinds.sort_by_key(|kind| kind.to_string());
    kinds.dedup();
    kinds
}

/// The first finding of a kind, which must be found under every schedule.
pub fn always(body: &str, kind: FindingKind) -> String {
    let mut text = String::new();
    for schedule in schedules() {
        let (_, report) = run_in(body, [4, 1, 1], [2, 1, 1], &under(schedule));
        let found = report.findings.iter().find(|finding| finding.kind == kind);
        text = found.unwrap_or_else(|| panic!("{schedule:?}: {:#?}", report.findings)).to_string();
    }
    text
}
