"""The task of a configuration: images in memory, or from files."""

from __future__ import annotations

import torch

from batchformer.tasks.config import LongTailConfig
from batchformer.tasks.image_files import ImageFileTask
from batchformer.tasks.long_tailed import LongTailedTask

LongTailTask = LongTailedTask | ImageFileTask


def load(config: LongTailConfig, device: torch.device) -> LongTailTask:
    """Read the data; an error says what is missing and where it was looked for."""
    kind = ImageFileTask if config.of_files else LongTailedTask
    return kind.load(config, device)
