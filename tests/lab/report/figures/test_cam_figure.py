"""Heat maps of two arms on the same images: which images, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colormaps

from batchformer.lab.report.figures import cam
from batchformer.lab.report.figures.cam import (
    MOST,
    MOST_OPAQUE,
    enlarged,
    figure,
    gather,
    overlay,
    widened,
)
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


@pytest.fixture
def group(write_run: Writer, add_insight: Writer, runs_root: Path) -> RunGroup:
    for seed in range(2):
        add_insight(write_run("baseline", seed))
        add_insight(write_run("batchformer", seed))
    return one_group(find_runs(runs_root))


def arrays(group: RunGroup, arm: str) -> Any:
    return group.of(arm)[0].insight


def test_the_first_of_each_group_are_shown_arm_above_arm(group: RunGroup) -> None:
    data = gather(group, images=3)
    assert data is not None and data.arms == ["baseline", "batchformer"] and data.seed == 0
    assert list(data.by_shots) == ["many", "medium", "few"]
    seen = arrays(group, "batchformer")
    shots = seen["shot_of_class"][seen["cam_labels"]]
    for i, pictures in enumerate(data.by_shots.values()):
        first = np.flatnonzero(shots == i)[:3]
        assert [p.row for p in pictures] == seen["cam_rows"][first].tolist()
        for m, picture in zip(first, pictures, strict=True):
            assert picture.confidence["batchformer"] == pytest.approx(
                100 * seen["cam_confidence"][m]
            )
            right = seen["cam_predictions"][m] == seen["cam_labels"][m]
            assert picture.right["batchformer"] == right
            assert np.array_equal(picture.pixels, seen["cam_thumbnails"][m])
            heat = arrays(group, "baseline")["cam_heat"][m]
            assert picture.heat["baseline"] == pytest.approx(heat.astype(float))


def test_change_takes_the_largest_change_of_confidence(group: RunGroup) -> None:
    data = gather(group, rule="change", shots="few", images=4)
    assert data is not None and list(data.by_shots) == ["few"]
    left, right = (arrays(group, arm) for arm in ("baseline", "batchformer"))
    change = np.abs(left["cam_confidence"] - right["cam_confidence"])
    own = left["shot_of_class"][left["cam_labels"]] == 2
    wanted = sorted(change[own], reverse=True)[:4]
    found = [
        abs(p.confidence["batchformer"] - p.confidence["baseline"]) for p in data.by_shots["few"]
    ]
    assert found == pytest.approx([100 * value for value in wanted])
    assert "changes most between the arms" in cam.words(data).note


def test_the_number_of_images_is_limited(group: RunGroup) -> None:
    data = gather(group, images=MOST)
    assert data is not None and sum(map(len, data.by_shots.values())) <= MOST
    for wrong in (0, MOST + 1):
        with pytest.raises(ValueError, match=f"1 to {MOST} images"):
            gather(group, images=wrong)


def test_arms_that_saw_other_images_are_not_laid_above_each_other(
    write_run: Writer, add_insight: Writer, make_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("baseline", 0))
    other = make_insight("batchformer", 0)
    other["cam_rows"] = other["cam_rows"] + 1
    add_insight(write_run("batchformer", 0), other)
    group = one_group(find_runs(runs_root))
    data = gather(group)
    assert data is not None and data.arms == ["batchformer"]
    with pytest.raises(ValueError, match="two arms that saw the same images"):
        gather(group, rule="change")
    assert len(figure(data).axes) == 3


def test_another_arm_can_be_asked_for(
    group: RunGroup, write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("batchformer_frozen", 0))
    more = one_group(find_runs(runs_root))
    data = gather(more, arm="batchformer_frozen")
    assert data is not None and data.arms == ["baseline", "batchformer_frozen"]
    assert gather(more, arm="batchformer_self") is None


@pytest.mark.parametrize(("a", "b", "h", "w"), [(4, 4, 32, 32), (7, 5, 48, 40), (8, 8, 8, 8)])
def test_heat_is_widened_as_torch_does_it(a: int, b: int, h: int, w: int) -> None:
    heat = np.random.default_rng(0).random((a, b))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(heat)[None, None], (h, w), mode="bilinear", align_corners=False
    )[0, 0].numpy()
    assert widened(heat, (h, w)) == pytest.approx(expected)


def test_cold_pixels_keep_the_image_and_hot_ones_the_colour_of_heat() -> None:
    pixels = np.full((2, 2, 3), 100, dtype=np.uint8)
    assert np.array_equal(overlay(pixels, np.zeros((2, 2))), pixels)
    hot = 255 * np.array(colormaps["inferno"](1.0)[:3])
    expected = np.rint((1 - MOST_OPAQUE) * 100 + MOST_OPAQUE * hot)
    assert overlay(pixels, np.ones((2, 2)))[0, 0].tolist() == expected.tolist()


def test_small_images_are_enlarged_by_whole_pixels() -> None:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    large = enlarged(pixels)
    assert large.shape == (48, 48, 3) and np.array_equal(large[::6, ::6], pixels)
    assert enlarged(np.zeros((64, 64, 3))).shape == (64, 64, 3)


def test_the_figure_has_a_block_for_each_group(group: RunGroup) -> None:
    data = gather(group, images=2)
    assert data is not None
    drawn = figure(data)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "many shots",
        "medium shots",
        "few shots",
    ]
    for axes, pictures in zip(drawn.axes, data.by_shots.values(), strict=True):
        assert len(axes.images) == 2 * 3
        texts = [text.get_text() for text in axes.texts]
        for picture in pictures:
            mark = "✓" if picture.right["baseline"] else "✗"
            assert f"{picture.confidence['baseline']:.0f}% {mark}" in texts
    rows = cam.numbers(data)[0].rows
    assert len(rows) == 6 and rows[0][:2] == ("many", data.by_shots["many"][0].name)


def test_long_class_names_are_cut(
    write_run: Writer, add_insight: Writer, make_insight: Writer, runs_root: Path
) -> None:
    insight = make_insight("baseline", 0)
    insight["classes"] = np.array([f"$a_very long name^ {i}" for i in range(12)])
    add_insight(write_run("baseline", 0), insight)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    drawn = figure(data)
    drawn.canvas.draw()
    assert "$a_very …" in [text.get_text() for text in drawn.axes[0].texts]


def test_runs_without_heat_maps_have_no_figure(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    assert cam.shown(one_group(find_runs(runs_root))) is None


def test_one_shot_group_has_no_name(
    write_run: Writer,
    add_insight: Writer,
    make_insight: Writer,
    in_one_group: Writer,
    runs_root: Path,
    group: RunGroup,
) -> None:
    grouped = gather(group, shots="few")
    assert grouped is not None and grouped.grouped, "one of three was asked for"
    for arm in ("baseline", "batchformer"):
        add_insight(write_run(arm, 0), in_one_group(make_insight(arm, 0)))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and not data.grouped
    assert [axes.get_title(loc="left") for axes in figure(data).axes] == [""]
    assert "shot" not in cam.words(data).alternative
    assert all(row[0] == "" for row in cam.numbers(data)[0].rows)
