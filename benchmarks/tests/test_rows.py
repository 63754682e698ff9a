"""Rows: ratios are of the same round, and only peers can be best."""

import unittest

from comparison import rows
from tests import Case


class Compared(unittest.TestCase):
    times = {"ours": [1.0, 2.0, 4.0], "ours-det": [2.0, 4.0, 8.0], "a": [1.0, 3.0, 8.0], "a-det": [1.0] * 3}
    host = {"ours": [0.1] * 3, "ours-det": [0.1] * 3, "a": [2.9] * 3, "a-det": [0.1] * 3}

    def row(self):
        return rows.compared(Case(), "backward", "burst", self.times, self.host)

    def test_a_ratio_is_the_median_of_ratios(self):
        self.assertEqual(self.row()["ratios"]["a"], 1.5)

    def test_deterministic_peers_are_compared_with_our_deterministic_mode(self):
        self.assertEqual(self.row()["ratios"]["a-det"], 0.25)
        self.assertEqual(self.row()["ratios"]["ours-det"], 2.0)

    def test_only_peers_in_the_default_mode_can_be_best(self):
        self.assertEqual((self.row()["best_peer"], self.row()["ratio"]), ("a", 1.5))

    def test_without_peers_there_is_no_best(self):
        row = rows.compared(Case(), "forward", "burst", {"ours": [1.0]}, {"ours": [0.1]})
        self.assertEqual((row["best_peer"], row["ratio"]), (None, None))

    def test_who_is_queued_as_slowly_as_it_runs_is_marked(self):
        self.assertEqual(self.row()["host_bound"], ["a"])

    def test_rates(self):
        self.assertEqual(self.row()["tflops"]["ours"], 2.5e9 / 2.0 / 1e9)


class Together(unittest.TestCase):
    def test_over_a_reference_counts_the_work_of_both(self):
        found = rows.over_reference(Case(flops=1e9), "forward", [1.0, 2.0], [4.0, 8.0], 8e9)
        self.assertEqual((found["ours_over"], found["tflops"]), (0.5, 8e9 / 6.0 / 1e9))

    def test_over_dense_is_a_ratio_of_rates(self):
        cases = [Case(flops=8e9), Case(flops=2e9)]
        times = [{"ours": [4.0]}, {"ours": [2.0]}]
        row = rows.over_dense(cases, "forward", "burst", times)
        self.assertEqual(row["rate_over_dense"], {"ours": 0.5})
        self.assertEqual((row["tflops"]["ours"], row["dense_tflops"]["ours"]), (1.0, 2.0))

    def test_slowdowns_are_per_flop(self):
        cases = [Case(4, flops=1e9), Case(5, flops=2e9)]
        row = rows.slowdowns(cases, "forward", "burst", [{"ours": [1.0]}, {"ours": [3.0]}])
        self.assertEqual(row["slowdown_per_flop"], {"ours": {5: 1.5}})
        self.assertEqual(row["rounds_ms"], {"ours S4": [1.0], "ours S5": [3.0]})

    def test_dtypes_are_paired_by_shape_pass_and_mode(self):
        def row(dtype, rows_, mode):
            times = {"ours": [1.0]}
            return rows.compared(Case(rows_, dtype=dtype), "forward", mode, times, times)

        half, brain = row("float16", 4, "burst"), row("bfloat16", 4, "burst")
        others = [row("float16", 4, "sustained"), row("bfloat16", 8, "burst")]
        self.assertEqual(rows.dtype_pairs([half, *others, brain]), [(half, brain)])
