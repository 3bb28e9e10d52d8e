"""BatchFormer: a Transformer encoder over the batch axis, in any PyTorch model, in one line.

The twelve public names are imported on first use, so that ``batchformer --help`` does not wait for
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchformer.nn.encoder import batch_former as batch_former
    from batchformer.nn.module import BatchFormer as BatchFormer
    from batchformer.nn.module import two_streams as two_streams
    from batchformer.nn.streams import duplicate as duplicate
    from batchformer.nn.streams import match as match
    from batchformer.nn.streams import split as split
    from batchformer.nn.streams import stream_loss as stream_loss
    from batchformer.plug.attach import attach as attach
    from batchformer.plug.attach import param_groups as param_groups
    from batchformer.plug.check import check as check
    from batchformer.plug.export import detach as detach
    from batchformer.plug.export import export as export

__all__ = [
    "BatchFormer",
    "attach",
    "batch_former",
    "check",
    "detach",
    "duplicate",
    "export",
    "match",
    "param_groups",
    "split",
    "stream_loss",
    "two_streams",
]

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("attach", "param_groups"), "plug.attach"),
    **dict.fromkeys(("detach", "export"), "plug.export"),
    **dict.fromkeys(("BatchFormer", "two_streams"), "nn.module"),
    **dict.fromkeys(("duplicate", "match", "split", "stream_loss"), "nn.streams"),
    "batch_former": "nn.encoder",
    "check": "plug.check",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'batchformer' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"batchformer.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
