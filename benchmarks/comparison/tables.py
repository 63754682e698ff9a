"""Markdown tables of what was measured; each is a list of lines, the first two its heading."""

from comparison import limits, rows

COMPARED = (
    "Rates in TFLOP/s; in brackets a time over ours in the same rounds: above 1 we are faster. `ours-det` is our"
    " deterministic backward, and its bracket what determinism costs us; a peer's `-det` is over `ours-det`, where"
    " that was timed. The last column is the bracket of the fastest peer that is not `-det`."
)
HOST_BOUND = "`*`: queueing a launch took the host about as long as the GPU ran, so the kernel may be faster."
CUBLAS = "Our rate over that of a large bf16 product of cuBLAS in the same rounds: above 1 we are faster."
SLOWDOWNS = (
    "Time per FLOP at the length in a column's heading over that of the case in the first column, in the same"
    " rounds: at 1 an odd length costs nothing."
)
OVER_DENSE = (
    "Our rate over that of a dense case in the same rounds: at 1 the mask or the packing costs nothing. That is a"
    " long one, where rates are highest, and one with about as many FLOPs a row and as many rows."
)
OVER_BF16 = "Our rate in f16 over that in bf16, of different rounds: above 1 f16 is faster."
NO_LIMIT = "f16, f32 and o at other head dimensions have no limit."
ERRORS = (
    "Norm of (result - float64) over that of float64, times 1000: smaller is better. `formula` is the unfused"
    " formula in the dtype of the case. **Bold**: an error of ours above its limit."
)


def table(heading, lines):
    bars = "|--" * len(heading) + "|"
    return [f"| {' | '.join(cells)} |" for cells in [heading]] + [bars] + [
        f"| {' | '.join(cells)} |" for cells in lines
    ]


def names(found, key):
    """All contestants but ours, in the order they came in; ours-det first."""
    others = dict.fromkeys(name for row in found for name in row[key] if name != "ours")
    return sorted(others, key=lambda name: name != "ours-det")


def facts(row):
    return [row["case"], row["pass"], row["mode"]]


def compared(found):
    """TFLOP/s of all, and in brackets the ratios of times."""
    others, lines = names(found, "ms"), []

    def rate(row, name):
        return f"{row['tflops'][name]:.0f}" + ("*" if name in row.get("host_bound", []) else "")

    for row in found:
        cells = facts(row) + [rate(row, "ours")]
        for name in others:
            is_there = name in row["tflops"]
            cells.append(f"{rate(row, name)} ({row['ratios'][name]:.3f})" if is_there else "")
        cells.append(f"{row['ratio']:.3f} ({row['best_peer']})" if row["ratio"] else "")
        lines.append(cells)
    return table(["case", "pass", "mode", "ours", *others, "best peer / ours"], lines)


def over_cublas(found):
    """Our rate over that of a large matrix product, in the same rounds."""
    lines = []
    for row in found:
        if "cublas" in row:
            product = row["cublas"]
            rates = [f"{row['tflops']['ours']:.0f}", f"{product['tflops']:.0f}"]
            lines.append(facts(row) + rates + [f"{product['ours_over']:.3f}"])
    return table(["case", "pass", "mode", "ours", "cuBLAS", "ours / cuBLAS"], lines)


def slowdowns(found):
    """Time per FLOP of odd lengths over that of the even one."""
    everyone = [slower for row in found for slower in row["slowdown_per_flop"].values()]
    lengths = list(dict.fromkeys(length for slower in everyone for length in slower))
    lines = []
    for row in found:
        for name, slower in row["slowdown_per_flop"].items():
            cells = [f"{slower[length]:.3f}" if length in slower else "" for length in lengths]
            lines.append([*facts(row), name, *cells])
    heading = ["time per FLOP over that of", "pass", "mode", "who"]
    return table(heading + [f"S{length}" for length in lengths], lines)


def over_dense(found):
    """Our rate over that of a dense case, in the same rounds."""
    lines = []
    for row in found:
        for name, over in row["rate_over_dense"].items():
            rates = [f"{row[key][name]:.0f}" for key in ("tflops", "dense_tflops")]
            lines.append([*facts(row), name, rates[0], row["dense"], rates[1], f"{over:.3f}"])
    return table(["case", "pass", "mode", "who", "TFLOP/s", "dense", "TFLOP/s", "over dense"], lines)


def over_bf16(found):
    """Our rate in f16 over that in bf16, which were not timed in the same rounds."""
    lines = []
    for half, brain in rows.dtype_pairs(found):
        for name in ("ours", "ours-det"):
            if name in half["tflops"] and name in brain["tflops"]:
                rates = [half["tflops"][name], brain["tflops"][name]]
                cells = [f"{rate:.0f}" for rate in rates] + [f"{rates[0] / rates[1]:.3f}"]
                lines.append([*facts(half), name, *cells])
    return table(["case", "pass", "mode", "who", "f16", "bf16", "f16 / bf16"], lines)


def limits_missed(found):
    """Errors of ours above their limits, in units of 1e-3, with those of peers in the same run."""
    lines = []
    for row in found:
        of_all = row["relative_l2_error"]
        peers = {who: of_who for who, of_who in of_all.items() if not who.startswith("ours") and who != "formula"}
        for who, tensor, error, most in limits.exceeded(row):
            beside = [f"{name} {of[tensor] * 1e3:.3f}" for name, of in peers.items() if tensor in of]
            cells = [row["case"], row["pass"], who, tensor, f"{error * 1e3:.3f}", f"{most * 1e3:.1f}"]
            lines.append([*cells, f"{(error / most - 1) * 100:.1f} %", ", ".join(beside)])
    heading = ["limit missed", "pass", "who", "tensor", "error x 1000", "limit x 1000", "above by", "peers x 1000"]
    return table(heading, lines)


def limits_note(found):
    """What the limits are, and how many errors are above them."""
    with_limit = sum(1 for row in found for _ in limits.limited(row))
    missed = sum(len(limits.exceeded(row)) for row in found)
    dims = " and ".join(str(dim) for dim in limits.O_DIMS)
    most = f"o {limits.O_BF16 * 1e3:.1f} at head dimensions {dims}, dq, dk and dv {limits.GRADIENT_BF16 * 1e3:.1f}"
    return (f"Limits of our relative L2 errors in bf16, times 1000: {most}. {missed} of {with_limit} errors that"
            f" have a limit are above it. {NO_LIMIT}")


def errors(found):
    """Relative L2 errors of results against float64, in units of 1e-3; ** marks one above its limit."""
    tensors = list(dict.fromkeys(name for row in found for name in any_of(row["relative_l2_error"])))
    lines = []
    for row in found:
        for who, of_who in row["relative_l2_error"].items():
            cells = []
            for tensor in tensors:
                most = limits.limit(row["dtype"], row["dim"], tensor) if who.startswith("ours") else None
                text = f"{of_who[tensor] * 1e3:.3g}" if tensor in of_who else ""
                is_above = text != "" and most is not None and not of_who[tensor] <= most
                cells.append(f"**{text}**" if is_above else text)
            lines.append([row["case"], row["pass"], who, *cells])
    return table(["relative L2 error x 1000", "pass", "who", *tensors], lines)


def any_of(found):
    return next(iter(found.values()), {})


def refusals(found):
    """Who was not timed, why, and where: the first case, and how many more."""
    where = {}
    for row in found:
        for who, why in row["refused"].items():
            where.setdefault((who, why), []).append(f"{row['case']} {row['pass']}")
    lines = []
    for (who, why), cases in where.items():
        more = f", and {len(cases) - 1} more" if len(cases) > 1 else ""
        lines.append([who, why, cases[0] + more])
    return table(["not timed", "why", "where"], lines)


def document(report):
    """All tables that have a line, each after its legend. `report` is what the JSON holds."""
    guarded = limits.results(report)
    is_marked = any(row.get("host_bound") for row in report["rows"])
    parts = [
        (f"{COMPARED} {HOST_BOUND}" if is_marked else COMPARED, compared(report["rows"])),
        (CUBLAS, over_cublas(report["rows"])),
        (SLOWDOWNS, slowdowns(report["odd"])),
        (OVER_DENSE, over_dense(report["dense"])),
        (OVER_BF16, over_bf16(report["rows"])),
        (limits_note(guarded), limits_missed(guarded)),
        (ERRORS, errors(guarded)),
        ("Peers that do not take a case:", refusals(guarded)),
    ]
    texts = [text for legend, lines in parts if len(lines) > 2 for text in (legend, "\n".join(lines))]
    return "\n\n".join(texts) + "\n"
