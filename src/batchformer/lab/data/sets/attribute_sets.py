"""Where features with class attributes for generalized zero-shot learning lie; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batchformer.lab.data.files.location import folder_named, looked_in, not_found

#: The name of the user's own features, in one file.
OWN = "npz"
FEATURES = "res101.mat"
_SOURCE = (
    "the proposed splits of Xian et al. (2018), Zero-Shot Learning: A Comprehensive Evaluation of "
    "the Good, the Bad and the Ugly, at https://www.mpi-inf.mpg.de/zsl-benchmark"
)


@dataclass(frozen=True)
class AttributeSet:
    """A known data set."""

    title: str  # as papers call it, and the usual name of its folder
    classes: int
    seen: int
    source: str = _SOURCE
    # Usual names of the file of attributes and splits; the first that exists is read.
    splits: tuple[str, ...] = ("att_splits.mat",)

    @property
    def unseen(self) -> int:
        """Classes that are never trained on."""
        return self.classes - self.seen


ATTRIBUTE_SETS: dict[str, AttributeSet] = {
    "cub": AttributeSet(
        "CUB",
        classes=200,
        seen=150,
        source=f"{_SOURCE}; sent_splits.mat, with 1,024 attributes made of sentences in the place "
        "of 312 named ones, comes with the code of CE-GZSL, https://github.com/Hanzy1996/CE-GZSL",
        splits=("sent_splits.mat", "att_splits.mat"),
    ),
    "awa1": AttributeSet("AWA1", classes=50, seen=40),
    "awa2": AttributeSet("AWA2", classes=50, seen=40),
    "sun": AttributeSet("SUN", classes=717, seen=645),
    "apy": AttributeSet("APY", classes=32, seen=20),
    "flo": AttributeSet(
        "FLO",
        classes=102,
        seen=82,
        source="the code of CE-GZSL, https://github.com/Hanzy1996/CE-GZSL, names a copy with "
        "attributes made of sentences",
    ),
}


@dataclass(frozen=True)
class AttributeFiles:
    """The files that a data set is read from."""

    features: Path  # a ``.mat`` of features and labels, or an ``.npz`` that holds everything
    splits: Path | None = None  # the ``.mat`` of attributes and splits; None beside an ``.npz``


def files_of(name: str, root: str | Path | None = None) -> AttributeFiles | None:
    """The files of a set, or None if there are none.

    `root` is an ``.npz`` or a folder. The two ``.mat`` files are looked for first in a subfolder of
    the set's name, then in the folder itself; ``NAME_gzsl.npz`` is looked for last.
    """
    place = looked_in(root)
    if place.suffix == ".npz":
        return AttributeFiles(place) if place.is_file() else None
    if name == OWN:
        return None
    known = ATTRIBUTE_SETS[name]
    for folder in (folder_named(root, [known.title]), place):
        there = [folder / file for file in known.splits if (folder / file).is_file()]
        if there and (folder / FEATURES).is_file():
            return AttributeFiles(folder / FEATURES, there[0])
    npz = place / f"{name}_gzsl.npz"
    return AttributeFiles(npz) if npz.is_file() else None


def ensure_present(name: str, root: str | Path | None = None) -> AttributeFiles:
    """The files of a set; if there are none, a FileNotFoundError says what to do."""
    found, place = files_of(name, root), looked_in(root)
    if found is not None:
        return found
    if name == OWN:
        raise FileNotFoundError(
            f"There is no file of features {place}. Name your own .npz by --data.root; it holds "
            "features (N, D), labels (N,), att (K, A), and the rows trainval_loc, test_seen_loc "
            "and test_unseen_loc, all counted from 0."
        )
    known = ATTRIBUTE_SETS[name]
    title = known.title
    raise not_found(
        f"{title} not found: looked in {place} and in a folder {title} there",
        f"{FEATURES} and {' or '.join(known.splits)}, or {name}_gzsl.npz",
        known.source,
        "folder, or an .npz,",
    )
