"""Whether data is here, for every recipe, with and without the files that it needs."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from batchformer.lab.config.data import BY_TASK, ContrastConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.sets.presence import FAMILIES, places
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.listing import data_state, ensure_data
from helpers.data_files import touch

SPLIT = "compositional-split-natural"
#: Fewest files with which each set counts as present, by its name in recipes.
LAYOUTS: dict[str, tuple[str, ...]] = {
    "cifar10": (
        *(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
        *("cifar-10-batches-py/test_batch", "cifar-10-batches-py/batches.meta"),
    ),
    "cifar100": tuple(f"cifar-100-python/{name}" for name in ("train", "test", "meta")),
    "imagenet": ("imagenet/train/n01440764/a.jpg", "imagenet/val/n01440764/a.jpg"),
    "imagenet_lt": ("imagenet_lt/ImageNet_LT_train.txt", "imagenet_lt/ImageNet_LT_test.txt"),
    "inaturalist18": ("train2018.json", "val2018.json"),
    "places_lt": ("Places_LT_train.txt", "Places_LT_test.txt"),
    "pacs": tuple(f"PACS/{name}/dog/1.jpg" for name in ("art", "cartoon", "photo", "sketch")),
    "vlcs": tuple(f"VLCS/{n}/dog/1.jpg" for n in ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
    "office_home": tuple(
        f"office_home/{name}/Bed/1.jpg" for name in ("Art", "Clipart", "Product", "Real World")
    ),
    "terra_incognita": tuple(f"terra/location_{n}/cat/1.jpg" for n in (38, 43, 46, 100)),
    "visda": ("visda/train/car/1.jpg", "visda/validation/car/1.jpg"),
    **{
        name: (
            *(f"{folder}/{SPLIT}/{part}_pairs.txt" for part in ("train", "val", "test")),
            f"{folder}/metadata_{SPLIT}.t7",
            f"{folder}/images/1.jpg",
        )
        for name, folder in (
            ("mit_states", "mit-states"),
            ("ut_zappos", "ut-zap50k"),
            ("c_gqa", "cgqa"),
        )
    },
    **{
        name: (f"{name.upper()}/res101.mat", f"{name.upper()}/att_splits.mat")
        for name in ("cub", "awa1", "awa2", "sun", "apy", "flo")
    },
    "voc": tuple(
        f"VOCdevkit/VOC{name}.txt"
        for name in (
            *("2007/ImageSets/Main/trainval", "2012/ImageSets/Main/trainval"),
            "2007/ImageSets/Main/test",
        )
    ),
    "coco": tuple(f"coco/annotations/instances_{name}2017.json" for name in ("train", "val")),
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data is looked for; nothing can be downloaded."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    monkeypatch.setattr(socket, "create_connection", unreachable)
    return tmp_path


def of(called: str, /, **data: Any) -> Recipe:
    recipe = find_recipe(called)
    return recipe.changed(data=data)


def by_data() -> dict[str, list[Recipe]]:
    """Recipes by the name of their data."""
    found: dict[str, list[Recipe]] = {}
    for make in RECIPES.values():
        recipe = make()
        found.setdefault(recipe.data.name, []).append(recipe)
    return found


def test_every_name_that_can_be_configured_has_a_family_and_a_layout() -> None:
    kinds = set(BY_TASK.values()) - {ContrastConfig}
    names = {name for kind in kinds for name in get_args(get_type_hints(kind)["name"])}
    assert names == FAMILIES.keys()
    published = {name for name, family in FAMILIES.items() if family.state == "published"}
    assert published == LAYOUTS.keys()
    assert set(get_args(get_type_hints(ContrastConfig)["name"])) < names
    assert [name for name, _, _ in places()][:3] == ["digits", "cifar10", "cifar100"]


def test_what_is_absent_is_refused_and_what_is_embedded_is_not(root: Path) -> None:
    for name, recipes in by_data().items():
        for recipe in recipes:
            state = data_state(recipe)
            if name in ("digits", "rotated_digits"):
                assert state == "embedded", recipe.name
                ensure_data(recipe)
            elif recipe.name.startswith("my_") or name in ("folder", "tree", "table", "npz"):
                assert state == "yours", recipe.name
            else:
                assert state == "absent", recipe.name
                with pytest.raises(FileNotFoundError) as error:
                    ensure_data(recipe)
                words = str(error.value)
                assert str(root) in words and "--data.root" in words, recipe.name


@pytest.mark.parametrize("name", LAYOUTS)
def test_with_its_files_it_is_present_and_with_one_less_it_is_not(root: Path, name: str) -> None:
    recipes = [recipe for recipe in by_data().get(name, []) if data_state(recipe) != "yours"]
    if not recipes and name in ("awa2", "sun", "apy", "flo", "awa1"):
        recipes = [of("cub_ce_gzsl", name=name)]
    assert recipes, "a set without a recipe needs none of this"
    touch(root, *LAYOUTS[name])
    for recipe in recipes:
        assert data_state(recipe) == "present", recipe.name
        ensure_data(recipe)
    last = root / LAYOUTS[name][-1]
    last.unlink()
    if last.suffix == ".jpg":  # images are not looked for, their folders are
        last.parent.rmdir()
        last = last.parent
        if name not in ("imagenet", "mit_states", "ut_zappos", "c_gqa"):
            last.parent.rmdir()
    for recipe in recipes:
        assert data_state(recipe) == "absent", recipe.name
        with pytest.raises(FileNotFoundError):
            ensure_data(recipe)


@pytest.mark.parametrize("name", ["cifar100_lt_balanced_softmax", "pacs_erm", "cub_ce_gzsl"])
def test_another_folder_is_looked_in_where_it_is_named(root: Path, name: str) -> None:
    elsewhere = of(name, root=str(root / "elsewhere"))
    touch(root, *LAYOUTS[elsewhere.data.name])
    assert data_state(elsewhere) == "absent" and data_state(find_recipe(name)) == "present"
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        ensure_data(elsewhere)
    touch(root / "elsewhere", *LAYOUTS[elsewhere.data.name])
    assert data_state(elsewhere) == "present"
    ensure_data(elsewhere)


def test_lists_of_domains_are_looked_for_where_they_are_wanted(root: Path) -> None:
    touch(root, *LAYOUTS["pacs"])
    listed = of("pacs_erm", lists=True)
    assert data_state(listed) == "absent"
    with pytest.raises(FileNotFoundError, match="no list of art_painting"):
        ensure_data(listed)
    names = ("art_painting", "cartoon", "photo", "sketch")
    touch(root, *(f"PACS/image_list/{name}.txt" for name in names))
    assert data_state(listed) == "present"
    ensure_data(listed)


def test_lists_of_image_files_may_lie_elsewhere_and_be_of_validation(root: Path) -> None:
    touch(root, *LAYOUTS["places_lt"])
    validated = of("places_lt_paco", scored_on="val")
    assert data_state(validated) == "absent"
    touch(root, "Places_LT_val.txt")
    assert data_state(validated) == "present"
    other = of("places_lt_paco", train_list=str(root / "mine.txt"))
    with pytest.raises(FileNotFoundError, match=r"mine\.txt"):
        ensure_data(other)
    touch(root, "mine.txt")
    assert data_state(other) == "present"
    ensure_data(other)


def test_boxes_are_there_when_every_list_is(root: Path) -> None:
    recipe = next(r for r in by_data()["voc"] if data_state(r) == "absent")
    only = recipe.changed(data={"trained_on": ("2007/trainval",)})
    touch(root, LAYOUTS["voc"][0], LAYOUTS["voc"][2])
    assert (data_state(recipe), data_state(only)) == ("absent", "present")
    ensure_data(only)


def test_what_can_be_downloaded_is_absent_but_not_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    recipe = find_recipe("cifar100_lt_balanced_softmax")

    def reachable(address: Any, timeout: float) -> socket.socket:
        asked.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", reachable)
    assert data_state(recipe) == "absent" and asked == [], "to list recipes nobody is asked"
    ensure_data(recipe)
    assert asked == [("www.cs.toronto.edu", 443)]
    with pytest.raises(FileNotFoundError, match="the file does not exist"):
        ensure_data(of("cifar100_lt_balanced_softmax", root=str(root / "my.npz")))


def test_a_table_of_your_own_is_to_be_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root))
    base = next(r for r in by_data()["mit_states"] if data_state(r) != "yours")
    mine = base.changed(data={"name": "table", "table": "~/pairs.csv"})
    assert data_state(mine) == "yours"
    with pytest.raises(FileNotFoundError, match=r"no table ~/pairs\.csv.*batchformer data pairs"):
        ensure_data(mine)
    touch(root, "pairs.csv")
    ensure_data(mine)


def test_a_tree_and_a_file_of_your_own_are_to_be_there(root: Path) -> None:
    tree = of("my_domains", name="tree", root=str(root / "tree"))
    file = of("cub_ce_gzsl", name="npz", root=str(root / "mine.npz"))
    for mine, files in ((tree, ("tree/photo/dog/1.jpg",)), (file, ("mine.npz",))):
        assert data_state(mine) == "yours"
        with pytest.raises(FileNotFoundError, match=files[0].split("/")[0]):
            ensure_data(mine)
        touch(root, *files)
        ensure_data(mine)


def test_data_without_labels_is_where_the_same_data_with_labels_is(root: Path) -> None:
    recipe = find_recipe("cifar100_lt_moco_v2")
    assert data_state(recipe) == "absent"
    with pytest.raises(FileNotFoundError, match="CIFAR100 not found"):
        ensure_data(recipe)
    touch(root, "cifar100_lt.npz")
    assert data_state(recipe) == "present"
    ensure_data(recipe)
    embedded = recipe.changed(data={"name": "digits"})
    assert data_state(embedded) == "embedded"
    ensure_data(embedded)


def test_the_data_in_a_few_words() -> None:
    adapted = next(r for r in by_data()["visda"] if r.data.adapt)  # type: ignore[union-attr]
    pairs = find_recipe(by_data()["mit_states"][0].name)
    opened = pairs.changed(data={"world": "open"})
    closed = pairs.changed(data={"world": "closed"})
    assert adapted.data.words() == "visda synthetic to real"
    assert opened.data.words() == "mit_states, open world" and closed.data.words() == "mit_states"
    assert of("cifar100_lt_balanced_softmax", ratio=200.0).data.words() == "cifar100 r=200"
    assert of("cifar100_lt_balanced_softmax", ratio=12.5).data.words() == "cifar100 r=12.5"
    assert of("cifar100_lt_moco_v2", ratio=50.0).data.words() == "cifar100 r=50"
    assert find_recipe("places_lt_paco").data.words() == "places_lt", "its tail is not drawn here"
    assert find_recipe("pacs_erm").data.words() == "pacs"
    assert find_recipe("cub_ce_gzsl").data.words() == "cub"
    for recipes in by_data().values():
        for recipe in recipes:
            words = recipe.data.words()
            assert words.startswith(recipe.data.name) and len(words) < 40
