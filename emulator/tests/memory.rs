//! Loads and stores of every width and space that do what they should.

mod common;
use common::{HEAD, run_body, run_clean, run_with, words};
use ptx_emulator::{Checks, Memory, Module, Options};

#[test]
fn widths_extend_as_their_types_say() {
    let words = run_clean(
        "mov.b32 %r1, 0xFFFE8182; st.global.b32 [%mine+2048], %r1;
         ld.global.u8 %r2, [%mine+2048]; ld.global.s8 %r3, [%mine+2049]; ld.global.u16 %r4, [%mine+2050];
         ld.global.s16 %r5, [%mine+2050]; ld.global.b8 %h1, [%mine+2048]; cvt.u32.u16 %r6, %h1;
         add.s32 %r7, %r2, %r3; add.s32 %r7, %r7, %r4; add.s32 %r7, %r7, %r5; add.s32 %r7, %r7, %r6;
         st.global.b32 [%mine], %r7;",
        32,
    );
    let want = 0x82i32 - 0x7f + 0xfffe - 2 + 0x82;
    assert_eq!(words[..32], [want as u32; 32]);
}

#[test]
fn narrow_loads_fill_wide_registers() {
    let words = run_clean(
        "st.global.b32 [%mine+2048], -2;
         ld.global.s32 %d1, [%mine+2048]; ld.global.u8 %d2, [%mine+2048]; ld.global.s16 %d3, [%mine+2048];
         add.s64 %d4, %d1, %d2; add.s64 %d4, %d4, %d3; shr.s64 %d5, %d4, 4; cvt.u32.u64 %r1, %d5;
         st.global.b32 [%mine], %r1;",
        32,
    );
    assert_eq!(words[..32], [((-2 + 254 - 2i64) >> 4) as u32; 32]);
}

#[test]
fn narrow_stores_take_the_low_bytes_of_wide_registers() {
    let words = run_clean(
        "cvt.u64.u32 %d1, %tid; add.s64 %d1, %d1, 0x1234500000000; add.s64 %d2, %d1, 0x20000;
         st.global.b32 [%mine], %d1; st.global.b8 [%mine+2], %d2; st.global.u16 [%mine+2048], %d2;",
        32,
    );
    for lane in 0..32 {
        assert_eq!((words[lane], words[512 + lane]), (lane as u32 | (lane as u32) << 16, lane as u32));
    }
}

#[test]
fn vectors_move_whole() {
    for space in ["global", "shared"] {
        let base = if space == "global" { "%data" } else { "%d9" };
        let words = run_clean(
            &format!(
                "mov.b64 %d9, dynamic;
                mul.wide.u32 %d1, %tid, 16; add.s64 %d2, %d1, {base};
                mul.wide.u32 %d4, %tid, 8; add.s64 %d5, %d4, %data;
                add.s32 %r1, %tid, 1; add.s32 %r2, %tid, 2; add.s32 %r3, %tid, 3;
                st.{space}.v4.b32 [%d2], {{%tid, %r1, %r2, %r3}};
                ld.{space}.v2.b64 {{%d6, %d7}}, [%d2];
                ld.{space}.v2.u16 {{%h1, %h2}}, [%d2+8];
                mov.b32 %r4, {{%h1, %h2}};
                cvt.u32.u64 %r5, %d6; cvt.u32.u64 %r6, %d7; add.s32 %r7, %r5, %r6; add.s32 %r7, %r7, %r4;
                st.global.v2.b32 [%d5+1024], {{%r7, %r2}};"
            ),
            32,
        );
        for thread in 0..32 {
            assert_eq!(words[256 + 2 * thread], 3 * thread as u32 + 4);
            assert_eq!(words[257 + 2 * thread], thread as u32 + 2);
        }
    }
}

#[test]
fn generic_addresses_reach_every_space() {
    let words = run_clean(
        ".local .align 8 .b8 depot[16];
         mov.u64 %d1, dynamic; cvta.shared.u64 %d2, %d1; mul.wide.u32 %d3, %tid, 4; add.s64 %d2, %d2, %d3;
         mov.u64 %d4, depot; cvta.local.u64 %d5, %d4;
         add.s32 %r1, %tid, 5; add.s32 %r2, %tid, 7;
         st.b32 [%d2], %r1; st.b32 [%d5+4], %r2;
         setp.lt.u32 %p1, %tid, 16; selp.b64 %d6, %d2, %d5, %p1; add.s64 %d7, %d5, 4;
         selp.b64 %d6, %d2, %d7, %p1;
         ld.b32 %r3, [%d6];
         cvta.to.shared.u64 %d8, %d2; cvt.u32.u64 %r4, %d8; ld.shared.b32 %r5, [%r4];
         isspacep.shared %p2, %d2; isspacep.local %p3, %d5; isspacep.global %p4, %data; isspacep.shared %p5, %d5;
         selp.b32 %r6, 1, 0, %p2; @%p3 add.s32 %r6, %r6, 2; @%p4 add.s32 %r6, %r6, 4; @%p5 add.s32 %r6, %r6, 8;
         mad.lo.s32 %r3, %r5, 100, %r3; mad.lo.s32 %r3, %r6, 10000, %r3;
         st.b32 [%mine], %r3;",
        32,
    );
    for thread in 0..32u32 {
        let loaded = if thread < 16 { thread + 5 } else { thread + 7 };
        assert_eq!(words[thread as usize], loaded + (thread + 5) * 100 + 70000);
    }
}

#[test]
fn parameters_are_read_by_name_and_by_address() {
    let ptx = format!(
        "{HEAD}.visible .entry k(.param .align 8 .b8 all[24], .param .u16 small, .param .f32 last) {{
         .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .b16 %h<2>;
         ld.param.b64 %d1, [all]; ld.param.v2.b32 {{%r1, %r2}}, [all+8]; mov.b64 %d2, all;
         ld.param.b32 %r3, [%d2+16]; ld.param.b16 %h1, [small]; cvt.u32.u16 %r4, %h1;
         ld.param.f32 %r5, [last]; cvta.param.u64 %d3, %d2; ld.b32 %r6, [%d3+20];
         st.global.v4.b32 [%d1], {{%r1, %r2, %r3, %r4}}; st.global.v2.b32 [%d1+16], {{%r5, %r6}}; ret; }}"
    );
    let module = Module::parse(&ptx).unwrap();
    let kernel = module.kernel("k").unwrap();
    assert_eq!(kernel.parameter_bytes(), 32);
    assert_eq!(kernel.parameters()[2].offset, 28);
    let memory = Memory::new();
    let data = memory.allocate(64);
    let mut params = data.to_le_bytes().to_vec();
    for word in [1u32, 2, 3, 4] {
        params.extend(word.to_le_bytes());
    }
    params.extend(5u32.to_le_bytes());
    params.extend(6u32.to_le_bytes());
    let report = run_with(&ptx, &memory, 1, 1, 0, &params, &Options::default());
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(words(&memory, data, 6), [1, 2, 3, 5, 6, 4]);
}

#[test]
fn module_variables_keep_their_values_between_launches() {
    let ptx = format!(
        "{HEAD}.visible .global .align 4 .b32 counter = 7;
         .const .align 4 .b32 table[4] = {{10, 20, 0f3F800000, -1}};
         .global .align 8 .u64 pointer = generic(counter);
         .visible .entry k(.param .u64 out) {{ .reg .b64 %d<8>; .reg .b32 %r<8>;
         ld.param.u64 %d1, [out]; ld.global.b32 %r1, [counter]; add.s32 %r1, %r1, 1;
         ld.global.u64 %d2, [pointer]; st.b32 [%d2], %r1;
         ld.const.b32 %r2, [table+4]; mov.u64 %d3, table; ld.const.b32 %r3, [%d3+12];
         st.global.b32 [%d1], %r1; st.global.v2.b32 [%d1+8], {{%r2, %r3}}; ret; }}"
    );
    let module = Module::parse(&ptx).unwrap();
    let memory = Memory::new();
    let out = memory.allocate(16);
    let params = out.to_le_bytes();
    let shape = ptx_emulator::Launch::new([1; 3], [1; 3], &params);
    for want in [8, 9, 10] {
        let kernel = module.kernel("k").unwrap();
        let report = ptx_emulator::launch(kernel, &memory, &shape, &Options::default()).unwrap();
        assert!(report.is_clean(), "{}", report.findings[0]);
        let got = words(&memory, out, 4);
        assert_eq!((got[0], got[2], got[3]), (want, 20, u32::MAX));
    }
}

#[test]
fn static_and_dynamic_shared_memory_do_not_overlap() {
    let words = run_clean(
        ".shared .align 4 .b8 first[128]; .shared .align 16 .b8 second[256];
         shl.b32 %r1, %tid, 2; mov.u32 %r2, first; add.s32 %r2, %r2, %r1; mov.u32 %r3, second;
         add.s32 %r3, %r3, %r1; mov.u32 %r4, dynamic; add.s32 %r4, %r4, %r1;
         st.shared.b32 [%r2], 1; st.shared.b32 [%r3], 20; st.shared.b32 [%r4], 300;
         bar.warp.sync 0xffffffff; st.shared.b32 [first], 1;
         bar.sync 0;
         ld.shared.b32 %r5, [%r2]; ld.shared.b32 %r6, [%r3]; ld.shared.b32 %r7, [%r4];
         add.s32 %r5, %r5, %r6; add.s32 %r5, %r5, %r7; st.global.b32 [%mine], %r5;",
        32,
    );
    assert_eq!(words[..32], [321; 32]);
}

#[test]
fn local_memory_belongs_to_each_thread() {
    let words = run_clean(
        ".local .align 16 .b8 __local_depot0[48]; .reg .b64 %SP, %SPL;
         mov.u64 %SPL, __local_depot0; cvta.local.u64 %SP, %SPL;
         add.u64 %d1, %SPL, 16; and.b32 %r1, %tid, 3; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
         st.local.b32 [%d1], 0; st.local.b32 [%d1+4], 1; st.local.b32 [%d1+8], 2; st.local.b32 [%d1+12], 3;
         mad.lo.s32 %r2, %tid, 10, 5; st.local.b32 [%d3], %r2;
         ld.local.v4.b32 {%r3, %r4, %r5, %r6}, [%SPL+16];
         add.s32 %r3, %r3, %r4; add.s32 %r3, %r3, %r5; add.s32 %r3, %r3, %r6; st.global.b32 [%mine], %r3;",
        64,
    );
    (0..64u32).for_each(|thread| assert_eq!(words[thread as usize], 6 - thread % 4 + thread * 10 + 5));
}

#[test]
fn stores_count_as_initialisation_even_unchecked() {
    let memory = Memory::new();
    let data = memory.allocate(256);
    let unchecked = Options { checks: Checks::none(), ..Options::default() };
    let store = common::kernel("st.global.b32 [%mine], 1;");
    let report = run_with(&store, &memory, 1, 32, 0, &data.to_le_bytes(), &unchecked);
    assert!(report.is_clean());
    assert!(memory.is_initialised(data, 128).unwrap());
    assert!(!memory.is_initialised(data, 129).unwrap());
}

#[test]
fn blocks_see_their_coordinates_in_three_dimensions() {
    let ptx = format!(
        "{HEAD}.visible .entry k(.param .u64 data) {{ .reg .b32 %r<20>; .reg .b64 %d<4>;
         ld.param.u64 %d1, [data];
         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
         mov.u32 %r4, %tid.x; mov.u32 %r5, %tid.y; mov.u32 %r6, %tid.z;
         mov.u32 %r7, %nctaid.x; mov.u32 %r8, %nctaid.y; mov.u32 %r9, %ntid.x; mov.u32 %r10, %ntid.y;
         mov.u32 %r12, %ntid.z;
         mad.lo.s32 %r11, %r3, %r8, %r2; mad.lo.s32 %r11, %r11, %r7, %r1; mad.lo.s32 %r11, %r11, %r12, %r6;
         mad.lo.s32 %r11, %r11, %r10, %r5; mad.lo.s32 %r11, %r11, %r9, %r4;
         mul.wide.u32 %d2, %r11, 4; add.s64 %d3, %d1, %d2; st.global.b32 [%d3], %r11; ret; }}"
    );
    let module = Module::parse(&ptx).unwrap();
    for threads in [1, 3] {
        let memory = Memory::new();
        let count = 2 * 3 * 2 * 5 * 3 * 4;
        let data = memory.allocate(4 * count);
        let params = data.to_le_bytes();
        let shape = ptx_emulator::Launch::new([2, 3, 2], [5, 3, 4], &params);
        let options = Options { threads, ..Options::default() };
        let report =
            ptx_emulator::launch(module.kernel("k").unwrap(), &memory, &shape, &options).unwrap();
        assert!(report.is_clean());
        assert_eq!(report.statistics.blocks, 12);
        assert_eq!(words(&memory, data, count), (0..count as u32).collect::<Vec<_>>());
    }
}

#[test]
fn a_block_need_not_be_whole_warps() {
    let outcome = run_body("st.global.b32 [%mine], 1;", 37, &Options::default());
    assert!(outcome.report.is_clean());
    assert_eq!(outcome.words.iter().sum::<u32>(), 37);
}

/// The policy is an operand that no value depends on.
#[test]
fn cache_policies_are_taken_and_ignored() {
    let words = run_clean(
        "createpolicy.fractional.L2::evict_first.b64 %d9, 1.0;
         mov.b32 %r1, 5; mov.b32 %r2, 6;
         st.global.L1::no_allocate.L2::cache_hint.v2.b32 [%mine], {%r1, %r2}, %d9;
         ld.global.nc.L1::evict_last.L2::cache_hint.L2::128B.b32 %r3, [%data+2048], %d9; add.u32 %r3, %r3, %r2;
         mov.b32 %r4, dynamic; shl.b32 %r5, %tid, 4; add.s32 %r4, %r4, %r5;
         mul.wide.u32 %d1, %tid, 16; add.s64 %d1, %d1, %data;
         cp.async.cg.shared.global.L2::cache_hint [%r4], [%d1], 16, %d9; mov.b32 %r7, 4; cp.async.wait_all;
         cp.async.ca.shared.global.L2::cache_hint.L2::128B [%r4], [%d1], 8, %r7, %d9;
         cp.async.wait_all; ld.shared.v2.b32 {%r8, %r9}, [%r4];
         red.global.add.L2::cache_hint.u32 [%data+1024], %r3, %d9;
         atom.global.add.L2::cache_hint.u32 %r6, [%data+1028], %r8, %d9;
         atom.global.cas.L2::cache_hint.b32 %r6, [%data+1032], 0, %r9, %d9;",
        1,
    );
    assert_eq!((words[0], words[1]), (5, 6));
    assert_eq!((words[256], words[257], words[258]), (6, 5, 0));
}

/// Some compilers take a parameter's address in 32 bits.
#[test]
fn parameters_are_read_by_addresses_of_either_width() {
    let ptx = format!(
        "{HEAD}.visible .entry k(.param .u64 data, .param .align 64 .b8 all[64]) {{
         .reg .b64 %d<8>; .reg .b32 %r<8>;
         ld.param.b64 %d1, [data]; mov.b32 %r1, all; cvt.u64.u32 %d2, %r1; cvta.param.u64 %d3, %d2;
         ld.b32 %r2, [%d3+4]; ld.param.b32 %r3, [%r1+8]; ld.param.b32 %r4, [%d2+12];
         mov.b64 %d4, all; cvta.param.u64 %d5, %d4; ld.b32 %r5, [%d5+16]; cvta.to.param.u64 %d6, %d5;
         ld.param.b32 %r6, [%d6+20]; mov.b32 %r7, data; ld.param.b64 %d7, [%r7];
         st.global.v4.b32 [%d1], {{%r2, %r3, %r4, %r5}}; st.global.b32 [%d7+16], %r6; ret; }}"
    );
    let memory = Memory::new();
    let data = memory.allocate(32);
    let mut params = vec![0; 64];
    params[..8].copy_from_slice(&data.to_le_bytes());
    (0..16u32).for_each(|word| params.extend(word.to_le_bytes()));
    let report = run_with(&ptx, &memory, 1, 1, 0, &params, &Options::default());
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(words(&memory, data, 5), [1, 2, 3, 4, 5]);
    // Behind the end it is as wrong in the space's own addresses.
    let ptx = ptx.replace("[%r1+8]", "[%r1+64]");
    let report = run_with(&ptx, &memory, 1, 1, 0, &params, &Options::default());
    let kind = ptx_emulator::FindingKind::OutOfBounds { space: ptx_emulator::Space::Param };
    assert!(report.findings.iter().any(|finding| finding.kind == kind), "{:?}", report.findings);
}
