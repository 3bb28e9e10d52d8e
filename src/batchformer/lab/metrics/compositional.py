"""Accuracy on seen and unseen attribute-object pairs, over a sweep of a bias between them.

A network trained on seen pairs prefers them. A bias added to the scores of unseen pairs sets the
balance; the area under the curve of both accuracies, over all biases, does not depend on it.

With one bias for all unseen pairs, a prediction is either the best seen pair or the best unseen
one. So the whole curve needs three scores per image: those two, and that of the pair it shows. An
open world has hundreds of thousands of pairs, so :class:`CompositionalScores` keeps only these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.lab.data.sets.pairs import Compositions, Phase
from batchformer.lab.metrics.generalized import NaNScoreError

World = Literal["closed", "open"]

LARGEST_BIAS = 1e3  # the bias at the end of the curve, at which every prediction is an unseen pair
#: Biases are set this far below the tie of an image's own pair with its best seen pair.
BELOW_TIE = 1e-4
QUANTILES = 20  # approximate number of quantiles of these ties that are used as biases
CHUNK = 2**24  # scores that are copied at a time
#: Number of thresholds tried, from the lowest feasibility of an unseen pair to the highest.
THRESHOLDS = 50


@dataclass(frozen=True, eq=False)
class CompositionalResult:
    """Accuracies over images, in percent; NaN if no image has a pair of that kind.

    `attribute` and `object` are those of the released evaluation, which measures them at the
    largest bias, where every prediction is an unseen pair, also for images of seen pairs. Those
    with `_unbiased` use the scores without a bias. The paper does not say which its table shows.
    """

    auc: float  # area under the curve of seen over unseen accuracy
    hm: float  # best harmonic mean of the two
    seen: float  # best accuracy on images of seen pairs
    unseen: float  # best accuracy on images of unseen pairs
    attribute: float
    object: float
    attribute_unbiased: float
    object_unbiased: float
    biases: Tensor  # (B,) float64, ascending, the largest bias last
    seen_curve: Tensor  # (B,) float64, accuracy on seen pairs at each bias
    unseen_curve: Tensor  # (B,) float64, accuracy on unseen pairs at each bias

    def metrics(self) -> dict[str, float]:
        """The numbers by name, the headline first."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}


class CompositionalScores:
    """Scores the images of one phase over a sweep of biases, batch by batch.

    For images of unseen pairs that are right at the largest bias, take the bias at which each turns
    from a seen pair to its own pair; the sweep uses quantiles of these. At the lowest bias all such
    images are predicted as seen pairs, unless scores tie. Of equal scores the pair with the lowest
    number wins. Ties are judged after adding the bias in float64; the released evaluation adds it
    in float32, where the largest bias rounds scores to 6e-5.

    The result does not depend on the batches. Memory grows with the images and the thresholds, not
    with the pairs.

    Args:
        phase: which pairs the images may show.
        world: which pairs are candidates: closed: those of the phase and the seen ones; open:
            every attribute with every object.
        kept: (P,) bool, feasible candidates; seen pairs are always kept.
        feasibility: (P,) of all pairs, to choose a threshold; values of seen pairs do not matter.

    >>> few = Compositions.of([("old", "cat"), ("wet", "dog")], [], [("wet", "cat")])
    >>> found = CompositionalScores(few, "test")
    >>> scores = torch.tensor([[5.0, 1.0, 0.0], [3.0, 2.0, 0.0]])  # old cat, wet cat, wet dog
    >>> found.update(scores, torch.tensor([0, 1]))
    >>> result = found.result()
    >>> result.seen_curve, result.unseen_curve
    (tensor([100.,   0.], dtype=torch.float64), tensor([  0., 100.], dtype=torch.float64))
    >>> result.auc, result.hm, result.attribute, result.attribute_unbiased
    (50.0, 0.0, 50.0, 50.0)
    """

    def __init__(
        self,
        compositions: Compositions,
        phase: Phase,
        world: World = "closed",
        kept: Tensor | None = None,
        feasibility: Tensor | None = None,
    ) -> None:
        self.compositions, self.phase = compositions, phase
        candidates = _candidates(compositions, phase, world, kept)
        self.seen = (candidates & compositions.seen).nonzero()[:, 0]
        unseen = (candidates & ~compositions.seen).nonzero()[:, 0]
        self.thresholds = torch.zeros(0)
        self.levels: tuple[Tensor, ...] = (unseen,)
        if feasibility is not None:
            self.thresholds, self.levels = _levels(feasibility, unseen, compositions, phase)
        self.pairs: list[Tensor] = []
        self.best: list[_Best] = []

    def update(self, scores: Tensor, pair: Tensor) -> None:
        """Add images.

        Args:
            scores: (N, P) of all pairs, on any device.
            pair: (N,) int64, the pair that each image shows.
        """
        _check(scores, pair, self.compositions, self.phase)
        self.seen = self.seen.to(scores.device)
        self.levels = tuple(level.to(scores.device) for level in self.levels)
        rows = max(CHUNK // max(scores.shape[1], 1), 1)
        for start in range(0, len(scores), rows):
            part, own = scores.detach()[start : start + rows], pair[start : start + rows]
            best = _Best.of(part, own, self.seen, self.levels)
            _require_numbers(best, sum(map(len, self.pairs)))
            self.best.append(best)
            self.pairs.append(own.cpu())

    def result(self, level: int = 0) -> CompositionalResult:
        """Score all images over the sweep of biases.

        Args:
            level: number of the threshold, if there are thresholds.
        """
        if not self.best:
            raise ValueError(f"no image of {self.phase!r} has been scored yet: call update first")
        return _result(_Best.joined(self.best, level), torch.cat(self.pairs), self.compositions)

    def choose(self) -> tuple[float, CompositionalResult]:
        """The best threshold of feasibility, and the scores with ``kept=feasibility >= threshold``.

        The best has the largest area under the curve; of equal ones it is the lowest.
        """
        best_auc, chosen = -math.inf, None
        for level, threshold in enumerate(self.thresholds.tolist()):
            result = self.result(level)
            if result.auc > best_auc:
                best_auc, chosen = result.auc, (threshold, result)
        if chosen is None:
            raise ValueError(
                f"no threshold can be chosen on {self.phase!r}: its images must show both seen and "
                f"unseen pairs"
            )
        return chosen


def _levels(
    feasibility: Tensor, unseen: Tensor, compositions: Compositions, phase: Phase
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Thresholds (T,), ascending, and the numbers of the unseen pairs between each and the next."""
    feasibility = feasibility.detach().cpu()
    if feasibility.shape != (len(compositions),):
        raise ValueError(
            f"a threshold needs the feasibility of each of the {len(compositions)} pairs, got "
            f"shape {tuple(feasibility.shape)}"
        )
    if not len(unseen):
        raise ValueError(f"there is no unseen pair in {phase!r} to set a threshold for")
    own = feasibility[unseen]
    # In the type of the feasibility, so that the same comparison later keeps the same pairs.
    low, high = float(own.min()), float(own.max())
    thresholds = torch.linspace(low, high, THRESHOLDS, dtype=feasibility.dtype)
    passed = torch.searchsorted(thresholds, own, right=True)
    return thresholds, tuple(unseen[passed == level] for level in range(1, THRESHOLDS + 1))


def _result(best: _Best, pair: Tensor, compositions: Compositions) -> CompositionalResult:
    largest = torch.tensor([LARGEST_BIAS], dtype=torch.float64)
    is_seen = compositions.seen[pair]
    found = ~is_seen & (best.predicted(largest)[:, 0] == pair)
    ties = (best.seen - best.own)[found] - BELOW_TIE
    biases = torch.cat((ties.sort().values[:: max(len(ties) // QUANTILES, 1)], largest))

    right = best.predicted(biases) == pair[:, None]
    seen, unseen = _percent(right[is_seen]), _percent(right[~is_seen])
    # A curve of one point has area 0; without seen or without unseen images there is no curve.
    missing = bool(is_seen.all()) or not bool(is_seen.any())
    auc = math.nan if missing else float(torch.trapezoid(seen, unseen)) / 100
    both = seen + unseen
    means = torch.where(both == 0, 0.0, 2 * seen * unseen / both)

    said = best.predicted(torch.tensor([LARGEST_BIAS, 0.0], dtype=torch.float64))
    parts = []
    for part in (compositions.attribute, compositions.object):
        parts.append(_percent(part[said] == part[pair][:, None]).tolist())
    (attribute, attribute_unbiased), (thing, thing_unbiased) = parts
    return CompositionalResult(
        auc=auc,
        hm=float(means.max()),
        seen=float(seen.max()),
        unseen=float(unseen.max()),
        attribute=attribute,
        object=thing,
        attribute_unbiased=attribute_unbiased,
        object_unbiased=thing_unbiased,
        biases=biases,
        seen_curve=seen,
        unseen_curve=unseen,
    )


@dataclass(frozen=True, eq=False)
class _Best:
    """The best seen and the best unseen pair of N images: float64 scores and numbers of pairs."""

    seen: Tensor
    seen_pair: Tensor
    unseen: Tensor  # (N, T) for T thresholds, (N,) once one is chosen
    unseen_pair: Tensor
    own: Tensor  # (N,) score of the pair that the image shows

    @classmethod
    def of(cls, scores: Tensor, pair: Tensor, seen: Tensor, levels: Sequence[Tensor]) -> _Best:
        """Best pairs in scores (N, P); a level counts for its own threshold and all lower ones."""
        own = scores.gather(1, pair.to(scores.device)[:, None])[:, 0].double()
        best, number = _best(scores, levels[-1])
        columns = [(best, number)]
        for level in reversed(levels[:-1]):
            if len(level):
                more, place = _best(scores, level)
                first = (more == best) & ((place < number) | (number < 0))
                wins = (more > best) | first | more.isnan()
                best, number = torch.where(wins, more, best), torch.where(wins, place, number)
            columns.append((best, number))
        unseen, unseen_pair = (torch.stack(side[::-1], 1) for side in zip(*columns, strict=True))
        found = (*_best(scores, seen), unseen, unseen_pair, own)
        return cls(*(each.cpu() for each in found))

    @classmethod
    def joined(cls, parts: Sequence[_Best], level: int) -> _Best:
        """All images, at one threshold."""
        return cls(
            torch.cat([part.seen for part in parts]),
            torch.cat([part.seen_pair for part in parts]),
            torch.cat([part.unseen[:, level] for part in parts]),
            torch.cat([part.unseen_pair[:, level] for part in parts]),
            torch.cat([part.own for part in parts]),
        )

    def predicted(self, biases: Tensor) -> Tensor:
        """Pairs (N, B) at biases (B,)."""
        seen, raised = self.seen[:, None], self.unseen[:, None] + biases
        first = (self.unseen_pair < self.seen_pair)[:, None]
        wins = (raised > seen) | ((raised == seen) & first)
        return torch.where(wins, self.unseen_pair[:, None], self.seen_pair[:, None])


def _best(scores: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The best score (N,) of these pairs and its pair, the lowest of equals; -inf, -1 if none."""
    if not len(numbers):
        nothing = torch.full((len(scores),), -math.inf, dtype=torch.float64, device=scores.device)
        return nothing, torch.full_like(nothing, -1, dtype=torch.int64)
    best, place = scores.index_select(1, numbers).max(dim=1)
    return best.double(), numbers[place]


def _require_numbers(best: _Best, before: int) -> None:
    broken = best.seen.isnan() | best.unseen.isnan().any(1)
    if bool(broken.any()):
        raise NaNScoreError(
            f"{int(broken.sum())} of {len(broken)} images have a NaN score, the first is image "
            f"{before + int(broken.int().argmax())}: the network has diverged"
        )


def _percent(right: Tensor) -> Tensor:
    """Percentages (B,) of booleans (N, B); NaN without rows."""
    return 100.0 * right.double().mean(dim=0)


def _candidates(
    compositions: Compositions, phase: Phase, world: World, kept: Tensor | None
) -> Tensor:
    pairs, product = len(compositions), len(compositions.attributes) * len(compositions.objects)
    if world == "open" and pairs != product:
        raise ValueError(
            f"an open world has all {product} pairs of attribute and object, these compositions "
            f"have {pairs}: train and score with compositions.opened()"
        )
    chosen = torch.ones(pairs, dtype=torch.bool)
    if world == "closed":
        chosen = compositions.candidates(phase)
    if kept is None:
        return chosen
    if kept.dtype != torch.bool or kept.shape != (pairs,):
        raise ValueError(
            f"kept must be a bool mask of shape ({pairs},), got {kept.dtype} of shape "
            f"{tuple(kept.shape)}"
        )
    return chosen & (kept.cpu() | compositions.seen)


def _check(scores: Tensor, pair: Tensor, compositions: Compositions, phase: Phase) -> None:
    pairs = len(compositions)
    if pair.ndim != 1 or scores.shape != (len(pair), pairs) or not len(pair):
        raise ValueError(
            f"CompositionalScores needs scores (N, {pairs}) and pairs (N,) of at least one image, "
            f"got {tuple(scores.shape)} and {tuple(pair.shape)}"
        )
    low, high = int(pair.min()), int(pair.max())
    if low < 0 or high >= pairs:
        raise ValueError(f"pairs run from {low} to {high}, outside 0..{pairs - 1}")
    strange = pair.cpu()[~compositions.candidates(phase)[pair.cpu()]]
    if len(strange):
        name = " ".join(compositions.names[int(strange[0])])
        raise ValueError(
            f"{len(strange)} of {len(pair)} images show a pair that is neither seen nor one of "
            f"{phase!r}, the first of them {name!r}: score images with the phase they belong to"
        )
