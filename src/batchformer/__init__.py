"""BatchFormer: a Transformer encoder over the batch axis, in any PyTorch model, in one line.

The twelve public names are loaded when first used, so that ``batchformer --help`` need not wait
for torch.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchformer.attach import attach as attach
    from batchformer.attach import detach as detach
    from batchformer.attach import export as export
    from batchformer.attach import param_groups as param_groups
    from batchformer.check import check as check
    from batchformer.encoder import batch_former as batch_former
    from batchformer.module import BatchFormer as BatchFormer
    from batchformer.module import two_streams as two_streams
    from batchformer.streams import duplicate as duplicate
    from batchformer.streams import match as match
    from batchformer.streams import split as split
    from batchformer.streams import stream_loss as stream_loss

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
    **dict.fromkeys(("attach", "detach", "export", "param_groups"), "attach"),
    **dict.fromkeys(("BatchFormer", "two_streams"), "module"),
    **dict.fromkeys(("duplicate", "match", "split", "stream_loss"), "streams"),
    "batch_former": "encoder",
    "check": "check",
}


class _Package(types.ModuleType):
    """``batchformer.attach`` and ``batchformer.check`` are functions, whoever imports the files."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'batchformer' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"batchformer.{_HOME[name]}"), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a submodule binds it to its name here, which would hide a function's.
        if not (name in _HOME and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_HOME})


sys.modules[__name__].__class__ = _Package
