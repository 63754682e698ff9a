"""The door to a GPU without one: a device whose memory is the host's stands in its place.

What PyTorch gives to kernels of a GPU (addresses, shapes, strides, dtypes, workspaces) is read from memory
of the tensors and written to it, as it says; in between the emulator computes. What only a GPU has (streams,
graphs) is in ``test_torch_cuda.py``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import finite_attention as fa  # noqa: E402
from finite_attention import _host, torch_msda, torch_ops  # noqa: E402

STREAM = 4711


def memory(tensor: Any) -> np.ndarray:
    """The elements that an address, a shape and strides tell of, in place."""
    address, shape, strides, name = tensor
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    if 0 in shape:
        return np.empty(shape, dtype)
    assert address != 0 and all(stride >= 0 for stride in strides)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides))
    raw = (ctypes.c_uint8 * ((last + 1) * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(raw, dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [stride * dtype.itemsize for stride in strides])


class DeviceOnHost:
    """The native device, for memory of the host."""

    def __init__(self) -> None:
        self.workspaces = 0
        self.masks: dict[int, np.ndarray] = {}

    def mask_bytes(self, mask: Any, keys: int) -> int:
        return _host.Transfer("emulated:sm_90a").device.mask_bytes(mask, keys)

    def prepare_mask(self, mask: Any, keys: int, prepared: tuple[int, int], stream: int) -> None:
        assert stream == STREAM and prepared[1] == self.mask_bytes(mask, keys)
        self.masks[prepared[0]] = memory(mask).copy()

    def _run(self, method: str, problem: Any, allocate: Any, stream: int, outputs: set[int]) -> None:
        """Runs a pass; the groups of tensors whose numbers are in ``outputs`` are written."""
        assert stream == STREAM
        transfer, written = _host.Transfer("emulated:sm_90a"), []

        def put(tensor: Any, is_output: bool) -> Any:
            if tensor is None:
                return None
            if is_output:
                room = transfer.room(tuple(tensor[1]), np.dtype(memory(tensor).dtype))
                written.append((tensor, room))
                return room.tensor
            return transfer.put(memory(tensor))

        def of_mask(pair: Any) -> Any:
            if pair is None:
                return None
            scores = _host.Scores(mask=self.masks[pair[1]])
            keys = problem[1][1][1][1] if problem[1][3] is None else pair[0][1][-1]
            return scores.put(transfer, keys)[1]

        def count(bytes_: int) -> int:
            self.workspaces += 1
            assert allocate(bytes_) != 0
            assert allocate(bytes_) != 0
            return transfer.allocate(bytes_)

        options, inputs, scores, *groups = problem
        bias, mask, slopes, sinks = scores
        on_device = [tuple(put(tensor, False) for tensor in inputs),
                     (put(bias, False), of_mask(mask), put(slopes, False), put(sinks, False))]
        for index, group in enumerate(groups):
            on_device.append(tuple(put(tensor, (index, at) in outputs) for at, tensor in enumerate(group)))
        getattr(transfer.device, method)((options, *on_device), count, 0)
        for tensor, room in written:
            memory(tensor)[...] = room.array()

    def forward(self, problem: Any, allocate: Any, stream: int) -> None:
        self._run("forward", problem, allocate, stream, {(0, 0), (0, 1)})

    def backward(self, problem: Any, allocate: Any, stream: int) -> None:
        self._run("backward", problem, allocate, stream, {(1, at) for at in range(2, 7)})

    def msda_forward(self, problem: Any, o: Any, stream: int) -> None:
        assert stream == STREAM
        value, shapes, locations, weights, points, *options = problem
        arrays = [memory(tensor) for tensor in (value, locations, weights)]
        split = [arrays[1].reshape(*arrays[1].shape[:3], len(shapes), points, 2),
                 arrays[2].reshape(*arrays[2].shape[:3], len(shapes), points)]
        padding = "border" if options[0] else "zeros"
        memory(o)[...] = fa.ms_deform_attn(arrays[0], shapes, *split, padding=padding,
                                           align_corners=options[1])

    def msda_backward(self, problem, gradients, deterministic, allocate, stream) -> None:
        assert stream == STREAM
        value, shapes, locations, weights, points, *options = problem
        arrays = [memory(tensor) for tensor in (value, locations, weights)]
        split = [arrays[1].reshape(*arrays[1].shape[:3], len(shapes), points, 2),
                 arrays[2].reshape(*arrays[2].shape[:3], len(shapes), points)]
        padding = "border" if options[0] else "zeros"
        found = fa.ms_deform_attn_backward(memory(gradients[0]), arrays[0], shapes, *split, padding=padding,
                                           align_corners=options[1], deterministic=deterministic)
        for tensor, gradient in zip(gradients[1:], found):
            memory(tensor)[...] = gradient.reshape(tensor[1])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> DeviceOnHost:
    """Tensors of the host take the way of those of a GPU."""
    device = DeviceOnHost()

    class Gpu(torch_ops._Gpu):
        def __init__(self, name: Any, **tensors: Any) -> None:
            self.place, self.device = next(iter(tensors.values())).device, device
            self.stream, self._held = STREAM, []

    monkeypatch.setattr(torch_ops, "_Gpu", Gpu)
    monkeypatch.setattr(torch_msda, "_Gpu", Gpu)
    return device


def both_ways(arguments: tuple[Any, ...], d_o: Any) -> None:
    """Forward and backward by both ways give the same bits."""
    forward = [kernel(*arguments) for kernel in (torch_ops._forward_gpu, torch_ops._forward_host)]
    for ours, expected in zip(*forward):
        assert torch.equal(ours, expected)
    o, lse, random = forward[1]
    q, k, v, cu_q, cu_k, bias, mask, slopes, sinks, *_ = arguments
    spread = arguments[12:]
    of_backward = (d_o, torch.ones_like(lse), q, k, v, cu_q, cu_k, o, lse, bias, mask, slopes, sinks, random,
                   None, bias is not None, sinks is not None, *spread)
    backward = [kernel(*of_backward) for kernel in (torch_ops._backward_gpu, torch_ops._backward_host)]
    for ours, expected in zip(*backward):
        assert torch.equal(ours, expected)


def spread(causal=True, left=None, right=None, dropout=0.0, longest=(None, None), num_splits=None,
           precision=None):
    return (causal, False, left, right, None, None, dropout, *longest, True, num_splits, None, precision, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_strided_tensors(gpu, dtype):
    torch.manual_seed(0)
    qkv = torch.randn(2, 20, 3, 4, 16).to(dtype)
    q, k, v = qkv.unbind(2)
    d_o = torch.randn(2, 4, 20, 16).to(dtype).transpose(1, 2)
    both_ways((q, k, v, *(None,) * 6, None, 0, None, *spread(left=9)), d_o)
    columns_apart = torch.randn(2, 16, 4, 20).to(dtype).permute(0, 3, 2, 1)
    both_ways((columns_apart, k, v, *(None,) * 6, None, 0, None, *spread()), d_o)
    assert gpu.workspaces > 0


def test_scores_dropout_and_outputs_in_f32(gpu):
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 20, 4, 16), torch.randn(2, 30, 2, 16), torch.randn(2, 30, 2, 8)
    bias, mask = torch.randn(4, 1, 30), torch.rand(2, 1, 20, 30) < 0.7
    slopes, sinks = torch.rand(8)[::2], torch.randn(4)
    arguments = (q, k, v, None, None, bias, mask, slopes, sinks, 5, 7, torch.float32, *spread(dropout=0.2))
    both_ways(arguments, torch.randn(2, 20, 4, 8))


def test_packed_sequences_with_a_mask(gpu):
    torch.manual_seed(2)
    q, k, v = torch.randn(20, 4, 16), torch.randn(25, 2, 16), torch.randn(25, 2, 16)
    at_q, at_k = (torch.tensor(at, dtype=torch.int32) for at in ([0, 7, 20], [0, 15, 25]))
    mask = torch.rand(2, 1, 13, 15) < 0.8
    both_ways((q, k, v, at_q, at_k, None, mask, None, None, None, 0, None, *spread(longest=(13, 15))),
              torch.randn(20, 4, 16))


def test_a_forward_that_splits_keys_asks_for_its_workspace(gpu):
    q, k = torch.randn(1, 2, 2, 16), torch.randn(1, 400, 1, 16)
    o, lse, _ = torch_ops._forward_gpu(q, k, k, *(None,) * 6, None, 0, None, *spread(num_splits=3))
    assert gpu.workspaces == 1
    expected = torch_ops._forward_host(q, k, k, *(None,) * 6, None, 0, None, *spread(num_splits=3))
    assert torch.equal(o, expected[0]) and torch.equal(lse, expected[1])


def test_parts_of_f32_ask_for_their_workspace(gpu):
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 20, 2, 16) for _ in range(3))
    arguments = (q, k, v, *(None,) * 6, None, 0, None, *spread(precision="fast3"))
    o, lse, _ = torch_ops._forward_gpu(*arguments)
    assert gpu.workspaces == 1
    expected = torch_ops._forward_host(*arguments)
    assert torch.equal(o, expected[0]) and torch.equal(lse, expected[1])


def test_multi_scale_deformable_attention(gpu):
    torch.manual_seed(3)
    value = torch.randn(2, 2, 41, 6).transpose(1, 2)
    locations, weights = torch.rand(2, 4, 2, 2, 3, 2), torch.rand(2, 4, 2, 2, 3)
    arguments = (value, [5, 7, 3, 2], locations, weights, "border", True, True, None)
    o = torch_msda._forward_gpu(*arguments)
    assert torch.equal(o, torch_msda._forward_host(*arguments))
    d_o = torch.randn_like(o)
    found = torch_msda._backward_gpu(d_o, *arguments), torch_msda._backward_host(d_o, *arguments)
    assert all(torch.equal(ours, expected) for ours, expected in zip(*found))


def test_tensors_on_other_devices_and_other_gpus_are_refused():
    q, elsewhere = torch.randn(1, 2, 1, 8), torch.empty(1, 2, 1, 8, device="meta")
    with pytest.raises(ValueError, match="^k: expected device cpu like q, got meta"):
        torch_ops._Gpu(None, q=q, k=elsewhere)
