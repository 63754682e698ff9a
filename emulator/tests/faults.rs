//! Small kernels with one planted fault each, and their clean twins.

mod common;
use common::{
    HEAD, kernel, line_of, only_finding, run_body, run_clean, run_with, schedules, with_schedule,
};
use ptx_emulator::{Checks, FindingKind, Launch, Memory, Module, Options, Schedule, Space, launch};

fn latest() -> Options {
    with_schedule(Schedule::Latest)
}

/// The fault is found under every schedule, at the line and by the thread; the twin is clean.
fn expect(body: &str, twin: &str, threads: u32, kind: FindingKind, at: &str, thread: u32) {
    for schedule in schedules() {
        let finding = only_finding(body, threads, &with_schedule(schedule));
        assert_eq!(finding.kind, kind, "{finding}");
        assert_eq!(finding.ptx_line, line_of(body, at), "{finding}");
        assert_eq!(finding.thread, [thread, 0, 0], "{finding}");
        assert_eq!(finding.kernel, "k");
    }
    run_clean(twin, threads);
}

#[test]
fn global_accesses_out_of_bounds() {
    let kind = FindingKind::OutOfBounds { space: Space::Global };
    let body = |offset: u32| format!("ld.global.b32 %r1, [%mine+{offset}];");
    expect(&body(4096 - 31 * 4), &body(4096 - 32 * 4), 32, kind, "ld.global", 31);
    let body =
        |offset: u32| format!("mov.b32 %r1, 7;\nst.global.v2.b32 [%data+{offset}], {{%r1, %r1}};");
    expect(&body(4096), &body(4088), 32, kind, "st.global", 0);
    let body = |offset: u32| format!("atom.global.add.u32 %r1, [%data+{offset}], 1;");
    expect(&body(4096), &body(4092), 32, kind, "atom", 0);
    // One lane of many, below the start.
    let body = |bound: u32| {
        format!(
            "setp.ne.u32 %p1, %tid, 17; @%p1 bra END; sub.s64 %d1, %data, {bound};\nst.global.b32 [%d1], 0; END:"
        )
    };
    expect(&body(4), &body(0), 32, kind, "st.global", 17);
}

#[test]
fn shared_accesses_out_of_bounds() {
    let kind = FindingKind::OutOfBounds { space: Space::Shared };
    let body = |offset: u32| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r1, %r1, %r2;\nst.shared.b32 [%r1+{offset}], 0;"
        )
    };
    expect(&body(1024 - 5 * 4), &body(1024 - 32 * 4), 32, kind, "st.shared", 5);
    let matrix = |offset: u32| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 4; add.s32 %r1, %r1, %r2;
             st.shared.v4.b32 [%r1], {{%tid, %tid, %tid, %tid}}; st.shared.v4.b32 [%r1+512], {{%tid, %tid, %tid, %tid}};
             bar.sync 0;
             ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r1+{offset}];"
        )
    };
    expect(&matrix(528), &matrix(512), 32, kind, "ldmatrix", 31);
    // A null pointer into shared memory.
    let body = |address: &str| format!("st.shared.b32 [{address}], 0;");
    expect(&body("0"), &body("dynamic"), 1, kind, "st.shared", 0);
    let copy = |offset: u32| {
        format!(
            "mov.u32 %r1, dynamic;\ncp.async.ca.shared.global [%r1+{offset}], [%mine], 4; cp.async.wait_all;"
        )
    };
    expect(&copy(1024), &copy(1020), 1, kind, "cp.async.ca", 0);
}

#[test]
fn local_and_param_accesses_out_of_bounds() {
    let body = |offset: u32| {
        format!(
            ".local .align 4 .b8 depot[16]; mov.u64 %d1, depot; cvta.local.u64 %d2, %d1;\nst.b32 [%d2+{offset}], 0;"
        )
    };
    let kind = FindingKind::OutOfBounds { space: Space::Local };
    expect(&body(16), &body(12), 32, kind, "st.b32", 0);
    let body = |offset: u32| format!("ld.param.b32 %r1, [data+{offset}];");
    let kind = FindingKind::OutOfBounds { space: Space::Param };
    expect(&body(8), &body(4), 32, kind, "ld.param.b32", 0);
}

#[test]
fn misaligned_accesses() {
    let global = FindingKind::Misaligned { space: Space::Global };
    let body = |offset: u32| format!("ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%data+{offset}];");
    expect(&body(8), &body(16), 32, global, "ld.global", 0);
    let body = |step: u32| {
        format!("mul.wide.u32 %d1, %tid, {step}; add.s64 %d1, %d1, %data;\nst.global.b32 [%d1], 0;")
    };
    expect(&body(2), &body(4), 32, global, "st.global", 1);
    let shared = FindingKind::Misaligned { space: Space::Shared };
    let body = |offset: u32| {
        format!("mov.b16 %h1, 0; mov.u32 %r1, dynamic;\nst.shared.b16 [%r1+{offset}], %h1;")
    };
    expect(&body(3), &body(2), 32, shared, "st.shared", 0);
    let copy = |offset: u32| {
        format!(
            "mov.u32 %r1, dynamic;\ncp.async.cg.shared.global [%r1], [%data+{offset}], 16; cp.async.wait_all;"
        )
    };
    expect(&copy(8), &copy(32), 1, global, "cp.async.cg", 0);
}

#[test]
fn null_and_freed_pointers() {
    expect(
        "mov.b64 %d1, 0;\nld.global.b32 %r1, [%d1+8];",
        "ld.global.b32 %r1, [%data+8];",
        32,
        FindingKind::NullPointer,
        "ld.global",
        0,
    );
    let memory = Memory::new();
    let data = memory.allocate(64);
    memory.write(data, &[0; 64]).unwrap();
    memory.free(data).unwrap();
    let text = kernel("ld.global.b32 %r1, [%data];");
    let report = run_with(&text, &memory, 1, 1, 0, &data.to_le_bytes(), &latest());
    assert_eq!(report.findings[0].kind, FindingKind::UseAfterFree);
}

#[test]
fn constants_and_parameters_are_read_only() {
    let ptx = format!(
        "{HEAD}.const .align 4 .b32 table = 1;
         .visible .entry k(.param .u64 p) {{ .reg .b64 %d<2>; mov.u64 %d1, table; st.b32 [%d1], 0; ret; }}
         .visible .entry q(.param .u64 p) {{ .reg .b64 %d<2>; mov.u64 %d1, p; st.b32 [%d1], 0; ret; }}"
    );
    let module = Module::parse(&ptx).unwrap();
    let shape = Launch::new([1; 3], [1; 3], &[0; 8]);
    for kernel in module.kernels() {
        let report = launch(kernel, &Memory::new(), &shape, &latest()).unwrap();
        assert!(matches!(report.findings[0].kind, FindingKind::WriteToReadOnly { .. }));
    }
}

#[test]
fn uninitialised_shared_and_local_reads() {
    let body = |lanes: u32| {
        format!(
            "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 2; add.s32 %r1, %r1, %r2;
             setp.ge.u32 %p1, %tid, {lanes}; @%p1 bra SKIP; st.shared.b32 [%r1], 0; SKIP: bar.sync 0;
             ld.shared.b32 %r3, [%r1];\nst.global.b32 [%mine], %r3;"
        )
    };
    let kind = FindingKind::UninitialisedRead { space: Space::Shared };
    expect(&body(30), &body(32), 32, kind, "ld.shared", 30);
    // One byte of four.
    let bytes = |last: &str| {
        format!(
            "mov.b16 %h1, 0; mov.u32 %r1, dynamic; st.shared.b16 [%r1], %h1; st.shared.{last} [%r1+2], %h1;\nld.shared.b32 %r2, [%r1];\n
             st.global.b32 [%mine], %r2;"
        )
    };
    expect(&bytes("b8"), &bytes("b16"), 1, kind, "ld.shared", 0);
    let body = |offset: u32| {
        format!(
            ".local .align 4 .b8 depot[16]; mov.u64 %d1, depot; st.local.b32 [%d1+4], %tid;\nld.local.b32 %r1, [%d1+{offset}];\nst.global.b32 [%mine], %r1;"
        )
    };
    let kind = FindingKind::UninitialisedRead { space: Space::Local };
    expect(&body(8), &body(4), 32, kind, "ld.local", 0);
}

#[test]
fn uninitialised_global_reads_go_on() {
    let memory = Memory::new();
    let data = memory.allocate(128);
    let out = memory.allocate(128);
    memory.write(data, &[0; 100]).unwrap();
    let ptx = format!(
        "{HEAD}.visible .entry k(.param .u64 data, .param .u64 out) {{ .reg .b64 %d<6>; .reg .b32 %r<4>;
         ld.param.u64 %d1, [data]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4;
         add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
         ld.global.b32 %r2, [%d4];
         st.global.b32 [%d5], %r2; ret; }}"
    );
    let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
    // Both blocks write the same bytes.
    let checks = Checks { races: false, ..Checks::all() };
    let report = run_with(&ptx, &memory, 2, 32, 0, &params, &Options { checks, ..latest() });
    assert_eq!(report.findings.len(), 1);
    let finding = &report.findings[0];
    assert_eq!(finding.kind, FindingKind::UninitialisedRead { space: Space::Global });
    assert_eq!((finding.thread, finding.block), ([25, 0, 0], [0; 3]));
    // Seven lanes in each of two blocks.
    assert_eq!(finding.occurrences, 14);
    assert_eq!(report.statistics.faults, 14);
    assert!(memory.is_initialised(out, 128).unwrap());
    let unchecked = Options { checks: Checks::none(), ..latest() };
    assert!(run_with(&ptx, &memory, 1, 32, 0, &params, &unchecked).is_clean());
}

#[test]
fn shared_memory_is_fresh_in_every_block() {
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let body =
        "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra READ; st.shared.b32 [dynamic], 1;
        READ:\nld.shared.b32 %r2, [dynamic]; atom.global.add.u32 %r3, [%data], %r2;";
    let report = run_with(&kernel(body), &memory, 3, 1, 64, &data.to_le_bytes(), &latest());
    assert_eq!((report.findings.len(), report.findings[0].block), (1, [1, 0, 0]));
    assert_eq!(report.findings[0].occurrences, 2);
}

#[test]
fn divergent_barriers() {
    for (body, at) in [
        (
            "setp.lt.u32 %p1, %tid, 16; @%p1 bra END;\nbar.sync 0;\nbar.warp.sync 0xFFFF0000; END: bar.warp.sync -1;",
            "bar.sync",
        ),
        (
            "setp.lt.u32 %p1, %tid, 16; @%p1 bra OTHER;\nbar.sync 0; bra END;\nOTHER: bar.sync 1;\nEND:",
            "bar.sync 0",
        ),
    ] {
        let at_line = line_of(body, at);
        for schedule in schedules() {
            let outcome = run_body(body, 64, &with_schedule(schedule));
            let finding = &outcome.report.findings[0];
            assert_eq!(finding.kind, FindingKind::BarrierDivergence, "{finding}");
            assert!(finding.ptx_line >= at_line, "{finding}");
        }
    }
    run_clean(
        "setp.lt.u32 %p1, %tid, 32; @%p1 bra OTHER; bar.sync 0; bra END; OTHER: bar.sync 0; END:",
        64,
    );
}

#[test]
fn barriers_whose_counts_disagree() {
    let body = |second: u32| {
        format!(
            "setp.lt.u32 %p1, %tid, 32; @%p1 bra OTHER; bar.sync 1, 64; bra END;\nOTHER: bar.sync 1, {second};\nEND:"
        )
    };
    for schedule in schedules() {
        let finding = only_finding(&body(96), 64, &with_schedule(schedule));
        assert_eq!(finding.kind, FindingKind::BarrierDivergence);
        assert!(finding.message.contains("96") && finding.message.contains("64"), "{}", finding.message);
    }
    run_clean(&body(64), 64);
    let uneven = only_finding("bar.sync 1, 40;", 64, &latest());
    assert_eq!(uneven.kind, FindingKind::InvalidOperand);
}

#[test]
fn deadlocks_say_who_waits_for_what() {
    let body = |warps: u32| {
        format!("setp.lt.u32 %p1, %tid, 32; @%p1 bra END;\nbar.sync 3, {};\nEND:", 32 * warps)
    };
    for schedule in schedules() {
        let finding = only_finding(&body(3), 96, &with_schedule(schedule));
        assert_eq!(finding.kind, FindingKind::Deadlock);
        assert_eq!(finding.ptx_line, line_of(&body(3), "bar.sync"));
        assert_eq!(finding.thread[0] % 32, 0);
        for part in ["warp 1", "warp 2", "barrier 3: 64 of 96 threads", "bar.sync 3, 96"] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
    }
    run_clean(&body(2), 96);
}

#[test]
fn matrix_instructions_of_part_of_a_warp() {
    let body = "setp.lt.u32 %p1, %tid, 16; @%p1 bra END; mov.u32 %r1, dynamic;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];\nEND: bar.warp.sync -1;";
    let finding = only_finding(body, 32, &latest());
    assert_eq!(finding.kind, FindingKind::WarpDivergence);
}

/// None of them may have exited, and none may never have been there.
#[test]
fn matrix_instructions_of_a_warp_without_all_its_lanes() {
    let rows = "{%r3, %r4, %r5, %r6}";
    let multiply = format!(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {rows}, {rows}, {{%r3, %r4}}, {rows};"
    );
    let set = "mov.b32 %r1, dynamic; mov.b32 %r3, 0; mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0;
         mul.lo.s32 %r2, %tid, 16; add.s32 %r1, %r1, %r2; st.shared.v4.b32 [%r1], {%r3, %r4, %r5, %r6};
         bar.warp.sync -1;";
    let others = [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r3};",
    ];
    for instruction in others.into_iter().chain([multiply.as_str()]) {
        run_clean(&format!("{set}\n{instruction}"), 64);
        let part = only_finding(&format!("{set}\n{instruction}"), 48, &latest());
        assert_eq!((part.kind, part.thread), (FindingKind::WarpDivergence, [32, 0, 0]), "{part}");
        let exits = format!("{set} setp.eq.u32 %p1, %tid, 0; @%p1 exit;\n{instruction}");
        assert_eq!(only_finding(&exits, 32, &latest()).kind, FindingKind::WarpDivergence);
    }
}

#[test]
fn a_trap_stops_its_block_alone() {
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let body = "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 1; @%p1 bra GO; trap; GO: atom.global.add.u32 %r2, [%data], 1;";
    let report = run_with(&kernel(body), &memory, 4, 1, 0, &data.to_le_bytes(), &latest());
    assert_eq!((report.findings[0].kind, report.findings[0].block), (FindingKind::Trap, [1, 0, 0]));
    assert_eq!(common::words(&memory, data, 1), [3]);
}

#[test]
fn findings_are_bounded_and_print_what_matters() {
    let body =
        "ld.shared.b32 %r1, [dynamic]; st.global.b32 [%mine], %r1; ld.shared.b32 %r1, [dynamic+4];
         st.global.b32 [%mine], %r1; ld.shared.b32 %r1, [dynamic+8]; st.global.b32 [%mine], %r1;";
    let options = Options { max_findings: 2, ..latest() };
    let outcome = run_body(body, 32, &options);
    assert_eq!((outcome.report.findings.len(), outcome.report.statistics.faults), (2, 96));
    let text = outcome.report.findings[0].to_string();
    for part in [
        "uninitialised shared read",
        "in k, block (0, 0, 0), thread (0, 0, 0)",
        "PTX line",
        "ld.shared.b32",
    ] {
        assert!(text.contains(part), "{text}");
    }
}
