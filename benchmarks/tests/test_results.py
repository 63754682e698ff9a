"""Results that are kept: every file can be shown again, and the tables and plot beside it are its own."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import compare
from comparison import fields

RESULTS = Path(__file__).resolve().parent.parent / "results"
AGAIN = "compare.py --from {0}.json --markdown FILE --svg {0}.svg; FILE goes below what is written by hand"


class Results(unittest.TestCase):
    files = sorted(RESULTS.glob("*.json"))

    def test_there_are_some(self):
        self.assertTrue(self.files)

    def test_rows_have_the_fields_that_are_needed(self):
        for file in self.files:
            found = json.loads(file.read_text())
            self.assertIsNone(fields.report_fault(found), file.name)
            for kind in ("rows", "guard"):
                self.assertTrue(found[kind])
            for row in found["rows"]:
                peers = [name for name in row["ratios"] if not name.startswith("ours")]
                self.assertEqual(row["best_peer"] in peers, bool(peers), row["case"])

    def test_files_are_shown_as_from_shows_them(self):
        for file in self.files:
            with tempfile.TemporaryDirectory() as name:
                markdown, svg = Path(name) / "a.md", Path(name) / "a.svg"
                given = ["compare.py", "--from", str(file), "--markdown", str(markdown), "--svg", str(svg)]
                code = None
                with mock.patch.object(sys, "argv", given), contextlib.redirect_stdout(io.StringIO()):
                    try:
                        compare.main()
                    except SystemExit as ended:
                        code = ended.code
                texts = markdown.read_text(), svg.read_text()
            found = json.loads(file.read_text())
            for row in found["rows"] + found["guard"]:
                self.assertIn(f"| {row['case']} | {row['pass']} |", texts[0])
            self.assertEqual(ElementTree.fromstring(texts[1]).tag.split("}")[1], "svg")
            # Limits are goals: where one is missed, the exit code and the tables both say so.
            self.assertEqual(code is not None, "| limit missed |" in texts[0])
            again = AGAIN.format(file.stem)
            self.assertTrue(file.with_suffix(".md").read_text().endswith(f"\n\n{texts[0]}"), again)
            self.assertEqual(file.with_suffix(".svg").read_text(), texts[1], again)
