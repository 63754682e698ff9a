"""compare.py: every file parses, and the command line says what it does not take."""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from comparison import arguments

BENCHMARKS = Path(__file__).resolve().parent.parent


class CommandLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "torch.py").write_text("raise ImportError('no torch')\n")
        self.library = self.folder / "a.so"
        self.library.write_text("no library")

    def run_with(self, *given):
        """Where torch cannot be imported."""
        command = [sys.executable, "-B", str(BENCHMARKS / "compare.py"), *map(str, given)]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def test_every_file_parses(self):
        files = sorted(BENCHMARKS.rglob("*.py"))
        self.assertGreater(len(files), 10)
        for file in files:
            ast.parse(file.read_text(), str(file))

    def test_help_needs_no_torch(self):
        shown = self.run_with("--help")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))

    def test_wrong_arguments_are_named(self):
        wheel = self.folder / "a.whl"
        zipfile.ZipFile(wheel, "w").close()
        form = "expected B,S,H,D or B,S,H,D,Hk, got"
        for given, text in (
            (["--window", "7"], "--window: expected L,R, each at least -1, got 7"),
            (["--shapes", "4,4096,16,128", "1,2"], f"--shapes: {form} 1,2"),
            (["--shapes", "1,x"], f"--shapes: {form} 1,x"),
            (["--window-shapes", "1"], f"--window-shapes: {form} 1"),
            (["--rounds", "0"], "--rounds: expected a number from 1 on, got 0"),
            (["--json", "none/a.json"], "--json: expected a file in a folder that is there, got none/a.json"),
            (["--library", "none.so"], "--library: no file none.so"),
            (["--peers", "fa3", "--fa3", "none.whl"], "--fa3: expected a wheel or a folder with"),
            (["--fa3", wheel], "--fa3 without fa3 in --peers"),
            (["--peers", "grid"], "fa4, flex with --what attention, got grid"),
            (["--what", "msda", "--peers", "grid", "flash"], "deformops-cuda with --what msda, got flash"),
            (["--rows", "x"], "--rows: invalid choice: 'x'"),
        ):
            refused = self.run_with("--library", self.library, *given)
            self.assertEqual(refused.returncode, 2, given)
            self.assertIn(text, refused.stderr)
            self.assertNotIn("Traceback", refused.stderr)

    def assert_one_line(self, refused, text):
        self.assertEqual(refused.returncode, 2)
        self.assertRegex(refused.stderr, rf"\Acompare.py: error: {text}.*\n\Z")

    def test_without_torch_there_is_one_line(self):
        refused = self.run_with("--library", self.library)
        self.assert_one_line(refused, r"cannot import torch \(ImportError: no torch\)")

    def test_an_earlier_run_that_cannot_be_read_is_one_line(self):
        (self.folder / "a.json").write_text("{")
        for name in ("none.json", "a.json", "."):
            self.assert_one_line(self.run_with("--from", self.folder / name), "--from ")


class Types(unittest.TestCase):
    def test_key_heads_are_heads_if_they_are_left_out(self):
        self.assertEqual(arguments.shape("4,4096,16,128"), (4, 4096, 16, 128, 16))
        self.assertEqual(arguments.shape("2,8192,32,128,8"), (2, 8192, 32, 128, 8))

    def test_what_is_no_shape_or_count_is_refused(self):
        shapes = ("", "1,2", "1,x", "1,2,3,4,5,6", "1,2,3,-4", "0,2,3,4", "1,2,3,4,0", "1,2,3,257", "1,2,3,64,2")
        for kind, texts in ((arguments.shape, shapes), (arguments.count, ("0", "-1", "x", "1.5", ""))):
            for text in texts:
                with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                    kind(text)
