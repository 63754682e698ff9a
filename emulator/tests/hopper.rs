//! What else kernels of compute capability 9.0 consist of.

mod common;
use common::hopper::{findings, no_map, run_clean};
use ptx_emulator::{Address, FindingKind, TensorMap, TensorMapElement, TensorMapSwizzle};

fn map(address: Address) -> [u64; 16] {
    let swizzle = TensorMapSwizzle::None;
    let (dims, box_dims) = (vec![1024], vec![64]);
    let element = TensorMapElement::F32;
    TensorMap { element, address: address.0, dims, strides_bytes: vec![], box_dims, swizzle }
        .encode()
        .unwrap()
}

#[test]
fn a_cluster_may_be_one_block() {
    let words = run_clean(
        "mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; mov.u32 %r3, %clusterid.x; mov.u32 %r4, %nclusterid.x;
         @%first st.global.v4.b32 [%data], {%r1, %r2, %r3, %r4};
         @%first mbarrier.init.shared::cta.b64 [%base], 64; fence.mbarrier_init.release.cluster;
         barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
         mapa.shared::cluster.u32 %r5, %base, %r1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
         mov.u32 %r9, 1000;
         W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%base], 0, %r9; @!%p1 bra W;
         barrier.cluster.arrive; barrier.cluster.wait;",
        64,
        no_map,
    );
    assert_eq!(words[..4], [0, 1, 0, 1]);
    let other = "mov.u32 %r1, 1; mapa.shared::cluster.u32 %r5, %base, %r1;";
    for finding in findings(other, 32, no_map) {
        assert_eq!(finding.kind, FindingKind::InvalidOperand, "{finding}");
    }
}

#[test]
fn a_cluster_barrier_waits_for_all_warps() {
    let body = "setp.eq.u32 %p1, %warp, 0; @%p1 bra END; barrier.cluster.arrive; barrier.cluster.wait; END: @%p1 bar.sync 1, 64;";
    for finding in findings(body, 64, no_map) {
        assert_eq!(finding.kind, FindingKind::Deadlock, "{finding}");
    }
}

#[test]
fn hints_change_nothing() {
    let words = run_clean(
        "prefetch.tensormap [%map]; griddepcontrol.wait; createpolicy.fractional.L2::evict_first.b64 %d1, 0f3F800000;
         @%first mbarrier.init.shared::cta.b64 [%base], 1; @%first fence.proxy.async.shared::cta; bar.sync 0; mov.u16 %h1, 1; mov.u32 %r1, 64;
         @!%first bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 256;
         cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
             [%base+1024], [%map, {%r1}], [%base], %h1, %d1;
         W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W;
         shl.b32 %r2, %tid, 2; add.s32 %r2, %r2, %base; ld.shared.b32 %r3, [%r2+1024]; st.global.b32 [%mine+16384], %r3;
         griddepcontrol.launch_dependents;",
        64,
        map,
    );
    (0..64).for_each(|word| assert_eq!(words[4096 + word], 64 + word as u32));
}

#[test]
fn copies_to_other_blocks_of_a_cluster_are_refused() {
    let body = "@!%first bra END; mbarrier.init.shared::cta.b64 [%base], 1; mov.u16 %h1, 3; mov.u32 %r1, 0;
        cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%base+1024], [%map, {%r1}], [%base], %h1; END:";
    for finding in findings(body, 32, map) {
        assert_eq!(finding.kind, FindingKind::InvalidOperand, "{finding}");
    }
}

/// Accumulators of several groups in flight, each read behind its own wait.
#[test]
fn groups_complete_in_order() {
    let words = run_clean(
        "shl.b32 %r1, %tid, 2; add.s32 %r1, %r1, %base; mov.b32 %r2, 0x3F803F80; st.shared.b32 [%r1], %r2; fence.proxy.async; bar.sync 0;
         mov.b64 %d1, 68720001088; mov.b32 %r4, 0x3F803F80; mov.b32 %r5, 0x40004000; setp.eq.u32 %p1, 0, 1;
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, {%r4, %r4, %r4, %r4}, %d1, %p1, 1, 1, 0;
         wgmma.commit_group.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f4, %f5, %f6, %f7}, {%r5, %r5, %r5, %r5}, %d1, %p1, 1, 1, 0;
         wgmma.commit_group.sync.aligned;
         wgmma.wait_group.sync.aligned 1; st.global.f32 [%mine], %f0;
         wgmma.wait_group.sync.aligned 0; st.global.f32 [%mine+1024], %f7;",
        128,
        no_map,
    );
    (0..128).for_each(|thread| {
        assert_eq!((f32::from_bits(words[thread]), f32::from_bits(words[256 + thread])), (16.0, 32.0))
    });
}
