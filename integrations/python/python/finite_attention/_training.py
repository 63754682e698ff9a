"""Guards of training: what is not finite is found where it is, and does not reach the weights."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Iterable

import numpy as np

from . import _native
from ._device import default_device, open_device
from ._host import dense_strides
from ._interchange import adopt, is_torch

__all__ = ["Clipped", "GradScaler", "Scanned", "clip_grad_norm_", "scan"]


@dataclass(frozen=True)
class Scanned:
    """What is in a tensor."""

    nan: int
    """How many elements are NaN."""
    positive_infinity: int
    """How many are +inf."""
    negative_infinity: int
    """How many are -inf."""
    first: tuple[int, ...] | None
    """The indices of the first element, in logical order, that is not finite."""
    norm: float
    """The square root of the sum of squares, in the same order every time, and right if f32 holds it."""

    @property
    def is_finite(self) -> bool:
        """Whether all elements are finite."""
        return self.nan + self.positive_infinity + self.negative_infinity == 0

    def __str__(self) -> str:
        at = "" if self.first is None else f", the first at {list(self.first)}"
        return f"{self.nan} NaN, {self.positive_infinity} +inf, {self.negative_infinity} -inf{at}"


@dataclass(frozen=True)
class Clipped:
    """What clipping did."""

    total_norm: float
    """The norm of all gradients together, before."""
    coefficient: float
    """What all gradients were multiplied by: at most 1."""


class _Tensors:
    """Named tensors on one device: those of a GPU where they are, others copied there."""

    def __init__(self, named: Iterable[tuple[str, Any]], device: str | None) -> None:
        self._host: list[tuple[Any, np.ndarray, _native.Buffer]] = []
        self.stream = 0
        arrays = [(name, adopt(name, tensor)[0]) for name, tensor in named]
        on_gpu = {array.device for _, array in arrays if is_torch(array) and array.is_cuda}
        if on_gpu:
            strangers = [name for name, array in arrays if not (is_torch(array) and array.is_cuda)]
            if strangers or len(on_gpu) > 1:
                other = f"{strangers[0]} on the host" if strangers else f"tensors on {len(on_gpu)} GPUs"
                raise ValueError(f"tensors: expected all on one device, got {other}")
            import torch

            gpu = on_gpu.pop()
            self.stream = torch.cuda.current_stream(gpu).cuda_stream
            self.device = open_device(device or f"cuda:{gpu.index}")
            self.tensors = [(name, _of_gpu(array)) for name, array in arrays]
            return
        self.device = open_device(device or default_device())
        self.tensors = [(name, self._copied(array)) for name, array in arrays]

    def _copied(self, array: Any) -> _native.Tensor:
        host = _as_numpy(array)
        dense = np.ascontiguousarray(host).reshape(host.shape)
        buffer = self.device.upload(dense.ctypes.data, dense.nbytes)
        self._host.append((array, dense, buffer))
        return buffer.address, dense.shape, dense_strides(dense.shape), dense.dtype.name

    def copy_back(self) -> None:
        """What was changed goes back to the host."""
        for array, dense, buffer in self._host:
            if dense.size == 0:
                continue
            changed = np.empty_like(dense)
            buffer.read(changed.ctypes.data)
            _as_numpy(array)[...] = changed


def _of_gpu(tensor: Any) -> _native.Tensor:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:]


def _as_numpy(array: Any) -> np.ndarray:
    """The memory of an array or of a tensor on the host, as NumPy sees it."""
    if is_torch(array):
        from .torch_host import to_numpy

        return to_numpy(array)
    return np.asarray(array)


def scan(tensor: Any, *, device: str | None = None) -> Scanned:
    """Counts NaN, +inf and -inf in a tensor, and gives its norm, in one pass; waits for the result.

    Args:
        tensor: of bf16, f16 or f32, of any shape: an array of NumPy, a tensor of PyTorch, or an object with
            ``__dlpack__``. On a GPU any strides do.
        device: where memory of the host goes; :func:`finite_attention.default_device` if ``None``.

    Raises:
        ValueError: the tensor is of another dtype.
        DeviceError: the device is not there or has failed.
    """
    tensors = _Tensors([("tensor", tensor)], device)
    return Scanned(*tensors.device.scan(tensors.tensors[0][1], tensors.stream))


def clip_grad_norm_(
    gradients: Any, max_norm: float, *, error_if_nonfinite: bool = True, device: str | None = None
) -> Clipped:
    """Multiplies gradients in place, so that the norm of all of them together is at most ``max_norm``.

    The rule of ``torch.nn.utils.clip_grad_norm_``: ``coefficient = min(1, max_norm / (total + 1e-6))``.

    Args:
        gradients: tensors or arrays; or parameters of PyTorch, whose ``grad`` is taken where there is one; or
            a dict or pairs of names and either of these. Names are for errors.
        max_norm: at least 0.
        error_if_nonfinite: a norm that is not finite is an error that names the first tensor at fault, and
            no gradient is changed. Else all are multiplied, which makes them 0 or NaN (PyTorch's default).
        device: as in :func:`scan`.

    Raises:
        RuntimeError: the norm is not finite.
        ValueError: a tensor or ``max_norm`` is wrong, or tensors are on several devices.
    """
    tensors = _Tensors(_named(gradients), device)
    clipped = Clipped(*tensors.device.clip(tensors.tensors, max_norm, error_if_nonfinite, tensors.stream))
    if clipped.coefficient != 1.0:
        tensors.copy_back()
    return clipped


def _named(gradients: Any) -> list[tuple[str, Any]]:
    """Gradients and their names."""
    if is_torch(gradients) or isinstance(gradients, np.ndarray):
        gradients = [gradients]
    pairs = gradients.items() if isinstance(gradients, dict) else enumerate(gradients)
    named = []
    for key, one in pairs:
        name = f"gradient {key}" if isinstance(key, int) else str(key)
        if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str):
            name, one = one
        if is_torch(one) and one.requires_grad and one.is_leaf:
            one = one.grad
        if one is not None:
            named.append((name, one.detach() if is_torch(one) else one))
    return named


class GradScaler:
    """Scales the loss so that small gradients of 16 bits are not 0, and finds the scale by itself.

    The rules of ``torch.amp.GradScaler``, and its methods: the scale begins at 2^16, doubles after 2000 clean
    steps in a row unless that is not finite, and halves where a gradient is not finite, whose step is left
    out. What was not finite in the last step, :attr:`found` tells by name.

    ::

        scaler = GradScaler()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)              # only where gradients are clipped
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Without an optimizer of PyTorch: multiply by :meth:`get_scale`, give ``unscale_`` the gradients (tensors,
    arrays, a dict of either), and take the step if :meth:`may_step`.

    Args:
        init_scale: the first scale, finite and at least 0.
        growth_factor: above 1.
        backoff_factor: above 0 and below 1.
        growth_interval: clean steps before the scale grows, at least 1.
        enabled: if not, nothing is scaled and all steps are taken.
        device: as in :func:`scan`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        device: str | None = None,
    ) -> None:
        self._native = _native.GradScaler((init_scale, growth_factor, backoff_factor, growth_interval, 0))
        self._enabled = enabled
        self._device = device
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = itertools.count()
        self._unscaled: set[int] = set()
        self.found: list[tuple[str, Scanned]] = []
        """What was not finite in the gradients that were unscaled since the last update."""

    def scale(self, outputs: Any) -> Any:
        """The loss times the scale; of a list or tuple each."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        return outputs * self.get_scale()

    def unscale_(self, optimizer: Any, *, key: int = 0) -> None:
        """Divides gradients by the scale, in place, and notes whether all were finite.

        Args:
            optimizer: one of PyTorch's, or gradients as :func:`clip_grad_norm_` takes them.
            key: of gradients, which optimizer they are for.

        Raises:
            RuntimeError: the second time since :meth:`update`, and after :meth:`step`.
        """
        if not self._enabled:
            return
        number, gradients = self._of(optimizer, key)
        tensors = _Tensors(gradients, self._device)
        found = self._native.unscale(tensors.device, number, tensors.tensors, tensors.stream)
        tensors.copy_back()
        self.found += [(name, Scanned(*what)) for name, what in found]
        self._unscaled.add(number)

    def note_unscaled(self, found_non_finite: bool, *, key: int = 0) -> None:
        """Notes that other code has unscaled gradients, and whether it found one that was not finite."""
        if self._enabled:
            self._native.note_unscaled(-key - 1 & 0xFFFF_FFFF, found_non_finite)

    def may_step(self, *, key: int = 0) -> bool:
        """Whether the step may be taken for which gradients were given to ``unscale_``.

        Raises:
            RuntimeError: they were not, or it is the second time.
        """
        return not self._enabled or self._native.step(-key - 1 & 0xFFFF_FFFF)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls ``optimizer.step`` unless a gradient is not finite; unscales before if nobody has.

        Returns:
            What that returns; ``None`` where the step is left out.

        Raises:
            RuntimeError: the second time since :meth:`update`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        number, _ = self._of(optimizer, 0)
        if number not in self._unscaled:
            self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs) if self._native.step(number) else None

    def update(self) -> None:
        """Chooses the scale of the next step.

        Raises:
            RuntimeError: no gradients were unscaled since the last one.
        """
        if self._enabled:
            self._native.update()
            self._unscaled.clear()
            self.found = []

    def get_scale(self) -> float:
        """The scale."""
        return self._native.state[0] if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, with the keys of PyTorch's."""
        if not self._enabled:
            return {}
        scale, growth_factor, backoff_factor, growth_interval, tracker = self._native.state
        return {"scale": scale, "growth_factor": growth_factor, "backoff_factor": backoff_factor,
                "growth_interval": growth_interval, "_growth_tracker": tracker}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up what :meth:`state_dict` gave, PyTorch's own as well.

        Raises:
            ValueError: a number in it makes no sense.
        """
        if not self._enabled:
            return
        self._native = _native.GradScaler((
            state_dict["scale"], state_dict["growth_factor"], state_dict["backoff_factor"],
            state_dict["growth_interval"], state_dict["_growth_tracker"],
        ))
        self._unscaled.clear()
        self.found = []

    def _of(self, optimizer: Any, key: int) -> tuple[int, list[tuple[str, Any]]]:
        """The number of an optimizer, and its gradients with their names."""
        groups = getattr(optimizer, "param_groups", None)
        if groups is None:
            return -key - 1 & 0xFFFF_FFFF, _named(optimizer)
        if optimizer not in self._numbers:
            self._numbers[optimizer] = next(self._count)
        number = self._numbers[optimizer]
        named = []
        for group, parameters in enumerate(groups):
            names = parameters.get("param_names")
            for index, parameter in enumerate(parameters["params"]):
                if parameter.grad is not None:
                    name = names[index] if names else f"group {group}, parameter {index}"
                    named.append((name, parameter.grad))
        return number, named
