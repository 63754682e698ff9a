//! Registers that are read before anything wrote them, and code that only looks like it.

mod common;
use common::{line_of, only_finding, run_body, run_clean, schedules, with_schedule};
use ptx_emulator::{Checks, FindingKind, Options};

/// The read is found under every schedule, at the line, for the register and by the thread; the twin is clean.
fn expect(body: &str, twin: &str, at: &str, register: &str, thread: u32) {
    for schedule in schedules() {
        let finding = only_finding(body, 64, &with_schedule(schedule));
        assert_eq!(finding.kind, FindingKind::UninitialisedRegister, "{finding}");
        assert_eq!(finding.ptx_line, line_of(body, at), "{finding}");
        // Either warp may come first.
        assert_eq!(finding.thread[0] % 32, thread % 32, "{finding}");
        assert!(finding.message.starts_with(&format!("{register} is read")), "{finding}");
    }
    run_clean(twin, 64);
}

#[test]
fn a_register_that_nothing_writes() {
    let body = |first: &str| format!("{first}\nadd.s32 %r2, %r1, 1; st.global.b32 [%mine], %r2;");
    expect(&body(""), &body("mov.b32 %r1, 5;"), "add.s32", "%r1", 0);
    let body = |first: &str| {
        format!("{first}\nadd.s64 %d2, %d1, 1; cvt.u32.u64 %r2, %d2; st.global.b32 [%mine], %r2;")
    };
    expect(&body(""), &body("mov.b64 %d1, 5;"), "add.s64 %d2", "%d1", 0);
    // In a scope of its own, and of a single name.
    let body = |first: &str| format!("{{ .reg .b32 %own; {first}\nst.global.b32 [%mine], %own; }}");
    expect(&body(""), &body("mov.b32 %own, 5;"), "st.global", "%own", 0);
}

#[test]
fn a_predicate_that_nothing_writes() {
    let body = |first: &str| format!("{first}\n@%p3 st.global.b32 [%mine], %tid;");
    expect(&body(""), &body("setp.lt.u32 %p3, %tid, 7;"), "@%p3", "%p3", 0);
    let body = |first: &str| format!("{first}\nselp.b32 %r1, 1, 2, %p3;\nst.global.b32 [%mine], %r1;");
    expect(&body(""), &body("setp.lt.u32 %p3, %tid, 7;"), "selp", "%p3", 0);
    let body = |first: &str| {
        format!(
            "setp.lt.u32 %p1, %tid, 7; {first}\nand.pred %p2, %p1, %p3;\n@%p2 st.global.b32 [%mine], %tid;"
        )
    };
    expect(&body(""), &body("setp.lt.u32 %p3, %tid, 7;"), "and.pred", "%p3", 0);
}

#[test]
fn a_write_under_a_guard_and_a_read_under_the_same() {
    // The twin of each reads only where it wrote.
    let body = |guard: &str| {
        format!("setp.lt.u32 %p1, %tid, 37; @%p1 mov.b32 %r1, 5;\n{guard} st.global.b32 [%mine], %r1;")
    };
    expect(&body(""), &body("@%p1"), "st.global", "%r1", 37);
    let body = |bound: u32| {
        format!(
            "setp.ge.u32 %p1, %tid, 37; @%p1 bra A; mov.b32 %r1, 5; A: setp.ge.u32 %p2, %tid, {bound}; @%p2 bra B;
            st.global.b32 [%mine], %r1; B: mov.b32 %r2, 0;"
        )
    };
    expect(&body(39), &body(37), "st.global", "%r1", 37);
    // A selection reads the operand that it takes.
    let body = |order: &str| {
        format!(
            "setp.lt.u32 %p1, %tid, 37; @%p1 mov.b32 %r1, 5;\nselp.b32 %r2, {order}, %p1; st.global.b32 [%mine], %r2;"
        )
    };
    expect(&body("3, %r1"), &body("%r1, 3"), "selp", "%r1", 37);
    // A loop whose first turn is different.
    let body = |first: u32| {
        format!(
            "mov.b32 %r1, 0; LOOP: setp.ne.u32 %p1, %r1, {first}; @!%p1 mov.b32 %r2, 7;\nadd.s32 %r2, %r2, 1;
            st.global.b32 [%mine], %r2; add.s32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 4; @%p2 bra LOOP;"
        )
    };
    expect(&body(1), &body(0), "add.s32 %r2", "%r2", 0);
}

#[test]
fn only_some_lanes_of_a_matrix_load_give_addresses() {
    let body = |lanes: u32| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 4; add.s32 %r2, %r1, %r2; st.shared.v4.b32 [%r2], {{%tid, %tid, %tid, %tid}};
            bar.sync 0; setp.lt.u32 %p1, %tid, {lanes}; @%p1 mov.b32 %r3, %r2; setp.ge.u32 %p2, %tid, 32; @%p2 mov.b32 %r3, %r1;
            ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r4, %r5}}, [%r3];"
        )
    };
    run_clean(&body(16), 64);
}

#[test]
fn a_multiplication_that_does_not_accumulate_reads_no_accumulators() {
    let body = |accumulates: u32| {
        format!(
            "mov.b32 %r4, 0; shl.b32 %r2, %tid, 4; add.s32 %r2, %r2, %base; st.shared.v4.b32 [%r2], {{%r4, %r4, %r4, %r4}};
            fence.proxy.async; bar.sync 0; setp.ne.u32 %p2, {accumulates}, 0;
            shr.u32 %r5, %base, 4; and.b32 %r5, %r5, 0x3fff; cvt.u64.u32 %d1, %r5; or.b64 %d1, %d1, 0x0000001000080000;
            wgmma.fence.sync.aligned;
            wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, {{%r4, %r4, %r4, %r4}}, %d1, %p2, 1, 1, 0;
            wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; st.global.b32 [%mine], %f3;"
        )
    };
    common::hopper::run_clean(&body(0), 128, common::hopper::no_map);
    for finding in common::hopper::findings(&body(1), 128, common::hopper::no_map) {
        assert_eq!(finding.kind, FindingKind::UninitialisedRegister, "{finding}");
        assert!(finding.message.starts_with("%f"), "{finding}");
    }
}

#[test]
fn the_check_can_be_left_out() {
    let checks = Checks { registers: false, ..Checks::all() };
    let outcome = run_body(
        "add.s32 %r2, %r1, 1; st.global.b32 [%mine], %r2;",
        32,
        &Options { checks, ..Options::default() },
    );
    assert!(outcome.report.is_clean());
}
