"""Kernels as Triton's tutorials have them, for twins.py: compiled for a GPU that need not be there."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * stride + at, mask=mask, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, powers / tl.sum(powers, axis=0), mask=mask)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    ks = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inside = start + ks < k
        left = tl.load(a + rows[:, None] * k + start + ks[None, :], mask=(rows[:, None] < m) & inside[None, :], other=0.0)
        right = tl.load(
            b + (start + ks)[:, None] * n + columns[None, :], mask=inside[:, None] & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16), mask=mask)


@triton.jit
def layer_norm(x, y, w, b, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, mask=at < n, other=0.0)
    average = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * stride + at, mask=at < n, other=0.0)
        value = tl.where(at < n, value - average, 0.0)
        squares += value * value
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < n
        value = tl.load(x + row * stride + at, mask=mask, other=0.0)
        value = (value - average) * scale * tl.load(w + at, mask=mask) + tl.load(b + at, mask=mask)
        tl.store(y + row * stride + at, value, mask=mask)


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, tl.load(x + at, mask=mask) / (1 - p), 0.0), mask=mask)


def compile_all():
    """Name, PTX, threads and bytes of shared memory of each."""
    float_pointers = {name: "*fp32" for name in ("x", "y", "out", "w", "b", "mean", "rstd")}
    cases = [
        (vector_add, dict(x="*fp32", y="*fp32", out="*fp32", n="i32"), dict(BLOCK=128)),
        (softmax, dict(out="*fp32", x="*fp32", stride="i32", columns="i32"), dict(BLOCK=256)),
        (
            matmul,
            dict(a="*fp16", b="*fp16", c="*fp16", m="i32", n="i32", k="i32"),
            dict(M=32, N=32, K=32),
        ),
        (
            layer_norm,
            {**{n: float_pointers[n] for n in ("x", "y", "w", "b", "mean", "rstd")}, "stride": "i32", "n": "i32", "eps": "fp32"},
            dict(BLOCK=128),
        ),
        (dropout, dict(x="*fp32", out="*fp32", n="i32", p="fp32", seed="i32"), dict(BLOCK=128)),
    ]
    for function, signature, constants in cases:
        signature = {**signature, **{name: "constexpr" for name in constants}}
        names = function.arg_names
        source = ASTSource(
            fn=function, signature=signature, constexprs={(names.index(name),): value for name, value in constants.items()}
        )
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        yield function.__name__, kernel.asm["ptx"], 32 * kernel.metadata.num_warps, kernel.metadata.shared
