"""The command line on pairs of attribute and object and on features, as a person meets it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.data.sets.known_pairs import METADATA
from batchformer.lab.methods import ce_gzsl
from batchformer.lab.runs.build import load_task
from helpers.commands import ask
from helpers.data_files import feature_rows, save_noise, save_vectors
from helpers.lab_runs import config_of
from helpers.linear_classes import WIDTHS

DOMAINS, CLASSES, EACH = ("photo", "sketch", "toon"), ("cat", "dog", "guitar", "horse"), 5
PHASES = ("train", "val", "test")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images of three domains and four classes."""
    place, stream = tmp_path_factory.mktemp("tree"), np.random.default_rng(0)
    for domain, name, number in product(DOMAINS, CLASSES, range(EACH)):
        save_noise(place / domain / name / f"{number}.png", stream)
    yield place
    load_task.cache_clear()


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file, stream = tmp_path_factory.mktemp("words") / "glove.txt", np.random.default_rng(1)
    save_vectors(file, (*DOMAINS, *CLASSES, "drawing"), 4, stream)
    return file


@pytest.fixture(scope="module")
def table(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("table") / "pairs.csv"
    numbers = ["--unseen-val", "1", "--unseen-test", "2"]
    cli.main(["data", "pairs", "--root", str(tree), "--to", str(file), *numbers])
    return file


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def compared(table: Path, tree: Path, vectors: Path, *more: str) -> list[str]:
    """A comparison of a few updates with a small network."""
    command = ["compare", "my_pairs_cge", "--data.table", str(table), "--data.root", str(tree)]
    command += ["--data.vectors", str(vectors), "--data.size", "32", "--model", "test_resnet"]
    command += ["--weights", "", "--hyper.graph-hidden", "16", "--seeds", "1"]
    command += ["--train.batch-size", "6", "--train.updates", "2", "--train.eval-every", "1"]
    return [*command, "--train.workers", "0", "--quiet", "--device", "cpu", *more]


def test_pairs_are_made_of_a_tree(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made.csv"
    numbers = ["--unseen-val", "1", "--unseen-test", "2", "--seed", "3"]
    cli.main(["data", "pairs", "--root", str(tree), "--to", str(file), *numbers])
    said = capsys.readouterr().out.splitlines()
    rows = rows_of(file)
    assert len(rows) == len(DOMAINS) * len(CLASSES) * EACH
    pairs = {s: {(r["attribute"], r["object"]) for r in rows if r["split"] == s} for s in PHASES}
    unseen = {split: sorted(pairs[split] - pairs["train"]) for split in ("val", "test")}
    assert (len(unseen["val"]), len(unseen["test"])) == (1, 2)
    for split, own in unseen.items():
        named = ", ".join(f"{attribute} {thing}" for attribute, thing in own)
        assert f"Unseen pairs of {split}: {named}" in said
    assert said[-1] == f"{file}: 60 images of 12 pairs"
    assert all((tree / row["image"]).is_file() for row in rows)
    cli.main(["data", "pairs", "--root", str(tree), "--to", str(file), *numbers[:-1], "4"])
    assert rows_of(file) != rows, "another seed, other pairs"


def test_check_on_pairs(
    table: Path, tree: Path, vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", "my_pairs_cge", "--data.table", str(table), "--data.root", str(tree)]
    command += ["--data.vectors", str(vectors), "--data.size", "32", "--model", "test_resnet"]
    command += ["--hyper.graph-hidden", "16", "--train.batch-size", "6", "--train.workers", "0"]
    cli.main([*command, "--device", "cpu"])
    assert "BatchFormer is acting." in capsys.readouterr().out


def make_features(file: Path, **more: Any) -> Path:
    """Of classes 0 to 3, the last is unseen."""
    stream, rows = np.random.default_rng(0), feature_rows(4, each=8, unseen=1, tested=2)
    np.savez(file, features=stream.random((32, 5)), att=stream.random((4, 3)), **rows, **more)
    return file


def test_check_on_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = partial(ce_gzsl.CeGzsl, **WIDTHS["ce_gzsl"])
    monkeypatch.setattr(ce_gzsl, "CeGzsl", narrow)
    file = make_features(tmp_path / "mine.npz", val_classes=np.array([0]))
    command = ["check", "my_features_ce_gzsl", "--data.root", str(file)]
    cli.main([*command, "--hyper.gan-hidden", "16", "--device", "cpu"])
    assert "BatchFormer is acting" in capsys.readouterr().out


def test_an_arm_that_cannot_be_is_refused_before_the_first_is_trained(
    tmp_path: Path, failing: Any
) -> None:
    file = make_features(tmp_path / "mine.npz")
    command = ["compare", "cub_eszsl", "--data.name", "npz", "--data.root", str(file), "--seeds"]
    command += ["1", "--runs", str(tmp_path), "--device", "cpu", "--quiet"]
    code, words = failing(*command, "--arms", "baseline", "batchformer")
    assert code == 1 and "eszsl is a closed form" in words and "--arms baseline" in words
    assert not list(tmp_path.rglob("metrics.jsonl"))
    cli.main(command)
    assert [path.parents[1].name for path in tmp_path.rglob("result.json")] == ["baseline"]


def entry(image: str, attribute: str, split: str) -> dict[str, Any]:
    return {"image": image, "attr": attribute, "obj": "dog", "set": split}


def test_metadata_becomes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failing: Any
) -> None:
    file, made = tmp_path / METADATA, tmp_path / "made.csv"
    kept = [entry("wet dog/1.jpg", "wet", "train"), entry("old dog/2.jpg", "old", "test")]
    torch.save([*kept, entry("3.jpg", "NA", "train"), entry("4.jpg", "wet", "NA")], file)
    cli.main(["data", "convert-pairs", str(file), "--to", str(made)])
    assert capsys.readouterr().out == (
        f"{made}: 2 images written; left out 2: 1 attribute NA, 1 set NA\n"
    )
    assert [list(row.values()) for row in rows_of(made)] == [
        ["wet dog/1.jpg", "wet", "dog", "train"],
        ["old dog/2.jpg", "old", "dog", "test"],
    ]
    torch.save(kept, file)
    cli.main(["data", "convert-pairs", str(file), "--to", str(made)])
    assert capsys.readouterr().out == f"{made}: 2 images written\n"
    images = ["--images", str(tmp_path)]
    code, words = failing("data", "convert-pairs", str(file), "--to", str(made), *images)
    assert code == 1 and "none of the 2 images looked for" in words


def test_files_to_convert_that_are_not_there(tmp_path: Path, failing: Any) -> None:
    file = tmp_path / "a.t7"
    file.write_bytes(b"no list")
    for paths, said in (
        ([tmp_path / "none.t7"], f"There is no file {tmp_path / 'none.t7'}."),
        ([], f"needs a file, such as mit-states/{METADATA}"),
        ([file, file], "takes one file"),
        ([tmp_path], "takes one file"),
    ):
        code, words = failing("data", "convert-pairs", *map(str, paths))
        assert code == 1 and said in words


def test_words_and_files_that_are_missing(
    table: Path,
    tree: Path,
    vectors: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failing: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    short = tmp_path / "short.txt"
    lines = vectors.read_text().splitlines(keepends=True)
    short.write_text("".join(line for line in lines if line.split()[0] not in ("toon", "cat")))
    command = compared(table, tree, short)
    nothing = compared(table, tree, short)
    nothing.remove(str(short))
    for arguments, said in (
        (command, "--data.replacements WORD=OTHER"),
        (compared(table, tree, Path("none.txt")), f"none.txt or {tmp_path / 'none.txt'}."),
        (nothing, "by --data.vectors FILE"),
        (compared(table, tmp_path / "elsewhere", vectors), "elsewhere, does not exist"),
    ):
        code, words = failing(*arguments)
        assert code == 1 and said in words
    assert not list(tmp_path.rglob("result.json"))

    more = ["--data.replacements", "toon=drawing", "--data.missing-words", "random"]
    more += ["--arms", "baseline", "--train.no-figures", "--runs", str(tmp_path)]
    command.remove("--quiet")
    cli.main([*command, *more])
    config = config_of(tmp_path / "my_pairs_cge/baseline/seed0")
    assert config["data"]["random_vectors"] == ["cat"]
    line = f"{table.stem}: no word vector, and a random one drawn: cat"
    assert line in capsys.readouterr().err.splitlines()


MISTAKES = [
    (["compare", "my_pairs_cge"], "There is no table pairs.csv. It is a .csv with the columns"),
    (["train", "my_pairs_compcos", "--data.table", "mine.csv"], "There is no table mine.csv."),
    (["compare", "mit_states_cge"], "MIT-States not found: looked in"),
    (["compare", "cub_ce_gzsl"], "CUB not found: looked in"),
    (["train", "my_features_ce_gzsl"], "Name your own .npz by --data.root"),
    (["train", "my_features_ce_gzsl", "--data.root", "x.npz"], "no file of features x.npz"),
    (
        ["compare", "cub_ce_gzsl", "--hyper.critic-steps", "3"],
        "set data.batches 3, as hyper.critic-steps",
    ),
]


def test_mistakes_are_answered_without_torch(tmp_path: Path) -> None:
    found = ask([arguments for arguments, _ in MISTAKES], data=tmp_path)
    for (arguments, words), answer in zip(MISTAKES, found, strict=True):
        assert answer.code in (1, 2) and words in answer.words, (arguments, answer.words)
        assert not answer.torch_is_loaded
    assert not list(tmp_path.iterdir())
