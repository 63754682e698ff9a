//! What a `.target` allows: the instructions, as ptxas 12.9 has them, and from sm_75 on 13.5, and the shared memory of a
//! block.

use ptx_emulator::{Launch, LaunchError, Memory, Module, Options, launch};

/// Launches a kernel of one instruction.
fn run(target: &str, body: &str, shared_bytes: u32) -> Result<(), LaunchError> {
    let ptx = format!(
        ".version 8.7\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 x) {{
.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .f64 %e<4>;
bra END;
{body}
END: ret; }}"
    );
    let module = Module::parse(&ptx).unwrap_or_else(|error| panic!("{body}: {error}"));
    let shape = Launch {
        grid: [1; 3],
        block: [128, 1, 1],
        shared_bytes,
        regions: &[],
        cluster: None,
        params: &[0; 8],
    };
    let kernel = module.kernel("k").unwrap();
    launch(kernel, &Memory::new(), &shape, &Options::default()).map(|_| ())
}

const TARGETS: [&str; 10] =
    ["sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a"];

/// Of `TARGETS`, those from this one on have the instruction.
#[track_caller]
fn first(instruction: &str, first: &str, expected: &str) {
    let mut has = false;
    for target in TARGETS {
        has |= target == first;
        match run(target, instruction, 0) {
            Ok(()) => assert!(has, "{instruction} launches on {target}"),
            Err(error) => {
                assert!(!has, "{target}: {error}");
                let text = instruction.trim_end_matches(';');
                let wanted =
                    format!("k: PTX line 7: `{text}`: expected .target {expected}, got {target}");
                assert_eq!(error.to_string(), wanted);
            }
        }
    }
}

#[test]
fn instructions_of_every_target() {
    for instruction in [
        "barrier.sync 0;",
        "fence.acq_rel.gpu;",
        "fence.acquire.gpu;",
        "prefetch.global.L2 [%d0];",
        "ld.relaxed.gpu.global.v4.u32 {%r0, %r1, %r2, %r3}, [%d0];",
        "ld.shared::cta.v2.b64 {%d0, %d1}, [%r1];",
        "atom.global.add.noftz.f16x2 %r0, [%d0], %r1;",
        "atom.global.cas.b16 %h0, [%d0], %h1, %h2;",
        "add.f16x2 %r0, %r1, %r2;",
        "fma.rn.f16x2 %r0, %r1, %r2, %r3;",
        "setp.lt.f16 %p0, %h0, %h1;",
        "match.any.sync.b32 %r0, %r1, -1;",
        "min.f32 %f0, %f1, %f2;",
        "mov.u32 %r0, %smid;",
        "mov.u32 %r0, %total_smem_size;",
    ] {
        first(instruction, "sm_70", "");
    }
}

#[test]
fn instructions_that_sm_75_was_the_first_to_have() {
    for instruction in [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;",
        "tanh.approx.f32 %f0, %f1;",
        "tanh.approx.f16 %h0, %h1;",
        "ex2.approx.f16 %h0, %h1;",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1};",
    ] {
        first(instruction, "sm_75", "sm_75 or newer");
    }
}

#[test]
fn instructions_that_sm_80_was_the_first_to_have() {
    for instruction in [
        "mbarrier.init.shared.b64 [%r0], 1;",
        "mbarrier.arrive.shared.b64 %d0, [%r0];",
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r0];",
        "mbarrier.test_wait.parity.shared.b64 %p0, [%r0], 0;",
        "cp.async.cg.shared.global [%r0], [%d0], 16;",
        "cp.async.commit_group;",
        "fma.rn.bf16x2 %r0, %r1, %r2, %r3;",
        "fma.rn.relu.f16x2 %r0, %r1, %r2, %r3;",
        "min.f16x2 %r0, %r1, %r2;",
        "min.NaN.f32 %f0, %f1, %f2;",
        "min.bf16 %h0, %h1, %h2;",
        "neg.bf16 %h0, %h1;",
        "cvt.rn.bf16x2.f32 %r0, %f0, %f1;",
        "cvt.rn.f16x2.f32 %r0, %f0, %f1;",
        "cvt.rn.bf16.f32 %h0, %f0;",
        "cvt.f32.bf16 %f0, %h0;",
        "cvt.rna.tf32.f32 %r0, %f0;",
        "redux.sync.add.s32 %r0, %r1, -1;",
        "ld.global.L2::cache_hint.b32 %r0, [%d0], %d1;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r2,%r3}, {%f0,%f1,%f2,%f3};",
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e0, %e1}, {%e2}, {%e3}, {%e0, %e1};",
    ] {
        first(instruction, "sm_80", "sm_80 or newer");
    }
}

#[test]
fn instructions_that_sm_90_was_the_first_to_have() {
    for instruction in [
        "mbarrier.arrive.shared.b64 _, [%r0], 2;",
        "mbarrier.arrive_drop.shared.b64 %d0, [%r0], 2;",
        "mbarrier.arrive.release.cluster.shared.b64 %d0, [%r0];",
        "mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 16;",
        "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r0], 16;",
        "mbarrier.complete_tx.relaxed.cta.shared.b64 [%r0], 16;",
        "mbarrier.try_wait.shared.b64 %p0, [%r0], %d0;",
        "mbarrier.try_wait.parity.shared.b64 %p0, [%r0], 0;",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.wait_group 0;",
        "cp.async.bulk.prefetch.L2.global [%d0], 16;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 16, [%r1];",
        "cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r0], 16;",
        "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%d0, {%r1}], [%r0];",
        "elect.sync %r0|%p0, -1;",
        "@%p1 griddepcontrol.wait;",
        "@!%p1 griddepcontrol.launch_dependents;",
        "mapa.shared::cluster.u32 %r0, %r1, %r2;",
        "barrier.cluster.arrive;",
        "barrier.cluster.wait.aligned;",
        "fence.mbarrier_init.release.cluster;",
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        "fence.acq_rel.cluster;",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0], {%r1};",
        "prefetch.tensormap [%d0];",
        "ld.relaxed.cluster.global.u32 %r0, [%d0];",
        "st.shared::cluster.u32 [%r1], %r0;",
        "atom.global.add.noftz.bf16 %h0, [%d0], %h1;",
        "red.global.add.noftz.bf16x2 [%d0], %r1;",
        "atom.relaxed.cluster.global.add.u32 %r0, [%d0], %r1;",
        "add.bf16 %h0, %h1, %h2;",
        "sub.rn.bf16x2 %r0, %r1, %r2;",
        "mul.bf16x2 %r0, %r1, %r2;",
        "ex2.approx.ftz.bf16 %h0, %h1;",
        "tanh.approx.bf16x2 %r0, %r1;",
        "setp.lt.bf16 %p0, %h0, %h1;",
        "cvt.f64.bf16 %e0, %h0;",
        "cvt.rn.bf16.s32 %h0, %r0;",
        "cvt.rzi.s32.bf16 %r0, %h0;",
        "mov.u32 %r0, %cluster_ctarank;",
        "cvta.to.shared::cluster.u64 %d0, %d1;",
        "isspacep.shared::cluster %p0, %d0;",
    ] {
        first(instruction, "sm_90", "sm_90 or newer");
    }
}

#[test]
fn instructions_of_sm_90a_alone() {
    for instruction in [
        "wgmma.fence.sync.aligned;",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        "setmaxnreg.inc.sync.aligned.u32 40;",
    ] {
        first(instruction, "sm_90a", "sm_90a");
    }
}

#[test]
fn accesses_of_256_bits_are_newer_than_all() {
    first("ld.global.v4.b64 {%d0, %d1, %d2, %d3}, [%d0];", "none", "sm_100 or newer");
    first("st.global.v4.f64 [%d0], {%e0, %e1, %e2, %e3};", "none", "sm_100 or newer");
}

/// The other kernel of the module does not count.
#[test]
fn only_the_kernel_that_is_launched_counts() {
    let ptx = ".version 8.7\n.target sm_80\n.address_size 64
        .entry old() { ret; }\n.entry new() { griddepcontrol.wait; ret; }";
    let module = Module::parse(ptx).unwrap();
    let shape = Launch {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        regions: &[],
        cluster: None,
        params: &[],
    };
    let go = |name| {
        launch(module.kernel(name).unwrap(), &Memory::new(), &shape, &Options::default()).map(|_| ())
    };
    assert_eq!(go("old"), Ok(()));
    for _ in 0..2 {
        assert!(matches!(go("new"), Err(LaunchError::TargetInstruction { line: 5, .. })));
    }
}

#[test]
fn other_targets_are_refused() {
    for target in ["sm_61", "sm_62", "sm_90f", "sm_100", "sm_100a", "sm_120", "sm_", "sm_8"] {
        assert_eq!(
            run(target, "", 0).unwrap_err().to_string(),
            format!("k: .target: expected one of {}, got `{target}`", TARGETS.join(", "))
        );
    }
    assert!(run("sm_90a, texmode_independent", "", 0).is_ok());
    let module = Module::parse(".version 8.7\n.entry k() { ret; }").unwrap();
    let shape = Launch {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        regions: &[],
        cluster: None,
        params: &[],
    };
    let refused = launch(module.kernel("k").unwrap(), &Memory::new(), &shape, &Options::default());
    assert!(refused.unwrap_err().to_string().ends_with("got `none`"));
}

#[test]
fn shared_memory_ends_where_the_target_says() {
    for (target, limit) in TARGETS.iter().zip([96, 96, 64, 163, 99, 163, 163, 99, 227, 227]) {
        let limit = limit * 1024;
        assert_eq!(run(target, "", limit), Ok(()), "{target}");
        assert_eq!(
            run(target, "", limit + 1).unwrap_err().to_string(),
            format!("k: {} bytes of shared memory exceed the {limit} of {target}", limit + 1)
        );
    }
}

/// What stands at a place where a directive must be is named.
#[test]
fn an_unknown_directive_is_named() {
    let text = |ptx: &str| Module::parse(ptx).unwrap_err().to_string();
    assert_eq!(text("hello"), "PTX line 1: unsupported directive: `hello`");
    assert_eq!(text("\nhello world"), "PTX line 2: unsupported directive: `hello`");
    assert_eq!(text(".entry k() .frob 3 { ret; }"), "PTX line 1: unsupported directive: `.frob`");
    assert_eq!(text(".entry k() {\n.frob 3; ret; }"), "PTX line 2: unsupported directive: `.frob`");
}
