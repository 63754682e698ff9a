"""Scans, clipping and loss scaling, of arrays and of tensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import finite_attention as fa


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32], ids=["bf16", "f16", "f32"])
def test_a_scan_counts_what_is_not_finite(dtype, device):
    array = np.ones((3, 5, 70), dtype)
    assert fa.scan(array, device=device).is_finite
    assert abs(fa.scan(array, device=device).norm - 1050**0.5) < 1e-4
    array[1, 2, 3], array[2, 0, 0], array[2, 4, 69] = np.inf, np.nan, -np.inf
    found = fa.scan(array, device=device)
    assert (found.nan, found.positive_infinity, found.negative_infinity) == (1, 1, 1)
    assert found.first == (1, 2, 3) and not found.is_finite
    assert str(found) == "1 NaN, 1 +inf, 1 -inf, the first at [1, 2, 3]"


def test_a_scan_of_nothing_and_of_the_wrong_thing():
    assert fa.scan(np.zeros((0, 3), np.float32)).is_finite
    with pytest.raises(ValueError, match="^tensor: expected dtype bf16, f16 or f32, got float64"):
        fa.scan(np.zeros(3))


def test_clipping_has_one_norm_for_all():
    gradients = {"a": np.full(3, 4, np.float32), "b": np.full((2, 2), 4, np.float16)}
    clipped = fa.clip_grad_norm_(gradients, 1.0)
    assert abs(clipped.total_norm - 112**0.5) < 1e-4
    assert abs(clipped.coefficient - 1 / (112**0.5 + 1e-6)) < 1e-6
    squares = sum((x.astype(float) ** 2).sum() for x in gradients.values())
    assert abs(squares - 1) < 1e-3
    assert fa.clip_grad_norm_(gradients, 10.0).coefficient == 1.0


def test_clipping_names_what_is_not_finite_and_changes_nothing():
    gradients = {"a": np.ones(3, np.float32), "b": np.array([1, np.inf], np.float32)}
    text = r"^total norm: .*: b has 0 NaN, 1 \+inf, 0 -inf, the first at \[1\]"
    with pytest.raises(RuntimeError, match=text):
        fa.clip_grad_norm_(gradients, 1.0)
    assert (gradients["a"] == 1).all()
    fa.clip_grad_norm_(gradients, 1.0, error_if_nonfinite=False)
    assert (gradients["a"] == 0).all() and np.isnan(gradients["b"][1])
    with pytest.raises(ValueError, match="^max_norm: expected a number of at least 0"):
        fa.clip_grad_norm_(gradients, -1.0)


def test_a_scaler_of_arrays():
    scaler = fa.GradScaler(init_scale=4.0, growth_interval=2)
    gradient = np.array([8.0, 16.0], np.float32)
    scaler.unscale_([gradient])
    assert (gradient == [2, 4]).all() and scaler.may_step()
    scaler.update()
    gradient[0] = np.nan
    scaler.unscale_({"w": gradient})
    assert not scaler.may_step() and str(scaler.found[0][1]) == "1 NaN, 0 +inf, 0 -inf, the first at [0]"
    assert scaler.found[0][0] == "w"
    with pytest.raises(RuntimeError, match="^unscale: expected one call for each optimizer, before its step"):
        scaler.unscale_([gradient])
    scaler.update()
    assert scaler.get_scale() == 2.0
    with pytest.raises(RuntimeError, match="^update: expected at least one optimizer"):
        scaler.update()
    again = fa.GradScaler()
    again.load_state_dict(scaler.state_dict())
    assert again.state_dict() == scaler.state_dict()
    with pytest.raises(ValueError, match="^backoff_factor: expected a number above 0 and below 1"):
        fa.GradScaler(backoff_factor=2.0)


def test_a_scaler_that_is_off_does_nothing():
    scaler = fa.GradScaler(enabled=False)
    gradient = np.array([np.inf], np.float32)
    scaler.unscale_([gradient])
    assert scaler.may_step() and scaler.get_scale() == 1.0 and scaler.state_dict() == {}


def test_ten_thousand_steps_are_pytorchs():
    """The rules alone: what was found is told, as by code that unscales by itself."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    options = {"init_scale": 2.0**16, "growth_interval": 7}
    theirs, ours = torch.amp.GradScaler("cpu", **options), fa.GradScaler(**options)
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for step in range(10_000):
        bad = rng.random() < 0.12
        gradient = torch.ones(3)
        if bad:
            gradient[rng.integers(3)] = rng.choice([np.inf, -np.inf, np.nan])
        parameter.grad = gradient
        theirs.scale(torch.zeros(()))
        before = parameter.detach().clone()
        theirs.step(optimizer)
        stepped = not torch.equal(before, parameter.detach())
        theirs.update()
        ours.note_unscaled(bool(bad))
        assert ours.may_step() == stepped == (not bad), step
        ours.update()
        assert ours.get_scale() == theirs.get_scale(), step
        with torch.no_grad():
            parameter.zero_()


def test_two_hundred_steps_of_an_optimizer_are_pytorchs():
    """The same where gradients are scaled, unscaled and looked at."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    options = {"init_scale": 2.0**12, "growth_interval": 5}
    scalers = (torch.amp.GradScaler("cpu", **options), fa.GradScaler(**options))
    parameters = [torch.nn.Parameter(torch.arange(6.0)) for _ in scalers]
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in parameters]
    rng = np.random.default_rng(1)
    for step in range(200):
        planted = rng.choice([np.inf, -np.inf, np.nan]) if rng.random() < 0.1 else None
        place, target = rng.integers(6), torch.from_numpy(rng.standard_normal(6).astype(np.float32))
        for scaler, parameter, optimizer in zip(scalers, parameters, optimizers):
            optimizer.zero_grad()
            scaler.scale(((parameter - target) ** 2).sum()).backward()
            if planted is not None:
                parameter.grad[place] = planted
            if step % 3 == 0:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert torch.equal(*parameters), step
        assert scalers[0].get_scale() == scalers[1].get_scale(), step
    with pytest.raises(RuntimeError, match="^unscale: expected one call"):
        scalers[1].unscale_(optimizers[1])
        scalers[1].unscale_(optimizers[1])


def test_clipping_of_parameters_is_pytorchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    generator = torch.Generator().manual_seed(0)
    ours = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (2, 2))]
    for parameter in ours[:2]:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    for mine, other in zip(ours, theirs):
        other.grad = None if mine.grad is None else mine.grad.clone()
    total = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    assert abs(fa.clip_grad_norm_(ours, 0.5).total_norm - float(total)) < 1e-5
    for mine, other in zip(ours[:2], theirs):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-6)


def large(shape, value):
    return np.full(shape, value, np.float32)


def test_an_anomaly_of_the_forward_is_named(device):
    q, v = large((1, 3, 1, 8), 3e30), large((1, 3, 1, 8), 1)
    text = "^forward pass of attention: o: "
    with fa.detect_anomaly(), pytest.raises(fa.NonFiniteError, match=text) as caught:
        fa.attention(q, q, v, device=device)
    assert (caught.value.tensor, caught.value.stage) == ("o", "scores")
    q[0, 1, 0, 2] = np.nan
    text = r"q: 1 NaN, 0 \+inf, 0 -inf, the first at \[0, 1, 0, 2\]"
    with fa.detect_anomaly(), pytest.raises(fa.NonFiniteError, match=text) as caught:
        fa.attention(q, v, v, device=device)
    assert caught.value.tensor == "q"
    fa.attention(q, v, v, device=device)  # outside nothing is looked at


def test_an_anomaly_of_the_backward_is_named_and_can_be_a_warning(device):
    ones = large((1, 3, 1, 8), 1)
    o, lse = fa.attention(ones, ones, ones, return_lse=True, device=device)
    rows = np.arange(24, dtype=np.float32).reshape(1, 3, 1, 8)
    with fa.detect_anomaly():
        fa.attention_backward(rows, ones, ones, ones, o, lse, device=device)
        with pytest.raises(fa.NonFiniteError, match="^backward pass of attention: d") as caught:
            fa.attention_backward(large(rows.shape, 3e38), ones, ones, rows, o, lse, device=device)
    assert caught.value.stage is not None
    with fa.detect_anomaly(warn=True), pytest.warns(fa.NonFiniteWarning, match="^backward pass of attention"):
        fa.attention_backward(large(rows.shape, 3e38), ones, ones, rows, o, lse, device=device)


def test_dead_rows_are_no_anomaly():
    q, k = large((1, 5, 1, 8), 1), large((1, 2, 1, 8), 1)
    with fa.detect_anomaly():
        o, lse = fa.attention(q, k, k, causal=True, return_lse=True)
        fa.attention_backward(q, q, k, k, o, lse, causal=True)


def test_an_anomaly_of_autograd_is_named():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = torch.ones(1, 3, 1, 8, requires_grad=True)
    o = fa.attention(q, q, q)
    with fa.detect_anomaly(), pytest.raises(fa.NonFiniteError, match="^backward pass of attention: do: 24"):
        o.backward(torch.full_like(o, float("nan")))
