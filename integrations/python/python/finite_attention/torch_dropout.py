"""The rule of :func:`finite_attention.dropout_mask`, where tensors of PyTorch are."""

from __future__ import annotations

import torch

from ._dropout import ROUNDS, threshold_of

Tensor = torch.Tensor
_LOW = 0xFFFF_FFFF


def dropout_mask_on(
    device: torch.device,
    rate: float,
    seed: int,
    offset: int,
    shape: tuple[int, int, int, int],
    first_batch: int = 0,
) -> Tensor:
    """The pairs that dropout keeps, bool ``[B, Hq, Sq, Sk]`` on a device.

    A call of Philox is for eight pairs: of a 16 x 16 block rows ``i`` and ``i + 8`` and columns ``j``,
    ``j + 1``, ``j + 8`` and ``j + 9``, a word for each row and pair of columns (section 8 of the project's
    ``semantics.md``).
    """
    threshold = threshold_of(rate)
    batches, heads, queries, keys = shape
    seed, offset = seed & (1 << 64) - 1, offset & (1 << 64) - 1
    blocks = (queries + 15) // 16, (keys + 15) // 16
    sizes = batches * heads, 8 * blocks[0], 4 * blocks[1]
    head, row, column = (torch.arange(size, dtype=torch.int64, device=device) for size in sizes)
    head = (head + first_batch * heads & _LOW).view(batches, heads, 1, 1)
    counter = [row[:, None], column, head, torch.full((), offset & _LOW, dtype=torch.int64, device=device)]
    kept = []
    for word in _philox(counter, (seed & _LOW, seed >> 32 ^ offset >> 32)):
        columns = torch.stack(((word & 0xFFFF) >= threshold, (word >> 16) >= threshold), -1)
        kept.append(columns.view(batches, heads, blocks[0], 8, blocks[1], 8))
    upper_and_lower = [torch.stack(kept[:2], 5), torch.stack(kept[2:], 5)]
    whole = torch.stack(upper_and_lower, 3).view(batches, heads, 16 * blocks[0], 16 * blocks[1])
    return whole[..., :queries, :keys]


def _philox(words: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox4x32 of words in 64-bit integers, whose products wrap around."""
    key0, key1 = key
    for _ in range(ROUNDS):
        first, second = words[0] * 0xD251_1F53, words[2] * 0xCD9E_8D57
        words = [
            (second >> 32 & _LOW) ^ words[1] ^ key0,
            second & _LOW,
            (first >> 32 & _LOW) ^ words[3] ^ key1,
            first & _LOW,
        ]
        key0, key1 = key0 + 0x9E37_79B9 & _LOW, key1 + 0xBB67_AE85 & _LOW
    return words
