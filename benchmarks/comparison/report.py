"""What was measured, as it comes: printed, and all files written again, so that a stopped run leaves them."""

import json

from comparison import CannotRun, fields, first_line, limits, plot, tables

KINDS = {"rows": tables.compared, "odd": tables.slowdowns, "dense": tables.over_dense}


class Report:
    """`facts` of the machine, lists of rows by kind, and under `guard` the errors of every case."""

    def __init__(self, facts, json_path=None, markdown_path=None, svg_path=None):
        self.facts, self.json_path = facts, json_path
        self.markdown_path, self.svg_path = markdown_path, svg_path
        self.found = {kind: [] for kind in (*KINDS, "guard")}
        self.heading = None

    def read(self, path):
        """Adds what an earlier run wrote."""
        try:
            earlier = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise CannotRun(f"--from {path}: cannot be read ({first_line(error)})") from None
        wrong = fields.report_fault(earlier)
        if wrong:
            raise CannotRun(f"--from {path}: not what compare.py of this version writes ({wrong})")
        for kind, found in self.found.items():
            found += earlier.pop(kind)
        self.facts = {**earlier, **self.facts}

    def add(self, kind, row):
        self.found[kind].append(row)
        lines = KINDS[kind]([row])
        if lines[:2] != self.heading:
            print("\n".join(lines[:2]))
            self.heading = lines[:2]
        print("\n".join(lines[2:]), flush=True)
        self.write()

    def add_guard(self, case, direction, found, refused):
        """Errors that the guard found, and who was refused; once for a case and pass."""
        row = {
            "case": case.describe(), "dtype": case.dtype_name(), "dim": case.dim, "pass": direction,
            "relative_l2_error": found, "refused": refused,
        }
        key = (row["case"], row["pass"])
        if key not in [(other["case"], other["pass"]) for other in self.found["guard"]]:
            self.found["guard"].append(row)

    def above_limits(self):
        return [line for row in limits.results(self.found) for line in limits.above(row)]

    def write(self):
        if self.json_path:
            self.json_path.write_text(json.dumps({**self.facts, **self.found}, indent=1) + "\n")
        if self.markdown_path:
            self.markdown_path.write_text(tables.document(self.found))
        if self.svg_path and self.found["rows"]:
            title = f"{self.facts.get('device', '')}, torch {self.facts.get('torch', '')}"
            self.svg_path.write_text(plot.svg(self.found["rows"], title))
