"""Passes that are looked at: which tensor is not finite, and which stage made it so."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from . import _native

__all__ = ["NonFiniteError", "NonFiniteWarning", "detect_anomaly"]


class NonFiniteError(ArithmeticError):
    """A pass of attention was given or gave something that is not finite. Its text is the whole report."""

    def __init__(self, text: str, tensor: str | None = None, stage: str | None = None) -> None:
        super().__init__(text)
        self.tensor = tensor
        """The first tensor that is not finite: inputs come first, then outputs as they are computed."""
        self.stage = stage
        """What made it so (scores, probabilities, dS and so on), if that is known."""


class NonFiniteWarning(RuntimeWarning):
    """The same, where training is to go on."""


# Not of a context or a thread: PyTorch calls backward passes from threads of its own.
_watchers: list[bool] = []
_lock = threading.Lock()


@contextmanager
def detect_anomaly(*, warn: bool = False) -> Iterator[None]:
    """While it lasts, every pass of attention is looked at: one scan of each input and output.

    Where an output is not finite though all inputs are, the smallest part that shows it runs again in the
    emulator, which names the stage, the instruction, its operands and its line. Unlike PyTorch's anomaly mode
    it sees infinities, too. Minus infinity in lse of a query that sees no key, in a bias and in a sink is
    meant, and no finding. Every pass is waited for, so that none can be captured in a graph.

    Args:
        warn: whether what is found is a :class:`NonFiniteWarning`, not an error.

    Raises:
        NonFiniteError: by the pass that was given or gave something that is not finite.
    """
    with _lock:
        _watchers.append(warn)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(warn)


def forward(device: _native.Device, problem: Any, allocate: Callable[[int], int], stream: int) -> None:
    """A forward pass, looked at if that is wanted."""
    if _watchers:
        _judge("forward", device.watched_forward(problem, stream))
    else:
        device.forward(problem, allocate, stream)


def backward(device: _native.Device, problem: Any, allocate: Callable[[int], int], stream: int) -> None:
    """A backward pass, looked at if that is wanted."""
    if _watchers:
        _judge("backward", device.watched_backward(problem, stream))
    else:
        device.backward(problem, allocate, stream)


def _judge(which: str, report: tuple[str | None, str | None, str] | None) -> None:
    if report is None:
        return
    tensor, stage, text = report
    text = f"{which} pass of attention: {text}"
    if all(_watchers):
        warnings.warn(text, NonFiniteWarning, stacklevel=4)
    else:
        raise NonFiniteError(text, tensor, stage)
