"""What is wrong is said by name, with what was expected and what came."""

from __future__ import annotations

import re

import numpy as np
import pytest

import finite_attention as fa

F32 = np.float32


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


Q, K = zeros(1, 8, 4, 16), zeros(1, 9, 2, 16)
PACKED = {"cu_seqlens_q": np.array([0, 8], np.int32), "cu_seqlens_k": np.array([0, 9], np.int32)}


@pytest.mark.parametrize("arguments, options, text", [
    ((zeros(8, 4, 16), K, K), {}, "q: expected 4 dimensions [batch, row, head, column], got 3"),
    ((Q, zeros(1, 9, 2, 8), K), {}, "k: expected head_dim 16 like q, got 8"),
    ((Q, zeros(2, 9, 2, 16), K), {}, "k: expected batch 1 like q, got 2"),
    ((Q, K, zeros(1, 8, 2, 16)), {}, "v: expected rows 9 like k, got 8"),
    ((Q, zeros(1, 9, 3, 16), zeros(1, 9, 3, 16)), {}, "q: expected heads to be a multiple of the 3 of k"),
    ((Q, K.astype(np.float16), K), {}, "k: expected dtype f32 like q, got f16"),
    ((Q.astype(float), K, K), {}, "q: expected dtype bf16, f16 or f32, got float64"),
    ((zeros(1, 8, 4, 300), zeros(1, 9, 2, 300), K), {}, "q: expected head_dim 1..=256, got 300"),
    ((Q, K, K), {"scale": float("nan")}, "scale: expected a number from"),
    ((Q, K, K), {"softcap": -1.0}, "softcap: expected a number above 0"),
    ((Q, K, K), {"window": (-1, 2)}, "window: expected None or at least 0 on each side, got -1"),
    ((Q, K, K), {"window": 3}, "window: expected (left, right) or None, got 3"),
    ((Q, K, K), {"alignment": "left"}, "alignment: expected 'bottom-right' or 'top-left', got 'left'"),
    ((Q, K, K), {"bias": zeros(3, 9)}, "bias: expected queries 1 or 8, got 3"),
    ((Q, K, K), {"bias": zeros(8, 9, dtype=np.float16)}, "bias: expected dtype f32 like q, or f32, got f16"),
    ((Q, K, K), {"bias": zeros(1, 1, 1, 8, 9)}, "bias: expected 4 dimensions [batch, head, query, key], got"),
    ((Q, K, K), {"mask": zeros(8, 9)}, "mask: expected dtype bool, got float32"),
    ((Q, K, K), {"mask": zeros(8, 7, dtype=bool)}, "mask: expected keys 1 or 9, got 7"),
    ((Q, K, K), {"alibi_slopes": zeros(3)}, "alibi_slopes: expected shape [4] or [1, 4], got [3]"),
    ((Q, K, K), {"alibi_slopes": zeros(4, dtype=float)}, "alibi_slopes: expected dtype float32, got float64"),
    ((Q, K, K), {"sinks": zeros(2)}, "sinks: expected shape [4], got [2]"),
    ((Q, K, K), {"dropout": 0.5}, "seed: expected an integer, since the dropout rate is not 0, got None"),
    ((Q, K, K), {"dropout": 1.0, "seed": 1}, "dropout_rate: expected a number of at least 0 and below"),
    ((Q, K, K), {"num_splits": 0}, "num_splits: expected 1 to"),
    ((Q, K, K), {"precision": "fast"}, "precision: expected 'fast3', 'fma' or None, got 'fast'"),
    ((Q, K, K), {"device": "gpu"}, "device: expected cuda, cuda:N"),
    ((Q, K, K), {"cu_seqlens_q": PACKED["cu_seqlens_q"]}, "cu_seqlens_k: expected offsets, got None"),
    ((Q, K, K), PACKED, "q: expected 3 dimensions [row, head, column], got 4"),
    ((Q[0], K[0], K[0]), PACKED | {"cu_seqlens_k": np.array([0, 8], np.int32)},
     "cu_seqlens_k: expected offset 1 to be 9 like the rows that are there, got 8"),
    ((Q[0], K[0], K[0]), PACKED | {"cu_seqlens_q": np.array([0, 8])},
     "cu_seqlens_q: expected dtype int32, got int64"),
    ((Q[0], K[0], K[0]), PACKED | {"max_seqlen_q": 7},
     "cu_seqlens_q: expected at most 7 rows per sequence, got 8 in sequence 0"),
    ((Q[0], K[0], K[0]), PACKED | {"cu_seqlens_q": np.array([0, 5, 3, 8], np.int32),
                                  "cu_seqlens_k": np.array([0, 1, 2, 9], np.int32)},
     "cu_seqlens_q: expected offset 2 to be at least 5, the one before, got 3"),
], ids=lambda value: None if not isinstance(value, str) else value.split(",")[0])
def test_a_wrong_argument_is_named(arguments, options, text):
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        fa.attention(*arguments, **options)


def backward(**changed):
    tensors = {"do": Q, "q": Q, "k": K, "v": K, "o": Q, "lse": zeros(1, 4, 8)}
    options = {key: value for key, value in changed.items() if key not in tensors}
    return fa.attention_backward(**(tensors | {k: v for k, v in changed.items() if k in tensors}), **options)


@pytest.mark.parametrize("changed, text", [
    ({"do": zeros(1, 8, 4, 8)}, "do: expected head_dim 16 like o, got 8"),
    ({"do": Q.astype(np.float16)}, "do: expected dtype f32 like q, got f16"),
    ({"o": zeros(1, 8, 4, 8)}, "o: expected head_dim 16 like v, got 8"),
    ({"lse": zeros(1, 8, 4)}, "lse: expected shape [1, 4, 8], got [1, 8, 4]"),
    ({"dlse": zeros(4)}, "dlse: expected shape [1, 4, 8], got [4]"),
    ({"return_dbias": True}, "dbias: expected bias in the problem, got None"),
    ({"return_dsinks": True}, "dsinks: expected sinks in the problem, got None"),
    ({"grad_dtype": np.float16}, "dq, dk, dv: expected dtype f32 like q, or f32, got f16"),
], ids=lambda value: None if not isinstance(value, str) else value.split(",")[0])
def test_a_wrong_argument_of_a_backward_is_named(changed, text):
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        backward(**changed)


def test_what_is_no_array_is_a_type_error():
    with pytest.raises(TypeError, match="^q: expected an array of NumPy, a tensor of PyTorch, or an object"):
        fa.attention([[1.0]], K, K)


def test_a_gpu_that_is_not_there_is_a_device_error():
    with pytest.raises(fa.DeviceError, match="^device cuda:900: not available: "):
        fa.attention(Q, K, K, device="cuda:900")


def test_the_default_device_can_be_set():
    before = fa.default_device()
    fa.set_default_device("emulated:sm_80")
    try:
        assert fa.default_device() == "emulated:sm_80"
        with pytest.raises(ValueError, match="^device: expected"):
            fa.set_default_device("nothing")
        assert fa.default_device() == "emulated:sm_80"
    finally:
        fa.set_default_device(None)
    assert fa.default_device() == before


def test_names_that_are_not_there_are_attribute_errors():
    with pytest.raises(AttributeError, match="flash_attn_with_kvcache"):
        fa.flash_attn_with_kvcache
