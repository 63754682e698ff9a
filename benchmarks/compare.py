#!/usr/bin/env python3
"""Times finite-attention beside PyTorch's attention backends: one process, one GPU, interleaved rounds.

The library is called through its C interface (host/src/c_api.rs) on torch's tensors and torch's stream. Before
anything is timed, every contestant's output is compared with the formula in float64; the run stops if ours is off.

burst:      rest 300 ms, 150 ms of warm-up, 150 ms timed
sustained:  1 s under load of the same kernel (clocks fall to what the power limit allows), 150 ms timed

A time is the median over launches of the distance between two events. A round times every contestant once, in an
order that rotates from round to round. The ratio is the median over rounds of (best peer's time / our time) in the
same round: above 1 we are faster.

    python3 benchmarks/compare.py --library target/release/libfinite_attention.so --markdown table.md
    python3 benchmarks/compare.py --shapes 4,4096,16,128 2,8192,32,128,8 --dtype bf16 --causal both --json out.json
"""

import argparse
import ctypes
import json
import math
import statistics
import sys
import time
from pathlib import Path

torch = None  # imported in main, so that --help works without it

WARM_UP_MS, MEASURE_MS, REST_MS, SUSTAIN_MS = 150.0, 150.0, 300.0, 1000.0
DEFAULT_SHAPES = [f"{16384 // s},{s},{2048 // d},{d}" for d in (64, 128, 256) for s in (512, 2048, 4096, 16384)]


class Tensor(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("shape", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 4)]


class ForwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("dtype", ctypes.c_int32),
        ("output_dtype", ctypes.c_int32),
        ("mask", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", ctypes.c_uint64),
    ]


FULL, CAUSAL_TOP_LEFT = 0, 2  # torch's is_causal is aligned top left


class Library:
    """libfinite_attention.so, opened on torch's current GPU."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(Path(path).resolve()))
        self.c.fattn_last_error.restype = ctypes.c_char_p
        self.c.fattn_device_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
        self.c.fattn_forward.argtypes = [ctypes.c_void_p, ctypes.POINTER(ForwardArgs), ctypes.c_void_p]
        self.device = ctypes.c_void_p()
        name = f"cuda:{torch.cuda.current_device()}".encode()
        self.check(self.c.fattn_device_open(name, ctypes.byref(self.device)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"finite-attention ({status}): {self.c.fattn_last_error().decode()}")

    def arguments(self, q, k, v, o, lse, causal):
        """Arguments for BSHD tensors."""

        def tensor(t):
            return Tensor(t.data_ptr(), (ctypes.c_int64 * 4)(*t.shape), (ctypes.c_int64 * 4)(*t.stride()))

        dtypes = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
        mask = CAUSAL_TOP_LEFT if causal else FULL
        return ForwardArgs(
            ctypes.sizeof(ForwardArgs), dtypes[q.dtype], dtypes[o.dtype], mask, math.nan, 0,
            tensor(q), tensor(k), tensor(v), tensor(o), lse.data_ptr() if lse is not None else 0,
        )

    def forward(self, args):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.c.fattn_forward(self.device, ctypes.byref(args), stream))


class Case:
    """A shape, and as many copies of its tensors as leave nothing of a copy in the L2 cache."""

    def __init__(self, text, dtype, causal):
        numbers = [int(number) for number in text.split(",")]
        if len(numbers) not in (4, 5):
            raise SystemExit(f"--shapes: expected B,S,H,D or B,S,H,D,Hk, got {text}")
        self.batch, self.rows, self.heads, self.dim = numbers[:4]
        self.key_heads = numbers[4] if len(numbers) == 5 else self.heads
        self.dtype, self.causal = dtype, causal
        size = torch.finfo(dtype).bits // 8
        set_bytes = self.batch * self.rows * self.dim * 2 * (self.heads + self.key_heads) * size
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.sets = [self.tensors() for _ in range(max(1, min(64, math.ceil(2 * l2 / set_bytes))))]

    def tensors(self):
        def normal(heads):
            shape = (self.batch, self.rows, heads, self.dim)
            return torch.randn(shape, device="cuda", dtype=torch.float32).to(self.dtype)

        return normal(self.heads), normal(self.key_heads), normal(self.key_heads)

    def tflops(self, ms):
        flops = 4 * self.batch * self.heads * self.rows * self.rows * self.dim * (0.5 if self.causal else 1)
        return flops / ms / 1e9

    def describe(self):
        heads = f"H{self.heads}" + (f":{self.key_heads}" if self.key_heads != self.heads else "")
        mask = "causal" if self.causal else "full"
        return f"{str(self.dtype).split('.')[1]} {mask} B{self.batch} S{self.rows} {heads} D{self.dim}"


def our_launches(library, case):
    """One call per set of tensors, and the output of the first set."""
    launches, first = [], None
    for q, k, v in case.sets:
        o = torch.full_like(q, math.nan)
        lse = torch.full((case.batch, case.heads, case.rows), math.nan, device="cuda", dtype=torch.float32)
        args = library.arguments(q, k, v, o, lse, case.causal)
        keep = (q, k, v, o, lse)
        launches.append(lambda args=args, keep=keep: library.forward(args))
        first = first if first is not None else o
    return launches, lambda: first


def torch_launches(backend, case):
    """The same for one backend of torch's scaled_dot_product_attention, which wants BHSD views."""
    from torch.nn.attention import sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = {"enable_gqa": True} if case.key_heads != case.heads else {}
    result = []

    def launch(q, k, v):
        result[:] = [attention(q, k, v, is_causal=case.causal, **grouped)]

    def first():
        with sdpa_kernel(backend):
            launch(*views[0])
        return result[0].transpose(1, 2)

    views = [tuple(t.transpose(1, 2) for t in tensors) for tensors in case.sets]
    return [lambda view=view: launch(*view) for view in views], first, lambda: sdpa_kernel(backend)


class Contestant:
    """A name and what to call."""

    def __init__(self, name, launches, output, context=None):
        self.name, self.launches, self.output, self.context = name, launches, output, context
        self.times = {}

    def run(self, work):
        if self.context is None:
            return work()
        with self.context():
            return work()


def contestants(library, case, peers):
    """Ours and the peers that accept the case."""
    from torch.nn.attention import SDPBackend

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    launches, output = our_launches(library, case)
    found = [Contestant("ours", launches, output)]
    for name in peers:
        if case.dtype == torch.float32 and name != "efficient":
            continue
        launches, output, context = torch_launches(backends[name], case)
        try:
            output()
        except RuntimeError as error:
            print(f"  {name}: not for this case ({str(error).splitlines()[0]})", file=sys.stderr)
            continue
        found.append(Contestant(name, launches, output, context))
    return found


def attention_rows(q, k, v, first, causal):
    """The formula for some query rows of one head, in the dtype of the arguments; `first` is the row q starts at."""
    scores = (q @ k.T) * (q.shape[1] ** -0.5)
    if causal:
        rows = torch.arange(first, first + q.shape[0], device="cuda")[:, None]
        scores = scores.masked_fill(torch.arange(k.shape[0], device="cuda")[None, :] > rows, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def errors(case, outputs):
    """Relative L2 errors against float64 over the first and the last head of the first set; the last number is that
    of the formula in the case's own dtype."""
    q, k, v = case.sets[0]
    squares, norm = [0.0] * (len(outputs) + 1), 0.0
    for batch, head in {(0, 0), (case.batch - 1, case.heads - 1)}:
        key_head = head // (case.heads // case.key_heads)
        keys, values = k[batch, :, key_head], v[batch, :, key_head]
        for first in range(0, case.rows, 1024):
            queries = q[batch, first : first + 1024, head]
            exact = attention_rows(queries.double(), keys.double(), values.double(), first, case.causal)
            rounded = attention_rows(queries, keys, values, first, case.causal)
            got = [o[batch, first : first + 1024, head] for o in outputs] + [rounded]
            for index, tensor in enumerate(got):
                squares[index] += (tensor.double() - exact).square().sum().item()
            norm += exact.square().sum().item()
    return [math.sqrt(square / norm) for square in squares]


def guard(case, field):
    """Stops the run unless our output is at most twice as far from float64 as the unfused formula."""
    field[0].launches[0]()
    torch.cuda.synchronize()
    found = errors(case, [contestant.output() for contestant in field])
    limit = 2 * found[-1] + 1e-6  # in f32 both errors are a few units of the last place
    if not found[0] <= limit:
        raise SystemExit(f"{case.describe()}: our error is {found[0]:.2e}, expected at most {limit:.2e}")
    return {contestant.name: error for contestant, error in zip(field, found)}


def timed(launches, count):
    """Milliseconds of each of `count` launches, queued back to back."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for index in range(count):
        launches[index % len(launches)]()
        events[index + 1].record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in zip(events, events[1:])]


def launch_count(wanted_ms, launch_ms):
    return min(max(math.ceil(wanted_ms / launch_ms), 5), 20_000)


def measure(contestant, mode):
    """The median time of one launch after the warm-up of `mode`."""

    def work():
        launches = contestant.launches
        pilot = max(statistics.median(timed(launches, 5)), 1e-3)
        if mode == "burst":
            time.sleep(REST_MS / 1000)
        warm_up_ms = WARM_UP_MS if mode == "burst" else SUSTAIN_MS
        timed(launches, launch_count(warm_up_ms, pilot))
        return statistics.median(timed(launches, launch_count(MEASURE_MS, pilot)))

    return contestant.run(work)


def compare(case, field, mode, rounds):
    """Times of all contestants, and our ratio to the best peer."""
    times = {contestant.name: [] for contestant in field}
    for number in range(rounds):
        for index in range(len(field)):
            contestant = field[(number + index) % len(field)]
            times[contestant.name].append(measure(contestant, mode))
    medians = {name: statistics.median(values) for name, values in times.items()}
    peers = [name for name in medians if name != "ours"]
    best = min(peers, key=medians.get) if peers else None
    ratio = best and statistics.median(peer / ours for peer, ours in zip(times[best], times["ours"]))
    return {
        "case": case.describe(),
        "mode": mode,
        "ms": medians,
        "rounds_ms": times,
        "tflops": {name: case.tflops(ms) for name, ms in medians.items()},
        "best_peer": best,
        "ratio": ratio,
    }


def markdown(rows, peers):
    """A table: TFLOP/s of all, and our ratio to the best peer."""
    lines = [
        "| case | mode | ours | " + " | ".join(peers) + " | best peer / ours |",
        "|--|--|--|" + "--|" * len(peers) + "--|",
    ]
    for row in rows:
        cells = [f"{row['tflops'][name]:.0f}" if name in row["tflops"] else "" for name in ["ours", *peers]]
        ratio = f"{row['ratio']:.3f} ({row['best_peer']})" if row["ratio"] else ""
        lines.append(f"| {row['case']} | {row['mode']} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines) + "\n"


def arguments():
    here = Path(__file__).resolve().parent
    places = [here / "libfinite_attention.so", here.parent / "target/release/libfinite_attention.so"]
    library = next((place for place in places if place.exists()), places[-1])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=library, help="libfinite_attention.so")
    parser.add_argument("--shapes", nargs="+", default=DEFAULT_SHAPES, metavar="B,S,H,D[,Hk]")
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=["bf16", "f16", "f32"])
    parser.add_argument("--causal", default="both", choices=["no", "yes", "both"])
    parser.add_argument("--peers", nargs="+", default=["flash", "cudnn"], choices=["flash", "cudnn", "efficient"],
                        help="f32 always runs against efficient")
    parser.add_argument("--modes", nargs="+", default=["burst", "sustained"], choices=["burst", "sustained"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--markdown", type=Path, help="write a table here")
    return parser.parse_args()


def main():
    options = arguments()
    global torch
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no GPU")
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # makes the primary context
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    library = Library(options.library)
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    masks = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    rows = []
    for name in options.dtype:
        peers = options.peers if name != "f32" else ["efficient"]
        for shape in options.shapes:
            for causal in masks:
                case = Case(shape, dtypes[name], causal)
                with torch.no_grad():
                    field = contestants(library, case, peers)
                    found = guard(case, field)
                    for mode in options.modes:
                        row = compare(case, field, mode, options.rounds)
                        row["relative_l2_error"] = found
                        rows.append(row)
                        print(markdown([row], peers).splitlines()[-1], flush=True)
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "rounds": options.rounds,
    }
    if options.json:
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        every = sorted({peer for row in rows for peer in row["ms"]} - {"ours"})
        options.markdown.write_text(markdown(rows, every))


if __name__ == "__main__":
    main()
