from __future__ import annotations

import io
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from batchformer.insight.page import explorer
from batchformer.insight.page.explorer import (
    COLUMNS,
    explorer_of,
    explorer_section,
    script_policy,
    sprite,
)
from batchformer.insight.page.html import Section
from helpers.simulated_networks import group_of, known, simulated_batches

Insight = dict[str, NDArray[Any]]


def arrays(
    seed: int = 0, *, batches: int = 2, samples: int = 10, heads: int = 3, classes: int = 7
) -> Insight:
    """What is kept of a network with batches to look into, of random numbers."""
    return {
        "classes": np.array([f"class {k}" for k in range(classes)]),
        "train_counts": np.arange(classes, 0, -1) * 20,
        "shot_of_class": np.arange(classes) * 3 // classes,
    } | simulated_batches(seed, batches, samples, heads, classes)


def section_of(kept: dict[tuple[str, int], Insight]) -> Section:
    return known(explorer_section(group_of(kept), "p"))


def on_page(html: str) -> dict[str, Any]:
    """What the page gives to the script."""
    (text,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.S)
    found: dict[str, Any] = json.loads(text)
    return found


def numbers(text: str, kind: str, *shape: int) -> NDArray[Any]:
    return np.frombuffer(b64decode(text), f"<{kind}").reshape(shape)


def test_the_page_holds_the_arrays_themselves() -> None:
    record = arrays()
    section = section_of({("batchformer", 0): record})
    data = on_page(section.html)
    (arm,) = data["arms"]
    assert (arm["name"], arm["seed"], arm["heads"]) == ("batchformer", 0, 3)
    assert data["shots"] == ["many", "medium", "few"]
    assert len(arm["batches"]) == 2
    for b, batch in enumerate(arm["batches"]):
        attention = numbers(batch["attention"], "f2", 3, 10, 10)
        np.testing.assert_array_equal(attention, record["batch_attention"][b])
        gradient = numbers(batch["gradient"], "f4", 10, 10)
        np.testing.assert_array_equal(gradient, record["batch_gradient"][b])
        assert batch["labels"] == record["batch_labels"][b].tolist()
        assert batch["predictions"] == record["batch_predictions"][b].tolist()
        assert batch["sprite"] == b
    assert section.html.count("<img ") == 2


def test_only_classes_that_occur_are_held() -> None:
    record = arrays(classes=1000)
    found = known(explorer_of(group_of({("batchformer", 0): record})))
    occurring = set(record["batch_labels"].flat) | set(record["batch_predictions"].flat)
    expected = {
        k: [f"class {k}", 20 * (1000 - k), 3 * k // 1000] for k in sorted(map(int, occurring))
    }
    assert found.arms[0]["classes"] == expected


@pytest.mark.parametrize("samples", [1, 8, 13])
def test_a_sprite_has_every_image_in_its_place(samples: int) -> None:
    # Plain colours survive the compression, and every image has its own.
    colours = np.stack(np.unravel_index(np.arange(samples) * 2, (3, 3, 3)), 1) * 120
    images = np.zeros((samples, 16, 24, 3), np.uint8) + colours[:, None, None].astype(np.uint8)
    head, _, text = sprite(images).partition(",")
    assert head == "data:image/webp;base64"
    picture = np.array(Image.open(io.BytesIO(b64decode(text))).convert("RGB")).astype(int)
    rows = -(-samples // COLUMNS)
    assert picture.shape == (16 * rows, 24 * COLUMNS, 3)
    for i, colour in enumerate(colours):
        y, x = 16 * (i // COLUMNS), 24 * (i % COLUMNS)
        middle = picture[y + 4 : y + 12, x + 4 : x + 20].reshape(-1, 3)
        np.testing.assert_allclose(middle.mean(0), colour, atol=6)


def test_each_arm_is_of_its_first_seed_that_has_all() -> None:
    part = {name: array for name, array in arrays().items() if name != "batch_gradient"}
    kept = {("batchformer", 0): part, ("batchformer", 1): arrays(1), ("batchformer", 2): arrays(2)}
    kept["batchformer_self", 0] = arrays(3)
    section = known(explorer_section(group_of(kept), "p"))
    found = [(arm["name"], arm["seed"]) for arm in on_page(section.html)["arms"]]
    assert found == [("batchformer", 1), ("batchformer_self", 0)]
    assert "(batchformer seed 1, batchformer_self seed 0)" in section.note


def test_the_words_say_how_batches_are_drawn_and_one_shot_group_is_not_named() -> None:
    record = arrays()
    section = section_of({("batchformer", 0): record})
    assert "as frequent as in training, as far as there are test samples" in section.note
    alike = record | {"shot_of_class": np.zeros_like(record["shot_of_class"])}
    section = section_of({("batchformer", 0): alike})
    assert on_page(section.html)["shots"] == []
    assert re.findall(r'<label class="pick (\w+)" hidden>', section.html) == ["arm", "shot"]


def test_arms_that_saw_the_same_images_share_the_pictures() -> None:
    other = arrays(1) | {"batch_thumbnails": arrays(0)["batch_thumbnails"]}
    group = group_of({("batchformer", 0): arrays(0), ("batchformer_frozen", 0): other})
    found = known(explorer_of(group))
    assert len(found.sprites) == 2
    assert [[b["sprite"] for b in arm["batches"]] for arm in found.arms] == [[0, 1], [0, 1]]


def test_arms_may_have_kept_different_numbers_of_batches() -> None:
    kept = {("batchformer", 0): arrays(0, batches=1), ("batchformer_self", 0): arrays(1, batches=3)}
    found = known(explorer_of(group_of(kept)))
    assert [[b["sprite"] for b in arm["batches"]] for arm in found.arms] == [[0], [1, 2, 3]]
    assert len(found.sprites) == 4


def _replaced(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Insight:
    record = arrays()
    return record | {name: change(record[name])}


def _with_nan(array: NDArray[Any]) -> NDArray[Any]:
    array = array.copy()
    array.flat[3] = np.nan
    return array


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"classes": np.array(["a", "b"])},
        _replaced("batch_labels", lambda array: array[:, :-1]),
        _replaced("batch_gradient", lambda array: array[:1]),
        _replaced("train_counts", lambda array: array[:-1]),
        _replaced("batch_attention", lambda array: array[:, 0]),
        _replaced("batch_attention", lambda array: array[:0]),
        _replaced("batch_attention", _with_nan),
        _replaced("batch_gradient", _with_nan),
        _replaced("batch_labels", lambda array: array + 100),
        _replaced("batch_predictions", lambda array: array - 100),
    ],
)
def test_records_that_do_not_fit_are_left_out(record: Insight) -> None:
    assert explorer_section(group_of({("batchformer", 0): record}), "p") is None


def test_three_batches_of_64_stay_small() -> None:
    record = arrays(batches=3, samples=64, heads=4, classes=100)
    smooth = np.random.default_rng(0).integers(0, 256, (3, 64, 8, 8, 3), np.uint8)
    record["batch_thumbnails"] = smooth.repeat(4, 2).repeat(4, 3)
    section = section_of({("batchformer", 0): record})
    assert len(section.html) < 600_000
    assert "the first" not in section.note


def test_of_a_large_record_the_first_batches_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of({("batchformer", 0): arrays(batches=4)})
    whole = known(explorer_of(group))
    each = [len(b["attention"]) + len(b["gradient"]) for b in whole.arms[0]["batches"]]
    first_two = sum(each[:2]) + sum(map(len, whole.sprites[:2]))
    monkeypatch.setattr(explorer, "MOST_BYTES", first_two)
    section = known(explorer_section(group, "p"))
    assert len(on_page(section.html)["arms"][0]["batches"]) == section.html.count("<img ") == 2
    assert "the first 2 of 4)" in section.note
    monkeypatch.setattr(explorer, "MOST_BYTES", 1)
    found = known(explorer_of(group))
    assert len(found.arms[0]["batches"]) == len(found.sprites) == 1


def test_names_of_classes_cannot_become_markup() -> None:
    record = arrays()
    name = "</script><script>alert('&')</script>"
    record["classes"] = np.array([name] * len(record["classes"]))
    section = section_of({("batchformer", 0): record})
    assert "alert" in section.html
    assert section.html.count("<script") == section.html.count("</script>") == 2
    assert {each[0] for each in on_page(section.html)["arms"][0]["classes"].values()} == {name}


def test_the_policy_names_the_script_of_the_page() -> None:
    group = group_of({("batchformer", 0): arrays()})
    for prefix in ("one", "two"):
        section = known(explorer_section(group, prefix))
        (script,) = re.findall(r"<script>(.*?)</script>", section.html, re.S)
        digest = b64encode(sha256(script.encode()).digest()).decode()
        assert script_policy([section]) == f"; script-src 'sha256-{digest}'"
        ids = re.findall(r'\bid="([^"]*)"', section.html)
        assert len(ids) == len(set(ids))
        assert all(each.startswith(f"{prefix}-explorer") for each in ids)
        referred = re.findall(r'aria-(?:describedby|labelledby)="([^"]*)"', section.html)
        assert set(referred) <= set(ids)
        assert not re.search(r"https?://|@import|url\(", section.html)
