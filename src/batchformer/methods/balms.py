"""BALMS (Ren et al., 2020): Balanced Softmax on batches whose class sampling is learned."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from batchformer.attach import param_groups
from batchformer.engine.config import OptimConfig
from batchformer.engine.mechanics import Batch, Mechanics
from batchformer.engine.optim import build_optimizer
from batchformer.losses.balanced_softmax import BalancedSoftmax, balanced_softmax
from batchformer.methods.config import MethodConfig
from batchformer.methods.frozen import OnFrozenFeatures
from batchformer.methods.head import classifier_of
from batchformer.randomness import drawing
from batchformer.streams import match


class ClassSampler(nn.Module):
    """One learned weight for each class, in (0, 1), by which samples of a batch are drawn again.

    Args:
        class_counts: (K,) training images of each class.
        power: weights begin in proportion to ``n_c^-power``, the rarest class at one half.
    """

    def __init__(self, class_counts: Tensor, power: float) -> None:
        super().__init__()
        counts = class_counts.double()
        rarest = counts[counts > 0].min()
        start = 0.5 * (rarest / counts.clamp(min=rarest)).pow(power)
        self.logits = nn.Parameter(start.logit().to(torch.get_default_dtype()))

    def forward(self, labels: Tensor) -> Tensor:
        """Labels (N,) to N draws among these samples, (N, N): each row has a single one.

        Draws are with replacement, in proportion to the classes' weights. Gradients pass as if a
        row were the softmax it was drawn from.
        """
        scores = F.logsigmoid(self.logits)[labels]
        return F.gumbel_softmax(scores.expand(len(labels), -1), hard=True)


class MetaSampled(OnFrozenFeatures):
    """A new classifier on frozen features; how often classes are drawn is learned beside it.

    Each update draws its batch again by the class weights, tries one step of the classifier on it,
    and moves the weights to where a class-balanced batch (``meta_x``, ``meta_y``) is classified
    better after that step. Then the classifier is trained on the drawn batch. The trial step sees
    plain features alone; its judgement, and the training, go through BatchFormer.

    Args:
        network: of an earlier run; its classifier begins anew.
        class_counts: (K,) training images of each class.
        seed: of the classifier's initial weights.
        hyper: sampler_power, sampler_lr and inner_lr.
    """

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        seed: int,
        hyper: MethodConfig | None = None,
        **options: Any,
    ) -> None:
        hyper = hyper or MethodConfig()
        criterion = BalancedSoftmax(class_counts, allow_empty=True)
        super().__init__(network, criterion, seed=seed, hyper=hyper, **options)
        self.sampler = ClassSampler(class_counts, hyper.sampler_power)
        with drawing(seed, "weights", 1):
            classifier_of(network).reset_parameters()

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Classifier and BatchFormer; the class weights have an optimizer of their own."""
        trained = [self.network] if self.encoder is None else [self.network, self.encoder]
        return param_groups(nn.ModuleList(trained), optim.lr, self.module_lr_factor)

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        own = OptimConfig(name="adam", lr=self.hyper.sampler_lr, weight_decay=0.0)
        groups = [{"params": list(self.sampler.parameters())}]
        return {**super().optimizers(optim), "sampler": build_optimizer(groups, own)}

    def why_eager(self) -> str | None:
        return "its trial step differentiates through an update"

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: Mechanics
    ) -> dict[str, Tensor]:
        with mechanics.autocast():
            features = self.features(batch["x"]).float()
            meta_features = self.features(batch["meta_x"]).float()
        draws = self.sampler(batch["y"])
        meta = self.meta_loss(draws, features, batch["y"], meta_features, batch["meta_y"])
        (gradient,) = torch.autograd.grad(meta, [self.sampler.logits])
        self.sampler.logits.grad = gradient
        optimizers["sampler"].step()
        drawn = draws.detach().argmax(1)
        again = {"features": features[drawn], "y": batch["y"][drawn]}
        main = optimizers["main"]
        parameters = [p for group in main.param_groups for p in group["params"]]
        return {**mechanics.minimise(self.step, again, main, parameters), "meta": meta.detach()}

    def meta_loss(
        self, draws: Tensor, features: Tensor, labels: Tensor, meta_features: Tensor, meta: Tensor
    ) -> Tensor:
        """Cross-entropy of a balanced batch after a trial step on the drawn one; a scalar.

        Args:
            draws: (N, N), from the sampler.
            features: (N, C) of the batch, with labels (N,).
            meta_features: (M, C) of the balanced batch, with labels `meta` (M,).
        """
        classifier, counts = classifier_of(self.network), self.criterion.class_counts
        before = {name: p.detach().requires_grad_() for name, p in classifier.named_parameters()}
        logits = functional_call(classifier, before, (features,))
        losses = balanced_softmax(logits, labels, counts, reduction="none")  # type: ignore[arg-type]
        trial = (draws.sum(0) * losses).mean()
        gradients = torch.autograd.grad(trial, list(before.values()), create_graph=True)
        after = {
            name: old - self.hyper.inner_lr * gradient
            for (name, old), gradient in zip(before.items(), gradients, strict=True)
        }
        with torch.no_grad():
            rows = self.streams(meta_features)
        return F.cross_entropy(functional_call(classifier, after, (rows,)), match(rows, meta))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        features = batch["features"] if "features" in batch else self.features(batch["x"])
        return {"loss": self.loss(self.classify(self.streams(features)), batch["y"])}
