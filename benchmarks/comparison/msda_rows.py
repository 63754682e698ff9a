"""Multi-scale deformable attention: which cases are timed, and what is made of the times. Needs no PyTorch."""

import statistics

from comparison.rows import HOST_BOUND, ratio
from comparison.tables import table

LEVELS, POINTS = ((64, 64), (32, 32), (16, 16), (8, 8)), 4
CELLS = sum(height * width for height, width in LEVELS)
# {name: (B, N, H, C)}: an encoder, whose queries are the cells, a decoder like DINO's, and other head dimensions.
SHAPES = {
    "encoder": (4, CELLS, 8, 32), "decoder": (4, 900, 8, 32), "encoder-c16": (4, CELLS, 8, 16),
    "encoder-c64": (4, CELLS, 8, 64),
}
PASSES = ("forward", "backward", "deterministic")
BAR = 1.2  # the fastest peer's time over ours
# Largest error of ours against float64 over the largest exact element, and relative L2 distance of a peer from ours.
MOST_ERROR = {"f32": 1e-3, "bf16": 5e-2, "f16": 1e-2}
MOST_DISTANCE = {"f32": 1e-3, "bf16": 5e-2, "f16": 1e-2}
TENSORS = ("o", "dvalue", "dlocations", "dweights")
NOTES = (
    "Milliseconds; in brackets a peer's time over ours in the same rounds: above 1 we are faster. Every launch is the"
    " replay of a captured graph, so that no kernel waits for the host; `+`: could not be captured and was called."
    " `*`: queueing took the host about as long as the GPU ran. Value, o and weights have the type of the row,"
    " locations are f32. The deterministic backward is compared with the fastest backward, which of no peer is"
    " deterministic."
)


def describe(name, dtype):
    batches, queries, heads, channels = SHAPES[name]
    return f"{name} {dtype} B{batches} N{queries} H{heads} C{channels}"


def too_far(dtype, distances):
    """Why a peer that is so far from ours, tensor by tensor, is not timed; None if it is near enough."""
    most = MOST_DISTANCE[dtype]
    far = [f"{name} {distance:.1e}" for name, distance in distances.items() if not distance <= most]
    return f"is off from ours by {', '.join(far)} (relative L2; at most {most:.0e} is allowed)" if far else None


def row(name, dtype, direction, times, host, distances, called=()):
    """What one pass came to. `times` and `host` are {contestant: milliseconds of every round}; the contestant whose
    pass it is is called ours, or ours-det in the deterministic one."""
    ours = "ours-det" if direction == "deterministic" else "ours"
    medians = {who: statistics.median(ms) for who, ms in times.items()}
    host_ms = {who: statistics.median(ms) for who, ms in host.items()}
    peers = [who for who in times if not who.startswith("ours")]
    ratios = {who: ratio(times[who], times[ours]) for who in peers}
    best = min(peers, key=medians.get) if peers else None
    return {
        "case": describe(name, dtype), "shape": name, "dtype": dtype, "pass": direction,
        "ms": medians[ours], "peers_ms": {who: medians[who] for who in peers}, "rounds_ms": times,
        "host_bound": [who for who in (ours, *peers) if host_ms[who] > HOST_BOUND * medians[who]],
        "called": [who for who in (ours, *peers) if who in called],
        "distance_from_ours": distances, "ratios": ratios, "best_peer": best, "ratio": ratios.get(best),
        "meets_bar": ratios[best] >= BAR if best else None,
    }


def split(name, dtype, direction, times, host, distances, called=()):
    """The rows of a field: of a backward also the deterministic one, each without the other's time of ours."""
    directions = ["forward"] if direction == "forward" else ["backward", "deterministic"]
    found = []
    for each in directions:
        left_out = "ours" if each == "deterministic" else "ours-det"
        of_row = [{who: ms for who, ms in of_all.items() if who != left_out} for of_all in (times, host)]
        found.append(row(name, dtype, each, *of_row, distances, called))
    return found


def lines(rows):
    """A table of rows."""
    peers = list(dict.fromkeys(who for each in rows for who in each["peers_ms"]))

    def ms(each, who, value):
        return f"{value:.4f}" + ("+" if who in each["called"] else "") + ("*" if who in each["host_bound"] else "")

    listed = []
    for each in rows:
        ours = "ours-det" if each["pass"] == "deterministic" else "ours"
        cells = [each["case"], each["pass"], ms(each, ours, each["ms"])]
        for who in peers:
            is_there = who in each["peers_ms"]
            cells.append(f"{ms(each, who, each['peers_ms'][who])} ({each['ratios'][who]:.2f})" if is_there else "")
        cells += [f"{each['ratio']:.2f} ({each['best_peer']})", "yes" if each["meets_bar"] else "NO"] \
            if each["best_peer"] else ["no peer", ""]
        listed.append(cells)
    return table(["case", "pass", "ours", *peers, "best peer / ours", f"at least {BAR}"], listed)


def judged(rows):
    """A line for each pass: how many rows meet the bar, and the lowest ratio."""
    found = []
    for direction in PASSES:
        of_pass = [each for each in rows if each["pass"] == direction and each["best_peer"]]
        if not of_pass:
            continue
        lowest = min(of_pass, key=lambda each: each["ratio"])
        met = sum(each["meets_bar"] for each in of_pass)
        found.append(f"{direction}: {met} of {len(of_pass)} rows are at least {BAR} times as fast as the fastest peer;"
                     f" lowest {lowest['ratio']:.2f} ({lowest['case']}, {lowest['best_peer']})")
    return found


def document(rows, missing, refused):
    """The whole report in Markdown."""
    parts = [NOTES, "", *lines(rows), "", *[f"- {line}" for line in judged(rows)]]
    parts += [f"- not there: {name}: {reason}" for name, reason in missing.items()]
    parts += [f"- not timed: {line}" for line in refused]
    return "\n".join(parts) + "\n"
