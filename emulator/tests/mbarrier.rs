//! `mbarrier`: phases, tokens, and what happens when a phase never completes.

mod common;
use common::hopper::{findings, no_map, run_body, run_clean};
use ptx_emulator::{FindingKind, Options};

/// One warp hands a value to the other, back and forth.
#[test]
fn two_warps_take_turns() {
    let words = run_clean(
        "@%first mbarrier.init.shared::cta.b64 [%base], 32; @%first mbarrier.init.shared::cta.b64 [%base+8], 32;
         @%first fence.mbarrier_init.release.cluster; bar.sync 0;
         mov.u32 %r1, 0; shl.b32 %r3, %lane, 2; add.s32 %r3, %r3, %base; mov.u32 %r4, 0;
         setp.ne.u32 %p1, %warp, 0; @%p1 bra CONSUMER;
         PRODUCER: mad.lo.s32 %r2, %r1, 100, %lane; st.shared.b32 [%r3+64], %r2;
         mbarrier.arrive.shared::cta.b64 _, [%base]; and.b32 %r5, %r1, 1;
         W1: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%base+8], %r5; @!%p2 bra W1;
         add.s32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 4; @%p3 bra PRODUCER; bra END;
         CONSUMER: and.b32 %r5, %r1, 1;
         W2: mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [%base], %r5; @!%p2 bra W2;
         ld.shared.b32 %r2, [%r3+64]; add.s32 %r4, %r4, %r2; mbarrier.arrive.release.cta.shared::cta.b64 %d1, [%base+8], 1;
         add.s32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 4; @%p3 bra CONSUMER; st.global.b32 [%mine], %r4;
         END:",
        64,
        no_map,
    );
    (0..32).for_each(|lane| assert_eq!(words[32 + lane], 600 + 4 * lane as u32));
}

#[test]
fn tokens_name_the_phase_of_their_arrival() {
    let words = run_clean(
        "@%first mbarrier.init.b64 [%d2], 1; add.s64 %d3, %d2, 0;
         @!%first bra END; cvta.shared.u64 %d2, %d3; mbarrier.init.shared.b64 [%base], 2;
         mbarrier.arrive.shared.b64 %d1, [%base];
         mbarrier.test_wait.shared.b64 %p1, [%base], %d1; selp.b32 %r1, 1, 0, %p1; st.global.b32 [%data], %r1;
         mbarrier.arrive.expect_tx.shared.b64 _, [%base], 16;
         mbarrier.test_wait.shared.b64 %p1, [%base], %d1; selp.b32 %r1, 1, 0, %p1; st.global.b32 [%data+4], %r1;
         mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 16;
         mbarrier.try_wait.shared.b64 %p1, [%base], %d1; selp.b32 %r1, 1, 0, %p1; st.global.b32 [%data+8], %r1;
         mbarrier.inval.shared.b64 [%base]; END:"
            .replace("@%first mbarrier.init.b64 [%d2], 1; add.s64 %d3, %d2, 0;", "cvt.u64.u32 %d3, %base;")
            .as_str(),
        32,
        no_map,
    );
    assert_eq!(words[..3], [0, 0, 1]);
}

#[test]
fn a_phase_that_never_completes_is_a_deadlock_with_a_table() {
    for (arrivals, announced, parts) in [
        (2, 0, ["phase 0 awaits 1 of 2 arrivals, 0 bytes", "try_wait"]),
        (1, 16, ["phase 0 awaits 0 of 1 arrivals, 16 bytes", "try_wait"]),
    ] {
        let body = format!(
            "@!%first bra END; mbarrier.init.shared::cta.b64 [%base], {arrivals};
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {announced};
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W; END:"
        );
        for finding in findings(&body, 32, no_map) {
            if finding.kind == FindingKind::Deadlock {
                parts.iter().for_each(|part| assert!(finding.message.contains(part), "{finding}"));
            } else {
                panic!("{finding}");
            }
        }
    }
}

#[test]
fn barriers_are_misused() {
    for (body, part) in [
        ("@%first mbarrier.arrive.shared::cta.b64 _, [%base];", "not initialised"),
        ("@%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%base], 16;", "not initialised"),
        (
            "@%first mbarrier.init.shared::cta.b64 [%base], 1; @%first mbarrier.init.shared::cta.b64 [%base], 1;",
            "not invalidated",
        ),
        (
            "@%first mbarrier.init.shared::cta.b64 [%base], 1; @%first mbarrier.arrive.shared::cta.b64 _, [%base], 2;",
            "2 arrivals",
        ),
        ("@%first mbarrier.init.shared::cta.b64 [%base], 0;", "1 to 1048575"),
        (
            "@%first mbarrier.init.shared::cta.b64 [%base], 1; @%first mbarrier.expect_tx.shared::cta.b64 [%base], 2000000;",
            "more than 1048575",
        ),
    ] {
        for finding in findings(body, 32, no_map) {
            assert_eq!(finding.kind, FindingKind::MbarrierMisuse, "{finding}");
            assert!(finding.message.contains(part), "{finding}");
        }
    }
    for finding in findings("@%first mbarrier.init.shared::cta.b64 [%base+4], 1;", 32, no_map) {
        assert_eq!(finding.kind, FindingKind::Misaligned { space: ptx_emulator::Space::Shared });
    }
}

/// The first finding of a body under every schedule has this kind, and its instruction this text; the twin is clean.
fn expect(body: &str, twin: &str, kind: FindingKind, at: &str) {
    run_clean(twin, 64, no_map);
    for finding in findings(body, 64, no_map) {
        assert_eq!(finding.kind, kind, "{finding}");
        assert!(finding.ptx.contains(at), "{finding}");
    }
}

#[test]
fn a_bulk_copy_needs_a_fence_behind_the_initialisation() {
    // `issuer` starts the copy; `before` and `behind` the barrier are fences of the initialising and the issuing thread.
    let body = |issuer: u32, before: &str, behind: &str| {
        format!(
            "@%first mbarrier.init.shared::cta.b64 [%base], 1; @%first {before} bar.sync 0;
             setp.eq.u32 %p2, %tid, {issuer}; @!%p2 bra W; {behind}
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 256;
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base+16], [%data], 256, [%base];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W;"
        )
    };
    let (nothing, init, proxy) =
        ("mov.u32 %r1, 0;", "fence.mbarrier_init.release.cluster;", "fence.proxy.async.shared::cta;");
    for issuer in [0, 40] {
        let racy = body(issuer, nothing, "");
        for twin in [body(issuer, init, ""), body(issuer, proxy, ""), body(issuer, nothing, proxy)] {
            expect(&racy, &twin, FindingKind::MissingMbarrierFence, "cp.async.bulk");
        }
    }
    // The fence of another warp, and one that others may not have seen yet, show nothing.
    let good = body(40, init, "");
    expect(&body(40, nothing, init), &good, FindingKind::MissingMbarrierFence, "cp.async.bulk");
    let late = format!("bar.sync 0; @%first {init} ");
    expect(
        &body(40, nothing, "").replace("bar.sync 0; ", &late),
        &good,
        FindingKind::MissingMbarrierFence,
        "cp.async.bulk",
    );
}

/// One warp writes and arrives, the other waits and reads.
fn message(arrive: &str, wait: &str) -> String {
    format!(
        "@%first mbarrier.init.shared::cta.b64 [%base], 32; bar.sync 0; shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %base;
         setp.ne.u32 %p2, %warp, 0; @%p2 bra W; st.shared.b32 [%r1+64], %tid; {arrive} bra END;
         W: {wait} @!%p1 bra W; ld.shared.b32 %r2, [%r1+64]; END:"
    )
}

#[test]
fn a_relaxed_arrival_or_wait_orders_nothing_without_a_fence() {
    let arrive = |how: &str| format!("mbarrier.arrive{how}.shared::cta.b64 _, [%base];");
    let wait = |how: &str| format!("mbarrier.try_wait.parity{how}.shared::cta.b64 %p1, [%base], 0;");
    let (relaxed, fence) = (".relaxed.cta", "fence.acq_rel.cta;");
    for twin in [
        message(&arrive(""), &wait("")),
        message(&arrive(".release.cta"), &wait(".acquire.cta")),
        message(&format!("{fence} {}", arrive(relaxed)), &wait("")),
        message(&arrive(""), &format!("{} {fence}", wait(relaxed))),
        message(&format!("{fence} {}", arrive(relaxed)), &format!("{} {fence}", wait(relaxed))),
    ] {
        for (arrive, wait) in [(arrive(relaxed), wait("")), (arrive(""), wait(relaxed))] {
            expect(&message(&arrive, &wait), &twin, FindingKind::SharedRace, "ld.shared");
        }
    }
}

#[test]
fn a_wait_for_a_phase_learns_nothing_of_the_next_one() {
    // The first warp arrives in two phases, and writes before or between; the other one waits for the first phase.
    let body = |before: &str, between: &str| {
        let arrive = "mbarrier.arrive.shared::cta.b64 _, [%base];";
        let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0;";
        let half = format!(
            "{before} {arrive} {between} setp.lt.u32 %p3, %lane, 16; bar.warp.sync -1; @%p3 {arrive}"
        );
        message("", wait).replace("st.shared.b32 [%r1+64], %tid;", &half)
    };
    let write = "st.shared.b32 [%r1+64], %tid;";
    run_clean(&body(write, ""), 64, no_map);
    // Where the second warp comes first, it reads what nothing wrote, and the first one writes what it reads.
    for finding in findings(&body("", write), 64, no_map) {
        let uninitialised = FindingKind::UninitialisedRead { space: ptx_emulator::Space::Shared };
        assert!([FindingKind::SharedRace, uninitialised].contains(&finding.kind), "{finding}");
    }
}

#[test]
fn a_wait_for_another_barrier_orders_lanes_only_if_it_comes_after_their_arrival() {
    // A lane writes and arrives at one barrier; its warp waits for another one, where the other warp arrives.
    let body = |before: &str| {
        format!(
            "@%first mbarrier.init.shared::cta.b64 [%base], 1; @%first mbarrier.init.shared::cta.b64 [%base+8], 1;
             bar.sync 0; setp.ne.u32 %p2, %warp, 0; setp.ne.u32 %p3, %lane, 0; @%p2 bra OTHER;
             @%first st.shared.b32 [%base+64], %tid; @%first mbarrier.arrive.shared::cta.b64 _, [%base];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8], 0; @!%p1 bra W;
             ld.shared.b32 %r2, [%base+64]; bra END;
             OTHER: {before} @!%p3 mbarrier.arrive.shared::cta.b64 _, [%base+8]; END:"
        )
    };
    let passed_on = "V: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra V;";
    expect(&body(""), &body(passed_on), FindingKind::SharedRace, "ld.shared");
}

/// The last of two warps to be done ends the barrier: each says so by a counter, behind a fence of some kind.
#[test]
fn a_barrier_ends_after_its_last_use() {
    let body = |fence: &str, last: &str| {
        format!(
            "@%first mbarrier.init.shared::cta.b64 [%base], 64; @%first st.shared.b32 [%base+8], 0; bar.sync 0;
             mbarrier.arrive.shared::cta.b64 _, [%base];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W;
             bar.warp.sync -1; and.b32 %r1, %lane, 31; setp.ne.u32 %p2, %r1, 0; @%p2 bra END;
             {fence} atom.{last}.cta.shared.add.u32 %r2, [%base+8], 1;
             setp.ne.u32 %p2, %r2, 1; @%p2 bra END;
             mbarrier.inval.shared.b64 [%base]; END:"
        )
    };
    let is_unordered = |fence: &str, last: &str| {
        let report = run_body(&body(fence, last), 64, no_map, &Options::default()).report;
        report.findings.iter().for_each(|finding| {
            assert_eq!(finding.kind, FindingKind::MbarrierMisuse, "{finding}");
            assert!(finding.message.contains("used the mbarrier"), "{finding}");
        });
        !report.is_clean()
    };
    for (fence, last, is_wrong) in [
        ("fence.sc.cta;", "acquire", false),
        ("membar.cta;", "relaxed", true), // nobody acquires
        ("", "acq_rel", false),
        ("", "acquire", true), // nobody releases
        ("", "relaxed", true),
    ] {
        assert_eq!(is_unordered(fence, last), is_wrong, "{fence} {last}");
    }
}
