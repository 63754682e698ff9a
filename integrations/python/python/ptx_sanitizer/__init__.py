"""Races, reads of what nothing wrote, accesses out of bounds and more, in kernels that Triton, nvcc or anybody made:
their PTX runs on the CPU under several schedules, with no GPU and without PyTorch.

    import numpy as np, ptx_sanitizer

    report = ptx_sanitizer.check(compiled_triton_kernel, (4,), x, y, ptx_sanitizer.Output(out), n)
    report = ptx_sanitizer.check_ptx(ptx, grid=4, block=128, args=[x, np.int32(1000)])

Both raise :class:`SanitizerError`, an ``AssertionError``, if there are errors, and otherwise leave in the arrays what the
kernel writes, so that a test goes on as it would behind a launch. What is checked, and how severities are decided, is in
``docs/sanitize.md`` of the project.
"""

from ._arguments import Output, TensorMap
from ._report import Difference, Finding, Place, Report, SanitizerError
from ._run import check_ptx
from ._triton import check

__all__ = [
    "Difference",
    "Finding",
    "Output",
    "Place",
    "Report",
    "SanitizerError",
    "TensorMap",
    "check",
    "check_ptx",
]
