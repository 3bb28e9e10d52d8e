"""IRM: features on which one classifier is the best for every domain."""

from __future__ import annotations

from torch import Tensor

from batchformer.lab.losses.domains import irm_penalty
from batchformer.lab.methods.by_domain import Penalised, by_domain


class Irm(Penalised):
    """Cross-entropy and the penalty of invariant risk minimisation.

    The penalty multiplies what even and odd rows of a domain give. With an even number of samples
    of each domain, both streams of a sample fall into the same half, so the halves stay
    independent but for attention.

    With two streams and ``hyper.irm_grouping="official"`` the rows, plain ones and then mixed ones,
    are cut into G consecutive parts as in the released code, and the parts mix domains.
    """

    delayed = True

    def group(self, rows: Tensor, streams: int) -> Tensor:
        official = self.hyper.irm_grouping == "official"
        return by_domain(rows, self.groups, 1 if official else streams)

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        return irm_penalty(logits, targets)
