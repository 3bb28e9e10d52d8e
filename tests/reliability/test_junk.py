"""Random junk as configurations, command lines and models: only our own errors come out."""

from __future__ import annotations

import copy
import dataclasses
import io
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from batchformer import attach, detach
from batchformer.cli import main as cli
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.folder import recipe_from_json, recipe_to_json
from batchformer.plug.classifier import AttachError

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["..", "/etc", "demo", "long_tailed", "each", "1e9", "-1", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
SECTIONS = ("data", "hyper", "module", "optim", "schedule", "train")
NAMES = sorted(RECIPES)


def places(recipe: Recipe) -> list[tuple[str, ...]]:
    top = [(field.name,) for field in dataclasses.fields(Recipe)]
    return top + [(s, f.name) for s in SECTIONS for f in dataclasses.fields(getattr(recipe, s))]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, where a command does no harm."""
    monkeypatch.chdir(tmp_path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_recipe_out_of_junk_is_refused_or_whole(data: st.DataObject) -> None:
    """ValueError for what makes no sense, TypeError for settings that do not exist."""
    recipe = find_recipe(data.draw(st.sampled_from(NAMES)))
    plain: Any = copy.deepcopy(recipe_to_json(recipe))
    for place in data.draw(st.lists(st.sampled_from(places(recipe)), max_size=4)):
        value = data.draw(ANYTHING)
        inside = plain if len(place) == 1 else plain.get(place[0])
        if not isinstance(inside, dict):
            continue
        if data.draw(st.booleans()):
            inside.pop(place[-1], None)
        else:
            inside[place[-1]] = value
    plain.update(data.draw(st.dictionaries(st.text(max_size=4), ANYTHING, max_size=1)))
    try:
        made = recipe_from_json(plain)
    except (TypeError, ValueError):
        return
    assert isinstance(made, Recipe)


WORDS = st.sampled_from(
    [
        *("train", "compare", "report", "show", "evaluate", "export", "list", "data", "sweep"),
        *("check", "demo", "bench", "--help", "--runs", "--seed", "--arm", "--train.updates"),
        *("--data.root", "--device", "cpu", "junk", "-1", "0", "nan", "1e400", "", "--", "-x"),
        *("my_folder", "baseline", "--start", "../..", "/nowhere/at/all", "--to", "--module.heads"),
    ]
)
JUNK = st.lists(WORDS | st.text(max_size=8), max_size=6)


def trains(words: list[str]) -> bool:
    """Whether a line might be a whole command that takes long or writes."""
    return bool(words) and words[0] in ("demo", "bench", "compare", "sweep", "train", "check")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(words=JUNK)
def test_a_command_line_of_junk_ends_with_an_exit_code(words: list[str]) -> None:
    assume(not trains(words) or "junk" in words[1:2])
    _ends(words)


@settings(max_examples=15, deadline=None)
@given(
    command=st.sampled_from(["train", "compare", "check"]),
    option=st.sampled_from(
        ["--seed", "--train.updates", "--module.heads", "--data.ratio", "--optim.lr", "--start"]
    ),
    value=st.text(max_size=6).filter(lambda text: not text.strip().isdigit()),
)
def test_an_option_of_junk_ends_with_an_exit_code(command: str, option: str, value: str) -> None:
    _ends([command, "demo", option, value, "--device", "junk", "--runs", "/proc/nowhere"])


def _ends(words: list[str]) -> None:
    """The command exits with 0, or with 1 or 2 and a message, without a traceback."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        try:
            cli.main(words)
        except SystemExit as end:
            assert end.code in (None, 0, 1, 2)
            assert not end.code or said.getvalue().strip()


LAYERS = st.sampled_from(
    [
        lambda: nn.Linear(8, 8),
        lambda: nn.Linear(8, 4),
        lambda: nn.Linear(4, 8),
        lambda: nn.Conv2d(3, 8, 3),
        lambda: nn.Conv2d(8, 8, 1),
        lambda: nn.Flatten(),
        lambda: nn.AdaptiveAvgPool2d(1),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.LayerNorm(8),
        lambda: nn.ReLU(),
        lambda: nn.Identity(),
        lambda: nn.Embedding(16, 8),
        lambda: nn.LSTM(8, 8),
        lambda: nn.ModuleList([nn.Linear(8, 8)]),
        lambda: nn.Sequential(),
    ]
)
SHAPES = st.lists(st.integers(0, 8), max_size=4)
EXAMPLES = st.one_of(
    st.none(),
    SHAPES.map(lambda shape: torch.zeros(shape)),
    SHAPES.map(lambda shape: torch.zeros(shape, dtype=torch.int64)),
    st.sampled_from(["junk", 5, (), [], {}, {"x": 3}, object()]),
    SHAPES.map(lambda shape: (torch.zeros(shape), torch.zeros(3))),
    SHAPES.map(lambda shape: {"input": torch.full(shape, float("nan"))}),
)
PLACES = st.one_of(
    st.none(),
    st.sampled_from(["", "0", "1", "0.0", "head", ".", "..", "0.", 5, [], ["0", "0"], ["0", 3]]),
    st.text(max_size=4),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "heads": st.sampled_from([-1, 1, 3, 2**40, "four", None]),
        "layers": st.sampled_from([-1, 0, 2, "one"]),
        "dropout": st.sampled_from([-0.5, 1.5, float("nan"), "half"]),
        "attend": st.sampled_from(["self", "everyone", 3]),
        "streams": st.just("mixed_only"),
        "batch_norm": st.just("per_stream"),
        "share": st.booleans(),
        "batch_axis": st.sampled_from([0, 1]),
        "channel_axis": st.sampled_from([0, 1]),
    },
)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layers=st.lists(LAYERS, max_size=4), at=PLACES, example=EXAMPLES, options=OPTIONS)
def test_attach_refuses_junk_in_words_and_leaves_the_model(
    layers: list[Any], at: Any, example: Any, options: dict[str, Any]
) -> None:
    model = nn.Sequential(*(make() for make in layers))
    assume(any(True for _ in model.parameters()))
    before = outline(model)
    try:
        attach(model, at, example=example, verbose=False, **options)
    except (AttachError, TypeError, ValueError):
        pass
    except Exception as error:  # a model may refuse an example in its own words
        assert raised_by_the_model(error), repr(error)
    else:
        detach(model)
    assert outline(model) == before


def outline(model: nn.Module) -> list[tuple[str, type, tuple[int, ...]]]:
    """Names and classes of all modules, and the sizes of their parameters."""
    return [
        (name, type(module), tuple(p.numel() for p in module.parameters()))
        for name, module in model.named_modules()
    ]


def raised_by_the_model(error: Exception) -> bool:
    """Whether the last of our functions in the traceback is the one that calls the model."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "batchformer" in Path(frame.filename).parts]
    return Path(ours[-1].filename).name == "example.py" and ours[-1].name == "run"


def test_a_model_without_parameters_has_the_type_of_its_input() -> None:
    model = nn.Sequential(nn.Identity()).double()
    attach(model, "0", example=torch.randn(4, 8).double(), verbose=False)
    assert model(torch.randn(4, 8).double()).shape == (8, 8)
