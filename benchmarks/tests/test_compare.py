"""compare.py: every file parses, and the command line says what it does not take."""

import ast
import subprocess
import sys
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent


class CommandLine(unittest.TestCase):
    def run_with(self, *arguments):
        command = [sys.executable, "-B", str(BENCHMARKS / "compare.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_every_file_parses(self):
        files = sorted(BENCHMARKS.rglob("*.py"))
        self.assertGreater(len(files), 10)
        for file in files:
            ast.parse(file.read_text(), str(file))

    def test_help_needs_no_torch(self):
        shown = self.run_with("--help")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))

    def test_wrong_arguments_are_named(self):
        for arguments, text in (
            (["--window", "7"], "--window: expected L,R, each at least -1, got 7"),
            (["--fa3", "x"], "--fa3 without fa3 in --peers"),
        ):
            refused = self.run_with(*arguments)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(text, refused.stderr)
