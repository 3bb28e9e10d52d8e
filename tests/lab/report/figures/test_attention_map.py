"""Attention against uniform attention, by brute force over the pairs of drawn batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.report.figures import attention as attention_map
from batchformer.lab.report.figures.attention import gather
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def record(weights: np.ndarray, y: np.ndarray, counts: np.ndarray, shots: np.ndarray) -> Any:
    """The arrays of one batch with labels (N,) and weights (H, N, N), pair by pair."""
    heads, samples, _ = weights.shape
    size = len(counts)
    made: dict[str, Any] = {
        "train_counts": counts,
        "bin_of_class": np.arange(size),
        "bin_pairs": np.zeros((size, size)),
        "attention": np.zeros((heads, size, size)),
        "attention_shots": np.zeros((heads, 3, 3)),
        "shot_pairs": np.zeros((3, 3)),
        **{f"attention_{name}": np.zeros((heads, 2)) for name in ("self", "same", "other")},
    }
    for i in range(samples):
        for j in range(samples):
            w = weights[:, i, j]
            kind = "self" if i == j else "same" if y[i] == y[j] else "other"
            made[f"attention_{kind}"] += np.stack([w, np.ones(heads)], 1)
            if i != j:
                made["bin_pairs"][y[i], y[j]] += 1
                made["attention"][:, y[i], y[j]] += w
                made["shot_pairs"][shots[y[i]], shots[y[j]]] += 1
                made["attention_shots"][:, shots[y[i]], shots[y[j]]] += w
    return made


COUNTS, SHOTS_OF = np.array([500, 50, 5]), np.array([0, 1, 2])
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])


def test_uniform_attention_is_a_ratio_of_one_everywhere(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    uniform = np.full((2, 8, 8), 1 / 8)
    add_insight(write_run("batchformer", 0), record(uniform, LABELS, COUNTS, SHOTS_OF))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.batch == 8
    found = data.by_arm["batchformer"]
    assert found.ratio == pytest.approx(np.ones((3, 3)))
    assert found.flow_ratio == pytest.approx(np.ones((3, 3)))
    assert found.flow[0] == pytest.approx([2 / 8, 2 / 8, 3 / 8])
    for share in found.shares.values():
        assert share.measured.mean == pytest.approx(share.uniform)
    assert sum(share.uniform for share in found.shares.values()) == pytest.approx(1)


def test_shares_ratios_and_flow_by_hand(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    generator = np.random.default_rng(0)
    weights = [generator.dirichlet(np.ones(8), (2, 8)) for _ in range(3)]
    for seed, w in enumerate(weights):
        add_insight(write_run("batchformer", seed), record(w, LABELS, COUNTS, SHOTS_OF))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    found = data.by_arm["batchformer"]
    own = [np.mean([w[:, i, i].mean() for i in range(8)]) for w in weights]
    assert found.shares["itself"].measured.values == pytest.approx(own)
    same = [
        np.mean([sum(w[:, i, j].mean() for j in range(8) if j != i and LABELS[i] == LABELS[j])
                 for i in range(8)])
        for w in weights
    ]  # fmt: skip
    assert found.shares["others of its class"].measured.values == pytest.approx(same)
    total = sum(share.measured.mean for share in found.shares.values())
    assert total == pytest.approx(1)
    to_few = np.mean([w[:, 0:3, 5:8].mean() for w in weights])
    assert found.ratio[0, 2] == pytest.approx(8 * to_few)
    assert found.flow_ratio[0, 2] == pytest.approx(8 * to_few)
    assert found.flow[0, 2] == pytest.approx(3 * to_few)
    assert found.heads[1, 0, 2] == pytest.approx(8 * weights[0][1, 0:3, 5:8].mean())
    low, high = found.shares["itself"].measured.low, found.shares["itself"].measured.high
    assert low is not None and high is not None and low < np.mean(own) < high


def test_the_simulation_prefers_its_own_class_and_the_words_say_so(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    for seed in range(2):
        add_insight(write_run("baseline", seed))
        add_insight(write_run("batchformer", seed))
        add_insight(write_run("batchformer_frozen", seed))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.main == "batchformer"
    assert list(data.by_arm) == ["batchformer", "batchformer_frozen"]
    found = data.by_arm["batchformer"]
    same = found.shares["others of its class"]
    assert same.measured.mean > 2 * same.uniform
    assert np.diagonal(found.ratio).min() > np.median(found.ratio)
    said = attention_map.words(data)
    assert f"to others of its class {100 * same.measured.mean:.1f}%" in said.note
    assert said.alternative.startswith("Heat maps.")
    shares, *flows = attention_map.numbers(data)
    assert len(shares.rows) == 6 and len(flows) == 2
    assert flows[0].caption.startswith("batchformer:")
    assert gather(one_group(find_runs(runs_root)), "batchformer_frozen").main == (  # type: ignore[union-attr]
        "batchformer_frozen"
    )
    assert gather(one_group(find_runs(runs_root)), "baseline") is None


def test_the_figure_has_the_mean_the_flow_and_every_head(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("batchformer", 0), heads=6)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    figure = attention_map.figure(data)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert [t for t in titles if t] == [
        "Mean over heads",
        "Between shot groups",
        *(f"Head {i}" for i in range(1, 7)),
    ]
    shown = np.asarray(figure.axes[0].images[0].get_array())
    found = data.by_arm["batchformer"].ratio
    reach = figure.axes[0].images[0].get_clim()[1]
    assert shown == pytest.approx(np.clip(np.log2(found), -reach, reach))
    assert figure.axes[0].images[0].get_clim() == (-reach, reach)
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert len(texts) == 9 and all("×" in text and "%" in text for text in texts)


def test_attention_to_oneself_alone_can_be_drawn(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    alone = np.broadcast_to(np.eye(8), (2, 8, 8))
    labels = np.where(LABELS == 1, 0, LABELS)  # and no sample of the medium class
    add_insight(write_run("batchformer_self", 0), record(alone, labels, COUNTS, SHOTS_OF))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.main == "batchformer_self"
    found = data.by_arm["batchformer_self"]
    assert found.shares["itself"].measured.mean == 1
    assert np.isnan(found.ratio[1]).all() and found.ratio[0, 2] == 0
    figure = attention_map.figure(data)
    figure.canvas.draw()
    names = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert names == ["many", "few"]


def test_a_thousand_classes_are_a_hundred_bins(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("batchformer", 0), classes=1000, batches=4)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    assert data.by_arm["batchformer"].ratio.shape == (100, 100)
    assert data.together == 10 and "up to 10 classes" in attention_map.words(data).note
    assert list(data.counts) == sorted(data.counts, reverse=True)


def test_one_shot_group_has_no_flow_and_few_classes_have_names(
    write_run: Writer,
    add_insight: Writer,
    make_insight: Writer,
    in_one_group: Writer,
    runs_root: Path,
) -> None:
    insight = in_one_group(make_insight("batchformer", 0, classes=7))
    add_insight(write_run("batchformer", 0), insight)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.groups == [0]
    figure = attention_map.figure(data)
    figure.canvas.draw()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert [t for t in titles if t] == ["Mean over heads", *(f"Head {i}" for i in range(1, 5))]
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == list(insight["classes"])
    assert len(attention_map.numbers(data)) == 1
    assert "shot" not in attention_map.words(data).alternative


def test_one_ignored_class_does_not_wash_out_the_others(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    weights = np.ones((2, 8, 8))
    weights[:, :, 3:5] = 1.5  # the medium class
    add_insight(
        write_run("batchformer", 0),
        record(weights / weights.sum(-1, keepdims=True), LABELS, COUNTS, SHOTS_OF),
    )
    weights[:, :, 5:] = 1e-4
    add_insight(
        write_run("batchformer", 1),
        record(weights / weights.sum(-1, keepdims=True), LABELS, COUNTS, SHOTS_OF),
    )
    runs = find_runs(runs_root)
    reaches, notes, ends = [], [], []
    for run in [run for run in runs if run.arm == "batchformer"]:
        data = gather(one_group([run]))
        assert data is not None
        figure = attention_map.figure(data)
        image: Any = figure.axes[0].images[0]
        reaches.append(image.get_clim()[1])
        notes.append(attention_map.words(data).note)
        ends.append(image.colorbar.extend)
    assert ends == ["neither", "min"]
    assert reaches[1] < 2, "the ratio of the ignored class is 2 ** -12"
    assert ["colour of the end" in note for note in notes] == [False, True]


def test_uniform_attention_is_said_in_words_and_drawn_once(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    weights = np.full((2, 8, 8), 1 / 8)
    add_insight(write_run("batchformer", 0), record(weights, LABELS, COUNTS, SHOTS_OF))
    weights[1, :, 5:] *= 1 + 6.2e-5  # in another seed and head, a trace of attention to the tail
    add_insight(write_run("batchformer", 1), record(weights, LABELS, COUNTS, SHOTS_OF))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    assert data.by_arm["batchformer"].deviation == pytest.approx(6.2e-5)
    note = attention_map.words(data).note
    assert "Attention is uniform: in no head of any seed does a cell differ from it by " in note
    assert "more than 0.007%" in note
    figure = attention_map.figure(data)
    figure.canvas.draw()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert [t for t in titles if t] == ["Every head", "Between shot groups"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["uniform,\nwithin 0.007%"]


def test_attention_that_is_not_uniform_in_one_head_is_not_called_so(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    weights = np.full((2, 8, 8), 1 / 8)
    weights[1, :, 5:] *= 1.05
    add_insight(write_run("batchformer", 0), record(weights, LABELS, COUNTS, SHOTS_OF))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and "Attention is uniform" not in attention_map.words(data).note
    figure = attention_map.figure(data)
    assert not figure.axes[0].texts
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert "Mean over heads" in titles and "Head 2" in titles


def test_the_words_name_the_images_that_were_seen(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("batchformer", 0, per_class_images=60), batches=8, samples=64)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    assert "on 512 of the 600 test images in batches" in attention_map.words(data).note
