"""Models that look like BatchFormer and are not: check names what is wrong with each of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import BatchFormer, attach, check, match, param_groups, two_streams
from batchformer.plug.findings import (
    ALIVE,
    ATTEND,
    EQUAL,
    EVAL,
    FIRST,
    LEARN,
    MEMBER,
    ON,
    OWN,
    SHARED,
    STAY,
    STREAMS,
    THERE,
    TRAIN,
)

C, K = 16, 3
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    """A backbone, our encoder and a shared classifier; what is wrong with a model overrides a part.

    The parts after the classifier are for models that have one too many.
    """

    batchformer: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, C), nn.LayerNorm(C), nn.ReLU(), nn.Dropout(0.3), nn.Linear(C, C)
        )
        self.batchformer = BatchFormer(C)
        self.head, self.head2 = nn.Linear(C, K), nn.Linear(C, K)
        self.hidden, self.hidden2, self.last = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(K, K)
        self.norm, self.bias = nn.LayerNorm(C), nn.Parameter(torch.zeros(K))
        self.scale = nn.Parameter(torch.ones(()))

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


class Stock(Base):
    """The encoder is a stock layer over (N, 1, C)."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=batch_first)

    def mix(self, f: Tensor, **options: Any) -> Tensor:
        return self.batchformer(f.unsqueeze(1), **options).squeeze(1)


class Deep(Stock):
    """After so many untrained layers, all samples have almost the same features."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__(batch_first)
        hidden = (part for _ in range(40) for part in (nn.Linear(C, C), nn.ReLU()))
        self.body = nn.Sequential(nn.Linear(8, C), *hidden)


class WithoutEncoder(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.batchformer


class Wrong(NamedTuple):
    """A builder of (model, batch, further arguments of check), and what must fail."""

    build: Callable[[], tuple[nn.Module, Any, dict[str, Any]]]
    fails: set[str]
    says: str = ""


WRONG: dict[str, Wrong] = {}


def wrong(*fails: str, says: str = "", batch: Any = X) -> Callable[[Any], Any]:
    """Enter a model class, or a function that builds a model, into the zoo."""

    def enter(build: Any) -> Any:
        def made() -> tuple[nn.Module, Any, dict[str, Any]]:
            built = build()
            return built if isinstance(built, tuple) else (built, batch, {})

        WRONG[build.__name__] = Wrong(made, set(fails), says)
        return build

    return enter


def wrong_part(part: str, by_verdict: dict[tuple[str, ...], dict[str, tuple[type, Any]]]) -> None:
    """Enter models that are their class but for one method, by what fails and what is said."""
    for (*fails, says), models in by_verdict.items():
        for name, (base, method) in models.items():
            wrong(*fails, says=says)(type(name, (base,), {part: method}))


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, C), nn.ReLU(), nn.Linear(C, K))


def centred(f: Tensor) -> Tensor:
    return f - f.mean(0)


def shuffled(f: Tensor) -> Tensor:
    return f[torch.randperm(len(f))]


# How a model makes its outputs in training of features (N, C).

ONE_STREAM = "head.weight acts on one stream alone"
CUT_OFF = "batchformer.self_attn.in_proj_weight acts on the mixed rows and receives no gradient"
OUT_OF_ORDER = {
    "mixed rows reversed": (Base, lambda m, f: m.out(f, m.mix(f).flip(0))),
    "mixed rows shuffled": (Base, lambda m, f: m.out(f, m.mix(shuffled(f)))),
    "plain rows reversed": (Base, lambda m, f: m.out(f.flip(0), m.mix(f))),
    "both streams rolled": (Base, lambda m, f: Base.rows(m, f.roll(1, 0))),
    "halves of mixed rows swapped": (Base, lambda m, f: m.out(f, m.mix(f).roll(len(f) // 2, 0))),
    "two mixed rows exchanged": (
        Base,
        lambda m, f: m.out(f, m.mix(f)[[0, 3, 2, 1, *range(4, len(f))]]),
    ),
}
wrong_part(
    "rows",
    {
        (THERE, "no training pass calls it"): {
            "never called": (Base, lambda m, f: m.head(f)),
        },
        (ATTEND, LEARN, "do not all reach the outputs"): {
            "thrown away": (Base, lambda m, f: [m.mix(f), m.out(f, f)][1]),
            "gated to zero": (Base, lambda m, f: m.out(f, f + 0.0 * m.mix(f))),
        },
        (ATTEND, LEARN, ""): {
            "dropped by a function": (Base, lambda m, f: m.out(f, f + F.dropout(m.mix(f), p=1.0))),
        },
        (STREAMS, ""): {
            "rows lost": (Base, lambda m, f: m.out(f, m.mix(f))[:-1]),
            "mixed alone": (Base, lambda m, f: m.head(m.mix(f))),
            "stock, mixed alone": (Stock, lambda m, f: m.head(m.mix(f))),
            "streams averaged": (Base, lambda m, f: m.head((f + m.mix(f)) / 2)),
            "three streams": (Base, lambda m, f: m.out(f, m.mix(f), m.mix(f))),
        },
        (STAY, "depend on the encoder too"): {
            "no plain rows": (Base, lambda m, f: m.out(*[m.mix(f)] * 2)),
            "encoder after doubling": (Base, lambda m, f: m.head(m.mix(torch.cat([f, f])))),
        },
        (FIRST, "not in the order of samples"): OUT_OF_ORDER,
        (FIRST, "mixed, plain"): {
            "mixed first": (Base, lambda m, f: m.out(m.mix(f), f)),
            "stock, mixed first": (Stock, lambda m, f: m.out(m.mix(f), f)),
            "deep, mixed first": (Deep, lambda m, f: m.out(m.mix(f), f)),
        },
        (FIRST, "in turn"): {
            "in turn": (Base, lambda m, f: m.head(torch.stack([f, m.mix(f)], 1).flatten(0, 1))),
            "in turn, mixed first": (
                Base,
                lambda m, f: m.head(torch.stack([m.mix(f), f], 1).flatten(0, 1)),
            ),
        },
        (STAY, ""): {
            "centred after the head": (Base, lambda m, f: centred(Base.rows(m, f))),
            "centred before the place": (Base, lambda m, f: Base.rows(m, centred(f))),
            "statistics by hand": (Base, lambda m, f: Base.rows(m, centred(f) / f.std(0))),
            "random mixup": (Base, lambda m, f: Base.rows(m, 0.8 * f + 0.2 * shuffled(f))),
            "softmax over rows": (Base, lambda m, f: Base.rows(m, f).log_softmax(0)),
        },
        (ATTEND, ""): {
            "stock, gated to zero": (Stock, lambda m, f: m.out(f, f + 0.0 * m.mix(f))),
            "next to no attention": (Stock, lambda m, f: m.out(f, f + 1e-6 * m.mix(f))),
            "noise": (WithoutEncoder, lambda m, f: m.out(f, f + 0.1 * torch.randn_like(f))),
            "samples as batch": (
                Stock,
                lambda m, f: m.out(f, m.batchformer(f.unsqueeze(0)).squeeze(0)),
            ),
            "masked to itself": (
                Stock,
                lambda m, f: m.out(f, m.mix(f, src_mask=~torch.eye(len(f)).bool())),
            ),
            "mixed rows depend on nothing": (
                Stock,
                lambda m, f: m.out(f, F.layer_norm(m.mix(f).mean(1, keepdim=True), (1,)) + 0 * f),
            ),
        },
        (ATTEND, "of 3 mixed rows depend"): {
            "half of the samples": (
                Base,
                lambda m, f: m.out(f, m.mix(f).where(torch.arange(len(f))[:, None] % 2 == 1, f)),
            ),
        },
        (ATTEND, "small constant"): {
            "next to nothing": (Stock, lambda m, f: m.out(f, torch.lerp(f, m.mix(f), 1e-4))),
        },
        (ATTEND, "60 of 64 mixed rows do not depend on the first sample"): {
            "groups of four": (Base, lambda m, f: m.out(f, *map(m.mix, f.split(4)))),
        },
        (ATTEND, "call the encoder once, with all rows"): {
            "stock, groups of sixteen": (Stock, lambda m, f: m.out(f, *map(m.mix, f.split(16)))),
        },
        (ATTEND, "for batches of any size"): {
            "off in large batches": (Stock, lambda m, f: m.out(f, m.mix(f) if len(f) <= 4 else f)),
        },
        (OWN, "do not pool"): {
            "pooled": (Base, lambda m, f: m.out(f, m.mix(f).mean(0).expand_as(f))),
            "stock, pooled": (Stock, lambda m, f: m.out(f, m.mix(f).mean(0).expand_as(f))),
        },
        (ALIVE, "is everything dropped"): {
            "dropout of one by a function": (Base, lambda m, f: Base.rows(m, F.dropout(f, 1.0))),
        },
        (SHARED, "50.9 to 42.4"): {
            "two heads": (Base, lambda m, f: torch.cat([m.head(f), m.head2(m.mix(f))])),
        },
        (SHARED, "last.weight acts on one stream alone"): {
            "further layer": (Base, lambda m, f: torch.cat([m.head(f), m.last(m.head(m.mix(f)))])),
        },
        (SHARED, "bias acts on one stream alone"): {
            "bias": (Base, lambda m, f: torch.cat([m.head(f), m.head(m.mix(f)) + m.bias])),
        },
        (SHARED, "scale acts on one stream alone"): {
            "scale": (Stock, lambda m, f: torch.cat([m.head(f), m.head(m.mix(f)) * m.scale])),
        },
        (EVAL, "training uses norm.weight, which eval does not"): {
            "norm in training alone": (Stock, lambda m, f: Stock.rows(m, m.norm(f))),
        },
        (EVAL, "training uses hidden.weight, which eval does not"): {
            "layer in training alone": (Base, lambda m, f: Base.rows(m, m.hidden(f))),
        },
        (SHARED, ONE_STREAM): {
            "stock, two heads": (Stock, lambda m, f: torch.cat([m.head(f), m.head2(m.mix(f))])),
        },
        (SHARED, ""): {
            "two outputs of two heads": (
                Base,
                lambda m, f: {"a": m.head(f), "b": m.head2(m.mix(f))},
            ),
        },
        (TRAIN, "head.weight no gradient"): {
            "copied head": (
                Base,
                lambda m, f: torch.cat([m.head(f), copy.deepcopy(m.head)(m.mix(f))]),
            ),
        },
        (LEARN, ""): {
            "mean": (WithoutEncoder, lambda m, f: m.out(f, 0.5 * f + 0.5 * f.mean(0))),
        },
        (LEARN, "once, in __init__"): {  # seen in public
            "fresh BatchFormer": (
                WithoutEncoder,
                lambda m, f: m.out(f, BatchFormer(C, dropout=0.0)(f)),
            ),
            "fresh encoder": (
                WithoutEncoder,
                lambda m, f: m.out(f, nn.TransformerEncoderLayer(C, 4, C, 0.0)(f[:, None])[:, 0]),
            ),
        },
        (LEARN, TRAIN, ""): {
            "outputs detached": (Base, lambda m, f: Base.rows(m, f).detach()),
            "encoder without gradient": (Base, lambda m, f: m.out(f, torch.no_grad()(m.mix)(f))),
        },
        (LEARN, TRAIN, "not detached"): {
            "mixed rows detached": (Base, lambda m, f: m.out(f, m.mix(f).detach())),
        },
        (LEARN, TRAIN, "rounded"): {
            "mixed rows rounded": (Base, lambda m, f: m.out(f, (8 * m.mix(f)).round() / 8)),
        },
        # The encoder is registered, so that nothing is said about model.parameters().
        (LEARN, TRAIN, CUT_OFF): {
            "stock, detached": (Stock, lambda m, f: m.out(f, m.mix(f).detach())),
            "stock, rounded": (Stock, lambda m, f: m.out(f, (8 * m.mix(f)).round() / 8)),
        },
        (TRAIN, "detach() or no_grad()"): {
            "features detached": (Base, lambda m, f: m.out(f, m.mix(f.detach()))),
        },
        (TRAIN, "plain rows give head.weight no gradient"): {
            "no gradient": (Base, lambda m, f: torch.cat([m.head(f).detach(), m.head(m.mix(f))])),
        },
        (TRAIN, "plain rows give the backbone no gradient"): {
            "plain features detached": (Base, lambda m, f: m.out(f.detach(), m.mix(f))),
        },
    },
)
wrong_part(
    "at_test",
    {
        (EVAL, ""): {
            "doubled at test": (Base, lambda m, f: m.out(f, m.batchformer.mix(f))),
            "averaged at test": (Base, lambda m, f: m.head((f + m.batchformer.mix(f)) / 2)),
        },
        (EVAL, "depend on the encoder"): {
            "one by one": (Base, lambda m, f: m.out(*(m.batchformer.mix(row[None]) for row in f))),
            "stock, one by one": (Stock, lambda m, f: m.out(*(m.mix(row[None]) for row in f))),
        },
        (EVAL, "leave out only the encoder"): {
            "layer at test alone": (Base, lambda m, f: m.head(m.hidden(f))),
        },
        (EVAL, "eval uses head2.weight, which training does not"): {
            "another head at test": (Base, lambda m, f: m.head2(f)),
            "stock, another head at test": (Stock, lambda m, f: m.head2(f)),
        },
    },
)


@wrong(ATTEND, says="not finite")
def nan_in_the_encoder() -> nn.Module:
    model = attach(plain(), verbose=False)
    with torch.no_grad():
        model[2].batchformer.layers[0].linear1.weight.fill_(torch.nan)  # type: ignore[union-attr]
    return model


@wrong(ATTEND, LEARN, says="do not all reach the outputs")
def stays_gated_to_zero() -> Any:
    """A gate that starts at zero and is not in the optimizer stays closed."""
    model = Gated(torch.zeros(1))
    held = [p for p in model.parameters() if p is not model.gate]
    return model, X, {"optimizer": torch.optim.SGD(held, lr=0.1)}


class Gated(Base):
    def __init__(self, gate: Tensor, trained: bool = True) -> None:
        super().__init__()
        self.gate = nn.Parameter(gate, trained)

    def mix(self, f: Tensor) -> Tensor:
        return f + self.gate * self.batchformer(f)


@wrong(ATTEND, LEARN)
def gate_is_frozen_at_zero() -> nn.Module:
    return Gated(torch.zeros(C), trained=False)


@wrong(ATTEND, LEARN)
class TwoGatesOfZero(Gated):
    """The gradient of each is a multiple of the other: both stay closed."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(1))
        self.second = nn.Parameter(torch.zeros(1))

    def mix(self, f: Tensor) -> Tensor:
        return f + self.second * self.gate * self.batchformer(f)


@wrong(THERE, says="no training pass calls it")
class OwnSwitchOff(Base):
    use_batchformer = False

    def rows(self, f: Tensor) -> Tensor:
        return super().rows(f) if self.use_batchformer else self.head(f)


@wrong(THERE, says="call attach(model)")
def no_batchformer() -> nn.Module:
    return plain()


@wrong(THERE, says="attach(model) again")
def head_replaced_after_attach() -> nn.Module:
    model = attach(plain(), verbose=False)
    model[2] = nn.Linear(C, K)
    return model


@wrong(STREAMS)
def attached_to_what_doubles_already() -> Any:
    model = Base()
    model.head = attach(nn.Sequential(nn.Linear(C, C), nn.Linear(C, K)), verbose=False)  # type: ignore[assignment]
    return model


@wrong(STAY, says="depend on the encoder too")
class SecondEncoderOnBothStreams(Base):
    def __init__(self) -> None:
        super().__init__()
        self.second = BatchFormer(C)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(self.second(two_streams(f, self.batchformer)))


@wrong(STAY, says="mixup")
class MixedUpAfterThePlace(Base):
    def rows(self, f: Tensor) -> Tensor:
        f = two_streams(f, self.batchformer)
        return self.head(0.7 * f + 0.3 * f.flip(0))


@wrong(STAY)
class MixupByNumpy(Base):
    def rows(self, f: Tensor) -> Tensor:
        order = torch.from_numpy(numpy.random.permutation(len(f)))  # noqa: NPY002
        return super().rows(0.8 * f + 0.2 * f[order])


@wrong(STAY)
class MixupOfLogits(Base):
    def rows(self, f: Tensor) -> Tensor:
        o = super().rows(f)
        return 0.8 * o + 0.2 * o[torch.randperm(len(o))]


@wrong(STAY)
class RandomMixupAndNoiseForSomeEntries(Base):
    """How many random numbers are drawn depends on the samples, so that all rows move anyway."""

    def rows(self, f: Tensor) -> Tensor:
        some = f > 0
        f = f.masked_scatter(some, f[some] + 0.1 * torch.randn(int(some.sum())))
        return super().rows(0.8 * f + 0.2 * f.roll(1, 0))


@wrong(STAY)
class CutMixByPython(Base):
    def rows(self, f: Tensor) -> Tensor:
        shift, width = random.randint(1, len(f) - 1), C // 2
        f = torch.cat([f[:, :width], f.roll(shift, 0)[:, width:]], 1)
        return super().rows(f)


@wrong(STAY)
def attached_to_a_model_that_mixes_in_training_only() -> nn.Module:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, C), nn.Linear(C, K)

        def forward(self, x: Tensor) -> Tensor:
            f = self.body(x).relu()
            return self.head(0.7 * f + 0.3 * f.flip(0) if self.training else f)

    return attach(Mixes(), verbose=False)


@wrong(STAY, says="mixup")
class TokensFlattened(nn.Module):
    """Flattens tokens, doubles by hand, then mixes up across streams (seen in public)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, 8), nn.Linear(32, K)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 32, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        f = self.embed(x.view(-1, 4, 2)).flatten(1)
        if self.training:
            f = torch.cat((f, self.encoder(f.unsqueeze(1)).squeeze(1)))
            f = 0.7 * f + 0.3 * f[torch.randperm(len(f))]
        return self.head(f)


# Attention over something else, or with an order of samples.


@wrong(ATTEND, says="batch_first=False")
def length_one_axis() -> Any:
    return Stock(batch_first=True)


@wrong(ATTEND, says="batch_first=False")
def deep_length_one_axis() -> nn.Module:
    return Deep(batch_first=True)


@wrong(ATTEND)
class LengthOneByHand(Base):
    """softmax(q k^T) v over an axis of length one, written by hand (seen in public)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(C, 3 * C), nn.LayerNorm(C)

    def rows(self, f: Tensor) -> Tensor:
        q, k, v = self.qkv(f.unsqueeze(1)).chunk(3, -1)  # (N, 1, C) each
        mixed = ((q @ k.transpose(1, 2) / C**0.5).softmax(-1) @ v).squeeze(1)
        return self.out(f, self.norm(f + mixed))


@wrong(ATTEND, batch=TOKENS)
class OverTokens(Base):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=True)


@wrong(ATTEND, batch=TOKENS)
def ours_over_tokens() -> Any:
    model = Base()
    model.batchformer = BatchFormer(C, batch_axis=1)
    return model


@wrong(ATTEND)
class MixedInTheBackwardPassAlone(Stock):
    """Straight through: the values of the mixed rows are those of the plain ones."""

    def rows(self, f: Tensor) -> Tensor:
        mixed = self.mix(f)
        return self.out(f, f + mixed - mixed.detach())


@wrong(EQUAL, says="positional encoding")
class PositionCode(Base):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(64, C))

    def mix(self, f: Tensor) -> Tensor:
        return self.batchformer(f + self.positions[: len(f)])


@wrong(EQUAL, says="causal mask")
class CausalMask(Stock):
    def rows(self, f: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(f))
        return self.out(f, self.mix(f, src_mask=mask))


@wrong(EQUAL, says="recurrence")
class RecurrentOverSamples(Base):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C // 2, bidirectional=True)

    def mix(self, f: Tensor) -> Tensor:
        return self.gru(f.unsqueeze(1))[0].squeeze(1)


@wrong(ATTEND, says="by 4e-06 of what it moves its own")
class LogitsMixedByNextToNothing(Base):
    def rows(self, f: Tensor) -> Tensor:
        logits = self.head(f)
        return torch.cat([logits, logits + 1e-5 * self.head(self.batchformer(f))])


# A second place at which no sample attends to another, or only to some. The first place is right.


class TwoPlaces(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.second = nn.Linear(C, C), self.place()

    def place(self) -> nn.Module:
        return BatchFormer(C)

    def forward(self, x: Tensor) -> Tensor:
        f = self.hidden(two_streams(self.body(x), self.batchformer)).relu()
        if self.training:
            plain, mixed = f.chunk(2)
            f = torch.cat([plain, self.mix(mixed)])
        return self.head(f)


@wrong(ATTEND, says="in second every sample attends only to itself")
class SecondPlaceOverLengthOne(TwoPlaces):
    def place(self) -> nn.Module:
        return nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=True)

    def mix(self, f: Tensor) -> Tensor:
        return self.second(f.unsqueeze(1)).squeeze(1)


@wrong(ATTEND, LEARN, says="in second every sample attends only to itself")
class OurSecondPlaceOverLengthOne(SecondPlaceOverLengthOne):
    def place(self) -> nn.Module:
        return BatchFormer(C, batch_axis=1)


@wrong(ATTEND, says="in second every sample attends only to itself")
class SecondPlaceMasked(TwoPlaces):
    def place(self) -> nn.Module:
        return nn.MultiheadAttention(C, 4)

    def mix(self, f: Tensor) -> Tensor:
        mask = ~torch.eye(len(f)).bool()
        return f + self.second(f, f, f, attn_mask=mask, need_weights=False)[0]


@wrong(ATTEND, says="over an axis of length one")
class SecondPlaceOverLengthOneByHand(TwoPlaces):
    def place(self) -> nn.Module:
        return nn.Linear(C, 3 * C)

    def mix(self, f: Tensor) -> Tensor:
        q, k, v = self.second(f.unsqueeze(1)).chunk(3, -1)
        return f + ((q @ k.transpose(1, 2)).softmax(-1) @ v).squeeze(1)


@wrong(ATTEND, says="second attends over 8 of 64 samples")
class SecondPlaceInGroups(TwoPlaces):
    def mix(self, f: Tensor) -> Tensor:
        return torch.cat([self.second(part) for part in f.split(8)])


@wrong(ATTEND, says="without second the mixed rows change by")
class SecondPlaceOfNextToNoEffect(TwoPlaces):
    def mix(self, f: Tensor) -> Tensor:
        return torch.lerp(f, self.second(f), 1e-5)


# Samples attend now, and not in other training steps.


class InSomeSteps(Stock):
    """Counts its training steps."""

    def __init__(self) -> None:
        super().__init__()
        self.step = self.counter()

    def counter(self) -> Any:
        return 0

    def on(self) -> bool:
        raise NotImplementedError

    def rows(self, f: Tensor) -> Tensor:
        mixed = self.mix(f) if self.on() else f
        self.step += 1
        return self.out(f, mixed)


@wrong(ATTEND, says="in a later training step no mixed row depends on another sample")
class InTheFirstSteps(InSomeSteps):
    def on(self) -> bool:
        return bool(self.step < 100)


@wrong(ATTEND, says="in every training step")
class InEverySecondStep(InSomeSteps):
    def counter(self) -> Any:
        return nn.Buffer(torch.tensor(0))

    def on(self) -> bool:
        return bool(self.step % 2 == 0)


@wrong(ATTEND, says="in every training step")
class InTheFirstStepsByADict(InSomeSteps):
    def counter(self) -> Any:
        self.counts = {"steps": 0}
        return 0.0

    def on(self) -> bool:
        self.counts["steps"] += 1
        return self.counts["steps"] < 10


@wrong(ATTEND, says="in every training step")
class BothStreamsInTheFirstStepAlone(Base):
    warm = False

    def rows(self, f: Tensor) -> Tensor:
        warm, self.warm = self.warm, True
        return self.head(f if warm else two_streams(f, self.batchformer))


@wrong(ATTEND, says="1 has a dropout of 1, so nothing passes it")
def dropout_of_one_before_the_place() -> nn.Module:
    layers = nn.Linear(8, C), nn.Dropout(1.0), nn.Linear(C, K)
    return attach(nn.Sequential(*layers), verbose=False)


# Classifiers.


@wrong(SHARED, says="hidden.weight acts on one stream alone")
class UnsharedHiddenLayer(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.out(self.hidden(f), self.hidden2(self.mix(f)))

    def at_test(self, f: Tensor) -> Tensor:
        return self.head(self.hidden(f))


@wrong(SHARED)
class TwoClassifiersBySlices(Base):
    def rows(self, f: Tensor) -> Tensor:
        plain, mixed = two_streams(f, self.batchformer).chunk(2)
        return torch.cat([self.head(plain), self.head2(mixed)])


@wrong(SHARED, says="biases acts on one stream alone")
class BiasOfEachStream(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.zeros(2, K))

    def rows(self, f: Tensor) -> Tensor:
        logits = self.out(f, self.mix(f))
        return logits + self.biases.repeat_interleave(len(f), 0)


# Gradients.


@wrong(LEARN, says="unused.layers.0")
def second_encoder_never_called() -> Any:
    model = Base()
    model.unused = BatchFormer(C)
    return model


@wrong(TRAIN, says="head.weight no gradient")
class ClassifierDetachedForMixedRows(Base):
    def rows(self, f: Tensor) -> Tensor:
        head = self.head
        mixed = F.linear(self.batchformer(f), head.weight.detach(), head.bias.detach())
        return torch.cat([head(f), mixed])


@wrong(LEARN, says="parameters are frozen")
def frozen_encoder() -> nn.Module:
    model: Any = attach(plain(), verbose=False)
    model[2].batchformer.requires_grad_(False)
    return model


@wrong(LEARN, says="12 of 12 parameters are frozen")
def stock_frozen() -> Any:
    model = Stock()
    model.batchformer.requires_grad_(False)
    return model


@wrong(LEARN, says="4 of 12 parameters are frozen")
def stock_attention_frozen() -> Any:
    model: Any = Stock()
    model.batchformer.self_attn.requires_grad_(False)
    return model


@wrong(ATTEND, says="batchformer.self_attn has a dropout of 1")
def stock_drops_everything() -> Any:
    model = Stock()
    model.batchformer = nn.TransformerEncoderLayer(C, 4, C, 1.0)
    return model


@wrong(ATTEND, says="batchformer.self_attn has a dropout of 1")
def stock_drops_all_attention() -> Any:
    model: Any = Stock()
    model.batchformer.self_attn.dropout = 1.0
    return model


@wrong(LEARN, says="once, in __init__")
class FreshAndRegistered(Base):
    def rows(self, f: Tensor) -> Tensor:
        self.batchformer = BatchFormer(C, dropout=0.0)
        return super().rows(f)


@wrong(LEARN, says="kept in a list")
class KeptInAList(WithoutEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.encoders = [BatchFormer(C, dropout=0.0)]

    def mix(self, f: Tensor) -> Tensor:
        return self.encoders[0](f)


# The optimizer, and weight decay.


@wrong(MEMBER, says="after attach")
def optimizer_built_first() -> Any:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="NOT BE TRAINED"):
        attach(model, verbose=False)
    return model, X, {"optimizer": optimizer}


@wrong(MEMBER, says="8 of 12 parameters")
def optimizer_without_the_attention() -> Any:
    model = Stock()
    left_out = {id(p) for p in model.batchformer.self_attn.parameters()}  # type: ignore[union-attr]
    held = [p for p in model.parameters() if id(p) not in left_out]
    return model, X, {"optimizer": torch.optim.SGD(held, lr=0.1)}


@wrong(MEMBER, says="12 of them at a rate of 0")
def encoder_at_rate_zero() -> Any:
    model = attach(plain(), verbose=False)
    groups = param_groups(model, lr=0.1, lr_factor=0.0)
    return model, X, {"optimizer": torch.optim.SGD(groups)}


@wrong(MEMBER, says="give the encoder a learning rate")
def stock_encoder_at_rate_zero() -> Any:
    model = Stock()
    inside = {id(p) for p in model.batchformer.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in inside]},
        {"params": [*model.batchformer.parameters()], "lr": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    # A schedule multiplies the rate of zero.
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    return model, X, {"optimizer": optimizer}


def decayed(steps: int) -> nn.Module:
    """Trained by SGD with far too much decay on the encoder."""
    model: Any = attach(plain(), verbose=False)
    encoder = model[2].batchformer
    optimizer = torch.optim.SGD(
        [
            {"params": [*model[0].parameters(), model[2].weight, model[2].bias]},
            {"params": encoder.parameters(), "weight_decay": 1.5},
        ],
        lr=0.1,
    )
    y = torch.arange(len(X)) % K
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(X)
        F.cross_entropy(logits, match(logits, y)).backward()
        optimizer.step()
    return model


@wrong(ALIVE, says="module_weight_decay")
def taken_away_by_weight_decay() -> nn.Module:
    return decayed(19)


@wrong(ALIVE, ATTEND, says="module_weight_decay")
def nothing_left_by_weight_decay() -> nn.Module:
    return decayed(95)


@wrong(STAY)
def rows_centred_by_a_hook() -> nn.Module:
    model: Any = attach(plain(), verbose=False)
    model[2].register_forward_hook(lambda module, args, out: out - out.mean(0))
    return model


@wrong(THERE)
def forward_replaced_after_attach() -> nn.Module:
    model: Any = attach(plain(), verbose=False)
    model[2].forward = lambda f: F.linear(f, model[2].weight)
    return model


# Several outputs, of which one is wrong.


class TwoHeads(Base):
    """A second head beside the first, both in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes = nn.Linear(C, 5)

    def at_test(self, f: Tensor) -> Any:
        return self.both(self.head(f), self.attributes(f))

    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return {"logits": logits, "attributes": attributes}


wrong_part(
    "rows",
    {
        (STAY, "outputs['attributes']: replacing one sample moves 3 of 3 others"): {
            "second output centred": (
                TwoHeads,
                lambda m, f: m.both(Base.rows(m, f), m.attributes(centred(f))),
            ),
        },
        (FIRST, "outputs['attributes']: mixed, plain"): {
            "second output mixed first": (
                TwoHeads,
                lambda m, f: m.both(Base.rows(m, f), m.attributes(torch.cat([m.mix(f), f]))),
            ),
        },
        (FIRST, "outputs['attributes']: the rows of a stream are not in the order"): {
            "second output rolled": (
                TwoHeads,
                lambda m, f: m.both(
                    Base.rows(m, f), m.attributes(torch.cat([f, m.mix(f).roll(1, 0)]))
                ),
            ),
        },
    },
)


@wrong(ATTEND, says="outputs[1]: 0 of 3 mixed rows depend on another sample")
class SecondOutputOfATuplePlainTwice(TwoHeads):
    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return logits, attributes

    def rows(self, f: Tensor) -> Any:
        logits = super().rows(f)
        return self.both(logits, self.attributes(torch.cat([f, f])))


@wrong(ATTEND, says="outputs[0]: 0 of 3 mixed rows depend on another sample")
class FirstOutputOfATuplePlainTwice(SecondOutputOfATuplePlainTwice):
    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return attributes, logits


@wrong(EQUAL, says="outputs['attributes']: their mixed rows differ")
class SecondOutputCausal(TwoHeads):
    def __init__(self) -> None:
        super().__init__()
        self.causal = nn.TransformerEncoderLayer(C, 4, C, 0.5)

    def rows(self, f: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(len(f))
        mixed = self.causal(f.unsqueeze(1), src_mask=mask).squeeze(1)
        logits = super().rows(f)
        return self.both(logits, self.attributes(torch.cat([f, mixed])))


# Batches of other sizes.


class Large(nn.Module):
    """More weights than would be run with many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 1024), nn.Linear(1024, 1024), nn.Linear(1024, C))
        self.head = nn.Linear(C, K)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.head(part) for part in self.body(x).split(16)])


@wrong(ATTEND, says="call the encoder once, with all rows")
def a_large_model_in_groups_of_sixteen() -> nn.Module:
    return attach(Large(), verbose=False)


@wrong(FIRST, says="order of samples", batch=X[:2])
class TwoSamplesReversed(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.out(f, self.mix(f).flip(0))


@wrong(FIRST, says="order of samples", batch=X[:3])
class ThreeSamplesRolled(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.out(f, self.mix(f).roll(1, 0))


# Modes.


@wrong(ON, says="call model.train()")
def switched_off() -> nn.Module:
    model: Any = attach(plain(), verbose=False).train()
    model[2].batchformer.eval()
    return model


@wrong(ON)
def one_of_two_places_switched_off() -> nn.Module:
    model: Any = nn.Sequential(nn.Linear(8, C), nn.Linear(C, C), nn.Linear(C, K))
    attach(model, at=["1", "2"], verbose=False).train()
    model[2].batchformer.eval()
    return model


@wrong(ON)
def own_code_switched_off() -> Any:
    model = Base().train()
    model.batchformer.eval()
    return model


@wrong(STREAMS, EVAL, says="identity in eval")
class OnAtTest(Stock):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.body(x)))


@wrong(EVAL)
class ForcedIntoTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.batchformer.train()
        return self.head(two_streams(self.body(x), self.batchformer))


@wrong(EVAL, batch=(X, torch.zeros(6).long()))
class LabelsThreaded(Stock):
    """forward(x, y, is_train): eval() does not switch it off (seen in public)."""

    def forward(self, x: Tensor, y: Tensor, is_train: bool = True) -> Any:  # type: ignore[override]
        f = self.body(x)
        if is_train:
            f, y = torch.cat((f, self.mix(f))), torch.cat((y, y))
        return self.head(f), y


@pytest.mark.parametrize("name", WRONG)
def test_it_is_named_with_its_remedy(name: str) -> None:
    torch.manual_seed(0)
    case = WRONG[name]
    model, batch, options = case.build()
    result = check(model, batch, **options)
    assert {finding.question for finding in result.failures} == case.fails, str(result)
    assert not result and "acting" not in str(result)
    assert all(finding.remedy and finding.remedy in str(result) for finding in result.failures)
    assert case.says in str(result), str(result)


def test_the_readme_counts_them() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    assert f"{len(WRONG)} wrong models" in readme.read_text(encoding="utf-8")


def test_data_parallel_is_refused_with_what_to_do_instead() -> None:
    model = nn.DataParallel(attach(plain(), verbose=False))
    with pytest.raises(ValueError, match=r"torchrun.*DistributedDataParallel"):
        check(model, X)
