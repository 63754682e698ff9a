"""Markdown tables of what was measured."""

import json


def columns(rows):
    """All contestants but ours, in the order they came in."""
    return list(dict.fromkeys(name for row in rows for name in row["ms"] if name != "ours"))


def compared(rows, others):
    """TFLOP/s of all. In brackets the time over ours (of -det over ours-det): above 1 we are faster."""
    lines = [
        "| case | pass | mode | ours | " + " | ".join(others) + " | best peer / ours |",
        "|--|--|--|--|" + "--|" * len(others) + "--|",
    ]
    for row in rows:
        cells = [row["case"], row["pass"], row["mode"], f"{row['tflops']['ours']:.0f}"]
        for name in others:
            found = name in row["tflops"]
            cells.append(f"{row['tflops'][name]:.0f} ({row['ratios'][name]:.3f})" if found else "")
        cells.append(f"{row['ratio']:.3f} ({row['best_peer']})" if row["ratio"] else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def slowdowns(rows):
    """Time per FLOP of odd lengths over that of the even one."""
    everyone = [found for row in rows for found in row["slowdown_per_flop"].values()]
    lengths = list(dict.fromkeys(length for found in everyone for length in found))
    heading = " | ".join(f"S{length}" for length in lengths)
    lines = [
        f"| time per FLOP over that of | pass | mode | who | {heading} |",
        "|--|--|--|--|" + "--|" * len(lengths),
    ]
    for row in rows:
        for name, found in row["slowdown_per_flop"].items():
            cells = [row["case"], row["pass"], row["mode"], name]
            cells += [f"{found[length]:.3f}" if length in found else "" for length in lengths]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


class Report:
    """Rows as they come: printed, and all files written again, so that a stopped run leaves them."""

    def __init__(self, facts, json_path, markdown_path):
        self.facts, self.json_path, self.markdown_path = facts, json_path, markdown_path
        self.rows, self.odd, self.heading = [], [], None

    def add(self, row):
        others = columns([row])
        lines = compared([row], others)
        self.rows.append(row)
        self.show(lines[:2], lines[2:])

    def add_odd(self, row):
        lines = slowdowns([row])
        self.odd.append(row)
        self.show(lines[:2], lines[2:])

    def show(self, heading, lines):
        if heading != self.heading:
            print("\n".join(heading))
            self.heading = heading
        print("\n".join(lines), flush=True)
        self.write()

    def write(self):
        if self.json_path:
            report = {**self.facts, "rows": self.rows, "odd": self.odd}
            self.json_path.write_text(json.dumps(report, indent=1) + "\n")
        if self.markdown_path:
            tables = [compared(self.rows, columns(self.rows))] if self.rows else []
            tables += [slowdowns(self.odd)] if self.odd else []
            self.markdown_path.write_text("\n\n".join("\n".join(lines) for lines in tables) + "\n")
