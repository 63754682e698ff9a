"""Runs msda-triton's own ``tests/test_msda.py`` on ``ms_deform_attn``, with a new seed each time.

    python run_msda_triton_suite.py PATH/test_msda.py [--runs 100] [arguments of pytest]

A package ``msda_triton`` that stands in front of any other gives the tests what they import. Left out are
f64, which kernels do not have, and what tests PyTorch's own code or a module of theirs. The file is
fetched by whoever runs this: it is not part of the repository.

What the tests compare with is, unless ``--their-reference`` is given, the formula in f64, with positions
rounded to f32 once. Theirs computes in f32 by ``grid_sample``, which takes ``2 x - 1``: that rounding moves
points near a cell's edge into another cell, where the gradient of the location is another number. Their
``test_backward`` fails by it in one run of eleven or more, whichever kernel is tested (docs/msda.md).
"""

from __future__ import annotations

import argparse
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import finite_attention as fa

WHOLE = {
    "test_native_forward": "it tests PyTorch's grid_sample alone",
    "test_nnmodule": "the module is msda-triton's own",
}


def install() -> None:
    """Puts the package ``msda_triton`` in front of any other."""
    package, frontend = types.ModuleType("msda_triton"), types.ModuleType("msda_triton.frontend")
    package.__path__ = []

    def attend(value, shapes, locations, weights, padding_mode, align_corners):
        return fa.ms_deform_attn(value, shapes, locations, weights, padding=padding_mode,
                                 align_corners=align_corners)

    frontend.triton_multiscale_deformable_attention = attend
    frontend.native_multiscale_deformable_attention = None
    frontend.MultiscaleDeformableAttention = None
    sys.modules.update({"msda_triton": package, "msda_triton.frontend": frontend})


# --- what is expected ------------------------------------------------------------------------------------


def in_f64(value, shapes, locations, weights, padding, align_corners):
    """Multi-scale deformable attention in f64 by plain gathers, of positions that are rounded to f32 once.

    value ``[B, sum(h w), H, C]``, shapes ``[L, 2]`` of heights and widths, locations ``[B, N, H, L, P, 2]``
    of (x, y), weights ``[B, N, H, L, P]``; the result is ``[B, N, H, C]`` of value's dtype, and has
    derivatives.
    """
    sizes = [(int(height), int(width)) for height, width in shapes]
    levels = value.double().split([height * width for height, width in sizes], dim=1)
    total = 0.0
    for level, (height, width) in zip(range(len(sizes)), sizes):
        axes = []
        for axis, size in ((0, width), (1, height)):
            exact = locations[:, :, :, level, :, axis].double()
            place = exact * (size - 1) if align_corners else exact * size - 0.5
            place = place.float().double()
            if padding == "border":
                # Beyond the outermost pixels' centres nothing changes, and on them PyTorch has no gradient.
                inside = (place > 0) & (place < size - 1)
                place = torch.where(inside, place, place.detach().clamp(0, size - 1))
            axes.append((place.detach().floor(), place, size))
        (left, x, _), (top, y, _) = axes
        sample = 0.0
        for column in (0, 1):
            for row in (0, 1):
                weight_x = (x - left) if column else (1 - (x - left))
                weight_y = (y - top) if row else (1 - (y - top))
                corner = _corner(levels[level], (top + row, left + column), (height, width))
                sample = sample + (weight_x * weight_y)[..., None] * corner
        total = total + (weights[:, :, :, level, :, None].double() * sample).sum(3)
    return total.to(value.dtype)


def _corner(level, place, size):
    """Pixels ``[B, N, H, P, C]`` of a level ``[B, h w, H, C]``; 0 outside."""
    (row, column), (height, width) = place, size
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
    batch, queries, heads, points = index.shape
    index = index.permute(0, 2, 1, 3).reshape(batch, heads, queries * points, 1)
    pixels = level.permute(0, 2, 1, 3).gather(2, index.expand(-1, -1, -1, level.shape[-1]))
    pixels = pixels.view(batch, heads, queries, points, -1).transpose(1, 2)
    return torch.where(is_inside[..., None], pixels, 0.0)


# --- what pytest is told -----------------------------------------------------------------------------------


class Plugin:
    """Repeats tests with a seed for each run, and counts."""

    def __init__(self, runs: int, their_reference: bool) -> None:
        self._runs, self._their_reference = runs, their_reference
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Every test once for each run."""
        metafunc.fixturenames.append("seed_of_run")
        metafunc.parametrize("seed_of_run", range(self._runs))

    @pytest.fixture
    def seed_of_run(self, request: pytest.FixtureRequest) -> int:
        """The seed of a run; the parameter is this fixture's."""
        return request.param

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out what cannot run."""
        kept = []
        for item in items:
            f64 = "there are no kernels for f64" if item.callspec.params.get("dtype") == "float64" else None
            reason = WHOLE.get(item.originalname, f64)
            if reason is None:
                kept.append(item)
            else:
                self.reasons[item.originalname, reason] += 1
        items[:] = kept

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        torch.manual_seed(item.callspec.params["seed_of_run"])
        if not self._their_reference:
            item.module.torch_msda_bilinear = in_f64

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.outcomes[report.nodeid.rpartition("::")[2].partition("[")[0], report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("msda-triton's suite")
        for (function, outcome), count in sorted(self.outcomes.items()):
            terminalreporter.write_line(f"{function}: {count} {outcome}")
        terminalreporter.write_line("left out, and why:")
        for (function, reason), count in sorted(self.reasons.items()):
            terminalreporter.write_line(f"  {count:7} {function}: {reason}")


def main() -> int:
    """Runs the suite; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path, help="msda-triton's tests/test_msda.py")
    parser.add_argument("--runs", type=int, default=100, help="how often, each time with another seed")
    parser.add_argument("--their-reference", action="store_true", help="compare with theirs, in f32")
    arguments, of_pytest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no CUDA GPU, which these tests need", file=sys.stderr)
        return 2
    install()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", str(arguments.suite), *of_pytest]
    plugin = Plugin(arguments.runs, arguments.their_reference)
    return int(pytest.main(options, plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
