"""The doors for PyTorch on a GPU: addresses, streams, devices, graphs, and what PyTorch compiles."""

from __future__ import annotations

import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA GPU", allow_module_level=True)
F = torch.nn.functional

import finite_attention as fa  # noqa: E402
from finite_attention import torch_ops  # noqa: E402
from finite_attention._options import Options  # noqa: E402
from finite_attention.torch_host import to_numpy  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def drawn(seed, b, sq, sk, hq, hk, d, dtype=BF16, device="cuda"):
    """q, k, v and do, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, d), (b, sq, hq, d))
    tensors = [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]
    return [tensor.requires_grad_() for tensor in tensors[:3]] + tensors[3:]


def judged(q, k, v, do, found, **options):
    arrays = [to_numpy(tensor.cpu()) for tensor in (q, k, v, do)]
    exact = reference.attention(*arrays, **options)
    naive = reference.attention(*arrays, **options, rounded=arrays[0].dtype)
    for name, got in zip(("o", "dq", "dk", "dv"), found):
        array = to_numpy(got.detach().cpu())
        reference.assert_close(name, array, getattr(naive, name), getattr(exact, name), array.dtype.type)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 4)}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("sizes", [(2, 200, 200, 4, 4, 64), (1, 77, 301, 6, 2, 128), (1, 130, 60, 2, 1, 59)],
                         ids=str)
def test_results_are_those_of_the_reference(sizes, options, dtype):
    q, k, v, do = drawn(0, *sizes, dtype=dtype)
    o, lse = fa.attention(q, k, v, return_lse=True, **options)
    gradients = torch.autograd.grad(o, (q, k, v), do)
    judged(q, k, v, do, (o, *gradients), **options)
    again = fa.attention_backward(do, q.detach(), k.detach(), v.detach(), o.detach(), lse, **options,
                                  deterministic=True)
    judged(q, k, v, do, (o, *again), **options)


def test_scores_have_bias_mask_slopes_and_sinks():
    q, k, v, do = drawn(1, 2, 90, 150, 4, 2, 64)
    bias = torch.randn(4, 1, 150, device="cuda", dtype=BF16, requires_grad=True)
    mask = torch.rand(2, 1, 90, 150, device="cuda") < 0.6
    mask[:, :, 5] = False
    slopes, sinks = torch.rand(4, device="cuda"), torch.randn(4, device="cuda", requires_grad=True)
    o = fa.attention(q, k, v, bias=bias, mask=mask, alibi_slopes=slopes, sinks=sinks, causal=True)
    found = torch.autograd.grad(o, (q, k, v, bias, sinks), do)
    of_scores = {"bias": to_numpy(bias.detach().cpu()), "mask": mask.cpu().numpy(), "causal": True,
                 "alibi_slopes": slopes.cpu().numpy(), "sinks": sinks.detach().cpu().numpy()}
    judged(q, k, v, do, (o, *found[:3]), **of_scores)
    arrays = [to_numpy(tensor.detach().cpu()) for tensor in (q, k, v, do)]
    exact = reference.attention(*arrays, **of_scores)
    naive = reference.attention(*arrays, **of_scores, rounded=arrays[0].dtype)
    d_bias, d_sinks = to_numpy(found[3].cpu()), found[4].cpu().numpy()
    reference.assert_close("dbias", d_bias, naive.dbias, exact.dbias, d_bias.dtype.type)
    reference.assert_close("dsinks", d_sinks, naive.dsinks, exact.dsinks, np.float32)
    assert (o[:, 5] == 0).all()


def test_the_gpu_and_the_emulator_agree_bit_for_bit_on_the_forward():
    q, k, v, _ = drawn(2, 1, 100, 100, 2, 1, 64)
    arch = "sm_90a" if torch.cuda.get_device_capability() == (9, 0) else "sm_80"
    o, lse = fa.attention(q, k, v, causal=True, return_lse=True)
    host = fa.attention(q.cpu(), k.cpu(), v.cpu(), causal=True, return_lse=True, device=f"emulated:{arch}")
    # exp2 of the hardware and of the emulator differ by units in the last place.
    assert torch.allclose(o.cpu().float(), host[0].float(), atol=1e-2)
    assert torch.allclose(lse.cpu(), host[1], atol=2e-5)


def test_arrays_can_go_to_the_gpu():
    q, k, v, _ = (to_numpy(tensor.detach().cpu()) for tensor in drawn(3, 1, 50, 70, 2, 1, 64))
    o = fa.attention(q, k, v, device="cuda:0")
    expected = fa.attention(*(torch.from_numpy(x.view(np.int16)).view(BF16).cuda() for x in (q, k, v)))
    assert np.array_equal(o.view(np.int16), expected.view(torch.int16).cpu().numpy())


def test_packed_sequences_are_each_by_itself():
    lengths = [100, 1, 0, 333, 64]
    rows = sum(lengths)
    generator = torch.Generator("cuda").manual_seed(4)
    q, k, v, do = (torch.randn(rows, 4, 64, device="cuda", generator=generator, dtype=BF16) for _ in range(4))
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    at = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device="cuda")
    o = fa.flash_attn_varlen_func(q, k, v, at, at, 333, 333, causal=True)
    found = torch.autograd.grad(o, (q, k, v), do)
    for start, length in zip(np.cumsum([0, *lengths]), lengths):
        part = slice(start, start + length)
        if length:
            judged(*(x[None, part] for x in (q.detach(), k.detach(), v.detach(), do)),
                   [x[None, part] for x in (o, *found)], causal=True)


def test_work_is_in_the_order_of_the_current_stream():
    q, k, v, _ = drawn(5, 1, 1024, 1024, 4, 4, 64)
    expected = fa.attention(q, k, v).detach()
    side = torch.cuda.Stream()
    late = torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        late.copy_(q.detach())
        o = fa.attention(late, k.detach(), v.detach())
        copy = o.clone()
    side.synchronize()
    assert torch.equal(copy, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
def test_every_gpu_is_worked_on_where_its_tensors_are():
    expected = None
    for index in range(torch.cuda.device_count()):
        q, k, v, do = drawn(6, 1, 100, 100, 2, 2, 64, device=f"cuda:{index}")
        o = fa.attention(q, k, v, causal=True)
        found = [x.cpu() for x in (o, *torch.autograd.grad(o, (q, k, v), do))]
        assert o.device.index == index
        expected = expected or found
        assert torch.equal(found[0], expected[0])
    with pytest.raises(ValueError, match="^k: expected device cuda:1 like q, got cuda:0"):
        fa.attention(drawn(6, 1, 9, 9, 1, 1, 64, device="cuda:1")[0], *drawn(6, 1, 9, 9, 1, 1, 64)[1:3])


@pytest.mark.parametrize("options", [{}, {"mask": True}, {"bias": True}], ids=str)
def test_a_graph_can_be_captured(options):
    q, k, v, do = drawn(7, 2, 256, 256, 4, 4, 64)
    if "mask" in options:
        options = {"mask": torch.rand(256, 256, device="cuda") < 0.8}
    if "bias" in options:
        options = {"bias": torch.randn(256, 256, device="cuda", dtype=BF16)}

    def step():
        o = fa.attention(q, k, v, causal=True, deterministic=True, **options)
        return (o, *torch.autograd.grad(o, (q, k, v), do))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()  # loads kernels
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in (q, k, v):
            tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    torch.cuda.synchronize()
    for got, expected in zip(captured, step()):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compile_gives_what_eager_does(mode):
    def step(q, k, v):
        o = fa.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True)
        return (o.float() ** 2).sum()

    compiled = torch.compile(step, fullgraph=True, mode=mode)
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=BF16, requires_grad=True) for _ in range(3))
    expected = torch.autograd.grad(step(q, k, v), (q, k, v))
    for _ in range(3):
        got = [x.clone() for x in torch.autograd.grad(compiled(q, k, v), (q, k, v))]
        for ours, theirs in zip(got, expected):
            assert torch.allclose(ours.float(), theirs.float(), atol=0.06, rtol=0.02)


def test_opcheck():
    q, k, v, _ = drawn(8, 1, 40, 50, 2, 1, 64)
    options = torch_ops.flattened(Options(causal=True, deterministic=True), None)
    torch.library.opcheck(torch.ops.finite_attention.attention_forward.default,
                          (q, k, v, *(None,) * 7, 0, None, *options))


def test_dropout_follows_the_generator_of_the_gpu_and_can_be_replayed():
    q, k, v, do = drawn(9, 2, 128, 128, 4, 4, 64)
    outcomes = []
    for seed in (1, 1, 2):
        torch.cuda.manual_seed(seed)
        o = fa.attention(q, k, v, dropout=0.3, deterministic=True)
        outcomes.append((o, *torch.autograd.grad(o, (q, k, v), do)))
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0], outcomes[1]))
    assert not torch.equal(outcomes[0][0], outcomes[2][0])
    assert not torch.equal(fa.attention(q, k, v, dropout=0.3), fa.attention(q, k, v, dropout=0.3))
    kept = fa.dropout_mask(0.3, 11, 5, (2, 4, 128, 128))
    o = fa.attention(q, k, v, dropout=0.3, seed=11, offset=5)
    found = torch.autograd.grad(o, (q, k, v), do)
    threshold = round(65536 * float(np.float32(0.3)))
    judged(q, k, v, do, (o, *found), kept=kept, keep_scale=65536 / (65536 - threshold))


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_msda_is_the_emulators(padding):
    rng = np.random.default_rng(0)
    shapes = [[16, 20], [8, 10]]
    value = rng.standard_normal((2, 400, 4, 32)).astype(np.float32)
    locations = rng.uniform(-0.05, 1.05, (2, 30, 4, 2, 4, 2)).astype(np.float32)
    weights = rng.random((2, 30, 4, 2, 4)).astype(np.float32)
    do = rng.standard_normal((2, 30, 4, 32)).astype(np.float32)
    tensors = [torch.from_numpy(x).cuda().requires_grad_() for x in (value, locations, weights)]
    o = fa.ms_deform_attn(tensors[0], torch.tensor(shapes), *tensors[1:], padding=padding)
    found = torch.autograd.grad(o, tensors, torch.from_numpy(do).cuda())
    expected = (fa.ms_deform_attn(value, shapes, locations, weights, padding=padding),
                *fa.ms_deform_attn_backward(do, value, shapes, locations, weights, padding=padding))
    for ours, theirs in zip((o, *found), expected):
        assert np.allclose(ours.detach().cpu().numpy(), theirs, rtol=1e-4, atol=1e-4)


def test_scaler_and_clipping_are_pytorchs_on_the_gpu():
    options = {"init_scale": 2.0**12, "growth_interval": 5}
    scalers = (torch.amp.GradScaler("cuda", **options), fa.GradScaler(**options))
    parameters = [torch.nn.Parameter(torch.arange(600.0, device="cuda").view(20, 30)) for _ in scalers]
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in parameters]
    rng = np.random.default_rng(1)
    for step in range(10_000):
        planted = rng.choice([np.inf, -np.inf, np.nan]) if rng.random() < 0.1 else None
        place = int(rng.integers(600))
        for scaler, parameter, optimizer in zip(scalers, parameters, optimizers):
            parameter.grad = scaler.scale(torch.cos(parameter.detach()))
            if planted is not None:
                parameter.grad.view(-1)[place] = float(planted)
            scaler.step(optimizer)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale(), step
        if step % 100 == 0:
            assert torch.equal(*parameters), step
    for parameter in parameters:
        parameter.grad = torch.cos(parameter.detach())
    total = torch.nn.utils.clip_grad_norm_([parameters[0]], 1.0)
    assert abs(fa.clip_grad_norm_([parameters[1]], 1.0).total_norm - float(total)) < 1e-4
    assert torch.allclose(parameters[0].grad, parameters[1].grad, rtol=1e-6)
    found = fa.scan(torch.tensor([[1.0, float("nan")]], device="cuda", dtype=BF16).t())
    assert found.nan == 1 and found.first == (1, 0)


def test_a_wrong_argument_is_named():
    q, k, v, _ = drawn(10, 1, 9, 9, 2, 2, 64)
    with pytest.raises(ValueError, match="^k: expected device cuda:0 like q, got cpu"):
        fa.attention(q, k.cpu(), v)
    with pytest.raises(ValueError, match="^k: expected head_dim 64 like q, got 32"):
        fa.attention(q, k[..., :32], v)
    with pytest.raises(ValueError, match="^device: expected cuda:0, where q is"):
        fa.attention(q, k, v, device="emulated:sm_90a")
    assert fa.attention(q, k, v, device="cuda:0:sm_80").shape == q.shape


def test_arrays_of_cupy_are_taken_by_dlpack_and_given_back():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q, k, v, _ = drawn(11, 1, 40, 50, 2, 2, 64, dtype=F16)
    o = fa.attention(*(cupy.from_dlpack(tensor.detach()) for tensor in (q, k, v)), causal=True)
    assert isinstance(o, cupy.ndarray)
    assert torch.equal(torch.from_dlpack(o), fa.attention(q, k, v, causal=True))


def test_an_anomaly_of_autograd_is_named():
    q = torch.ones(1, 3, 1, 64, device="cuda", requires_grad=True)
    o = fa.attention(q, q, q)
    with fa.detect_anomaly(), pytest.raises(fa.NonFiniteError, match="^backward pass of attention: do: 192"):
        o.backward(torch.full_like(o, float("nan")))
    large = torch.full((1, 3, 1, 64), 3e30, device="cuda")
    with fa.detect_anomaly(), pytest.raises(fa.NonFiniteError) as caught:
        fa.attention(large, large, q.detach())
    assert (caught.value.tensor, caught.value.stage) == ("o", "scores")
