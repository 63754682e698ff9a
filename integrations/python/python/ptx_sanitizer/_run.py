"""Runs a kernel and says what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
from finite_attention import _native

from ._arguments import Buffers, native
from ._report import Difference, Finding, Place, Report, SanitizerError

Size = Union[int, Sequence[int]]


def check_ptx(
    ptx: str,
    *,
    block: Size,
    args: Sequence[Any],
    grid: Size = 1,
    cluster: Optional[Size] = None,
    entry: Optional[str] = None,
    shared: int = 0,
    schedules: int = 10,
    seed: int = 0,
    strict: bool = False,
    any_order: bool = False,
    step_limit: int = 1 << 27,
    deny: Optional[str] = "errors",
) -> Report:
    """Runs a kernel of a text of PTX under several schedules, and says what was found.

    ``args`` are the kernel's parameters in order: an array of NumPy for a pointer to global memory, exactly as long as
    the array; :class:`Output` of one whose contents do not count; :class:`TensorMap`; numbers of NumPy in their own
    bytes, those of Python in as many as the parameter has; ``bytes`` for a structure; ``None`` for a null pointer. An
    array that is given twice is one buffer.

    ``grid``, ``block`` and ``cluster`` are 1 to 3 numbers: blocks, threads of a block, and blocks of a cluster, up to 8, or
    16, which a kernel has to be allowed. ``cluster`` may be left out: then it is what the kernel demands, or there are no
    clusters. ``entry`` may be left out where the text has one kernel. ``shared`` are bytes of dynamic shared memory. The
    schedules are eager, latest, and random ones from ``seed`` on. ``strict`` reports every read of memory that nothing
    wrote, even if nothing comes of it; with ``any_order`` results may differ between schedules. No schedule follows one
    under which a block takes more than ``step_limit`` steps: warp instructions, of which those that take the emulator
    longer count as several.

    Arrays end as the last schedule leaves them, but those that cannot be written. :class:`SanitizerError` is raised if
    there are errors; with ``deny="warnings"`` or ``"notes"`` also for these, with ``None`` never.
    """
    if schedules < 1:
        raise ValueError(f"schedules: expected at least 1, got {schedules}")
    kernels = dict(_native.ptx_kernels(ptx))
    if entry is None:
        if len(kernels) != 1:
            raise ValueError(f"entry: expected one of {', '.join(kernels)}, got None")
        (entry,) = kernels
    parameters = kernels.get(entry)
    if parameters is None:
        raise ValueError(f"entry: expected one of {', '.join(kernels)}, got {entry!r}")
    if len(parameters) != len(args):
        names = ", ".join(f"{name}: {size} bytes" for name, size in parameters)
        raise ValueError(f"args: expected {len(parameters)} ({names}), got {len(args)}")
    buffers = Buffers()
    given = [native(buffers, number, value, parameters[number]) for number, value in enumerate(args)]
    text, left = _native.ptx_run(
        ptx,
        entry,
        (_size("grid", grid), _size("block", block), None if cluster is None else _size("cluster", cluster), shared),
        buffers.native(),
        given,
        schedules=schedules,
        seed=seed,
        strict=strict,
        step_limit=step_limit,
    )
    report = _report(json.loads(text), buffers, left, any_order)
    for array, (now, _) in zip(buffers.arrays, left):
        if array.flags.writeable:
            array[...] = np.frombuffer(now, dtype=array.dtype).reshape(array.shape)
    if deny is not None and report.failures(deny) > 0:
        raise SanitizerError(report)
    return report


def _size(name: str, size: Size) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    if not 1 <= len(sizes) <= 3 or any(one < 1 for one in sizes):
        raise ValueError(f"{name}: expected 1 to 3 numbers of at least 1, got {size!r}")
    x, y, z = (*(int(one) for one in sizes), 1, 1)[:3]
    return x, y, z


def _report(found: dict[str, Any], buffers: Buffers, left: list[Any], any_order: bool) -> Report:
    def finding(value: dict[str, Any]) -> Finding:
        value = {**value, "source": Place._of(value["source"])}
        return Finding(**{**value, "block": tuple(value["block"]), "thread": tuple(value["thread"])})

    def difference(value: dict[str, Any]) -> Difference:
        buffer = value["buffer"]
        element = value["byte"] // buffers.arrays[buffer].itemsize
        return Difference(buffers.argument[buffer], element, tuple(value["schedules"]))

    findings = tuple(finding(value) for value in found["findings"])
    unwritten = []
    for number, (array, (_, written)) in enumerate(zip(buffers.arrays, left)):
        missing = np.flatnonzero(~np.asarray(written, dtype=bool))
        # Those that a fault left out are no fault of their own.
        if buffers.must_be_written[number] and missing.size > 0 and not findings:
            unwritten.append((buffers.argument[number], int(missing[0]) // array.itemsize))
    return Report(
        kernel=found["kernel"],
        schedules=tuple(found["schedules"]),
        findings=findings,
        differences=() if any_order else tuple(difference(value) for value in found["differences"]),
        unwritten=tuple(unwritten),
        output=found["output"],
        statistics=found["statistics"],
    )
