//! `cp.async`: what lands when, and what is found when nobody waits.

mod common;
use common::{line_of, only_finding, run_body, run_clean, schedules, with_schedule};
use ptx_emulator::{FindingKind, Schedule, Space};

const SOURCE: &str = "add.s32 %r1, %tid, 1000; st.global.b32 [%mine], %r1; bar.sync 0;
    mul.wide.u32 %d1, %tid, 16; add.s64 %d1, %d1, %data;
    mov.u32 %r2, dynamic; shl.b32 %r3, %tid, 4; add.s32 %r2, %r2, %r3;";

#[test]
fn copies_have_landed_behind_the_wait() {
    let words = run_clean(
        &format!(
            "{SOURCE} setp.ge.u32 %p1, %tid, 8; @%p1 bra END;
             cp.async.cg.shared.global [%r2], [%d1], 16;
             cp.async.commit_group; cp.async.wait_group 0;
             ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2]; st.global.v4.b32 [%d1+2048], {{%r7, %r6, %r5, %r4}};
             END:"
        ),
        32,
    );
    (0..32).for_each(|word| assert_eq!(words[512 + word], 1000 + (word as u32 ^ 3)));
}

#[test]
fn the_tail_of_a_short_source_is_zero() {
    let words = run_clean(
        &format!(
            "{SOURCE} setp.ge.u32 %p1, %tid, 8; @%p1 bra END; min.u32 %r8, %tid, 4; shl.b32 %r8, %r8, 2;
             cp.async.ca.shared.global.L2::128B [%r2], [%d1], 16, %r8; cp.async.wait_all;
             ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2]; st.global.v4.b32 [%d1+2048], {{%r4, %r5, %r6, %r7}};
             END:"
        ),
        32,
    );
    for word in 0..32 {
        let copied = word % 4 < (word / 4).min(4);
        assert_eq!(words[512 + word], if copied { 1000 + word as u32 } else { 0 });
    }
}

#[test]
fn smaller_copies() {
    let words = run_clean(
        &format!(
            "{SOURCE} mov.u32 %r9, dynamic; shl.b32 %r10, %tid, 2; add.s32 %r9, %r9, %r10;
             cp.async.ca.shared.global [%r9], [%mine], 4; cp.async.wait_all;
             ld.shared.b32 %r4, [%r9]; st.global.b32 [%mine+2048], %r4;"
        ),
        32,
    );
    (0..32).for_each(|word| assert_eq!(words[512 + word], 1000 + word as u32));
}

/// The source is overwritten between issue and wait: only the moment of landing tells which value comes.
#[test]
fn the_schedule_decides_when_a_copy_reads() {
    let body = format!(
        "{SOURCE} mov.u32 %r9, dynamic; shl.b32 %r10, %tid, 2; add.s32 %r9, %r9, %r10;
         cp.async.ca.shared.global [%r9], [%mine], 4; cp.async.commit_group;
         st.global.b32 [%mine], 7;
         cp.async.wait_group 0; ld.shared.b32 %r4, [%r9]; st.global.b32 [%mine+2048], %r4;"
    );
    let value = |schedule| run_body(&body, 32, &with_schedule(schedule)).words[512];
    assert_eq!(value(Schedule::Eager), 1000);
    assert_eq!(value(Schedule::Latest), 7);
    assert!((0..50).any(|seed| value(Schedule::Random(seed)) == 7));
}

#[test]
fn older_groups_complete_first() {
    let words = run_clean(
        &format!(
            "{SOURCE} mov.u32 %r9, dynamic; shl.b32 %r10, %tid, 2; add.s32 %r9, %r9, %r10;
             cp.async.ca.shared.global [%r9], [%mine], 4; cp.async.commit_group;
             cp.async.ca.shared.global [%r9+128], [%mine], 4; cp.async.commit_group;
             cp.async.wait_group 1; ld.shared.b32 %r4, [%r9];
             cp.async.wait_group 0; ld.shared.b32 %r5, [%r9+128];
             add.s32 %r4, %r4, %r5; st.global.b32 [%mine+2048], %r4;"
        ),
        32,
    );
    (0..32).for_each(|word| assert_eq!(words[512 + word], 2000 + 2 * word as u32));
}

#[test]
fn a_read_before_the_wait_is_found_under_every_schedule() {
    let body = format!(
        "{SOURCE} setp.ge.u32 %p1, %tid, 8; @%p1 bra END;
         cp.async.cg.shared.global [%r2], [%d1], 16;
         cp.async.commit_group; cp.async.wait_group 1;
         ld.shared.b32 %r4, [%r2];
         END:"
    );
    for schedule in schedules() {
        let finding = only_finding(&body, 32, &with_schedule(schedule));
        assert_eq!(finding.kind, FindingKind::AsyncCopyInFlight);
        assert_eq!(finding.ptx_line, line_of(&body, "ld.shared"));
        assert!(finding.message.contains("a cp.async of warp 0 wrote"), "{}", finding.message);
    }
}

#[test]
fn a_read_under_a_copy_over_older_bytes_is_found_too() {
    let body = format!(
        "{SOURCE} setp.ge.u32 %p1, %tid, 8; @%p1 bra END;
         st.shared.v4.b32 [%r2], {{%r1, %r1, %r1, %r1}};
         cp.async.cg.shared.global [%r2], [%d1], 16;
         ld.shared.b32 %r4, [%r2+12];
         cp.async.wait_all;
         END:"
    );
    for schedule in schedules() {
        let finding = only_finding(&body, 32, &with_schedule(schedule));
        assert_eq!(finding.kind, FindingKind::AsyncCopyInFlight);
        assert_eq!(finding.ptx_line, line_of(&body, "ld.shared"));
    }
}

#[test]
fn unwritten_sources_are_found_only_where_they_are_read() {
    let copy = |size: &str| {
        format!(
            "mov.u32 %r2, dynamic; setp.ne.u32 %p1, %tid, 0; @%p1 bra END;
             cp.async.ca.shared.global [%r2], [%data+96], 16, {size}; cp.async.wait_all; END:"
        )
    };
    let memory = ptx_emulator::Memory::new();
    let data = memory.allocate(128);
    memory.write(data, &[0; 104]).unwrap();
    for (size, clean) in [("8", true), ("9", false), ("0", true), ("16", false)] {
        let ptx = common::kernel(&copy(size));
        let options = with_schedule(Schedule::Latest);
        let report = common::run_with(&ptx, &memory, 1, 32, 1024, &data.to_le_bytes(), &options);
        assert_eq!(report.is_clean(), clean, "{size}: {:?}", report.findings);
        if !clean {
            assert_eq!(report.findings[0].kind, FindingKind::UninitialisedRead { space: Space::Global });
            assert!(report.findings[0].ptx.contains("cp.async.ca"));
        }
    }
}

#[test]
fn a_source_may_end_inside_the_copy_but_not_inside_its_source_size() {
    let copy = |size: u32| {
        format!(
            "setp.ne.u32 %p1, %tid, 3; @%p1 bra END; mov.u32 %r2, dynamic;
             cp.async.cg.shared.global [%r2], [%data+4080], 16; cp.async.wait_all;
             add.s64 %d1, %data, 4096;
             cp.async.cg.shared.global [%r2+16], [%d1], 16, {size}; cp.async.wait_all; END:"
        )
    };
    assert!(run_body(&copy(0), 32, &with_schedule(Schedule::Latest)).report.is_clean());
    let finding = only_finding(&copy(1), 32, &with_schedule(Schedule::Latest));
    assert_eq!(finding.kind, FindingKind::OutOfBounds { space: Space::Global });
    assert_eq!(finding.thread, [3, 0, 0]);
}

#[test]
fn a_source_size_beyond_the_copy_is_found() {
    let body = "mov.u32 %r2, dynamic; mov.b32 %r1, 17;
        cp.async.cg.shared.global [%r2], [%data], 16, %r1;";
    let finding = only_finding(body, 1, &with_schedule(Schedule::Eager));
    assert_eq!(finding.kind, FindingKind::InvalidOperand);
}

#[test]
fn copies_that_nobody_awaits_end_with_the_thread() {
    let body = "mov.u32 %r2, dynamic; shl.b32 %r3, %tid, 2; add.s32 %r2, %r2, %r3;
        cp.async.ca.shared.global [%r2], [%mine], 4;";
    run_clean(body, 32);
}

#[test]
fn what_a_lane_copies_is_for_the_others_only_behind_a_meeting() {
    let body = |meeting: &str| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r3, %r1, %r2; xor.b32 %r2, %r2, 4; add.s32 %r4, %r1, %r2;
             cp.async.ca.shared.global [%r3], [%mine], 4; cp.async.wait_all; {meeting}
             ld.shared.b32 %r5, [%r4];"
        )
    };
    run_clean(&body("bar.warp.sync -1;"), 32);
    run_clean(&body("bar.sync 0;"), 32);
    run_clean(&body("").replace("[%r4]", "[%r3]"), 32);
    for schedule in schedules() {
        let finding = only_finding(&body(""), 32, &with_schedule(schedule));
        assert_eq!(finding.kind, FindingKind::SharedRace, "{finding}");
        assert!(finding.ptx.contains("ld.shared"), "{finding}");
    }
}

/// 64 threads copy a word each and arrive at a barrier behind that; `how` they arrive, for how many arrivals the
/// barrier is, and what stands before the read of another thread's word.
fn arrivals(how: &str, count: u32, before: &str) -> String {
    format!(
        "mov.u32 %r1, dynamic; setp.eq.u32 %p1, %tid, 0; @%p1 mbarrier.init.shared.b64 [%r1], {count}; bar.sync 0;
         shl.b32 %r2, %tid, 2; add.s32 %r2, %r2, %r1; cp.async.ca.shared.global [%r2+16], [%mine], 4; {how}
         {before}
         sub.s32 %r4, 63, %tid; shl.b32 %r4, %r4, 2; add.s32 %r4, %r4, %r1; ld.shared.b32 %r5, [%r4+16];
         add.s32 %r5, %r5, 3; st.global.b32 [%mine+1024], %r5;"
    )
}

const NOINC: &str = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];";
const POLL: &str = "W: mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W;";
const TRY: &str = "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W;";

#[test]
fn arrivals_come_with_the_copies_before_them() {
    let inc = "cp.async.mbarrier.arrive.shared.b64 [%r1]; mbarrier.arrive.shared.b64 _, [%r1];";
    for (how, wait) in [(NOINC, POLL), (NOINC, TRY), (inc, POLL), (inc, TRY)] {
        let words = run_clean(&arrivals(how, 64, wait), 64);
        assert_eq!(words[256..320], [3; 64], "{how} {wait}");
    }
    // One question in vain, as long as nothing has to have landed.
    let ask = "mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 0; selp.b32 %r9, 1, 0, %p3; bar.sync 0; st.global.b32 [%mine+2048], %r9;";
    let answers = |schedule| {
        let body = arrivals(NOINC, 64, &format!("bar.sync 0; {ask} {POLL}"));
        let outcome = run_body(&body, 64, &with_schedule(schedule));
        assert!(outcome.report.is_clean(), "{:?}", outcome.report.findings);
        outcome.words[512]
    };
    assert_eq!(answers(Schedule::Eager), 1);
    assert_eq!(answers(Schedule::Latest), 0);
}

/// Arriving is not waiting: neither for those who copied, nor for others.
#[test]
fn a_read_behind_an_arrival_without_a_wait_is_found() {
    let own = arrivals(NOINC, 64, "").replace("sub.s32 %r4, 63, %tid", "mov.b32 %r4, %tid");
    for body in [own, arrivals(NOINC, 64, "bar.sync 0;")] {
        let report = run_body(&body, 64, &with_schedule(Schedule::Latest)).report;
        let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&FindingKind::AsyncCopyInFlight), "{:?}", report.findings);
    }
    // A copy behind the arrival is not waited for.
    let late = format!("{NOINC} cp.async.ca.shared.global [%r2+272], [%mine], 4;");
    let body =
        arrivals(&late, 64, TRY).replace("ld.shared.b32 %r5, [%r4+16]", "ld.shared.b32 %r5, [%r4+272]");
    for schedule in schedules() {
        let report = run_body(&body, 64, &with_schedule(schedule)).report;
        let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&FindingKind::AsyncCopyInFlight), "{schedule:?} {:?}", report.findings);
    }
}

#[test]
fn arrivals_that_nobody_awaits_are_found() {
    for schedule in schedules() {
        let report = run_body(&arrivals(NOINC, 32, TRY), 64, &with_schedule(schedule)).report;
        // A phase more than there should be: reads of what has not come, or a wait for the phase after.
        assert!(!report.is_clean(), "{schedule:?}");
    }
    let none = NOINC.replace("[%r1]", "[%r1+8]");
    for schedule in schedules() {
        let report = run_body(&arrivals(&none, 64, ""), 64, &with_schedule(schedule)).report;
        assert_eq!(report.findings[0].kind, FindingKind::MbarrierMisuse, "{schedule:?}");
    }
    let report = run_body(&arrivals(NOINC, 65, TRY), 64, &with_schedule(Schedule::Latest)).report;
    assert_eq!(report.findings[0].kind, FindingKind::Deadlock, "{:?}", report.findings);
}

/// Nothing orders two copies, of one group or of two, of the same thread or of others of its warp: either may stay.
#[test]
fn a_copy_into_what_another_one_is_yet_to_write() {
    let body = |between: &str, second: &str| {
        format!(
            "{SOURCE} cp.async.ca.shared.global [%r2], [%mine], 4;\n{between}\n\
             add.s64 %d2, %mine, 1024; {second}\ncp.async.wait_all; bar.sync 0;"
        )
    };
    let own = "cp.async.ca.shared.global [%r2], [%d2], 4;";
    // Each thread into what the one before it copies to.
    let of_another = "xor.b32 %r4, %r3, 16; mov.u32 %r5, dynamic; add.s32 %r4, %r5, %r4;
        cp.async.ca.shared.global [%r4], [%d2], 4;";
    for second in [own, of_another] {
        for between in ["", "cp.async.commit_group;", "cp.async.commit_group; cp.async.wait_group 1;"] {
            let body = body(between, second);
            for schedule in schedules() {
                let outcome = run_body(&body, 32, &with_schedule(schedule));
                let found =
                    outcome.report.findings.first().unwrap_or_else(|| panic!("{schedule:?}: {body}"));
                assert_eq!(found.kind, FindingKind::AsyncCopyInFlight, "{found}");
                assert_eq!(found.ptx_line, line_of(&body, "[%d2], 4;"), "{found}");
            }
        }
        let waits = body("cp.async.commit_group; cp.async.wait_group 0; bar.warp.sync -1;", second);
        run_clean(&waits, 32);
    }
}
