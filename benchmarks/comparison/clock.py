"""How long launches take, and how contestants compare.

A round times every contestant once, in an order that rotates from round to round; each warms itself up.
"""

import math
import statistics
import time

import torch

WARM_UP_MS, MEASURE_MS, REST_MS, SUSTAIN_MS = 150.0, 150.0, 300.0, 1000.0


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


def interleaved(field, mode, rounds):
    """{name: milliseconds of every round}."""
    times = {contestant.name: [] for contestant in field}
    for number in range(rounds):
        for index in range(len(field)):
            contestant = field[(number + index) % len(field)]
            times[contestant.name].append(measure(contestant, mode))
    return times


def ratio(times, over, under):
    """The median over rounds of one contestant's time over another's in the same round."""
    return statistics.median(first / second for first, second in zip(times[over], times[under]))


def opponent(name, times):
    """Whom a contestant is compared with: ours, and ours-det if both are deterministic."""
    is_deterministic_peer = name.endswith("-det") and name != "ours-det"
    return "ours-det" if is_deterministic_peer and "ours-det" in times else "ours"


def compare(case, direction, field, mode, rounds):
    """Times of all contestants, and the ratio of every other one's to ours."""
    times = interleaved(field, mode, rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: ratio(times, name, opponent(name, times)) for name in times if name != "ours"}
    peers = [name for name in medians if not name.startswith("ours") and not name.endswith("-det")]
    best = min(peers, key=medians.get) if peers else None
    return {
        "case": case.describe(),
        "pass": direction,
        "mode": mode,
        "ms": medians,
        "rounds_ms": times,
        "tflops": {name: case.tflops(direction, ms) for name, ms in medians.items()},
        "ratios": ratios,
        "best_peer": best,
        "ratio": ratios.get(best),
    }


def odd(cases, fields, direction, mode, rounds):
    """Per contestant, the time per FLOP of every case over that of the first; all are interleaved."""
    names = [contestant.name for contestant in fields[0]]
    names = [name for name in names if all(name in [c.name for c in field] for field in fields)]
    everyone = []
    for case, field in zip(cases, fields):
        for contestant in field:
            if contestant.name in names:
                contestant.name = f"{contestant.name} S{case.rows}"
                everyone.append(contestant)
    times = interleaved(everyone, mode, rounds)
    first = cases[0]
    slowdown = {}
    for name in names:
        for case in cases[1:]:
            work = first.flops(direction) / case.flops(direction)
            over, under = f"{name} S{case.rows}", f"{name} S{first.rows}"
            slowdown.setdefault(name, {})[case.rows] = work * ratio(times, over, under)
    return {
        "case": first.describe(),
        "pass": direction,
        "mode": mode,
        "rounds_ms": times,
        "slowdown_per_flop": slowdown,
    }
