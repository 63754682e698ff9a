//! Kernels that start before the one before them has ended: who waits, what that orders, and what it does not.

mod common;
use common::{HEAD, schedules, with_schedule, words};
use ptx_emulator::{
    Finding, FindingKind, Launch, LaunchError, Memory, Module, Options, Report, Schedule,
    launch_dependent,
};

const ALLOW: &str = "griddepcontrol.launch_dependents;";
const WAIT: &str = "griddepcontrol.wait;";
/// Bytes of global memory, all zero at the start.
const BYTES: usize = 4096;

/// Kernels `k0`, `k1`, and so on, with these bodies: `%data` is global memory, `%own` the word of the block
/// there, `%block` its number, `%last` whether it is the last one, `%base` shared memory.
fn module(bodies: &[&str]) -> String {
    let mut text = format!("{HEAD}.extern .shared .align 16 .b8 dynamic[];\n");
    for (number, body) in bodies.iter().enumerate() {
        text += &format!(
            ".visible .entry k{number}(.param .u64 data) {{
            .reg .pred %p<8>, %last; .reg .b32 %r<16>, %tid, %block, %base; .reg .b64 %data, %own;
            ld.param.u64 %data, [data]; mov.u32 %tid, %tid.x; mov.u32 %base, dynamic;
            mov.u32 %block, %ctaid.x; mul.wide.u32 %own, %block, 4; add.s64 %own, %own, %data;
            mov.u32 %r0, %nctaid.x; sub.u32 %r0, %r0, 1; setp.eq.u32 %last, %block, %r0;
            {body}
            ret; }}\n"
        );
    }
    text
}

/// What kernels with these bodies report, and what they leave in memory. Each has three blocks.
fn run(bodies: &[&str], threads: u32, options: &Options) -> (Vec<Report>, Vec<u32>) {
    let text = module(bodies);
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let memory = Memory::new();
    let data = memory.allocate(BYTES);
    memory.write(data, &[0; BYTES]).unwrap();
    let params = data.to_le_bytes();
    let (grid, block) = ([3, 1, 1], [threads, 1, 1]);
    let shape = Launch { shared_bytes: 1024, ..Launch::new(grid, block, &params) };
    let kernels: Vec<_> = module.kernels().map(|kernel| (kernel, shape)).collect();
    let reports = launch_dependent(&kernels, &memory, options).unwrap();
    (reports, words(&memory, data, BYTES / 4))
}

fn findings(reports: &[Report]) -> Vec<&Finding> {
    reports.iter().flat_map(|report| &report.findings).collect()
}

/// Options under which nothing may depend on the order: deterministic ones, random ones, more threads.
fn many() -> impl Iterator<Item = Options> {
    let random = (0..60).map(Schedule::Random);
    let alone = [Schedule::Eager, Schedule::Latest].into_iter().chain(random).map(with_schedule);
    let together = |seed| Options { threads: 4, ..with_schedule(Schedule::Random(seed)) };
    alone.chain((0..20).map(together))
}

/// Runs that must be clean.
fn each_clean(bodies: &[&str], threads: u32, mut check: impl FnMut(&[Report], &[u32])) {
    for options in many() {
        let (reports, words) = run(bodies, threads, &options);
        let found = findings(&reports);
        let schedule = options.schedule;
        assert!(found.is_empty(), "{schedule:?}: {}\n{}", found[0], bodies.join("\n"));
        check(&reports, &words);
    }
}

/// Computes for a while.
const LOOP: &str = "mov.u32 %r9, 300; L: sub.u32 %r9, %r9, 1; setp.ne.u32 %p7, %r9, 0; @%p7 bra L;";

/// Writes a word, and says so.
fn writes(say: &str) -> String {
    format!("{ALLOW} {LOOP} st.global.b32 [%own], 7; {say} [%own+256], 1;")
}

/// Asks whether the word was written, waits if it was not or the block is the last, and reads it. Notes both.
fn reads(ask: &str, read: &str) -> String {
    format!(
        "{ask} %r1, [%own+256]; setp.ne.or.u32 %p1, %r1, 1, %last; @%p1 {WAIT}
         {read} %r2, [%own]; st.global.b32 [%own+512], %r2; st.global.b32 [%own+768], %r1;"
    )
}

const RELEASE: &str = "st.release.gpu.global.b32";
const ACQUIRE: &str = "ld.acquire.gpu.global.b32";
const RELAXED: &str = "ld.relaxed.gpu.global.b32";

#[test]
fn grids_overlap_and_are_ordered_by_release_and_acquire() {
    let (first, second) = (writes(RELEASE), reads(ACQUIRE, "ld.global.b32"));
    let [mut written, mut unwritten, mut early, mut late] = [0; 4];
    each_clean(&[&first, &second], 1, |reports, words| {
        assert_eq!(words[128..131], [7; 3]);
        for flag in &words[192..195] {
            *(if *flag == 1 { &mut written } else { &mut unwritten }) += 1;
        }
        assert_eq!(reports[0].statistics.early_blocks, 0);
        let statistics = &reports[1].statistics;
        assert_eq!(statistics.blocks, 3);
        *(if statistics.early_blocks > 0 { &mut early } else { &mut late }) += 1;
    });
    assert!(
        written > 0 && unwritten > 0 && early > 0 && late > 0,
        "{written} {unwritten} {early} {late}"
    );
}

#[test]
fn what_nothing_orders_is_a_race_of_both_kernels() {
    let twin = [writes(RELEASE), reads(ACQUIRE, "ld.global.b32")];
    each_clean(&twin.each_ref().map(String::as_str), 1, |_, _| {});
    let never = format!("@%last {WAIT} ld.global.b32 %r2, [%own];");
    for (first, second) in [
        (writes("st.relaxed.gpu.global.b32"), reads(ACQUIRE, "ld.global.b32")),
        (writes(RELEASE), reads(RELAXED, "ld.global.b32")),
        (writes(RELEASE), never),
    ] {
        let mut met = 0;
        for schedule in schedules() {
            let (reports, _) = run(&[&first, &second], 1, &with_schedule(schedule));
            for found in findings(&reports) {
                assert_eq!(found.kind, FindingKind::GlobalRace, "{found}");
                let other = if found.kernel == "k0" { " of k1 read" } else { " of k0 wrote" };
                assert!(found.message.contains(other), "{found}");
                let line =
                    if found.kernel == "k0" { "ld.global.b32 %r2" } else { "st.global.b32 [%own], 7" };
                assert!(found.message.contains(line), "{found}");
                met += 1;
            }
        }
        assert!(met > 2, "{first}\n{second}");
    }
}

#[test]
fn a_running_grid_writes_nothing_that_is_read_only() {
    let (first, second) = (writes(RELEASE), reads(ACQUIRE, "ld.global.nc.b32"));
    let (reports, _) = run(&[&first, &second], 1, &Options::default());
    let found = &reports[1].findings[0];
    assert_eq!(found.kind, FindingKind::GlobalRace);
    assert!(found.message.contains("ld.global.nc"), "{found}");
    // One that has ended has.
    each_clean(&[&first, &format!("{WAIT} ld.global.nc.b32 %r2, [%own];")], 1, |_, _| {});
}

#[test]
fn who_waits_knows_all_that_the_grid_before_did() {
    let bulk = "cp.async.bulk.global.shared::cta.bulk_group [%data+1024], [%base], 16;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;";
    let first = format!(
        "{ALLOW} {LOOP} setp.ne.u32 %p1, %tid, 0; st.global.b32 [%own], 7; @%p1 bra END; @!%last bra END;
         st.shared.v4.b32 [%base], {{%r0, %r0, %r0, %r0}}; fence.proxy.async.shared::cta; {bulk} END:"
    )
    .replace("st.global.b32 [%own]", "@!%p1 st.global.b32 [%own]");
    let read = "ld.global.b32 %r1, [%own]; ld.global.b32 %r2, [%data+1024];";
    let check = format!(
        "{read} setp.ne.u32 %p2, %r1, 7; @%p2 trap; setp.ne.u32 %p2, %r2, 2; @%p2 trap;
         setp.eq.u32 %p2, %tid, 32; @%p2 st.global.b32 [%own], 8;"
    );
    let load = "mbarrier.init.shared::cta.b64 [%base], 1; fence.mbarrier_init.release.cluster;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 16;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base+16], [%data], 16, [%base];
         W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%base], 0; @!%p2 bra W;";
    for second in [
        format!("{WAIT} {}", check.replace("@%p2 st", "bar.sync 0; @%p2 st")),
        // One warp waits, and tells the other.
        format!("setp.lt.u32 %p1, %tid, 32; @%p1 {WAIT} bar.sync 0; {check}").replace("@%p2 st", "bar.sync 0; @%p2 st"),
        // One lane does.
        format!("setp.eq.u32 %p1, %tid, 3; @%p1 {WAIT} bar.sync 0; {check}").replace("@%p2 st", "bar.sync 0; @%p2 st"),
        // A bulk copy needs no fence for what it brings.
        format!("setp.ne.u32 %p1, %tid, 0; @%p1 bra END; {WAIT} {load} END:"),
        // One block waits, and tells the others.
        format!(
            "setp.ne.u32 %p1, %tid, 0; @%p1 bra END; @!%last bra ASK; {WAIT} {RELEASE} [%data+256], 1; bra END;
             ASK: {ACQUIRE} %r1, [%data+256]; setp.eq.u32 %p1, %r1, 0; @%p1 bra ASK; {read} END:"
        ),
    ] {
        each_clean(&[&first, &second], 64, |_, _| {});
    }
    // What one warp knows is nothing to another.
    let second = format!("setp.lt.u32 %p1, %tid, 32; @%p1 {WAIT} {read}");
    let (reports, _) = run(&[&first, &second], 64, &Options::default());
    assert_eq!(findings(&reports)[0].kind, FindingKind::GlobalRace);
}

#[test]
fn a_wait_for_a_grid_that_never_ends_is_reported() {
    let spins = format!("{ALLOW} S: {RELAXED} %r1, [%data+256]; setp.eq.u32 %p1, %r1, 0; @%p1 bra S;");
    let waits = format!("{WAIT} st.global.b32 [%own+256], 1;");
    for schedule in schedules() {
        let (reports, words) = run(&[&spins, &waits], 32, &with_schedule(schedule));
        let kinds = findings(&reports).into_iter().map(|found| found.kind).collect::<Vec<_>>();
        assert_eq!(kinds, [FindingKind::Deadlock; 2], "{schedule:?}");
        let [first, second] = [&reports[0].findings[0], &reports[1].findings[0]];
        assert!(first.message.contains("again and again"), "{first}");
        assert!(second.message.contains("the end of the grid before"), "{second}");
        assert_eq!(words[64], 0);
    }
    // One that fails has ended.
    let fails = format!("{ALLOW} {LOOP} trap;");
    for schedule in schedules() {
        let (reports, words) = run(&[&fails, &waits], 1, &with_schedule(schedule));
        assert_eq!(findings(&reports).len(), 1, "{schedule:?}");
        assert_eq!(words[64..67], [1; 3]);
    }
    // And one whose other threads ask for what comes after the wait does not ask in vain.
    let asks = format!(
        "setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.b32 [%base], 0; bar.sync 0; setp.ge.u32 %p1, %tid, 32; @%p1 bra S;
         {WAIT} setp.eq.u32 %p1, %tid, 0; @%p1 st.volatile.shared.b32 [%base], 1; bra END;
         S: ld.volatile.shared.b32 %r1, [%base]; setp.eq.u32 %p1, %r1, 0; @%p1 bra S; END:"
    );
    let long = format!("{ALLOW} {}", LOOP.replace("300", "30000"));
    each_clean(&[&long, &asks], 64, |_, _| {});
}

#[test]
fn somebody_must_wait() {
    let reads = format!("{ACQUIRE} %r1, [%own+256];");
    for schedule in schedules() {
        let (reports, _) = run(&[&writes(RELEASE), &reads], 1, &with_schedule(schedule));
        let found = findings(&reports);
        assert_eq!(found.len(), 1, "{schedule:?}");
        assert_eq!((found[0].kind, &*found[0].kernel), (FindingKind::MissingGridWait, "k1"));
        assert!(found[0].to_string().starts_with("missing wait for the grid before: "), "{}", found[0]);
    }
    // One thread of one block is enough, and there is nothing to say where another fault came before.
    each_clean(&[&writes(RELEASE), &format!("{reads} @%last {WAIT}")], 1, |_, _| {});
    let (reports, _) =
        run(&[&writes(RELEASE), &format!("@%last trap; {reads}")], 1, &Options::default());
    let found = findings(&reports);
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::Trap));
}

#[test]
fn a_grid_that_is_not_allowed_to_start_starts_behind_the_one_before() {
    let asks = format!("{RELAXED} %r1, [%own+256]; st.global.b32 [%own+512], %r1; @%last {WAIT}");
    let never = writes(RELEASE).replace(ALLOW, "");
    // All blocks must allow it.
    let some = writes(RELEASE).replace(ALLOW, &format!("@!%last {ALLOW}"));
    for (first, written) in [(&never, 0..3), (&some, 2..3), (&writes(RELEASE), 0..0)] {
        let (mut early, mut unwritten) = (0, 0);
        each_clean(&[first, &asks], 1, |reports, words| {
            early += reports[1].statistics.early_blocks;
            unwritten += words[128..131].iter().filter(|flag| **flag == 0).count();
            assert!(words[128..131][written.clone()].iter().all(|flag| *flag == 1), "{first}");
        });
        assert_eq!((early == 0, unwritten == 0), (written.len() == 3, written.len() == 3), "{first}");
    }
}

#[test]
fn three_grids_follow_each_other() {
    let second = format!("{ALLOW} {LOOP} @%last {WAIT} st.global.b32 [%own+1024], 5;");
    let third = format!(
        "{ALLOW} {WAIT} ld.global.b32 %r1, [%own]; ld.global.b32 %r2, [%own+1024]; add.u32 %r1, %r1, %r2;
         st.global.b32 [%own], %r1;"
    );
    let mut early = [0; 3];
    each_clean(&[&writes(RELEASE), &second, &third], 1, |reports, words| {
        assert_eq!(words[..3], [12; 3]);
        early
            .iter_mut()
            .zip(reports)
            .for_each(|(early, report)| *early += report.statistics.early_blocks);
    });
    assert!(early[1] > 0 && early[2] == 0, "{early:?}");
}

#[test]
fn what_had_ended_when_a_grid_let_the_next_one_start_is_there() {
    let first = format!("{ALLOW} {LOOP} st.global.b32 [%own], 7;");
    let third = format!("ld.global.b32 %r1, [%own]; st.global.b32 [%own+512], %r1; @%last {WAIT}");
    let mut early = 0;
    each_clean(&[&first, &format!("{WAIT} {ALLOW} {LOOP}"), &third], 1, |reports, words| {
        assert_eq!(words[128..131], [7; 3]);
        early += reports[2].statistics.early_blocks;
    });
    assert!(early > 0);
    // The other way round it may not have ended.
    let second = format!("{ALLOW} {WAIT} {LOOP}");
    let races = many().filter(|options| {
        let (reports, _) = run(&[&first, &second, &third], 1, options);
        let found = findings(&reports);
        assert!(found.iter().all(|found| found.kind == FindingKind::GlobalRace), "{found:?}");
        !found.is_empty()
    });
    assert!(races.count() > 2);
}

#[test]
fn nothing_runs_if_one_kernel_cannot() {
    let text = module(&["st.global.b32 [%own], 7;", WAIT]);
    let module = Module::parse(&text).unwrap();
    let memory = Memory::new();
    let data = memory.allocate(BYTES);
    memory.write(data, &[0; BYTES]).unwrap();
    let params = data.to_le_bytes();
    let shape = |threads| {
        let block = [threads, 1, 1];
        Launch::new([1; 3], block, &params)
    };
    let kernels = ["k0", "k1"].map(|name| module.kernel(name).unwrap());
    let wrong = [(kernels[0], shape(1)), (kernels[1], shape(0))];
    let refused = launch_dependent(&wrong, &memory, &Options::default());
    assert!(matches!(refused, Err(LaunchError::Threads { .. })));
    assert_eq!(words(&memory, data, 1), [0]);
    assert_eq!(launch_dependent(&[], &memory, &Options::default()), Ok(Vec::new()));
}
