"""RIDE: experts on a shared trunk, and its last stage that routes samples to them."""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from batchformer.insight.classes import shot_groups
from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.ride import RIDE, ride_with_teacher
from batchformer.lab.methods.classifier import apply_encoder, loss_of_streams, make_encoder
from batchformer.lab.models.ride import RideNetwork
from batchformer.nn.exchange import summed, world_size
from batchformer.nn.randomness import drawing


def mixed_classes(counts: Tensor, hyper: MethodConfig) -> Tensor | None:
    """(K,) bool: the classes whose samples take their mixed features; None: all of them.

    Many-shot classes have more than 100 training images, as in the released code, where this
    choice is in comments.

    >>> mixed_classes(torch.tensor([300, 101, 100]), MethodConfig(mixed_classes="not_many"))
    tensor([False, False,  True])
    """
    if hyper.mixed_classes == "all":
        return None
    many = shot_groups(counts)["many"]
    chosen = many if hyper.mixed_classes == "many" else ~many
    if not chosen.any() or chosen.all():
        raise ValueError(
            f"hyper.mixed-classes {hyper.mixed_classes}: {int(many.sum())} of {len(counts)} "
            "classes have more than 100 training images, so BatchFormer would be on "
            f"{'all' if chosen.any() else 'none'} of them; leave hyper.mixed-classes all."
        )
    return chosen


class RideMethod(Method):
    """E diverse experts with margins, re-weighted late; one BatchFormer mixes features of each.

    Args:
        module: BatchFormer's settings; the paper uses ``streams="mixed_only"`` on ImageNet-LT and
            iNaturalist, while CIFAR needs the shared classifier.
        teacher: a trained network that the experts' mean is distilled from, or None.

    Attributes:
        mixed_classes: (K,) bool, the classes that BatchFormer is applied to; None: all.
    """

    mixed_classes: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
        teacher: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, RideNetwork):
            raise ValueError(
                f"ride needs a network of several experts, such as ride_resnet32; "
                f"{type(network).__name__} has one classifier."
            )
        self.network, self.config = network, module
        self.hyper = hyper
        self.module_lr_factor = module.lr_factor
        self.criterion = RIDE(
            class_counts,
            diversity=self.hyper.diversity,
            temperature_factor=self.hyper.temperature_factor,
            largest=self.hyper.margin,
            scale=self.hyper.scale,
            beta=self.hyper.reweight_beta,
        )
        # Features are (E, N, C): to the encoder experts are positions, which do not mix.
        self.encoder = make_encoder(network.num_features, module, seed, batch_axis=1)
        chosen = None if self.encoder is None else mixed_classes(class_counts, self.hyper)
        self.register_buffer("mixed_classes", chosen, persistent=False)
        self.teacher = None if teacher is None else teacher.requires_grad_(False)

    def train(self, mode: bool = True) -> RideMethod:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.train(mode and self.hyper.teacher_mode == "train")
        return self

    def expert_logits(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits as trained: ``(E, 2N, K)`` in training with shared streams, else ``(E, N, K)``.

        Labels (N,) are needed if BatchFormer is applied to some classes alone; without them it is
        applied to all.
        """
        plain = self.network.expert_features(x)
        rows = apply_encoder(self.encoder, plain, self.config)
        if self.mixed_classes is not None and labels is not None:
            others, mixed = rows.tensor_split((-len(x),), dim=1)
            mixed = torch.where(self.mixed_classes[labels][:, None], mixed, plain)
            rows = torch.cat((others, mixed), dim=1)
        return self.network.expert_logits(rows)

    def forward(self, x: Tensor) -> Tensor:
        """The experts' mean, ``(2N, K)`` in training with shared streams, else ``(N, K)``."""
        return self.expert_logits(x).mean(0)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.expert_logits(batch["x"], batch["y"]).transpose(0, 1)
        with torch.no_grad():
            taught = None if self.teacher is None else self.teacher(batch["x"])
        targets = batch["y"], taught
        return {"loss": loss_of_streams(self._criterion, rows, targets, self.config)}

    def _criterion(self, rows: Tensor, targets: tuple[Tensor, Tensor | None]) -> Tensor:
        """Loss of rows (N, E, K) of one stream."""
        logits, (labels, teacher) = rows.transpose(0, 1), targets
        loss: Tensor = self.criterion(logits, labels)
        if teacher is None:
            return loss
        return ride_with_teacher(
            loss,
            logits,
            teacher,
            temperature=self.hyper.distillation_temperature,
            factor=self.hyper.distillation_factor,
            distillation_count=self.hyper.distillation_count,
        )

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits

    def relations(self) -> Relations | None:
        """Relations of the experts' mean; the loss is that of a single expert with these logits."""

        def features(x: Tensor) -> Tensor:
            return self.network.expert_features(x).transpose(0, 1)

        def classify(rows: Tensor) -> Tensor:
            return self.network.expert_logits(rows.transpose(0, 1)).mean(0)

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            value: Tensor = self.criterion(logits.unsqueeze(0), labels)
            return value

        mixed_only = self.config.streams == "mixed_only"
        return Relations(self, features, classify, loss, self.encoder, mixed_only)

    def begin_epoch(self, epoch: int) -> None:
        self.criterion.reweighted = epoch >= self.hyper.reweight_epoch

    def phase(self) -> Hashable:
        return self.criterion.reweighted


# The last stage: experts run one after the other, while a router says it is worth it.


def running_means(expert_logits: Tensor) -> Tensor:
    """Logits (E, N, K) to the means of the first 1, 2, ..., E experts, (E, N, K)."""
    numbers = torch.arange(1, len(expert_logits) + 1, device=expert_logits.device)
    return expert_logits.cumsum(0) / numbers.view(-1, 1, 1)


def worth_going_on(means: Tensor, targets: Tensor) -> Tensor:
    """(E - 1, N) bool: where an answer is wrong now and right with some more experts.

    Args:
        means: (E, N, K) of :func:`running_means`.
        targets: (N,) class indices.

    >>> means = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    >>> worth_going_on(means, torch.tensor([1])).flatten()
    tensor([True, True])
    >>> worth_going_on(means, torch.tensor([0])).flatten()
    tensor([False, False])
    """
    right = means.argmax(-1) == targets
    right_later = right.flip(0).int().cummax(0).values.flip(0).bool()
    return ~right[:-1] & right_later[1:]


class ExpertRouters(nn.Module):
    """For every expert but the last, a score above 0 where the next expert should run.

    Each expert has its own layer for its features. All share the output layer, which takes that
    layer's output and the largest logits so far.

    Args:
        top: how many of the largest logits are used, in falling order.
        width: channels of the layers for features.
    """

    def __init__(self, experts: int, in_features: int, top: int, width: int) -> None:
        super().__init__()
        self.top = top
        self.hidden = nn.ModuleList(nn.Linear(in_features, width) for _ in range(experts - 1))
        self.output = nn.Linear(width + top, 1)

    def forward(self, expert: int, features: Tensor, mean_logits: Tensor) -> Tensor:
        """Scores (N,) after an expert with features (N, C) and the running mean (N, K)."""
        hidden = F.relu(self.hidden[expert](F.normalize(features, dim=1)))
        largest = mean_logits.topk(self.top, dim=1).values
        scores: Tensor = self.output(torch.cat((hidden, largest.to(hidden.dtype)), 1))
        return scores.squeeze(1)


class AssignedExperts(Method):
    """Trains routers on a trained network of experts, which is frozen.

    BatchFormer takes no part here. It may have taken part in the run that this one starts from.
    """

    asked: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
    ) -> None:
        super().__init__()
        if not isinstance(network, RideNetwork) or network.experts < 2:
            raise ValueError(
                f"ride_assignment needs a network of at least two experts, such as ride_resnet32, "
                f"got {type(network).__name__}."
            )
        self.network, self.hyper = network.requires_grad_(False), hyper
        top = min(self.hyper.router_top, network.num_classes)
        width = self.hyper.router_width
        with drawing(seed, "weights", 1):
            self.routers = ExpertRouters(network.experts, network.num_features, top, width)
        weight = torch.tensor(self.hyper.router_positive_weight)
        self.register_buffer("positive_weight", weight, persistent=False)
        # Samples that each expert saw since the last call of `further_scores`.
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
        """As :meth:`predict`: this stage has no second stream."""
        return self.predict(x)

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, K): for each sample, the mean over the experts that saw it.

        An expert computes only on the samples that were routed to it.
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

    def deployed(self) -> nn.Module:
        raise ValueError(
            "ride_assignment decides by routers which experts see an image, and an exported "
            "network has no routers. Export the run that this one starts from: it answers with all "
            "experts."
        )

    def further_scores(self) -> dict[str, float]:
        """Computation saved compared with running all experts, in percent, since the last call."""
        asked = summed(self.asked) if world_size() > 1 else self.asked
        samples = int(asked[0])
        if not samples or self.costs is None:
            return {}
        trunk, branch = self.costs
        spent = trunk + branch * int(asked.sum()) / samples
        self.asked.zero_()
        return {"saved_computation": 100 * (1 - spent / (trunk + branch * self.network.experts))}


def _costs(network: RideNetwork, x: Tensor) -> tuple[int, int]:
    """FLOPs for one image: of the shared trunk, and of one expert."""
    with torch.no_grad(), FlopCounterMode(display=False) as trunk:
        maps = network.shared(x)
    with torch.no_grad(), FlopCounterMode(display=False) as branch:
        network.branches[0](maps)
    return trunk.get_total_flops(), branch.get_total_flops()
