//! What a warpgroup has: its share of the registers, and accumulators that one shape after the other uses.

mod common;
use common::hopper::{findings, kernel, no_map, run_clean};
use common::{run_with, schedules, with_schedule};
use ptx_emulator::{Finding, FindingKind, Memory};

/// What is found first in three warpgroups of a kernel with these directives, under every schedule: the first gives up
/// registers down to `left`, the others take as many as `wanted`.
fn share(directives: &str, left: u32, wanted: u32) -> Vec<Option<Finding>> {
    let body = format!(
        "setp.ge.u32 %p1, %warp, 4; @%p1 bra MORE; setmaxnreg.dec.sync.aligned.u32 {left}; bra END;
         MORE: setmaxnreg.inc.sync.aligned.u32 {wanted}; END:"
    );
    let ptx = kernel(&body).replace(".maxntid 384, 1, 1\n", directives);
    let run = |schedule| {
        let memory = Memory::new();
        let report = run_with(&ptx, &memory, 1, 384, 16384, &[0; 192], &with_schedule(schedule));
        report.findings.into_iter().next()
    };
    schedules().into_iter().map(run).collect()
}

#[test]
fn a_block_has_the_registers_that_its_directives_give_it() {
    for (directives, clean, stuck) in [
        (".maxntid 384, 1, 1\n", (24, 240), (24, 248)),
        (".maxntid 384, 1, 1\n.maxnreg 80\n", (24, 104), (24, 240)),
        (".maxnreg 80\n.maxntid 384, 1, 1\n.minnctapersm 1\n", (24, 104), (24, 112)),
        // Two blocks on a multiprocessor: 80 for each thread.
        (".maxntid 384, 1, 1\n.minnctapersm 2\n", (24, 104), (24, 112)),
        (".maxntid 384, 1, 1\n.minnctapersm 1\n", (24, 240), (24, 248)),
        // What a block of 512 threads could have.
        (".maxntid 512, 1, 1\n", (24, 176), (24, 184)),
    ] {
        for found in share(directives, clean.0, clean.1) {
            assert!(found.is_none(), "{directives}{}", found.unwrap());
        }
        for found in share(directives, stuck.0, stuck.1) {
            let found = found.unwrap_or_else(|| panic!("clean: {directives}"));
            assert_eq!(found.kind, FindingKind::Deadlock, "{directives}{found}");
        }
    }
}

/// Two multiplications that accumulate into `%f0` to `%f3`, with something between.
fn multiply_twice(between: &str, columns: u32) -> String {
    let accumulators = |columns: u32| {
        let names: Vec<String> = (0..columns / 2).map(|index| format!("%f{index}")).collect();
        names.join(", ")
    };
    let zeros: String = (0..16).map(|index| format!("mov.f32 %f{index}, 0f00000000; ")).collect();
    let multiply = |columns: u32| {
        format!(
            "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{}}}, {{%r4, %r5, %r6, %r7}}, %d1, %p1, 1, 1, 0;",
            accumulators(columns)
        )
    };
    format!(
        "shl.b32 %r1, %tid, 4; add.s32 %r1, %r1, %base; st.shared.v4.b32 [%r1], {{0, 0, 0, 0}}; fence.proxy.async; bar.sync 0;
         shr.u32 %r1, %base, 4; cvt.u64.u32 %d1, %r1; or.b64 %d1, %d1, 0x0000001000080000; {zeros}
         mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0; setp.eq.u32 %p1, 0, 0;
         wgmma.fence.sync.aligned; {} {between} {} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
         st.global.f32 [%mine], %f2;",
        multiply(16),
        multiply(columns)
    )
}

#[test]
fn only_products_of_one_shape_follow_each_other_without_a_fence() {
    run_clean(&multiply_twice("", 16), 128, no_map);
    run_clean(&multiply_twice("wgmma.fence.sync.aligned;", 8), 128, no_map);
    let waited = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";
    for between in ["", waited] {
        for finding in findings(&multiply_twice(between, 8), 128, no_map) {
            assert_eq!(finding.kind, FindingKind::MissingWgmmaFence, "{finding}");
            assert!(finding.message.contains("another shape"), "{finding}");
        }
    }
}
