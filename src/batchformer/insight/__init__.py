"""Measure once who helps whom in a trained network's batches; draw it later without the network.

For a model of your own, with BatchFormer attached, in three lines::

    from batchformer.insight import look_at
    seen = look_at(model, loader)
    seen.save("insight.npz")

Where BatchFormer stands inside the network, ``look_at_positions(model, images)`` says which patches
of which images attend to one another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchformer.insight.positions import look_at_positions as look_at_positions
    from batchformer.insight.user_model import look_at as look_at

_HOME = {"look_at": "user_model", "look_at_positions": "positions"}
__all__ = ["look_at", "look_at_positions"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the laboratory's methods need only one small file of this package.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"batchformer.insight.{_HOME[name]}"), name)
