"""Images with boxes in the folders of COCO, against pycocotools and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pycocotools.coco import COCO

from batchformer.lab.data.sets.coco import load_coco
from helpers.data_files import touch

LISTS = (("train",), ("val",))
CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]


def entry(image: int, category: int, box: Any, **more: Any) -> dict[str, Any]:
    number = image * 100 + category * 10 + len(more)
    return {"id": number, "image_id": image, "category_id": category, "bbox": box, **more}


OBJECTS: dict[str, list[dict[str, Any]]] = {
    "train": [
        entry(1, 7, [2.5, 3, 10, 17], iscrowd=0),
        entry(1, 3, [0, 0, 40, 30], iscrowd=1),
        entry(2, 3, [1, 1, 5, 0]),
        entry(3, 3, [4, 5, 6, 7]),
    ],
    "val": [entry(1, 3, [0, 0, 9, 9]), entry(1, 7, [0, 0, 20, 20], iscrowd=1)],
}


def tree(root: Path, **changes: Any) -> Path:
    """Two lists of three images; `changes` replace parts of the list train."""
    for name, objects in OBJECTS.items():
        touch(root, *(f"{name}/{number}.jpg" for number in (1, 2, 3)))
        content: dict[str, Any] = {
            "images": [{"id": n, "file_name": f"{n}.jpg", "area": 1} for n in (1, 2, 3)],
            "annotations": objects,
            "categories": CATEGORIES,
        }
        content |= changes if name == "train" else {}
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))
    return root


def test_boxes_and_classes_are_those_of_pycocotools(tmp_path: Path) -> None:
    data = load_coco(str(tree(tmp_path)), *LISTS)
    assert data.classes == ("dog", "cat"), "by the numbers of the categories"
    known = COCO(str(tmp_path / "annotations/instances_val.json"))
    first = known.loadAnns(known.getAnnIds(imgIds=[1]))
    image = data.test[0]
    for row, there in enumerate(first):
        left, top, width, height = there["bbox"]
        assert image.boxes[row].tolist() == [left, top, left + width, top + height]
        assert data.classes[image.labels[row]] == known.cats[there["category_id"]]["name"]
    assert image.difficult.tolist() == [False, True], "a crowd need not be found"
    assert [len(image.labels) for image in data.test] == [2, 0, 0], "also images without an object"


def test_what_is_trained_on_has_an_object_that_is_no_crowd(tmp_path: Path) -> None:
    data = load_coco(str(tree(tmp_path)), *LISTS)
    assert [image.path.name for image in data.train] == ["1.jpg", "3.jpg"]
    assert data.train[0].boxes.tolist() == [[2.5, 3, 12.5, 20]]
    assert data.train_counts.tolist() == [1, 1]


def test_the_hash_is_of_the_lists_and_not_of_their_folder(tmp_path: Path) -> None:
    moved = [{**OBJECTS["train"][0], "bbox": [3, 3, 10, 17]}, *OBJECTS["train"][1:]]
    hashes = [
        load_coco(str(tree(tmp_path / place, **change)), *LISTS).split_sha256
        for place, change in (("one", {}), ("two", {}), ("three", {"annotations": moved}))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"categories": [{"id": 3}]}, "an entry of 'categories' has no 'name'"),
        ({"annotations": [entry(1, 3, [1, 2, 3])]}, r"a bbox is \[1, 2, 3\], not 4 numbers"),
        ({"annotations": [entry(1, 3, ["1", 2, 3, 4])]}, "not 4 numbers"),
        ({"annotations": [entry(1, 5, [1, 2, 3, 4])]}, "train has an object of category 5"),
        ({"annotations": []}, "No image of train has an object to train on"),
        ({"categories": [{"id": 7, "name": "cow"}]}, "Category 7 is 'cat' in val and 'cow' in"),
        ({"images": 3}, "holds no annotations in the format of COCO"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_coco(str(tree(tmp_path, **changes)), *LISTS)


def test_missing_files_are_named(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "train/2.jpg").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"1 files.*\n.*train/2.jpg(.|\n)*from the annotations"
    ):
        load_coco(str(tmp_path), *LISTS)
    with pytest.raises(FileNotFoundError, match=r"instances_train2017.json(.|\n)*--data.train"):
        load_coco(str(tmp_path), ("train2017",), ("val",))
    (tmp_path / "annotations/instances_val.json").write_text("{")
    with pytest.raises(ValueError, match=r"instances_val.json holds no annotations"):
        load_coco(str(tmp_path), *LISTS)
