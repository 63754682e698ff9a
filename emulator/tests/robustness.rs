//! No text makes the parser panic, and no program that parses makes the interpreter panic.

mod common;
use common::kernel;
use proptest::prelude::*;
use ptx_emulator::{Launch, Memory, Module, Options, Schedule, launch};

/// A program with a bit of everything.
const SEED: &str = "
.loc 1 10 5 // a.rs:10:5 @[ b.rs:1:2 ]
.shared .align 16 .b8 tile[256];
.local .align 8 .b8 depot[32];
mov.u32 %r1, tile; shl.b32 %r2, %tid, 2; add.s32 %r1, %r1, %r2; st.shared.b32 [%r1], %tid;
bar.sync 0; ld.shared.b32 %r3, [%r1]; setp.lt.and.u32 %p1|%p2, %r3, 7, !%p3; @%p1 bra LOW;
fma.rn.f32 %r4, %r3, 0f3F800000, %r2; bra JOIN;
LOW: cvt.rn.bf16x2.f32 %r4, %r3, %r2; mov.b32 {%h1, %h2}, %r4; mov.b64 {_, %r5}, %d1;
JOIN: shfl.sync.bfly.b32 %r5|%p4, %r4, 1, 31, -1; { .reg .b32 t; mov.b32 t, 5; add.s32 %r5, %r5, t; }
cp.async.ca.shared.global [%r1], [%mine], 4, %r5; cp.async.commit_group; cp.async.wait_group 0;
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r8, %r9, %r10, %r11}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%r8, %r9, %r10, %r11};
mov.u64 %d2, depot; st.local.v2.b32 [%d2+8], {%r1, %r2}; ld.local.b64 %d3, [%d2+8];
T: .branchtargets LOW, JOIN, END; and.b32 %r6, %r6, 3; @%p3 brx.idx %r6, T;
atom.global.add.u32 %r7, [%data+16], %r5; st.global.v2.b32 [%mine+128], {%r5, %r7};
END:";

/// A module with functions, and instructions that are rare.
const FUNCTIONS: &str = ".version 9.0
.target sm_90a
.address_size 64
.extern .func (.param .b32 ret) vprintf(.param .b64 a, .param .b64 b);
.global .align 8 .u64 table[2] = {twice, again};
.global .align 1 .b8 form[8] = {37, 100, 32, 37, 42, 115, 10, 0};
.func (.param .b32 ret) twice(.param .b32 a, .param .b32 b) { .reg .b32 %r<4>; ld.param.b32 %r1, [a];
ld.param.b32 %r2, [b]; add.s32 %r3, %r1, %r2; st.param.b32 [ret], %r3; ret; }
.func (.param .b32 ret) again(.param .b32 a, .param .b32 b) { .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<4>;
.local .align 8 .b8 kept[16]; mov.u64 %d1, kept; ld.param.b32 %r1, [a]; ld.param.b32 %r2, [b];
st.local.b32 [%d1+8], %r1; setp.lt.s32 %p1, %r1, 3; mov.b32 %r3, %r1; @%p1 bra OUT; sub.s32 %r4, %r1, 1;
{ .param .b32 x; st.param.b32 [x], %r4; .param .b32 y; st.param.b32 [y], %r2; .param .b32 z;
call (z), again, (x, y); ld.param.b32 %r5, [z]; } ld.local.b32 %r6, [%d1+8]; add.s32 %r3, %r5, %r6;
OUT: st.param.b32 [ret], %r3; ret; }
.visible .entry k(.param .u64 data) { .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<24>; .reg .b64 %d<16>;
.reg .f64 %g<8>; .reg .b128 %q<4>; .shared .align 128 .b8 room[256]; ld.param.u64 %d1, [data]; mov.u32 %r1, %tid.x;
and.b32 %r2, %r1, 7; mul.wide.u32 %d2, %r1, 16; add.s64 %d2, %d2, %d1; mov.u32 %r20, room;
{ .param .b32 x; st.param.b32 [x], %r2; .param .b32 y; st.param.b32 [y], %r1; .param .b32 z;
call.uni (z), again, (x, y); ld.param.b32 %r3, [z]; } and.b32 %r4, %r1, 1; mul.wide.u32 %d3, %r4, 8;
mov.u64 %d4, table; add.s64 %d4, %d4, %d3; ld.global.b64 %d5, [%d4]; P: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
{ .param .b32 x; st.param.b32 [x], %r2; .param .b32 y; st.param.b32 [y], %r1; .param .b32 z;
call (z), %d5, (x, y), P; ld.param.b32 %r5, [z]; } stacksave.u64 %d6; alloca.u64 %d7, 24; st.local.b32 [%d7], %r1;
stackrestore.u64 %d6; atom.global.add.v4.f32 {%r6, %r7, %r8, %r9}, [%d2], {%r1, %r2, %r3, %r4};
atom.global.exch.b128 %q1, [%d2], %q2; vadd4.s32.s32.u32.add %r10, %r1, %r2, %r3; fns.b32 %r11, %r1, %r2, 1;
set.gtu.f16x2.f16x2 %r12, %r1, %r2; cvt.rn.satfinite.e4m3x2.f32 %h1, %r3, %r4; testp.normal.f32 %p1, %r5;
mma.sync.aligned.m16n8k64.row.col.satfinite.s32.s4.u4.s32 {%r5, %r6, %r7, %r8}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r1, %r2};
mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r5, %r6}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2};
{ .param .b64 x; mov.u64 %d8, form; st.param.b64 [x], %d8; .param .b64 y; st.param.b64 [y], %d7; .param .b32 z;
call (z), vprintf, (x, y); } tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r20], %r1; ret; }
";

fn run(text: &str, schedule: Schedule) {
    let Ok(module) = Module::parse(text) else { return };
    for kernel in module.kernels() {
        let memory = Memory::new();
        let data = memory.allocate(4096);
        let mut params = vec![0; kernel.parameter_bytes()];
        if let Some(first) = params.get_mut(..8) {
            first.copy_from_slice(&data.to_le_bytes());
        }
        let shape = Launch { shared_bytes: 128, ..Launch::new([2, 1, 1], [40, 1, 1], &params) };
        let options = Options { schedule, step_limit: Some(20_000), ..Options::default() };
        let _ = launch(kernel, &memory, &shape, &options);
    }
}

/// Texts of each kind; more with `PTX_FUZZ`.
fn cases() -> u32 {
    std::env::var("PTX_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(3000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text(text in "\\PC*") {
        let _ = Module::parse(&text);
    }

    #[test]
    fn arbitrary_bodies(text in "[a-z0-9%@{}\\[\\].,;:+_ !|<>=\\-\n]{0,200}") {
        run(&kernel(&text), Schedule::Latest);
    }

    #[test]
    fn cut_and_spliced_programs(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..30), 1..6),
        seed in any::<u64>(),
    ) {
        let mut text = kernel(SEED);
        for (from, to, length) in edits {
            let from = from.index(text.len());
            let piece: String = text.chars().skip(from).take(length).collect();
            let to = to.index(text.len());
            match length % 3 {
                0 => text.insert_str(to, &piece),
                1 => { text.replace_range(to..(to + length).min(text.len()), &piece); }
                _ => { text.drain(to..(to + length).min(text.len())); }
            }
        }
        run(&text, Schedule::Random(seed));
    }

    #[test]
    fn cut_and_spliced_functions(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..40), 1..5),
        seed in any::<u64>(),
    ) {
        let mut text = FUNCTIONS.to_string();
        for (from, to, length) in edits {
            let piece: String = text.chars().skip(from.index(text.len())).take(length).collect();
            let to = to.index(text.len());
            match length % 3 {
                0 => text.insert_str(to, &piece),
                1 => { text.replace_range(to..(to + length).min(text.len()), &piece); }
                _ => { text.drain(to..(to + length).min(text.len())); }
            }
        }
        run(&text, Schedule::Random(seed));
    }

    #[test]
    fn exchanged_words(
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8),
        seed in any::<u64>(),
    ) {
        let text = kernel(SEED);
        let mut words: Vec<&str> = text.split_inclusive([' ', ',', ';', '\n']).collect();
        for (a, b) in swaps {
            let (a, b) = (a.index(words.len()), b.index(words.len()));
            words.swap(a, b);
        }
        run(&words.concat(), Schedule::Random(seed));
    }
}

#[test]
fn the_seed_program_itself_runs() {
    let module = Module::parse(&kernel(SEED)).unwrap();
    assert_eq!(module.kernel("k").unwrap().unsupported(), []);
    let module = Module::parse(FUNCTIONS).unwrap();
    assert_eq!(module.kernel("k").unwrap().error(), None);
}
