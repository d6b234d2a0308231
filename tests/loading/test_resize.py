"""One number for `resize` is the shorter side, and the other is what torchvision makes of it."""

from __future__ import annotations

import random

from PIL import Image
from torchvision.transforms.functional import resize

from gradscope.loading.sources.pictures import _target_size


def test_the_longer_side_is_cut_as_torchvision_cuts_it():
    draw = random.Random(0)
    for _ in range(200):
        size = (draw.randint(20, 200), draw.randint(20, 200))
        image, shorter = Image.new("L", size), draw.randint(8, 90)
        assert _target_size(image, [shorter]) == resize(image, [shorter]).size
