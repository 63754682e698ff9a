"""Peers: what each is asked for, with which arguments, and that a missing one stops the run."""

import argparse
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

from comparison import CannotRun, peers_flash
from comparison.peers import PEERS, refusal
from tests import Case


class Refusals(unittest.TestCase):
    def taken(self, case, direction="forward", is_deterministic=False):
        return [name for name in PEERS if refusal(name, case, direction, is_deterministic) is None]

    def test_all_take_dense_cases_forward(self):
        self.assertEqual(self.taken(Case()), list(PEERS))

    def test_others_are_asked_only_for_what_they_have(self):
        self.assertEqual(self.taken(Case(dtype="float32")), ["efficient"])
        self.assertEqual(self.taken(Case(offsets=[0, 64])), ["flash", "fa3", "fa4"])
        self.assertEqual(self.taken(Case(mask=(8, 0))), ["fa3", "fa4", "flex"])
        self.assertNotIn("fa3", self.taken(Case(), "backward"))
        self.assertNotIn("flex", self.taken(Case(), "backward", True))


class Arguments(unittest.TestCase):
    def test_windows_are_told_as_each_package_wants_them(self):
        fa3 = peers_flash.fa3_options(Case(mask=(8, -1)))
        self.assertEqual((fa3["window_size_left"], fa3["window_size_right"]), (8, -1))
        self.assertEqual(peers_flash.fa4_options(Case(mask=(8, -1)), False)["window_size"], (8, None))

    def test_causal_is_no_window(self):
        for options in (peers_flash.fa3_options(Case(mask=(-1, 0))),
                        peers_flash.fa4_options(Case(mask=(-1, 0)), True)):
            self.assertFalse([name for name in options if "window" in name])
            self.assertTrue(options.get("causal", options.get("is_causal")))

    def test_packed_sequences_bring_their_offsets(self):
        options = peers_flash.fa3_options(Case(offsets=[0, 64]))
        self.assertEqual((options["cu_seqlens_q"], options["max_seqlen_k"]), ([0, 64], 64))


class Loading(unittest.TestCase):
    module = "fa3_stand_in"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        modules = mock.patch.dict(peers_flash.MODULES, fa3=self.module)
        for patch in (modules, mock.patch.object(sys, "path", sys.path[:])):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(sys.modules.pop, self.module, None)

    def wheel(self, text="value = 1\n"):
        path = self.folder / "fa3.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{self.module}.py", text)
        return path

    def test_a_wheel_is_unpacked(self):
        self.assertEqual(peers_flash.load("fa3", self.wheel()), "unknown")
        self.assertNotEqual(Path(sys.modules[self.module].__file__).parent, self.folder)

    def test_a_folder_with_one_wheel_is_as_good(self):
        wheel = self.wheel()
        self.assertEqual(peers_flash.package(str(self.folder)), wheel)
        peers_flash.load("fa3", wheel)
        self.assertEqual(sys.modules[self.module].value, 1)

    def test_an_unpacked_wheel_is_used_where_it_is(self):
        (self.folder / f"{self.module}.py").write_text("value = 2\n")
        self.assertEqual(peers_flash.package(str(self.folder)), self.folder)
        peers_flash.load("fa3", self.folder)
        self.assertEqual(sys.modules[self.module].value, 2)

    def test_what_is_no_wheel_is_refused(self):
        (self.folder / "no.whl").write_text("no archive")
        for path in (self.folder, self.folder / "none", self.folder / "no.whl"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "expected a wheel or a folder"):
                peers_flash.package(str(path))

    def test_what_cannot_be_imported_stops_the_run_with_one_line(self):
        expected = r"--peers fa3: cannot import .*ModuleNotFoundError.*give --fa3"
        with self.assertRaisesRegex(CannotRun, expected):
            peers_flash.load("fa3")
        with self.assertRaises(CannotRun) as stopped:
            peers_flash.load("fa3", self.wheel("raise OSError('libcuda\\nmissing')\n"))
        self.assertNotIn("\n", str(stopped.exception))
