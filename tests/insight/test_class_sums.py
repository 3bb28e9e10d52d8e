"""Sums over batches by class against loops over all samples and pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from batchformer.insight.class_sums import AttentionSums, InfluenceSums
from batchformer.insight.classes import Classes
from batchformer.insight.gradient import batch_influence, on_images
from batchformer.insight.relations import Relations


def test_attention_is_summed_as_by_loops() -> None:
    counts = torch.tensor([5, 300, 50, 12, 150])
    classes = Classes.by_shots(tuple("abcde"), counts)
    draw = torch.Generator().manual_seed(0)
    sums = AttentionSums(classes, heads=3)
    bins, shots = [4, 0, 2, 3, 1], [2, 0, 1, 2, 0]  # by hand
    expected = {
        "attention": np.zeros((3, 5, 5)),
        "attention_shots": np.zeros((3, 3, 3)),
        "bin_pairs": np.zeros((5, 5)),
        "shot_pairs": np.zeros((3, 3)),
        **{f"attention_{name}": np.zeros((3, 2)) for name in ("self", "same", "other")},
    }
    for samples in (7, 4):
        weights = torch.rand(3, samples, samples, generator=draw).softmax(2)
        labels = torch.randint(0, 5, (samples,), generator=draw)
        sums.add(weights, labels)
        for i, a in enumerate(labels.tolist()):
            for j, b in enumerate(labels.tolist()):
                given = weights[:, i, j].double().numpy()
                kind = "self" if i == j else "same" if a == b else "other"
                expected[f"attention_{kind}"][:, 0] += given
                expected[f"attention_{kind}"][:, 1] += 1
                if i != j:
                    expected["attention"][:, bins[a], bins[b]] += given
                    expected["attention_shots"][:, shots[a], shots[b]] += given
                    expected["bin_pairs"][bins[a], bins[b]] += 1
                    expected["shot_pairs"][shots[a], shots[b]] += 1
    got = sums.arrays()
    assert "attention_context" not in got
    assert got["bin_of_class"].tolist() == bins
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def test_what_goes_to_a_context_is_summed() -> None:
    sums = AttentionSums(Classes.by_shots(("a", "b"), torch.tensor([5, 1])), heads=2)
    for shares in ([[0.25, 0.5], [0.0, 1.0]], [[0.75], [0.5]]):
        given = torch.tensor(shares)
        count = given.shape[1]
        weights = torch.eye(count).expand(2, count, count)
        sums.add(weights, torch.arange(count), given)
    assert sums.arrays()["attention_context"].tolist() == [[1.5, 3.0], [1.5, 3.0]]


def test_means_are_over_samples_of_a_class_and_their_others(
    make_relations: Callable[..., Relations], images: tuple[Tensor, Tensor]
) -> None:
    relations, (x, y) = make_relations(), images
    sums = InfluenceSums(5, steps=2)
    each: dict[str, list[list[float]]] = {
        name: [[] for _ in range(5)] for name in ("abs", "l2", "images_abs", "images_l2")
    }
    for rows in (slice(0, 7), slice(1, 5)):
        images_here, labels = x[rows], y[rows]
        seen = batch_influence(relations, relations.features(images_here), labels, steps=2)
        sums.add(seen, labels, relations, images_here)
        absolute, length = on_images(relations, images_here, seen.following)
        for i, a in enumerate(labels.tolist()):
            others = [j for j in range(len(labels)) if j != i]
            each["abs"][a].append(float(np.mean([seen.absolute[i, j] for j in others])))
            each["l2"][a].append(float(np.mean([seen.length[i, j] for j in others])))
            each["images_abs"][a].append(float(absolute[:, i].mean()))
            each["images_l2"][a].append(float(length[:, i].mean()))
    got = sums.arrays()
    assert got["gradient_samples"].tolist() == [len(values) for values in each["abs"]]
    assert got["gradient_samples"][4] == 0
    for name, values in each.items():
        expected = [np.mean(of_class) if of_class else np.nan for of_class in values]
        np.testing.assert_allclose(got[f"gradient_{name}"], expected, err_msg=name)


def test_images_are_left_out_where_nobody_asks() -> None:
    sums = InfluenceSums(2, steps=0)
    assert not [name for name in sums.arrays() if "images" in name]
