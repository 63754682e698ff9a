"""Multi-scale deformable attention: our forward and backward beside torch's grid_sample and msda-triton.

Rows are `fwd` and `bwd` of each shape; before anything is timed, our results are compared with grid_sample in
float64. Times and ratios are as in compare.py. A backward of a peer is what autograd runs behind its forward.
"""

import ctypes
import statistics

import torch
import torch.nn.functional as F

from comparison import CannotRun
from comparison.clock import interleaved
from comparison.contestants import Contestant
from comparison.library import DTYPES, I32, I64, U32, U64, Tensor, tensor

LEVELS, POINTS, MAX_LEVELS = [(64, 64), (32, 32), (16, 16), (8, 8)], 4, 16
CELLS = sum(h * w for h, w in LEVELS)
# (name, B, N, H, C): an encoder, whose queries are the cells, a decoder, and other head dimensions.
SHAPES = [
    ("encoder", 4, CELLS, 8, 32), ("decoder", 4, 900, 8, 32), ("encoder C16", 4, CELLS, 8, 16),
    ("encoder C64", 4, CELLS, 8, 64),
]
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class Msda(ctypes.Structure):
    _fields_ = [
        ("dtype", I32), ("locations_dtype", I32), ("weights_dtype", I32), ("padding", I32), ("align_corners", I32),
        ("levels", I32), ("level_points", I64), ("shapes", (I64 * 2) * MAX_LEVELS), ("value", Tensor),
        ("locations", Tensor), ("weights", Tensor),
    ]


class ForwardArgs(ctypes.Structure):
    _fields_ = [("struct_bytes", U32), ("reserved", U32), ("msda", Msda), ("o", Tensor)]


class BackwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", U32), ("deterministic", I32), ("msda", Msda), ("d_o", Tensor), ("d_value", Tensor),
        ("d_locations", Tensor), ("d_weights", Tensor), ("workspace", U64), ("workspace_bytes", U64),
    ]


class Ours:
    """Our two passes on one set of tensors."""

    def __init__(self, library, value, locations, weights, d_o, deterministic):
        self.library, c, device = library, library.c, ctypes.c_void_p
        c.fattn_msda_forward.argtypes = [device, ctypes.POINTER(ForwardArgs), device]
        c.fattn_msda_backward.argtypes = [device, ctypes.POINTER(BackwardArgs), device]
        c.fattn_msda_backward_workspace_bytes.argtypes = [device, ctypes.POINTER(BackwardArgs), ctypes.POINTER(U64)]
        self.o = torch.empty_like(d_o)
        self.gradients = [torch.empty_like(t) for t in (value, locations, weights)]
        self.kept = [value, locations, weights, d_o]
        columns = [t.flatten(3) for t in (locations, weights, *self.gradients[1:])]
        msda = Msda(
            dtype=DTYPES[value.dtype], locations_dtype=DTYPES[locations.dtype], weights_dtype=DTYPES[weights.dtype],
            levels=len(LEVELS), level_points=POINTS, value=tensor(value), locations=tensor(columns[0]),
            weights=tensor(columns[1]),
        )
        for level, (height, width) in enumerate(LEVELS):
            msda.shapes[level][0], msda.shapes[level][1] = height, width
        self.forward_args = ForwardArgs(struct_bytes=ctypes.sizeof(ForwardArgs), msda=msda, o=tensor(self.o))
        self.backward_args = BackwardArgs(
            struct_bytes=ctypes.sizeof(BackwardArgs), deterministic=deterministic, msda=msda, d_o=tensor(d_o),
            d_value=tensor(self.gradients[0]), d_locations=tensor(columns[2]), d_weights=tensor(columns[3]),
        )
        size = U64()
        call = c.fattn_msda_backward_workspace_bytes
        library.check(call(library.device, ctypes.byref(self.backward_args), ctypes.byref(size)))
        self.workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        self.backward_args.workspace = self.workspace.data_ptr() if size.value else 0
        self.backward_args.workspace_bytes = size.value

    def forward(self):
        call, stream = self.library.c.fattn_msda_forward, self.library.stream()
        self.library.check(call(self.library.device, ctypes.byref(self.forward_args), stream))

    def backward(self):
        call, stream = self.library.c.fattn_msda_backward, self.library.stream()
        self.library.check(call(self.library.device, ctypes.byref(self.backward_args), stream))


def grid_sample(value, locations, weights):
    """The formula by torch's grid_sample, a level at a time; padding zeros, corners not aligned."""
    batches, _, heads, channels = value.shape
    queries, sum_of_levels, first = locations.shape[1], 0, 0
    for level, (height, width) in enumerate(LEVELS):
        cells = value[:, first : first + height * width].permute(0, 2, 3, 1)
        first += height * width
        grid = 2 * locations[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
        sampled = F.grid_sample(
            cells.reshape(batches * heads, channels, height, width), grid.to(value.dtype), align_corners=False
        )
        share = weights[:, :, :, level].transpose(1, 2).reshape(batches * heads, 1, queries, POINTS)
        sum_of_levels = sum_of_levels + (sampled * share.to(value.dtype)).sum(-1)
    return sum_of_levels.view(batches, heads, channels, queries).permute(0, 3, 1, 2).contiguous()


def triton():
    """msda-triton, if it can be imported."""
    try:
        from msda_triton.frontend import triton_multiscale_deformable_attention as call
    except ImportError:
        return None
    shapes = torch.tensor(LEVELS, device="cuda")

    def sample(value, locations, weights):
        result = call(value, shapes, locations.to(value.dtype), weights.to(value.dtype), "zeros", False)
        return result.view(*locations.shape[:3], value.shape[3])

    return sample


def guard(ours, value, locations, weights, d_o):
    """Our largest error against grid_sample in float64, over the largest exact element, of each result."""
    exact = [t.double().requires_grad_() for t in (value, locations, weights)]
    o = grid_sample(*exact)
    o.backward(d_o.double())
    ours.forward()
    ours.backward()
    pairs = zip((ours.o, *ours.gradients), (o.detach(), *(t.grad for t in exact)))
    differences = [((mine.double() - true).abs(), true.abs().max()) for mine, true in pairs]
    # Next to the edge of a cell the gradients of either side are right: those locations alone are not compared.
    sides = torch.tensor([[w, h] for h, w in LEVELS], device="cuda", dtype=torch.float64)
    position = locations.double() * sides[:, None] - 0.5
    is_near = ((position - position.round()).abs() < 1e-4).any(-1, keepdim=True)
    differences[2][0].masked_fill_(is_near, 0)
    return [(difference.max() / largest).item() for difference, largest in differences]


def run(options, library):
    """Times every shape and prints a table."""
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    rows = ["| shape | dtype | pass | ours ms | " + "ours-det ms | peers ms (ratio) |", "|--|--|--|--|--|--|"]
    for name, batches, queries, heads, channels in SHAPES:
        for dtype_name in options.dtype:
            dtype = dtypes[dtype_name]
            make = {"device": "cuda", "dtype": dtype}
            value = torch.randn(batches, CELLS, heads, channels, **make)
            locations = torch.rand(batches, queries, heads, len(LEVELS), POINTS, 2, device="cuda")
            weights = torch.rand(batches, queries, heads, len(LEVELS) * POINTS, device="cuda").softmax(-1)
            weights = weights.view(batches, queries, heads, len(LEVELS), POINTS).contiguous()
            d_o = torch.randn(batches, queries, heads, channels, **make)
            ours, det = (Ours(library, value, locations, weights, d_o, flag) for flag in (0, 1))
            for one in (ours, det):
                errors = guard(one, value, locations, weights, d_o)
                if not all(error <= TOLERANCE[dtype] for error in errors):
                    raise CannotRun(f"{name} {dtype_name}: relative errors of o and gradients {errors}")
            peers = {"grid": grid_sample, "msda-triton": triton()}
            for direction in ("fwd", "bwd"):
                field = [Contestant("ours", [ours.forward if direction == "fwd" else ours.backward], None)]
                if direction == "bwd":
                    field.append(Contestant("ours-det", [det.backward], None))
                for peer, call in peers.items():
                    if call is None:
                        continue
                    inputs = [t.clone().requires_grad_(direction == "bwd") for t in (value, locations, weights)]
                    if direction == "fwd":
                        field.append(Contestant(peer, [lambda call=call, x=inputs: call(*x)], None))
                        continue
                    o = call(*inputs)
                    again = lambda o=o, x=inputs: torch.autograd.grad(o, x, d_o, retain_graph=True)  # noqa: E731
                    field.append(Contestant(peer, [again], None))
                times, _ = interleaved(field, options.modes[0], options.rounds)
                mine = times.pop("ours")
                ordered = times.pop("ours-det", None)
                text = ", ".join(
                    f"{peer} {statistics.median(ms):.4f} ({statistics.median(a / b for a, b in zip(ms, mine)):.2f})"
                    for peer, ms in times.items()
                )
                shown = f"{statistics.median(ordered):.4f}" if ordered else "-"
                rows.append(
                    f"| {name} B{batches} N{queries} H{heads} C{channels} | {dtype_name} | {direction} "
                    f"| {statistics.median(mine):.4f} | {shown} | {text} |"
                )
                print(rows[-1], flush=True)
    table = "\n".join(rows) + "\n"
    if options.markdown:
        options.markdown.write_text(table)
    print(table)
