"""What tests of generated features share: classes whose means are linear in their attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.feeds.memory import FeatureFeed
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import build_method
from batchformer.lab.metrics.generalized import generalized_accuracy
from batchformer.lab.metrics.shots import per_class_accuracy

CPU = torch.device("cpu")
ADAM = OptimConfig(name="adam", lr=1e-3, betas=(0.5, 0.999), weight_decay=0.0)
SEEN, UNSEEN = torch.tensor([0, 1, 3, 4, 5, 6, 8, 9]), torch.tensor([2, 7])


def linear_classes() -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, 12) and labels of ten classes, whose means are linear in attributes (10, 5)."""
    draw = torch.Generator().manual_seed(0)
    attributes = F.normalize(torch.randn(10, 5, generator=draw), dim=1)
    labels = torch.arange(10).repeat_interleave(30)
    means = 1 + 0.5 * attributes @ torch.randn(5, 12, generator=draw)
    features = (means[labels] + 0.1 * torch.randn(len(labels), 12, generator=draw)).clamp(min=0)
    return features, labels, attributes


FEATURES, LABELS, ATTRIBUTES = linear_classes()
TRAINED = torch.isin(LABELS, SEEN)
_FINAL = {"synthetic": 40, "classifier_epochs": 4}
_ADVERSARY = {**_FINAL, "noise": 4, "critic_steps": 2}
#: Settings of small methods.
SMALL: dict[str, dict[str, Any]] = {
    "ce_gzsl": {**_ADVERSARY, "gan_hidden": 128, "contrast": 0.1},
    "tf_vaegan": {**_ADVERSARY, "gan_hidden": 64},
    "izf": {**_FINAL, "flow_blocks": 3, "flow_hidden": 32, "attribute_scale": 2.0},
}
WIDTHS = {"ce_gzsl": {"embedding": 64, "direction": 8, "comparator": 16}}


def features_of(name: str) -> Tensor:
    """The features that a method is given; those of tf_vaegan are in [0, 1]."""
    return FEATURES / FEATURES.max() if name == "tf_vaegan" else FEATURES


def made(name: str, hyper: dict[str, Any] | None = None, seed: int = 0, **module: Any) -> Any:
    """The method of this name on these classes."""
    return build_method(
        name,
        features=features_of(name)[TRAINED],
        labels=LABELS[TRAINED],
        attributes=ATTRIBUTES,
        seen=SEEN,
        unseen=UNSEEN,
        module=ModuleConfig(heads=2, **module),
        seed=seed,
        hyper=MethodConfig(**{**SMALL.get(name, {}), **(hyper or {})}),
        **WIDTHS.get(name, {}),
    )


def feed(batch_size: int = 32, times: int = 2, features: Tensor = FEATURES) -> FeatureFeed:
    return FeatureFeed(features[TRAINED], LABELS[TRAINED], batch_size, 1, "cpu", times=times)


def optimizer_step(**train: Any) -> OptimizerStep:
    return OptimizerStep(TrainConfig(**train), CPU)


def one_part(features: Tensor = FEATURES) -> dict[str, Tensor]:
    """The batch of one step of a critic."""
    draw = torch.Generator().manual_seed(3)
    batch = feed(16, 1, features).batch(0)
    drawn, share = torch.randn(16, 4, generator=draw), torch.rand(16, 1, generator=draw)
    return {"x": batch["x"], "y": batch["y"], "noise": drawn, "share": share}


def snapshot(method: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in method.named_parameters()}


def changed(method: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Parts of the method with a parameter that is not what it was."""
    after = dict(method.named_parameters())
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


def generalized(method: Any, features: Tensor = FEATURES) -> dict[str, float]:
    """Accuracies of seen and unseen classes; one of ten classes is right by chance."""
    method.eval()
    with torch.no_grad():
        answers = method.predict(features).argmax(1)
    method.train()
    confusion = torch.bincount(10 * LABELS + answers, minlength=100).view(10, 10)
    return generalized_accuracy(per_class_accuracy(confusion), UNSEEN)
