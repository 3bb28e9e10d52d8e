"""Pairs of attribute and object: numbers in both worlds, words, views and scores."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import PairConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.sets.pairs import (
    PHASES,
    PairImage,
    Phase,
    read_pairs,
    write_pair_table,
)
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.metrics.compositional import CompositionalScores
from batchformer.lab.tasks import compositional
from batchformer.lab.tasks.compositional import CompositionalTask
from helpers.data_files import save_plain

CPU = torch.device("cpu")
SIDE = 16
#: Seen in training; unseen in validation; unseen in the test.
SEEN = [("old", "cat"), ("old", "dog"), ("wet", "cat")]
UNSEEN: dict[Phase, tuple[str, str]] = {"val": ("wet", "dog"), "test": ("dry", "dog")}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    shown = [(pair, split) for pair in [*SEEN, ("red", "cat")] for split in PHASES]
    shown += [(pair, split) for split, pair in UNSEEN.items()]
    rows: list[PairImage] = []
    for pair, split in shown * 3:
        rows.append(PairImage(f"{len(rows)}.png", *pair, split))
        save_plain(tmp_path / rows[-1].image, len(rows) - 1, SIDE, SIDE)
    path = tmp_path / "pairs.csv"
    write_pair_table(path, rows)
    words = {"old": "1 0 0", "wet": "0 1 0", "red": "0 0 1", "dry": "1 0 1"}
    words |= {"cat": "1 1 0", "hound": "0 1 1"}
    (tmp_path / "vectors.txt").write_text("\n".join(f"{w} {v}" for w, v in words.items()) + "\n")
    return path


def task(table: Path, **changes: Any) -> CompositionalTask:
    options = {
        "vectors": (str(table.parent / "vectors.txt"),),
        "replacements": ("dog=hound",),
        "size": 14,
        **changes,
    }
    return CompositionalTask.load(PairConfig(name="table", table=str(table), **options), CPU)


class Knows(Method):
    """Tells the pair of an image by its grey level, if it is one of those it knows."""

    def __init__(self, made: CompositionalTask, known: list[tuple[str, str]]) -> None:
        super().__init__()
        self.made, self.known = made, [made.compositions.names.index(pair) for pair in known]

    def predict(self, x: Tensor) -> Tensor:
        levels = (x[:, 0, 0, 0] * 0.229 + 0.485) * 255
        scores = torch.zeros(len(x), self.made.num_classes)
        for row, level in enumerate(levels.round().int().tolist()):
            truth = next(
                int(self.made.numbers(part.labels)[part.paths.index(f"{level}.png")])
                for part in (self.made.data.val, self.made.data.test)
                if f"{level}.png" in part.paths
            )
            scores[row, truth if truth in self.known else self.known[0]] = 1.0
        return scores

    def feasibility(self) -> Tensor:
        return torch.linspace(0, 1, self.made.num_classes)


def optimizer_step() -> OptimizerStep:
    return OptimizerStep(TrainConfig(workers=0), CPU)


@pytest.mark.parametrize("world", ["closed", "open"])
@pytest.mark.parametrize("memory", [False, True])
def test_a_network_that_knows_all_pairs_is_perfect(table: Path, world: str, memory: bool) -> None:
    made = task(table, world=world, memory=memory)
    assert made.num_classes == (6 if world == "closed" else 8)
    found = made.evaluate(Knows(made, [*SEEN, ("red", "cat"), *UNSEEN.values()]), optimizer_step())
    names = ["auc", "hm", "seen", "unseen", "attribute", "object"]
    assert list(found.metrics)[:6] == names and list(found.metrics)[-1] == "val"
    assert found.metrics["seen"] == found.metrics["unseen"] == 100
    assert found.figures["bias_seen"].shape == found.figures["bias_unseen"].shape


def test_one_that_knows_seen_pairs_alone(table: Path) -> None:
    made = task(table)
    found = made.evaluate(Knows(made, [*SEEN, ("red", "cat")]), optimizer_step())
    assert found.metrics["seen"] == 100 and found.metrics["auc"] < 100


def test_training_batches_have_the_numbers_of_the_world(table: Path) -> None:
    closed, opened = task(table), task(table, world="open")
    options = TrainConfig(batch_size=4, workers=0)
    mine, theirs = (made.feed(options, 1).batch(0) for made in (closed, opened))
    names = [closed.compositions.names[n] for n in mine["y"].tolist()]
    assert names == [opened.compositions.names[n] for n in theirs["y"].tolist()]
    assert set(names) <= {*SEEN, ("red", "cat")}
    assert torch.equal(mine["x"], theirs["x"])


@pytest.mark.parametrize("memory", [False, True])
def test_the_last_batch_is_kept_unless_it_has_a_single_sample(table: Path, memory: bool) -> None:
    made = task(table, memory=memory)
    assert len(made.data.train) == 12
    for size, drop_last, sizes in (
        (5, False, [5, 5, 2]),
        (5, True, [5, 5]),
        (11, False, [11]),  # one sample is left, which has nobody to attend to
        (12, False, [12]),
    ):
        feed = made.feed(TrainConfig(batch_size=size, drop_last=drop_last, workers=0), 1)
        assert feed.per_epoch == len(sizes)
        assert [len(feed.batch(step)["y"]) for step in range(feed.per_epoch)] == sizes


def test_words_are_attributes_then_objects(table: Path) -> None:
    made = task(table)
    dry, old, red, wet = [1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]
    cat, hound = [1, 1, 0], [0, 1, 1]
    assert made.method_options["vectors"].tolist() == [dry, old, red, wet, cat, hound]
    with pytest.raises(ValueError, match="dog"):
        task(table, replacements=())
    drawn = task(table, replacements=(), missing_words="random")
    assert drawn.facts()["random_vectors"] == ["dog"]


def test_without_word_vectors(table: Path) -> None:
    with pytest.raises(ValueError, match=r"--data\.vectors"):
        task(table, vectors=())
    with pytest.raises(FileNotFoundError, match=r"no file of word vectors.*nowhere\.txt"):
        task(table, vectors=("nowhere.txt",))


def test_infeasible_pairs_are_left_out_by_a_threshold_of_validation(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes wet dogs for dry cats: the best threshold keeps wet dog of all unseen pairs."""
    kept: list[Tensor | None] = []

    def noted(*arguments: Any, **options: Any) -> CompositionalScores:
        kept.append(arguments[3] if len(arguments) > 3 else None)
        return CompositionalScores(*arguments, **options)

    monkeypatch.setattr(compositional, "CompositionalScores", noted)
    made = task(table, world="open", mask=True)
    made.evaluate(Knows(made, [("dry", "cat"), *SEEN, ("red", "cat")]), optimizer_step())
    of_validation, of_test = kept
    assert of_validation is None and of_test is not None
    names = zip(made.compositions.names, of_test.tolist(), strict=True)
    assert {pair for pair, on in names if on} == {*SEEN, ("red", "cat"), ("wet", "dog")}


class Remembers(Knows):
    """Also says how many of the scores it gave are still in memory when the next are asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def predict(self, x: Tensor) -> Tensor:
        self.alive.append(sum(scores() is not None for scores in self.given))
        scores = super().predict(x)
        self.given.append(weakref.ref(scores))
        return scores


@pytest.mark.parametrize("mask", [False, True])
def test_the_scores_of_a_batch_are_not_kept(
    table: Path, mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compositional, "SCORED_BATCH", 2)
    made = task(table, world="open", mask=mask)
    known = [*SEEN, ("red", "cat"), *UNSEEN.values()]
    method = Remembers(made, known)
    found = made.evaluate(method, optimizer_step())
    assert len(method.alive) > 12 and max(method.alive) == 0
    monkeypatch.undo()
    assert found.metrics == made.evaluate(Knows(made, known), optimizer_step()).metrics


def test_facts(table: Path) -> None:
    facts = task(table).facts()
    assert facts["pairs"] == 6 and facts["seen_pairs"] == 4 and facts["train"] == 12
    assert len(facts["split_sha256"]) == 64
    save_plain(min(table.parent.glob("*.png")), 0, 90, 90)
    changed = task(table).facts()
    assert {key for key in facts if facts[key] != changed[key]} == {"file_sizes_sha256"}


def without(table: Path, lacking: str) -> Path:
    """The table without some or all images of validation."""

    def dropped(pair: tuple[str, str]) -> bool:
        return lacking == "images" or (lacking == "unseen pairs") == (pair == UNSEEN["val"])

    rows = read_pairs(table)
    write_pair_table(table, [r for r in rows if r.split != "val" or not dropped(r.pair)])
    return table


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("images", "pairs has no validation images"),
        ("unseen pairs", "validation of pairs has no images of unseen pairs"),
        ("seen pairs", "validation of pairs has no images of seen pairs"),
    ],
)
def test_it_is_known_beforehand_whether_validation_has_a_score(
    table: Path, lacking: str, words: str
) -> None:
    whole = task(table)
    assert whole.unvalidated == ""
    knows = Knows(whole, SEEN)
    assert whole.evaluate(knows, optimizer_step()).metrics["val"] >= 0
    made = task(without(table, lacking))
    assert made.unvalidated == words
    score = made.evaluate(Knows(made, SEEN), optimizer_step()).metrics.get("val", math.nan)
    assert math.isnan(score), "it is said exactly where there is none"
    with pytest.raises(
        ValueError, match=rf"chosen on validation data, and {words}.*--data\.no-mask"
    ):
        task(table, world="open", mask=True)
