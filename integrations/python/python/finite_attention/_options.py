"""The options of attention, as Python has them and as the native module takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _native

_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Options:
    """What a pass is asked for beside its tensors; see :func:`finite_attention.attention`."""

    causal: bool = False
    top_left: bool = False
    left: int | None = None
    right: int | None = None
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    seed: int | None = None
    offset: int = 0
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    deterministic: bool = False
    num_splits: int | None = None
    pack_gqa: bool | None = None
    precision: str | None = None

    def native(self) -> _native.Options:
        """For the native module, which checks them."""
        dropout = None
        if self.dropout != 0.0:
            if self.seed is None:
                raise ValueError("seed: expected an integer, since the dropout rate is not 0, got None")
            dropout = (self.dropout, self.seed & _MASK_64, self.offset & _MASK_64)
        longest = None
        if self.max_seqlen_q is not None and self.max_seqlen_k is not None:
            longest = (_at_least_0("max_seqlen_q", self.max_seqlen_q),
                       _at_least_0("max_seqlen_k", self.max_seqlen_k))
        if self.num_splits is not None and not 0 <= self.num_splits < 1 << 32:
            raise ValueError(f"num_splits: expected a number of ranges of keys, got {self.num_splits}")
        return _native.Options(
            causal=self.causal,
            top_left=self.top_left,
            window=(self.left, self.right),
            scale=self.scale,
            softcap=self.softcap,
            dropout=dropout,
            deterministic=self.deterministic,
            num_splits=self.num_splits,
            pack_gqa=self.pack_gqa,
            precision=self.precision,
            longest=longest,
        )


def _at_least_0(argument: str, got: int) -> int:
    if got < 0:
        raise ValueError(f"{argument}: expected at least 0, got {got}")
    return got


def window_sides(window: Any) -> tuple[int | None, int | None]:
    """The two sides of a window, each ``None`` if it is open."""
    if window is None:
        return None, None
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(f"window: expected (left, right) or None, got {window!r}") from None
    return (None if left is None else int(left)), (None if right is None else int(right))


def is_top_left(alignment: str) -> bool:
    """Whether the diagonal begins at query 0 and key 0."""
    if alignment not in ("bottom-right", "top-left"):
        raise ValueError(f"alignment: expected 'bottom-right' or 'top-left', got {alignment!r}")
    return alignment == "top-left"


def check_rank(argument: str, rank: int, packed: bool) -> None:
    """That a tensor can have rows, heads and columns at all."""
    expected, names = (3, "[row, head, column]") if packed else (4, "[batch, row, head, column]")
    if rank != expected:
        raise ValueError(f"{argument}: expected {expected} dimensions {names}, got {rank}")


def check_together(cu_seqlens_q: Any, cu_seqlens_k: Any) -> None:
    """Offsets of packed sequences are there for q and k, or for neither."""
    for argument, this, other in (
        ("cu_seqlens_q", cu_seqlens_q, cu_seqlens_k),
        ("cu_seqlens_k", cu_seqlens_k, cu_seqlens_q),
    ):
        if this is None and other is not None:
            raise ValueError(f"{argument}: expected offsets, got None")
