"""The training pass that attach ends with."""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import batchformer
from batchformer import attach, match
from batchformer.plug.classifier import AttachError
from helpers.networks import BodyAndHead


class Auxiliary(BodyAndHead):
    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = self.body(x)
        return (self.head(h.relu()), self.aux(h)) if self.training else self.head(h.relu())


def test_an_auxiliary_output_is_refused_unless_the_place_is_chosen() -> None:
    with pytest.raises(AttachError, match=r"\[\(6, 3\), \(3, 3\)\] for 3 samples"):
        attach(Auxiliary(), verbose=False)
    main, aux = attach(Auxiliary(), at="head", verbose=False)(torch.randn(5, 4))
    assert main.shape == (10, 3) and aux.shape == (5, 3)


class Experts(nn.Module):
    def __init__(self, lost: bool = False) -> None:
        super().__init__()
        self.lost, self.body = lost, nn.Linear(4, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (2, N, 5)
        outputs = torch.stack([expert(self.body(x)) for expert in self.experts])
        return outputs[:, : len(x)] if self.lost else outputs


@pytest.mark.parametrize(("streams", "rows"), [("shared", 10), ("mixed_only", 5)])
def test_rows_may_be_on_another_axis_of_the_outputs(streams: Any, rows: int) -> None:
    model = attach(Experts(), at=["experts.0", "experts.1"], streams=streams, verbose=False)
    assert model(torch.randn(5, 4)).shape == (2, rows, 5)
    with pytest.raises(AttachError, match="Mixed rows are lost"):
        attach(Experts(lost=True), at=["experts.0", "experts.1"], verbose=False)


class Outputs(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


class NamedAuxiliary(nn.Module):
    """As Inception: in training a second classifier, for which a small image is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8), nn.BatchNorm2d(8), nn.ReLU())
        self.aux = nn.Sequential(nn.Conv2d(8, 8, 20), nn.Flatten(), nn.LazyLinear(3))
        self.aux(torch.zeros(2, 8, 28, 28))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor | Outputs:
        h = self.body(x)
        logits: Tensor = self.head(h.mean((2, 3)))
        return Outputs(logits, self.aux(h)) if self.training else logits


def test_an_auxiliary_output_that_is_named_so_keeps_its_rows() -> None:
    model = attach(NamedAuxiliary(), verbose=False)
    x, y = torch.randn(5, 3, 224, 224), torch.zeros(5, dtype=torch.long)
    out = model(x)
    assert out.logits.shape == (10, 3) and out.aux_logits.shape == (5, 3)
    loss = sum(F.cross_entropy(part, match(part, y)) for part in out)
    loss.backward()
    assert (
        model.aux[0].weight.grad.any() and model.head.batchformer.layers[0].norm1.weight.grad.any()
    )


class FeaturesInTraining(BodyAndHead):
    """Returns its features too in training, for a penalty on them."""

    def forward(self, x: Tensor) -> Any:
        features = self.body(x)
        return (self.head(features), features) if self.training else self.head(features)


def test_an_output_that_keeps_its_rows_must_be_wanted() -> None:
    with pytest.raises(AttachError, match="say at='head'"):
        attach(FeaturesInTraining(), verbose=False)
    model = attach(FeaturesInTraining(), at="head", verbose=False)
    assert [len(part) for part in model(torch.randn(5, 4))] == [10, 5]


class LossInTraining(BodyAndHead):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        logits = self.head(self.body(x))
        return F.cross_entropy(logits, match(logits, y)) if self.training else logits


class LossAlone(BodyAndHead):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return F.cross_entropy(self.head(self.body(x)), y)


def test_a_loss_alone_shows_no_rows() -> None:
    batch = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    with pytest.raises(AttachError, match="return its logits, beside the loss"):
        attach(LossInTraining(), example=batch, verbose=False)
    with pytest.raises(AttachError, match="return its logits, beside the loss"):
        attach(LossAlone(), example=batch, verbose=False)


class NeedsTargets(BodyAndHead):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        if self.training and y is None:
            raise ValueError("no targets")
        logits = self.head(self.body(x))
        loss = {} if y is None else {"loss": F.mse_loss(logits, match(logits, y))}
        return {"logits": logits} | loss


def test_a_batch_that_the_model_does_not_train_on_is_told_as_such() -> None:
    with pytest.raises(AttachError, match=r"without BatchFormer too: no targets\. Pass example="):
        attach(NeedsTargets(), verbose=False)
    batch = torch.randn(5, 4), torch.randn(5, 3)
    assert len(attach(NeedsTargets(), example=batch, verbose=False)(*batch)["logits"]) == 10


class Segmenter(nn.Module):
    """As FCN: a dict, with an auxiliary classifier of earlier features in eval too."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)
        self.classifier, self.aux_classifier = nn.Conv2d(8, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        early = self.early(x)
        return {"out": self.classifier(self.late(early)), "aux": self.aux_classifier(early)}


def test_the_classifier_of_a_segmenter_is_that_of_its_main_output() -> None:
    model = attach(Segmenter(), verbose=False)
    out = model(torch.randn(5, 3, 16, 16))
    assert len(out["out"]) == 10 and len(out["aux"]) == 5
    assert hasattr(model.classifier, "batchformer")


class TokenWise(nn.Module):
    """As GPT-2: a head for each token, and one token of each sample is picked afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        picked: Tensor = self.score(self.words(ids))[torch.arange(len(ids)), -1]
        return picked


def test_a_head_before_the_pooling_is_refused_with_the_lines_to_write() -> None:
    model = TokenWise()
    with pytest.raises(AttachError, match="pooled later") as caught:
        attach(model)
    assert "Embedding" not in str(caught.value), "indices cannot be mixed"
    (line,) = re.findall(r"logits = (classifier\(.*?encoder\)\)) with", str(caught.value))
    (made,) = re.findall(r"encoder = (.*?) and x", str(caught.value))
    names = {"batchformer": batchformer, "classifier": model.score}
    names |= {"encoder": eval(made, names), "x": model.words(torch.zeros(5, 4).long())[:, -1]}
    assert eval(line, names).shape == (10, 3), "the lines of the message work"


def test_the_training_pass_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    attach(model, at="1", verbose=False)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert [m.training for m in model] == [True, False, True, True]
    assert not any(m._forward_pre_hooks for m in model.modules())


class Counting(BodyAndHead):
    """Knows its passes with values from those without, and may look at a value."""

    def __init__(self, looks: bool, passes: list[str]) -> None:
        super().__init__()
        self.looks, self.note = looks, passes.append

    def forward(self, x: Tensor) -> Tensor:
        self.note("shapes" if x.is_meta else "values")
        if self.looks and x.mean() > 100:
            return x
        return super().forward(x)


@pytest.mark.parametrize("looks", [False, True])
def test_a_large_model_runs_without_values_if_it_needs_none(
    looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo  # as torchvision, timm and transformers do

    monkeypatch.setattr("batchformer.plug.preserve.LARGE", 1)
    passes: list[str] = []
    model = Counting(looks, passes)
    tensors, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    attach(model, verbose=False)
    assert set(passes) == ({"shapes", "values"} if looks else {"shapes"})
    assert all(dict(model.named_parameters())[name] is tensors[name] for name in tensors)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert model.head.batchformer.layers[0].linear1.weight.device.type == "cpu"
    assert model(torch.randn(5, 4)).shape == (10, 3)


def test_several_places_double_once_after_a_pass_without_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch._dynamo

    monkeypatch.setattr("batchformer.plug.preserve.LARGE", 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    attach(model, at=["1", "2", "3"], verbose=False)
    assert model(torch.randn(5, 4)).shape == (10, 3)
