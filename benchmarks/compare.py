#!/usr/bin/env python3
"""Times finite-attention beside other attention kernels: one process, one GPU, interleaved rounds.

The library is called through its C interface (host/src/c_api.rs) on torch's tensors and torch's stream.
Before anything is timed, every contestant's results are compared with the formula in float64; the run
stops if ours are off. It ends with exit code 1 if an error of ours is above its limit (comparison/limits.py),
with 2 if an argument, a file or a package is not what is needed; that is known before anything is timed.

burst:      rest 300 ms, 150 ms of warm-up, 150 ms timed
sustained:  1 s under load of the same kernel (clocks fall to what the power limit allows), 150 ms timed

A time is the median over launches of the distance between two events. A round times every contestant
once, in an order that rotates from round to round. A ratio is the median over rounds of (their time / our
time) in the same round: above 1 we are faster. Every peer has one, in brackets; that of a deterministic
backward (-det) is to our deterministic one, and that of ours-det is what determinism costs us; ours-fma is
fused multiply-adds of f32 beside --precision fast3. A rate with a * is the host's: queueing took as long as
running.

FLOPs: 4 B H S^2 D forward, causal half of that, of a window exactly the pairs in it, backward 2.5 times
forward, packed sequences added up.

Peers: flash, cudnn, efficient and flex come with PyTorch. fa3 is the wheel fa3-fwd (forward only), fa4 is
flash-attn-4; one that is asked for and cannot be imported stops the run. Who does not take a case is
printed and listed with the reason.

--what msda times multi-scale deformable attention, forward, backward and deterministic backward, beside torch's
grid_sample (grid), msda-triton, and kernels of deformops (deformops, deformops-f32acc; by name also
deformops-autotuned and deformops-cuda): comparison/msda_peers.py says what each is. One that is not there, or whose
results are too far from ours, is left out with the reason. Of the options --library, --dtype, --peers, --rows,
--modes (the first), --rounds, --json and --markdown count.

--what features times what scores can have beside q and k: bias, its gradient, boolean masks, ALiBi, dropout, sinks,
softcap, and a mask of blocks of which a quarter is kept. Rates count all pairs. Of the options --library, --dtype,
--peers, --features, --dims, --modes (the first), --rounds, --json, --markdown and --svg count.

    python3 compare.py --markdown table.md --json out.json --svg out.svg
    python3 compare.py --shapes 4,4096,16,128 2,8192,32,128,8 --pass forward backward --causal both
    python3 compare.py --shapes 4,4096,16,128 --pass backward --deterministic all --modes burst
    python3 compare.py --shapes 4,4096,16,128 --dtype f32 --precision fast3 fma --modes burst
    python3 compare.py --shapes --varlen --odd --pass forward backward --rounds 3
    python3 compare.py --peers cudnn fa3 --fa3 fa3_fwd.whl --cublas --dtype bf16 f16
    python3 compare.py --shapes --window 1024,0 512,512 --peers fa4 flex --pass forward backward
    python3 compare.py --what msda --dtype f32 bf16 --modes burst --rounds 3 --json msda.json --markdown msda.md
    python3 compare.py --what features --modes burst --rounds 3 --json features.json --markdown features.md
    python3 compare.py --from out.json more.json --markdown table.md --svg out.svg
"""

import argparse
import sys
from pathlib import Path

from comparison import CannotRun, feature_rows, first_line, masks, msda_peers, msda_rows, peers_flash
from comparison.arguments import count, output, shape
from comparison.peers import OF_TORCH, PEERS
from comparison.report import Report

DIMS = (64, 128, 256)
DEFAULT_SHAPES = [shape(f"{16384 // s},{s},{2048 // d},{d}") for d in DIMS for s in (512, 2048, 4096, 16384)]
ODD_SHAPES = [shape(f"4,{s},16,128") for s in (4096, 4097, 4159)]
VARLEN_DIMS = (64, 128)
WINDOW_SHAPES = [shape("1,16384,32,64"), shape("1,16384,16,128")]


def arguments():
    here = Path(__file__).resolve().parent
    places = [here / "libfinite_attention.so", here.parent / "target/release/libfinite_attention.so"]
    library = next((place for place in places if place.exists()), places[-1])
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--library", type=Path, default=library, help="libfinite_attention.so")
    add("--what", default="attention", choices=["attention", "features", "msda"],
        help="features: what scores can have; msda: multi-scale deformable attention; see above")
    add("--shapes", nargs="*", default=DEFAULT_SHAPES, type=shape, metavar="B,S,H,D[,Hk]", help="none if empty")
    add("--pass", nargs="+", dest="passes", default=["forward"], choices=["forward", "backward"])
    add("--dtype", nargs="+", default=["bf16"], choices=["bf16", "f16", "f32"])
    add("--precision", nargs="+", default=[], choices=["fast3", "fma"],
        help="how ours makes products of f32; the second way named is timed beside the first (as the"
        " library does where neither is asked for)")
    add("--causal", default="both", choices=["no", "yes", "both"])
    add("--peers", nargs="*", metavar="NAME",
        help=f"of {', '.join(PEERS)} (flash and cudnn; f32 always runs against efficient), with --what features of"
        f" {', '.join(OF_TORCH)} (all), with --what msda of {', '.join(msda_peers.PEERS)} (the first four)")
    add("--rows", nargs="+", default=list(msda_rows.SHAPES), choices=list(msda_rows.SHAPES),
        help="with --what msda: which shapes")
    add("--features", nargs="+", default=list(feature_rows.FEATURES), choices=list(feature_rows.FEATURES),
        help="with --what features: which")
    add("--dims", nargs="+", default=[64, 128], type=int, choices=[64, 128],
        help="with --what features: head dimensions")
    add("--fa3", type=peers_flash.package, metavar="PATH",
        help="the wheel fa3-fwd, or the folder that it was unpacked into")
    add("--deterministic", default="ours", choices=["no", "ours", "all"],
        help="for whom the deterministic backward is timed too (ours)")
    add("--odd", action="store_true", help="also time per FLOP at S 4097 and 4159 over that at 4096")
    add("--varlen", action="store_true",
        help="also 12 packed sequences, 33..4096 rows, 16384 together, and our rate over that at S 4096 and that of"
        " sequences of one length with as many FLOPs a row")
    add("--window", nargs="+", action="extend", default=[], type=masks.parse, metavar="L,R",
        help="also windows: keys before and after the diagonal, -1 for all (--window=-1,64), and our rate"
        " over causal (R is 0) or full, and over shorter sequences with as many FLOPs a row")
    add("--window-shapes", nargs="+", default=WINDOW_SHAPES, type=shape, metavar="B,S,H,D[,Hk]")
    add("--cublas", action="store_true", help="also an 8192^3 bf16 product, and our forward's rate over its")
    add("--modes", nargs="+", default=["burst", "sustained"], choices=["burst", "sustained"])
    add("--rounds", type=count, default=5)
    add("--json", type=output, help="write everything here, after every row")
    add("--markdown", type=output, help="write tables here, after every row")
    add("--svg", type=output, help="draw the rates here, after every row")
    add("--from", nargs="+", dest="earlier", default=[], type=Path, metavar="JSON",
        help="time nothing: tables and plot of what earlier runs wrote")
    options = parser.parse_args()
    known, default = {
        "attention": (PEERS, ["flash", "cudnn"]),
        "features": (OF_TORCH, OF_TORCH),
        "msda": (msda_peers.PEERS, msda_peers.DEFAULT),
    }[options.what]
    options.peers = list(default) if options.peers is None else options.peers
    for name in options.peers:
        if name not in known:
            parser.error(f"--peers: expected of {', '.join(known)} with --what {options.what}, got {name}")
    if options.fa3 and "fa3" not in options.peers:
        parser.error("--fa3 without fa3 in --peers")
    if not options.earlier and not options.library.is_file():
        parser.error(f"--library: no file {options.library}; cargo build --release makes it")
    return options


def facts(rounds):
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "rounds": rounds,
    }


class Run:
    """The options, and what is open."""

    def __init__(self, options, library, report):
        from comparison.contestants import Matmul

        self.options, self.library, self.report = options, library, report
        self.product = Matmul() if options.cublas else None

    def field(self, case, direction, peers, deterministic="no"):
        """Who is timed, after the guard, and the errors that it found."""
        from comparison.contestants import contestants
        from comparison.guard import guard

        if case.dtype_name() == "float32" and peers:
            peers = ["efficient"]
        precisions = self.options.precision
        field, refused = contestants(self.library, case, direction, peers, deterministic, precisions)
        found = guard(case, field)
        self.report.add_guard(case, direction, found, refused)
        return field, found

    def case(self, make):
        """The passes of one case, in all modes. The tensors of one go before those of the next come."""
        from comparison import rows
        from comparison.clock import interleaved

        for direction in self.options.passes:
            case = make(direction == "backward")
            field, found = self.field(case, direction, self.options.peers, self.options.deterministic)
            product = self.product if direction == "forward" else None
            everyone = field + ([product.contestant] if product else [])
            for mode in self.options.modes:
                times, host = interleaved(everyone, mode, self.options.rounds)
                reference = times.pop("cublas", None)
                row = rows.compared(case, direction, mode, times, host)
                if product:
                    row["cublas"] = rows.over_reference(
                        case, direction, times["ours"], reference, product.flops)
                self.report.add("rows", {**row, "relative_l2_error": found})
            del case, field, everyone

    def together(self, kind, makes, peers, summed_up):
        """Several cases in the same rounds, and what `summed_up` makes of their times."""
        from comparison.clock import interleaved_cases

        for direction in self.options.passes:
            cases = [make(direction == "backward") for make in makes]
            fields = [self.field(case, direction, peers)[0] for case in cases]
            for mode in self.options.modes:
                times = interleaved_cases(cases, fields, mode, self.options.rounds)
                self.report.add(kind, summed_up(cases, direction, mode, times))
            del cases, fields

    def over_dense(self, make, *dense):
        """A case, and our rate over those of dense ones."""
        from comparison import rows

        self.case(make)
        for make_dense in dense:
            self.together("dense", [make_dense, make], [], rows.over_dense)

    def masked(self, dtype, mask):
        """Shapes, packed sequences and odd lengths."""
        from comparison import rows
        from comparison.cases import RAGGED, Case

        def shaped(sizes):
            return lambda backward: Case(sizes, dtype, mask, backward=backward)

        batch, rows_each, _ = masks.evened(RAGGED, mask)
        for asked in self.options.shapes:
            self.case(shaped(asked))
        for dim in VARLEN_DIMS if self.options.varlen else ():
            dense = [shaped(shape(f"{sizes},{2048 // dim},{dim}")) for sizes in ("4,4096", f"{batch},{rows_each}")]
            self.over_dense(lambda backward: Case.ragged(dim, dtype, mask, backward), *dense)
        if self.options.odd:
            self.together("odd", [shaped(s) for s in ODD_SHAPES], self.options.peers, rows.slowdowns)

    def windows(self, dtype):
        from comparison.cases import Case

        for window in self.options.window:
            for sizes in self.options.window_shapes:
                batch, rows_each, even = masks.evened([sizes[1]] * sizes[0], window)
                self.over_dense(
                    lambda backward: Case(sizes, dtype, window, backward=backward),
                    lambda backward: Case(sizes, dtype, masks.dense(window), backward=backward),
                    lambda backward: Case([batch, rows_each, *sizes[2:]], dtype, even, backward=backward))

    def all(self):
        import torch

        dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
        asked = {"no": [masks.FULL], "yes": [masks.CAUSAL], "both": [masks.FULL, masks.CAUSAL]}
        for name in self.options.dtype:
            for mask in asked[self.options.causal]:
                self.masked(dtypes[name], mask)
            self.windows(dtypes[name])


def earlier(options):
    """The report of what earlier runs wrote."""
    report = Report({}, options.json, options.markdown, options.svg)
    for path in options.earlier:
        report.read(path)
    report.write()
    return report


def opened(path):
    """The library, on torch's current GPU."""
    from comparison.library import Library

    try:
        return Library(path)
    except (OSError, AttributeError, RuntimeError) as error:  # no library, one without a call, no device for it
        raise CannotRun(f"--library {path}: {first_line(error)}") from None


def measured(options):
    """The report of a run."""
    try:
        # After the arguments, so that --help and --from work without it.
        import torch
    except (ImportError, OSError) as error:
        reason = f"cannot import torch ({first_line(error)})"
        raise CannotRun(f"{reason}; timing needs PyTorch with CUDA, --help and --from do not") from None
    if not torch.cuda.is_available():
        raise CannotRun("PyTorch finds no GPU")
    torch.zeros(1, device="cuda")  # makes the primary context
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)

    if options.what == "msda":
        from comparison import msda

        return msda.run(options, opened(options.library), facts(options.rounds))
    if options.what == "features":
        from comparison import features

        return features.run(options, opened(options.library), facts(options.rounds))
    paths = {"fa3": options.fa3, "fa4": None}
    versions = {name: peers_flash.load(name, paths[name]) for name in options.peers if name in paths}
    about = {**facts(options.rounds), **versions}
    report = Report(about, options.json, options.markdown, options.svg)
    Run(options, opened(options.library), report).all()
    return report


def main():
    options = arguments()
    try:
        report = earlier(options) if options.earlier else measured(options)
    except CannotRun as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if report is None:
        return
    above = report.above_limits()
    if above:
        raise SystemExit("errors against float64 above their limits:\n" + "\n".join(above))


if __name__ == "__main__":
    main()
