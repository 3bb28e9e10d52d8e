"""A bank of training images without augmentation, which some methods measure before they train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from batchformer.lab.config.training import require
from batchformer.lab.data.feeds.samplers import ClassBalanced
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.plug.insertion import is_sharded

#: Classes count as balanced if the largest has fewer than this many times the smallest's images.
BALANCED_WITHIN = 2
#: Random stream of the bank's draw, different from those of training batches.
STREAM = 2
#: Outputs (N, ...) of images (N, channels, H, W).
Extract = Callable[[Tensor], Tensor]
#: Scores (N, ...) of outputs (N, ...) and labels (N,).
Score = Callable[[Tensor, Tensor], Tensor]


def outputs_alone(outputs: Tensor, labels: Tensor) -> Tensor:
    """The score that returns the outputs unchanged."""
    return outputs


@dataclass(frozen=True, eq=False)
class Bank:
    """Training images without augmentation, drawn so that each class is equally frequent.

    In a long-tailed bank neighbours would vote for the largest classes, however good the features.
    If classes are balanced within a factor of two, every image is in the bank once. Otherwise an
    image of a small class is in it many times, and votes as often: the smallest class of
    CIFAR-100-LT has five images and each class 108 draws, so each of the five is in it about 21
    times, and 200 neighbours are some ten different images there.
    """

    labels: Tensor  # (M,) classes of the training images
    seed: int  # of the draw
    # Gives all training images in order, normalised and on the device, and their labels; with
    # several ranks, the images that this rank scores
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    # The bank of a third list (validation), for methods that choose something by it
    validation: Bank | None = None

    @property
    def rows(self) -> Tensor:
        """(M,) numbers of the training images in the bank; those of small classes repeat."""
        counts = self.labels.bincount()
        counts = counts[counts > 0]
        if int(counts.max()) < BALANCED_WITHIN * int(counts.min()):
            return torch.arange(len(self.labels))
        return ClassBalanced(self.labels, self.seed, STREAM).order(0)

    def __call__(self, extract: Extract) -> tuple[Tensor, Tensor]:
        """Features (M, C) and labels (M,), on the device of the features.

        Args:
            extract: makes features (N, C) of images (N, channels, H, W).
        """
        # Each image once: repeating its features is cheaper than repeating the image.
        found = self.measure(extract)
        rows = self.rows.to(found.device)
        return found[rows], self.labels.to(found.device)[rows]

    def measure(self, extract: Extract, score: Score = outputs_alone) -> Tensor:
        """Scores (M, ...) of all training images, each once and in order.

        Args:
            score: of the outputs (N, ...) of some images and their labels (N,).
        """
        found = ((all_rows(extract(x).float(), len(y)), y) for x, y in self.batches())
        return torch.cat([score(rows, y.to(rows.device)) for rows, y in found])


def require_bank(method: nn.Module, bank: Bank | None, who: str) -> Bank:
    """Return the bank; refuse a missing one and a sharded network.

    Args:
        who: the method or setting that needs the bank, named in the error.
    """
    require(
        bank is not None,
        f"{who} measures the training images before the training, and this method was given no "
        "bank of them",
    )
    require(
        not is_sharded(method),
        f"{who} runs the whole network before the training, and this one is sharded; set "
        "train.parallel ddp",
    )
    assert bank is not None
    return bank


def measured(
    method: nn.Module, bank: Bank, extract: Extract, score: Score = outputs_alone
) -> Tensor:
    """:meth:`Bank.measure` in the precision of the method's weights.

    The method is put into eval mode and computes no gradients; its mode is restored afterwards.
    """
    weight, training = next(method.parameters()), method.training

    def in_own_precision(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return extract(x.to(weight.dtype))

    method.eval()
    try:
        with torch.no_grad():
            return bank.measure(in_own_precision, score)
    finally:
        method.train(training)


def class_means(method: nn.Module, bank: Bank, extract: Extract, classes: int) -> Tensor:
    """(K, C) means of each class's features (N, C) over its training images, as at test.

    A class without images has the mean 0.
    """
    features = measured(method, bank, extract).cpu().double()
    labels = bank.labels.cpu()
    # On the CPU the order of summation is always the same.
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / labels.bincount(minlength=classes).clamp(min=1)[:, None]
