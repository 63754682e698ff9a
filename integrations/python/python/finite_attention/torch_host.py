"""Tensors of PyTorch in the memory of the host, and the arrays that share it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

NAMES = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.int32: "int32",
    torch.bool: "bool",
}


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, as NumPy has it."""
    return NAMES.get(dtype) or str(dtype)[6:]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as an array; NumPy has no bf16 of its own."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The same memory as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
