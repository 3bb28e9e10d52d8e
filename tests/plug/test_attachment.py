"""What attaching leaves on a model to be read later."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from batchformer import attach, detach
from batchformer.plug.classifier import AttachError
from batchformer.plug.insertion import RECORD, Attachment


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))


def test_the_record_says_what_was_done_and_travels_with_the_model() -> None:
    options = {"streams": "shared", "batch_norm": "per_stream", "verbose": False}
    model = attach(network(), ["3", "1"], **options)  # type: ignore[arg-type]
    expected = Attachment(places=("1", "3"), changed=("1", "2", "3"), streams="shared")
    assert model.__dict__[RECORD] == expected
    assert pickle.loads(pickle.dumps(model)).__dict__[RECORD] == expected
    assert RECORD not in detach(model).__dict__


def test_mixed_rows_and_another_axis_of_samples_are_recorded() -> None:
    example = torch.randn(4, 3, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    attach(model, streams="mixed_only", example=example, input_axis=1, verbose=False)
    assert model.__dict__[RECORD] == Attachment(("1",), ("1",), "mixed_only", input_axis=1)


def test_what_is_attached_is_refused_also_as_a_part_of_another() -> None:
    model = attach(network(), verbose=False)
    for seen in (model, nn.Sequential(model)):
        with pytest.raises(AttachError, match=r"detach\(model\) first"):
            attach(seen)
