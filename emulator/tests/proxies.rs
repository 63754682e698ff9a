//! Bulk copies and the memory that threads wrote: which fence lets the asynchronous proxy see it, and where none can.

mod common;
use common::hopper::{BYTES, kernel};
use common::{run_with, schedules, with_schedule};
use ptx_emulator::{Finding, FindingKind, Memory};

const LOAD: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes";
const STORE: &str = "cp.async.bulk.global.shared::cta.bulk_group";
const ADD: &str = "cp.reduce.async.bulk.global.shared::cta.bulk_group";

/// The first finding of a body under every schedule, in so many blocks of 64 threads.
fn findings(body: &str, blocks: u32) -> Vec<Option<Finding>> {
    let run = |schedule| {
        let memory = Memory::new();
        let data = memory.allocate(BYTES);
        memory.write(data, &vec![0; BYTES]).unwrap();
        let mut params = vec![0; 192];
        params[..8].copy_from_slice(&data.to_le_bytes());
        let options = with_schedule(schedule);
        let report = run_with(&kernel(body), &memory, blocks, 64, 16384, &params, &options);
        report.findings.into_iter().next()
    };
    schedules().into_iter().map(run).collect()
}

fn expect_clean(body: &str, blocks: u32) {
    let found = findings(body, blocks).into_iter().flatten().next();
    assert!(found.is_none(), "{}\n{body}", found.map_or(String::new(), |found| found.to_string()));
}

/// Of this kind, at the only line that holds the text, whatever the schedule.
fn expect(body: &str, blocks: u32, kind: FindingKind, at: &str) -> Finding {
    let source = kernel(body);
    let place = source.lines().position(|line| line.contains(at)).expect("the text is there");
    let mut last = None;
    for found in findings(body, blocks) {
        let found = found.unwrap_or_else(|| panic!("clean: {body}"));
        assert_eq!((found.kind, found.ptx_line), (kind, place as u32 + 1), "{found}");
        last = Some(found);
    }
    last.expect("there are schedules")
}

/// Loads the first 256 bytes, and waits for them.
fn load() -> String {
    format!(
        "mbarrier.init.shared::cta.b64 [%base], 1; fence.mbarrier_init.release.cluster;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 256;
         {LOAD} [%base+16], [%data], 256, [%base];
         W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W;"
    )
}

/// Threads touch bytes; `before` and `behind` the barrier are fences; then one thread loads or stores them.
fn in_a_block(touch: &str, before: &str, barrier: &str, behind: &str, copy: &str) -> String {
    format!("{touch} {before} {barrier} @!%first bra END; {behind}\n{copy}\nEND:")
}

#[test]
fn a_load_sees_what_threads_wrote_behind_a_fence() {
    let (write, barrier) = ("st.global.b32 [%mine], %tid;", "bar.sync 0;");
    for fence in ["fence.proxy.async;", "fence.proxy.async.global;"] {
        expect_clean(&in_a_block(write, fence, barrier, "", &load()), 1);
        expect_clean(&in_a_block(write, "", barrier, fence, &load()), 1);
        // A fence orders nothing by itself.
        let found = findings(&in_a_block(write, fence, "", "", &load()), 1);
        let found: Vec<Finding> = found.into_iter().flatten().collect();
        assert!(!found.is_empty());
        assert!(found.iter().all(|found| found.kind == FindingKind::GlobalRace), "{}", found[0]);
    }
    for fence in ["", "fence.proxy.async.shared::cta;", "fence.acq_rel.gpu;"] {
        for body in [
            in_a_block(write, fence, barrier, "", &load()),
            in_a_block(write, "", barrier, fence, &load()),
        ] {
            let found = expect(&body, 1, FindingKind::MissingProxyFence, LOAD);
            assert!(found.message.contains("`st.global.b32 [%mine], %tid`"), "{found}");
            assert!(found.message.contains("no fence.proxy.async behind it"), "{found}");
        }
    }
    // What is not loaded is nobody's affair.
    expect_clean(&in_a_block("st.global.b32 [%mine+256], %tid;", "", barrier, "", &load()), 1);
    // A fence behind the start of the load comes too late for it.
    let late = load().replace("W:", "fence.proxy.async; W:");
    expect(&in_a_block(write, "", barrier, "", &late), 1, FindingKind::MissingProxyFence, LOAD);
}

/// One thread starts the load, and threads write before it is waited for; `before` and `behind` are fences.
fn written_in_flight(before: &str, write: &str, behind: &str) -> String {
    let load = load();
    let (start, wait) = load.split_once("W:").expect("it waits");
    format!(
        "@!%first bra NEXT; {before}\n{start} NEXT: bar.sync 0;
         shl.b32 %r1, %tid, 2; add.s32 %r1, %r1, %base;
         {write}
         {behind} bar.sync 0; @!%first bra END;
         W:{wait}\nEND:"
    )
}

const FENCE: &str = "fence.proxy.async;";
const FENCES: [(&str, &str); 4] = [("", ""), (FENCE, ""), ("", FENCE), (FENCE, FENCE)];

#[test]
fn a_write_of_what_a_load_in_flight_reads_is_a_race_and_lacks_no_fence() {
    for (before, behind) in FENCES {
        let body = written_in_flight(before, "st.global.b32 [%mine], %tid;", behind);
        let found: Vec<Finding> = findings(&body, 1).into_iter().flatten().collect();
        // Where the load comes first after all, nothing is found.
        assert!(!found.is_empty());
        for finding in found {
            assert_eq!(finding.kind, FindingKind::GlobalRace, "{finding}");
            assert!(finding.ptx.contains(LOAD), "{finding}");
            assert!(finding.message.contains("`st.global.b32 [%mine], %tid`"), "{finding}");
        }
        expect_clean(&written_in_flight(before, "st.global.b32 [%mine+256], %tid;", behind), 1);
    }
}

#[test]
fn a_write_of_what_a_load_in_flight_writes_is_a_race_and_lacks_no_fence() {
    for (before, behind) in FENCES {
        let body = written_in_flight(before, "st.shared.b32 [%r1+16], %tid;", behind);
        let found = expect(&body, 1, FindingKind::AsyncCopyInFlight, "st.shared.b32");
        assert!(found.message.contains(LOAD) && found.message.contains("nothing orders"), "{found}");
        expect_clean(&written_in_flight(before, "st.shared.b32 [%r1+512], %tid;", behind), 1);
    }
}

#[test]
fn a_store_comes_after_what_threads_read_behind_a_fence() {
    for instruction in [format!("{STORE} [%data]"), format!("{ADD}.add.u32 [%data]")] {
        let store = format!(
            "st.shared.v4.b32 [%base], {{%tid, %tid, %tid, %tid}}; fence.proxy.async.shared::cta;
             {instruction}, [%base], 16;
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
        );
        for touch in ["ld.global.b32 %r1, [%mine];", "st.global.b32 [%mine], %tid;"] {
            let barrier = "bar.sync 0;";
            expect_clean(&in_a_block(touch, "fence.proxy.async.global;", barrier, "", &store), 1);
            expect_clean(&in_a_block(touch, "", barrier, "fence.proxy.async;", &store), 1);
            let body = in_a_block(touch, "", barrier, "", &store);
            expect(&body, 1, FindingKind::MissingProxyFence, &instruction);
        }
    }
}

/// The first block writes and says so; the second one waits for that, and loads.
fn between_blocks(write: &str, behind: &str) -> String {
    format!(
        "@!%first bra END; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p2, %r1, 1; @%p2 bra SECOND;
         {write}
         st.release.gpu.global.b32 [%data+1024], 1; bra END;
         SECOND: ld.acquire.gpu.global.b32 %r2, [%data+1024]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SECOND;
         {behind}
         {} END:",
        load()
    )
}

#[test]
fn what_a_block_passes_on_is_seen_behind_a_fence_of_either() {
    let (write, fence) = ("st.global.b32 [%data+8], 7;", "fence.proxy.async.global;");
    expect_clean(&between_blocks(&format!("{write} {fence}"), ""), 2);
    expect_clean(&between_blocks(write, fence), 2);
    expect(&between_blocks(write, ""), 2, FindingKind::MissingProxyFence, LOAD);
    let early = between_blocks(&format!("{fence} {write}"), "");
    expect(&early, 2, FindingKind::MissingProxyFence, LOAD);
}

#[test]
fn the_end_of_a_bulk_store_is_a_fence() {
    let store = |wait: &str| {
        format!(
            "st.shared.v4.b32 [%base+64], {{%tid, %tid, %tid, %tid}}; fence.proxy.async.shared::cta;
             {STORE} [%data], [%base+64], 16; cp.async.bulk.commit_group; {wait}"
        )
    };
    expect_clean(&between_blocks(&store("cp.async.bulk.wait_group 0;"), ""), 2);
    let read = between_blocks(&store("cp.async.bulk.wait_group.read 0;"), "");
    expect(&read, 2, FindingKind::GlobalRace, LOAD);
}
