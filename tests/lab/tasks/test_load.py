"""Which task a configuration has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.tasks.load import load
from batchformer.lab.tasks.long_tailed import LongTailedTask

CPU = torch.device("cpu")


def test_images_in_memory_and_from_files(tmp_path: Path) -> None:
    assert isinstance(load(LongTailConfig(name="digits", ratio=50), CPU), LongTailedTask)
    files = LongTailConfig(name="imagenet_lt", augment="jitter", root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="ImageNet-LT not found"):
        load(files, CPU)
    with pytest.raises(ValueError, match="read from image files"):
        LongTailedTask.load(files, CPU)
