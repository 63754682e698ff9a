"""Attention and its gradients, of arrays and of tensors alike."""

from __future__ import annotations

from typing import Any, Sequence

from . import _host
from ._interchange import adopt, adopted, is_torch
from ._options import Options, is_top_left, window_sides

__all__ = ["attention", "attention_backward"]

Window = Sequence["int | None"]


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: Window | None = None,
    alignment: str = "bottom-right",
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out_dtype: Any = None,
    return_lse: bool = False,
    deterministic: bool = False,
    num_splits: int | None = None,
    pack_gqa: bool | None = None,
    precision: str | None = None,
    device: str | None = None,
) -> Any:
    """Exact attention, ``o = softmax(scale * q k^T + bias, where visible) v``.

    Arrays of NumPy are copied to ``device`` and back. Tensors of PyTorch on a GPU are worked on where they
    are, in the order of the current stream, and their gradients are PyTorch's to ask for: ``o.backward(do)``.
    Tensors of PyTorch on the host go the way of arrays, and have gradients all the same. Other arrays with
    ``__dlpack__`` (CuPy, JAX) are taken without a copy, and results are arrays of their library.

    Args:
        q: ``[B, Sq, Hq, D]`` of bf16, f16 or f32; packed ``[Tq, Hq, D]``. D is 1 to 256.
        k: ``[B, Sk, Hk, D]``, packed ``[Tk, Hk, D]``. Hq is a multiple of Hk; query head h uses key head
            ``h // (Hq // Hk)``.
        v: ``[B, Sk, Hk, Dv]``, packed ``[Tk, Hk, Dv]``.
        causal: query i sees the keys ``j <= i + Sk - Sq`` alone.
        window: ``(left, right)``, each a number of keys or ``None`` for all: query i sees the keys from
            ``i + Sk - Sq - left`` to ``i + Sk - Sq + right``. Beside ``causal`` a key must be visible under
            both.
        alignment: ``"bottom-right"``, as above, or ``"top-left"``, which puts i in the place of
            ``i + Sk - Sq`` (the rule of PyTorch's ``is_causal``).
        scale: what ``q k^T`` is multiplied by; ``D ** -0.5`` if ``None``.
        softcap: scores s become ``softcap * tanh(s / softcap)``, before bias and mask.
        bias: added to scores, ``[B|1, Hq|Hk|1, Sq|1, Sk|1]`` or the last of these dimensions, of q's dtype or
            f32. ``-inf`` hides a key. Packed: ``[sequences|1, heads, most queries, most keys]``.
        mask: bool of such a shape, true where a query sees a key.
        alibi_slopes: f32 ``[Hq]`` or ``[B, Hq]``: ``slope * |i + Sk - Sq - j|`` is subtracted from scores.
        sinks: f32 ``[Hq]``: ``exp(sink)`` is added to the denominator of the softmax.
        dropout: the share of probabilities that is dropped, rounded to a multiple of 2^-16; which ones is
            told by seed, offset, batch, head, query and key alone (:func:`finite_attention.dropout_mask`).
        seed: any integer. Tensors of PyTorch need none: theirs then comes from PyTorch's generator of the
            tensors' device.
        offset: which numbers of the seed, such as the count of calls before.
        cu_seqlens_q: int32 ``[sequences + 1]``, where the sequences packed in q begin, and Tq.
        cu_seqlens_k: the same of k.
        max_seqlen_q: no sequence of q is longer. If ``None`` it is looked up in ``cu_seqlens_q``, for which
            a GPU is waited for.
        max_seqlen_k: the same of k.
        out_dtype: that of o: q's, or f32.
        return_lse: whether lse is returned, too.
        deterministic: of gradients by PyTorch: the same bits from run to run. The forward always is.
        num_splits: how many ranges of keys are worked on side by side; as many as pay off if ``None``.
        pack_gqa: whether query heads of a key head are worked on together; where it pays off if ``None``.
        precision: how products of f32 are made, of gradients too: ``"fma"``, by fused multiply-adds, or
            ``"fast3"``, on tensor cores, each number as the sum of two f16; what takes less time if ``None``. It is
            ``"fma"`` all the same where no kernel does that, and where numbers are such that it would not be as exact.
        device: where arrays of the host go: ``emulated:sm_90a``, ``emulated:sm_80``, ``cuda:0`` and so on;
            :func:`finite_attention.default_device` if ``None``. Of tensors on a GPU at most that GPU, or
            ``cuda:N:sm_80`` for the kernels of another target.

    Returns:
        o ``[B, Sq, Hq, Dv]``, packed ``[Tq, Hq, Dv]``; with ``return_lse`` a pair of it and lse, f32
        ``[B, Hq, Sq]``, packed ``[Hq, Tq]``: the logarithm of each row's softmax denominator. A query that
        sees no key has o = 0 and lse = -inf.

    Raises:
        ValueError: an argument is wrong; the text names it, what was expected and what came.
        TypeError: an argument is of no type that can be used.
        DeviceError: the device is not there or has failed.
        MemoryError: memory of the device, or of the host, is used up.
    """
    left, right = window_sides(window)
    options = Options(causal, is_top_left(alignment), left, right, scale, softcap, dropout, seed, offset,
                      max_seqlen_q, max_seqlen_k, deterministic, num_splits, pack_gqa, precision)
    q, give_back = adopt("q", q)
    k, v = adopt("k", k)[0], adopt("v", v)[0]
    scores = _scores(bias, mask, alibi_slopes, sinks)
    if is_torch(q):
        from . import torch_ops

        offsets = (adopted("cu_seqlens_q", cu_seqlens_q), adopted("cu_seqlens_k", cu_seqlens_k))
        results: Any = torch_ops.forward((q, k, v, *offsets), scores, options, out_dtype, device)
    else:
        _all_arrays(q, k, v)
        inputs = _host.Inputs(q, k, v, cu_seqlens_q, cu_seqlens_k)
        results = _host.forward(inputs, scores, options, out_dtype, device)
    o, lse = results
    return (give_back(o), give_back(lse)) if return_lse else give_back(o)


def attention_backward(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    dlse: Any = None,
    causal: bool = False,
    window: Window | None = None,
    alignment: str = "bottom-right",
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    grad_dtype: Any = None,
    return_dbias: bool = False,
    return_dsinks: bool = False,
    deterministic: bool = False,
    num_splits: int | None = None,
    pack_gqa: bool | None = None,
    precision: str | None = None,
    device: str | None = None,
) -> tuple[Any, ...]:
    """The gradients of :func:`attention`, from what it was given and what it gave.

    Tensors of PyTorch need it only outside of autograd. Other arguments as there.

    Args:
        do: the gradient of o, of its shape and q's dtype.
        o: what the forward gave, in q's dtype or f32.
        lse: what the forward gave.
        dlse: the gradient of lse, f32 and of its shape, if it has one.
        grad_dtype: that of dq, dk and dv: q's, or f32.
        return_dbias: whether the gradient of the bias is returned, in the bias's shape and dtype, summed over
            broadcast dimensions.
        return_dsinks: whether the gradient of the sinks is returned.
        deterministic: the same bits from run to run.

    Returns:
        ``(dq, dk, dv)``, and behind them dbias and dsinks, as far as they are asked for.

    Raises:
        As :func:`attention`.
    """
    left, right = window_sides(window)
    options = Options(causal, is_top_left(alignment), left, right, scale, softcap, dropout, seed, offset,
                      max_seqlen_q, max_seqlen_k, deterministic, num_splits, pack_gqa, precision)
    q, give_back = adopt("q", q)
    k, v = adopt("k", k)[0], adopt("v", v)[0]
    outputs = (adopt("o", o)[0], adopt("lse", lse)[0])
    do, dlse = adopt("do", do)[0], adopted("dlse", dlse)
    scores = _scores(bias, mask, alibi_slopes, sinks)
    wanted = _host.Wanted(grad_dtype, return_dbias, return_dsinks)
    if is_torch(q):
        from . import torch_ops

        offsets = (adopted("cu_seqlens_q", cu_seqlens_q), adopted("cu_seqlens_k", cu_seqlens_k))
        inputs = (q, k, v, *offsets)
        found: Any = torch_ops.backward(do, dlse, inputs, outputs, scores, options, wanted, device)
    else:
        _all_arrays(q, k, v, do, *outputs)
        of_host = _host.Inputs(q, k, v, cu_seqlens_q, cu_seqlens_k)
        found = _host.backward(do, dlse, of_host, outputs, scores, options, wanted, device)
    asked = (True, True, True, return_dbias, return_dsinks)
    return tuple(give_back(gradient) for gradient, is_asked in zip(found, asked) if is_asked)


def _scores(bias: Any, mask: Any, alibi_slopes: Any, sinks: Any) -> _host.Scores:
    """What scores have beside q and k, as arrays or tensors."""
    return _host.Scores(adopted("bias", bias), adopted("mask", mask), adopted("alibi_slopes", alibi_slopes),
                        adopted("sinks", sinks))


def _all_arrays(first: Any, *others: Any) -> None:
    """Beside an array of NumPy there are no tensors of PyTorch."""
    for other in others:
        if is_torch(other):
            raise ValueError(f"q: expected a tensor of PyTorch like the others, got {type(first).__name__}")
