"""The example trains, on the emulator, and both of its runs agree."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
EXAMPLE = Path(__file__).parent.parent / "examples" / "train_gpt.py"


def test_train_gpt_learns_like_pytorch(tmp_path):
    sizes = "--layers 1 --width 32 --heads 2 --rows 32 --batch 2 --steps 12 --rate 0.02 --guard".split()
    svg, figures = tmp_path / "curves.svg", tmp_path / "figures.json"
    outcome = subprocess.run(
        [sys.executable, EXAMPLE, "--device", "cpu", "--svg", svg, "--json", figures, *sizes],
        capture_output=True, text=True, check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    losses = json.loads(figures.read_text())["losses"]["finite-attention"]
    assert losses[-1] < losses[0] - 0.2
    assert len(xml.dom.minidom.parse(str(svg)).getElementsByTagName("polyline")) == 2
