"""Pictures of a data set in Python become what PIL itself makes of them, in 0 to 1, channels first. LOCKSTEP_GLUE names the folder of
lockstep_glue."""
import os
import pathlib
import sys
import unittest

import numpy
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from cpu_torch import torch

sys.path.append(os.environ["LOCKSTEP_GLUE"])
from lockstep_glue.datasets import as_input

RAMP = numpy.arange(20).reshape(4, 5)


class Pictures(unittest.TestCase):
    def same(self, picture, expected):
        found = as_input(picture)
        self.assertEqual(found.dtype, torch.float32)
        expected = numpy.asarray(expected, dtype="float32")
        numpy.testing.assert_allclose(found.numpy(), expected, atol=1e-7)

    def test_each_mode(self):
        grey = Image.fromarray((RAMP * 12).astype("uint8"))
        colours = Image.merge("RGB", [grey, grey.point(lambda x: 255 - x), grey.point(lambda x: x // 2)])
        self.same(grey, RAMP[None] * 12 / 255)
        self.same(colours, numpy.asarray(colours).transpose(2, 0, 1) / 255)
        self.same(colours.convert("P"), numpy.asarray(colours.convert("P").convert("RGB")).transpose(2, 0, 1) / 255)
        self.same(grey.convert("1"), numpy.asarray(grey.convert("1"))[None])
        self.same(Image.fromarray((RAMP * 3000).astype("uint16")), RAMP[None] * 3000 / 65535)
        self.same(Image.fromarray((RAMP * 3000).astype("int32")), RAMP[None] * 3000 / 65535)
        self.same(Image.fromarray((RAMP / 20).astype("float32")), RAMP[None] / 20)

    def test_more_than_16_bits_are_refused(self):
        with self.assertRaisesRegex(ValueError, "mode I holds 0 to 1900000, not 16 bits"):
            as_input(Image.fromarray((RAMP * 100000).astype("int32")))


if __name__ == "__main__":
    unittest.main()
