"""Methods on small networks, for tests that compute their losses by hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import drawing


def digits_method(
    name: str, counts: Tensor, hyper: MethodConfig | None = None, **module: Any
) -> Any:
    """A method for grey images of 8 x 8 pixels, with training images of each class (K,)."""
    with drawing(0, "weights"):
        network = build_model("digits_net", len(counts))
    options: dict[str, Any] = {"module": ModuleConfig(**module), "hyper": hyper, "seed": 0}
    return build_method(name, network=network, class_counts=counts, **options)
