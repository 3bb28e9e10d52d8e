"""Places-LT's recipes say what the protocol says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import given_weights


@pytest.mark.parametrize("name", ["places_lt_balms", "places_lt_tau_norm"])
def test_features_beside_the_data_are_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path / "elsewhere"))
    recipe = find_recipe(name)
    recipe = dataclasses.replace(recipe, data=recipe.data_with(root=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match=r"--weights FILE.*--weights timm"):
        given_weights(recipe)
    (tmp_path / "resnet152_uniform.pth").touch()
    assert given_weights(recipe) == tmp_path / "resnet152_uniform.pth"
    assert given_weights(dataclasses.replace(recipe, weights="timm")) is None
