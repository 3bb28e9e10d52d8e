"""Features of a folder of images by a trained network, once, in a file for ``few_images`` and
``long_tail_features``.

``python -m benchmarks.image_features photos WEIGHTS FILE`` reads ``photos/train/CLASS/IMAGE`` and
``photos/test/CLASS/IMAGE``, or the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test`` if
``photos`` is an .npz file. The file that is written has the layout of ``cub_gzsl.npz``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.sets.long_tailed_files import own_files
from batchformer.lab.data.transforms import IMAGENET, CentreCrop, Compose, Resize
from batchformer.lab.models.build import build_model
from batchformer.lab.models.weights import fit_weights, move_stride, read_weights

BATCH = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Write ``features`` (M, C), ``labels`` (M,), and the rows to train on and to test."""
    parser = argparse.ArgumentParser("python -m benchmarks.image_features", description=__doc__)
    parser.add_argument("root", type=Path, help="the folder with train/ and test/, or an .npz")
    parser.add_argument("weights", type=Path, help="a state dict of the network")
    parser.add_argument("file", type=Path, help="the .npz file to write")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=128, help="side of the images")
    options = parser.parse_args(arguments)
    network = build_model(options.model, 1000)
    stored = read_weights(options.weights)
    fit_weights(network, stored.tensors, options.weights.name)
    if stored.stride is not None:
        move_stride(network, stored.stride)
    parts, labels = [], []
    for images, classes in read_images(options.root):
        parts.append(features(network, images, options.size))
        labels.append(classes)
    rows = torch.arange(sum(map(len, parts)))
    np.savez(
        options.file,
        features=torch.cat(parts).numpy().astype("float16"),
        labels=torch.cat(labels).numpy(),
        trainval_loc=rows[: len(parts[0])].numpy(),
        test_seen_loc=rows[len(parts[0]) :].numpy(),
    )


def read_images(root: Path) -> list[tuple[Iterable[Tensor], Tensor]]:
    """Images (3, H, W) uint8 and their classes (M,), to train on and to test."""
    if root.suffix != ".npz":
        data = own_files(root)
        return [
            (map(decode, [part.root / path for path in part.paths]), part.labels)
            for part in (data.train, data.test)
        ]
    with np.load(root, allow_pickle=False) as arrays:
        return [
            (
                torch.from_numpy(arrays[f"x_{part}"]).movedim(3, 1),
                torch.from_numpy(arrays[f"y_{part}"]),
            )
            for part in ("train", "test")
        ]


@torch.inference_mode()
def features(network: Any, images: Iterable[Tensor], size: int) -> Tensor:
    """Features (M, C) of the centre of every image, as the network's classifier would read them."""
    network.eval()
    view = Compose((Resize(round(size * 8 / 7)), CentreCrop(size), IMAGENET))
    found, left = [], iter(images)
    while batch := [*islice(left, BATCH)]:
        x = torch.cat([view(image[None]) for image in batch])
        found.append(network.forward_head(network.forward_features(x), pre_logits=True))
    return torch.cat(found)


if __name__ == "__main__":
    main()
