"""How long launches take.

A round times every contestant once, in an order that rotates from round to round; each warms itself up.
"""

import math
import statistics
import time

import torch

WARM_UP_MS, MEASURE_MS, REST_MS, SUSTAIN_MS = 150.0, 150.0, 300.0, 1000.0
QUEUED = 64  # launches that a stream surely takes without making the host wait


def timed(launches, count):
    """Milliseconds of each of `count` launches, queued back to back, and what queueing one took."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    start, host_ms = time.perf_counter(), math.nan
    for index in range(count):
        launches[index % len(launches)]()
        events[index + 1].record()
        if index < QUEUED:
            host_ms = (time.perf_counter() - start) * 1000 / (index + 1)
    torch.cuda.synchronize()
    return [first.elapsed_time(second) for first, second in zip(events, events[1:])], host_ms


def launch_count(wanted_ms, launch_ms):
    return min(max(math.ceil(wanted_ms / launch_ms), 5), 20_000)


def measure(contestant, mode):
    """The median time of one launch after the warm-up of `mode`, and the host's time for one."""

    def work():
        launches = contestant.launches
        pilot = max(statistics.median(timed(launches, 5)[0]), 1e-3)
        if mode == "burst":
            time.sleep(REST_MS / 1000)
        warm_up_ms = WARM_UP_MS if mode == "burst" else SUSTAIN_MS
        timed(launches, launch_count(warm_up_ms, pilot))
        times, host_ms = timed(launches, launch_count(MEASURE_MS, pilot))
        return statistics.median(times), host_ms

    return contestant.run(work)


def interleaved(field, mode, rounds):
    """{name: milliseconds of every round}, and the same of the host."""
    times = {contestant.name: [] for contestant in field}
    host = {contestant.name: [] for contestant in field}
    for number in range(rounds):
        for index in range(len(field)):
            contestant = field[(number + index) % len(field)]
            ms, host_ms = measure(contestant, mode)
            times[contestant.name].append(ms)
            host[contestant.name].append(host_ms)
    return times, host


def interleaved_cases(cases, fields, mode, rounds):
    """Several cases in the same rounds: for each the times of the contestants that all of them have."""
    names = [contestant.name for contestant in fields[0]]
    names = [name for name in names if all(name in [c.name for c in field] for field in fields)]
    everyone = []
    for number, field in enumerate(fields):
        for contestant in field:
            if contestant.name in names:
                labelled = (f"{contestant.name} {number}", contestant.launches, None, contestant.context)
                everyone.append(type(contestant)(*labelled))
    times, _ = interleaved(everyone, mode, rounds)
    return [{name: times[f"{name} {number}"] for name in names} for number in range(len(cases))]
