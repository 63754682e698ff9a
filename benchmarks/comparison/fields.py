"""What the JSON of a run has to hold so that tables and plot can be made of it."""

NUMBER = (int, float)
NUMBERS = {str: NUMBER}  # by name
ERRORS = {str: NUMBERS}  # by contestant and tensor
FACTS = {"case": str, "dtype": str, "pass": str, "mode": str}
SHAPE = {"mask": str, **dict.fromkeys(("batch", "rows", "heads", "key_heads", "dim", "packed"), int)}

NEEDED = {
    "rows": {
        **FACTS, "shape": SHAPE, "ms": NUMBERS, "tflops": NUMBERS, "ratios": NUMBERS,
        "ratio": (*NUMBER, type(None)), "best_peer": (str, type(None)), "relative_l2_error": ERRORS,
    },
    "odd": {**FACTS, "slowdown_per_flop": {str: NUMBERS}},
    "dense": {**FACTS, "dense": str, "tflops": NUMBERS, "dense_tflops": NUMBERS, "rate_over_dense": NUMBERS},
    "guard": {"case": str, "dtype": str, "dim": int, "pass": str, "relative_l2_error": ERRORS,
              "refused": {str: str}},
}
CUBLAS = {"tflops": NUMBER, "ours_over": NUMBER}


def fault(found, needed, where):
    """The first thing that is missing or of another kind than `needed`, or None."""
    if not isinstance(needed, dict):
        return None if isinstance(found, needed) else f"{where} is not of its kind"
    if not isinstance(found, dict):
        return f"{where} is not an object"
    if str in needed:
        needed = dict.fromkeys(found, needed[str])
    for name, kind in needed.items():
        if name not in found:
            return f"{where} has no {name}"
        wrong = fault(found[name], kind, f"{where}.{name}")
        if wrong:
            return wrong
    return None


def unnamed(row, kind):
    """Contestants that one field of a row names and another lacks."""
    if kind == "rows":
        named = set(row["tflops"]) | {"ours"}
        return (named - set(row["tflops"])) | (named - set(row["ms"])) | (named - {"ours"} - set(row["ratios"]))
    if kind == "dense":
        return set(row["rate_over_dense"]) - (set(row["tflops"]) & set(row["dense_tflops"]))
    return set()


def row_fault(row, kind, where):
    wrong = fault(row, NEEDED[kind], where)
    if not wrong and kind == "rows" and "cublas" in row:
        wrong = fault(row["cublas"], CUBLAS, f"{where}.cublas")
    if wrong:
        return wrong
    missing = sorted(unnamed(row, kind))
    return f"{where} lacks numbers of {missing[0]}" if missing else None


def report_fault(report):
    """The first thing that is wrong with what a file holds, or None."""
    if not isinstance(report, dict):
        return "not an object"
    for kind in NEEDED:
        if not isinstance(report.get(kind), list):
            return f"no list of {kind}"
        for number, row in enumerate(report[kind]):
            wrong = row_fault(row, kind, f"{kind}[{number}]")
            if wrong:
                return wrong
    return None
