"""Arguments that make no sense are refused by every public function, in words."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import batchformer as bf
from batchformer.adapters.transformers import scale_learning_rate
from batchformer.insight import look_at, look_at_positions
from batchformer.nn.encoder import EncoderWeights
from batchformer.plug.alive import influence

NAN, INF = math.nan, math.inf
X = torch.randn(4, 16)


def net() -> Any:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))


def attach(**options: Any) -> Any:
    model = net()
    keys = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        return bf.attach(**{"model": model, "optimizer": optimizer, "verbose": False, **options})
    finally:
        # Refused or not, the optimizer has what the model has.
        held = sum(len(group["params"]) for group in optimizer.param_groups)
        assert held in (len(keys), len(list(model.parameters())))


def attached() -> Any:
    return bf.attach(net(), verbose=False)


def encoder(**options: Any) -> Tensor:
    return bf.BatchFormer(**{"dim": 16, **options})(X)  # type: ignore[no-any-return]


def function(**options: Any) -> Any:
    weights = [EncoderWeights.of(nn.TransformerEncoderLayer(16, 4, 16))]
    return bf.batch_former(**{"x": X, "weights": weights, **options})


def loss(**options: Any) -> Tensor:
    logits, y = torch.randn(6, 5), torch.zeros(3, dtype=torch.long)
    return bf.stream_loss(
        **{"criterion": F.cross_entropy, "outputs": logits, "targets": y, **options}
    )


def groups(**options: Any) -> Any:
    return bf.param_groups(**{"model": attached(), "lr": 0.1, **options})


def check(**options: Any) -> Any:
    return bf.check(**{"model": attached(), "batch": torch.randn(4, 20), **options})


NO_WHOLE: tuple[Any, ...] = (True, 2.0, "2", NAN, [])
NO_REAL: tuple[Any, ...] = (-0.1, NAN, INF, "0.1", True, [], None)
NO_GROUP: tuple[Any, ...] = ("yes", "False", 1, 0, None, 2.5, [])
NO_MODEL: tuple[Any, ...] = (None, "net", nn.Linear, net, [nn.Linear(2, 2)], {"model": 1})
COUNTS: tuple[Any, ...] = (*NO_WHOLE, 0, -1)

WRONG: dict[Callable[..., Any], dict[str, tuple[Any, ...]]] = {
    attach: {
        "model": NO_MODEL,
        "heads": (*COUNTS, None),
        "layers": (*COUNTS, None),
        "dropout": (*NO_REAL, 1.0),
        "dim": COUNTS,
        "attend": ("all", None, True, []),
        "exchange": NO_GROUP,
        "streams": ("both", None, True, []),
        "batch_norm": ("none", None, True, []),
        "share": ("no", None, []),
        "scale": (*NO_REAL, 0),
        "mask": ("padding", "", 1, []),
        "batch_axis": (*NO_WHOLE, -1, 1, 5),
        "channel_axis": (*NO_WHOLE, 5, -5, 0, -2),
        "optimizer": ("sgd", [], 0),
        "lr_factor": NO_REAL,
        "input_axis": (*NO_WHOLE, -1, None),
        "verbose": ("no", None),
        "at": ([], "", "head", 5, ["2", "2"], [None]),
    },
    groups: {
        "model": (*NO_MODEL, iter([nn.Parameter(X)])),
        "lr": NO_REAL,
        "lr_factor": NO_REAL,
        "weight_decay": NO_REAL[:-1],
        "module_weight_decay": NO_REAL[:-1],
    },
    check: {
        "model": NO_MODEL,
        "optimizer": ("sgd", [], 0),
        "mixed_only": ("no", None, []),
        "input_axis": (*NO_WHOLE, -1),
    },
    bf.detach: {"model": NO_MODEL},
    bf.export: {"model": NO_MODEL[:-1]},
    encoder: {
        "dim": (*COUNTS, None),
        "heads": (*COUNTS, None, 3),
        "layers": (*COUNTS, None),
        "dropout": (*NO_REAL, 1.0),
        "attend": ("all", None),
        "batch_axis": (*NO_WHOLE, None, 5, 1, -1),
        "channel_axis": (*NO_WHOLE, 5, 0, -2),
        "bottleneck": COUNTS,
        "exchange": NO_GROUP,
        "copy_layers": ("no", None),
        "scale": (*NO_REAL, 0),
    },
    function: {
        "x": (None, X[0], X[:, :-1], X.numpy()),
        "weights": ([], None, nn.Linear(2, 2), EncoderWeights(*[X] * 12), [nn.Linear(2, 2)]),
        "heads": (*COUNTS, None, 3),
        "dropout": (*NO_REAL, 1.0),
        "attend": ("all", None),
        "batch_axis": (*NO_WHOLE, None, 5, 1, -1),
        "channel_axis": (*NO_WHOLE, 5, 0, -2),
        "exchange": ("no", None),
        "return_weights": ("no", None),
    },
    loss: {
        "criterion": (None, "mean", nn.CrossEntropyLoss),
        "loss_scale": ("Mean", None, 2, []),
        "mixed_weight": NO_REAL,
        "exchange": NO_GROUP,
    },
    bf.duplicate: {"targets": (range(3), deque([1, 2]))},
}
CASES = [
    (call, name, value)
    for call, arguments in WRONG.items()
    for name, values in arguments.items()
    for value in values
]


@pytest.mark.parametrize(
    ("call", "name", "value"), CASES, ids=[f"{call.__name__}-{name}" for call, name, _ in CASES]
)
def test_what_makes_no_sense_is_refused_in_words(
    call: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call(**{name: value})
    words = str(caught.value)
    # The words are ours: they name what was wrong and what to use.
    advice = ("use ", "Set ", "must be", "such as", "takes", "Convert", "Candidates", "at=")
    assert any(word in words for word in advice), words
    assert "not supported between" not in words and "got an unexpected" not in words


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert encoder(heads=np.int64(2), layers=np.int32(1), dropout=np.float32(0.1)).shape == X.shape
    assert encoder(scale=torch.tensor(0.5), batch_axis=-2).shape == X.shape
    made = groups(lr=torch.tensor(0.5), lr_factor=np.float64(0.5), weight_decay=0)
    assert [float(group["lr"]) for group in made] == [0.5, 0.25]
    assert attach(lr_factor=0, share=1, verbose=0) is not None


@pytest.mark.parametrize("look", [influence, look_at, look_at_positions])
def test_what_looks_into_a_model_needs_one(look: Callable[..., Any]) -> None:
    for model in NO_MODEL:
        with pytest.raises(TypeError, match=rf"{look.__name__}\(\): the model must be"):
            look(model, X)


def test_two_streams_need_a_module_with_samples_on_an_axis() -> None:
    for module in (None, nn.Identity().eval(), nn.TransformerEncoderLayer(16, 4)):
        with pytest.raises(TypeError, match="must be a BatchFormer"):
            bf.two_streams(X, module)  # type: ignore[arg-type]


def test_the_trainers_factor_is_a_number_as_well() -> None:
    model = attached()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for factor in (-1.0, NAN):
        with pytest.raises(ValueError, match="batchformer_lr_factor"):
            scale_learning_rate(optimizer, model, factor)
    assert len(optimizer.param_groups) == 1
