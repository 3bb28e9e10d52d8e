"""Which images heat maps are shown of, against sorting by hand, and what is said of them."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import colormaps

from batchformer.insight.figures import cam
from batchformer.insight.figures.cam import (
    MOST,
    MOST_OPAQUE,
    Cams,
    Picture,
    Rule,
    Shots,
    enlarged,
    gather,
    overlay,
)
from batchformer.insight.figures.canvas import inline_svg
from batchformer.insight.figures.captioned import table_html
from helpers.simulated_networks import (
    Group,
    all_many,
    group_of,
    known,
    simulated_group,
    simulated_insight,
)

GROUPS = ("many", "medium", "few")
HOSTILE = "<script>alert('x')</script> & \"$a_b$\""


def heat_maps(
    labels: Any, shots: Any, confidence: Any = None, first_row: int = 100, **changes: Any
) -> dict[str, Any]:
    """Arrays of one run with images of these labels (M,), of classes of these shot groups (K,)."""
    labels, shots = np.asarray(labels), np.asarray(shots)
    images, classes = len(labels), len(shots)
    sure = np.linspace(0.1, 0.9, images) if confidence is None else np.asarray(confidence)
    return {
        "classes": np.array([f"class {i}" for i in range(classes)]),
        "train_counts": 1000 * (classes - np.arange(classes)),
        "shot_of_class": shots,
        "cam_thumbnails": np.arange(images * 12, dtype=np.uint8).reshape(images, 2, 2, 3),
        "cam_heat": np.linspace(0, 1, images * 4, dtype=np.float16).reshape(images, 2, 2),
        "cam_labels": labels,
        "cam_predictions": np.where(np.arange(images) % 2, labels, labels + 1),
        "cam_confidence": sure,
        "cam_rows": np.arange(first_row, first_row + images),
        "cam_layer": np.array("layer3"),
    } | changes


def gathered(group: Group, **options: Any) -> Cams:
    return known(gather(group, **options))


def rows(data: Cams) -> dict[str, list[int]]:
    return {name: [picture.row for picture in found] for name, found in data.by_shots.items()}


@st.composite
def seen(draw: st.DrawFn) -> tuple[list[int], list[int], list[float], list[float]]:
    """Shot groups of classes, labels of images, and confidences of two arms, some unknown."""
    shots = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    labels = draw(st.lists(st.integers(0, len(shots) - 1), min_size=1, max_size=40))
    sure = st.lists(st.floats(0, 1) | st.just(np.nan), min_size=len(labels), max_size=len(labels))
    return shots, labels, draw(sure), draw(sure)


@settings(max_examples=60, deadline=None)
@given(
    seen(),
    st.sampled_from(["seed", "change"]),
    st.sampled_from([None, *GROUPS]),
    st.integers(1, MOST // 3),
)
def test_the_images_are_those_that_sorting_by_hand_gives(
    found: Any, rule: Rule, shots: Shots | None, images: int
) -> None:
    of_class, labels, before, after = found
    group = group_of(
        {
            ("baseline", 0): heat_maps(labels, of_class, before),
            ("batchformer", 0): heat_maps(labels, of_class, after),
        }
    )
    order = list(range(len(labels)))
    if rule == "change":
        change = [abs(b - a) for a, b in zip(before, after, strict=True)]
        order.sort(key=lambda m: float("inf") if np.isnan(change[m]) else -change[m])
    expected = {
        name: [100 + m for m in order if of_class[labels[m]] == i][:images]
        for i, name in enumerate(GROUPS)
        if shots in (None, name)
    }
    expected = {name: chosen for name, chosen in expected.items() if chosen}
    data = gather(group, rule, shots, images)
    if data is None:
        assert not expected
        return
    assert rows(data) == expected and sum(map(len, data.by_shots.values())) <= MOST
    assert data.candidates == len(labels) and data.grouped == (len(set(of_class)) > 1)


def test_a_picture_holds_what_every_arm_saw_in_it() -> None:
    kept = {
        "baseline": heat_maps([1, 0], [0, 2], [0.25, 0.5]),
        "batchformer": heat_maps([1, 0], [0, 2], [0.75, 1.0], cam_predictions=np.array([1, 1])),
    }
    data = gathered(group_of({(arm, 4): arrays for arm, arrays in kept.items()}))
    assert (data.seed, data.layer, data.arms) == (4, "layer3", ["baseline", "batchformer"])
    (few,) = data.by_shots["few"]
    assert (few.name, few.count, few.row) == ("class 1", 1000, 100)
    assert few.confidence == {"baseline": 25.0, "batchformer": 75.0}
    assert few.right == {"baseline": False, "batchformer": True}
    np.testing.assert_array_equal(few.pixels, kept["baseline"]["cam_thumbnails"][0])
    for arm, heat in few.heat.items():
        assert heat.dtype == np.float64
        np.testing.assert_array_equal(heat, kept[arm]["cam_heat"][0])


@pytest.mark.parametrize(
    ("arms", "reference", "asked", "shown"),
    [
        (("baseline",), "baseline", None, ["baseline"]),
        (("batchformer",), "baseline", None, ["batchformer"]),
        (("batchformer", "batchformer_self"), "baseline", None, ["batchformer"]),
        (("baseline", "batchformer_self"), "baseline", None, ["baseline", "batchformer_self"]),
        (("baseline", "batchformer", "mine"), "baseline", None, ["baseline", "batchformer"]),
        (("baseline", "batchformer", "mine"), "baseline", "mine", ["baseline", "mine"]),
        (("baseline", "batchformer"), "batchformer", None, ["batchformer", "baseline"]),
        (("baseline", "batchformer"), "baseline", "baseline", ["baseline"]),
        (("baseline", "batchformer"), "baseline", "mine", None),
        ((), "baseline", None, None),
    ],
)
def test_the_reference_lies_above_the_arm_that_is_asked_for(
    arms: tuple[str, ...], reference: str, asked: str | None, shown: list[str] | None
) -> None:
    kept = {(arm, 0): heat_maps([0, 1], [0, 2]) for arm in arms}
    data = gather(group_of(kept, reference=reference), arm=asked)
    assert (None if data is None else data.arms) == shown
    if data is not None and len(data.arms) == 1:
        with pytest.raises(ValueError, match="two arms that saw the same images"):
            gather(group_of(kept, reference=reference), "change", arm=asked)


def test_arms_are_compared_on_the_first_seed_in_which_they_saw_the_same_images() -> None:
    kept = {("baseline", s): heat_maps([0, 1], [0, 2], first_row=10 * s) for s in (0, 1, 2)}
    kept |= {("batchformer", s): heat_maps([0, 1], [0, 2], first_row=10 * s) for s in (1, 2, 3)}
    kept["batchformer", 1]["cam_rows"] = np.array([11, 10])
    assert gathered(group_of(kept)).seed == 2
    kept["batchformer", 2]["cam_rows"] = np.array([0, 20])
    apart = gathered(group_of(kept))
    assert apart.arms == ["batchformer"] and apart.seed == 1
    assert rows(apart) == {"many": [11], "few": [10]}


def test_how_many_images_are_possible_is_said() -> None:
    group = group_of({("baseline", 0): heat_maps([0] * 30, [0])})
    for images in (0, 9):
        with pytest.raises(ValueError, match=f"1 to 8 images of each .* or 24 of .*, not {images}"):
            gather(group, images=images)
    assert len(gathered(group, images=24, shots="many").by_shots["many"]) == 24
    with pytest.raises(ValueError, match="1 to 24 images of the group many, not 25"):
        gather(group, images=25, shots="many")


def example(rule: Rule = "seed", grouped: bool = True) -> Cams:
    def picture(name: str, row: int, *confidence: float) -> Picture:
        sure = dict(zip(("baseline", "batch_former"), confidence, strict=True))
        right = {"baseline": False, "batch_former": True}
        heat = {arm: np.eye(2) for arm in sure}
        return Picture(name, 1280, row, np.zeros((2, 2, 3), np.uint8), heat, sure, right)

    pictures = {
        "many": [picture("dog", 7, 12.34, 50.0), picture(HOSTILE, 8, 0.0, 70.0)],
        "few": [picture("cat", 9, 50.0, 0.04)],
    }
    arms = ["baseline", "batch_former"]
    return Cams(pictures, arms, 3, "layer4.2", rule, 24, grouped)


@pytest.mark.parametrize("rule", ["seed", "change"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_words_say_how_images_were_chosen(rule: Rule, grouped: bool) -> None:
    said = cam.caption(example(rule, grouped))
    assert "3 test images" in said.text and "at layer4.2, seed 3" in said.text
    assert ("the first" in said.text) == (rule == "seed")
    assert ("changes most between the arms" in said.text) == (rule == "change")
    assert ("of each shot group" in said.text) == grouped
    assert (" 24 " in said.text) and said.text in said.alternative
    means = f"baseline {(12.34 + 50) / 3:.1f}%; batch_former {(50 + 70 + 0.04) / 3:.1f}%."
    assert said.alternative.endswith(f"Mean confidence: {means}")


def test_the_table_has_every_image_and_no_markup_of_a_name() -> None:
    (table,) = cam.tables(example())
    assert table.columns == ("shots", "class", "images", "test row", "baseline", "batch_former")
    assert list(table.rows) == [
        ("many", "dog", "1,280", "7", "12.3 wrong", "50.0 right"),
        ("many", HOSTILE, "1,280", "8", "0.0 wrong", "70.0 right"),
        ("few", "cat", "1,280", "9", "50.0 wrong", "0.0 right"),
    ]
    (alone,) = cam.tables(example(grouped=False))
    assert {row[0] for row in alone.rows} == {""}
    assert "shots" not in table_html(alone)


def test_the_figure_comes_with_its_words_and_its_table_folded() -> None:
    names = np.array([HOSTILE, "cat"])
    kept = {
        (arm, 0): heat_maps([0, 1, 0], [0, 2], classes=names) for arm in ("baseline", "batchformer")
    }
    shown = cam.make(gathered(group_of(kept), images=1))
    assert shown.title == "Where the network looks"
    assert shown.tables == () and len(shown.terminal_tables[0].rows) == 2
    svg = ElementTree.fromstring(inline_svg(shown.draw(), shown.caption.alternative, "cam"))
    assert svg.get("aria-label") == shown.caption.alternative
    texts = [element.text for element in svg.iter() if element.tag == "text"]
    assert "many shots" in texts and "few shots" in texts and "cat" in texts
    assert f"{HOSTILE[:8]}…" in texts and not list(svg.iter("script"))
    only = cam.make(gathered(group_of(kept), shots="few"))
    assert [row[0] for row in only.terminal_tables[0].rows] == ["few"]
    assert gather(group_of(kept), shots="medium") is None


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


def test_the_figure_has_a_block_for_each_group() -> None:
    data = gathered(simulated_group("baseline", "batchformer"), images=2)
    drawn = cam.draw(data)
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


def test_images_keep_their_shape() -> None:
    small = np.zeros((2, 3, 6, 3), dtype=np.uint8)
    data = gathered(group_of({("baseline", 0): heat_maps([0, 0], [0], cam_thumbnails=small)}))
    (axes,) = cam.draw(data).axes
    for shown in axes.images:
        left, right, low, high = shown.get_extent()
        assert right - left == pytest.approx(2 * (low - high)) == pytest.approx(0.94)


def test_one_shot_group_has_no_name() -> None:
    kept = {(arm, 0): all_many(simulated_insight(arm, 0)) for arm in ("baseline", "batchformer")}
    data = gathered(group_of(kept))
    assert not data.grouped
    assert [axes.get_title(loc="left") for axes in cam.draw(data).axes] == [""]
    assert "shot" not in cam.caption(data).alternative


def test_heat_maps_of_another_layer_replace_the_kept_ones() -> None:
    group = simulated_group("baseline", "batchformer", seeds=range(2))
    asked: list[tuple[str, int]] = []

    def other(network: Any) -> dict[str, Any]:
        asked.append((network.arm, network.seed))
        return {"cam_layer": np.array("layer1"), "cam_heat": 0 * network.insight["cam_heat"]}

    data = gathered(group, cam_layer=other)
    assert asked == [("baseline", 0), ("batchformer", 0)] and data.layer == "layer1"
    assert not any(p.heat["baseline"].any() for p in data.by_shots["many"])
