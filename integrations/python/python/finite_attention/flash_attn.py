"""The functions of ``flash_attn``, with its signatures and its rules.

Differences: tensors of the host run, too (on the emulator, with all its checks), and so does f32; a query
that sees no key has lse -inf where flash_attn has +inf; lse is differentiable; ``softcap`` and dropout go
together. With ``return_attn_probs`` the third result is ``None`` without dropout; with dropout it is made by
plain PyTorch, for tests: ``exp(score - row's largest)``, negative where it was dropped.
"""

from __future__ import annotations

from typing import Any

import torch

from ._attention import attention
from .torch_dropout import dropout_mask_on

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]

Tensor = torch.Tensor


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of ``q [B, Sq, Hq, D]``, ``k [B, Sk, Hk, D]`` and ``v [B, Sk, Hk, Dv]``.

    Args:
        dropout_p: the share of probabilities that is dropped.
        softmax_scale: ``D ** -0.5`` if ``None``.
        causal: aligned at the bottom right: query i sees the keys ``j <= i + Sk - Sq``.
        window_size: ``(left, right)`` keys beside ``i + Sk - Sq``; -1 for all.
        softcap: 0 for none.
        alibi_slopes: f32 ``[Hq]`` or ``[B, Hq]``.
        deterministic: gradients are the same bits from run to run.
        return_attn_probs: whether ``(o, lse, probabilities)`` is returned.

    Returns:
        o ``[B, Sq, Hq, Dv]``; lse is f32 ``[B, Hq, Sq]``.

    Raises:
        ValueError: an argument is wrong; the text names it, what was expected and what came.
    """
    said = _said(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _call(q, k, v, said, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """:func:`flash_attn_func` of ``kv [B, Sk, 2, Hk, D]``, which is not copied."""
    k, v = _unbound("kv", kv, 2, 5)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """:func:`flash_attn_func` of ``qkv [B, S, 3, H, D]``, which is not copied."""
    q, k, v = _unbound("qkv", qkv, 3, 5)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention of packed sequences: ``q [Tq, Hq, D]``, ``k [Tk, Hk, D]``, ``v [Tk, Hk, Dv]``.

    Args:
        cu_seqlens_q: int32 ``[sequences + 1]``: where sequences of q begin, and Tq.
        cu_seqlens_k: the same of k.
        max_seqlen_q: no sequence of q is longer.
        max_seqlen_k: no sequence of k is longer.
        block_table: must be ``None``: there are no paged keys here.

    The others, results and errors as of :func:`flash_attn_func`, with lse ``[Hq, Tq]``.
    """
    if block_table is not None:
        raise NotImplementedError("block_table: expected None, since keys cannot be paged, got a tensor")
    said = _said(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    said |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
             "max_seqlen_q": int(max_seqlen_q), "max_seqlen_k": int(max_seqlen_k)}
    return _call(q, k, v, said, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """:func:`flash_attn_varlen_func` of ``kv [Tk, 2, Hk, D]``, which is not copied."""
    k, v = _unbound("kv", kv, 2, 4)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """:func:`flash_attn_varlen_func` of ``qkv [T, 3, H, D]``, which is not copied."""
    q, k, v = _unbound("qkv", qkv, 3, 4)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def _unbound(argument: str, tensor: Tensor, count: int, rank: int) -> tuple[Tensor, ...]:
    if tensor.dim() != rank or tensor.shape[-3] != count:
        names = f"[{'batch, ' if rank == 5 else ''}row, {count}, head, column]"
        raise ValueError(f"{argument}: expected {rank} dimensions {names}, got shape {list(tensor.shape)}")
    return tensor.unbind(-3)


def _said(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic):
    left, right = (None if int(side) < 0 else int(side) for side in window_size)
    return {
        "dropout": dropout_p, "scale": softmax_scale, "causal": causal, "window": (left, right),
        "softcap": softcap if softcap > 0.0 else None, "alibi_slopes": alibi_slopes,
        "deterministic": deterministic,
    }


def _call(q: Tensor, k: Tensor, v: Tensor, said: dict[str, Any], return_attn_probs: bool) -> Any:
    if not return_attn_probs:
        return attention(q, k, v, **said)
    if said["dropout"] > 0.0:
        # Replayed below, so that it has to be known.
        said |= {"seed": int(torch.randint(0, 1 << 62, ())), "offset": 0}
    o, lse = attention(q, k, v, return_lse=True, **said)
    with torch.no_grad():
        probabilities = _probabilities(q, k, said) if said["dropout"] > 0.0 else None
    return o, lse, probabilities


def _probabilities(q: Tensor, k: Tensor, said: dict[str, Any]) -> Tensor:
    """``exp(score - row's largest)``, negative where dropped: ``[B, Hq, Sq, Sk]``, 0 behind a sequence."""
    slopes = said["alibi_slopes"]
    if "cu_seqlens_q" not in said:
        return _probabilities_of(q, k, slopes, said, first_batch=0)
    lengths = [said[name].diff().tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    found = q.new_zeros(len(lengths[0]), q.shape[-2], said["max_seqlen_q"], said["max_seqlen_k"])
    for index, (rows, keys) in enumerate(zip(q.split(lengths[0]), k.split(lengths[1]))):
        of_heads = slopes[index] if slopes is not None and slopes.dim() == 2 else slopes
        of_sequence = _probabilities_of(rows[None], keys[None], of_heads, said, index)
        found[index, :, : rows.shape[0], : keys.shape[0]] = of_sequence[0]
    return found


def _probabilities_of(
    q: Tensor, k: Tensor, slopes: Tensor | None, said: dict[str, Any], first_batch: int
) -> Tensor:
    """Those of the batches ``q`` ``[B, Sq, Hq, D]``, the first of which dropout knows by its number."""
    scores = _scores(q, k, slopes, said)
    largest = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    numbers = (said["dropout"], said["seed"], said["offset"])
    kept = dropout_mask_on(q.device, *numbers, tuple(scores.shape), first_batch)
    unnormalised = scores.sub_(largest).exp_().to(q.dtype)
    return torch.where(kept, unnormalised, -unnormalised)


def _scores(q: Tensor, k: Tensor, slopes: Tensor | None, said: dict[str, Any]) -> Tensor:
    """Scores in f32, ``[B, Hq, Sq, Sk]``, -inf where a query sees no key."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scale = said["scale"] if said["scale"] is not None else q.shape[-1] ** -0.5
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()).mul_(scale)
    if said["softcap"]:
        scores = (scores / said["softcap"]).tanh() * said["softcap"]
    i = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    if slopes is not None:
        scores = scores - slopes[..., None, None] * (i - j).abs()
    left, right = said["window"]
    hidden = torch.zeros(i.shape[0], j.shape[1], dtype=torch.bool, device=q.device)
    if left is not None:
        hidden |= j < i - left
    if right is not None:
        hidden |= j > i + right
    if said["causal"]:
        hidden |= j > i
    return scores.masked_fill_(hidden, float("-inf"))
