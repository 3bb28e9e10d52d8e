"""Settings of several domains that make no sense are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.data import DomainConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 0}, "data.size is 0"),
        ({"held_out": 1.0}, "data.held-out is 1.0"),
        ({"domains_in_batch": 2}, "for data.sampler domains"),
        ({"epoch": 500}, "for data.sampler domains"),
        ({"sampler": "domains", "epoch": -1}, "data.epoch is -1"),
        ({"adapt": True}, "name it by data.target"),
        ({"source": "photo"}, r"data\.source photo is trained on alone.*--data\.target"),
        ({"augment": "shift"}, "for the digits"),
        ({"name": "rotated_digits"}, "data.augment shift"),
        ({"name": "rotated_digits", "augment": "shift", "root": "x"}, "embedded"),
    ],
)
def test_what_makes_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DomainConfig(**settings)


def test_files_or_memory() -> None:
    assert DomainConfig().of_files
    assert not DomainConfig(name="rotated_digits", augment="shift").of_files
