from __future__ import annotations

import pytest

from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.methods.ldam import reweighting_warning


@pytest.mark.parametrize(
    ("method", "epochs", "said"),
    [
        ("ldam", 3, "epoch 5, and this training has 3"),
        ("ride", 5, "has 5"),  # epochs count from 0: the last is 4
        ("ldam", 5.1, ""),
        ("ride", 200, ""),
        ("cross_entropy", 3, ""),
    ],
)
def test_a_training_that_ends_before_it_is_told(method: str, epochs: float, said: str) -> None:
    words = reweighting_warning(method, MethodConfig(reweight_epoch=5), epochs)
    assert (said in words) if said else words == ""
