"""The functions of ``flash_attn`` and of PyTorch under our name, with tensors of the host."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

import finite_attention as fa  # noqa: E402
from finite_attention.torch_host import to_numpy  # noqa: E402

torch.manual_seed(0)
SDPA_CASES = {
    "heads": ((2, 3, 10, 8), (2, 3, 13, 8), {}),
    "causal, more keys": ((2, 3, 10, 8), (2, 3, 13, 8), {"is_causal": True}),
    "causal, more queries": ((1, 2, 13, 8), (1, 2, 6, 8), {"is_causal": True}),
    "bool mask": ((2, 3, 10, 8), (2, 3, 13, 8), {"attn_mask": torch.rand(10, 13) < 0.6}),
    "bool mask per batch": ((2, 3, 10, 8), (2, 3, 13, 8), {"attn_mask": torch.rand(2, 1, 1, 13) < 0.6}),
    "float mask": ((2, 3, 10, 8), (2, 3, 13, 8), {"attn_mask": torch.randn(3, 10, 13)}),
    "scale": ((2, 3, 10, 8), (2, 3, 13, 8), {"scale": 0.7}),
    "gqa": ((2, 6, 10, 8), (2, 2, 13, 8), {"enable_gqa": True}),
    "no heads": ((2, 10, 8), (2, 13, 8), {"attn_mask": torch.randn(2, 10, 13)}),
    "no batch": ((10, 8), (13, 8), {"attn_mask": torch.randn(10, 13)}),
    "two batches": ((2, 2, 3, 10, 8), (2, 2, 3, 13, 8), {"attn_mask": torch.randn(2, 1, 3, 10, 13)}),
    "a batch that broadcasts": ((2, 3, 10, 8), (1, 3, 13, 8), {}),
}


@pytest.mark.parametrize("case", SDPA_CASES)
def test_sdpa_is_pytorchs(case):
    query_shape, key_shape, options = SDPA_CASES[case]
    torch.manual_seed(0)
    query, key, value = (torch.randn(shape, requires_grad=True)
                         for shape in (query_shape, key_shape, key_shape))
    wanted = [query, key, value]
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        mask.requires_grad_()
        wanted.append(mask)
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    got = fa.scaled_dot_product_attention(query, key, value, **options)
    assert got.shape == expected.shape and torch.allclose(got, expected, atol=1e-5)
    d_o = torch.randn_like(expected)
    gradients = torch.autograd.grad(got, wanted, d_o)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, wanted, d_o)):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_sdpa_has_pytorchs_signature():
    ours = inspect.signature(fa.scaled_dot_product_attention).parameters
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(ours) == names
    assert [ours[name].default for name in names[3:]] == [None, 0.0, False, None, False]


def test_sdpa_of_rows_that_see_nothing_is_zero():
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    o = fa.scaled_dot_product_attention(q, q, q, mask)
    gradient, = torch.autograd.grad(o.sum(), q)
    assert (o[0, 0, 2] == 0).all() and gradient.isfinite().all()


def test_sdpa_under_autocast_is_cast():
    q = torch.randn(1, 2, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fa.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16


def test_sdpa_says_what_is_wrong():
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="^attn_mask: expected None beside is_causal"):
        fa.scaled_dot_product_attention(q, q, q, torch.ones(5, 5), is_causal=True)
    with pytest.raises(ValueError, match="^key: expected heads 4 like query, unless enable_gqa, got 2"):
        fa.scaled_dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match="^key: expected at least 2 dimensions, as many as query"):
        fa.scaled_dot_product_attention(q, k[0], k[0])


def tensors(seed, *shapes, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


FLASH_CASES = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"causal": True}),
    "window": ({"window_size": (5, 2)}, {"window": (5, 2)}),
    "window of tensors": ({"window_size": torch.tensor([5, -1])}, {"window": (5, None)}),
    "softcap": ({"softcap": 2.0, "causal": True}, {"softcap": 2.0, "causal": True}),
    "scale": ({"softmax_scale": 0.2}, {"scale": 0.2}),
    "deterministic": ({"deterministic": True, "causal": True}, {"causal": True}),
}


@pytest.mark.parametrize("case", FLASH_CASES)
@pytest.mark.parametrize("form", ["apart", "kvpacked", "qkvpacked"])
def test_flash_attn_is_the_reference(form, case):
    options, of_reference = FLASH_CASES[case]
    rows = 20 if form == "qkvpacked" else 26
    heads = 4 if form == "qkvpacked" else 2
    q, kv, do = tensors(1, (2, 20, 4, 16), (2, rows, 2, heads, 16), (2, 20, 4, 16))
    qkv = torch.cat([q.unsqueeze(2), kv], 2).detach().requires_grad_() if form == "qkvpacked" else None
    if form == "apart":
        k, v = kv.unbind(2)
        o, lse, probabilities = fa.flash_attn_func(q, k, v, return_attn_probs=True, **options)
        dq, dkv = torch.autograd.grad(o, (q, kv), do)
        assert lse.shape == (2, 4, 20) and probabilities is None
    elif form == "kvpacked":
        o = fa.flash_attn_kvpacked_func(q, kv, **options)
        dq, dkv = torch.autograd.grad(o, (q, kv), do)
    else:
        o = fa.flash_attn_qkvpacked_func(qkv, **options)
        d_qkv, = torch.autograd.grad(o, qkv, do)
        dq, dkv = d_qkv[:, :, 0], d_qkv[:, :, 1:]
    arrays = [to_numpy(x.contiguous()) for x in (q, kv[:, :, 0], kv[:, :, 1], do)]
    exact = reference.attention(*arrays, **of_reference)
    naive = reference.attention(*arrays, **of_reference, rounded=arrays[0].dtype)
    for name, got in (("o", o), ("dq", dq), ("dk", dkv[:, :, 0]), ("dv", dkv[:, :, 1])):
        array = to_numpy(got.contiguous())
        reference.assert_close(name, array, getattr(naive, name), getattr(exact, name), array.dtype.type)


@pytest.mark.parametrize("form", ["apart", "kvpacked", "qkvpacked"])
def test_flash_attn_of_packed_sequences_is_each_by_itself(form):
    lengths = [7, 1, 12]
    q, kv, do = tensors(2, (20, 4, 16), (20, 2, 4, 16), (20, 4, 16), dtype=torch.float32)
    at = torch.tensor([0, 7, 8, 20], dtype=torch.int32)
    k, v = kv.unbind(1)
    if form == "apart":
        o, lse, _ = fa.flash_attn_varlen_func(q, k, v, at, at, 12, 12, causal=True, return_attn_probs=True)
        assert lse.shape == (4, 20)
    elif form == "kvpacked":
        o = fa.flash_attn_varlen_kvpacked_func(q, kv, at, at, 12, 12, causal=True)
    else:
        o = fa.flash_attn_varlen_qkvpacked_func(torch.cat([q.unsqueeze(1), kv], 1), at, 12, causal=True)
    gradients = torch.autograd.grad(o, (q, kv), do)
    parts = [x.split(lengths) for x in (q, k, v)]
    expected = torch.cat([
        F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in part), is_causal=True)[0]
        .transpose(0, 1) for part in zip(*parts)
    ])
    assert torch.allclose(o, expected, atol=1e-5)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, (q, kv), do)):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_flash_attn_gives_its_probabilities_with_dropout():
    q, k, v = tensors(3, (2, 20, 4, 16), (2, 26, 2, 16), (2, 26, 2, 16), dtype=torch.float32)
    slopes = torch.rand(4)
    torch.manual_seed(3)
    o, lse, probabilities = fa.flash_attn_func(
        q, k, v, 0.25, causal=True, alibi_slopes=slopes, return_attn_probs=True
    )
    kept = to_numpy(~probabilities.signbit())
    largest = to_numpy(probabilities.abs())
    p = largest / largest.sum(-1, keepdims=True)
    arrays = [to_numpy(x) for x in (q, k, v, o)]
    exact = reference.attention(*arrays, causal=True, alibi_slopes=to_numpy(slopes))
    assert np.allclose(to_numpy(lse), exact.lse, atol=1e-4)
    threshold = round(65536 * 0.25)
    values = np.repeat(to_numpy(v), 2, axis=2)
    expected = np.einsum("bhij,bjhd->bihd", p * kept * 65536 / (65536 - threshold), values)
    assert np.allclose(to_numpy(o), expected, atol=1e-4)
    assert abs(kept[..., 6:].mean() - 0.75) < 0.05


@pytest.mark.parametrize("seed, offset", [(0, 0), (-3, 1 << 50), (1 << 63, 7)])
def test_dropout_is_the_same_in_pytorch(seed, offset):
    from finite_attention.torch_dropout import dropout_mask_on

    expected = fa.dropout_mask(0.3, seed, offset, (2, 3, 37, 50), first_batch=5)
    got = dropout_mask_on(torch.device("cpu"), 0.3, seed, offset, (2, 3, 37, 50), first_batch=5)
    assert np.array_equal(got.numpy(), expected)


def test_flash_attn_says_what_is_wrong():
    q, = tensors(4, (1, 4, 2, 16))
    with pytest.raises(ValueError, match=r"^qkv: expected 5 dimensions \[batch, row, 3, head, column\]"):
        fa.flash_attn_qkvpacked_func(q)
    at = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="^block_table: expected None"):
        fa.flash_attn_varlen_func(q[0], q[0], q[0], at, at, 4, 4, block_table=at)


SIGNATURES = {
    "flash_attn_func": "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
                       "return_attn_probs",
    "flash_attn_qkvpacked_func": "qkv dropout_p softmax_scale causal window_size softcap alibi_slopes "
                                 "deterministic return_attn_probs",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
                              "softmax_scale causal window_size softcap alibi_slopes deterministic "
                              "return_attn_probs block_table",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_flash_attn_has_its_signature(name):
    assert list(inspect.signature(getattr(fa, name)).parameters) == SIGNATURES[name].split()
