"""What all tests share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DEVICES = ("emulated:sm_80", "emulated:sm_90a")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each target of the emulator."""
    return request.param
