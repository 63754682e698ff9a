//! Clusters of several blocks: their launches, special registers, barrier and shared memory, and what is found there.

mod common;
use common::cluster::{SYNC, THREADS, always, clean, found, run_in, run_with, under};
use common::schedules;
use ptx_emulator::{FindingKind, Launch, LaunchError, Memory, Module, Options, Schedule, launch};

#[test]
fn special_registers_say_where_a_block_is_in_its_cluster() {
    let registers = "%clusterid.x, %clusterid.y, %nclusterid.x, %nclusterid.y, %cluster_ctaid.x, %cluster_ctaid.y, \
        %cluster_nctaid.x, %cluster_nctaid.y, %cluster_ctarank, %cluster_nctarank, %ctaid.x, %ctaid.y";
    let mut body = "mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r1, 4, %r2; mul.wide.u32 %d1, %r1, 64;
        add.u64 %d1, %d1, %data; mov.pred %p1, %is_explicit_cluster; selp.u32 %r3, 1, 0, %p1; @%first st.global.u32 [%d1+48], %r3;"
        .to_string();
    for (place, register) in registers.split(", ").enumerate() {
        body += &format!("mov.u32 %r3, {register}; @%first st.global.u32 [%d1+{}], %r3;\n", 4 * place);
    }
    let (words, report) = run_in(&body, [4, 4, 1], [2, 2, 1], &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert_eq!(report.statistics.blocks, 16);
    for (x, y) in (0..4).flat_map(|y| (0..4).map(move |x| (x, y))) {
        let got = &words[(y * 4 + x) as usize * 16..][..13];
        let rank = y % 2 * 2 + x % 2;
        assert_eq!(got, [x / 2, y / 2, 2, 2, x % 2, y % 2, 2, 2, rank, 4, x, y, 1]);
    }
}

/// Each block writes its shared memory, and reads that of the other.
fn exchange(before: &str, after: &str) -> String {
    format!(
        "st.shared.u32 [%own], %r0; {before} ld.shared::cluster.u32 %r5, [%peer]; st.global.u32 [%mine], %r5; {after}"
    )
}

#[test]
fn blocks_read_each_others_shared_memory_behind_a_barrier_of_the_cluster() {
    let words = clean(&exchange(SYNC, SYNC));
    for thread in 0..4 * THREADS {
        assert_eq!(words[thread as usize], thread ^ THREADS);
    }
    // Aligned or not, and with what else comes between.
    clean(&exchange(
        "barrier.cluster.arrive.release; mov.u32 %r6, 7; barrier.cluster.wait.acquire;",
        SYNC,
    ));
    // By generic addresses.
    let generic = "cvt.u64.u32 %d1, %own; cvta.shared.u64 %d2, %d1; mapa.u64 %d3, %d2, %other; ld.u32 %r5, [%d3];
        isspacep.shared::cta %p1, %d2; isspacep.shared::cta %p2, %d3; isspacep.shared::cluster %p3, %d3; not.pred %p2, %p2;
        and.pred %p1, %p1, %p2; and.pred %p1, %p1, %p3; getctarank.u64 %r7, %d3; setp.eq.and.u32 %p1, %r7, %other, %p1;
        cvta.to.shared::cluster.u64 %d4, %d3; cvt.u32.u64 %r8, %d4; setp.eq.and.u32 %p1, %r8, %peer, %p1;
        getctarank.shared::cluster.u32 %r7, %own; setp.eq.and.u32 %p1, %r7, %rank, %p1; @!%p1 trap;";
    let words = clean(&format!(
        "st.shared.u32 [%own], %r0; {SYNC} {generic} st.global.u32 [%mine], %r5; {SYNC}"
    ));
    assert_eq!(words[3], THREADS + 3);
    // What is written from afar is there behind the next one.
    let words = clean(&format!(
        "{SYNC} st.shared::cluster.u32 [%peer], %r0; {SYNC} ld.shared.u32 %r5, [%own]; st.global.u32 [%mine], %r5;"
    ));
    assert_eq!(words[THREADS as usize + 5], 5);
}

#[test]
fn a_barrier_of_the_block_orders_no_other_block() {
    let dropped = exchange("bar.sync 0;", SYNC);
    assert!(found(&dropped).contains(&FindingKind::SharedRace), "{:?}", found(&dropped));
    let text = always(&dropped, FindingKind::SharedLifetime);
    assert!(text.contains("which may not have started"), "{text}");
    // Both have started, and nothing orders what came later.
    let late = exchange(&format!("{SYNC} st.shared.u32 [%own], %tid; bar.sync 0;"), SYNC);
    assert_eq!(found(&late), [FindingKind::SharedRace]);
    let (_, report) = run_in(&late, [2, 1, 1], [2, 1, 1], &Options::default());
    let text = report.findings[0].to_string();
    assert!(text.contains("of block (1, 0, 0)") && text.contains("of block (0, 0, 0)"), "{text}");
}

#[test]
fn a_block_that_ends_before_others_are_done_with_its_memory_is_found_under_every_schedule() {
    let text = always(&exchange(SYNC, ""), FindingKind::SharedLifetime);
    assert!(text.contains("which may have ended"), "{text}");
    assert_eq!(found(&exchange(SYNC, "bar.sync 0;")), [FindingKind::SharedLifetime]);
    // An access of one that has ended: the lane is left out.
    let gone = format!(
        "st.shared.u32 [%own], %r0; {SYNC} setp.eq.u32 %p1, %rank, 1; @%p1 bra END;
         mov.u32 %r9, 0; L: add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, 20000; @%p2 bra L;
         ld.shared::cluster.u32 %r5, [%peer]; st.global.u32 [%mine], %r5; END:"
    );
    assert_eq!(found(&gone), [FindingKind::SharedLifetime]);
    let (_, report) = run_in(&gone, [2, 1, 1], [2, 1, 1], &Options::default());
    assert!(report.findings[0].message.contains("of a block that has ended"), "{}", report.findings[0]);
}

#[test]
fn a_relaxed_arrival_orders_what_a_fence_came_before() {
    let sync = |fence: &str| {
        format!("{SYNC} st.shared.u32 [%own], %r0; {fence} barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
             ld.shared::cluster.u32 %r5, [%peer]; st.global.u32 [%mine], %r5; {SYNC}")
    };
    clean(&sync("fence.acq_rel.cluster;"));
    assert_eq!(found(&sync("")), [FindingKind::SharedRace]);
    assert_eq!(found(&sync("fence.acq_rel.cta;")), [FindingKind::SharedRace]);
}

/// Block 0 writes its shared memory and sets a flag of the other block, which waits for it.
fn message(send: &str, receive: &str) -> String {
    format!(
        "mov.u32 %r3, 0; @%first st.shared.u32 [%base+2048], %r3; {SYNC}
         setp.eq.u32 %p1, %rank, 1; @%p1 bra R;
         @!%first bra END; mov.u32 %r4, 5; st.shared.u32 [%base], %r4; mov.u32 %r4, 1; {send} bra END;
         R: @!%first bra END; L: {receive} setp.ne.u32 %p2, %r4, 1; @%p2 bra L;
         ld.shared::cluster.u32 %r5, [%far]; st.global.u32 [%mine], %r5; END: {SYNC}"
    )
}

#[test]
fn what_is_for_a_block_orders_no_other_block_of_its_cluster() {
    let send = |scope: &str| format!("st.release.{scope}.shared::cluster.u32 [%far+2048], %r4;");
    let receive = |scope: &str| format!("ld.acquire.{scope}.shared.u32 %r4, [%base+2048];");
    let words = clean(&message(&send("cluster"), &receive("cluster")));
    assert_eq!(words[THREADS as usize], 5);
    clean(&message(&send("gpu"), &receive("cluster")));
    for (send, receive) in [
        (send("cta"), receive("cluster")),
        (send("cluster"), receive("cta")),
        ("st.relaxed.cluster.shared::cluster.u32 [%far+2048], %r4;".to_string(), receive("cluster")),
    ] {
        assert!(found(&message(&send, &receive)).contains(&FindingKind::SharedRace), "{send} {receive}");
    }
    let fence = |scope: &str| {
        message(
            &format!("fence.acq_rel.{scope}; st.relaxed.cluster.shared::cluster.u32 [%far+2048], %r4;"),
            "ld.relaxed.cluster.shared.u32 %r4, [%base+2048]; fence.acq_rel.cluster;",
        )
    };
    clean(&fence("cluster"));
    assert_eq!(found(&fence("cta")), [FindingKind::SharedRace]);
}

#[test]
fn atomic_operations_reach_other_blocks() {
    let add = |scope: &str| {
        format!("@%first st.shared.u32 [%base], %rank; {SYNC} atom.relaxed.{scope}.shared::cluster.add.u32 %r5, [%far], 2;
             red.relaxed.{scope}.shared.add.u32 [%base], 1; {SYNC} @%first ld.shared.u32 %r6, [%base]; @%first st.global.u32 [%mine], %r6;")
    };
    let words = clean(&add("cluster"));
    assert_eq!([words[0], words[64], words[128]], [192, 193, 192]);
    // Each is for its block alone.
    assert_eq!(found(&add("cta")), [FindingKind::SharedRace]);
}

#[test]
fn the_cluster_scope_counts_in_global_memory_within_a_cluster() {
    let body = |scope: &str| {
        format!("{SYNC} @!%first bra END; setp.eq.u32 %p1, %rank, 1; @%p1 bra R; mov.u32 %r4, 7; st.global.u32 [%mine], %r4;
             fence.acq_rel.{scope}; st.relaxed.{scope}.global.u32 [%mine+4], %r4; bra END;
             R: ld.relaxed.{scope}.global.u32 %r4, [%mine+-252]; setp.ne.u32 %p2, %r4, 7; @%p2 bra R; fence.acq_rel.{scope};
             ld.global.u32 %r5, [%mine+-256]; st.global.u32 [%mine], %r5; END:")
    };
    assert_eq!(clean(&body("cluster"))[64], 7);
    assert!(found(&body("cta")).contains(&FindingKind::GlobalRace));
    // The cluster's barrier orders what its blocks do in global memory, and not what others do.
    let sync = |to: i32| {
        format!(
            "st.global.u32 [%mine], %rank; {SYNC} ld.global.u32 %r5, [%mine+{to}]; st.shared.u32 [%own], %r5;"
        )
    };
    let near = format!("setp.eq.u32 %p1, %rank, 0; @!%p1 bra END; {} END:", sync(0));
    assert!(found(&near).is_empty(), "{:?}", found(&near));
    let pair = format!("st.global.u32 [%mine], %rank; {SYNC} setp.eq.u32 %p1, %rank, 0; @%p1 ld.global.u32 %r5, [%mine+256];
         @%p1 st.shared.u32 [%own], %r5;");
    clean(&pair);
    let beyond = "st.global.u32 [%mine], %rank; barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r6, %ctaid.x;
        setp.eq.u32 %p1, %r6, 1; @%p1 ld.global.u32 %r5, [%mine+256]; @%p1 st.shared.u32 [%own], %r5;";
    assert_eq!(found(beyond), [FindingKind::GlobalRace]);
}

#[test]
fn ranks_and_addresses_that_there_are_none_of_are_found() {
    let text =
        always("mov.u32 %r4, 2; mapa.shared::cluster.u32 %r5, %base, %r4;", FindingKind::InvalidOperand);
    assert!(text.contains("block 2 of a cluster of 2 blocks"), "{text}");
    let kind = FindingKind::OutOfBounds { space: ptx_emulator::Space::Shared };
    let text = always(&format!("{SYNC} ld.shared::cta.u32 %r5, [%peer]; {SYNC}"), kind);
    assert!(text.contains("only shared::cluster reaches it"), "{text}");
    always(&format!("{SYNC} mov.u32 %r5, 0; st.shared::cluster.u32 [%far+4096], %r5; {SYNC}"), kind);
    always(
        &format!("{SYNC} add.u32 %r5, %base, 50331648; ld.shared::cluster.u32 %r5, [%r5]; {SYNC}"),
        kind,
    );
}

#[test]
fn the_barrier_of_the_cluster_awaits_all_threads_that_have_not_exited() {
    // Half of one block leaves; all of it.
    clean(&format!("setp.lt.u32 %p1, %tid, 32; @%p1 bra END; {SYNC} END:"));
    clean(&format!("setp.eq.u32 %p1, %rank, 1; @%p1 bra END; {SYNC} END:"));
    let stuck = "setp.eq.u32 %p1, %rank, 1; @%p1 bar.sync 1, 128; @!%p1 barrier.cluster.arrive; @!%p1 barrier.cluster.wait;";
    let text = always(stuck, FindingKind::Deadlock);
    assert!(text.contains("the barrier of the cluster: 64 of all threads"), "{text}");
    assert!(
        text.contains("barrier 1 of block (") && text.contains("no thread of the cluster can go on"),
        "{text}"
    );
    let text = always("barrier.cluster.wait;", FindingKind::BarrierDivergence);
    assert!(text.contains("have not arrived there"), "{text}");
    let text = always(
        "barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;",
        FindingKind::BarrierDivergence,
    );
    assert!(text.contains("and have not waited"), "{text}");
    let part =
        "setp.eq.u32 %p1, %tid, 3; @%p1 bra A; barrier.cluster.arrive.aligned; A: barrier.cluster.wait;";
    assert!(found(part).contains(&FindingKind::BarrierDivergence), "{:?}", found(part));
    // Lanes that exit when the others are there.
    clean("barrier.cluster.arrive; setp.lt.u32 %p1, %tid, 7; @%p1 exit; barrier.cluster.wait;");
    clean("setp.lt.u32 %p1, %tid, 7; @!%p1 barrier.cluster.arrive; @%p1 exit; barrier.cluster.wait;");
    // Lanes of a warp are ordered by it, and by nothing else.
    let lanes = |sync: &str| {
        format!(
            "st.shared.u32 [%own], %tid; {sync} xor.b32 %r4, %own, 4; ld.shared.u32 %r5, [%r4]; st.global.u32 [%mine], %r5;"
        )
    };
    clean(&lanes(SYNC));
    assert_eq!(found(&lanes("")), [FindingKind::SharedRace]);
}

#[test]
fn multiplications_take_operands_of_their_own_block() {
    // B is rank + 1 everywhere, and A is 1.
    let body = format!(
        "cvt.rn.f32.u32 %f0, %rank; add.f32 %f0, %f0, 0f3F800000; cvt.rn.bf16x2.f32 %r4, %f0, %f0; st.shared.b32 [%own], %r4;
         fence.proxy.async; bar.sync 0; mov.b64 %d1, 68720001088; mov.b32 %r4, 0x3F803F80; setp.eq.u32 %p1, 0, 1;
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, {{%r4, %r4, %r4, %r4}}, %d1, %p1, 1, 1, 0;
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; st.global.f32 [%mine], %f0; {SYNC}"
    );
    for schedule in schedules() {
        let (words, report) = run_with(&body, [4, 1, 1], [2, 1, 1], 128, &under(schedule));
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!([words[3], words[130], words[300]].map(f32::from_bits), [16.0, 32.0, 16.0]);
    }
}

#[test]
fn launches_that_no_gpu_runs_are_refused() {
    let run = |text: &str, grid: [u32; 3], cluster: Option<[u32; 3]>| {
        let module = Module::parse(text).unwrap();
        let shape =
            Launch { grid, block: [32, 1, 1], shared_bytes: 0, regions: &[], cluster, params: &[] };
        launch(module.kernels().next().unwrap(), &Memory::new(), &shape, &Options::default())
            .map(|report| report.statistics.blocks)
    };
    let text = |attributes: &str| {
        format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {attributes} {{ ret; }}"
        )
    };
    let plain = text("");
    assert_eq!(run(&plain, [4, 1, 1], Some([2, 1, 1])), Ok(4));
    assert_eq!(run(&plain, [16, 2, 1], Some([8, 2, 1])), Ok(32));
    let message = |result: Result<u64, LaunchError>| result.unwrap_err().to_string();
    assert_eq!(
        message(run(&plain, [3, 1, 1], Some([2, 1, 1]))),
        "k: grid [3, 1, 1]: expected multiples of the cluster [2, 1, 1]"
    );
    assert_eq!(
        message(run(&plain, [17, 1, 1], Some([17, 1, 1]))),
        "k: cluster [17, 1, 1]: expected 1 to 16 blocks"
    );
    assert_eq!(
        message(run(&plain, [4, 1, 1], Some([2, 0, 1]))),
        "k: cluster [2, 0, 1]: expected 1 to 16 blocks"
    );
    let required = text(".explicitcluster .reqnctapercluster 2, 1, 1");
    assert_eq!(run(&required, [4, 1, 1], None), Ok(4));
    assert_eq!(run(&required, [4, 1, 1], Some([2, 1, 1])), Ok(4));
    assert_eq!(
        message(run(&required, [4, 1, 1], Some([4, 1, 1]))),
        "k: cluster: expected [2, 1, 1] blocks, which .reqnctapercluster demands, got [4, 1, 1]"
    );
    assert!(matches!(run(&required, [3, 1, 1], None), Err(LaunchError::ClusterGrid { .. })));
    let explicit = text(".explicitcluster");
    assert_eq!(
        message(run(&explicit, [4, 1, 1], None)),
        "k: cluster: expected its size, which .explicitcluster demands, got none"
    );
    let most = text(".maxclusterrank 4");
    assert_eq!(run(&most, [4, 1, 1], Some([4, 1, 1])), Ok(4));
    assert_eq!(
        message(run(&most, [8, 1, 1], Some([8, 1, 1]))),
        "k: cluster [8, 1, 1]: expected 1 to 4 blocks"
    );
    let old = plain.replace("sm_90", "sm_80");
    assert_eq!(
        message(run(&old, [2, 1, 1], Some([2, 1, 1]))),
        "k: cluster [2, 1, 1]: expected .target sm_90 or newer, got sm_80"
    );
    assert_eq!(run(&old, [2, 1, 1], Some([1; 3])), Ok(2));
}

#[test]
fn large_clusters_run_and_every_pair_of_blocks_is_ordered_by_their_barrier() {
    let body = format!(
        "st.shared.u32 [%own], %r0; {SYNC} mov.u32 %r4, %cluster_nctarank; mov.u32 %r5, 0; mov.u32 %r6, 0;
         L: mapa.shared::cluster.u32 %r7, %own, %r6; ld.shared::cluster.u32 %r8, [%r7]; add.u32 %r5, %r5, %r8; add.u32 %r6, %r6, 1;
         setp.lt.u32 %p1, %r6, %r4; @%p1 bra L; st.global.u32 [%mine], %r5; {SYNC}"
    );
    for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Random(1), Schedule::Random(4)] {
        let (words, report) = run_in(&body, [16, 1, 1], [16, 1, 1], &under(schedule));
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!(words[70], (0..16).map(|block| block * THREADS + 6).sum::<u32>());
    }
    // Several at a time.
    let options = Options { threads: 3, ..Options::default() };
    let (words, report) = run_in(&body, [16, 1, 1], [4, 1, 1], &options);
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert_eq!(words[0], (0..4).map(|block| block * THREADS).sum::<u32>());
}

/// PTX has `ldmatrix` and `stmatrix` for the block's own shared memory alone.
#[test]
fn matrices_of_another_block_are_refused() {
    for matrix in [
        "ldmatrix.sync.aligned.m8n8.x1.b16 {%r5}, [%d1];",
        "stmatrix.sync.aligned.m8n8.x1.b16 [%d1], {%r4};",
    ] {
        let body = |rank: &str| {
            format!(
                "mov.u32 %r4, 0; st.shared.b32 [%own], %r4; {SYNC}
                 and.b32 %r3, %tid, 7; shl.b32 %r3, %r3, 4; setp.gt.u32 %p1, %tid, 31; @%p1 bra END;
                 add.u32 %r3, %r3, %base; cvt.u64.u32 %d1, %r3; cvta.shared.u64 %d1, %d1; mapa.u64 %d1, %d1, {rank};
                 {matrix}\nEND: {SYNC}"
            )
        };
        let options = Options::default();
        let findings = |rank: &str| run_in(&body(rank), [2, 1, 1], [2, 1, 1], &options).1.findings;
        assert!(findings("%rank").is_empty(), "{matrix}");
        let found = findings("%other");
        assert!(found[0].message.contains("another block"), "{matrix}: {}", found[0]);
    }
}
