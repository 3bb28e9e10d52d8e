"""The figure of attention: ratios by loops over samples, colours, words and what is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchformer.insight.figures import attention
from batchformer.insight.figures.attention import (
    LEAST_REACH,
    TARGETS,
    WITHIN,
    Attention,
    beyond,
    gather,
    in_colours,
    reach_of,
)
from helpers.simulated_networks import all_many, group_of, known, simulated_group, simulated_insight

Batch = tuple[Any, NDArray[Any]]  # labels (N,), and weights (H, N, N) whose rows sum to 1
COUNTS = np.array([500, 200, 60, 30, 5])
SHOTS_OF = np.array([0, 0, 1, 1, 2])
#: Two classes of a bin each, then one bin of two classes, and one of the last.
BINS_OF = np.array([0, 1, 2, 2, 3])


def batch(labels: Any, seed: int = 0, heads: int = 2) -> Batch:
    size = len(labels)
    weights = np.random.default_rng(seed).dirichlet(np.ones(size), (heads, size))
    return np.asarray(labels), weights


def record(batches: list[Batch], bins: Any = BINS_OF, **changes: Any) -> dict[str, Any]:
    """The arrays that a run keeps of these batches, pair by pair."""
    heads, size = len(batches[0][1]), int(max(bins)) + 1
    made: dict[str, Any] = {
        "train_counts": COUNTS,
        "bin_of_class": np.asarray(bins),
        "bin_pairs": np.zeros((size, size)),
        "attention": np.zeros((heads, size, size)),
        "attention_shots": np.zeros((heads, 3, 3)),
        "shot_pairs": np.zeros((3, 3)),
        **{f"attention_{name}": np.zeros((heads, 2)) for name in ("self", "same", "other")},
    }
    for labels, weights in batches:
        for i, y in enumerate(labels):
            for j, z in enumerate(labels):
                given_to = weights[:, i, j]
                kind = "self" if i == j else "same" if y == z else "other"
                made[f"attention_{kind}"] += np.stack([given_to, np.ones(heads)], 1)
                if i != j:
                    made["attention"][:, bins[y], bins[z]] += given_to
                    made["bin_pairs"][bins[y], bins[z]] += 1
                    made["attention_shots"][:, SHOTS_OF[y], SHOTS_OF[z]] += given_to
                    made["shot_pairs"][SHOTS_OF[y], SHOTS_OF[z]] += 1
    return made | changes


def gathered(*seeds: Mapping[str, Any]) -> Attention:
    return known(gather(group_of({("batchformer", seed): kept for seed, kept in enumerate(seeds)})))


def mean(values: list[Any]) -> Any:
    return np.mean(values, 0) if values else np.nan


def by_hand(batches: list[Batch], of: Any, groups: int) -> tuple[Any, Any]:
    """Mean weight of a pair over 1 / N, and what a sample gives to others of each group in all."""
    ratio, flow = np.full((2, groups, groups), np.nan)
    for a in range(groups):
        for b in range(groups):
            pairs, totals = [], []
            for labels, weights in batches:
                size, of_sample = len(labels), of[labels]
                for i in np.flatnonzero(of_sample == a):
                    others = [j for j in np.flatnonzero(of_sample == b) if j != i]
                    pairs += [size * weights[:, i, j].mean() for j in others]
                    totals.append(sum(weights[:, i, j].mean() for j in others))
            ratio[a, b], flow[a, b] = mean(pairs), mean(totals)
    return ratio, flow


@st.composite
def some_batches(draw: st.DrawFn) -> list[Batch]:
    """Up to three batches of one size, of some classes or all."""
    size, seed = draw(st.integers(2, 7)), draw(st.integers(0, 99))
    labels = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    return [batch(draw(labels), seed + i) for i in range(draw(st.integers(1, 3)))]


@settings(max_examples=40, deadline=None)
@given(some_batches())
def test_ratios_flow_and_shares_are_those_of_loops_over_samples(batches: list[Batch]) -> None:
    data = gathered(record(batches))
    found, size = data.by_arm["batchformer"], len(batches[0][0])
    assert data.batch == pytest.approx(size)
    ratio, _ = by_hand(batches, BINS_OF, 4)
    assert found.ratio == pytest.approx(ratio, nan_ok=True)
    flow_ratio, flow = by_hand(batches, SHOTS_OF, 3)
    assert found.flow_ratio == pytest.approx(flow_ratio, nan_ok=True)
    assert found.flow == pytest.approx(flow, nan_ok=True)
    given_to = dict.fromkeys(TARGETS, 0.0)
    for labels, weights in batches:
        for i, j in np.ndindex(size, size):
            target = list(TARGETS)[0 if i == j else 1 if labels[i] == labels[j] else 2]
            given_to[target] += weights[:, i, j].mean() / (size * len(batches))
    for target, expected in given_to.items():
        assert found.shares[target].measured.mean == pytest.approx(expected)
    assert sum(share.measured.mean for share in found.shares.values()) == pytest.approx(1)
    assert sum(share.uniform for share in found.shares.values()) == pytest.approx(1)
    present = {int(SHOTS_OF[y]) for labels, _ in batches for y in labels}
    assert data.groups == sorted(present)


def test_uniform_attention_gives_what_uniform_attention_gives() -> None:
    labels = np.array([0, 0, 1, 2, 3, 4, 4, 4])
    data = gathered(record([(labels, np.full((3, 8, 8), 1 / 8))]))
    found = data.by_arm["batchformer"]
    seen = found.pairs > 0
    assert found.ratio[seen] == pytest.approx(1) and np.isnan(found.ratio[~seen]).all()
    assert not seen[1, 1], "one sample of a bin has no other of it"
    assert found.heads.shape == (3, 4, 4)
    assert [found.shares[target].uniform for target in TARGETS] == pytest.approx(
        [1 / 8, (2 * 1 + 3 * 2) / 64, 48 / 64]
    )
    for share in found.shares.values():
        assert share.measured.mean == pytest.approx(share.uniform)


def test_seeds_are_averaged_but_heads_are_of_the_first() -> None:
    labels = [0, 0, 1, 1, 2, 2, 4, 4]
    seeds = [batch(labels, seed) for seed in range(3)]
    data = gathered(*(record([one]) for one in seeds))
    found = data.by_arm["batchformer"]
    assert found.seeds == 3
    ratios = [by_hand([one], BINS_OF, 4)[0] for one in seeds]
    flows = [by_hand([one], SHOTS_OF, 3)[1] for one in seeds]
    assert found.ratio == pytest.approx(np.mean(ratios, 0), nan_ok=True)
    assert found.flow == pytest.approx(np.mean(flows, 0), nan_ok=True)
    assert found.pairs.sum() == 3 * 8 * 7
    of_heads = [by_hand([(seeds[0][0], head[None])], BINS_OF, 4)[0] for head in seeds[0][1]]
    assert found.heads == pytest.approx(np.stack(of_heads), nan_ok=True)
    own = found.shares["itself"].measured
    assert own.values == pytest.approx(
        [np.trace(weights.mean(0)) / len(labels) for _, weights in seeds]
    )
    assert own.low is not None and own.low < own.mean


def test_a_pair_that_one_seed_did_not_see_has_the_ratio_of_the_others() -> None:
    seen = [batch([0, 0, 1, 4], 1), batch([0, 0, 1, 1], 2)]
    data = gathered(*(record([one]) for one in seen))
    found = data.by_arm["batchformer"]
    assert found.pairs[0, 3] == 2
    alone = by_hand(seen[:1], BINS_OF, 4)[0]
    assert found.ratio[0, 3] == pytest.approx(alone[0, 3])
    assert np.isnan(found.ratio[2]).all() and found.pairs[2].sum() == 0, "in neither"
    assert np.isnan(found.ratio).tolist() == (found.pairs == 0).tolist()
    flow_ratio, flow = by_hand(seen[:1], SHOTS_OF, 3)
    assert found.flow[2] == pytest.approx(flow[2], nan_ok=True)
    assert found.flow_ratio[0, 2] == pytest.approx(flow_ratio[0, 2])
    assert data.groups == [0, 2]


def test_what_no_pair_shows_is_an_empty_cell_of_the_tables() -> None:
    shares, flow = attention.tables(gathered(record([batch([0, 1, 4])])))
    own = list(TARGETS).index("others of its class")
    assert shares.rows[own][-1] == "", "no class has two samples"
    assert flow.rows[-1][0] == "few" and flow.rows[-1][2:] == ("", ""), "medium is not there"


def test_bins_have_the_mean_count_of_their_classes() -> None:
    data = gathered(record([batch([0, 1, 2, 3, 4])]))
    assert data.counts.tolist() == [500, 200, 45, 5] and data.classes_per_bin == 2
    assert "up to 2 classes" in attention.caption(data).text
    assert data.names == ()


def test_a_bin_of_no_class_counts_nothing() -> None:
    data = gathered(record([batch([0, 4])], bins=np.array([0, 0, 0, 0, 2])))
    assert data.counts.tolist() == [pytest.approx(COUNTS[:4].mean()), 0, 5]


def test_names_stand_in_the_order_of_bins_where_each_is_one_class() -> None:
    bins, names = np.array([4, 2, 0, 1, 3]), np.array(list("abcde"))
    plain = record([batch([0, 1, 2, 3, 4])], bins)
    assert gathered(plain | {"classes": names}).names == tuple("cdbea")
    assert gathered(plain).names == (), "no run has them"
    shared = record([batch([0, 1, 2, 3, 4])], classes=names)
    assert gathered(shared).names == (), "two classes share a bin"


@pytest.mark.parametrize(("classes", "named"), [(10, True), (11, False)])
def test_only_so_many_classes_are_named(classes: int, named: bool) -> None:
    kept = simulated_insight("batchformer", 0, classes=classes)
    assert bool(gathered(kept).names) == named


def test_the_maps_are_of_the_arm_that_is_asked_for_else_of_batchformer() -> None:
    one = record([batch([0, 1, 4])])
    arms = ("baseline", "batchformer_frozen", "batchformer")
    kept: dict[tuple[str, int], Mapping[str, Any]] = {(arm, 0): one for arm in arms}
    kept["baseline", 0] = {}
    data = known(gather(group_of(kept)))
    assert data.main == "batchformer"
    assert sorted(data.by_arm) == ["batchformer", "batchformer_frozen"]
    asked = known(gather(group_of(kept), "batchformer_frozen"))
    assert asked.main == "batchformer_frozen"
    assert gather(group_of(kept), "baseline") is None
    del kept["batchformer", 0]
    rest = known(gather(group_of(kept)))
    assert rest.main == "batchformer_frozen"
    del kept["batchformer_frozen", 0]
    assert gather(group_of(kept)) is None


#: Attention in single precision is nothing, or not as small as doubles can be.
ratios = st.one_of(st.sampled_from([np.nan, 0.0]), st.floats(1e-30, 100))
cell = st.tuples(ratios, st.integers(1, 50))


@given(st.lists(cell, min_size=9, max_size=9))
def test_it_is_the_least_that_holds_nearly_all_attention(cells: list[tuple[float, int]]) -> None:
    ratio, pairs = (np.array(side, dtype=float).reshape(3, 3) for side in zip(*cells, strict=True))
    reach = reach_of(ratio, pairs)
    given_to = [(abs(np.log2(r)), r * n) for r, n in cells if r > 0]
    if not given_to:
        assert reach == 1
        return
    total = sum(weight for _, weight in given_to)

    def held(limit: float) -> float:
        return sum(weight for far, weight in given_to if far <= limit) / total

    assert held(reach) >= WITHIN - 1e-9
    assert reach == LEAST_REACH or held(reach * (1 - 1e-9)) < WITHIN + 1e-9
    low, high = beyond(ratio, reach)
    assert low == bool((ratio < 2**-reach * (1 - 1e-8)).any())
    assert high == bool((ratio > 2**reach * (1 + 1e-8)).any())


def test_extremes_have_the_colour_of_the_end() -> None:
    shown = in_colours(np.array([0.0, 0.01, 1.0, 77.0, np.nan]), reach=2.0)
    assert shown == pytest.approx([-2, -2, 0, 2, np.nan], nan_ok=True)


LABELS = np.array([0, 0, 0, 2, 2, 4, 4, 4])


def weights_of(*columns: tuple[slice, float], heads: slice = slice(None)) -> NDArray[Any]:
    """Uniform weights (2, 8, 8), but for these columns in these heads, by which they are larger."""
    weights = np.full((2, 8, 8), 1 / 8)
    for column, factor in columns:
        weights[heads, :, column] *= factor
    return weights


def titles(figure: Any) -> list[str]:
    found = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    return [title for title in found if title]


def test_the_words_and_tables_of_every_arm() -> None:
    arms = ("baseline", "batchformer", "batchformer_frozen")
    data = known(gather(simulated_group(*arms, seeds=range(2))))
    assert data.main == "batchformer"
    found = data.by_arm["batchformer"]
    same = found.shares["others of its class"]
    assert same.measured.mean > 2 * same.uniform
    assert np.diagonal(found.ratio).min() > np.median(found.ratio)
    said = attention.caption(data)
    assert f"to others of its class {100 * same.measured.mean:.1f}%" in said.text
    assert said.alternative.startswith("Heat maps.")
    shares, *flows = attention.tables(data)
    assert len(shares.rows) == 6 and len(flows) == 2
    assert flows[0].caption.startswith("batchformer:")


def test_the_figure_has_the_mean_the_flow_and_every_head() -> None:
    data = known(gather(simulated_group("batchformer", heads=6)))
    made = attention.make(data)
    assert made.title == "Attention between samples"
    assert (len(made.tables), len(made.terminal_tables)) == (1, 1)
    figure = made.draw()
    heads = [f"Head {i}" for i in range(1, 7)]
    assert titles(figure) == ["Mean over heads", "Between shot groups", *heads]
    shown = np.asarray(figure.axes[0].images[0].get_array())
    reach = figure.axes[0].images[0].get_clim()[1]
    ratio = data.by_arm["batchformer"].ratio
    assert shown == pytest.approx(np.clip(np.log2(ratio), -reach, reach))
    assert figure.axes[0].images[0].get_clim() == (-reach, reach)
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert len(texts) == 9 and all("×" in text and "%" in text for text in texts)


def test_attention_to_oneself_alone_can_be_drawn() -> None:
    labels = np.where(LABELS == 2, 0, LABELS)  # no sample of the medium classes
    alone = record([(labels, np.broadcast_to(np.eye(8), (2, 8, 8)))])
    data = known(gather(group_of({("batchformer_self", 0): alone})))
    assert data.main == "batchformer_self"
    found = data.by_arm["batchformer_self"]
    assert found.shares["itself"].measured.mean == 1
    assert np.isnan(found.ratio[2]).all() and found.ratio[0, 3] == 0
    figure = attention.draw(data)
    figure.canvas.draw()
    *grey, opaque = figure.axes[0].images[0].cmap.get_bad()
    assert max(grey) < 0.6 and opaque == 1, "white would be uniform attention"
    assert "Of grey cells no pair was seen." in attention.caption(data).text
    assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == ["many", "few"]


def test_one_shot_group_has_no_flow_and_few_classes_have_names() -> None:
    insight = all_many(simulated_insight("batchformer", 0, classes=7))
    data = gathered(insight)
    assert data.groups == [0]
    figure = attention.draw(data)
    figure.canvas.draw()
    assert titles(figure) == ["Mean over heads", *(f"Head {i}" for i in range(1, 5))]
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == list(insight["classes"])
    assert len(attention.tables(data)) == 1
    assert "shot" not in attention.caption(data).alternative


@pytest.mark.parametrize(("few", "end"), [(1.0, "neither"), (1e-4, "min")])
def test_one_ignored_class_does_not_wash_out_the_others(few: float, end: str) -> None:
    weights = weights_of((slice(3, 5), 1.5), (slice(5, 8), few))
    data = gathered(record([(LABELS, weights / weights.sum(-1, keepdims=True))]))
    image: Any = attention.draw(data).axes[0].images[0]
    assert image.colorbar.extend == end
    assert image.get_clim()[1] < 2, "the ratio of the ignored class is 2 ** -12"
    assert ("colour of the end" in attention.caption(data).text) == (end == "min")


def test_uniform_attention_is_said_in_words_and_drawn_once() -> None:
    # In the second head of the second seed there is a trace of attention to the tail.
    trace = weights_of((slice(5, 8), 1 + 6.2e-5), heads=slice(1, 2))
    data = gathered(record([(LABELS, weights_of())]), record([(LABELS, trace)]))
    assert data.by_arm["batchformer"].deviation == pytest.approx(6.2e-5)
    note = attention.caption(data).text
    assert "Here attention is uniform, so the map is blank." in note
    assert "No cell of any head and seed differs from uniform attention by more" in note
    assert "than 0.007%" in note
    figure = attention.draw(data)
    figure.canvas.draw()
    assert titles(figure) == ["Every head", "Between shot groups"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["uniform,\nwithin 0.007%"]


def test_attention_that_is_not_uniform_in_one_head_is_not_called_so() -> None:
    data = gathered(record([(LABELS, weights_of((slice(5, 8), 1.05), heads=slice(1, 2)))]))
    assert "Attention is uniform" not in attention.caption(data).text
    figure = attention.draw(data)
    assert not figure.axes[0].texts
    assert "Mean over heads" in titles(figure) and "Head 2" in titles(figure)
