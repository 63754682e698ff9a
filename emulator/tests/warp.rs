//! Shuffles, votes, reductions and matches.

mod common;
use common::{Random, only_finding, run_body, run_clean, with_schedule};
use ptx_emulator::{FindingKind, Options, Schedule};

/// What `shfl.sync` gives a lane, by the pseudo-code of the PTX manual: source lane and predicate.
fn shuffle(mode: &str, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (bval, cval, mask) = (b & 31, c & 31, c >> 8 & 31);
    let max = lane & mask | cval & !mask;
    let min = lane & mask;
    let (j, p) = match mode {
        "up" => (lane.wrapping_sub(bval), lane as i32 - bval as i32 >= max as i32),
        "down" => (lane + bval, lane + bval <= max),
        "bfly" => (lane ^ bval, lane ^ bval <= max),
        _ => (min | bval & !mask, (min | bval & !mask) <= max),
    };
    if p { (j, true) } else { (lane, false) }
}

#[test]
fn shuffles_follow_the_manual() {
    let mut random = Random(11);
    for mode in ["up", "down", "bfly", "idx"] {
        for c in [0x1f, 0, 0x181f, 0x1c1f, 0x1f1f, 0x0f, 0x1800] {
            let b = (random.next() % 32) as u32;
            let words = run_clean(
                &format!(
                    "mul.lo.s32 %r1, %tid, 1000; add.s32 %r1, %r1, 7;
                     shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1;
                     selp.b32 %r3, 1, 0, %p1; shl.b32 %r3, %r3, 20; or.b32 %r2, %r2, %r3;
                     st.global.b32 [%mine], %r2;"
                ),
                32,
            );
            for lane in 0..32 {
                let (source, good) = shuffle(mode, lane, b, c);
                let want = (source * 1000 + 7) | (u32::from(good) << 20);
                assert_eq!(words[lane as usize], want, "{mode} b {b} c {c:#x} lane {lane}");
            }
        }
    }
}

#[test]
fn a_butterfly_sums_a_warp() {
    let words = run_clean(
        "mov.u32 %r1, %tid;
         shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1; add.s32 %r1, %r1, %r2;
         shfl.sync.bfly.b32 %r2, %r1, 8, 31, -1; add.s32 %r1, %r1, %r2;
         shfl.sync.bfly.b32 %r2, %r1, 4, 31, -1; add.s32 %r1, %r1, %r2;
         shfl.sync.bfly.b32 %r2, %r1, 2, 31, -1; add.s32 %r1, %r1, %r2;
         shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; add.s32 %r1, %r1, %r2;
         st.global.b32 [%mine], %r1;",
        32,
    );
    assert_eq!(words[..32], [31 * 16; 32]);
}

#[test]
fn votes_ballots_and_reductions() {
    let text =
        "setp.lt.u32 %p1, %tid, 5; setp.lt.u32 %p2, %tid, 99;
         vote.sync.ballot.b32 %r1, %p1, -1;
         vote.sync.any.pred %p3, %p1, -1; vote.sync.all.pred %p4, %p1, -1;
         vote.sync.all.pred %p5, %p2, -1; vote.sync.uni.pred %p6, !%p1, -1;
         selp.b32 %r2, 1, 0, %p3; selp.b32 %r3, 2, 0, %p4; selp.b32 %r4, 4, 0, %p5; selp.b32 %r5, 8, 0, %p6;
         or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4; or.b32 %r2, %r2, %r5;
         redux.sync.add.u32 %r6, %tid, -1; redux.sync.max.s32 %r7, %tid, -1; sub.s32 %r8, 0, %tid;
         redux.sync.min.s32 %r9, %r8, -1; redux.sync.or.b32 %r10, %tid, -1;
         st.global.b32 [%data], %r1; st.global.b32 [%data+4], %r2; st.global.b32 [%data+8], %r6;
         st.global.b32 [%data+12], %r7; st.global.b32 [%data+16], %r9; st.global.b32 [%data+20], %r10;";
    let modes = ["ballot", "any", "all", "uni"];
    let other = modes.iter().fold(text.to_owned(), |text, mode| {
        text.replace(&format!("vote.sync.{mode}"), &format!("vote.{mode}.sync"))
    });
    for text in [text, &other] {
        assert_eq!(run_clean(text, 32)[..6], [31, 5, 496, 31, -31i32 as u32, 31]);
    }
}

#[test]
fn matches_find_equal_values() {
    let words = run_clean(
        "and.b32 %r1, %tid, 3; match.any.sync.b32 %r2, %r1, -1; match.all.sync.b32 %r3|%p1, %r1, -1;
         match.all.sync.b32 %r4|%p2, 7, -1; add.s32 %r2, %r2, %r3; and.b32 %r4, %r4, 1;
         add.s32 %r2, %r2, %r4; @%p1 st.global.b32 [%mine], 0; @%p2 st.global.b32 [%mine], %r2;",
        32,
    );
    (0..32).for_each(|lane| assert_eq!(words[lane], (0x1111_1111u32 << (lane % 4)).wrapping_add(1)));
}

#[test]
fn diverged_lanes_meet_at_a_shuffle() {
    // Each half reaches the same instruction by its own path.
    let words = run_clean(
        "setp.lt.u32 %p1, %tid, 16; @%p1 bra LOW;
         mov.b32 %r1, 200; bra MEET;
         LOW: mov.b32 %r1, 100;
         MEET: add.s32 %r1, %r1, %tid;
         shfl.sync.idx.b32 %r2, %r1, 20, 31, -1;
         st.global.b32 [%mine], %r2;",
        32,
    );
    assert_eq!(words[..32], [220; 32]);
}

#[test]
fn a_partial_member_mask_asks_for_its_lanes_alone() {
    let words = run_clean(
        "setp.ge.u32 %p1, %tid, 8; @%p1 bra END;
         shfl.sync.bfly.b32 %r1, %tid, 1, 31, 0xff; st.global.b32 [%mine], %r1;
         END:",
        32,
    );
    (0..8).for_each(|lane| assert_eq!(words[lane as usize], lane ^ 1));
}

#[test]
fn a_lane_outside_its_member_mask_is_found() {
    let outcome = run_body("shfl.sync.bfly.b32 %r1, %tid, 1, 31, 0xff;", 32, &Options::default());
    let finding = &outcome.report.findings[0];
    assert_eq!((finding.kind, finding.thread), (FindingKind::WarpDivergence, [8, 0, 0]));
}

#[test]
fn a_shuffle_that_part_of_the_warp_never_reaches_is_found() {
    for schedule in [Schedule::Eager, Schedule::Random(3)] {
        let outcome = run_body(
            "setp.lt.u32 %p1, %tid, 16; @%p1 bra LOW;
             bar.warp.sync -1; bra END;
             LOW: shfl.sync.bfly.b32 %r1, %tid, 1, 31, -1;
             END:",
            32,
            &with_schedule(schedule),
        );
        assert_eq!(outcome.report.findings[0].kind, FindingKind::WarpDivergence);
    }
}

#[test]
fn an_elected_lane_is_the_lowest() {
    let words = run_clean(
        "elect.sync %r1|%p1, -1; @%p1 st.global.b32 [%mine], 9; @!%p1 st.global.b32 [%mine], %r1;",
        32,
    );
    assert_eq!(words[0], 9);
    assert_eq!(words[1..32], [0; 31]);
}

/// The mask of its half of the warp, in %r20.
const HALF: &str =
    "mov.u32 %r21, %laneid; and.b32 %r22, %r21, 16; mov.b32 %r20, 0xffff; shl.b32 %r20, %r20, %r22;";

#[test]
fn halves_of_a_warp_exchange_by_one_instruction() {
    let words = run_clean(
        &format!(
            "{HALF} setp.eq.u32 %p1, %tid, 3; setp.lt.u32 %p2, %tid, 16;
             shfl.sync.bfly.b32 %r1, %tid, 1, 0x101f, %r20; shfl.sync.idx.b32 %r2, %tid, 2, 0x101f, %r20;
             vote.sync.ballot.b32 %r3, %p1, %r20; vote.sync.any.pred %p3, %p1, %r20;
             vote.sync.all.pred %p4, %p2, %r20; redux.sync.add.u32 %r4, %tid, %r20;
             match.all.sync.b32 %r5|%p5, %r22, %r20; elect.sync %r6|%p6, %r20;
             selp.b32 %r7, 1, 0, %p3; @%p4 or.b32 %r7, %r7, 2; @%p5 or.b32 %r7, %r7, 4; @%p6 or.b32 %r7, %r7, 8;
             mul.wide.u32 %d1, %tid, 32; add.s64 %d1, %data, %d1;
             st.global.v4.b32 [%d1], {{%r1, %r2, %r3, %r4}}; st.global.v4.b32 [%d1+16], {{%r5, %r6, %r7, 0}};"
        ),
        32,
    );
    for lane in 0..32u32 {
        let low = lane < 16;
        let (first, all) = if low { (0, 0xffff) } else { (16, 0xffff_0000) };
        let sum = (first..first + 16).sum();
        let flags = if low { 3 } else { 0 } | 4 | if lane == first { 8 } else { 0 };
        let expected = [lane ^ 1, first + 2, if low { 8 } else { 0 }, sum, all, first, flags, 0];
        assert_eq!(words[lane as usize * 8..][..8], expected, "lane {lane}");
    }
}

/// The lanes that hold the same value add up, as after `match.any` in a histogram.
#[test]
fn lanes_that_match_exchange_among_themselves() {
    let words = run_clean(
        "and.b32 %r1, %tid, 3; setp.eq.u32 %p1, %r1, 3; @%p1 mov.b32 %r1, 0;
         match.any.sync.b32 %r2, %r1, -1; brev.b32 %r3, %r2; clz.b32 %r3, %r3;
         redux.sync.add.u32 %r4, %tid, %r2; shfl.sync.idx.b32 %r5, %r4, %r3, 31, %r2;
         st.global.b32 [%mine], %r5;",
        32,
    );
    let group = |lane: u32| if lane % 4 == 3 { 0 } else { lane % 4 };
    for lane in 0..32u32 {
        let sum: u32 = (0..32).filter(|&other| group(other) == group(lane)).sum();
        assert_eq!(words[lane as usize], sum);
    }
}

/// A quarter comes late to an instruction that the others execute with masks of their own.
#[test]
fn groups_wait_for_their_own_lanes_only() {
    let words = run_clean(
        &format!(
            "{HALF} mov.b32 %r1, 0; mov.b32 %r3, %tid; setp.lt.u32 %p1, %tid, 24; @%p1 bra MEET;
             LATE: add.s32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 700; @%p2 bra LATE; add.s32 %r3, %r3, 1000;
             MEET: shfl.sync.bfly.b32 %r2, %r3, 8, 0x101f, %r20;
             bar.warp.sync -1; shfl.sync.bfly.b32 %r4, %r2, 16, 31, -1;
             st.global.b32 [%mine], %r4;"
        ),
        32,
    );
    for lane in 0..32u32 {
        let source = lane ^ 24;
        assert_eq!(words[lane as usize], if source >= 24 { source + 1000 } else { source });
    }
}

#[test]
fn masks_that_disagree_are_found() {
    let exchanges = [
        "shfl.sync.bfly.b32 %r1, %tid, 0, 31, %r2;",
        "bar.warp.sync %r2;",
        "vote.sync.ballot.b32 %r1, %p1, %r2;",
    ];
    for exchange in exchanges {
        // Lane 5 is alone by its own mask, but not by that of the others.
        let alone = format!("setp.eq.u32 %p1, %tid, 5; selp.b32 %r2, 0x20, -1, %p1;\n{exchange}");
        // Lane 5 names the others alone.
        let others =
            format!("setp.eq.u32 %p1, %tid, 5; selp.b32 %r2, 0x40, 0xffffffdf, %p1;\n{exchange}");
        for (body, thread) in [(alone, 0), (others, 5)] {
            for schedule in [Schedule::Eager, Schedule::Random(3)] {
                let finding = only_finding(&body, 32, &with_schedule(schedule));
                assert_eq!(finding.kind, FindingKind::WarpDivergence, "{body}");
                assert_eq!(finding.thread, [thread, 0, 0], "{finding}");
            }
        }
    }
}

#[test]
fn a_group_that_lacks_a_lane_is_found() {
    let body = format!(
        "{HALF} setp.eq.u32 %p1, %tid, 20; @%p1 bra END; shfl.sync.bfly.b32 %r1, %tid, 1, 0x101f, %r20;
         END: bar.sync 0;"
    );
    let finding = only_finding(&body, 32, &with_schedule(Schedule::Eager));
    assert_eq!((finding.kind, finding.thread), (FindingKind::WarpDivergence, [16, 0, 0]), "{finding}");
}

/// The sum of eight lanes as it is often written: lanes beyond the mask are asked, but only by lanes whose
/// sums nobody wants.
fn sum_of_eight(end: &str) -> String {
    format!(
        "setp.ge.u32 %p1, %tid, 8; @%p1 bra END; mov.b32 %r1, %tid;
         shfl.sync.down.b32 %r2, %r1, 4, 31, 0xff; add.s32 %r1, %r1, %r2;
         shfl.sync.down.b32 %r2, %r1, 2, 31, 0xff; add.s32 %r1, %r1, %r2;
         shfl.sync.down.b32 %r2, %r1, 1, 31, 0xff; add.s32 %r1, %r1, %r2;
         setp.eq.u32 %p2, %tid, 0; selp.b32 %r3, %r1, 5, %p2; setp.gt.u32 %p3, %r1, 5; {end}
         END:"
    )
}

#[test]
fn a_value_of_a_lane_outside_the_mask_is_found_where_it_matters() {
    let good = "@%p2 st.global.b32 [%data], %r1; st.global.b32 [%mine+128], %r3;";
    let words = run_clean(&sum_of_eight(good), 32);
    assert_eq!((words[0], words[32], words[33]), (28, 28, 5));
    let uses = [
        ("st.global.b32 [%mine+128], %r1;", 1),
        ("selp.b32 %r4, 1, 2, %p3; st.global.b32 [%mine+128], %r4;", 1),
        ("shfl.sync.idx.b32 %r5, %r1, 7, 31, 0xff; @%p2 st.global.b32 [%data], %r5;", 0),
        ("redux.sync.or.b32 %r5, %r1, 0xff;", 1),
        (
            "and.b32 %r5, %r1, 4; cvt.u64.u32 %d1, %r5; add.s64 %d1, %d1, %data; ld.global.b32 %r6, [%d1];",
            1,
        ),
    ];
    for (bad, thread) in uses {
        let finding =
            only_finding(&sum_of_eight(&format!("\n{bad}")), 32, &with_schedule(Schedule::Eager));
        assert_eq!(finding.kind, FindingKind::UninitialisedRegister, "{bad}");
        assert_eq!(finding.thread, [thread, 0, 0], "{finding}");
        assert!(finding.message.contains("`shfl.sync.down.b32 %r2, %r1"), "{finding}");
    }
    // A lane that is not there any more.
    let exited = "setp.eq.u32 %p1, %tid, 9; @%p1 exit; shfl.sync.idx.b32 %r1, %tid, 9, 31, -1;
         setp.eq.u32 %p2, %tid, 0; @%p2 st.global.b32 [%data], %r1;";
    let finding = only_finding(exited, 32, &with_schedule(Schedule::Eager));
    assert_eq!(finding.kind, FindingKind::UninitialisedRegister, "{finding}");
}

#[test]
fn matches_of_64_bits_look_at_all_of_them() {
    let words = run_clean(
        "and.b32 %r1, %tid, 1; mov.b64 %d1, {0, %r1}; match.any.sync.b64 %r2, %d1, -1;
         match.all.sync.b64 %r3|%p1, %d1, -1; mov.b64 %d2, {%r1, 7}; shr.u64 %d2, %d2, 32;
         match.all.sync.b64 %r4|%p2, %d2, -1; add.s32 %r2, %r2, %r3; @%p2 st.global.b32 [%mine], %r2;
         @%p1 st.global.b32 [%mine], 0;",
        32,
    );
    (0..32).for_each(|lane| assert_eq!(words[lane], 0x5555_5555 << (lane % 2)));
}
