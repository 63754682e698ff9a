"""Runs FlashAttention's own ``tests/test_flash_attn.py`` on the functions of this package.

    python run_flash_attn_suite.py PATH/test_flash_attn.py [--keep 0.02 | --part 3/40] [--seed 1] [...]

A package ``flash_attn`` that stands in front of any other gives the tests what they import.
Tests that ask for what this package does not have are left out, each with its reason, and the end of the
output counts them. The file is fetched by whoever runs this: it is not part of the repository.

There are 200,000 parametrisations. ``--keep`` draws a share of them, by the seed; every test function keeps at
least 20. ``--part 3/40`` takes the third of 40 parts, into which the seed deals all of them, for several processes.
Other arguments go to pytest.
"""

from __future__ import annotations

import argparse
import itertools
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


class Draw:
    """Which parametrisations of a test function run."""

    def __init__(self, keep: float, part: tuple[int, int], seed: int) -> None:
        self._keep, self._part, self._seed = keep, part, seed

    def of(self, function: str, parametrisations: list[Any]) -> list[Any]:
        """Those of ``function`` that run, in a random order."""
        shuffled = random.Random(f"{self._seed} {function}").sample(parametrisations, len(parametrisations))
        part, parts = self._part
        return shuffled[: max(20, round(len(shuffled) * self._keep))][part - 1 :: parts]


class Plugin:
    """Draws parametrisations, skips what cannot run, and counts the reasons."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._not_drawn: set[str] = set()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self, name: str) -> Any:
        """Functions that cannot run at all, or of which nothing is drawn, have no items."""
        collected = yield
        return [] if name in WHOLE or name in self._not_drawn else collected

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Draws before pytest makes an item of each parametrisation, which takes it minutes."""
        definition = metafunc.definition
        marks = list(definition.iter_markers("parametrize"))
        if not marks:
            return
        names = [name.strip() for mark in marks for name in mark.args[0].split(",")]
        # The values of a mark with one name stand alone.
        columns = [[v if "," in mark.args[0] else (v,) for v in mark.args[1]] for mark in marks]
        runs = []
        for values in itertools.product(*columns):
            parametrisation = tuple(itertools.chain.from_iterable(values))
            reason = reason_to_skip(dict(zip(names, parametrisation, strict=True)))
            if reason is None:
                runs.append(parametrisation)
            else:
                self.reasons[definition.name, reason] += 1
        drawn = self._draw.of(definition.name, runs)
        if not drawn:
            self._not_drawn.add(definition.name)
        definition.own_markers[:] = [mark for mark in definition.own_markers if mark.name != "parametrize"]
        metafunc.parametrize(names, drawn)

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


def part(text: str) -> tuple[int, int]:
    """``3/40``: the third of 40."""
    index, count = (int(number) for number in text.split("/"))
    if not 1 <= index <= count:
        raise ValueError(text)
    return index, count


def main() -> int:
    """Runs the suite; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path, help="FlashAttention's tests/test_flash_attn.py")
    parser.add_argument("--keep", type=float, default=1.0, help="the share of parametrisations that run")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="I/N", help="part I of N of these")
    parser.add_argument("--seed", type=int, default=0, help="which share, and which parts")
    arguments, of_pytest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no CUDA GPU, which these tests need", file=sys.stderr)
        return 2
    install()
    plugin = Plugin(Draw(arguments.keep, arguments.part, arguments.seed))
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", str(arguments.suite), *of_pytest]
    return int(pytest.main(options, plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
