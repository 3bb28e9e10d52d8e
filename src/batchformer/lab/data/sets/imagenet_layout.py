"""Where ImageNet lies on disk; needs no torch."""

from __future__ import annotations

from pathlib import Path

from batchformer.lab.data.files.location import looked_in

#: Parts of ImageNet, each with a folder for every class.
PARTS = ("train", "val")


def folder_of(root: str | None) -> Path:
    """The folder of ``train`` and ``val``: `root`, or ``imagenet`` where data is looked for."""
    return Path(root).expanduser() if root else looked_in() / "imagenet"


def present(root: str | None) -> bool:
    """Whether both parts have at least one class folder."""
    return not _missing(folder_of(root))


def ensure_present(root: str | None) -> None:
    """Check that ImageNet is there before anything is loaded.

    Raises:
        FileNotFoundError: says where it looked, what it expected and what to do.
    """
    folder = folder_of(root)
    if missing := _missing(folder):
        raise FileNotFoundError(
            f"ImageNet not found: looked in {folder}, and {' and '.join(missing)} is missing or "
            "has no class folder.\n"
            "Expected there: train/<class>/<image> and val/<class>/<image>, with the same 1,000 "
            "class folders in both, such as n01440764.\n"
            "To provide it: register at https://image-net.org/download.php, unpack ILSVRC2012 "
            "there and sort the validation images into class folders; or name another folder with "
            "--data.root or the environment variable BATCHFORMER_DATA."
        )


def _missing(folder: Path) -> list[str]:
    return [part for part in PARTS if not _has_a_class(folder / part)]


def _has_a_class(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir())
