"""Records of runs: what they hold, where they lie, and that none is lost."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchformer.cli.main import main
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.sweeps import SWEEPS
from batchformer.lab.report.results.records import (
    read_record,
    record_of,
    records_in,
    save,
    variant_name,
)
from batchformer.lab.report.results.runs import read_run
from batchformer.lab.runs.folder import recipe_to_json
from helpers.run_folders import RunTree, change_json


def my_folder(**changes: Any) -> dict[str, Any]:
    """The recipe my_folder as JSON; ``data__size`` stands for ``data.size``."""
    plain = recipe_to_json(find_recipe("my_folder"))
    for key, value in changes.items():
        group, _, name = key.rpartition("__")
        (plain[group] if group else plain)[name] = value
    return plain


def test_a_record_says_what_differs_from_the_recipe_and_who_ran_it(tree: RunTree) -> None:
    recipe = my_folder(data__root="/home/me/Caltech", data__size=128, method="cross_entropy")
    command = (
        "batchformer train my_folder --data.root=/home/me/Caltech --runs /tmp/x --arm baseline"
    )
    folder = tree.write("baseline", 100, recipe=recipe, provenance={"command": command})
    record = record_of(read_run(folder))
    assert record.settings == {"data.root": "Caltech", "data.size": 128, "method": "cross_entropy"}
    assert record.path == "my_folder/method=cross_entropy,size=128/baseline/seed100.json"
    (sitting,) = record.sittings
    assert sitting["git"] == "abc1234" and sitting["hardware"] == "Example CPU, 2 cores, 8 GB"
    told = "batchformer train my_folder --data.root=Caltech --runs x --arm baseline"
    assert sitting["command"] == told, "folders of one machine are nobody's business"
    assert record.minutes == 0.2 and record.source == "run"
    assert {"all", "many", "medium", "few"} <= record.metrics.keys()


def test_a_network_that_was_looked_at_has_its_influence_in_the_record(tree: RunTree) -> None:
    """Spearman's coefficient is scipy's; the partial one is by its textbook formula."""
    folder = tree.write("batchformer", 0, recipe=my_folder())
    assert "influence" not in record_of(read_run(folder)).metrics
    rng = np.random.default_rng(0)
    with np.load(folder / "figures.npz") as arrays:
        counts, accuracy = arrays["train_counts"], arrays["per_class"]
    gradient, points = rng.random(10), rng.normal(size=(40, 2))
    np.savez(
        folder / "insight.npz",
        train_counts=counts,
        gradient_samples=np.full(10, 4),
        gradient_abs=gradient,
        gradient_l2=3 * gradient,
        projection=points,
        projection_share=np.array([0.5, 0.3]),
    )
    metrics = record_of(read_run(folder)).metrics
    xy, xz, yz = (
        stats.spearmanr(*sides).statistic
        for sides in ((counts, gradient), (counts, accuracy), (gradient, accuracy))
    )
    assert metrics["rarity"] == pytest.approx(xy)
    held = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert metrics["rarity_at_accuracy"] == pytest.approx(held)
    apart = math.sqrt(2 * (points**2).sum(1).mean() / 0.8)
    assert metrics["influence"] == pytest.approx(3 * gradient.mean() * apart)


def test_every_sitting_is_kept_where_the_run_lists_them(tree: RunTree) -> None:
    folder = tree.write("baseline", 0, recipe=my_folder())
    one = {**read_run(folder).provenance, "from_update": 0, "stage": ""}
    two = {**one, "git": "def5678", "from_update": 900}
    change_json(folder / "config.json", sittings=[one, two])
    sittings = record_of(read_run(folder)).sittings
    assert [(s["git"], s["from_update"]) for s in sittings] == [("abc1234", 0), ("def5678", 900)]


def test_a_run_that_lists_its_parts_does_not_have_them_twice(tree: RunTree) -> None:
    folder = tree.write("baseline", 0, recipe=my_folder())
    part = {"from_update": 0, "stage": "train", "part": "sketch"}
    sittings = [{**read_run(folder).provenance, **part}]
    change_json(folder / "config.json", sittings=sittings)
    (folder / "sketch").mkdir()
    (folder / "sketch/config.json").write_text(json.dumps({"sittings": sittings}))
    assert [sitting["part"] for sitting in record_of(read_run(folder)).sittings] == ["sketch"]


def test_without_other_settings_there_is_no_folder_of_a_variant(tree: RunTree) -> None:
    folder = tree.write("batchformer", 2, recipe=my_folder(train__workers=3))
    assert record_of(read_run(folder)).path == "my_folder/batchformer/seed2.json"


def test_a_level_of_a_sweep_is_compared_with_that_level(tree: RunTree) -> None:
    sweep = SWEEPS["cifar100_lt_layers"]
    recipe = recipe_to_json(sweep.recipe("2", sweep.base_recipe()))
    record = record_of(read_run(tree.write("batchformer", 0, recipe=recipe)))
    assert record.path == "cifar100_lt_layers/2/batchformer/seed0.json" and not record.settings


def test_no_two_variants_share_a_name() -> None:
    long = {f"hyper.setting_{i}": i for i in range(30)}
    other = {**long, "hyper.setting_29": 0}
    assert variant_name(long) != variant_name(other)
    assert len(variant_name(long)) < 80
    # Characters that a file system may refuse are replaced, so a hash tells the names apart.
    assert variant_name({"weights": "a:b"}) != variant_name({"weights": "a?b"})
    assert variant_name({"data.size": 64, "hyper.size": 64}) == "data.size=64,hyper.size=64"


def test_what_is_written_is_read_again(tree: RunTree, tmp_path: Path) -> None:
    record = record_of(read_run(tree.write("baseline", 0, recipe=my_folder(data__size=96))))
    written, unchanged = save([record], tmp_path)
    assert written == [tmp_path / record.path] and not unchanged
    assert read_record(written[0]) == dataclasses.replace(record)
    assert save([record], tmp_path) == ([], written), "the same record again changes nothing"
    assert written[0].stat().st_size < 4096


def test_another_record_is_never_overwritten(tree: RunTree, tmp_path: Path) -> None:
    first = record_of(read_run(tree.write("baseline", 0, recipe=my_folder(), scores={"all": 50.0})))
    save([first], tmp_path)
    kept = (tmp_path / first.path).read_text()
    again = dataclasses.replace(first, metrics={"all": 60.0})
    beside = dataclasses.replace(first, seed=1)
    with pytest.raises(ValueError, match=r"metrics\.all was 50\.0, is 60\.0.*--variant NAME"):
        save([beside, again], tmp_path)
    assert (tmp_path / first.path).read_text() == kept
    assert not (tmp_path / beside.path).exists(), "all are written, or none"
    with pytest.raises(ValueError, match="already holds another record"):
        save([beside, dataclasses.replace(beside, metrics={"all": 1.0})], tmp_path)


def test_a_folder_holds_one_configuration(tree: RunTree, tmp_path: Path) -> None:
    one = record_of(read_run(tree.write("baseline", 0, recipe=my_folder(data__size=96))), "small")
    save([one], tmp_path)
    other = record_of(
        read_run(tree.write("batchformer", 0, recipe=my_folder(data__size=64))), "small"
    )
    with pytest.raises(ValueError, match=r"mix settings: data\.size was 96, is 64"):
        save([other], tmp_path)
    elsewhere = dataclasses.replace(one, arm="batchformer", data={"split_sha256": "other"})
    with pytest.raises(ValueError, match="seed 0 were trained on different data"):
        save([elsewhere], tmp_path)
    sizes = [{**one.data, "file_sizes_sha256": name} for name in ("0a", "0b")]
    pair = [dataclasses.replace(one, seed=9, arm=f"arm{n}", data=d) for n, d in enumerate(sizes)]
    with pytest.raises(ValueError, match=r"different data \(data\.file_sizes_sha256\)"):
        save(pair, tmp_path)
    weights = [{"weights_sha256": name} for name in ("0a", "0b")]
    pair = [dataclasses.replace(one, seed=1 + i, more=more) for i, more in enumerate(weights)]
    with pytest.raises(ValueError, match="began with the weights of 2 files"):
        save(pair, tmp_path)
    assert [record.arm for record in records_in(tmp_path / "my_folder/small")] == ["baseline"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "seed0.json"
    for content in ("{}", "[]", "{", '{"format": 2}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"seed0\.json is no record.*batchformer record RUN"):
            read_record(path)


def test_the_command_records_a_folder_of_runs(
    tree: RunTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.write_pairs(2, recipe=my_folder())
    tree.write("batchformer_self", 0, recipe=my_folder(), finished=False)
    call = ["record", str(tree.root), "--to", str(tmp_path / "results"), "--variant", "caltech 5"]
    main(call)
    said = capsys.readouterr().out
    assert "Not recorded: my_folder/batchformer_self/seed0 has not finished" in said
    assert "4 records written." in said
    written = tmp_path / "results/my_folder/caltech-5"
    assert {path.relative_to(written).as_posix() for path in written.rglob("*.json")} == {
        f"{arm}/seed{seed}.json" for arm in ("baseline", "batchformer") for seed in (0, 1)
    }
    main(call)
    assert "0 records written, 4 were there already." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["record", str(tree.root / "my_folder/batchformer_self")])
    assert "No run has finished" in capsys.readouterr().err


def test_a_recipe_that_this_version_does_not_know_is_named(tree: RunTree) -> None:
    assert "mine" not in RECIPES
    with pytest.raises(ValueError, match="There is no recipe 'mine'"):
        record_of(read_run(tree.write("baseline", 0, recipe=my_folder(name="mine"))))
