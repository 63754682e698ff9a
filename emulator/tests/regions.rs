//! Named regions of shared memory: which lists are refused, which accesses leave their region, and what findings
//! call an address.

mod common;
use common::{hopper, kernel, schedules, with_schedule};
use ptx_emulator::{
    Checks, Finding, FindingKind, Launch, LaunchError, Memory, Module, Options, Region, Report,
    Schedule, launch,
};

/// One block of the first kernel of a text, with these regions of 16 KiB of dynamic shared memory.
fn run(
    ptx: &str,
    threads: u32,
    regions: &[(&str, u32, u32)],
    options: &Options,
) -> Result<Report, LaunchError> {
    let module = Module::parse(ptx).unwrap_or_else(|error| panic!("{error}\n{ptx}"));
    let kernel = module.kernels().next().expect("a kernel");
    let memory = Memory::new();
    let data = memory.allocate(16384);
    memory.write(data, &vec![0; 16384]).unwrap();
    let mut params = vec![0; kernel.parameter_bytes()];
    params[..8].copy_from_slice(&data.to_le_bytes());
    let regions: Vec<Region> =
        regions.iter().map(|&(name, offset, bytes)| Region::new(name, offset, bytes)).collect();
    let (grid, block) = ([1; 3], [threads, 1, 1]);
    let shape = Launch { shared_bytes: 16384, regions: &regions, ..Launch::new(grid, block, &params) };
    launch(kernel, &memory, &shape, options)
}

/// This check and no other, under a schedule.
fn alone(schedule: Schedule) -> Options {
    Options { checks: Checks { regions: true, ..Checks::none() }, ..with_schedule(schedule) }
}

/// The same text is clean with one list of regions; with the other, an instruction is found once, and told so.
fn expect(
    ptx: &str,
    threads: u32,
    good: &[(&str, u32, u32)],
    bad: &[(&str, u32, u32)],
    instruction: &str,
    message: &str,
) {
    for schedule in schedules() {
        let findings = |regions, options: &Options| -> Vec<Finding> {
            run(ptx, threads, regions, options).unwrap_or_else(|error| panic!("{error}")).findings
        };
        let clean = findings(good, &alone(schedule));
        assert!(clean.is_empty(), "{}", clean[0]);
        let found = findings(bad, &alone(schedule));
        assert_eq!(found.len(), 1, "{ptx}\n{found:#?}");
        assert_eq!(found[0].kind, FindingKind::OutOfRegion);
        assert!(found[0].ptx.contains(instruction), "{}", found[0]);
        assert_eq!(found[0].message, message);
        let unchecked = Options { checks: Checks::none(), ..with_schedule(schedule) };
        assert!(findings(bad, &unchecked).is_empty());
        assert!(findings(&[], &alone(schedule)).is_empty());
    }
}

const ALL: &[(&str, u32, u32)] = &[("all", 0, 16384)];

#[test]
fn regions_that_overlap_or_reach_too_far_are_refused() {
    let ptx = kernel("");
    let refused = |regions: &[(&str, u32, u32)]| {
        run(&ptx, 32, regions, &alone(Schedule::Eager)).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&[("v", 0x1800, 0x1000), ("q", 0, 16), ("k[1]", 0x1000, 0x801)]),
        "k: regions k[1] (bytes 0x1000 to 0x1801) and v (bytes 0x1800 to 0x2800) of dynamic shared memory overlap"
    );
    assert_eq!(
        refused(&[("outer", 0, 64), ("inner", 16, 4)]),
        "k: regions outer (bytes 0x0 to 0x40) and inner (bytes 0x10 to 0x14) of dynamic shared memory overlap"
    );
    assert_eq!(
        refused(&[("v", 0x3ff0, 17)]),
        "k: region v (bytes 0x3ff0 to 0x4001) ends beyond the 16384 bytes of dynamic shared memory"
    );
    assert_eq!(
        refused(&[("far", u32::MAX, u32::MAX)]),
        "k: region far (bytes 0xffffffff to 0x1fffffffe) ends beyond the 16384 bytes of dynamic shared memory"
    );
    // Neighbours and empty ones are none of that, in any order.
    let fine = [("b", 16, 16368), ("nothing", 20, 0), ("a", 0, 16)];
    assert!(run(&ptx, 32, &fine, &alone(Schedule::Eager)).unwrap().is_clean());
}

/// 16 bytes that begin 4 before a boundary that no access should cross.
const SPLIT: &[(&str, u32, u32)] = &[("a", 0, 244), ("b", 244, 1000)];
const A_AND_B: &str = "a (0x400 to 0x4f4) and b (0x4f4 to 0x8dc)";

#[test]
fn accesses_of_threads_stay_in_one_region() {
    let cases = [
        ("ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%r1+240];", "load of 16"),
        ("mov.u32 %r6, 3; st.shared.v2.b32 [%r1+240], {%r6, %r6};", "store of 8"),
        (
            "add.s32 %r2, %r1, 240; cvt.u64.u32 %d1, %r2; cvta.shared.u64 %d1, %d1; ld.u64 %d2, [%d1];",
            "load of 8",
        ),
        ("ld.volatile.shared.b64 %d1, [%r1+240];", "load of 8"),
        ("mov.u64 %d2, 1; atom.shared.add.u64 %d1, [%r1+240], %d2;", "atomic operation of 8"),
        ("mov.u64 %d2, 1; red.shared.add.u64 [%r1+240], %d2;", "atomic operation of 8"),
        (
            "cp.async.ca.shared.global [%r1+240], [%data], 16; cp.async.wait_all;",
            "asynchronous copy of 16",
        ),
    ];
    for (body, what) in cases {
        let bytes: u32 = what.rsplit(' ').next().unwrap().parse().unwrap();
        let message =
            format!("{what} bytes, shared addresses 0x4f0 to {:#x}, touches {A_AND_B}", 0x4f0 + bytes);
        expect(&kernel(&format!("mov.u32 %r1, dynamic; {body}")), 1, ALL, SPLIT, ".", &message);
    }
}

#[test]
fn the_lane_that_strays_is_named() {
    let body = "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 3; add.s32 %r1, %r1, %r2;
        st.shared.v2.b32 [%r1], {%tid, %tid}; ld.shared.b32 %r3, [%r1+4];";
    let good = [("a", 0, 128), ("b", 128, 128)];
    let bad = [("a", 0, 116), ("b", 116, 140)];
    let message = "store of 8 bytes, shared addresses 0x470 to 0x478, touches a (0x400 to 0x474) and b (0x474 to 0x500)";
    expect(&kernel(body), 32, &good, &bad, "st.shared.v2", message);
    let found = run(&kernel(body), 32, &bad, &alone(Schedule::Eager)).unwrap().findings;
    assert_eq!(found[0].thread, [14, 0, 0]);
    // The lanes of the lower half alone.
    let half =
        "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 3; add.s32 %r1, %r1, %r2; setp.lt.u32 %p1, %tid, 16;
        @%p1 st.shared.v2.b32 [%r1], {%tid, %tid};";
    expect(&kernel(half), 32, &good[..1], &bad, "st.shared.v2", message);
}

#[test]
fn bytes_of_no_region_are_nobodys() {
    let body = "mov.u32 %r1, dynamic; st.shared.b32 [%r1+512], %tid;";
    let bad = [("a", 0, 256), ("c", 768, 256)];
    let touched = "no region, behind a (0x400 to 0x500) and before c (0x700 to 0x800)";
    let message = format!("store of 4 bytes, shared addresses 0x600 to 0x604, touches {touched}");
    expect(&kernel(body), 1, ALL, &bad, "st.shared", &message);
}

#[test]
fn rows_of_matrices_stay_in_one_region() {
    let load = "mov.u32 %r1, dynamic; shl.b32 %r2, %tid, 4; add.s32 %r1, %r1, %r2;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r1];";
    let good = [("a", 0, 240), ("b", 240, 272)];
    let message = format!("load of 16 bytes, shared addresses 0x4f0 to 0x500, touches {A_AND_B}");
    expect(&kernel(load), 32, &good, SPLIT, "ldmatrix", &message);
    let store = "shl.b32 %r2, %tid, 4; add.s32 %r1, %base, %r2; mov.u32 %r4, 0;
        stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r4, %r4, %r4, %r4};";
    expect(&hopper::kernel(store), 32, &good, SPLIT, "stmatrix", &message.replace("load", "store"));
}

#[test]
fn barriers_stay_in_one_region() {
    let body = "@%first mbarrier.init.shared::cta.b64 [%base+240], 1;
        @%first mbarrier.arrive.shared::cta.b64 _, [%base+240];";
    let message = format!("mbarrier of 8 bytes, shared addresses 0x4f0 to 0x4f8, touches {A_AND_B}");
    expect(&hopper::kernel(body), 32, ALL, SPLIT, "mbarrier.init", &message);
}

/// All of a copy counts, however many regions hold each of its rows.
#[test]
fn bulk_copies_stay_in_one_region() {
    let load = "@%first mbarrier.init.shared::cta.b64 [%base+8192], 1; bar.sync 0;
        @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 2048;
        @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base+1024], [%data], 2048, [%base+8192];
        W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W;";
    let good = [("q", 0, 1024), ("k", 1024, 2048), ("barrier", 8192, 8)];
    let bad = [("q", 0, 2048), ("k", 2048, 2048), ("barrier", 8192, 8)];
    let message = "bulk copy of 2048 bytes, shared addresses 0x800 to 0x1000, touches q (0x400 to 0xc00) and k (0xc00 to 0x1400)";
    expect(&hopper::kernel(load), 32, &good, &bad, "cp.async.bulk.shared", message);
    let store = "@%first cp.async.bulk.global.shared::cta.bulk_group [%data], [%base+1024], 2048;
        @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;";
    expect(&hopper::kernel(store), 32, &good, &bad, "cp.async.bulk.global", message);
}

/// A multiplication of 64 x 16 by 16 x 8 without a swizzle: A in 2048 bytes from 2048 on, B in 256 from 0 on.
#[test]
fn operands_of_multiplications_stay_in_one_region() {
    let descriptor = |start: u64| (start + 1024) >> 4 | (128 >> 4) << 16 | (256 >> 4) << 32;
    let body = format!(
        "mov.b64 %d1, {}; mov.b64 %d2, {}; setp.ne.u32 %p1, 0, 0;
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %d1, %d2, %p1, 1, 1, 0, 0;
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        descriptor(2048),
        descriptor(0)
    );
    let ptx = hopper::kernel(&body);
    let good = [("b", 0, 256), ("a", 2048, 2048)];
    let message = "operand A of 2048 bytes, shared addresses 0xc00 to 0x1400, touches a[0] (0xc00 to 0x1000) and a[1] (0x1000 to 0x1400)";
    expect(
        &ptx,
        128,
        &good,
        &[("b", 0, 256), ("a[0]", 2048, 1024), ("a[1]", 3072, 1024)],
        "wgmma",
        message,
    );
    let message = "operand B of 256 bytes, shared addresses 0x400 to 0x500, touches b (0x400 to 0x480), and 128 bytes of no region";
    expect(&ptx, 128, &good, &[("b", 0, 128), ("a", 2048, 2048)], "wgmma", message);
}

/// Static variables stand before dynamic shared memory, and need no region.
#[test]
fn offsets_begin_behind_static_variables() {
    let body = ".shared .align 4 .b8 own[20]; mov.u32 %r1, own; mov.u32 %r2, dynamic;
        st.shared.b32 [%r1+16], %tid; st.shared.b32 [%r2], %tid; st.shared.b32 [%r2+4], %tid;";
    let bad = [("word", 0, 4)];
    let message = "store of 4 bytes, shared addresses 0x424 to 0x428, touches no region, behind word (0x420 to 0x424)";
    expect(&kernel(body), 1, &[("words", 0, 8)], &bad, "[%r2+4]", message);
}

#[test]
fn findings_name_the_region_of_an_address() {
    let race = "mov.u32 %r1, dynamic; shr.u32 %r2, %tid, 5; st.shared.b32 [%r1+1028], %r2;";
    let regions = [("q", 0, 1024), ("k[0]", 1024, 64)];
    let message = |body: &str, threads, options: &Options| {
        let report = run(&kernel(body), threads, &regions, options).unwrap();
        report.findings.into_iter().next().expect("a finding").message
    };
    let latest = with_schedule(Schedule::Latest);
    let races = Options { checks: Checks { races: true, ..Checks::none() }, ..latest.clone() };
    for (text, options) in [("two warps", &latest), ("names need no check of regions", &races)] {
        let message = message(race, 64, options);
        let place = "warp 1 accesses shared address 0x804 (k[0] + 0x4), which warp 0 wrote";
        assert!(message.contains(place), "{text}: {message}");
    }
    let unwritten = "mov.u32 %r1, dynamic; ld.shared.b32 %r2, [%r1+1040]; st.global.b32 [%mine], %r2;";
    let place = "byte 0 of 4 bytes read at shared offset 0x810 (k[0] + 0x10): nothing wrote it; what comes of it";
    assert!(message(unwritten, 1, &latest).starts_with(place));
}
