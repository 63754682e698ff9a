//! Races with planted causes, and their clean twins: in shared memory, with `cp.async`, in global memory.

mod common;
use common::{kernel, line_of, run_body, run_clean, run_with, schedules, with_schedule, words};
use ptx_emulator::{Finding, FindingKind, Memory, Options, Report, Schedule};

/// What is found in a kernel of so many blocks of 64 threads, under every schedule.
fn findings(body: &str, blocks: u32) -> Vec<Vec<Finding>> {
    let run = |schedule| {
        let memory = Memory::new();
        let data = memory.allocate(4096);
        memory.write(data, &[0; 4096]).unwrap();
        let options = with_schedule(schedule);
        run_with(&kernel(body), &memory, blocks, 64, 1024, &data.to_le_bytes(), &options).findings
    };
    schedules().into_iter().map(run).collect()
}

/// A race of one of the kinds is found under every schedule, on one of two lines; the twin is clean.
fn expect(body: &str, twin: &str, blocks: u32, kinds: &[FindingKind], lines: [&str; 2]) -> Finding {
    let lines = lines.map(|text| line_of(body, text));
    let all = findings(body, blocks);
    for found in &all {
        let finding = found.first().unwrap_or_else(|| panic!("clean: {body}"));
        assert!(kinds.contains(&finding.kind) && lines.contains(&finding.ptx_line), "{finding}");
    }
    for found in findings(twin, blocks) {
        assert!(found.is_empty(), "{}", found[0]);
    }
    all[0][0].clone()
}

const GLOBAL: &[FindingKind] = &[FindingKind::GlobalRace];

#[test]
fn warps_that_share_shared_memory_need_a_barrier() {
    let body = |barrier: &str| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r3, %r1, %r2; xor.b32 %r2, %r2, 128; add.s32 %r4, %r1, %r2;
            st.shared.b32 [%r4], 1; bar.sync 0;\nst.shared.b32 [%r3], %tid;\n{barrier}\nld.shared.b32 %r5, [%r4];"
        )
    };
    expect(
        &body(""),
        &body("bar.sync 0;"),
        1,
        &[FindingKind::SharedRace],
        ["st.shared.b32 [%r3]", "ld.shared"],
    );
    let found = &findings(&body(""), 1)[0][0];
    let places = ["ld.shared", "st.shared.b32 [%r3]"].map(|text| line_of(&body(""), text));
    assert!(
        places.iter().any(|line| found.message.contains(&format!("at PTX line {line} `"))),
        "{found}"
    );
    // Strong accesses are how warps may meet.
    let flag = "mov.u32 %r1, dynamic; shr.u32 %r2, %tid, 5; setp.eq.u32 %p1, %r2, 1; @%p1 bra WAIT;
        st.shared.b32 [%r1], 7; st.release.cta.shared.b32 [%r1+4], 1; bra END;
        WAIT: ld.acquire.cta.shared.b32 %r3, [%r1+4]; setp.ne.u32 %p2, %r3, 1; @%p2 bra WAIT; ld.shared.b32 %r4, [%r1]; END:";
    let kinds = findings(flag, 1).into_iter().flatten().map(|found| found.kind);
    assert!(
        kinds.clone().all(|kind| kind != FindingKind::SharedRace),
        "{:?}",
        kinds.collect::<Vec<_>>()
    );
}

#[test]
fn a_copy_is_for_others_only_behind_its_wait_and_a_barrier() {
    // Each thread copies for itself, and reads what a thread of the other warp copied.
    let body = |wait: &str, barrier: &str| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r3, %r1, %r2; xor.b32 %r2, %r2, 128; add.s32 %r4, %r1, %r2;
            \ncp.async.ca.shared.global [%r3], [%mine], 4;\ncp.async.commit_group; {wait}\n{barrier}
            ld.shared.b32 %r5, [%r4];\ncp.async.wait_all;"
        )
    };
    let good = body("cp.async.wait_group 0;", "bar.sync 0;");
    let kinds = [
        FindingKind::SharedRace,
        FindingKind::AsyncCopyInFlight,
        FindingKind::UninitialisedRead { space: ptx_emulator::Space::Shared },
    ];
    let lines = ["cp.async.ca", "ld.shared"];
    // No wait; no barrier; a barrier before the wait.
    expect(&body("", "bar.sync 0;"), &good, 1, &kinds, lines);
    expect(&body("cp.async.wait_group 0;", ""), &good, 1, &kinds, lines);
    expect(&body("bar.sync 0; cp.async.wait_group 0;", ""), &good, 1, &kinds, lines);
}

#[test]
fn a_copy_must_not_overwrite_what_others_still_read() {
    let body = |barrier: &str| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r3, %r1, %r2; xor.b32 %r2, %r2, 128; add.s32 %r4, %r1, %r2;
            st.shared.b32 [%r3], %tid; bar.sync 0;\nld.shared.b32 %r5, [%r4];\n{barrier}
            cp.async.ca.shared.global [%r3], [%mine], 4;\ncp.async.wait_all;"
        )
    };
    let kinds = [FindingKind::SharedRace, FindingKind::AsyncCopyInFlight];
    expect(&body(""), &body("bar.sync 0;"), 1, &kinds, ["cp.async.ca", "ld.shared"]);
}

#[test]
fn warps_of_a_block_share_global_memory_behind_a_barrier() {
    let body = |barrier: &str| {
        format!(
            "xor.b32 %r1, %tid, 32; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d1, %data;
            st.global.b32 [%mine], %tid;\n{barrier}\nld.global.b32 %r2, [%d1];"
        )
    };
    let found = expect(&body(""), &body("bar.sync 0;"), 1, GLOBAL, ["st.global", "ld.global"]);
    let line = line_of(&body(""), "ld.global");
    assert!(
        found.message.contains(&format!("of block (0, 0, 0) read at PTX line {line} `ld.global")),
        "{found}"
    );
    // A read before a write.
    let body = |barrier: &str| {
        format!(
            "xor.b32 %r1, %tid, 32; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d1, %data;
            ld.global.b32 %r2, [%d1];\n{barrier}\nst.global.b32 [%mine], %tid;"
        )
    };
    expect(&body(""), &body("bar.sync 0;"), 1, GLOBAL, ["st.global", "ld.global"]);
}

#[test]
fn blocks_are_not_ordered() {
    let own = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %d1, %r1, 256; add.s64 %mine, %mine, %d1;";
    let body = |own: &str| format!("{own}\nst.global.b32 [%mine], %tid;");
    expect(&body(""), &body(own), 3, GLOBAL, ["st.global", "st.global"]);
    // Halves of a word may belong to different blocks.
    let body = |step: u32| {
        format!(
            "mov.u32 %r1, %ctaid.x; mul.lo.u32 %r1, %r1, {step}; cvt.u64.u32 %d1, %r1; add.s64 %d1, %d1, %mine;
            cvt.u16.u32 %h1, %tid; st.global.b16 [%d1], %h1;"
        )
    };
    expect(&body(0), &body(2), 2, GLOBAL, ["st.global", "st.global"]);
    // All blocks read what nobody writes; block 0 writes what others read.
    let body = |blocks: u32| {
        format!(
            "mov.u32 %r1, %ctaid.x;\nld.global.b32 %r2, [%data];\nsetp.lt.u32 %p1, %r1, {blocks}; setp.eq.and.u32 %p1, %tid, 0, %p1;
            @%p1 st.global.b32 [%data], %r2;"
        )
    };
    expect(&body(1), &body(0), 3, GLOBAL, ["st.global", "ld.global"]);
}

#[test]
fn atomic_operations_meet_each_other_and_nobody_else() {
    let body = |read: &str| format!("red.global.add.u32 [%data], 1;\n{read}");
    let read = "ld.global.b32 %r1, [%data];";
    expect(
        &body(read),
        &body("atom.global.or.b32 %r1, [%data], 0;"),
        3,
        GLOBAL,
        ["red.global", "ld.global"],
    );
    let body = |write: &str| format!("atom.global.add.u32 %r1, [%data], 1;\n{write}");
    let write = "setp.eq.u32 %p1, %tid, 0; @%p1 st.global.b32 [%data], 0;";
    expect(&body(write), &body(""), 3, GLOBAL, ["atom.global", "st.global"]);
}

#[test]
fn a_counter_between_fences_orders_blocks() {
    // Each block writes its words; the last one to count sums those of all.
    let body = |before: &str, after: &str| {
        format!(
            "setp.ne.u32 %p1, %tid, 0; @%p1 bra END; mov.u32 %r1, %ctaid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d1, %data;
            st.global.b32 [%d1], %r1; {before}\natom.global.add.u32 %r2, [%data+1024], 1; setp.ne.u32 %p1, %r2, 2; @%p1 bra END; {after}
            ld.global.v2.b32 {{%r3, %r4}}, [%data]; ld.global.b32 %r5, [%data+8];\nst.global.b32 [%data+1024], 0; END:"
        )
    };
    let good = body("fence.acq_rel.gpu;", "fence.acq_rel.gpu;");
    let lines = ["ld.global.v2", "st.global.b32 [%data+1024]"];
    expect(&body("", "fence.acq_rel.gpu;"), &good, 3, GLOBAL, lines);
    expect(&body("fence.acq_rel.gpu;", ""), &good, 3, GLOBAL, lines);
    let ordered =
        good.replace("fence.acq_rel.gpu;", "").replace("atom.global", "atom.acq_rel.gpu.global");
    assert!(findings(&ordered, 3).iter().all(Vec::is_empty));
}

#[test]
fn turns_in_global_memory_order_blocks() {
    // Blocks add to one word in their order: each waits for its turn, and passes it on.
    let body = |wait: &str, pass: &str| {
        format!(
            "setp.ne.u32 %p1, %tid, 0; @%p1 bra END; mov.u32 %r1, %ctaid.x;
            SPIN: ld.{wait}.global.b32 %r2, [%data+1024]; setp.ne.u32 %p2, %r2, %r1; @%p2 bra SPIN;
            ld.global.b32 %r3, [%data];\nadd.s32 %r3, %r3, 1;\nst.global.b32 [%data], %r3; add.s32 %r1, %r1, 1;
            st.{pass}.global.b32 [%data+1024], %r1; END:"
        )
    };
    let lines = ["ld.global.b32 %r3", "st.global.b32 [%data], %r3"];
    let good = body("acquire.gpu", "release.gpu");
    expect(&body("relaxed.gpu", "release.gpu"), &good, 3, GLOBAL, lines);
    expect(&body("acquire.gpu", "relaxed.gpu"), &good, 3, GLOBAL, lines);
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let options = with_schedule(ptx_emulator::Schedule::Latest);
    let report = run_with(&kernel(&good), &memory, 5, 64, 1024, &data.to_le_bytes(), &options);
    assert!(report.is_clean());
    assert_eq!(words(&memory, data, 1), [5]);
}

#[test]
fn a_block_passes_on_what_one_of_its_warps_learnt() {
    // Thread 0 waits for the other block; the barrier makes it known to the second warp.
    let body = |barrier: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra SECOND;
            st.global.b32 [%mine], %tid; bar.sync 0; setp.eq.u32 %p2, %tid, 0; @%p2 st.release.gpu.global.b32 [%data+1024], 1; bra END;
            SECOND: setp.ne.u32 %p2, %tid, 0; @%p2 bra JOIN;
            SPIN: ld.acquire.gpu.global.b32 %r2, [%data+1024]; setp.eq.u32 %p3, %r2, 0; @%p3 bra SPIN;
            JOIN: bar.warp.sync -1; {barrier}\nld.global.b32 %r3, [%mine]; END:"
        )
    };
    let good = body("bar.sync 0;");
    for found in findings(&good, 2) {
        assert!(found.is_empty(), "{}", found[0]);
    }
    // Without it, the second warp may come first.
    assert!(
        findings(&body(""), 2)
            .iter()
            .all(|found| found.first().is_some_and(|f| f.kind == FindingKind::GlobalRace))
    );
}

/// Blocks take numbers from a counter until there are none left; the last one to end sets it back.
fn blocks_that_share_a_counter(fence: &str) -> String {
    kernel(&format!(
        "setp.ne.u32 %p1, %tid, 0; @%p1 bra END; mov.u32 %r5, %nctaid.x; sub.u32 %r5, %r5, 1;
         TAKE: atom.global.add.u32 %r1, [%data], 1; mov.u32 %r3, 0;
         WORK: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 500; @%p2 bra WORK;
         setp.lt.u32 %p1, %r1, 20; @%p1 bra TAKE;
         {fence} atom.global.add.u32 %r2, [%data+4], 1; setp.ne.u32 %p1, %r2, %r5; @%p1 bra END;
         {fence} st.global.b32 [%data], 0; st.global.b32 [%data+4], 0;
         END:"
    ))
}

fn share_a_counter(fence: &str, schedule: Schedule) -> Report {
    let memory = Memory::new();
    let data = memory.allocate(8);
    memory.write(data, &[0; 8]).unwrap();
    let options = Options { schedule, ..Options::default() };
    let ptx = blocks_that_share_a_counter(fence);
    run_with(&ptx, &memory, 3, 32, 0, &data.to_le_bytes(), &options)
}

/// Block after block, whoever takes the last number is the last one to end, and no fence is missed.
#[test]
fn blocks_take_turns_under_random_schedules() {
    let schedules = || (0..8).map(Schedule::Random).chain([Schedule::Eager, Schedule::Latest]);
    for schedule in schedules() {
        let report = share_a_counter("fence.acq_rel.gpu;", schedule);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
    }
    let found: Vec<_> =
        schedules().filter(|&schedule| !share_a_counter("", schedule).is_clean()).collect();
    assert!(
        !found.is_empty() && found.iter().all(|how| matches!(how, Schedule::Random(_))),
        "{found:?}"
    );
}

/// Each half of a warp passes a word from lane to lane of its own: twice, the second time over what it read.
fn halves(sync: &str, other: u32) -> String {
    format!(
        "mov.u32 %r1, %laneid; and.b32 %r2, %r1, 16; mov.b32 %r3, 0xffff; shl.b32 %r3, %r3, %r2;
         mov.b32 %r4, dynamic; shl.b32 %r5, %r1, 2; add.s32 %r5, %r4, %r5; xor.b32 %r6, %r1, {other};
         shl.b32 %r7, %r6, 2; add.s32 %r7, %r4, %r7; shl.b32 %r8, %r2, 2; add.s32 %r8, %r4, %r8;
         st.shared.b32 [%r5], %r1; {sync}\nld.shared.b32 %r9, [%r7];
         ld.shared.b32 %r11, [%r8]; {sync}
         setp.eq.u32 %p1, %r1, %r2; @%p1 st.shared.b32 [%r8], %r9; {sync}
         ld.shared.b32 %r10, [%r8]; st.global.b32 [%mine], %r10;"
    )
}

#[test]
fn parts_of_a_warp_that_meet_are_ordered() {
    let good = halves("bar.warp.sync %r3;", 5);
    let words = run_clean(&good, 32);
    (0..32).for_each(|lane| assert_eq!(words[lane], (lane as u32 & 16) ^ 5));
    for schedule in schedules() {
        let options = with_schedule(schedule);
        // Without a meeting, and from the other half.
        for bad in [halves("", 5), halves("bar.warp.sync %r3;", 21)] {
            let found = run_body(&bad, 32, &options).report.findings;
            assert_eq!(found[0].kind, FindingKind::SharedRace, "{schedule:?} {}", found[0]);
            assert_eq!(found[0].ptx_line, line_of(&bad, "%r9, [%r7]"), "{}", found[0]);
        }
    }
}

/// Lanes that have ended do not keep the others from meeting.
#[test]
fn the_rest_of_a_warp_meets_when_some_have_ended() {
    run_clean(
        "mov.b32 %r4, dynamic; shl.b32 %r5, %tid, 2; add.s32 %r5, %r4, %r5; st.shared.b32 [%r5], %tid;
         setp.ge.u32 %p1, %tid, 20; @%p1 exit; bar.warp.sync -1; xor.b32 %r6, %tid, 1; shl.b32 %r6, %r6, 2;
         add.s32 %r6, %r4, %r6; ld.shared.b32 %r7, [%r6]; st.global.b32 [%mine], %r7;",
        32,
    );
}

#[test]
fn lanes_of_a_warp_that_share_global_memory_must_meet() {
    // Every thread adds one to the same word.
    let count = "ld.global.b32 %r1, [%data]; add.s32 %r1, %r1, 1; st.global.b32 [%data], %r1;";
    let counts = |guard: &str| format!("setp.gt.u32 %p1, %tid, {guard};\n@%p1 bra END;\n{count}\nEND:");
    let finding = expect(&counts("31"), &counts("0"), 1, GLOBAL, ["st.global.b32 [%data]"; 2]);
    assert!(finding.message.contains("no bar.warp.sync orders the two"), "{finding}");
    // Each lane reads what its neighbour wrote.
    let neighbours = |between: &str| {
        format!(
            "shl.b32 %r1, %tid, 2; cvt.u64.u32 %d1, %r1; add.s64 %d1, %data, %d1; xor.b32 %r2, %r1, 4;
             cvt.u64.u32 %d2, %r2; add.s64 %d2, %data, %d2; st.global.b32 [%d1], %tid;
             {between}\nld.global.b32 %r3, [%d2];"
        )
    };
    for twin in ["bar.warp.sync -1;", "bar.sync 0;"] {
        expect(&neighbours(""), &neighbours(twin), 1, GLOBAL, ["ld.global.b32 %r3"; 2]);
    }
    // A part of the warp that meets orders its own.
    let parts = neighbours("and.b32 %r4, %tid, 16; shl.b32 %r5, 0xffff, %r4; bar.warp.sync %r5;");
    let wide = parts.replace("xor.b32 %r2, %r1, 4", "xor.b32 %r2, %r1, 64");
    expect(&wide, &parts, 1, GLOBAL, ["ld.global.b32 %r3"; 2]);
    // Atomic operations may meet.
    for body in ["red.global.add.u32 [%data], 1;", "atom.global.add.u32 %r1, [%data], 1;"] {
        assert!(findings(body, 2).iter().all(Vec::is_empty));
    }
}

/// PTX leaves open which of them stays.
#[test]
fn lanes_of_one_store_that_write_a_word_must_write_the_same() {
    // The first warp alone: two would race anyway.
    let store = |store: &str| {
        format!(
            "mov.u32 %r1, dynamic; and.b32 %r2, %tid, 31; mov.b32 %r3, 7; setp.gt.u32 %p1, %tid, 31;
             @%p1 bra END;\n{store}\nEND:"
        )
    };
    const SHARED: &[FindingKind] = &[FindingKind::SharedRace];
    for (kinds, text) in [
        (SHARED, "st.shared.b32 [%r1], X;"),
        (SHARED, "st.shared.u8 [%r1], X;"),
        (SHARED, "st.shared.v2.b32 [%r1], {%r3, X};"),
        (SHARED, "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {X};"),
        (GLOBAL, "st.global.b32 [%data], X;"),
        (GLOBAL, "st.global.u8 [%data], X;"),
        (GLOBAL, "st.global.v4.b32 [%data], {%r3, %r3, X, %r3};"),
    ] {
        let of = |value| store(&text.replace('X', value));
        let line = text.split('[').next().unwrap();
        let finding = expect(&of("%r2"), &of("%r3"), 1, kinds, [line; 2]);
        assert!(finding.message.contains("of warp 0 store different values"), "{finding}");
    }
    let finding = &findings(&store("st.global.b32 [%data], %r2;"), 1)[0][0];
    assert!(finding.message.starts_with("lanes 0 and 31 of warp 0 "), "{finding}");
    // Strong stores come one after the other, in whatever order.
    let strong = store("st.relaxed.gpu.global.b32 [%data], %r2;");
    assert!(findings(&strong, 1).iter().all(Vec::is_empty));
}
