"""The operators ``torch.ops.finite_attention``: their schemas, what runs them, and their derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable

import torch

from . import _anomaly, _host
from ._device import open_device
from ._options import Options, check_rank, check_together
from .torch_host import name_of, to_numpy, to_torch

Tensor = torch.Tensor

# What both passes are told beside their tensors. Integers are symbols while PyTorch compiles.
_OPTIONS = (
    "bool causal, bool top_left, SymInt? left, SymInt? right, float? scale, float? softcap, float dropout, "
    "SymInt? max_seqlen_q, SymInt? max_seqlen_k, bool deterministic, SymInt? num_splits, bool? pack_gqa, "
    "str? precision, str? device"
)
_SCORES = "Tensor? bias, Tensor? mask, Tensor? alibi_slopes, Tensor? sinks"
_OFFSETS = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k"

LIBRARY = torch.library.Library("finite_attention", "DEF")
# The third result is the seed and the offset of dropout, on the host; without dropout it is empty, and on the
# device of q, so that nothing on the host keeps a graph from being captured.
LIBRARY.define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, {_OFFSETS}, {_SCORES}, int? seed, int offset, "
    f"ScalarType? out_dtype, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)
LIBRARY.define(
    f"attention_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, {_OFFSETS}, Tensor o, "
    f"Tensor lse, {_SCORES}, Tensor random, ScalarType? grad_dtype, bool wants_d_bias, bool wants_d_sinks, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def forward(
    inputs: tuple[Any, ...], scores: _host.Scores, options: Options, out_dtype: Any, device: str | None
) -> tuple[Tensor, Tensor]:
    """o and lse, with their derivatives."""
    q, k, v, *offsets = inputs
    options = _completed(q, k, v, offsets, options)
    if q.is_cuda and is_eager(*inputs, *_tensors(q, scores)):
        dtype = _torch_dtype("o", out_dtype)
        return _Eager.apply(*inputs, *_tensors(q, scores), options, dtype, device)
    o, lse, _ = torch.ops.finite_attention.attention_forward(
        q, k, v, *offsets, *_tensors(q, scores), _signed(options.seed), _signed(options.offset),
        _torch_dtype("o", out_dtype), *flattened(options, device),
    )
    return o, lse


def backward(
    d_o: Tensor,
    d_lse: Tensor | None,
    inputs: tuple[Any, ...],
    outputs: tuple[Tensor, Tensor],
    scores: _host.Scores,
    options: Options,
    wanted: _host.Wanted,
    device: str | None,
) -> tuple[Tensor, ...]:
    """dq, dk, dv, dbias and dsinks; the last two empty unless they are wanted."""
    q, k, v, *offsets = inputs
    options = _completed(q, k, v, offsets, options)
    options.native()  # that there is a seed
    return torch.ops.finite_attention.attention_backward(
        d_o, d_lse, q, k, v, *offsets, *outputs, *_tensors(q, scores), _seed_tensor(options),
        _torch_dtype("dq", wanted.dtype), wanted.d_bias, wanted.d_sinks, *flattened(options, device),
    )


def _tensors(q: Tensor, scores: _host.Scores) -> tuple[Any, ...]:
    of_scores = (scores.bias, scores.mask, scores.alibi_slopes, scores.sinks)
    check_tensors("q", zip(("bias", "mask", "alibi_slopes", "sinks"), of_scores))
    return of_scores


def check_tensors(like: str, tensors: Iterable[tuple[str, Any]]) -> None:
    """Beside a tensor of PyTorch there are no arrays; ``None`` is no tensor."""
    for argument, tensor in tensors:
        if tensor is not None and not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise ValueError(f"{argument}: expected a tensor of PyTorch like {like}, got {kind}")


def _torch_dtype(argument: str, dtype: Any) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    return getattr(torch, _host.dtype_of(argument, dtype).name)


def _completed(q: Any, k: Any, v: Any, offsets: list[Any], options: Options) -> Options:
    """The options, with the lengths of packed sequences."""
    check_tensors("q", (("k", k), ("v", v), ("cu_seqlens_q", offsets[0]), ("cu_seqlens_k", offsets[1])))
    if offsets[0] is None or offsets[1] is None:
        return options
    said = [options.max_seqlen_q, options.max_seqlen_k]
    for index, tensor in enumerate(offsets):
        if said[index] is None and tensor.numel() > 0:
            said[index] = int(tensor.diff().max()) if tensor.numel() > 1 else 0
    return replace(options, max_seqlen_q=said[0], max_seqlen_k=said[1])


def flattened(options: Options, device: str | None) -> tuple[Any, ...]:
    """The last arguments of the operators."""
    return (options.causal, options.top_left, options.left, options.right, options.scale, options.softcap,
            options.dropout, options.max_seqlen_q, options.max_seqlen_k, options.deterministic,
            options.num_splits, options.pack_gqa, options.precision, device)


def _gathered(spread: tuple[Any, ...], seed: int | None, offset: int) -> Options:
    (causal, top_left, left, right, scale, softcap, dropout, max_seqlen_q, max_seqlen_k, deterministic,
     num_splits, pack_gqa, precision, _) = spread
    return Options(causal, top_left, left, right, scale, softcap, dropout, seed, offset, max_seqlen_q,
                   max_seqlen_k, deterministic, num_splits, pack_gqa, precision)


# --- dropout ---------------------------------------------------------------------------------------------

_SIGN = 1 << 63


def _seed_tensor(options: Options) -> Tensor:
    """Seed and offset, in 64 bits each; none without dropout."""
    if options.dropout == 0.0 or options.seed is None:
        return torch.empty(0, dtype=torch.int64)
    return torch.tensor([_signed(options.seed), _signed(options.offset)], dtype=torch.int64)


def _signed(number: Any) -> Any:
    """The 64 low bits of an integer, as a signed one."""
    return None if number is None else (number + _SIGN & 2 * _SIGN - 1) - _SIGN


def _with_seed(q: Tensor, options: Options) -> Options:
    """With dropout that has no seed of the caller: one of PyTorch's generator of the device."""
    if options.dropout == 0.0 or options.seed is not None:
        return options
    if q.is_cuda:
        generator = torch.cuda.default_generators[q.device.index]
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + 4)  # the generator counts in steps of four
    else:
        seed, offset = torch.randint(-_SIGN, _SIGN - 1, (2,), dtype=torch.int64).tolist()
    return replace(options, seed=seed, offset=offset)


def _random(q: Tensor, options: Options) -> Tensor:
    """The third result of a forward pass with this q."""
    if options.dropout == 0.0:
        return torch.empty(0, dtype=torch.int64, device=q.device)
    return _seed_tensor(options)


# --- without the dispatcher ------------------------------------------------------------------------------


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether autograd alone looks at what is called: no compiler, mode, transform or subclass of tensors.

    Operators are then called without PyTorch's dispatcher and what it asks of operators written in Python,
    which take longer than kernels of a few thousand rows.
    """
    if torch.compiler.is_compiling() or _is_watched():
        return False
    return all(tensor is None or type(tensor) in _PLAIN for tensor in tensors)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_watched() -> bool:
    """Whether there is a mode or a transform; yes where this PyTorch cannot be asked."""
    try:
        modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
        return modes > 0 or torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


class _Eager(torch.autograd.Function):
    """The operators with their derivatives, called at once."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, options, out_dtype, device = inputs
        o, lse, options = _forward_on_gpu(tensors, options, out_dtype, device)
        ctx.save_for_backward(*tensors[:5], o, lse, *tensors[5:])
        ctx.options, ctx.device = options, device
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        saved, options, device = ctx.saved_tensors, ctx.options, ctx.device

        def run(d_o: Tensor, wants_d_bias: bool, wants_d_sinks: bool) -> tuple[Tensor, ...]:
            if torch.is_grad_enabled():
                # Somebody wants derivatives of these: the operator says that there are none.
                return torch.ops.finite_attention.attention_backward(
                    d_o, d_lse, *saved, _seed_tensor(options), None, wants_d_bias, wants_d_sinks,
                    *flattened(options, device),
                )
            wanted = (None, wants_d_bias, wants_d_sinks)
            return _backward_on_gpu(d_o, d_lse, saved, options, wanted, device)

        return _chained(ctx, (d_o, d_lse), saved, run, 3)


# --- on a GPU --------------------------------------------------------------------------------------------


def _of_gpu(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), name_of(tensor.dtype)


def _columns(tensor: Tensor) -> Tensor:
    """With the elements of a row side by side."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _current_stream(index: int) -> int:
    """The current stream of a GPU, without an object around it where this PyTorch can say so."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw(index) if raw else torch.cuda.current_stream(index).cuda_stream


class _Gpu:
    """The GPU of a call's tensors, and its current stream."""

    def __init__(self, name: str | None, **tensors: Tensor | None) -> None:
        like, first = next(iter(tensors.items()))
        assert first is not None
        place, index = first.device, first.get_device()
        for argument, tensor in tensors.items():
            # GPUs as integers first: devices are objects that are made anew each time. Others are all -1.
            if tensor is None or tensor.is_cuda and tensor.get_device() == index:
                continue
            if tensor.device != place:
                raise ValueError(f"{argument}: expected device {place} like {like}, got {tensor.device}")
        own = f"cuda:{index}"
        if name is not None and name != own and not name.startswith(own + ":"):
            raise ValueError(f"device: expected {own}, where {like} is, or a target of it, got {name!r}")
        self.place = place
        self.device = open_device(name or own)
        self.stream = _current_stream(index)
        self._held: list[Tensor] = []

    def allocate(self, count: int) -> int:
        """Memory of so many bytes for the device alone, of PyTorch's allocator: its address."""
        memory = torch.empty(count, dtype=torch.uint8, device=self.place)
        self._held.append(memory)
        return memory.data_ptr()

    def scores(self, bias: Any, mask: Any, alibi_slopes: Any, sinks: Any, keys: int) -> Any:
        """What scores have beside q and k; the mask prepared."""
        prepared = None
        if mask is not None:
            if mask.dtype != torch.bool:
                raise ValueError(f"mask: expected dtype bool, got {name_of(mask.dtype)}")
            of_mask = _of_gpu(mask)
            count = self.device.mask_bytes(of_mask, keys)
            address = self.allocate(count)
            self.device.prepare_mask(of_mask, keys, (address, count), self.stream)
            prepared = (of_mask, address)
        self._held += [tensor for tensor in (alibi_slopes, sinks) if tensor is not None]
        return _of_gpu(bias), prepared, _of_gpu(alibi_slopes), _of_gpu(sinks)


def _forward_gpu(q, k, v, cu_q, cu_k, bias, mask, alibi_slopes, sinks, seed, offset, out_dtype, *spread):
    tensors = (q, k, v, cu_q, cu_k, bias, mask, alibi_slopes, sinks)
    o, lse, options = _forward_on_gpu(tensors, _gathered(spread, seed, offset), out_dtype, spread[-1])
    return o, lse, _random(q, options)


def _forward_on_gpu(tensors, options, out_dtype, device):
    """o, lse, and the options with the seed that was drawn."""
    q, k, v, cu_q, cu_k, bias, mask, alibi_slopes, sinks = tensors
    _check_shapes(q, k, v, cu_q, cu_k)
    gpu = _Gpu(device, q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, bias=bias, mask=mask,
               alibi_slopes=alibi_slopes, sinks=sinks)
    options = _with_seed(q, options)
    q, k, v = _columns(q), _columns(k), _columns(v)
    alibi_slopes, sinks = _dense(alibi_slopes), _dense(sinks)
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype or q.dtype)
    lse = q.new_empty(_lse_shape(q), dtype=torch.float32)
    native = options.native()
    scores = gpu.scores(bias, mask, alibi_slopes, sinks, _keys(k, cu_k, options))
    inputs = (_of_gpu(q), _of_gpu(k), _of_gpu(v), _of_gpu(_dense(cu_q)), _of_gpu(_dense(cu_k)))
    problem: Any = (native, inputs, scores, (_of_gpu(o), _of_gpu(lse)))
    _anomaly.forward(gpu.device, problem, gpu.allocate, gpu.stream)
    return o, lse, options


def _backward_gpu(d_o, d_lse, q, k, v, cu_q, cu_k, o, lse, bias, mask, alibi_slopes, sinks, random,
                  grad_dtype, wants_d_bias, wants_d_sinks, *spread):
    tensors = (q, k, v, cu_q, cu_k, o, lse, bias, mask, alibi_slopes, sinks)
    wanted = (grad_dtype, wants_d_bias, wants_d_sinks)
    found = _backward_on_gpu(d_o, d_lse, tensors, _replayed(spread, random), wanted, spread[-1])
    return _all_tensors(q, found)


def _backward_on_gpu(d_o, d_lse, tensors, options, wanted, device):
    """dq, dk, dv, dbias and dsinks, the last two if they are wanted."""
    q, k, v, cu_q, cu_k, o, lse, bias, mask, alibi_slopes, sinks = tensors
    _check_shapes(q, k, v, cu_q, cu_k)
    gpu = _Gpu(device, q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, do=d_o, dlse=d_lse, o=o,
               lse=lse, bias=bias, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks)
    q, k, v, o, d_o = (_columns(tensor) for tensor in (q, k, v, o, d_o))
    alibi_slopes, sinks, lse, d_lse = (_dense(tensor) for tensor in (alibi_slopes, sinks, lse, d_lse))
    dq, dk, dv, d_bias, d_sinks = _gradients(q, k, v, bias, sinks, *wanted)
    native = options.native()
    scores = gpu.scores(bias, mask, alibi_slopes, sinks, _keys(k, cu_k, options))
    inputs = (_of_gpu(q), _of_gpu(k), _of_gpu(v), _of_gpu(_dense(cu_q)), _of_gpu(_dense(cu_k)))
    gradients = (_of_gpu(d_o), _of_gpu(d_lse), _of_gpu(dq), _of_gpu(dk), _of_gpu(dv), _of_gpu(d_bias),
                 _of_gpu(d_sinks))
    problem = (native, inputs, scores, (_of_gpu(o), _of_gpu(lse)), gradients)
    _anomaly.backward(gpu.device, problem, gpu.allocate, gpu.stream)
    return dq, dk, dv, d_bias, d_sinks


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> None:
    check_together(cu_q, cu_k)
    for argument, tensor in (("q", q), ("k", k), ("v", v)):
        check_rank(argument, tensor.dim(), cu_q is not None)


def _lse_shape(q: Tensor) -> tuple[int, ...]:
    *batch, rows, heads, _ = q.shape
    return (*batch, heads, rows)


def _keys(k: Tensor, cu_k: Tensor | None, options: Options) -> int:
    return k.shape[1] if cu_k is None else options.max_seqlen_k or 0


def _replayed(spread: tuple[Any, ...], random: Tensor) -> Options:
    """The options of the forward pass, with its seed."""
    seed, offset = random.tolist() if random.numel() else (None, 0)
    return _gathered(spread, seed, offset)


def _gradients(q, k, v, bias, sinks, grad_dtype, wants_d_bias, wants_d_sinks):
    """Memory for gradients that are wanted."""
    for name, tensor, wanted in (("bias", bias, wants_d_bias), ("sinks", sinks, wants_d_sinks)):
        if wanted and tensor is None:
            raise ValueError(f"d{name}: expected {name} in the problem, got None")
    dtype = grad_dtype or q.dtype
    d_bias = bias.new_empty(bias.shape) if wants_d_bias else None
    d_sinks = sinks.new_empty(sinks.shape) if wants_d_sinks else None
    return (*(tensor.new_empty(tensor.shape, dtype=dtype) for tensor in (q, k, v)), d_bias, d_sinks)


def _all_tensors(q: Tensor, gradients: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
    """What an operator gives: empty tensors where there are none."""
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in gradients)


# --- on the host -----------------------------------------------------------------------------------------


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else to_numpy(tensor)


def _host_inputs(**tensors: Tensor | None) -> _host.Inputs:
    for argument, tensor in tensors.items():
        if tensor is not None and tensor.device.type != "cpu":
            raise ValueError(f"{argument}: expected device cpu like q, got {tensor.device}")
    return _host.Inputs(**{argument: _array(tensor) for argument, tensor in tensors.items()})


def _forward_host(q, k, v, cu_q, cu_k, bias, mask, alibi_slopes, sinks, seed, offset, out_dtype, *spread):
    inputs = _host_inputs(q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    scores = _host.Scores(_array(bias), _array(mask), _array(alibi_slopes), _array(sinks))
    options = _with_seed(q, _gathered(spread, seed, offset))
    o, lse = _host.forward(inputs, scores, options, out_dtype, spread[-1])
    return to_torch(o), to_torch(lse), _random(q, options)


def _backward_host(d_o, d_lse, q, k, v, cu_q, cu_k, o, lse, bias, mask, alibi_slopes, sinks, random,
                   grad_dtype, wants_d_bias, wants_d_sinks, *spread):
    inputs = _host_inputs(q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    scores = _host.Scores(_array(bias), _array(mask), _array(alibi_slopes), _array(sinks))
    wanted = _host.Wanted(grad_dtype, wants_d_bias, wants_d_sinks)
    found = _host.backward(_array(d_o), _array(d_lse), inputs, (_array(o), _array(lse)), scores,
                           _replayed(spread, random), wanted, spread[-1])
    return _all_tensors(q, (None if one is None else to_torch(one) for one in found))


# --- while PyTorch compiles ------------------------------------------------------------------------------


def _forward_fake(q, k, v, cu_q, cu_k, bias, mask, alibi_slopes, sinks, seed, offset, out_dtype, *spread):
    _check_shapes(q, k, v, cu_q, cu_k)
    dropout = spread[6]
    random = torch.empty(2 if dropout else 0, dtype=torch.int64, device="cpu" if dropout else q.device)
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype or q.dtype)
    return o, q.new_empty(_lse_shape(q), dtype=torch.float32), random


def _backward_fake(d_o, d_lse, q, k, v, cu_q, cu_k, o, lse, bias, mask, alibi_slopes, sinks, random,
                   grad_dtype, wants_d_bias, wants_d_sinks, *spread):
    return _all_tensors(q, _gradients(q, k, v, bias, sinks, grad_dtype, wants_d_bias, wants_d_sinks))


# --- derivatives -----------------------------------------------------------------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, cu_q, cu_k, bias, mask, alibi_slopes, sinks, _, _, _, *spread = inputs
    ctx.save_for_backward(q, k, v, cu_q, cu_k, *output, bias, mask, alibi_slopes, sinks)
    ctx.spread = spread
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None, _random: Any) -> tuple[Any, ...]:
    *tensors, random, bias, mask, alibi_slopes, sinks = ctx.saved_tensors
    saved = (*tensors, bias, mask, alibi_slopes, sinks)

    def run(d_o: Tensor, wants_d_bias: bool, wants_d_sinks: bool) -> tuple[Tensor, ...]:
        return torch.ops.finite_attention.attention_backward(
            d_o, d_lse, *saved, random, None, wants_d_bias, wants_d_sinks, *ctx.spread
        )

    return _chained(ctx, (d_o, d_lse), saved, run, 3 + len(ctx.spread))


def _chained(ctx: Any, of_outputs: tuple[Any, Any], saved: Any, run: Any, others: int) -> tuple[Any, ...]:
    """Gradients of the nine tensors of a forward pass, and ``None`` for its ``others`` arguments."""
    (d_o, d_lse), q, o = of_outputs, saved[0], saved[5]
    if ctx.needs_input_grad[7]:
        raise RuntimeError("alibi_slopes: expected a tensor that needs no gradient, since they have none")
    none = (None,) * (9 + others)
    if d_o is None and d_lse is None:
        return none
    # The gradient of an o of f32 is in f32, and kernels take that of q's dtype.
    d_o = torch.zeros_like(o, dtype=q.dtype) if d_o is None else d_o.to(q.dtype)
    wants_d_bias, wants_d_sinks = ctx.needs_input_grad[5], ctx.needs_input_grad[8]
    dq, dk, dv, d_bias, d_sinks = run(d_o, wants_d_bias, wants_d_sinks)
    of_scores = (d_bias if wants_d_bias else None, None, None, d_sinks if wants_d_sinks else None)
    return (dq, dk, dv, None, None, *of_scores, *none[9:])


def _no_second(ctx: Any, *_: Any) -> Any:
    raise RuntimeError("attention_backward: expected first derivatives alone, got a derivative of a gradient")


def _nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


_Functions = tuple[Callable[..., Any], ...]


def register(name: str, kernels: _Functions, derivative: _Functions) -> None:
    """What runs an operator on a GPU, on the host, and while PyTorch compiles; and its derivative."""
    on_gpu, on_host, fake = kernels
    backward_of, setup_context = derivative
    LIBRARY.impl(name, on_gpu, "CUDA")
    LIBRARY.impl(name, on_host, "CPU")
    full_name = f"finite_attention::{name}"
    torch.library.register_fake(full_name, fake, lib=LIBRARY)
    torch.library.register_autograd(full_name, backward_of, setup_context=setup_context, lib=LIBRARY)


# Gradients have no derivatives.
NO_SECOND = (_no_second, _nothing)

register("attention_forward", (_forward_gpu, _forward_host, _forward_fake), (_backward, _setup_context))
register("attention_backward", (_backward_gpu, _backward_host, _backward_fake), NO_SECOND)
