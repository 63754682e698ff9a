//! Shuffles, votes, reductions and matches.

mod common;
use common::{Random, run_body, run_clean, with_schedule};
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
    let words = run_clean(
        "setp.lt.u32 %p1, %tid, 5; setp.lt.u32 %p2, %tid, 99;
         vote.sync.ballot.b32 %r1, %p1, -1;
         vote.sync.any.pred %p3, %p1, -1; vote.sync.all.pred %p4, %p1, -1;
         vote.sync.all.pred %p5, %p2, -1; vote.sync.uni.pred %p6, !%p1, -1;
         selp.b32 %r2, 1, 0, %p3; selp.b32 %r3, 2, 0, %p4; selp.b32 %r4, 4, 0, %p5; selp.b32 %r5, 8, 0, %p6;
         or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4; or.b32 %r2, %r2, %r5;
         redux.sync.add.u32 %r6, %tid, -1; redux.sync.max.s32 %r7, %tid, -1; sub.s32 %r8, 0, %tid;
         redux.sync.min.s32 %r9, %r8, -1; redux.sync.or.b32 %r10, %tid, -1;
         st.global.b32 [%data], %r1; st.global.b32 [%data+4], %r2; st.global.b32 [%data+8], %r6;
         st.global.b32 [%data+12], %r7; st.global.b32 [%data+16], %r9; st.global.b32 [%data+20], %r10;",
        32,
    );
    assert_eq!(words[..6], [31, 5, 496, 31, -31i32 as u32, 31]);
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
