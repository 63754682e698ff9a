//! Where values that are not finite come from: origins, suspects, and what is neither.

mod common;
use common::{kernel, line_of, run_body, run_with, schedules, with_schedule};
use ptx_emulator::{Memory, Number, Operand, Options, Origin, OriginKind, Report, Schedule, Trace};

fn traced(schedule: Schedule) -> Options {
    Options { trace: true, ..with_schedule(schedule) }
}

/// The trace of a body, the same under every schedule.
fn trace(body: &str) -> Trace {
    let run = |schedule| run_body(body, 32, &traced(schedule)).report;
    let report = run(Schedule::Latest);
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert!(schedules().into_iter().all(|schedule| run(schedule).trace == report.trace));
    report.trace
}

/// The only origin of a body: kind, values of its operands, thread.
fn origin(body: &str, at: &str, kind: OriginKind, operands: &[f64], thread: u32) -> Origin {
    let Trace { first, suspect, .. } = trace(body);
    let found = if kind.is_suspect() { suspect } else { first };
    let found = found.unwrap_or_else(|| panic!("nothing in {body}"));
    assert_eq!((found.kind, found.ptx_line), (kind, line_of(body, at)), "{found}");
    assert_eq!((found.thread, found.kernel.as_str()), ([thread, 0, 0], "k"));
    let values: Vec<f64> = found.operands.iter().flat_map(|o| &o.values).map(|value| value.0).collect();
    assert_eq!(values, operands, "{found}");
    found
}

const INF: f64 = f64::INFINITY;

#[test]
fn finite_operands_and_a_result_that_is_not_are_an_origin() {
    // Thread 3 holds 3e38, the others 1; twice that is too large.
    let large = "setp.eq.u32 %p1, %tid, 3; selp.f32 %r1, 0f7F61B1E6, 0f3F800000, %p1;\n";
    let max = f64::from(3e38f32);
    let body = format!("{large}mul.f32 %r2, %r1, 0f40000000;\nadd.f32 %r3, %r2, %r1;");
    let found = origin(&body, "mul.f32", OriginKind::Overflow, &[max, 2.0], 3);
    assert_eq!(found.result, Number(INF));
    assert_eq!(trace(&body).origins, 1);
    let text = found.to_string();
    assert!(text.contains("a = 3e38") && text.contains("thread (3, 0, 0)"), "{text}");
    // As f64 it is not; as f16 it is, also in pairs and where only the upper half is too large.
    let body = format!("{large}cvt.f64.f32 %d1, %r1; mul.f64 %d2, %d1, %d1;");
    assert_eq!(trace(&body), Trace::default());
    let body = format!("{large}cvt.rn.f16.f32 %h1, %r1;");
    origin(&body, "cvt.rn", OriginKind::Overflow, &[max], 3);
    let body = format!("{large}cvt.rn.f16x2.f32 %r2, %r1, %r9;");
    origin(&format!("mov.b32 %r9, 0;\n{body}"), "cvt.rn", OriginKind::Overflow, &[max], 3);
    // 0x7800 is 32768 in f16.
    let body = "mov.b32 %r1, 0x78003c00; setp.lt.u32 %p1, %tid, 7; @%p1 mov.b32 %r1, 0x3c003c00;\nadd.f16x2 %r2, %r1, %r1;";
    origin(body, "add.f16x2", OriginKind::Overflow, &[32768.0, 32768.0], 7);
    let body = "mov.b32 %r1, 0fBF800000;\nsqrt.approx.f32 %r2, %r1;";
    origin(body, "sqrt", OriginKind::Invalid, &[-1.0], 0);
    let body = "mov.b32 %r1, 0fC0000000;\nlg2.approx.f32 %r2, %r1;";
    origin(body, "lg2", OriginKind::Invalid, &[-2.0], 0);
    let body = "mov.b32 %r1, 0f43800000;\nex2.approx.f32 %r2, %r1;";
    origin(body, "ex2", OriginKind::Overflow, &[256.0], 0);
    // The result may take the place of an operand, and a guard keeps lanes out.
    let body = format!("{large}fma.rn.f32 %r1, %r1, %r1, %r1;");
    origin(&body, "fma", OriginKind::Overflow, &[max, max, max], 3);
    let body = format!("{large}@!%p1 mul.f32 %r1, %r1, %r1;");
    assert_eq!(trace(&body), Trace::default());
}

#[test]
fn what_masks_scores_is_no_origin() {
    let body = "mov.b32 %r1, 0fFF800000;
        setp.lt.u32 %p1, %tid, 16; selp.f32 %r2, 0fFF800000, 0f3F800000, %p1;
        max.f32 %r3, %r1, %r2; mul.f32 %r4, %r2, 0f3FB8AA3B; sub.f32 %r5, %r1, 0f3F800000;
        fma.rn.f32 %r6, %r2, 0f3FB8AA3B, 0f40000000; ex2.approx.ftz.f32 %r7, %r1;
        shfl.sync.bfly.b32 %r8, %r2, 16, 31, -1; st.global.b32 [%mine], %r8; ld.global.b32 %r9, [%mine];
        cvt.rn.bf16x2.f32 %r10, %r2, %r1; neg.f32 %r11, %r1; fma.rn.f32 %r12, %r7, %r7, %r7;";
    assert_eq!(trace(body), Trace::default());
    // NaN that was in memory is passed on, not made.
    let body = "mov.b32 %r1, 0x7fffffff; st.global.b32 [%mine], %r1; ld.global.b32 %r2, [%mine]; add.f32 %r3, %r2, %r2;";
    assert_eq!(trace(body), Trace::default());
}

#[test]
fn poles_and_nan_of_infinities_are_suspects() {
    let body =
        "mov.b32 %r1, 0; mov.b32 %r3, 0fFF800000;\nlg2.approx.f32 %r2, %r1;\nsub.f32 %r4, %r3, %r2;";
    origin(body, "lg2", OriginKind::Pole, &[0.0], 0);
    let Trace { first, origins, suspects, .. } = trace(body);
    assert_eq!((first, origins, suspects), (None, 0, 64));
    let body = "mov.b32 %r3, 0fFF800000;\nsub.f32 %r4, %r3, %r3;";
    origin(body, "sub.f32", OriginKind::Indeterminate, &[-INF, -INF], 0);
    let body = "mov.b32 %r1, 0x00000001;\nrcp.approx.ftz.f32 %r4, %r1;";
    origin(body, "rcp", OriginKind::Pole, &[f64::from(f32::from_bits(1))], 0);
    // 0 / 0 is no pole.
    let body = "mov.b32 %r1, 0;\ndiv.rn.f32 %r4, %r1, %r1;";
    origin(body, "div", OriginKind::Invalid, &[0.0, 0.0], 0);
}

#[test]
fn an_atomic_sum_is_looked_at() {
    let body =
        "mov.b32 %r1, 0f7F61B1E6; setp.lt.u32 %p1, %tid, 2; @%p1 red.global.add.f32 [%data], %r1;";
    let found = origin(body, "red.global", OriginKind::Overflow, &[f64::from(3e38f32); 2], 1);
    assert_eq!(found.operands[1].name, "memory");
}

#[test]
fn an_element_of_a_product_names_its_row_and_column() {
    // Lane 9 holds rows 2 and 10 of A at k 2 and 3, and column 2 of B; 0x7f7f is the largest bf16.
    let body = "setp.eq.u32 %p1, %tid, 9; selp.b32 %r1, 0x00007f7f, 0, %p1; mov.b32 %r2, 0;\
        \nmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r3, %r4, %r5, %r6}, {%r2, %r1, %r2, %r2}, {%r1, %r2}, {%r2, %r2, %r2, %r2};";
    let Trace { first, origins, .. } = trace(body);
    let found = first.expect("an overflow");
    assert_eq!(
        (found.kind, found.element, origins),
        (OriginKind::Overflow, Some([10, 2]), 1),
        "{found}"
    );
    assert_eq!(found.thread, [9, 0, 0]);
    let Operand { name, values } = &found.operands[0];
    let large = f64::from(half::bf16::MAX.to_f32());
    let expected: Vec<Number> = (0..16).map(|k| Number(if k == 2 { large } else { 0.0 })).collect();
    assert_eq!((*name, values), ("a", &expected));
    assert_eq!(found.operands[1].values, expected);
    assert_eq!(found.operands[2].values, [Number(0.0)]);
    let body = body.replace("0x00007f7f", "0x00003f80");
    assert_eq!(trace(&body), Trace::default());
}

/// f16, whose largest number is 65504, as sums; f64; sparse; and the one of sm_70.
#[test]
fn products_of_any_types_are_looked_at() {
    let large = "mov.b32 %r1, 0x7bff7bff; mov.b32 %r2, 0; mov.b32 %r9, 0x44444444; mov.b64 %d1, 0x6974e718d7d7625a;\n";
    let sixteen = 65504.0;
    for (instruction, elements, factors, value) in [
        ("m16n8k8.row.col.f16.f16.f16.f16 {%r3, %r4}, {%r1, %r1}, {%r1}, {%r2, %r2};", 128, 8, sixteen),
        ("m8n8k4.row.col.f64.f64.f64.f64 {%d3, %d4}, {%d1}, {%d1}, {%d1, %d1};", 64, 4, 1e200),
        (
            "m8n8k4.row.col.f16.f16.f16.f16 {%r3, %r4, %r5, %r6}, {%r1, %r1}, {%r1, %r1}, {%r2, %r2, %r2, %r2};",
            256,
            4,
            sixteen,
        ),
        (
            "sp.m16n8k16.row.col.f16.f16.f16.f16 {%r3, %r4}, {%r1, %r1}, {%r1, %r1}, {%r2, %r2}, %r9, 0x0;",
            128,
            8,
            sixteen,
        ),
    ] {
        let body = match instruction.strip_prefix("sp.") {
            Some(sparse) => format!("{large}mma.sp.sync.aligned.{sparse}"),
            None => format!("{large}mma.sync.aligned.{instruction}"),
        };
        let Trace { first, origins, .. } = trace(&body);
        let found = first.unwrap_or_else(|| panic!("nothing in {instruction}"));
        assert_eq!((found.kind, found.element, origins), (OriginKind::Overflow, Some([0, 0]), elements));
        assert_eq!(found.operands[0].values, vec![Number(value); factors], "{instruction}");
        assert_eq!(found.operands[1].values, vec![Number(value); factors], "{instruction}");
        assert_eq!(
            trace(&body.replace("0x7bff7bff", "0x3c003c00").replace("0x6974e718", "0x3ff00000")),
            Trace::default()
        );
    }
    // 352 squared, 32 times, is too much for f16.
    let product = "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16 {%r3, %r4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r2, %r2};";
    let body = format!("{}{product}", large.replace("0x7bff7bff", "0x7b7b7b7b"));
    assert_eq!(trace(&body).origins, 128);
    assert_eq!(trace(&body.replace("0x7b7b7b7b", "0x30303030")), Trace::default());
}

#[test]
fn conversions_to_tf32_and_halves_of_f64_are_looked_at() {
    let body = "mov.b32 %r1, 0x7f7fffff;\ncvt.rna.tf32.f32 %r2, %r1;";
    origin(body, "cvt.rna", OriginKind::Overflow, &[f64::from(f32::MAX)], 0);
    let body = "mov.b64 %d1, 0;\nrcp.approx.ftz.f64 %d2, %d1;";
    origin(body, "rcp", OriginKind::Pole, &[0.0], 0);
    let body = "mov.b64 %d1, 0xbff0000000000000;\nrsqrt.approx.ftz.f64 %d2, %d1;";
    origin(body, "rsqrt", OriginKind::Invalid, &[-1.0], 0);
}

/// Thread 69 alone has a number other than 0, and all of B is as large.
#[test]
fn sums_of_a_warpgroup_in_f16_are_looked_at() {
    let body = WARPGROUP
        .replace("0x7f7f7f7f", "0x7bff7bff")
        .replace("0x00007f7f", "0x00007bff")
        .replace("f32.bf16.bf16 {%f0, %f1, %f2, %f3}", "f16.f16.f16 {%f0, %f1}");
    for schedule in schedules() {
        let report =
            common::hopper::run_body(&body, 128, common::hopper::no_map, &traced(schedule)).report;
        assert!(report.is_clean(), "{}", report.findings[0]);
        let found = report.trace.first.expect("an overflow");
        assert_eq!((found.element, found.thread, report.trace.origins), (Some([41, 0]), [68, 0, 0], 8));
        assert_eq!(found.operands[0].values[2], Number(65504.0), "{found}");
    }
}

/// A product of a warpgroup: A of registers, where thread 69 holds row 41 at k 2 and 3, and B of 16 x 8 alike numbers.
const WARPGROUP: &str = "mov.b32 %r1, 0x7f7f7f7f; shl.b32 %r2, %tid, 4; add.s32 %r2, %r2, %base;
        st.shared.v4.b32 [%r2], {%r1, %r1, %r1, %r1}; fence.proxy.async; bar.sync 0;
        setp.eq.u32 %p1, %tid, 69; selp.b32 %r3, 0x00007f7f, 0, %p1; mov.b32 %r4, 0;
        mov.b32 %f0, 0; mov.b32 %f1, 0; mov.b32 %f2, 0; mov.b32 %f3, 0;
        shr.u32 %r5, %base, 4; and.b32 %r5, %r5, 0x3fff; cvt.u64.u32 %d1, %r5; or.b64 %d1, %d1, 0x0000001000080000;
        setp.eq.u32 %p2, 0, 0; wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, {%r4, %r3, %r4, %r4}, %d1, %p2, 1, 1, 0;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";

#[test]
fn an_element_of_a_warpgroups_product_names_its_row_and_column() {
    for schedule in schedules() {
        let report =
            common::hopper::run_body(WARPGROUP, 128, common::hopper::no_map, &traced(schedule)).report;
        assert!(report.is_clean(), "{}", report.findings[0]);
        // Thread 69: warp 2, lane 5, row 8 + 1 of its warp. All eight columns overflow.
        let found = report.trace.first.expect("an overflow");
        assert_eq!((found.element, report.trace.origins), (Some([41, 0]), 8), "{found}");
        assert_eq!(found.thread, [68, 0, 0]);
        let large = f64::from(half::bf16::MAX.to_f32());
        assert_eq!(found.operands[0].values[2], Number(large));
        assert!(found.operands[1].values.iter().all(|value| value.0 == large));
    }
}

#[test]
fn the_first_block_comes_first_and_results_stay_the_same() {
    let body = "mov.u32 %r1, %ctaid.x; cvt.rn.f32.u32 %r2, %r1;
        setp.gt.u32 %p1, %r1, 4; @!%p1 bra END;\nmul.f32 %r2, %r2, 0f7F61B1E6;\nEND: red.global.add.f32 [%mine], %r2;";
    let run = |threads: usize, trace: bool| -> (Report, Vec<u32>) {
        let memory = Memory::new();
        let data = memory.allocate(128);
        memory.write(data, &[0; 128]).unwrap();
        let options = Options { threads, trace, ..Options::default() };
        let report = run_with(&kernel(body), &memory, 9, 32, 0, &data.to_le_bytes(), &options);
        (report, common::words(&memory, data, 32))
    };
    let (report, words) = run(1, true);
    let first = report.trace.first.as_ref().expect("an overflow");
    assert_eq!((first.block, first.ptx_line), ([5, 0, 0], line_of(body, "mul.f32")), "{first}");
    assert_eq!(report.trace.origins, 4 * 32);
    assert_eq!(run(3, true).0.trace.first, report.trace.first);
    assert_eq!(run(1, false), (Report { trace: Trace::default(), ..report }, words));
}
