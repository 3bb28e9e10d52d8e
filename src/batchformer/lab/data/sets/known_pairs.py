"""Known sets of attributes and objects: layouts, metadata, and where they lie.

Whether a set is present is answered without torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from batchformer.lab.data.files.file_lists import lines_of
from batchformer.lab.data.files.location import folder_named, not_found

if TYPE_CHECKING:
    from batchformer.lab.data.sets.pairs import Compositions, Pair, PairFiles, PairImage, Phase

SPLIT = "compositional-split-natural"
METADATA = f"metadata_{SPLIT}.t7"
#: Read instead of the metadata if it exists; `metadata_to_csv` writes one.
CONVERTED = f"metadata_{SPLIT}.csv"
_KEYS = ("image", "attr", "obj", "set")
_PARTS = ("train", "val", "test")
_UNKNOWN = "NA"
_LISTS = {part: f"{SPLIT}/{part}_pairs.txt" for part in _PARTS}
_IMAGES = "images"
#: Images that are looked for to find the form of their paths.
_SAMPLED = 64
_SCRIPT = "utils/download_data.sh of https://github.com/ExplainableML/czsl"


@dataclass(frozen=True)
class PairLayout:
    """A known data set."""

    title: str
    folders: tuple[str, ...]  # usual names of its folder
    attributes: int
    objects: int
    seen: int  # number of pairs to train on
    source: str
    pairs: int | None = None  # P, if papers state it
    versions: str = ""  # what to say about releases that differ


PAIR_SETS: dict[str, PairLayout] = {
    "mit_states": PairLayout("MIT-States", ("mit-states",), 115, 245, 1262, _SCRIPT),
    "ut_zappos": PairLayout("UT-Zappos", ("ut-zap50k", "ut-zappos"), 16, 12, 83, _SCRIPT, 116),
    "c_gqa": PairLayout(
        *("C-GQA", ("cgqa",), 453, 870, 6963),
        source="the first release, of the authors of https://github.com/ExplainableML/czsl, whose "
        "script downloads the second one",
        versions=" C-GQA was released again with other pairs, and the experiments of the paper are "
        "on the first release: scores on the two do not compare.",
    ),
}


def load_pairs(name: str, root: str | Path | None = None) -> PairFiles:
    """A known set by its name, with the published split; `root` is its folder, or the one above.

    Images without an attribute or a part, or of a pair in no list, are left out and counted in
    `skipped`.
    """
    ensure_present(name, root)
    from batchformer.lab.data.sets.pairs import Compositions, PairFiles, read_pairs

    known, place = PAIR_SETS[name], place_of(name, root)
    compositions = Compositions.of(*(read_pair_list(place / file) for file in _LISTS.values()))
    _require_known(known, place, compositions)
    converted = place / CONVERTED
    images, skipped = (
        (read_pairs(converted), Counter[str]())
        if converted.is_file()
        else read_metadata(place / METADATA)
    )
    pairs = {*compositions.names}
    listed = [image for image in images if image.pair in pairs]
    skipped["pair in no list"] = len(images) - len(listed)
    listed = as_on_disk(known.title, place / _IMAGES, listed)
    return PairFiles.of(known.title, place / _IMAGES, listed, compositions, skipped=+skipped)


def place_of(name: str, root: str | Path | None = None) -> Path:
    """The folder of a set: one of its usual names in `root`, or `root` itself."""
    return folder_named(root, PAIR_SETS[name].folders)


def ensure_present(name: str, root: str | Path | None = None) -> None:
    """Raise a FileNotFoundError that says what to do unless lists, metadata and images exist."""
    known, place = PAIR_SETS[name], place_of(name, root)
    missing = [file for file in _LISTS.values() if not (place / file).is_file()]
    if not (place / METADATA).is_file() and not (place / CONVERTED).is_file():
        missing.append(METADATA)
    if not (place / _IMAGES).is_dir():
        missing.append(f"folder {_IMAGES}")
    if missing:
        lists = ", ".join(_LISTS.values())
        raise not_found(
            f"{known.title} not found: looked in {place}, and there is no {', no '.join(missing)}",
            f"{_IMAGES}/, {METADATA} (or {CONVERTED}), {lists}",
            known.source,
            usual=known.folders[0],
        )


def read_pair_list(file: Path) -> list[Pair]:
    """Pairs of a list, one ``attribute object`` per line; blank lines are skipped."""
    pairs: list[Pair] = []
    for number, line in lines_of(file):
        words = line.split()
        if len(words) != 2:
            raise ValueError(
                f"{file}, line {number}: expected an attribute, a space and an object, got {line!r}"
            )
        pairs.append((words[0], words[1]))
    return pairs


def _forms(path: str, attribute: str, thing: str) -> dict[str, str]:
    """Where an image may lie, given its path as written: scripts rename folders in these ways."""
    folder, slash, file = path.rpartition("/")
    return {
        "as written": path,
        "underscores for the spaces of the folder": f"{folder.replace(' ', '_')}{slash}{file}",
        "in a folder attribute_object": f"{attribute}_{thing}/{file}",
        "in a folder 'attribute object'": f"{attribute} {thing}/{file}",
    }


def as_on_disk(title: str, folder: Path, images: Sequence[PairImage]) -> list[PairImage]:
    """Images with their paths in the form that finds most files of a sample."""
    sample = [_forms(*image[:3]) for image in images[:: max(len(images) // _SAMPLED, 1)]]
    if not sample:
        return []
    found = {form: sum((folder / own[form]).is_file() for own in sample) for form in sample[0]}
    best = max(found, key=lambda form: found[form])
    if not found[best]:
        tried = "\n".join(f"  {path} ({form})" for form, path in sample[0].items())
        raise FileNotFoundError(
            f"{title}: none of the {len(sample)} images looked for (out of {len(images)}) is in "
            f"{folder}, in any form of its path. For the first one these were tried:\n{tried}\n"
            "Unpack the images there; the scripts that provide some sets rename folders"
        )
    return [image._replace(image=_forms(*image[:3])[best]) for image in images]


def _require_known(known: PairLayout, place: Path, found: Compositions) -> None:
    """Refuse a set with other numbers of attributes, objects or pairs."""
    sizes = {
        "attributes": (len(found.attributes), known.attributes),
        "objects": (len(found.objects), known.objects),
        "seen pairs": (int(found.seen.sum()), known.seen),
        "pairs": (len(found), known.pairs),
    }
    wrong = [
        f"{has} {what} instead of {wanted}"
        for what, (has, wanted) in sizes.items()
        if wanted is not None and has != wanted
    ]
    if wrong:
        raise ValueError(
            f"the lists in {place / SPLIT} are not those of {known.title} as the paper uses it: "
            f"{', '.join(wrong)}.{known.versions} Take it from {known.source}; to use this one, "
            f"make it a set of your own by: batchformer data convert-pairs {METADATA} --images "
            f"{_IMAGES} --to FILE.csv"
        )


# Metadata of the published sets.


def read_metadata(file: Path) -> tuple[list[PairImage], Counter[str]]:
    """Images that have an attribute and a part, and how many lack one, by reason.

    The file is a list of dicts of strings, written by `torch.save`. Nothing in it is executed: a
    file that needs more than plain types is refused.
    """
    import torch

    from batchformer.lab.data.sets.pairs import PairImage

    try:
        entries = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # the reader of each format has its own errors
        # torch's message advises to run what the file holds, so it is not passed on.
        raise ValueError(_refusal(file, str(error))) from None
    images: list[PairImage] = []
    skipped: Counter[str] = Counter()
    if not isinstance(entries, list):
        raise ValueError(f"{file}: expected a list of dicts, got a {type(entries).__name__}")
    for number, entry in enumerate(entries):
        values = [entry.get(key) for key in _KEYS] if isinstance(entry, dict) else [None]
        if not all(isinstance(value, str) for value in values):
            raise ValueError(
                f"{file}, entry {number} (from 0): expected a dict with the strings "
                f"{', '.join(_KEYS)}, got {entry!r:.200}"
            )
        image, attribute, thing, split = cast("list[str]", values)
        if attribute == _UNKNOWN:
            skipped["attribute NA"] += 1
        elif split == _UNKNOWN:
            skipped["set NA"] += 1
        elif split not in _PARTS:
            raise ValueError(
                f"{file}, entry {number} (from 0): expected the set {', '.join(_PARTS)} or "
                f"{_UNKNOWN}, got {split!r}"
            )
        else:
            images.append(PairImage(image, attribute, thing, cast("Phase", split)))
    return images, skipped


def metadata_to_csv(
    t7: str | Path, csv: str | Path, folder: str | Path | None = None
) -> tuple[int, Counter[str]]:
    """Write the images of a metadata file as a table that `pair_table` reads, and count them.

    The published set can then be used as the user's own, and `load_pairs` reads the table instead
    of the metadata if it is named `CONVERTED`. With the `folder` of the images, paths are written
    as they are on disk, and not as in the metadata, which some releases do not follow. Returns how
    many were written, and how many lack an attribute or a part and were left out, by reason.
    """
    from batchformer.lab.data.sets.pairs import write_pair_table

    file = Path(t7).expanduser()
    images, skipped = read_metadata(file)
    if folder is not None:
        images = as_on_disk(file.name, Path(folder).expanduser(), images)
    write_pair_table(csv, images)
    return len(images), skipped


def _refusal(file: Path, reason: str) -> str:
    needed = re.search(r"GLOBAL (\S+)", reason)
    if needed is None:
        return (
            f"{file} cannot be read: it is damaged, or no list of plain strings that torch.save "
            "has written. Download it again"
        )
    return (
        f"{file} holds more than plain strings: it asks for {needed[1]}. Nothing from a file is "
        f"run here. If you trust it, write its entries as {CONVERTED} in the same folder, with the "
        "columns image, attribute, object, split: it is read instead. A file of plain strings is "
        "converted by: batchformer data convert-pairs FILE.t7 --to FILE.csv"
    )
