"""libfinite_attention.so through ctypes. The structs are those of the header in host/src/c_api.rs."""

import ctypes
import math
from pathlib import Path

import torch

from comparison import masks

U32, I32, U64, I64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64


class Tensor(ctypes.Structure):
    _fields_ = [("address", U64), ("shape", I64 * 4), ("strides", I64 * 4)]


class Attention(ctypes.Structure):
    _fields_ = [
        ("dtype", I32),
        ("output_dtype", I32),
        ("mask", I32),
        ("alignment", I32),
        ("window_left", I64),
        ("window_right", I64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", U64),
        ("cu_seqlens_q", U64),
        ("cu_seqlens_k", U64),
        ("sequences", I64),
        ("max_query_rows", I64),
        ("max_key_rows", I64),
    ]


class Scores(ctypes.Structure):
    _fields_ = [
        ("bias", Tensor), ("bias_dtype", I32), ("alibi_per_batch", I32), ("mask", ctypes.c_void_p),
        ("alibi_slopes", U64), ("sinks", U64),
    ]


class Dropout(ctypes.Structure):
    _fields_ = [("rate", ctypes.c_float), ("reserved", U32), ("seed", U64), ("offset", U64)]


class ForwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", U32), ("num_splits", U32), ("pack_gqa", I32), ("reserved", U32), ("attention", Attention),
        ("scores", Scores), ("dropout", Dropout), ("precision", I32), ("reserved_2", U32),
    ]


class BackwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", U32),
        ("reserved", U32),
        ("attention", Attention),
        ("deterministic", I32),
        ("gradients_f32", I32),
        ("d_o", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dlse", U64),
        ("workspace", U64),
        ("workspace_bytes", U64),
        ("scores", Scores),
        ("d_bias", Tensor),
        ("d_bias_f32", I32),
        ("reserved_2", U32),
        ("d_sinks", U64),
        ("dropout", Dropout),
        ("precision", I32),
        ("reserved_3", U32),
    ]


DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
PRECISIONS = {None: 0, "fast3": 1, "fma": 2}
FULL, CAUSAL, WINDOW, TOP_LEFT = 0, 1, 2, 1  # torch's is_causal is aligned top left


def tensor(t):
    """A BSHD tensor as the library takes it."""
    return Tensor(t.data_ptr(), (I64 * 4)(*t.shape), (I64 * 4)(*t.stride()))


class Library:
    """The library, opened on torch's current GPU. Arguments hold addresses: keep the tensors alive."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(Path(path).resolve()))
        self.c.fattn_last_error.restype = ctypes.c_char_p
        device, pointer = ctypes.c_void_p, ctypes.POINTER
        self.c.fattn_device_open.argtypes = [ctypes.c_char_p, pointer(device)]
        self.c.fattn_forward.argtypes = [device, pointer(ForwardArgs), ctypes.c_void_p]
        self.c.fattn_backward.argtypes = [device, pointer(BackwardArgs), ctypes.c_void_p]
        self.c.fattn_backward_workspace_bytes.argtypes = [device, pointer(BackwardArgs), pointer(U64)]
        self.c.fattn_prepare_mask.argtypes = [device, pointer(Tensor), I64, pointer(ctypes.c_void_p), ctypes.c_void_p]
        self.device = device()
        name = f"cuda:{torch.cuda.current_device()}".encode()
        self.check(self.c.fattn_device_open(name, ctypes.byref(self.device)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"finite-attention ({status}): {self.c.fattn_last_error().decode()}")

    def attention(self, case, q, k, v, o, lse):
        """What both passes take; the sequences are those of the case."""
        mask = {masks.FULL: FULL, masks.CAUSAL: CAUSAL}.get(case.mask, WINDOW)
        args = Attention(
            dtype=DTYPES[q.dtype], output_dtype=DTYPES[o.dtype], scale=math.nan, lse=lse.data_ptr(),
            mask=mask, alignment=TOP_LEFT,
            q=tensor(q), k=tensor(k), v=tensor(v), o=tensor(o),
        )
        if mask == WINDOW:
            args.window_left, args.window_right = case.mask
        if case.offsets is not None:
            args.cu_seqlens_q = args.cu_seqlens_k = case.offsets.data_ptr()
            args.sequences = len(case.lengths)
            args.max_query_rows = args.max_key_rows = max(case.lengths)
        return args

    def forward_args(self, attention, precision=None):
        """`precision` is how products of f32 are made, of PRECISIONS; unasked, as the library does."""
        precision = PRECISIONS[precision]
        return ForwardArgs(struct_bytes=ctypes.sizeof(ForwardArgs), attention=attention, precision=precision)

    def backward_args(self, attention, d_o, dq, dk, dv, deterministic, precision=None):
        """`precision` as for `forward_args`."""
        return BackwardArgs(
            struct_bytes=ctypes.sizeof(BackwardArgs), attention=attention, deterministic=deterministic,
            precision=PRECISIONS[precision], gradients_f32=dq.dtype == torch.float32,
            d_o=tensor(d_o), dq=tensor(dq), dk=tensor(dk), dv=tensor(dv),
        )

    def prepare_mask(self, mask, keys):
        """The bits of a tensor of bytes [batch, head, query, key], for problems of so many keys. They stay with the
        process."""
        prepared = ctypes.c_void_p()
        call = self.c.fattn_prepare_mask
        self.check(call(self.device, ctypes.byref(tensor(mask)), keys, ctypes.byref(prepared), self.stream()))
        return prepared

    def workspace_bytes(self, args):
        size = U64()
        call = self.c.fattn_backward_workspace_bytes
        self.check(call(self.device, ctypes.byref(args), ctypes.byref(size)))
        return size.value

    def stream(self):
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def forward(self, args):
        self.check(self.c.fattn_forward(self.device, ctypes.byref(args), self.stream()))

    def backward(self, args):
        self.check(self.c.fattn_backward(self.device, ctypes.byref(args), self.stream()))
