"""What is timed: shapes, and so many copies of their tensors that none is still in the L2 cache."""

import math

import torch

from comparison import masks

RAGGED = [1024, 33, 2500, 400, 4096, 89, 1999, 777, 255, 3071, 640, 1500]  # 16384 rows


class Case:
    """Tensors in BSHD order. Packed sequences have a batch of 1 and their rows one after another."""

    def __init__(self, shape, dtype, mask, lengths=None, backward=False):
        self.batch, self.rows, self.heads, self.dim, self.key_heads = shape
        self.dtype, self.mask, self.has_backward = dtype, mask, backward
        self.lengths, self.offsets = lengths or [self.rows] * self.batch, None
        if lengths:
            ends = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
            self.offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
        per_row = self.dim * 2 * (self.heads + self.key_heads) * torch.finfo(dtype).bits // 8
        set_bytes = self.batch * self.rows * per_row * (2 if backward else 1)
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        copies = max(1, min(64, math.ceil(2 * l2 / set_bytes)))
        self.sets = [self.tensors() for _ in range(copies)]

    @classmethod
    def ragged(cls, dim, dtype, mask, backward):
        heads = 2048 // dim
        return cls([1, sum(RAGGED), heads, dim, heads], dtype, mask, RAGGED, backward)

    @property
    def causal(self):
        return self.mask == masks.CAUSAL

    def tensors(self):
        """q, k, v and do."""

        def normal(heads):
            shape = (self.batch, self.rows, heads, self.dim)
            return torch.randn(shape, device="cuda", dtype=torch.float32).to(self.dtype)

        d_o = normal(self.heads) if self.has_backward else None
        return normal(self.heads), normal(self.key_heads), normal(self.key_heads), d_o

    def slices(self):
        """Where the guard looks: (batch, first row, rows, key head); the first and the last head."""
        last = self.key_heads - 1
        if self.offsets is None:
            return sorted({(0, 0, self.rows, 0), (self.batch - 1, 0, self.rows, last)})
        starts = self.offsets.tolist()
        return [(0, start, rows, last * (index % 2))
                for index, (start, rows) in enumerate(zip(starts, self.lengths))]

    def flops(self, direction):
        """Of one pass, for the pairs that count; backward 2.5 times forward."""
        pairs = sum(masks.counted(rows, self.mask) for rows in self.lengths)
        return 4 * self.heads * self.dim * pairs * (2.5 if direction == "backward" else 1)

    def tflops(self, direction, ms):
        return self.flops(direction) / ms / 1e9

    def shape(self):
        """What tells cases of one dtype apart."""
        return {
            "mask": masks.name(self.mask), "batch": self.batch, "rows": self.rows, "heads": self.heads,
            "key_heads": self.key_heads, "dim": self.dim,
            "packed": 0 if self.offsets is None else len(self.lengths),
        }

    def dtype_name(self):
        return str(self.dtype).split(".")[1]

    def describe(self):
        heads = f"H{self.heads}" + (f":{self.key_heads}" if self.key_heads != self.heads else "")
        size = f"B{self.batch} S{self.rows}"
        if self.offsets is not None:
            size = f"{len(self.lengths)} packed, {self.rows} rows"
        return f"{self.dtype_name()} {masks.name(self.mask)} {size} {heads} D{self.dim}"
