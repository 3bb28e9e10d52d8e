"""What torchvision is asked to do is what ours does."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench.transforms import Pair, one_by_one, pairs, random_images, whole_batch
from batchformer.lab.data import transforms

ALL = pairs()
CPU = torch.device("cpu")


def test_every_transform_and_preset_is_there() -> None:
    aids = {"Compose", "Transform", "IMAGENET", "CentreCrop", "CONTRAST_SCALE"}
    aids |= {"byol_colours", "moco_v2_colours"}  # parts of presets
    assert {pair.name for pair in ALL} == set(transforms.__all__) - aids


@pytest.mark.parametrize("pair", ALL, ids=lambda pair: pair.name)
def test_both_sides_make_the_same_kind_of_images(pair: Pair) -> None:
    torch.manual_seed(0)
    x = random_images(96, pair.shape, CPU)
    ours, theirs = whole_batch(pair.ours, x), one_by_one(pair.theirs, x)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    unit = 1.0 if ours.is_floating_point() else 64.0
    # An erased square is never clipped at a border, a hole of Cutout is: a fifth of it is missing.
    assert abs(float(ours.float().mean() - theirs.float().mean())) < 0.2 * unit
    assert abs(float(ours.float().std() - theirs.float().std())) < 0.2 * unit


@pytest.mark.parametrize("pair", [p for p in ALL if not p.ours.draws], ids=lambda pair: pair.name)
def test_where_nothing_is_random_they_agree(pair: Pair) -> None:
    x = random_images(8, pair.shape, CPU)
    ours, theirs = whole_batch(pair.ours, x), pair.theirs(x)
    level = 1.0 / 255 / 0.2 if ours.is_floating_point() else 1.0
    assert float((ours.float() - theirs.float()).abs().max()) <= 1.01 * level
    assert torch.equal(theirs, one_by_one(pair.theirs, x))
