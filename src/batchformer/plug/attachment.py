"""What attaching BatchFormer did to a model, remembered on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from batchformer.plug.classifier import AttachError
from batchformer.plug.insertion import WithBatchFormer

RECORD = "_batchformer_attachment"


@dataclass(frozen=True)
class Attachment:
    """What ``attach`` did, remembered on the model.

    Attributes:
        places: names of the modules BatchFormer stands before, in the order of their calls.
        changed: names of all modules whose class is changed: those, and norms per stream.
        streams: ``"shared"`` or ``"mixed_only"``.
        input_axis: the axis of the samples in the model's inputs.
    """

    places: tuple[str, ...]
    changed: tuple[str, ...]
    streams: Literal["shared", "mixed_only"]
    input_axis: int = 0


def refuse_attached(model: nn.Module) -> None:
    """Say that BatchFormer is in the model already, where it is."""
    if RECORD in model.__dict__ or any(isinstance(m, WithBatchFormer) for m in model.modules()):
        raise AttachError(
            "attach(): BatchFormer is attached already. Call detach(model) first, or name all "
            "places in one call: attach(model, at=[...])."
        )
