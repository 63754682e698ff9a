"""Attention in plain NumPy and f64, written down once more: what results are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Reference:
    """What a forward and a backward pass give."""

    o: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray | None
    dsinks: np.ndarray | None


def visible(sq: int, sk: int, causal: bool, window: Any, top_left: bool) -> np.ndarray:
    """``[Sq, Sk]``, true where a query sees a key."""
    i = np.arange(sq)[:, None] + (0 if top_left else sk - sq)
    j = np.arange(sk)[None, :]
    seen = np.ones((sq, sk), bool)
    if causal:
        seen &= j <= i
    left, right = window or (None, None)
    if left is not None:
        seen &= j >= i - left
    if right is not None:
        seen &= j <= i + right
    return seen


def _over_heads(tensor: Any, heads: int, shape: tuple[int, ...]) -> np.ndarray:
    """Of ``[B|1, Hq|Hk|1, Sq|1, Sk|1]``, ``[B, Hq, Sq, Sk]``."""
    tensor = np.asarray(tensor)
    tensor = tensor.reshape((1,) * (4 - tensor.ndim) + tensor.shape)
    if tensor.shape[1] not in (1, heads):
        tensor = np.repeat(tensor, heads // tensor.shape[1], axis=1)
    return np.broadcast_to(tensor, shape)


def _summed(tensor: np.ndarray, like: Any, heads: int) -> np.ndarray:
    """The sum over all that was broadcast."""
    like = np.asarray(like)
    shape = (1,) * (4 - like.ndim) + like.shape
    if shape[1] not in (1, heads):
        tensor = tensor.reshape(tensor.shape[0], shape[1], -1, *tensor.shape[2:]).sum(2)
    axes = tuple(axis for axis in range(4) if shape[axis] == 1 and tensor.shape[axis] != 1)
    return tensor.sum(axes, keepdims=True).reshape(like.shape)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, do: np.ndarray, *, dlse: Any = None, causal: bool = False,
    window: Any = None, top_left: bool = False, scale: float | None = None, softcap: float | None = None,
    bias: Any = None, mask: Any = None, alibi_slopes: Any = None, sinks: Any = None, kept: Any = None,
    keep_scale: float = 1.0, rounded: Any = None,
) -> Reference:
    """All of section 1 of semantics.md. With ``rounded`` (a dtype) scores and probabilities are rounded to
    it, as by attention that is not fused, and all is summed in f32."""
    work = np.float64 if rounded is None else np.float32

    def low(x: np.ndarray) -> np.ndarray:
        return x if rounded is None else x.astype(rounded).astype(work)

    q, k, v, do = (np.moveaxis(np.asarray(x, work), 2, 1) for x in (q, k, v, do))
    (batch, heads, sq, d), (_, key_heads, sk, _) = q.shape, k.shape
    group = heads // max(key_heads, 1)
    k_of, v_of = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = work(d**-0.5 if scale is None else scale)
    raw = low(scale * q @ k_of.swapaxes(2, 3))
    s = raw if softcap is None else softcap * np.tanh(raw / softcap)
    slope_of_cap = np.ones_like(s) if softcap is None else 1 - (s / softcap) ** 2
    shape = (batch, heads, sq, sk)
    if bias is not None:
        s = s + _over_heads(np.asarray(bias, work), heads, shape)
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes, work)
        slopes = slopes[None, :, None, None] if slopes.ndim == 1 else slopes[:, :, None, None]
        i = np.arange(sq)[:, None] + (0 if top_left else sk - sq)
        s = s - slopes * np.abs(i - np.arange(sk)[None, :])
    seen = np.broadcast_to(visible(sq, sk, causal, window, top_left), shape)
    if mask is not None:
        seen = seen & _over_heads(mask, heads, shape)
    s = np.where(seen, low(s), -np.inf)
    most = s.max(-1, keepdims=True, initial=-np.inf)
    alive = most > -np.inf
    with np.errstate(divide="ignore"):
        total = np.exp(s - np.where(alive, most, 0)).sum(-1, keepdims=True)
        lse = np.where(alive, np.where(alive, most, 0) + np.log(total), -np.inf)
        if sinks is not None:
            sink = np.asarray(sinks, work)[None, :, None, None]
            lse = np.where(alive, np.logaddexp(lse, sink), lse)
    p = np.where(alive, np.exp(s - np.where(alive, lse, 0)), 0)
    dropped = low(p) if kept is None else low(p * kept * work(keep_scale))
    o = dropped @ v_of
    delta = (do * o).sum(-1, keepdims=True)
    if dlse is not None:
        delta = delta - np.asarray(dlse, work)[..., None]
    dp = do @ v_of.swapaxes(2, 3)
    ds = low(p * ((dp if kept is None else dp * kept * work(keep_scale)) - delta))
    dbias = None if bias is None else _summed(ds, bias, heads)
    dsinks = None
    if sinks is not None:
        of_sink = np.where(alive, np.exp(np.asarray(sinks, work)[None, :, None, None]
                                         - np.where(alive, lse, 0)), 0)
        dsinks = -(of_sink * delta).sum((0, 2, 3))
    ds = ds * slope_of_cap
    dq = scale * ds @ k_of
    of_group = lambda x: x.reshape(batch, key_heads, group, *x.shape[2:]).sum(2)  # noqa: E731
    dk, dv = of_group(scale * ds.swapaxes(2, 3) @ q), of_group(dropped.swapaxes(2, 3) @ do)
    rows = [np.moveaxis(x, 1, 2) for x in (o, dq, dk, dv)]
    return Reference(rows[0], lse[..., 0], *rows[1:], dbias, dsinks)


def allowed(naive: np.ndarray, exact: np.ndarray, dtype: Any) -> float:
    """The rule of section 3: twice the error of attention that is not fused, and twice that of a rounding."""
    if exact.size == 0:
        return 0.0
    rounding = np.abs((exact.astype(dtype) + dtype(0.3)).astype(dtype).astype(np.float64)
                      - np.asarray(0.3, dtype).astype(np.float64) - exact)
    return 2 * np.abs(naive - exact).max() + 2 * rounding.max()


def assert_close(name: str, got: np.ndarray, naive: np.ndarray, exact: np.ndarray, dtype: Any) -> None:
    """No element is exempt, and NaN fails."""
    assert got.shape == exact.shape, f"{name}: {got.shape} {exact.shape}"
    if got.size == 0:
        return
    error, most = np.abs(got.astype(np.float64) - exact).max(), allowed(naive, exact, dtype)
    assert error <= most, f"{name}: {error} > {most}"


def assert_lse(got: np.ndarray, exact: np.ndarray) -> None:
    """Dead rows are -inf, and all others near."""
    assert got.shape == exact.shape and got.dtype == np.float32
    dead = exact == -np.inf
    assert np.array_equal(got == -np.inf, dead)
    error = np.abs(got[~dead] - exact[~dead])
    assert (error <= 2e-5 * np.maximum(1, np.abs(exact[~dead]))).all(), error.max()
