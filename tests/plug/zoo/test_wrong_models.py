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
    """A backbone, our encoder, two classifiers; subclasses say how they are put together."""

    batchformer: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, C), nn.LayerNorm(C), nn.ReLU(), nn.Dropout(0.3), nn.Linear(C, C)
        )
        self.batchformer = BatchFormer(C)
        self.head, self.head2 = nn.Linear(C, K), nn.Linear(C, K)

    def forward(self, x: Tensor) -> Any:
        f = self.body(x)
        return self.rows(f) if self.training else self.head(f)

    def rows(self, f: Tensor) -> Any:
        raise NotImplementedError


class Stock(Base):
    """The encoder is a stock layer over (N, 1, C)."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=batch_first)

    def mix(self, f: Tensor, **options: Any) -> Tensor:
        return self.batchformer(f.unsqueeze(1), **options).squeeze(1)


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


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, C), nn.ReLU(), nn.Linear(C, K))


@wrong(ATTEND, says="not finite")
def nan_in_the_encoder() -> nn.Module:
    model = attach(plain(), verbose=False)
    with torch.no_grad():
        model[2].batchformer.layers[0].linear1.weight.fill_(torch.nan)  # type: ignore[union-attr]
    return model


# The encoder's rows do not arrive.


@wrong(ATTEND, LEARN, says="do not all reach the outputs")
class ThrownAway(Base):
    def rows(self, f: Tensor) -> Tensor:
        self.batchformer(f)
        return self.head(torch.cat([f, f]))


@wrong(ATTEND, LEARN, says="do not all reach the outputs")
class GatedToZero(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + 0.0 * self.batchformer(f)]))


@wrong(ATTEND, LEARN, says="do not all reach the outputs")
def stays_gated_to_zero() -> tuple[nn.Module, Any, dict[str, Any]]:
    """A gate that starts at zero and is not in the optimizer stays closed."""
    model = Gated(torch.zeros(1))
    held = [p for p in model.parameters() if p is not model.gate]
    return model, X, {"optimizer": torch.optim.SGD(held, lr=0.1)}


class Gated(Base):
    def __init__(self, gate: Tensor, trained: bool = True) -> None:
        super().__init__()
        self.gate = nn.Parameter(gate, trained)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + self.gate * self.batchformer(f)]))


@wrong(ATTEND, LEARN)
def gate_is_frozen_at_zero() -> nn.Module:
    return Gated(torch.zeros(C), trained=False)


@wrong(ATTEND, LEARN)
class TwoGatesOfZero(Gated):
    """The gradient of each is a multiple of the other: both stay closed."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(1))
        self.second = nn.Parameter(torch.zeros(1))

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + self.second * self.gate * self.batchformer(f)]))


@wrong(ATTEND)
class StockGatedToZero(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + 0.0 * self.mix(f)]))


@wrong(ATTEND)
class NoiseInsteadOfAttention(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.batchformer

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + 0.1 * torch.randn_like(f)]))


@wrong(THERE, says="no training pass calls it")
class OwnSwitchOff(Base):
    use_batchformer = False

    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, self.batchformer) if self.use_batchformer else f)


@wrong(STREAMS)
class RowsLost(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, self.batchformer))[:-1]


@wrong(ATTEND, says="of 3 mixed rows depend")
class HalfOfTheSamples(Base):
    def rows(self, f: Tensor) -> Tensor:
        mixed = torch.stack(
            [m if i % 2 else r for i, (m, r) in enumerate(zip(self.batchformer(f), f, strict=True))]
        )
        return self.head(torch.cat([f, mixed]))


@wrong(THERE, says="no training pass calls it")
class NeverCalled(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(f)


@wrong(THERE, says="call attach(model)")
def no_batchformer() -> nn.Module:
    return plain()


@wrong(THERE, says="attach(model) again")
def head_replaced_after_attach() -> nn.Module:
    model = attach(plain(), verbose=False)
    model[2] = nn.Linear(C, K)
    return model


# Streams.


@wrong(STREAMS)
class MixedAlone(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(self.batchformer(f))


@wrong(STREAMS)
class StreamsAveraged(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head((f + self.batchformer(f)) / 2)


@wrong(STREAMS)
class ThreeStreams(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f), self.batchformer(f)]))


@wrong(STREAMS)
def attached_to_what_doubles_already() -> nn.Module:
    class Doubles(Base):
        def rows(self, f: Tensor) -> Tensor:
            return self.head(two_streams(f, self.batchformer))

    model = Doubles()
    model.head = attach(nn.Sequential(nn.Linear(C, C), nn.Linear(C, K)), verbose=False)
    return model


@wrong(STAY, says="depend on the encoder too")
class NoPlainRows(Base):
    def rows(self, f: Tensor) -> Tensor:
        mixed = self.batchformer(f)
        return self.head(torch.cat([mixed, mixed]))


@wrong(STAY, says="depend on the encoder too")
class EncoderAfterDoubling(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(self.batchformer(torch.cat([f, f])))


@wrong(STAY, says="depend on the encoder too")
class SecondEncoderOnBothStreams(Base):
    def __init__(self) -> None:
        super().__init__()
        self.second = BatchFormer(C)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(self.second(two_streams(f, self.batchformer)))


# The order of rows.


@wrong(FIRST, says="not in the order of samples")
class HalvesOfTheMixedRowsSwapped(Base):
    def rows(self, f: Tensor) -> Tensor:
        first, second = self.batchformer(f).chunk(2)
        return self.head(torch.cat([f, second, first]))


@wrong(FIRST, says="not in the order of samples")
class TwoMixedRowsExchanged(Base):
    def rows(self, f: Tensor) -> Tensor:
        order = torch.arange(len(f))
        order[1], order[3] = 3, 1
        return self.head(torch.cat([f, self.batchformer(f)[order]]))


@wrong(FIRST, says="mixed, plain")
class MixedFirst(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([self.batchformer(f), f]))


@wrong(FIRST, says="mixed, plain")
class StockMixedFirst(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([self.mix(f), f]))


@wrong(FIRST, says="in turn")
class Interleaved(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.stack([f, self.batchformer(f)], 1).flatten(0, 1))


@wrong(FIRST, says="in turn")
class InterleavedMixedFirst(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.stack([self.batchformer(f), f], 1).flatten(0, 1))


@wrong(FIRST, says="order of samples")
class MixedRowsReversed(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f).flip(0)]))


@wrong(FIRST, says="order of samples")
class MixedRowsShuffled(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f[torch.randperm(len(f))])]))


@wrong(FIRST, says="order of samples")
class PlainRowsReversed(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f.flip(0), self.batchformer(f)]))


@wrong(FIRST, says="order of samples")
class BothStreamsRolled(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f.roll(1, 0), self.batchformer))


# Plain rows that are not plain.


@wrong(STAY, says="mixup")
class MixedUpAfterThePlace(Base):
    def rows(self, f: Tensor) -> Tensor:
        f = two_streams(f, self.batchformer)
        return self.head(0.7 * f + 0.3 * f.flip(0))


@wrong(STAY)
class CentredAfterTheHead(Base):
    def rows(self, f: Tensor) -> Tensor:
        o = self.head(two_streams(f, self.batchformer))
        return o - o.mean(0)


@wrong(STAY)
class CentredBeforeThePlace(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f - f.mean(0), self.batchformer))


@wrong(STAY)
class StatisticsByHand(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams((f - f.mean(0)) / f.std(0), self.batchformer))


@wrong(STAY)
class RandomMixup(Base):
    def rows(self, f: Tensor) -> Tensor:
        f = 0.8 * f + 0.2 * f[torch.randperm(len(f))]
        return self.head(two_streams(f, self.batchformer))


@wrong(STAY)
class MixupOfLogits(Base):
    def rows(self, f: Tensor) -> Tensor:
        o = self.head(two_streams(f, self.batchformer))
        return 0.8 * o + 0.2 * o[torch.randperm(len(o))]


@wrong(STAY)
class RandomMixupAndNoiseForSomeEntries(Base):
    """How many random numbers are drawn depends on the samples, so that all rows move anyway."""

    def rows(self, f: Tensor) -> Tensor:
        some = f > 0
        f = f.masked_scatter(some, f[some] + 0.1 * torch.randn(int(some.sum())))
        return self.head(two_streams(0.8 * f + 0.2 * f.roll(1, 0), self.batchformer))


@wrong(STAY)
class CutMixByPython(Base):
    def rows(self, f: Tensor) -> Tensor:
        shift, width = random.randint(1, len(f) - 1), C // 2
        f = torch.cat([f[:, :width], f.roll(shift, 0)[:, width:]], 1)
        return self.head(two_streams(f, self.batchformer))


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


wrong(STAY, says="mixup")(TokensFlattened)


@wrong(STAY)
class SoftmaxOverRows(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, self.batchformer)).log_softmax(0)


@wrong(STAY)
class MixupByNumpy(Base):
    def rows(self, f: Tensor) -> Tensor:
        order = torch.from_numpy(numpy.random.permutation(len(f)))  # noqa: NPY002
        return self.head(two_streams(0.8 * f + 0.2 * f[order], self.batchformer))


# Attention over something else, or with an order of samples.


@wrong(ATTEND, says="batch_first=False")
def length_one_axis() -> nn.Module:
    class LengthOne(Stock):
        def rows(self, f: Tensor) -> Tensor:
            return self.head(torch.cat([f, self.mix(f)]))

    return LengthOne(batch_first=True)


@wrong(ATTEND)
class LengthOneByHand(Base):
    """softmax(q k^T) v over an axis of length one, written by hand (seen in public)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(C, 3 * C), nn.LayerNorm(C)

    def rows(self, f: Tensor) -> Tensor:
        q, k, v = self.qkv(f.unsqueeze(1)).chunk(3, -1)  # (N, 1, C) each
        mixed = ((q @ k.transpose(1, 2) / C**0.5).softmax(-1) @ v).squeeze(1)
        return self.head(torch.cat([f, self.norm(f + mixed)]))


@wrong(ATTEND)
class SamplesAsBatch(Stock):
    def rows(self, f: Tensor) -> Tensor:  # (1, N, C): a sequence of one, N times
        return self.head(torch.cat([f, self.batchformer(f.unsqueeze(0)).squeeze(0)]))


@wrong(ATTEND, batch=TOKENS)
class OverTokens(Base):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=True)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f)]))


@wrong(ATTEND, batch=TOKENS)
class OursOverTokens(Base):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer = BatchFormer(C, batch_axis=1)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f)]))


class Deep(Stock):
    """After so many untrained layers, all samples have almost the same features."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__(batch_first)
        hidden = (part for _ in range(40) for part in (nn.Linear(C, C), nn.ReLU()))
        self.body = nn.Sequential(nn.Linear(8, C), *hidden)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f)]))


@wrong(ATTEND, says="batch_first=False")
def deep_length_one_axis() -> nn.Module:
    return Deep(batch_first=True)


@wrong(FIRST, says="mixed, plain")
class DeepMixedFirst(Deep):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([self.mix(f), f]))


@wrong(ATTEND)
class NextToNoAttention(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + 1e-6 * self.mix(f)]))


@wrong(ATTEND)
class MixedInTheBackwardPassAlone(Stock):
    """Straight through: the values of the mixed rows are those of the plain ones."""

    def rows(self, f: Tensor) -> Tensor:
        mixed = self.mix(f)
        return self.head(torch.cat([f, f + mixed - mixed.detach()]))


@wrong(ATTEND)
class MixedRowsDependOnNothing(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(
            torch.cat([f, F.layer_norm(self.mix(f).mean(1, keepdim=True), (1,)) + 0 * f])
        )


@wrong(EQUAL, says="positional encoding")
class PositionCode(Base):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(64, C))

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f + self.positions[: len(f)])]))


@wrong(EQUAL, says="causal mask")
class CausalMask(Stock):
    def rows(self, f: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(f))
        return self.head(torch.cat([f, self.mix(f, src_mask=mask)]))


@wrong(EQUAL, says="recurrence")
class RecurrentOverSamples(Base):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C // 2, bidirectional=True)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.gru(f.unsqueeze(1))[0].squeeze(1)]))


@wrong(ATTEND)
class MaskedToItself(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f, src_mask=~torch.eye(len(f)).bool())]))


@wrong(ATTEND, says="by 4e-06 of what it moves its own")
class LogitsMixedByNextToNothing(Base):
    def rows(self, f: Tensor) -> Tensor:
        logits = self.head(f)
        return torch.cat([logits, logits + 1e-5 * self.head(self.batchformer(f))])


@wrong(ATTEND, says="small constant")
class FeaturesMixedByNextToNothing(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, torch.lerp(f, self.mix(f), 1e-4)]))


# A second place at which no sample attends to another, or only to some. The first place is right.


class TwoPlaces(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.second = nn.Linear(C, C), self.place()

    def place(self) -> nn.Module:
        return BatchFormer(C)

    def mix(self, f: Tensor) -> Tensor:
        raise NotImplementedError

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
        return self.head(torch.cat([f, mixed]))


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


# Nothing of the samples reaches the encoder.


@wrong(ATTEND, says="1 has a dropout of 1, so nothing passes it")
def dropout_of_one_before_the_place() -> nn.Module:
    layers = nn.Linear(8, C), nn.Dropout(1.0), nn.Linear(C, K)
    return attach(nn.Sequential(*layers), verbose=False)


@wrong(ALIVE, says="is everything dropped")
class DropoutOfOneByAFunction(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(F.dropout(f, 1.0), self.batchformer))


# Classifiers.


@wrong(SHARED, says="50.9 to 42.4")
class TwoClassifiers(Base):
    def rows(self, f: Tensor) -> Tensor:
        return torch.cat([self.head(f), self.head2(self.batchformer(f))])


@wrong(SHARED, says="head.weight acts on one stream alone")
class StockTwoClassifiers(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return torch.cat([self.head(f), self.head2(self.mix(f))])


@wrong(TRAIN, says="head.weight no gradient")
class CopiedClassifier(Base):
    def rows(self, f: Tensor) -> Tensor:
        return torch.cat([self.head(f), copy.deepcopy(self.head)(self.batchformer(f))])


@wrong(SHARED, says="hidden.weight acts on one stream alone")
class UnsharedHiddenLayer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.hidden2 = nn.Linear(C, C), nn.Linear(C, C)

    def rows(self, f: Tensor) -> Tensor:
        f = torch.cat([self.hidden(f), self.hidden2(self.batchformer(f))])
        return self.head(f)

    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        return self.rows(f) if self.training else self.head(self.hidden(f))


@wrong(SHARED, says="last.weight acts on one stream alone")
class FurtherLayerForMixedRows(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(K, K)

    def rows(self, f: Tensor) -> Tensor:
        return torch.cat([self.head(f), self.last(self.head(self.batchformer(f)))])


@wrong(SHARED)
class TwoOutputsOfTwoClassifiers(Base):
    def rows(self, f: Tensor) -> dict[str, Tensor]:
        return {"plain": self.head(f), "mixed": self.head2(self.batchformer(f))}


@wrong(SHARED)
class TwoClassifiersBySlices(Base):
    def rows(self, f: Tensor) -> Tensor:
        plain, mixed = two_streams(f, self.batchformer).chunk(2)
        return torch.cat([self.head(plain), self.head2(mixed)])


# Gradients.


@wrong(LEARN, TRAIN)
class OutputsDetached(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, self.batchformer)).detach()


@wrong(LEARN, says="unused.layers.0")
class SecondEncoderNeverCalled(Base):
    def __init__(self) -> None:
        super().__init__()
        self.unused = BatchFormer(C)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, self.batchformer))


@wrong(LEARN, TRAIN, says="not detached")
class MixedRowsDetached(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f).detach()]))


@wrong(LEARN, TRAIN)
class EncoderWithoutGrad(Base):
    def rows(self, f: Tensor) -> Tensor:
        with torch.no_grad():
            mixed = self.batchformer(f)
        return self.head(torch.cat([f, mixed]))


@wrong(TRAIN, says="detach() or no_grad()")
class FeaturesDetached(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f.detach())]))


@wrong(TRAIN, says="head.weight no gradient")
class ClassifierDetachedForMixedRows(Base):
    def rows(self, f: Tensor) -> Tensor:
        head = self.head
        mixed = F.linear(self.batchformer(f), head.weight.detach(), head.bias.detach())
        return torch.cat([head(f), mixed])


@wrong(TRAIN, says="plain rows give head.weight no gradient")
class PlainRowsWithoutGrad(Base):
    def rows(self, f: Tensor) -> Tensor:
        with torch.no_grad():
            plain = self.head(f)
        return torch.cat([plain, self.head(self.batchformer(f))])


@wrong(TRAIN, says="plain rows give the backbone no gradient")
class PlainFeaturesDetached(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f.detach(), self.batchformer(f)]))


@wrong(LEARN, says="parameters are frozen")
def frozen_encoder() -> nn.Module:
    model: Any = attach(plain(), verbose=False)
    model[2].batchformer.requires_grad_(False)
    return model


@wrong(LEARN, says="parameters are frozen")
class StockFrozen(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer.requires_grad_(False)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f)]))


@wrong(LEARN, says="4 of 12 parameters are frozen")
class StockAttentionFrozen(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer.self_attn.requires_grad_(False)  # type: ignore[union-attr]

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f)]))


@wrong(ATTEND, says="batchformer.self_attn has a dropout of 1")
class StockDropsEverything(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, 1.0)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f)]))


@wrong(ATTEND, says="batchformer.self_attn has a dropout of 1")
class StockDropsAllAttention(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer.self_attn.dropout = 1.0  # type: ignore[union-attr]

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f)]))


@wrong(ATTEND, LEARN)
class MixedRowsDroppedByAFunction(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, f + F.dropout(self.batchformer(f), p=1.0)]))


CUT_OFF = "batchformer.self_attn.in_proj_weight acts on the mixed rows and receives no gradient"


@wrong(LEARN, TRAIN, says=CUT_OFF)
class StockMixedRowsDetached(Stock):
    """The encoder is registered, so that nothing is said about model.parameters()."""

    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f).detach()]))


@wrong(LEARN, TRAIN, says=CUT_OFF)
class StockMixedRowsRounded(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, (8 * self.mix(f)).round() / 8]))


@wrong(LEARN, TRAIN, says="rounded")
class MixedRowsRounded(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, (8 * self.batchformer(f)).round() / 8]))


@wrong(LEARN, says="once, in __init__")
class FreshEncoder(Base):
    """A new encoder at every call: it never learns (seen in public)."""

    def __init__(self) -> None:
        super().__init__()
        del self.batchformer

    def rows(self, f: Tensor) -> Tensor:
        encoder = nn.TransformerEncoderLayer(C, 4, C, 0.0)
        return self.head(torch.cat([f, encoder(f.unsqueeze(1)).squeeze(1)]))


@wrong(LEARN, says="once, in __init__")
class FreshBatchFormer(FreshEncoder):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, BatchFormer(C, dropout=0.0)))


@wrong(LEARN, says="once, in __init__")
class FreshAndRegistered(Base):
    def rows(self, f: Tensor) -> Tensor:
        self.batchformer = BatchFormer(C, dropout=0.0)
        return self.head(two_streams(f, self.batchformer))


@wrong(LEARN, says="kept in a list")
class KeptInAList(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.batchformer
        self.encoders = [BatchFormer(C, dropout=0.0)]

    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(f, self.encoders[0]))


@wrong(LEARN)
class MeanInsteadOfEncoder(FreshEncoder):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, 0.5 * f + 0.5 * f.mean(0)]))


@wrong(MEMBER, says="after attach")
def optimizer_built_first() -> tuple[nn.Module, Any, dict[str, Any]]:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="NOT BE TRAINED"):
        attach(model, verbose=False)
    return model, X, {"optimizer": optimizer}


def stock() -> Stock:
    class Right(Stock):
        def rows(self, f: Tensor) -> Tensor:
            return self.head(torch.cat([f, self.mix(f)]))

    return Right()


@wrong(MEMBER, says="8 of 12 parameters")
def optimizer_without_the_attention() -> tuple[nn.Module, Any, dict[str, Any]]:
    model = stock()
    left_out = {id(p) for p in model.batchformer.self_attn.parameters()}  # type: ignore[union-attr]
    held = [p for p in model.parameters() if id(p) not in left_out]
    return model, X, {"optimizer": torch.optim.SGD(held, lr=0.1)}


@wrong(MEMBER, says="12 of them at a rate of 0")
def encoder_at_rate_zero() -> tuple[nn.Module, Any, dict[str, Any]]:
    model = attach(plain(), verbose=False)
    groups = param_groups(model, lr=0.1, lr_factor=0.0)
    return model, X, {"optimizer": torch.optim.SGD(groups)}


@wrong(MEMBER, says="give the encoder a learning rate")
def stock_encoder_at_rate_zero() -> tuple[nn.Module, Any, dict[str, Any]]:
    model = stock()
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

    def forward(self, x: Tensor) -> Any:
        f = self.body(x)
        return self.rows(f) if self.training else self.both(self.head(f), self.attributes(f))

    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return {"logits": logits, "attributes": attributes}


@wrong(STAY, says="outputs['attributes']: replacing one sample moves 3 of 3 others")
class SecondOutputCentred(TwoHeads):
    def rows(self, f: Tensor) -> Any:
        logits = self.head(two_streams(f, self.batchformer))
        return self.both(logits, self.attributes(f - f.mean(0)))


@wrong(FIRST, says="outputs['attributes']: mixed, plain")
class SecondOutputMixedFirst(TwoHeads):
    def rows(self, f: Tensor) -> Any:
        mixed = self.batchformer(f)
        attributes = self.attributes(torch.cat([mixed, f]))
        return self.both(self.head(torch.cat([f, mixed])), attributes)


@wrong(FIRST, says="outputs['attributes']: the rows of a stream are not in the order")
class SecondOutputRolled(TwoHeads):
    def rows(self, f: Tensor) -> Any:
        mixed = self.batchformer(f)
        attributes = self.attributes(torch.cat([f, mixed.roll(1, 0)]))
        return self.both(self.head(torch.cat([f, mixed])), attributes)


@wrong(ATTEND, says="outputs[1]: 0 of 3 mixed rows depend on another sample")
class SecondOutputOfATuplePlainTwice(TwoHeads):
    def both(self, logits: Tensor, attributes: Tensor) -> Any:
        return logits, attributes

    def rows(self, f: Tensor) -> Any:
        logits = self.head(two_streams(f, self.batchformer))
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
        logits = self.head(two_streams(f, self.batchformer))
        return self.both(logits, self.attributes(torch.cat([f, mixed])))


# Mixed rows that are not those of their samples, and attention that does not reach all.


@wrong(OWN, says="do not pool")
class AllMixedRowsTheSame(Base):
    def rows(self, f: Tensor) -> Tensor:
        pooled = self.batchformer(f).mean(0, keepdim=True)
        return self.head(torch.cat([f, pooled.expand_as(f)]))


@wrong(OWN, says="do not pool")
class StockAllMixedRowsTheSame(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f).mean(0, keepdim=True).expand_as(f)]))


@wrong(ATTEND, says="60 of 64 mixed rows do not depend on the first sample")
class GroupsOfFour(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, *(self.batchformer(part) for part in f.split(4))]))


@wrong(ATTEND, says="call the encoder once, with all rows")
class StockGroupsOfSixteen(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, *(self.mix(part) for part in f.split(16))]))


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


@wrong(ATTEND, says="for batches of any size")
class OffInLargeBatches(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f) if len(f) <= 4 else f]))


@wrong(FIRST, says="order of samples", batch=X[:2])
class TwoSamplesReversed(Base):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.batchformer(f).flip(0)]))


@wrong(FIRST, says="order of samples", batch=X[:3])
class ThreeSamplesRolled(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(torch.cat([f, self.mix(f).roll(1, 0)]))


# A bias or a scale for one stream.


@wrong(SHARED, says="bias acts on one stream alone")
class BiasForMixedRows(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(K))

    def rows(self, f: Tensor) -> Tensor:
        return torch.cat([self.head(f), self.head(self.batchformer(f)) + self.bias])


@wrong(SHARED, says="scale acts on one stream alone")
class StockScaleForMixedRows(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def rows(self, f: Tensor) -> Tensor:
        return torch.cat([self.head(f), self.head(self.mix(f)) * self.scale])


@wrong(SHARED, says="biases acts on one stream alone")
class BiasOfEachStream(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.zeros(2, K))

    def rows(self, f: Tensor) -> Tensor:
        logits = self.head(torch.cat([f, self.mix(f)]))
        return logits + self.biases.repeat_interleave(len(f), 0)


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
def own_code_switched_off() -> nn.Module:
    class Right(Base):
        def rows(self, f: Tensor) -> Tensor:
            return self.head(two_streams(f, self.batchformer))

    model = Right().train()
    model.batchformer.eval()
    return model


@wrong(STREAMS, EVAL, says="identity in eval")
class OnAtTest(Stock):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.body(x)))


@wrong(STREAMS)
class StockWithoutSecondStream(Stock):
    def rows(self, f: Tensor) -> Tensor:
        return self.head(self.mix(f))


@wrong(EVAL)
class DoubledAtTest(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        return self.head(torch.cat([f, self.batchformer.mix(f)]))


@wrong(EVAL)
class StreamsAveragedAtTest(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        mixed = self.batchformer.mix(f)
        return self.head(torch.cat([f, mixed]) if self.training else (f + mixed) / 2)


@wrong(EVAL, says="depend on the encoder")
class OneByOneAtTest(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        if self.training:
            return self.head(two_streams(f, self.batchformer))
        return self.head(torch.cat([self.batchformer.mix(row[None]) for row in f]))


@wrong(EVAL, says="depend on the encoder")
class StockOneByOneAtTest(Stock):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        if self.training:
            return self.head(torch.cat([f, self.mix(f)]))
        return self.head(torch.cat([self.mix(row[None]) for row in f]))


@wrong(EVAL)
class ForcedIntoTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.batchformer.train()
        return self.head(two_streams(self.body(x), self.batchformer))


class LabelsThreaded(Stock):
    """forward(x, y, is_train): eval() does not switch it off (seen in public)."""

    def forward(self, x: Tensor, y: Tensor, is_train: bool = True) -> Any:  # type: ignore[override]
        f = self.body(x)
        if is_train:
            f, y = torch.cat((f, self.mix(f))), torch.cat((y, y))
        return self.head(f), y


wrong(EVAL, batch=(X, torch.zeros(6).long()))(LabelsThreaded)


@wrong(EVAL, says="eval uses head2.weight, which training does not")
class AnotherHeadAtTest(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        return self.head(two_streams(f, self.batchformer)) if self.training else self.head2(f)


@wrong(EVAL, says="eval uses head2.weight, which training does not")
class StockAnotherHeadAtTest(Stock):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        return self.head(torch.cat([f, self.mix(f)])) if self.training else self.head2(f)


@wrong(EVAL, says="training uses norm.weight, which eval does not")
class NormInTrainingAlone(Stock):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(C)

    def rows(self, f: Tensor) -> Tensor:
        f = self.norm(f)
        return self.head(torch.cat([f, self.mix(f)]))


@wrong(EVAL, says="training uses hidden.weight, which eval does not")
class LayerInTrainingAlone(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(C, C)

    def rows(self, f: Tensor) -> Tensor:
        return self.head(two_streams(self.hidden(f), self.batchformer))


@wrong(EVAL, says="leave out only the encoder")
class LayerAtTestAlone(LayerInTrainingAlone):
    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x)
        if self.training:
            return self.head(two_streams(f, self.batchformer))
        return self.head(self.hidden(f))


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
