//! How fast the emulator runs: warp instructions per second, with and without checks.
//!
//! `PTX_EMULATOR_BENCH_PTX=path` adds parsing of that module.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ptx_emulator::{Checks, Launch, Memory, Module, Options, launch};
use std::hint::black_box;

/// A loop of integer and float arithmetic, comparisons and selections.
const SCALAR: &str = "
.version 7.8
.target sm_80
.address_size 64
.visible .entry scalar(.param .u64 out, .param .u32 rounds) {
    .reg .pred %p<4>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %r3, %r2;
    mov.b32 %r4, 0f3F800000;
    mov.b32 %r5, 0;
    mov.b32 %r6, 1;
LOOP:
    add.s32 %r7, %r2, %r6;
    mul.lo.s32 %r8, %r7, %r6;
    xor.b32 %r6, %r8, %r2;
    shl.b32 %r9, %r6, 3;
    shr.u32 %r10, %r9, 5;
    and.b32 %r11, %r10, 255;
    fma.rn.f32 %r4, %r3, %r4, %r3;
    mul.f32 %r12, %r4, 0f3F000000;
    sub.f32 %r4, %r12, %r3;
    max.f32 %r13, %r4, %r12;
    setp.gt.f32 %p1, %r13, %r3;
    selp.f32 %r4, %r3, %r12, %p1;
    mul.wide.u32 %rd2, %r11, 4;
    add.s64 %rd3, %rd2, %rd1;
    or.b32 %r14, %r11, %r9;
    min.s32 %r15, %r14, %r10;
    mad.lo.s32 %r6, %r15, %r11, %r6;
    add.s32 %r5, %r5, 1;
    setp.ne.u32 %p2, %r5, %r1;
    @%p2 bra LOOP;
    add.s32 %r16, %r6, %r4;
    mul.wide.u32 %rd4, %r2, 4;
    add.s64 %rd5, %rd1, %rd4;
    st.global.b32 [%rd5], %r16;
    ret;
}";

/// A loop of loads and stores, global and shared, around a little arithmetic.
const MEMORY: &str = "
.version 7.8
.target sm_80
.address_size 64
.visible .entry memory(.param .u64 out, .param .u32 rounds) {
    .reg .pred %p<4>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 tile[4096];
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r3, tile;
    shl.b32 %r4, %r2, 2;
    add.s32 %r5, %r3, %r4;
    shl.b32 %r6, %r2, 4;
    add.s32 %r7, %r3, %r6;
    mov.b32 %r8, 0;
    st.global.b32 [%rd3], %r2;
LOOP:
    ld.global.b32 %r9, [%rd3];
    add.s32 %r10, %r9, %r8;
    st.shared.b32 [%r5+2048], %r10;
    ld.shared.b32 %r11, [%r5+2048];
    st.shared.v4.b32 [%r7], {%r9, %r10, %r11, %r8};
    ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r7];
    add.s32 %r16, %r12, %r13;
    xor.b32 %r17, %r16, %r14;
    add.s32 %r18, %r17, %r15;
    st.global.b32 [%rd3], %r18;
    add.s32 %r8, %r8, 1;
    setp.ne.u32 %p2, %r8, %r1;
    @%p2 bra LOOP;
    ret;
}";

fn kernel(criterion: &mut Criterion, name: &str, ptx: &str, threads: u32, rounds: u32) {
    let module = Module::parse(ptx).expect("the text above");
    let kernel = module.kernels().next().expect("one kernel");
    let memory = Memory::new();
    let out = memory.allocate(4096);
    let params = [&out.to_le_bytes()[..], &rounds.to_le_bytes()[..]].concat();
    let params = [&params[..], &vec![0; kernel.parameter_bytes() - params.len()][..]].concat();
    let shape = Launch::new([1; 3], [threads, 1, 1], &params);
    let mut group = criterion.benchmark_group(name);
    for (label, checks) in [("unchecked", Checks::none()), ("checked", Checks::all())] {
        let options = Options { checks, ..Options::default() };
        let report = launch(kernel, &memory, &shape, &options).expect("a valid launch");
        assert!(report.is_clean(), "{:?}", report.findings);
        group.throughput(Throughput::Elements(report.statistics.warp_instructions));
        group.bench_function(label, |b| {
            b.iter(|| black_box(launch(kernel, &memory, &shape, &options).expect("a valid launch")));
        });
    }
    group.finish();
}

fn parse(criterion: &mut Criterion) {
    let Ok(path) = std::env::var("PTX_EMULATOR_BENCH_PTX") else { return };
    let text = std::fs::read_to_string(&path).expect("the module named by PTX_EMULATOR_BENCH_PTX");
    let mut group = criterion.benchmark_group("parse");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("module", |b| b.iter(|| black_box(Module::parse(&text).expect("valid PTX"))));
    group.finish();
}

fn instructions(criterion: &mut Criterion) {
    kernel(criterion, "scalar", SCALAR, 128, 2000);
    kernel(criterion, "memory", MEMORY, 128, 2000);
}

criterion_group!(benches, instructions, parse);
criterion_main!(benches);
