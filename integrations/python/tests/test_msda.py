"""Multi-scale deformable attention against plain loops in f64, of arrays and of tensors."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import finite_attention as fa

SHAPES = [[5, 7], [3, 2]]


def sample(level: np.ndarray, x: float, y: float, padding: str, align: bool) -> np.ndarray:
    """Of ``[h, w, C]``, by the formula of section 5."""
    h, w, _ = level.shape
    px, py = (x * (w - 1), y * (h - 1)) if align else (x * w - 0.5, y * h - 0.5)
    if padding == "border":
        px, py = min(max(px, 0), w - 1), min(max(py, 0), h - 1)
    x0, y0 = int(np.floor(px)), int(np.floor(py))
    total = np.zeros(level.shape[2])
    for dy in (0, 1):
        for dx in (0, 1):
            cx, cy = x0 + dx, y0 + dy
            if 0 <= cx < w and 0 <= cy < h:
                total += level[cy, cx] * (1 - abs(px - cx)) * (1 - abs(py - cy))
    return total


def plain(value, locations, weights, padding, align):
    """The forward pass."""
    b, _, heads, c = value.shape
    o = np.zeros((b, locations.shape[1], heads, c))
    starts = np.cumsum([0] + [h * w for h, w in SHAPES])
    for at in np.ndindex(locations.shape[:-1]):
        batch, query, head, level, _ = at
        h, w = SHAPES[level]
        cells = value[batch, starts[level] : starts[level + 1], head].reshape(h, w, c)
        o[batch, query, head] += weights[at] * sample(cells, *locations[at], padding, align)
    return o


def drawn(dtype, seed=0):
    rng = np.random.default_rng(seed)
    value = rng.standard_normal((2, 41, 2, 6)).astype(dtype)
    locations = rng.uniform(-0.1, 1.1, (2, 4, 2, 2, 3, 2)).astype(np.float32)
    weights = rng.random((2, 4, 2, 2, 3)).astype(np.float32)
    return value, locations, weights


@pytest.mark.parametrize("dtype, most", [(np.float32, 2e-6), (ml_dtypes.bfloat16, 0.03), (np.float16, 4e-3)],
                         ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("align", [False, True])
def test_forward_is_the_formula(padding, align, dtype, most, device):
    value, locations, weights = drawn(dtype)
    o = fa.ms_deform_attn(value, np.array(SHAPES), locations, weights, padding=padding, align_corners=align,
                          device=device)
    expected = plain(value.astype(float), locations.astype(float), weights.astype(float), padding, align)
    assert o.dtype == dtype and np.abs(o.astype(float) - expected).max() < most


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_gradients_are_differences(padding, device):
    value, locations, weights = drawn(np.float32, 1)
    do = np.random.default_rng(2).standard_normal((2, 4, 2, 6)).astype(np.float32)
    found = fa.ms_deform_attn_backward(do, value, SHAPES, locations, weights, padding=padding, device=device,
                                       deterministic=True)
    inputs = [x.astype(float) for x in (value, locations, weights)]
    rng = np.random.default_rng(3)
    for which, gradient in enumerate(found):
        assert gradient.shape == inputs[which].shape
        for _ in range(6):
            at = tuple(rng.integers(size) for size in gradient.shape)
            sides = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in inputs]
                moved[which][at] += step
                sides.append((plain(*moved, padding, False) * do).sum())
            assert abs(gradient[at] - (sides[0] - sides[1]) / 2e-6) < 2e-3


@pytest.mark.parametrize("change, text", [
    ({"value": np.zeros((2, 40, 2, 6), np.float32)}, "value: expected rows 41 like shapes, got 40"),
    ({"spatial_shapes": [[5, 7]]}, "locations: expected level 1 like shapes, got 2"),
    ({"spatial_shapes": [5, 7]}, "shapes: expected [[height, width], ..], got [5, 7]"),
    ({"value": np.zeros((41, 2, 6), np.float32)}, "value: expected 4 dimensions [batch, cell, head, "),
    ({"padding": "reflect"}, "padding: expected 'zeros' or 'border', got 'reflect'"),
    ({"sampling_locations": np.zeros((2, 4, 2, 2, 3, 2))}, "locations: expected dtype bf16, f16 or f32"),
], ids=lambda value: None if not isinstance(value, str) else value.split(":")[0])
def test_a_wrong_argument_is_named(change, text):
    value, locations, weights = drawn(np.float32)
    arguments = {"value": value, "spatial_shapes": SHAPES, "sampling_locations": locations,
                 "attention_weights": weights}
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        fa.ms_deform_attn(**(arguments | change))


def test_tensors_have_gradients():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    arrays = drawn(np.float32)
    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    value, locations, weights = tensors
    o = fa.ms_deform_attn(value, torch.tensor(SHAPES), locations, weights, padding="border")
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, tensors, do)
    expected = fa.ms_deform_attn_backward(do.numpy(), arrays[0], SHAPES, *arrays[1:], padding="border")
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(found, expected))
    flat = [size for shape in SHAPES for size in shape]
    torch.library.opcheck(torch.ops.finite_attention.msda_forward.default,
                          (value, flat, locations, weights, "zeros", False, True, None))
