"""What the command line takes: types for argparse, which refuse a value before anything is timed."""

import argparse
import re
from pathlib import Path

MOST_DIM = 256


def refused(text):
    return argparse.ArgumentTypeError(text)


def shape(text):
    """(B, S, H, D, Hk) of `4,4096,16,128` or `2,8192,32,128,8`."""
    if not re.fullmatch(r"[0-9]+(,[0-9]+){3,4}", text):
        raise refused(f"expected B,S,H,D or B,S,H,D,Hk, got {text}")
    numbers = [int(number) for number in text.split(",")]
    batch, rows, heads, dim, key_heads = [*numbers, numbers[2]][:5]
    if min(numbers) < 1:
        raise refused(f"expected numbers from 1 on, got {text}")
    if dim > MOST_DIM:
        raise refused(f"expected a head dimension of at most {MOST_DIM}, got {dim} in {text}")
    if heads % key_heads:
        raise refused(f"expected heads that are a multiple of key heads, got {heads} and {key_heads} in {text}")
    return batch, rows, heads, dim, key_heads


def count(text):
    """A number from 1 on."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise refused(f"expected a number from 1 on, got {text}")
    return int(text)


def output(text):
    """A file that can be written: its folder is there."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise refused(f"expected a file in a folder that is there, got {text}")
    return path
