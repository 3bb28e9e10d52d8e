"""MixStyle: cross-entropy on features that borrow the style of another domain."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.lab.methods.by_domain import ByDomain
from batchformer.lab.models.domains import insert_mixstyle


class MixStyleMethod(ByDomain):
    """Styles are mixed inside the network, in training, after ``hyper.mixstyle_after``.

    The network's weights and their names stay as they are.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, class_counts, **options)
        hyper = self.hyper
        insert_mixstyle(
            network, hyper.mixstyle_after, hyper.mixstyle_p, hyper.mixstyle_alpha, self.groups
        )
