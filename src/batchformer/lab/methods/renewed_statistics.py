"""Statistics of normalisation for weights that no update gave."""

from __future__ import annotations

import torch

from batchformer.lab.engine.bn_recalibration import measuring_statistics
from batchformer.lab.engine.method import Batches, Method

#: Training batches over which statistics of normalisation are computed anew.
STATISTICS_BATCHES = 100


@torch.no_grad()
def renew_statistics(method: Method, batches: Batches, most: int = STATISTICS_BATCHES) -> None:
    """Compute statistics of batch normalisation anew: those kept belong to other weights.

    They become the mean over batches of the first epoch, as predictions meet them: dropout and
    BatchFormer do not act. Normalisation that stays in eval mode when the method trains keeps its
    statistics, and so does that which predictions do not pass. The method is left in eval mode.
    """
    method.train()
    with measuring_statistics(method) as norms:
        method.eval()
        if not norms:
            return
        for norm in norms:
            norm.train()
        for step in range(min(most, batches.per_epoch)):
            method.predict(batches.batch(step)["x"])
    method.eval()
    method.remarks()  # forgets what these predictions were like
