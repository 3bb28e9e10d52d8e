"""RIDE's last stage: experts are asked one after the other, while a router says it is worth it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.routing import ExpertRouters, running_means, worth_going_on
from batchformer.lab.models.ride import RideNetwork
from batchformer.nn.exchange import ranks, summed
from batchformer.nn.randomness import drawing


class AssignedExperts(Method):
    """Routers on a trained network of experts, which stays as it is.

    BatchFormer has no part in this stage; it may have had one in the run that this one starts from.

    Args:
        network: the experts.
        class_counts: (K,), as every method takes it.
        module: BatchFormer's settings, as every method takes them.
        seed: of the routers' initial weights.
        hyper: router_top, router_width, router_positive_weight and frozen_mode.
    """

    asked: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, RideNetwork) or network.experts < 2:
            raise ValueError(
                f"ride_assignment needs a network of at least two experts, such as ride_resnet32, "
                f"got {type(network).__name__}."
            )
        self.network, self.hyper = network.requires_grad_(False), hyper or MethodConfig()
        top = min(self.hyper.router_top, network.num_classes)
        width = self.hyper.router_width
        with drawing(seed, "weights", 1):
            self.routers = ExpertRouters(network.experts, network.num_features, top, width)
        weight = torch.tensor(self.hyper.router_positive_weight)
        self.register_buffer("positive_weight", weight, persistent=False)
        # Samples that reached each expert since the last remarks.
        asked = torch.zeros(network.experts, dtype=torch.int64)
        self.register_buffer("asked", asked, persistent=False)
        self.costs: tuple[int, int] | None = None

    def train(self, mode: bool = True) -> AssignedExperts:
        super().train(mode)
        self.network.train(mode and self.hyper.frozen_mode == "train")
        return self

    def step(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            features = self.network.expert_features(batch["x"])
            means = running_means(self.network.expert_logits(features).float())
            worth = worth_going_on(means, batch["y"])
        scores = torch.stack(
            [self.routers(e, features[e], means[e]) for e in range(self.network.experts - 1)]
        )
        loss = F.binary_cross_entropy_with_logits(
            scores.float(),
            worth.float(),
            pos_weight=self.positive_weight,  # type: ignore[arg-type]
        )
        return {"loss": loss}

    def forward(self, x: Tensor) -> Tensor:
        """The same as :meth:`predict`: this stage has no second stream."""
        return self.predict(x)

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, K), for each sample the mean of the experts it was shown to.

        An expert computes only on the samples that reach it.
        """
        network = self.network
        if self.costs is None:
            self.costs = _costs(network, x[:1])
        maps = network.shared(x)
        rows = torch.arange(len(x), device=x.device)
        total, used = x.new_zeros(len(x), network.num_classes), x.new_zeros(len(x), 1)
        for expert, branch in enumerate(network.branches):
            self.asked[expert] += len(rows)
            features = branch(maps[rows]).mean((2, 3))
            total[rows] += network.classify(features, expert).to(total.dtype)
            used[rows] += 1
            if expert == network.experts - 1:
                break
            go_on = self.routers(expert, features, total[rows] / (expert + 1)) > 0
            rows = rows[go_on]
            if not len(rows):
                break
        return total / used

    def remarks(self) -> dict[str, float]:
        """Computation saved against asking all experts, in percent, since last asked."""
        asked = summed(self.asked) if ranks() > 1 else self.asked
        samples = int(asked[0])
        if not samples or self.costs is None:
            return {}
        trunk, branch = self.costs
        spent = trunk + branch * int(asked.sum()) / samples
        self.asked.zero_()
        return {"saved_computation": 100 * (1 - spent / (trunk + branch * self.network.experts))}


def _costs(network: RideNetwork, x: Tensor) -> tuple[int, int]:
    """Floating-point operations for one image of what is shared, and of one expert."""
    with torch.no_grad(), FlopCounterMode(display=False) as trunk:
        maps = network.shared(x)
    with torch.no_grad(), FlopCounterMode(display=False) as branch:
        network.branches[0](maps)
    return trunk.get_total_flops(), branch.get_total_flops()
