"""Parts and classes of features with attributes, their scale, and the same one level down."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor

from batchformer.lab.data.sets.attributes import AttributeFeatures

#: Rows of each class: 0, 2, 3, 5 are seen; 1 and 4 are not.
SIZES, SEEN, UNSEEN = (10, 6, 15, 20, 4, 5), (0, 2, 3, 5), (1, 4)


def made(seed: int = 0, **changes: Any) -> AttributeFeatures:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(6), torch.tensor(SIZES))
    labels = labels[torch.randperm(len(labels), generator=draw)]
    seen = torch.isin(labels, torch.tensor(SEEN)).nonzero().flatten()
    seen = seen[torch.randperm(len(seen), generator=draw)]
    # Two rows of each seen class at the end are tested on.
    last = torch.cat([seen[labels[seen] == c][-2:] for c in SEEN])
    values: dict[str, Any] = {
        "name": "toy",
        "features": torch.rand(len(labels), 7, generator=draw) * 9 - 2,
        "labels": labels,
        "attributes": torch.rand(6, 3, generator=draw),
        "classes": tuple("abcdef"),
        "trainval": seen[~torch.isin(seen, last)],
        "test_seen": last,
        "test_unseen": torch.isin(labels, torch.tensor(UNSEEN)).nonzero().flatten(),
        "val_classes": torch.tensor([5, 2]),
    }
    return AttributeFeatures(**{**values, **changes})


def test_classes_follow_from_the_rows() -> None:
    data = made()
    assert data.seen.tolist() == list(SEEN) and data.unseen.tolist() == list(UNSEEN)


def test_the_scale_is_that_of_sklearn_on_the_training_rows() -> None:
    data = made()
    data.features[:, 3] = 1.5  # a channel that never changes
    scaler = MinMaxScaler().fit(data.features[data.trainval].numpy())
    largest = scaler.transform(data.features[data.trainval].numpy()).max()
    for rows in (data.trainval, data.test_unseen):
        expected = scaler.transform(data.features[rows].numpy()) / largest
        np.testing.assert_allclose(data.scaled(rows).numpy(), expected, atol=1e-6)
    assert data.scaled(data.trainval).max() == 1 and data.scaled(data.trainval).min() == 0
    beyond = dataclasses.replace(data, features=data.features.clone())
    beyond.features[data.test_unseen] += 100
    assert torch.equal(beyond.scaled(data.trainval), data.scaled(data.trainval))
    assert beyond.scaled(data.test_unseen).min() > 1


def test_the_hash_knows_every_row_and_where_one_part_ends() -> None:
    data = made()
    moved = dataclasses.replace(
        data,
        trainval=torch.cat((data.trainval, data.test_seen[:1])),
        test_seen=data.test_seen[1:],
    )
    swapped = dataclasses.replace(data, trainval=data.trainval.flip(0))
    hashes = {data.split_sha256, moved.split_sha256, swapped.split_sha256}
    assert len(hashes) == 3 and data.split_sha256 == made().split_sha256
    assert all(len(h) == 64 for h in hashes)
    for name in ("features", "attributes"):
        array = getattr(data, name).clone()
        array[-1, -1] += 0.5
        hashes.add(dataclasses.replace(data, **{name: array}).split_sha256)
    assert len(hashes) == 5


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), fraction=st.floats(0.15, 0.6))
def test_one_level_down(seed: int, fraction: float) -> None:
    data = made(seed)
    inner = data.for_selection(fraction, seed)
    assert inner.classes == ("a", "c", "d", "f")
    assert [inner.classes[c] for c in inner.seen] == ["a", "d"]
    assert [inner.classes[c] for c in inner.unseen] == ["c", "f"]
    assert torch.equal(inner.attributes, data.attributes[torch.tensor(SEEN)])
    # Every training row is there once, with its class, and no other.
    assert torch.equal(inner.features, data.features[data.trainval])
    names = [data.classes[c] for c in data.labels[data.trainval]]
    assert [inner.classes[c] for c in inner.labels] == names
    parts = torch.cat((inner.trainval, inner.test_seen, inner.test_unseen))
    assert parts.sort().values.tolist() == list(range(len(data.trainval)))
    for c in inner.seen.tolist():
        rows, held = (int((inner.labels[r] == c).sum()) for r in (inner.trainval, inner.test_seen))
        assert held == int(fraction * (rows + held) + 1e-9)
    again = data.for_selection(fraction, seed)
    assert torch.equal(again.test_seen, inner.test_seen)
    assert inner.val_classes is None


def test_the_draw_of_a_class_depends_on_no_other() -> None:
    data = made()
    fewer = dataclasses.replace(data, val_classes=torch.tensor([5]))

    def held(inner: AttributeFeatures) -> Tensor:
        rows = inner.test_seen
        return rows[inner.labels[rows] == 2]  # the class d

    assert torch.equal(held(data.for_selection()), held(fewer.for_selection()))
    assert not torch.equal(held(data.for_selection()), held(data.for_selection(seed=1)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": torch.zeros(60, 7, dtype=torch.float64)}, "features must be torch.float32"),
        ({"features": torch.full((60, 7), torch.nan)}, "not all finite"),
        ({"features": torch.zeros(59, 7)}, "59 features but 60 labels"),
        ({"classes": tuple("abcde")}, "6 classes but 5 class names"),
        ({"labels": torch.arange(60)}, "labels run from 0 to 59"),
        ({"test_seen": torch.tensor([60])}, "runs from 60 to 60"),
        ({"test_seen": torch.tensor([], dtype=torch.int64)}, "one or more int64"),
        ({"val_classes": torch.tensor([1])}, "one or more seen classes"),
        ({"val_classes": torch.tensor(SEEN)}, "leave no seen class"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**changes)


def test_seen_and_unseen_are_disjoint_and_complete() -> None:
    data = made()
    with pytest.raises(ValueError, match="stands twice"):
        dataclasses.replace(data, test_seen=data.trainval[:3])
    unseen = data.test_unseen
    with pytest.raises(ValueError, match="classes 1 are tested as unseen but"):
        kept = unseen[unseen != unseen[data.labels[unseen] == 1][0]]
        moved = unseen[data.labels[unseen] == 1][:1]
        dataclasses.replace(data, trainval=torch.cat((data.trainval, moved)), test_unseen=kept)
    with pytest.raises(ValueError, match="classes 4 have no training row and no unseen"):
        dataclasses.replace(data, test_unseen=unseen[data.labels[unseen] == 1])
    with pytest.raises(ValueError, match="rows of classes 0, which have no training"):
        lost = data.trainval[data.labels[data.trainval] != 0]
        gone = data.labels[data.test_seen] == 0
        dataclasses.replace(
            data,
            trainval=lost,
            attributes=data.attributes,
            test_unseen=torch.cat((unseen, data.test_seen[gone][:1])),
            test_seen=data.test_seen[gone.logical_not() | (gone.cumsum(0) == 2)],
        )


def test_no_classes_of_validation_is_said() -> None:
    with pytest.raises(ValueError, match="names no classes of validation"):
        made(val_classes=None).for_selection()
    with pytest.raises(ValueError, match="between 0 and 1"):
        made().for_selection(fraction=1.0)
