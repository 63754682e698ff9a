"""Tests of how twins.py plants bugs; they need neither nvcc nor a GPU."""

import unittest

import twins

PTX = """.visible .entry first(
	.param .u64 first_param_0
)
{
	bar.sync 	0;
}

.visible .entry second(
	.param .u64 second_param_0
)
{
	.reg .pred %p<2>;
	setp.ge.s32 	%p1, %r1, %r2;
	@%p1 bra 	$L__BB0_2;
	bar.warp.sync 	-1;
	membar.gl;
	cp.async.wait_group 0;
	atom.global.add.u32 	%r3, [%rd1+4], 1;
	red.relaxed.gpu.global.add.f32 [%rd2], %f1;
	@%p1 red.global.add.u32 [%rd2], 1;
	fma.rn.f32 	%f1, %f2, %f3, %f4;
$L__BB0_2:
	ret;
}
"""


class Planting(unittest.TestCase):
    def test_every_kind_changes_one_place_of_the_kernel(self):
        found = [(kind, *place) for kind, places in twins.mutants(PTX, "second", 9) for place in places]
        self.assertEqual(
            [kind for kind, *_ in found], ["barrier", "wait", "fence", "guard", "atomic", "atomic"]
        )
        first = PTX[: PTX.index(".visible .entry second")]
        for kind, text, trap in found:
            self.assertTrue(text.startswith(first), kind)
            self.assertEqual(trap.replace("trap; ", ""), PTX)
            changed = [pair for pair in zip(PTX.splitlines(), text.splitlines()) if pair[0] != pair[1]]
            self.assertEqual(len(changed), 1, kind)
        texts = {kind: text for kind, text, _ in reversed(found)}
        self.assertIn("setp.gt.s32", texts["guard"])
        self.assertNotIn("bar.warp.sync", texts["barrier"])
        self.assertIn("ld.global.u32 was, [%rd1+4]; add.u32 now, was, 1; mov.b32 %r3, was;", texts["atomic"])

    def test_places_that_are_well_apart_come_first(self):
        text = PTX.replace("\tmembar.gl;", "\n".join(["\tmembar.gl;"] * 4))
        first = text.splitlines().index("\tmembar.gl;")
        places = dict(twins.mutants(text, "second", 2))["fence"]
        changed = [
            next(
                number
                for number, pair in enumerate(zip(text.splitlines(), mutant.splitlines()))
                if pair[0] != pair[1]
            )
            for mutant, _ in places
        ]
        self.assertEqual([line - first for line in changed], [0, 2, 1, 3])

    def test_results_are_kept_and_compared(self):
        options = ["--arg", f"buf:i32:2:{twins.OUT}", "--arg", "u32:1"]
        named = twins.with_results(options, twins.Path("room"), "out")
        self.assertEqual(named, ["--arg", f"buf:i32:2:{twins.OUT},out=room/1", "--arg", "u32:1"])


if __name__ == "__main__":
    unittest.main()
