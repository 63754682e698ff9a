"""The operators of multi-scale deformable attention for PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from . import _msda
from .torch_host import name_of, to_numpy, to_torch
from .torch_ops import LIBRARY, NO_SECOND, _columns, _Gpu, _of_gpu, check_tensors, is_eager, register

Tensor = torch.Tensor

_PROBLEM = (
    "Tensor value, SymInt[] shapes, Tensor locations, Tensor weights, str padding, bool align_corners, "
    "bool deterministic, str? device"
)
LIBRARY.define(f"msda_forward({_PROBLEM}) -> Tensor")
LIBRARY.define(f"msda_backward(Tensor d_o, {_PROBLEM}) -> (Tensor, Tensor, Tensor)")


def forward(value: Tensor, shapes: list[list[int]], locations: Any, weights: Any, *options: Any) -> Tensor:
    """The forward pass, with its derivatives."""
    check_tensors("value", (("locations", locations), ("weights", weights)))
    if value.is_cuda and is_eager(value, locations, weights):
        return _Eager.apply(value, _flat(shapes), locations, weights, *options)
    return torch.ops.finite_attention.msda_forward(value, _flat(shapes), locations, weights, *options)


def backward(
    d_o: Any, value: Tensor, shapes: list[list[int]], locations: Any, weights: Any, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients."""
    check_tensors("value", (("locations", locations), ("weights", weights), ("do", d_o)))
    return torch.ops.finite_attention.msda_backward(d_o, value, _flat(shapes), locations, weights, *options)


def _flat(shapes: list[list[int]]) -> list[int]:
    return [size for shape in shapes for size in shape]


def _pairs(shapes: list[int]) -> list[list[int]]:
    return [list(pair) for pair in zip(shapes[::2], shapes[1::2])]


def _problem(value: Tensor, shapes: list[int], locations: Tensor, weights: Tensor, padding: str,
             align_corners: bool) -> tuple[Any, list[Tensor]]:
    """The problem on a GPU, and the tensors that it is of."""
    _msda.check_ranks(value, locations, weights)
    levels = _pairs(shapes)
    _msda.check_levels("locations", locations.shape[3], levels)
    _msda.check_levels("weights", weights.shape[3], levels)
    held = [_columns(value), locations.flatten(3).contiguous(), weights.flatten(3).contiguous()]
    on_gpu = [_of_gpu(tensor) for tensor in held]
    problem = (on_gpu[0], levels, on_gpu[1], on_gpu[2], locations.shape[4], _msda.is_border(padding),
               align_corners)
    return problem, held


def _out_shape(value: Tensor, locations: Tensor) -> tuple[int, ...]:
    return value.shape[0], locations.shape[1], value.shape[2], value.shape[3]


def _forward_gpu(value, shapes, locations, weights, padding, align_corners, deterministic, device):
    gpu = _Gpu(device, value=value, locations=locations, weights=weights)
    problem, _held = _problem(value, shapes, locations, weights, padding, align_corners)
    o = value.new_empty(_out_shape(value, locations))
    gpu.device.msda_forward(problem, _of_gpu(o), gpu.stream)
    return o


def _backward_gpu(d_o, value, shapes, locations, weights, padding, align_corners, deterministic, device):
    gpu = _Gpu(device, value=value, do=d_o, locations=locations, weights=weights)
    if d_o.dtype != value.dtype:
        raise ValueError(f"do: expected dtype {name_of(value.dtype)} like value, got {name_of(d_o.dtype)}")
    problem, held = _problem(value, shapes, locations, weights, padding, align_corners)
    d_o = _columns(d_o)
    found = [tensor.new_empty(tensor.shape) for tensor in held]
    gradients = (_of_gpu(d_o), *(_of_gpu(tensor) for tensor in found))
    gpu.device.msda_backward(problem, gradients, deterministic, gpu.allocate, gpu.stream)
    return found[0], found[1].view(locations.shape), found[2].view(weights.shape)


def _forward_host(value, shapes, locations, weights, padding, align_corners, deterministic, device):
    _msda.check_ranks(value, locations, weights)
    arrays = (to_numpy(value), _pairs(shapes), to_numpy(locations), to_numpy(weights))
    return to_torch(_msda.forward(*arrays, padding, align_corners, device))


def _backward_host(d_o, value, shapes, locations, weights, padding, align_corners, deterministic, device):
    _msda.check_ranks(value, locations, weights)
    arrays = (to_numpy(d_o), to_numpy(value), _pairs(shapes), to_numpy(locations), to_numpy(weights))
    found = _msda.backward(*arrays, padding, align_corners, deterministic, device)
    return tuple(to_torch(gradient) for gradient in found)


def _forward_fake(value, shapes, locations, weights, padding, align_corners, deterministic, device):
    return value.new_empty(_out_shape(value, locations))


def _backward_fake(d_o, value, shapes, locations, weights, padding, align_corners, deterministic, device):
    return tuple(tensor.new_empty(tensor.shape) for tensor in (value, locations, weights))


class _Eager(torch.autograd.Function):
    """The operators with their derivatives, called at once."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        o = _forward_gpu(*inputs)
        _setup_context(ctx, inputs, o)
        return o

    @staticmethod
    def backward(ctx: Any, d_o: Tensor) -> tuple[Any, ...]:
        # Where somebody wants derivatives of these, the operator says that there are none.
        run = torch.ops.finite_attention.msda_backward if torch.is_grad_enabled() else _backward_gpu
        return _chained(ctx, d_o, run)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    value, shapes, locations, weights, *options = inputs
    ctx.save_for_backward(value, locations, weights)
    ctx.shapes, ctx.options = shapes, options


def _backward(ctx: Any, d_o: Tensor) -> tuple[Any, ...]:
    return _chained(ctx, d_o, torch.ops.finite_attention.msda_backward)


def _chained(ctx: Any, d_o: Tensor, run: Any) -> tuple[Any, ...]:
    value, locations, weights = ctx.saved_tensors
    d_value, d_locations, d_weights = run(d_o, value, ctx.shapes, locations, weights, *ctx.options)
    return d_value, None, d_locations, d_weights, None, None, None, None


register("msda_forward", (_forward_gpu, _forward_host, _forward_fake), (_backward, _setup_context))
register("msda_backward", (_backward_gpu, _backward_host, _backward_fake), NO_SECOND)
