//! Threads and blocks that wait for each other, as many as a GPU runs at once, or for what never comes.

mod common;
use common::{hopper, kernel, run_with, schedules, with_schedule, words};
use ptx_emulator::{FindingKind, Memory, Report};

/// Runs so many blocks on zeros under every schedule: what was found, and the first word.
fn run(ptx: &str, blocks: u32, threads: u32) -> Vec<(Report, u32)> {
    let one = |schedule| {
        let memory = Memory::new();
        let data = memory.allocate(8192);
        memory.write(data, &[0; 8192]).unwrap();
        let mut params = data.to_le_bytes().to_vec();
        params.resize(if ptx.contains("sm_90a") { 192 } else { 8 }, 0);
        let report = run_with(ptx, &memory, blocks, threads, 1024, &params, &with_schedule(schedule));
        (report, words(&memory, data, 1)[0])
    };
    schedules().into_iter().map(one).collect()
}

fn expect_clean(ptx: &str, blocks: u32, threads: u32) {
    for (report, _) in run(ptx, blocks, threads) {
        assert!(report.is_clean(), "{}\n{ptx}", report.findings[0]);
    }
}

fn expect_deadlock(ptx: &str, blocks: u32, threads: u32, waits: &str) {
    for (report, _) in run(ptx, blocks, threads) {
        let first = report.findings.first().unwrap_or_else(|| panic!("clean: {ptx}"));
        assert_eq!(first.kind, FindingKind::Deadlock, "{first}");
        assert!(first.message.contains(waits), "{first}");
    }
}

#[test]
fn threads_that_ask_for_a_phase_that_never_completes_are_a_deadlock() {
    // All but one of the awaited threads arrive; some warps wait at a barrier, some ask, by `test_wait` or `try_wait`.
    let body = |arrivals: u32| {
        hopper::kernel(&format!(
            "@%first mbarrier.init.shared::cta.b64 [%base], {arrivals}; bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [%base];
             setp.eq.u32 %p1, %warp, 1; @%p1 bra BARRIER; setp.eq.u32 %p1, %warp, 2; @%p1 bra TRY;
             W1: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%base], 0; @!%p2 bra W1; bra BARRIER;
             TRY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%base], 0; @!%p2 bra TRY;
             BARRIER: bar.sync 1;"
        ))
    };
    expect_clean(&body(96), 2, 96);
    expect_deadlock(&body(97), 2, 96, "asks for again and again");
    // And those that ask for a word that nobody writes.
    let body = |write: &str| {
        kernel(&format!(
            "mov.u32 %r1, dynamic; setp.ne.u32 %p1, %tid, 0; @!%p1 st.shared.b32 [%r1], 0; bar.sync 0; @%p1 bra SPIN; {write}
             SPIN: ld.relaxed.cta.shared.b32 %r2, [%r1]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN;"
        ))
    };
    expect_clean(&body("st.relaxed.cta.shared.b32 [%r1], 1;"), 1, 64);
    expect_deadlock(&body(""), 1, 64, "asks for again and again");
}

#[test]
fn a_lane_arrives_behind_the_place_where_it_meets_those_who_ask() {
    let body = |poll: &str| {
        hopper::kernel(&format!(
            "@%first mbarrier.init.shared::cta.b64 [%base], 1; bar.sync 0; @%first bra MEET;
             W: {poll} @!%p2 bra W;
             MEET: @%first mbarrier.arrive.shared::cta.b64 _, [%base];"
        ))
    };
    expect_clean(&body("mbarrier.test_wait.parity.shared::cta.b64 %p2, [%base], 0;"), 1, 32);
}

#[test]
fn threads_that_ask_for_long_are_no_deadlock() {
    // The first warp asks; the second one computes, and arrives at last.
    let body = "@%first mbarrier.init.shared::cta.b64 [%base], 32; bar.sync 0; setp.eq.u32 %p1, %warp, 0; @%p1 bra W; mov.u32 %r1, 0;
        WORK: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 400000; @%p2 bra WORK; mbarrier.arrive.shared::cta.b64 _, [%base]; bra END;
        W: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%base], 0; @!%p2 bra W; END:";
    expect_clean(&hopper::kernel(body), 1, 64);
}

/// All blocks count to `awaited`, and wait for each other; the last word that they write is their number.
fn grid_barrier(awaited: u32) -> String {
    kernel(&format!(
        "setp.ne.u32 %p1, %tid, 0; @%p1 bra JOIN; fence.acq_rel.gpu; red.global.add.u32 [%data], 1;
         SPIN: ld.acquire.gpu.global.b32 %r1, [%data]; setp.lt.u32 %p2, %r1, {awaited}; @%p2 bra SPIN;
         JOIN: bar.sync 0;"
    ))
}

#[test]
fn more_blocks_than_take_turns_wait_for_each_other() {
    for blocks in [3, 64, 65, 150] {
        for (report, count) in run(&grid_barrier(blocks), blocks, 64) {
            assert!(report.is_clean(), "{blocks} blocks: {}", report.findings[0]);
            assert_eq!(count, blocks);
        }
    }
}

#[test]
fn blocks_that_ask_for_what_no_block_writes_are_a_deadlock() {
    expect_deadlock(&grid_barrier(3), 2, 64, "asks for again and again");
    let lock = "setp.ne.u32 %p1, %tid, 0; @%p1 bra END;
        TAKE: atom.acquire.gpu.global.cas.b32 %r1, [%data], 0, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra TAKE;";
    expect_deadlock(&kernel(&format!("{lock} END:")), 3, 32, "asks for again and again");
    expect_clean(&kernel(&format!("{lock} st.release.gpu.global.b32 [%data], 0; END:")), 3, 32);
}

#[test]
fn findings_of_many_blocks_are_one_from_the_first() {
    let ptx = kernel(
        "mov.u32 %r1, dynamic;\nld.shared.b32 %r2, [%r1]; setp.eq.u32 %p1, %r2, 1; @%p1 bra END; END:",
    );
    for (report, _) in run(&ptx, 200, 32) {
        let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
        assert_eq!((finding.block, finding.occurrences), ([0; 3], 200 * 32));
    }
}
