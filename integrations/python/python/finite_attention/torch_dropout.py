"""The rule of :func:`finite_attention.dropout_mask`, where tensors of PyTorch are."""

from __future__ import annotations

import torch

from ._dropout import ROUNDS, threshold_of

Tensor = torch.Tensor
_LOW = 0xFFFF_FFFF


def dropout_mask_on(
    device: torch.device, rate: float, seed: int, offset: int, shape: tuple[int, int, int], batch: int
) -> Tensor:
    """The pairs that dropout keeps in one batch or packed sequence, bool ``[Hq, Sq, Sk]`` on a device."""
    threshold = threshold_of(rate)
    heads, queries, keys = shape
    seed, offset = seed & (1 << 64) - 1, offset & (1 << 64) - 1
    head, i, j = (torch.arange(size, dtype=torch.int64, device=device) for size in shape)
    head, i, j = head[:, None, None], i[None, :, None], j[None, None, :]
    counter = [
        (i // 16 * 8 + i % 8).expand(shape),
        (j // 16 * 4 + j % 8 // 2).expand(shape),
        (batch * heads + head & _LOW).expand(shape),
        torch.full((), offset & _LOW, dtype=torch.int64, device=device).expand(shape),
    ]
    words = _philox(counter, (seed & _LOW, seed >> 32 ^ offset >> 32))
    number = (i // 8 % 2 * 4 + j // 8 % 2 * 2 + j % 2).expand(shape)
    word = torch.stack(words).gather(0, (number // 2)[None])[0]
    return (word >> (number % 2 * 16) & 0xFFFF) >= threshold


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product of two words of 32 bits, in signed 64-bit integers."""
    upper, lower = word * (factor >> 16), word * (factor & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, ((upper << 16) + lower) & _LOW


def _philox(words: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox4x32 of words in 64-bit integers."""
    key0, key1 = key
    for _ in range(ROUNDS):
        (high0, low0), (high2, low2) = _product(words[0], 0xD251_1F53), _product(words[2], 0xCD9E_8D57)
        words = [high2 ^ words[1] ^ key0, low2, high0 ^ words[3] ^ key1, low0]
        key0, key1 = key0 + 0x9E37_79B9 & _LOW, key1 + 0xBB67_AE85 & _LOW
    return words
