"""Kernels that Triton has compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from finite_attention import _native

from ._arguments import Output, TensorMap
from ._report import Report
from ._run import Size, check_ptx

_SWIZZLES = (0, 32, 64, 128)
_DESCRIPTOR = re.compile(r"tensordesc<")
_FLOATS = {"fp16": np.float16, "fp32": np.float32, "f32": np.float32, "fp64": np.float64, "f64": np.float64}


def check(kernel: Any, grid: Size, *args: Any, **options: Any) -> Report:
    """Runs a kernel that Triton has compiled (``triton.compile(...)``, or what a launch of a ``@triton.jit`` function
    gives back) under several schedules, and says what was found. Needs no GPU, as ``triton.compile`` with a
    ``GPUTarget`` needs none.

    ``args`` are what the function is given, in order, without its ``tl.constexpr``: arrays of NumPy, or :class:`Output`
    of them, for pointers and tensor descriptors, and numbers. What Triton passes besides (threads of a block, shared
    memory, scratch memory, the five and more arguments of a descriptor) is read from the kernel. ``options`` are those
    of :func:`check_ptx`: ``schedules``, ``seed``, ``strict``, ``any_order``, ``step_limit``, ``deny``.
    """
    metadata = kernel.metadata
    if isinstance(metadata, Mapping):
        metadata = _Fields(metadata)
    ptx, name = kernel.asm["ptx"], metadata.name
    parameters = dict(_native.ptx_kernels(ptx))[name]
    types = [one for one in _flat(kernel.src.signature.values()) if one != "constexpr"]
    if len(types) != len(args):
        raise ValueError(f"{name}: expected {len(types)} arguments ({', '.join(types)}), got {len(args)}")
    descriptors = iter(getattr(metadata, "tensordesc_meta", None) or ())
    given: list[Any] = []
    for of_type, value in zip(types, args):
        if _DESCRIPTOR.match(of_type):
            given += _descriptor(next(descriptors), value)
        elif of_type in _FLOATS and not isinstance(value, np.generic):
            given.append(_FLOATS[of_type](value))
        else:
            given.append(value)
    # A program is a cluster of so many blocks.
    clusters = getattr(metadata, "num_ctas", 1)
    x, *rest = grid if isinstance(grid, (tuple, list)) else (grid,)
    grid = (x * clusters, *rest)
    blocks = int(np.prod(grid))
    # Behind those of the function: scratch memory for all blocks, which most kernels have none of.
    for kind in ("global", "profile")[: max(0, len(parameters) - len(given))]:
        size = getattr(metadata, f"{kind}_scratch_size", 0)
        given.append(np.zeros(size * blocks, np.uint8) if size else None)
    threads = metadata.num_warps * getattr(metadata, "warp_size", 32)
    cluster = None if clusters == 1 else clusters
    shape = {"grid": grid, "block": threads, "cluster": cluster, "shared": metadata.shared}
    return check_ptx(ptx, entry=name, args=given, **shape, **options)


class _Fields:
    """The metadata of older versions."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)


def _flat(types: Any) -> Iterator[str]:
    for one in types:
        if isinstance(one, (tuple, list)):
            yield from _flat(one)
        else:
            yield one


def _descriptor(meta: Mapping[str, Any], value: Any) -> Iterator[Any]:
    """A tensor map, then the sizes, then the strides in elements."""
    array = value.array if isinstance(value, Output) else value
    yield TensorMap(value, meta["block_size"], swizzle=_SWIZZLES[meta["swizzle"]])
    yield from (np.int32(size) for size in array.shape)
    yield from (np.int64(stride // array.itemsize) for stride in array.strides)
