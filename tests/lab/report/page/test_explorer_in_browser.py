"""The explorer in a real browser: mouse, keys and fingers, light and dark, desk and phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from batchformer.insight.page.explorer import explorer_section
from batchformer.insight.page.insight_page import write_insight_page
from batchformer.insight.positions import PositionAttention
from batchformer.insight.record import FILE, save
from batchformer.lab.report.page import html
from batchformer.lab.report.page.html import render
from batchformer.lab.report.results.runs import find_runs
from helpers.run_folders import recipe_of, write_run

NAMES = [
    *("maple tree", "streetcar", "pickup truck", "leopard", "mushroom", "orange", "wardrobe"),
    *("chimpanzee", "skyscraper", "sunflower", "motorcycle", "lawn mower", "pine tree", "castle"),
    *("telephone", "otter", "<b>a class</b> with a very long name that no list is wide enough for"),
    *("girl", "seal", "bowl"),
]
COUNTS = np.round(500 * 0.01 ** (np.arange(20) / 19)).astype(np.int64)
SAMPLES, HEADS, BATCHES = 64, 4, 2
Insight = dict[str, NDArray[Any]]


def simulated(seed: int) -> Insight:
    """Batches in which samples attend to their class, and rare classes move others more."""
    random = np.random.default_rng(seed)
    shape = (BATCHES, SAMPLES)
    labels = random.integers(0, len(NAMES), shape)
    wrong = random.random(shape) < 0.3
    predictions = np.where(wrong, random.integers(0, len(NAMES), shape), labels)
    same = labels[:, :, None] == labels[:, None, :]
    logits = random.normal(0, 0.9, (BATCHES, HEADS, SAMPLES, SAMPLES)) + 1.4 * same[:, None]
    attention = np.exp(logits)
    attention /= attention.sum(-1, keepdims=True)
    attention[:, :, 7, 9] = 2**-20  # so small that half precision writes it in another way
    gradient = np.exp(random.normal(-9, 0.8, (BATCHES, SAMPLES, SAMPLES)) + same)
    gradient *= (COUNTS[labels] ** -0.3)[:, :, None] * ~np.eye(SAMPLES, dtype=bool)
    return {
        "classes": np.array(NAMES),
        "train_counts": COUNTS,
        "shot_of_class": np.where(COUNTS > 100, 0, np.where(COUNTS >= 20, 1, 2)),
        "batch_thumbnails": thumbnails(labels, random),
        "batch_labels": labels,
        "batch_predictions": predictions,
        "batch_attention": attention.astype(np.float16),
        "batch_gradient": gradient.astype(np.float32),
    }


def alone(insight: Insight) -> Insight:
    """The same batches where every sample attends to itself and moves no other."""
    attention, gradient = insight["batch_attention"], insight["batch_gradient"]
    itself = np.broadcast_to(np.eye(SAMPLES, dtype=np.float16), attention.shape)
    return insight | {"batch_attention": itself, "batch_gradient": np.zeros_like(gradient)}


def tied(insight: Insight) -> Insight:
    """In the first batch all weights are alike; in the second five samples share the largest."""
    attention = np.full_like(insight["batch_attention"], 1 / SAMPLES)
    attention[0, :, 6] *= 1 + np.linspace(-0.004, 0.004, SAMPLES)
    attention[1, ...] = 2**-7
    attention[1, ..., :5] = 2**-5
    return insight | {"batch_attention": attention}


def thumbnails(labels: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """A bright ellipse on waves, (B, N, 32, 32, 3): colours and waves belong to the class."""
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    images = np.zeros((*labels.shape, 32, 32, 3))
    for place, label in np.ndenumerate(labels):
        own = np.random.default_rng(int(label))
        ground, figure, (a, b) = own.random(3), own.random(3), own.uniform(1, 5, 2)
        waves = 0.5 + 0.3 * np.sin(a * x + b * y + random.uniform(0, 6))
        dx, dy = random.uniform(-0.4, 0.4, 2)
        inside = ((x - dx) / own.uniform(0.3, 0.8)) ** 2 + ((y - dy) / 0.6) ** 2 < 1
        image = np.where(inside[..., None], 0.3 + 0.7 * figure, waves[..., None] * ground)
        images[place] = image + random.normal(0, 0.04, image.shape)
    return (255 * images.clip(0, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def insight() -> Insight:
    return simulated(0)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory, insight: Insight) -> Path:
    """A page of three recipes; the first has two arms with batches, of the second no sample acts on
    another and all classes are of one shot group, of the third weights are equal. Only explorers
    are drawn.
    """
    root = tmp_path_factory.mktemp("explorer")
    kept = {("head", "batchformer"): insight, ("head", "batchformer_frozen"): simulated(1)}
    many = {"shot_of_class": np.zeros(len(NAMES), np.int64)}
    kept["tail", "batchformer_self"] = alone(simulated(2)) | many
    kept["tied", "batchformer"] = tied(simulated(3))
    baselines = [(name, "baseline") for name in ("head", "tail", "tied")]
    for recipe, arm in [*kept, *baselines]:
        folder = write_run(root / "runs", arm, 0, recipe=recipe_of(recipe))
        if (recipe, arm) in kept:
            save(folder / FILE, kept[recipe, arm])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            html, "sections_of", lambda *args: [s for s in [explorer_section(*args)] if s]
        )
        text = render(find_runs(root / "runs"))
    path = root / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


START_AGAIN = """() => {
    document.querySelectorAll('.explorer [aria-pressed=true]').forEach(tile => tile.click());
    document.querySelectorAll('.explorer input[value=attends]').forEach(e => e.click());
    for (const select of document.querySelectorAll('.explorer select')) {
        select.selectedIndex = 0;
        select.dispatchEvent(new Event('change', {bubbles: true}));
    }
}"""


class Opened:
    """The page; ``explorer`` is that of the first recipe."""

    def __init__(self, page: Any) -> None:
        self.page = page
        for explorer in range(3):
            page.locator(".explorer.live").nth(explorer).wait_for()
        self.explorer = page.locator(".explorer").first

    def start_again(self) -> None:
        """Put all controls back, keep no sample, and go to the first explorer."""
        self.page.emulate_media(media="screen", color_scheme="light", reduced_motion="reduce")
        self.page.mouse.move(0, 0)
        self.page.evaluate(START_AGAIN)
        self.go_to(0)

    def tile(self, sample: int) -> Any:
        return self.explorer.locator(".samples button").nth(sample)

    def each(self, value: str, of: str = ".samples button") -> list[Any]:
        """A value of every element, in JavaScript."""
        found: list[Any] = self.explorer.locator(of).evaluate_all(f"all => all.map(e => {value})")
        return found

    def with_class(self, name: str) -> list[int]:
        """The samples whose tiles have this class."""
        return [i for i, has in enumerate(self.each(f"e.classList.contains('{name}')")) if has]

    def chosen(self) -> int:
        """The sample that is chosen; there is always exactly one."""
        (found,) = self.with_class("chosen")
        return found

    def mode(self, name: str) -> None:
        self.explorer.locator(f"input[value={name}]").check()

    def go_to(self, explorer: int) -> Opened:
        """The explorer of another recipe."""
        self.explorer = self.page.locator(".explorer").nth(explorer)
        return self

    def select(self, part: str, value: str) -> None:
        self.explorer.locator(f"select[data-part={part}]").select_option(value=value)

    def listed(self) -> list[tuple[int, str, str]]:
        """Sample, class name and number of each row of the list."""
        names = self.explorer.locator("ol strong").all_text_contents()
        numbers = self.each("e.lastChild.firstChild.textContent", "ol li")
        samples = self.each("+e.dataset.sample", "ol li")
        return list(zip(samples, names, numbers, strict=True))

    def text(self, part: str) -> str:
        return str(self.explorer.locator(f"[data-part={part}]").text_content())


SWITCHES = [
    (0, 5, "attends", "mean"),
    (0, 17, "moves", ""),
    (1, 31, "attended", "3"),
    (1, 5, "attends", "0"),
    (1, 8, "moved", ""),
]
"""Batch, sample, relation and head."""


DESK = {"viewport": {"width": 1280, "height": 1400}, "reduced_motion": "reduce"}


@pytest.fixture(scope="module")
def desk(open_shared_page: Callable[..., Any], page_file: Path) -> Opened:
    return Opened(open_shared_page(page_file, **DESK).page)


@pytest.fixture
def page(desk: Opened) -> Opened:
    """The page on a desk, opened once; controls are where they are at first."""
    desk.start_again()
    return desk


def expected(insight: Insight, batch: int, sample: int, mode: str, head: str) -> NDArray[Any]:
    """What the chosen sample has to do with each one, (N,), from the arrays themselves."""
    if mode in ("moves", "moved"):
        matrix = insight["batch_gradient"][batch].astype(float)
    else:
        heads = insight["batch_attention"][batch].astype(float)
        matrix = heads.mean(0) if head == "mean" else heads[int(head)]
    values: NDArray[Any] = matrix[sample] if mode in ("attends", "moves") else matrix[:, sample]
    return values


def test_the_list_and_the_tiles_hold_the_numbers_of_the_arrays(
    page: Opened, insight: Insight
) -> None:
    for batch, sample, mode, head in SWITCHES:
        page.select("batch", str(batch))
        page.mode(mode)
        if mode in ("attends", "attended"):
            page.select("head", head)
        page.tile(sample).hover()
        assert page.chosen() == sample
        values = expected(insight, batch, sample, mode, head)
        shares = values / values.sum() if mode in ("moves", "moved") else values
        order = np.argsort(-values, kind="stable")[:8]
        rows = page.listed()
        assert [row[0] for row in rows] == order.tolist()
        labels = insight["batch_labels"][batch]
        assert [row[1] for row in rows] == [NAMES[labels[j]] for j in order]
        shown = [float(number.rstrip("%")) for *_, number in rows]
        np.testing.assert_allclose(shown, 100 * shares[order], atol=0.0501)
        on_tiles = page.explorer.locator(".samples b").all_text_contents()
        assert {j for j, text in enumerate(on_tiles) if text} == set(order.tolist())
        assert [on_tiles[j] for j in order] == [number for *_, number in rows]
        alike = np.flatnonzero((labels == labels[sample]) & (np.arange(SAMPLES) != sample))
        share = 100 * values[alike].sum() / (values.sum() - values[sample])
        if len(alike):
            (said,) = re.findall(r"Same class: ([\d.]+)%", page.text("share"))
            assert float(said) == pytest.approx(share, abs=0.0501)
            assert f"({len(alike)} of 63)" in page.text("share")
        else:
            assert page.text("share") == "No other sample is of its class."


def test_hovering_lights_up_what_is_attended_to(page: Opened, insight: Insight) -> None:
    page.tile(7).hover()
    values = expected(insight, 0, 7, "attends", "mean")
    values[7] = 0
    frames = page.each("parseFloat(getComputedStyle(e).boxShadow.split('px ')[3])")
    frames[7] = 0
    strengths = page.each("Number(e.style.getPropertyValue('--strength'))")
    np.testing.assert_allclose(strengths, values / values.max(), rtol=1e-6)
    assert 0 < strengths[9] < 1e-4
    np.testing.assert_allclose(frames, 6 * values / values.max(), atol=0.05)
    clear = page.each("Number(getComputedStyle(e).opacity)", ".samples canvas")
    assert clear[7] == clear[int(values.argmax())] == 1
    assert clear[int(np.argsort(values)[1])] < 0.7
    labels = insight["batch_labels"][0]
    assert page.with_class("same") == [
        j for j in range(SAMPLES) if j != 7 and labels[j] == labels[7]
    ]


def test_bars_are_as_long_as_numbers_are_large_also_that_of_the_sample_itself(
    page: Opened, insight: Insight
) -> None:
    weights = insight["batch_attention"][0].astype(float).mean(0)
    others = np.where(np.eye(SAMPLES, dtype=bool), 0, weights).max(1)
    sample = int((np.diag(weights) - others).argmax())
    assert weights[sample, sample] > 1.05 * others[sample]
    page.tile(sample).hover()
    listed = [row[0] for row in page.listed()]
    assert listed[0] == sample
    bars = page.each("Number(e.style.getPropertyValue('--strength'))", "ol li")
    np.testing.assert_allclose(bars, weights[sample, listed] / weights[sample, sample], rtol=1e-6)


def test_the_summary_says_it_in_words(page: Opened, insight: Insight) -> None:
    labels, predictions = insight["batch_labels"][0], insight["batch_predictions"][0]
    wrong = int(np.flatnonzero((labels != predictions) & (labels < 16) & (predictions < 16))[0])
    page.tile(wrong).hover()
    said, rows = page.text("summary"), page.listed()
    about = f"Sample {wrong + 1} of 64, class {NAMES[labels[wrong]]} ("
    assert said.startswith(about)
    assert f"{COUNTS[labels[wrong]]} training samples" in said
    assert f"predicted as {NAMES[predictions[wrong]]}. It attends most to sample" in said
    for sample, _, number in [row for row in rows if row[0] != wrong][:3]:
        assert f"sample {sample + 1} (" in said
        assert f", {number})" in said
    assert page.explorer.locator("[data-part=summary]").get_attribute("aria-live") == "polite"


def test_a_click_keeps_a_sample_until_it_is_let_go(page: Opened) -> None:
    page.tile(3).click()
    assert page.tile(3).get_attribute("aria-pressed") == "true"
    assert page.text("summary").startswith("Kept: Sample 4 of 64")
    page.tile(9).hover()
    assert page.chosen() == 3
    page.tile(9).click()
    assert page.chosen() == 9
    page.tile(9).click()
    assert page.tile(9).get_attribute("aria-pressed") == "false"
    page.tile(3).hover()
    assert page.chosen() == 3


def test_the_keyboard_reaches_everything(
    open_page: Callable[..., Any], page_file: Path, insight: Insight
) -> None:
    page = Opened(open_page(page_file, **DESK).page)  # untouched
    press = page.page.keyboard.press
    stops = page.explorer.locator(".samples button[tabindex='0']")
    assert stops.count() == 1
    # Before any touch the rarest class of the batch is chosen.
    first = page.chosen()
    assert insight["batch_labels"][0][first] == insight["batch_labels"][0].max()
    page.explorer.locator("select[data-part=shot]").focus()
    press("Tab")
    assert page.tile(first).evaluate("tile => tile === document.activeElement")
    walk = [("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("ArrowDown", 9), ("ArrowUp", 1)]
    walk += [("ArrowUp", 1), ("End", 63), ("ArrowRight", 63), ("ArrowDown", 63), ("ArrowUp", 55)]
    for key, sample in walk:
        press(key)
        assert page.chosen() == sample, key
        assert page.tile(sample).evaluate("tile => tile === document.activeElement"), key
        assert stops.count() == 1
    press("Enter")
    press("ArrowLeft")
    assert page.chosen() == 55
    weight = f"{100 * expected(insight, 0, 55, 'attends', 'mean')[54]:.1f}%"
    name = NAMES[insight["batch_labels"][0][54]]
    label = page.tile(54).get_attribute("aria-label")
    assert label.startswith(f"Sample 55, {name}, ")
    assert label.endswith(f", {weight}")
    press("Escape")
    assert page.chosen() == 54
    assert not page.tile(54).get_attribute("aria-label").endswith("%")
    press("Tab")
    assert not page.explorer.locator(".samples button:focus").count()


def test_filters_dim_the_others(page: Opened, insight: Insight) -> None:
    labels = insight["batch_labels"][0]
    shots = insight["shot_of_class"][labels]

    assert page.with_class("dimmed") == []
    options = page.explorer.locator("select[data-part=shot] option").all_text_contents()
    assert options == ["all (64)"] + [
        f"{name} ({(shots == i).sum()})" for i, name in enumerate(("many", "medium", "few"))
    ]
    page.select("shot", "few")
    assert page.with_class("dimmed") == np.flatnonzero(shots != 2).tolist()
    page.select("shot", "all")
    label = int(labels[0])
    options = page.explorer.locator("select[data-part=class] option").all_text_contents()
    assert options[0] == "all (64)"
    counts = [(NAMES[k], int((labels == k).sum())) for k in np.unique(labels)]
    assert options[1:] == [f"{name} ({count})" for name, count in counts]
    page.select("class", str(label))
    assert page.with_class("dimmed") == np.flatnonzero(labels != label).tolist()


def test_arms_and_batches_can_be_changed(page: Opened, insight: Insight) -> None:
    arms = page.explorer.locator("select[data-part=arm] option").all_text_contents()
    assert arms == ["batchformer, seed 0", "batchformer_frozen, seed 0"]
    other = simulated(1)
    for arm, batch, arrays in [("1", "0", other), ("1", "1", other), ("0", "1", insight)]:
        page.select("arm", arm)
        page.select("batch", batch)
        page.tile(11).hover()
        values = expected(arrays, int(batch), 11, "attends", "mean")
        order = np.argsort(-values, kind="stable")[:8].tolist()
        assert [row[0] for row in page.listed()] == order
        page.page.mouse.move(0, 0)


def test_tiles_show_the_images_of_the_batch(page: Opened, insight: Insight) -> None:
    page.select("batch", "1")
    script = """(() => { const {width, height} = e;
        const {data} = e.getContext('2d').getImageData(0, 0, width, height);
        return [width, height, ...[0, 1, 2].map(c => data.reduce(
            (sum, value, i) => sum + (i % 4 === c ? value : 0), 0) / (width * height))]; })()"""
    found = page.each(script, ".samples canvas")
    images = insight["batch_thumbnails"][1].astype(float)
    assert all(size == [32, 32] for size in (row[:2] for row in found))
    np.testing.assert_allclose([row[2:] for row in found], images.mean((1, 2)), atol=3)


def test_a_phone(open_page: Callable[..., Any], page_file: Path, insight: Insight) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    page = Opened(open_page(page_file, **phone, reduced_motion="reduce").page)
    assert page.page.evaluate("document.documentElement.scrollWidth") == 360
    outside = """root => [...root.querySelectorAll('*')].filter(element =>
        element.getBoundingClientRect().right > 360.5).map(element => element.outerHTML)"""
    assert page.explorer.evaluate(outside) == []
    for target in (".samples button", "select:visible", "fieldset label"):
        boxes = [box.bounding_box() for box in page.explorer.locator(target).all()]
        assert min(min(box["width"], box["height"]) for box in boxes) >= 40, target
    page.tile(20).tap()
    values = expected(insight, 0, 20, "attends", "mean")
    assert [row[0] for row in page.listed()] == np.argsort(-values, kind="stable")[:8].tolist()
    assert page.text("summary").startswith("Kept: Sample 21 of 64")
    page.tile(8).tap()
    assert page.chosen() == 8
    page.tile(8).tap()
    # A finger that scrolls over tiles chooses nothing.
    page.tile(2).dispatch_event("pointerover", {"pointerType": "touch", "bubbles": True})
    assert page.chosen() == 8
    page.explorer.locator("fieldset label").nth(2).tap()
    assert "gradient of its loss" in page.text("unit")
    assert page.explorer.evaluate(outside) == []
    # Wherever the tiles are, the summary is in sight.
    page.tile(0).scroll_into_view_if_needed()
    box = page.explorer.locator("[data-part=summary]").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 740.5


def test_light_and_dark_are_those_of_the_page(page: Opened) -> None:
    def brightness(selector: str, value: str) -> float:
        script = f"e => getComputedStyle(e).{value}.match(/[0-9.]+/g).slice(0, 3).map(Number)"
        return float(np.mean(page.explorer.locator(selector).first.evaluate(script)) / 255)

    for dark in (False, True):
        page.page.emulate_media(color_scheme="dark" if dark else "light")
        for selector in (".summary", "li strong", "select", ".samples b:not(:empty)"):
            found = brightness(selector, "color")
            assert found > 0.6 if dark else found < 0.4, selector
        for selector in ("select", ".samples b:not(:empty)"):
            found = brightness(selector, "backgroundColor")
            assert found < 0.2 if dark else found > 0.9, selector


def test_two_explorers_leave_each_other_alone(page: Opened) -> None:
    ids = page.page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    before = page.chosen(), page.listed()
    page.go_to(1)
    assert page.explorer.locator("select[data-part=arm]").is_hidden()
    page.mode("moved")
    page.tile(30).click()
    assert page.chosen() == 30
    page.go_to(0)
    assert (page.chosen(), page.listed()) == before
    assert page.explorer.locator("input:checked").get_attribute("value") == "attends"


def test_samples_of_one_shot_group_that_act_on_no_other(page: Opened) -> None:
    page.go_to(1)
    page.tile(30).hover()
    assert [(sample, number) for sample, _, number in page.listed()] == [(30, "100.0%")]
    assert page.text("summary").endswith("It attends to no other sample.")
    page.mode("moved")
    assert page.listed() == []
    assert page.text("summary").endswith("It is moved by the loss of no other sample.")
    shown = page.explorer.text_content()
    assert "NaN" not in shown
    assert "Infinity" not in shown
    # One shot group is neither named nor asked for.
    labels = simulated(2)["batch_labels"][0]
    page.tile(3).hover()
    count = COUNTS[labels[3]]
    assert f"({count} training sample{'s' if count > 1 else ''})" in page.text("summary")
    assert page.tile(3).get_attribute("aria-label") == f"Sample 4, {NAMES[labels[3]]}"
    assert not page.explorer.locator("select[data-part=shot]").is_visible()
    page.select("class", str(labels[3]))
    assert page.with_class("dimmed") == np.flatnonzero(labels != labels[3]).tolist()


def test_what_is_alike_is_not_ranked(page: Opened) -> None:
    page.go_to(2)
    for sample in (2, 6):
        for mode, said in (("attends", "It attends to"), ("attended", "It is attended by")):
            page.mode(mode)
            page.tile(sample).hover()
            assert page.text("summary").endswith(f"{said} all others alike (1.6% each).")
            assert page.listed() == []
            assert not any(page.explorer.locator(".samples b").all_text_contents())
            assert page.text("unit").startswith("Nothing to rank: all others are within 1% of")
            strengths = page.each("e.style.getPropertyValue('--strength')")
            assert set(strengths[:sample] + strengths[sample + 1 :]) == {"0.25"}
        page.mode("moves")
        assert "Its loss moves most sample" in page.text("summary"), "gradients have an order"
        assert len(page.listed()) == 8
    # Of equal ones none is called the largest.
    page.select("batch", "1")
    page.mode("attends")
    page.tile(30).hover()
    assert page.text("summary").endswith("It attends most to 5 samples alike (3.1% each).")
    assert [row[0] for row in page.listed()] == [0, 1, 2, 3, 4], "59 equal ones follow"
    page.tile(4).hover()
    assert page.text("summary").endswith("It attends most to 4 samples alike (3.1% each).")


def test_motion_is_for_those_who_want_it(page: Opened) -> None:
    for wanted, duration in (("no-preference", "0.12s"), ("reduce", "0s")):
        page.page.emulate_media(reduced_motion=wanted)
        assert page.tile(0).evaluate("e => getComputedStyle(e).transitionDuration") == duration


def test_paper_shows_the_grid(page: Opened) -> None:
    page.page.emulate_media(media="print")
    assert page.tile(0).is_visible()
    assert page.tile(63).is_visible()
    assert page.explorer.locator("ol").is_visible()
    assert page.explorer.locator(".controls").is_hidden()


def test_of_texts_the_words_are_seen_and_nothing_of_them_is_markup(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    kept = dict(simulated(0))
    batches, samples = kept.pop("batch_thumbnails").shape[:2]
    texts = [f"text {i} <b>of</b> {'many words ' * 30}" for i in range(batches * samples)]
    kept["batch_captions"] = np.array(texts).reshape(batches, samples)
    file = write_insight_page(kept, tmp_path / "page.html")
    for width in (1280, 390):
        page = open_page(file, viewport={"width": width, "height": 900}).page
        page.locator(".explorer.live").wait_for()
        shown = page.locator(".explorer .samples button")
        assert [text.strip() for text in shown.locator(".caption").all_text_contents()] == [
            text.strip() for text in texts[:samples]
        ]
        page.locator(".explorer .samples button").nth(5).hover()
        assert page.locator(".explorer q").text_content() == texts[5]
        heights = shown.evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
        assert max(heights) == min(heights) < 90, "three lines at most"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_scripts_the_images_are_seen(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    pictures = page.locator(".explorer img")
    assert pictures.count() == 4 * BATCHES
    assert all(picture.is_visible() for picture in pictures.all())
    assert page.locator(".explorer .controls").first.is_hidden()
    context.close()


def test_a_patch_shows_what_it_gives_to_each_image(browser: Any, tmp_path: Path) -> None:
    """The page of positions, of three images with a class token and 2 x 4 patches."""
    random = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 9, 3, 3, generator=random).softmax(-1)
    seen = PositionAttention(
        "blocks.1", weights, (2, 4), 1, torch.zeros(3, 8, 16, 3, dtype=torch.uint8)
    )
    page = browser.new_page()
    page.goto(seen.page(tmp_path / "positions.html").as_uri())

    def shares() -> list[str]:
        return [text.inner_text() for text in page.query_selector_all(".tiles b")]

    def expected(image: int, row: int, column: int) -> list[str]:
        return [f"{100 * float(seen.maps()[image, j, row, column]):.1f}%" for j in range(3)]

    box = page.query_selector_all(".tiles .view")[2].bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.7 * box["height"])
    assert shares() == expected(2, 1, 1)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # there is no row above
    page.keyboard.press("ArrowRight")
    assert shares() == expected(2, 0, 2)
    assert "Image 3, patch in row 1, column 3" in page.inner_text("[data-part=summary]")
    page.close()
