"""Statistics measured anew are the plain means over the batches, and weights stay."""

from __future__ import annotations

import torch
from torch import nn

from batchformer.lab.engine.bn_recalibration import recalibrate_norms


def test_means_over_the_batches() -> None:
    torch.manual_seed(0)
    norm, still = nn.BatchNorm1d(3, momentum=0.3), nn.BatchNorm1d(3)
    model = nn.Sequential(norm, still).double().train()
    still.eval()
    for _ in range(4):
        model(torch.randn(8, 3, dtype=torch.float64) + 5)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    batches = torch.randn(6, 8, 3, dtype=torch.float64)
    with torch.no_grad(), recalibrate_norms(model):
        for batch in batches:
            model(batch)
    torch.testing.assert_close(norm.running_mean, batches.mean((0, 1)))
    torch.testing.assert_close(norm.running_var, batches.var(1).mean(0))
    assert norm.momentum == 0.3 and norm.training
    after = model.state_dict()
    changed = {name for name in state if not torch.equal(state[name], after[name])}
    assert changed == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
