"""The data a task is told to use."""

import pytest

from batchformer.tasks.config import LongTailConfig


def test_the_default_is_the_papers_main_set() -> None:
    config = LongTailConfig()
    assert (config.name, config.ratio, config.profile) == ("cifar100", 100.0, "exponential")
    with pytest.raises(ValueError, match="below 1"):
        LongTailConfig(ratio=0.2)


def test_what_the_digits_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match="embedded"):
        LongTailConfig(name="digits", root="folder")
    with pytest.raises(ValueError, match="exponential profile only"):
        LongTailConfig(name="digits", profile="step")
