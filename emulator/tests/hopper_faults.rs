//! Small kernels of compute capability 9.0 with one planted fault each, and their clean twins.

mod common;
use common::hopper::{findings, kernel, no_map, run_body, run_clean};
use common::{schedules, with_schedule};
use ptx_emulator::{Address, FindingKind, Space, TensorMap, TensorMapElement, TensorMapSwizzle};

/// The line of the only line of a body's kernel that contains a text.
fn line_of(body: &str, text: &str) -> u32 {
    let source = kernel(body);
    let mut lines = source.lines().enumerate().filter(|(_, line)| line.contains(text));
    let (line, _) = lines.next().expect("the text is there");
    assert!(lines.next().is_none(), "{text} is there twice");
    line as u32 + 1
}

/// The fault is the first thing found under every schedule, at the line; the twin is clean.
fn expect(
    body: &str,
    twin: &str,
    threads: u32,
    map: impl Fn(Address) -> [u64; 16],
    kind: FindingKind,
    at: &str,
) {
    for finding in findings(body, threads, &map) {
        assert_eq!(finding.kind, kind, "{finding}");
        assert_eq!(finding.ptx_line, line_of(body, at), "{finding}");
    }
    run_clean(twin, threads, map);
}

/// A box of 32 by 8 words of a tensor of 64 by 100: 1024 bytes.
fn tensor() -> TensorMap {
    TensorMap {
        element: TensorMapElement::U32,
        address: 0,
        dims: vec![64, 100],
        strides_bytes: vec![256],
        box_dims: vec![32, 8],
        swizzle: TensorMapSwizzle::B128,
    }
}

fn map(address: Address) -> [u64; 16] {
    TensorMap { address: address.0, ..tensor() }.encode().unwrap()
}

const INIT: &str = "@%first mbarrier.init.shared::cta.b64 [%base+8192], 1; @%first fence.mbarrier_init.release.cluster; bar.sync 0;";

/// A load with so many bytes announced, a wait for a parity, and a read.
fn load(bytes: u32, parity: u32) -> String {
    format!(
        "{INIT}
         @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], {bytes};
         @%first cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%map, {{0, 0}}], [%base+8192];
         W:
         mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], {parity};
         @!%p1 bra W;
         ld.shared.b32 %r1, [%base+64];
         st.global.b32 [%mine+16384], %r1;"
    )
}

#[test]
fn announced_bytes_and_parities() {
    let twin = load(1024, 0);
    for bytes in [1008, 1040] {
        expect(&load(bytes, 0), &twin, 64, map, FindingKind::Deadlock, "try_wait");
    }
    // Whoever asks for the phase before the first goes on at once, unless the load is over already.
    for finding in findings(&load(1024, 1), 64, map) {
        let unwritten = FindingKind::UninitialisedRead { space: Space::Shared };
        let kinds = [FindingKind::AsyncCopyInFlight, FindingKind::Deadlock, unwritten];
        assert!(kinds.contains(&finding.kind), "{finding}");
    }
    let twice = |parity: u32| {
        format!(
            "{}\nX:\nmbarrier.try_wait.parity.shared.b64 %p1, [%base+8192], {parity};\n@!%p1 bra X;",
            load(1024, 0)
        )
    };
    expect(&twice(1), &twice(0), 64, map, FindingKind::Deadlock, "parity.shared.b64");
}

#[test]
fn only_those_who_waited_may_read() {
    let body = |barrier: &str| {
        format!(
            "{INIT} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 1024;
             @%first cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%map, {{0, 0}}], [%base+8192];
             setp.ne.u32 %p2, %warp, 0; @%p2 bra SKIP;
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W;
             SKIP: {barrier}
             ld.shared.b32 %r1, [%base+64];
             setp.eq.u32 %p2, %warp, 0; @%p2 bra END; Y: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra Y; END:"
        )
    };
    for finding in findings(&body(""), 64, map) {
        let unwritten = FindingKind::UninitialisedRead { space: Space::Shared };
        assert!([FindingKind::AsyncCopyInFlight, unwritten].contains(&finding.kind), "{finding}");
    }
    run_clean(&body("bar.sync 0;"), 64, map);
}

#[test]
fn a_load_over_bytes_that_others_still_read() {
    let body = |barrier: &str| {
        format!(
            "{INIT} shl.b32 %r1, %tid, 2; add.s32 %r1, %r1, %base; st.shared.b32 [%r1], 0; fence.proxy.async; bar.sync 0;
             ld.shared.b32 %r2, [%r1]; {barrier}
             @!%first bra END; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 1024;
             cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%map, {{0, 0}}], [%base+8192];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W; END:"
        )
    };
    // Which of these comes first depends on the schedule, and so does the line.
    let (in_flight, lanes) = (FindingKind::AsyncCopyInFlight, FindingKind::SharedRace);
    for finding in findings(&body(""), 64, map) {
        let kinds = [in_flight, lanes, FindingKind::MissingProxyFence];
        assert!(kinds.contains(&finding.kind), "{finding}");
    }
    for finding in findings(&body("fence.proxy.async.shared::cta;"), 64, map) {
        assert!([in_flight, lanes].contains(&finding.kind), "{finding}");
    }
    for finding in findings(&body("fence.proxy.async.shared::cta; bar.warp.sync -1;"), 64, map) {
        assert_eq!(finding.kind, in_flight, "{finding}");
    }
    let twin = body("fence.proxy.async.shared::cta; bar.sync 0;");
    expect(&body("bar.sync 0;"), &twin, 64, map, FindingKind::MissingProxyFence, "bulk.tensor");
}

#[test]
fn a_stage_is_given_back_by_arrivals_behind_its_reads() {
    let body = |before: &str, behind: &str| {
        format!(
            "@%first mbarrier.init.shared::cta.b64 [%base+8200], 64; {INIT}
             shl.b32 %r1, %tid, 2; add.s32 %r1, %r1, %base; st.shared.b32 [%r1], 0; fence.proxy.async; bar.sync 0;
             {before} xor.b32 %r1, %r1, 128; ld.shared.b32 %r2, [%r1]; {behind}
             @!%first bra END; V: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8200], 0; @!%p1 bra V;
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 1024;
             cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%map, {{0, 0}}], [%base+8192];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W; END:"
        )
    };
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%base+8200];";
    let fenced = format!("fence.proxy.async; {arrive}");
    let twin = body("", &fenced);
    run_clean(&twin, 64, map);
    for finding in findings(&body(&fenced, ""), 64, map) {
        assert_eq!(finding.kind, FindingKind::AsyncCopyInFlight, "{finding}");
    }
    // An arrival alone orders the reads with later accesses of threads.
    expect(&body("", arrive), &twin, 64, map, FindingKind::MissingProxyFence, "bulk.tensor");
    let early = body("", &format!("{arrive} fence.proxy.async;"));
    expect(&early, &twin, 64, map, FindingKind::MissingProxyFence, "bulk.tensor");
    // Who issues the copy may do it for all whom it waited for.
    run_clean(
        &body("", arrive)
            .replace("mbarrier.arrive.expect_tx", "fence.proxy.async;\nmbarrier.arrive.expect_tx"),
        64,
        map,
    );
}

#[test]
fn what_a_bulk_store_wrote_is_there_behind_its_wait() {
    for operation in ["cp.async.bulk.global", "cp.reduce.async.bulk.global"] {
        let add = if operation.contains("reduce") { ".add.u32" } else { "" };
        let body = |wait: &str| {
            format!(
                "@!%first bra END; mov.u32 %r1, 0; st.shared.v4.b32 [%base], {{%r1, %r1, %r1, %r1}}; fence.proxy.async;
                 {operation}.shared::cta.bulk_group{add} [%data], [%base], 16;
                 cp.async.bulk.commit_group; {wait}
                 ld.global.b32 %r2, [%data+8];\ncp.async.bulk.wait_group 0; END:"
            )
        };
        let twin = body("cp.async.bulk.wait_group 0;");
        for wait in ["", "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 1;"] {
            expect(&body(wait), &twin, 32, no_map, FindingKind::GlobalRace, "ld.global");
        }
    }
}

fn store(fence: &str, wait: &str) -> String {
    format!(
        "shl.b32 %r1, %tid, 4; add.s32 %r1, %r1, %base; st.shared.v4.b32 [%r1], {{%tid, %tid, %tid, %tid}};
         {fence} bar.sync 0; @!%first bra END;
         cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {{0, 0}}], [%base];
         cp.async.bulk.commit_group; {wait}
         st.shared.b32 [%base+512], 7; cp.async.bulk.wait_group 0; END:"
    )
}

#[test]
fn the_source_of_a_bulk_store() {
    let fence = "fence.proxy.async.shared::cta;";
    let twin = store(fence, "cp.async.bulk.wait_group.read 0;");
    expect(&store(fence, ""), &twin, 64, map, FindingKind::AsyncCopyInFlight, "st.shared.b32");
    for fence in ["", "fence.proxy.async.global;"] {
        let missing = store(fence, "cp.async.bulk.wait_group.read 0;");
        expect(&missing, &twin, 64, map, FindingKind::MissingProxyFence, "bulk.tensor");
    }
    let body = |wait: &str| {
        format!(
            "@!%first bra END; mov.u32 %r1, 0; st.shared.v4.b32 [%base], {{%r1, %r1, %r1, %r1}}; fence.proxy.async;
             cp.async.bulk.global.shared::cta.bulk_group [%data], [%base], 16;
             cp.async.bulk.commit_group; {wait} END:"
        )
    };
    expect(
        &body(""),
        &body("cp.async.bulk.wait_group 0;"),
        32,
        no_map,
        FindingKind::AsyncCopyInFlight,
        "bulk.global",
    );
    let kind = FindingKind::UninitialisedRead { space: Space::Shared };
    let wait = "cp.async.bulk.wait_group 0;";
    let unwritten = body(wait).replace("[%base], 16;", "[%base], 32;");
    for finding in findings(&unwritten, 32, no_map) {
        assert_eq!(finding.kind, kind, "{finding}");
    }
}

/// One multiplication of zeros, m64n8k16: A from registers, B at the base in rows of 16 bytes.
struct Multiply<'a> {
    proxy: &'a str,
    fence: &'a str,
    behind: &'a str,
    wait: &'a str,
    descriptor: u64,
}

/// B at shared address 1024: LBO 128, SBO 256, no swizzle.
const B: u64 = 64 | 8 << 16 | 16 << 32;
const CLEAN: Multiply<'_> = Multiply {
    proxy: "fence.proxy.async;",
    fence: "wgmma.fence.sync.aligned;",
    behind: "",
    wait: "wgmma.wait_group.sync.aligned 0;",
    descriptor: B,
};

fn multiply(m: &Multiply<'_>) -> String {
    format!(
        "shl.b32 %r1, %tid, 2; add.s32 %r1, %r1, %base; st.shared.b32 [%r1], 0;
         {} bar.sync 0; mov.b64 %d1, {};
         mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0; setp.eq.u32 %p1, 0, 1;
         mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
         {}
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, {{%r4, %r5, %r6, %r7}}, %d1, %p1, 1, 1, 0;
         wgmma.commit_group.sync.aligned;
         {}
         {}
         st.global.f32 [%mine], %f2;
         wgmma.wait_group.sync.aligned 0;",
        m.proxy, m.descriptor, m.fence, m.behind, m.wait
    )
}

#[test]
fn registers_of_a_multiplication() {
    let twin = multiply(&CLEAN);
    let no_wait = multiply(&Multiply { wait: "", ..CLEAN });
    expect(&no_wait, &twin, 128, no_map, FindingKind::RegisterInFlight, "st.global");
    let late = multiply(&Multiply { wait: "wgmma.wait_group.sync.aligned 1;", ..CLEAN });
    expect(&late, &twin, 128, no_map, FindingKind::RegisterInFlight, "st.global");
    let overwritten = multiply(&Multiply { behind: "add.s32 %r6, %r6, 1;", ..CLEAN });
    expect(&overwritten, &twin, 128, no_map, FindingKind::RegisterInFlight, "add.s32 %r6, %r6, 1");
    let read = multiply(&Multiply { behind: "add.s32 %r8, %r6, 1;", ..CLEAN });
    run_clean(&read, 128, no_map);
    let unfenced = multiply(&Multiply { fence: "", ..CLEAN });
    expect(&unfenced, &twin, 128, no_map, FindingKind::MissingWgmmaFence, "mma_async");
    let early = multiply(&Multiply { fence: "wgmma.fence.sync.aligned; mov.b32 %r7, 0;", ..CLEAN });
    expect(&early, &twin, 128, no_map, FindingKind::MissingWgmmaFence, "mma_async");
}

#[test]
fn shared_memory_of_a_multiplication() {
    let twin = multiply(&CLEAN);
    let unseen = multiply(&Multiply { proxy: "", ..CLEAN });
    expect(&unseen, &twin, 128, no_map, FindingKind::MissingProxyFence, "mma_async");
    let overwritten = multiply(&Multiply { behind: "st.shared.b32 [%base+64], %r1;", ..CLEAN });
    for finding in findings(&overwritten, 128, no_map) {
        assert_eq!(finding.kind, FindingKind::AsyncCopyInFlight, "{finding}");
    }
    let kind = FindingKind::OutOfBounds { space: Space::Shared };
    for start in [0u64, (1024 + 16384) >> 4] {
        let outside = multiply(&Multiply { descriptor: B & !0x3fff | start, ..CLEAN });
        expect(&outside, &twin, 128, no_map, kind, "mma_async");
    }
    let beyond = multiply(&Multiply { descriptor: 64 | 0x3fff << 16 | 16 << 32, ..CLEAN });
    expect(&beyond, &twin, 128, no_map, kind, "mma_async");
}

#[test]
fn warps_of_a_warpgroup_act_alike() {
    let twin = multiply(&CLEAN);
    let differs = multiply(&CLEAN).replace(
        "setp.eq.u32 %p1, 0, 1;",
        "setp.eq.u32 %p1, 0, 1; setp.eq.u32 %p2, %warp, 2; @%p2 add.s64 %d1, %d1, 1;",
    );
    expect(&differs, &twin, 128, no_map, FindingKind::WarpgroupDivergence, "mma_async");
    let skips = multiply(&CLEAN)
        .replace("mov.b32 %r4, 0;", "setp.eq.u32 %p2, %warp, 3; @%p2 bra END;\nmov.b32 %r4, 0;")
        + "\nEND:";
    expect(&skips, &twin, 128, no_map, FindingKind::WarpgroupDivergence, "mma_async");
    let half = multiply(&CLEAN)
        .replace("mov.b32 %r4, 0;", "setp.ge.u32 %p2, %lane, 16; @%p2 bra END;\nmov.b32 %r4, 0;")
        + "\nEND:";
    for finding in findings(&half, 128, no_map) {
        assert_eq!(finding.kind, FindingKind::WarpDivergence, "{finding}");
    }
}

#[test]
fn registers_of_a_warpgroup() {
    let body = |count: u32, who: &str| {
        format!(
            "{who}\nsetp.ge.u32 %p1, %warp, 4; @%p1 bra MORE; setmaxnreg.dec.sync.aligned.u32 {count}; bra END;
             MORE: setmaxnreg.inc.sync.aligned.u32 240; END:"
        )
    };
    let twin = body(24, "");
    // 168 registers a thread: three warpgroups have 504 in all.
    expect(&body(32, ""), &twin, 384, no_map, FindingKind::Deadlock, "setmaxnreg.inc");
    expect(&body(20, ""), &twin, 384, no_map, FindingKind::InvalidOperand, "setmaxnreg.dec");
    expect(&body(176, ""), &twin, 384, no_map, FindingKind::InvalidOperand, "setmaxnreg.dec");
    let part = body(24, "setp.eq.u32 %p2, %warp, 1; @%p2 bra END;");
    for finding in findings(&part, 384, no_map) {
        let kinds = [FindingKind::WarpgroupDivergence, FindingKind::Deadlock];
        assert!(kinds.contains(&finding.kind), "{finding}");
    }
}

#[test]
fn barriers_in_the_way() {
    let overwritten = format!("{INIT}\nst.shared.b32 [%base+8196], %tid;");
    let beside = format!("{INIT}\n@%first st.shared.b32 [%base+8200], %tid;");
    expect(&overwritten, &beside, 32, no_map, FindingKind::MbarrierMisuse, "st.shared");
    let body = |barrier: &str| {
        format!(
            "@%first mbarrier.init.shared::cta.b64 [%base], 64; {barrier}\nmbarrier.arrive.shared::cta.b64 _, [%base];"
        )
    };
    expect(&body(""), &body("bar.sync 0;"), 64, no_map, FindingKind::MbarrierMisuse, "arrive");
    let body = |barrier: &str| {
        format!(
            "{INIT} setp.eq.u32 %p1, %warp, 0; @%p1 st.shared.b32 [%base], %tid; {barrier}
             ld.shared.b32 %r1, [%base]; bar.sync 0;"
        )
        .replace("@%p1 st.shared.b32", "@%first st.shared.b32")
    };
    for schedule in schedules() {
        let report = run_body(&body(""), 64, no_map, &with_schedule(schedule)).report;
        let is_race =
            |kind| matches!(kind, FindingKind::SharedRace | FindingKind::UninitialisedRead { .. });
        assert!(
            !report.is_clean() && report.findings.iter().all(|f| is_race(f.kind)),
            "{:#?}",
            report.findings
        );
        assert!(
            report.findings.iter().any(|f| f.kind == FindingKind::SharedRace),
            "{:#?}",
            report.findings
        );
    }
    run_clean(&body("bar.sync 0;"), 64, no_map);
}

#[test]
fn lanes_of_a_warp_are_ordered_by_a_meeting() {
    let body = |meeting: &str| {
        format!(
            "{INIT} shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %base; st.shared.b32 [%r1], %tid; {meeting}
             xor.b32 %r1, %r1, 4; ld.shared.b32 %r2, [%r1]; st.global.b32 [%mine+16384], %r2;"
        )
    };
    expect(&body(""), &body("bar.warp.sync -1;"), 32, no_map, FindingKind::SharedRace, "ld.shared");
    let body = |who: &str| {
        format!(
            "@%first mbarrier.init.shared::cta.b64 [%base+8192], 32; bar.sync 0; mov.u32 %r3, 32;
             shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %base; st.shared.b32 [%r1], %tid;
             {who}
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W;
             xor.b32 %r1, %r1, 4; ld.shared.b32 %r2, [%r1]; st.global.b32 [%mine+16384], %r2;"
        )
    };
    let one = body("@%first mbarrier.arrive.shared::cta.b64 _, [%base+8192], %r3;");
    let all = body("mbarrier.arrive.shared::cta.b64 _, [%base+8192];");
    expect(&one, &all, 32, no_map, FindingKind::SharedRace, "ld.shared");
}

#[test]
fn a_lane_arrives_for_its_warp_only_behind_a_meeting() {
    let body = |meeting: &str| {
        format!(
            "{INIT} shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %base; setp.eq.u32 %p2, %warp, 0;
             @!%p2 bra READ;
             st.shared.b32 [%r1], %tid; {meeting}
             @%first mbarrier.arrive.shared::cta.b64 _, [%base+8192];
             bra END;
             READ:
             mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0;
             @!%p1 bra READ;
             ld.shared.b32 %r2, [%r1];
             st.global.b32 [%mine+16384], %r2;
             END:"
        )
    };
    expect(&body(""), &body("bar.warp.sync -1;"), 64, no_map, FindingKind::SharedRace, "ld.shared");
}

#[test]
fn a_lane_copies_in_bulk_what_its_warp_used_only_behind_a_meeting() {
    let words = "shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %base; st.shared.b32 [%r1], %tid;";
    let store = |meeting: &str| {
        format!(
            "{words} fence.proxy.async; {meeting}
             @!%first bra END;
             cp.async.bulk.global.shared::cta.bulk_group [%data+16384], [%base], 128;
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"
        )
    };
    let meeting = "bar.warp.sync -1;";
    expect(&store(""), &store(meeting), 32, no_map, FindingKind::SharedRace, "bulk.global");
    let load = |meeting: &str| {
        format!(
            "{INIT} {words} bar.warp.sync -1; ld.shared.b32 %r2, [%r1]; fence.proxy.async; {meeting}
             @!%first bra END;
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 128;
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%data], 128, [%base+8192];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W; END:"
        )
    };
    expect(&load(""), &load(meeting), 32, no_map, FindingKind::SharedRace, "bulk.shared");
}

#[test]
fn operands_of_tensor_copies() {
    let load = |shared: u32, map_offset: u32| {
        format!(
            "{INIT} @!%first bra END; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 1024;
             add.s64 %map, %map, {map_offset};
             cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%base+{shared}], [%map, {{0, 0}}], [%base+8192];
             W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W; END:"
        )
    };
    let twin = load(0, 0);
    let shared = FindingKind::Misaligned { space: Space::Shared };
    expect(&load(64, 0), &twin, 32, map, shared, "bulk.tensor");
    let shared = FindingKind::OutOfBounds { space: Space::Shared };
    expect(&load(16384 - 896, 0), &twin, 32, map, shared, "bulk.tensor");
    let param = FindingKind::Misaligned { space: Space::Param };
    expect(
        &load(0, 32).replace("%map, %map, 32", "%map, %map, -32"),
        &twin,
        32,
        map,
        param,
        "bulk.tensor",
    );
    for finding in findings(&twin, 32, no_map) {
        assert_eq!(finding.kind, FindingKind::InvalidTensorMap, "{finding}");
        assert!(finding.message.contains("expected an encoded tensor map"), "{finding}");
    }
    let long = |address: Address| {
        TensorMap { address: address.0, dims: vec![64, 1000], ..tensor() }.encode().unwrap()
    };
    let far = load(0, 0).replace("{0, 0}", "{0, 124}");
    for finding in findings(&far, 32, long) {
        assert_eq!(finding.kind, FindingKind::OutOfBounds { space: Space::Global }, "{finding}");
    }
    let flat = |address: Address| {
        let dims = (vec![64], vec![], vec![32]);
        TensorMap {
            address: address.0,
            dims: dims.0,
            strides_bytes: dims.1,
            box_dims: dims.2,
            ..tensor()
        }
        .encode()
        .unwrap()
    };
    for finding in findings(&twin, 32, flat) {
        assert_eq!(finding.kind, FindingKind::InvalidOperand, "{finding}");
    }
}
