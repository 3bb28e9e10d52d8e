"""LFME (Xiang et al., 2020): a student of all classes that learns from three trained experts.

The experts are runs of their own, on the classes with many, medium and few training images. They
are frozen here. BatchFormer takes part in the student alone, and both of its streams learn from the
same logits of the experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.settings import cut_classes
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.lfme import (
    class_floors,
    expert_weights,
    experts_loss,
    first_weights,
    group_accuracy,
    weights_now,
)
from batchformer.lab.methods.classifier import Classifier, loss_of_streams
from batchformer.lab.methods.training_images import Bank, measured, require_bank


class Lfme(Classifier):
    """Cross-entropy, and distillation from each expert that fades as the student catches up.

    Both losses use logits times a weight of the sample, which rises with the epochs: easy samples
    begin near 1. The student's accuracy is measured before every epoch, on the data's third list
    or else on the training images; never on those that are scored.

    Args:
        teacher: the experts; the one of the largest classes comes first.

    Attributes:
        first: (M,) weights of the training images at the beginning.
        known: (G,) accuracy of each expert on its classes.
        weights: (G,) how much each expert teaches in this epoch.
        progress: the epoch, counted from 1, divided by ``hyper.curriculum_epochs``.
        measured: the epoch, counted from 0, for which `weights` were measured.
    """

    first: Tensor
    known: Tensor
    weights: Tensor
    progress: Tensor
    measured: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        teacher: Sequence[nn.Module],
        bank: Bank | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        self.experts = nn.ModuleList(teacher).requires_grad_(False)
        self.bank, self.pacing = bank, False
        groups = cut_classes(class_counts.tolist(), self.hyper.expert_cuts)
        self.class_counts = class_counts.cpu()
        self._classes = [torch.tensor(group) for group in groups]
        for number, group in enumerate(self._classes):
            self.register_buffer(f"group{number}", group.clone(), persistent=False)
        self.register_buffer("first", torch.ones(int(class_counts.sum())))
        self.register_buffer("known", torch.ones(len(groups)))
        self.register_buffer("weights", torch.ones(len(groups)))
        self.register_buffer("progress", torch.zeros(()))
        self.register_buffer("measured", torch.zeros((), dtype=torch.int64))

    @property
    def own_classes(self) -> list[Tensor]:
        """(K_g,) the classes of each expert, on the device."""
        return [self.get_buffer(f"group{number}") for number in range(len(self.experts))]

    def train(self, mode: bool = True) -> Lfme:
        super().train(mode)
        self.experts.eval()
        return self

    @torch.no_grad()
    def taught(self, x: Tensor) -> tuple[Tensor, ...]:
        """Logits (N, K_g) of each expert."""
        return tuple(expert(x) for expert in self.experts)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        weights = weights_now(self.first[batch["index"]], self.progress)
        logits, targets = self(batch["x"]), (batch["y"], weights, self.taught(batch["x"]))
        loss = loss_of_streams(self._criterion, logits, targets, self.config)
        return {"loss": loss, "expert_weight": self.weights.mean()}

    def _criterion(
        self, logits: Tensor, targets: tuple[Tensor, Tensor, tuple[Tensor, ...]]
    ) -> Tensor:
        """Loss of the rows (N, K) of one stream."""
        labels, weights, taught = targets
        weighted = weights[:, None] * logits
        loss = F.cross_entropy(weighted, labels)
        temperature = self.hyper.expert_temperature
        return loss + experts_loss(weighted, taught, self.own_classes, self.weights, temperature)

    # Accuracies of experts and student, measured outside of updates.

    def begin_training(self, updates: int) -> None:
        """Measure the experts; a resumed run then loads the first measurement."""
        super().begin_training(updates)
        bank = require_bank(self, self.bank, "lfme")
        judging = bank.validation or bank
        found = measured(self, bank, self._log_shares, self._by_own_expert)
        confidence, right = found.unbind(1)
        if judging is not bank:
            right = measured(self, judging, self._log_shares, self._by_own_expert)[:, 1]
        floors = class_floors(self.class_counts, self._classes)
        self.first.copy_(first_weights(confidence.cpu(), bank.labels.cpu(), floors))
        self.known.copy_(group_accuracy(right.cpu(), judging.labels.cpu(), self._classes))
        self.weights.copy_(expert_weights(torch.zeros_like(self.known), self.known))
        self.pacing = True

    def begin_epoch(self, epoch: int) -> None:
        """Set the weights of samples and experts; a resumed epoch keeps its experts' weights."""
        super().begin_epoch(epoch)
        progress = (epoch + 1) / self.hyper.curriculum_epochs
        self.progress.fill_(min(progress, 1.0) if self.hyper.curriculum_clipped else progress)
        if self.pacing and epoch != int(self.measured):
            threshold = self.hyper.expert_threshold
            self.weights.copy_(expert_weights(self._student_accuracy(), self.known, threshold))
            self.measured.fill_(epoch)

    def _student_accuracy(self) -> Tensor:
        bank = require_bank(self, self.bank, "lfme")
        judging = bank.validation or bank
        right = measured(self, judging, self.predict, _is_highest)
        known = group_accuracy(right.cpu(), judging.labels.cpu(), self._classes)
        return known.to(self.known.device)

    def _log_shares(self, x: Tensor) -> Tensor:
        """(N, K) log-probability of each class by its own expert; -inf for a class without one."""
        taught = self.taught(x)
        found = taught[0].new_full((len(x), len(self.class_counts)), -torch.inf)
        for group, logits in zip(self.own_classes, taught, strict=True):
            found[:, group] = logits.log_softmax(1)
        return found

    def _by_own_expert(self, log_shares: Tensor, labels: Tensor) -> Tensor:
        """(N, 2): the true class's probability by its own expert, and if that expert is right."""
        owner = torch.full((log_shares.shape[1],), -1, device=labels.device)
        for number, group in enumerate(self.own_classes):
            owner[group] = number
        others = owner[None] != owner[labels][:, None]
        right = _is_highest(log_shares.masked_fill(others, -torch.inf), labels)
        own = log_shares.gather(1, labels[:, None])[:, 0].exp()
        return torch.stack((own, right), 1)


def _is_highest(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) 1 where the label has the highest of the logits (N, K), else 0."""
    return (logits.argmax(1) == labels).float()
