//! Bulk and tensor copies against plain Rust, and what a group of stores waits for.

mod common;
use common::hopper::{Outcome, no_map, run_body, run_clean};
use common::with_schedule;
use ptx_emulator::{Address, Checks, Options, Schedule, TensorMap, TensorMapElement, TensorMapSwizzle};

/// Loads a box at `first` for one barrier and copies 8 KiB of shared memory, which starts as -1, to the
/// second half of the data.
fn load_box(rank: usize, first: &[i32], bytes: u32) -> String {
    let coordinates: Vec<String> = first.iter().map(|x| x.to_string()).collect();
    let coordinates = coordinates.join(", ");
    format!(
        "mov.u32 %r1, 0; shl.b32 %r2, %tid, 4; add.s32 %r2, %r2, %base; mov.u32 %r3, -1;
         FILL: st.shared.v4.b32 [%r2], {{%r3, %r3, %r3, %r3}}; add.s32 %r2, %r2, 2048; add.s32 %r1, %r1, 1;
         setp.lt.u32 %p1, %r1, 8; @%p1 bra FILL;
         fence.proxy.async.shared::cta;
         @%first mbarrier.init.shared::cta.b64 [%base+8192], 1; @%first fence.mbarrier_init.release.cluster; bar.sync 0;
         @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], {bytes};
         @%first cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%base], [%map, {{{coordinates}}}], [%base+8192];
         W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W;
         mov.u32 %r1, 0; shl.b32 %r2, %tid, 4; add.s32 %r2, %r2, %base; mul.wide.u32 %d1, %tid, 16; add.s64 %d1, %d1, %data; add.s64 %d1, %d1, 16384;
         OUT: ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2]; st.global.v4.b32 [%d1], {{%r4, %r5, %r6, %r7}};
         add.s32 %r2, %r2, 2048; add.s64 %d1, %d1, 2048; add.s32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4; @%p1 bra OUT;"
    )
}

fn swizzled(offset: usize, span: usize) -> usize {
    if span == 0 { offset } else { offset ^ (offset >> 7 & (span / 16 - 1)) << 4 }
}

/// Words of the first 16 KiB seen as a tensor; what shared memory holds after a load.
fn expected(map: &TensorMap, first: &[i32]) -> Vec<u32> {
    let span = map.swizzle.span_bytes().unwrap_or(0) as usize;
    let mut shared = vec![u32::MAX; 2048];
    let total: u32 = map.box_dims.iter().product();
    for element in 0..total {
        let mut rest = element;
        let mut source = Some(0u64);
        for (dimension, &start) in first.iter().enumerate() {
            let at = i64::from(start) + i64::from(rest % map.box_dims[dimension]);
            rest /= map.box_dims[dimension];
            let step = if dimension == 0 { 4 } else { map.strides_bytes[dimension - 1] };
            let exists = at >= 0 && (at as u64) < map.dims[dimension];
            source = source.filter(|_| exists).map(|sum| sum + step * at as u64);
        }
        let (row, column) = (element / map.box_dims[0], element % map.box_dims[0]);
        let pitch = if span == 0 { map.box_dims[0] * 4 } else { span as u32 };
        let place = swizzled((row * pitch + column * 4) as usize, span);
        shared[place / 4] = source.map_or(0, |bytes| (bytes / 4) as u32);
    }
    shared
}

fn tensor(dims: &[u64], strides: &[u64], box_dims: &[u32], swizzle: TensorMapSwizzle) -> TensorMap {
    TensorMap {
        element: TensorMapElement::U32,
        address: 0,
        dims: dims.to_vec(),
        strides_bytes: strides.to_vec(),
        box_dims: box_dims.to_vec(),
        swizzle,
    }
}

fn at(map: &TensorMap) -> impl Fn(Address) -> [u64; 16] {
    move |address| TensorMap { address: address.0, ..map.clone() }.encode().unwrap()
}

#[test]
fn boxes_of_every_rank_inside_and_across_the_edge() {
    use TensorMapSwizzle::{B32, B64, B128, None};
    let cases = [
        (tensor(&[1000], &[], &[64], None), vec![vec![0], vec![960], vec![-60]]),
        (
            tensor(&[60, 50], &[256], &[16, 20], B64),
            vec![vec![0, 0], vec![50, 40], vec![-3, -7], vec![100, 0]],
        ),
        (tensor(&[32, 10, 4], &[128, 2048], &[32, 5, 3], B128), vec![vec![0, 1, 0], vec![0, 7, 2]]),
        (
            tensor(&[8, 10, 4, 3], &[32, 512, 4096], &[8, 4, 2, 3], B32),
            vec![vec![0, 8, 3, 0], vec![0, 0, -1, 1]],
        ),
        (
            tensor(&[32, 6, 2, 3, 2], &[768, 128, 256, 6144], &[32, 4, 2, 1, 1], B128),
            vec![vec![0, 2, 0, 1, 1], vec![0, 4, 0, 2, 0]],
        ),
    ];
    for (map, firsts) in cases {
        for first in firsts {
            let words = run_clean(&load_box(map.dims.len(), &first, map.box_bytes()), 128, at(&map));
            assert_eq!(words[4096..4096 + 2048], expected(&map, &first), "{map:?} at {first:?}");
        }
    }
}

/// Shared memory is filled with the thread's number times 16 plus the word's; then a box is stored.
fn store_box(instruction: &str) -> String {
    format!(
        "shl.b32 %r2, %tid, 4; add.s32 %r2, %r2, %base; shl.b32 %r3, %tid, 2; add.s32 %r4, %r3, 1; add.s32 %r5, %r3, 2; add.s32 %r6, %r3, 3;
         st.shared.v4.b32 [%r2], {{%r3, %r4, %r5, %r6}};
         fence.proxy.async.shared::cta; bar.sync 0;
         @!%first bra END;
         {instruction}
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"
    )
}

#[test]
fn a_stored_box_writes_what_lies_inside_the_tensor() {
    let map = tensor(&[30, 20], &[256], &[32, 4], TensorMapSwizzle::B128);
    let words = run_clean(
        &store_box(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {2, 18}], [%base];",
        ),
        128,
        at(&map),
    );
    let mut expected: Vec<u32> = (0..8192).collect();
    for row in 0..2 {
        for column in 0..28 {
            expected[(18 + row) * 64 + 2 + column] = (swizzled(row * 128 + column * 4, 128) / 4) as u32;
        }
    }
    assert_eq!(words, expected);
}

/// Each operation in global memory, on elements that PTX has it for.
#[test]
fn copies_reduce_in_global_memory() {
    let body = |how: &str| {
        format!(
            "shl.b32 %r1, %tid, 2; add.s32 %r1, %r1, %base; xor.b32 %r2, %tid, 0x80000005; st.shared.b32 [%r1], %r2;
             fence.proxy.async; bar.sync 0; @!%first bra END;
             cp.reduce.async.bulk.global.shared::cta.bulk_group.{how} [%data], [%base], 128; cp.async.bulk.commit_group;
             cp.async.bulk.wait_group 0; END:"
        )
    };
    let signed = |f: fn(i32, i32) -> i32| move |a: u32, b: u32| f(a as i32, b as i32) as u32;
    let check = |how: &str, f: &dyn Fn(u32, u32) -> u32| {
        let words = run_clean(&body(how), 32, no_map);
        for tid in 0..32u32 {
            assert_eq!(words[tid as usize], f(tid, tid ^ 0x8000_0005), "{how} {tid}");
        }
    };
    check("min.u32", &u32::min);
    check("max.u32", &u32::max);
    check("min.s32", &signed(i32::min));
    check("max.s32", &signed(i32::max));
    check("and.b32", &|a, b| a & b);
    check("or.b64", &|a, b| a | b);
    check("xor.b64", &|a, b| a ^ b);
    check("inc.u32", &|a, b| if a >= b { 0 } else { a + 1 });
    check("dec.u32", &|a, b| if a == 0 || a > b { b } else { a - 1 });
    // Of the words at 2i and 2i + 1, that at 2i + 1 decides which 64 bits are more.
    let pairs = run_clean(&body("max.s64"), 32, no_map);
    assert_eq!(pairs[..32], (0..32).collect::<Vec<u32>>());
    let pairs = run_clean(&body("max.u64"), 32, no_map);
    assert_eq!(pairs[..32], (0..32).map(|tid| tid ^ 0x8000_0005).collect::<Vec<u32>>());
}

#[test]
fn a_reduced_box_is_added() {
    let map = tensor(&[64, 20], &[256], &[32, 4], TensorMapSwizzle::None);
    let words = run_clean(
        &store_box(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%map, {0, 1}], [%base];",
        ),
        128,
        at(&map),
    );
    for row in 0..4 {
        (0..32).for_each(|x| {
            assert_eq!(words[(1 + row) * 64 + x], ((1 + row) * 64 + x + row * 32 + x) as u32)
        });
    }
    assert_eq!(words[64 + 32], 96);
}

#[test]
fn plain_copies_both_ways() {
    let words = run_clean(
        "@!%first bra END; mbarrier.init.shared::cta.b64 [%base], 1; fence.proxy.async;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 96;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base+16], [%data+32], 64, [%base];
         mov.u32 %r9, 32;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%base+80], [%data+256], %r9, [%base], %d9;
         W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W;
         cp.async.bulk.global.shared::cta.bulk_group [%data+16384], [%base+16], 96;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; END:",
        32,
        no_map,
    );
    (0..16).for_each(|word| assert_eq!(words[4096 + word], 8 + word as u32));
    (0..8).for_each(|word| assert_eq!(words[4112 + word], 64 + word as u32));
    assert_eq!(words[4120], 4120);
}

#[test]
fn plain_copies_add_floats() {
    let words = run_clean(
        "shl.b32 %r2, %tid, 2; add.s32 %r2, %r2, %base; cvt.rn.f32.u32 %f1, %tid; st.shared.f32 [%r2], %f1;
         mov.f32 %f2, 0f3F000000; st.global.f32 [%mine], %f2; fence.proxy.async; bar.sync 0;
         @!%first bra END;
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%data], [%base], 512; cp.async.bulk.commit_group;
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%data], [%base], 256; cp.async.bulk.commit_group;
         cp.async.bulk.wait_group.read 1; cp.async.bulk.wait_group 0; END:",
        128,
        no_map,
    );
    for (word, &bits) in words[..128].iter().enumerate() {
        let times = if word < 64 { 2.0 } else { 1.0 };
        assert_eq!(f32::from_bits(bits), 0.5 + times * word as f32);
    }
}

/// Each word of the data is its number: the bits of a subnormal number.
#[test]
fn sums_of_plain_copies_flush_subnormal_numbers() {
    let words = run_clean(
        "@!%first bra END; mov.u32 %r1, 0x00800000; mov.u32 %r2, 0x80000005;
         st.shared.v4.b32 [%base], {%r1, %r2, %r1, %r2}; fence.proxy.async;
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%data+64], [%base], 16;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:",
        32,
        no_map,
    );
    assert_eq!(words[16..21], [0x0080_0000, 0, 0x0080_0000, 0, 20]);
}

/// `wait_group.read` says that shared memory may be written again, and no more.
#[test]
fn a_store_that_has_read_may_write_later() {
    let body = "@!%first bra END; mov.u32 %r1, 7777; st.shared.v4.b32 [%base], {%r1, %r1, %r1, %r1};
         fence.proxy.async; cp.async.bulk.global.shared::cta.bulk_group [%data+64], [%base], 16;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; st.shared.b32 [%base], 0;
         ld.global.b32 %r1, [%data+64]; st.global.b32 [%data+128], %r1; cp.async.bulk.wait_group 0;
         ld.global.b32 %r1, [%data+64]; st.global.b32 [%data+132], %r1; END:";
    for (schedule, early) in [(Schedule::Eager, 7777), (Schedule::Latest, 16)] {
        let options = Options { checks: Checks::none(), ..with_schedule(schedule) };
        let Outcome { words, report } = run_body(body, 32, no_map, &options);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!((words[32], words[33]), (early, 7777), "{schedule:?}");
    }
}

/// The second warp waits for a load; the third one then has 12,000 instructions to go, and says when it is done. A load
/// lands while it is waited for, but some, with some seeds, when nobody has anything else to do: what one warp can do
/// while another one waits is then all done.
#[test]
fn some_loads_land_when_nothing_else_can_happen() {
    let body = "@%first mbarrier.init.shared::cta.b64 [%base+8192], 1; @%first fence.mbarrier_init.release.cluster;
         @%first st.shared.v2.b32 [%base+8200], {0, 0};
         @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+8192], 16;
         @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%data], 16, [%base+8192];
         bar.sync 0; setp.ne.u32 %p2, %lane, 0; @%p2 bra END; setp.eq.u32 %p2, %warp, 0; @%p2 bra END;
         setp.eq.u32 %p2, %warp, 2; @%p2 bra SPIN;
         st.relaxed.cta.shared.b32 [%base+8200], 1;
         W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base+8192], 0; @!%p1 bra W;
         ld.relaxed.cta.shared.b32 %r1, [%base+8204]; st.global.b32 [%data+64], %r1; bra END;
         SPIN: ld.relaxed.cta.shared.b32 %r1, [%base+8200]; setp.eq.u32 %p1, %r1, 0; @%p1 bra SPIN; mov.u32 %r2, 0;
         LOOP: add.s32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 4000; @%p1 bra LOOP;
         st.relaxed.cta.shared.b32 [%base+8204], 1; END:";
    let is_late = |schedule| {
        let Outcome { words, report } = run_body(body, 96, no_map, &with_schedule(schedule));
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        words[16] == 1
    };
    assert!(!is_late(Schedule::Latest) && !is_late(Schedule::Eager));
    let late: Vec<u64> = (0..128).filter(|&seed| is_late(Schedule::Random(seed))).collect();
    assert!(!late.is_empty() && late.iter().all(|seed| seed % 4 == 3), "{late:?}");
}

/// More of them than are kept in mind, and none that is waited for to write: the end of the block does that.
#[test]
fn stores_that_nobody_waits_for_write_before_the_block_ends() {
    let body = "@!%first bra END; mov.u32 %r2, 0; mov.u64 %d1, %data;
         NEXT: st.shared.v4.b32 [%base], {%r2, %r2, %r2, %r2}; fence.proxy.async;
         cp.async.bulk.global.shared::cta.bulk_group [%d1], [%base], 16; cp.async.bulk.commit_group;
         cp.async.bulk.wait_group.read 0; add.s64 %d1, %d1, 16; add.s32 %r2, %r2, 1;
         setp.lt.u32 %p1, %r2, 40; @%p1 bra NEXT; END:";
    let words = run_clean(body, 32, no_map);
    (0..160).for_each(|word| assert_eq!(words[word], word as u32 / 4));
    assert_eq!(words[160], 160);
}
