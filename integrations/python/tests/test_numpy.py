"""Arrays of NumPy, on the emulator, against a reference in f64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import reference

import finite_attention as fa

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32


def drawn(seed: int, b, sq, sk, hq, hk, d, dv, dtype):
    """q, k, v and do."""
    rng = np.random.default_rng(seed)
    shapes = ((b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, dv), (b, sq, hq, dv))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def check(sizes, dtype, device, of_reference=None, **options):
    """Forward and backward against the reference, by the rule of section 3."""
    q, k, v, do = drawn(0, *sizes, dtype)
    given = {**options}
    if given.pop("top_left", False):
        given["alignment"] = "top-left"
    o, lse = fa.attention(q, k, v, return_lse=True, device=device, **given)
    wants = {"return_dbias": "bias" in options, "return_dsinks": "sinks" in options}
    found = fa.attention_backward(do, q, k, v, o, lse, device=device, **given, **wants)
    for name in ("dropout", "seed", "offset"):
        options.pop(name, None)
    options |= of_reference or {}
    exact = reference.attention(q, k, v, do, **options)
    naive = reference.attention(q, k, v, do, **options, rounded=dtype)
    reference.assert_lse(lse, exact.lse)
    names = ["dq", "dk", "dv"] + [name for name in ("dbias", "dsinks") if wants["return_" + name]]
    assert len(found) == len(names)
    assert o.dtype == dtype and found[0].dtype == dtype
    reference.assert_close("o", o, naive.o, exact.o, dtype)
    for name, gradient in zip(names, found):
        rule = F32 if name == "dsinks" else gradient.dtype.type
        reference.assert_close(name, gradient, getattr(naive, name), getattr(exact, name), rule)


SIZES = [
    (1, 100, 100, 4, 4, 64, 64),
    (2, 33, 70, 6, 2, 40, 40),
    (1, 1, 129, 4, 1, 128, 128),
    (1, 65, 17, 2, 2, 59, 31),
    (3, 5, 5, 1, 1, 1, 7),
]


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=["bf16", "f16", "f32"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_are_those_of_the_reference(sizes, causal, dtype, device):
    check(sizes, dtype, device, causal=causal)


def test_products_of_f32_are_made_as_is_asked(device):
    q, k, v, do = drawn(0, 1, 40, 70, 2, 1, 64, 64, F32)
    ways = {way: fa.attention(q, k, v, device=device, precision=way) for way in ("fast3", "fma", None)}
    exact, naive = (reference.attention(q, k, v, do, rounded=rounded) for rounded in (None, F32))
    reference.assert_close("o", ways["fast3"], naive.o, exact.o, F32)
    assert (ways[None] == ways["fma"]).all()
    assert (ways["fast3"] != ways["fma"]).any()


@pytest.mark.parametrize("options", [
    {"window": (7, 3)},
    {"window": (None, 2)},
    {"window": (5, None), "causal": True},
    {"causal": True, "top_left": True},
    {"scale": 0.3, "softcap": 2.0},
    {"deterministic": False, "softcap": 1.0, "causal": True},
], ids=str)
def test_options_mean_what_the_reference_says(options, device):
    options = {key: value for key, value in options.items() if key != "deterministic"}
    check((2, 40, 61, 4, 2, 32, 32), BF16, device, **options)


@pytest.mark.parametrize("shape", [
    (2, 4, 40, 61), (1, 1, 40, 61), (2, 2, 1, 61), (4, 40, 1), (61,), (40, 61),
], ids=str)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
def test_a_bias_broadcasts_and_has_a_gradient(shape, dtype, device):
    bias = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    check((2, 40, 61, 4, 2, 32, 32), BF16, device, bias=bias, causal=True)


@pytest.mark.parametrize("shape", [(2, 4, 40, 61), (2, 1, 1, 61), (40, 61), (1, 2, 40, 1)], ids=str)
def test_a_mask_hides_and_leaves_dead_rows(shape, device):
    mask = np.random.default_rng(2).random(shape) < 0.5
    mask[..., 3:5, :] = False
    check((2, 40, 61, 4, 2, 32, 32), F16, device, mask=mask)


def test_slopes_and_sinks(device):
    slopes = np.random.default_rng(3).random((2, 4)).astype(F32)
    sizes = (2, 40, 61, 4, 2, 32, 32)
    check(sizes, BF16, device, alibi_slopes=slopes[0], causal=True)
    check(sizes, BF16, device, alibi_slopes=slopes)
    # The rule compares largest errors: of few sinks, one rounding decides.
    sinks = np.random.default_rng(4).standard_normal(64).astype(F32)
    check((2, 20, 31, 64, 64, 16, 16), F32, device, sinks=sinks, causal=True)


def test_dropout_keeps_what_anybody_can_replay(device):
    rate, seed, offset = 0.3, -5, 1 << 40
    kept = fa.dropout_mask(rate, seed, offset, (2, 4, 40, 61))
    assert abs(kept.mean() - 0.7) < 0.02
    threshold = round(65536 * float(F32(rate)))
    of_reference = {"kept": kept, "keep_scale": 65536 / (65536 - threshold)}
    check((2, 40, 61, 4, 2, 32, 32), BF16, device, dropout=rate, seed=seed, offset=offset,
          of_reference=of_reference)


def test_rows_that_see_no_key_are_zero(device):
    q, k, v, do = drawn(0, 1, 9, 4, 2, 2, 16, 16, BF16)
    o, lse = fa.attention(q, k, v, causal=True, return_lse=True, device=device)
    assert (o[:, :5] == 0).all() and (lse[..., :5] == -np.inf).all() and np.isfinite(lse[..., 5:]).all()
    dq, dk, dv = fa.attention_backward(do, q, k, v, o, lse, causal=True, device=device)
    assert (dq[:, :5] == 0).all() and all(np.isfinite(x.astype(F32)).all() for x in (dq, dk, dv))


@pytest.mark.parametrize("sizes", [(0, 4, 4, 2, 2, 8, 8), (1, 0, 4, 2, 2, 8, 8), (1, 4, 0, 2, 2, 8, 8)],
                         ids=str)
def test_nothing_is_a_size_too(sizes):
    check(sizes, F32, "emulated:sm_90a")


def test_packed_sequences_are_each_by_itself(device):
    lengths_q, lengths_k = [7, 0, 40, 1], [7, 5, 33, 9]
    q = np.random.default_rng(5).standard_normal((48, 4, 32)).astype(BF16)
    k, v = np.random.default_rng(6).standard_normal((2, 54, 2, 32)).astype(BF16)
    do = np.random.default_rng(7).standard_normal(q.shape).astype(BF16)
    at_q = np.cumsum([0, *lengths_q]).astype(np.int32)
    at_k = np.cumsum([0, *lengths_k]).astype(np.int32)
    offsets = {"cu_seqlens_q": at_q, "cu_seqlens_k": at_k, "causal": True, "device": device}
    o, lse = fa.attention(q, k, v, return_lse=True, **offsets)
    dq, dk, dv = fa.attention_backward(do, q, k, v, o, lse, **offsets)
    assert lse.shape == (4, 48)
    for index in range(4):
        of_q, of_k = slice(*at_q[index : index + 2]), slice(*at_k[index : index + 2])
        alone = (q[None, of_q], k[None, of_k], v[None, of_k], do[None, of_q])
        exact = reference.attention(*alone, causal=True)
        naive = reference.attention(*alone, causal=True, rounded=BF16)
        reference.assert_lse(lse[None, :, of_q], exact.lse)
        for name, got in (("o", o[None, of_q]), ("dq", dq[None, of_q]), ("dk", dk[None, of_k]),
                          ("dv", dv[None, of_k])):
            reference.assert_close(name, got, getattr(naive, name), getattr(exact, name), BF16)


def test_the_gradient_of_lse_counts(device):
    q, k, v, do = drawn(8, 1, 20, 30, 2, 2, 16, 16, F32)
    dlse = np.random.default_rng(9).standard_normal((1, 2, 20)).astype(F32)
    o, lse = fa.attention(q, k, v, return_lse=True, device=device)
    found = fa.attention_backward(do, q, k, v, o, lse, dlse=dlse, device=device)
    exact = reference.attention(q, k, v, do, dlse=dlse)
    for name, got in zip(("dq", "dk", "dv"), found):
        assert np.abs(got - getattr(exact, name)).max() < 1e-5, name


def test_outputs_can_be_f32():
    q, k, v, do = drawn(10, 1, 20, 30, 2, 2, 16, 16, BF16)
    o, lse = fa.attention(q, k, v, out_dtype="float32", return_lse=True)
    assert o.dtype == F32
    found = fa.attention_backward(do, q, k, v, o, lse, grad_dtype=np.float32)
    assert all(gradient.dtype == F32 for gradient in found)
    exact = reference.attention(q, k, v, do)
    assert np.abs(o - exact.o).max() < 0.01


def test_strides_are_free():
    q, k, v, _ = drawn(11, 2, 20, 30, 4, 2, 16, 16, F32)
    expected = fa.attention(q, k, v)
    by_heads = [np.ascontiguousarray(np.swapaxes(x, 1, 2)) for x in (q, k, v)]
    assert np.array_equal(fa.attention(*(np.swapaxes(x, 1, 2) for x in by_heads)), expected)
    fortran = [np.asfortranarray(x) for x in (q, k, v)]
    assert np.array_equal(fa.attention(*fortran), expected)


def test_repeated_calls_give_the_same_bits():
    q, k, v, do = drawn(12, 1, 130, 130, 2, 1, 64, 64, BF16)
    outcomes = []
    for _ in range(2):
        o, lse = fa.attention(q, k, v, causal=True, return_lse=True)
        found = fa.attention_backward(do, q, k, v, o, lse, causal=True, deterministic=True)
        outcomes.append([x.tobytes() for x in (o, lse, *found)])
    assert outcomes[0] == outcomes[1]
