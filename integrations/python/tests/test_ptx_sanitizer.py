"""``ptx_sanitizer``: a Triton kernel with a bug fails a test, and passes without it. No GPU, and no Triton needed: the PTX
that it makes stands beside this file."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ptx_sanitizer
from ptx_sanitizer import Output, SanitizerError, TensorMap

KERNELS = Path(__file__).parent / "kernels"
SIGNATURE = {"x_ptr": "*fp32", "sums_ptr": "*fp32", "rows": "i32", "columns": "i32", "ROWS": "constexpr"}
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def compiled(name: str) -> SimpleNamespace:
    """A compiled kernel with the attributes that one of Triton has."""
    metadata = SimpleNamespace(
        name=name, num_warps=2, warp_size=32, shared=256, num_ctas=1, tensordesc_meta=[], global_scratch_size=0
    )
    asm = {"ptx": (KERNELS / f"{name}.ptx").read_text()}
    return SimpleNamespace(asm=asm, metadata=metadata, src=SimpleNamespace(signature=SIGNATURE))


def run(name: str, **options: object) -> tuple:
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    sums = np.zeros(30, np.float32)
    report = ptx_sanitizer.check(compiled(name), (3,), x, sums, 40, 30, **options)
    return report, x, sums


def test_a_broken_kernel_of_triton_fails() -> None:
    with pytest.raises(SanitizerError, match="race in global memory") as error:
        run("column_sums_broken")
    first = error.value.report.errors[0]
    line = (KERNELS / "column_sums.py").read_text().splitlines()[first.source.line - 1]
    assert "tl.load(at, mask=is_there)" in line
    assert first.source.file.endswith("column_sums.py") and first.severity == "error"


def test_the_fixed_kernel_passes_and_leaves_its_results() -> None:
    report, x, sums = run("column_sums", any_order=True)
    assert report.failures("notes") == 0 and str(report).endswith("nothing found")
    assert len(report.schedules) == 10
    np.testing.assert_allclose(sums, x.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_triton_itself_where_it_is_installed() -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels import column_sums as source

    signature = {**SIGNATURE, "COLUMNS": "constexpr"}
    ast = ASTSource(fn=source.column_sums, signature=signature, constexprs={(4,): 16, (5,): 32})
    kernel = triton.compile(ast, target=GPUTarget("cuda", 80, 32), options={"num_warps": 2})
    x, sums = np.ones((40, 30), np.float32), np.zeros(30, np.float32)
    ptx_sanitizer.check(kernel, 3, x, sums, 40, 30)
    np.testing.assert_array_equal(sums, 40)


def kernel(body: str, parameters: str = ".param .u64 data, .param .u32 n") -> str:
    return f"""{HEAD}.visible .entry k({parameters}) {{
        .reg .pred %p<4>; .reg .b32 %r<8>, %tid, %n; .reg .b64 %d<4>, %data, %mine;
        ld.param.u64 %data, [data]; ld.param.u32 %n, [n]; mov.u32 %tid, %tid.x; mul.wide.u32 %mine, %tid, 4;
        add.s64 %mine, %mine, %data; {body} ret; }}"""


def test_numbers_arrays_and_outputs_are_passed_as_they_are() -> None:
    data = np.arange(8, dtype=np.uint32)
    add = kernel("ld.global.b32 %r1, [%mine]; add.s32 %r1, %r1, %n; st.global.b32 [%mine], %r1;")
    for n in (5, np.uint32(5), np.int32(5), b"\5\0\0\0"):
        data[:] = range(8)
        ptx_sanitizer.check_ptx(add, block=8, args=[data, n])
        np.testing.assert_array_equal(data, np.arange(8) + 5)
    data.flags.writeable = False
    ptx_sanitizer.check_ptx(add, block=8, args=[data, 5])
    np.testing.assert_array_equal(data, np.arange(8) + 5)
    with pytest.raises(SanitizerError, match="uninitialised global read"):
        ptx_sanitizer.check_ptx(add, block=8, args=[Output(np.zeros(8, np.uint32)), 5])
    store = kernel("setp.lt.u32 %p1, %tid, %n; @%p1 st.global.b32 [%mine], %tid;")
    out = np.zeros(8, np.uint32)
    with pytest.raises(SanitizerError, match="argument 0: element 6 was never written"):
        ptx_sanitizer.check_ptx(store, block=8, args=[Output(out), 6])
    ptx_sanitizer.check_ptx(store, block=8, args=[Output(out, written=False), 6])
    with pytest.raises(SanitizerError, match="out-of-bounds global access"):
        ptx_sanitizer.check_ptx(store, block=16, args=[out, 9])
    report = ptx_sanitizer.check_ptx(store, block=16, args=[out, 9], deny=None)
    assert [finding.thread for finding in report.errors] == [(8, 0, 0)]


def test_slots_that_atomic_operations_hand_out_depend_on_the_schedule() -> None:
    text = kernel("setp.lt.u32 %p1, %tid, %n; add.s64 %mine, %mine, 4; atom.global.add.u32 %r1, [%data], 1;"
                  "st.global.b32 [%mine], %r1;")
    slots = np.zeros(257, np.uint32)
    with pytest.raises(SanitizerError, match="argument 0 depends on the schedule: element") as error:
        ptx_sanitizer.check_ptx(text, block=256, args=[slots, 0], schedules=20)
    assert error.value.report.findings == () and error.value.report.differences[0].argument == 0
    slots[:] = 0
    ptx_sanitizer.check_ptx(text, block=256, args=[slots, 0], schedules=20, any_order=True)
    np.testing.assert_array_equal(np.sort(slots[1:]), np.arange(256))


def test_strict_runs_report_what_is_thrown_away() -> None:
    load = kernel("ld.global.b32 %r1, [%mine]; st.global.b32 [%mine], %n;")
    out = Output(np.zeros(8, np.uint32))
    ptx_sanitizer.check_ptx(load, block=8, args=[out, 1])
    with pytest.raises(SanitizerError, match="nothing wrote it"):
        ptx_sanitizer.check_ptx(load, block=8, args=[out, 1], strict=True)


def test_tensor_maps_bring_boxes() -> None:
    text = f"""{HEAD}.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) {{
        .reg .pred %p; .reg .b32 %r<4>, %tid, %at; .reg .b64 %d, %out; .shared .align 128 .b32 tile[32];
        .shared .align 8 .b64 barrier; mov.u32 %tid, %tid.x; mov.b32 %r0, 0; mov.b32 %r1, barrier; setp.eq.u32 %p, %tid, 0;
        @%p mbarrier.init.shared.b64 [%r1], 1; @%p fence.mbarrier_init.release.cluster; bar.sync 0;
        mov.b64 %d, map; cvta.param.u64 %d, %d; mov.b32 %at, tile;
        @%p mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 128;
        @%p cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%at], [%d, {{%r0, %r0}}], [%r1];
        WAIT: mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0; @!%p bra WAIT;
        shl.b32 %r2, %tid, 2; add.s32 %at, %at, %r2; ld.shared.b32 %r3, [%at]; ld.param.u64 %out, [out];
        cvt.u64.u32 %d, %r2; add.s64 %out, %out, %d; st.global.b32 [%out], %r3; ret; }}"""
    x, out = np.arange(64, dtype=np.int32).reshape(8, 8), np.zeros((4, 8), np.int32)
    ptx_sanitizer.check_ptx(text, block=32, args=[TensorMap(x, (4, 8)), Output(out)])
    np.testing.assert_array_equal(out, x[:4])


def test_what_cannot_be_is_refused_by_name() -> None:
    text, data = kernel(""), np.zeros(8, np.uint32)
    for arguments, message in [
        ({"args": [data]}, r"args: expected 2 \(data: 8 bytes, n: 4 bytes\), got 1"),
        ({"args": [data[::2], 1]}, r"data: expected an array in C order without gaps, got strides \(8,\)"),
        ({"args": [data, 1 << 32]}, "n: expected an integer of 4 bytes, got 4294967296"),
        ({"args": [data, np.int64(1)]}, "n: expected 4 bytes, got 8"),
        ({"args": [data, "x"]}, "n: expected an array, Output, .* for a parameter of 4 bytes, got str"),
        ({"args": [data, 1], "entry": "j"}, "entry: expected one of k, got 'j'"),
        ({"args": [data, 1], "grid": (1, 0)}, r"grid: expected 1 to 3 numbers of at least 1, got \(1, 0\)"),
        ({"args": [data, 1], "schedules": 0}, "schedules: expected at least 1, got 0"),
        ({"args": [data, 1], "deny": "all"}, "deny: expected errors, warnings or notes, got 'all'"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            ptx_sanitizer.check_ptx(text, block=8, **arguments)
    with pytest.raises(ValueError, match="ptx: PTX line 1"):
        ptx_sanitizer.check_ptx("hello", block=8, args=[])
    with pytest.raises(ValueError, match="box: expected 1 sizes, as many as the array has, got 2"):
        TensorMap(data, (4, 4))
    with pytest.raises(ValueError, match=r"column_sums: expected 4 arguments \(\*fp32, .*\), got 1"):
        ptx_sanitizer.check(compiled("column_sums"), 3, data)


RING = (
    HEAD.replace("sm_90a", "sm_90")
    + """
.visible .entry ring(.param .u64 out) {
    .shared .align 4 .b8 room[128];
    .reg .b32 %r<12>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, room; shl.b32 %r4, %r1, 2;
    add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], %r2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r5, %cluster_ctarank; mov.u32 %r6, %cluster_nctarank; add.u32 %r5, %r5, 1; rem.u32 %r5, %r5, %r6;
    mapa.shared::cluster.u32 %r7, %r3, %r5; ld.shared::cluster.u32 %r8, [%r7];
    mad.lo.u32 %r9, %r2, 32, %r1; mul.wide.u32 %d2, %r9, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r8;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret; }
"""
)


def test_blocks_of_a_cluster_reach_each_other() -> None:
    out = np.empty(128, np.int32)
    ptx_sanitizer.check_ptx(RING, grid=4, block=32, cluster=2, args=[Output(out)])
    np.testing.assert_array_equal(out[::32], [1, 0, 3, 2])
    with pytest.raises(ValueError, match=r"grid \[4, 1, 1\]: expected multiples of the cluster \[3, 1, 1\]"):
        ptx_sanitizer.check_ptx(RING, grid=4, block=32, cluster=3, args=[Output(out)])
    # What a block does last, nobody may need any more.
    with pytest.raises(SanitizerError, match="shared memory of a block that may not run"):
        early = RING[: RING.rindex("barrier.cluster.arrive")] + "ret; }"
        ptx_sanitizer.check_ptx(early, grid=4, block=32, cluster=4, args=[Output(out)], any_order=True)


def test_a_program_of_triton_may_be_a_cluster() -> None:
    metadata = SimpleNamespace(name="ring", num_warps=1, warp_size=32, shared=0, num_ctas=2)
    kernel = SimpleNamespace(
        asm={"ptx": RING}, metadata=metadata, src=SimpleNamespace(signature={"out": "*i32"})
    )
    out = np.empty(128, np.int32)
    ptx_sanitizer.check(kernel, (2,), Output(out))
    np.testing.assert_array_equal(out[::32], [1, 0, 3, 2])
