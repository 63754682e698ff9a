//! Instructions of compute capability 9.0.

use super::program::Program;
use super::warp::two_of_four;
use kernels_gpu::abi::Arch;

fn block(name: &str, threads: u32, body: &str) -> Program {
    Program::new(name, Arch::Sm90a, threads, body)
}

/// Thread 0 makes a barrier at `%base`; all see it.
const BARRIER: &str = "@%first mbarrier.init.shared::cta.b64 [%base], 1; fence.proxy.async; bar.sync 0;";
/// All wait for its first phase.
const WAIT: &str = "W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%base], 0; @!%p1 bra W;";
/// 4 KiB from `%base + 1024` to the output.
const OUT: &str = "shl.b32 %r2, %thread, 4; add.u32 %r2, %r2, %base; mul.wide.u32 %d1, %thread, 16; add.u64 %d1, %d1, %data;
    mov.u32 %r3, 0; COPY: ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2+1024]; st.global.v4.b32 [%d1+32768], {%r4, %r5, %r6, %r7};
    add.u32 %r2, %r2, 2048; add.u64 %d1, %d1, 2048; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 2; @%p2 bra COPY;";

fn copies() -> Vec<Program> {
    let mut programs = vec![
        block(
            "a bulk copy and back",
            128,
            &format!(
                "{BARRIER} @!%first bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 4096;
                 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base+1024], [%data+64], 4096, [%base]; {WAIT}
                 @!%first bra END; cp.async.bulk.global.shared::cta.bulk_group [%data+32768], [%base+1024], 4096;
                 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"
            ),
        ),
        block(
            "a bulk sum of whole numbers",
            128,
            "shl.b32 %r2, %thread, 2; add.u32 %r2, %r2, %base; st.shared.b32 [%r2], %thread; fence.proxy.async; bar.sync 0;
             @!%first bra END; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%data+32768], [%base], 512;
             cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%data+32768], [%base], 256;
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:",
        ),
    ];
    // The tensor has 60 rows of 64 columns and two heads; boxes have 32 rows, 128 bytes each, swizzled.
    for [column, row, head] in [[0, 0, 0], [0, 20, 1], [0, 45, 0], [0, -7, 1], [32, 3, 0], [-16, 0, 1]] {
        programs.push(block(
            &format!("a box at column {column}, row {row}, head {head}"),
            128,
            &format!(
                "{BARRIER} @!%first bra W; mov.b32 %r10, {column}; mov.b32 %r11, {row}; mov.b32 %r12, {head}; mov.b32 %r13, 0;
                 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 4096;
                 cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%base+1024], [%map, {{%r10, %r11, %r12, %r13}}], [%base];
                 {WAIT} {OUT}"
            ),
        ));
    }
    programs
}

/// Two warps hand a value to each other through barriers.
fn phases() -> Vec<Program> {
    vec![
        block(
            "two warps take turns",
            64,
            "@%first mbarrier.init.shared::cta.b64 [%base], 32; @%first mbarrier.init.shared::cta.b64 [%base+8], 32;
             @%first fence.mbarrier_init.release.cluster; bar.sync 0; mov.u32 %r1, 0; shl.b32 %r3, %lane, 2;
             add.u32 %r3, %r3, %base; mov.u32 %r4, 0; setp.ne.u32 %p1, %warp, 0; @%p1 bra USE;
             FILL: mad.lo.u32 %r2, %r1, 100, %lane; st.shared.b32 [%r3+64], %r2; mbarrier.arrive.shared::cta.b64 _, [%base];
             and.b32 %r5, %r1, 1; W1: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%base+8], %r5; @!%p2 bra W1;
             add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 4; @%p3 bra FILL; bra END;
             USE: and.b32 %r5, %r1, 1; W2: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%base], %r5; @!%p2 bra W2;
             ld.shared.b32 %r2, [%r3+64]; add.u32 %r4, %r4, %r2; mbarrier.arrive.shared::cta.b64 _, [%base+8];
             add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 4; @%p3 bra USE; st.global.b32 [%mine], %r4; END:",
        ),
        block(
            "an elected lane",
            64,
            "elect.sync %r1|%p1, -1; selp.b32 %r2, 100, 7, %p1; add.u32 %r1, %r1, %r2; st.global.b32 [%mine], %r1;",
        ),
        block(
            "stmatrix behind ldmatrix",
            32,
            "shl.b32 %r2, %thread, 4; add.u32 %r3, %base, %r2; mul.wide.u32 %d1, %thread, 16; add.u64 %d1, %d1, %data;
             ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d1]; st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7}; bar.warp.sync -1;
             ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r10, %r11, %r12, %r13}, [%r3];
             stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r3+512], {%r10, %r11, %r12, %r13}; bar.warp.sync -1;
             ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3+512]; st.global.v4.b32 [%d1+32768], {%r4, %r5, %r6, %r7};",
        ),
    ]
}

/// Products of a warpgroup. A and B are K-major panels of 128 bytes with the 128-byte swizzle, at `%base` and 8 KiB
/// further, A also in registers. The descriptors: a stride of 1 KiB from eight rows to the next. Metadata of a sparse A,
/// two of four by a selector, stand 24 KiB into the input.
fn products() -> Vec<Program> {
    let mut programs = Vec::new();
    for (columns, ty, from_registers, exact, selector) in [
        (64, "bf16", false, true, None),
        (64, "bf16", true, true, None),
        (64, "f16", true, true, None),
        (128, "bf16", false, true, None),
        (16, "f16", false, true, None),
        (64, "bf16", true, false, None),
        (128, "bf16", false, false, None),
        (64, "bf16", false, true, Some(0)),
        (64, "f16", false, true, Some(1)),
        (64, "bf16", true, true, Some(0)),
        (128, "f16", true, true, Some(1)),
    ] {
        let list: Vec<String> = (0..columns / 2).map(|index| format!("%f{index}")).collect();
        let fill: String =
            (0..columns / 2).map(|index| format!("mov.f32 %f{index}, 0f40400000;\n")).collect();
        let store: String = (0..columns / 2)
            .map(|index| format!("st.global.f32 [%d6+{}], %f{index};\n", 4 * index))
            .collect();
        let a = if from_registers { "{%r10, %r11, %r12, %r13}" } else { "%d3" };
        let tail = if from_registers { "0" } else { "0, 0" };
        let (sparse, k) = if selector.is_some() { (".sp", 32) } else { ("", 16) };
        let metadata = selector.map_or(String::new(), |selector: u32| format!(" %r20, {selector},"));
        let body = format!(
            "mul.wide.u32 %d1, %thread, 16; add.u64 %d1, %d1, %data; shl.b32 %r2, %thread, 4; add.u32 %r2, %r2, %base; mov.u32 %r3, 0;
             FILL: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d1]; st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
             add.u32 %r2, %r2, 2048; add.u64 %d1, %d1, 2048; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 12; @%p1 bra FILL;
             fence.proxy.async; bar.sync 0; mul.wide.u32 %d1, %thread, 16; add.u64 %d1, %d1, %data;
             ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d1]; cvt.u64.u32 %d2, %base; shr.u64 %d2, %d2, 4;
             or.b64 %d3, %d2, 0x4000004000000000; add.u64 %d4, %d3, 512; mul.wide.u32 %d7, %thread, 4; add.u64 %d7, %d7, %data;
             ld.global.b32 %r20, [%d7+24576]; {fill} setp.eq.u32 %p2, 0, 0;
             wgmma.fence.sync.aligned;
             wgmma.mma_async{sparse}.sync.aligned.m64n{columns}k{k}.f32.{ty}.{ty} {{{}}}, {a}, %d4,{metadata} %p2, 1, 1, {tail};
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
             mul.wide.u32 %d5, %thread, {}; add.u64 %d6, %data, %d5; add.u64 %d6, %d6, 32768; {store}",
            list.join(", "),
            2 * columns,
        );
        let kind = if exact { "exact" } else { "rounded" };
        let from = if from_registers { "registers" } else { "shared memory" };
        let name = format!("wgmma{sparse} n{columns} {ty} from {from}, {kind}{metadata}");
        let program = block(&name, 128, &body).on_words(move |index| {
            if index >= 24576 / 4 && selector.is_some() {
                return two_of_four(index);
            }
            let half = |index: u32| {
                let bits = index.wrapping_mul(2_654_435_761) >> 7;
                match (exact, ty) {
                    // 2, 1, -1, -2, 1/2 in both types
                    (true, "f16") => [0x4000, 0x3c00, 0xbc00, 0xc000, 0x3800][bits as usize % 5],
                    (true, _) => [0x4000, 0x3f80, 0xbf80, 0xc000, 0x3f00][bits as usize % 5],
                    // 1/2 to 1, both signs
                    (false, _) => 0x3f00 | bits & 0x807f,
                }
            };
            half(2 * index) | half(2 * index + 1) << 16
        });
        programs.push(if exact { program } else { program.within(0.0, 19.0 * 2f64.powi(-20)) });
    }
    programs
}

pub fn programs() -> Vec<Program> {
    [copies(), phases(), products()].concat()
}
