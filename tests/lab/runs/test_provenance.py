"""Which code ran where."""

from __future__ import annotations

import sys

import pytest
import torch

from batchformer.lab.runs.provenance import code_hash, provenance


def test_code_device_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["batchformer", "train", "a b"])
    facts = provenance(torch.device("cpu"))
    assert facts["command"] == "batchformer train 'a b'" and facts["device"] == "cpu"
    assert facts["code_sha256"] == code_hash() and len(code_hash()) == 64
