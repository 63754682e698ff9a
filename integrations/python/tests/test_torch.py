"""The doors for PyTorch, with tensors of the host: the emulator runs them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

import finite_attention as fa  # noqa: E402
from finite_attention import torch_ops  # noqa: E402
from finite_attention._options import Options  # noqa: E402
from finite_attention.torch_host import to_numpy  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def drawn(seed, b, sq, sk, hq, hk, d, dtype=F32, grad=True):
    """q, k and v, and do."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, d), (b, sq, hq, d))
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [tensor.requires_grad_(grad) for tensor in tensors[:3]] + tensors[3:]


def assert_like(got, naive, exact, name):
    """By the rule of section 3."""
    array = to_numpy(got)
    reference.assert_close(name, array, naive, exact, array.dtype.type)


def judged(q, k, v, do, o, gradients, **options):
    arrays = [to_numpy(tensor) for tensor in (q, k, v, do)]
    exact = reference.attention(*arrays, **options)
    naive = reference.attention(*arrays, **options, rounded=arrays[0].dtype)
    assert_like(o, naive.o, exact.o, "o")
    for name, gradient in zip(("dq", "dk", "dv"), gradients):
        assert_like(gradient, getattr(naive, name), getattr(exact, name), name)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_attention_has_gradients(dtype):
    q, k, v, do = drawn(0, 2, 20, 33, 4, 2, 24, dtype)
    o, lse = fa.attention(q, k, v, causal=True, return_lse=True)
    gradients = torch.autograd.grad(o, (q, k, v), do)
    judged(q, k, v, do, o, gradients, causal=True)
    assert lse.shape == (2, 4, 20) and lse.dtype == F32
    again = fa.attention_backward(do, q.detach(), k.detach(), v.detach(), o, lse, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(gradients, again))


def test_a_loss_over_lse_and_an_o_that_is_broadcast():
    q, k, v, _ = drawn(1, 1, 9, 12, 2, 2, 8)
    o, lse = fa.attention(q, k, v, return_lse=True)
    (o.sum() + (2 * lse).sum()).backward()
    exact = reference.attention(*(to_numpy(x) for x in (q, k, v, torch.ones_like(o))),
                                dlse=to_numpy(torch.full_like(lse, 2)))
    for tensor, gradient in zip((q, k, v), (exact.dq, exact.dk, exact.dv)):
        assert abs(to_numpy(tensor.grad) - gradient).max() < 1e-5


def test_only_lse_has_a_gradient():
    q, k, v, _ = drawn(2, 1, 5, 7, 1, 1, 8)
    _, lse = fa.attention(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5
    expected = torch.autograd.grad(scores.logsumexp(-1).sum(), (q, k))
    assert torch.allclose(dq, expected[0], atol=1e-5) and torch.allclose(dk, expected[1], atol=1e-5)
    assert (dv == 0).all()


def test_bias_and_sinks_have_gradients():
    q, k, v, do = drawn(3, 2, 10, 12, 4, 2, 16)
    bias = torch.randn(4, 1, 12, requires_grad=True)
    sinks = torch.randn(4, requires_grad=True)
    o = fa.attention(q, k, v, bias=bias, sinks=sinks)
    d_bias, d_sinks = torch.autograd.grad(o, (bias, sinks), do)
    arrays = [to_numpy(x) for x in (q, k, v, do)]
    exact = reference.attention(*arrays, bias=to_numpy(bias), sinks=to_numpy(sinks))
    assert abs(to_numpy(d_bias) - exact.dbias).max() < 1e-4
    assert abs(to_numpy(d_sinks) - exact.dsinks).max() < 1e-4


@pytest.mark.filterwarnings("ignore:Input #:UserWarning")
def test_gradcheck():
    q, k, v, _ = drawn(4, 1, 3, 4, 2, 1, 4)
    bias = torch.randn(1, 2, 1, 4, requires_grad=True)
    sinks = torch.randn(2, requires_grad=True)

    def function(q, k, v, bias, sinks):
        return fa.attention(q, k, v, bias=bias, sinks=sinks, softcap=3.0, causal=True, return_lse=True)

    # In f32: the truncation of such steps is about 1e-4, their rounding 1e-5.
    assert torch.autograd.gradcheck(function, (q, k, v, bias, sinks), eps=1e-2, atol=2e-3, rtol=1e-2)


def test_second_derivatives_are_refused():
    q, k, v, do = drawn(5, 1, 3, 3, 1, 1, 8)
    o = fa.attention(q, k, v)
    dq, = torch.autograd.grad(o, q, do, create_graph=True)
    with pytest.raises(RuntimeError, match="^attention_backward: expected first derivatives alone"):
        dq.sum().backward()


def forward_arguments(q, k, v, offsets=(None, None), scores=(None,) * 4, dropout=0.0, longest=(None, None)):
    longest = dict(zip(("max_seqlen_q", "max_seqlen_k"), longest))
    options = Options(causal=True, dropout=dropout, deterministic=True, **longest)
    return (q, k, v, *offsets, *scores, None, 0, None, *torch_ops.flattened(options, None))


@pytest.mark.parametrize("case", ["plain", "scores", "packed", "dropout"])
def test_opcheck_of_the_forward(case):
    q, k, v, _ = drawn(6, 2, 6, 7, 2, 1, 8)
    if case == "scores":
        bias, mask = torch.randn(1, 2, 6, 7, requires_grad=True), torch.rand(2, 1, 6, 7) < 0.7
        arguments = forward_arguments(q, k, v, scores=(bias, mask, torch.rand(2), torch.randn(2)))
    elif case == "packed":
        q, k, v = (tensor.detach()[0].requires_grad_() for tensor in (q, k, v))
        offsets = (torch.tensor([0, 2, 6], dtype=torch.int32), torch.tensor([0, 3, 7], dtype=torch.int32))
        arguments = forward_arguments(q, k, v, offsets, longest=(4, 4))
    else:
        arguments = forward_arguments(q, k, v, dropout=0.25 if case == "dropout" else 0.0)
    torch.library.opcheck(torch.ops.finite_attention.attention_forward.default, arguments)


def test_opcheck_of_the_backward():
    q, k, v, do = drawn(7, 1, 6, 7, 2, 1, 8, grad=False)
    arguments = forward_arguments(q, k, v)
    o, lse, random = torch.ops.finite_attention.attention_forward(*arguments)
    torch.library.opcheck(
        torch.ops.finite_attention.attention_backward.default,
        (do, None, q, k, v, *arguments[3:5], o, lse, *arguments[5:9], random, None, False, False,
         *arguments[12:]),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_gives_what_eager_does(dynamic):
    def step(q, k, v, bias):
        o, lse = fa.attention(q * 2, k, v, bias=bias, causal=True, return_lse=True)
        return (o * o).sum() + lse.sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (9, 14):
        q, k, v, _ = drawn(8, 1, rows, rows, 2, 2, 8)
        bias = torch.randn(rows, rows, requires_grad=True)
        expected = torch.autograd.grad(step(q, k, v, bias), (q, k, v, bias))
        got = torch.autograd.grad(compiled(q, k, v, bias), (q, k, v, bias))
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, expected))


@pytest.mark.parametrize("first", ["finite_attention", "torch"])
def test_compiled_code_does_not_depend_on_what_else_is_imported(first):
    """torch.compile followed a look into sys.modules, and failed when something was imported meanwhile."""
    program = f"""
import {first}
import finite_attention as fa, torch, sys
step = lambda q: fa.attention(q * 2, q, q, causal=True).sum()
q = torch.randn(1, 9, 2, 8, requires_grad=True)
compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
expected = torch.autograd.grad(compiled(q), q)[0]
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
sys.modules["imported_by_somebody"] = sys
assert torch.allclose(torch.autograd.grad(compiled(q), q)[0], expected)
assert torch.allclose(torch.autograd.grad(step(q), q)[0], expected, atol=1e-5)
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "compiled again"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_dropout_follows_the_generator():
    q, k, v, do = drawn(9, 1, 40, 40, 2, 2, 8)
    outcomes = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        o = fa.attention(q, k, v, dropout=0.5)
        outcomes.append((o, *torch.autograd.grad(o, (q, k, v), do)))
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0], outcomes[1]))
    assert not torch.equal(outcomes[0][0], outcomes[2][0])
    # What autograd replays is the forward's: dv of ones is what o depends on linearly.
    o, dv = outcomes[2][0], outcomes[2][3]
    assert torch.allclose((o * do).sum(), (dv * v).sum(), rtol=1e-4, atol=1e-3)


def test_seeds_of_64_bits_are_those_of_arrays():
    q, k, v, _ = drawn(12, 1, 20, 20, 2, 2, 8, grad=False)
    for seed, offset in ((-1, 0), ((1 << 64) - 1, 1 << 63), (1 << 70, 3)):
        said = {"dropout": 0.4, "seed": seed, "offset": offset}
        expected = fa.attention(*map(to_numpy, (q, k, v)), **said)
        assert (to_numpy(fa.attention(q, k, v, **said)) == expected).all()


@pytest.mark.parametrize("door", ["sdpa", "flash", "dropout"])
def test_torch_compile_takes_the_doors_whole(door):
    def step(q, k, v):
        if door == "sdpa":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return fa.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        dropout = 0.3 if door == "dropout" else 0.0
        return fa.flash_attn_func(q, k, v, dropout, causal=True, window_size=(5, 0))

    q, k, v, do = drawn(13, 1, 12, 12, 2, 2, 8)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    outcomes = []
    for function in (step, compiled, compiled):
        torch.manual_seed(4)
        o = function(q, k, v)
        outcomes.append((o, *torch.autograd.grad(o, (q, k, v), do)))
    for other in outcomes[1:]:
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(outcomes[0], other))
    if door == "dropout":  # the seed is not part of what was compiled
        assert not torch.equal(compiled(q, k, v), compiled(q, k, v))


def test_tensors_of_several_kinds_are_refused():
    q, k, v, _ = drawn(10, 1, 4, 4, 1, 1, 8)
    with pytest.raises(ValueError, match="^k: expected a tensor of PyTorch like q, got ndarray"):
        fa.attention(q, to_numpy(k), v)
    with pytest.raises(ValueError, match="^q: expected a tensor of PyTorch like the others, got ndarray"):
        fa.attention(to_numpy(q), k, v)
    with pytest.raises(ValueError, match="^q: expected dtype bf16, f16 or f32, got float64"):
        fa.attention(q.double(), k.double(), v.double())
    with pytest.raises(RuntimeError, match="^alibi_slopes: expected a tensor that needs no gradient"):
        fa.attention(q, k, v, alibi_slopes=torch.rand(1, requires_grad=True)).sum().backward()


def test_dlpack_is_taken():
    class Foreign:
        """An array of another library, with memory of the host."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __array__(self, dtype=None, copy=None):
            return self.array

    q, k, v, _ = (to_numpy(tensor) for tensor in drawn(11, 1, 4, 5, 2, 1, 8))
    expected = fa.attention(q, k, v)
    assert (fa.attention(*(Foreign(x) for x in (q, k, v))) == expected).all()
