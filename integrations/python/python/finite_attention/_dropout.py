"""Which probabilities dropout keeps: the rule that kernels, tests and anybody can replay."""

from __future__ import annotations

import numpy as np

_MASK_32 = np.uint64(0xFFFF_FFFF)
ROUNDS = 7


def dropout_mask(
    rate: float, seed: int, offset: int, shape: tuple[int, int, int, int], first_batch: int = 0
) -> np.ndarray:
    """The pairs of query and key that dropout keeps.

    A pair is kept if its 16-bit number is at least ``round(65536 * rate)``. The numbers are those of
    Philox4x32 with 7 rounds (Salmon et al. 2011), a call for eight pairs of a 16 x 16 block; section 8 of the
    project's ``semantics.md`` has the layout.

    Args:
        rate: the share that is dropped, 0 to below 1.
        seed: what :func:`finite_attention.attention` was given.
        offset: the same.
        shape: ``(B, Hq, Sq, Sk)``; of packed sequences a call for each, with B = 1.
        first_batch: the batch, or of packed sequences the sequence, of the first entry.

    Returns:
        bool ``[B, Hq, Sq, Sk]``, true where a probability is kept.

    Raises:
        ValueError: the rate is below 0, or rounds to 1 or more.
    """
    threshold = threshold_of(rate)
    batches, heads, queries, keys = shape
    i = np.arange(queries, dtype=np.uint64)[:, None]
    j = np.arange(keys, dtype=np.uint64)[None, :]
    x0 = np.broadcast_to(i // 16 * 8 + i % 8, (queries, keys))
    x1 = np.broadcast_to(j // 16 * 4 + j % 8 // 2, (queries, keys))
    number = i // 8 % 2 * 4 + j // 8 % 2 * 2 + j % 2
    seed, offset = seed & (1 << 64) - 1, offset & (1 << 64) - 1
    key = (seed & 0xFFFF_FFFF, seed >> 32 ^ offset >> 32)
    kept = np.empty(shape, np.bool_)
    for batch in range(batches):
        for head in range(heads):
            x2 = (first_batch + batch) * heads + head & 0xFFFF_FFFF
            words = _philox(x0, x1, np.uint64(x2), np.uint64(offset & 0xFFFF_FFFF), key)
            word = np.choose((number // 2).astype(np.intp), words)
            kept[batch, head] = (word >> (number % 2 * 16) & np.uint64(0xFFFF)) >= threshold
    return kept


def threshold_of(rate: float) -> int:
    """``round(65536 * rate)``: the least number that is kept.

    Raises:
        ValueError: the rate is below 0, or rounds to 1 or more.
    """
    dropped = 65536 * float(np.float32(rate)) + 0.5
    if not (rate >= 0 and dropped < 65536):
        raise ValueError(
            "dropout_rate: expected a number of at least 0 and below 0.9999924, so that something is kept, "
            f"got {rate}"
        )
    return int(dropped)


def _philox(
    x0: np.ndarray, x1: np.ndarray, x2: np.uint64, x3: np.uint64, key: tuple[int, int]
) -> list[np.ndarray]:
    """Philox4x32: four words of 32 bits, in 64-bit integers."""
    key0, key1 = key
    words = [np.broadcast_to(word, x0.shape) for word in (x0, x1, x2, x3)]
    for _ in range(ROUNDS):
        first, second = words[0] * np.uint64(0xD251_1F53), words[2] * np.uint64(0xCD9E_8D57)
        words = [
            second >> np.uint64(32) ^ words[1] ^ np.uint64(key0),
            second & _MASK_32,
            first >> np.uint64(32) ^ words[3] ^ np.uint64(key1),
            first & _MASK_32,
        ]
        key0, key1 = key0 + 0x9E37_79B9 & 0xFFFF_FFFF, key1 + 0xBB67_AE85 & 0xFFFF_FFFF
    return words
