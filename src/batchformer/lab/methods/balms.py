"""BALMS (Ren et al., 2020): Balanced Softmax on batches whose class sampling is learned.

This follows the released code with one difference. The released code draws a batch from all
training images; here the feed gives a batch, and the sampler draws from it with replacement.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optim import build_optimizer, parameters_of, set_lr
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses import widened
from batchformer.lab.losses.long_tailed import BalancedSoftmax, balanced_softmax
from batchformer.lab.methods.classifier import classifier_of
from batchformer.lab.methods.two_stage import OnFrozenFeatures
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import match
from batchformer.plug.attach import param_groups


class ClassSampler(nn.Module):
    """Resamples a batch by one learned weight for each class, in (0, 1).

    Args:
        power: initial weights are proportional to ``n_c^-power``, scaled so that the smallest and
            the largest add up to 1. On Places-LT, with power 0.3, the rarest class begins at 0.888.
    """

    def __init__(self, class_counts: Tensor, power: float) -> None:
        super().__init__()
        counts = class_counts.double()
        rarest = counts[counts > 0].min()
        start = counts.clamp(min=rarest).pow(-power)
        start = start / (start.min() + start.max())
        self.logits = nn.Parameter(start.logit().to(torch.get_default_dtype()))

    def forward(self, labels: Tensor) -> Tensor:
        """Labels (N,) to N draws among these samples, (N, N) with one 1 in each row.

        Draws are with replacement, in proportion to the classes' weights. A row has the
        gradient of the softmax from which it was drawn.
        """
        scores = F.logsigmoid(self.logits)[labels]
        return F.gumbel_softmax(scores.expand(len(labels), -1), hard=True)


class MetaSampled(OnFrozenFeatures):
    """A new classifier on frozen features, trained with a learned class sampler.

    Each update resamples its batch by the class weights, tries one step of the classifier on it,
    and changes the weights so that a class-balanced batch (``meta_x``, ``meta_y``) is classified
    better after that step. Then the classifier is trained on the resampled batch.

    The trial step is the one that SGD would take next, with its current rate, momentum and weight
    decay, unless ``hyper.inner_lr`` sets a plain gradient step. It uses only plain features, as the
    released code does. The class-balanced batch goes through BatchFormer, and
    ``hyper.meta_streams`` says which streams count.

    Args:
        network: from an earlier run; its classifier is initialised again.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, seed: int, **options: Any) -> None:
        super().__init__(network, BalancedSoftmax(class_counts), seed=seed, **options)
        self.sampler = ClassSampler(class_counts, self.hyper.sampler_power)
        with drawing(seed, "weights", 1):
            classifier_of(network).reset_parameters()

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Classifier and BatchFormer; the class weights have their own optimizer."""
        trained = [self.network] if self.encoder is None else [self.network, self.encoder]
        return param_groups(nn.ModuleList(trained), optim.lr, self.module_lr_factor)

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        own = OptimConfig(name="adam", lr=self.hyper.sampler_lr, weight_decay=0.0)
        groups = [{"params": list(self.sampler.parameters())}]
        return {**super().optimizers(optim), "sampler": build_optimizer(groups, own)}

    def why_eager(self) -> str | None:
        return "its trial step differentiates through an update"

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        with optimizer_step.autocast():
            features = widened(self.features(batch["x"]))
            meta_features = widened(self.features(batch["meta_x"]))
        draws, main = self.sampler(batch["y"]), optimizers["main"]
        meta = self.meta_loss(draws, features, batch["y"], meta_features, batch["meta_y"], main)
        (gradient,) = torch.autograd.grad(meta, [self.sampler.logits])
        self.sampler.logits.grad = gradient
        # The schedule is for the classifier; as released, the sampler learns at a constant rate.
        set_lr(optimizers["sampler"], 1.0)
        optimizers["sampler"].step()
        drawn = draws.detach().argmax(1)
        again = {"features": features[drawn], "y": batch["y"][drawn]}
        losses = optimizer_step.minimise(self.step, again, main, parameters_of(main))
        return {**losses, "meta": meta.detach()}

    def meta_loss(
        self,
        draws: Tensor,
        features: Tensor,
        labels: Tensor,
        meta_features: Tensor,
        meta: Tensor,
        optimizer: Optimizer,
    ) -> Tensor:
        """Cross-entropy of a balanced batch after a trial step on the drawn one; a scalar.

        Args:
            draws: (N, N), from the sampler.
            features: (N, C) of the batch, with labels (N,).
            meta_features: (M, C) of the balanced batch, with labels `meta` (M,).
            optimizer: the classifier's SGD; its next step is tried.
        """
        classifier, counts = classifier_of(self.network), self.criterion.class_counts
        before = {name: p.detach().requires_grad_() for name, p in classifier.named_parameters()}
        logits = functional_call(classifier, before, (features,))
        losses = balanced_softmax(logits, labels, counts, reduction="none")  # type: ignore[arg-type]
        # As released: only the drawn sample of each row passes a gradient.
        trial = ((draws.detach() * draws) @ losses).mean()
        gradients = torch.autograd.grad(trial, list(before.values()), create_graph=True)
        after = {}
        for (name, weight), gradient in zip(classifier.named_parameters(), gradients, strict=True):
            if rate := self.hyper.inner_lr:
                after[name] = before[name] - rate * gradient
            else:
                after[name] = after_sgd_step(weight, gradient, optimizer)
        rows, targets = self._meta_rows(meta_features, meta)
        return F.cross_entropy(functional_call(classifier, after, (rows,)), targets)

    @torch.no_grad()
    def _meta_rows(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the balanced batch that score a trial step, and their labels."""
        rows = self.streams(features)
        if self.hyper.meta_streams == "both" or len(rows) == len(features):
            return rows, match(rows, labels)
        plain, mixed = rows.chunk(2)
        return (plain if self.hyper.meta_streams == "plain" else mixed), labels

    def step(self, batch: Batch) -> dict[str, Tensor]:
        features = batch["features"] if "features" in batch else self.features(batch["x"])
        return {"loss": self.loss(self.classify(self.streams(features)), batch["y"])}


def after_sgd_step(weight: nn.Parameter, gradient: Tensor, optimizer: Optimizer) -> Tensor:
    """The weight after the next step of SGD, differentiable in its gradient.

    Neither the weight nor the optimizer changes.

    Args:
        optimizer: ``torch.optim.SGD``, with any rate, momentum, Nesterov or not, and weight decay.
    """
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    step: Tensor = gradient + group["weight_decay"] * weight.detach()
    if momentum := group["momentum"]:
        earlier = optimizer.state.get(weight, {}).get("momentum_buffer")
        velocity = step if earlier is None else momentum * earlier.detach() + step
        step = step + momentum * velocity if group["nesterov"] else velocity
    after: Tensor = weight.detach() - group["lr"] * step
    return after
