"""Which keys a query sees, as (left, right): keys before and after its own, -1 for all of that side."""

import argparse
import re

FULL, CAUSAL = (-1, -1), (-1, 0)


def parse(text):
    """A mask from the command line: `1024,0`."""
    if not re.fullmatch(r"(-1|\d+),(-1|\d+)", text):
        raise argparse.ArgumentTypeError(f"expected L,R, each at least -1, got {text}")
    left, right = text.split(",")
    return int(left), int(right)


def is_window(mask):
    return mask not in (FULL, CAUSAL)


def name(mask):
    """full, causal or window L,R."""
    return {FULL: "full", CAUSAL: "causal"}.get(mask, f"window {mask[0]},{mask[1]}")


def pairs(rows, mask):
    """How many (query, key) pairs `rows` queries and as many keys have inside of a mask."""

    def unseen(side):
        beyond = max(0, rows - 1 - side) if side >= 0 else 0
        return beyond * (beyond + 1) // 2

    return rows * rows - unseen(mask[0]) - unseen(mask[1])


def counted(rows, mask):
    """The pairs that FLOPs are counted of: exactly those of a window; causal counts half of all."""
    return rows * rows / 2 if mask == CAUSAL else pairs(rows, mask)


def dense(mask):
    """The mask that a window is compared with: causal, if no later key is seen."""
    return CAUSAL if mask[1] == 0 else FULL


def evened(lengths, mask):
    """Sequences of one length and no window, with about as many FLOPs a row as these have and as many rows:
    how many, how long (a multiple of 384: tiles of 128 or 192 rows are whole), and their mask."""
    rows = sum(lengths)
    per_row = sum(counted(length, mask) for length in lengths) / rows
    even = CAUSAL if mask == CAUSAL else FULL
    length = 384 * max(1, round(per_row * (2 if even == CAUSAL else 1) / 384))
    return max(1, round(rows / length)), length, even
