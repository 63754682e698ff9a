"""Multi-scale deformable attention: our forward and backward beside torch's grid_sample and other kernels.

Before anything is timed, our results are compared with grid_sample in float64, and those of each peer with ours; a
peer that is not there, or too far from ours, is left out with the reason. Times and ratios are as in compare.py, of
captured graphs: the decoder's kernels are shorter than a call of Python. A backward of a peer is what autograd runs
behind its forward.
"""

import ctypes
import json

import torch
import torch.nn.functional as F

from comparison import CannotRun, first_line, msda_peers, msda_rows
from comparison.clock import interleaved
from comparison.contestants import Contestant
from comparison.library import DTYPES, I32, I64, U32, U64, Tensor, tensor
from comparison.msda_rows import CELLS, LEVELS, POINTS, TENSORS

MAX_LEVELS = 16
OF_NAME = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LONGEST = 200  # of an error that is quoted


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
    """The formula by torch's grid_sample, a level at a time; padding zeros, corners not aligned. In f32 for values of
    16 bits, as under torch's autocast: a location in 16 bits is a fraction of a cell off."""
    dtype = value.dtype
    work = value if dtype in (torch.float32, torch.float64) else value.float()
    batches, _, heads, channels = value.shape
    queries, sum_of_levels, first = locations.shape[1], 0, 0
    for level, (height, width) in enumerate(LEVELS):
        cells = work[:, first : first + height * width].permute(0, 2, 3, 1)
        first += height * width
        grid = 2 * locations[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
        sampled = F.grid_sample(
            cells.reshape(batches * heads, channels, height, width), grid.to(work.dtype), align_corners=False
        )
        share = weights[:, :, :, level].transpose(1, 2).reshape(batches * heads, 1, queries, POINTS)
        sum_of_levels = sum_of_levels + (sampled * share.to(work.dtype)).sum(-1)
    result = sum_of_levels.view(batches, heads, channels, queries).permute(0, 3, 1, 2)
    return result.to(dtype).contiguous()


def near_edges(locations):
    """Where a location is next to the edge of a cell: there the gradients of either side are right."""
    sides = torch.tensor([[w, h] for h, w in LEVELS], device=locations.device, dtype=torch.float64)
    position = locations.double() * sides[:, None] - 0.5
    return ((position - position.round()).abs() < 1e-4).any(-1, keepdim=True)


def guard(ours, value, locations, weights, d_o):
    """Our largest error against grid_sample in float64, over the largest exact element, of each result."""
    exact = [t.double().requires_grad_() for t in (value, locations, weights)]
    o = grid_sample(*exact)
    o.backward(d_o.double())
    ours.forward()
    ours.backward()
    pairs = zip((ours.o, *ours.gradients), (o.detach(), *(t.grad for t in exact)))
    differences = [((mine.double() - true).abs(), true.abs().max()) for mine, true in pairs]
    differences[2][0].masked_fill_(near_edges(locations), 0)
    return [(difference.max() / largest).item() for difference, largest in differences]


def peers(names):
    """{name: function of (value, locations, weights)} of those that are there, and {name: reason} of the others."""
    shapes = torch.tensor(LEVELS, dtype=torch.int32, device="cuda")
    starts = (shapes.prod(-1).cumsum(0) - shapes.prod(-1)).to(torch.int32)
    found, missing = {}, {}
    for name in names:
        if name == "grid":
            found[name] = grid_sample
            continue
        try:
            call = msda_peers.load(name)
        except msda_peers.Missing as error:
            missing[name] = str(error)
            continue
        found[name] = lambda value, locations, weights, call=call: call(value, shapes, starts, locations, weights)
    return found, missing


class Peer:
    """A peer's two passes on one set of tensors, on a stream of its own, on which both can be captured."""

    def __init__(self, call, inputs, d_o):
        self.call, self.d_o, self.stream = call, d_o, torch.cuda.Stream()
        self.inputs = [t.detach().clone() for t in inputs]
        self.tracked = [t.detach().clone().requires_grad_() for t in inputs]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            # Kernels are compiled and tuned here.
            self.o = self.call(*self.tracked).view(d_o.shape)
            self.gradients = self.backward()
        torch.cuda.synchronize()

    def forward(self):
        with torch.no_grad():
            return self.call(*self.inputs)

    def backward(self):
        return torch.autograd.grad(self.o, self.tracked, self.d_o, retain_graph=True)

    def distances(self, ours):
        """Relative L2 distance of each result from ours; locations next to edges left out."""
        pairs = zip((self.o.detach(), *self.gradients), (ours.o, *ours.gradients))
        pairs = [(theirs.double(), mine.double()) for theirs, mine in pairs]
        edges = near_edges(self.inputs[1])
        pairs[2] = tuple(t.masked_fill(edges, 0) for t in pairs[2])
        return {name: ((theirs - mine).norm() / mine.norm()).item()
                for name, (theirs, mine) in zip(TENSORS, pairs)}


def contestant(name, call, stream):
    """One that replays a graph of a call; and whether it has to be called instead, which is what capturing it says."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            call()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"{name} is called, not replayed: {first_line(error)[:LONGEST]}")
        return Contestant(name, [call], None), True
    return Contestant(name, [graph.replay], None), False


class Case:
    """The tensors of a shape in a type, our two kinds of calls on them, checked, and peers that agree with them."""

    def __init__(self, library, name, dtype_name, found):
        self.name, self.dtype, self.refused, self.distances = name, dtype_name, [], {}
        batches, queries, heads, channels = msda_rows.SHAPES[name]
        make = {"device": "cuda", "dtype": OF_NAME[dtype_name]}
        value = torch.randn(batches, CELLS, heads, channels, **make)
        locations = torch.rand(batches, queries, heads, len(LEVELS), POINTS, 2, device="cuda")
        weights = torch.rand(batches, queries, heads, len(LEVELS) * POINTS, device="cuda").softmax(-1)
        weights = weights.view(batches, queries, heads, len(LEVELS), POINTS).to(make["dtype"]).contiguous()
        d_o = torch.randn(batches, queries, heads, channels, **make)
        inputs = value, locations, weights
        self.ours, self.det = (Ours(library, *inputs, d_o, flag) for flag in (0, 1))
        for one in (self.ours, self.det):
            errors = guard(one, *inputs, d_o)
            if not all(error <= msda_rows.MOST_ERROR[dtype_name] for error in errors):
                raise CannotRun(f"{self.describe()}: relative errors of o and gradients {errors}")
        self.peers = {}
        for peer, call in found.items():
            reason = msda_peers.refusal(peer, dtype_name) or self.checked(peer, call, inputs, d_o)
            if reason:
                self.refused.append(f"{peer} on {self.describe()}: {reason}")
                print(f"not timed: {self.refused[-1]}")

    def describe(self):
        return msda_rows.describe(self.name, self.dtype)

    def checked(self, name, call, inputs, d_o):
        """Keeps a peer if it agrees with ours; else why not."""
        try:
            peer = Peer(call, inputs, d_o)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # what a peer does not take, it says in its own way
            return first_line(error)[:LONGEST]
        self.distances[name] = peer.distances(self.ours)
        reason = msda_rows.too_far(self.dtype, self.distances[name])
        if not reason:
            self.peers[name] = peer
        return reason

    def rows(self, direction, mode, rounds):
        """The rows of a pass."""
        stream, is_forward = torch.cuda.Stream(), direction == "forward"
        calls = [("ours", self.ours.forward if is_forward else self.ours.backward, stream)]
        if not is_forward:
            calls.append(("ours-det", self.det.backward, stream))
        calls += [(name, peer.forward if is_forward else peer.backward, peer.stream)
                  for name, peer in self.peers.items()]
        field, called = [], []
        for name, call, on in calls:
            one, is_called = contestant(name, call, on)
            field.append(one)
            called += [name] if is_called else []
        times, host = interleaved(field, mode, rounds)
        return msda_rows.split(self.name, self.dtype, direction, times, host, self.distances, called)


def run(options, library, facts):
    """Times every shape, prints a table of it, and writes what is asked for after every row."""
    found, missing = peers(options.peers)
    for name, reason in missing.items():
        print(f"not there: {name}: {reason}", flush=True)
    facts = {**facts, **{name: msda_peers.version(name) for name in found if name != "grid"}}
    rows, refused = [], []
    for name in options.rows:
        for dtype in options.dtype:
            case = Case(library, name, dtype, found)
            refused += case.refused
            for direction in ("forward", "backward"):
                new = case.rows(direction, options.modes[0], options.rounds)
                rows += new
                print("\n".join(msda_rows.lines(new)), flush=True)
                written = {"what": "msda", **facts, "rows": rows, "missing": missing, "refused": refused}
                if options.json:
                    options.json.write_text(json.dumps(written, indent=1) + "\n")
                if options.markdown:
                    options.markdown.write_text(msda_rows.document(rows, missing, refused))
            del case
            torch.cuda.empty_cache()
    print(msda_rows.document(rows, missing, refused))
