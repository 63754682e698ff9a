//! Loads, stores, asynchronous copies, atomic operations and barriers.

use super::program::Program;
use kernels_gpu::abi::Arch;

fn block(name: &str, threads: u32, body: &str) -> Program {
    Program::new(name, Arch::Sm80, threads, body)
}

/// `%d1` is the address of 16 bytes of input for this thread, `%r3` that of as many in shared memory.
const PIECES: &str = "mul.wide.u32 %d1, %thread, 16; add.u64 %d1, %d1, %data; shl.b32 %r2, %thread, 4;
    add.u32 %r3, %base, %r2;";

/// The 16 bytes in shared memory of the thread that is one warp further, as output.
const OUT: &str = "xor.b32 %r4, %r2, 512; add.u32 %r4, %r4, %base; ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4];
    mul.wide.u32 %d2, %thread, 16; add.u64 %d2, %d2, %data; st.global.v4.b32 [%d2+32768], {%r5, %r6, %r7, %r8};";

fn copies() -> Vec<Program> {
    let mut programs = Vec::new();
    for (name, copy) in [
        ("cp.async.cg", "cp.async.cg.shared.global [%r3], [%d1], 16;"),
        (
            "cp.async.ca with a size of the source",
            "and.b32 %r9, %thread, 15; cp.async.ca.shared.global [%r3], [%d1], 16, %r9;",
        ),
        (
            "cp.async.cg of nothing",
            "cp.async.cg.shared.global.L2::128B [%r3], [%d1], 16, 0; cp.async.ca.shared.global [%r3+4], [%d1], 4;",
        ),
    ] {
        let order = if name.ends_with("nothing") {
            copy.replace("; cp.async.ca", "; cp.async.wait_all; cp.async.ca")
        } else {
            copy.to_owned()
        };
        programs.push(block(
            name,
            64,
            &format!("{PIECES} {order} cp.async.commit_group; cp.async.wait_group 0; bar.sync 0; {OUT}"),
        ));
    }
    programs.push(block(
        "two groups of copies, the first awaited first",
        64,
        &format!(
            "{PIECES} cp.async.cg.shared.global [%r3], [%d1], 16; cp.async.commit_group;
             cp.async.cg.shared.global [%r3+2048], [%d1+1024], 16; cp.async.commit_group;
             cp.async.wait_group 1; ld.shared.b32 %r10, [%r3]; cp.async.wait_group 0; ld.shared.b32 %r11, [%r3+2048];
             add.u32 %r10, %r10, %r11; st.global.b32 [%mine], %r10;"
        ),
    ));
    programs
}

fn accesses() -> Vec<Program> {
    vec![
        block(
            "vectors through shared memory",
            64,
            &format!("{PIECES} ld.global.nc.v4.b32 {{%r5, %r6, %r7, %r8}}, [%d1]; st.shared.v4.b32 [%r3], {{%r8, %r5, %r7, %r6}}; bar.sync 0; {OUT}"),
        ),
        block(
            "bytes and halves, signed and not",
            32,
            "ld.global.u8 %r1, [%in+1]; ld.global.s8 %r2, [%in+2]; ld.global.u16 %r3, [%in+4]; ld.global.s16 %r4, [%in+6];
             add.u32 %r5, %base, %thread; st.shared.u8 [%r5+3], %r1; mad.lo.u32 %r1, %r1, 7, %r2; mad.lo.u32 %r3, %r3, 11, %r4; xor.b32 %r1, %r1, %r3;
             st.global.b32 [%mine], %r1;",
        ),
        block(
            "local memory",
            32,
            "{ .local .align 16 .b8 stack[64]; .reg .b64 %s; mov.u64 %s, stack; ld.global.v2.b32 {%r1, %r2}, [%in];
             st.local.v2.b32 [%s+8], {%r2, %r1}; st.local.u8 [%s+9], 170; ld.local.b64 %d1, [%s+8]; st.global.b64 [%out], %d1; }",
        ),
        block(
            "generic addresses of shared memory",
            32,
            "cvt.u64.u32 %d1, %base; cvta.shared.u64 %d2, %d1; shl.b32 %r1, %thread, 2; cvt.u64.u32 %d3, %r1;
             add.u64 %d2, %d2, %d3; ld.global.b32 %r2, [%in]; st.b32 [%d2], %r2; add.u32 %r3, %base, %r1;
             ld.shared.b32 %r4, [%r3]; ld.b32 %r5, [%d2]; add.u32 %r4, %r4, %r5; st.global.b32 [%mine], %r4;",
        ),
    ]
}

fn atomics() -> Vec<Program> {
    let mut programs = Vec::new();
    // Operations whose result does not depend on the order.
    for (operation, register) in [
        ("add.u32", "%r1"),
        ("min.s32", "%r1"),
        ("max.u32", "%r1"),
        ("and.b32", "%r1"),
        ("or.b32", "%r1"),
        ("xor.b32", "%r1"),
        ("add.u64", "%d4"),
        ("max.s64", "%d4"),
    ] {
        let start = if operation.starts_with("and") { -1 } else { 0 };
        let body = format!(
            "ld.global.b32 %r1, [%in]; ld.global.b64 %d4, [%in]; or.b32 %r1, %r1, 0x10f0; mov.b64 %d5, {start};
             @%first st.global.b64 [%data+32768], %d5; @%first st.shared.b64 [%base], %d5; bar.sync 0;
             red.global.{operation} [%data+32768], {register}; red.shared.{operation} [%base], {register}; bar.sync 0;
             @!%first bra END; ld.shared.b64 %d5, [%base]; st.global.b64 [%data+32776], %d5; END:"
        );
        programs.push(block(&format!("atomic {operation}"), 128, &body));
    }
    programs.push(block(
        "atomic sums of floats that are whole numbers",
        96,
        "cvt.rn.f32.u32 %f1, %thread; red.global.add.f32 [%data+32768], %f1; mov.b32 %r2, 0x3C003C00;
         red.global.add.noftz.f16x2 [%data+32772], %r2; cvt.rn.f64.u32 %d2, %thread; red.global.add.f64 [%data+32776], %d2;",
    ));
    programs.push(block(
        "a lock by compare and swap",
        4,
        "mov.u32 %r9, 0; SPIN: atom.global.acquire.gpu.cas.b32 %r1, [%data+32768], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra SPIN;
         ld.volatile.global.b32 %r2, [%data+32772]; add.u32 %r2, %r2, 3; st.volatile.global.b32 [%data+32772], %r2; membar.gl;
         atom.global.release.gpu.exch.b32 %r3, [%data+32768], 0;",
    ));
    programs.push(Program {
        blocks: 8,
        ..block(
            "blocks take tickets",
            64,
            "@!%first bra END; atom.global.inc.u32 %r1, [%data+32768], 100; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d1, %data;
             st.global.b32 [%d1+32896], 1; END:",
        )
    });
    programs
}

fn barriers() -> Vec<Program> {
    vec![
        block(
            "a sum over a block by halves",
            256,
            "ld.global.b32 %r1, [%in]; shl.b32 %r2, %thread, 2; add.u32 %r2, %r2, %base; st.shared.b32 [%r2], %r1; mov.u32 %r3, 128;
             AGAIN: bar.sync 0; setp.ge.u32 %p1, %thread, %r3; @%p1 bra NEXT; shl.b32 %r4, %r3, 2; add.u32 %r4, %r4, %r2;
             ld.shared.b32 %r5, [%r4]; ld.shared.b32 %r6, [%r2]; add.u32 %r5, %r5, %r6; st.shared.b32 [%r2], %r5;
             NEXT: shr.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra AGAIN; bar.sync 0; ld.shared.b32 %r7, [%base];
             st.global.b32 [%mine], %r7;",
        ),
        block(
            "barriers that reduce",
            96,
            "ld.global.b32 %r1, [%in]; and.b32 %r2, %r1, 7; setp.eq.u32 %p1, %r2, 0; setp.ge.u32 %p4, %thread, 0;
             bar.red.popc.u32 %r3, 0, %p1; bar.red.and.pred %p2, 1, %p4; bar.red.or.pred %p3, 0, !%p4;
             selp.b32 %r4, 1000, 0, %p2; selp.b32 %r5, 10000, 0, %p3; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5;
             st.global.b32 [%mine], %r3;",
        ),
        block(
            "a warp that fills for two that wait",
            96,
            "mov.u32 %r2, 0; mov.u32 %r3, 0; shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %base; setp.ne.u32 %p1, %warp, 0; @%p1 bra USE;
             FILL: mad.lo.u32 %r4, %r2, 100, %lane; st.shared.b32 [%r1], %r4; bar.arrive 1, 96; bar.sync 2, 96;
             add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 3; @%p2 bra FILL; bra END;
             USE: bar.sync 1, 96; ld.shared.b32 %r5, [%r1]; add.u32 %r3, %r3, %r5; bar.sync 2, 96;
             add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 3; @%p2 bra USE; st.global.b32 [%mine], %r3; END:",
        ),
        Program {
            blocks: 5,
            ..block(
                "special registers",
                64,
                "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %laneid; mov.u32 %r5, %lanemask_lt;
                 mad.lo.u32 %r1, %r1, 7, %r2; mad.lo.u32 %r1, %r1, 11, %r3; mad.lo.u32 %r1, %r1, 13, %r4; xor.b32 %r1, %r1, %r5;
                 st.global.b32 [%out], %r1;",
            )
        },
    ]
}

pub fn programs() -> Vec<Program> {
    [copies(), accesses(), atomics(), barriers()].concat()
}
