"""Models whose own code mixes samples in training, for the zoos of ``check``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from batchformer import BatchFormer, two_streams

#: Features of a sample, its channels at the encoder, and classes.
FEATURES, C, K = 8, 16, 3


class Mixing(nn.Module):
    """A backbone, our encoder and a shared classifier: plain and mixed rows, in eval plain ones.

    The layers after the classifier are for models that have one more.
    """

    body_norm: Callable[[int], nn.Module] = nn.LayerNorm
    batchformer: nn.Module

    def __init__(self) -> None:
        super().__init__()
        norm = type(self).body_norm(C)
        self.body = nn.Sequential(
            nn.Linear(FEATURES, C), norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(C, C)
        )
        self.batchformer = BatchFormer(C)
        self.head, self.head2 = nn.Linear(C, K), nn.Linear(C, K)
        self.hidden, self.hidden2, self.last = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(K, K)
        self.norm, self.bias = nn.LayerNorm(C), nn.Parameter(torch.zeros(K))
        self.scale, self.qkv = nn.Parameter(torch.ones(())), nn.Linear(C, 3 * C)
        self.attributes = nn.Linear(C, 5)

    def forward(self, x: Tensor) -> Any:
        f = self.body(x)
        return self.rows(f) if self.training else self.at_test(f)

    def rows(self, f: Tensor) -> Any:
        return self.out(f, self.mix(f))

    def at_test(self, f: Tensor) -> Any:
        return self.head(f)

    def mix(self, f: Tensor) -> Tensor:
        return self.batchformer(f)

    def out(self, *streams: Tensor) -> Tensor:
        return self.head(torch.cat(streams))


def made(base: type[nn.Module], parts: Callable[[], dict[str, Any]] = dict, **methods: Any) -> Any:
    """A class that is its base but for some methods, with further parts."""

    def build(self: Any, *args: Any, **options: Any) -> None:
        base.__init__(self, *args, **options)
        for part, value in parts().items():
            setattr(self, part, value)

    return type(base.__name__, (base,), {"__init__": build, **methods})


class Stock(Mixing):
    """The encoder is a stock layer over (N, 1, C)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, **{"dropout": 0.5, **options})

    def mix(self, f: Tensor, **options: Any) -> Tensor:
        return self.batchformer(f.unsqueeze(1), **options).squeeze(1)


class Deep(Stock):
    """After so many untrained layers, all samples have almost the same features."""

    def __init__(
        self, layers: int = 40, activation: type[nn.Module] = nn.ReLU, **options: Any
    ) -> None:
        super().__init__(**options)
        self.body = deep(layers, activation)


def deep(layers: int, activation: type[nn.Module]) -> nn.Sequential:
    hidden = (part for _ in range(layers) for part in (nn.Linear(C, C), activation()))
    return nn.Sequential(nn.Linear(FEATURES, C), *hidden)


class Gated(Mixing):
    """The encoder's output is multiplied by weights that begin at zero, or close to it."""

    def __init__(self, gate: Tensor, trained: bool = True) -> None:
        super().__init__()
        self.gate = nn.Parameter(gate, trained)

    def mix(self, f: Tensor) -> Tensor:
        return f + self.gate * self.batchformer(f)


class TwoPlaces(Mixing):
    """A second encoder mixes the rows of the mixed stream once more."""

    def __init__(self) -> None:
        super().__init__()
        self.second = self.place()

    def place(self) -> nn.Module:
        return BatchFormer(C)

    def mix(self, f: Tensor) -> Tensor:
        return self.second(f)

    def rows(self, f: Tensor) -> Tensor:
        plain, mixed = self.hidden(two_streams(f, self.batchformer)).relu().chunk(2)
        return self.out(plain, self.mix(mixed))

    def at_test(self, f: Tensor) -> Tensor:
        return self.head(self.hidden(f).relu())
