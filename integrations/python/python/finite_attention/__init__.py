"""Exact attention and its gradients on NVIDIA GPUs, checked with no GPU at all.

Arrays of NumPy run on the checking emulator, tensors of PyTorch on their GPU::

    import numpy as np
    import finite_attention as fa
    q, k, v, do = np.random.default_rng(0).standard_normal((4, 1, 100, 4, 64)).astype(np.float32)
    o, lse = fa.attention(q, k, v, causal=True, return_lse=True)
    dq, dk, dv = fa.attention_backward(do, q, k, v, o, lse, causal=True)

The doors for PyTorch (``flash_attn_func`` and its kin, ``scaled_dot_product_attention``, ``ms_deform_attn``)
import it when they are first used; nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._anomaly import NonFiniteError, NonFiniteWarning, detect_anomaly
from ._attention import attention, attention_backward
from ._device import default_device, set_default_device
from ._dropout import dropout_mask
from ._msda import ms_deform_attn, ms_deform_attn_backward
from ._native import VERSION as __version__
from ._native import DeviceError
from ._training import Clipped, GradScaler, Scanned, clip_grad_norm_, scan

if TYPE_CHECKING:
    from .flash_attn import (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
    )
    from .sdpa import scaled_dot_product_attention

__all__ = [
    "Clipped",
    "DeviceError",
    "GradScaler",
    "NonFiniteError",
    "NonFiniteWarning",
    "Scanned",
    "__version__",
    "attention",
    "attention_backward",
    "clip_grad_norm_",
    "default_device",
    "detect_anomaly",
    "dropout_mask",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "ms_deform_attn",
    "ms_deform_attn_backward",
    "scaled_dot_product_attention",
    "scan",
    "set_default_device",
]


def __getattr__(name: str) -> Any:
    """What needs PyTorch, imported when it is first asked for."""
    if name == "scaled_dot_product_attention":
        from .sdpa import scaled_dot_product_attention

        return scaled_dot_product_attention
    if name in __all__ and name.startswith("flash_attn_"):
        from . import flash_attn

        return getattr(flash_attn, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
