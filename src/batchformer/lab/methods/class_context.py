"""Class rows in the batch: the encoder sees running means of classes beside the samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.transforms.mixup import one_hot
from batchformer.nn.attention import Attend
from batchformer.nn.exchange import all_reduce_, world_size
from batchformer.nn.module import BatchFormer
from batchformer.torch_private import uncompiled


class ClassContext(BatchFormer):
    """BatchFormer over N samples and K running means of class features.

    With a long tail most batches have no image of a rare class. Here every class that was seen
    before is in every batch, as one more row of the encoder.

    Samples and means attend to samples and means. A class that was never seen is masked: no row
    attends to it, and it has no loss. With ``attend="self"``, the control, every row attends to
    itself alone. All shapes are static and nothing is read back from the device, so a step can be
    captured in a CUDA graph. In eval it is the identity, as BatchFormer is.

    On several ranks each rank's samples attend to one another and to the means. The means are over
    the samples of all ranks, so they agree on every rank.

    Args:
        momentum: share of its old value that a mean keeps when its class is in a batch.

    Attributes:
        means: (K, C) float32 whatever the precision of a step; zero for a class not seen yet.
        seen: (K,) bool.
    """

    means: Tensor
    seen: Tensor

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        layers: int = 1,
        dropout: float = 0.5,
        *,
        attend: Attend = "batch",
        classes: int,
        momentum: float = 0.9,
        copy_layers: bool = False,
    ) -> None:
        super().__init__(dim, heads, layers, dropout, attend=attend, copy_layers=copy_layers)
        if classes < 1:
            raise ValueError(f"ClassContext: needs the number of classes, got classes={classes}.")
        self.momentum = momentum
        self.register_buffer("means", torch.zeros(classes, dim))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # samples have no padding
        """Mixed samples (N, C) in training, ``x`` itself in eval; the means do not change."""
        return self.mix_with_classes(x)[0] if self.training else x

    def mix_with_classes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (N, C) to mixed samples (N, C) and mixed class rows (K, C)."""
        self._check_layout(x)
        rows = torch.cat((x.to(torch.promote_types(x.dtype, self.means.dtype)), self.means))
        visible = torch.cat((self.seen.new_ones(len(x)), self.seen))
        mixed, _ = self._encode(rows, self.dropout, None, visible=visible)
        samples, classes = mixed.to(x.dtype).tensor_split((len(x),))
        return samples, classes

    @torch.no_grad()
    def update_means(self, features: Tensor, targets: Tensor) -> None:
        """Move the means of classes in a batch, in place; every rank calls it.

        A mean becomes ``momentum * old + (1 - momentum) * new``, or ``new`` if its class was never
        seen before. Means of other classes stay.

        Args:
            features: (N, C) plain; detached here.
            targets: (N,) classes, or (N, K) shares of classes, which weight the features.
        """
        shares = one_hot(targets, len(self.means)) if targets.ndim == 1 else targets
        rows = features.detach().to(self.means.dtype)
        rows = torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1)
        # (K, C + 1), the last column counts samples. A matrix product rather than index_add_, whose
        # order of summation varies on a GPU.
        with torch.autocast(features.device.type, enabled=False):
            sums = shares.to(self.means.dtype).T @ rows
        if world_size() > 1:
            _all_reduce_(sums)
        numbers = sums[:, -1:]
        present, before = numbers > 0, self.seen[:, None]
        batch = sums[:, :-1] / numbers.masked_fill(~present, 1.0)
        moved = self.momentum * self.means + (1 - self.momentum) * batch
        self.means.copy_(torch.where(present, torch.where(before, moved, batch), self.means))
        self.seen.logical_or_(present[:, 0])

    def class_rows(self) -> Tensor:
        """A copy of the means (S, C) of the S classes seen so far; reads back from the device."""
        return self.means[self.seen]


@uncompiled
def _all_reduce_(x: Tensor) -> None:
    all_reduce_(x)


def class_row_loss(logits: Tensor, seen: Tensor) -> Tensor:
    """Cross-entropy of each class row against its class, the mean over classes seen so far.

    Args:
        logits: (K, K), row k of class k.
        seen: (K,) bool.

    >>> logits = torch.tensor([[0.0, 0.0], [5.0, 9.0]])
    >>> class_row_loss(logits, torch.tensor([True, False])).exp()
    tensor(2.)
    """
    own = torch.arange(len(logits), device=logits.device)
    losses = F.cross_entropy(logits, own, reduction="none")
    return losses.masked_fill(~seen, 0.0).sum() / seen.sum().clamp(min=1)
