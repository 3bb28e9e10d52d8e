"""ESZSL (Romera-Paredes and Torr, 2015): a closed form to measure zero-shot methods against."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.methods import MethodConfig, ModuleConfig, require_training
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.data.sets.attributes import AttributeFeatures
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.metrics.generalized import class_accuracy, generalized_accuracy

Targets = Literal["signed", "indicator"]
#: What is wanted of a sample with the classes that are not its own.
_OTHERS: dict[Targets, float] = {"signed": -1.0, "indicator": 0.0}
#: Exponents of 10 that both regularisers are chosen from.
GRID = tuple(range(-3, 4))


def eszsl(
    features: Tensor,
    labels: Tensor,
    attributes: Tensor,
    gamma: float,
    lambda_: float,
    targets: Targets = "indicator",
) -> Tensor:
    """The matrix V (D, A) by which a feature x and attributes a are compatible: ``x V a``.

    It minimises ``|X V S' - Y|^2 + gamma |V S'|^2 + lambda |X V|^2 + gamma lambda |V|^2`` with
    features X (N, D), attributes S (K, A) and Y (N, K), 1 for a sample's class:
    ``V = (X'X + gamma)^-1 X'Y S (S'S + lambda)^-1``. It is taken in float64.

    Args:
        features: (N, D).
        labels: (N,) class numbers within the K classes that attributes are given of.
        attributes: (K, A) of the classes that are trained on, and of no others.
        gamma: regulariser of features.
        lambda_: regulariser of attributes.
        targets: Y for other classes: "indicator" 0, as later code often has it, or "signed" -1, as
            its authors have it. There is no constant term to take up a mean of -1, so that
            "signed" spends its fit on it and knows unseen classes far less well.
    """
    x, s = features.double(), attributes.double()
    return _right(_left(x.T @ x, _cross(x, labels, s, targets), gamma), s, lambda_)


def eszsl_scores(features: Tensor, matrix: Tensor, attributes: Tensor) -> Tensor:
    """Compatibilities (N, K) of features (N, D) with classes of attributes (K, A), in float64."""
    return features.double() @ matrix @ attributes.double().T


def choose_exponents(
    data: AttributeFeatures, targets: Targets = "indicator", grid: tuple[int, ...] = GRID
) -> tuple[int, int]:
    """Exponents of 10 of gamma and lambda by the harmonic mean on the classes of validation.

    Test rows play no part, see ``for_selection`` of the data. Of equal ones the first counts.
    """
    inner = data.for_selection()
    x, s, y = _training(inner)
    moment, cross = x.T @ x, _cross(x, y, s, targets)
    best = (-1.0, (grid[0], grid[0]))
    for gamma in grid:
        half = _left(moment, cross, 10.0**gamma)
        for lambda_ in grid:
            hm = _accuracy(inner, _right(half, s, 10.0**lambda_))["hm"]
            if hm > best[0]:
                best = (hm, (gamma, lambda_))
    return best[1]


def eszsl_accuracy(
    data: AttributeFeatures, exponents: tuple[int, int], targets: Targets = "indicator"
) -> dict[str, float]:
    """``{"hm", "unseen", "seen"}`` of the test rows after training on all seen classes."""
    x, s, y = _training(data)
    matrix = eszsl(x, y, s, 10.0 ** exponents[0], 10.0 ** exponents[1], targets)
    return _accuracy(data, matrix)


class Eszsl(Method):
    """The closed form as a method: nothing is trained, and updates change nothing.

    Args:
        features: (N, D) training rows.
        labels: (N,) their classes, all of them seen.
        attributes: (K, A) of all classes.
        seen: (S,) numbers of the classes that are trained on, rising.
        unseen: not used.
        module: must be off; there is no training that BatchFormer could act in.
        seed: not used, as nothing is drawn.
        hyper: exponents of both regularisers, and the targets.
    """

    matrix: Tensor
    attributes: Tensor

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        attributes: Tensor,
        seen: Tensor,
        unseen: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
    ) -> None:
        super().__init__()
        require_training("eszsl", module)
        hyper = hyper or MethodConfig()
        powers = 10.0**hyper.eszsl_gamma, 10.0**hyper.eszsl_lambda
        own = torch.searchsorted(seen, labels)
        matrix = eszsl(features, own, attributes[seen], *powers, hyper.eszsl_targets)
        self.register_buffer("matrix", matrix)
        self.register_buffer("attributes", attributes, persistent=False)

    def predict(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return eszsl_scores(x, self.matrix, self.attributes)

    def deployed(self) -> nn.Module:
        """Features to scores of all classes: one linear layer, in float64."""
        weight = self.attributes.double() @ self.matrix.T
        classes, channels = weight.shape
        layer = nn.Linear(channels, classes, bias=False, dtype=weight.dtype)
        layer.weight.data.copy_(weight)
        return layer

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return {}

    @torch.no_grad()
    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: OptimizerStep
    ) -> dict[str, Tensor]:
        """The cross-entropy of the scores, for the log."""
        return {"loss": F.cross_entropy(self.predict(batch["x"]), batch["y"]).float()}


def _training(data: AttributeFeatures) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled features, attributes of the seen classes, and labels within these."""
    labels = torch.searchsorted(data.seen, data.labels[data.trainval])
    return data.scaled(data.trainval).double(), data.attributes[data.seen].double(), labels


def _cross(x: Tensor, labels: Tensor, s: Tensor, targets: Targets) -> Tensor:
    """X'Y S (D, A)."""
    y = torch.full((len(x), len(s)), _OTHERS[targets], dtype=x.dtype, device=x.device)
    return x.T @ y.scatter(1, labels.unsqueeze(1), 1.0) @ s


def _left(moment: Tensor, cross: Tensor, gamma: float) -> Tensor:
    """``(X'X + gamma)^-1 X'Y S`` (D, A)."""
    left = moment + gamma * torch.eye(len(moment)).to(moment)
    half: Tensor = torch.linalg.solve(left, cross)
    return half


def _right(half: Tensor, s: Tensor, lambda_: float) -> Tensor:
    """``half (S'S + lambda)^-1`` (D, A)."""
    right = s.T @ s + lambda_ * torch.eye(s.shape[1]).to(s)
    whole: Tensor = torch.linalg.solve(right, half, left=False)
    return whole


def _accuracy(data: AttributeFeatures, matrix: Tensor) -> dict[str, float]:
    rows = torch.cat((data.test_seen, data.test_unseen))
    answers = eszsl_scores(data.scaled(rows), matrix, data.attributes).argmax(1)
    accuracies = class_accuracy(answers, data.labels[rows], len(data.classes))
    return generalized_accuracy(accuracies, data.unseen)
