"""The sweep of biases, against a literal loop over biases, images and pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import hmean
from torch import Tensor

from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.metrics import compositional
from batchformer.lab.metrics.compositional import THRESHOLDS, CompositionalScores
from batchformer.lab.metrics.generalized import NaNScoreError

FEW = Compositions.of(
    train=[("old", "cat"), ("wet", "dog"), ("new", "dog")],
    val=[("new", "cat")],
    test=[("old", "dog"), ("wet", "cat")],
)
OLD_CAT, OLD_DOG, WET_CAT, WET_DOG = (FEW.names.index(pair) for pair in (
    ("old", "cat"), ("old", "dog"), ("wet", "cat"), ("wet", "dog"),
))  # fmt: skip
SCORES = ("auc", "hm", "seen", "unseen", "attribute", "object")


def worlds(draw: torch.Generator) -> Compositions:
    """Two to four attributes and objects; a pair is trained on, of validation, test, or none."""
    a, o = torch.randint(2, 5, (2,), generator=draw).tolist()
    parts: dict[int, list[tuple[str, str]]] = {0: [], 1: [], 2: [], 3: []}
    for i in range(a):
        for j in range(o):
            parts[int(torch.randint(4, (), generator=draw))].append((f"a{i}", f"o{j}"))
    assume(parts[0])
    return Compositions.of(parts[0], parts[1], parts[2])


def said(row: list[float], bias: float, seen: list[bool], candidates: list[bool]) -> int:
    """The first of the highest scores, with the bias on unseen pairs and others masked."""
    best, found = -math.inf, -1
    for number, score in enumerate(row):
        value = score if seen[number] else score + bias
        value = value if candidates[number] else -1e10
        if value > best:
            best, found = value, number
    return found


def literal(
    scores: Tensor, pair: Tensor, compositions: Compositions, candidates: Tensor
) -> dict[str, Any]:
    """The protocol word by word; only for images of both kinds."""
    rows, truth = scores.double().tolist(), pair.tolist()
    seen, mask = compositions.seen.tolist(), candidates.tolist()
    attribute, thing = compositions.attribute.tolist(), compositions.object.tolist()
    groups: dict[bool, list[int]] = {True: [], False: []}
    for i, own in enumerate(truth):
        groups[seen[own]].append(i)
    biases = []
    for i in groups[False]:
        if said(rows[i], 1e3, seen, mask) == truth[i]:
            highest = max(score for number, score in enumerate(rows[i]) if seen[number])
            biases.append(highest - rows[i][truth[i]] - 1e-4)
    biases.sort()
    biases = [*biases[:: max(len(biases) // 20, 1)], 1e3]
    curves: dict[bool, list[float]] = {True: [], False: []}
    for bias in biases:
        for kind, members in groups.items():
            right = [said(rows[i], bias, seen, mask) == truth[i] for i in members]
            curves[kind].append(100 * sum(right) / len(right))
    result: dict[str, Any] = {
        "biases": biases,
        "seen_curve": curves[True],
        "unseen_curve": curves[False],
        "auc": trapezoid(curves[True], curves[False]) / 100,
        "hm": max(hmean([s, u]) if s and u else 0.0 for s, u in zip(*curves.values(), strict=True)),
        "seen": max(curves[True]),
        "unseen": max(curves[False]),
    }
    for name, bias in (("", 1e3), ("_unbiased", 0.0)):
        told = [said(row, bias, seen, mask) for row in rows]
        for part, numbers in (("attribute", attribute), ("object", thing)):
            right = [numbers[p] == numbers[t] for p, t in zip(told, truth, strict=True)]
            result[part + name] = 100 * sum(right) / len(right)
    return result


def compositional_scores(scores: Tensor, pair: Tensor, *how: Any, **options: Any) -> Any:
    found = CompositionalScores(*how, **options)
    found.update(scores, pair)
    return found.result()


def assert_alike(result: Any, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        got = getattr(result, name)
        got = got.tolist() if isinstance(got, Tensor) else got
        assert got == pytest.approx(value, abs=1e-9), name


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    n=st.sampled_from([2, 5, 30, 120]),
    kind=st.sampled_from(["smooth", "ties", "helpful"]),
    phase=st.sampled_from(["val", "test"]),
    world=st.sampled_from(["closed", "open"]),
    masked=st.booleans(),
)
def test_equals_the_literal_loop(
    seed: int, n: int, kind: str, phase: Any, world: Any, masked: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    pairs = worlds(draw)
    pairs = pairs.opened() if world == "open" else pairs
    shown = pairs.candidates(phase).nonzero()[:, 0]
    pair = shown[torch.randint(len(shown), (n,), generator=draw)]
    assume(pairs.seen[pair].any() and not pairs.seen[pair].all())
    scores = torch.randn(n, len(pairs), generator=draw, dtype=torch.float64)
    if kind == "ties":
        scores = scores.round()
    if kind == "helpful":
        scores[torch.arange(n), pair] += 1.5
    kept = torch.rand(len(pairs), generator=draw) < 0.7 if masked else None
    candidates = pairs.candidates(phase) if world == "closed" else torch.ones_like(pairs.seen)
    if kept is not None:
        candidates = candidates & (kept | pairs.seen)
    result = compositional_scores(scores, pair, pairs, phase, world, kept)
    assert_alike(result, literal(scores, pair, pairs, candidates))
    streamed = in_batches(CompositionalScores(pairs, phase, world, kept), scores, pair).result()
    assert streamed.metrics() == result.metrics(), "to the bit"
    assert torch.equal(streamed.biases, result.biases)


def in_batches(found: CompositionalScores, scores: Tensor, pair: Tensor) -> CompositionalScores:
    """All images, seven at a time."""
    for part, own in zip(scores.split(7), pair.split(7), strict=True):
        found.update(part, own)
    return found


def held_bytes(found: CompositionalScores) -> int:
    """Of all that is kept of the images."""
    kept = [*found.pairs, *(tensor for best in found.best for tensor in vars(best).values())]
    parts = {part.data_ptr(): part.nbytes() for part in map(Tensor.untyped_storage, kept)}
    return sum(parts.values())


@pytest.mark.parametrize("thresholds", [1, THRESHOLDS])
def test_what_is_kept_of_an_image_does_not_grow_with_the_pairs(thresholds: int) -> None:
    sizes = []
    for things in (3, 300):
        names = [(f"a{i}", f"o{j}") for i in range(3) for j in range(things)]
        pairs = Compositions.of(names[::3], [], names)
        feasibility = None if thresholds == 1 else torch.linspace(0, 1, len(pairs))
        found = CompositionalScores(pairs, "test", "open", feasibility=feasibility)
        in_batches(found, torch.randn(40, len(pairs)), torch.arange(40) % 9)
        sizes.append(held_bytes(found))
    # A pair and three scores with two numbers of pairs, one of the scores by threshold.
    assert sizes == [40 * 8 * (4 + 2 * thresholds)] * 2


def test_nothing_scored_has_no_result() -> None:
    with pytest.raises(ValueError, match=r"no image of 'test' has been scored yet: call update"):
        CompositionalScores(FEW, "test").result()


def many_images(gap: Tensor) -> tuple[Tensor, Tensor]:
    """Forty images of seen and forty of unseen pairs, each right by its gap, (80,)."""
    pair = torch.tensor([OLD_CAT, WET_DOG, OLD_DOG, WET_CAT]).repeat_interleave(20)
    scores = torch.zeros(80, len(FEW), dtype=torch.float64)
    scores[torch.arange(80), pair] = gap.double()
    return scores, pair


def test_perfect_beyond_the_largest_bias_is_an_area_of_100() -> None:
    result = compositional_scores(*many_images(torch.full((80,), 5e3)), FEW, "test")
    assert [getattr(result, name) for name in SCORES] == [100.0] * 6
    assert result.unseen_curve[0] == 0 and result.unseen_curve[-1] == 100


@pytest.mark.parametrize("tied", [(OLD_CAT, OLD_DOG), (WET_CAT, WET_DOG)], ids=["seen", "unseen"])
def test_a_tie_goes_to_the_lower_number(tied: tuple[int, int]) -> None:
    """Old cat, which is seen, comes before old dog; wet cat, which is not, before wet dog."""
    low, high = tied
    assert low < high and FEW.seen[low] != FEW.seen[high]
    scores = torch.zeros(1, len(FEW))
    scores[0, [low, high]] = 1.0
    right = [
        compositional_scores(scores, torch.tensor([pair]), FEW, "test").object_unbiased
        for pair in tied
    ]
    assert right == [100.0, 0.0]


def test_a_missing_kind_of_images_is_not_a_number() -> None:
    scores = torch.zeros(2, len(FEW))
    scores[0, OLD_DOG], scores[1, WET_CAT] = 1.0, 1.0
    unseen_only = compositional_scores(scores, torch.tensor([OLD_DOG, WET_CAT]), FEW, "test")
    assert unseen_only.unseen == 100.0
    assert all(map(math.isnan, (unseen_only.auc, unseen_only.hm, unseen_only.seen)))
    scores[0, OLD_CAT] = 2.0
    seen_only = compositional_scores(scores, torch.tensor([OLD_CAT, OLD_CAT]), FEW, "train")
    # Without an unseen candidate the bias moves nothing.
    assert seen_only.seen == 50.0 and seen_only.attribute == seen_only.attribute_unbiased
    assert all(map(math.isnan, (seen_only.auc, seen_only.hm, seen_only.unseen)))


def test_images_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(50, len(FEW), generator=draw)
    pair = torch.tensor([OLD_CAT, WET_DOG, OLD_DOG, WET_CAT, WET_CAT]).repeat(10)
    whole = compositional_scores(scores, pair, FEW, "test")
    monkeypatch.setattr(compositional, "CHUNK", 3 * len(FEW))
    assert compositional_scores(scores, pair, FEW, "test").metrics() == whole.metrics()
    assert list(whole.metrics())[:6] == list(SCORES) and len(whole.metrics()) == 8


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_each_threshold_is_scored_as_by_its_own_mask(scale: float) -> None:
    """With all scores equal, and with infinities, ties decide; some thresholds add no pair."""
    draw = torch.Generator().manual_seed(5)
    names = [(f"a{i}", f"o{j}") for i in range(4) for j in range(5)]
    pairs = Compositions.of(names[:7], [], names[7:16]).opened()
    pair = torch.arange(60) % 16
    scores = scale * torch.randn(60, 20, generator=draw)
    scores[torch.rand(60, 20, generator=draw) < 0.2] = -math.inf
    feasibility = torch.randint(4, (20,), generator=draw).float()
    found = CompositionalScores(pairs, "test", "open", feasibility=feasibility)
    in_batches(found, scores, pair)
    for level, threshold in enumerate(found.thresholds.tolist()):
        kept = feasibility >= threshold
        expected = compositional_scores(scores, pair, pairs, "test", "open", kept)
        result = found.result(level)
        assert result.metrics() == pytest.approx(expected.metrics(), abs=0, nan_ok=True)
        assert torch.equal(result.biases, expected.biases)


def test_half_precision_scores_are_compared_in_float64() -> None:
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(200, len(FEW), generator=draw).bfloat16()
    pair = torch.tensor([OLD_CAT, WET_DOG, OLD_DOG, WET_CAT]).repeat(50)
    result = compositional_scores(scores, pair, FEW, "test")
    assert result.biases.dtype == torch.float64
    assert_alike(result, literal(scores, pair, FEW, FEW.candidates("test")))


def test_the_threshold_is_the_best_of_all_tried() -> None:
    open_world = FEW.opened()
    draw = torch.Generator().manual_seed(3)
    shown = open_world.candidates("val").nonzero()[:, 0]
    pair = shown[torch.arange(80) % len(shown)]
    scores = torch.randn(80, len(open_world), generator=draw)
    scores[torch.arange(80), pair] += 1.0
    feasibility = torch.rand(len(open_world), generator=draw)
    feasibility[open_world.val & ~open_world.seen] = 0.8
    feasibility[open_world.seen] = -5.0  # not looked at, and never left out
    found = CompositionalScores(open_world, "val", "open", feasibility=feasibility)
    threshold, chosen = in_batches(found, scores, pair).choose()
    unseen = feasibility[~open_world.seen]
    areas = {}
    for tried in torch.linspace(float(unseen.min()), float(unseen.max()), THRESHOLDS).tolist():
        candidates = open_world.seen | (feasibility >= tried)
        areas[tried] = literal(scores, pair, open_world, candidates)["auc"]
    best = max(areas.values())
    assert threshold == pytest.approx(min(t for t, area in areas.items() if area > best - 1e-9))
    everything = compositional_scores(scores, pair, open_world, "val", "open")
    again = compositional_scores(scores, pair, open_world, "val", "open", feasibility >= threshold)
    assert chosen.metrics() == again.metrics()
    assert chosen.auc == pytest.approx(best) and chosen.auc > everything.auc


def test_the_threshold_needs_unseen_pairs_and_images() -> None:
    scores, feasibility = torch.zeros(2, len(FEW)), torch.zeros(len(FEW))
    pair = torch.tensor([OLD_CAT, WET_DOG])
    with pytest.raises(ValueError, match="no unseen pair in 'train'"):
        CompositionalScores(FEW, "train", feasibility=feasibility)
    with pytest.raises(ValueError, match="each of the 6 pairs"):
        CompositionalScores(FEW, "val", feasibility=feasibility[1:])
    found = CompositionalScores(FEW, "val", feasibility=feasibility)
    found.update(scores, pair)
    with pytest.raises(ValueError, match="both seen and unseen pairs"):
        found.choose()


def test_what_cannot_be_scored_is_refused() -> None:
    scores, pair = torch.zeros(2, len(FEW)), torch.tensor([OLD_CAT, OLD_DOG])
    with pytest.raises(ValueError, match=r"scores \(N, 6\)"):
        compositional_scores(scores[:, 1:], pair, FEW, "test")
    with pytest.raises(ValueError, match=r"1 of 2 images show a pair that.*'old dog'"):
        compositional_scores(scores, pair, FEW, "val")
    with pytest.raises(ValueError, match=r"from 1 to 9, outside 0\.\.5"):
        compositional_scores(scores, torch.tensor([1, 9]), FEW, "test")
    with pytest.raises(ValueError, match="bool mask of shape"):
        compositional_scores(scores, pair, FEW, "test", kept=torch.ones(6))
    with pytest.raises(NaNScoreError, match=r"first is image 1: .*diverged"):
        scores[1, WET_DOG] = math.nan
        compositional_scores(scores, pair, FEW, "test")
    with pytest.raises(ValueError, match=r"all 2 pairs.*have 1.*opened\(\)"):
        lone = Compositions.of([("a", "x")], [], [("a", "y")])
        compositional_scores(scores, pair, _without_last(lone), "test", "open")


def _without_last(pairs: Compositions) -> Compositions:
    parts = (pairs.attribute, pairs.object, pairs.seen, pairs.val, pairs.test)
    return Compositions(pairs.attributes, pairs.objects, *(part[:-1] for part in parts))
