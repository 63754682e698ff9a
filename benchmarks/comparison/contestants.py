"""Who is timed: this library and its peers, each as a list of calls, one per set of tensors.

Backward of a peer is torch.autograd.grad on a graph that was made once and is kept. Ours is one call of
the C interface, all of its kernels, with a workspace that was allocated once.
"""

import inspect
import math
import sys
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from comparison import peers_flash, peers_flex
from comparison.peers import refusal

GRADIENTS = ("dq", "dk", "dv")
MATMUL_SIDE = 8192
LONGEST = 120  # of an error that is quoted


class Contestant:
    """A name, what to call, what comes of it for the first set, and a context to call it in."""

    def __init__(self, name, launches, outputs, context=nullcontext):
        self.name, self.launches, self.outputs, self.context = name, launches, outputs, context

    def run(self, work):
        with self.context():
            return work()


@contextmanager
def deterministic():
    """Peers that have a deterministic backward use it; memory is not filled on the way."""
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def unwritten(like, dtype=None):
    return torch.full_like(like, math.nan, dtype=dtype, memory_format=torch.contiguous_format)


def backward_of(library, name, calls, results):
    """Our backward passes, which share a workspace: `calls` of arguments, the tensors that these are addresses of,
    and gradients, which are the `results`."""
    size = max(library.workspace_bytes(args) for args, _, _ in calls)
    workspace = torch.empty(max(size, 1), device="cuda", dtype=torch.uint8)
    launches = []
    for args, tensors, gradients in calls:
        args.workspace, args.workspace_bytes = workspace.data_ptr(), size
        keep = (tensors, gradients, workspace)
        launches.append(lambda args=args, keep=keep: library.backward(args))
    first = dict(zip(results, calls[0][2]))
    return Contestant(name, launches, lambda: first)


class Ours:
    """The library's calls for all sets of a case; o and lse are computed once, for backward. Products of f32 are made
    as `precision` says."""

    def __init__(self, library, case, precision=None):
        self.library, self.case, self.precision, self.sets = library, case, precision, []
        lse_shape = (case.batch, case.heads, case.rows)
        for q, k, v, d_o in case.sets:
            o, lse = unwritten(q), torch.full(lse_shape, math.nan, device="cuda")
            attention = library.attention(case, q, k, v, o, lse)
            self.sets.append((attention, (q, k, v, o, lse, d_o)))
            library.forward(library.forward_args(attention, precision))

    def forward(self, name="ours"):
        library = self.library
        launches = []
        for attention, tensors in self.sets:
            args = library.forward_args(attention, self.precision)
            launches.append(lambda args=args, keep=tensors: library.forward(args))
        o = self.sets[0][1][3]
        return Contestant(name, launches, lambda: {"o": o})

    def backward(self, is_deterministic, name="ours"):
        library, calls = self.library, []
        for attention, (q, k, v, o, lse, d_o) in self.sets:
            gradients = [unwritten(t) for t in (q, k, v)]
            args = library.backward_args(attention, d_o, *gradients, is_deterministic, self.precision)
            calls.append((args, (q, k, v, o, lse, d_o), gradients))
        return backward_of(library, labelled(name, is_deterministic), calls, GRADIENTS)


def backend(name):
    from torch.nn.attention import SDPBackend

    return {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }[name]


def sdpa(case):
    """scaled_dot_product_attention on BSHD tensors."""
    grouped = {"enable_gqa": True} if case.key_heads != case.heads else {}

    def attention(q, k, v):
        views = (t.transpose(1, 2) for t in (q, k, v))
        o = torch.nn.functional.scaled_dot_product_attention(*views, is_causal=case.causal, **grouped)
        return o.transpose(1, 2)

    return attention


def peer_forward(name, case, attention, context):
    result = []

    def launch(q, k, v):
        with torch.no_grad():
            result[:] = [attention(q, k, v)]

    def outputs():
        with context():
            launch(*case.sets[0][:3])
        return {"o": result[0]}

    launches = [lambda qkv=tensors[:3]: launch(*qkv) for tensors in case.sets]
    return Contestant(name, launches, outputs, context)


def peer_backward(name, case, attention, context, within=nullcontext):
    """The graphs are made in `context`, which chooses the backend; it is kept in them. They are run
    `within`."""
    graphs = []
    with context(), torch.enable_grad():
        for q, k, v, d_o in case.sets:
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            graphs.append((attention(*leaves), leaves, d_o))

    def launch(o, leaves, d_o):
        return torch.autograd.grad(o, leaves, d_o, retain_graph=True)

    def outputs():
        with within():
            return dict(zip(GRADIENTS, launch(*graphs[0])))

    launches = [lambda graph=graph: launch(*graph) for graph in graphs]
    return Contestant(name, launches, outputs, within)


class PackedFlash:
    """Torch's FlashAttention-2 for packed sequences: its operators, or `varlen_attn` if they refuse."""

    def __init__(self, case):
        self.case = case
        longest = max(case.lengths)
        self.sequences = (case.offsets, case.offsets, longest, longest)

    def operator_forward(self, q, k, v):
        """(o, lse, rng_state, unused), of tensors without a batch."""
        operator = torch.ops.aten._flash_attention_forward.default
        return operator(q, k, v, *self.sequences, 0.0, self.case.causal, False)[:4]

    def function(self, q, k, v):
        """The public function, on tensors with a batch of 1."""
        from torch.nn.attention.varlen import varlen_attn

        options = {}
        if self.case.causal:
            names = inspect.signature(varlen_attn).parameters
            options = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
        views = (t.squeeze(0) for t in (q, k, v))
        return varlen_attn(*views, *self.sequences, **options).unsqueeze(0)

    def forward(self, name):
        def attention(q, k, v):
            return self.operator_forward(q[0], k[0], v[0])[0][None]

        return peer_forward(name, self.case, attention, nullcontext)

    def backward(self, name, within):
        operator = torch.ops.aten._flash_attention_backward.default
        saved = []
        with torch.no_grad():
            for tensors in self.case.sets:
                q, k, v, d_o = (t[0] for t in tensors)
                o, lse, *random = self.operator_forward(q, k, v)
                saved.append(((d_o, q, k, v, o, lse, *self.sequences, 0.0, self.case.causal), random))

        def launch(arguments, random):
            with torch.no_grad():
                return operator(*arguments, *random)

        def outputs():
            with within():
                return {name: t[None] for name, t in zip(GRADIENTS, launch(*saved[0]))}

        launches = [lambda call=call: launch(*call) for call in saved]
        return Contestant(name, launches, outputs, within)

    def contestant(self, name, direction, within):
        try:
            if direction == "forward":
                return checked(self.forward(name))
            return checked(self.backward(name, within))
        except (RuntimeError, AttributeError, TypeError) as error:
            print(f"  {name}: no operators ({summary(error)}), trying varlen_attn", file=sys.stderr)
        if direction == "forward":
            return checked(peer_forward(name, self.case, self.function, nullcontext))
        return checked(peer_backward(name, self.case, self.function, nullcontext, within))


def summary(error):
    """The first line of an error, cut where it goes on and on."""
    text = (str(error).splitlines() or [""])[0] or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def checked(contestant):
    """Calls it once, so that what it refuses is known before it is timed."""
    contestant.outputs()
    torch.cuda.synchronize()
    return contestant


def peer(name, case, direction, is_deterministic):
    """One peer; raises if it does not take the case."""
    from torch.nn.attention import sdpa_kernel

    label = labelled(name, is_deterministic)
    within = deterministic if is_deterministic else nullcontext
    context = nullcontext
    if name == "fa3":
        attention = peers_flash.fa3(case)
    elif name == "fa4":
        attention, within = peers_flash.fa4(case, is_deterministic), nullcontext
    elif name == "flex":
        attention = peers_flex.flex(case)
    elif case.offsets is not None:
        return PackedFlash(case).contestant(label, direction, within)
    else:
        attention, context = sdpa(case), partial(sdpa_kernel, backend(name))
    if direction == "forward":
        return checked(peer_forward(label, case, attention, context))
    return checked(peer_backward(label, case, attention, context, within))


def labelled(name, is_deterministic):
    return f"{name}-det" if is_deterministic else name


def contestants(library, case, direction, peers, deterministic_modes, precisions=()):
    """Ours and the peers that take the case; and {peer: why not} of the others. `deterministic_modes`
    says for whom the deterministic backward is timed too: `no`, `ours` or `all`. Passes of f32 are `ours` in
    the first of `precisions`, and `ours-NAME` in the others; unasked, as the library does."""
    first, *more = precisions or [None]
    ours = Ours(library, case, first)
    is_backward = direction == "backward"
    modes = [False, True] if is_backward and deterministic_modes == "all" else [False]
    field, refused = [ours.backward(False) if is_backward else ours.forward()], {}
    if case.dtype == torch.float32:
        others = [(Ours(library, case, precision), f"ours-{precision}") for precision in more]
        field += [other.backward(False, name) if is_backward else other.forward(name) for other, name in others]
    if is_backward and deterministic_modes != "no":
        field.append(ours.backward(True))
    for name in peers:
        for is_deterministic in modes:
            reason = refusal(name, case, direction, is_deterministic)
            if reason is None:
                try:
                    field.append(peer(name, case, direction, is_deterministic))
                    continue
                except Exception as error:  # each package has errors of its own
                    reason = summary(error)
            label = labelled(name, is_deterministic)
            refused[label] = reason
            print(f"  {label}: not for {case.describe()} {direction} ({reason})", file=sys.stderr)
    return field, refused


class Matmul:
    """What cuBLAS makes of a large square product in bf16."""

    flops = 2 * MATMUL_SIDE**3

    def __init__(self):
        def normal():
            return torch.randn((MATMUL_SIDE, MATMUL_SIDE), device="cuda", dtype=torch.bfloat16)

        a, b = normal(), normal()
        c = torch.empty_like(a)
        launches = [lambda: torch.mm(a, b, out=c)]
        self.contestant = Contestant("cublas", launches, None)
