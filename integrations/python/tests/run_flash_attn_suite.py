"""Runs FlashAttention's own ``tests/test_flash_attn.py`` on the functions of this package.

    python run_flash_attn_suite.py PATH/test_flash_attn.py [--keep 0.02] [--seed 1] [arguments of pytest]

A package ``flash_attn`` that stands in front of any other gives the tests what they import.
Tests that ask for what this package does not have are left out, each with its reason, and the end of the
output counts them. The file is fetched by whoever runs this: it is not part of the repository.

``--keep`` draws that share of the several 100,000 parametrisations, by the seed; every test function keeps at
least 20.
"""

from __future__ import annotations

import argparse
import random
import sys
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import finite_attention as fa

NO_CACHE = "flash_attn_with_kvcache (keys that grow in place, rotary, pages) is not in this package"
NO_PAGES = "block_table: keys cannot be paged in this package"
NO_EXTENSION = "it looks into flash_attn's own CUDA extension"

WHOLE = {
    "test_flash_attn_kvcache": NO_CACHE,
    "test_flash_attn_varlen_paged_kv_num_splits": NO_PAGES,
    "test_flash_attn_kvcache_paged_block_table_bounds": NO_CACHE,
    "test_flash_attn_generator_arg_must_be_none": NO_EXTENSION,
}


def reason_to_skip(parameters: dict[str, Any]) -> str | None:
    """Why a parametrisation cannot run, if it cannot."""
    if parameters.get("paged_kv_block_size") is not None:
        return NO_PAGES
    return None


# --- the package that the tests import ---------------------------------------------------------------------


def _pad_input(hidden: torch.Tensor, indices: torch.Tensor, batch: int, rows: int) -> torch.Tensor:
    padded = hidden.new_zeros(batch * rows, *hidden.shape[1:])
    padded = padded.index_put((indices,), hidden)
    return padded.view(batch, rows, *hidden.shape[1:])


def _unpad_input(hidden: torch.Tensor, mask: torch.Tensor, unused: Any = None) -> tuple[Any, ...]:
    every = mask if unused is None else mask + unused
    lengths, used = every.sum(-1, dtype=torch.int32), mask.sum(-1, dtype=torch.int32)
    indices = every.flatten().nonzero().flatten()
    offsets = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, offsets, int(lengths.max()), used


def _missing(name: str) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        pytest.skip(f"{name} is not in this package")

    return call


def install() -> None:
    """Puts the package ``flash_attn`` in front of any other."""
    package = types.ModuleType("flash_attn")
    package.__path__ = []
    package.__version__ = "2.8.4"
    for name in fa.__all__:
        if name.startswith("flash_attn_"):
            setattr(package, name, getattr(fa, name))
    package.flash_attn_with_kvcache = _missing("flash_attn_with_kvcache")
    padding = types.ModuleType("flash_attn.bert_padding")
    padding.pad_input, padding.unpad_input = _pad_input, _unpad_input
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    # Probabilities come relative to the row's largest score: all keys are one block.
    interface._get_block_size_n = lambda *_: 1 << 30
    interface.USE_TRITON_ROCM = False
    layers, rotary = types.ModuleType("flash_attn.layers"), types.ModuleType("flash_attn.layers.rotary")
    layers.__path__ = []
    rotary.apply_rotary_emb = _missing("apply_rotary_emb")
    modules = (package, padding, interface, layers, rotary)
    sys.modules.update({module.__name__: module for module in modules})


# --- what pytest is told -----------------------------------------------------------------------------------


class Plugin:
    """Draws parametrisations, skips what cannot run, and counts the reasons."""

    def __init__(self, keep: float, seed: int) -> None:
        self._keep, self._random = keep, random.Random(seed)
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self, name: str) -> Any:
        """Functions that cannot run at all are not even expanded: one has 100,000 parametrisations."""
        collected = yield
        return [] if name in WHOLE else collected

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out what cannot run, and draws from the rest."""
        runs: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            reason = reason_to_skip(item.callspec.params if hasattr(item, "callspec") else {})
            if reason is None:
                runs[item.originalname].append(item)
            else:
                self.reasons[item.originalname, reason] += 1
        items[:] = [item for group in runs.values() for item in self._drawn(group)]

    def _drawn(self, group: list[pytest.Item]) -> list[pytest.Item]:
        count = min(len(group), max(20, round(len(group) * self._keep)))
        return [group[index] for index in sorted(self._random.sample(range(len(group)), count))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.skipped:
            self.outcomes[function]["skipped"] += 1
            self.reasons[function, str(report.longrepr[2])] += 1
        elif report.when == "call" or report.failed:
            self.outcomes[function][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("FlashAttention's suite")
        for function, outcomes in sorted(self.outcomes.items()):
            counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            terminalreporter.write_line(f"{function}: {counted}")
        terminalreporter.write_line("left out, and why:")
        for function, reason in sorted(WHOLE.items()):
            terminalreporter.write_line(f"      all {function}: {reason}")
        for (function, reason), count in sorted(self.reasons.items()):
            terminalreporter.write_line(f"  {count:7} {function}: {reason}")


def main() -> int:
    """Runs the suite; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path, help="FlashAttention's tests/test_flash_attn.py")
    parser.add_argument("--keep", type=float, default=1.0, help="the share of parametrisations that run")
    parser.add_argument("--seed", type=int, default=0, help="which share")
    arguments, of_pytest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no CUDA GPU, which these tests need", file=sys.stderr)
        return 2
    install()
    plugin = Plugin(arguments.keep, arguments.seed)
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", str(arguments.suite), *of_pytest]
    return int(pytest.main(options, plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
