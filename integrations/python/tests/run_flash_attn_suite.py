"""Runs FlashAttention's own ``tests/test_flash_attn.py`` on the functions of this package.

    python run_flash_attn_suite.py PATH/test_flash_attn.py [--keep 0.02] [--part 3/40] [--jobs 12] [--seed 1] [...]

A package ``flash_attn`` that stands in front of any other gives the tests what they import.
Tests that ask for what this package does not have are left out, each with its reason, and the end of the
output counts them. The file is fetched by whoever runs this: it is not part of the repository.

There are 200,000 parametrisations. ``--keep`` draws a share of them, by the seed; every test function keeps at
least 20. ``--part 3/40`` takes the third of 40 parts, into which the seed deals all of them, and ``--part 3-40/40``
those from the third on. ``--jobs`` processes take one part after another, until none is left or ``--seconds``
have passed; kernels that one of them has loaded stay loaded for its next parts. They want NVIDIA's MPS, without
which they take turns on the GPU. Other arguments go to pytest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import multiprocessing
import random
import sys
import time
import types
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

import finite_attention as fa

# So many that processes end at about the same time.
PARTS_OF_A_JOB = 32

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


@dataclass
class Tally:
    """What became of tests, by their functions, and why some did not run."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Adds what became of other tests."""
        self.reasons.update(other.reasons)
        for function, outcomes in other.outcomes.items():
            self.outcomes[function].update(outcomes)

    def write(self, line: Callable[[str], Any]) -> None:
        """Writes it line by line."""
        for function, outcomes in sorted(self.outcomes.items()):
            counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            line(f"{function}: {counted}")
        line("left out, and why:")
        for function, reason in sorted(WHOLE.items()):
            line(f"      all {function}: {reason}")
        for (function, reason), count in sorted(self.reasons.items()):
            line(f"  {count:7} {function}: {reason}")


class Plugin:
    """Draws parametrisations, skips what cannot run, and counts the reasons."""

    def __init__(self, draw: Draw, memory: int | None = None) -> None:
        self._draw, self._memory = draw, memory
        self._not_drawn: set[str] = set()
        self.tally = Tally()

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
        by_reason = defaultdict(list)
        for values in itertools.product(*columns):
            parametrisation = tuple(itertools.chain.from_iterable(values))
            by_reason[reason_to_skip(dict(zip(names, parametrisation, strict=True)))].append(parametrisation)
        drawn = {reason: self._draw.of(definition.name, every) for reason, every in by_reason.items()}
        runs = drawn.pop(None, [])
        for reason, left_out in drawn.items():
            self.tally.reasons[definition.name, reason] += len(left_out)
        if not runs:
            self._not_drawn.add(definition.name)
        definition.own_markers[:] = [mark for mark in definition.own_markers if mark.name != "parametrize"]
        metafunc.parametrize(names, runs)

    def pytest_runtest_setup(self) -> None:
        """Gives back what PyTorch keeps of the GPU's memory beyond this process's share."""
        if self._memory is not None and torch.cuda.memory_reserved() > self._memory:
            torch.cuda.empty_cache()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.skipped:
            self.tally.outcomes[function]["skipped"] += 1
            self.tally.reasons[function, str(report.longrepr[2])] += 1
        elif report.when == "call" or report.failed:
            self.tally.outcomes[function][report.outcome] += 1


@dataclass(frozen=True)
class Run:
    """How parts are run; processes are told."""

    suite: Path
    of_pytest: list[str]
    keep: float
    parts: int
    seed: int
    memory: int | None
    until: float

    def of(self, part: int) -> tuple[int, int, Tally]:
        """A part's number, pytest's exit code, and what became of its tests."""
        plugin = Plugin(Draw(self.keep, (part, self.parts), self.seed), self.memory)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", str(self.suite), *self.of_pytest]
        return part, int(pytest.main(options, plugins=[plugin])), plugin.tally

    def quietly(self, part: int) -> tuple[int, int, Tally, str] | None:
        """The same with pytest's output, or nothing if the time is up."""
        if time.time() > self.until:
            return None
        with contextlib.redirect_stdout(io.StringIO()) as output:
            found = self.of(part)
        return *found, output.getvalue()


# --- the command -------------------------------------------------------------------------------------------


def parts(text: str) -> tuple[range, int]:
    """``3/40``: the third of 40; ``3-5/40``: the third to the fifth."""
    named, count = text.split("/")
    first, _, last = named.partition("-")
    chosen = range(int(first), int(last or first) + 1)
    if not 1 <= chosen.start < chosen.stop <= int(count) + 1:
        raise ValueError(text)
    return chosen, int(count)


def run_in_processes(run: Run, chosen: range, jobs: int) -> int:
    """Runs parts in as many processes, and says which are left; the exit code is the largest of pytest's."""
    total, left, worst = Tally(), set(chosen), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=install) as pool:
        for future in as_completed([pool.submit(run.quietly, part) for part in chosen]):
            try:
                found = future.result()
            except BrokenProcessPool as error:
                print(f"a process ended by itself: {error}", file=sys.stderr)
                worst = max(worst, 1)
                break
            if found is None:
                continue
            part, code, tally, output = found
            left.remove(part)
            total.add(tally)
            worst = max(worst, code)
            print(output if code else f"part {part} of {run.parts}: 0 failed", flush=True)
    total.write(print)
    print(f"{len(chosen) - len(left)} parts of {run.parts} ran; left are {sorted(left) or 'none'}")
    return worst


def main() -> int:
    """Runs the suite; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path, help="FlashAttention's tests/test_flash_attn.py")
    parser.add_argument("--keep", type=float, default=1.0, help="the share of parametrisations that run")
    parser.add_argument("--part", type=parts, metavar="I/N", help="part I of N of these, or I-J/N; all without it")
    parser.add_argument("--seed", type=int, default=0, help="which share, and which parts")
    parser.add_argument("--jobs", type=int, default=1, help="processes that take one part after another")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no part begins")
    arguments, of_pytest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no CUDA GPU, which these tests need", file=sys.stderr)
        return 2
    count = 1 if arguments.jobs == 1 else PARTS_OF_A_JOB * arguments.jobs
    chosen, count = arguments.part or (range(1, count + 1), count)
    memory = None
    if arguments.jobs > 1:
        memory = int(0.8 * torch.cuda.get_device_properties(0).total_memory / arguments.jobs)
    until = time.time() + arguments.seconds
    run = Run(arguments.suite, of_pytest, arguments.keep, count, arguments.seed, memory, until)
    if len(chosen) > 1:
        return run_in_processes(run, chosen, arguments.jobs)
    install()
    _, code, tally = run.of(chosen[0])
    tally.write(print)
    return code


if __name__ == "__main__":
    sys.exit(main())
