"""Balanced Softmax shifts logits in training only."""

import torch
import torch.nn.functional as F

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.methods.erm import BalancedSoftmaxMethod
from batchformer.lab.models.build import build_model


def test_counts_shift_the_loss_but_not_the_prediction() -> None:
    counts = torch.tensor([90, 9, 1])
    network = build_model("digits_net", 3)
    method = BalancedSoftmaxMethod(network, counts, module=ModuleConfig(enabled=False), seed=0)
    method.eval()
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    assert torch.equal(method.predict(x), network(x))
    expected = F.cross_entropy(network(x) + counts.log(), y)
    torch.testing.assert_close(method.step({"x": x, "y": y})["loss"], expected)
