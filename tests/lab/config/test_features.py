"""Settings of generalized zero-shot learning that make no sense are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.data import FeatureConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"batches": 0}, "data.batches is 0"), ({"unseen": "val"}, "by itself")],
)
def test_features_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FeatureConfig(**settings)


def test_what_does() -> None:
    assert FeatureConfig(unseen="val", choose=False).of_files
