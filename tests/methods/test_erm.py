"""Cross-entropy does not look at the class counts."""

import torch
import torch.nn.functional as F

from batchformer.methods.config import ModuleConfig
from batchformer.methods.erm import CrossEntropy
from batchformer.models.build import build_model


def test_the_baseline_loss_is_cross_entropy() -> None:
    method = CrossEntropy(
        build_model("digits_net", 3),
        torch.tensor([9, 1, 1]),
        module=ModuleConfig(enabled=False),
        seed=0,
    ).eval()
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(
        method.step({"x": x, "y": y})["loss"], F.cross_entropy(method.predict(x), y)
    )
