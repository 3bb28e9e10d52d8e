from __future__ import annotations

import pytest

from batchformer.lab.metrics.intervals import pooled
from batchformer.lab.report.figures.forest import described, draw, make
from batchformer.lab.report.results.comparison import difference_between
from batchformer.lab.report.results.pooling import Effect
from helpers.simulated_networks import known

VALUES = {"a_recipe": [0.5, 0.7, 0.6], "another": [0.4, -0.8]}


@pytest.fixture
def effect() -> Effect:
    papers = {"a_recipe": 1.0, "another": None}
    recipes = {
        name: known(
            difference_between(
                dict.fromkeys(range(len(values)), 50.0),
                {seed: 50.0 + v for seed, v in enumerate(values)},
                "all",
                (0.0, papers[name]),
            )
        )
        for name, values in VALUES.items()
    }
    return Effect(pooled(list(VALUES.values())), recipes, "not reliable", 0.5, 1.0, 1)


def test_every_recipe_has_its_mean_its_name_and_words_and_all_have_their_diamond(
    effect: Effect,
) -> None:
    (axes,) = draw("batchformer", effect).axes
    drawn = sorted(
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]), line.get_markerfacecolor())
        for line in axes.get_lines()
    )
    assert [(x, y) for x, y, face in drawn if face != "none"] == [
        pytest.approx((-0.2, -1)),
        pytest.approx((0.6, 0)),
    ]
    assert [(x, y) for x, y, face in drawn if face == "none"] == [(1.0, 0.0)]
    (diamond,) = axes.patches
    corners = diamond.get_xy()[:, 0]  # type: ignore[attr-defined]
    assert corners.min() == pytest.approx(effect.pooled.low)
    assert corners.max() == pytest.approx(effect.pooled.high)
    names = [text.get_text() for text in axes.texts]
    assert names == ["a_recipe, 3 seeds", "another, 2 seeds", "Over all, 5 seeds"]
    bottom, top = axes.get_ylim()
    assert bottom < -2 and top > 0
    made = make("batchformer", "baseline", "all", effect)
    assert made.title == "All: batchformer - baseline" and "higher is better" in made.caption.text
    assert "Hollow: the paper" in made.caption.text
    assert "a_recipe: +0.60 [+0.35, +0.85]; another: -0.20; over all: +0.20" in described(effect)
    assert described(effect) in made.caption.alternative
    assert "lower is better" in make("batchformer", "baseline", "ece", effect).caption.text
