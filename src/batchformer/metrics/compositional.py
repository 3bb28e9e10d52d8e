"""Seen against unseen pairs of attribute and object, as a bias moves predictions between them.

A network trained on seen pairs prefers them. A bias added to the scores of unseen pairs sets the
balance; the area under the curve of both accuracies, over all biases, does not depend on it.

With one bias for all unseen pairs a prediction is either the best seen pair or the best unseen one,
so two scores for each image are all that the whole curve needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.data.compositions import Compositions, Phase

World = Literal["closed", "open"]

#: The bias at the end of the curve, at which every prediction is an unseen pair.
LARGEST_BIAS = 1e3
#: How far below the tie of an image's own pair with its best seen pair a bias is set.
BELOW_TIE = 1e-4
#: Biases are so many quantiles of those ties, roughly.
QUANTILES = 20
#: Scores that are copied at a time.
CHUNK = 2**24


@dataclass(frozen=True, eq=False)
class CompositionalResult:
    """Accuracies over images, in percent; NaN where the images have no pair of that kind.

    `attribute` and `object` are those of the released evaluation, which takes them where every
    prediction is an unseen pair, images of seen pairs included; those with `_unbiased` are of the
    scores as they are. Which of them the paper's table shows is not stated.

    Args:
        auc: area under the curve of seen over unseen accuracy.
        hm: best harmonic mean of the two.
        seen: best accuracy on images of seen pairs.
        unseen: best accuracy on images of unseen pairs.
        attribute: right attributes at the largest bias.
        object: right objects at the largest bias.
        attribute_unbiased: right attributes without a bias.
        object_unbiased: right objects without a bias.
        biases: (B,) float64, ascending, the largest bias last.
        seen_curve: (B,) float64, accuracy on seen pairs at each bias.
        unseen_curve: (B,) float64, accuracy on unseen pairs at each bias.
    """

    auc: float
    hm: float
    seen: float
    unseen: float
    attribute: float
    object: float
    attribute_unbiased: float
    object_unbiased: float
    biases: Tensor
    seen_curve: Tensor
    unseen_curve: Tensor

    def metrics(self) -> dict[str, float]:
        """The numbers by name, the headline first."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}


def compositional_scores(
    scores: Tensor,
    pair: Tensor,
    compositions: Compositions,
    phase: Phase,
    world: World = "closed",
    kept: Tensor | None = None,
) -> CompositionalResult:
    """Score the images of one phase over the sweep of biases.

    The biases are quantiles of where images of unseen pairs, if right at the largest bias, turn
    from a seen pair to their own; at the lowest of them all predictions of such images are seen
    pairs, unless scores tie. Of equal scores the pair with the lowest number wins, whether seen or
    unseen. Ties are judged after adding the bias in float64: the released evaluation adds it in
    float32, where the largest bias rounds scores to 6e-5.

    Args:
        scores: (N, P) of all pairs.
        pair: (N,) int64, the pair that each image shows.
        compositions: the P pairs.
        phase: which pairs the images may show.
        world: the candidates: in a closed world the pairs of the phase and the seen ones, in an
            open world all of them, every attribute with every object.
        kept: (P,) bool, candidates that are feasible; seen pairs are always kept.

    >>> few = Compositions.of([("old", "cat"), ("wet", "dog")], [], [("wet", "cat")])
    >>> scores = torch.tensor([[5.0, 1.0, 0.0], [3.0, 2.0, 0.0]])  # old cat, wet cat, wet dog
    >>> result = compositional_scores(scores, torch.tensor([0, 1]), few, "test")
    >>> [(s, u) for s, u in zip(result.seen_curve.tolist(), result.unseen_curve.tolist())]
    [(100.0, 0.0), (0.0, 100.0)]
    >>> result.auc, result.hm, result.attribute, result.attribute_unbiased
    (50.0, 0.0, 50.0, 50.0)
    """
    candidates = _candidates(compositions, phase, world, kept)
    _check(scores, pair, compositions, phase)
    best = _Best.of(scores, pair, compositions.seen, candidates)
    pair = pair.cpu()
    largest = torch.tensor([LARGEST_BIAS], dtype=torch.float64)
    is_seen = compositions.seen[pair]
    found = ~is_seen & (best.predicted(largest)[:, 0] == pair)
    ties = (best.seen - best.own)[found] - BELOW_TIE
    biases = torch.cat((ties.sort().values[:: max(len(ties) // QUANTILES, 1)], largest))

    right = best.predicted(biases) == pair[:, None]
    seen, unseen = _percent(right[is_seen]), _percent(right[~is_seen])
    # A curve of one point has no area, but where an accuracy is missing, there is no curve.
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


def choose_threshold(
    feasibility: Tensor,
    scores: Tensor,
    pair: Tensor,
    compositions: Compositions,
    phase: Phase = "val",
    world: World = "open",
    count: int = 50,
) -> float:
    """The feasibility below which unseen pairs are best left out, by the area under the curve.

    Tried are `count` thresholds from the lowest feasibility of an unseen pair to the highest; of
    equal areas the lowest threshold is taken. Then ``kept=feasibility >= threshold``.

    Args:
        feasibility: (P,) of all pairs; those of seen ones are not looked at.
        scores: (N, P), as in :func:`compositional_scores`, and so are the others.
        count: of thresholds.
    """
    feasibility = feasibility.detach().cpu()
    if feasibility.shape != (len(compositions),) or count < 1:
        raise ValueError(
            f"choose_threshold needs the feasibility of each of the {len(compositions)} pairs and "
            f"a count of at least 1, got shape {tuple(feasibility.shape)} and count={count}"
        )
    unseen = feasibility[_candidates(compositions, phase, world, None) & ~compositions.seen]
    if not len(unseen):
        raise ValueError(f"there is no unseen pair in {phase!r} to set a threshold for")
    # In the type of the feasibility, so that the same comparison later keeps the same pairs.
    low, high = float(unseen.min()), float(unseen.max())
    thresholds = torch.linspace(low, high, count, dtype=feasibility.dtype)
    best_auc, chosen = -math.inf, math.nan
    for threshold in thresholds.tolist():
        kept = feasibility >= threshold
        auc = compositional_scores(scores, pair, compositions, phase, world, kept).auc
        if auc > best_auc:
            best_auc, chosen = auc, threshold
    if math.isnan(chosen):
        raise ValueError(
            f"no threshold can be chosen on {phase!r}: its images need seen and unseen pairs"
        )
    return chosen


@dataclass(frozen=True, eq=False)
class _Best:
    """Of each image, float64 scores and numbers (N,): the best seen and the best unseen pair."""

    seen: Tensor
    seen_pair: Tensor
    unseen: Tensor
    unseen_pair: Tensor
    own: Tensor

    @classmethod
    def of(cls, scores: Tensor, pair: Tensor, seen: Tensor, candidates: Tensor) -> _Best:
        masks = (candidates & seen, candidates & ~seen)
        sides = [mask.nonzero()[:, 0].to(scores.device) for mask in masks]
        rows = max(CHUNK // max(scores.shape[1], 1), 1)
        found = []
        for start in range(0, len(scores), rows):
            part, own = scores.detach()[start : start + rows], pair[start : start + rows]
            (seen_score, seen_pair), (score, number) = (_best(part, side) for side in sides)
            mine = part.gather(1, own.to(part.device)[:, None])[:, 0].double()
            found.append((seen_score, seen_pair, score, number, mine))
        best = cls(*(torch.cat(each).cpu() for each in zip(*found, strict=True)))
        broken = best.seen.isnan() | best.unseen.isnan()
        if bool(broken.any()):
            raise ValueError(
                f"{int(broken.sum())} of {len(pair)} images have a score that is not a number, the "
                f"first of them image {int(broken.int().argmax())}: the network has diverged"
            )
        return best

    def predicted(self, biases: Tensor) -> Tensor:
        """Pairs (N, B) at biases (B,)."""
        seen, raised = self.seen[:, None], self.unseen[:, None] + biases
        first = (self.unseen_pair < self.seen_pair)[:, None]
        wins = (raised > seen) | ((raised == seen) & first)
        return torch.where(wins, self.unseen_pair[:, None], self.seen_pair[:, None])


def _best(scores: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The best score of some pairs (N,) and its number, the lowest of equals; minus infinity if
    there is no such pair."""
    if not len(numbers):
        nothing = torch.full((len(scores),), -math.inf, dtype=torch.float64, device=scores.device)
        return nothing, torch.full_like(nothing, -1, dtype=torch.int64)
    best, place = scores.index_select(1, numbers).max(dim=1)
    return best.double(), numbers[place]


def _percent(right: Tensor) -> Tensor:
    """Of (N, B), the percentages (B,); NaN for no rows."""
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
            f"compositional_scores needs scores (N, {pairs}) and pairs (N,) of at least one image, "
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
