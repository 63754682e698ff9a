"""Multi-scale deformable attention (Zhu et al. 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _native
from ._host import Array, Transfer, dtype_of
from ._interchange import adopt, adopted, is_torch

__all__ = ["ms_deform_attn", "ms_deform_attn_backward"]

_LOCATIONS = "[batch, query, head, level, point, 2]"
_WEIGHTS = "[batch, query, head, level, point]"
_VALUE = "[batch, cell, head, channel]"


def ms_deform_attn(
    value: Any,
    spatial_shapes: Any,
    sampling_locations: Any,
    attention_weights: Any,
    *,
    padding: str = "zeros",
    align_corners: bool = False,
    deterministic: bool = False,
    device: str | None = None,
) -> Any:
    """Multi-scale deformable attention: for each query and head the sum over points of weight times sample.

    A location (x, y) of a level of h x w cells is at ``x * w - 1/2, y * h - 1/2`` of its cells, with
    ``align_corners`` at ``x * (w - 1), y * (h - 1)``; the sample is bilinear. Arrays and tensors as in
    :func:`finite_attention.attention`; of tensors of PyTorch value, locations and weights have gradients.

    Args:
        value: ``[B, cells, H, C]`` of bf16, f16 or f32: the cells of all levels, row after row.
        spatial_shapes: ``[L, 2]``, height and width of each level, integers. A tensor on a GPU is waited for:
            a list or a tensor on the host is not.
        sampling_locations: ``[B, N, H, L, P, 2]`` (x, y), f32 or of value's dtype.
        attention_weights: ``[B, N, H, L, P]``, f32 or of value's dtype.
        padding: what is outside of a level: ``"zeros"``, or ``"border"``, the nearest cell.
        align_corners: whether 0 and 1 are the centres of the outermost cells, not their outer edges.
        deterministic: of gradients by PyTorch: the same bits from run to run.
        device: as in :func:`finite_attention.attention`.

    Returns:
        ``[B, N, H, C]`` of value's dtype.

    Raises:
        As :func:`finite_attention.attention`.
    """
    tensors, give_back = _adopted(value, spatial_shapes, sampling_locations, attention_weights)
    value, shapes, locations, weights = tensors
    if is_torch(value):
        from . import torch_msda

        return give_back(torch_msda.forward(value, shapes, locations, weights, padding, align_corners,
                                            deterministic, device))
    return give_back(forward(value, shapes, locations, weights, padding, align_corners, device))


def ms_deform_attn_backward(
    do: Any,
    value: Any,
    spatial_shapes: Any,
    sampling_locations: Any,
    attention_weights: Any,
    *,
    padding: str = "zeros",
    align_corners: bool = False,
    deterministic: bool = False,
    device: str | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of :func:`ms_deform_attn`, each with the shape and the dtype of what it is of.

    Args:
        do: the gradient of the output, of its shape and dtype.

    Returns:
        ``(dvalue, dlocations, dweights)``.

    Raises:
        As :func:`finite_attention.attention`.
    """
    tensors, give_back = _adopted(value, spatial_shapes, sampling_locations, attention_weights)
    value, shapes, locations, weights = tensors
    do = adopt("do", do)[0]
    if is_torch(value):
        from . import torch_msda

        found: Any = torch_msda.backward(do, value, shapes, locations, weights, padding, align_corners,
                                         deterministic, device)
    else:
        found = backward(do, value, shapes, locations, weights, padding, align_corners, deterministic,
                         device)
    d_value, d_locations, d_weights = (give_back(gradient) for gradient in found)
    return d_value, d_locations, d_weights


def _adopted(value: Any, spatial_shapes: Any, locations: Any, weights: Any) -> tuple[tuple[Any, ...], Any]:
    """``(value, shapes, locations, weights)`` as arrays or tensors, and what makes results the caller's."""
    value, give_back = adopt("value", value)
    locations, weights = adopt("locations", locations)[0], adopt("weights", weights)[0]
    check_ranks(value, locations, weights)
    has_memory = hasattr(spatial_shapes, "__dlpack__")
    shapes = levels(adopted("shapes", spatial_shapes) if has_memory else spatial_shapes)
    return (value, shapes, locations, weights), give_back


def levels(spatial_shapes: Any) -> list[list[int]]:
    """Height and width of each level, as integers."""
    shapes = spatial_shapes.tolist() if hasattr(spatial_shapes, "tolist") else spatial_shapes
    try:
        return [[int(height), int(width)] for height, width in shapes]
    except (TypeError, ValueError):
        raise ValueError(f"shapes: expected [[height, width], ..], got {spatial_shapes!r}") from None


def check_ranks(value: Any, locations: Any, weights: Any) -> None:
    """What shapes of outputs are made from is there."""
    for argument, tensor, rank, names in (
        ("value", value, 4, _VALUE),
        ("locations", locations, 6, _LOCATIONS),
        ("weights", weights, 5, _WEIGHTS),
    ):
        if tensor.ndim != rank:
            raise ValueError(f"{argument}: expected {rank} dimensions {names}, got {tensor.ndim}")
    if locations.shape[-1] != 2:
        raise ValueError(f"locations: expected 2 coordinates (x, y), got {locations.shape[-1]}")


def is_border(padding: str) -> bool:
    """Whether samples outside take the nearest cell."""
    if padding not in ("zeros", "border"):
        raise ValueError(f"padding: expected 'zeros' or 'border', got {padding!r}")
    return padding == "border"


def check_levels(argument: str, got: int, shapes: list[list[int]]) -> None:
    """There are as many levels as shapes."""
    if got != len(shapes):
        raise ValueError(f"{argument}: expected level {len(shapes)} like shapes, got {got}")


def _problem(
    transfer: Transfer, value: Array, shapes: list[list[int]], locations: Array, weights: Array,
    padding: str, align_corners: bool,
) -> _native.MsdaProblem:
    check_levels("locations", locations.shape[3], shapes)
    check_levels("weights", weights.shape[3], shapes)
    return (
        transfer.put(value), shapes, transfer.put(locations.reshape(*locations.shape[:3], -1)),
        transfer.put(weights.reshape(*weights.shape[:3], -1)), locations.shape[4], is_border(padding),
        align_corners,
    )


def forward(
    value: Array, shapes: list[list[int]], locations: Array, weights: Array, padding: str,
    align_corners: bool, device: str | None,
) -> Array:
    """The forward pass of arrays."""
    transfer = Transfer(device)
    problem = _problem(transfer, value, shapes, locations, weights, padding, align_corners)
    shape = (value.shape[0], locations.shape[1], value.shape[2], value.shape[3])
    o = transfer.room(shape, dtype_of("value", value.dtype))
    transfer.device.msda_forward(problem, o.tensor, 0)
    transfer.device.synchronize()
    return o.array()


def backward(
    do: Array, value: Array, shapes: list[list[int]], locations: Array, weights: Array, padding: str,
    align_corners: bool, deterministic: bool, device: str | None,
) -> tuple[Array, Array, Array]:
    """The backward pass of arrays."""
    if do.dtype != value.dtype:
        raise ValueError(f"do: expected dtype {value.dtype.name} like value, got {do.dtype.name}")
    transfer = Transfer(device)
    problem = _problem(transfer, value, shapes, locations, weights, padding, align_corners)
    rooms = [
        transfer.room(value.shape, dtype_of("value", value.dtype)),
        transfer.room((*locations.shape[:3], int(np.prod(locations.shape[3:]))),
                      dtype_of("locations", locations.dtype)),
        transfer.room((*weights.shape[:3], int(np.prod(weights.shape[3:]))),
                      dtype_of("weights", weights.dtype)),
    ]
    d_value, d_locations, d_weights = rooms
    gradients = (transfer.put(do), d_value.tensor, d_locations.tensor, d_weights.tensor)
    transfer.device.msda_backward(problem, gradients, deterministic, transfer.allocate, 0)
    transfer.device.synchronize()
    return (d_value.array(), d_locations.array().reshape(locations.shape),
            d_weights.array().reshape(weights.shape))
