"""What is made of the times of one case: rates, and ratios of times in the same round."""

import statistics

HOST_BOUND = 0.9  # of a launch's time: if queueing takes longer, the GPU may have waited for the host


def ratio(over, under):
    """The median over rounds of one time over another in the same round."""
    return statistics.median(first / second for first, second in zip(over, under))


def opponent(name, times):
    """Whom a contestant is compared with: ours, and ours-det if both are deterministic."""
    is_deterministic_peer = name.endswith("-det") and name != "ours-det"
    return "ours-det" if is_deterministic_peer and "ours-det" in times else "ours"


def case_facts(case, direction, mode):
    return {
        "case": case.describe(), "dtype": case.dtype_name(), "shape": case.shape(),
        "pass": direction, "mode": mode,
    }


def compared(case, direction, mode, times, host):
    """Times of all contestants, and the ratio of every other one's to ours."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    host_ms = {name: statistics.median(host[name]) for name in times}
    ratios = {name: ratio(times[name], times[opponent(name, times)]) for name in times if name != "ours"}
    peers = [name for name in medians if not name.startswith("ours") and not name.endswith("-det")]
    best = min(peers, key=medians.get) if peers else None
    return {
        **case_facts(case, direction, mode),
        "ms": medians,
        "host_ms": host_ms,
        "host_bound": [name for name in times if host_ms[name] > HOST_BOUND * medians[name]],
        "rounds_ms": times,
        "tflops": {name: case.tflops(direction, ms) for name, ms in medians.items()},
        "ratios": ratios,
        "best_peer": best,
        "ratio": ratios.get(best),
    }


def over_reference(case, direction, ours, reference, flops):
    """Our rate over that of something else in the same rounds, of so many FLOPs a launch."""
    work = case.flops(direction) / flops
    return {
        "tflops": flops / statistics.median(reference) / 1e9,
        "rounds_ms": reference,
        "ours_over": work * ratio(reference, ours),
    }


def slowdowns(cases, direction, mode, times):
    """Per contestant, the time per FLOP of every case over that of the first."""
    first, slowdown = cases[0], {}
    for case, of_case in zip(cases[1:], times[1:]):
        work = first.flops(direction) / case.flops(direction)
        for name in of_case:
            slowdown.setdefault(name, {})[case.rows] = work * ratio(of_case[name], times[0][name])
    return {
        **case_facts(first, direction, mode),
        "rounds_ms": {f"{name} S{case.rows}": of_case[name]
                      for case, of_case in zip(cases, times) for name in of_case},
        "slowdown_per_flop": slowdown,
    }


def over_dense(cases, direction, mode, times):
    """Per contestant, the rate (FLOPs that count per time) of the second case over that of the first."""
    dense, case = cases
    work = case.flops(direction) / dense.flops(direction)
    medians = [{name: statistics.median(ms) for name, ms in of_case.items()} for of_case in times]
    return {
        **case_facts(case, direction, mode),
        "dense": dense.describe(),
        "rounds_ms": {"case": times[1], "dense": times[0]},
        "tflops": {name: case.tflops(direction, ms) for name, ms in medians[1].items()},
        "dense_tflops": {name: dense.tflops(direction, ms) for name, ms in medians[0].items()},
        "rate_over_dense": {name: work * ratio(times[0][name], times[1][name]) for name in times[1]},
    }


def dtype_pairs(rows, over="float16", under="bfloat16"):
    """(row of one dtype, row of the other) for every shape, pass and mode that both were timed for."""

    def key(row):
        return (*sorted(row["shape"].items()), row["pass"], row["mode"])

    found = {key(row): row for row in rows if row["dtype"] == under}
    return [(row, found[key(row)]) for row in rows if row["dtype"] == over and key(row) in found]
