"""Devices by name, opened once."""

from __future__ import annotations

import os
from functools import lru_cache

from . import _native

__all__ = ["default_device", "open_device", "set_default_device"]

_default: str | None = None


def default_device() -> str:
    """The device of arrays in host memory for which none is named.

    What :func:`set_default_device` was given, else the environment variable ``FATTN_DEVICE``, else
    ``emulated:sm_90a``: the checking emulator of a Hopper GPU. Tensors in the memory of a GPU are worked on
    there, whatever this says.
    """
    return _default or os.environ.get("FATTN_DEVICE") or "emulated:sm_90a"


def set_default_device(name: str | None) -> None:
    """Sets what :func:`default_device` returns; ``None`` for the default again.

    Args:
        name: ``cuda``, ``cuda:N``, ``cuda:N:sm_80``, ``emulated``, ``emulated:sm_80`` or
            ``emulated:sm_90a``.

    Raises:
        ValueError: the name is none of these.
        DeviceError: the device is not there.
    """
    global _default
    if name is not None:
        open_device(name)
    _default = name


@lru_cache(maxsize=None)
def open_device(name: str) -> _native.Device:
    """The device of this name, the same one at every call."""
    return _native.Device(name)
