"""Influence: the laboratory's measure, and the warning once weight decay has shrunk the encoder."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import BatchFormer, attach, check, match, param_groups
from batchformer.insight.figures.influence import feature_distance
from batchformer.insight.gradient import batch_influence
from batchformer.insight.measures import principal_axes
from batchformer.insight.user_model import relations_of
from batchformer.plug.alive import influence, watched_influence, weight_left
from batchformer.plug.findings import ALIVE, NEXT_TO_NOTHING

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 5


def model(**options: Any) -> Any:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    return attach(made, verbose=False, **options)


def train(made: Any, decay: float, steps: int, lr: float = 0.1) -> None:
    groups = param_groups(made, lr, 1.0, weight_decay=0.0, module_weight_decay=decay)
    optimizer = torch.optim.SGD(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = made.train()(X)
        F.cross_entropy(logits, match(logits, Y)).backward()
        optimizer.step()


def laboratory(made: Any, x: Tensor) -> float:
    """What a report would give for these samples: mean length of gradients times the distance."""
    relations = relations_of(made, x, F.cross_entropy)
    made.eval()
    with torch.no_grad():
        features = relations.features(x)
        mixed, _ = relations.mix(features)
        labels = relations.joint_logits(mixed, features).argmin(1)
    lengths = batch_influence(relations, features, labels).length
    others = ~torch.eye(len(x), dtype=torch.bool)
    points, share = principal_axes(features)
    return float(lengths[others].mean()) * feature_distance(points.numpy(), share.numpy())


@pytest.mark.parametrize("options", [{}, {"layers": 2}, {"heads": 1}, {"streams": "mixed_only"}])
def test_it_is_what_the_laboratory_measures(options: dict[str, Any]) -> None:
    made = model(**options)
    expected = laboratory(copy.deepcopy(made), X[:4])
    assert expected > NEXT_TO_NOTHING
    assert influence(made, X[:4]) == pytest.approx(expected, rel=1e-4)
    assert check(made, X[:4]).influence == pytest.approx(expected, rel=1e-4)


def test_it_is_next_to_nothing_once_real_steps_have_decayed_the_encoder() -> None:
    made = model()
    start = influence(made, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watched_influence(made, X) == start > 0.01
    train(made, decay=0.5, steps=60)
    encoder: BatchFormer = made[2].batchformer
    assert weight_left([encoder]) < 0.1
    with pytest.warns(UserWarning, match=r"weight decay has shrunk.*module_weight_decay=0\.0"):
        assert watched_influence(made, X) < NEXT_TO_NOTHING
    result = check(made, X)
    assert [finding.question for finding in result.failures] == [ALIVE]
    assert result.influence is not None and result.influence < NEXT_TO_NOTHING


def test_a_small_loss_is_not_taken_for_a_dead_encoder() -> None:
    made = model(dropout=0.0)
    train(made, decay=0.0, steps=400, lr=0.3)
    logits = made.eval()(X)
    assert float(F.cross_entropy(logits, Y)) < 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watched_influence(made, X) > NEXT_TO_NOTHING
    assert check(made, X)


def test_the_control_has_none_and_is_not_accused() -> None:
    made = model(attend="self")
    assert influence(made, X) == 0.0
    result = check(made, X)
    assert result.passed and result.influence is None


def test_the_size_of_a_new_encoder_is_one() -> None:
    torch.manual_seed(0)
    new = [BatchFormer(dim, layers=2) for dim in (8, 64, 512)]
    for encoder in (*new, BatchFormer(512, bottleneck=8), BatchFormer(8, bottleneck=64)):
        assert weight_left([encoder]) == pytest.approx(1.0, abs=0.15)
    with torch.no_grad():
        new[1].layers[1].self_attn.out_proj.weight.mul_(0.2)  # type: ignore[union-attr]
    assert weight_left(new) == pytest.approx(0.2, abs=0.02)


class Wrapped(nn.Module):
    """As LoRA by hand: a layer inside, and no weight of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_wrapped_projection_is_no_obstacle() -> None:
    made = model()
    attention = made[2].batchformer.layers[0].self_attn
    attention.out_proj = Wrapped(attention.out_proj)
    assert check(made, X) and watched_influence(made, X) > NEXT_TO_NOTHING


def test_without_batchformer_it_says_so() -> None:
    with pytest.raises(ValueError, match="no BatchFormer is called"):
        influence(nn.Linear(8, 5), X)
    with pytest.raises(ValueError, match=r"^influence\(\) needs at least 2 samples"):
        influence(attach(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3)), verbose=False), X[:1])


class Dense(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


@pytest.mark.parametrize("classes", [1, 4])
def test_maps_and_single_numbers_have_one_too(classes: int) -> None:
    made = attach(Dense(classes), verbose=False, example=torch.randn(3, 3, 8, 8))
    assert influence(made, torch.randn(4, 3, 8, 8)) > 0


class Ordinal(nn.Module):
    """One score for each sample, and thresholds: its outputs move together."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score = nn.Linear(8, 8), nn.Linear(8, 1, bias=False)
        self.thresholds = nn.Parameter(torch.zeros(4))  # as CORAL starts

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.body(x).relu()) - self.thresholds


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("apart", [0.0, 1.0, 4.0])
def test_outputs_that_move_together_are_not_taken_for_a_dead_encoder(
    dtype: torch.dtype, apart: float
) -> None:
    torch.manual_seed(0)
    made = attach(Ordinal(), verbose=False).to(dtype)
    made.thresholds.data += torch.linspace(-apart, apart, 4).to(dtype)
    result = check(made, X[:4].to(dtype))
    assert result.passed, str(result)
    assert result.influence is not None and result.influence > NEXT_TO_NOTHING


def test_of_several_outputs_that_with_mixed_rows_counts() -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.batchformer, self.head = BatchFormer(8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.head(x), self.head(self.batchformer(x))

    assert influence(TwoOutputs(), X) > NEXT_TO_NOTHING
