//! The system's part of shared memory, in which cooperative groups let warps meet, and barriers of the whole grid.

mod common;
use common::{run_with, schedules, with_schedule, words};
use ptx_emulator::{FindingKind, Launch, Memory, Module, Options, Report, Schedule, Space, launch};

fn text(body: &str) -> String {
    format!(
        ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];
         .visible .entry k(.param .u64 data) {{ .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %d<8>; .reg .b64 %data, %mine;
         .reg .b32 %tid, %lane, %warp; .shared .align 4 .b32 own[64];
         ld.param.u64 %data, [data]; mov.u32 %tid, %tid.x; mov.u32 %lane, %laneid; shr.u32 %warp, %tid, 5;
         mov.u32 %r31, %ctaid.x; mov.u32 %r30, %ntid.x; mad.lo.u32 %r31, %r31, %r30, %tid;
         mul.wide.u32 %mine, %r31, 4; add.s64 %mine, %mine, %data;
         {body}
         ret; }}"
    )
}

fn run(body: &str, blocks: u32, threads: u32, options: &Options) -> (Report, Vec<u32>) {
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let report = run_with(&text(body), &memory, blocks, threads, 64, &data.to_le_bytes(), options);
    (report, words(&memory, data, 1024))
}

/// Two warps hand each other a number as tiles of 64 threads do: each clears its bit, both set them; the last
/// one adds the numbers up and clears the bits again, for which the other waits. `begin`: what they do once bits are
/// clear.
fn tile(begin: &str, wait: &str) -> String {
    format!(
        "st.shared.b32 [own], 7; mov.u32 %r1, %reserved_smem_offset_1; setp.eq.u32 %p1, %lane, 0; mov.u32 %r3, 1; mov.u32 %r4, 0;
         shl.b32 %r3, %r3, %warp; not.b32 %r2, %r3; @%p1 red.shared.and.release.cta.b32 [%r1], %r2; {begin}
         shl.b32 %r5, %warp, 3; add.u32 %r5, %r5, %r1; add.u32 %r6, %warp, 40; st.shared.b32 [%r5+32], %r6; bar.warp.sync -1;
         @%p1 atom.shared.or.acq_rel.cta.b32 %r4, [%r1], %r3; shfl.sync.idx.b32 %r4, %r4, 0, 31, -1; or.b32 %r4, %r4, %r3;
         and.b32 %r4, %r4, 3; setp.ne.u32 %p2, %r4, 3; @%p2 bra OTHER;
         @!%p1 bra LAST; ld.shared.b32 %r7, [%r1+32]; ld.shared.b32 %r8, [%r1+40]; add.u32 %r7, %r7, %r8;
         st.shared.b32 [%r1+32], %r7; st.shared.b32 [%r1+40], %r7;
         LAST: bar.warp.sync -1; @%p1 red.shared.and.release.cta.b32 [%r1], 0; bra DONE;
         OTHER: {wait}
         DONE: bar.warp.sync -1; ld.shared.b32 %r9, [%r5+32]; st.global.b32 [%mine], %r9;"
    )
}

const WAIT: &str = "ld.shared.acquire.cta.b32 %r10, [%r1]; and.b32 %r10, %r10, %r3; setp.ne.u32 %p3, %r10, 0; @%p3 bra OTHER;";

#[test]
fn warps_meet_in_the_systems_part() {
    for schedule in schedules() {
        let (report, words) = run(&tile("barrier.sync 0;", WAIT), 2, 64, &with_schedule(schedule));
        let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
        // What all threads write to `own` is the same.
        assert!(kinds.iter().all(|kind| *kind == FindingKind::RedundantWrites), "{:?}", report.findings);
        assert_eq!(words[..128], [81; 128]);
    }
    // Without the wait, the first one reads while the last one writes.
    let races = schedules().into_iter().filter(|&schedule| {
        let (report, _) = run(&tile("barrier.sync 0;", ""), 1, 64, &with_schedule(schedule));
        report.findings.iter().any(|finding| finding.kind == FindingKind::SharedRace)
    });
    assert!(races.count() > 0);
    // Where a warp does not wait until the other one's bit is clear, it goes on without it: bits may be set before.
    for schedule in schedules() {
        let (report, _) = run(&tile("", WAIT), 1, 64, &with_schedule(schedule));
        let is_wrong = |kind| kind != FindingKind::RedundantWrites;
        assert!(report.findings.iter().any(|finding| is_wrong(finding.kind)), "{schedule:?}");
    }
}

#[test]
fn what_nobody_wrote_there_is_not_defined() {
    let read = "mov.u32 %r1, %reserved_smem_offset_begin; ld.shared.b32 %r2, [%r1+64]; st.global.b32 [%mine], %r2;";
    let (report, _) = run(read, 1, 32, &Options::default());
    let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::UninitialisedRead { space: Space::Shared }]);
}

/// It counts for no limit, and kernels that do not name it have none.
#[test]
fn it_is_not_the_kernels_own() {
    let named = "mov.u32 %r1, %reserved_smem_offset_0; mov.u32 %r2, %total_smem_size; st.global.b32 [%mine], %r2;";
    for body in [named, "mov.u32 %r2, %total_smem_size; st.global.b32 [%mine], %r2;"] {
        let module = Module::parse(&text(&format!("st.shared.b32 [own], 7; {body}"))).unwrap();
        let kernel = module.kernel("k").unwrap();
        assert_eq!(kernel.static_shared_bytes(), 256);
        for (bytes, fits) in [(227 * 1024 - 256, true), (227 * 1024 - 255, false)] {
            let memory = Memory::new();
            let data = memory.allocate(4096);
            let params = data.to_le_bytes();
            let (grid, block, regions) = ([1; 3], [1, 1, 1], &[][..]);
            let shape = Launch { shared_bytes: bytes, regions, ..Launch::new(grid, block, &params) };
            let options = Options { schedule: Schedule::Eager, ..Options::default() };
            assert_eq!(launch(kernel, &memory, &shape, &options).is_ok(), fits);
            if fits {
                assert_eq!(words(&memory, data, 1)[0], 227 * 1024);
            }
        }
    }
}

/// In a cluster each block has its own, whose bits are set at the start for every cluster.
#[test]
fn blocks_of_a_cluster_have_their_own() {
    let body =
        "mov.u32 %r1, %reserved_smem_offset_1; ld.shared.b32 %r2, [%r1]; st.global.b32 [%mine], %r2;
                mov.u32 %r3, %ctaid.x; add.u32 %r3, %r3, 9; st.shared.b32 [%r1], %r3;
                ld.shared.b32 %r4, [%r1]; st.global.b32 [%mine+64], %r4;
                barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    let module = Module::parse(&text(body)).unwrap();
    let memory = Memory::new();
    let data = memory.allocate(4096);
    let params = data.to_le_bytes();
    let (grid, block, regions, cluster) = ([4, 1, 1], [1, 1, 1], &[][..], Some([2, 1, 1]));
    let shape = Launch { grid, block, shared_bytes: 0, regions, cluster, params: &params };
    let report = launch(module.kernel("k").unwrap(), &memory, &shape, &Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let words = words(&memory, data, 20);
    assert_eq!((&words[..4], &words[16..20]), (&[u32::MAX; 4][..], &[9, 10, 11, 12][..]));
}

/// A barrier of the grid, in the workspace that `%envreg1` and `%envreg2` point to, as cooperative groups have it:
/// the first block adds what completes the count, and its top bit turns.
fn grid_barrier(fences: [&str; 2]) -> String {
    format!(
        "mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %d1, {{%r2, %r1}}; add.u32 %r3, %r31, 5;
         st.global.b32 [%mine], %r3; barrier.sync 0; setp.ne.u32 %p1, %tid, 0; @%p1 bra BEHIND;
         mov.u32 %r4, %nctaid.x; sub.u32 %r5, 0x80000001, %r4; mov.u32 %r6, %ctaid.x; setp.eq.u32 %p2, %r6, 0;
         selp.b32 %r7, %r5, 1, %p2; {}
         atom.add.relaxed.gpu.u32 %r8, [%d1+4], %r7;
         W: ld.relaxed.gpu.u32 %r9, [%d1+4]; xor.b32 %r10, %r9, %r8; setp.ge.s32 %p3, %r10, 0; @%p3 bra W; {}
         BEHIND: barrier.sync 0; mul.lo.u32 %r11, %r4, %r30; mov.u32 %r12, %nctaid.x; mul.lo.u32 %r12, %r12, %r30;
         sub.u32 %r12, %r12, %r31; mul.wide.u32 %d2, %r12, 4; add.s64 %d2, %d2, %data; ld.global.b32 %r13, [%d2+-4];
         st.global.b32 [%mine+2048], %r13;",
        fences[0], fences[1]
    )
}

#[test]
fn grids_meet() {
    let fence = "fence.acq_rel.gpu;";
    for schedule in schedules() {
        let (report, words) = run(&grid_barrier([fence; 2]), 4, 64, &with_schedule(schedule));
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        (0..256).for_each(|thread| assert_eq!(words[512 + thread], 5 + 255 - thread as u32));
        let (report, _) = run(&grid_barrier(["", fence]), 4, 64, &with_schedule(schedule));
        assert!(report.findings.iter().any(|finding| finding.kind == FindingKind::GlobalRace));
    }
}
