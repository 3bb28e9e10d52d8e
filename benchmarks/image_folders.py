"""The images of an .npz file as folders of classes, which ``batchformer compare my_folder`` reads.

``python -m benchmarks.image_folders cifar100_lt.npz cifar_images`` writes
``cifar_images/train/CLASS/00000.png`` and ``cifar_images/test/CLASS/00000.png``. A file's number is
the image's row among its part.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def main(arguments: Sequence[str] | None = None) -> None:
    """Write every image (H, W, 3) uint8 of ``x_train`` and ``x_test``, without loss."""
    parser = argparse.ArgumentParser("python -m benchmarks.image_folders", description=__doc__)
    parser.add_argument("file", type=Path, help="x_train, y_train, x_test, y_test and classes")
    parser.add_argument("root", type=Path, help="the folder to write")
    options = parser.parse_args(arguments)
    with np.load(options.file, allow_pickle=False) as arrays:
        names = arrays["classes"]
        for part in ("train", "test"):
            for name in names:
                (options.root / part / str(name)).mkdir(parents=True, exist_ok=True)
            rows = zip(arrays[f"x_{part}"], arrays[f"y_{part}"], strict=True)
            for row, (image, label) in enumerate(rows):
                place = options.root / part / str(names[label]) / f"{row:05d}.png"
                Image.fromarray(image).save(place)


if __name__ == "__main__":
    main()
