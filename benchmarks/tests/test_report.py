"""Limits, tables and the report: what is above its limit is said, and files can be read again."""

import contextlib
import io
import json
import math
import tempfile
import unittest
from pathlib import Path

from comparison import limits, rows, tables
from comparison.report import Report
from tests import Case


def guarded(error, dtype="bfloat16", dim=64, tensor="o", who="ours"):
    return {
        "case": "c", "pass": "forward", "dtype": dtype, "dim": dim,
        "relative_l2_error": {who: {tensor: error}}, "refused": {},
    }


class Limits(unittest.TestCase):
    def test_only_what_is_above_is_named(self):
        self.assertEqual(limits.above(guarded(limits.O_BF16)), [])
        self.assertIn("error of o is 2.31e-03", limits.above(guarded(2.31e-3))[0])
        self.assertEqual(limits.above(guarded(limits.GRADIENT_BF16, tensor="dq")), [])
        self.assertEqual(len(limits.above(guarded(2.61e-3, tensor="dq", who="ours-det"))), 1)

    def test_nan_is_above(self):
        self.assertEqual(len(limits.above(guarded(math.nan))), 1)

    def test_peers_other_dtypes_and_o_of_other_dimensions_have_no_limit(self):
        self.assertEqual(limits.above(guarded(1.0, who="fa3")), [])
        self.assertEqual(limits.above(guarded(1.0, dtype="float16")), [])
        self.assertEqual(limits.above(guarded(1.0, dim=256)), [])


class Tables(unittest.TestCase):
    def test_the_heading_is_two_lines_and_every_line_has_its_cells(self):
        lines = tables.table(["a", "b"], [["1", "2"]])
        self.assertEqual(lines, ["| a | b |", "|--|--|", "| 1 | 2 |"])

    def test_an_error_above_its_limit_is_bold(self):
        self.assertEqual(tables.errors([guarded(2.5e-3)])[2], "| c | forward | ours | **2.5** |")
        self.assertEqual(tables.errors([guarded(2e-3)])[2], "| c | forward | ours | 2 |")

    def test_refusals_of_one_reason_are_one_line(self):
        refused = {**guarded(0.0), "refused": {"flex": "no"}}
        expected = "| flex | no | c forward, and 1 more |"
        self.assertEqual(tables.refusals([refused, refused])[2:], [expected])


class Reports(unittest.TestCase):
    def filled(self, folder):
        paths = [folder / name for name in ("a.json", "a.md", "a.svg")]
        report = Report({"device": "d", "torch": "t"}, *paths)
        times = {"ours": [1.0], "fa3": [2.0]}
        report.add_guard(Case(), "forward", {"ours": {"o": 1e-3}}, {"flex": "no"})
        row = rows.compared(Case(), "forward", "burst", times, {"ours": [0.1], "fa3": [2.0]})
        row["cublas"] = rows.over_reference(Case(), "forward", [1.0], [2.0], 1e9)
        with contextlib.redirect_stdout(io.StringIO()):
            report.add("rows", row)
            cases = [Case(4), Case(5)]
            both = [{"ours": [1.0]}, {"ours": [2.0]}]
            report.add("odd", rows.slowdowns(cases, "forward", "burst", both))
            report.add("dense", rows.over_dense(cases, "forward", "burst", both))
        return report, paths

    def test_an_earlier_run_gives_the_same_tables_and_plot(self):
        with tempfile.TemporaryDirectory() as name:
            _, (json_path, markdown, svg) = self.filled(Path(name))
            again = Report({}, None, Path(name) / "b.md", Path(name) / "b.svg")
            again.read(json_path)
            again.write()
            self.assertEqual((Path(name) / "b.md").read_text(), markdown.read_text())
            self.assertEqual((Path(name) / "b.svg").read_text(), svg.read_text())
            self.assertIn("| 0* (2.000) | 2.000 (fa3) |", markdown.read_text())
            self.assertIn(tables.HOST_BOUND, markdown.read_text())

    def test_another_version_is_refused(self):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "old.json"
            path.write_text(json.dumps({"rows": [], "odd": []}))
            with self.assertRaisesRegex(SystemExit, "not of this version"):
                Report({}).read(path)

    def test_a_case_and_pass_are_guarded_once(self):
        report = Report({})
        for error in (1.0, 2.0):
            report.add_guard(Case(), "forward", {"ours": {"o": error}}, {})
        report.add_guard(Case(), "backward", {"ours": {"dq": 0.0}}, {})
        self.assertEqual(len(report.above_limits()), 1)
