"""ESZSL (Romera-Paredes and Torr, 2015): a closed-form baseline of zero-shot learning."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Untrained

Targets = Literal["signed", "indicator"]
#: The target of a sample for the classes that are not its own.
_OTHERS: dict[Targets, float] = {"signed": -1.0, "indicator": 0.0}


def eszsl(
    features: Tensor,
    labels: Tensor,
    attributes: Tensor,
    gamma: float,
    lambda_: float,
    targets: Targets = "indicator",
) -> Tensor:
    """The matrix V (D, A); ``x V a`` is the compatibility of a feature x with attributes a.

    It minimises ``|X V S' - Y|^2 + gamma |V S'|^2 + lambda |X V|^2 + gamma lambda |V|^2`` with
    features X (N, D), attributes S (K, A) and Y (N, K), 1 for a sample's class:
    ``V = (X'X + gamma)^-1 X'Y S (S'S + lambda)^-1``. It is computed in float64.

    Args:
        features: (N, D).
        labels: (N,) class numbers, from 0 to K - 1.
        attributes: (K, A) of the classes that are trained on, and of no others.
        targets: Y for other classes: "indicator" 0, as in much later code, or "signed" -1, as in
            the paper. There is no constant term to fit a mean of -1, so "signed" recognises unseen
            classes far less well.
    """
    x, s = features.double(), attributes.double()
    y = torch.full((len(x), len(s)), _OTHERS[targets], dtype=x.dtype, device=x.device)
    cross = x.T @ y.scatter(1, labels.unsqueeze(1), 1.0) @ s
    left, right = x.T @ x, s.T @ s
    half = torch.linalg.solve(left + gamma * torch.eye(len(left)).to(left), cross)
    matrix: Tensor = torch.linalg.solve(
        right + lambda_ * torch.eye(len(right)).to(right), half, left=False
    )
    return matrix


def eszsl_scores(features: Tensor, matrix: Tensor, attributes: Tensor) -> Tensor:
    """Compatibilities (N, K) of features (N, D) with classes of attributes (K, A), in float64."""
    return features.double() @ matrix @ attributes.double().T


class Eszsl(Untrained):
    """The closed form as a method.

    Args:
        features: (N, D) training rows.
        labels: (N,) their classes, all of them seen.
        attributes: (K, A) of all classes.
        seen: (S,) numbers of the classes that are trained on, ascending.
        unseen: not used.
        module: must be off; BatchFormer acts only in training.
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
        hyper: MethodConfig,
    ) -> None:
        super().__init__()
        powers = 10.0**hyper.eszsl_gamma, 10.0**hyper.eszsl_lambda
        own = torch.searchsorted(seen, labels)
        matrix = eszsl(features, own, attributes[seen], *powers, hyper.eszsl_targets)
        self.register_buffer("matrix", matrix)
        self.register_buffer("attributes", attributes, persistent=False)

    def predict(self, x: Tensor) -> Tensor:
        return eszsl_scores(x, self.matrix, self.attributes)

    def deployed(self) -> nn.Module:
        """Features to scores of all classes: one linear layer, in float64."""
        weight = self.attributes.double() @ self.matrix.T
        classes, channels = weight.shape
        layer = nn.Linear(channels, classes, bias=False, dtype=weight.dtype)
        layer.weight.data.copy_(weight)
        return layer
