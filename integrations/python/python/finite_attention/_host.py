"""Arrays of NumPy: copied to a device, worked on there, and copied back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from . import _anomaly, _native
from ._device import default_device, open_device
from ._options import Options, check_rank, check_together

Array = np.ndarray
_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def dtype_of(argument: str, dtype: Any) -> np.dtype:
    """One of the three element types, from NumPy's, PyTorch's or a name."""
    name = str(dtype)[6:] if str(dtype).startswith("torch.") else None
    if name is None:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
    found = _DTYPES.get(name)
    if found is None:
        raise ValueError(f"{argument}: expected dtype bf16, f16 or f32, got {name}")
    return found


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of dense elements, the last dimension the fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Transfer:
    """Arrays in the memory of a device for the time of one call."""

    def __init__(self, device: str | None) -> None:
        self.device = open_device(device or default_device())
        self._held: list[_native.Buffer] = []

    def put(self, array: Any) -> _native.Tensor:
        """A copy of an array on the device."""
        dense = np.ascontiguousarray(array).reshape(np.shape(array))
        buffer = self.device.upload(dense.ctypes.data, dense.nbytes)
        self._held.append(buffer)
        return buffer.address, dense.shape, dense_strides(dense.shape), dense.dtype.name

    def put_any(self, array: Any) -> _native.Tensor | None:
        """The same, if there is one."""
        return None if array is None else self.put(array)

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> Room:
        """Memory for an output."""
        count = 1
        for size in shape:
            count *= size
        buffer = self.device.allocate(count * dtype.itemsize)
        self._held.append(buffer)
        return Room(buffer, shape, dtype)

    def allocate(self, count: int) -> int:
        """Memory of so many bytes for the device alone: its address."""
        buffer = self.device.allocate(count)
        self._held.append(buffer)
        return buffer.address


@dataclass(frozen=True)
class Room:
    """Memory of a device for an output."""

    buffer: _native.Buffer
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def tensor(self) -> _native.Tensor:
        """For the native module."""
        return self.buffer.address, self.shape, dense_strides(self.shape), self.dtype.name

    def array(self) -> Array:
        """What is in it."""
        array = np.empty(self.shape, self.dtype)
        if array.size:
            self.buffer.read(array.ctypes.data)
        return array


@dataclass(frozen=True)
class Scores:
    """What scores have beside q and k."""

    bias: Any = None
    mask: Any = None
    alibi_slopes: Any = None
    sinks: Any = None

    def put(self, transfer: Transfer, keys: int) -> tuple[Any, Any, Any, Any]:
        """On the device, the mask prepared."""
        prepared = None
        if self.mask is not None:
            if np.asarray(self.mask).dtype != np.bool_:
                raise ValueError(f"mask: expected dtype bool, got {np.asarray(self.mask).dtype.name}")
            mask = transfer.put(self.mask)
            count = transfer.device.mask_bytes(mask, keys)
            address = transfer.allocate(count)
            transfer.device.prepare_mask(mask, keys, (address, count), 0)
            prepared = (mask, address)
        return (transfer.put_any(self.bias), prepared, transfer.put_any(self.alibi_slopes),
                transfer.put_any(self.sinks))


@dataclass(frozen=True)
class Inputs:
    """q, k and v, and the offsets of packed sequences."""

    q: Array
    k: Array
    v: Array
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None

    @property
    def packed(self) -> bool:
        """Whether sequences are packed."""
        return self.cu_seqlens_q is not None

    def check(self) -> None:
        """What shapes of outputs are made from is there."""
        check_together(self.cu_seqlens_q, self.cu_seqlens_k)
        for argument, array in (("q", self.q), ("k", self.k), ("v", self.v)):
            check_rank(argument, array.ndim, self.packed)

    def completed(self, options: Options) -> Options:
        """The options, with the lengths of packed sequences, whose offsets are checked."""
        if not self.packed:
            return options
        offsets = []
        for argument, given in (("cu_seqlens_q", self.cu_seqlens_q), ("cu_seqlens_k", self.cu_seqlens_k)):
            array = np.asarray(given)
            if array.dtype != np.int32:
                raise ValueError(f"{argument}: expected dtype int32, got {array.dtype.name}")
            if array.ndim != 1 or array.size == 0:
                raise ValueError(f"{argument}: expected shape [sequences + 1], got {list(array.shape)}")
            offsets.append(array.tolist())
        rows = (self.q.shape[0], self.k.shape[0])
        said = (options.max_seqlen_q, options.max_seqlen_k)
        longest = _native.longest_sequences(offsets[0], offsets[1], rows, said)
        return replace(options, max_seqlen_q=longest[0], max_seqlen_k=longest[1])

    def keys(self, options: Options) -> int:
        """Sk; of packed sequences the most."""
        return (options.max_seqlen_k or 0) if self.packed else self.k.shape[1]

    def put(self, transfer: Transfer) -> tuple[Any, ...]:
        """On the device."""
        return (transfer.put(self.q), transfer.put(self.k), transfer.put(self.v),
                transfer.put_any(self.cu_seqlens_q), transfer.put_any(self.cu_seqlens_k))

    def lse_shape(self) -> tuple[int, ...]:
        """``[B, Hq, Sq]``, packed ``[Hq, Tq]``."""
        *batch, rows, heads, _ = self.q.shape
        return (*batch, heads, rows)


def forward(
    inputs: Inputs, scores: Scores, options: Options, out_dtype: Any, device: str | None
) -> tuple[Array, Array]:
    """o and lse."""
    inputs.check()
    options = inputs.completed(options)
    native = options.native()
    transfer = Transfer(device)
    dtype = dtype_of("q", inputs.q.dtype) if out_dtype is None else dtype_of("o", out_dtype)
    o = transfer.room((*inputs.q.shape[:-1], inputs.v.shape[-1]), dtype)
    lse = transfer.room(inputs.lse_shape(), _DTYPES["float32"])
    on_device = inputs.put(transfer)
    score = scores.put(transfer, inputs.keys(options))
    problem: Any = (native, on_device, score, (o.tensor, lse.tensor))
    _anomaly.forward(transfer.device, problem, transfer.allocate, 0)
    transfer.device.synchronize()
    return o.array(), lse.array()


@dataclass(frozen=True)
class Wanted:
    """What a backward pass is to give."""

    dtype: Any = None
    d_bias: bool = False
    d_sinks: bool = False


def backward(
    d_o: Array,
    d_lse: Array | None,
    inputs: Inputs,
    outputs: tuple[Array, Array],
    scores: Scores,
    options: Options,
    wanted: Wanted,
    device: str | None,
) -> tuple[Any, Any, Any, Any, Any]:
    """dq, dk, dv, and dbias and dsinks if they are wanted."""
    inputs.check()
    options = inputs.completed(options)
    native = options.native()
    transfer = Transfer(device)
    dtype = dtype_of("q", inputs.q.dtype) if wanted.dtype is None else dtype_of("dq", wanted.dtype)
    rooms: list[Any] = [transfer.room(array.shape, dtype) for array in (inputs.q, inputs.k, inputs.v)]
    for name, value, asked in (("bias", scores.bias, wanted.d_bias), ("sinks", scores.sinks, wanted.d_sinks)):
        if asked and value is None:
            raise ValueError(f"d{name}: expected {name} in the problem, got None")
        value = np.asarray(value)
        rooms.append(transfer.room(value.shape, dtype_of(name, value.dtype)) if asked else None)
    on_device = inputs.put(transfer)
    score = scores.put(transfer, inputs.keys(options))
    of_forward = (transfer.put(outputs[0]), transfer.put(outputs[1]))
    gradients: Any = (transfer.put(d_o), transfer.put_any(d_lse),
                      *(None if room is None else room.tensor for room in rooms))
    problem: Any = (native, on_device, score, of_forward, gradients)
    _anomaly.backward(transfer.device, problem, transfer.allocate, 0)
    transfer.device.synchronize()
    dq, dk, dv, d_bias, d_sinks = (None if room is None else room.array() for room in rooms)
    return dq, dk, dv, d_bias, d_sinks
