"""Masks: the pairs that are counted are those that a query sees."""

import argparse
import unittest

from comparison import masks


class Masks(unittest.TestCase):
    def test_pairs_are_those_of_a_count_by_hand(self):
        for rows in (0, 1, 2, 7, 20):
            for left in (-1, 0, 1, 5, 19, 40):
                for right in (-1, 0, 3, 20):
                    seen = sum(
                        (left < 0 or query - key <= left) and (right < 0 or key - query <= right)
                        for query in range(rows) for key in range(rows))
                    self.assertEqual(masks.pairs(rows, (left, right)), seen, (rows, left, right))

    def test_causal_counts_half_of_all(self):
        self.assertEqual(masks.counted(10, masks.CAUSAL), 50)
        self.assertEqual(masks.counted(10, masks.FULL), 100)
        self.assertEqual(masks.counted(10, (9, 0)), 55)

    def test_a_window_is_compared_with_causal_if_it_sees_no_later_key(self):
        self.assertEqual(masks.dense((1024, 0)), masks.CAUSAL)
        self.assertEqual(masks.dense((512, 512)), masks.FULL)

    def test_evened_sequences_have_as_many_flops_a_row(self):
        self.assertEqual(masks.evened([1000], masks.FULL), (1, 1152, masks.FULL))
        # Nine rows of ten see 900 keys, the others 100.
        self.assertEqual(masks.evened([100, 900], masks.FULL), (1, 768, masks.FULL))
        self.assertEqual(masks.evened([100, 900] * 4, masks.CAUSAL), (5, 768, masks.CAUSAL))
        # All but the first rows see 1025 keys.
        self.assertEqual(masks.evened([16384], (1024, 0)), (14, 1152, masks.FULL))
        self.assertEqual(masks.evened([1], masks.FULL), (1, 384, masks.FULL))

    def test_the_command_line_gives_two_sides(self):
        self.assertEqual(masks.parse("1024,0"), (1024, 0))
        self.assertEqual(masks.parse("-1,64"), (-1, 64))
        for text in ("1024", "1,2,3", "-2,0", "a,b", "", "1,", "--1,0"):
            with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                masks.parse(text)

    def test_names(self):
        names = [masks.name(mask) for mask in ((-1, -1), (-1, 0), (3, 0))]
        self.assertEqual(names, ["full", "causal", "window 3,0"])
