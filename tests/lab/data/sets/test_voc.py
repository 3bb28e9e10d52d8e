"""Images with boxes in the folders of Pascal VOC, against torchvision and by hand."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from batchformer.lab.config.data import DetectionConfig
from batchformer.lab.data.sets.voc import VOC_CLASSES, load_voc, read_annotation
from batchformer.lab.tasks.detection import DetectionTask
from helpers.data_files import Written, annotation, save_plain, save_voc

Lists = Mapping[str, Mapping[str, Sequence[Written]]]
LISTS = (("2007/trainval",), ("2007/test",))


def tree(root: Path, lists: Lists) -> Path:
    """Lists as 2007/trainval of images, each with its objects; all images are grey."""
    for name, images in lists.items():
        for image in images:
            save_plain(root / f"VOC{name.split('/')[0]}/JPEGImages/{image}.jpg", 128, 30, 40)
    return save_voc(root, lists)


BOX = (3, 4, 12, 20)
USUAL: Lists = {
    "2007/trainval": {"a": [("dog", BOX, 0), ("cat", (1, 1, 40, 30), 1)], "empty": []},
    "2007/test": {"b": [("person", BOX, 1), ("dog", BOX, 0)], "none": []},
}


def test_boxes_begin_at_0_and_include_their_last_pixel(tmp_path: Path) -> None:
    data = load_voc(str(tree(tmp_path, USUAL)), *LISTS)
    image = data.train[0]
    assert image.boxes.tolist() == [[2, 3, 12, 20], [0, 0, 40, 30]]  # the second is all of it
    assert image.boxes.dtype == torch.float32
    assert [data.classes[label] for label in image.labels] == ["dog", "cat"]
    assert image.difficult.tolist() == [False, True]
    assert [image.path.name for image in data.train] == ["a.jpg"]
    assert [image.path.stem for image in data.test] == ["b", "none"], "also without objects"
    assert data.test[1].boxes.shape == (0, 4) and data.test[1].labels.dtype == torch.int64


def test_difficult_objects_and_several_years(tmp_path: Path) -> None:
    root = tree(tmp_path, {**USUAL, "2012/trainval": {"a": [("cow", BOX, 0)]}})
    both = ("2007/trainval", "2012/trainval"), ("2007/test",)
    data = load_voc(str(root), *both, difficult=False)
    assert [image.path.parts[-3] for image in data.train] == ["VOC2007", "VOC2012"]
    assert len(data.train[0].labels) == 1 and not data.train[0].difficult.any()
    assert data.test[0].difficult.tolist() == [True, False]


def test_classes_are_vocs_or_those_found(tmp_path: Path) -> None:
    data = load_voc(str(tree(tmp_path / "voc", USUAL)), *LISTS)
    assert data.classes == VOC_CLASSES == tuple(sorted({*VOC_CLASSES})) and len(VOC_CLASSES) == 20
    assert data.train_counts.tolist() == [int(n in ("dog", "cat")) for n in VOC_CLASSES]
    own = {**USUAL, "2007/test": {"b": [("zebra", BOX, 0)]}}
    assert load_voc(str(tree(tmp_path / "own", own)), *LISTS).classes == ("cat", "dog", "zebra")


def test_points_and_lines_are_left_out_and_said_once(tmp_path: Path) -> None:
    bad: list[Written] = [("dog", (5, 5, 5, 9), 0), ("dog", (9, 5, 5, 9), 0), ("dog", BOX, 0)]
    root = tree(tmp_path, {**USUAL, "2007/trainval": {"a": bad, "c": [("dog", (7, 7, 7, 7), 0)]}})
    with pytest.warns(RuntimeWarning, match=r"3 boxes have no width .*/a\.xml") as said:
        data = load_voc(str(root), *LISTS)
    assert len(said) == 1
    assert [image.path.stem for image in data.train] == ["a"]
    assert data.train[0].boxes.tolist() == [[2, 3, 12, 20]]


def test_agrees_with_torchvisions_reading(tmp_path: Path) -> None:
    from torchvision.datasets import VOCDetection

    stream = np.random.default_rng(0)

    def drawn() -> list[Written]:
        corners = np.sort(stream.uniform(1, 30, (4, 2, 2)), axis=1)
        corners[:, 1] += 2
        return [
            (str(stream.choice(VOC_CLASSES)), tuple(c.round(2).reshape(4).tolist()), 0)
            for c in corners
        ]

    lists = {"2007/trainval": {f"i{n}": drawn() for n in range(5)}, "2007/test": {"t": drawn()}}
    root = tree(tmp_path / "VOCdevkit", lists)
    ours = load_voc(str(root), *LISTS).train
    theirs = VOCDetection(str(tmp_path), year="2007", image_set="trainval")
    for image, (_, target) in zip(ours, theirs, strict=True):
        for box, label, thing in zip(
            image.boxes, image.labels, target["annotation"]["object"], strict=True
        ):
            read = [float(thing["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax")]
            shifted = np.array(read) - [1, 1, 0, 0]
            np.testing.assert_allclose(box.numpy(), shifted, rtol=1e-6)
            assert VOC_CLASSES[label] == thing["name"]


def test_parts_of_objects_are_no_objects(tmp_path: Path) -> None:
    file = tmp_path / "a.xml"
    part = "<part><name>hand</name><bndbox><xmin>1</xmin></bndbox></part>"
    text = annotation([("person", BOX, False)])  # which some tools write instead of 0
    file.write_text(text.replace("</object>", f"{part}</object>"))
    (found,) = read_annotation(file)
    assert (found.name, found.box, found.difficult) == ("person", (2, 3, 12, 20), False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no element found"),
        ("<annotation><object></object></annotation>", "an object has no name"),
        (
            "<annotation><object><name>dog</name></object></annotation>",
            "dog' has nothing for xmin",
        ),
        (annotation([("dog", BOX, 0)]).replace(">20<", ">low<"), "has 'low' for ymax"),
    ],
)
def test_a_bad_annotation_is_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.xml"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.xml is no annotation.*{words}"):
        read_annotation(file)


def test_missing_files_are_named(tmp_path: Path) -> None:
    root = tree(tmp_path, USUAL)
    (root / "VOC2007" / "JPEGImages" / "a.jpg").unlink()
    (root / "VOC2007" / "Annotations" / "b.xml").unlink()
    with pytest.raises(FileNotFoundError, match="2 files of images and annotations") as raised:
        load_voc(str(root), *LISTS)
    assert "a.jpg" in str(raised.value) and "b.xml" in str(raised.value)
    shutil.rmtree(root / "VOC2007" / "JPEGImages")
    with pytest.raises(FileNotFoundError, match="5 files of images"):
        load_voc(str(root), *LISTS)
    with pytest.raises(FileNotFoundError, match=r"2012/ImageSets/Main/trainval\.txt"):
        load_voc(str(root), ("2012/trainval",), ("2007/test",))


def test_images_of_other_formats(tmp_path: Path) -> None:
    root = tree(tmp_path, USUAL)
    folder = root / "VOC2007" / "JPEGImages"
    (folder / "a.jpg").rename(folder / "a.PNG")
    shutil.copy(folder / "b.jpg", folder / "b.png")
    data = load_voc(str(root), *LISTS)
    assert [data.train[0].path.name, data.test[0].path.name] == ["a.PNG", "b.jpg"]


def test_nothing_to_train_on_or_to_score(tmp_path: Path) -> None:
    for name, images, words in (
        ("2007/trainval", {"a": []}, "has an object to train on.*--data.trained-on"),
        (
            "2007/test",
            {"b": [("dog", BOX, 1)], "c": []},
            "has an object to score.*--data.scored-on",
        ),
    ):
        root = tree(tmp_path / name, {**USUAL, name: images})
        with pytest.raises(ValueError, match=f"No image of {name} {words}"):
            load_voc(str(root), *LISTS)


def test_training_images_without_an_object_are_left_out_and_counted(tmp_path: Path) -> None:
    root = tree(tmp_path, {**USUAL, "2007/trainval": {"a": [("dog", BOX, 0)], "c": []}})
    data = load_voc(str(root), *LISTS)
    assert [image.path.stem for image in data.train] == ["a"]
    assert data.remarks == ("1 of 2 training images have no object and are left out",)
    facts = DetectionTask(data, DetectionConfig(), torch.device("cpu")).facts()
    assert facts["remarks"] == [*data.remarks]


def test_the_hash_tells_annotations_apart(tmp_path: Path) -> None:
    moved = {**USUAL, "2007/trainval": {"a": [("dog", (3, 4, 12, 21), 0), ("cat", BOX, 1)]}}
    easy = {**USUAL, "2007/test": {"b": [("person", BOX, 0), ("dog", BOX, 0)], "none": []}}
    first, second, *others = (
        load_voc(str(tree(tmp_path / str(n), lists)), *LISTS).split_sha256
        for n, lists in enumerate((USUAL, USUAL, moved, easy))
    )
    assert first == second and len({first, *others}) == 3
    both = str(tree(tmp_path / "both", {**USUAL, "2012/trainval": USUAL["2007/trainval"]}))
    years = (load_voc(both, (f"{year}/trainval",), LISTS[1]) for year in (2007, 2012))
    assert [data.split_sha256 == first for data in years] == [True, False]
