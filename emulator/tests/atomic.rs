//! Atomic operations, alone and among blocks in parallel.

mod common;
use common::{HEAD, kernel, run_body, run_clean, run_with, words};
use ptx_emulator::{Memory, Options, Schedule};

#[test]
fn each_operation_on_global_and_shared_memory() {
    let cases: [(&str, u32, u32); 12] = [
        ("add.u32", 100, 100 + 496),
        ("add.s32", u32::MAX, 495),
        ("exch.b32", 5, 31),
        ("min.u32", 7, 0),
        ("min.s32", -7i32 as u32, -7i32 as u32),
        ("max.u32", 7, 31),
        ("max.s32", -7i32 as u32, 31),
        ("and.b32", 0xffff, 0),
        ("or.b32", 64, 95),
        ("xor.b32", 9, 9),
        ("inc.u32", 3, 0),
        ("add.f32", 0, 0),
    ];
    for (operation, start, want) in cases {
        for space in ["global", "shared"] {
            let place = if space == "global" { "%data" } else { "dynamic" };
            let operand = if operation == "inc.u32" { "6" } else { "%tid" };
            let words = run_clean(
                &format!(
                    "setp.eq.u32 %p1, %tid, 0; @%p1 st.{space}.b32 [{place}], {start}; bar.sync 0;
                     atom.{space}.{operation} %r1, [{place}], {operand}; bar.sync 0;
                     ld.{space}.b32 %r2, [{place}]; st.global.b32 [%data+4], %r2;"
                ),
                32,
            );
            // 32 increments from 3 wrapping behind 6: (3 + 32) mod 7.
            let want = if operation == "add.f32" { words[1] } else { want };
            assert_eq!(words[1], want, "{space} {operation}");
        }
    }
}

#[test]
fn old_values_are_handed_out_in_lane_order() {
    let words = run_clean("atom.global.add.u32 %r1, [%data+2048], 3; st.global.b32 [%mine], %r1;", 32);
    (0..32).for_each(|lane| assert_eq!(words[lane], 3 * lane as u32));
}

#[test]
fn compare_and_swap_builds_a_lock() {
    for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Random(5)] {
        let memory = Memory::new();
        let data = memory.allocate(4096);
        memory.write(data, &[0; 4096]).unwrap();
        // Lanes of one warp spin for each other: the lock needs them to run independently.
        let body = "SPIN: atom.global.cas.b32 %r1, [%data], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra SPIN;
             ld.volatile.global.b32 %r2, [%data+4]; add.s32 %r2, %r2, 1; st.volatile.global.b32 [%data+4], %r2;
             membar.gl; atom.global.exch.b32 %r3, [%data], 0;";
        let options = Options { schedule, threads: 2, ..Options::default() };
        let report = run_with(&kernel(body), &memory, 3, 64, 0, &data.to_le_bytes(), &options);
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(words(&memory, data, 2), [0, 192]);
    }
}

/// The first block waits until each of the others has counted itself. The blocks come in the order of their
/// numbers: the first cannot end before the last has begun.
fn wait_for_later_blocks(counter: &str) -> String {
    format!(
        "mov.u32 %r1, %ctaid.x; mov.u32 %tid, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra LATER;
         setp.ne.u32 %p1, %tid, 0; @%p1 bra MEET;
         SPIN: ld.acquire.gpu.global.b32 %r2, [{counter}]; setp.ne.u32 %p1, %r2, 3; @%p1 bra SPIN;
         MEET: bar.sync 0; bra END;
         LATER: setp.eq.u32 %p1, %tid, 0; @%p1 red.release.gpu.global.add.u32 [{counter}], 1;
         END:"
    )
}

/// Runs it with the counter at 0, its address a parameter if it takes one; nobody may wait for long.
fn waits_shortly(ptx: &str) {
    for (schedule, threads) in [(Schedule::Eager, 1), (Schedule::Latest, 1), (Schedule::Random(5), 3)] {
        let memory = Memory::new();
        let data = memory.allocate(4096);
        memory.write(data, &[0; 4096]).unwrap();
        let address = data.to_le_bytes();
        let params: &[u8] = if ptx.contains(".param") { &address } else { &[] };
        let options = Options { schedule, threads, ..Options::default() };
        let report = run_with(ptx, &memory, 4, 64, 0, params, &options);
        assert!(report.is_clean(), "{}", report.findings[0]);
        if threads == 1 {
            assert!(report.statistics.warp_instructions < 2000, "{:?}", report.statistics);
        }
    }
}

#[test]
fn a_block_that_waits_for_a_later_one_lets_it_run_at_once() {
    waits_shortly(&kernel(&wait_for_later_blocks("%data")));
}

/// Its place in the operand lists is 0, which elsewhere stands for a result that nobody wants.
#[test]
fn the_first_load_of_a_kernel_may_be_one_that_waits() {
    waits_shortly(&format!(
        "{HEAD}.global .align 4 .b32 counter = 0; .visible .entry k() {{
         .reg .pred %p<2>; .reg .b32 %r<3>, %tid; {} ret; }}",
        wait_for_later_blocks("counter")
    ));
}

#[test]
fn floats_and_64_bits() {
    let words = run_clean(
        "cvt.rn.f32.u32 %r1, %tid; red.global.add.f32 [%data], %r1;
         cvt.u64.u32 %d1, %tid; red.relaxed.gpu.global.add.u64 [%data+8], %d1;
         mov.b32 %r2, 0x3C003C00; red.global.add.noftz.f16x2 [%data+16], %r2;
         mov.b32 %r3, 0x3F803F80; red.global.add.noftz.bf16x2 [%data+20], %r3;
         cvt.rn.f64.u32 %d2, %tid; atom.global.add.f64 %d3, [%data+24], %d2;
         atom.max.u64 %d4, [%data+32], %d1;",
        32,
    );
    assert_eq!(f32::from_bits(words[0]), 496.0);
    assert_eq!((words[2], words[3]), (496, 0));
    assert_eq!(words[4], 0x5000_5000);
    assert_eq!(words[5], 0x4200_4200);
    assert_eq!(f64::from_bits(u64::from(words[7]) << 32 | u64::from(words[6])), 496.0);
    assert_eq!(words[8], 31);
}

#[test]
fn blocks_in_parallel_lose_no_addition() {
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let body = "mov.b32 %r1, 0; AGAIN: red.global.add.u32 [%data], 1; add.s32 %r1, %r1, 1;
                setp.lt.u32 %p1, %r1, 50; @%p1 bra AGAIN;";
    let options = Options { threads: 4, ..Options::default() };
    let report = run_with(&kernel(body), &memory, 16, 64, 0, &data.to_le_bytes(), &options);
    assert!(report.is_clean());
    assert_eq!(words(&memory, data, 1), [16 * 64 * 50]);
}

/// What a 16-bit register has beyond its bits, here from a product of 16-bit values in a 32-bit one, is not
/// compared.
#[test]
fn compare_and_swap_of_16_bits_looks_at_16_bits() {
    let words = run_clean(
        "mov.b32 %r1, 0x1234ABCD; mov.b32 %r2, 0x56780007;
         setp.eq.u32 %p1, %tid, 0; @%p1 st.global.b32 [%data], 0x0000ABCD; bar.sync 0;
         @!%p1 bra END; atom.global.cas.b16 %h1, [%data], %r1, %r2; cvt.u32.u16 %r3, %h1;
         st.global.b32 [%data+4], %r3; END:",
        32,
    );
    assert_eq!(words[..2], [7, 0xabcd]);
}

#[test]
fn sums_flush_subnormal_numbers_in_global_memory_only() {
    let small = 1e-40f32.to_bits();
    let normal = f32::MIN_POSITIVE.to_bits();
    let almost = (f32::MIN_POSITIVE * 1.5).to_bits();
    // What is there, what is added, and the sums in global and in shared memory.
    let cases = [
        (small, small, 0, (1e-40f32 + 1e-40).to_bits()),
        (small | 1 << 31, 1 << 31, 1 << 31, small | 1 << 31),
        (almost, normal | 1 << 31, 0, (f32::MIN_POSITIVE * 0.5).to_bits()),
        (normal, small, normal, (f32::MIN_POSITIVE + 1e-40).to_bits()),
    ];
    for (before, operand, global, shared) in cases {
        for operation in ["red", "atom"] {
            let old = if operation == "atom" { "%r1, " } else { "" };
            let words = run_clean(
                &format!(
                    "setp.eq.u32 %p1, %tid, 0; @!%p1 bra END;
                     st.global.b32 [%data], {before}; st.shared.b32 [dynamic], {before};
                     st.global.b32 [%data+8], {before};
                     {operation}.global.add.f32 {old}[%data], {operand};
                     {operation}.shared.add.f32 {old}[dynamic], {operand};
                     {operation}.add.f32 {old}[%data+8], {operand};
                     ld.shared.b32 %r2, [dynamic]; st.global.b32 [%data+4], %r2; END:"
                ),
                32,
            );
            assert_eq!(words[..3], [global, shared, global], "{before:#x} + {operand:#x}");
        }
    }
}

/// Sums of two and four f32, of 40 lanes each at one of two places; odd lanes do nothing.
#[test]
fn vectors_are_added_element_by_element() {
    for count in [2, 4] {
        let registers = ["%r1", "%r2", "%r3", "%r4"][..count].join(", ");
        let words = run_clean(
            &format!(
                "mov.b32 %r1, 0f3F800000; mov.b32 %r2, 0f40000000; mov.b32 %r3, 0f40800000; mov.b32 %r4, 0fC1000000;
                 and.b32 %r5, %tid, 1; setp.eq.u32 %p1, %r5, 0; and.b32 %r6, %tid, 2; mul.wide.u32 %d2, %r6, 8;
                 mov.b64 %d1, %data; add.s64 %d1, %d1, %d2;
                 @%p1 red.global.add.v{count}.f32 [%d1+2048], {{{registers}}};
                 bar.sync 0; setp.lt.u32 %p2, %tid, 8; mul.wide.u32 %d3, %tid, 4; mov.b64 %d1, %data;
                 add.s64 %d1, %d1, %d3; @%p2 ld.global.b32 %r7, [%d1+2048]; @%p2 st.global.b32 [%mine], %r7;"
            ),
            40,
        );
        let sums: Vec<f32> = words[..8].iter().map(|&word| f32::from_bits(word)).collect();
        let mut want = [10.0, 20.0, 40.0, -80.0];
        want[count..].fill(0.0);
        for (place, sum) in sums.iter().enumerate() {
            assert_eq!(*sum, want[place % 4], "{count} {place}: {sums:?}");
        }
    }
}

#[test]
fn a_vector_of_sums_is_aligned_to_its_size() {
    let body = "mov.b32 %r1, 0; red.global.add.v4.f32 [%data+8], {%r1, %r1, %r1, %r1};";
    let outcome = run_body(body, 1, &Options::default());
    let text = format!("{:?}", outcome.report.findings);
    assert!(text.contains("isaligned"), "{text}");
}
