"""Multi-scale deformable attention: rows and the bar, and peers, each of which may be missing."""

import math
import sys
import types
import unittest
from unittest import mock

from comparison import msda_peers, msda_rows


def rounds(**medians):
    """Three rounds around each median."""
    return {name.replace("_", "-"): [ms, 0.9 * ms, 1.1 * ms] for name, ms in medians.items()}


def split(direction, **medians):
    times = rounds(**medians)
    return msda_rows.split("decoder", "f32", direction, times, rounds(**dict.fromkeys(medians, 0.0)), {})


class Rows(unittest.TestCase):
    def test_shapes_are_those_that_are_promised(self):
        self.assertEqual(msda_rows.CELLS, 5440)
        self.assertEqual(msda_rows.SHAPES["encoder"], (4, 5440, 8, 32))
        self.assertEqual(msda_rows.SHAPES["decoder"][1], 900)
        self.assertEqual({channels for *_, channels in msda_rows.SHAPES.values()}, {16, 32, 64})

    def test_the_fastest_peer_counts(self):
        row, = split("forward", ours=0.1, grid=1.0, deformops=0.15)
        self.assertEqual((row["best_peer"], row["meets_bar"]), ("deformops", True))
        self.assertAlmostEqual(row["ratio"], 1.5)
        self.assertAlmostEqual(row["ratios"]["grid"], 10.0)

    def test_the_bar_is_one_fifth_faster(self):
        for peer, meets in ((0.1201, True), (0.1199, False), (0.05, False)):
            row, = split("forward", ours=0.1, deformops=peer)
            self.assertEqual(row["meets_bar"], meets, peer)

    def test_a_ratio_is_of_the_same_round(self):
        times = {"ours": [1.0, 2.0, 4.0], "grid": [3.0, 4.0, 4.0]}
        row = msda_rows.row("encoder", "bf16", "forward", times, times, {})
        self.assertEqual((row["ratio"], row["ms"], row["peers_ms"]), (2.0, 2.0, {"grid": 4.0}))
        self.assertEqual(row["host_bound"], ["ours", "grid"])

    def test_a_backward_has_a_row_for_each_of_our_modes(self):
        fast, det = split("backward", ours=0.1, ours_det=0.4, deformops=0.2)
        self.assertEqual([fast["pass"], det["pass"]], ["backward", "deterministic"])
        self.assertAlmostEqual(fast["ratio"], 2.0)
        self.assertAlmostEqual(det["ratio"], 0.5)
        self.assertEqual((fast["ms"], det["ms"]), (0.1, 0.4))
        self.assertEqual((fast["meets_bar"], det["meets_bar"]), (True, False))

    def test_without_peers_nothing_is_judged(self):
        row, = split("forward", ours=0.1)
        self.assertEqual((row["best_peer"], row["ratio"], row["meets_bar"]), (None, None, None))
        self.assertEqual(msda_rows.judged([row]), [])
        self.assertIn("no peer", msda_rows.lines([row])[-1])

    def test_a_pass_is_judged_by_its_rows(self):
        rows = split("forward", ours=0.1, grid=0.2) + split("forward", ours=0.1, grid=0.11)
        rows += split("backward", ours=0.1, ours_det=0.3, grid=0.2)
        forward, backward, det = msda_rows.judged(rows)
        self.assertRegex(forward, r"^forward: 1 of 2 rows .*; lowest 1\.10 \(decoder f32 B4 N900 H8 C32, grid\)$")
        self.assertRegex(backward, r"^backward: 1 of 1 ")
        self.assertRegex(det, r"^deterministic: 0 of 1 .* lowest 0\.67")

    def test_a_table_has_every_peer_in_one_column(self):
        rows = split("forward", ours=0.1, grid=0.2) + split("forward", ours=0.1, deformops=0.11)
        heading, _, first, second = msda_rows.lines(rows)
        self.assertEqual(len({line.count("|") for line in (heading, first, second)}), 1)
        self.assertIn("| 0.1000 | 0.2000 (2.00) |  | 2.00 (grid) | yes |", first)
        self.assertIn("| 0.1000 |  | 0.1100 (1.10) | 1.10 (deformops) | NO |", second)

    def test_what_is_called_or_waits_for_the_host_is_marked(self):
        times = rounds(ours=0.1, grid=0.2)
        row = msda_rows.row("encoder", "f32", "forward", times, rounds(ours=0.01, grid=0.2), {}, ["grid"])
        self.assertIn("| 0.1000 | 0.2000+* (2.00) |", msda_rows.lines([row])[-1])

    def test_a_document_says_who_is_missing_and_who_was_refused(self):
        text = msda_rows.document(split("forward", ours=0.1, grid=0.2), {"deformops": "no such"}, ["x on y: z"])
        self.assertIn("\n- not there: deformops: no such\n- not timed: x on y: z\n", text)

    def test_a_peer_too_far_from_ours_is_refused(self):
        near = {"o": 1e-3, "dvalue": 0.0}
        self.assertIsNone(msda_rows.too_far("f32", near))
        self.assertIn("by dvalue 2.0e-03 (", msda_rows.too_far("f32", {**near, "dvalue": 2e-3}))
        self.assertIn("by o nan, dvalue inf (", msda_rows.too_far("bf16", {"o": math.nan, "dvalue": math.inf}))


class Peers(unittest.TestCase):
    def modules(self, **attributes):
        """Stand-ins for packages by the names of their modules, without the real ones."""
        stand_ins = {name.replace("__", "."): module for name, module in attributes.items()}
        real = [name for name in sys.modules if name.split(".")[0] in ("deformops", "msda_triton")]
        patch = mock.patch.dict(sys.modules, {**dict.fromkeys(real), **stand_ins})
        patch.start()
        self.addCleanup(patch.stop)

    def registry(self, load=lambda backend: None):
        calls = []

        def run(*inputs, **options):
            calls.append((inputs, options))
            return "o"

        run.load = load
        registry = types.SimpleNamespace(msda=run, Backend=types.SimpleNamespace(TRITON="triton", CUDA="cuda"))
        self.modules(deformops=types.ModuleType("deformops"), deformops__registry=registry)
        return calls

    def test_every_peer_but_grid_has_a_loader_and_a_package(self):
        self.assertEqual(set(msda_peers.PEERS[1:]), set(msda_peers.LOADERS))
        self.assertEqual(set(msda_peers.PEERS[1:]), set(msda_peers.PACKAGES))
        self.assertLessEqual(set(msda_peers.PACKAGES.values()), set(msda_peers.HINTS))

    def test_a_peer_that_is_not_installed_is_missing_with_the_reason(self):
        self.modules(deformops=None, msda_triton=None)
        for name in msda_peers.PEERS[1:]:
            with self.assertRaisesRegex(msda_peers.Missing, r"^ModuleNotFoundError: .*; install ") as missing:
                msda_peers.load(name)
            self.assertNotIn("\n", str(missing.exception))

    def test_a_peer_without_kernels_is_missing_with_the_reason(self):
        def load(_backend):
            raise RuntimeError("no library\nand more")

        self.registry(load)
        with self.assertRaisesRegex(msda_peers.Missing, r"^RuntimeError: no library$"):
            msda_peers.load("deformops-cuda")

    def test_kernels_of_deformops_are_asked_for_by_name(self):
        calls, inputs = self.registry(), ("value", "shapes", "starts", "locations", "weights")
        for name in ("deformops", "deformops-f32acc", "deformops-cuda"):
            self.assertEqual(msda_peers.load(name)(*inputs), "o")
        expected = [{}, {"backend": "triton", "fp32acc": True}, {"backend": "cuda"}]
        self.assertEqual(calls, [(inputs, options) for options in expected])

    def test_msda_triton_gets_padding_and_corners(self):
        frontend = types.SimpleNamespace(triton_multiscale_deformable_attention=lambda *given: given)
        self.modules(msda_triton=types.ModuleType("msda_triton"), msda_triton__frontend=frontend)
        given = msda_peers.load("msda-triton")("value", "shapes", "starts", "locations", "weights")
        self.assertEqual(given, ("value", "shapes", "locations", "weights", "zeros", False))

    def test_a_peer_is_asked_only_for_types_that_it_has(self):
        def asked(dtype):
            return [name for name in msda_peers.DEFAULT if msda_peers.refusal(name, dtype) is None]

        self.assertEqual(asked("bf16"), ["grid", "deformops", "deformops-f32acc"])
        self.assertEqual(asked("f32"), ["grid", "msda-triton", "deformops"])
        self.assertEqual(asked("f16"), list(msda_peers.DEFAULT))
