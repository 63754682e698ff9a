"""Limits, tables and the report: what is above its limit is said, and files can be read again."""

import contextlib
import io
import json
import math
import tempfile
import unittest
from pathlib import Path

from comparison import CannotRun, fields, limits, rows, tables
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

    def test_a_missed_limit_stands_beside_the_errors_of_peers(self):
        row = guarded(2.53e-3)
        row["relative_l2_error"] |= {"fa3": {"o": 2.2e-3}, "formula": {"o": 5e-3}}
        expected = "| c | forward | ours | o | 2.530 | 2.3 | 10.0 % | fa3 2.200 |"
        self.assertEqual(tables.limits_missed([row, guarded(1e-3)])[2:], [expected])
        self.assertIn("1 of 2 errors", tables.limits_note([row, guarded(1e-3)]))

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
        row["relative_l2_error"] = {"ours": {"o": 1e-3}}
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
            for legend in (tables.COMPARED, tables.HOST_BOUND, tables.CUBLAS, tables.ERRORS):
                self.assertIn(legend, markdown.read_text())
            self.assertNotIn(tables.OVER_BF16, markdown.read_text())

    def test_what_no_run_wrote_is_refused_in_one_line(self):
        whole = {kind: [] for kind in fields.NEEDED}
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "a.json"
            for text, said in (
                (None, "FileNotFoundError"),
                ("{", "JSONDecodeError"),
                ("[]", "not an object"),
                (json.dumps({"rows": [], "odd": []}), "no list of dense"),
                (json.dumps({**whole, "rows": {}}), "no list of rows"),
                (json.dumps({**whole, "odd": [{"case": "c"}]}), r"odd\[0\] has no dtype"),
            ):
                if text is not None:
                    path.write_text(text)
                with self.assertRaisesRegex(CannotRun, said) as refused:
                    Report({}).read(path)
                self.assertNotIn("\n", str(refused.exception))

    def test_every_field_that_is_needed_is_missed(self):
        with tempfile.TemporaryDirectory() as name:
            _, (path, _, _) = self.filled(Path(name))
            whole = json.loads(path.read_text())
        self.assertIsNone(fields.report_fault(whole))
        for kind, needed in fields.NEEDED.items():
            for field in needed:
                row = {name: value for name, value in whole[kind][0].items() if name != field}
                self.assertEqual(fields.report_fault({**whole, kind: [row]}), f"{kind}[0] has no {field}")
        row = whole["rows"][0]
        for wrong, said in (
            ({"shape": {**row["shape"], "dim": "64"}}, "rows[0].shape.dim is not of its kind"),
            ({"tflops": {"fa3": 1.0}}, "rows[0] lacks numbers of ours"),
            ({"ratios": {}}, "rows[0] lacks numbers of fa3"),
            ({"ms": {"ours": 1.0}}, "rows[0] lacks numbers of fa3"),
            ({"cublas": {}}, "rows[0].cublas has no tflops"),
        ):
            self.assertEqual(fields.report_fault({**whole, "rows": [{**row, **wrong}]}), said)

    def test_a_case_and_pass_are_guarded_once(self):
        report = Report({})
        for error in (1.0, 2.0):
            report.add_guard(Case(), "forward", {"ours": {"o": error}}, {})
        report.add_guard(Case(), "backward", {"ours": {"dq": 0.0}}, {})
        self.assertEqual(len(report.above_limits()), 1)

    def test_a_row_with_other_errors_than_the_guard_kept_counts_too(self):
        report = Report({})
        report.add_guard(Case(), "forward", {"ours": {"o": 1e-3}}, {})
        row = rows.compared(Case(), "forward", "burst", {"ours": [1.0]}, {"ours": [0.1]})
        for error, count in ((1e-3, 0), (2.5e-3, 1)):
            report.found["rows"] = [{**row, "relative_l2_error": {"ours": {"o": error}}}]
            self.assertEqual(len(report.above_limits()), count)
