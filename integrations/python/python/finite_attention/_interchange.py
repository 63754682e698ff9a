"""Which library an array is of, and how arrays of others are taken: by DLPack."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable

import numpy as np

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3


def is_torch(tensor: Any) -> bool:
    """Whether it is a tensor of PyTorch; does not import it.

    torch.compile follows what is looked at here: ``sys.modules`` would be a guard of its own, and whole.
    """
    return hasattr(tensor, "__torch_function__")


def adopt(argument: str, array: Any) -> tuple[Any, Callable[[Any], Any]]:
    """An array of NumPy or a tensor of PyTorch with the same elements, and what makes of a result what the
    caller's library has.

    Memory of a host becomes an array of NumPy, that of a GPU a tensor of PyTorch, by DLPack and without a
    copy.

    Raises:
        TypeError: it is nothing of the kind.
        ValueError: its memory is of a kind that the library does not know.
    """
    if isinstance(array, np.ndarray) or is_torch(array):
        return array, _same
    if not hasattr(array, "__dlpack__"):
        raise TypeError(
            f"{argument}: expected an array of NumPy, a tensor of PyTorch, or an object with __dlpack__, "
            f"got {type(array).__name__}"
        )
    kind = int(array.__dlpack_device__()[0])
    if kind in (_CPU, _CUDA_HOST):
        # Not by DLPack, where NumPy has no bf16; what is on the host knows how to become an array.
        return np.asarray(array), _back(array)
    if kind != _CUDA:
        raise ValueError(f"{argument}: expected memory of a host or of a CUDA GPU, got DLPack's kind {kind}")
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ValueError(
            f"{argument}: expected PyTorch beside {type(array).__module__}, since results on a GPU are made "
            "in its memory; it cannot be imported"
        ) from error
    return torch.from_dlpack(array), _back(array)


def adopted(argument: str, array: Any) -> Any:
    """As :func:`adopt`, of what may be ``None``."""
    return None if array is None else adopt(argument, array)[0]


def _same(result: Any) -> Any:
    return result


def _back(array: Any) -> Callable[[Any], Any]:
    """Results become arrays of the library of this one, if that has a ``from_dlpack``."""
    name = type(array).__module__.partition(".")[0]
    # Arrays of JAX are of jaxlib, which has none.
    name = {"jaxlib": "jax"}.get(name, name)
    module = sys.modules.get(name)
    if name == "jax":
        module = importlib.import_module("jax.numpy")
        return lambda result: module.from_dlpack(result) if is_torch(result) else module.asarray(result)
    from_dlpack = getattr(module, "from_dlpack", None)
    return _same if from_dlpack is None else from_dlpack
