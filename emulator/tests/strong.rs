//! Strong accesses, scopes, and parts of words: what they order, whom they meet, and their clean twins.

mod common;
use common::{hopper, kernel, run_with, schedules, with_schedule, words};
use ptx_emulator::{Finding, FindingKind, Memory, Options};

/// What is found in so many blocks of so many threads under every schedule. Shared memory: 16 KiB.
fn findings(ptx: &str, blocks: u32, threads: u32) -> Vec<Vec<Finding>> {
    let wide = ptx.contains("sm_90a");
    let run = |schedule| {
        let memory = Memory::new();
        let data = memory.allocate(hopper::BYTES);
        memory.write(data, &vec![0; hopper::BYTES]).unwrap();
        let mut params = data.to_le_bytes().to_vec();
        params.resize(if wide { 192 } else { 8 }, 0);
        run_with(ptx, &memory, blocks, threads, 16384, &params, &with_schedule(schedule)).findings
    };
    schedules().into_iter().map(run).collect()
}

/// Under every schedule a finding of this kind comes first; nothing is found in the twin.
fn expect(body: &str, twin: &str, blocks: u32, kind: FindingKind) -> Finding {
    expect_in(&kernel(body), &kernel(twin), blocks, 64, kind)
}

fn expect_in(body: &str, twin: &str, blocks: u32, threads: u32, kind: FindingKind) -> Finding {
    for found in findings(twin, blocks, threads) {
        assert!(found.is_empty(), "{}\n{twin}", found[0]);
    }
    let all = findings(body, blocks, threads);
    for found in &all {
        let first = found.first().unwrap_or_else(|| panic!("clean: {body}"));
        assert_eq!(first.kind, kind, "{first}");
    }
    all[0][0].clone()
}

const SHARED: FindingKind = FindingKind::SharedRace;
const GLOBAL: FindingKind = FindingKind::GlobalRace;

/// `%r1`: dynamic shared memory, whose first 256 bytes are zero; `%p1`: whether this is the second warp.
const TWO_WARPS: &str =
    "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r2, %r1, %r2; st.shared.b32 [%r2], 0;
    setp.ge.u32 %p1, %tid, 32; bar.sync 0;";

/// One warp does this, the other that.
fn warps(first: &str, second: &str) -> String {
    format!("{TWO_WARPS} @%p1 bra SECOND; {first} bra END; SECOND: {second} END:")
}

#[test]
fn a_strong_access_races_with_a_plain_one() {
    let plain =
        ["ld.shared.b32 %r3, [%r1];", "@%p2 st.shared.b32 [%r1], 5;", "ld.shared.b8 %h1, [%r1+3];"];
    for strong in [
        "red.shared.add.u32 [%r1], 1;",
        "atom.shared.exch.b32 %r4, [%r1], 1;",
        "@%p2 st.volatile.shared.b32 [%r1], 1;",
        "@%p2 st.release.cta.shared.b32 [%r1], 1;",
    ] {
        for plain in plain {
            let body = |barrier: &str| {
                let one = "and.b32 %r3, %tid, 31; setp.eq.u32 %p2, %r3, 0;";
                format!("{one} {}", warps(&format!("{barrier} {plain}"), &format!("{strong} {barrier}")))
            };
            expect(&body(""), &body("bar.sync 0;"), 1, SHARED);
        }
    }
    // A strong read, and a plain write.
    let body = |read: &str| warps("setp.eq.u32 %p2, %tid, 0; @%p2 st.shared.b32 [%r1], 5;", read);
    expect(
        &body("ld.volatile.shared.b32 %r3, [%r1];"),
        &body("ld.volatile.shared.b32 %r3, [%r1+4];"),
        1,
        SHARED,
    );
}

#[test]
fn strong_accesses_of_a_block_meet_each_other() {
    let body = |scope: &str| {
        warps(
            "red.shared.add.u32 [%r1], 1; atom.shared.cas.b32 %r3, [%r1], 0, 1;",
            &format!(
                "ld.relaxed.{scope}.shared.b32 %r3, [%r1]; st.volatile.shared.b32 [%r1], %r3; red.shared.or.b32 [%r1], 1;"
            ),
        )
    };
    for scope in ["cta", "gpu"] {
        for found in findings(&kernel(&body(scope)), 1, 64) {
            assert!(found.is_empty(), "{}", found[0]);
        }
    }
}

/// The first warp writes and says so; the second one waits for that, and reads.
fn message(send: &str, receive: &str) -> String {
    warps(
        &format!("setp.ne.u32 %p2, %tid, 0; @%p2 bra END; st.shared.b32 [%r1+128], 7; {send}"),
        &format!(
            "SPIN: {receive} setp.eq.u32 %p3, %r3, 0; @%p3 bra SPIN; ld.shared.b32 %r4, [%r1+128];"
        ),
    )
}

#[test]
fn a_flag_orders_warps_only_with_release_and_acquire() {
    let release = "st.release.cta.shared.b32 [%r1], 1;";
    let acquire = "ld.acquire.cta.shared.b32 %r3, [%r1];";
    let relaxed = ["st.relaxed.cta.shared.b32 [%r1], 1;", "ld.relaxed.cta.shared.b32 %r3, [%r1];"];
    let fence = "fence.acq_rel.cta;";
    let fenced = [format!("{fence} {}", relaxed[0]), format!("{} {fence}", relaxed[1])];
    let good = message(release, acquire);
    for (send, receive) in [(relaxed[0], acquire), (release, relaxed[1])] {
        expect(&message(send, receive), &good, 1, SHARED);
    }
    for good in [
        message(&fenced[0], acquire),
        message(release, &fenced[1]),
        message(&fenced[0], &fenced[1]),
        message(
            "membar.cta; st.volatile.shared.b32 [%r1], 1;",
            "ld.volatile.shared.b32 %r3, [%r1]; membar.cta;",
        ),
        message(
            "atom.acq_rel.cta.shared.add.u32 %r5, [%r1], 1;",
            "atom.acquire.cta.shared.or.b32 %r3, [%r1], 0;",
        ),
    ] {
        expect(&message(relaxed[0], relaxed[1]), &good, 1, SHARED);
    }
    // What passes through one address says nothing of another.
    let elsewhere =
        "st.relaxed.cta.shared.b32 [%r1], 1; fence.acq_rel.cta; st.relaxed.cta.shared.b32 [%r1+4], 1;";
    expect(&message(elsewhere, acquire), &good, 1, SHARED);
}

#[test]
fn a_bulk_copy_sees_strong_writes_behind_a_fence_as_it_sees_others() {
    let body = |write: &str, fence: &str| {
        hopper::kernel(&format!(
            "@!%first bra END; st.shared.v4.b32 [%base], {{%tid, %tid, %tid, %tid}}; fence.proxy.async.shared::cta;
             {write} {fence} cp.async.bulk.global.shared::cta.bulk_group [%data], [%base], 16;
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"
        ))
    };
    for write in ["st.volatile.shared.b32 [%base], 1;", "red.shared.add.u32 [%base+4], 1;"] {
        let twin = body(write, "fence.proxy.async.shared::cta;");
        let found = expect_in(&body(write, ""), &twin, 1, 64, FindingKind::MissingProxyFence);
        assert!(found.ptx.contains("cp.async.bulk"), "{found}");
    }
    // And what a copy has yet to bring is nobody's.
    let load = |read: &str| {
        hopper::kernel(&format!(
            "@!%first bra END; mbarrier.init.shared::cta.b64 [%base], 1; fence.mbarrier_init.release.cluster;
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 256;
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base+16], [%data], 256, [%base];
             {read}
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W; ld.volatile.shared.b32 %r1, [%base+16]; END:"
        ))
    };
    let early = load("st.volatile.shared.b32 [%base+16], 3;");
    expect_in(&early, &load(""), 1, 64, FindingKind::AsyncCopyInFlight);
}

#[test]
fn parts_of_a_word_race_where_they_overlap() {
    let body = |write: &str, read: &str| warps(&format!("setp.eq.u32 %p2, %tid, 0; {write}"), read);
    for (write, read, elsewhere) in [
        ("@%p2 st.shared.b16 [%r1], %h1;", "ld.shared.b16 %h2, [%r1];", "ld.shared.b16 %h2, [%r1+2];"),
        ("@%p2 st.shared.b8 [%r1+1], %h1;", "ld.shared.b16 %h2, [%r1];", "ld.shared.b8 %h2, [%r1];"),
        (
            "@%p2 st.shared.b8 [%r1+7], %h1;",
            "ld.shared.v2.b32 {%r3, %r4}, [%r1];",
            "ld.shared.b32 %r3, [%r1];",
        ),
        ("@%p2 st.shared.b32 [%r1], 3;", "ld.shared.b8 %h2, [%r1+3];", "ld.shared.b8 %h2, [%r1+4];"),
    ] {
        let [racy, clean] =
            [read, elsewhere].map(|read| format!("mov.u16 %h1, 3; {}", body(write, read)));
        expect(&racy, &clean, 1, SHARED);
        let [racy, clean] =
            [&racy, &clean].map(|body| body.replace("bra END; SECOND", "bar.sync 0; bra END; SECOND"));
        for body in [racy, clean] {
            let ordered = body.replace("SECOND: ", "SECOND: bar.sync 0; ");
            assert!(findings(&kernel(&ordered), 1, 64).iter().all(Vec::is_empty));
        }
    }
    // Warps write the halves of all words; then one reads what the other wrote.
    let halves = |step: u32, barrier: &str| {
        format!(
            "{TWO_WARPS} and.b32 %r3, %tid, 31; shl.b32 %r3, %r3, 2; add.s32 %r3, %r3, %r1; selp.b32 %r4, 2, 0, %p1;
             add.s32 %r5, %r3, %r4; cvt.u16.u32 %h1, %tid; st.shared.b16 [%r5], %h1; {barrier}
             xor.b32 %r4, %r4, {step}; add.s32 %r5, %r3, %r4; ld.shared.b16 %h2, [%r5];"
        )
    };
    expect(&halves(2, ""), &halves(0, ""), 1, SHARED);
    expect(&halves(2, ""), &halves(2, "bar.sync 0;"), 1, SHARED);
}

/// The first block writes and says so; the second one waits for that, and reads.
fn between_blocks(send: &str, receive: &str) -> String {
    format!(
        "setp.ne.u32 %p1, %tid, 0; @%p1 bra END; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra SECOND;
         st.global.b32 [%data], 7; {send} bra END;
         SECOND: {receive} setp.eq.u32 %p2, %r2, 0; @%p2 bra SECOND; ld.global.b32 %r3, [%data]; END:"
    )
}

#[test]
fn what_is_for_a_block_orders_no_other_block() {
    let send =
        |fence: &str, scope: &str| format!("{fence} st.relaxed.{scope}.global.b32 [%data+128], 1;");
    let receive =
        |fence: &str, scope: &str| format!("ld.relaxed.{scope}.global.b32 %r2, [%data+128]; {fence}");
    let (fence, in_block) = ("fence.acq_rel.gpu;", "fence.acq_rel.cta;");
    let good = between_blocks(&send(fence, "gpu"), &receive(fence, "sys"));
    for (sent, received) in [
        (send(in_block, "gpu"), receive(fence, "gpu")),
        (send("membar.cta;", "gpu"), receive(fence, "gpu")),
        (send(fence, "gpu"), receive(in_block, "gpu")),
        (send(fence, "gpu"), receive("membar.cta;", "gpu")),
        (send(fence, "cta"), receive(fence, "gpu")),
        (send(fence, "gpu"), receive(fence, "cluster")),
        (
            "atom.acq_rel.cta.global.add.u32 %r2, [%data+128], 1;".to_owned(),
            "atom.acq_rel.cta.global.or.b32 %r2, [%data+128], 0;".to_owned(),
        ),
        ("red.release.cta.global.add.u32 [%data+128], 1;".to_owned(), receive(fence, "gpu")),
    ] {
        expect(&between_blocks(&sent, &received), &good, 2, GLOBAL);
    }
    let membars = between_blocks(&send("membar.gl;", "gpu"), &receive("membar.sys;", "gpu"));
    expect(&between_blocks(&send("", "gpu"), &receive("", "gpu")), &membars, 2, GLOBAL);
}

#[test]
fn what_is_for_a_block_orders_its_warps() {
    // Through global memory, between the warps of one block.
    let body = |send: &str, receive: &str| {
        format!(
            "setp.ge.u32 %p1, %tid, 32; @%p1 bra SECOND; setp.ne.u32 %p2, %tid, 0; @%p2 bra END;
             st.global.b32 [%data], 7; {send} bra END;
             SECOND: {receive} setp.eq.u32 %p2, %r2, 0; @%p2 bra SECOND; ld.global.b32 %r3, [%data]; END:"
        )
    };
    let racy =
        body("st.relaxed.cta.global.b32 [%data+128], 1;", "ld.relaxed.cta.global.b32 %r2, [%data+128];");
    for (send, receive) in [
        ("st.release.cta.global.b32 [%data+128], 1;", "ld.acquire.cta.global.b32 %r2, [%data+128];"),
        ("st.release.gpu.global.b32 [%data+128], 1;", "ld.acquire.cta.global.b32 %r2, [%data+128];"),
        ("st.release.cta.global.b32 [%data+128], 1;", "ld.acquire.gpu.global.b32 %r2, [%data+128];"),
        (
            "fence.acq_rel.cta; st.volatile.global.b32 [%data+128], 1;",
            "ld.volatile.global.b32 %r2, [%data+128]; fence.acq_rel.cta;",
        ),
    ] {
        expect(&racy, &body(send, receive), 1, GLOBAL);
    }
}

#[test]
fn a_warp_passes_on_to_its_block_what_it_learnt_of_another() {
    let body = |scope: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra SECOND; setp.ne.u32 %p2, %tid, 0; @%p2 bra END;
             st.global.b32 [%data], 7; st.release.gpu.global.b32 [%data+128], 1; bra END;
             SECOND: setp.ge.u32 %p1, %tid, 32; @%p1 bra THIRD; setp.ne.u32 %p2, %tid, 0; @%p2 bra END;
             W1: ld.acquire.{scope}.global.b32 %r2, [%data+128]; setp.eq.u32 %p2, %r2, 0; @%p2 bra W1;
             st.release.cta.global.b32 [%data+256], 1; bra END;
             THIRD: ld.acquire.cta.global.b32 %r2, [%data+256]; setp.eq.u32 %p2, %r2, 0; @%p2 bra THIRD;
             ld.global.b32 %r3, [%data]; END:"
        )
    };
    expect(&body("cta"), &body("gpu"), 2, GLOBAL);
}

#[test]
fn what_is_read_only_is_not_written() {
    let body = |load: &str, barrier: &str| {
        format!(
            "st.global.b32 [%mine], %tid; {barrier} {load} %r1, [%mine]; st.global.b32 [%mine+1024], %r1;"
        )
    };
    for barrier in ["", "bar.sync 0;", "fence.acq_rel.gpu;"] {
        let found =
            expect(&body("ld.global.nc.b32", barrier), &body("ld.global.b32", barrier), 1, GLOBAL);
        assert!(found.message.contains("ld.global.nc"), "{found}");
    }
    // Nor behind the read.
    let body = |place: u32| {
        format!("ld.global.nc.b32 %r1, [%mine]; bar.sync 0; st.global.b32 [%mine+{place}], %r1;")
    };
    expect(&body(0), &body(1024), 1, GLOBAL);
}

/// Two blocks noted their counts in the other order than they counted: the store was a race with the earlier one.
#[test]
fn counts_of_blocks_are_noted_in_their_order() {
    const ROUNDS: u32 = 512;
    let ptx = kernel(&format!(
        "mov.u32 %r5, {ROUNDS}; mov.u32 %r6, %nctaid.x; sub.u32 %r6, %r6, 1;
        NEXT: fence.acq_rel.gpu; atom.global.add.u32 %r3, [%data], 1; setp.ne.u32 %p1, %r3, %r6; @%p1 bra LAST;
        fence.acq_rel.gpu; st.global.b32 [%data], 0;
        LAST: add.u64 %data, %data, 4; sub.u32 %r5, %r5, 1; setp.ne.u32 %p1, %r5, 0; @%p1 bra NEXT;"
    ));
    let memory = Memory::new();
    let data = memory.allocate(4 * ROUNDS as usize);
    let options = Options { threads: 4, ..Options::default() };
    for _ in 0..8 {
        memory.write(data, &[0; 4 * ROUNDS as usize]).unwrap();
        let report = run_with(&ptx, &memory, 4, 1, 0, &data.to_le_bytes(), &options);
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(words(&memory, data, ROUNDS as usize), [0; ROUNDS as usize]);
    }
}
