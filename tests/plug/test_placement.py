"""Names become places, and the dry run settles what each place does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from batchformer import attach, check
from batchformer.plug.classifier import AttachError, axes_of, resolve, trace
from batchformer.plug.example import find_batch
from helpers.networks import BodyAndHead


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.Sequential(nn.ReLU(), nn.Linear(8, 8)),
        nn.BatchNorm1d(8),
        nn.Linear(8, 3),
    )


def traced(model: nn.Module, x: Tensor | None = None):  # type: ignore[no-untyped-def]
    batch = find_batch(model, x)
    return batch, trace(model, batch)


def test_names_are_resolved_in_the_order_of_calls() -> None:
    model = mlp()
    _, record = traced(model)
    assert resolve(model, ["3", "0"], record) == ["0", "3"]
    assert resolve(model, None, record) == ["3"]
    assert resolve(model, "1", record) == ["1.0"], "a Sequential stands for its first layer"


def test_a_place_is_named_once() -> None:
    model = mlp()
    _, record = traced(model)
    with pytest.raises(AttachError, match=r"\['3', '3'\] names no place, or one place twice"):
        resolve(model, ["3", "3"], record)


def test_a_module_stands_for_its_name() -> None:
    model = mlp()
    _, record = traced(model)
    assert resolve(model, model[3], record) == ["3"]
    assert resolve(model, [model[3], "0"], record) == ["0", "3"]
    with pytest.raises(AttachError, match="a Linear that is no submodule of this Sequential"):
        attach(model, at=nn.Linear(8, 3))
    for at in (2, [2], 2.5):
        with pytest.raises(AttachError, match=r"takes the name of a submodule.*not 2"):
            attach(model, at=at)  # type: ignore[arg-type]


def test_candidates_are_layers_that_read_samples() -> None:
    model = TwoInputs()
    _, record = traced(model, torch.randn(3, 4))
    assert record.candidates() == "Candidates for at=: 'body' (Linear, input (3, 4))"
    assert "There is no candidate" in record.candidates(["body"]), "a place that failed is not one"
    regions = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 8), nn.Linear(8, 2))
    with pytest.raises(AttachError, match="no layer is called once") as told:
        attach(regions, example=torch.randn(3, 5, 4))
    assert str(told.value).count("two_streams(x, encoder)") == 1


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class TwoInputs(BodyAndHead):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h, h.relu())


class Branches(nn.Linear):
    """Adds its outputs on a list of tensors."""

    def forward(self, parts: list[Tensor]) -> Tensor:  # type: ignore[override]
        return torch.stack([super(Branches, self).forward(part) for part in parts]).sum(0)


class TwoBranches(BodyAndHead):
    def __init__(self) -> None:
        super().__init__()
        self.head = Branches(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head([self.body(x), self.body(2 * x)])


def test_a_forward_set_on_the_object_is_refused_for_that_reason() -> None:
    model = mlp()
    head = model[3]
    head.forward = head.forward  # as hooks of Accelerate do
    with pytest.raises(AttachError, match=r"'3' has a forward of its own.*remove_hook_from_module"):
        attach(model)
    del head.forward
    assert attach(model, verbose=False)(torch.randn(5, 4)).shape == (10, 3)


class SequenceFirst(BodyAndHead):
    """(L, N, C) inside, as in many sequence models."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).transpose(0, 1)).mean(0)


def test_the_batch_axis_is_found() -> None:
    model = SequenceFirst()
    _, record = traced(model, torch.randn(3, 6, 4))
    assert axes_of(record.calls["body"], None, None, record) == (0, -1)
    assert axes_of(record.calls["head"], None, None, record) == (1, -1)
    attach(model, example=torch.randn(3, 6, 4), verbose=False)
    assert model.head.batchformer.batch_axis == 1
    assert model(torch.randn(5, 6, 4)).shape == (10, 3)


class Graphs(nn.Module):
    """Nodes are averaged into graphs, so that nothing says how many graphs there are."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, graph: Tensor) -> Tensor:
        sums = torch.zeros(int(graph.max()) + 1, 8).index_add(0, graph, self.body(nodes))
        return self.head(sums / torch.bincount(graph)[:, None])  # type: ignore[no-any-return]


@pytest.mark.parametrize("nodes", [8, 9])
def test_as_many_channels_as_rows_are_no_samples(nodes: int) -> None:
    graph = torch.arange(nodes) // 3
    with pytest.raises(AttachError, match=r"no axis holds the samples.*In a forward of your own"):
        attach(Graphs(), example=(torch.randn(nodes, 4), graph))


class Flattened(SequenceFirst):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(0, 1)).view(x.shape[0], -1)


class Bag(nn.Module):
    """Samples that share one tensor: the words of all texts, and where each text begins."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(30, 8), nn.Linear(8, 2)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        return self.head(self.words(words, starts))


def test_a_dict_may_begin_with_the_tensor_that_has_the_samples() -> None:
    words, starts = torch.arange(20), torch.tensor([0, 3, 9, 10, 15])
    model = Bag()
    with pytest.raises(AttachError, match=r"for 20 samples \(rows of the batch's first tensor\)"):
        attach(model, example=(words, starts))
    attach(model, example={"starts": starts, "words": words}, verbose=False)
    assert len(model(words, starts)) == 10
    assert check(model.head, torch.randn(6, 8))


class TwoViews(nn.Module):
    """Two views of each image in one batch of feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.head(torch.cat((self.stem(x), self.stem(x.flip(-1)))))
        return torch.stack(maps.mean((2, 3)).chunk(2)).mean(0)


@pytest.mark.parametrize(
    ("model", "at", "example", "words"),
    [
        (TwoViews(), None, torch.randn(3, 3, 7, 7), r"BatchFormer\(8\) and x of shape \(N, 8\)"),
        (Unused(), "unused", None, "is not called in a forward pass"),
        (TwoBranches(), "head", torch.randn(6, 4), "input of 'head' is a list, and BatchFormer"),
        (Flattened(), None, torch.randn(3, 6, 4), "no axis holds the samples"),
    ],
)
def test_where_no_samples_arrive_it_is_refused(
    model: nn.Module, at: str | None, example: Tensor | None, words: str
) -> None:
    with pytest.raises(AttachError, match=words):
        attach(model, at=at, example=example)


class SeveralDropouts(nn.Module):
    """One head reads the features after several dropouts, and its outputs are averaged."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.body, self.features = nn.Linear(4, 8), nn.Identity()
        self.dropouts = nn.ModuleList(nn.Dropout(rate) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(self.body(x).relu())
        return torch.stack([self.head(drop(features)) for drop in self.dropouts]).mean(0)


def test_a_head_that_is_called_several_times_is_told_of_the_identity_that_works() -> None:
    with pytest.raises(AttachError, match=r"called 3 times.*through an nn\.Identity\(\)"):
        attach(SeveralDropouts())
    model = attach(SeveralDropouts(), at="features", verbose=False)
    assert model(torch.randn(6, 4)).shape == (12, 3)
    result = check(model, torch.randn(6, 4))
    assert result, str(result)


class FrozenBody(nn.Module):
    """Its ``train()`` keeps the body in eval once that is frozen, as for a pretrained one."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head, self.frozen = nn.Linear(8, 3), frozen

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> FrozenBody:
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self


@pytest.mark.parametrize("at", ["body.2", ["body.2", "head"]])
def test_a_place_that_stays_in_eval_is_named(at: str | list[str]) -> None:
    assert attach(FrozenBody(), verbose=False)(torch.randn(6, 4)).shape == (12, 3)
    model = FrozenBody()
    with pytest.raises(AttachError, match=r"'body\.2' stays in eval when the model is in training"):
        attach(model, at=at)
    assert not any("batchformer" in name for name, _ in model.named_modules())
    later = attach(FrozenBody(frozen=False), at=at, verbose=False)
    later.frozen = True
    for mode in (True, False):
        result = check(later.train(mode), torch.randn(6, 4))
        assert [finding.question for finding in result.failures] == ["is it on?"]
        assert "own train() leaves its BatchFormer in eval" in result.failures[0].seen
        assert not later.body.training
