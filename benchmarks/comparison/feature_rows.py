"""Score features that are timed: shapes, peers, and how much faster than whom ours are meant to be."""

from dataclasses import dataclass

from comparison import rows

PLAIN = "ours-plain"  # ours without the feature
PEER = "best peer"
BOTH = "both"  # a forward and its backward

SQUARE = {dim: (8, 2048, 2048 // dim, dim, 2048 // dim) for dim in (64, 128)}
LONG = {128: (2, 8192, 16, 128, 16)}


@dataclass(frozen=True)
class Feature:
    """`bars`: (pass, over whom, at least so many times as fast)."""

    peers: tuple
    bars: tuple
    shapes: dict
    passes: tuple = ("forward", "backward")
    is_plain_timed: bool = False


FEATURES = {
    "bias": Feature(("flex", "cudnn", "efficient"), (("forward", PEER, 1.3),), SQUARE, ("forward",)),
    "bias-gradient": Feature(("flex", "cudnn", "efficient"), ((BOTH, PEER, 1.4),), SQUARE),
    "mask": Feature(("flex", "cudnn", "efficient"), (("forward", PEER, 1.4), ("backward", PEER, 1.5)), SQUARE),
    "alibi": Feature(("flex",), (("forward", PEER, 1.4), ("backward", PEER, 1.4)), SQUARE),
    "dropout": Feature(("flash", "cudnn", "efficient"), ((BOTH, PEER, 1.1),), SQUARE),
    "sinks": Feature(("flex",), (("forward", PLAIN, 0.97), ("backward", PLAIN, 0.97)), SQUARE, is_plain_timed=True),
    "softcap": Feature(("flex",), (("forward", PEER, 1.8), ("backward", PEER, 1.8)), SQUARE, is_plain_timed=True),
    "blocks": Feature(("flex",), (("forward", PLAIN, 2.8), ("backward", PLAIN, 2.8)), LONG, is_plain_timed=True),
}


def both(forward, backward):
    """Times of a forward and its backward, round by round, of those who have both."""
    return {name: [sum(pair) for pair in zip(times, backward[name])]
            for name, times in forward.items() if name in backward}


def judged(name, row):
    """(over whom, the ratio or None if nobody was timed, the bar) for every bar of a row."""
    found = {PEER: row["ratio"], PLAIN: row["ratios"].get(PLAIN)}
    return [(whom, found[whom], bar) for direction, whom, bar in FEATURES[name].bars if direction == row["pass"]]


def lines(name, row):
    """What a row says of its bars."""
    def verdict(ratio, bar):
        return "nobody to compare with" if ratio is None else "met" if ratio >= bar else "missed"

    return [
        f"  {row['case']} {row['pass']}: {'none' if ratio is None else f'{ratio:.3f}'} over {whom}, bar {bar}: "
        f"{verdict(ratio, bar)}"
        for whom, ratio, bar in judged(name, row)
    ]


def compared(case, direction, mode, times, host):
    """As rows.compared; of both passes the host's time is not known."""
    host = host or {name: [0.0] for name in times}
    return rows.compared(case, direction, mode, times, host)
