"""CE-GZSL (Han et al., 2021): a classifier of unseen classes, trained on generated features."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optim import build_optimizer, parameters_of
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.ce_gzsl import class_contrast, gradient_penalty, supervised_contrast
from batchformer.lab.methods.classifier import JOINT_SCALES, apply_encoder, make_encoder
from batchformer.lab.methods.generated_features import AdversarialFeatures, frozen
from batchformer.lab.models.generator import Comparator, Critic, Embedding, Generator
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import duplicate, match, stream_loss
from batchformer.plug.attach import param_groups

#: Channels of the embedding h, of the directions z, and of the comparator's hidden layer.
EMBEDDING, DIRECTION, COMPARATOR = 2048, 512, 2048


class CeGzsl(AdversarialFeatures):
    """A generator trained against a critic, and an embedding and comparator trained by contrast.

    Each batch of an update gives one step of critic, embedding and comparator, and the last one
    also a step of the generator. Gradients are zeroed before each step; the released code does not
    zero those of the comparator, so that they add up over an epoch. The final classifier sees the
    embeddings of features.

    ``hyper.module_at`` says where BatchFormer acts: "embedding" mixes h while embedding and
    comparator are trained, and both get both streams; "classifier" mixes h in the classifier's
    training. The generator's loss and predictions use the plain stream.

    Args:
        embedding: H, channels of h.
        direction: channels of z.
        comparator: channels of the comparator's hidden layer.
    """

    def __init__(
        self,
        features: Tensor,
        attributes: Tensor,
        embedding: int = EMBEDDING,
        direction: int = DIRECTION,
        comparator: int = COMPARATOR,
        **options: Any,
    ) -> None:
        super().__init__(features, attributes, **options)
        hyper, channels, dim = self.hyper, attributes.shape[1], features.shape[1]
        self.noise_channels = hyper.noise
        with drawing(self.seed, "weights"):
            self.generator = Generator(channels, hyper.noise, hyper.gan_hidden, dim)
            self.critic = Critic(dim, channels, hyper.gan_hidden)
            self.embedding = Embedding(dim, embedding, direction)
            self.comparator = Comparator(embedding, channels, comparator)
        self.add_classifier(embedding)
        inside = hyper.module_at == "embedding"
        self.encoder = make_encoder(embedding, self.config, self.seed) if inside else None
        if inside:
            self.classifier_module = ModuleConfig(enabled=False)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The critic's step: the losses of critic, embedding and comparator on one batch.

        Args:
            batch: ``x`` (N, D), ``y`` (N,), ``noise`` (N, Z) and ``share`` (N, 1).
        """
        x, y = batch["x"], batch["y"]
        attributes = self.attributes[y]
        with torch.no_grad():
            fake = self.generator(batch["noise"], attributes)
        # The critic minimises it; its negative estimates the distance of the distributions.
        difference = self.critic(fake, attributes).mean() - self.critic(x, attributes).mean()
        penalty = gradient_penalty(self.critic, x, fake, attributes, batch["share"])
        instance, classes = self.contrasts(self.streams(self.embedding(x)), y)
        loss = difference + self.hyper.gradient_penalty * penalty + instance + classes
        parts = {"distance": -difference, "penalty": penalty}
        return {"loss": loss, **parts, "instance": instance, "classes": classes}

    def generator_step(self, batch: Batch) -> dict[str, Tensor]:
        """The generator's step: the weighted contrasts of its features minus the critic's score."""
        y, temperature = batch["y"], self.hyper.contrast_temperature
        attributes = self.attributes[y]
        fake = self.generator(batch["noise"], attributes)
        h = self.embedding(fake)
        z = self.embedding.direction(h)
        with torch.no_grad():
            real = self.embedding.direction(self.embedding(batch["x"]))
        instance = supervised_contrast(torch.cat((z, real)), duplicate(y), temperature)
        scores = self.comparator(h, self.attributes[self.seen])
        classes = class_contrast(scores, self.place[y], temperature)
        judged = self.critic(fake, attributes).mean()
        return {"loss": self.hyper.contrast * (instance + classes) - judged}

    def forward(self, x: Tensor) -> Tensor:
        """The comparator's scores of seen classes, as trained (2N, S); in eval (N, S)."""
        scores: Tensor = self.comparator(
            self.streams(self.embedding(x)), self.attributes[self.seen]
        )
        return scores

    def streams(self, h: Tensor) -> Tensor:
        """What embedding and comparator are trained on: (2N, H) of h (N, H) with shared streams."""
        return apply_encoder(self.encoder, h, self.config)

    def contrasts(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The contrast of samples, over all rows of both streams, and the contrast of classes.

        Args:
            rows: (N, H) or (2N, H).
            y: (N,) class numbers.
        """
        temperature, scale = self.hyper.contrast_temperature, self.config.loss_scale
        z = self.embedding.direction(rows)
        instance = supervised_contrast(z, match(rows, y), temperature)
        if len(rows) != len(y):
            instance = instance * JOINT_SCALES[scale]
        scores = self.comparator(rows, self.attributes[self.seen])
        classes = stream_loss(
            lambda out, target: class_contrast(out, target, temperature),
            scores,
            self.place[y],
            loss_scale=scale,
        )
        return instance, classes

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        """One step of the critic on each part of the rows, then one step of the generator."""
        parts, last = self.critic_parts(batch, optimizer_step)
        losses: dict[str, Tensor] = {}
        for part in parts:
            losses = optimizer_step.minimise(
                self.step, part, optimizers["critic"], parameters_of(optimizers["critic"])
            )
        with frozen(self.critic, self.embedding, self.comparator):
            made = optimizer_step.minimise(
                self.generator_step, last, optimizers["generator"], self.generator.parameters()
            )
        return {**losses, "generator": made["loss"]}

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        trained: list[nn.Module] = [self.critic, self.embedding, self.comparator]
        if self.encoder is not None:
            trained.append(self.encoder)
        critic = param_groups(nn.ModuleList(trained), optim.lr, self.module_lr_factor)
        generator = param_groups(self.generator, optim.lr)
        return {
            "critic": build_optimizer(critic, optim),
            "generator": build_optimizer(generator, optim),
        }

    def generate(self, noise: Tensor, y: Tensor) -> Tensor:
        made: Tensor = self.generator(noise, self.attributes[y])
        return made

    def inputs(self, x: Tensor) -> Tensor:
        h: Tensor = self.embedding(x)
        return h

    def deployed(self) -> nn.Module:
        """Features to logits: the embedding's layer and the classifier."""
        layers = nn.Sequential(self.embedding.hidden, nn.ReLU(), self.classifier)
        return copy.deepcopy(layers)
