//! Divergence, reconvergence and barriers that work.

mod common;
use common::{run_body, run_clean, with_schedule};
use ptx_emulator::{FindingKind, Options, Schedule};

#[test]
fn nested_branches_reconverge() {
    let words = run_clean(
        "mov.b32 %r1, 0;
         and.b32 %r2, %tid, 1; setp.eq.b32 %p1, %r2, 0; @%p1 bra EVEN;
         and.b32 %r3, %tid, 2; setp.eq.b32 %p2, %r3, 0; @!%p2 bra ODD_HIGH;
         add.s32 %r1, %r1, 1; bra ODD_DONE;
         ODD_HIGH: add.s32 %r1, %r1, 2;
         ODD_DONE: add.s32 %r1, %r1, 10; bra DONE;
         EVEN: add.s32 %r1, %r1, 100;
         DONE: activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.s32 %r1, %r4, 1000, %r1;
         st.global.b32 [%mine], %r1;",
        32,
    );
    for (thread, &word) in words[..32].iter().enumerate() {
        let want = match thread % 4 {
            0 | 2 => 100,
            1 => 11,
            _ => 12,
        };
        assert_eq!(word, want + 32_000, "thread {thread}");
    }
}

#[test]
fn loops_of_different_lengths_reconverge() {
    let words = run_clean(
        "mov.b32 %r1, 0; mov.b32 %r2, 0;
         bra TEST;
         BODY: add.s32 %r2, %r2, %r1; add.s32 %r1, %r1, 1;
         TEST: setp.lt.u32 %p1, %r1, %tid; @%p1 bra BODY;
         activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.s32 %r2, %r4, 1000, %r2;
         st.global.b32 [%mine], %r2;",
        64,
    );
    (0..64u32).for_each(|t| assert_eq!(words[t as usize], 32_000 + (t * t - t.min(t * t)) / 2));
}

#[test]
fn a_loop_left_from_the_middle() {
    let words = run_clean(
        "mov.b32 %r1, 0;
         AGAIN: add.s32 %r1, %r1, 1; setp.gt.u32 %p1, %r1, %tid; @%p1 bra OUT;
         and.b32 %r2, %r1, 7; setp.ne.b32 %p2, %r2, 5; @%p2 bra AGAIN;
         add.s32 %r1, %r1, 100; bra OUT2;
         OUT: add.s32 %r1, %r1, 1000;
         OUT2: bar.warp.sync -1; st.global.b32 [%mine], %r1;",
        32,
    );
    for thread in 0..32u32 {
        let want = if thread < 5 { thread + 1 + 1000 } else { 105 };
        assert_eq!(words[thread as usize], want);
    }
}

#[test]
fn lanes_that_exit_early_are_not_awaited() {
    let words = run_clean(
        "setp.lt.u32 %p1, %tid, 40; @%p1 bra STAY; st.global.b32 [%mine], 5; ret;
         STAY: and.b32 %r1, %tid, 1; setp.eq.b32 %p2, %r1, 0; @%p2 exit;
         bar.sync 0; st.global.b32 [%mine], 6;",
        96,
    );
    for (thread, &word) in words[..96].iter().enumerate() {
        let want = if thread >= 40 {
            5
        } else if thread % 2 == 0 {
            0
        } else {
            6
        };
        assert_eq!(word, want, "thread {thread}");
    }
}

/// Those who wait are there first, and the others of their warp exit.
#[test]
fn lanes_of_a_warp_that_exit_release_those_that_wait() {
    for (guard, waiting) in [("@%p1", 0..16), ("@!%p1", 16..32)] {
        let words = run_clean(
            &format!(
                "setp.lt.u32 %p1, %tid, 16; {guard} bra WAIT; mov.b32 %r1, 3000;
                 WORK: sub.u32 %r1, %r1, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra WORK;
                 ret;
                 WAIT: barrier.sync 0; st.global.b32 [%mine], 6;"
            ),
            32,
        );
        (0..32).for_each(|thread| {
            assert_eq!(words[thread], if waiting.contains(&thread) { 6 } else { 0 });
        });
    }
}

#[test]
fn branch_tables() {
    let words = run_clean(
        "and.b32 %r1, %tid, 3; mov.b32 %r2, 9;
         TABLE: .branchtargets A, B, C, A;
         brx.idx %r1, TABLE;
         A: mov.b32 %r2, 1; bra JOIN;
         B: mov.b32 %r2, 2; bra JOIN;
         C: mov.b32 %r2, 3;
         JOIN: activemask.b32 %r3; popc.b32 %r3, %r3; mad.lo.s32 %r2, %r3, 100, %r2;
         st.global.b32 [%mine], %r2;",
        32,
    );
    (0..32).for_each(|t| assert_eq!(words[t], 3200 + [1, 2, 3, 1][t % 4]));
}

#[test]
fn inline_assembly_repeats_names_in_scopes() {
    let words = run_clean(
        "mov.b32 %r1, 0;
         { .reg .pred p; .reg .b32 t; mov.b32 t, 3; AGAIN: add.s32 %r1, %r1, t; setp.lt.u32 p, %r1, 9;
           @p bra AGAIN; bra DONE; DONE: }
         { .reg .pred p; .reg .b64 t; mov.b64 t, 1; AGAIN: add.s32 %r1, %r1, 1; setp.lt.u32 p, %r1, 20;
           @p bra AGAIN; bra DONE; DONE: }
         st.global.b32 [%mine], %r1;",
        32,
    );
    assert_eq!(words[..32], [20; 32]);
}

#[test]
fn barriers_order_warps() {
    let words = run_clean(
        "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r3, %r1, %r2; mul.lo.s32 %r4, %tid, 3;
         st.shared.b32 [%r3], %r4; bar.sync 0;
         xor.b32 %r5, %r2, 0x1FC; add.s32 %r5, %r5, %r1; ld.shared.b32 %r6, [%r5]; st.global.b32 [%mine], %r6;",
        128,
    );
    (0..128u32).for_each(|t| assert_eq!(words[t as usize], (127 - t) * 3));
}

#[test]
fn named_barriers_connect_producers_and_consumers() {
    // Warp 0 fills, the others read; back and forth over two barriers.
    let words = run_clean(
        "mov.u32 %r1, dynamic; mov.b32 %r2, 0; mov.b32 %r3, 0; setp.ge.u32 %p1, %tid, 32;
         and.b32 %r9, %tid, 31; shl.b32 %r9, %r9, 2; add.s32 %r1, %r1, %r9;
         @%p1 bra CONSUME;
         PRODUCE: add.s32 %r4, %r2, 1; st.shared.b32 [%r1], %r4; bar.arrive 1, 96; bar.sync 2, 96;
         add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 10; @%p2 bra PRODUCE; bra END;
         CONSUME: bar.sync 1, 96; ld.shared.b32 %r5, [%r1]; add.s32 %r3, %r3, %r5; bar.sync 2, 96;
         add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 10; @%p2 bra CONSUME;
         END: st.global.b32 [%mine], %r3;",
        96,
    );
    (32..96).for_each(|t| assert_eq!(words[t], 55));
}

#[test]
fn barriers_reduce_predicates() {
    let words = run_clean(
        "setp.lt.u32 %p1, %tid, 70; setp.lt.u32 %p4, %tid, 200;
         bar.red.popc.u32 %r1, 0, %p1; bar.red.and.pred %p2, 1, %p4;
         bar.red.or.pred %p3, 0, !%p4; selp.b32 %r2, 1000, 0, %p2; selp.b32 %r3, 10000, 0, %p3;
         add.s32 %r1, %r1, %r2; add.s32 %r1, %r1, %r3; st.global.b32 [%mine], %r1;",
        96,
    );
    assert_eq!(words[..96], [1070; 96]);
    // The longer forms, without and with alignment.
    let words = run_clean(
        "setp.lt.u32 %p1, %tid, 70; barrier.cta.red.popc.u32 %r1, 0, %p1;
         barrier.cta.red.popc.aligned.u32 %r2, 0, 96, !%p1; barrier.red.and.aligned.pred %p2, 1, %p1;
         bar.cta.red.or.pred %p3, 0, %p1; barrier.cta.sync.aligned 3; bar.cta.sync 4, 96;
         selp.b32 %r3, 1000, 0, %p2; selp.b32 %r4, 10000, 0, %p3; add.s32 %r3, %r3, %r4;
         mad.lo.s32 %r1, %r2, 100000, %r1; add.s32 %r1, %r1, %r3; st.global.b32 [%mine], %r1;",
        96,
    );
    assert_eq!(words[..96], [26 * 100_000 + 10_070; 96]);
}

#[test]
fn a_barrier_without_alignment_takes_lanes_one_by_one() {
    let words = run_clean(
        "setp.lt.u32 %p1, %tid, 16; @%p1 bra LOW;
         barrier.sync 0; st.global.b32 [%mine], 1; bra END;
         LOW: barrier.sync 0; st.global.b32 [%mine], 2;
         END:",
        64,
    );
    (0..64).for_each(|t| assert_eq!(words[t], if t < 16 { 2 } else { 1 }));
}

#[test]
fn a_spin_inside_a_warp_lets_the_other_lanes_go_on() {
    let words = run_clean(
        "setp.eq.u32 %p1, %tid, 0; @%p1 bra SIGNAL;
         SPIN: ld.volatile.global.b32 %r1, [%data+2048]; setp.eq.b32 %p2, %r1, 0; @%p2 bra SPIN;
         bra END;
         SIGNAL: st.volatile.global.b32 [%data+2048], 1;
         END: st.global.b32 [%mine], 3;",
        64,
    );
    assert_eq!(words[..64], [3; 64]);
}

#[test]
fn a_spin_for_a_later_block_lets_it_start() {
    let memory = ptx_emulator::Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let body = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra SIGNAL;
         SPIN: ld.acquire.gpu.global.b32 %r2, [%data]; setp.eq.b32 %p2, %r2, 0; @%p2 bra SPIN; bra END;
         SIGNAL: st.release.gpu.global.b32 [%data], 1; END:";
    let report = common::run_with(
        &common::kernel(body),
        &memory,
        2,
        32,
        0,
        &data.to_le_bytes(),
        &Options::default(),
    );
    assert!(report.is_clean());
}

#[test]
fn an_endless_loop_ends_at_the_step_limit() {
    let options = Options { step_limit: Some(100_000), ..with_schedule(Schedule::Eager) };
    let outcome = run_body("FOREVER: bra FOREVER;", 64, &options);
    assert_eq!(outcome.report.findings[0].kind, FindingKind::StepLimit);
    assert!(outcome.report.statistics.warp_instructions <= 100_100);
}

#[test]
fn a_loop_that_takes_long_ends_at_the_step_limit_sooner() {
    let limit = 1_000_000;
    let options = Options { step_limit: Some(limit), ..with_schedule(Schedule::Eager) };
    let instructions = |body: &str| {
        let outcome = run_body(body, 32, &options);
        let kinds: Vec<_> = outcome.report.findings.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&FindingKind::StepLimit), "{kinds:?}");
        outcome.report.statistics.warp_instructions
    };
    let matrix = |before: &str| {
        format!(
            "{before} FOREVER: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
             {{%r2, %r3, %r4, %r5}}, {{%r1, %r1, %r1, %r1}}, {{%r1, %r1}}, {{%r1, %r1, %r1, %r1}};
             bra FOREVER;"
        )
    };
    // A branch is one step, what it repeats several.
    for (body, most) in [
        ("FOREVER: ld.global.b32 %r1, [%mine]; bra FOREVER;", limit / 2),
        ("FOREVER: ld.shared.b32 %r1, [0]; bra FOREVER;", limit / 2),
        ("mov.b64 %d1, 64; FOREVER: ld.global.b32 %r1, [%d1]; bra FOREVER;", limit / 20),
        (&matrix("mov.b32 %r1, 0;"), limit / 2),
        (&matrix(""), limit / 20),
        ("FOREVER: red.global.add.u32 [%mine], 1; bra FOREVER;", limit / 10),
        (".reg .f32 %x; FOREVER: sin.approx.f32 %x, 0f3F800000; bra FOREVER;", limit / 4),
        ("mov.b64 %d1, 1; FOREVER: sqrt.rz.f64 %d2, %d1; bra FOREVER;", limit / 10),
        ("mov.b32 %r1, 1; FOREVER: cvt.rz.f16x2.f32 %r2, %r1, %r1; bra FOREVER;", limit / 4),
        (
            ".reg .b16 %x; FOREVER: cvt.rn.satfinite.e4m3x2.f32 %x, 0f3F800000, 0f3F800000; bra FOREVER;",
            limit / 20,
        ),
        (
            "mov.b32 %r1, 0; FOREVER: mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc
             {%r2, %r3, %r4, %r5}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r1, %r1, %r1, %r1}; bra FOREVER;",
            limit / 5000,
        ),
    ] {
        let instructions = instructions(body);
        assert!(instructions <= most, "{instructions} of at most {most}: {body}");
    }
}

/// Its one instruction ends each turn, and only turns that were used up counted what they had taken.
#[test]
fn a_jump_by_a_table_to_itself_ends_at_the_step_limit() {
    let limit = 100_000;
    let options = Options { step_limit: Some(limit), ..with_schedule(Schedule::Eager) };
    let body = "mov.b32 %r1, 0; T: .branchtargets FOREVER; FOREVER: brx.idx %r1, T;";
    let report = run_body(body, 32, &options).report;
    assert_eq!(report.findings[0].kind, FindingKind::StepLimit);
    assert!(report.statistics.warp_instructions <= limit / 5, "{:?}", report.statistics);
}
