"""Score features: what is timed, both passes together, and bars."""

import unittest

from comparison import feature_rows
from comparison.feature_rows import BOTH, FEATURES, PLAIN
from comparison.peers import OF_TORCH
from tests import Case


def row(direction="forward", **medians):
    times = {name.replace("_", "-"): [ms, 0.9 * ms, 1.1 * ms] for name, ms in medians.items()}
    return feature_rows.compared(Case(), direction, "burst", times, None)


class Features(unittest.TestCase):
    def test_every_peer_is_one_of_torch_and_every_bar_is_of_a_pass_that_is_timed(self):
        for name, feature in FEATURES.items():
            self.assertLessEqual(set(feature.peers), set(OF_TORCH), name)
            for direction, whom, _ in feature.bars:
                self.assertIn(direction, (*feature.passes, BOTH), name)
                self.assertTrue(direction != BOTH or len(feature.passes) == 2, name)
                self.assertTrue(whom != PLAIN or feature.is_plain_timed, name)

    def test_shapes_have_as_many_columns_in_all_heads(self):
        for feature in FEATURES.values():
            for dim, (_, _, heads, of_head, key_heads) in feature.shapes.items():
                self.assertEqual((dim, heads * dim, key_heads), (of_head, 2048, heads))

    def test_both_passes_are_added_round_by_round(self):
        found = feature_rows.both({"ours": [1, 2], "flex": [3, 4], "cudnn": [1, 1]}, {"ours": [10, 20], "flex": [5, 5]})
        self.assertEqual(found, {"ours": [11, 22], "flex": [8, 9]})

    def test_without_the_feature_is_no_peer(self):
        found = row(ours=1.0, ours_plain=0.8, flex=1.5)
        self.assertEqual(found["best_peer"], "flex")
        self.assertAlmostEqual(found["ratios"][PLAIN], 0.8)

    def test_a_bar_is_over_whom_it_says(self):
        (whom, ratio, bar), = feature_rows.judged("sinks", row(ours=1.0, ours_plain=0.98, flex=0.5))
        self.assertEqual((whom, bar), (PLAIN, 0.97))
        self.assertAlmostEqual(ratio, 0.98)
        (_, ratio, _), = feature_rows.judged("bias", row(ours=1.0, flex=1.35, cudnn=1.25))
        self.assertAlmostEqual(ratio, 1.25)
        self.assertEqual(feature_rows.judged("bias-gradient", row(ours=1.0, flex=1.35)), [])

    def test_lines_say_what_is_met_and_missed(self):
        for peer, verdict in ((1.31, "met"), (1.29, "missed")):
            line, = feature_rows.lines("bias", row(ours=1.0, flex=peer))
            self.assertTrue(line.endswith(f": {verdict}"), line)
        line, = feature_rows.lines("bias", row(ours=1.0))
        self.assertTrue(line.endswith("nobody to compare with"), line)


if __name__ == "__main__":
    unittest.main()
