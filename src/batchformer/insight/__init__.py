"""Who helps whom in a batch: measured on a trained network once, drawn later without it.

For a model of your own, with BatchFormer attached, in three lines::

    from batchformer.insight import look_at
    seen = look_at(model, loader)
    seen.save("insight.npz")

Where BatchFormer stands inside the network, ``look_at_positions(model, images)`` says which patches
of which images attend to one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchformer.insight.positions import look_at_positions as look_at_positions
    from batchformer.insight.user_model import look_at as look_at

__all__ = ["look_at", "look_at_positions"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: methods need one small file of this room, and not all of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "look_at":
        from batchformer.insight.user_model import look_at

        return look_at
    from batchformer.insight.positions import look_at_positions

    return look_at_positions
