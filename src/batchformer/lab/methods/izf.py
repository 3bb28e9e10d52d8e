"""IZF (Shen et al., 2020), the invertible zero-shot flow: a reversed map generates features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import OptimConfig, require
from batchformer.lab.engine.optim import build_optimizer
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.izf import centre_loss, flow_loss, negative_mmd
from batchformer.lab.methods.generated_features import GeneratedFeatures, new_encoder
from batchformer.lab.models.flow import Flow
from batchformer.nn.randomness import drawing
from batchformer.plug.attach import param_groups


class Izf(GeneratedFeatures):
    """An invertible network maps features to attributes and a free part.

    Run backwards, from the attributes of a class and noise, it generates features. Three losses
    train it: the likelihood of real features; the distance between the mean of a class and what is
    generated from its attributes with a free part of 0; and the negative MMD between real features
    and generated ones of unseen classes, which keeps the two apart.

    No official code was released, so this follows later implementations (see ``losses/izf.py`` and
    ``models/flow.py``). Our choice: attributes are scaled to the size of the noise
    (``hyper.attribute_scale``); the flow starts from features of mean 0 and variance 1; each
    generated feature of the MMD is of a random unseen class; and BatchFormer mixes the features in
    the training of the final classifier. It cannot act inside the flow: if samples are mixed, no
    sample has a Jacobian of its own.
    """

    def __init__(
        self, features: Tensor, attributes: Tensor, hyper: MethodConfig, **options: Any
    ) -> None:
        dim, channels = features.shape[1], attributes.shape[1]
        require(
            dim > channels,
            f"izf maps features to attributes and a free part, and {dim} channels of features "
            f"leave none beside {channels} attributes; give fewer, or set --method ce_gzsl",
        )
        scaled = hyper.attribute_scale * math.sqrt(channels) * F.normalize(attributes, dim=1)
        super().__init__(features, scaled, hyper=hyper, **options)
        self.noise_channels = dim - channels
        with drawing(self.seed, "weights"):
            self.flow = Flow(dim, hyper.flow_hidden, hyper.flow_blocks)
        self.flow.standardise(features)
        self.add_classifier(dim)
        self.encoder = new_encoder(features, self.config, self.seed)

    def generate(self, noise: Tensor, y: Tensor) -> Tensor:
        return self.flow.inverse(torch.cat((self.attributes[y], noise), dim=1))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The three losses on a batch ``x`` (N, D), ``y`` (N,)."""
        x, y, hyper = batch["x"], batch["y"], self.hyper
        mapped, log_det = self.flow(x)
        flow = flow_loss(mapped, log_det, self.attributes[y])
        other = self.unseen[torch.randint(len(self.unseen), (len(x),), device=x.device)]
        noise = torch.randn(len(x), self.noise_channels, device=x.device)
        nothing = noise.new_zeros(len(self.seen), self.noise_channels)
        # Both in one call, because the inverse costs most.
        made = self.generate(torch.cat((nothing, noise)), torch.cat((self.seen, other)))
        centres, fakes = made.tensor_split((len(self.seen),))
        centre = centre_loss(centres, x, self.place[y])
        apart = negative_mmd(x, fakes)
        loss = hyper.likelihood * flow + hyper.centring * centre + hyper.separation * apart
        return {"loss": loss, "flow": flow, "centre": centre, "apart": apart}

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        self.require_whole_weights(optimizer_step)
        return optimizer_step.minimise(self.step, batch, optimizers["flow"], self.flow.parameters())

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return {"flow": build_optimizer(param_groups(self.flow, optim.lr), optim)}
