"""Metadata of published sets of attributes and objects, read without running anything in it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from batchformer.lab.data.sets.compositions import Phase
    from batchformer.lab.data.sets.pair_files import PairImage

SPLIT = "compositional-split-natural"
METADATA = f"metadata_{SPLIT}.t7"
#: Read in the place of the metadata where it is there; `metadata_to_csv` writes one.
CONVERTED = f"metadata_{SPLIT}.csv"
_KEYS = ("image", "attr", "obj", "set")
_PARTS = ("train", "val", "test")
_NOT_SAID = "NA"


def read_metadata(file: Path) -> tuple[list[PairImage], Counter[str]]:
    """Images that have an attribute and a part, and how many have not, for each reason.

    The file is a list of dicts of strings, written by `torch.save`. Nothing in it is run: a file
    that would need more than plain types is refused.
    """
    import torch

    from batchformer.lab.data.sets.pair_files import PairImage

    try:
        entries = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # the reader of each format has errors of its own
        # torch's words advise to run what the file holds; they are not passed on.
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
        if attribute == _NOT_SAID:
            skipped["attribute NA"] += 1
        elif split == _NOT_SAID:
            skipped["set NA"] += 1
        elif split not in _PARTS:
            raise ValueError(
                f"{file}, entry {number} (from 0): expected the set {', '.join(_PARTS)} or "
                f"{_NOT_SAID}, got {split!r}"
            )
        else:
            images.append(PairImage(image, attribute, thing, cast("Phase", split)))
    return images, skipped


def metadata_to_csv(
    t7: str | Path, csv: str | Path, folder: str | Path | None = None
) -> tuple[int, Counter[str]]:
    """Write the images of a metadata file as a table that `pair_table` reads.

    A published set then serves as one's own, and `load_pairs` takes the table in the place of the
    metadata if it has its name. Images without an attribute or a part are left out.

    Args:
        t7: the metadata.
        csv: the table.
        folder: of the images; paths are written in the form in which they lie there. None: as the
            metadata has them, which some sets as they are provided do not follow.

    Returns:
        how many were written, and how many were left out, for each reason.
    """
    from batchformer.lab.data.sets.pair_layouts import as_on_disk
    from batchformer.lab.data.sets.pair_table import write_pair_table

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
