"""Runs msda-triton's own ``tests/test_msda.py`` on ``ms_deform_attn``, with a new seed each time.

    python run_msda_triton_suite.py PATH/test_msda.py [--runs 100] [arguments of pytest]

A package ``msda_triton`` that stands in front of any other gives the tests what they import. Left out are
f64, which kernels do not have, and what tests PyTorch's own code or a module of theirs. The file is
fetched by whoever runs this: it is not part of the repository.
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


class Plugin:
    """Repeats tests with a seed for each run, and counts."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
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
    arguments, of_pytest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no CUDA GPU, which these tests need", file=sys.stderr)
        return 2
    install()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", str(arguments.suite), *of_pytest]
    return int(pytest.main(options, plugins=[Plugin(arguments.runs)]))


if __name__ == "__main__":
    sys.exit(main())
