"""Score features: ours beside flex_attention and torch's scaled_dot_product_attention with a mask or dropout.

Before anything is timed, results of all are compared with the formula in float64; the run stops if ours are off, and
a peer that is too far off is left out with the reason. Which numbers dropout drops is each library's own: there
nothing is compared.
"""

import math
import sys
from contextlib import nullcontext
from functools import partial

import torch

from comparison import feature_rows, masks, peers_flex
from comparison.cases import Case
from comparison.clock import interleaved
from comparison.contestants import Contestant, backend, backward_of, summary, unwritten
from comparison.feature_rows import BOTH, FEATURES, PLAIN
from comparison.library import DTYPES, tensor
from comparison.report import Report

BLOCK, KEPT = 128, 0.25
RATE, SEED, SOFTCAP = 0.1, 17, 20.0
OURS_MOST, PEERS_MOST = 2.0, 8.0  # times the error of the formula in the dtype of the case
OF_NAME = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class FeatureCase(Case):
    """A case with what its feature needs: tensors that every set shares."""

    def __init__(self, name, shape, dtype):
        super().__init__(shape, dtype, masks.FULL, backward=True)
        self.name = name
        self.bias = self.visible = self.slopes = self.sinks = None
        heads, side = self.heads, self.rows
        if name in ("bias", "bias-gradient"):
            self.bias = torch.randn((1, heads, side, side), device="cuda").to(dtype)
        elif name == "mask":
            self.visible = torch.rand((self.batch, 1, side, side), device="cuda") < 0.5
        elif name == "blocks":
            blocks = side // BLOCK
            kept = (torch.rand((1, 1, blocks, blocks), device="cuda") < KEPT) | torch.eye(
                blocks, device="cuda", dtype=torch.bool)
            self.visible = kept.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)
        elif name == "alibi":
            self.slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device="cuda") / heads)
        elif name == "sinks":
            self.sinks = torch.randn(heads, device="cuda")

    @property
    def has_bias_gradient(self):
        return self.name == "bias-gradient"

    def describe(self):
        return f"{self.name} {super().describe()}"

    def shape(self):
        return {**super().shape(), "mask": self.name}

    def flops(self, direction):
        parts = ("forward", "backward") if direction == BOTH else (direction,)
        return sum(super(FeatureCase, self).flops(part) for part in parts)


def results(direction, case):
    """Names of what a pass gives."""
    if direction == "forward":
        return ("o",)
    return ("dq", "dk", "dv", "dbias") if case.has_bias_gradient else ("dq", "dk", "dv")


class Ours:
    """Our calls for all sets of a case, with its feature or without."""

    def __init__(self, library, case, has_feature=True):
        self.library, self.case, self.sets = library, case, []
        self.name = "ours" if has_feature else PLAIN
        self.has_feature = has_feature
        self.mask = None
        if has_feature and case.visible is not None:
            self.bytes = case.visible.to(torch.uint8)
            self.mask = library.prepare_mask(self.bytes, case.rows)
        lse_shape = (case.batch, case.heads, case.rows)
        for q, k, v, d_o in case.sets:
            o, lse = unwritten(q), torch.full(lse_shape, math.nan, device="cuda")
            attention = library.attention(case, q, k, v, o, lse)
            args = library.forward_args(attention)
            self.feature(args)
            library.forward(args)
            self.sets.append((args, (q, k, v, o, lse, d_o)))

    def feature(self, args):
        """Puts the feature into arguments of either pass."""
        if not self.has_feature:
            return
        case = self.case
        if case.bias is not None:
            args.scores.bias, args.scores.bias_dtype = tensor(case.bias), DTYPES[case.bias.dtype]
        if self.mask is not None:
            args.scores.mask = self.mask
        if case.slopes is not None:
            args.scores.alibi_slopes = case.slopes.data_ptr()
        if case.sinks is not None:
            args.scores.sinks = case.sinks.data_ptr()
        if case.name == "softcap":
            args.attention.softcap = SOFTCAP
        if case.name == "dropout":
            args.dropout.rate, args.dropout.seed = RATE, SEED

    def forward(self):
        library = self.library
        launches = [lambda args=args, keep=(self, kept): library.forward(args) for args, kept in self.sets]
        o = self.sets[0][1][3]
        return Contestant(self.name, launches, lambda: {"o": o})

    def backward(self):
        library, case, calls = self.library, self.case, []
        for forward, (q, k, v, o, lse, d_o) in self.sets:
            gradients = [unwritten(t) for t in (q, k, v)]
            args = library.backward_args(forward.attention, d_o, *gradients, False)
            self.feature(args)
            if case.has_bias_gradient:
                gradients.append(unwritten(case.bias))
                args.d_bias = tensor(gradients[-1])
            calls.append((args, (self, q, k, v, o, lse, d_o), gradients))
        return backward_of(library, self.name, calls, results("backward", case))

    def contestant(self, direction):
        return self.forward() if direction == "forward" else self.backward()


def flex(case):
    """flex_attention with the feature as a score_mod or a block mask, on BSHD tensors and a bias."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    peers_flex.settings()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    options = {}
    if case.visible is not None:
        visible, batches = case.visible, case.visible.shape[0]

        def sees(batch, head, query, key):
            return visible[batch % batches, 0, query, key]

        options["block_mask"] = create_block_mask(sees, batches, None, case.rows, case.rows, device="cuda")
    slopes, sinks, is_capped = case.slopes, case.sinks, case.name == "softcap"

    def attention(q, k, v, bias):
        def with_bias(score, batch, head, query, key):
            return score + bias[0, head, query, key]

        def with_slopes(score, batch, head, query, key):
            return score - slopes[head] * (query - key).abs()

        def capped(score, batch, head, query, key):
            return SOFTCAP * torch.tanh(score / SOFTCAP)

        changed = with_bias if bias is not None else with_slopes if slopes is not None else None
        views = (t.transpose(1, 2) for t in (q, k, v))
        if sinks is None:
            return compiled(*views, score_mod=capped if is_capped else changed, **options).transpose(1, 2)
        # As models with sinks do it: the result without, scaled by what the sink leaves of the sum.
        o, lse = compiled(*views, return_lse=True)
        share = torch.sigmoid(lse - sinks[None, :, None])
        return (o * share[..., None].to(o.dtype)).transpose(1, 2)

    return attention


def sdpa(case):
    """scaled_dot_product_attention, with a bias or a boolean mask as attn_mask, on BSHD tensors."""

    def attention(q, k, v, bias):
        views = [t.transpose(1, 2) for t in (q, k, v)]
        added = bias if bias is not None else case.visible
        if added is not None:
            added = added.expand(case.batch, case.heads, case.rows, case.rows)
        rate = RATE if case.name == "dropout" else 0.0
        o = torch.nn.functional.scaled_dot_product_attention(*views, attn_mask=added, dropout_p=rate)
        return o.transpose(1, 2)

    return attention


def peer(name, case, direction):
    """A peer's calls; raises if it does not take the case."""
    from torch.nn.attention import sdpa_kernel

    attention, context = flex(case), nullcontext
    if name != "flex":
        attention, context = sdpa(case), partial(sdpa_kernel, backend(name))
    if direction == "forward":
        found = {}

        def launch(q, k, v):
            with torch.no_grad():
                found["o"] = attention(q, k, v, case.bias)

        launches = [lambda qkv=tensors[:3]: launch(*qkv) for tensors in case.sets]

        def outputs():
            with context():
                launches[0]()
            return found

        return Contestant(name, launches, outputs, context)
    graphs = []
    with context(), torch.enable_grad():
        for *qkv, d_o in case.sets:
            leaves = [t.detach().requires_grad_() for t in qkv]
            bias = case.bias
            if case.has_bias_gradient:
                bias = bias.detach().requires_grad_()
            o = attention(*leaves, bias)
            graphs.append((o, leaves + ([bias] if case.has_bias_gradient else []), d_o))

    def gradients(o, leaves, d_o):
        return torch.autograd.grad(o, leaves, d_o, retain_graph=True)

    launches = [lambda graph=graph: gradients(*graph) for graph in graphs]
    return Contestant(name, launches, lambda: dict(zip(results("backward", case), gradients(*graphs[0]))))


def formula(case, q, k, v, bias, batch, head):
    """o of one head, in the dtype of the arguments."""
    dtype, side = q.dtype, case.rows
    scores = (q @ k.T) * case.dim**-0.5
    if case.name == "softcap":
        scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
    if bias is not None:
        scores = scores + bias
    if case.slopes is not None:
        at = torch.arange(side, device=q.device)
        scores = scores - (case.slopes[head].to(dtype) * (at[:, None] - at[None, :]).abs()).to(dtype)
    if case.visible is not None:
        scores = scores.masked_fill(~case.visible[batch % case.visible.shape[0], 0], -math.inf)
    if case.sinks is not None:
        column = case.sinks[head].to(dtype).expand(side, 1)
        return torch.softmax(torch.cat([column, scores], dim=1), dim=-1)[:, 1:] @ v
    return torch.softmax(scores, dim=-1) @ v


def of_head(case, direction, head, dtype):
    """Results of one head in all batches, by autograd in this dtype; gradients of the bias summed in f64."""
    wants = direction == "backward"
    found = {name: [] for name in results(direction, case)}
    for batch in range(case.batch):
        q, k, v, d_o = (t[batch, :, head].detach().to(dtype) for t in case.sets[0])
        leaves = [t.requires_grad_(wants) for t in (q, k, v)]
        bias = None if case.bias is None else case.bias[0, head].detach().to(dtype)
        if case.has_bias_gradient and wants:
            leaves.append(bias.requires_grad_())
        with torch.set_grad_enabled(wants):
            o = formula(case, q, k, v, bias, batch, head)
        gradients = torch.autograd.grad(o, leaves, d_o) if wants else (o,)
        for name, gradient in zip(found, gradients):
            found[name].append(gradient.double())
    return {name: sum(parts) if name == "dbias" else torch.stack(parts) for name, parts in found.items()}


def errors(case, direction, outputs):
    """Relative L2 errors against float64 of each result, over the first and the last head."""
    names = results(direction, case)
    squares = {who: dict.fromkeys(names, 0.0) for who in (*outputs, "formula")}
    norms = dict.fromkeys(names, 0.0)
    for head in sorted({0, case.heads - 1}):
        exact, rounded = (of_head(case, direction, head, dtype) for dtype in (torch.float64, case.dtype))
        for name in names:
            norms[name] += exact[name].square().sum().item()
            got = {who: found[name][0, head] if name == "dbias" else found[name][:, :, head]
                   for who, found in outputs.items()}
            for who, values in {**got, "formula": rounded[name]}.items():
                squares[who][name] += (values.double() - exact[name]).square().sum().item()
    return {who: {name: math.sqrt(square / norms[name]) for name, square in found.items()}
            for who, found in squares.items()}


def guarded(case, direction, field):
    """Those of a field that are right, the errors of all, and {peer: why it is left out}. Stops if ours are off."""
    for contestant in field:
        if contestant.name == "ours":
            contestant.launches[0]()
    torch.cuda.synchronize()
    if case.name == "dropout":
        return field, {}, {}
    found = errors(case, direction, {one.name: one.outputs() for one in field if one.name != PLAIN})
    off = {}
    for who, of_who in found.items():
        most = OURS_MOST if who == "ours" else PEERS_MOST
        for name, error in of_who.items():
            limit = most * found["formula"][name] + 1e-6
            if who != "formula" and not error <= limit:
                off[who] = f"error of {name} is {error:.2e}, expected at most {limit:.2e}"
    if "ours" in off:
        raise SystemExit(f"{case.describe()} {direction}: ours: {off['ours']}")
    return [one for one in field if one.name not in off], found, off


class Run:
    """The options, the library and the report."""

    def __init__(self, options, library, report):
        self.options, self.library, self.report = options, library, report
        self.judged = []

    def field(self, case, direction):
        """Who is timed, the errors that were found, and who is not and why."""
        feature, refused = FEATURES[case.name], {}
        field = [Ours(self.library, case).contestant(direction)]
        if feature.is_plain_timed:
            field.append(Ours(self.library, case, has_feature=False).contestant(direction))
        for name in self.options.peers:
            if name not in feature.peers:
                continue
            try:
                contestant = peer(name, case, direction)
                contestant.outputs()
                torch.cuda.synchronize()
                field.append(contestant)
            except Exception as error:  # each backend has errors of its own
                refused[name] = summary(error)
        field, found, off = guarded(case, direction, field)
        refused |= off
        for name, reason in refused.items():
            print(f"  {name}: not for {case.describe()} {direction} ({reason})", file=sys.stderr)
        self.report.add_guard(case, direction, found, refused)
        return field, found

    def row(self, case, direction, mode, times, host, found):
        row = {**feature_rows.compared(case, direction, mode, times, host), "relative_l2_error": found}
        self.report.add("rows", row)
        self.judged += feature_rows.lines(case.name, row)

    def case(self, name, shape, dtype):
        case, mode = FeatureCase(name, shape, dtype), self.options.modes[0]
        timed = {}
        for direction in FEATURES[name].passes:
            field, found = self.field(case, direction)
            timed[direction], host = interleaved(field, mode, self.options.rounds)
            self.row(case, direction, mode, timed[direction], host, found)
            del field
        if len(timed) == 2:
            self.row(case, BOTH, mode, feature_rows.both(timed["forward"], timed["backward"]), None, {})

    def all(self):
        for name in self.options.features:
            for dim, shape in FEATURES[name].shapes.items():
                if dim in self.options.dims:
                    for dtype in self.options.dtype:
                        self.case(name, shape, OF_NAME[dtype])
                        torch.cuda.empty_cache()


def run(options, library, facts):
    """The report, after its bars have been printed."""
    report = Report(facts, options.json, options.markdown, options.svg)
    timed = Run(options, library, report)
    timed.all()
    print("\n".join(["", "bars:", *timed.judged]))
    return report
