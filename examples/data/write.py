"""Writes the two files beside it, which the commands of the README read. The standard library is enough.

attention.safetensors has q, k, v and do of f16, [1, 40, 2, 16]. The gradient of one query is so large, as a loss scale
that is too large makes it, that its row of dq, and dk of keys that it sees, are not finite in f16: `fattn
trace-nonfinite` says where.
msda.safetensors has what `fattn msda` takes: two levels of 4 x 6 and 2 x 3 cells, 5 queries with 3 points in each.
"""

import json
import math
import struct
from pathlib import Path


def numbers(count, seed):
    """Numbers from -1 to 1, the same at each run, with as few bits as f16 holds."""
    made = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        made.append(((seed >> 21) - 1024) / 1024)
    return made


def write(path, tensors):
    """Tensors by name: dtype of safetensors, shape, numbers."""
    formats = {"F16": "e", "F32": "f", "I64": "q"}
    header, data = {}, b""
    for name, (dtype, shape, elements) in tensors.items():
        assert math.prod(shape) == len(elements), name
        packed = struct.pack(f"<{len(elements)}{formats[dtype]}", *elements)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)


def main():
    here, shape = Path(__file__).parent, [1, 40, 2, 16]
    q, k, v, d_o = (numbers(40 * 2 * 16, seed) for seed in range(1, 5))
    row = 23 * 2 * 16  # of query 23, head 0
    d_o[row : row + 16] = [60000 * number for number in d_o[row : row + 16]]
    k, v = [4 * number for number in k], [32 * number for number in v]
    tensors = {name: ("F16", shape, of) for name, of in [("q", q), ("k", k), ("v", v), ("do", d_o)]}
    write(here / "attention.safetensors", tensors)
    write(
        here / "msda.safetensors",
        {
            "value": ("F32", [1, 30, 2, 8], numbers(30 * 2 * 8, 5)),
            "shapes": ("I64", [2, 2], [4, 6, 2, 3]),
            "locations": ("F32", [1, 5, 2, 2, 3, 2], [0.5 + 0.6 * x for x in numbers(5 * 2 * 2 * 3 * 2, 6)]),
            "weights": ("F32", [1, 5, 2, 2, 3], [abs(x) / 6 for x in numbers(5 * 2 * 2 * 3, 7)]),
            "do": ("F32", [1, 5, 2, 8], numbers(5 * 2 * 8, 8)),
        },
    )


if __name__ == "__main__":
    main()
