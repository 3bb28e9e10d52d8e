"""Sums of attention weights against loops over all samples of all batches."""

from __future__ import annotations

import numpy as np
import torch

from batchformer.insight.attention import AttentionSums
from batchformer.insight.classes import Classes


def test_sums_are_those_of_loops() -> None:
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
