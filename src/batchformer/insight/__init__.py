"""Who helps whom in a batch: measured on a trained network once, drawn later without it.

For a model of your own, with BatchFormer attached, in three lines::

    from batchformer.insight import look_at
    seen = look_at(model, loader)
    seen.save("insight.npz")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchformer.insight.user_model import look_at as look_at

__all__ = ["look_at"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: methods need one small file of this room, and not all of it.
    if name != "look_at":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from batchformer.insight.user_model import look_at

    return look_at
