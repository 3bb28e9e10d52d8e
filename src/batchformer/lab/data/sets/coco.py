"""Images with boxes in the folders of COCO."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from batchformer.lab.data.files.file_lists import read_coco
from batchformer.lab.data.sets.image_layouts import coco_folder, coco_list, ensure_coco
from batchformer.lab.data.sets.voc import BoxedImage, BoxedImages, boxed_images, require_files

#: Parts of an annotation file that are read, and the keys of their entries.
KEYS = {
    "categories": ("id", "name"),
    "images": ("id", "file_name"),
    "annotations": ("image_id", "category_id", "bbox"),
}


def load_coco(root: str | None, trained_on: Sequence[str], scored_on: Sequence[str]) -> BoxedImages:
    """Read the annotations of all lists, such as ``train2017``, and look for every image.

    Classes are the categories of all lists, in the order of their numbers. A crowd is never trained
    on, and need not be found: it counts as a difficult object. Boxes without an area are left out.
    """
    names = tuple(dict.fromkeys((*trained_on, *scored_on)))
    ensure_coco(root, names)
    read = {name: read_annotations(coco_list(root, name)) for name in names}
    categories = _categories(read)
    numbers = {number: place for place, number in enumerate(categories)}
    classes = tuple(categories.values())
    images = {name: _images(read[name], coco_folder(root) / name, numbers) for name in names}
    named = (image.path for listed in images.values() for image in listed)
    require_files(named, "the annotations")
    train = [_without_crowds(image) for name in trained_on for image in images[name]]
    test = [image for name in scored_on for image in images[name]]
    return boxed_images(classes, train, test, trained_on, scored_on, folders=1)


def read_annotations(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The categories, images and annotations of a list; an error says what is missing."""
    content = read_coco(file, KEYS)
    for entry in content["annotations"]:
        box = entry["bbox"]
        sides = [isinstance(side, (int, float)) for side in box] if isinstance(box, list) else []
        if sides != [True] * 4:
            raise ValueError(f"{file}: a bbox is {box}, not 4 numbers. Write the file again.")
    return content


def _categories(read: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> dict[int, str]:
    """Names by number, in the order of the numbers; lists must agree."""
    found: dict[int, str] = {}
    for name, content in read.items():
        for entry in content["categories"]:
            if found.setdefault(entry["id"], entry["name"]) != entry["name"]:
                raise ValueError(
                    f"Category {entry['id']} is {entry['name']!r} in {name} and "
                    f"{found[entry['id']]!r} in another list. Number categories alike in all lists."
                )
    return dict(sorted(found.items()))


def _images(
    content: Mapping[str, list[dict[str, Any]]], folder: Path, numbers: Mapping[int, int]
) -> list[BoxedImage]:
    objects: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in content["annotations"]:
        if entry["category_id"] not in numbers:
            raise ValueError(
                f"{folder.name} has an object of category {entry['category_id']}, which its "
                "categories do not name. Add it to them, or leave the object out."
            )
        if min(entry["bbox"][2:]) > 0:
            objects[entry["image_id"]].append(entry)
    return [
        _boxed(folder / image["file_name"], objects[image["id"]], numbers)
        for image in content["images"]
    ]


def _boxed(path: Path, objects: Sequence[dict[str, Any]], numbers: Mapping[int, int]) -> BoxedImage:
    """COCO writes left, top, width and height."""
    sides = torch.tensor([entry["bbox"] for entry in objects], dtype=torch.float32).reshape(-1, 4)
    return BoxedImage(
        path,
        torch.cat((sides[:, :2], sides[:, :2] + sides[:, 2:]), dim=1),
        torch.tensor([numbers[entry["category_id"]] for entry in objects], dtype=torch.int64),
        torch.tensor([bool(entry.get("iscrowd", 0)) for entry in objects], dtype=torch.bool),
    )


def _without_crowds(image: BoxedImage) -> BoxedImage:
    kept = ~image.difficult
    return BoxedImage(image.path, image.boxes[kept], image.labels[kept], image.difficult[kept])
