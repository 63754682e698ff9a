"""Kernels in Triton: one with a bug, and the same without it. What Triton 3.9 makes of them for sm_80 stands beside this
file: ROWS 16, COLUMNS 32, two warps."""

import triton
import triton.language as tl


@triton.jit
def column_sums_broken(x_ptr, sums_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + row * columns + column, mask=(row < rows) & (column < columns), other=0.0)
    at, is_there = sums_ptr + tl.arange(0, COLUMNS), tl.arange(0, COLUMNS) < columns
    # Other programs add to the same sums.
    tl.store(at, tl.load(at, mask=is_there) + tl.sum(x, axis=0), mask=is_there)


@triton.jit
def column_sums(x_ptr, sums_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + row * columns + column, mask=(row < rows) & (column < columns), other=0.0)
    at = sums_ptr + tl.arange(0, COLUMNS)
    tl.atomic_add(at, tl.sum(x, axis=0), mask=tl.arange(0, COLUMNS) < columns)
