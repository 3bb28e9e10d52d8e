"""Models of Hugging Face with random weights, small enough to be trained in a moment."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}
#: For models that shall compute the same in every pass of training.
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tiny(kind: str, sizes: dict[str, Any] = TINY, **settings: Any) -> Any:
    """A model of this class; always the same weights."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    return model(model.config_class(**{**sizes, **settings}))
