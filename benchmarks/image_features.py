"""Features of a folder of images by a trained network, once, in a file for ``few_images`` and
``long_tail_features``.

``python -m benchmarks.image_features photos WEIGHTS FILE`` reads ``photos/train/CLASS/IMAGE`` and
``photos/test/CLASS/IMAGE``. The file has the layout of ``cub_gzsl.npz``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.long_tailed_files import own_files
from batchformer.lab.data.transforms import IMAGENET, CentreCrop, Compose, Resize
from batchformer.lab.models.build import build_model
from batchformer.lab.models.weights import fit_weights, move_stride, read_weights

BATCH = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Write ``features`` (M, C), ``labels`` (M,), and the rows to train on and to test."""
    parser = argparse.ArgumentParser("python -m benchmarks.image_features", description=__doc__)
    parser.add_argument("root", type=Path, help="the folder with train/ and test/")
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
    data = own_files(options.root)
    parts = [features(network, part, options.size) for part in (data.train, data.test)]
    rows = torch.arange(sum(map(len, parts)))
    np.savez(
        options.file,
        features=torch.cat(parts).numpy().astype("float16"),
        labels=torch.cat((data.train.labels, data.test.labels)).numpy(),
        trainval_loc=rows[: len(parts[0])].numpy(),
        test_seen_loc=rows[len(parts[0]) :].numpy(),
    )


@torch.inference_mode()
def features(network: Any, files: ImageFiles, size: int) -> Tensor:
    """What the network's classifier would read, (M, C), for the centre of every image."""
    network.eval()
    view = Compose((Resize(round(size * 8 / 7)), CentreCrop(size), IMAGENET))
    found = []
    for start in range(0, len(files.paths), BATCH):
        paths = files.paths[start : start + BATCH]
        x = torch.cat([view(decode(files.root / path)[None]) for path in paths])
        found.append(network.forward_head(network.forward_features(x), pre_logits=True))
    return torch.cat(found)


if __name__ == "__main__":
    main()
