"""Bars of TFLOP/s as SVG: a panel for each kind of case, a group for each case, a bar for each contestant."""

import math
from html import escape

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d5fd3", "#c77d0a", "#555555", "#17a2b8", "#a0522d")
BAR, GAP, LEFT, HEIGHT, TOP, BOTTOM = 19, 22, 44, 200, 34, 46
WIDEST = 1300  # before a panel starts a new line


def panel_of(row):
    """What the cases of a panel have in common."""
    shape = row["shape"]
    kind = "window" if shape["mask"].startswith("window") else shape["mask"]
    kind = f"{kind}, packed" if shape["packed"] else kind
    return f"{row['pass']}, {row['mode']}: {row['dtype']} {kind} D{shape['dim']}"


def label_of(row):
    """Two lines for one case in its panel."""
    shape = row["shape"]
    heads = f"H{shape['heads']}" + (f":{shape['key_heads']}" if shape["key_heads"] != shape["heads"] else "")
    if shape["packed"]:
        return f"{shape['packed']} packed", f"{shape['rows']} rows {heads}"
    size = f"S{shape['rows']}"
    if shape["mask"].startswith("window"):
        return shape["mask"].removeprefix("window "), f"{size} B{shape['batch']} {heads}"
    return size, f"B{shape['batch']} {heads}"


def ticks(highest):
    """Round numbers from 0 to at least `highest`, in at most 6 steps."""
    power = 10.0 ** math.floor(math.log10(highest))
    step = next(s * power for s in (0.2, 0.5, 1, 2) if s * power * 6 >= highest)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def text(x, y, anchor, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def line(colour, *points):
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}"/>'


def group_width(row):
    """Of its bars, and at least of its label."""
    return BAR * max(len(row["tflops"]), 4)


def width(panel):
    groups = GAP + sum(group_width(row) + GAP for row in panel)
    return LEFT + max(groups, 7 * len(panel_of(panel[0])))


def bars(panel, marks, colours, x, y):
    """A panel with its upper left corner at (x, y)."""
    left, right, bottom = x + LEFT, x + width(panel), y + TOP + HEIGHT

    def place(rate):
        return bottom - rate / marks[-1] * HEIGHT

    parts = [text(left, y + TOP - 14, "start", panel_of(panel[0]), ' font-weight="bold"')]
    for mark in marks:
        parts.append(line("#dddddd", (left, place(mark)), (right, place(mark))))
        parts.append(text(left - 6, place(mark) + 4, "end", f"{mark:g}"))
    start = left + GAP
    for row in panel:
        middle = start + group_width(row) / 2
        first = middle - BAR * len(row["tflops"]) / 2
        for number, (name, rate) in enumerate(row["tflops"].items()):
            at, top = first + BAR * number, place(rate)
            size = f'width="{BAR - 2}" height="{bottom - top:.1f}" fill="{colours[name]}"'
            parts.append(f'<rect x="{at:.1f}" y="{top:.1f}" {size}/>')
            parts.append(text(at + BAR / 2 - 1, top - 3, "middle", f"{rate:.0f}", ' font-size="9"'))
        for number, words in enumerate(label_of(row)):
            parts.append(text(middle, bottom + 15 + 13 * number, "middle", words, ' font-size="10"'))
        start += group_width(row) + GAP
    return [*parts, line("#555555", (left, bottom), (right, bottom))]


def svg(rows, title):
    """The picture of all rows. All panels have the same colours and the same scale."""
    names = list(dict.fromkeys(name for row in rows for name in row["tflops"]))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    marks = ticks(1.05 * max(max(row["tflops"].values()) for row in rows))
    panels = {}
    for row in rows:
        panels.setdefault(panel_of(row), []).append(row)
    parts = [text(LEFT, 22, "start", f"TFLOP/s, {title}", ' font-size="15"')]
    at = LEFT
    for name in names:
        parts.append(f'<rect x="{at}" y="34" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(text(at + 17, 44, "start", name))
        at += 40 + 7 * len(name)
    x, y, widest = 0, 56, at
    for panel in panels.values():
        if x > 0 and x + width(panel) > WIDEST:
            x, y = 0, y + TOP + HEIGHT + BOTTOM
        parts += bars(panel, marks, colours, x, y)
        x += width(panel) + GAP
        widest = max(widest, x)
    head = f'viewBox="0 0 {widest} {y + TOP + HEIGHT + BOTTOM}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>',
             '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]
    return "\n".join(parts) + "\n"
