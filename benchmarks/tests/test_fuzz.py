"""Files that are mutated, and how ends of a command are judged."""

import random
import sys
import unittest

import fuzz

TEXT = b""".visible .entry k(.param .u64 o, .param .align 4 .b8 s[12], .param .f32 scale, .param .s32 n)
.reqntid 64
{
 ret;
}
"""


class Fuzz(unittest.TestCase):
    def test_mutations_change_files_and_are_the_same_for_a_seed(self):
        made = [fuzz.mutated(TEXT, random.Random(seed)) for seed in range(200)]
        self.assertGreater(len(set(made)), 150)
        self.assertEqual(made, [fuzz.mutated(TEXT, random.Random(seed)) for seed in range(200)])

    def test_nothing_is_too_short_to_be_mutated(self):
        for data in (b"", b"1", b"a\n"):
            for seed in range(100):
                fuzz.mutated(data, random.Random(seed))

    def test_a_launch_has_an_argument_for_each_parameter(self):
        buffer = f"buf:u8:{fuzz.BYTES_OF_BUFFER}:random:1"
        arguments = ["--arg", buffer, "--arg", "bytes:" + 12 * "00", "--arg", "f32:1", "--arg", "i32:1"]
        launch = fuzz.launch_of(TEXT.decode())
        self.assertEqual(launch[:2], ["--entry", "k"])
        self.assertEqual(launch[2:10], arguments)
        self.assertEqual(launch[10:12], ["--block", "64"])

    def test_ends_are_judged(self):
        for code in (0, 1, 2):
            self.assertIsNone(fuzz.Ended(code, 1.0, 0.1, "refused").failure(20, 4))
        self.assertIn("exit code 101", fuzz.Ended(101, 1.0, 0.1, "").failure(20, 4))
        self.assertIn("exit code -9", fuzz.Ended(-9, 1.0, 0.1, "").failure(20, 4))
        self.assertIn("panicked", fuzz.Ended(1, 1.0, 0.1, "thread main panicked at").failure(20, 4))
        self.assertIn("GB", fuzz.Ended(0, 1.0, 5.0, "").failure(20, 4))

    def test_what_does_not_end_is_ended(self):
        ended = fuzz.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
        self.assertIn("took", ended.failure(0.2, 4))


if __name__ == "__main__":
    unittest.main()
