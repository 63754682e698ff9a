"""``scaled_dot_product_attention`` with the signature and the rules of PyTorch's."""

from __future__ import annotations

import torch

from ._attention import attention

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What ``torch.nn.functional.scaled_dot_product_attention`` computes.

    Differences: all of it is fused, also with a mask that needs a gradient (which is summed in f32 over what
    it was broadcast over); a query that sees no key has 0 and gradients of 0; E and Ev are at most 256.
    Under autocast tensors are cast as PyTorch casts them for its own.

    Args:
        query: ``[N, ..., Hq, L, E]``, or without heads ``[N, L, E]``, or ``[L, E]``.
        key: ``[N, ..., H, S, E]``.
        value: ``[N, ..., H, S, Ev]``.
        attn_mask: ``[N, ..., Hq, L, S]`` or what can be broadcast to it: bool, true where a query sees a key,
            or of query's dtype or f32, which is added to scores.
        dropout_p: the share of probabilities that is dropped, whatever mode a module is in.
        is_causal: query i sees the keys ``j <= i``: aligned at the top left. Not beside ``attn_mask``.
        scale: ``E ** -0.5`` if ``None``.
        enable_gqa: whether Hq may be a multiple of H.

    Returns:
        ``[N, ..., Hq, L, Ev]``.

    Raises:
        ValueError: an argument is wrong; the text names it, what was expected and what came.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None beside is_causal, got a mask")
    query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    rank = query.dim()
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != rank or rank < 2:
            raise ValueError(f"{argument}: expected at least 2 dimensions, as many as query ({rank}), got "
                             f"{tensor.dim()}")
    heads, key_heads = (query.shape[-3], key.shape[-3]) if rank > 3 else (1, 1)
    if not enable_gqa and heads != key_heads and key_heads != 1:
        raise ValueError(f"key: expected heads {heads} like query, unless enable_gqa, got {key_heads}")
    batch = torch.broadcast_shapes(*(_batch(tensor) for tensor in (query, key, value)))
    q, k, v = (_with_rows(tensor, batch) for tensor in (query, key, value))
    bias = mask = None
    if attn_mask is not None:
        of_scores = _over_scores(attn_mask, batch, rank)
        bias, mask = (None, of_scores) if attn_mask.dtype == torch.bool else (of_scores, None)
    o = attention(q, k, v, causal=is_causal, alignment="top-left" if is_causal else "bottom-right",
                  scale=scale, bias=bias, mask=mask, dropout=dropout_p)
    o = o.transpose(1, 2)
    if rank > 3:
        return o.reshape(*batch, *o.shape[1:]) if rank > 4 else o
    return o.reshape(*batch, *o.shape[2:])


def _batch(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions in front of heads, rows and columns."""
    return tuple(tensor.shape[:-3] if tensor.dim() > 3 else tensor.shape[:-2])


def _with_rows(tensor: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """``[B, row, head, column]`` of a tensor of PyTorch's order."""
    if tensor.dim() <= 3:
        tensor = tensor.unsqueeze(-3)
    if tensor.shape[:-3] != batch:
        tensor = tensor.expand(*batch, *tensor.shape[-3:])
    if len(batch) != 1:
        tensor = tensor.reshape(-1, *tensor.shape[-3:])
    return tensor.transpose(1, 2)


def _over_scores(attn_mask: torch.Tensor, batch: tuple[int, ...], rank: int) -> torch.Tensor:
    """``[B|1, head, row, column]`` of a mask that broadcasts."""
    if rank <= 3:
        # Without heads: the dimension in front of rows is a batch.
        attn_mask = attn_mask.unsqueeze(-3) if attn_mask.dim() >= 2 else attn_mask
    if attn_mask.dim() > 3 and len(batch) != 1:
        attn_mask = attn_mask.expand(*batch, *attn_mask.shape[-3:])
        attn_mask = attn_mask.reshape(-1, *attn_mask.shape[-3:])
    return attn_mask


def _autocast(query, key, value, attn_mask):
    """Cast as PyTorch casts for its own operator where autocast is on."""
    kind = query.device.type
    if not torch.is_autocast_enabled(kind):
        return query, key, value, attn_mask
    dtype = torch.get_autocast_dtype(kind)
    query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(dtype)
    return query, key, value, attn_mask
