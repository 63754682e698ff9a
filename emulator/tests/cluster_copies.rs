//! What passes between the blocks of a cluster by memory barriers: arrivals, asynchronous stores, and bulk copies.

mod common;
use common::cluster::{INIT, SYNC, THREADS, WAIT, always, clean, found};
use ptx_emulator::{FindingKind, Space};

/// Thread 0 of each block writes the other's memory and arrives at its mbarrier, whose threads wait.
fn arrive(arrive: &str) -> String {
    format!(
        "{INIT} @!%first bra W; mov.u32 %r4, 9; st.shared::cluster.u32 [%far], %r4; {arrive}
         {WAIT} ld.shared.u32 %r5, [%base]; st.global.u32 [%mine], %r5; {SYNC}"
    )
}

#[test]
fn threads_arrive_at_mbarriers_of_other_blocks() {
    let words = clean(&arrive("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%far+1024];"));
    assert_eq!(words[..256].iter().filter(|&&word| word == 9).count(), 256);
    // Without a scope, as CUTLASS writes it.
    clean(&arrive("mbarrier.arrive.shared::cluster.b64 _, [%far+1024];"));
    let text = always(&arrive(""), FindingKind::Deadlock);
    assert!(text.contains("mbarrier at 0x800: phase 0 awaits 1 of 1 arrivals"), "{text}");
    let own = arrive("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%far+1024];");
    assert_eq!(found(&own), [FindingKind::SharedRace]);
    let state =
        arrive("cvt.u64.u32 %d1, %far; cvta.shared.u64 %d1, %d1; mbarrier.arrive.b64 %d2, [%d1+1024];");
    assert_eq!(found(&state), [FindingKind::MbarrierMisuse]);
    let unmade = format!("{SYNC} @%first mbarrier.arrive.shared::cluster.b64 _, [%far+1024]; {SYNC}");
    let text = always(&unmade, FindingKind::MbarrierMisuse);
    assert!(text.contains("it was not initialised"), "{text}");
    // The arrival must not come when the other block has ended.
    let tail = format!("{INIT} @%first mbarrier.arrive.shared::cluster.b64 _, [%far+1024];");
    assert_eq!(found(&tail), [FindingKind::SharedLifetime]);
}

#[test]
fn an_mbarrier_is_known_to_other_blocks_behind_its_fence_and_a_relaxed_barrier() {
    let init = |fence: &str| {
        format!("@%first mbarrier.init.shared::cta.b64 [%base+1024], 1; {fence} barrier.cluster.arrive.relaxed.aligned;
             barrier.cluster.wait.aligned; @%first mbarrier.arrive.shared::cluster.b64 _, [%far+1024]; bar.sync 0; {WAIT} {SYNC}")
    };
    clean(&init("fence.mbarrier_init.release.cluster;"));
    assert_eq!(found(&init("")), [FindingKind::MbarrierMisuse]);
}

#[test]
fn asynchronous_stores_are_there_when_their_mbarrier_says_so() {
    let store = |wait: &str| {
        format!("{INIT} @!%first bra B; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], 12;
             mov.u32 %r4, 3; add.u32 %r6, %rank, 10;
             st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%far], %r6, [%far+1024];
             st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%far+8], {{%r4, %r6}}, [%far+1024]; B:
             {wait} ld.shared.u32 %r5, [%base]; ld.shared.u32 %r7, [%base+12]; add.u32 %r5, %r5, %r7; st.global.u32 [%mine], %r5; {SYNC}")
    };
    let words = clean(&store(WAIT));
    assert_eq!([words[0], words[64], words[130]], [22, 20, 22]);
    assert!(found(&store("")).contains(&FindingKind::AsyncCopyInFlight), "{:?}", found(&store("")));
    // Who has waited for the bytes may end.
    clean(store(WAIT).strip_suffix(SYNC).unwrap());
    // What the thread stored before is not what the bytes stand for.
    let before = format!("{INIT} @!%first bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], 4; mov.u32 %r4, 3;
        st.shared::cluster.u32 [%far+16], %r4; st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%far], %r4, [%far+1024];
        {WAIT} ld.shared.u32 %r5, [%base+16]; st.global.u32 [%mine], %r5; {SYNC}");
    assert_eq!(found(&before), [FindingKind::SharedRace]);
    let apart = store(WAIT).replace("[%far], %r6, [%far+1024]", "[%far], %r6, [%base+1024]");
    assert_eq!(found(&apart), [FindingKind::InvalidOperand]);
    let add = format!("st.shared.u32 [%own], %tid; {INIT} mov.u32 %r4, 3; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], 256;
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%far], %r4, [%far+1024];
        {WAIT} ld.shared.u32 %r5, [%base]; st.global.u32 [%mine], %r5; {SYNC}");
    assert_eq!(clean(&add)[200], 3 * THREADS);
}

#[test]
fn bulk_copies_go_from_shared_memory_to_that_of_another_block() {
    let copy = |fence: &str, bytes: u32| {
        format!("st.shared.u32 [%own], %r0; {fence} {INIT} @!%first bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], {bytes};
             cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%far+2048], [%base], 256, [%far+1024];
             {WAIT} ld.shared.u32 %r5, [%own+2048]; st.global.u32 [%mine], %r5; {SYNC}")
    };
    let words = clean(&copy("fence.proxy.async;", 256));
    assert_eq!([words[1], words[70]], [THREADS + 1, 6]);
    assert_eq!(found(&copy("", 256)), [FindingKind::MissingProxyFence]);
    always(&copy("fence.proxy.async;", 512), FindingKind::Deadlock);
}

/// Word by word, in the bytes of another block. Both copies count there at one mbarrier, and are in nobody's way.
#[test]
fn bulk_copies_reduce_in_shared_memory() {
    let reduce = |how: &str, fence: &str, waits: &str| {
        format!("st.shared.u32 [%own], %r0; add.u32 %r4, %tid, 3; st.shared.u32 [%own+2048], %r4; {fence} {INIT} @!%first bra W;
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], 512;
             cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{how} [%far+2048], [%base], 256, [%far+1024];
             cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{how} [%far+2048], [%base], 256, [%far+1024];
             {waits} ld.shared.u32 %r5, [%own+2048]; st.global.u32 [%mine], %r5; {SYNC}")
    };
    let fence = "fence.proxy.async;";
    let twice = |f: fn(u32, u32) -> u32, before: u32, by: u32| f(f(before, by), by);
    for (how, f) in [
        ("add.u32", u32::wrapping_add as fn(u32, u32) -> u32),
        ("add.s32", u32::wrapping_add),
        ("min.u32", u32::min),
        ("max.s32", |a, b| (a as i32).max(b as i32) as u32),
        ("and.b32", |a, b| a & b),
        ("or.b32", |a, b| a | b),
        ("xor.b32", |a, b| a ^ b),
        ("inc.u32", |a, b| if a >= b { 0 } else { a + 1 }),
        ("dec.u32", |a, b| if a == 0 || a > b { b } else { a - 1 }),
    ] {
        let words = clean(&reduce(how, fence, WAIT));
        for (thread, &word) in words[..128].iter().enumerate() {
            let (tid, other) = (thread as u32 % THREADS, (thread as u32 + THREADS) % (2 * THREADS));
            assert_eq!(word, twice(f, tid + 3, other), "{how} of thread {thread}");
        }
    }
    assert!(found(&reduce("add.u32", fence, "W:")).contains(&FindingKind::AsyncCopyInFlight));
    assert_eq!(found(&reduce("add.u32", "", WAIT)), [FindingKind::MissingProxyFence]);
    let unwritten = reduce("add.u32", fence, WAIT).replace("st.shared.u32 [%own+2048], %r4;", "");
    assert_eq!(found(&unwritten), [FindingKind::UninitialisedRead { space: Space::Shared }]);
}

/// Each block loads its half of 128 words to both.
fn multicast(bytes: u32, mask: u32) -> String {
    format!(
        "{INIT} @!%first bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], {bytes};
         mov.u16 %h1, {mask}; shl.b32 %r4, %rank, 8; cvt.u64.u32 %d1, %r4; add.u64 %d1, %d1, %data; add.u32 %r5, %base, %r4;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r5+2048], [%d1+4096], 256, [%base+1024], %h1;
         {WAIT} ld.shared.u32 %r5, [%own+2048]; ld.shared.u32 %r6, [%own+2304]; add.u32 %r5, %r5, %r6; st.global.u32 [%mine], %r5; {SYNC}"
    )
}

#[test]
fn a_multicast_copy_lands_in_all_its_blocks_and_counts_at_the_mbarrier_of_each() {
    let words = clean(&multicast(512, 3));
    for (thread, &word) in words[..256].iter().enumerate() {
        let first = 1024 + thread as u32 % 64;
        assert_eq!(word, 2 * first + 64);
    }
    clean(multicast(512, 3).strip_suffix(SYNC).unwrap());
    let few = found(&multicast(256, 3));
    assert!(!few.is_empty(), "half of the bytes are not waited for");
    always(&multicast(768, 3), FindingKind::Deadlock);
    let text = always(&multicast(512, 5), FindingKind::InvalidOperand);
    assert!(text.contains("a copy to blocks 0x5 of a cluster of 2 blocks"), "{text}");
    // A block that does not make its mbarrier, and one that leaves before all has landed.
    let unmade = multicast(512, 3).replacen(
        "@%first mbarrier.init",
        "setp.eq.and.u32 %p1, %rank, 0, %first; @%p1 mbarrier.init",
        1,
    );
    assert!(found(&unmade).contains(&FindingKind::MbarrierMisuse));
    let leaves = multicast(512, 3).replacen(WAIT, "W:", 1).replacen(
        "ld.shared.u32 %r5, [%own+2048]; ld.shared.u32 %r6, [%own+2304];",
        "",
        1,
    );
    assert!(found(&leaves).contains(&FindingKind::AsyncCopyInFlight), "{:?}", found(&leaves));
}
