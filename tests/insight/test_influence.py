"""Influence by class against loops over samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.gradient import influence, on_images
from batchformer.insight.influence import InfluenceSums
from batchformer.insight.relations import Relations


def test_means_are_over_samples_of_a_class_and_their_others(
    make_relations: Callable[..., Relations], images: tuple[Tensor, Tensor]
) -> None:
    relations, (x, y) = make_relations(), images
    classes = Classes.by_shots(tuple("abcde"), torch.tensor([1, 500, 50, 12, 70]))
    bins = [4, 0, 2, 3, 1]
    sums = InfluenceSums(classes, steps=2)
    each: dict[str, list[list[float]]] = {
        name: [[] for _ in range(5)] for name in ("abs", "l2", "images_abs", "images_l2")
    }
    between = np.zeros((5, 5))
    for rows in (slice(0, 7), slice(1, 5)):
        images_here, labels = x[rows], y[rows]
        seen = influence(relations, relations.features(images_here), labels, steps=2)
        sums.add(seen, labels, relations, images_here)
        absolute, length = on_images(relations, images_here, seen.following)
        for i, a in enumerate(labels.tolist()):
            others = [j for j in range(len(labels)) if j != i]
            each["abs"][a].append(float(np.mean([seen.absolute[i, j] for j in others])))
            each["l2"][a].append(float(np.mean([seen.length[i, j] for j in others])))
            each["images_abs"][a].append(float(absolute[:, i].mean()))
            each["images_l2"][a].append(float(length[:, i].mean()))
            for j in others:
                between[bins[a], bins[int(labels[j])]] += float(seen.absolute[i, j])
    got = sums.arrays()
    assert got["gradient_samples"].tolist() == [len(values) for values in each["abs"]]
    assert got["gradient_samples"][4] == 0
    for name, values in each.items():
        expected = [np.mean(of_class) if of_class else np.nan for of_class in values]
        np.testing.assert_allclose(got[f"gradient_{name}"], expected, err_msg=name)
    np.testing.assert_allclose(got["gradient"], between, rtol=1e-6)


def test_images_are_left_out_where_nobody_asks() -> None:
    sums = InfluenceSums(Classes.by_shots(tuple("ab"), torch.tensor([1, 5])), steps=0)
    assert not [name for name in sums.arrays() if "images" in name]
