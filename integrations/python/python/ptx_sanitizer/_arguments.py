"""From what a kernel is given in Python to bytes, buffers and tensor maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np

_FLOATS = {2: np.float16, 4: np.float32, 8: np.float64}

# As `_native.ptx_run` takes them: bytes, or buffer and offset, or a tensor map.
Native = tuple[Optional[bytes], Optional[tuple[int, int]], Optional[tuple[Any, ...]]]


class Output:
    """An array whose contents do not count: a read of an element that the kernel has not written is found, and so is,
    with ``written``, an element that it never writes."""

    def __init__(self, array: np.ndarray, *, written: bool = True) -> None:
        self.array = _array("Output", array)
        self.written = written


class TensorMap:
    """A tensor map of an array, for ``cp.async.bulk.tensor``: the box has as many sizes as the array, in its order,
    innermost last. ``swizzle`` is 0, 32, 64 or 128 bytes."""

    def __init__(self, array: Union[np.ndarray, Output], box: Sequence[int], *, swizzle: int = 0) -> None:
        self.given = array
        whole = array.array if isinstance(array, Output) else _array("TensorMap", array)
        if len(box) != whole.ndim:
            raise ValueError(f"box: expected {whole.ndim} sizes, as many as the array has, got {len(box)}")
        self.array, self.box, self.swizzle = whole, tuple(box), swizzle


def _array(name: str, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(value).__name__}")
    if not value.flags.c_contiguous:
        raise ValueError(f"{name}: expected an array in C order without gaps, got strides {value.strides}")
    return value


class Buffers:
    """The arrays of a launch, each once, and the arguments that refer to them."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.is_there: list[bool] = []
        #: The first argument that each belongs to, and whether all of it must be written.
        self.argument: list[int] = []
        self.must_be_written: list[bool] = []
        self._known: dict[tuple[int, int], int] = {}

    def add(self, name: str, number: int, value: Union[np.ndarray, Output]) -> int:
        """The number of an array's buffer."""
        array = value.array if isinstance(value, Output) else _array(name, value)
        key = (array.__array_interface__["data"][0], array.nbytes)
        if key not in self._known:
            self._known[key] = len(self.arrays)
            self.arrays.append(array)
            self.is_there.append(not isinstance(value, Output))
            self.argument.append(number)
            self.must_be_written.append(isinstance(value, Output) and value.written)
        return self._known[key]

    def native(self) -> list[tuple[bytes, bool]]:
        """As `_native.ptx_run` takes them."""
        return [(array.tobytes(), is_there) for array, is_there in zip(self.arrays, self.is_there)]


def native(buffers: Buffers, number: int, value: Any, parameter: tuple[str, int]) -> Native:
    """An argument for a parameter, of which name and bytes are known."""
    name, size = parameter
    if isinstance(value, TensorMap):
        array = value.array
        strides = [stride for stride in array.strides[:-1]][::-1]
        buffer = buffers.add(name, number, value.given)
        box = list(value.box[::-1])
        return None, None, (array.dtype.name, buffer, 0, list(array.shape[::-1]), strides, box, value.swizzle)
    if isinstance(value, (np.ndarray, Output)):
        return None, (buffers.add(name, number, value), 0), None
    return scalar(name, value, size), None, None


def scalar(name: str, value: Any, size: int) -> bytes:
    """A number in as many bytes as the parameter has; those of NumPy have their own."""
    if value is None:
        return bytes(size)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, (bool, int)):
        if not -(1 << (8 * size - 1)) <= value < 1 << 8 * size:
            raise ValueError(f"{name}: expected an integer of {size} bytes, got {value}")
        return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if isinstance(value, float) and size in _FLOATS:
        return _FLOATS[size](value).tobytes()
    kinds = "an array, Output, TensorMap, a number, bytes or None"
    raise TypeError(f"{name}: expected {kinds} for a parameter of {size} bytes, got {type(value).__name__}")
