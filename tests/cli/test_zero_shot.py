"""The command line on pairs of attribute and object and on features, as a person meets it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.cli import main as cli
from batchformer.lab.data.sets.attribute_sets import ATTRIBUTE_SETS
from batchformer.lab.data.sets.known_pairs import METADATA, PAIR_SETS
from batchformer.lab.runs.build import load_task

DOMAINS, CLASSES, EACH = ("photo", "sketch", "toon"), ("cat", "dog", "guitar", "horse"), 5
SPLIT, PHASES = "compositional-split-natural", ("train", "val", "test")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images of three domains and four classes."""
    place, stream = tmp_path_factory.mktemp("tree"), np.random.default_rng(0)
    for domain in DOMAINS:
        for name in CLASSES:
            (place / domain / name).mkdir(parents=True)
            for number in range(EACH):
                pixels = stream.integers(0, 256, (36, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / domain / name / f"{number}.png")
    yield place
    load_task.cache_clear()


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file, stream = tmp_path_factory.mktemp("words") / "glove.txt", np.random.default_rng(1)
    words = (*DOMAINS, *CLASSES, "drawing")
    rows = [" ".join([word, *map(str, stream.normal(size=4))]) for word in words]
    file.write_text("\n".join(rows) + "\n")
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


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    seen = capsys.readouterr()
    assert "Traceback" not in seen.err
    return int(stop.value.code or 0), " ".join((seen.err + seen.out).replace("│", " ").split())


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

    again, other = tmp_path / "again.csv", tmp_path / "other.csv"
    cli.main(["data", "pairs", "--root", str(tree), "--to", str(again), *numbers])
    cli.main(["data", "pairs", "--root", str(tree), "--to", str(other), *numbers[:-1], "4"])
    assert file.read_bytes() == again.read_bytes() != other.read_bytes()


def test_the_table_is_what_the_recipe_reads(
    table: Path, tree: Path, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(compared(table, tree, vectors, "--runs", str(tmp_path)))
    out = capsys.readouterr().out
    assert "AUC" in {line.split()[0] for line in out.splitlines() if line.strip()}
    assert "batchformer - baseline" in out
    page = tmp_path / "my_pairs_cge/report.html"
    assert "Seen and unseen pairs" in page.read_text()
    rows = rows_of(table)
    for arm in ("baseline", "batchformer"):
        folder = tmp_path / "my_pairs_cge" / arm / "seed0"
        facts = json.loads((folder / "config.json").read_text())["data"]
        for split in PHASES:
            assert facts[split] == sum(row["split"] == split for row in rows)
        assert (facts["pairs"], facts["seen_pairs"]) == (12, 9)
        assert (facts["attributes"], facts["objects"]) == (3, 4)
        metrics = json.loads((folder / "result.json").read_text())["metrics"]
        assert next(iter(metrics)) == "auc"
        cli.main(["evaluate", str(folder), "--device", "cpu"])
        assert f"{folder}: auc {metrics['auc']:.2f} hm" in capsys.readouterr().out


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
    stream, labels = np.random.default_rng(0), np.repeat(np.arange(4), 8)
    rows = np.arange(32)
    np.savez(
        file,
        features=stream.random((32, 5)),
        labels=labels,
        att=stream.random((4, 3)),
        trainval_loc=rows[(labels < 3) & (rows % 8 > 1)],
        test_seen_loc=rows[(labels < 3) & (rows % 8 <= 1)],
        test_unseen_loc=rows[labels == 3],
        **more,
    )
    return file


def test_check_on_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = make_features(tmp_path / "mine.npz", val_classes=np.array([0]))
    command = ["check", "my_features_ce_gzsl", "--data.root", str(file)]
    cli.main([*command, "--hyper.gan-hidden", "16", "--device", "cpu"])
    assert "BatchFormer is acting" in capsys.readouterr().out


def test_features_without_classes_of_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = make_features(tmp_path / "mine.npz")
    command = ["train", "my_features_ce_gzsl", "--data.root", str(file), "--runs", str(tmp_path)]
    code, words = failing(capsys, *command, "--device", "cpu")
    assert code == 1 and "names no classes of validation" in words and "--data.no-choose" in words
    both = ("--data.no-choose", "--train.select-on", "val", "--train.epochs", "1")
    code, words = failing(capsys, *command, *both, "--device", "cpu")
    assert code == 1 and "this task has no validation data" in words
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_an_arm_that_cannot_be_is_refused_before_the_first_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = make_features(tmp_path / "mine.npz")
    command = ["compare", "cub_eszsl", "--data.name", "npz", "--data.root", str(file), "--seeds"]
    command += ["1", "--runs", str(tmp_path), "--device", "cpu", "--quiet"]
    code, words = failing(capsys, *command, "--arms", "baseline", "batchformer")
    assert code == 1 and "eszsl is a closed form" in words and "--arms baseline" in words
    assert not list(tmp_path.rglob("metrics.jsonl"))
    cli.main(command)
    assert [path.parents[1].name for path in tmp_path.rglob("result.json")] == ["baseline"]


def test_too_many_unseen_pairs_are_refused(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.csv"
    arguments = ["data", "pairs", "--root", str(tree), "--to", str(file), "--unseen-test", "9"]
    code, words = failing(capsys, *arguments)
    assert code == 1 and "13 unseen pairs are wanted, and this seed finds 8 of 12" in words
    assert not file.exists()


def entry(image: str, attribute: str, split: str) -> dict[str, Any]:
    return {"image": image, "attr": attribute, "obj": "dog", "set": split}


def test_metadata_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    for own in kept:
        place = tmp_path / "images" / own["image"].replace(" ", "_")
        place.parent.mkdir(parents=True)
        place.touch()
    images = ["--images", str(tmp_path / "images")]
    cli.main(["data", "convert-pairs", str(file), "--to", str(made), *images])
    assert [row["image"] for row in rows_of(made)] == ["wet_dog/1.jpg", "old_dog/2.jpg"]


class Harmful:
    """An object whose reading makes a folder, as harmful files do worse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_harmful_file_is_refused_and_nothing_of_it_run(
    new_format: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, made, trace = tmp_path / METADATA, tmp_path / "made.csv", tmp_path / "trace"
    entries = [entry("1.jpg", "wet", "train"), {"image": Harmful(trace)}]
    torch.save(entries, file, _use_new_zipfile_serialization=new_format)
    code, words = failing(capsys, "data", "convert-pairs", str(file), "--to", str(made))
    assert code == 1 and f"{file} holds more than plain strings: it asks for" in words
    assert "mkdir" in words and "Nothing from a file is run here" in words
    assert "weights_only" not in words, "no advice to run it after all"
    assert not trace.exists() and not made.exists()
    torch.load(file, weights_only=False)
    assert trace.exists(), "else the file was not harmful at all"


def test_files_to_convert_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.t7"
    code, words = failing(capsys, "data", "convert-pairs", str(missing))
    assert code == 1 and f"There is no file {missing}." in words
    code, words = failing(capsys, "data", "convert-pairs")
    assert code == 1 and "needs a file" in words and METADATA in words
    missing.write_bytes(b"no list")
    code, words = failing(capsys, "data", "convert-pairs", str(missing), str(missing))
    assert code == 1 and "takes one file" in words
    code, words = failing(capsys, "data", "convert-pairs", str(tmp_path))
    assert code == 1 and "takes one file" in words


def test_words_and_files_that_are_missing(
    table: Path,
    tree: Path,
    vectors: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    short = tmp_path / "short.txt"
    lines = vectors.read_text().splitlines(keepends=True)
    short.write_text("".join(line for line in lines if line.split()[0] not in ("toon", "cat")))
    command = compared(table, tree, short)
    code, words = failing(capsys, *command)
    assert code == 1 and "no word vector for 2 of the names" in words and ": toon, cat." in words
    assert "--data.replacements WORD=OTHER" in words
    assert "--data.missing-words random" in words

    code, words = failing(capsys, *compared(table, tree, Path("none.txt")))
    looked = f"There is no file of word vectors none.txt or {tmp_path / 'none.txt'}."
    assert code == 1 and looked in words and "--data.vectors" in words

    nothing = compared(table, tree, short)
    nothing.remove(str(short))
    code, words = failing(capsys, *nothing)
    assert code == 1 and "by --data.vectors FILE" in words

    code, words = failing(capsys, *compared(table, tmp_path / "elsewhere", vectors))
    assert code == 1 and f"{tmp_path / 'elsewhere'}, does not exist" in words
    assert not list(tmp_path.rglob("result.json"))

    more = ["--data.replacements", "toon=drawing", "--data.missing-words", "random"]
    more += ["--arms", "baseline"]
    cli.main([*command, *more, "--runs", str(tmp_path)])
    config = json.loads((tmp_path / "my_pairs_cge/baseline/seed0/config.json").read_text())
    assert config["data"]["random_vectors"] == ["cat"]
    line = f"{table.stem}: no word vector, and a random one drawn: cat"
    assert line not in capsys.readouterr().err, "it was to be quiet"
    command.remove("--quiet")
    cli.main([*command, *more, "--runs", str(tmp_path / "again")])
    assert line in capsys.readouterr().err.splitlines()


def test_a_choice_by_a_score_that_there_will_not_be(
    tree: Path, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before any update, and without it the data is used, with a remark."""
    table, runs = tmp_path / "pairs.csv", ["--arms", "baseline", "--runs", str(tmp_path / "runs")]
    made = ["--to", str(table), "--unseen-val", "0", "--unseen-test", "2"]
    cli.main(["data", "pairs", "--root", str(tree), *made])
    command = [*compared(table, tree, vectors), *runs]
    command.remove("--quiet")
    code, words = failing(capsys, *command)
    assert code == 1 and "validation of pairs has no images of unseen pairs" in words
    assert "--train.select-on last" in words
    assert not list((tmp_path / "runs").rglob("metrics.jsonl"))
    cli.main([*command, "--train.select-on", "last"])
    assert "no pair of validation is unseen" in capsys.readouterr().err
    assert list((tmp_path / "runs").rglob("result.json"))


MISTAKES = [
    (["compare", "my_pairs_cge"], "There is no table pairs.csv. It is a .csv with the columns"),
    (
        ["train", "my_pairs_compcos", "--data.table", "mine.csv"],
        "There is no table mine.csv.",
    ),
    (["compare", "mit_states_cge"], "MIT-States not found: looked in"),
    (["compare", "cub_ce_gzsl"], "CUB not found: looked in"),
    (["train", "my_features_ce_gzsl"], "Name your own .npz by --data.root"),
    (["train", "my_features_ce_gzsl", "--data.root", "x.npz"], "no file of features x.npz"),
    (
        ["compare", "cub_ce_gzsl", "--method", "cge"],
        "generalized, which has ce_gzsl, ",
    ),
    (["compare", "my_pairs_cge", "--method", "ce_gzsl"], "which has cge, compcos;"),
    (["train", "cub_ce_gzsl", "--train.updates", "9"], "Set --train.epochs 0 beside it."),
    (
        ["compare", "cub_ce_gzsl", "--hyper.critic-steps", "3"],
        "set data.batches 3, as hyper.critic-steps",
    ),
]


def test_mistakes_are_answered_without_torch(tmp_path: Path, answers: Any) -> None:
    found = answers([arguments for arguments, _ in MISTAKES], data=tmp_path)
    for (arguments, words), answer in zip(MISTAKES, found, strict=True):
        assert answer.code in (1, 2) and words in answer.words, (arguments, answer.words)
        assert not answer.torch_is_loaded
    assert not list(tmp_path.iterdir())


def test_data_shows_the_sets_that_are_here(tmp_path: Path, answers: Any) -> None:
    for place, files in {
        "ut-zap50k": [METADATA, *(f"{SPLIT}/{part}_pairs.txt" for part in PHASES)],
        "CUB": ["res101.mat", "sent_splits.mat"],
        ".": ["awa2_gzsl.npz"],
    }.items():
        for file in files:
            (tmp_path / place / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place / file).touch()
    (tmp_path / "ut-zap50k/images").mkdir()
    data, recipes = answers([["data"], ["list"]], data=tmp_path)
    assert data.code == recipes.code == 0 and not recipes.torch_is_loaded
    lines = data.said.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if len(line.split()) > 1}
    for name in (*PAIR_SETS, *ATTRIBUTE_SETS):
        here = name in ("ut_zappos", "cub", "awa2")
        assert rows[name][1] == ("present" if here else "absent"), name
    listed = recipes.said.splitlines()
    states = {line.split()[0]: line.split()[1] for line in listed if len(line.split()) > 1}
    assert (states["ut_zappos_cge"], states["mit_states_cge"]) == ("present", "absent")
    assert states["ut_zappos_compcos_open"] == states["cub_ce_gzsl"] == "present"
