"""What is drawn of FlashAttention's tests."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from run_flash_attn_suite import Draw, Run, Tally, parts  # noqa: E402


@pytest.mark.parametrize("parts", [1, 7, 100])
def test_parts_are_all_parametrisations_each_once(parts):
    every = list(range(50))
    dealt = [Draw(1.0, (index, parts), seed=3).of("test", every) for index in range(1, parts + 1)]
    assert sorted(sum(dealt, [])) == every
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_share_keeps_twenty_at_least_and_goes_by_the_seed():
    every = list(range(1000))
    drawn = [Draw(0.001, (1, 1), seed).of("test", every) for seed in (1, 1, 2)]
    assert len(drawn[0]) == 20 and drawn[0] == drawn[1] != drawn[2]


def test_what_is_no_part_is_refused():
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", type=parts)
    for text in ("0/3", "4/3", "1", "a/b", "2-4/3", "3-2/3", "1-2-3/3"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--part", text])
    assert parser.parse_args(["--part", "2/3"]).part == (range(2, 3), 3)
    assert parser.parse_args(["--part", "2-3/3"]).part == (range(2, 4), 3)


def test_tallies_add_up():
    total, other = Tally(), Tally()
    for _ in range(2):
        other.outcomes["test_a"]["passed"] += 2
        other.reasons["test_a", "no pages"] += 1
        total.add(other)
    lines: list[str] = []
    total.write(lines.append)
    assert "test_a: 6 passed" in lines and "        3 test_a: no pages" in lines


def test_no_part_begins_when_the_time_is_up():
    run = Run(Path("nowhere.py"), [], 1.0, parts=2, seed=0, memory=None, until=time.time() - 1)
    assert run.quietly(1) is None
