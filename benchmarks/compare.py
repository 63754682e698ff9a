#!/usr/bin/env python3
"""Times finite-attention beside PyTorch's attention backends: one process, one GPU, interleaved rounds.

The library is called through its C interface (host/src/c_api.rs) on torch's tensors and torch's stream.
Before anything is timed, every contestant's results are compared with the formula in float64; the run
stops if ours are off.

burst:      rest 300 ms, 150 ms of warm-up, 150 ms timed
sustained:  1 s under load of the same kernel (clocks fall to what the power limit allows), 150 ms timed

A time is the median over launches of the distance between two events. A round times every contestant
once, in an order that rotates from round to round. A ratio is the median over rounds of (their time / our
time) in the same round: above 1 we are faster. Every peer has one, in brackets; that of a deterministic
backward (-det) is to our deterministic one, and that of ours-det is what determinism costs us.

FLOPs: 4 B H S^2 D forward, causal half of that, backward 2.5 times forward, packed sequences added up.

    python3 compare.py --markdown table.md --json out.json
    python3 compare.py --shapes 4,4096,16,128 2,8192,32,128,8 --pass forward backward --causal both
    python3 compare.py --shapes 4,4096,16,128 --pass backward --deterministic all --modes burst
    python3 compare.py --shapes --varlen --odd --pass forward backward --rounds 3
"""

import argparse
from pathlib import Path

DIMS = (64, 128, 256)
DEFAULT_SHAPES = [f"{16384 // s},{s},{2048 // d},{d}" for d in DIMS for s in (512, 2048, 4096, 16384)]
ODD_SHAPES = [f"4,{s},16,128" for s in (4096, 4097, 4159)]
VARLEN_DIMS = (64, 128)


def arguments():
    here = Path(__file__).resolve().parent
    places = [here / "libfinite_attention.so", here.parent / "target/release/libfinite_attention.so"]
    library = next((place for place in places if place.exists()), places[-1])
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--library", type=Path, default=library, help="libfinite_attention.so")
    add("--shapes", nargs="*", default=DEFAULT_SHAPES, metavar="B,S,H,D[,Hk]", help="none if empty")
    add("--pass", nargs="+", dest="passes", default=["forward"], choices=["forward", "backward"])
    add("--dtype", nargs="+", default=["bf16"], choices=["bf16", "f16", "f32"])
    add("--causal", default="both", choices=["no", "yes", "both"])
    add("--peers", nargs="*", default=["flash", "cudnn"], choices=["flash", "cudnn", "efficient"],
        help="f32 always runs against efficient")
    add("--deterministic", default="ours", choices=["no", "ours", "all"],
        help="for whom the deterministic backward is timed too (ours)")
    add("--odd", action="store_true", help="also time per FLOP at S 4097 and 4159 over that at 4096")
    add("--varlen", action="store_true", help="also 12 packed sequences, 33..4096 rows, 16384 together")
    add("--modes", nargs="+", default=["burst", "sustained"], choices=["burst", "sustained"])
    add("--rounds", type=int, default=5)
    add("--json", type=Path, help="write everything here, after every row")
    add("--markdown", type=Path, help="write tables here, after every row")
    return parser.parse_args()


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
        self.options, self.library, self.report = options, library, report

    def field(self, case, direction, dtype, deterministic):
        """Who is timed, after the guard, with the errors that it found."""
        from comparison.contestants import contestants
        from comparison.guard import guard

        peers = self.options.peers if dtype != "f32" else ["efficient"]
        field = contestants(self.library, case, direction, peers, deterministic)
        return field, guard(case, field)

    def case(self, make, dtype):
        """The passes of one case, in all modes. The tensors of one go before those of the next come."""
        from comparison.clock import compare

        for direction in self.options.passes:
            case = make(direction == "backward")
            field, found = self.field(case, direction, dtype, self.options.deterministic)
            for mode in self.options.modes:
                row = compare(case, direction, field, mode, self.options.rounds)
                self.report.add({**row, "relative_l2_error": found})
            del case, field

    def odd(self, make, dtype):
        from comparison.clock import odd

        for direction in self.options.passes:
            for mode in self.options.modes:
                cases = [make(shape, direction == "backward") for shape in ODD_SHAPES]
                fields = [self.field(case, direction, dtype, "no")[0] for case in cases]
                self.report.add_odd(odd(cases, fields, direction, mode, self.options.rounds))

    def all(self):
        import torch
        from comparison.cases import Case

        dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
        masks = {"no": [False], "yes": [True], "both": [False, True]}[self.options.causal]
        for name in self.options.dtype:
            dtype = dtypes[name]
            for causal in masks:
                for shape in self.options.shapes:
                    self.case(lambda backward: Case.parse(shape, dtype, causal, backward), name)
                for dim in VARLEN_DIMS if self.options.varlen else ():
                    self.case(lambda backward: Case.ragged(dim, dtype, causal, backward), name)
                if self.options.odd:
                    self.odd(lambda shape, backward: Case.parse(shape, dtype, causal, backward), name)


def main():
    options = arguments()
    # After the arguments, so that --help works without it.
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no GPU")
    torch.zeros(1, device="cuda")  # makes the primary context
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    from comparison.library import Library
    from comparison.tables import Report

    report = Report(facts(options.rounds), options.json, options.markdown)
    Run(options, Library(options.library), report).all()


if __name__ == "__main__":
    main()
