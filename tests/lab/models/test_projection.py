from __future__ import annotations

import torch

from batchformer.lab.models.heads import Projection


def test_it_is_two_layers_written_out() -> None:
    torch.manual_seed(0)
    projection = Projection(6, 4).double()
    x = torch.randn(8, 6, dtype=torch.float64)
    hidden = x @ projection.hidden.weight.T + projection.hidden.bias
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    out = hidden.clamp(min=0) @ projection.output.weight.T + projection.output.bias
    torch.testing.assert_close(projection(x), out / out.norm(dim=1, keepdim=True))


def test_outputs_have_length_one_and_the_width_asked_for() -> None:
    torch.manual_seed(0)
    projection = Projection(64, 32)
    for mode in (True, False):
        out = projection.train(mode)(100 * torch.randn(5, 64))
        assert out.shape == (5, 32)
        torch.testing.assert_close(out.norm(dim=1), torch.ones(5))


def test_parameters() -> None:
    shapes = {name: tuple(p.shape) for name, p in Projection(64, 32).named_parameters()}
    assert shapes == {
        "hidden.weight": (64, 64),
        "hidden.bias": (64,),
        "norm.weight": (64,),
        "norm.bias": (64,),
        "output.weight": (32, 64),
        "output.bias": (32,),
    }
