"""Heads of MoCo: shapes, parameters counted by hand, and what each layer does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from batchformer.lab.models.heads import normalised_projector, predictor, projector
from batchformer.nn.module import parameter_count


def test_parameters_of_the_papers() -> None:
    v2 = projector(2048, 128, layers=2, hidden=2048)
    assert parameter_count(v2) == 2048 * 2048 + 2048 + 2048 * 128 + 128
    v3 = normalised_projector(2048, 256, layers=2, hidden=4096)
    assert parameter_count(v3) == 2048 * 4096 + 2 * 4096 + 4096 * 256
    assert parameter_count(predictor(256, 4096)) == 256 * 4096 + 2 * 4096 + 4096 * 256
    vit = normalised_projector(384, 256, layers=3, hidden=4096)
    hidden = 384 * 4096 + 4096 * 4096 + 2 * 2 * 4096
    assert parameter_count(vit) == hidden + 4096 * 256


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_linear_layers_and_shapes(layers: int) -> None:
    for head in (projector(6, 3, layers, 10), normalised_projector(6, 3, layers, 10)):
        assert sum(isinstance(part, nn.Linear) for part in head) == layers
        assert head(torch.randn(7, 6)).shape == (7, 3)


def test_the_first_head_by_hand() -> None:
    head = projector(6, 3, layers=3, hidden=5)
    x = torch.randn(4, 6)
    rows = x
    for number, layer in enumerate(part for part in head if isinstance(part, nn.Linear)):
        rows = F.linear(F.relu(rows) if number else rows, layer.weight, layer.bias)
    torch.testing.assert_close(head(x), rows)


def test_the_front_comes_first_and_changes_no_draw_of_the_rest() -> None:
    torch.manual_seed(3)
    plain = projector(6, 3, layers=2, hidden=5)
    torch.manual_seed(3)
    head = projector(6, 3, layers=2, hidden=5, front=True)
    for own, other in zip(head[3:].parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)
    x = torch.randn(9, 6)
    first = F.linear(x, head[0].weight, head[0].bias)  # type: ignore[arg-type]
    standardised = (first - first.mean(0)) / (first.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), plain(F.relu(standardised)))


def test_the_normalised_head_by_hand() -> None:
    head = normalised_projector(6, 3, layers=2, hidden=5).double()
    x = torch.randn(9, 6, dtype=torch.float64)

    def standardised(rows: torch.Tensor) -> torch.Tensor:
        return (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()

    first, last = (part for part in head if isinstance(part, nn.Linear))
    norm = head[1]
    assert first.bias is None and last.bias is None
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
    hidden = F.relu(standardised(x @ first.weight.T) * norm.weight + norm.bias)
    torch.testing.assert_close(head(x), standardised(hidden @ last.weight.T))


def test_the_predictor_ends_with_a_linear_layer() -> None:
    head = predictor(4, 8)
    assert isinstance(head[-1], nn.Linear) and head[-1].bias is None
    kinds = [type(part) for part in head]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


def test_no_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one linear layer, got layers=0"):
        projector(4, 2, layers=0, hidden=4)
