"""Models that look like BatchFormer and are not: check names what is wrong with each of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
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
    CALLED,
    EQUAL,
    EVAL,
    FIRST,
    LEARN,
    MEMBER,
    ON,
    OWN,
    SHARED,
    SIZE,
    STAY,
    STREAMS,
    THERE,
    TRAIN,
)
from helpers.mixing_models import C, Deep, Gated, K, Stock, TwoPlaces, made
from helpers.mixing_models import Mixing as Base

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0))


class WithoutEncoder(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.batchformer


class Wrong(NamedTuple):
    """A builder of a model, or of (model, batch, further arguments of check); what must fail."""

    build: Callable[[], Any]
    fails: set[str]
    says: str


WRONG: dict[str, Wrong] = {}


def wrong(by_verdict: dict[tuple[str, ...], dict[str, Callable[[], Any]]]) -> None:
    """Enter models into the zoo, by what fails and what is said."""
    for (*fails, says), models in by_verdict.items():
        WRONG.update({name: Wrong(build, set(fails), says) for name, build in models.items()})


def wrong_part(part: str, by_verdict: dict[tuple[str, ...], dict[str, tuple[Any, ...]]]) -> None:
    """Enter models that are their class but for one method: class, method, further parts."""
    for verdict, models in by_verdict.items():
        wrong({verdict: {n: made(b, *more, **{part: m}) for n, (b, m, *more) in models.items()}})


def attached(model: nn.Module | None = None, **options: Any) -> Any:
    return attach(plain() if model is None else model, verbose=False, **options)


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, C), nn.ReLU(), nn.Linear(C, K))


def changed(model: Any, change: Callable[[Any], object]) -> Any:
    change(model)
    return model


def optimized(model: nn.Module, left_out: Iterable[Tensor] = ()) -> Any:
    """The model, checked with an optimizer that does not have these parameters."""
    without = {id(p) for p in left_out}
    held = [p for p in model.parameters() if id(p) not in without]
    return model, X, {"optimizer": torch.optim.SGD(held, lr=0.1)}


def centred(f: Tensor) -> Tensor:
    return f - f.mean(0)


def shuffled(f: Tensor) -> Tensor:
    return f[torch.randperm(len(f))]


def causal(f: Tensor) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(len(f))


def over_length_one(qkv: Tensor) -> Tensor:
    """softmax(q k^T) v over an axis of length one, written by hand (seen in public)."""
    q, k, v = qkv.unsqueeze(1).chunk(3, -1)  # (N, 1, C) each
    return ((q @ k.transpose(1, 2) / C**0.5).softmax(-1) @ v).squeeze(1)


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
        (THERE, "no training pass calls it"): {"never called": (Base, lambda m, f: m.head(f))},
        (ATTEND, LEARN, "do not all reach the outputs"): {
            "thrown away": (Base, lambda m, f: [m.mix(f), m.out(f, f)][1]),
            "gated to zero": (Base, lambda m, f: m.out(f, f + 0.0 * m.mix(f))),
        },
        (ATTEND, LEARN, ""): {
            "dropped by a function": (Base, lambda m, f: m.out(f, f + F.dropout(m.mix(f), p=1.0)))
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
            )
        },
        (ATTEND, "small constant"): {
            "next to nothing": (Stock, lambda m, f: m.out(f, torch.lerp(f, m.mix(f), 1e-4)))
        },
        (ATTEND, "60 of 64 mixed rows do not depend on the first sample"): {
            "groups of four": (Base, lambda m, f: m.out(f, *map(m.mix, f.split(4))))
        },
        (ATTEND, "call the encoder once, with all rows"): {
            "stock, groups of sixteen": (Stock, lambda m, f: m.out(f, *map(m.mix, f.split(16))))
        },
        (ATTEND, "for batches of any size"): {
            "off in large batches": (Stock, lambda m, f: m.out(f, m.mix(f) if len(f) <= 4 else f))
        },
        (OWN, "do not pool"): {
            "pooled": (Base, lambda m, f: m.out(f, m.mix(f).mean(0).expand_as(f))),
            "stock, pooled": (Stock, lambda m, f: m.out(f, m.mix(f).mean(0).expand_as(f))),
        },
        (ALIVE, "is everything dropped"): {
            "dropout of one by a function": (Base, lambda m, f: Base.rows(m, F.dropout(f, 1.0)))
        },
        (SHARED, "50.9 to 42.4"): {
            "two heads": (Base, lambda m, f: torch.cat([m.head(f), m.head2(m.mix(f))]))
        },
        (SHARED, "last.weight acts on one stream alone"): {
            "further layer": (Base, lambda m, f: torch.cat([m.head(f), m.last(m.head(m.mix(f)))]))
        },
        (SHARED, "bias acts on one stream alone"): {
            "bias": (Base, lambda m, f: torch.cat([m.head(f), m.head(m.mix(f)) + m.bias]))
        },
        (SHARED, "scale acts on one stream alone"): {
            "scale": (Stock, lambda m, f: torch.cat([m.head(f), m.head(m.mix(f)) * m.scale]))
        },
        (EVAL, "training uses norm.weight, which eval does not"): {
            "norm in training alone": (Stock, lambda m, f: Stock.rows(m, m.norm(f)))
        },
        (EVAL, "training uses hidden.weight, which eval does not"): {
            "layer in training alone": (Base, lambda m, f: Base.rows(m, m.hidden(f)))
        },
        (SHARED, ONE_STREAM): {
            "stock, two heads": (Stock, lambda m, f: torch.cat([m.head(f), m.head2(m.mix(f))]))
        },
        (SHARED, ""): {
            "two outputs of two heads": (
                Base,
                lambda m, f: {"a": m.head(f), "b": m.head2(m.mix(f))},
            )
        },
        (TRAIN, "head.weight no gradient"): {
            "copied head": (
                Base,
                lambda m, f: torch.cat([m.head(f), copy.deepcopy(m.head)(m.mix(f))]),
            )
        },
        (LEARN, ""): {"mean": (WithoutEncoder, lambda m, f: m.out(f, 0.5 * f + 0.5 * f.mean(0)))},
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
            "mixed rows detached": (Base, lambda m, f: m.out(f, m.mix(f).detach()))
        },
        (LEARN, TRAIN, "rounded"): {
            "mixed rows rounded": (Base, lambda m, f: m.out(f, (8 * m.mix(f)).round() / 8))
        },
        # The encoder is registered, so that nothing is said about model.parameters().
        (LEARN, TRAIN, CUT_OFF): {
            "stock, detached": (Stock, lambda m, f: m.out(f, m.mix(f).detach())),
            "stock, rounded": (Stock, lambda m, f: m.out(f, (8 * m.mix(f)).round() / 8)),
        },
        (TRAIN, "detach() or no_grad()"): {
            "features detached": (Base, lambda m, f: m.out(f, m.mix(f.detach())))
        },
        (TRAIN, "plain rows give head.weight no gradient"): {
            "no gradient": (Base, lambda m, f: torch.cat([m.head(f).detach(), m.head(m.mix(f))]))
        },
        (TRAIN, "plain rows give the backbone no gradient"): {
            "plain features detached": (Base, lambda m, f: m.out(f.detach(), m.mix(f)))
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
            "layer at test alone": (Base, lambda m, f: m.head(m.hidden(f)))
        },
        (EVAL, "eval uses head2.weight, which training does not"): {
            "another head at test": (Base, lambda m, f: m.head2(f)),
            "stock, another head at test": (Stock, lambda m, f: m.head2(f)),
        },
    },
)


wrong_part(
    "mix",
    {
        (EQUAL, "positional encoding"): {
            "position code": (
                Base,
                lambda m, f: m.batchformer(f + m.positions[: len(f)]),
                lambda: {"positions": nn.Parameter(torch.randn(64, C))},
            )
        },
        (EQUAL, "causal mask"): {
            "causal mask": (Stock, lambda m, f: Stock.mix(m, f, src_mask=causal(f)))
        },
        (EQUAL, "recurrence"): {
            "recurrent over samples": (
                Base,
                lambda m, f: m.gru(f.unsqueeze(1))[0].squeeze(1),
                lambda: {"gru": nn.GRU(C, C // 2, bidirectional=True)},
            )
        },
        (ATTEND, LEARN, ""): {  # The gradient of each is a multiple of the other: both stay closed.
            "two gates of zero": (
                Base,
                lambda m, f: f + m.second * m.gate * m.batchformer(f),
                lambda: {name: nn.Parameter(torch.zeros(1)) for name in ("gate", "second")},
            )
        },
        (LEARN, "kept in a list"): {
            "kept in a list": (
                WithoutEncoder,
                lambda m, f: m.encoders[0](f),
                lambda: {"encoders": [BatchFormer(C, dropout=0.0)]},
            )
        },
    },
)


class OwnSwitchOff(Base):
    use_batchformer = False

    def rows(self, f: Tensor) -> Tensor:
        return super().rows(f) if self.use_batchformer else self.head(f)


class MixupByNumpy(Base):
    def rows(self, f: Tensor) -> Tensor:
        order = torch.from_numpy(numpy.random.permutation(len(f)))  # noqa: NPY002
        return super().rows(0.8 * f + 0.2 * f[order])


class MixupOfLogits(Base):
    def rows(self, f: Tensor) -> Tensor:
        logits = super().rows(f)
        return 0.8 * logits + 0.2 * shuffled(logits)


class RandomMixupAndNoiseForSomeEntries(Base):
    """How many random numbers are drawn depends on the samples, so that all rows move anyway."""

    def rows(self, f: Tensor) -> Tensor:
        some = f > 0
        f = f.masked_scatter(some, f[some] + 0.1 * torch.randn(int(some.sum())))
        return super().rows(0.8 * f + 0.2 * f.roll(1, 0))


class CutMixByPython(Base):
    def rows(self, f: Tensor) -> Tensor:
        shift, width = random.randint(1, len(f) - 1), C // 2
        return super().rows(torch.cat([f[:, :width], f.roll(shift, 0)[:, width:]], 1))


class MixedUpAfterThePlace(Base):
    def rows(self, f: Tensor) -> Tensor:
        f = two_streams(f, self.batchformer)
        return self.head(0.7 * f + 0.3 * f.flip(0))


class MixesInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, C), nn.Linear(C, K)

    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x).relu()
        return self.head(0.7 * f + 0.3 * f.flip(0) if self.training else f)


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
            f = 0.7 * f + 0.3 * shuffled(f)
        return self.head(f)


class MixedInTheBackwardPassAlone(Stock):
    """Straight through: the values of the mixed rows are those of the plain ones."""

    def rows(self, f: Tensor) -> Tensor:
        mixed = self.mix(f)
        return self.out(f, f + mixed - mixed.detach())


class LogitsMixedByNextToNothing(Base):
    def rows(self, f: Tensor) -> Tensor:
        logits = self.head(f)
        return torch.cat([logits, logits + 1e-5 * self.head(self.batchformer(f))])


class InSomeSteps(Stock):
    """Counts its training steps, and mixes in some of them."""

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


class InTheFirstStepsByADict(InSomeSteps):
    def counter(self) -> Any:
        self.counts = {"steps": 0}
        return 0.0

    def on(self) -> bool:
        self.counts["steps"] += 1
        return self.counts["steps"] < 10


class BothStreamsInTheFirstStepAlone(Base):
    warm = False

    def rows(self, f: Tensor) -> Tensor:
        warm, self.warm = self.warm, True
        return self.head(f if warm else two_streams(f, self.batchformer))


class UnsharedHiddenLayer(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.out(self.hidden(f), self.hidden2(self.mix(f)))

    def at_test(self, f: Tensor) -> Tensor:
        return self.head(self.hidden(f))


class TwoClassifiersBySlices(Base):
    def rows(self, f: Tensor) -> Tensor:
        plain, mixed = two_streams(f, self.batchformer).chunk(2)
        return torch.cat([self.head(plain), self.head2(mixed)])


class BiasOfEachStream(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.zeros(2, K))

    def rows(self, f: Tensor) -> Tensor:
        return super().rows(f) + self.biases.repeat_interleave(len(f), 0)


class ClassifierDetachedForMixedRows(Base):
    def rows(self, f: Tensor) -> Tensor:
        head = self.head
        mixed = F.linear(self.batchformer(f), head.weight.detach(), head.bias.detach())
        return torch.cat([head(f), mixed])


class FreshAndRegistered(Base):
    def rows(self, f: Tensor) -> Tensor:
        self.batchformer = BatchFormer(C, dropout=0.0)
        return super().rows(f)


class Large(nn.Module):
    """More weights than would be run with many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 1024), nn.Linear(1024, 1024), nn.Linear(1024, C))
        self.head = nn.Linear(C, K)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.head(part) for part in self.body(x).split(16)])


class OnAtTest(Stock):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.body(x)))


class ForcedIntoTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.batchformer.train()
        return self.head(two_streams(self.body(x), self.batchformer))


class LabelsThreaded(Stock):
    """forward(x, y, is_train): eval() does not switch it off (seen in public)."""

    def forward(self, x: Tensor, y: Tensor, is_train: bool = True) -> Any:
        f = self.body(x)
        if is_train:
            f, y = torch.cat((f, self.mix(f))), torch.cat((y, y))
        return self.head(f), y


wrong(
    {
        (THERE, "no training pass calls it"): {"own switch is off": OwnSwitchOff},
        (STAY, ""): {
            "mixup by NumPy": MixupByNumpy,
            "mixup of logits": MixupOfLogits,
            "random mixup and noise for some entries": RandomMixupAndNoiseForSomeEntries,
            "CutMix by Python": CutMixByPython,
            "rows centred by a hook": lambda: changed(
                attached(),
                lambda m: m[2].register_forward_hook(lambda module, args, out: centred(out)),
            ),
        },
        (STAY, "mixes samples elsewhere"): {
            "attached to a model that mixes in training": lambda: attached(MixesInTraining())
        },
        (STAY, "mixup"): {
            "mixed up after the place": MixedUpAfterThePlace,
            "tokens flattened": TokensFlattened,
        },
        (STAY, "depend on the encoder too"): {
            "second encoder on both streams": made(
                Base,
                lambda: {"second": BatchFormer(C)},
                rows=lambda m, f: m.head(m.second(two_streams(f, m.batchformer))),
            )
        },
        # Attention over something else.
        (ATTEND, "batch_first=False"): {
            "length one": lambda: Stock(batch_first=True),
            "deep, length one": lambda: Deep(batch_first=True),
        },
        (ATTEND, ""): {
            "length one by hand": made(
                Base, rows=lambda m, f: m.out(f, m.norm(f + over_length_one(m.qkv(f))))
            ),
            "over tokens": lambda: (made(Stock, mix=Base.mix)(batch_first=True), TOKENS, {}),
            "ours over tokens": lambda: (
                made(Base, lambda: {"batchformer": BatchFormer(C, batch_axis=1)})(),
                TOKENS,
                {},
            ),
            "mixed in the backward pass alone": MixedInTheBackwardPassAlone,
        },
        (ATTEND, "by 4e-06 of what it moves its own"): {
            "logits mixed by next to nothing": LogitsMixedByNextToNothing
        },
        (ATTEND, "not finite"): {
            "NaN in the encoder": lambda: changed(
                attached(),
                lambda m: nn.init.constant_(m[2].batchformer.layers[0].linear1.weight, torch.nan),
            )
        },
        # A gate that starts at zero, and is not trained.
        (ATTEND, LEARN, "do not all reach the outputs"): {
            "stays gated to zero": lambda: optimized(gated := Gated(torch.zeros(1)), [gated.gate])
        },
        (ATTEND, LEARN, ""): {"gate frozen at zero": lambda: Gated(torch.zeros(C), trained=False)},
        # A second place at which no sample attends to another, or only to some.
        (ATTEND, "in second every sample attends only to itself"): {
            "second place over length one": made(
                TwoPlaces,
                place=lambda m: nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=True),
                mix=lambda m, f: m.second(f.unsqueeze(1)).squeeze(1),
            ),
            "second place masked": made(
                TwoPlaces,
                place=lambda m: nn.MultiheadAttention(C, 4),
                mix=lambda m, f: f + m.second(f, f, f, attn_mask=~torch.eye(len(f)).bool())[0],
            ),
        },
        (ATTEND, LEARN, "in second every sample attends only to itself"): {
            "our second place over length one": made(
                TwoPlaces,
                place=lambda m: BatchFormer(C, batch_axis=1),
                mix=lambda m, f: m.second(f.unsqueeze(1)).squeeze(1),
            )
        },
        (ATTEND, "over an axis of length one"): {
            "second place over length one by hand": made(
                TwoPlaces,
                place=lambda m: nn.Linear(C, 3 * C),
                mix=lambda m, f: f + over_length_one(m.second(f)),
            ),
            "second place over length one by hand, and the backbone's softmax too": made(
                TwoPlaces,
                place=lambda m: nn.Linear(C, 3 * C),
                mix=lambda m, f: f + over_length_one(m.second(f)),
                rows=lambda m, f: TwoPlaces.rows(m, f * torch.softmax(input=f[:, :1], dim=-1)),
                at_test=lambda m, f: TwoPlaces.at_test(m, f * f[:, :1].softmax(-1)),
            ),
        },
        (ATTEND, "second attends over 8 of 64 samples"): {
            "second place in groups": made(
                TwoPlaces, mix=lambda m, f: torch.cat([m.second(part) for part in f.split(8)])
            )
        },
        (ATTEND, "without second the mixed rows change by"): {
            "second place of next to no effect": made(
                TwoPlaces, mix=lambda m, f: torch.lerp(f, m.second(f), 1e-5)
            )
        },
        # Samples attend now, and not in other training steps.
        (ATTEND, "in a later training step no mixed row depends on another sample"): {
            "in the first steps": made(InSomeSteps, on=lambda m: m.step < 100)
        },
        (ATTEND, "in every training step"): {
            "in every second step": made(
                InSomeSteps,
                counter=lambda m: nn.Buffer(torch.tensor(0)),
                on=lambda m: bool(m.step % 2 == 0),
            ),
            "in the first steps by a dict": InTheFirstStepsByADict,
            "both streams in the first step alone": BothStreamsInTheFirstStepAlone,
        },
        (ATTEND, "1 has a dropout of 1, so nothing passes it"): {
            "dropout of one before the place": lambda: attached(
                nn.Sequential(nn.Linear(8, C), nn.Dropout(1.0), nn.Linear(C, K))
            )
        },
        (ATTEND, "batchformer.self_attn has a dropout of 1"): {
            "stock drops everything": lambda: Stock(dropout=1.0),
            "stock drops all attention": lambda: changed(
                Stock(), lambda m: setattr(m.batchformer.self_attn, "dropout", 1.0)
            ),
        },
        (ATTEND, "call the encoder once, with all rows"): {
            "a large model in groups of sixteen": lambda: attached(Large())
        },
        # What was done to a model.
        (THERE, "call attach(model)"): {"no BatchFormer": plain},
        (THERE, "attach(model) again"): {
            "head replaced after attach": lambda: changed(
                attached(), lambda m: m.__setitem__(2, nn.Linear(C, K))
            ),
            "norms converted after attach": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(
                attached(
                    nn.Sequential(nn.Linear(8, C), nn.Linear(C, C), nn.BatchNorm1d(C), plain()[2]),
                    at="1",
                    batch_norm="per_stream",
                )
            ),
        },
        (THERE, "its encoder removed since"): {
            "encoder deleted after attach": lambda: changed(
                attached(), lambda m: delattr(m[2], "batchformer")
            )
        },
        (THERE, ""): {
            "forward replaced after attach": lambda: changed(
                attached(), lambda m: setattr(m[2], "forward", lambda f: F.linear(f, m[2].weight))
            )
        },
        (CALLED, "2.batchformer.layers.0.self_attn"): {
            "a part of the encoder that is never called": lambda: changed(
                attached(),
                lambda m: m[2].batchformer.layers[0].self_attn.register_forward_hook(print),
            )
        },
        (STREAMS, ""): {
            "attached to what doubles already": made(
                Base, lambda: {"head": attached(nn.Sequential(nn.Linear(C, C), nn.Linear(C, K)))}
            )
        },
        # Classifiers and gradients.
        (SHARED, "hidden.weight acts on one stream alone"): {
            "unshared hidden layer": UnsharedHiddenLayer
        },
        (SHARED, ""): {"two classifiers by slices": TwoClassifiersBySlices},
        (SHARED, "biases acts on one stream alone"): {"bias of each stream": BiasOfEachStream},
        (TRAIN, "head.weight no gradient"): {
            "classifier detached for mixed rows": ClassifierDetachedForMixedRows
        },
        (LEARN, "unused.layers.0"): {
            "second encoder never called": made(Base, lambda: {"unused": BatchFormer(C)})
        },
        (LEARN, "12 of 12 parameters are frozen"): {
            "frozen encoder": lambda: changed(
                attached(), lambda m: m[2].batchformer.requires_grad_(False)
            ),
            "stock frozen": lambda: changed(Stock(), lambda m: m.batchformer.requires_grad_(False)),
        },
        (LEARN, "4 of 12 parameters are frozen"): {
            "stock attention frozen": lambda: changed(
                Stock(), lambda m: m.batchformer.self_attn.requires_grad_(False)
            )
        },
        (LEARN, "once, in __init__"): {"fresh and registered": FreshAndRegistered},
        # Fixed features that are much smaller than mixed rows.
        (SIZE, "attach(model, scale=0.062)"): {
            "embeddings of length one": lambda: (
                attached(nn.Sequential(nn.Identity(), nn.Linear(256, K))),
                F.normalize(torch.randn(6, 256), dim=1),
                {},
            )
        },
        (SIZE, "nothing before the encoder is trained"): {
            "small features of a frozen backbone": lambda: changed(
                attached(),
                lambda m: [p.requires_grad_(False).mul_(0.02) for p in m[0].parameters()],
            )
        },
        # Batches of other sizes.
        (FIRST, "order of samples"): {
            "two samples reversed": lambda: (
                made(Base, rows=lambda m, f: m.out(f, m.mix(f).flip(0)))(),
                X[:2],
                {},
            ),
            "three samples rolled": lambda: (
                made(Stock, rows=lambda m, f: m.out(f, m.mix(f).roll(1, 0)))(),
                X[:3],
                {},
            ),
        },
        # Modes.
        (ON, "call model.train()"): {
            "switched off": lambda: changed(attached(), lambda m: m[2].batchformer.eval())
        },
        (ON, ""): {
            "one of two places switched off": lambda: changed(
                attached(
                    nn.Sequential(nn.Linear(8, C), nn.Linear(C, C), nn.Linear(C, K)), at=["1", "2"]
                ),
                lambda m: m[2].batchformer.eval(),
            ),
            "own code switched off": lambda: changed(Base(), lambda m: m.batchformer.eval()),
        },
        (STREAMS, EVAL, "identity in eval"): {"on at test": OnAtTest},
        (EVAL, ""): {
            "forced into training": ForcedIntoTraining,
            "labels threaded": lambda: (LabelsThreaded(), (X, torch.zeros(6).long()), {}),
        },
    }
)


# The optimizer, and weight decay.


def built_first() -> Any:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="NOT BE TRAINED"):
        attached(model)
    return model, X, {"optimizer": optimizer}


def encoder_at_rate_zero() -> Any:
    model = attached()
    groups = param_groups(model, lr=0.1, lr_factor=0.0)
    return model, X, {"optimizer": torch.optim.SGD(groups)}


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
    model, y = attached(), torch.arange(len(X)) % K
    groups = param_groups(model, 0.1, 1.0, weight_decay=0.0, module_weight_decay=1.5)
    optimizer = torch.optim.SGD(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(X)
        F.cross_entropy(logits, match(logits, y)).backward()
        optimizer.step()
    return model


wrong(
    {
        (MEMBER, "after attach"): {"optimizer built first": built_first},
        (MEMBER, "8 of 12 parameters"): {
            "optimizer without the attention": lambda: optimized(
                model := Stock(), model.batchformer.self_attn.parameters()
            )
        },
        (MEMBER, "12 of them at a rate of 0"): {"encoder at rate zero": encoder_at_rate_zero},
        (MEMBER, "give the encoder a learning rate"): {
            "stock encoder at rate zero": stock_encoder_at_rate_zero
        },
        (ALIVE, "module_weight_decay"): {"taken away by weight decay": lambda: decayed(19)},
        (ALIVE, ATTEND, "module_weight_decay"): {
            "nothing left by weight decay": lambda: decayed(95)
        },
    }
)


# Several outputs, of which one is wrong.


class TwoHeads(Base):
    """A second head beside the first, both in a dict."""

    def at_test(self, f: Tensor) -> Any:
        return self.both(self.head(f), self.attributes(f))

    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return {"logits": logits, "attributes": attributes}

    def rows(self, f: Tensor) -> Any:
        return self.both(super().rows(f), self.attributes(self.second_rows(f)))


class OutputsOfATuple(TwoHeads):
    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return logits, attributes


class OutputsOfATupleTurned(TwoHeads):
    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return attributes, logits


wrong_part(
    "second_rows",
    {
        (STAY, "outputs['attributes']: replacing one sample moves 3 of 3 others"): {
            "second output centred": (TwoHeads, lambda m, f: centred(f))
        },
        (FIRST, "outputs['attributes']: mixed, plain"): {
            "second output mixed first": (TwoHeads, lambda m, f: torch.cat([m.mix(f), f]))
        },
        (FIRST, "outputs['attributes']: the rows of a stream are not in the order"): {
            "second output rolled": (TwoHeads, lambda m, f: torch.cat([f, m.mix(f).roll(1, 0)]))
        },
        (ATTEND, "outputs[1]: 0 of 3 mixed rows depend on another sample"): {
            "second output plain twice": (OutputsOfATuple, lambda m, f: torch.cat([f, f]))
        },
        (ATTEND, "outputs[0]: 0 of 3 mixed rows depend on another sample"): {
            "first output plain twice": (OutputsOfATupleTurned, lambda m, f: torch.cat([f, f]))
        },
        (EQUAL, "outputs['attributes']: their mixed rows differ"): {
            "second output causal": (
                TwoHeads,
                lambda m, f: torch.cat([f, m.causal(f[:, None], src_mask=causal(f)).squeeze(1)]),
                lambda: {"causal": nn.TransformerEncoderLayer(C, 4, C, 0.5)},
            )
        },
    },
)


@pytest.mark.parametrize("name", WRONG)
def test_it_is_named_with_its_remedy(name: str) -> None:
    torch.manual_seed(0)
    case = WRONG[name]
    built = case.build()
    model, batch, options = built if isinstance(built, tuple) else (built, X, {})
    result = check(model, batch, **options)
    assert {finding.question for finding in result.failures} == case.fails, str(result)
    assert not result and "acting" not in str(result)
    assert all(finding.remedy and finding.remedy in str(result) for finding in result.failures)
    assert case.says in str(result), str(result)


def test_the_readme_counts_them() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    assert f"{len(WRONG)} wrong models" in readme.read_text(encoding="utf-8")


def test_data_parallel_is_refused_with_what_to_do_instead() -> None:
    model = nn.DataParallel(attached())
    with pytest.raises(ValueError, match=r"torchrun.*DistributedDataParallel"):
        check(model, X)
