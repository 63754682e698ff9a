"""Markdown tables of what was measured; each is a list of lines, the first two its heading."""

from comparison import limits, rows

HOST_BOUND = "`*`: queueing a launch took the host about as long as the GPU ran, so the kernel may be faster."


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
    """TFLOP/s of all. In brackets the time over ours (of -det over ours-det): above 1 we are faster."""
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
    """All tables that have a line. `report` is what the JSON holds."""
    tables = [
        compared(report["rows"]), over_cublas(report["rows"]), slowdowns(report["odd"]),
        over_dense(report["dense"]), over_bf16(report["rows"]), errors(report["guard"]),
        refusals(report["guard"]),
    ]
    texts = ["\n".join(lines) for lines in tables if len(lines) > 2]
    is_marked = any(row.get("host_bound") for row in report["rows"])
    return "\n\n".join(texts[:1] + ([HOST_BOUND] if is_marked else []) + texts[1:]) + "\n"
