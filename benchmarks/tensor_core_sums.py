#!/usr/bin/env python3
"""By how much lse is off if q k^T is computed from two f16 parts by tensor cores, with no GPU: a model in numpy.

A tensor core adds some products and what it had before at once: each is aligned to the largest of them, by the sum of the
exponents of its factors, and what is below some bits behind the last of its 24 is cut off; so is what the sum has beyond
f32. Of f16 it is 16 products and two bits on Hopper, eight and one on an A100 (Khattak and Mikaitis, "Accurate Models of
NVIDIA Tensor Cores", arXiv:2512.07004); what was measured of lse agrees with it (docs/f32-tensor-cores.md). Each row of the
table is a way to divide the products of a score into sums, by their steps of 16 columns, the small products of a sum before
the large ones. Sums are added as f32 are; "made up" has every second one larger by 2^-23, for what is cut off on average.
What is printed is the relative L2 error of lse over that of fused multiply-adds in f32, 32 to a sum.

    python3 tensor_core_sums.py
"""

import argparse

import numpy as np

STEP = 16
ROWS, KEYS = 128, 1024
DIVISIONS = {64: ([4], [2, 2], [1] * 4), 128: ([8], [4, 4], [3, 3, 2], [2] * 4, [1] * 8)}
LOGITS = (1, 8, 30)
# Products at once, and bits.
CORES = {"hopper": (16, 2), "a100": (8, 1)}


def cut(values, exponents):
    """Values without what is below 2^exponents, towards 0."""
    unit = np.exp2(exponents)
    return np.trunc(values / unit) * unit


def exponent(values):
    """The exponent of the leading bit; 0 for 0."""
    return np.floor(np.log2(np.where(values == 0, 1, np.abs(values))))


def add_step(sums, a, b, core):
    """Sums `[M, N]` and the products of a `[M, 16]` and b `[N, 16]`, as a tensor core adds them."""
    at_once, bits = core
    for first in range(0, STEP, at_once):
        left, right = a[:, None, first : first + at_once], b[None, :, first : first + at_once]
        products, zero = left * right, -1000
        of_products = np.where(products == 0, zero, exponent(left) + exponent(right))
        last = np.maximum(of_products.max(axis=2), np.where(sums == 0, zero, exponent(sums))) - 23 - bits
        total = cut(products, last[..., None]).sum(axis=2) + cut(sums, last)
        sums = cut(total, exponent(total) - 23)
    return sums


def parts(x):
    """The two f16 parts of a head, as f64, and the power of two that they are scaled by."""
    unit = np.exp2(14 - exponent(np.abs(x).max()))
    high = (x * unit).astype(np.float16).astype(np.float64)
    return high, (x * unit - high).astype(np.float16).astype(np.float64), unit


def sums_of_parts(q, k, division, core):
    """q k^T from three products of parts, in sums of so many steps each, and the unit of these."""
    (q_high, q_low, q_unit), (k_high, k_low, k_unit) = parts(q), parts(k)
    steps = [slice(first, first + STEP) for first in range(0, q.shape[1], STEP)]
    all_sums = []
    for end, count in zip(np.cumsum(division), division, strict=True):
        sums, own = np.zeros((len(q), len(k))), steps[end - count : end]
        for step in own:
            for a, b in ((q_low, k_high), (q_high, k_low)):
                sums = add_step(sums, a[:, step], b[:, step], core)
        for step in own:
            sums = add_step(sums, q_high[:, step], k_high[:, step], core)
        all_sums.append(sums)
    return all_sums, q_unit * k_unit


def add(sums, made_up):
    """Sums of parts of a score as f32 adds them; if they are made up for, every second one times 1 + 2^-23."""
    total = np.zeros_like(sums[0])
    for number, part in enumerate(sums):
        factor = 1 + 2.0**-23 if made_up and number % 2 == 1 else 1
        total = np.float32(total + part * factor).astype(np.float64)
    return total


def scores_of_f32(q, k):
    """q k^T by fused multiply-adds, 32 to a sum."""
    total = np.zeros((len(q), len(k)), np.float32)
    for first in range(0, q.shape[1], 32):
        sums = np.zeros_like(total)
        for column in range(first, first + 32):
            # Exact in f64 but for its last bits, then rounded once.
            sums = np.float32(np.float64(sums) + np.outer(q[:, column], k[:, column]))
        total += sums
    return total.astype(np.float64)


def lse_error(scores, expected, scale):
    """The relative L2 error of lse, all of it but the scores exact and rounded once."""

    def lse(logits):
        largest = logits.max(axis=1)
        return largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))

    right = lse(expected * scale)
    scaled = np.float32(scores * np.float64(np.float32(scale))).astype(np.float64)
    return np.linalg.norm(np.float32(lse(scaled)) - right) / np.linalg.norm(right)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--core", choices=CORES, default="hopper", help="default: hopper")
    parser.add_argument("--seed", type=int, default=1, help="of the numbers; default: 1")
    options = parser.parse_args()
    draw = np.random.default_rng(options.seed)
    print("| D | sums of steps |" + "".join(f" logits {logits} |" for logits in LOGITS))
    print("|--|--|" + "--|" * len(LOGITS))
    for head_dim, divisions in DIVISIONS.items():
        rows = {}
        for logits in LOGITS:
            q = np.float32(draw.standard_normal((ROWS, head_dim)) * logits).astype(np.float64)
            k = np.float32(draw.standard_normal((KEYS, head_dim))).astype(np.float64)
            expected, scale = q @ k.T, head_dim**-0.5
            of_f32 = lse_error(scores_of_f32(q, k), expected, scale)
            for division in divisions:
                sums, unit = sums_of_parts(q, k, division, CORES[options.core])
                for made_up in (False, True)[: len(division)]:
                    error = lse_error(add(sums, made_up) / unit, expected, scale)
                    rows.setdefault((tuple(division), made_up), []).append(error / of_f32)
        for (division, made_up), errors in rows.items():
            name = " + ".join(map(str, division)) + (", made up" if made_up else "")
            print(f"| {head_dim} | {name} |" + "".join(f" {error:.2f} |" for error in errors))


if __name__ == "__main__":
    main()
