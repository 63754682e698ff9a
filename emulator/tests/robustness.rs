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

fn run(text: &str, schedule: Schedule) {
    let Ok(module) = Module::parse(text) else { return };
    for kernel in module.kernels() {
        let memory = Memory::new();
        let data = memory.allocate(4096);
        let mut params = vec![0; kernel.parameter_bytes()];
        if let Some(first) = params.get_mut(..8) {
            first.copy_from_slice(&data.to_le_bytes());
        }
        let shape = Launch {
            grid: [2, 1, 1],
            block: [40, 1, 1],
            shared_bytes: 128,
            regions: &[],
            params: &params,
        };
        let options = Options { schedule, step_limit: Some(20_000), ..Options::default() };
        let _ = launch(kernel, &memory, &shape, &options);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

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
}
