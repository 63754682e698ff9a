//! Values that are not defined, until something comes of them; lanes that go on without what was refused; and faults
//! that are no errors.

mod common;
use common::{
    HEAD, line_of, only_finding, run_body, run_clean, run_with, schedules, with_schedule, words,
};
use ptx_emulator::{Finding, FindingKind, Memory, Options, Schedule, Severity, Space};

/// `s[tid]` is written by the first 20 lanes, and read by all into `%r3`.
fn half_written(end: &str) -> String {
    format!(
        "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r1, %r1, %r2; setp.lt.u32 %p1, %tid, 20;
         @%p1 st.shared.b32 [%r1], %tid; bar.sync 0;\nld.shared.b32 %r3, [%r1];\n{end}"
    )
}

#[test]
fn what_is_not_defined_may_be_carried_about() {
    for end in [
        "",
        "add.s32 %r4, %r3, 1; selp.b32 %r5, %r4, 7, %p1; st.global.b32 [%mine], %r5;",
        "@%p1 st.global.b32 [%mine], %r3;",
        "shfl.sync.idx.b32 %r4, %r3, 3, 31, -1; st.global.b32 [%mine], %r4;",
        // Masked out.
        "selp.b32 %r4, -1, 0, %p1; and.b32 %r5, %r3, %r4; st.global.b32 [%mine], %r5;",
        "selp.b32 %r4, 0x3210, 0x7654, %p1; prmt.b32 %r5, %r3, %tid, %r4; st.global.b32 [%mine], %r5;",
        // Decided by the other predicate.
        "setp.eq.s32 %p2, %r3, 5; and.pred %p3, %p1, %p2; @%p3 st.global.b32 [%mine], %tid;",
        "setp.eq.s32 %p2, %r3, 5; not.pred %p4, %p1; or.pred %p3, %p2, %p4; selp.b32 %r4, 1, 2, %p3;
         st.global.b32 [%mine], %r4;",
        "setp.eq.and.s32 %p2|%p3, %r3, 5, %p1; @%p2 st.global.b32 [%mine], %tid; @%p3 st.global.b32 [%mine], %tid;",
        "setp.eq.or.s32 %p2, %r3, 5, !%p1; @%p2 st.global.b32 [%mine], %tid;",
        // Through memory of its own, and overwritten there.
        "st.shared.b32 [%r1], %r3; mov.b32 %r3, 1; st.shared.b32 [%r1], %r3; ld.shared.b32 %r4, [%r1];
         st.global.b32 [%mine], %r4;",
        "setp.eq.s32 %p2, %r3, 5; and.pred %p3, %p1, %p2; selp.b32 %r4, 1, 2, %p1; st.global.b32 [%mine], %r4;",
    ] {
        run_clean(&half_written(end), 32);
    }
    // Computed with by what compilers hardly ever write: each makes `%r4` of it.
    for computed in [
        "vadd.s32.s32.s32 %r4, %r3.b1, %r3;",
        "vavrg4.u32.u32.u32 %r4, %r3, %tid, %r3;",
        "vmad.s32.s32.s32 %r4, %r3, 3, %r3;",
        "fns.b32 %r4, %r3, 0, 1;",
        "cvt.pack.sat.u8.s32.b32 %r4, %r3, %tid, %r3;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %r3, %r3; cvt.u32.u16 %r4, %h1;",
        "cvt.rn.satfinite.e5m2x2.f16x2 %h1, %r3; cvt.u32.u16 %r4, %h1;",
        "mov.b32 {%h1, %h2}, %r3; cvt.rn.f16x2.e4m3x2 %r4, %h1;",
        "mov.b64 %d1, {%tid, %r3}; rcp.approx.ftz.f64 %d2, %d1; mov.b64 {%r5, %r4}, %d2;",
        "mov.b64 %d1, {%tid, %r3}; rsqrt.approx.ftz.f64 %d2, %d1; mov.b64 {%r5, %r4}, %d2;",
        "lop3.or.b32 %r4|%p2, %r3, %tid, %r3, 0x1e, %p1;",
        "mov.b64 %d1, {%r3, %r3}; isspacep.shared %p2, %d1; selp.b32 %r4, 1, 2, %p2;",
    ] {
        let discarded = "selp.b32 %r5, %r4, 7, %p1; st.global.b32 [%mine], %r5;";
        run_clean(&half_written(&format!("{computed} {discarded}")), 32);
        let kept = half_written(&format!("{computed}\nst.global.b32 [%mine], %r4;"));
        let finding = only_finding(&kept, 32, &with_schedule(Schedule::Latest));
        assert_eq!((finding.kind, finding.occurrences), (UNDEFINED_READ, 12), "{computed}: {finding}");
    }
}

/// What comes of words of shared memory that nothing wrote.
const UNDEFINED_READ: FindingKind = FindingKind::UninitialisedRead { space: Space::Shared };

/// Nothing comes of it, and it is a finding at the load; what it was stored to is defined from then on.
#[test]
fn a_strict_run_reports_what_is_read_at_once() {
    let strict = |schedule| Options { strict: true, ..with_schedule(schedule) };
    let carried = half_written("st.shared.b32 [%r1], %r3; ld.shared.b32 %r4, [%r1];");
    let masked = half_written("selp.b32 %r5, %r3, 7, %p1;\nst.global.b32 [%mine], %r5;");
    for body in [half_written(""), carried, masked] {
        for schedule in schedules() {
            let finding = only_finding(&body, 32, &strict(schedule));
            let kind = FindingKind::UninitialisedRead { space: Space::Shared };
            assert_eq!((finding.kind, finding.thread), (kind, [20, 0, 0]), "{finding}");
            assert_eq!(
                (finding.ptx_line, finding.occurrences),
                (line_of(&body, "ld.shared.b32 %r3"), 12)
            );
            assert!(finding.message.ends_with(": nothing wrote it"), "{finding}");
        }
    }
    // Not of registers, which compilers leave undefined where nothing comes of them; of matrices.
    let register = "setp.lt.u32 %p1, %tid, 20; @%p1 mov.b32 %r3, 1;\nadd.s32 %r4, %r3, 1;";
    assert!(run_body(register, 32, &strict(Schedule::Latest)).report.is_clean());
    let matrix = half_written(
        "mov.u32 %r1, dynamic; and.b32 %r2, %tid, 7; shl.b32 %r2, %r2, 4; add.s32 %r1, %r1, %r2;\n\
         ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r1];",
    )
    .replace("ld.shared.b32 %r3, [%r1];", "");
    let finding = only_finding(&matrix, 32, &strict(Schedule::Latest));
    // Row 5 has words 20 to 23.
    assert!(finding.ptx.starts_with("ldmatrix") && finding.thread == [5, 0, 0], "{finding}");
    // What is defined is as it was.
    for body in
        [half_written("@%p1 st.global.b32 [%mine], %r2;").replace("\nld", "\n@%p1 ld"), String::new()]
    {
        assert!(run_body(&body, 32, &strict(Schedule::Latest)).report.is_clean());
    }
}

#[test]
fn it_is_found_where_something_comes_of_it_and_reported_where_it_was_read() {
    let kind = FindingKind::UninitialisedRead { space: Space::Shared };
    for (end, lane) in [
        ("add.s32 %r4, %r3, 1;\nst.global.b32 [%mine], %r4;", 20),
        ("setp.gt.s32 %p2, %r3, 5;\n@%p2 bra END; END:", 20),
        ("setp.gt.s32 %p2, %r3, 5; not.pred %p4, %p1; and.pred %p3, %p4, %p2;\n@%p3 bra END; END:", 20),
        ("setp.gt.or.s32 %p2, %r3, 5, %p1;\n@%p2 bra END; END:", 20),
        (
            "and.b32 %r4, %r3, 12; cvt.u64.u32 %d1, %r4; add.s64 %d1, %d1, %data;\nld.global.b32 %r5, [%d1];",
            20,
        ),
        ("redux.sync.add.s32 %r4, %r3, -1;", 20),
        ("shfl.sync.idx.b32 %r4, %r3, 25, 31, -1;\nst.global.b32 [%mine], %r4;", 25),
        (
            "add.s32 %r4, %r3, 1; st.shared.b32 [%r1+256], %r4;\nld.shared.b32 %r5, [%r1+256]; st.global.b32 [%mine], %r5;",
            20,
        ),
    ] {
        let body = half_written(end);
        for schedule in schedules() {
            let finding = only_finding(&body, 32, &with_schedule(schedule));
            assert_eq!((finding.kind, finding.thread), (kind, [lane, 0, 0]), "{finding}");
            // Also if it was carried through memory.
            assert_eq!(finding.ptx_line, line_of(&body, "ld.shared.b32 %r3"), "{finding}");
        }
    }
}

#[test]
fn a_product_of_matrices_has_the_rows_and_columns_that_are_not_defined() {
    // Row `%tid / 4` of A is of the lanes 4 r to 4 r + 3, of which those from 20 on read what nothing wrote.
    let body = |end: &str| {
        half_written(&format!(
            "mov.b32 %r4, 0; mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{%r5, %r6, %r7, %r8}}, {{%r3, %r4}},
             {{%r4}}, {{%r4, %r4, %r4, %r4}};\n{end}"
        ))
    };
    // Rows 0 to 4, and all of 8 to 15.
    run_clean(&body("@%p1 st.global.b32 [%mine], %r5;"), 32);
    run_clean(&body("st.global.b32 [%mine], %r7;"), 32);
    let finding = only_finding(&body("st.global.b32 [%mine], %r6;"), 32, &Options::default());
    assert!((20..24).contains(&finding.thread[0]), "{finding}");
    // As B it is of columns, of which all rows have some.
    let as_b = body("@%p1 st.global.b32 [%mine], %r5;")
        .replace("{%r3, %r4},", "{%r4, %r4},")
        .replace("{%r4}, {", "{%r3}, {");
    assert_eq!(run_body(&as_b, 32, &Options::default()).report.findings.len(), 1);
}

/// Rows 5 to 7 of the matrix are not written; transposed they are columns.
#[test]
fn matrix_loads_pass_on_what_is_not_defined() {
    let body = |form: &str, store: &str| {
        format!(
            "mov.u32 %r1, dynamic; and.b32 %r2, %tid, 7; shl.b32 %r2, %r2, 4; add.s32 %r1, %r1, %r2; mov.b32 %r4, 0;
             setp.lt.u32 %p1, %tid, 5; @%p1 st.shared.v4.b32 [%r1], {{%r4, %r4, %r4, %r4}}; bar.sync 0;
             ldmatrix.sync.aligned.m8n8.x1{form}.shared.b16 {{%r3}}, [%r1];
             mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{%r5, %r6, %r7, %r8}}, {{%r3, %r4}}, {{%r4}},
             {{%r4, %r4, %r4, %r4}};\n{store}"
        )
    };
    let kind = FindingKind::UninitialisedRead { space: Space::Shared };
    let store = "setp.lt.u32 %p2, %tid, 20; @%p2 st.global.b32 [%mine], %r5;";
    run_clean(&body("", store), 32);
    run_clean(&body(".trans", "st.global.b32 [%mine], %r7;"), 32);
    for (form, store) in [("", "st.global.b32 [%mine], %r5;"), (".trans", store)] {
        let finding = only_finding(&body(form, store), 32, &Options::default());
        assert_eq!(finding.kind, kind, "{finding}");
        assert!(finding.ptx.starts_with("ldmatrix") && (5..8).contains(&finding.thread[0]), "{finding}");
    }
    // Stored again, and carried on.
    let again = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1+512], {%r3}; bar.sync 0;
         ld.shared.b32 %r9, [%r1+512]; st.global.b32 [%mine], %r9;";
    let finding = only_finding(&body("", again), 32, &Options::default());
    assert!(finding.ptx.starts_with("ldmatrix"), "{finding}");
}

#[test]
fn a_block_goes_on_without_the_lanes_that_were_refused() {
    // Lanes from 16 on read beyond the end, add one, and store; the sum of all is not looked at for them.
    let body = "mul.wide.u32 %d1, %tid, 256; add.s64 %d1, %d1, %data;\nld.global.b32 %r1, [%d1];
         add.s32 %r1, %r1, 1; mul.wide.u32 %d2, %r1, 4096; add.s64 %d2, %d2, %mine; st.global.b32 [%d2-4096], %r1;
         bar.sync 0; setp.eq.u32 %p1, %tid, 0; @%p1 st.global.b32 [%data+2048], 7;";
    for schedule in schedules() {
        let outcome = run_body(body, 32, &with_schedule(schedule));
        let [finding] = &outcome.report.findings[..] else { panic!("{:#?}", outcome.report.findings) };
        assert_eq!(finding.kind, FindingKind::OutOfBounds { space: Space::Global });
        assert_eq!((finding.thread, finding.occurrences), ([16, 0, 0], 16));
        assert_eq!(finding.ptx_line, line_of(body, "ld.global"));
        assert!(finding.kind.spoils_results());
        // The others did all that they had to, and those left out stored nothing.
        assert_eq!(outcome.words[..16], [1; 16]);
        assert_eq!((&outcome.words[16..32], outcome.words[512]), (&[0; 16][..], 7));
    }
    // Faults behind it are still found.
    let body = "ld.global.b32 %r1, [%data+4096];\nst.shared.b32 [dynamic], %tid;";
    let found = run_body(body, 64, &Options::default()).report.findings;
    assert!(found.iter().any(|finding| finding.kind == FindingKind::SharedRace), "{found:#?}");
}

fn severities(findings: &[Finding]) -> Vec<(FindingKind, Severity)> {
    findings.iter().map(|finding| (finding.kind, finding.severity())).collect()
}

#[test]
fn writes_of_one_value_are_a_note_and_of_two_an_error() {
    let body = |value: &str| {
        format!(
            "mov.u32 %r1, dynamic; and.b32 %r2, %tid, 31; shl.b32 %r2, %r2, 2; add.s32 %r1, %r1, %r2;\nst.shared.b32 [%r1], {value};"
        )
    };
    for schedule in schedules() {
        let found = run_body(&body("7"), 64, &with_schedule(schedule)).report.findings;
        assert_eq!(severities(&found), [(FindingKind::RedundantWrites, Severity::Note)]);
        let found = run_body(&body("%tid"), 64, &with_schedule(schedule)).report.findings;
        assert_eq!(severities(&found), [(FindingKind::SharedRace, Severity::Error)]);
    }
}

#[test]
fn the_plain_load_before_a_compare_and_swap_is_a_note() {
    let body = |add: &str| {
        format!(
            "ld.global.b32 %r1, [%data]; LOOP: mov.b32 %r2, %r1; add.s32 %r3, %r2, 1; {add}
             atom.global.cas.b32 %r1, [%data], %r2, %r3; setp.ne.s32 %p1, %r1, %r2; @%p1 bra LOOP;"
        )
    };
    for schedule in schedules() {
        let outcome = run_body(&body(""), 128, &with_schedule(schedule));
        assert_eq!(outcome.words[0], 128);
        for finding in &outcome.report.findings {
            assert_eq!(
                severities(std::slice::from_ref(finding)),
                [(FindingKind::CompareAndSwapLoad, Severity::Note)]
            );
        }
        // Plain stores of one word are what they were.
        let found = run_body(&body("st.global.b32 [%data+8], %r3;"), 128, &with_schedule(schedule))
            .report
            .findings;
        assert!(found.iter().any(|finding| finding.kind == FindingKind::GlobalRace), "{found:#?}");
    }
}

#[test]
fn a_race_that_lacks_an_acquire_alone_is_none_where_there_always_is_one() {
    // The last block to count adds up what all wrote; `fence` stands behind its count.
    let run = |fence: &str, before: &str, acquire_always: bool| {
        let text = format!(
            "{HEAD}.visible .entry k(.param .u64 data) {{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<8>;
             ld.param.u64 %d1, [data]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d2, %d1;
             st.global.b32 [%d2+64], %r1; {before} atom.global.add.u32 %r2, [%d1], 1; setp.ne.u32 %p1, %r2, 3;
             @%p1 bra END; {fence} ld.global.b32 %r3, [%d1+64]; ld.global.b32 %r4, [%d1+68]; add.s32 %r3, %r3, %r4;
             st.global.b32 [%d1+32], %r3; END: ret; }}"
        );
        let memory = Memory::new();
        let data = memory.allocate(256);
        memory.write(data, &[0; 256]).unwrap();
        let options = Options { acquire_always, schedule: Schedule::Eager, ..Options::default() };
        let report = run_with(&text, &memory, 4, 1, 0, &data.to_le_bytes(), &options);
        assert_eq!(words(&memory, data, 9)[8], 1);
        report.findings.len()
    };
    let fence = "fence.acq_rel.gpu;";
    assert_eq!(run(fence, fence, false), 0);
    assert_eq!((run("", fence, false) > 0, run("", fence, true)), (true, 0));
    // Without a release nothing helps.
    assert!(run(fence, "", true) > 0);
}
