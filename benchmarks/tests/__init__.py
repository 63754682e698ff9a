"""Tests of what compare.py works out by itself; they need no GPU and no PyTorch.

    python3 -m unittest discover --top-level-directory benchmarks --start-directory benchmarks/tests
"""

from comparison import masks


class Case:
    """As much of a case as rows, peers and tables ask for."""

    def __init__(self, rows=64, mask=(-1, -1), dtype="bfloat16", offsets=None, flops=1e9):
        self.rows, self.mask, self.dtype, self.offsets, self.dim = rows, mask, dtype, offsets, 64
        self.causal, self.lengths, self.of_pass = mask == (-1, 0), [rows], flops

    def flops(self, direction):
        return self.of_pass * (2.5 if direction == "backward" else 1)

    def tflops(self, direction, ms):
        return self.flops(direction) / ms / 1e9

    def shape(self):
        sizes = {"batch": 1, "rows": self.rows, "heads": 2, "key_heads": 2, "dim": self.dim}
        return {"mask": masks.name(self.mask), **sizes, "packed": 0}

    def dtype_name(self):
        return self.dtype

    def describe(self):
        return f"{self.dtype} S{self.rows}"
