"""The plot: well formed, every rate in it, and an axis of round numbers."""

import unittest
from xml.etree import ElementTree

from comparison import plot


def row(rates, mask="full", rows=512, packed=0):
    shape = {"mask": mask, "batch": 2, "rows": rows, "heads": 8, "key_heads": 2, "dim": 64, "packed": packed}
    return {"shape": shape, "dtype": "bfloat16", "pass": "forward", "mode": "burst", "tflops": rates}


class Plot(unittest.TestCase):
    def test_ticks_are_round_and_reach_the_highest(self):
        self.assertEqual(plot.ticks(750), [0, 200, 400, 600, 800])
        self.assertEqual(plot.ticks(500), [0, 100, 200, 300, 400, 500])
        for highest in (0.003, 1, 7.5, 99, 101, 1e4):
            marks = plot.ticks(highest)
            self.assertGreaterEqual(marks[-1] * (1 + 1e-9), highest)
            self.assertLess(marks[-2], highest)
            self.assertLessEqual(len(marks), 7)

    def test_every_rate_has_a_bar_of_its_height_in_its_panel(self):
        rows = [row({"ours": 600.0, "a&b": 300.0}), row({"ours": 123.0}, "window 8,0"),
                row({"ours": 45.0}, packed=12)]
        svg = ElementTree.fromstring(plot.svg(rows, "a < b"))
        texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
        for words in ("600", "300", "123", "45", "S512", "B2 H8:2", "8,0", "12 packed", "a&b",
                      "TFLOP/s, a < b", "forward, burst: bfloat16 window D64"):
            self.assertIn(words, texts)
        bars = [element for element in svg.iter("{http://www.w3.org/2000/svg}rect") if element.get("x")]
        heights = [float(bar.get("height")) for bar in bars if bar.get("width") == str(plot.BAR - 2)]
        self.assertEqual(heights, [600 / 800 * plot.HEIGHT, 300 / 800 * plot.HEIGHT, 30.8, 11.2])

    def test_nothing_lies_outside_of_the_picture(self):
        rows = [row({name: 500.0 for name in "abcdef"}, rows=s) for s in (512, 1024, 2048, 4096)]
        svg = plot.svg(rows + [row({"a": 1.0}, f"window {w},0") for w in range(9)], "t")
        width, height = (float(number) for number in ElementTree.fromstring(svg).get("viewBox").split()[2:])
        for bar in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"):
            if bar.get("x"):
                self.assertLess(float(bar.get("x")) + float(bar.get("width")), width)
                self.assertLess(float(bar.get("y")) + float(bar.get("height")), height)
