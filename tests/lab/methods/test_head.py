"""Classifiers are found and replaced wherever they stand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer.lab.methods.classifier import classifier_of, replace_classifier
from batchformer.lab.models.build import build_model
from batchformer.lab.models.heads import CosineClassifier


@pytest.mark.parametrize(
    "name", ["resnet32", "digits_net", "convnext_atto", "vit_tiny_patch16_224"]
)
def test_a_replaced_classifier_is_the_one_in_use(name: str) -> None:
    network = build_model(name, 3)
    head = nn.Linear(network.num_features, 7)  # type: ignore[arg-type]
    replace_classifier(network, head)
    assert network.get_classifier() is head  # type: ignore[operator]
    rows = torch.randn(2, network.num_features)  # type: ignore[call-overload]
    assert torch.equal(network.get_classifier()(rows), head(rows))  # type: ignore[operator]


def test_another_kind_of_classifier_is_named() -> None:
    network = build_model("digits_net", 3)
    replace_classifier(network, CosineClassifier(64, 3))
    with pytest.raises(ValueError, match="has CosineClassifier"):
        classifier_of(network)
