"""Commands that answer questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.cli import questions
from batchformer.cli.arguments import UserError


def test_the_list_is_of_the_words_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    questions.list_recipes(["rotated", "mdd"])
    out = capsys.readouterr().out
    assert "rotated_digits_mdd" in out and "demo" not in out


def test_check_says_whether_batchformer_acts(capsys: pytest.CaptureFixture[str]) -> None:
    questions.check(["demo", "--device", "cpu"])
    assert "BatchFormer is acting." in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        questions.check(["demo", "--module.no-trained", "--device", "cpu"])
    assert end.value.code == 1 and "frozen" in capsys.readouterr().out


def test_check_looks_at_an_arm(capsys: pytest.CaptureFixture[str]) -> None:
    questions.check(["demo", "--arm", "batchformer_self", "--device", "cpu"])
    assert "samples attend only to themselves" in capsys.readouterr().out
    with pytest.raises(UserError, match="The arm baseline_mates has no BatchFormer to check"):
        questions.check(["demo", "--arm", "baseline_mates"])
    with pytest.raises(UserError, match="Did you mean batchformer_self"):
        questions.check(["demo", "--arm", "batchformer_sefl"])


def test_check_explains_a_network_for_other_channels() -> None:
    with pytest.raises(ValueError, match=r"digits have one, which digits_net .* by --model"):
        questions.check(["demo", "--model", "resnet32", "--device", "cpu"])


def test_check_needs_batchformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so before it asks for data, which may not be here."""
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    with pytest.raises(UserError, match="imagenet_moco_v3_knn has no BatchFormer to check"):
        questions.check(["imagenet_moco_v3_knn"])
    with pytest.raises(ValueError, match="eszsl is a closed form"):
        questions.check(["cub_eszsl"])
    with pytest.raises(ValueError, match=r"module\.no-enabled takes BatchFormer out"):
        questions.check(["demo", "--module.no-enabled"])
